"""Tables of what simulated launches are estimated to cost. Pure Python.

Estimates rank variants of a kernel and name the pipe that limits it. They are no measurement: the
same assumptions, wrong in the same way, stand behind every figure.
"""

import collections
import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from testing.npu_sim.findings import Finding

if TYPE_CHECKING:
    from testing.npu_sim import executor

ESTIMATE = "estimate, no measurement: ranks variants, names the limiting pipe"
ASSUMPTIONS = "its constants, and which of them are guesses: testing/npu_sim/calibration.py"


@dataclasses.dataclass(frozen=True)
class Summary:
    """Estimates of one launch.

    cycles: of the whole launch. stopped: it ended before its end, and all of this is of a part.
    shares: 'AIV.V' -> how much of the launch that pipe works, on
    average over the cores in use, by core of its kind ((0.7, 0.1): the second vector core idles).
    moved: bytes, such as 'gm->ub'.
    """

    kernel: str
    key: str
    programs: int
    cores: int
    cycles: float
    stopped: bool
    shares: Mapping[str, tuple[float, ...]]
    moved: Mapping[str, int]

    @property
    def limiting(self) -> str:
        """The pipe that works most, with its share; empty when nothing does.

        Below half of the time it does not limit anything: the kernel waits, for transfers to arrive
        and for other pipes and cores.
        """
        if not self.shares:
            return ""
        name = max(self.shares, key=lambda pipe: max(self.shares[pipe]))
        busiest = f"{name} {_percent(self.shares[name])}"
        return busiest if max(self.shares[name]) >= 0.5 else f"waits ({busiest})"


def of_launch(item: "executor.Launch") -> Summary:
    """The estimates of one launch."""
    outcome = item.outcome
    in_use = max(1, min(item.programs, item.cores)) * outcome.makespan_cycles
    shares: dict[str, dict[str, float]] = collections.defaultdict(dict)
    for name, cycles in outcome.busy.items():
        core, _, pipe = name.partition(".")
        kind = re.sub(r"\d+$", "", core)
        shares[f"{kind}.{pipe}"][core] = cycles / in_use if in_use else 0.0
    cores: dict[str, list[str]] = collections.defaultdict(list)
    for core in sorted({name.partition(".")[0] for name in outcome.busy}):
        cores[re.sub(r"\d+$", "", core)].append(core)
    return Summary(
        kernel=item.kernel,
        key=item.key,
        programs=item.programs,
        cores=item.cores,
        cycles=outcome.makespan_cycles,
        stopped=item.stopped,
        shares={
            pipe: tuple(found.get(core, 0.0) for core in cores[pipe.partition(".")[0]])
            for pipe, found in sorted(shares.items())
        },
        moved=dict(sorted(outcome.moved.items())),
    )


def cells(summary: Summary) -> dict[str, str]:
    """Column -> text: cycles, the limiting pipe, each pipe's share, bytes between memories."""
    return {
        "kcycles (estimate)": "stopped" if summary.stopped else f"{summary.cycles / 1e3:.1f}",
        "limiting pipe": summary.limiting or "-",
        **{pipe: _percent(shares) for pipe, shares in summary.shares.items()},
        **{f"{way} KB": f"{count / 1e3:.1f}" for way, count in summary.moved.items()},
    }


def note_rows(cases: Sequence[tuple[str, Sequence[Finding]]]) -> list[list[str]]:
    """One row per note, whatever its case and place, header first; no rows without notes."""
    found: dict[tuple[str, str], list[tuple[str, Finding]]] = collections.defaultdict(list)
    for case, findings in cases:
        for finding in findings:
            if not finding.is_error:
                found[finding.kind, finding.message].append((case, finding))
    rows = [["note", "what", "cases", "where", "times"]] if found else []
    for (kind, message), notes in found.items():
        names = list(dict.fromkeys(case for case, _ in notes))
        places = sorted({place for _, finding in notes for place in finding.places})
        times = sum(finding.count for _, finding in notes)
        rows.append([kind, message, _some(names, 1), _some(places, 3), str(times)])
    return rows


def _some(names: Sequence[str], count: int) -> str:
    more = f" +{len(names) - count}" if len(names) > count else ""
    return ", ".join(names[:count]) + more


def case_rows(cases: Sequence[tuple[str, Sequence[Summary]]]) -> list[list[str]]:
    """One row per launch of each case, header first."""
    launches = [(case, summary, cells(summary)) for case, found in cases for summary in found]
    columns = list(dict.fromkeys(name for *_, row in launches for name in row))
    rows = [["case", "kernel", "variant", "programs", *columns]]
    for case, summary, row in launches:
        label = [case, summary.kernel, summary.key, str(summary.programs)]
        rows.append([*label, *(row.get(name, "-") for name in columns)])
    return rows


def side_by_side(variants: Sequence[tuple[str, Sequence[Summary]]]) -> list[list[str]]:
    """One column per variant, one row per figure, header first; launches below each other."""
    rows = [["", *(label for label, _ in variants)]]
    for index in range(max((len(found) for _, found in variants), default=0)):
        at = [found[index] if index < len(found) else None for _, found in variants]
        rows.append(["kernel", *(each.kernel if each else "-" for each in at)])
        rows.append(["variant", *(each.key if each else "-" for each in at)])
        rows.append(["programs", *(str(each.programs) if each else "-" for each in at)])
        columns = [cells(each) if each else {} for each in at]
        for name in dict.fromkeys(name for column in columns for name in column):
            rows.append([name, *(column.get(name, "-") for column in columns)])
    return rows


def _percent(shares: Sequence[float]) -> str:
    """`45%`, or `45/3%` when two vector cores work differently."""
    texts = [f"{100 * share:.0f}" for share in shares]
    return "/".join(texts if len(set(texts)) > 1 else texts[:1]) + "%"
