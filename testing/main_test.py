"""Runs a small test file as Bazel would and looks at its exit code."""

import os
import subprocess
import sys

from absl.testing import parameterized

from testing import main

_TESTS = """
from absl.testing import absltest
from testing import main

class Small(absltest.TestCase):
    def test_one(self):
        pass
    def test_two(self):
        {body}

main.main()
"""


class MainTest(parameterized.TestCase):
    def _run(self, body="pass", **variables):
        path = self.create_tempfile("small.py", _TESTS.format(body=body)).full_path
        variables |= {"PYTHONPATH": os.pathsep.join(sys.path), "PATH": os.environ.get("PATH", "")}
        return subprocess.run(
            [sys.executable, path], env=variables, capture_output=True, text=True, check=False
        )

    def test_passes_and_fails(self):
        self.assertEqual(self._run().returncode, 0)
        self.assertEqual(self._run("self.fail()").returncode, 1)

    def test_a_filter_that_matches_something_passes(self):
        self.assertEqual(self._run("self.fail()", TESTBRIDGE_TEST_ONLY="test_one").returncode, 0)

    def test_a_filter_that_matches_nothing_fails(self):
        done = self._run(TESTBRIDGE_TEST_ONLY="test_three")
        self.assertEqual(done.returncode, 5)
        self.assertIn("no test ran", done.stderr)

    @parameterized.parameters("0", "1", "2")
    def test_an_empty_shard_passes(self, index):
        shards = {"TEST_TOTAL_SHARDS": "3", "TEST_SHARD_INDEX": index}
        self.assertEqual(self._run(**shards).returncode, 0)


if __name__ == "__main__":
    main.main()
