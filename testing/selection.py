"""What the flags of the commands that work on ops choose from."""

import glob
import importlib
import os
from collections.abc import Sequence

from absl import app, flags

import ops


def _specs() -> dict[str, str]:
    """Op -> module of its spec. ops/scan/spec.py is of the op scan, ops/scan/bwd_spec.py of
    scan_bwd."""
    found = {}
    for root in ops.__path__:  # one folder can be on sys.path twice
        for path in glob.glob(os.path.join(root, "*", "*spec.py")):
            folder, file = os.path.split(path)
            name, stem = os.path.basename(folder), file.removesuffix(".py")
            if stem == "spec" or stem.endswith("_spec"):
                found[f"{name}_{stem}".removesuffix("_spec")] = f"ops.{name}.{stem}"
    return found


def spec_modules() -> list[str]:
    """Modules that hold the SPEC of an op."""
    return sorted(_specs().values())


def available_ops() -> list[str]:
    """Every op with a spec in a folder of ops/. Nothing is imported: the device must be prepared
    before Triton is."""
    return sorted(_specs())


def spec_module(op: str) -> str:
    """The module that holds the SPEC of one of `available_ops`."""
    return _specs()[op]


def chosen_ops(flag: flags.FlagHolder) -> list[str]:
    """The ops of a list flag, by their names or that of a folder of several; all by default."""
    parts: dict[str, list[str]] = {}
    for op in available_ops():
        parts.setdefault(spec_module(op).split(".")[1], []).append(op)
    names = chosen(flag, sorted({*available_ops(), *parts}))
    return list(dict.fromkeys(op for name in names for op in parts.get(name, [name])))


def compile_folders(names: Sequence[str], architectures: Sequence[str]) -> list[str]:
    """What the NPU compiler made of these ops' kernels: folders that Bazel lays beside each op's
    spec; none without Bazel."""
    paths = []
    for name in names:
        module = importlib.import_module(spec_module(name))
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
