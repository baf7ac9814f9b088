"""Runs one launch of a compiled kernel on CPU tensors, and says what is wrong with it.

    program = Program.parse(text)  # the text of npu_compile's hivm.mlir
    outcome = run(program, grid=(24,), arguments=[x, y, n], settings=Settings())

Source of the launch convention (arguments, numbering of blocks): triton-ascend 3.2.0's launcher and
the attributes of the module's entry functions.
"""

import collections
import dataclasses
import heapq
import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch

from testing.npu_compile import ir
from testing.npu_sim import findings, machine, memory, races, timing
from testing.npu_sim.findings import Finding
from testing.npu_sim.machine import Settings
from testing.npu_sim.program import Program

Argument: TypeAlias = torch.Tensor | int | float

_LOCK_BYTES = 64
_TORCH_ELEMENTS = {
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float32: "f32",
    torch.float64: "f64",
    torch.int8: "i8",
    torch.uint8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.bool: "i8",
}


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What one launch did.

    findings: what is wrong, and notes. unwritten: operations that read on-chip or workspace memory
    which nothing had written; harmless unless it reaches an output. makespan_cycles: estimate, from
    the first block's start to the last one's end over all cores of the chip. busy: estimate, cycles
    that each pipe worked, such as 'AIV0.V', summed over blocks. moved: bytes, such as 'gm->ub'.
    operations: tasks that worked on memory.
    """

    findings: tuple[Finding, ...]
    unwritten: tuple[str, ...]
    makespan_cycles: float
    busy: Mapping[str, float]
    moved: Mapping[str, int]
    events: Sequence[machine.Event]
    operations: int

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.is_error)


def run(
    program: Program,
    grid: Sequence[int],
    arguments: Sequence[Argument],
    settings: Settings | None = None,
    model: timing.Model | None = None,
    names: Sequence[str] | None = None,
) -> Outcome:
    """Runs every block of the grid and writes the results into the arguments.

    Args:
        program: the compiled kernel.
        grid: programs per axis, 1 to 3 axes.
        arguments: the kernel's run-time arguments in order: tensors on the CPU, integers, floats.
        settings: order, fill, checks.
        model: estimates of time; that of the chip compiled for by default.
        names: the arguments' names, for messages.

    A deadlock or an access out of bounds ends the run: it is the last finding, and outputs are
    incomplete.

    Raises:
        ValueError: arguments that do not fit the compiled kernel.
        UnsupportedOperationError: the program does something that the simulator does not know.
    """
    settings = settings or Settings()
    model = model or timing.Model.of(program.target)
    extents = (*grid, 1, 1)[:3]
    blocks = math.prod(extents)
    values = _bind(program, arguments, extents, blocks, settings.fill, names)
    order = list(range(blocks))
    if settings.seed is not None:
        random.Random(settings.seed).shuffle(order)
    ledger = races.BlockLedger()
    found: list[findings.Finding] = []
    unwritten: dict[str, None] = {}
    lengths: dict[int, float] = {}
    busy: dict[str, float] = collections.defaultdict(float)
    moved: collections.Counter[str] = collections.Counter()
    events: list[machine.Event] = []
    operations = 0
    for block in order:
        group = machine.Group(program, block, blocks, settings, model, ledger)
        try:
            lengths[block] = group.run(values)
        except findings.StoppedError as error:
            found.append(error.finding)
        found += group.findings()
        if group.checker:
            unwritten.update(group.checker.unwritten)
        for core in group.cores:
            for pipe in core.pipes.values():
                if pipe.busy:
                    busy[f"{core.name}.{pipe.name}"] += pipe.busy
        moved.update(group.moved)
        events += group.events
        operations += group.operations
        if block not in lengths:  # one that stopped says enough
            break
    cores = model.cores(mixed="AIC" in program.entries)
    return Outcome(
        races.merge([*found, *ledger.findings()]),
        tuple(unwritten),
        makespan([lengths[block] for block in sorted(lengths)], cores),
        busy,
        moved,
        events,
        operations,
    )


def makespan(lengths: Sequence[float], cores: int) -> float:
    """When the last block ends if each core takes the next block as soon as it is free."""
    ends = [0.0] * cores
    for length in lengths:
        heapq.heapreplace(ends, ends[0] + length)
    return max(ends)


def examine(
    launch: Callable[[Settings], tuple[Outcome, Sequence[torch.Tensor]]],
    seeds: Sequence[int] = (1, 2),
    check_races: bool = True,
) -> tuple[Outcome, tuple[findings.Finding, ...]]:
    """Judges a launch by several runs: in time order, in random schedules, with two fills.

    launch: runs it with these settings on fresh copies of the arguments and returns the outcome and
    the outputs. The result must not depend on the schedule, nor on what memory held before.

    Returns:
        The outcome in time order, and all findings: its own, those that only another schedule
        showed, and differences between the runs.
    """
    first, outputs = launch(Settings(check_races=check_races))
    found = list(first.findings)
    if any(finding.is_error for finding in found):
        return first, tuple(found)
    for fill in _OTHER_FILLS:
        _, other = launch(Settings(fill=fill, check_races=False))
        if not _same(outputs, other):
            reads = "; ".join(first.unwritten[:5]) or "no read of unwritten memory was seen"
            found.append(findings.Finding(findings.UNWRITTEN, f"candidates: {reads}"))
            break
    known = {(finding.kind, finding.message) for finding in found}
    for seed in seeds:
        outcome, other = launch(Settings(seed=seed, check_races=check_races))
        found += [
            finding for finding in outcome.findings if (finding.kind, finding.message) not in known
        ]
        known |= {(finding.kind, finding.message) for finding in outcome.findings}
        if not _same(outputs, other):
            found.append(
                findings.Finding(
                    findings.SCHEDULE, f"outputs of seed {seed} differ from those in time order"
                )
            )
    return first, tuple(found)


# Where 0xFF is NaN in every floating type: finite and large in all (see testing/guard.py), and its
# complement, finite and small, so that every single bit is seen as 0 and as 1.
_OTHER_FILLS = (0x7B, 0x84)


def _same(first: Sequence[torch.Tensor], second: Sequence[torch.Tensor]) -> bool:
    return all(
        # An empty tensor has no bytes to be viewed as, nor has one without axes.
        not a.numel() or torch.equal(_bytes(a), _bytes(b))
        for a, b in zip(first, second, strict=True)
    )


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def _bind(
    program: Program,
    arguments: Sequence[Argument],
    extents: Sequence[int],
    blocks: int,
    fill: int,
    names: Sequence[str] | None,
) -> list[Any]:
    """The values of the entry functions' arguments, in order."""
    function = next(iter(program.entries.values()))
    roles = [
        str(attributes.get("hacc.arg_type", "")) if isinstance(attributes, Mapping) else ""
        for attributes in function.operation.attributes.get("arg_attrs", ())
    ]
    roles += [""] * (len(function.arguments) - len(roles))
    hidden = [index for index, role in enumerate(roles) if role]
    own = [index for index in range(len(roles)) if index not in hidden][:-3]
    names = names or [f"argument {index}" for index in range(len(arguments))]
    if len(own) != len(arguments):
        raise ValueError(
            f"arguments: got {len(arguments)}, the compiled kernel {function.name} has {len(own)}"
        )
    values: list[Any] = [None] * len(roles)
    for index in hidden:
        values[index] = _hidden(roles[index], program, blocks, fill)
    views = iter(
        _global_views(
            {
                name: argument
                for name, argument in zip(names, arguments, strict=True)
                if isinstance(argument, torch.Tensor)
            }
        )
    )
    for index, name, argument in zip(own, names, arguments, strict=True):
        kind = function.arguments[index][1]
        if isinstance(argument, torch.Tensor):
            view = next(views)
            if not isinstance(kind, ir.MemRef) or _bytes_of(kind.element) != view.unit:
                raise ValueError(
                    f"{name}: got a tensor of {argument.dtype}, the compiled kernel takes {kind}"
                )
            values[index] = memory.View(
                view.memory, view.offset, view.sizes, view.strides, kind.element, view.base
            )
        else:
            values[index] = _scalar(name, argument, kind)
    values[-3:] = extents
    return values


def _bytes_of(element: str) -> int:
    return 1 if element == memory.BIT else memory.DTYPES[element].itemsize


def _hidden(role: str, program: Program, blocks: int, fill: int) -> Any:
    if "ffts_base_address" in role:
        return 0
    if "workspace" in role:
        size = max(1, program.workspace_bytes * blocks)
        workspace = memory.Memory.on_chip("gm", races.WORKSPACE, size, fill)
        return memory.View(workspace, 0, (size,), (1,), "i8")
    if "sync_block_lock" in role:
        lock = memory.Memory.on_chip("gm", "lock", _LOCK_BYTES, 0)
        return memory.View(lock, 0, (_LOCK_BYTES,), (1,), "i8")
    raise findings.UnsupportedOperationError("func.func", f"an argument of the role {role}")


def _scalar(name: str, argument: Argument, kind: ir.Type) -> Any:
    if isinstance(kind, ir.MemRef):
        raise ValueError(f"{name}: got {argument!r}, the compiled kernel takes {kind}")
    if str(kind).startswith("i"):
        if not isinstance(argument, int):
            raise ValueError(f"{name}: got {argument!r}, allowed: an int ({kind})")
        width = int(str(kind)[1:])
        if not -(1 << (width - 1)) <= argument < 1 << width:
            raise ValueError(f"{name}: got {argument}, which is no {kind}")
        return argument
    return np.asarray(float(argument)).astype(memory.DTYPES[str(kind)])[()]


def _global_views(tensors: Mapping[str, torch.Tensor]) -> list[memory.View]:
    """One view for each tensor, on the tensor's own bytes.

    Only the elements between its first and its last may be touched. Tensors that overlap share a
    memory, so that the race check sees them as one.
    """
    spans = {name: _span(name, tensor) for name, tensor in tensors.items()}
    memories: list[tuple[int, int, memory.Memory]] = []
    for low, high in _merge(list(spans.values())):
        inside = [name for name, span in spans.items() if low <= span[0] and span[1] <= high]
        data = _bytes_at(tensors[inside[0]], low, high)
        granule = min(memory.GLOBAL_GRANULE, *(tensors[name].itemsize for name in inside))
        holder = memory.Memory("gm", " and ".join(inside), data, granule)
        memories.append((low, high, holder))
    views = []
    for name, tensor in tensors.items():
        element = _TORCH_ELEMENTS.get(tensor.dtype)
        if element is None:
            raise ValueError(
                f"{name}: got a tensor of {tensor.dtype}, "
                f"allowed: {', '.join(map(str, _TORCH_ELEMENTS))}"
            )
        low, high = spans[name]
        start, found = next(
            (first, made) for first, last, made in memories if first <= low and high <= last
        )
        views.append(memory.View(found, low - start, (tensor.numel(),), (1,), element))
    return views


def _span(name: str, tensor: torch.Tensor) -> tuple[int, int]:
    """Addresses of a tensor's first byte and of the end of its last element."""
    if tensor.device.type != "cpu" or tensor.layout != torch.strided:
        raise ValueError(f"{name}: got a tensor on {tensor.device}, allowed: strided, on the CPU")
    if not tensor.numel():
        return tensor.data_ptr(), tensor.data_ptr()
    last = sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.itemsize


def _merge(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for low, high in sorted(spans):
        if merged and low < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        elif not merged or (low, high) != merged[-1]:
            merged.append((low, high))
    return merged


def _bytes_at(tensor: torch.Tensor, low: int, high: int) -> np.ndarray:
    """The bytes from address `low` to `high`, which lie in the tensor's storage."""
    storage = tensor.untyped_storage()
    whole = torch.empty(0, dtype=torch.uint8).set_(storage)
    start = low - storage.data_ptr() if high > low else 0
    return whole.numpy()[start : start + high - low]
