"""Case tables: what an op is tested, timed and measured on, as typed data. Needs NumPy only.

A case fixes every input to the bit: its values come from a Philox stream keyed by (op, case,
tensor, seed). The same table serves the accuracy, performance and memory targets of every device.
"""

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from testing import distributions

# dtype name -> the NumPy dtype that carries it. NumPy has no bfloat16: its bits travel as uint16.
CARRIERS: Mapping[str, np.dtype[Any]] = {
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(np.uint16),
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
    "int32": np.dtype(np.int32),
    "int64": np.dtype(np.int64),
}
ITEMSIZE = {name: carrier.itemsize for name, carrier in CARRIERS.items()}

# How a tensor lies in memory. Every layout but `contiguous` leaves cells between the elements that
# belong to no tensor; testing.inputs fills those with NaN.
LAYOUTS = (
    "contiguous",
    "slice",  # the middle of a tensor whose last axis is wider: the last axis keeps stride 1
    "permuted",  # axes 1 and 2 swapped in memory: the last axis keeps stride 1
    "strided",  # every second element of a tensor whose last axis is twice as long: stride 2
    "odd",  # contiguous, but axes of size 1 have stride 7
)

TAGS = (
    "ci",  # small enough for the interpreter and for simulators; goldens are built ahead and cached
    "full",  # device sizes; the golden is computed on the device when the test runs
    "perf",  # timed by the performance target
    # Compiled for Ascend and, if it is `ci` too and small enough, simulated. For tables whose every
    # case has kernels of its own: a table without this tag is compiled whole.
    "npu",
)


@dataclasses.dataclass(frozen=True)
class TensorSpec:
    """One input tensor: `shape`, `dtype` (a key of CARRIERS), how its values are drawn, and its
    memory layout."""

    shape: tuple[int, ...]
    dtype: str
    values: Any  # a distribution of testing.distributions
    layout: str = "contiguous"

    def __post_init__(self):
        if self.dtype not in CARRIERS:
            raise ValueError(f"dtype: got {self.dtype!r}, allowed are {sorted(CARRIERS)}")
        if self.layout not in LAYOUTS:
            raise ValueError(f"layout: got {self.layout!r}, allowed are {list(LAYOUTS)}")
        if self.layout == "permuted" and len(self.shape) < 3:
            raise ValueError(f"layout: 'permuted' needs 3 axes or more, the shape is {self.shape}")


@dataclasses.dataclass(frozen=True)
class Waiver:
    """A dated relaxation of one gate for one output of one case. It is printed in every report.

    limit: the value allowed instead of the gate's own limit. measured: the value that made it
    necessary. devices: where it holds; empty means everywhere.
    """

    output: str
    gate: str
    limit: float
    measured: float
    date: str
    reason: str
    devices: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Case:
    """One row of an op's table.

    tensors: argument name -> TensorSpec, or None for an optional argument that is not given.
    attributes: the other arguments. tags: see TAGS.
    """

    op: str
    name: str
    tensors: Mapping[str, TensorSpec | None]
    attributes: Mapping[str, Any]
    tags: frozenset[str]
    seed: int = 0
    waivers: tuple[Waiver, ...] = ()

    def __post_init__(self):
        if not re.fullmatch(r"[a-z0-9_]+", self.name):
            raise ValueError(
                f"name: got {self.name!r}, allowed are lower-case letters, digits and '_'"
            )
        if not self.tags or not self.tags <= set(TAGS):
            raise ValueError(
                f"tags of case {self.name}: got {sorted(self.tags)}, "
                f"allowed are {list(TAGS)}, at least one"
            )

    def to_json(self) -> dict[str, Any]:
        """Everything that decides the inputs, as plain data."""
        return {
            "op": self.op,
            "name": self.name,
            "seed": self.seed,
            "tensors": {
                name: spec
                and {
                    "shape": list(spec.shape),
                    "dtype": spec.dtype,
                    "layout": spec.layout,
                    "values": distributions.to_json(spec.values),
                }
                for name, spec in self.tensors.items()
            },
            "attributes": dict(self.attributes),
        }

    def fingerprint(self) -> str:
        """sha256 of `to_json()`: changes when any input of the case changes."""
        text = json.dumps(self.to_json(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def shape(self, tensor: str) -> tuple[int, ...]:
        """The shape of one tensor, which must be given."""
        spec = self.tensors[tensor]
        if spec is None:
            raise ValueError(f"tensor: {tensor!r} is not given in case {self.name}")
        return spec.shape

    def sample(self, tensor: str) -> np.ndarray:
        """The values of one tensor, quantised to its dtype (bfloat16 as its bits, see CARRIERS)."""
        spec = self.tensors[tensor]
        if spec is None:
            raise ValueError(f"tensor: {tensor!r} is not given in case {self.name}")
        stream = distributions.Stream(f"{self.op}/{self.name}/{tensor}/{self.seed}")
        return quantise(spec.values.sample(stream, spec.shape), spec.dtype)


def quantise(x: np.ndarray, dtype: str) -> np.ndarray:
    """float64 -> the carrier of `dtype`, rounded to nearest even (through float32 for the 16-bit
    types)."""
    if dtype != "bfloat16":
        if dtype == "float16":
            x = x.astype(np.float32)
        return x.astype(CARRIERS[dtype])
    single = np.ascontiguousarray(x, dtype=np.float32)
    bits = single.view(np.uint32)
    # Half of the dropped part, plus one when the kept part is odd: ties go to even. A NaN keeps its
    # top bits.
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(single), np.uint32(0x7FC0), rounded).astype(np.uint16)


def widen(x: np.ndarray, dtype: str) -> np.ndarray:
    """The carrier of `dtype` -> float64, exactly."""
    if dtype == "bfloat16":
        return (x.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    return x.astype(np.float64)


def select(cases: Sequence[Case], tags: Sequence[str]) -> list[Case]:
    """The cases that have any of the tags, in the table's order."""
    unknown = sorted(set(tags) - set(TAGS))
    if unknown:
        raise ValueError(f"tags: got {unknown}, allowed are {list(TAGS)}")
    return [case for case in cases if case.tags & set(tags)]


def for_ascend(cases: Sequence[Case]) -> list[Case]:
    """The cases that are compiled for Ascend: those tagged `npu`; all, if none is."""
    return select(cases, ["npu"]) or list(cases)


def check_table(cases: Sequence[Case]) -> None:
    """Raises ValueError when two cases share a name or a waiver names no reason or date."""
    seen: set[str] = set()
    for case in cases:
        if case.name in seen:
            raise ValueError(f"cases: the name {case.name!r} stands twice")
        seen.add(case.name)
        for waiver in case.waivers:
            if not waiver.reason or not re.fullmatch(r"\d{4}-\d{2}-\d{2}", waiver.date):
                raise ValueError(
                    f"waiver of case {case.name}: needs a reason and a date YYYY-MM-DD: {waiver}"
                )


def export(cases: Sequence[Case]) -> str:
    """The whole table as JSON text, with each case's fingerprint and tags."""
    rows = [
        case.to_json()
        | {
            "tags": sorted(case.tags),
            "fingerprint": case.fingerprint(),
            "waivers": [dataclasses.asdict(waiver) for waiver in case.waivers],
        }
        for case in cases
    ]
    return json.dumps(rows, indent=1)
