"""Runs what Ascend's compiler makes of a kernel on the simulated chip; says where its time goes.

    ./bazelw run //testing:npu_trace -- --op=mamba3_siso_fwd --case=example --out=trace.json
    ./bazelw run //testing:npu_trace -- --op=mamba3_siso_fwd --case=example \
        --compare=kernel=my_module:faster_scan --compare=multibuffer=False
    ./bazelw run //testing:npu_trace -- --kernel=my_module:add --grid=4 \
        --args=x_ptr=float32[4096],y_ptr=float32[4096],out_ptr=float32[4096],size=4096 \
        --constants=BLOCK=1024 --compare=BLOCK=512,grid=8
Prints a verdict, estimates of time and the bytes moved, each further variant (--compare) beside the
first one, and writes a Chrome trace for chrome://tracing or ui.perfetto.dev. Exits with 1 when a
variant is wrong. No NPU, no CANN, no driver. Modules are found in the current folder too. Without
Bazel: python3 -m testing.npu_sim.trace_main, with the same flags.
"""

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from absl import app, flags

from testing import devices, selection, spec, tables
from testing.npu_compile import chips
from testing.npu_compile.specialisation import Constant
from testing.npu_sim import summary, trace

if TYPE_CHECKING:
    from testing.npu_sim import variants

_OP = flags.DEFINE_list("op", None, "The op to run, with --case.")
_CASE = flags.DEFINE_list("case", None, "The case of its table to run.")
_KERNEL = flags.DEFINE_string(
    "kernel", None, "A kernel to run instead, as module:function, with --args and --grid."
)
_ARGS = flags.DEFINE_string(
    "args",
    "",
    "Its run-time arguments: name=type[shape] for tensors (float16, bfloat16, float32: normal "
    "numbers; int32, int64: 0, 1, 2, ...), name=integer, name=None; or module:function, which "
    "returns them by name.",
)
_GRID = flags.DEFINE_string("grid", None, "Programs per axis, such as 24 or 4x3x2.")
_CONSTANTS = flags.DEFINE_string(
    "constants", "", "Constants of the kernel and options of the compiler: name=value,..."
)
_ARCH = flags.DEFINE_enum("arch", "arch32", list(chips.ARCHITECTURES), "The architecture.")
_COMPARE = flags.DEFINE_multi_string(
    "compare",
    [],
    "What another variant has different, name=value,...: kernel (another one with the same "
    "arguments), case, arch, grid, a constant, an option of the compiler. May be repeated.",
)
_OUT = flags.DEFINE_string(
    "out",
    None,
    "Chrome trace to write, relative to where you are; that of variant n goes to <name>_<n>.json.",
)


def _wanted() -> "list[variants.Changes]":
    """The variants to run, the first one without the changes of --compare."""
    from testing.npu_sim import variants

    flag = ""
    try:
        flag = "constants"
        first: dict[str, Constant] = {
            "arch": _ARCH.value,
            **variants.changes(_CONSTANTS.value),
        }
        if _GRID.value:
            flag = "grid"
            variants.grid(_GRID.value)
            first["grid"] = _GRID.value
        if _KERNEL.value:
            first["kernel"] = _KERNEL.value
        elif _CASE.value:
            first["case"] = _CASE.value[0]
        flag = "compare"
        found: list[variants.Changes] = [first]
        for text in _COMPARE.value:
            change = variants.changes(text)
            if not change:
                raise variants.VariantError("got nothing; valid is name=value,name=value")
            arch = str(change.get("arch", _ARCH.value))
            if arch not in chips.ARCHITECTURES:
                raise variants.VariantError(
                    f"arch: got {arch!r}, valid are {', '.join(chips.ARCHITECTURES)}"
                )
            found.append({**first, **change})
        return found
    except variants.VariantError as error:
        raise app.UsageError(f"--{flag}: {error}") from error


def _run_all() -> "list[variants.Run]":
    if bool(_OP.value) == bool(_KERNEL.value):
        ops = ", ".join(selection.available_ops())
        raise app.UsageError(f"one of --op ({ops}) and --kernel is needed")
    for architecture in chips.ARCHITECTURES:  # before Triton is imported
        try:
            devices.get(f"npu-{architecture}-sim").prepare()
        except devices.DeviceNotFoundError as error:
            raise app.UsageError(str(error)) from error
    if _KERNEL.value:
        return _run_kernels(_KERNEL.value)
    names = selection.chosen(_OP, selection.available_ops())
    if len(names) != 1:
        raise app.UsageError("--op: one op at a time")
    op = spec.load(f"ops.{names[0]}.spec")
    cases = [case.name for case in op.cases]
    if not _CASE.value or len(selection.chosen(_CASE, cases)) != 1:
        raise app.UsageError(f"--case: got nothing; valid are {', '.join(cases)}")
    wanted = _wanted()
    for change in wanted:
        if change["case"] not in cases:
            raise app.UsageError(
                f"--compare: case: got {change['case']}; valid are {', '.join(cases)}"
            )

    from testing.npu_sim import variants

    runs = []
    for label, change in zip(_labels(f"{op.name} {_CASE.value[0]}"), wanted, strict=True):
        folders = selection.compile_folders(names, [str(change["arch"])])
        try:
            runs.append(variants.run_case(label, op, folders, change))
        except variants.VariantError as error:
            raise app.UsageError(f"{label}: {error}") from error
        _print(runs[-1])
    return runs


def _run_kernels(kernel: str) -> "list[variants.Run]":
    if not _GRID.value:
        raise app.UsageError("--kernel: needs --grid, such as 24 or 4x3x2")

    from testing.npu_sim import variants

    runs = []
    for label, change in zip(_labels(kernel), _wanted(), strict=True):
        try:
            runs.append(variants.run_kernel(label, variants.arguments(_ARGS.value), change))
        except variants.VariantError as error:
            raise app.UsageError(f"{label}: {error}") from error
        _print(runs[-1])
        if len(runs) > 1:
            print(f"against the first: {variants.difference(runs[0], runs[-1])}", flush=True)
    return runs


def _labels(first: str) -> list[str]:
    return [first, *_COMPARE.value]


def _print(run: "variants.Run") -> None:
    print(f"{run.label} on {run.chip}, simulated: {'FAIL' if run.failures else 'pass'}")
    for line in run.failures:
        print(f"  {line}")
    for kind, message, _, places, times in summary.note_rows([(run.label, run.found)])[1:]:
        print(f"  note: {kind}: {message} at {places} ({times} times)")
    sys.stdout.flush()


def _write(runs: "Sequence[variants.Run]", path: str) -> None:
    stem, extension = os.path.splitext(path)
    for index, run in enumerate(runs):
        target = f"{stem}_{index}{extension}" if index else path
        about = f"{run.label} on {run.chip}; {summary.ESTIMATE}; {summary.ASSUMPTIONS}"
        try:
            trace.write(target, run.launches, about)
        except OSError as error:
            raise app.UsageError(f"--out: {target} cannot be written: {error}") from error
        print(f"trace of {run.label}: {target}")


def main(argv: Sequence[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments: {argv[1:]}")
    # `bazel run` starts in the runfiles; the user's own folder is in this variable.
    here = os.environ.get("BUILD_WORKING_DIRECTORY", os.getcwd())
    sys.path.append(here)
    runs = _run_all()
    columns = [(run.label, run.summaries) for run in runs if run.launches]
    if columns:
        print(f"\n{summary.ESTIMATE}; {summary.ASSUMPTIONS}")
        print(tables.table(summary.side_by_side(columns)))
    if _OUT.value:
        _write(runs, os.path.join(here, _OUT.value))
    sys.exit(any(run.failures for run in runs))


if __name__ == "__main__":
    app.run(main)
