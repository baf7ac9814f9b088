"""The accuracy policy's numeric gates (G0's non-finite part, G1 to G5) on one output. Needs NumPy
only.

Terms. u: unit roundoff of the op's dtype. g: the float64 golden. r: the same-precision reference. e
= actual - g. s: the root mean square of g over its last axis. A block: 16 consecutive rows of one
head. A limit is the larger of a floor, which a correctly rounded result stays under, and a multiple
of what r itself reaches.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from testing import cases, golden, spec

ROUNDOFF = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "hf32": 2.0**-12}

# Floors of G1 (norm), G2 (worst block), G3 (scaled maximum), G4 (bias). 16-bit, in u: rounding the
# exact result once costs 0.42 in norm and 1/2 at the largest element.
FLOORS = {
    "float16": tuple(x * 2.0**-11 for x in (0.6, 0.6, 1, 1 / 13)),
    "bfloat16": tuple(x * 2.0**-8 for x in (0.6, 0.6, 1, 1 / 13)),
    "float32": (2.0**-20, 2.0**-19, 2.0**-17, 2.0**-21),
    "hf32": tuple(x * 2.0**-12 for x in (0.8, 0.8, 4, 0.1)),
}

# How much worse than r the result may be: G1, G2, G3. G4 compares with a tenth of r's mean absolute
# error.
SLACK = (1.2, 1.5, 2.0)
BIAS_SHARE = 0.1
# Below this many elements a mean says nothing about a bias.
BIAS_ELEMENTS = 4096
BLOCK_ROWS = 16
# What gate G7 injects; see `faults`.
FAULTS = ("all zeros", "gain 1.01", "dropped tail", "stale row", "sign flip")
_SMALLEST_NORMAL = {"float16": 2.0**-14, "bfloat16": 2.0**-126, "float32": 2.0**-126}


@dataclasses.dataclass(frozen=True)
class Gate:
    """One gate's outcome. value and limit share a unit; same: what r itself reaches (NaN where r
    plays no part); detail: what was found, where a number alone does not say it."""

    output: str
    name: str
    value: float
    limit: float
    same: float = math.nan
    waiver: cases.Waiver | None = None
    detail: str = ""

    @property
    def passed(self) -> bool:
        return self.value <= self.limit  # False for a NaN

    @property
    def used(self) -> float:
        """The share of the limit that is used: 1 is the last value that passes."""
        if self.limit == 0:
            return 0.0 if self.value == 0 else math.inf
        return self.value / self.limit


@dataclasses.dataclass(frozen=True)
class Metrics:
    """The four distances of a result from the golden, all relative. elements: those that may be
    off independently."""

    norm: float
    worst_block: float
    scaled_max: float
    bias: float
    mean_abs: float
    elements: int


def _ratio(error: np.ndarray | np.floating, size: np.ndarray | np.floating) -> np.ndarray:
    """error / size, with 0/0 = 0: where the golden is zero, the result must be."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(error == 0, 0.0, error / size)


def blocked(x: np.ndarray, output: spec.Output) -> np.ndarray:
    """[heads, blocks, BLOCK_ROWS * features], zero-padded: every block of gate G2 as one row."""
    if output.rows_axis is None:
        return x.reshape(-1, 1, x.shape[-1])
    x = np.moveaxis(x, output.rows_axis, -2)
    rows, features = x.shape[-2:]
    x = x.reshape(-1, rows, features)
    padding = -rows % BLOCK_ROWS
    if padding:
        x = np.pad(x, ((0, 0), (0, padding), (0, 0)))
    return x.reshape(len(x), -1, BLOCK_ROWS * features)


def _scale(g: np.ndarray, output: spec.Output) -> np.ndarray:
    """s of each row, with a last axis of 1."""
    squares = np.mean(g * g, axis=-1, keepdims=True)
    together = max(output.summed_rows, output.pooled_rows)
    if together > 1 and output.rows_axis is not None and g.size:
        axis, rows = output.rows_axis, g.shape[output.rows_axis]
        starts = np.arange(0, rows, together)
        sizes = np.diff(starts, append=rows)
        shape = [-1 if i == axis else 1 for i in range(g.ndim)]
        groups = np.add.reduceat(squares, starts, axis=axis) / sizes.reshape(shape)
        squares = np.repeat(groups, sizes, axis=axis)
    return np.sqrt(squares)


def scaled_errors(actual: np.ndarray, reference: np.ndarray, output: spec.Output) -> np.ndarray:
    """e / (|g| + s) per element, 0 where either is not finite."""
    finite = np.isfinite(actual) & np.isfinite(reference)
    g = np.where(finite, reference, 0.0)
    e = np.where(finite, actual, 0.0) - g
    return _ratio(e, np.abs(g) + _scale(g, output))


def measure(actual: np.ndarray, reference: np.ndarray, output: spec.Output) -> Metrics:
    """The distances of `actual` from `reference`, both float64, over the elements where both are
    finite."""
    if not reference.size:
        return Metrics(0, 0, 0, 0, 0, 0)
    finite = np.isfinite(actual) & np.isfinite(reference)
    g = np.where(finite, reference, 0.0)
    e = np.where(finite, actual, 0.0) - g
    scaled = scaled_errors(actual, reference, output)
    blocks = _ratio(
        np.linalg.norm(blocked(e, output), axis=-1),
        np.linalg.norm(blocked(g, output), axis=-1),
    )
    return Metrics(
        norm=float(_ratio(np.linalg.norm(e), np.linalg.norm(g))),
        worst_block=float(blocks.max()),
        scaled_max=float(np.abs(scaled).max()),
        bias=float(abs(scaled.mean())),
        mean_abs=float(np.abs(scaled).mean()),
        elements=g.size // output.summed_rows,
    )


def misplaced(actual: np.ndarray, reference: np.ndarray, dtype: str) -> int:
    """How many elements are NaN, +Inf or -Inf where the golden, in the output's dtype, is not, or
    the other way round.

    The golden is rounded to the output's dtype first: a finite float64 beyond float16's range must
    come back as Inf.
    """
    if dtype in ("float16", "bfloat16", "float32"):
        with np.errstate(over="ignore"):
            reference = cases.widen(cases.quantise(reference, dtype), dtype)

    def kind(x: np.ndarray) -> np.ndarray:
        return np.where(np.isnan(x), 2.0, np.where(np.isinf(x), np.sign(x), 0.0))

    return int(np.count_nonzero(kind(actual) != kind(reference)))


def compare(
    actual: np.ndarray,
    reference: golden.Reference,
    output: spec.Output,
    precision: str,
    waivers: Sequence[cases.Waiver] = (),
) -> list[Gate]:
    """The numeric gates of one output.

    actual: the result in the carrier of `reference.dtype`, with the golden's shape. precision: a
    key of FLOORS.
    """
    if output.exact:
        wanted = cases.quantise(reference.golden, reference.dtype)
        return [Gate(output.name, "G5 exact", float(np.count_nonzero(actual != wanted)), 0)]
    a = cases.widen(actual, reference.dtype)
    r = cases.widen(reference.same, reference.dtype)
    g = reference.golden
    mine, same = measure(a, g, output), measure(r, g, output)
    floors = FLOORS[precision]
    gates = [
        Gate(
            output.name,
            "G0 non-finite",
            misplaced(a, g, reference.dtype),
            0,
            misplaced(r, g, reference.dtype),
        ),
        Gate(output.name, "G1 norm", mine.norm, max(SLACK[0] * same.norm, floors[0]), same.norm),
        Gate(
            output.name,
            "G2 worst block",
            mine.worst_block,
            max(SLACK[1] * same.worst_block, floors[1]),
            same.worst_block,
        ),
        Gate(
            output.name,
            "G3 scaled max",
            mine.scaled_max,
            max(SLACK[2] * same.scaled_max, floors[2]),
            same.scaled_max,
        ),
    ]
    if mine.elements >= BIAS_ELEMENTS:
        gates.append(
            Gate(
                output.name,
                "G4 bias",
                mine.bias,
                max(BIAS_SHARE * same.mean_abs, floors[3]),
                same.bias,
            )
        )
    return [_waived(gate, waivers) for gate in gates]


def _waived(gate: Gate, waivers: Sequence[cases.Waiver]) -> Gate:
    for waiver in waivers:
        if waiver.output == gate.output and waiver.gate == gate.name:
            return dataclasses.replace(gate, limit=waiver.limit, waiver=waiver)
    return gate


def faults(
    actual: np.ndarray, output: spec.Output, dtype: str, gain: float = 1.01
) -> Mapping[str, np.ndarray]:
    """Gate G7: known faults injected into a result. A fault that changes nothing (zeros into zeros)
    is left out. gain: what "gain 1.01" multiplies by.

    The row that is replaced is the one of the largest norm: where a gradient fades away, a fault in
    any row may be smaller than the roundings of the others. For the same reason a tail of subnormal
    numbers is not dropped. Nor is a part of a sum that cancels larger than its roundings, so for
    such an output only faults of the whole are injected.
    """
    if not actual.size:
        return {}
    wide = cases.widen(actual, dtype)
    axis = 0 if output.rows_axis is None else output.rows_axis
    rows = actual.shape[axis]
    others = tuple(i for i in range(actual.ndim) if i != axis)
    finite = np.where(np.isfinite(wide), wide, 0.0)
    largest = int(np.argmax(np.abs(finite).max(axis=others) if others else np.abs(finite)))
    row = tuple(largest if i == axis else slice(None) for i in range(actual.ndim))
    beside = largest - 1 if largest else min(1, rows - 1)
    previous = tuple(beside if i == axis else slice(None) for i in range(actual.ndim))
    tail = tuple(
        slice(rows - max(1, rows % BLOCK_ROWS), None) if i == axis else slice(None)
        for i in range(actual.ndim)
    )

    def replaced(where: tuple, value: np.ndarray | float) -> np.ndarray:
        out = wide.copy()
        out[where] = value
        return out

    injected = {
        "all zeros": np.zeros_like(wide),
        "gain 1.01": wide * gain,
        "dropped tail": replaced(tail, 0.0),
        "stale row": replaced(row, wide[previous]) if rows > 1 else wide,
        "sign flip": replaced(row, -wide[row]),
    }
    if np.abs(finite[tail]).max() < _SMALLEST_NORMAL.get(dtype, 0.0):
        del injected["dropped tail"]
    if output.cancels:
        injected = {name: injected[name] for name in ("all zeros", "gain 1.01")}
    with np.errstate(over="ignore"):
        carried = {name: cases.quantise(x, dtype) for name, x in injected.items()}
    return {name: x for name, x in carried.items() if not same_values(x, actual, dtype)}


def same_values(x: np.ndarray, y: np.ndarray, dtype: str) -> bool:
    """Whether two results are equal in value (-0 equals 0, NaN equals NaN)."""
    return np.array_equal(cases.widen(x, dtype), cases.widen(y, dtype), equal_nan=True)
