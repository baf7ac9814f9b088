"""Judges one case of one op on one device by the accuracy policy: runs the op and returns every
gate's outcome."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ops.common import backend, launch
from testing import cases, comparator, devices, golden, guard, inputs, spec, standards

if TYPE_CHECKING:  # needs what only simulators need
    from testing.npu_sim import executor

# Gate G6: a second run, a run on other poison, and one on a launch grid of 3 programs (odd, below
# every core count).
_OTHER_GRID = 3
SIMULATOR_GATE = "simulator"
# How many reads of unwritten memory, and atomic additions, G6 names.
_PLACES = 5
# Negative controls are judged on about this many elements: a fault in the last rows of a large
# output is as wrong as in all of it, and five more passes over 67 million elements take minutes.
_FAULT_ELEMENTS = 1 << 20


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The outcome of one case.

    gates: G0 to G6 of every output, and what a simulator found. faults: output -> injected fault ->
    names of the gates that caught it (G7: none may be empty). opinions: output -> other standard ->
    its verdict. errors: counts of |e| / (u (|g| + s)) by power of two, output -> (lower exponents,
    counts), for histograms. simulation: of a simulator, what it saw of all runs.
    """

    op: str
    case: str
    device: str
    gates: Sequence[comparator.Gate]
    faults: Mapping[str, Mapping[str, Sequence[str]]]
    opinions: Mapping[str, Mapping[str, standards.Opinion]]
    errors: Mapping[str, tuple[Sequence[int], Sequence[int]]]
    launches: int
    simulation: "executor.Simulation | None" = None

    @property
    def passed(self) -> bool:
        return all(gate.passed for gate in self.gates) and all(
            caught for output in self.faults.values() for caught in output.values()
        )

    def failures(self) -> list[str]:
        """One line for each gate that failed and each fault that went unnoticed."""
        lines = [
            f"{self.case}: {gate.output}: {gate.name}: "
            + (gate.detail or f"{gate.value:.4g} exceeds {gate.limit:.4g}")
            for gate in self.gates
            if not gate.passed
        ]
        for output, injected in self.faults.items():
            lines += [
                f"{self.case}: {output}: G7 negative control: the fault '{fault}' passed every gate"
                for fault, caught in injected.items()
                if not caught
            ]
        return lines


@dataclasses.dataclass(frozen=True)
class _Run:
    outputs: Mapping[str, torch.Tensor]
    violations: Sequence[str]  # of G0, beside what the values show
    launches: int


def _run(
    op: spec.OpSpec,
    arguments: inputs.Inputs,
    device: devices.Device,
    session: devices.Session,
    poison: int,
) -> _Run:
    """One guarded call of the op."""
    function = spec.resolve(op.function)
    with (
        session.calling(),
        guard.GuardedAllocations(poison) as guarded,
        launch.record() as launches,
    ):
        outputs = spec.results(function(**arguments.arguments), op, arguments.case)
        device.synchronize()
    violations = [f"input {name} or its guard bands changed" for name in arguments.changed()]
    if broken := guarded.broken_bands():
        violations.append(f"the guard bands of {broken} allocations changed")
    return _Run(outputs, violations, len(launches))


def judge(
    op: spec.OpSpec,
    case: cases.Case,
    device: devices.Device,
    goldens: golden.Folder | None,
) -> Verdict:
    """Runs the case and judges it.

    goldens: where the references of `ci` cases are; a case without that tag, or None, computes them
    on the device.
    """
    arguments = inputs.Inputs(case, device.torch_device, op.preparation)
    session = device.session()
    first = _run(op, arguments, device, session, guard.NAN_POISON)
    repeats = [_run(op, arguments, device, session, guard.HUGE_POISON)]
    with backend.limit_programs(_OTHER_GRID):
        repeats.append(_run(op, arguments, device, session, guard.NAN_POISON))
    simulation = session.simulation()
    if goldens is not None and "ci" in case.tags:
        references = goldens.load(case, arguments.digest)
    else:
        references = golden.compute(op, arguments)

    gates: list[comparator.Gate] = []
    faults: dict[str, Mapping[str, Sequence[str]]] = {}
    opinions: dict[str, Mapping[str, standards.Opinion]] = {}
    errors: dict[str, tuple[Sequence[int], Sequence[int]]] = {}
    waivers = [
        waiver for waiver in case.waivers if not waiver.devices or device.name in waiver.devices
    ]
    for output in op.outputs_in(case):
        tensor, reference = first.outputs[output.name], references[output.name]
        if simulation is not None:
            gates.append(_simulator(output, simulation))
        gates.append(_contract(output, tensor, reference, [first, *repeats]))
        if not gates[-1].passed and tuple(tensor.shape) != reference.golden.shape:
            continue  # nothing can be compared
        actual, dtype = inputs.to_numpy(tensor)
        if dtype != reference.dtype:
            continue
        precision = output.precision_in(case)
        gates += comparator.compare(actual, reference, output, precision, waivers)
        same = [same_bits(tensor, run.outputs[output.name]) for run in repeats]
        different = same.count(False)
        detail = ""
        if different and simulation is not None:
            detail = cause(simulation, same, schedule="the schedule or the launch grid")
        gates.append(comparator.Gate(output.name, "G6 determinism", different, 0, detail=detail))
        faults[output.name] = _negative_controls(case, output, actual, reference, waivers)
        if not output.exact:
            a, r = cases.widen(actual, dtype), cases.widen(reference.same, dtype)
            opinions[output.name] = standards.opinions(a, reference.golden, r, dtype)
            errors[output.name] = _histogram(a, reference.golden, output, precision)
    return Verdict(
        op.name,
        case.name,
        device.name,
        gates,
        faults,
        opinions,
        errors,
        first.launches,
        simulation,
    )


def _negative_controls(
    case: cases.Case,
    output: spec.Output,
    actual: np.ndarray,
    reference: golden.Reference,
    waivers: Sequence[cases.Waiver],
) -> Mapping[str, Sequence[str]]:
    """Gate G7: each injected fault and the gates that caught it, judged on the output's last
    rows."""
    last = _last_rows(actual.shape, output)
    small, part = (
        actual[last],
        golden.Reference(reference.golden[last], reference.same[last], reference.dtype),
    )
    precision = output.precision_in(case)
    gain = 1.01
    if output.cancels or output.summed_rows > 1:
        compared = comparator.compare(small, part, output, precision, waivers)
        gain += 2 * max(gate.limit for gate in compared if gate.name == "G1 norm")
    return {
        fault: [
            gate.name
            for gate in comparator.compare(faulty, part, output, precision, waivers)
            if not gate.passed
        ]
        for fault, faulty in comparator.faults(small, output, reference.dtype, gain).items()
    }


def _last_rows(shape: tuple[int, ...], output: spec.Output) -> tuple[slice, ...]:
    """The index of the last rows, about _FAULT_ELEMENTS elements of them, the last block
    included."""
    axis = 0 if output.rows_axis is None else output.rows_axis
    rows = shape[axis]
    elements = max(1, math.prod(shape))
    kept = max(2 * comparator.BLOCK_ROWS, rows * _FAULT_ELEMENTS // elements)
    start = max(0, rows - kept) // comparator.BLOCK_ROWS * comparator.BLOCK_ROWS
    return tuple(slice(start, None) if i == axis else slice(None) for i in range(len(shape)))


def _contract(
    output: spec.Output, tensor: Any, reference: golden.Reference, runs: Sequence[_Run]
) -> comparator.Gate:
    """G0 but for non-finite values: shape, dtype, layout, inputs and guard bands."""
    shape, dtype = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
    violations = [violation for run in runs for violation in run.violations]
    if shape != reference.golden.shape:
        violations.append(f"shape {shape}, expected {reference.golden.shape}")
    if dtype != reference.dtype:
        violations.append(f"dtype {dtype}, expected {reference.dtype}")
    if not tensor.is_contiguous():
        violations.append(f"strides {tensor.stride()}, expected contiguous")
    detail = "; ".join(dict.fromkeys(violations))
    return comparator.Gate(output.name, "G0 contract", len(violations), 0, detail=detail)


def _simulator(output: spec.Output, simulation: "executor.Simulation") -> comparator.Gate:
    """Nothing wrong with the execution itself, whatever the values: races, deadlocks, bounds."""
    errors = simulation.errors
    detail = "; ".join(map(str, errors))
    return comparator.Gate(output.name, SIMULATOR_GATE, len(errors), 0, detail=detail)


def cause(
    simulation: "executor.Simulation",
    same: Sequence[bool],
    schedule: str = "the schedule",
) -> str:
    """Why a simulated launch's results differ between three calls.

    The second call differs from the first one in its schedule and in what memory held before, the
    third one in its schedule alone. same: whether they gave the first one's bits. schedule: what to
    call it.
    """
    if simulation.stopped:
        return "results differ, because an execution stopped before its end"
    same_with_another_fill, same_with_another_schedule = same
    if same_with_another_schedule and not same_with_another_fill:
        said = "results differ with what memory held before"
    else:
        said = f"results differ with {schedule}"
        if simulation.atomics:
            said += (
                ", as a sum of floating-point numbers does that are added atomically: "
                f"{_some(simulation.atomics)}"
            )
    if not simulation.unwritten:
        return f"{said}; no read of memory that nothing wrote was seen"
    return f"{said}; memory that nothing wrote is read: {_some(simulation.unwritten)}"


def _some(places: Sequence[str]) -> str:
    more = f" and {len(places) - _PLACES} more" if len(places) > _PLACES else ""
    return "; ".join(places[:_PLACES]) + more


def same_bits(x: torch.Tensor, y: torch.Tensor) -> bool:
    if x.shape != y.shape or x.dtype != y.dtype:
        return False
    # In one dimension: a tensor without any has no bytes to be viewed as.
    first, second = (t.contiguous().reshape(-1).view(torch.uint8) for t in (x, y))
    return torch.equal(first, second)


def _histogram(
    a: np.ndarray, g: np.ndarray, output: spec.Output, precision: str
) -> tuple[list[int], list[int]]:
    """Counts of the scaled error in u by power of two, from 2^-10 (and below) to 2^5 (and
    above)."""
    low, high = -10, 5
    if not a.size:
        return list(range(low, high + 1)), [0] * (high - low + 1)
    errors = np.abs(comparator.scaled_errors(a, g, output)) / comparator.ROUNDOFF[precision]
    with np.errstate(divide="ignore"):
        exponents = np.floor(np.log2(errors))
    clipped = np.clip(exponents, low, high).astype(int)
    counts = np.bincount(clipped.ravel() - low, minlength=high - low + 1)
    return list(range(low, high + 1)), counts.tolist()
