"""One block of a launch: its cores, their pipes, flags, and the order in which things happen.

A core's scalar unit runs the program and queues tasks for the core's pipes; each pipe executes its
queue in order. Flags connect pipes of a core, block flags connect the cube core with the vector
cores. The scheduler picks, again and again, a pipe (or scalar unit) whose next task can start: the
one that starts first, or in a random schedule any. When none can and not all are done, that is a
deadlock.

A cube core (AIC) has the pipes S (scalar), M, MTE1, MTE2 and FIX, a vector core (AIV) S, V, MTE2
and MTE3. A mixed kernel's block is one cube core and two vector cores.
"""

import collections
import dataclasses
import functools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from testing.npu_sim import (
    cube,
    findings,
    memory,
    operations,
    program,
    races,
    timing,
    vector_function,
)

# Block flags are counters of four bits (source: AscendC's CrossCoreSetFlag, "at most 15 times").
MAX_BLOCK_FLAG = 15

# Memories of each kind of core, and the entry of the compiler's description of the chip with the
# size in bits.
_MEMORIES = {
    "AIC": {"cbuf": "L1_SIZE", "ca": "L0A_SIZE", "cb": "L0B_SIZE", "cc": "L0C_SIZE"},
    "AIV": {"ub": "UB_SIZE"},
}

_PIPES = {"AIC": ("M", "MTE1", "MTE2", "FIX"), "AIV": ("V", "MTE2", "MTE3")}

FlagKey = tuple[str, str, int]  # set pipe, wait pipe, event


@dataclasses.dataclass(frozen=True)
class Settings:
    """How to run.

    seed: None executes what can start first; a number picks at random among what can start, and
    the blocks in random order. fill: the byte that memories start with and that temporaries are
    left with. check_races: keep vector clocks and shadows; without, only values, flags and
    deadlocks are judged. trace: keep an event for each task.
    """

    seed: int | None = None
    fill: int = 0xFF
    check_races: bool = True
    trace: bool = False


@dataclasses.dataclass(frozen=True)
class Event:
    """One task of a pipe, for a trace. start, cycles: estimates. nbytes: of its outputs."""

    block: int
    core: str
    pipe: str
    name: str
    places: tuple[str, ...]
    start: float
    cycles: float
    nbytes: int


class _Task:
    """What a pipe does next. issued: when the scalar unit queued it. clock: what had happened."""

    __slots__ = ("clock", "issued", "work")

    def __init__(self, work: program.Work):
        self.work = work
        self.issued = 0.0
        self.clock: races.Clock | None = None

    def ready(self, core: "Core", pipe: "_Pipe") -> float | None:
        """When it can start, or None while it has to wait for another."""
        del core
        return max(self.issued, pipe.free)

    def perform(self, core: "Core", pipe: "_Pipe", start: float) -> timing.Cost:
        raise NotImplementedError

    def __str__(self) -> str:
        return self.work.name


class _Operation(_Task):
    """Work on memory."""

    __slots__ = ("access", "cost", "run", "temporaries")

    def __init__(
        self,
        work: program.Work,
        run: Callable[[], None],
        access: races.Access,
        cost: timing.Cost,
        temporaries: Sequence[memory.View] = (),
    ):
        super().__init__(work)
        self.run = run
        self.access = access
        self.cost = cost
        self.temporaries = temporaries

    def perform(self, core: "Core", pipe: "_Pipe", start: float) -> timing.Cost:
        group, access = core.group, self.access
        # Two vector cores that store the same do needless work; their order does not matter.
        stored = [
            view
            for view in access.writes
            if isinstance(view, memory.View) and view.memory.space == "gm"
        ]
        before = []
        if group.checker and group.mixed and core.kind == "AIV":
            before = [view.read().copy() for view in stored]
        if access.atomic and group.checker:
            added = b"".join(
                view.read().tobytes() for view in access.reads if isinstance(view, memory.View)
            )
            access = dataclasses.replace(access, added=added)
        self.run()
        for view in self.temporaries:
            _clobber(view, access, group.settings.fill)
        if group.checker:
            if before:
                unchanged = all(
                    old.tobytes() == view.read().tobytes()
                    for old, view in zip(before, stored, strict=True)
                )
                access = dataclasses.replace(access, unchanged=unchanged)
            group.checker.access(pipe.agent, access)
        core.count(self.access)
        pipe.busy += self.cost.occupancy
        if group.settings.trace:
            group.events.append(
                Event(
                    core.block,
                    core.name,
                    pipe.name,
                    self.access.name,
                    self.work.places,
                    start,
                    self.cost.occupancy,
                    sum(view.nbytes for view in self.access.writes),
                )
            )
        return self.cost


class _VectorCall(_Task):
    """A vector function of arch35. What it touches is known only once it has run."""

    __slots__ = ("operands",)

    def __init__(self, work: program.Work, operands: Sequence[Any]):
        super().__init__(work)
        self.operands = operands

    def perform(self, core: "Core", pipe: "_Pipe", start: float) -> timing.Cost:
        unit = vector_function.VectorUnit()
        assert self.work.callee is not None
        unit.run(self.work.callee, self.operands)
        access = races.Access(self.work.name, self.work.places, unit.reads(), unit.writes())
        cost = core.group.model.vector_function(unit.transfers)
        operation = _Operation(self.work, lambda: None, access, cost)
        return operation.perform(core, pipe, start)


def _clobber(view: memory.View, access: races.Access, fill: int) -> None:
    """Leaves a temporary with nothing to rely on, unless it lies on an operand."""
    low, high = _extent(view)
    for other in (*access.reads, *access.writes):
        if other is view or other.memory is not view.memory:
            continue
        if isinstance(other, memory.View) and other.count:
            first, last = _extent(other)
            if first < high and low < last:
                return
    if high > len(view.memory.data):
        raise memory.OutOfBoundsError(f"the temporary {view} is outside of its memory")
    view.memory.data[low:high] = fill


def _extent(view: memory.View) -> tuple[int, int]:
    factor = 8 if view.element == memory.BIT else 1
    low = view.offset // factor
    return low, low + view.nbytes


class _SetFlag(_Task):
    __slots__ = ("key",)

    def __init__(self, work: program.Work, key: FlagKey):
        super().__init__(work)
        self.key = key

    def ready(self, core: "Core", pipe: "_Pipe") -> float | None:
        del core
        return max(self.issued, pipe.free, pipe.done)

    def perform(self, core: "Core", pipe: "_Pipe", start: float) -> timing.Cost:
        core.raise_flag(self.work, self.key, start, pipe.agent)
        return core.group.model.set_flag()

    def __str__(self) -> str:
        return f"set_flag {_flag(self.key)}"


class _WaitFlag(_Task):
    __slots__ = ("key",)

    def __init__(self, work: program.Work, key: FlagKey):
        super().__init__(work)
        self.key = key

    def ready(self, core: "Core", pipe: "_Pipe") -> float | None:
        raised = core.flags.get(self.key)
        return max(self.issued, pipe.free, raised[0].time) if raised else None

    def perform(self, core: "Core", pipe: "_Pipe", start: float) -> timing.Cost:
        del start
        core.take(core.flags[self.key], pipe.agent)
        return core.group.model.wait_flag()

    def __str__(self) -> str:
        return f"wait_flag {_flag(self.key)}"


class _Barrier(_Task):
    __slots__ = ()

    def ready(self, core: "Core", pipe: "_Pipe") -> float | None:
        del core
        return max(self.issued, pipe.free, pipe.done)

    def perform(self, core: "Core", pipe: "_Pipe", start: float) -> timing.Cost:
        del start
        if core.group.checker:
            core.group.checker.barrier(pipe.agent)
        return core.group.model.barrier()


class _SetBlockFlag(_Task):
    __slots__ = ("flag",)

    def __init__(self, work: program.Work, flag: int):
        super().__init__(work)
        self.flag = flag

    def ready(self, core: "Core", pipe: "_Pipe") -> float | None:
        del core
        return max(self.issued, pipe.free, pipe.done)

    def perform(self, core: "Core", pipe: "_Pipe", start: float) -> timing.Cost:
        core.group.raise_block_flag(core, self.work, self.flag, start, pipe.agent)
        return core.group.model.set_block_flag()

    def __str__(self) -> str:
        return f"sync_block_set {self.flag}"


class _WaitBlockFlag(_Task):
    __slots__ = ("flag",)

    def __init__(self, work: program.Work, flag: int):
        super().__init__(work)
        self.flag = flag

    def ready(self, core: "Core", pipe: "_Pipe") -> float | None:
        time = core.group.block_flag_time(core, self.flag)
        return None if time is None else max(self.issued, pipe.free, time)

    def perform(self, core: "Core", pipe: "_Pipe", start: float) -> timing.Cost:
        del start
        core.group.take_block_flag(core, self.flag, pipe.agent)
        return core.group.model.wait_block_flag()

    def __str__(self) -> str:
        return f"sync_block_wait {self.flag}"


def _flag(key: FlagKey) -> str:
    return f"{key[0]}->{key[1]} {key[2]}"


@dataclasses.dataclass(frozen=True)
class _Raised:
    """A flag that is set: since when, and what happened before."""

    time: float
    clock: races.Clock | None
    places: tuple[str, ...]


class _Pipe:
    """A queue that is executed in order.

    free: when the next task can start. done: when all that has started is complete (data has
    arrived). busy: cycles of work.
    """

    __slots__ = ("agent", "busy", "done", "free", "name", "queue")

    def __init__(self, name: str, agent: int):
        self.name = name
        self.agent = agent
        self.queue: collections.deque[_Task] = collections.deque()
        self.free = self.done = self.busy = 0.0

    def start(self, core: "Core") -> float | None:
        """When its next task can start; None while it has none, or has to wait for another."""
        if self.name == "S":
            return None if core.request is None else core.request.ready(core)
        return self.queue[0].ready(core, self) if self.queue else None


# What a scalar unit waits for.


class _Request:
    """ready: when the scalar unit may go on, None while it may not. perform: what it does then;
    returns the value that the program gets and the cycles spent."""

    def __init__(self, work: program.Work):
        self.work = work

    def ready(self, core: "Core") -> float | None:
        raise NotImplementedError

    def perform(self, core: "Core") -> tuple[Any, float]:
        raise NotImplementedError


class _ScalarWait(_Request):
    def __init__(self, work: program.Work, key: FlagKey):
        super().__init__(work)
        self._key = key

    def ready(self, core: "Core") -> float | None:
        raised = core.flags.get(self._key)
        return max(core.time, raised[0].time) if raised else None

    def perform(self, core: "Core") -> tuple[Any, float]:
        core.take(core.flags[self._key], core.scalar.agent)
        return None, core.group.model.wait_flag().occupancy

    def __str__(self) -> str:
        return f"wait_flag {_flag(self._key)}"


class _Drain(_Request):
    """pipe_barrier ALL: every pipe of the core has done everything."""

    def ready(self, core: "Core") -> float | None:
        pipes = core.pipes.values()
        if any(pipe.queue for pipe in pipes):
            return None
        return max(core.time, *(max(pipe.free, pipe.done) for pipe in pipes))

    def perform(self, core: "Core") -> tuple[Any, float]:
        checker = core.group.checker
        if checker:
            for pipe in core.pipes.values():
                checker.join(core.scalar.agent, checker.completed(pipe.agent))
            checker.barrier(core.scalar.agent)
        return None, core.group.model.barrier().occupancy

    def __str__(self) -> str:
        return "pipe_barrier ALL"


class _ScalarBlockWait(_Request):
    def __init__(self, work: program.Work, flag: int):
        super().__init__(work)
        self._flag = flag

    def ready(self, core: "Core") -> float | None:
        time = core.group.block_flag_time(core, self._flag)
        return None if time is None else max(core.time, time)

    def perform(self, core: "Core") -> tuple[Any, float]:
        core.group.take_block_flag(core, self._flag, core.scalar.agent)
        return None, core.group.model.wait_block_flag().occupancy

    def __str__(self) -> str:
        return f"sync_block_wait {self._flag}"


class _Access(_Request):
    """A load or store of one element by the scalar unit itself."""

    def __init__(self, work: program.Work, view: memory.View, value: Any):
        super().__init__(work)
        self._view = view
        self._value = value

    def ready(self, core: "Core") -> float | None:
        return core.time

    def perform(self, core: "Core") -> tuple[Any, float]:
        view, found = self._view, None
        loads = self.work.name == "memref.load"
        unchanged = False
        if loads:
            found = view.read().reshape(-1)[0]
            # Integers are Python's on the scalar unit.
            if np.issubdtype(found.dtype, np.integer) or found.dtype == bool:
                found = int(found)
        else:
            value = self._value
            if view.element != memory.BIT:
                value = np.asarray(value).astype(memory.DTYPES[view.element])
            unchanged = view.read().tobytes() == np.asarray(value).tobytes()
            view.write(value)
        if core.group.checker:
            access = races.Access(
                self.work.name,
                self.work.places,
                (view,) if loads else (),
                () if loads else (view,),
                unchanged,
            )
            core.group.checker.access(core.scalar.agent, access)
        return found, core.group.model.scalar_access(view)

    def __str__(self) -> str:
        return self.work.name


class Core(program.Unit):
    """One core: its scalar unit, its pipes and its memories."""

    def __init__(
        self,
        group: "Group",
        kind: str,
        index: int,
        sub_block: int,
        first_agent: int,
        sizes: Mapping[str, int],
    ):
        self.group = group
        self.kind = kind
        self.index = index
        self.name = kind if kind == "AIC" else f"AIV{sub_block}"
        self.block, self.blocks = group.block, group.blocks
        self.sub_block, self.sub_blocks = sub_block, 2 if group.mixed else 1
        self.time = 0.0
        self.scalar = _Pipe("S", first_agent + races.PIPES.index("S"))
        self.pipes = {
            name: _Pipe(name, first_agent + races.PIPES.index(name)) for name in _PIPES[kind]
        }
        self.flags: dict[FlagKey, collections.deque[_Raised]] = {}
        # Sets that were issued and whose wait was not yet.
        self._unpaired: dict[FlagKey, collections.deque[program.Work]] = {}
        self.request: _Request | None = None
        self.finished = False
        self._steps: Iterator[Any] = iter(())
        self._clock: races.Clock | None = None
        self._memories = {
            space: memory.Memory.on_chip(space, self.name, size, group.settings.fill)
            for space, size in sizes.items()
        }
        self._l0 = (
            cube.L0(self._memories["ca"], self._memories["cb"], group.arch35)
            if kind == "AIC"
            else None
        )

    # The scalar unit.

    def start(self, function: program.Function, arguments: Sequence[Any]) -> None:
        self._steps = function.run(self, arguments)
        self._advance(None)

    def _advance(self, value: Any) -> None:
        try:
            self.request = self._steps.send(value)  # type: ignore[attr-defined]
        except StopIteration:
            self.request = None
            self.finished = True

    def proceed(self, start: float) -> None:
        """The request is met: does it, and runs the program to the next one."""
        request = self.request
        assert request is not None
        value, cycles = request.perform(self)
        self.time = start + cycles
        self._clock = None
        self._advance(value)

    def tick(self, operations: int) -> None:
        self.time += operations * self.group.model.scalar_cycles

    def units(self) -> list[_Pipe]:
        """The scalar unit and the pipes that this kind of core has."""
        return [self.scalar, *self.pipes.values()]

    def _queue(self, pipe: str, task: _Task) -> None:
        if pipe not in self.pipes:
            raise findings.UnsupportedOperationError(
                task.work.name, f"pipe {pipe} of a core of kind {self.kind}", task.work.places
            )
        self.time += self.group.model.issue_cycles
        task.issued = self.time
        if self.group.checker:
            if self._clock is None:
                self._clock = self.group.checker.snapshot(self.scalar.agent)
            task.clock = self._clock
        self.pipes[pipe].queue.append(task)

    def on_chip(self, space: str) -> memory.Memory:
        # On arch35 a core reaches into its partner: the cube core's FIX pipe writes the UB of the
        # first vector core (guess: the modules name none), MTE3 of a vector core writes L1.
        reachable = self.group.cores if self.group.arch35 else ()
        for core in (self, *reachable):
            if space in core._memories:
                return core._memories[space]
        raise findings.UnsupportedOperationError(
            "pointer_cast", f"memory {space} on a core of kind {self.kind}"
        )

    def issue(self, work: program.Work, operands: Sequence[Any]) -> None:
        layout = work.layout
        assert layout is not None
        inputs = [operands[index] for index in layout.inputs]
        outputs = [operands[index] for index in layout.outputs]
        temporaries = [operands[index] for index in layout.temporaries]
        semantics = operations.semantics(work.name, self.group.arch35)
        pipe = operations.pipe_of(work.name, outputs)
        access = races.Access(
            work.name,
            work.places,
            [value for value in inputs if isinstance(value, memory.View)],
            [*outputs, *temporaries],
            atomic=operations.is_atomic(work.operation),
        )
        cost = self._cost(work, semantics.cost, pipe, inputs, outputs)
        attributes = work.operation.attributes

        def run() -> None:
            semantics.run(attributes, inputs, outputs)

        self._queue(pipe, _Operation(work, run, access, cost, temporaries))

    def _cost(
        self,
        work: program.Work,
        kind: str,
        pipe: str,
        inputs: Sequence[Any],
        outputs: Sequence[memory.View],
    ) -> timing.Cost:
        if pipe != "V":  # a transfer's cost depends on where it goes too
            return self.group.model.operation(kind, pipe, inputs, outputs)
        views = (value for value in (*inputs, *outputs) if isinstance(value, memory.View))
        key = (work.name, *((view.sizes, view.strides, view.element) for view in views))
        cost = self.group.costs.get(key)
        if cost is None:
            cost = self.group.model.operation(kind, pipe, inputs, outputs)
            self.group.costs[key] = cost
        return cost

    def multiply(self, work: program.Work, operands: Sequence[Any]) -> None:
        assert self._l0 is not None
        for step in cube.expand(work.operation.attributes, operands, self._l0):
            if isinstance(step, cube.Set):
                self.set_flag(work, step.set_pipe, step.wait_pipe, step.event)
            elif isinstance(step, cube.Wait):
                self.wait_flag(work, step.set_pipe, step.wait_pipe, step.event)
            elif isinstance(step, cube.Barrier):
                self._queue(step.pipe, _Barrier(work))
            else:
                access = races.Access(step.name, work.places, step.reads, step.writes)
                cost = self.group.model.cube_step(step)
                self._queue(step.pipe, _Operation(work, step.run, access, cost))

    def call_vector_function(self, work: program.Work, operands: Sequence[Any]) -> None:
        self._queue("V", _VectorCall(work, operands))

    def load(self, work: program.Work, view: memory.View) -> _Request:
        return _Access(work, view, None)

    def store(self, work: program.Work, view: memory.View, value: Any) -> _Request:
        return _Access(work, view, value)

    # Flags between pipes.

    def set_flag(self, work: program.Work, set_pipe: str, wait_pipe: str, event: int) -> None:
        key = (set_pipe, wait_pipe, event)
        # In the order of issue. That the setting pipe runs ahead of the waiting one, and sets a
        # flag again before that one took it, is what the compiler relies on in every second kernel.
        if self._unpaired.get(key):
            self.group.note(
                findings.FLAG_SET_TWICE,
                f"{self.name} sets flag {_flag(key)} again with no wait for it in between",
                (*work.places[:1], *self._unpaired[key][-1].places[:1]),
            )
        self._unpaired.setdefault(key, collections.deque()).append(work)
        if set_pipe == "S":
            self.time += self.group.model.issue_cycles
            self.raise_flag(work, key, self.time, self.scalar.agent)
        else:
            self._queue(set_pipe, _SetFlag(work, key))

    def wait_flag(
        self, work: program.Work, set_pipe: str, wait_pipe: str, event: int
    ) -> _Request | None:
        key = (set_pipe, wait_pipe, event)
        if self._unpaired.get(key):
            self._unpaired[key].popleft()
        if wait_pipe == "S":
            return _ScalarWait(work, key)
        self._queue(wait_pipe, _WaitFlag(work, key))
        return None

    def barrier(self, work: program.Work, pipe: str) -> _Request | None:
        if pipe == "ALL":
            return _Drain(work)
        if pipe != "S":
            self._queue(pipe, _Barrier(work))
        return None

    def set_block_flag(self, work: program.Work, pipe: str, flag: int) -> None:
        if pipe == "S":
            self.time += self.group.model.issue_cycles
            self.group.raise_block_flag(self, work, flag, self.time, self.scalar.agent)
        else:
            self._queue(pipe, _SetBlockFlag(work, flag))

    def wait_block_flag(self, work: program.Work, pipe: str, flag: int) -> _Request | None:
        if pipe == "S":
            return _ScalarBlockWait(work, flag)
        self._queue(pipe, _WaitBlockFlag(work, flag))
        return None

    def raise_flag(self, work: program.Work, key: FlagKey, time: float, agent: int) -> None:
        raised = self.flags.setdefault(key, collections.deque())
        raised.append(self._raised(work, time, agent))

    def _raised(self, work: program.Work, time: float, agent: int) -> _Raised:
        checker = self.group.checker
        clock = checker.completed(agent) if checker else None
        return _Raised(time + self.group.model.flag_latency, clock, work.places)

    def take(self, raised: collections.deque[_Raised], agent: int) -> None:
        """Takes the oldest of the flags: what happened before it has happened before the agent's
        next operation."""
        clock = raised.popleft().clock
        if clock is not None and self.group.checker:
            self.group.checker.join(agent, clock)

    def count(self, access: races.Access) -> None:
        """Adds to the bytes moved between memories."""
        if access.reads and access.writes:
            source, target = access.reads[0].memory.space, access.writes[0].memory.space
            if source != target:
                self.group.moved[f"{source}->{target}"] += access.writes[0].nbytes
        self.group.operations += 1


class Group:
    """One block of the launch, from its first operation to its last."""

    def __init__(
        self,
        runnable: program.Program,
        block: int,
        blocks: int,
        settings: Settings,
        model: timing.Model,
        ledger: races.BlockLedger,
    ):
        self.block = block
        self.blocks = blocks
        self.settings = settings
        self.model = model
        self.mixed = len(runnable.entries) > 1
        self.arch35 = runnable.arch35
        kinds = [("AIC", 0), ("AIV", 0), ("AIV", 1)]
        if not self.mixed:
            kinds = [(next(iter(runnable.entries)), 0)]
        names = [
            f"{'AIC' if kind == 'AIC' else f'AIV{sub_block}'}.{pipe}"
            for kind, sub_block in kinds
            for pipe in races.PIPES
        ]
        in_order = races.IN_ORDER_ARCH35 if runnable.arch35 else races.IN_ORDER
        self.checker = (
            races.Checker(names, block, ledger, in_order) if settings.check_races else None
        )
        self.moved: collections.Counter[str] = collections.Counter()
        self.operations = 0
        # Vector operations of the same shapes cost the same: computing that is a tenth of a run.
        self.costs: dict[Any, timing.Cost] = {}
        self.events: list[Event] = []
        self._notes: collections.Counter[tuple[str, str, tuple[str, ...]]] = collections.Counter()
        # (receiving core, flag, sending core) -> flags that are set.
        self._block_flags: dict[tuple[int, int, int], collections.deque[_Raised]] = {}
        self._block_flags_changed = False
        self.cores = []
        for index, (kind, sub_block) in enumerate(kinds):
            sizes = {space: runnable.target[entry] // 8 for space, entry in _MEMORIES[kind].items()}
            first = index * len(races.PIPES)
            self.cores.append(Core(self, kind, index, sub_block, first, sizes))
        self._entries = runnable.entries

    def run(self, arguments: Sequence[Any]) -> float:
        """Executes the block to its end and returns its length in cycles (an estimate).

        Raises:
            StoppedError: an access out of bounds, or a deadlock.
        """
        pick = random.Random(f"{self.settings.seed} {self.block}")
        for core in self.cores:
            entry = self._entries[core.kind]
            self._guarded(core, None, functools.partial(core.start, entry, arguments))
        slots = [(core, core.units()) for core in self.cores]
        starts = [[unit.start(core) for unit in units] for core, units in slots]
        while True:
            candidates = [
                (start, core, slot)
                for core, of_core in enumerate(starts)
                for slot, start in enumerate(of_core)
                if start is not None
            ]
            if not candidates:
                break
            if self.settings.seed is None:
                start, chosen, slot = min(candidates)
            else:
                start, chosen, slot = pick.choice(candidates)
            core, units = slots[chosen]
            self._block_flags_changed = False
            self._step(start, core, units[slot])
            # A step changes what its own core can do next, and others' only by a block flag.
            for index, (other, others) in enumerate(slots):
                if other is core or self._block_flags_changed:
                    starts[index] = [unit.start(other) for unit in others]
        self._judge_end()
        return max(
            max(core.time, *(max(pipe.free, pipe.done) for pipe in core.pipes.values()))
            for core in self.cores
        )

    def _step(self, start: float, core: Core, pipe: _Pipe) -> None:
        if pipe is core.scalar:
            assert core.request is not None
            self._guarded(core, core.request.work, lambda: core.proceed(start))
            return
        task = pipe.queue.popleft()
        if self.checker and task.clock is not None:
            self.checker.join(pipe.agent, task.clock)
        cost = self._guarded(core, task.work, lambda: task.perform(core, pipe, start))
        pipe.free = start + cost.occupancy
        pipe.done = max(pipe.done, pipe.free + cost.latency)

    def _guarded(self, core: Core, work: program.Work | None, run: Callable[[], Any]) -> Any:
        """Names the operation of an access out of bounds."""
        try:
            return run()
        except memory.OutOfBoundsError as error:
            name, places = (work.name, work.places) if work else ("", ())
            raise findings.StoppedError(
                findings.Finding(findings.OUT_OF_BOUNDS, f"{core.name} {name}: {error}", places)
            ) from error
        except findings.UnsupportedOperationError as error:
            raise error if error.places or not work else error.at(work.places) from error

    # Flags between cores: one counter for each pair of a sender and a receiver.

    def raise_block_flag(
        self, core: Core, work: program.Work, flag: int, time: float, agent: int
    ) -> None:
        self._block_flags_changed = True
        receivers = [other.index for other in self.cores if other.kind != core.kind]
        for receiver in receivers:
            raised = self._block_flags.setdefault((receiver, flag, core.index), collections.deque())
            clock = self.checker.completed(agent) if self.checker else None
            raised.append(_Raised(time + self.model.block_flag_latency, clock, work.places))
            if len(raised) > MAX_BLOCK_FLAG:
                self.note(
                    findings.COUNTER_OVERFLOW,
                    f"{core.name} raised block flag {flag} more than {MAX_BLOCK_FLAG} times "
                    "before anything waited for it",
                    work.places[:1],
                )

    def _senders(self, core: Core) -> list[int]:
        """A cube core waits for both vector cores, a vector core for the cube core."""
        return [other.index for other in self.cores if other.kind != core.kind]

    def block_flag_time(self, core: Core, flag: int) -> float | None:
        times = []
        for sender in self._senders(core):
            raised = self._block_flags.get((core.index, flag, sender))
            if not raised:
                return None
            times.append(raised[0].time)
        return max(times) if times else None

    def take_block_flag(self, core: Core, flag: int, agent: int) -> None:
        for sender in self._senders(core):
            core.take(self._block_flags[core.index, flag, sender], agent)

    # Verdicts.

    def note(self, kind: str, message: str, places: tuple[str, ...]) -> None:
        self._notes[kind, message, places] += 1

    def _judge_end(self) -> None:
        waiting: list[str] = []
        places: list[str] = []
        for core in self.cores:
            if core.request is not None:
                waiting.append(f"{core.name}.S at {core.request}")
                places += core.request.work.places[:1]
            for pipe in core.pipes.values():
                if pipe.queue:
                    waiting.append(f"{core.name}.{pipe.name} at {pipe.queue[0]}")
                    places += pipe.queue[0].work.places[:1]
        if waiting:
            message = f"nothing can go on: {'; '.join(waiting)}"
            raise findings.StoppedError(
                findings.Finding(findings.DEADLOCK, message, tuple(dict.fromkeys(places)))
            )
        for core in self.cores:
            for key, raised in core.flags.items():
                if raised:
                    self.note(
                        findings.LEFTOVER_FLAG,
                        f"{core.name} ends with flag {_flag(key)} set",
                        raised[0].places[:1],
                    )
        for (receiver, flag, sender), raised in self._block_flags.items():
            if raised:
                names = f"{self.cores[sender].name}->{self.cores[receiver].name}"
                self.note(
                    findings.LEFTOVER_FLAG,
                    f"block flag {flag} {names} is still set at the end ({len(raised)})",
                    raised[0].places[:1],
                )

    def findings(self) -> list[findings.Finding]:
        found = [
            findings.Finding(kind, message, places, count)
            for (kind, message, places), count in self._notes.items()
        ]
        return found + (self.checker.findings() if self.checker else [])
