"""What one call costs in different implementations: kernels and sums, as tables.

A call is what `foreign.recorded` and `host_operations.counted` collected; its kernels were compiled
by `foreign.compile_planned`. Imports neither Triton nor Torch.
"""

import dataclasses
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from testing.npu_compile import report
from testing.npu_compile.result import Result

if TYPE_CHECKING:
    from ops.common.launch import Launch
    from testing.host_operations import Operation
    from testing.npu_compile.foreign import Choice

# A grid of more programs is refused by Ascend's runtime; ops.common.launch has the same figure.
MAX_PROGRAMS = 65535

# Of the report of npu_compile.
_MEASURED = (
    *("verdict", "UB", "L1", "L0C", "retries", "buffers", "vector cores", "vector", "cube"),
    *("scalar ld/st/loops", "syncs", "workspace"),
)
_STORES = "stores split/limited/duplicated"
COLUMNS = ("kernel", "tiles", "launches", "programs", "MB", *_MEASURED, _STORES)
# As testing.host_operations, which imports torch, calls them.
KINDS = ("transpose", "cast", "copy", "fill", "other")


@dataclasses.dataclass(frozen=True)
class Call:
    """What one call does on the device. failure: why it cannot be made; then the rest is empty."""

    choices: "Sequence[Choice]" = ()
    operations: "Sequence[Operation]" = ()
    failure: str = ""


@dataclasses.dataclass(frozen=True)
class Row:
    """Launches of one call that share compiled code.

    tiles: the constants that are tile sizes. programs: of one launch. bytes: of one launch, see
    tensor_bytes. chosen: of what an autotuner may choose from only one is, and counts in sums.
    """

    kernel: str
    tiles: str
    launches: int
    programs: int
    bytes: int
    chosen: bool
    result: Result

    @property
    def compiled(self) -> bool:
        return self.result.verdict == "ok"


def tensor_bytes(item: "Launch") -> int:
    """An estimate of what a launch moves through global memory: each tensor that it gets counts
    once and whole, whether it is read, written or both."""
    tensors: dict[int, Any] = {id(v): v for v in item.args.values() if hasattr(v, "numel")}
    return sum(tensor.numel() * tensor.itemsize for tensor in tensors.values())


def tiles(item: "Launch") -> str:
    """The constants that are tile sizes: BK, BLOCK_V and the like."""
    found = {
        name.removeprefix("BLOCK_"): value
        for name, value in item.constants.items()
        if name.startswith("BLOCK_") or (name.startswith("B") and len(name) == 2)
    }
    return ", ".join(f"{name} {value}" for name, value in found.items())


def rows(call: Call, keys: Sequence[Sequence[str]], results: Mapping[str, Result]) -> list[Row]:
    """The call's kernels in the order of their first launch.

    keys: of each choice's candidates. Where an autotuner would choose, the first candidate that
    compiles is taken, in the package's own order.
    """
    launches = Counter(tuple(of_choice) for of_choice in keys)
    found = []
    seen = set()
    for choice, of_choice in zip(call.choices, map(tuple, keys), strict=True):
        if of_choice in seen:
            continue
        seen.add(of_choice)
        verdicts = [results[key].verdict for key in of_choice]
        best = verdicts.index("ok") if "ok" in verdicts else 0
        for index, (item, key) in enumerate(zip(choice.candidates, of_choice, strict=True)):
            found.append(
                Row(
                    kernel=item.name,
                    tiles=tiles(item),
                    launches=launches[of_choice],
                    programs=item.programs,
                    bytes=tensor_bytes(item),
                    chosen=index == best,
                    result=results[key],
                )
            )
    return found


def cells(result: Result | None, columns: Sequence[str]) -> list[str]:
    """What npu_compile's report says in these columns, the first being the verdict."""
    if result is None:
        return ["failed", *["-"] * (len(columns) - 1)]
    header, row = report.rows([result], [])
    named = dict(zip(header, row, strict=True))
    return [named[name] for name in columns]


def stores(result: Result) -> str:
    """Of a kernel with cube and vector work: the stores of which each of the two vector cores makes
    its own rows, those that only the first one makes, and those that both make."""
    m = result.measurement
    if m is None or m.core_type != "MIX":
        return "-"
    both = m.operations["store"] - m.split_stores - m.limited_stores
    return f"{m.split_stores}/{m.limited_stores}/{both}"


def kernel_table(of_call: Sequence[Row]) -> list[list[str]]:
    """One line for each row, header first; what is not chosen stands in brackets."""
    table = [list(COLUMNS)]
    for row in of_call:
        line = [row.kernel if row.chosen else f"({row.kernel})", row.tiles]
        line += [str(row.launches), str(row.programs), f"{row.bytes / 1e6:.1f}"]
        table.append([*line, *cells(row.result, _MEASURED), stores(row.result)])
    return table


def failures(of_call: Sequence[Row]) -> list[str]:
    """What the compiler said first of each row that has no code."""
    lines: dict[str, list[str]] = {}
    for row in of_call:
        if not row.compiled:
            label = f"{row.kernel} ({row.tiles})" if row.tiles else row.kernel
            lines.setdefault(first_error(row.result.diagnosis), []).append(label)
    return [f"{'; '.join(labels)}: {line}" for line, labels in lines.items()]


def first_error(diagnosis: str) -> str:
    """A diagnosis in one line: its first, or what Triton's nested errors come down to."""
    first, *others = diagnosis.splitlines()
    causes = re.findall(r"^\w+(?:Error|Exception): .+$", "\n".join(others), re.M)
    if first.startswith("ttir: ") and causes:
        return " ".join([*first.split()[:2], causes[-1]])
    return first


def summary(columns: Mapping[str, tuple[Call, Sequence[Row]]]) -> list[list[str]]:
    """Implementations side by side, header first; "-" where a call cannot be made."""
    figures = {
        label: {} if call.failure else _figures(call, [row for row in of_call if row.chosen])
        for label, (call, of_call) in columns.items()
    }
    names = list(dict.fromkeys(name for values in figures.values() for name in values))
    table = [["", *figures]]
    for name in names:
        table.append([name, *(values.get(name, "-") for values in figures.values())])
    return table


def _figures(call: Call, chosen: Sequence[Row]) -> dict[str, str]:
    measured = [row.result.measurement for row in chosen if row.compiled]
    ok = [m for m in measured if m is not None]
    mixed = [m for m in ok if m.core_type == "MIX"]
    kinds = Counter(operation.kind for operation in call.operations)
    in_kernels = sum(row.launches * row.bytes for row in chosen)
    beside = sum(operation.bytes for operation in call.operations)
    shares = [m.ub_share for m in ok]
    launches = sum(row.launches for row in chosen)
    values: dict[str, Any] = {
        "launches of any kind": launches + len(call.operations),
        "kernel launches": launches,
        "of these that compile": sum(row.launches for row in chosen if row.compiled),
        f"of these with more than {MAX_PROGRAMS} programs": sum(
            row.launches for row in chosen if row.programs > MAX_PROGRAMS
        ),
        "operations of PyTorch between them": len(call.operations),
        **{f"of these {kind}": kinds[kind] for kind in KINDS},
        "MB in kernels (estimate)": f"{in_kernels / 1e6:.0f}",
        "MB in PyTorch (estimate)": f"{beside / 1e6:.0f}",
        "MB in all (estimate)": f"{(in_kernels + beside) / 1e6:.0f}",
        "largest share of UB *": f"{100 * max(shares):.0f}%" if shares else "-",
        "cross-core syncs *": sum(m.cross_core_syncs for m in ok),
        "kernels with an idle vector core *": (
            f"{sum(m.idle_vector_core for m in mixed)} of {len(mixed)}"
        ),
        "scalar loads, stores, loops *": "/".join(
            str(sum(getattr(m, name) for m in ok))
            for name in ("scalar_loads", "scalar_stores", "scalar_loops")
        ),
    }
    return {name: str(value) for name, value in values.items()}
