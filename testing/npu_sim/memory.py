"""Memories of a simulated chip, and memref values that point into them.

A `Memory` is one address space of one core (UB, L1, L0A, L0B, L0C) or the global memory behind one
kernel argument. A `View` is what a memref value is at run time: where it starts, its sizes, strides
and element type. Nothing outside of a memory can be read or written: that is a finding.
"""

import math
from collections.abc import Mapping, Sequence

import ml_dtypes
import numpy as np

from testing.npu_sim import findings

# Element types with whole bytes. `i1` has no entry: its elements are single bits.
DTYPES: Mapping[str, np.dtype] = {
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "f8E4M3FN": np.dtype(ml_dtypes.float8_e4m3fn),
    "f8E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "i8": np.dtype(np.int8),
    "ui8": np.dtype(np.uint8),
    "i16": np.dtype(np.int16),
    "ui16": np.dtype(np.uint16),
    "i32": np.dtype(np.int32),
    "ui32": np.dtype(np.uint32),
    "i64": np.dtype(np.int64),
    "ui64": np.dtype(np.uint64),
}
BIT = "i1"

# Bytes that the race check tells apart. On chip the engines work on blocks of 32 bytes; in global
# memory rows of 16-bit elements may end anywhere (where tensors have smaller elements: 1 byte).
ON_CHIP_GRANULE = 32
GLOBAL_GRANULE = 2


class OutOfBoundsError(Exception):
    """An access beyond its memory. The machine adds what and where."""


class Memory:
    """One address space.

    space: gm, ub, cbuf (L1), ca, cb, cc (L0A, L0B, L0C). name: for messages. data: its bytes.
    granule: bytes that the race check tells apart.
    """

    __slots__ = ("data", "granule", "name", "space")

    def __init__(self, space: str, name: str, data: np.ndarray, granule: int | None = None):
        self.space = space
        self.name = name
        self.data = data
        self.granule = granule or (GLOBAL_GRANULE if space == "gm" else ON_CHIP_GRANULE)

    @staticmethod
    def on_chip(space: str, name: str, size: int, fill: int) -> "Memory":
        """A memory of `size` bytes, each of which is `fill`."""
        return Memory(space, name, np.full(size, fill, np.uint8))

    @property
    def granules(self) -> int:
        return -(-len(self.data) // self.granule)


class View:
    """A memref value. Never changed after it is made.

    offset: of the first element in bytes; for i1 in bits. strides: in elements. base: the offset
    that a reinterpret_cast counts from, which is where the buffer that it was made of starts.
    """

    __slots__ = ("_granules", "base", "element", "memory", "offset", "sizes", "strides")

    def __init__(
        self,
        memory: Memory,
        offset: int,
        sizes: Sequence[int],
        strides: Sequence[int],
        element: str,
        base: int | None = None,
    ):
        self.memory = memory
        self.offset = offset
        self.sizes = tuple(sizes)
        self.strides = tuple(strides)
        self.element = element
        self.base = offset if base is None else base
        self._granules: slice | np.ndarray | None = None

    @property
    def count(self) -> int:
        return math.prod(self.sizes)

    @property
    def unit(self) -> int:
        """What one element adds to an offset: its bytes, or 1 bit."""
        return 1 if self.element == BIT else DTYPES[self.element].itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of its elements, gaps between them not counted."""
        return -(-self.count // 8) if self.element == BIT else self.count * self.unit

    @property
    def contiguous(self) -> bool:
        """Whether its elements follow each other without gaps, in order."""
        step = 1
        for size, stride in zip(reversed(self.sizes), reversed(self.strides), strict=True):
            if size != 1 and stride != step:
                return False
            step *= size
        return True

    def __str__(self) -> str:
        unit = "bit " if self.element == BIT else ""
        return (
            f"{self.memory.space} {self.memory.name} [{unit}{self.offset}: "
            f"{'x'.join(map(str, self.sizes))} {self.element}, strides {list(self.strides)}]"
        )

    # Values.

    def read(self) -> np.ndarray:
        """Its elements, shape `sizes`: bool for i1, else an array that shares the memory.

        Raises:
            OutOfBoundsError: an element is outside of the memory.
        """
        if self.element == BIT:
            return self._bits()[0]
        return self._array()

    def write(self, values: np.ndarray | np.generic | float) -> None:
        """Stores values, broadcast to `sizes`, in the element's type; the caller has rounded."""
        if self.element != BIT:
            array = self._array()
            if getattr(values, "dtype", array.dtype) != array.dtype:
                raise TypeError(f"{values.dtype} is written to {self}")  # type: ignore[union-attr]
            array[...] = values
        elif self.count:
            _, index, first, last = self._bits()
            bits = np.unpackbits(self.memory.data[first:last], bitorder="little")
            bits[index] = values
            self.memory.data[first:last] = np.packbits(bits, bitorder="little")

    def _array(self) -> np.ndarray:
        dtype = DTYPES[self.element]
        if not self.count:
            return np.empty(self.sizes, dtype)
        if self.offset < 0:
            raise OutOfBoundsError(self._beyond())
        try:
            return np.ndarray(
                self.sizes,
                dtype,
                self.memory.data.data,
                self.offset,
                [stride * dtype.itemsize for stride in self.strides],
            )
        except (ValueError, TypeError) as error:
            raise OutOfBoundsError(self._beyond()) from error

    def _bits(self) -> tuple[np.ndarray, np.ndarray, int, int]:
        """(elements, their indices among the bits of these bytes, first byte, end)."""
        if not self.count:
            return np.zeros(self.sizes, bool), np.zeros(self.sizes, int), 0, 0
        first, last = self.offset // 8, (self.offset + self._span()) // 8 + 1
        if self.offset < 0 or last > len(self.memory.data):
            raise OutOfBoundsError(self._beyond())
        index = np.array(self.offset - 8 * first)
        for size, stride in zip(self.sizes, self.strides, strict=True):
            index = index[..., None] + np.arange(size) * stride
        bits = np.unpackbits(self.memory.data[first:last], bitorder="little")
        return bits[index].astype(bool), index, first, last

    def _span(self) -> int:
        """Elements from the first to the last."""
        return sum(
            (size - 1) * stride for size, stride in zip(self.sizes, self.strides, strict=True)
        )

    def _beyond(self) -> str:
        return f"{self} does not lie in its {len(self.memory.data)} bytes"

    def granules(self) -> slice | np.ndarray | None:
        """The memory's granules that its elements touch: indices without repeats; None if it has
        none."""
        if self._granules is None and self.count:
            self._granules = self._touched_granules()
        return self._granules

    def _touched_granules(self) -> slice | np.ndarray:
        grain = self.memory.granule
        if self.element == BIT:
            return slice(self.offset // 8 // grain, (self.offset + self._span()) // 8 // grain + 1)
        width = self.unit
        if self.contiguous:
            return slice(self.offset // grain, (self.offset + self.count * width - 1) // grain + 1)
        starts = np.array([self.offset], np.int64)
        for size, stride in zip(self.sizes[:-1], self.strides[:-1], strict=True):
            starts = (starts[:, None] + np.arange(size) * (stride * width)).ravel()
        if self.strides[-1] == 1:
            width *= self.sizes[-1]
        else:
            inner = np.arange(self.sizes[-1]) * (self.strides[-1] * width)
            starts = (starts[:, None] + inner).ravel()
        lows, highs = starts // grain, (starts + width - 1) // grain
        steps = np.arange(int((highs - lows).max()) + 1)
        return np.unique(np.minimum(lows[:, None] + steps, highs[:, None]))

    # What the memref dialect does to a value.

    def reinterpret(
        self, element: str, offset: int, sizes: Sequence[int], strides: Sequence[int]
    ) -> "View":
        """memref.reinterpret_cast: its offset, in elements, counts from the base pointer."""
        unit = 1 if element == BIT else DTYPES[element].itemsize
        return View(self.memory, self.base + offset * unit, sizes, strides, element, self.base)

    def subview(
        self, offsets: Sequence[int], sizes: Sequence[int], strides: Sequence[int]
    ) -> "View":
        """memref.subview, of full rank."""
        shift = sum(a * b for a, b in zip(offsets, self.strides, strict=True))
        return View(
            self.memory,
            self.offset + shift * self.unit,
            sizes,
            [a * b for a, b in zip(self.strides, strides, strict=True)],
            self.element,
            self.base,
        )

    def drop_dimensions(self, kept: Sequence[int]) -> "View":
        """Only the axes `kept`; the others have one element."""
        return View(
            self.memory,
            self.offset,
            [self.sizes[axis] for axis in kept],
            [self.strides[axis] for axis in kept],
            self.element,
            self.base,
        )

    def collapse(self, groups: Sequence[Sequence[int]]) -> "View":
        """memref.collapse_shape: each group of axes becomes one."""
        sizes, strides = [], []
        for group in groups:
            sizes.append(math.prod(self.sizes[axis] for axis in group))
            # The innermost axis with more than one element says how far apart elements are.
            longer = [axis for axis in group if self.sizes[axis] != 1] or list(group)
            strides.append(self.strides[longer[-1]] if longer else 1)
        return View(self.memory, self.offset, sizes, strides, self.element, self.base)

    def expand(self, groups: Sequence[Sequence[int]], sizes: Sequence[int]) -> "View":
        """memref.expand_shape: each axis becomes a group of axes with these sizes."""
        strides = [1] * len(sizes)
        for axis, group in enumerate(groups):
            step = self.strides[axis]
            for inner in reversed(group):
                strides[inner] = step
                step *= sizes[inner]
        return View(self.memory, self.offset, sizes, strides, self.element, self.base)

    def bitcast(self, element: str) -> "View":
        """hivm.hir.bitcast: the same places as elements of another type of the same width."""
        if element == BIT or self.element == BIT or DTYPES[element].itemsize != self.unit:
            raise findings.UnsupportedOperationError("bitcast", f"{self} to {element}")
        return View(self.memory, self.offset, self.sizes, self.strides, element, self.base)

    def retype(self, element: str, shift: int, sizes: Sequence[int]) -> "View":
        """memref.view: other elements, row-major, `shift` bytes after the start."""
        offset = self.offset + shift
        if element == BIT:
            offset *= 8
        return View(self.memory, offset, sizes, row_major(sizes), element)


def row_major(sizes: Sequence[int]) -> list[int]:
    """The strides of a dense array, in elements."""
    strides, step = [], 1
    for size in reversed(sizes):
        strides.append(step)
        step *= size
    return strides[::-1]


class Footprint:
    """Granules of a memory that an operation touched, for the race check: in place of a view."""

    __slots__ = ("_touched", "memory")

    def __init__(self, memory: Memory, touched: np.ndarray):
        """touched: whether, for each granule."""
        self.memory = memory
        self._touched = touched

    @property
    def nbytes(self) -> int:
        return int(self._touched.sum()) * self.memory.granule

    def granules(self) -> np.ndarray | None:
        return np.flatnonzero(self._touched) if self._touched.any() else None

    def __str__(self) -> str:
        touched = np.flatnonzero(self._touched) * self.memory.granule
        return f"{self.memory.space} {self.memory.name} [{touched[0]}: {len(touched)} granules]"
