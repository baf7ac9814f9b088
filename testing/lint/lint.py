"""Checks the whole tree: `./bazelw run //testing/lint`; `-- --fix` repairs what can be repaired.

ruff (rules and format) and mypy with the settings of pyproject.toml, buildifier (rules and format).
Prints one line per tool and exits with 1 if one found something. Buildifier comes from npm; where
there is none it is reported as not run.
"""

import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator

from absl import app, flags

_FIX = flags.DEFINE_bool("fix", False, "Repair formats and what the rules can repair themselves.")
_BUILDIFIER = flags.DEFINE_string("buildifier", None, "Path of the program.")

PYTHON_FOLDERS = ("ops", "testing", "third_party")
BAZEL_FILES = ("BUILD.bazel", "MODULE.bazel", "WORKSPACE")
TYPED_DISTRIBUTIONS = ("absl_py", "jinja2", "markupsafe", "numpy", "safetensors", "uv")
TIMEOUT_S = 300  # mypy has been seen not to end; the whole lint takes seconds
NOT_THERE = 127  # the exit code of third_party/buildifier's stand-in


def bazel_files(root: pathlib.Path) -> Iterator[pathlib.Path]:
    """Every BUILD.bazel, .bzl, WORKSPACE and MODULE.bazel, without Bazel's links to its outputs."""
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = [
            name for name in subfolders if not name.startswith((".", "bazel-", "node_modules"))
        ]
        for name in files:
            if name in BAZEL_FILES or name.endswith(".bzl"):
                yield pathlib.Path(folder, name).relative_to(root)


def commands(root: pathlib.Path, fix: bool, buildifier: str) -> dict[str, list[str]]:
    """Tool -> command, each run in `root`."""
    ruff = [sys.executable, "-m", "ruff"]
    files = sorted(map(str, bazel_files(root)))
    fixed_lint = ["-mode=fix", "-lint=fix"]
    return {
        "ruff check": [*ruff, "check", "--quiet", *(["--fix"] if fix else [])],
        "ruff format": [*ruff, "format", "--quiet", *([] if fix else ["--check", "--diff"])],
        "mypy": [sys.executable, "-m", "mypy", *PYTHON_FOLDERS],
        "buildifier": [buildifier, *(fixed_lint if fix else ["-mode=diff", "-lint=warn"]), *files],
    }


def outcome(command: list[str], root: pathlib.Path, environment: dict[str, str]) -> str:
    """Runs one tool and prints what it found; returns "passed", "failed" or "NOT RUN: why"."""
    try:
        result = subprocess.run(
            command,
            check=False,
            cwd=root,
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as error:
        print(error)
        return "failed"
    if result.returncode == NOT_THERE:
        return f"NOT RUN: {result.stdout.strip()}"
    if result.returncode:
        print(result.stdout + result.stderr)
        return "failed"
    return "passed"


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments: {argv[1:]}")
    root = pathlib.Path(os.environ["BUILD_WORKSPACE_DIRECTORY"])
    buildifier = os.path.abspath(str(_BUILDIFIER.value))
    # mypy does not search PYTHONPATH, and refuses to see the packages that it carries itself.
    typed = [path for path in sys.path if os.path.basename(path) in TYPED_DISTRIBUTIONS]
    environment = {**os.environ, "MYPYPATH": os.pathsep.join([str(root), *typed])}

    outcomes = {
        tool: outcome(command, root, environment)
        for tool, command in commands(root, _FIX.value, buildifier).items()
    }
    for tool, word in outcomes.items():
        print(f"lint: {tool} {word}")
    if "failed" in outcomes.values():
        sys.exit(1)


if __name__ == "__main__":
    flags.mark_flag_as_required("buildifier")
    app.run(main)
