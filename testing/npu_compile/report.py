"""Results as a table, and what failed."""

import dataclasses
import glob
import os
from collections.abc import Sequence

from testing import tables
from testing.npu_compile import specialisation
from testing.npu_compile.measure import Measurement
from testing.npu_compile.result import Result
from testing.npu_compile.specialisation import Call


@dataclasses.dataclass(frozen=True)
class Compiled:
    """Results and the calls whose launches they are of."""

    results: Sequence[Result]
    calls: Sequence[Call]

    def of_cases(self, names: Sequence[str]) -> "Compiled":
        """The part that concerns the named cases."""
        calls = [call for call in self.calls if call.case in names]
        keys = {key for call in calls for key in call.launches}
        return Compiled([r for r in self.results if r.specialisation.key in keys], calls)

    def __add__(self, other: "Compiled") -> "Compiled":
        return Compiled([*self.results, *other.results], [*self.calls, *other.calls])


def load(folder: str) -> Compiled:
    """What the rule npu_compile left in its folder."""
    results = [
        Result.from_json(data)
        for path in sorted(glob.glob(os.path.join(folder, "result_*.json")))
        for data in specialisation.load(path)
    ]
    plan = specialisation.load(os.path.join(folder, "plan.json"))
    return Compiled(results, [Call.from_json(data) for data in plan])


def cases_of(key: str, calls: Sequence[Call]) -> list[str]:
    """The cases that launch a specialisation, each once."""
    return list(dict.fromkeys(call.case for call in calls if key in call.launches))


def launches_of(key: str, calls: Sequence[Call]) -> int:
    """The most launches of any one call that launches a specialisation."""
    return max((len(call.launches) for call in calls if key in call.launches), default=0)


def rows(results: Sequence[Result], calls: Sequence[Call]) -> list[list[str]]:
    """The table, header first. `-`: not planned by the compiler, or not compiled.

    Chips for which the compiler did the same share a row; its seconds are the most of them.
    """
    header = ["kernel", "variant", "cases", "chip", "verdict", "s"]
    header += ["UB", "L1", "L0C", "retries", "buffers", "vector cores"]
    header += ["vector", "cube", "in", "out", "fixpipe", "scalar ld/st/loops"]
    header += ["syncs", "workspace", "launches"]
    table = [header]
    for same in _alike(results):
        result = same[0]
        key = result.specialisation.key
        names = cases_of(key, calls)
        more = f" +{len(names) - 1}" if len(names) > 1 else ""
        chip = ", ".join(other.chip for other in same)
        row = [result.specialisation.kernel, key, (names or ["-"])[0] + more, chip]
        row += [result.verdict, f"{max(other.seconds for other in same):.1f}"]
        row += _measured(result)
        table.append([*row, str(launches_of(key, calls))])
    return table


def _alike(results: Sequence[Result]) -> list[list[Result]]:
    """Results that differ in their chip and time only, together."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        bare = dataclasses.replace(result, chip="", seconds=0.0, stages="", diagnosis="")
        groups.setdefault(repr(bare), []).append(result)
    return list(groups.values())


def _measured(result: Result) -> list[str]:
    m = result.measurement
    if m is None:
        return ["-"] * 14
    operations = m.operations
    vector_only = m.core_type != "MIX"
    return [
        *(_memory(m, name) for name in ("UB", "L1", "L0C")),
        ", ".join(result.retries) or "none",
        "double" if result.double_buffered else "single",
        "-" if vector_only else "1 of 2" if m.idle_vector_core else "2 of 2",
        *(str(operations[pipe]) for pipe in ("vector", "cube", "load", "store", "fixpipe")),
        f"{m.scalar_loads}/{m.scalar_stores}/{m.scalar_loops}",
        str(m.cross_core_syncs),
        str(m.workspace_bytes),
    ]


def _memory(m: Measurement, name: str) -> str:
    used, available = m.memory[name]
    return "-" if used is None else f"{used} ({100 * used / available:.0f}%)"


def text(results: Sequence[Result], calls: Sequence[Call]) -> str:
    """The table, then what failed."""
    parts = [tables.table(rows(results, calls))]
    parts += failures(results, calls)
    compiled = sum(result.verdict == "ok" for result in results)
    seconds = sum(result.seconds for result in results)
    parts.append(
        f"{compiled} of {len(results)} compile, in {seconds:.0f} s of the compiler; "
        f"{len({call.case for call in calls})} cases launch "
        f"{len({result.specialisation.key for result in results})} variants"
    )
    return "\n\n".join(parts)


def failures(results: Sequence[Result], calls: Sequence[Call]) -> list[str]:
    """One message for each case that could not be planned and each variant without code."""
    messages: dict[str, list[str]] = {}
    for call in calls:
        if call.failure:
            message = f"{call.failure.stage}: {call.failure.kind}: {call.failure.message}"
            messages.setdefault(message, []).append(f"{call.case} on {call.chip}")
    for result in results:
        if result.verdict != "ok":
            names = cases_of(result.specialisation.key, calls)
            label = f"{result.label} ({', '.join(names)})"
            messages.setdefault(result.diagnosis, []).append(label)
    return [f"{'; '.join(labels)}:\n{message}" for message, labels in messages.items()]
