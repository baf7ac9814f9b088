"""Executes an op's launches in the simulator: what `backend.pretend` calls instead of a device.

The op runs its own dispatch, plan and launches on CPU tensors. Each launch is compiled
(`compiled`), executed (`simulate`), and its outcome kept. Imports Triton.
"""

import collections
import contextlib
import dataclasses
import re
import time
from collections.abc import Callable, Iterator

from torch.utils import _python_dispatch

from ops.common import backend, launch
from testing.npu_sim import compiled, races, simulate, timing, transfers
from testing.npu_sim.findings import DEADLOCK, OUT_OF_BOUNDS, Finding
from testing.npu_sim.program import Program

# What memories start with, and temporaries are left with: NaN in every floating type, then finite
# and large in all (see testing/guard.py).
_FILLS = (0xFF, 0x7B)


@dataclasses.dataclass(frozen=True)
class Launch:
    """One simulated launch.

    kernel, key: the variant. programs: blocks of the grid. cores: how many of those the chip works
    on at a time. call: how many calls of the op came before. outcome: see simulate.Outcome.
    atomics: where floating-point numbers are added atomically, so that a sum depends on order.
    """

    kernel: str
    key: str
    programs: int
    cores: int
    call: int
    outcome: simulate.Outcome
    atomics: tuple[str, ...] = ()

    @property
    def stopped(self) -> bool:
        """Whether it ended before its end: outputs and estimates are incomplete."""
        return any(f.kind in (OUT_OF_BOUNDS, DEADLOCK) for f in self.outcome.findings)


@dataclasses.dataclass(frozen=True)
class Simulation:
    """What the simulator saw of some calls of an op."""

    launches: tuple[Launch, ...]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Of all launches, each once: with the counts of one call added, of that with the most."""
        calls: dict[int, list[Finding]] = collections.defaultdict(list)
        for item in self.launches:
            calls[item.call] += item.outcome.findings
        most: dict[tuple[str, str, tuple[str, ...]], Finding] = {}
        for finding in (each for found in calls.values() for each in races.merge(found)):
            what = finding.kind, finding.message, finding.places
            most[what] = max(most.get(what, finding), finding, key=lambda each: each.count)
        return tuple(most.values())

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.is_error)

    @property
    def stopped(self) -> bool:
        return any(item.stopped for item in self.launches)

    @property
    def unwritten(self) -> tuple[str, ...]:
        """Operations that read memory which nothing had written, each once."""
        return tuple(dict.fromkeys(p for item in self.launches for p in item.outcome.unwritten))

    @property
    def atomics(self) -> tuple[str, ...]:
        """Atomic additions of floating-point numbers, each place once."""
        return tuple(dict.fromkeys(place for item in self.launches for place in item.atomics))

    @property
    def first_call(self) -> tuple[Launch, ...]:
        """The launches of the first call, which ran in time order: what estimates are taken of."""
        return tuple(item for item in self.launches if item.call == 0)


class Executor:
    """Runs the launches of some calls of one op on one simulated chip: a devices.Session.

    The first call runs in time order with memories full of NaN; every launch of the later ones has
    a random schedule of its own, and every other call another fill. A result that depends on the
    schedule, or on memory that nothing wrote, then differs between calls.

    trace: keep the events of the first call. change: what to launch instead of what the op
    launches. run: what executes a launch. progress: called after each launch with it and the
    seconds that it took, compiling included.
    """

    def __init__(
        self,
        modules: compiled.Modules,
        trace: bool = False,
        change: Callable[[launch.Launch], launch.Launch] = lambda item: item,
        run: Callable[..., simulate.Outcome] = simulate.run,
        progress: Callable[[Launch, float], None] = lambda item, seconds: None,
    ):
        self._modules = modules
        self._trace = trace
        self._change = change
        self._run = run
        self._progress = progress
        self._calls = 0
        self._launches: list[Launch] = []

    @contextlib.contextmanager
    def calling(self) -> Iterator[None]:
        """An op that is called inside runs on the simulated chip; one call for each block."""
        architecture = self._modules.architecture
        cores = architecture.chips[self._modules.chip]
        with backend.pretend(architecture.backend, cores, self._execute):
            yield
        self._calls += 1

    def simulation(self) -> Simulation:
        """What happened so far."""
        return Simulation(tuple(self._launches))

    def _execute(self, item: launch.Launch) -> None:
        start = time.monotonic()
        item = self._change(item)
        specialised, program = self._modules.program(item)
        # In the kernel's order, without what is a constant of the variant: absent tensors, ones.
        names = [
            parameter.name
            for parameter in item.kernel.params
            if parameter.name in item.args and parameter.name not in specialised.constants
        ]
        settings = simulate.Settings(
            seed=len(self._launches) if self._calls else None,
            fill=_FILLS[self._calls % len(_FILLS)],
            trace=self._trace and not self._calls,
        )
        # What the simulator allocates is none of the op's.
        with _python_dispatch._disable_current_modes():
            outcome = self._run(
                program, item.grid, [item.args[name] for name in names], settings, names=names
            )
        cores = timing.Model.of(program.target).cores(mixed="AIC" in program.entries)
        self._launches.append(
            Launch(
                item.name,
                specialised.key,
                item.programs,
                cores,
                self._calls,
                outcome,
                _float_atomics(program),
            )
        )
        self._progress(self._launches[-1], time.monotonic() - start)


def _float_atomics(program: Program) -> tuple[str, ...]:
    """Places of the operations that add floating-point numbers atomically."""
    return tuple(
        dict.fromkeys(
            place
            for operation, _ in program.module.walk()
            if transfers.enumeration(operation.attributes, "atomic_kind", "none") == "add"
            and re.search(r"x?(bf|f)\d+\b", str(operation.operand_types[-1]))
            for place in program.places(operation)[:1]
        )
    )
