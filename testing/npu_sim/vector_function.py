"""Executes a vector function of arch35: one task of the pipe V.

Inside, everything is in order: registers are values, and what one transfer stores the next one
reads (guess: the compiler places what the hardware needs for that inside the function, in hivmc).
Seen from outside it reads and writes memory as one operation.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from testing.npu_sim import findings, memory, program


class VectorUnit(program.Unit):
    """Runs a function's body at once and remembers the memory that it touched.

    operations: steps that worked on vectors, for the estimate of time.
    """

    block = blocks = sub_block = 0
    sub_blocks = 1

    def __init__(self) -> None:
        self.operations = 0
        self._read: dict[int, tuple[memory.Memory, np.ndarray]] = {}
        self._written: dict[int, tuple[memory.Memory, np.ndarray]] = {}

    def run(self, function: program.Function, arguments: Sequence[Any]) -> None:
        steps = function.run(self, arguments)
        value = None
        try:
            while True:
                value = steps.send(value)
        except StopIteration:
            return

    def reads(self) -> list[memory.Footprint]:
        """Memory that it read before it had written it itself."""
        return [memory.Footprint(*touched) for touched in self._read.values()]

    def writes(self) -> list[memory.Footprint]:
        return [memory.Footprint(*touched) for touched in self._written.values()]

    # What vectors.py asks.

    def gather(self, view: memory.View, lanes: np.ndarray) -> np.ndarray:
        self._note(self._read, view, lanes, self._written.get(id(view.memory)))
        if view.element == memory.BIT:
            bits = self._inside(view, view.offset + lanes, 8 * len(view.memory.data))
            return (view.memory.data[bits >> 3] >> (bits & 7) & 1).astype(bool)
        return self._elements(view)[self._indices(view, lanes)]

    def scatter(self, view: memory.View, lanes: np.ndarray, values: np.ndarray) -> None:
        self._note(self._written, view, lanes, None)
        if view.element == memory.BIT:
            bits = self._inside(view, view.offset + lanes, 8 * len(view.memory.data)).ravel()
            first, last = int(bits.min()) >> 3, (int(bits.max()) >> 3) + 1
            unpacked = np.unpackbits(view.memory.data[first:last], bitorder="little")
            unpacked[bits - 8 * first] = np.broadcast_to(values, lanes.shape).ravel()
            view.memory.data[first:last] = np.packbits(unpacked, bitorder="little")
            return
        self._elements(view)[self._indices(view, lanes)] = values

    def _elements(self, view: memory.View) -> np.ndarray:
        """All of the memory as elements that are aligned like the view's."""
        width = view.unit
        skew = view.offset % width
        end = skew + (len(view.memory.data) - skew) // width * width
        return view.memory.data[skew:end].view(memory.DTYPES[view.element])

    def _indices(self, view: memory.View, lanes: np.ndarray) -> np.ndarray:
        first = view.offset // view.unit
        return self._inside(view, first + lanes, len(self._elements(view)))

    def _inside(self, view: memory.View, indices: np.ndarray, count: int) -> np.ndarray:
        if indices.size and (indices.min() < 0 or indices.max() >= count):
            raise memory.OutOfBoundsError(f"a lane of {view} lies outside of its memory")
        return indices

    def _note(
        self,
        touched: dict[int, tuple[memory.Memory, np.ndarray]],
        view: memory.View,
        lanes: np.ndarray,
        own: tuple[memory.Memory, np.ndarray] | None,
    ) -> None:
        if not lanes.size:
            return
        self.operations += 1
        key = id(view.memory)
        if key not in touched:
            touched[key] = (view.memory, np.zeros(view.memory.granules, bool))
        if view.element == memory.BIT:
            grains = (view.offset + lanes) // 8 // view.memory.granule
        else:
            grains = (view.offset + lanes * view.unit) // view.memory.granule
        marks = touched[key][1]
        grains = grains[(grains >= 0) & (grains < len(marks))]
        marks[grains] = True if own is None else marks[grains] | ~own[1][grains]

    # What a program asks.

    def tick(self, operations: int) -> None:
        pass

    def on_chip(self, space: str) -> memory.Memory:
        raise findings.UnsupportedOperationError("pointer_cast", "inside a vector function")

    def load(self, work: program.Work, view: memory.View) -> Any:
        del work
        return self.gather(view, np.zeros((), np.int64))[()]

    def store(self, work: program.Work, view: memory.View, value: Any) -> Any:
        del work
        kind = bool if view.element == memory.BIT else memory.DTYPES[view.element]
        self.scatter(view, np.zeros((), np.int64), np.asarray(value).astype(kind))

    def issue(self, work: program.Work, operands: Sequence[Any]) -> None:
        raise self._inside_function(work)

    def multiply(self, work: program.Work, operands: Sequence[Any]) -> None:
        raise self._inside_function(work)

    def call_vector_function(self, work: program.Work, operands: Sequence[Any]) -> None:
        raise self._inside_function(work)

    def set_flag(self, work: program.Work, set_pipe: str, wait_pipe: str, event: int) -> None:
        raise self._inside_function(work)

    def wait_flag(self, work: program.Work, set_pipe: str, wait_pipe: str, event: int) -> Any:
        raise self._inside_function(work)

    def barrier(self, work: program.Work, pipe: str) -> Any:
        raise self._inside_function(work)

    def set_block_flag(self, work: program.Work, pipe: str, flag: int) -> None:
        raise self._inside_function(work)

    def wait_block_flag(self, work: program.Work, pipe: str, flag: int) -> Any:
        raise self._inside_function(work)

    def _inside_function(self, work: program.Work) -> findings.UnsupportedOperationError:
        return findings.UnsupportedOperationError(
            work.name, "inside a vector function", work.places
        )
