"""The happens-before check: which accesses of a block are ordered by its synchronisation.

Every pipe of every core of a block is an agent with a vector clock. A flag carries the clock of the
pipe that set it to the pipe that waits; a barrier orders a pipe with itself. Two accesses to the
same granule of memory, at least one of which writes, must be ordered by that, or the result depends
on which is faster on the day. The simulator executes each pipe serially, so values alone would not
show it.

Of one pipe's own operations the matrix unit's, MTE1's and the scalar unit's are in order; those of
V, MTE2, MTE3 and FIX are not without a barrier or a flag (guess: the compiler inserts barriers
exactly there, and no compiled kernel so far has shown a race by this rule). On arch35 those of V
are in order too (guess: its compiler inserts no barriers of V).
"""

import collections
import dataclasses
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from testing.npu_sim import findings, memory

PIPES = ("S", "V", "M", "MTE1", "MTE2", "MTE3", "FIX")
IN_ORDER = frozenset(("S", "M", "MTE1"))
IN_ORDER_ARCH35 = IN_ORDER | {"V"}

Clock = np.ndarray
Touched = memory.View | memory.Footprint
Granules = slice | np.ndarray


@dataclasses.dataclass(frozen=True)
class Access:
    """What one operation of a pipe does to memory, for the check.

    unchanged: outputs that already held the bytes that are written (two vector cores doing the same
    work). atomic: the writes add to what is there, in any order. added: the bytes that are added.
    """

    name: str
    places: tuple[str, ...]
    reads: Sequence[Touched]
    writes: Sequence[Touched]
    unchanged: bool = False
    atomic: bool = False
    added: bytes = b""


class _Shadow:
    """What a block's agents last did to each granule of a memory.

    Agents are counted from 1; 0 stands for nobody. Fresh zeros cost nothing until they are touched,
    however large the tensor.
    """

    def __init__(self, granules: int):
        self.writer = np.zeros(granules, np.intp)
        self.written = np.zeros(granules, np.int32)
        self.reads: dict[int, np.ndarray] = {}


class BlockLedger:
    """Which block of a launch did what to which granule of global memory.

    Blocks are not ordered: what one writes no other may read or write, except that atomic
    operations may meet each other. Which of two blocks is executed first does not change a verdict.
    """

    _SEVERAL = -1
    _USES = ("reads", "writes", "adds to")
    # What another block must not have done to the place, for each use.
    _FORBIDDEN: Mapping[str, tuple[str, ...]] = {
        "reads": ("writes", "adds to"),
        "writes": _USES,
        "adds to": ("reads", "writes"),
    }

    def __init__(self) -> None:
        # (memory, use) -> the block (from 1 on) and the access that used each granule so.
        self._users: dict[tuple[int, str], tuple[np.ndarray, np.ndarray]] = {}
        self._kept: dict[int, memory.Memory] = {}  # so that no id is used twice
        self._accesses: list[Access] = []
        self.conflicts: collections.Counter[tuple[str, tuple[str, ...]]] = collections.Counter()

    def access(self, block: int, access: Access) -> None:
        used = [(view, "reads") for view in access.reads]
        used += [(view, "adds to" if access.atomic else "writes") for view in access.writes]
        for view, use in used:
            if view.memory.space == "gm" and (granules := view.granules()) is not None:
                self._touch(block + 1, access, view.memory, granules, use)

    def _users_of(self, touched: memory.Memory, use: str) -> tuple[np.ndarray, np.ndarray]:
        key = id(touched), use
        if key not in self._users:
            self._kept[id(touched)] = touched
            empty = [np.zeros(touched.granules, np.int32) for _ in range(2)]
            self._users[key] = empty[0], empty[1]
        return self._users[key]

    def _touch(
        self, me: int, access: Access, touched: memory.Memory, at: Granules, use: str
    ) -> None:
        for other in self._FORBIDDEN[use]:
            blocks, accesses = self._users_of(touched, other)
            seen = blocks[at]
            conflict = (seen != 0) & (seen != me)
            if conflict.any():
                earlier = self._accesses[int(accesses[at][conflict][0])]
                text = (
                    f"{access.name} {use} {touched.name} where {earlier.name} of another block "
                    f"{other} it"
                )
                self.conflicts[text, (*access.places[:1], *earlier.places[:1])] += 1
        blocks, accesses = self._users_of(touched, use)
        seen = blocks[at]
        blocks[at] = np.where((seen == 0) | (seen == me), me, self._SEVERAL)
        accesses[at] = len(self._accesses)
        self._accesses.append(access)

    def findings(self) -> list[findings.Finding]:
        return [
            findings.Finding(findings.BLOCK_RACE, text, places, count)
            for (text, places), count in self.conflicts.items()
        ]


class Checker:
    """The check of one block.

    agents: name of each agent, such as `AIV0.MTE2`. in_order: pipes whose operations are ordered.
    """

    def __init__(
        self,
        agents: Sequence[str],
        block: int,
        ledger: BlockLedger,
        in_order: Collection[str] = IN_ORDER,
    ):
        # A scalar unit's loads are an agent of their own, behind the others: unlike its stores,
        # they are complete before it goes on.
        scalar = [index for index, name in enumerate(agents) if name.endswith(".S")]
        self._loads = {index: len(agents) + n for n, index in enumerate(scalar)}
        agents = [*agents, *(agents[index] for index in scalar)]
        self._names = agents
        self._block = block
        self._ledger = ledger
        # Column 0 stands for nobody, whose writes are before everything.
        self._clocks = np.zeros((len(agents), 1 + len(agents)), np.int32)
        self._clocks[:, 0] = np.iinfo(np.int32).max
        self._sequence = [0] * len(agents)
        self._released = [0] * len(agents)  # of those, complete for everybody
        self._in_order = [name.split(".")[1] in in_order for name in agents]
        self._shadows: dict[int, _Shadow] = {}
        self._history: list[list[Access | None]] = [[None] for _ in agents]
        self._races: collections.Counter[tuple[str, str, tuple[str, ...]]] = collections.Counter()
        self._duplicates: collections.Counter[tuple[str, tuple[str, ...]]] = collections.Counter()
        self._added_twice: collections.Counter[tuple[str, tuple[str, ...]]] = collections.Counter()
        self.unwritten: dict[str, None] = {}

    # The order.

    def snapshot(self, agent: int) -> Clock:
        """What has happened before anything that the agent hands to others from now on.

        Its own accesses are in order among themselves, but others see its stores complete only
        after a flag or a barrier (source: AscendC's SetFlag, whose example is a scalar store before
        a transfer).
        """
        clock = self._clocks[agent].copy()
        clock[1 + agent] = self._released[agent]
        return clock

    def join(self, agent: int, clock: Clock) -> None:
        """What the clock knows has happened before the agent's next operation."""
        np.maximum(self._clocks[agent], clock, out=self._clocks[agent])

    def barrier(self, agent: int) -> None:
        """The agent's own operations so far are complete."""
        self._clocks[agent, 1 + agent] = self._released[agent] = self._sequence[agent]

    def completed(self, agent: int) -> Clock:
        """The clock that a flag carries once all of the agent's operations are complete."""
        clock = self._clocks[agent].copy()
        clock[1 + agent] = self._sequence[agent]
        return clock

    # The accesses.

    def access(self, agent: int, access: Access) -> None:
        """Checks an operation of the agent against all before, and remembers it."""
        self._ledger.access(self._block, access)
        clock = self._clocks[agent]
        if self._in_order[agent]:
            clock[1 + agent] = self._sequence[agent]
        if agent in self._loads and not access.writes:
            agent = self._loads[agent]
        self._sequence[agent] += 1
        now = self._sequence[agent]
        self._history[agent].append(access)
        for view in access.reads:
            if (granules := view.granules()) is not None:
                self._read(agent, now, clock, access, view, granules)
        for view in access.writes:
            if (granules := view.granules()) is not None:
                self._write(agent, now, clock, access, view, granules)
        if agent in self._loads.values():
            clock[1 + agent] = now

    def _shadow(self, touched: memory.Memory) -> _Shadow:
        # The block keeps its memories alive, so an id stands for one memory.
        shadow = self._shadows.get(id(touched))
        if shadow is None:
            shadow = self._shadows[id(touched)] = _Shadow(touched.granules)
        return shadow

    def _read(
        self,
        agent: int,
        now: int,
        clock: Clock,
        access: Access,
        view: Touched,
        at: Granules,
    ) -> None:
        shadow = self._shadow(view.memory)
        writers, written = shadow.writer[at], shadow.written[at]
        unordered = written > clock[writers]
        if unordered.any():
            self._report("read after write", agent, access, view, writers, written, unordered)
        own = view.memory.space != "gm" or view.memory.name == WORKSPACE
        if own and not writers.all():
            self.unwritten[f"{access.name} at {', '.join(access.places)} reads {view}"] = None
        reads = shadow.reads.get(agent)
        if reads is None:
            reads = shadow.reads[agent] = np.zeros(len(shadow.writer), np.int32)
        reads[at] = now

    def _write(
        self,
        agent: int,
        now: int,
        clock: Clock,
        access: Access,
        view: Touched,
        at: Granules,
    ) -> None:
        shadow = self._shadow(view.memory)
        writers, written = shadow.writer[at], shadow.written[at]
        unordered = written > clock[writers]
        if unordered.any():  # by itself it may write a granule twice
            unordered &= (writers != agent + 1) | (written != now)
        if unordered.any() and access.atomic:
            unordered = self._not_atomic(agent, access, writers, written, unordered)
        if unordered.any():
            if access.unchanged and self._by_other_vector_core(agent, writers[unordered]):
                self._duplicates[access.name, access.places] += 1
            else:
                self._report("write after write", agent, access, view, writers, written, unordered)
        for reader, reads in shadow.reads.items():
            last = reads[at]
            unordered = last > clock[1 + reader]
            if reader == agent:
                unordered &= last != now
            if unordered.any():
                readers = np.full(last.shape, reader + 1)
                self._report("write after read", agent, access, view, readers, last, unordered)
        shadow.writer[at] = agent + 1
        shadow.written[at] = now

    def _not_atomic(
        self,
        agent: int,
        access: Access,
        writers: np.ndarray,
        written: np.ndarray,
        unordered: np.ndarray,
    ) -> np.ndarray:
        """Which of the unordered writes before an atomic one were not atomic themselves.

        Two vector cores that add the same to the same place are not one result computed twice, as
        two equal stores are: the place gets it twice.
        """
        left = np.zeros_like(unordered)
        pairs = set(zip(writers[unordered].tolist(), written[unordered].tolist(), strict=True))
        for other, number in pairs:
            earlier = self._history[other - 1][number]
            assert earlier is not None
            if not earlier.atomic:
                left |= unordered & (writers == other) & (written == number)
            elif (
                earlier.places == access.places
                and earlier.added == access.added
                and self._by_other_vector_core(agent, np.array([other]))
            ):
                self._added_twice[access.name, access.places] += 1
        return left

    def _by_other_vector_core(self, agent: int, writers: np.ndarray) -> bool:
        core = self._names[agent].split(".")[0]
        cores = {self._names[writer - 1].split(".")[0] for writer in np.unique(writers)}
        return core.startswith("AIV") and all(
            other.startswith("AIV") and other != core for other in cores
        )

    def _report(
        self,
        hazard: str,
        agent: int,
        access: Access,
        view: Touched,
        others: np.ndarray,
        sequence: np.ndarray,
        which: np.ndarray,
    ) -> None:
        pairs = set(zip(others[which].tolist(), sequence[which].tolist(), strict=True))
        for other, number in sorted(pairs)[:4]:
            earlier = self._history[other - 1][number]
            assert earlier is not None
            text = (
                f"{hazard}: {self._names[agent]} {access.name} and {self._names[other - 1]} "
                f"{earlier.name} both use {view.memory.space} {view.memory.name}, unordered"
            )
            self._races[text, hazard, (*access.places[:1], *earlier.places[:1])] += 1

    def findings(self) -> list[findings.Finding]:
        races = [
            findings.Finding(findings.RACE, text, places, count)
            for (text, _, places), count in self._races.items()
        ]
        duplicates = [
            findings.Finding(
                findings.DUPLICATED_WORK,
                f"both vector cores execute {name} with the same bytes",
                places[:1],
                count,
            )
            for (name, places), count in self._duplicates.items()
        ]
        twice = [
            findings.Finding(
                findings.ADDED_TWICE,
                f"both vector cores execute {name} with the same values",
                places[:1],
                count,
            )
            for (name, places), count in self._added_twice.items()
        ]
        return races + twice + duplicates


WORKSPACE = "workspace"


def merge(found: Sequence[findings.Finding]) -> tuple[findings.Finding, ...]:
    """The same findings of several blocks as one, with their counts added."""
    counts: collections.Counter[tuple[str, str, tuple[str, ...]]] = collections.Counter()
    for finding in found:
        counts[finding.kind, finding.message, finding.places] += finding.count
    return tuple(
        findings.Finding(kind, message, places, count)
        for (kind, message, places), count in counts.items()
    )
