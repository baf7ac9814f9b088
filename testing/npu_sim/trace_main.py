"""Runs what Ascend's compiler makes of a kernel on the simulated chip; says where its time goes.

    ./bazelw run //testing:npu_trace -- --op=mamba3_siso_fwd --case=example --out=trace.json
    ./bazelw run //testing:npu_trace -- --op=mamba3_siso_fwd --case=example \
        --compare=kernel=my_module:faster_scan --compare=multibuffer=False
    ./bazelw run //testing:npu_trace -- --kernel=my_module:add --grid=4 \
        --args=x_ptr=float32[4096],y_ptr=float32[4096],out_ptr=float32[4096],size=4096 \
        --constants=BLOCK=1024 --compare=BLOCK=512,grid=8 --expect=my_module:expected --rtol=1e-6
Prints a verdict, estimates of time and the bytes moved, each further variant (--compare) beside the
first one, and writes a Chrome trace for chrome://tracing or ui.perfetto.dev. Exits with 1 when a
variant is wrong. The values of a --kernel are judged only against --expect. Each variant is
compiled here, then runs three times: in time order, and twice in a random one. No NPU, no CANN, no
driver. Modules are found in the current folder too. Without Bazel: python3 -m
testing.npu_sim.trace_main, with the same flags.
"""

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from absl import app, flags

from testing import command, devices, selection, spec, tables
from testing.npu_compile import chips
from testing.npu_compile.specialisation import Constant
from testing.npu_sim import summary, trace

if TYPE_CHECKING:
    from testing.npu_sim import executor, variants

_OP = flags.DEFINE_list("op", None, "The op to run, with --case.")
_CASE = flags.DEFINE_list("case", None, "The case of its table to run.")
_KERNEL = flags.DEFINE_string(
    "kernel", None, "A kernel to run instead, as module:function, with --args and --grid."
)
_ARGS = flags.DEFINE_string(
    "args",
    "",
    "Its run-time arguments: name=type[shape] for tensors (float16, bfloat16, float32: normal "
    "numbers; int8, uint8, int16, int32, int64: 0, 1, 2, ...; bool), name=number (an integer, a "
    "float such as 0.001, True, False), name=None; or module:function, which is called once and "
    "returns them by name.",
)
_EXPECT = flags.DEFINE_string(
    "expect",
    None,
    "What a --kernel's tensors should hold after the launch: module:function, which gets copies of "
    "the arguments by name and returns some of the tensors, or arrays, by name.",
)
_RTOL = flags.DEFINE_float("rtol", 0.0, "Of --expect: the error allowed, relative to the value.")
_ATOL = flags.DEFINE_float("atol", 0.0, "Of --expect: the error allowed beside that.")
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


# Which flag sets what a VariantError is about; constants and options have one together.
_FLAGS = ("arch", "args", "case", "expect", "grid", "kernel")
_KERNEL_ONLY = ("args", "expect", "rtol", "atol")


def _mistake(error: "variants.VariantError", compare: str | None = None) -> app.UsageError:
    """compare: the text of the variant, if it is not the first one."""
    from testing.npu_sim import variants

    if compare is not None:
        own = variants.changes(compare)
        if error.setting in own or error.setting not in _FLAGS:
            prefix = f"--compare={compare}"
            return app.UsageError(f"{prefix}: {error.setting}: {error}".replace(": : ", ": "))
    if error.setting in _FLAGS:
        return app.UsageError(f"--{error.setting}: {error}")
    return app.UsageError(f"--constants: {error.setting}: {error}".replace(": : ", ": "))


def _wanted() -> "list[variants.Changes]":
    """The variants to run, the first one without the changes of --compare."""
    from testing.npu_sim import variants

    try:
        constants = variants.changes(_CONSTANTS.value)
    except variants.VariantError as error:
        raise app.UsageError(f"--constants: {error}") from error
    for name in variants.SETTINGS:
        if name in constants:
            raise app.UsageError(f"--constants: got {name}; valid is the flag --{name}")
    first: dict[str, Constant] = {"arch": _ARCH.value, **constants}
    if _GRID.value is not None:
        first["grid"] = _GRID.value
    if _KERNEL.value:
        first["kernel"] = _KERNEL.value
    elif _CASE.value:
        first["case"] = _CASE.value[0]
    found: list[variants.Changes] = [first]
    for text in _COMPARE.value:
        try:
            change = variants.changes(text)
        except variants.VariantError as error:
            raise app.UsageError(f"--compare: {error}") from error
        if not change:
            raise app.UsageError("--compare: got nothing; valid is name=value,name=value")
        if change.get("arch", "arch32") not in chips.ARCHITECTURES:
            raise app.UsageError(
                f"--compare={text}: arch: got {change['arch']!r}; valid are "
                f"{', '.join(chips.ARCHITECTURES)}"
            )
        if "case" in change and _KERNEL.value:
            raise app.UsageError(f"--compare={text}: case: valid with --op only")
        found.append({**first, **change})
    return found


def _run_all() -> "list[variants.Run]":
    if bool(_OP.value) == bool(_KERNEL.value):
        ops = ", ".join(selection.available_ops())
        raise app.UsageError(f"one of --op ({ops}) and --kernel is needed")
    for name in ("case",) if _KERNEL.value else _KERNEL_ONLY:
        if flags.FLAGS[name].present:
            other = "--op" if _KERNEL.value else "--kernel"
            raise app.UsageError(f"--{name}: valid with {other} only")
    for architecture in chips.ARCHITECTURES:  # before Triton is imported
        try:
            devices.get(f"npu-{architecture}-sim").prepare()
        except devices.DeviceNotFoundError as error:
            raise app.UsageError(str(error)) from error
    return _run_kernels(_KERNEL.value) if _KERNEL.value else _run_cases()


def _run_cases() -> "list[variants.Run]":
    names = selection.chosen_ops(_OP)
    if len(names) != 1:
        raise app.UsageError(f"--op: got {', '.join(names)}; valid is one op at a time")
    op = spec.load(selection.spec_module(names[0]))
    cases = [case.name for case in op.cases]
    if not _CASE.value:
        raise app.UsageError(f"--case: got nothing; valid are {', '.join(cases)}")
    if len(selection.chosen(_CASE, cases)) != 1:
        raise app.UsageError(f"--case: got {', '.join(_CASE.value)}; valid is one case at a time")
    wanted = _wanted()

    from testing.npu_sim import variants

    for text, change in zip(_others(), wanted, strict=True):
        if change["case"] not in cases:
            raise app.UsageError(
                f"--compare={text}: case: got {change['case']}; valid are {', '.join(cases)}"
            )
        try:
            variants.check_case(change)
        except variants.VariantError as error:
            raise _mistake(error, text) from error
    runs = []
    for text, change in zip(_others(), wanted, strict=True):
        folders = selection.compile_folders(names, [str(change["arch"])])
        label = f"{op.name} {_CASE.value[0]}" if text is None else text
        try:
            runs.append(variants.run_case(label, op, folders, change, _progress))
        except variants.VariantError as error:
            raise _mistake(error, text) from error
        _print(runs[-1])
    return runs


def _run_kernels(kernel: str) -> "list[variants.Run]":
    if _GRID.value is None:
        raise app.UsageError("--grid: got nothing; --kernel needs it, such as 24 or 4x3x2")
    for flag in (_RTOL, _ATOL):
        if flag.present and _EXPECT.value is None:
            raise app.UsageError(f"--{flag.name}: valid with --expect only")

    from testing.npu_sim import variants

    wanted = _wanted()
    current, tolerated = None, None  # the variant that a mistake is in
    try:
        given = variants.arguments(_ARGS.value)
        for current, change in zip(_others(), wanted, strict=True):  # noqa: B007
            variants.kernel_launch(given, change)
        current = None
        if _EXPECT.value is not None:
            tensors = variants.expected(_EXPECT.value, given)
            tolerated = variants.Tolerated(tensors, _RTOL.value, _ATOL.value)
    except variants.VariantError as error:
        raise _mistake(error, current) from error
    runs: list[variants.Run] = []
    for text, change in zip(_others(), wanted, strict=True):
        label = kernel if text is None else text
        runs.append(variants.run_kernel(label, given, change, tolerated, _progress))
        _print(runs[-1])
        if len(runs) > 1:
            print(f"against the first: {variants.difference(runs[0], runs[-1])}", flush=True)
    return runs


def _others() -> list[str | None]:
    """What each variant has different, as it was written; None for the first one."""
    return [None, *_COMPARE.value]


def _progress(item: "executor.Launch", seconds: float) -> None:
    print(
        f"  call {item.call + 1} of 3: {item.kernel}, {item.programs} programs: {seconds:.1f} s",
        file=sys.stderr,
        flush=True,
    )


def _print(run: "variants.Run") -> None:
    print(f"{run.label} on {run.chip}, simulated: {run.verdict}")
    for line in run.failures:
        print(f"  {line}")
    for kind, message, _, places, times in summary.note_rows([(run.label, run.found)])[1:]:
        print(f"  note: {kind}: {message} at {places} ({times} times)")
    sys.stdout.flush()


def _targets(path: str) -> list[str]:
    """The trace file of each variant; UsageError when one cannot be written."""
    stem, extension = os.path.splitext(path)
    found = [path, *(f"{stem}_{index + 1}{extension}" for index in range(len(_COMPARE.value)))]
    for target in found:
        existed = os.path.exists(target)
        try:
            with open(target, "ab"):
                pass
        except OSError as error:
            raise app.UsageError(
                f"--out: got {target}, which cannot be written: {error.strerror}"
            ) from error
        if not existed:
            os.remove(target)
    return found


def _write(runs: "Sequence[variants.Run]", targets: Sequence[str]) -> None:
    for run, target in zip(runs, targets, strict=True):
        about = f"{run.label} on {run.chip}; {summary.ESTIMATE}; {summary.ASSUMPTIONS}"
        trace.write(target, run.launches, about)
        print(f"trace of {run.label}: {target}")


def main(argv: Sequence[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments: {argv[1:]}")
    # `bazel run` starts in the runfiles; the user's own folder is in this variable.
    here = os.environ.get("BUILD_WORKING_DIRECTORY", os.getcwd())
    sys.path.append(here)
    targets = _targets(os.path.join(here, _OUT.value)) if _OUT.value is not None else []
    runs = _run_all()
    columns = [(run.label, run.summaries) for run in runs if run.launches]
    if columns:
        print(f"\n{summary.ESTIMATE}; {summary.ASSUMPTIONS}")
        print(tables.table(summary.side_by_side(columns)))
    if targets:
        _write(runs, targets)
    sys.exit(any(run.failures for run in runs))


if __name__ == "__main__":
    command.run(main)
