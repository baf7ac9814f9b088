"""Counts test targets in Bazel's build event files and prints "N passed, N failed".

The standard library only: it also has to report when the build that brings absl has failed.
"""

import argparse
import json
import pathlib
import sys


def statuses(path: pathlib.Path) -> list[str]:
    """The overall status of each test target of one build, such as "PASSED" or "TIMEOUT"."""
    if not path.exists():
        return []
    events = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    return [event["testSummary"]["overallStatus"] for event in events if "testSummary" in event]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tests_status", type=int, required=True, help="0: bazel test succeeded.")
    parser.add_argument("--lint_status", type=int, required=True, help="Exit code of lint.")
    parser.add_argument("events", nargs="+", type=pathlib.Path)
    args = parser.parse_args()

    per_build = [statuses(path) for path in args.events]
    outcomes = [status == "PASSED" for build in per_build for status in build]
    if not all(per_build):
        print("a workspace ran no test")
        outcomes.append(False)
    if args.tests_status and all(outcomes):
        print("the build failed before a test could")
        outcomes.append(False)
    outcomes.append(args.lint_status == 0)
    failed = outcomes.count(False)
    print(f"{outcomes.count(True)} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
