"""What the flags of the commands that work on ops choose from."""

import glob
import importlib
import os
from collections.abc import Sequence

from absl import app, flags

import ops


def available_ops() -> list[str]:
    """Every folder of ops/ that has a spec. Nothing is imported: the device must be prepared before
    Triton is."""
    specs = (
        path for root in ops.__path__ for path in glob.glob(os.path.join(root, "*", "spec.py"))
    )
    # One folder can be on sys.path twice.
    return sorted({os.path.basename(os.path.dirname(path)) for path in specs})


def compile_folders(names: Sequence[str], architectures: Sequence[str]) -> list[str]:
    """What the NPU compiler made of these ops' kernels: folders that Bazel lays beside each op's
    spec; none without Bazel."""
    paths = []
    for name in names:
        module = importlib.import_module(f"ops.{name}.spec")
        folder = os.path.dirname(module.__file__ or "")
        paths += [os.path.join(folder, f"{name}_compile_{each}") for each in architectures]
    return [path for path in paths if os.path.isdir(path)]


def chosen(flag: flags.FlagHolder, valid: Sequence[str]) -> list[str]:
    """The values of a list flag; UsageError naming the valid ones when one is not among them."""
    if flag.value is not None and not flag.value:
        raise app.UsageError(f"--{flag.name}: got nothing; valid are {', '.join(valid)}")
    unknown = [value for value in flag.value or [] if value not in valid]
    if unknown:
        raise app.UsageError(
            f"--{flag.name}: got {', '.join(unknown)}; valid are {', '.join(valid)}"
        )
    return list(flag.value or valid)
