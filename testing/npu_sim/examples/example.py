"""What an example is: a compiled kernel, its launches, and what they should leave in memory."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np

from testing import distributions
from testing.npu_sim.examples.variants import VARIANTS, Variant

DTYPES: Mapping[str, Any] = {
    "fp32": np.float32,
    "fp16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "i8": np.int8,
    "u8": np.uint8,
    "i16": np.int16,
    "i32": np.int32,
    "i64": np.int64,
}

# What outputs hold before a launch: a kernel that should not write somewhere leaves it there.
_SENTINEL_BYTE = 0x5A
# Elements behind each output that no launch may write.
_GUARD = 40


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """How far a value may be off: `ulps` spacings of the output's type, at the expected magnitude
    but at least at `floor`. reason: why not zero."""

    ulps: float
    reason: str
    floor: float = 0.0

    def allowed(self, expected: np.ndarray) -> np.ndarray:
        """Absolute, for each element."""
        spacing = float(ml_dtypes.finfo(expected.dtype).eps)
        return self.ulps * spacing * np.maximum(np.abs(expected.astype(np.float64)), self.floor)


class Draw:
    """Makes the arguments of one launch, the same bits on every machine.

    Each method takes the name of an argument, whose type the variant knows, without `_ptr`.
    """

    def __init__(self, variant: Variant, key: str):
        self._signature = variant.signature
        self._key = f"{variant.name}/{key}"

    def dtype(self, name: str) -> Any:
        return DTYPES[self._signature[f"{name}_ptr"].removeprefix("*")]

    def normal(self, name: str, *shape: int, scale: float = 1.0) -> np.ndarray:
        values = distributions.Stream(f"{self._key}/{name}").normal(shape)
        return (scale * values).astype(self.dtype(name))

    def integers(self, name: str, low: int, high: int, *shape: int) -> np.ndarray:
        """Whole numbers in [low, high), also of a floating-point type."""
        uniform = distributions.Stream(f"{self._key}/{name}").uniform(shape)
        return (low + np.floor(uniform * (high - low))).astype(self.dtype(name))

    def words(self, name: str, count: int) -> np.ndarray:
        """Every bit pattern of an integer type, with its extremes first."""
        dtype = np.dtype(self.dtype(name))
        words = distributions.Stream(f"{self._key}/{name}").words(count).astype(dtype)
        limits = np.iinfo(dtype)
        return np.concatenate([[limits.min, limits.max, 0, 1], words]).astype(dtype)[:count]

    def blank(self, name: str, *shape: int) -> np.ndarray:
        """An output: one array of `shape`, flat, and a guard behind it."""
        count = int(np.prod(shape, dtype=int)) + _GUARD
        bits = np.full(count * np.dtype(self.dtype(name)).itemsize, _SENTINEL_BYTE, np.uint8)
        return bits.view(self.dtype(name))


@dataclasses.dataclass(frozen=True)
class Launch:
    """arguments: by the kernel's names, arrays flat in memory order or numbers, in its order."""

    grid: tuple[int, ...]
    arguments: Mapping[str, np.ndarray | int | float]

    def copy(self) -> "Launch":
        """The same with arrays of its own, to be run on."""
        copies = {
            name: value.copy() if isinstance(value, np.ndarray) else value
            for name, value in self.arguments.items()
        }
        return Launch(self.grid, copies)


@dataclasses.dataclass(frozen=True)
class Example:
    """A variant, how to launch it at several sizes, and NumPy that says what comes out.

    launch: (draw, *size) -> (grid, arguments without `_ptr`). sizes: one launch each. expected:
    gets the launch's arguments as attributes and writes the outputs in place, like the kernel, but
    shares no code with it; whatever it leaves alone must stay. tolerance: none means the same bits,
    except that one NaN is as good as another. interpreter: why Triton's interpreter cannot be
    compared; it can where this is empty. label: tells examples of one variant apart. miscompiled:
    architecture -> what the simulator says (a regular expression), where the compiler makes
    something else of a kernel that is right.
    """

    variant: str
    launch: Callable[..., tuple[tuple[int, ...], Mapping[str, Any]]]
    sizes: Sequence[tuple[int, ...]]
    expected: Callable[[Any], None]
    tolerance: Tolerance | None = None
    interpreter: str = ""
    label: str = ""
    miscompiled: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.variant}_{self.label}" if self.label else self.variant

    def launches(self) -> Iterator[Launch]:
        variant = VARIANTS[self.variant]
        for size in self.sizes:
            draw = Draw(variant, "x".join(map(str, size)))
            grid, given = self.launch(draw, *size)
            named = {_parameter(variant, name): value for name, value in given.items()}
            if named.keys() != variant.signature.keys():
                raise ValueError(
                    f"{self.variant}: got arguments {sorted(named)}, "
                    f"the variant has {sorted(variant.signature)}"
                )
            yield Launch(
                grid,
                {
                    name: value.reshape(-1) if isinstance(value, np.ndarray) else value
                    for name, value in ((name, named[name]) for name in variant.signature)
                },
            )

    def expect(self, launch: Launch) -> Mapping[str, np.ndarray]:
        """Every array argument as the launch should leave it."""
        arguments = launch.copy().arguments
        space = SimpleNamespace(
            grid=launch.grid,
            **{name.removesuffix("_ptr"): value for name, value in arguments.items()},
        )
        with np.errstate(all="ignore"):
            self.expected(space)
        return {n: value for n, value in arguments.items() if isinstance(value, np.ndarray)}


def _parameter(variant: Variant, name: str) -> str:
    return f"{name}_ptr" if f"{name}_ptr" in variant.signature else name


def difference(got: np.ndarray, expected: np.ndarray, tolerance: Tolerance | None) -> str:
    """Where two arrays differ more than allowed, for people; empty when they do not."""
    both_nan = np.isnan(got.astype(np.float64)) & np.isnan(expected.astype(np.float64))
    same = (_bits(got) == _bits(expected)) | both_nan
    if tolerance is not None and expected.dtype.kind not in "iu":
        with np.errstate(invalid="ignore"):
            error = np.abs(got.astype(np.float64) - expected.astype(np.float64))
        same |= error <= tolerance.allowed(expected)
    if same.all():
        return ""
    wrong = np.flatnonzero(~same)
    shown = ", ".join(f"[{i}] got {got[i]!s}, expected {expected[i]!s}" for i in wrong[:6])
    return f"{len(wrong)} of {len(got)} differ: {shown}"


def _bits(values: np.ndarray) -> np.ndarray:
    return values.view(f"u{values.dtype.itemsize}")
