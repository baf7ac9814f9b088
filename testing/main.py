"""The main function of every test: absltest's, plus a failure when no test ran.

absltest passes when `--test_filter` matches nothing. A mistyped filter would look green, so here it
fails with exit code 5.
"""

import sys

from absl.testing import absltest


class _CountingLoader(absltest.TestLoader):
    """Counts the tests that the filter lets through, before sharding takes its part of them."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def getTestCaseNames(self, testCaseClass):
        names = super().getTestCaseNames(testCaseClass)
        self.count += len(names)
        return names


def main() -> None:
    """Runs the tests of the calling module and exits: 0 all passed, 1 a test failed, 5 no test
    matched."""
    loader = _CountingLoader()
    try:
        absltest.main(testLoader=loader)
    except SystemExit as stop:
        if not stop.code and not loader.count:
            print("no test ran: the filter matches none of this target's tests", file=sys.stderr)
            sys.exit(5)
        raise
