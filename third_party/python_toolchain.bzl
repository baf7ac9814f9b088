"""The interpreter that every Python target runs with: a virtual environment of this machine's Python.

The environment sees the standard library and nothing else of the machine: neither its system
site-packages nor a user's. It is a symbolic link to the interpreter plus a two-line pyvenv.cfg, which
is all that CPython needs to treat it as one, so Debian's python3-venv is not required for it.

`bin/python3` is a launcher that turns on three things before Python starts, wherever a target is run
from (test, build action, `bazel run`, another workspace):
  PYTHONSAFEPATH           without it sys.path[0] is the real source folder of the main file, and files
                           that no BUILD file declares can be imported
  PYTHONNOUSERSITE         ~/.local is not searched
  PYTHONDONTWRITEBYTECODE  nothing is written beside sources when a test runs without a sandbox
"""

_VERSION = "3.11"

_LAUNCHER = """#!/bin/sh
export PYTHONSAFEPATH=1 PYTHONNOUSERSITE=1 PYTHONDONTWRITEBYTECODE=1
unset PYTHONHOME
exec "${0%/*}/python{version}" "$@"
"""

_BUILD = """package(default_visibility = ["//visibility:public"])

exports_files(glob(["bin/*"]))

# The interpreter is a file of this repository, never an absolute path: a path inside the output base
# would make cache keys differ between machines.
py_runtime(
    name = "runtime",
    files = [
        "bin/python{version}",
        "pyvenv.cfg",
    ],
    interpreter = "bin/python3",
    python_version = "PY3",
    # --incompatible_strict_action_env leaves no `python` on PATH, which is Bazel's default here.
    stub_shebang = "#!/usr/bin/env python3",
)

load("@bazel_tools//tools/python:toolchain.bzl", "py_runtime_pair")

py_runtime_pair(
    name = "runtime_pair",
    py3_runtime = ":runtime",
)

toolchain(
    name = "toolchain",
    toolchain = ":runtime_pair",
    toolchain_type = "@bazel_tools//tools/python:toolchain_type",
)
"""

_PROBE = "import os, sys; " + \
         "print('%d.%d' % sys.version_info[:2]); " + \
         "print(os.path.realpath(sys._base_executable))"

_MISSING = """
ascend_ops needs Python {version} (triton-ascend has wheels for no later one); {found}.
Install it (Debian 12: apt-get install python{version}), or point OPS_PYTHON to one:
    OPS_PYTHON=/path/to/python{version} ./bazelw test //...
"""

def _probe(repository_ctx, program):
    """Returns (version, real path) of an interpreter, or (None, reason)."""
    result = repository_ctx.execute([program, "-c", _PROBE])
    lines = result.stdout.strip().split("\n")
    if result.return_code or len(lines) != 2:
        return None, "%s does not run: %s" % (program, result.stderr.strip())
    return lines[0], lines[1]

def _find_python(repository_ctx):
    chosen = repository_ctx.os.environ.get("OPS_PYTHON")
    names = [chosen] if chosen else ["python" + _VERSION, "python3"]
    found = []
    for name in names:
        program = repository_ctx.path(name) if name.startswith("/") else repository_ctx.which(name)
        if not program or not repository_ctx.path(program).exists:
            found.append("no %s" % name)
            continue
        version, path = _probe(repository_ctx, program)
        if version == _VERSION:
            return path
        found.append("%s is Python %s" % (program, version) if version else path)
    fail(_MISSING.format(
        version = _VERSION,
        found = ("OPS_PYTHON: " if chosen else "looked on PATH: ") + ", ".join(found),
    ))

def _python_toolchain_impl(repository_ctx):
    python = _find_python(repository_ctx)
    repository_ctx.symlink(python, "bin/python" + _VERSION)
    repository_ctx.file("bin/python3", _LAUNCHER.replace("{version}", _VERSION))
    repository_ctx.file(
        "pyvenv.cfg",
        "home = %s\ninclude-system-site-packages = false\n" % python.rpartition("/")[0],
        executable = False,
    )
    repository_ctx.file("BUILD.bazel", _BUILD.replace("{version}", _VERSION), executable = False)

python_toolchain = repository_rule(
    implementation = _python_toolchain_impl,
    doc = "Makes the interpreter environment and its toolchain, `//:toolchain`.",
    environ = [
        "OPS_PYTHON",
        "PATH",
    ],
    local = True,
)
