"""Estimates how many cycles tasks take; all numbers are in `calibration`.

A task occupies its pipe for a while and is complete (its data has arrived, its flags may be set)
some latency later; meanwhile the pipe may start the next.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from testing.npu_sim import calibration, cube, memory

VECTOR_CORES = 2  # for each cube core


@dataclasses.dataclass(frozen=True)
class Cost:
    """Cycles. occupancy: of the pipe. latency: from then until it is complete."""

    occupancy: float
    latency: float = 0.0


@dataclasses.dataclass(frozen=True)
class Model:
    """The cost model of one chip."""

    chip: calibration.Chip

    @staticmethod
    def of(target: Mapping[str, int]) -> "Model":
        """The model of the chip that the compiler's description (`CUBE_CORE_COUNT`, …) names; of
        Ascend910B1, with that number of cores, if it is not known."""
        cores = target.get("CUBE_CORE_COUNT") or target.get("AI_CORE_COUNT")
        known = calibration.ASCEND_910B1
        if cores is None:
            return Model(known)
        return Model(
            calibration.BY_CORES.get(cores) or dataclasses.replace(known, name="", cores=cores)
        )

    def cores(self, mixed: bool) -> int:
        """How many blocks run at the same time. mixed: blocks that have a cube core; others have
        one of the twice as many vector cores."""
        return self.chip.cores if mixed else VECTOR_CORES * self.chip.cores

    def gm_bytes_per_cycle(self, vector_core: bool) -> float:
        """One core's share of the bandwidth of global memory, if all cores of its kind use it."""
        cores = self.chip.cores * (VECTOR_CORES if vector_core else 1)
        return self.chip.gm_bytes_per_second / self.chip.clock_hz / cores

    # The scalar unit.

    @property
    def scalar_cycles(self) -> float:
        return self.chip.scalar_operation

    @property
    def issue_cycles(self) -> float:
        return self.chip.issue

    def scalar_access(self, view: memory.View) -> float:
        """A load or store of one element."""
        return self.chip.scalar_gm if view.memory.space == "gm" else self.chip.scalar_ub

    # Synchronisation.

    @property
    def flag_latency(self) -> float:
        return self.chip.flag_latency

    @property
    def block_flag_latency(self) -> float:
        return self.chip.block_flag_latency

    def set_flag(self) -> Cost:
        return Cost(self.chip.flag)

    def wait_flag(self) -> Cost:
        return Cost(self.chip.flag)

    def barrier(self) -> Cost:
        return Cost(self.chip.barrier)

    def set_block_flag(self) -> Cost:
        return Cost(self.chip.block_flag)

    def wait_block_flag(self) -> Cost:
        return Cost(self.chip.block_flag)

    # Work.

    def operation(
        self, cost: str, pipe: str, inputs: Sequence[Any], outputs: Sequence[memory.View]
    ) -> Cost:
        """A task of the class that the table of `operations` names."""
        views = [value for value in (*inputs, *outputs) if isinstance(value, memory.View)]
        if cost == "dma" or pipe in ("MTE2", "MTE3"):
            return self._transfer(views)
        chip = self.chip
        if cost == "fixpipe":
            nbytes = views[0].nbytes if views else 0
            own = nbytes / chip.fixpipe_bytes_per_cycle
            global_side = [view for view in outputs if view.memory.space == "gm"]
            gm = sum(self._gm_cycles(view, vector_core=False) for view in global_side)
            return Cost(chip.fixpipe_issue + max(own, gm), chip.fixpipe_latency)
        largest = max(views, key=lambda view: view.nbytes, default=None)
        if largest is None or not largest.count:
            return Cost(chip.vector_issue, chip.vector_latency)
        row, count = _rows(largest)
        repeats = -(-row // chip.repeat_bytes) * count
        return Cost(
            chip.vector_issue + self._vector_cycles(cost, repeats, largest), chip.vector_latency
        )

    def _vector_cycles(self, cost: str, repeats: int, largest: memory.View) -> float:
        chip = self.chip
        if cost in ("vector", "copy"):
            return chip.vector_repeat * repeats
        if cost == "vector_slow":
            return chip.slow_repeat * repeats
        if cost == "vector_reduce":
            return chip.reduce_repeat * repeats
        if cost == "vector_transpose":
            return chip.transpose_repeat * repeats
        if cost == "vector_sort":
            length = largest.sizes[-1] if largest.sizes else 1
            return chip.sort_repeat * repeats * max(1.0, math.log2(max(length, 2)))
        if cost == "vector_scan":
            steps = largest.sizes[0] if largest.sizes else 1
            return chip.scan_step * steps + chip.vector_repeat * repeats
        if cost == "vector_gather":
            return chip.gather_element * largest.count
        if cost == "vector_scalar":
            return chip.scalar_element * largest.count
        raise ValueError(f"unknown cost class {cost!r}")

    def _transfer(self, views: Sequence[memory.View]) -> Cost:
        """Between global memory and UB or L1; between on-chip memories like from L1."""
        chip = self.chip
        if not any(view.count for view in views):
            return Cost(chip.dma_issue)
        sides = [view for view in views if view.memory.space == "gm"]
        if not sides:
            nbytes = max(view.nbytes for view in views)
            return Cost(chip.dma_issue + nbytes / chip.l1_bytes_per_cycle, chip.l1_latency)
        vector_core = any(view.memory.space == "ub" for view in views)
        cycles = max(self._gm_cycles(side, vector_core) for side in sides)
        return Cost(chip.dma_issue + cycles, chip.dma_latency)

    def _gm_cycles(self, view: memory.View, vector_core: bool) -> float:
        chip = self.chip
        row, count = _rows(view)
        moved = count * -(-row // chip.gm_burst_bytes) * chip.gm_burst_bytes
        outer = [
            s * view.unit for s, size in zip(view.strides, view.sizes, strict=True) if size > 1
        ]
        starts = [view.offset, *(outer[:-1] if count > 1 and row > view.unit else [])]
        aligned = all(start % chip.gm_aligned_bytes == 0 for start in starts)
        rate = self.gm_bytes_per_cycle(vector_core) * (1 if aligned else chip.gm_unaligned_share)
        per_row = chip.dma_row if row > view.unit else chip.dma_element
        return max(moved / rate, per_row * (count - 1))

    def vector_function(self, transfers: int) -> Cost:
        """A vector function of arch35 that moved this many vectors between UB and registers.

        Guess: one a cycle, which hides the arithmetic between them.
        """
        chip = self.chip
        return Cost(chip.vector_issue + chip.vector_repeat * transfers, chip.vector_latency)

    def cube_step(self, step: cube.Load | cube.Multiply) -> Cost:
        chip = self.chip
        if isinstance(step, cube.Load):
            return Cost(chip.l1_issue + step.nbytes / chip.l1_bytes_per_cycle, chip.l1_latency)
        depth = 16 if step.element in ("f16", "bf16") else 32 if step.element == "i8" else 8
        fractals = -(-step.m // 16) * -(-step.n // 16) * -(-step.k // depth)
        return Cost(chip.cube_issue + fractals * chip.cube_cycles[step.element], chip.cube_latency)


def _rows(view: memory.View) -> tuple[int, int]:
    """(bytes of a run of contiguous elements, number of such runs)."""
    if not view.count:
        return 0, 0
    run = 1
    for size, stride in zip(reversed(view.sizes), reversed(view.strides), strict=True):
        if size != 1 and stride != run:
            break
        run *= size
    nbytes = -(-run // 8) if view.element == memory.BIT else run * view.unit
    return nbytes, view.count // run
