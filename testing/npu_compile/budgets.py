"""What a kernel may cost on an architecture, stated beside the op and checked on every variant."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from testing.npu_compile import report
from testing.npu_compile.result import Result
from testing.npu_compile.specialisation import Call, Constant


@dataclasses.dataclass(frozen=True)
class Budget:
    """Limits for the variants of one kernel on one architecture; None and False limit nothing.

    kernel: its name. architecture: arch32 or arch35. where: constants by which variants are
    selected. max_ub_share: of the Unified Buffer, 1.0 is all of it. double_buffered: must the
    compiler keep the second buffers. both_vector_cores: must each vector core have rows of its own,
    in half of the stores or more. max_unsplit_stores: of a mixed kernel, those where it has none.
    max_scalar_loads, max_scalar_stores: accesses of the scalar unit, times constant trip counts.
    max_cross_core_syncs: signals between cube and vector cores in the code. max_launches: per call.
    """

    kernel: str
    architecture: str
    where: Mapping[str, Constant] = dataclasses.field(default_factory=dict)
    max_ub_share: float | None = None
    double_buffered: bool = False
    both_vector_cores: bool = False
    max_unsplit_stores: int | None = None
    max_scalar_loads: int | None = None
    max_scalar_stores: int | None = None
    max_cross_core_syncs: int | None = None
    max_launches: int | None = None

    def covers(self, result: Result) -> bool:
        given = result.specialisation.constants
        return (
            result.specialisation.kernel == self.kernel
            and result.architecture == self.architecture
            and all(given.get(name) == value for name, value in self.where.items())
        )

    def exceeded(self, result: Result, launches: int) -> Iterator[str]:
        """One line, with both numbers, for each limit that a compiled variant breaks."""
        m = result.measurement
        if m is None:
            return
        if self.max_ub_share is not None and m.ub_share > self.max_ub_share:
            yield f"UB share is {m.ub_share:.3f}, its budget {self.max_ub_share:.3f}"
        if self.double_buffered and not result.double_buffered:
            yield (
                "buffers are single, its budget asks for double (retries: "
                + (", ".join(result.retries) or "none")
                + ")"
            )
        if self.both_vector_cores and m.idle_vector_core:
            yield "vector cores in use are 1, its budget 2"
        unsplit = m.operations["store"] - m.split_stores if m.core_type == "MIX" else 0
        for name, value, limit in (
            ("stores that both vector cores do not share", unsplit, self.max_unsplit_stores),
            ("scalar loads", m.scalar_loads, self.max_scalar_loads),
            ("scalar stores", m.scalar_stores, self.max_scalar_stores),
            ("cross-core synchronisations", m.cross_core_syncs, self.max_cross_core_syncs),
            ("launches per call", launches, self.max_launches),
        ):
            if limit is not None and value > limit:
                yield f"{name} are {value}, its budget {limit}"

    @property
    def _limits_nothing(self) -> bool:
        bare = Budget(self.kernel, self.architecture, self.where)
        return self == bare


def check(budgets: Sequence[Budget], results: Sequence[Result], calls: Sequence[Call]) -> list[str]:
    """Every line that should fail a test: limits broken, variants without a budget, and budgets
    that are never checked."""
    broken: dict[tuple[str, str], list[str]] = {}  # (variant and cases, complaint) -> chips
    architectures = {result.architecture for result in results}
    for result in results:
        covering = [budget for budget in budgets if budget.covers(result)]
        complaints = [] if covering else ["no budget covers it"]
        launches = report.launches_of(result.specialisation.key, calls)
        for budget in covering:
            complaints += budget.exceeded(result, launches)
        names = ", ".join(report.cases_of(result.specialisation.key, calls)[:3])
        variant = f"{result.specialisation.kernel} {result.specialisation.key} ({names})"
        for complaint in dict.fromkeys(complaints):
            broken.setdefault((variant, complaint), []).append(result.chip)
    lines = [
        f"{variant} on {', '.join(found)}: {complaint}"
        for (variant, complaint), found in broken.items()
    ]
    for budget in budgets:
        if budget.architecture not in architectures:
            continue  # the target of the other architecture checks it
        if budget._limits_nothing:
            lines.append(f"{budget}: limits nothing")
        elif not any(budget.covers(result) and result.measurement for result in results):
            lines.append(f"{budget}: is never checked, it covers no compiled variant")
    return lines
