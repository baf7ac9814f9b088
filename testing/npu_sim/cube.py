"""The matrix product `mmadL1` as the tasks that the library makes of it.

The hardware multiplies what lies in L0A and L0B. The library routine `mma_tile` therefore cuts k
into parts that fit half of each (32 KiB), and for each part loads A and B from L1 on pipe MTE1 and
multiplies on pipe M, while the other halves are being filled. Flags between M and MTE1 say when a
half is free, flags between MTE2 and MTE1 when L1 is filled or free.

    for step in expand(attributes, operands, L0(memory_of_l0a, memory_of_l0b)):
        Set, Wait, Barrier  -> a flag or barrier of the named pipes
        Load, Multiply      -> a task: pipe, name, reads and writes (views), run()

Source: lib/Template/lib/Cube/LocalMmad.cpp of the public repository Ascend/AscendNPU-IR, and
HIVMMacroOps.td for the operands. Guesses: products are summed in float32 in NumPy's order; columns
of L0C that L0B holds nothing for stay as they are.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from testing.npu_sim import memory, numerics
from testing.npu_sim.findings import UnsupportedOperationError

FRACTAL = 16
BLOCK_BYTES = 32
L0_BYTES = 64 * 1024
# A product of fewer than ten fractals ends with a barrier on pipe M.
_FRACTALS_WITHOUT_BARRIER = 10
_ACCUMULATOR = {"f16": "f32", "bf16": "f32", "f32": "f32", "i8": "i32"}
_NONE = -1  # a synchronisation argument that is not used


@dataclasses.dataclass
class L0:
    """A core's L0A and L0B.

    arch35: its library takes the halves in turn over all products of a kernel, whose module sets
    the flags of both halves before the first product and waits for them after the last (source:
    lib/Template/lib/RegBase/Cube/LocalMmad.cpp). half: the one that was filled last.
    """

    a: memory.Memory
    b: memory.Memory
    arch35: bool = False
    half: int = 1

    def next_half(self) -> int:
        self.half = 1 - self.half
        return self.half


@dataclasses.dataclass(frozen=True)
class Set:
    """set_flag: pipe `set_pipe` sets it for pipe `wait_pipe`."""

    set_pipe: str
    wait_pipe: str
    event: int


@dataclasses.dataclass(frozen=True)
class Wait:
    """wait_flag of the same."""

    set_pipe: str
    wait_pipe: str
    event: int


@dataclasses.dataclass(frozen=True)
class Barrier:
    pipe: str


@dataclasses.dataclass(frozen=True)
class Load:
    """One part of A or B, from L1 to L0, on MTE1. nbytes: written to L0."""

    name: str
    reads: Sequence[memory.View]
    writes: Sequence[memory.View]
    run: Callable[[], None]
    nbytes: int
    pipe: str = "MTE1"


@dataclasses.dataclass(frozen=True)
class Multiply:
    """One part's product, added to L0C or (initialises) replacing it, on M.

    m, k, n: what the instruction is told. element: of A and B, `hf32` for float32 of that mode.
    """

    name: str
    reads: Sequence[memory.View]
    writes: Sequence[memory.View]
    run: Callable[[], None]
    m: int
    k: int
    n: int
    element: str
    pipe: str = "M"


Step = Set | Wait | Barrier | Load | Multiply


def expand(attributes: Mapping[str, Any], operands: Sequence[Any], l0: L0) -> Iterator[Step]:
    """The steps of one mmadL1, in program order.

    Args:
        attributes: a_transpose, b_transpose, enable_HF32, operandSegmentSizes.
        operands: A, B (views of L1), init, m, k, n, C (a view of L0C), the synchronisation
            arguments (wait for A, wait for B, release A, release B, counter of a loop around it,
            back event 0, back event 1; -1 means none), the bias if there is one.
        l0: where parts of A and B are put.

    Raises:
        UnsupportedOperationError: unit flags, 4-bit integers, layouts that the routine does
            not read as they are, sizes for which it stops the chip.
    """
    return _Product(attributes, operands, l0).steps()


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


class _Product:
    def __init__(self, attributes: Mapping[str, Any], operands: Sequence[Any], l0: L0):
        segments = tuple(attributes["operandSegmentSizes"])
        synchronisation, unit_flag, bias = (*segments[7:], 0, 0, 0)[:3]
        if unit_flag or synchronisation not in (0, 7):
            raise UnsupportedOperationError("mmadL1", f"operandSegmentSizes {list(segments)}")
        self._bias = operands[-1] if bias else None
        for name in ("enable_I4", "unit_flag_mode"):
            if attributes.get(name):
                raise UnsupportedOperationError("mmadL1", f"{name} = {attributes[name]}")
        self._a, self._b, self._init, self._m, self._k, self._n, self._c = operands[:7]
        self._events = [int(value) for value in operands[7 : 7 + synchronisation]] or [_NONE] * 7
        self._ta = bool(attributes.get("a_transpose"))
        self._tb = bool(attributes.get("b_transpose"))
        self._hf32 = bool(attributes.get("enable_HF32"))
        self._l0 = l0
        self._start: np.ndarray | None = None  # the bias, where the first part starts with one
        self._element = self._a.element
        self._check()
        self._size = self._a.unit
        self._c0 = BLOCK_BYTES // self._size  # elements of a row of a fractal
        self._rows = self._c.sizes[1] * self._c.sizes[2]  # m as the routine takes it
        self._plan_parts()

    def _check(self) -> None:
        a, b, c = self._a, self._b, self._c
        if (
            [len(view.sizes) for view in (a, b, c)] != [4, 4, 4]
            or a.element != b.element
            or _ACCUMULATOR.get(a.element) != c.element
            or not (a.contiguous and b.contiguous and c.contiguous)
            or (self._hf32 and a.element != "f32")
        ):
            raise UnsupportedOperationError("mmadL1", f"{a} times {b} to {c}")

    def _plan_parts(self) -> None:
        """How much of k fits into L0, with two halves if at all possible."""
        rows = self._extent(self._a, self._ta)
        columns = self._extent(self._b, not self._tb)
        align = max(self._c0, FRACTAL)
        widest = _up(max(rows, columns), align)
        self._halves = 2
        self._part = L0_BYTES // 2 // self._size // widest // align * align
        if not self._part:
            self._halves = 1
            self._part = L0_BYTES // self._size // widest // align * align
        if not self._part or self._k <= 0:
            raise UnsupportedOperationError(
                "mmadL1", f"the library stops the chip: k {self._k}, {widest} rows or columns"
            )

    @staticmethod
    def _extent(view: memory.View, outer_and_last: bool) -> int:
        """Rows or columns that are not k: of the two middle axes, or the outer and last."""
        n1, m1, m0, n0 = view.sizes
        return n1 * n0 if outer_and_last else m1 * m0

    def steps(self) -> Iterator[Step]:
        wait_a, wait_b, free_a, free_b, loop, back0, back1 = self._events
        back = (back0, back1)
        own = [event for event, given in enumerate(back) if given == _NONE and not self._l0.arch35]
        for event in own:
            yield Set("M", "MTE1", event)
        parts = -(-self._k // self._part)
        for index in range(parts):
            first, last = index == 0, index == parts - 1
            half = 0
            if self._halves == 2 and self._l0.arch35:
                half = self._l0.next_half()
            elif self._halves == 2:
                half = (index if loop == _NONE else loop * parts + index) % 2
            event = half if back[half] == _NONE else back[half]
            count = min(self._part, self._k - index * self._part)
            yield Wait("M", "MTE1", event)
            if first and wait_a != _NONE:
                yield Wait("MTE2", "MTE1", wait_a)
            a = self._load_a(index, count, half)
            yield a
            if last and free_a != _NONE:
                yield Set("MTE1", "MTE2", free_a)
            if first and wait_b != _NONE:
                yield Wait("MTE2", "MTE1", wait_b)
            b = self._load_b(index, count, half)
            yield b
            if last and free_b != _NONE:
                yield Set("MTE1", "MTE2", free_b)
            if self._bias is not None:
                yield self._load_bias()
            loaded = 0 if self._l0.arch35 else event
            yield Set("MTE1", "M", loaded)
            yield Wait("MTE1", "M", loaded)
            yield self._multiply(a.writes[0], b.writes[0], count, bool(self._init) and first)
            if self._rows // FRACTAL * self._n // FRACTAL < _FRACTALS_WITHOUT_BARRIER:
                yield Barrier("M")
            yield Set("M", "MTE1", event)
        for event in own:
            yield Wait("M", "MTE1", event)

    # Operands in L1 are [columns/c0, rows/16, 16, c0]; transposed ones hold their transpose that
    # way. In L0A parts are kept as [m/16, k/c0, 16, c0], in L0B as [n/16, k/c0, 16, c0] with n
    # for m (guess: other orders of the same fractals would not be told apart by any access here).

    def _load_a(self, index: int, count: int, half: int) -> Load:
        name = f"mmadL1: load A {'transposed ' if self._ta else ''}to L0A"
        return self._load(
            name, self._a, self._ta, (self._m, self._rows), index, count, self._l0.a, half
        )

    def _load_b(self, index: int, count: int, half: int) -> Load:
        name = f"mmadL1: load B {'' if self._tb else 'transposed '}to L0B"
        return self._load(
            name, self._b, not self._tb, (self._n, self._n), index, count, self._l0.b, half
        )

    def _load(
        self,
        name: str,
        source: memory.View,
        k_in_rows: bool,
        lines: tuple[int, int],
        index: int,
        count: int,
        l0: memory.Memory,
        half: int,
    ) -> Load:
        """Lines (rows of A, columns of B) by a part of k.

        k_in_rows: whether the operand's k runs over the two middle axes, so that fractals are
        transposed on the way. lines: how many count, and how many the routine takes. Of the latter
        A may lack some whose products are not used: they are zero here (guess: the hardware takes
        what lies behind A).
        """
        n1, m1, m0, n0 = source.sizes
        there = n1 * n0 if k_in_rows else m1 * m0
        held = _up(min(lines[1], there), n0 if k_in_rows else FRACTAL)
        start = index * self._part
        if k_in_rows:
            width = _up(count, FRACTAL)
            extents = (held // n0, -(-width // m0), m0, n0)
            origin = (0, start // m0, 0, 0)
        else:
            width = _up(count, self._c0)
            extents = (-(-width // n0), -(-held // m0), m0, n0)
            origin = (start // n0, 0, 0, 0)
        ends = [first + extent for first, extent in zip(origin, extents, strict=True)]
        if lines[0] > there or any(
            end > size for end, size in zip(ends, source.sizes, strict=True)
        ):
            raise UnsupportedOperationError(name, f"{lines[0]} lines by {count} of k of {source}")
        taken = source.subview(origin, extents, (1, 1, 1, 1))
        rows = _up(max(lines[1], held), FRACTAL)
        sizes = (rows // FRACTAL, -(-width // self._c0), FRACTAL, self._c0)
        offset = half * (L0_BYTES // 2)
        target = memory.View(l0, offset, sizes, memory.row_major(sizes), self._element)

        def run() -> None:
            fractals = taken.read().transpose(1, 2, 0, 3)
            matrix = fractals.reshape(extents[1] * m0, extents[0] * n0)
            matrix = (matrix.T if k_in_rows else matrix)[:held, :width]
            blocks = np.zeros((rows, sizes[1] * self._c0), matrix.dtype)
            blocks[: matrix.shape[0], : matrix.shape[1]] = matrix
            ordered = blocks.reshape(sizes[0], FRACTAL, sizes[1], self._c0)
            target.write(ordered.transpose(0, 2, 1, 3))

        return Load(name, (taken,), (target,), run, target.nbytes)

    def _load_bias(self) -> Load:
        """To the bias table, a memory of its own; what sums start with is kept."""
        bias = self._bias
        assert bias is not None

        def run() -> None:
            accumulator = memory.DTYPES[self._c.element]
            self._start = bias.read().reshape(-1)[: self._n].astype(accumulator)

        return Load("mmadL1: load bias", (bias,), (), run, bias.nbytes)

    def _multiply(self, a: memory.View, b: memory.View, count: int, initialises: bool) -> Multiply:
        c = self._c
        columns = min(_up(self._n, FRACTAL), c.sizes[0] * c.sizes[3])
        if self._n > columns:
            raise UnsupportedOperationError("mmadL1", f"n {self._n} for {c}")
        target = c.subview((0, 0, 0, 0), (-(-columns // c.sizes[3]), *c.sizes[1:]), (1, 1, 1, 1))
        element = "hf32" if self._hf32 else self._element
        accumulator = memory.DTYPES[c.element]

        def run() -> None:
            left, right = (_matrix(view)[:, :count] for view in (a, b))
            rows = min(left.shape[0], self._rows)
            if self._hf32:
                left, right = numerics.to_hf32(left), numerics.to_hf32(right)
            with np.errstate(all="ignore"):
                product = left[:rows].astype(accumulator) @ right.astype(accumulator).T
                width = min(product.shape[1], columns)
                found = target.read()
                matrix = found.transpose(1, 2, 0, 3).reshape(self._rows, -1).copy()
                if initialises:
                    matrix[:rows, :width] = product[:, :width]
                    if self._start is not None:
                        matrix[:rows, : len(self._start)] += self._start
                else:
                    matrix[:rows, :width] += product[:, :width]
            n1, m1, m0, n0 = target.sizes
            target.write(matrix.reshape(m1, m0, n1, n0).transpose(2, 0, 1, 3))

        reads = (a, b) if initialises else (a, b, target)
        return Multiply(
            "mmadL1: multiply", reads, (target,), run, self._rows, count, self._n, element
        )


def _matrix(view: memory.View) -> np.ndarray:
    """Lines by k of a part in L0."""
    m1, k1, m0, k0 = view.sizes
    return view.read().transpose(0, 2, 1, 3).reshape(m1 * m0, k1 * k0)
