"""Tests of swiglu's argument contract: a message names the argument and what it got."""

import torch
from absl.testing import absltest, parameterized

from ops.swiglu import contract

_HALF = torch.float16


class CheckTest(parameterized.TestCase):
    def test_good_arguments(self):
        for shape in ((), (0,), (2, 3)):
            contract.check(torch.zeros(shape, dtype=_HALF), torch.zeros(shape, dtype=_HALF))

    @parameterized.parameters(
        (None, TypeError, "^up: got NoneType"),
        (torch.zeros(2, 3), TypeError, "^up: got dtype torch.float32"),
        (torch.zeros(3, 2, dtype=_HALF), ValueError, "^up: got shape"),
        (torch.zeros(2, 3, dtype=_HALF, device="meta"), ValueError, "^up: got device meta"),
        (torch.zeros(2, 3, dtype=_HALF, requires_grad=True), NotImplementedError, "^up: got"),
    )
    def test_refusals(self, up, kind, message):
        with self.assertRaisesRegex(kind, message):
            contract.check(torch.zeros(2, 3, dtype=_HALF), up)


if __name__ == "__main__":
    absltest.main()
