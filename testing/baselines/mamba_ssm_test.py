"""Tests of what can be tested without the package and a GPU."""

import importlib.metadata
from unittest import mock

from absl.testing import absltest

from testing.baselines import mamba_ssm


class MambaSsmTest(absltest.TestCase):
    def test_a_missing_or_other_version_is_refused(self):
        for found in ("2.2.0", None):
            with mock.patch.object(importlib.metadata, "version") as version:
                version.return_value = found
                if found is None:
                    version.side_effect = importlib.metadata.PackageNotFoundError
                with self.assertRaisesRegex(ImportError, "expected 2.3.2.post1; third_party/base"):
                    mamba_ssm.forward(*[None] * 9)


if __name__ == "__main__":
    absltest.main()
