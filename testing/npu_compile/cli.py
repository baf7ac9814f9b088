"""Compiles an op's kernels, or one of your own, for Ascend's architectures on this machine.

    ./bazelw run //testing:npu_compile -- --op=mamba3_siso_fwd --case=example --out=stages
    ./bazelw run //testing:npu_compile -- --kernel=my_module:my_kernel \
        --signature=x=*fp32,out=*fp32,size=i32 --constants=BLOCK=1024
Prints the report and keeps every stage. No NPU, no CANN, no driver. Modules are found in the
current folder too. Without Bazel: python3 -m testing.npu_compile.cli, with the same flags.
"""

import ast
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from absl import app, flags

from testing import command, selection, spec
from testing.npu_compile import chain, chips, compiling, report
from testing.npu_compile.result import Result
from testing.npu_compile.specialisation import Call, dump

if TYPE_CHECKING:
    from testing.npu_compile import planning

_OPS = flags.DEFINE_list("op", None, "Ops to compile, separated by commas. Default: all.")
_CASES = flags.DEFINE_list("case", None, "Cases to compile, by name. Default: all.")
_ARCHS = flags.DEFINE_list(
    "arch", None, f"Architectures ({', '.join(chips.ARCHITECTURES)}). Default: all."
)
_CHIPS = flags.DEFINE_list(
    "chip", None, "Chips, by the compiler's names. Default: the first of each architecture."
)
_KERNEL = flags.DEFINE_string("kernel", None, "A kernel to compile instead, as module:function.")
_SIGNATURE = flags.DEFINE_string(
    "signature",
    "",
    "Its run-time arguments: name=type,..., types as in Triton (*fp16, i32); i32:16 is an integer "
    "that is a multiple of 16.",
)
_CONSTANTS = flags.DEFINE_string("constants", "", "Its constants: name=value,...")
_OPTIONS = flags.DEFINE_string("options", "", "Compiler options: name=value,...")
_LIMIT = flags.DEFINE_float("limit_s", chain.DEFAULT_LIMIT_S, "Seconds for one compilation.")
_OUT = flags.DEFINE_string(
    "out", None, "Folder for the stages, relative to where you are. Default: a temporary one."
)


def pairs(flag: str, text: str) -> dict[str, str]:
    """`a=1,b=x` -> {"a": "1", "b": "x"}."""
    found = {}
    for part in filter(None, text.split(",")):
        name, equals, value = part.partition("=")
        if not name or not equals:
            raise app.UsageError(f"--{flag}: got {part!r}; valid is name=value,name=value")
        found[name.strip()] = value.strip()
    return found


def literal(text: str) -> int | float | bool | str | None:
    """The Python constant that a text is, else the text."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
    return value if value is None or isinstance(value, bool | int | float | str) else text


def _chosen_chips(architecture: chips.Architecture) -> list[str]:
    named = [chip for chip in architecture.chips if chip in (_CHIPS.value or ())]
    return named or ([] if _CHIPS.value else list(architecture.chips)[:1])


def _planners() -> "list[planning.Planner]":
    names = selection.chosen(_ARCHS, list(chips.ARCHITECTURES))
    architectures = [chips.ARCHITECTURES[name] for name in names]
    selection.chosen(_CHIPS, [chip for a in architectures for chip in a.chips])
    signature = pairs("signature", _SIGNATURE.value)
    constants = _literals("constants", _CONSTANTS.value)
    options = _literals("options", _OPTIONS.value)
    ops = [spec.load(selection.spec_module(name)) for name in selection.chosen_ops(_OPS)]
    cases = selection.chosen(_CASES, [case.name for op in ops for case in op.cases])

    from testing.npu_compile import planning  # imports Triton

    planned = []
    if _KERNEL.value:
        kernel = planning.Kernel(_KERNEL.value, signature, constants, options)
        for architecture in architectures:
            try:
                planned.append(
                    planning.plan(architecture, _chosen_chips(architecture), kernels=[kernel])
                )
            except (ImportError, AttributeError, ValueError) as error:
                raise app.UsageError(f"--kernel: {error}") from error
        return planned
    for op in ops:
        for architecture in architectures:
            planned.append(planning.plan(architecture, _chosen_chips(architecture), op, cases))
    return planned


def _literals(flag: str, text: str) -> Mapping[str, int | float | bool | str | None]:
    return {name: literal(value) for name, value in pairs(flag, text).items()}


def main(argv: Sequence[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments: {argv[1:]}")
    # `bazel run` starts in the runfiles; the user's own folder is in this variable.
    here = os.environ.get("BUILD_WORKING_DIRECTORY", os.getcwd())
    sys.path.append(here)
    planners = _planners()

    from testing.npu_compile import frontend  # imports Triton

    out = os.path.join(here, _OUT.value) if _OUT.value else tempfile.mkdtemp(prefix="npu_compile_")
    total = sum(len(unit.chips) for planner in planners for unit in planner.units.values())
    results: list[Result] = []
    calls: list[Call] = []
    for planner in planners:
        calls += planner.calls
        for key, unit in planner.units.items():
            frontend.lower(unit, planner.kernels[key], planner.architecture, _LIMIT.value)
            for chip in unit.chips:
                folder = os.path.join(out, unit.specialisation.kernel, key, chip)
                shutil.rmtree(folder, ignore_errors=True)  # an earlier run's stages
                result = compiling.compile_unit(
                    unit, planner.architecture, chip, folder, _LIMIT.value
                )
                results.append(result)
                print(
                    f"[{len(results)}/{total}] {result.label}: {result.verdict} "
                    f"({result.seconds:.1f} s)",
                    flush=True,
                )
    print("\n" + report.text(results, calls))
    os.makedirs(out, exist_ok=True)
    dump(os.path.join(out, "npu_compile.json"), [result.to_json() for result in results])
    print(f"\nstages and npu_compile.json: {out}")
    sys.exit(bool(report.failures(results, calls)))


if __name__ == "__main__":
    command.run(main)
