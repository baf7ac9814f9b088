"""Input distributions whose samples are the same bits on every machine.

Samples are made from raw Philox-4x64 words (`numpy.random.Philox.random_raw`, a stable stream) with
operations that IEEE 754 fixes to the last bit: +, -, *, /, sqrt and integer arithmetic. `exp`,
`log` and `sin` differ between math libraries and `Generator.normal` may change between NumPy
releases, so neither is used.
"""

import dataclasses
import hashlib
import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np


class Stream:
    """A stream of uniform 64-bit words, keyed by text."""

    def __init__(self, key: str):
        digest = hashlib.sha256(key.encode()).digest()
        self._bits = np.random.Philox(key=int.from_bytes(digest[:16], "little"))

    def words(self, count: int) -> np.ndarray:
        return self._bits.random_raw(count)

    def uniform(self, shape: Sequence[int]) -> np.ndarray:
        """float64 in [0, 1), 53 random bits each."""
        count = math.prod(shape)
        return ((self.words(count) >> np.uint64(11)) * 2.0**-53).reshape(shape)

    def normal(self, shape: Sequence[int]) -> np.ndarray:
        """Approximately standard normal: the sum of eight 16-bit uniforms, so |x| < 4.9, exact in
        integers."""
        count = math.prod(shape)
        pieces = self.words(2 * count).view(np.uint16).reshape(count, 8)
        total = pieces.sum(axis=1, dtype=np.int64)
        deviation = math.sqrt(8 * (65536.0**2 - 1) / 12)
        return ((total - 4 * 65535) / deviation).reshape(shape)


class Distribution(Protocol):
    """Draws float64 values of a shape from a stream."""

    def sample(self, stream: Stream, shape: tuple[int, ...]) -> np.ndarray: ...


@dataclasses.dataclass(frozen=True)
class Uniform:
    """Uniform on [low, high)."""

    low: float
    high: float

    def sample(self, stream: Stream, shape: tuple[int, ...]) -> np.ndarray:
        return self.low + (self.high - self.low) * stream.uniform(shape)


@dataclasses.dataclass(frozen=True)
class Normal:
    """Approximately normal, cut at 4.9 standard deviations."""

    mean: float = 0.0
    std: float = 1.0

    def sample(self, stream: Stream, shape: tuple[int, ...]) -> np.ndarray:
        return self.mean + self.std * stream.normal(shape)


@dataclasses.dataclass(frozen=True)
class Octaves:
    """Magnitudes spread over octaves: sign * (1 + m) * 2^k, k uniform in [low, high), m uniform in
    [0, 1)."""

    low: int
    high: int
    sign: float = 1.0

    def sample(self, stream: Stream, shape: tuple[int, ...]) -> np.ndarray:
        octave = (
            np.floor(stream.uniform(shape) * (self.high - self.low)).astype(np.int32) + self.low
        )
        return self.sign * np.ldexp(1.0 + stream.uniform(shape), octave)


@dataclasses.dataclass(frozen=True)
class UnitVectors:
    """Normal vectors along the last axis, scaled to Euclidean length `length`."""

    length: float = 1.0

    def sample(self, stream: Stream, shape: tuple[int, ...]) -> np.ndarray:
        x = stream.normal(shape)
        squares = np.zeros(shape[:-1])
        for i in range(shape[-1]):  # a fixed order of additions: np.sum's depends on the processor
            squares += x[..., i] * x[..., i]
        return x * (self.length / np.sqrt(squares + 2.0**-40))[..., None]


@dataclasses.dataclass(frozen=True)
class Constant:
    """One value everywhere; it may be infinite."""

    value: float

    def sample(self, stream: Stream, shape: tuple[int, ...]) -> np.ndarray:
        del stream
        return np.full(shape, self.value, dtype=np.float64)


@dataclasses.dataclass(frozen=True)
class Cycle:
    """`values` in turn along `axis`, the same for all other indices."""

    values: tuple[float, ...]
    axis: int = -1

    def sample(self, stream: Stream, shape: tuple[int, ...]) -> np.ndarray:
        del stream
        axis = self.axis % len(shape)
        line = np.resize(np.asarray(self.values, dtype=np.float64), shape[axis])
        return np.broadcast_to(
            line.reshape([-1 if i == axis else 1 for i in range(len(shape))]), shape
        ).copy()


@dataclasses.dataclass(frozen=True)
class Sprinkled:
    """`base`, with each element replaced by `value` with the given probability."""

    base: Any
    value: float
    probability: float

    def sample(self, stream: Stream, shape: tuple[int, ...]) -> np.ndarray:
        x = self.base.sample(stream, shape)
        return np.where(stream.uniform(shape) < self.probability, self.value, x)


@dataclasses.dataclass(frozen=True)
class Only:
    """`base` where the index along `axis` is one of `indices`, 0 elsewhere."""

    base: Any
    indices: tuple[int, ...]
    axis: int

    def sample(self, stream: Stream, shape: tuple[int, ...]) -> np.ndarray:
        x = self.base.sample(stream, shape)
        kept = np.isin(np.arange(shape[self.axis]), self.indices)
        kept = kept.reshape([-1 if i == self.axis % len(shape) else 1 for i in range(len(shape))])
        return np.where(kept, x, 0.0)


@dataclasses.dataclass(frozen=True)
class Accumulated:
    """Running sum of `step` along `axis`; with `modulus`, each sum reduced to (-modulus,
    modulus)."""

    step: Any
    axis: int
    modulus: float | None = None

    def sample(self, stream: Stream, shape: tuple[int, ...]) -> np.ndarray:
        sums = np.cumsum(self.step.sample(stream, shape), axis=self.axis)
        return sums if self.modulus is None else np.fmod(sums, self.modulus)


def to_json(distribution: Any) -> dict[str, Any]:
    """The distribution as plain data: its class name and parameters."""
    fields = {f.name: getattr(distribution, f.name) for f in dataclasses.fields(distribution)}
    return {
        "distribution": type(distribution).__name__,
        **{k: to_json(v) if dataclasses.is_dataclass(v) else v for k, v in fields.items()},
    }
