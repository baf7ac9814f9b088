"""Executes a vector function of arch35: one task of the pipe V.

Inside, everything is in order: registers are values, and what one transfer stores the next one
reads (guess: the compiler places what the hardware needs for that inside the function, in hivmc).
Seen from outside it reads and writes memory as one operation.

The functions are loops over rows. Iterations that do not touch each other's bytes are executed all
at once, as arrays with one more axis, which is many times faster. Whether they do is seen from the
addresses; if they do, memory is put back and the loop is executed in order.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from testing.npu_sim import findings, memory, program, vectors


@dataclasses.dataclass(frozen=True)
class _Transfer:
    """Bytes [low, high) that each iteration touches: arrays [n], or [1] for the same in all."""

    memory: memory.Memory
    low: np.ndarray
    high: np.ndarray
    writes: bool


class VectorUnit(program.Unit):
    """Runs a function's body and remembers the memory that it touched.

    transfers: vectors moved between memory and registers, for the estimate of time.
    """

    block = blocks = sub_block = 0
    sub_blocks = 1

    def __init__(self) -> None:
        self.transfers = 0
        self._read: dict[int, tuple[memory.Memory, np.ndarray]] = {}
        self._written: dict[int, tuple[memory.Memory, np.ndarray]] = {}
        self._memories: list[memory.Memory] = []
        # While iterations are executed at once: how many, and what they touched.
        self._iterations = 1
        self._transfers: list[_Transfer] = []

    def run(self, function: program.Function, arguments: Sequence[Any]) -> None:
        views = [value for value in arguments if isinstance(value, memory.View)]
        self._memories = list({id(view.memory): view.memory for view in views}.values())
        program.exhaust(function.run(self, arguments))

    def reads(self) -> list[memory.Footprint]:
        """Memory that it read before it had written it itself."""
        return [memory.Footprint(*touched) for touched in self._read.values()]

    def writes(self) -> list[memory.Footprint]:
        return [memory.Footprint(*touched) for touched in self._written.values()]

    def at_once(self, loop: program.Loop, counts: range, environment: program.Environment) -> bool:
        if loop.in_order or self._iterations > 1 or len(counts) < 2:
            return False
        before = [held.data.copy() for held in self._memories]
        marks = [_copy(touched) for touched in (self._read, self._written)]
        transfers = self.transfers
        self._iterations, self._transfers = len(counts), []
        environment[loop.counter] = np.arange(counts.start, counts.stop, counts.step)
        try:
            program.exhaust(loop.run(self, environment))
            independent = self._independent()
        except program.DivergenceError:
            independent = False
        finally:
            self._iterations = 1
        if not independent:
            for held, data in zip(self._memories, before, strict=True):
                held.data[:] = data
            self._read, self._written = marks
            self.transfers = transfers
            loop.in_order = True
        return independent

    def _independent(self) -> bool:
        """Whether the order of iterations does not matter.

        In order, iteration i makes all its transfers before iteration j > i does; at once, all
        iterations make the first transfer before any makes the second. What must not meet is a
        transfer of i with an earlier one of j, if one of the two writes.
        """
        return not any(
            _meet(later, earlier, self._iterations)
            for number, later in enumerate(self._transfers)
            for earlier in self._transfers[: number + 1]
            if later.memory is earlier.memory and (later.writes or earlier.writes)
        )

    # What vectors.py asks.

    def gather(
        self, view: memory.View, lanes: np.ndarray, active: np.ndarray | None, padding: Any
    ) -> np.ndarray:
        places, inside = self._places(view, lanes, active, writes=False)
        if view.element == memory.BIT:
            found = (view.memory.data[places >> 3] >> (places & 7) & 1).astype(bool)
        else:
            found = _elements(view)[places]
        if inside is None:
            return found
        return np.where(inside, found, np.asarray(padding).astype(found.dtype))

    def scatter(
        self,
        view: memory.View,
        lanes: np.ndarray,
        active: np.ndarray | None,
        values: np.ndarray,
    ) -> None:
        places, inside = self._places(view, lanes, active, writes=True)
        if len(values) > len(places):
            raise program.DivergenceError  # several values for one place
        values = np.broadcast_to(values, places.shape)
        if inside is not None:
            places, values = places[inside], values[inside]
        if not places.size:
            return
        if view.element != memory.BIT:
            _elements(view)[places] = values
            return
        first, last = int(places.min()) >> 3, (int(places.max()) >> 3) + 1
        bits = np.unpackbits(view.memory.data[first:last], bitorder="little")
        bits[places - 8 * first] = values
        view.memory.data[first:last] = np.packbits(bits, bitorder="little")

    def _places(
        self, view: memory.View, lanes: np.ndarray, active: np.ndarray | None, writes: bool
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """(indices among the memory's elements, or bits, [n, ...]; which lanes are active).

        Raises:
            OutOfBoundsError: an active lane lies outside of the memory.
        """
        size = 8 if view.element == memory.BIT else view.unit
        first = np.reshape(view.offset, (-1, *(1,) * (lanes.ndim - 1)))
        skew = 0
        if view.element != memory.BIT:
            skew = int(first.flat[0]) % size
            first = first // size
        places = first + lanes
        inside = None
        if active is not None:
            inside = np.broadcast_to(active, np.broadcast_shapes(active.shape, places.shape))
            places = np.broadcast_to(places, inside.shape)
            if not inside.any():
                return np.zeros_like(places), inside
            # Lanes that are not active count as the iteration's first one that is.
            flat = inside.reshape(len(inside), -1)
            first_active = places.reshape(flat.shape)[np.arange(len(flat)), flat.argmax(axis=1)]
            first_active = np.where(flat.any(axis=1), first_active, places[inside][0])
            places = np.where(
                inside, places, np.reshape(first_active, (-1, *(1,) * (lanes.ndim - 1)))
            )
        count = (
            len(view.memory.data) * 8
            if view.element == memory.BIT
            else ((len(view.memory.data) - skew) // size)
        )
        axes = tuple(range(1, places.ndim))
        low, high = places.min(axis=axes), places.max(axis=axes) + 1
        if low.min() < 0 or high.max() > count:
            raise memory.OutOfBoundsError(f"a lane of {view} lies outside of its memory")
        if view.element == memory.BIT:
            transfer = _Transfer(view.memory, low // 8, (high + 7) // 8, writes)
        else:
            transfer = _Transfer(view.memory, low * size + skew, high * size + skew, writes)
        self._note(transfer, places.size // len(places) * size, places, size, skew)
        return places, inside

    def _note(
        self,
        transfer: _Transfer,
        length: int,
        places: np.ndarray,
        size: int,
        skew: int,
    ) -> None:
        touched, own = (
            (self._written, None)
            if transfer.writes
            else (self._read, self._written.get(id(transfer.memory)))
        )
        self.transfers += self._iterations
        if self._iterations > 1:
            self._transfers.append(transfer)
        held = transfer.memory
        marks = touched.setdefault(id(held), (held, np.zeros(held.granules, bool)))[1]
        first, last = transfer.low // held.granule, (transfer.high - 1) // held.granule
        if (transfer.high - transfer.low > length).any():  # with gaps
            grains = (places * size + skew) // held.granule
        else:
            steps = np.arange(int((last - first).max()) + 1)
            grains = np.minimum(first[:, None] + steps, last[:, None])
        marks[grains] = True if own is None else marks[grains] | ~own[1][grains]

    # What a program asks.

    def tick(self, operations: int) -> None:
        pass

    def on_chip(self, space: str) -> memory.Memory:
        raise findings.UnsupportedOperationError("pointer_cast", "inside a vector function")

    def load(self, work: program.Work, view: memory.View) -> Any:
        del work
        return vectors.plain(self.gather(view, np.zeros(1, np.int64), None, 0))

    def store(self, work: program.Work, view: memory.View, value: Any) -> Any:
        del work
        kind = bool if view.element == memory.BIT else memory.DTYPES[view.element]
        self.scatter(view, np.zeros(1, np.int64), None, np.reshape(value, -1).astype(kind))

    def issue(self, work: program.Work, operands: Sequence[Any]) -> None:
        raise _misplaced(work)

    def multiply(self, work: program.Work, operands: Sequence[Any]) -> None:
        raise _misplaced(work)

    def call_vector_function(self, work: program.Work, operands: Sequence[Any]) -> None:
        raise _misplaced(work)

    def set_flag(self, work: program.Work, set_pipe: str, wait_pipe: str, event: int) -> None:
        raise _misplaced(work)

    def wait_flag(self, work: program.Work, set_pipe: str, wait_pipe: str, event: int) -> Any:
        raise _misplaced(work)

    def barrier(self, work: program.Work, pipe: str) -> Any:
        raise _misplaced(work)

    def set_block_flag(self, work: program.Work, pipe: str, flag: int) -> None:
        raise _misplaced(work)

    def wait_block_flag(self, work: program.Work, pipe: str, flag: int) -> Any:
        raise _misplaced(work)


def _misplaced(work: program.Work) -> findings.UnsupportedOperationError:
    return findings.UnsupportedOperationError(work.name, "inside a vector function", work.places)


def _elements(view: memory.View) -> np.ndarray:
    """All of the memory as elements that are aligned like the view's."""
    width = view.unit
    skew = int(np.reshape(view.offset, -1)[0]) % width
    end = skew + (len(view.memory.data) - skew) // width * width
    return view.memory.data[skew:end].view(memory.DTYPES[view.element])


def _copy(
    touched: dict[int, tuple[memory.Memory, np.ndarray]],
) -> dict[int, tuple[memory.Memory, np.ndarray]]:
    return {key: (held, marks.copy()) for key, (held, marks) in touched.items()}


def _meet(later: _Transfer, earlier: _Transfer, iterations: int) -> bool:
    """Whether some iteration's later transfer touches bytes of the earlier one of an iteration
    after it."""
    if later.low.min() >= earlier.high.max() or earlier.low.min() >= later.high.max():
        return False
    low, high = (np.broadcast_to(bound, iterations) for bound in (later.low, later.high))
    other_low, other_high = (
        np.broadcast_to(bound, iterations) for bound in (earlier.low, earlier.high)
    )
    touch = (low[:, None] < other_high) & (other_low < high[:, None])
    return bool(np.triu(touch, 1).any())
