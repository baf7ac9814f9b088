"""The main job: judges ops on the best device present, prints one table, writes one HTML report.

    ./bazelw run //testing:check -- --op=mamba3_siso_fwd
Without Bazel, at the repository's root:
    python3 -m testing.check --op=mamba3_siso_fwd --device=cuda
"""

import importlib
import os
import sys
import time
from collections.abc import Sequence

from absl import app, flags

from testing import cases, command, devices, golden, selection, spec
from testing.npu_compile import chips
from testing.npu_compile import report as npu_report

_OPS = flags.DEFINE_list("op", None, "Ops to judge, separated by commas. Default: all.")
_DEVICE = flags.DEFINE_string("device", None, "Device to judge on. Default: the best one present.")
_CASES = flags.DEFINE_list(
    "case", None, "Cases to judge, by name. Default: all that the device can bear."
)
_OUT = flags.DEFINE_string(
    "out", "ascend_ops_report.html", "The HTML report to write; relative to where you are."
)


def _goldens(op: spec.OpSpec) -> golden.Folder | None:
    """The golden folder that Bazel lays beside the op's spec; None without Bazel."""
    module = importlib.import_module(selection.spec_module(op.name))
    folder = os.path.join(os.path.dirname(module.__file__ or ""), f"{op.name}_golden")
    return golden.Folder(folder, op) if os.path.isdir(folder) else None


def _compiled(names: Sequence[str], wanted: Sequence[str]) -> npu_report.Compiled:
    """What the NPU compiler made of the wanted cases' kernels."""
    found = npu_report.Compiled((), ())
    for path in selection.compile_folders(names, list(chips.ARCHITECTURES)):
        found += npu_report.load(path).of_cases(wanted)
    return found


def _work(
    names: Sequence[str], device: devices.Device
) -> tuple[list[tuple[spec.OpSpec, cases.Case]], dict[str, str]]:
    """(op, case) pairs to judge, and the cases that are too much for the device, with the reason. A
    case that is asked for by name is judged, whatever its size."""
    specs = [spec.load(selection.spec_module(name)) for name in names]
    pairs = [(op, case) for op in specs for case in cases.select(op.cases, device.case_tags)]
    wanted = selection.chosen(_CASES, [case.name for _, case in pairs])
    pairs = [(op, case) for op, case in pairs if case.name in wanted]
    if _CASES.value:
        return pairs, {}
    reasons = {(op.name, case.name): device.leaves_out(op, case) for op, case in pairs}
    left_out = {f"{op} {case}": reason for (op, case), reason in reasons.items() if reason}
    return [(op, case) for op, case in pairs if not reasons[op.name, case.name]], left_out


def _compiled_for(device: devices.Simulator, names: Sequence[str]) -> list[str]:
    """The ops whose compiled kernels are here, which the device then executes."""
    found = {name: selection.compile_folders([name], [device.architecture]) for name in names}
    absent = [name for name, folders in found.items() if not folders]
    if absent:
        hint = (
            f"what Ascend's compiler makes of {', '.join(absent)} is not here; "
            f"./bazelw test --config={device.name} //ops/... compiles and judges it"
        )
        if _OPS.value or len(absent) == len(names):
            raise app.UsageError(f"--device: got {device.name}, but {hint}")
        print(f"Left out: {hint}")
    for folders in found.values():
        for folder in folders:
            device.use_compiled(folder)
    return [name for name in names if name not in absent]


def main(argv: Sequence[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments: {argv[1:]}")
    names = selection.chosen_ops(_OPS)
    if _DEVICE.value and _DEVICE.value not in devices.NAMES:
        raise app.UsageError(f"--device: got {_DEVICE.value}; valid are {', '.join(devices.NAMES)}")
    try:
        device = devices.require(_DEVICE.value or devices.best())
    except devices.DeviceNotFoundError as error:
        raise app.UsageError(str(error)) from error
    if isinstance(device, devices.Simulator):
        names = _compiled_for(device, names)
    work, left_out = _work(names, device)
    # `bazel run` starts in the runfiles; the user's own folder is in this variable.
    path = os.path.join(os.environ.get("BUILD_WORKING_DIRECTORY", ""), _OUT.value)
    try:  # before minutes of work, not after
        with open(path, "a", encoding="utf-8"):
            pass
    except OSError as error:
        raise app.UsageError(
            f"--out: got {_OUT.value!r}, which cannot be written: {error}"
        ) from error

    from testing import accuracy, report  # import Triton

    print(f"{len(work)} cases on {device.name} ({device.describe()})", flush=True)
    verdicts = []
    for index, (op, case) in enumerate(work, 1):
        start = time.monotonic()
        verdicts.append(accuracy.judge(op, case, device, _goldens(op)))
        outcome = "pass" if verdicts[-1].passed else "FAIL"
        seconds = time.monotonic() - start
        print(
            f"[{index}/{len(work)}] {op.name} {case.name}: {outcome} ({seconds:.1f} s)", flush=True
        )
    compiled = _compiled(names, [case.name for _, case in work])
    print("\n" + report.accuracy_text(verdicts, left_out))
    if compiled.results:
        print("\n" + npu_report.text(compiled.results, compiled.calls))
    for verdict in verdicts:
        for line in verdict.failures():
            print(line)
    with open(path, "w", encoding="utf-8") as file:
        rows = npu_report.rows(compiled.results, compiled.calls)
        failures = npu_report.failures(compiled.results, compiled.calls)
        title = "Compiled for Ascend, on this machine; see testing/npu_compile/README.md"
        tables = [(title, rows)] if compiled.results else []
        file.write(report.html(verdicts, device.describe(), left_out, tables, failures))
    passed = sum(verdict.passed for verdict in verdicts)
    print(f"\n{passed} of {len(verdicts)} cases pass on {device.name}; report: {path}")
    sys.exit(passed != len(verdicts) or bool(failures))


if __name__ == "__main__":
    command.run(main)
