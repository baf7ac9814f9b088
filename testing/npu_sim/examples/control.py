"""Examples of grids, loops, carried state and scalars from memory."""

import math
from typing import Any

import numpy as np

from testing.npu_sim.examples.example import Draw, Example, Tolerance


def _grid_2d_launch(draw: Draw, x: int, y: int):
    return (x, y), {"out": draw.blank("out", x * y, 16)}


def _grid_2d(a: Any) -> None:
    for x in range(a.grid[0]):
        for y in range(a.grid[1]):
            start = 16 * (x * a.grid[1] + y)
            a.out[start : start + 16] = 100 * x + y


def _grid_3d_launch(draw: Draw, x: int, y: int, size: int):
    given = {"x": draw.integers("x", -99, 99, x, y, size), "out": draw.blank("out", x, y, size)}
    return (x, y, max(1, math.ceil(size / 32))), {**given, "size": size}


def _grid_3d(a: Any) -> None:
    a.out[: len(a.x)] = a.x * 2 + np.resize(np.arange(a.size) // 32, len(a.x))


def _persistent_launch(draw: Draw, size: int):
    given = {"x": draw.integers("x", -99, 99, size), "out": draw.blank("out", size)}
    return (3,), {**given, "size": size, "tasks": math.ceil(size / 64)}


def _persistent(a: Any) -> None:
    a.out[: a.size] = a.x.astype(np.float64) ** 2 + np.arange(a.size) // 64


def _recurrence_launch(draw: Draw, sequences: int, length: int):
    given = {
        **{"x": draw.normal("x", sequences, length, 64)},
        **{"decay": draw.normal("decay", sequences, length, scale=0.5)},
        **{
            "out": draw.blank("out", sequences, length, 64),
            "last": draw.blank("last", sequences, 64),
        },
    }
    return (sequences,), {**given, "length": length}


def _recurrence(a: Any) -> None:
    # In fp32, in the kernel's order: a product and a sum, each rounded.
    for sequence in range(a.grid[0]):
        state = np.zeros(64, np.float32)
        for t in range(a.length):
            step = sequence * a.length + t
            state = (state * a.decay[step]) + a.x[64 * step : 64 * (step + 1)]
            a.out[64 * step : 64 * (step + 1)] = state
        a.last[64 * sequence : 64 * (sequence + 1)] = state


def _table_launch(draw: Draw, programs: int):
    length = draw.integers("length", 0, 65, programs)
    given = {"x": draw.normal("x", 500), "start": draw.integers("start", 0, 430, programs)}
    return (programs,), {**given, "length": length, "out": draw.blank("out", programs, 64)}


def _table(a: Any) -> None:
    a.out[: 64 * a.grid[0]] = -1
    for program, (start, length) in enumerate(zip(a.start, a.length, strict=True)):
        a.out[64 * program : 64 * program + length] = a.x[start : start + length]


def _branch_launch(draw: Draw, programs: int, threshold: int):
    given = {"x": draw.integers("x", -99, 99, programs, 64), "out": draw.blank("out", programs, 64)}
    return (programs,), {**given, "threshold": threshold}


def _branch(a: Any) -> None:
    edge = 64 * max(0, a.threshold)
    a.out[: len(a.x)] = np.concatenate([a.x[:edge] + 1, a.x[edge:] * 3])


def _blocked_sum_launch(draw: Draw, rows: int, size: int):
    given = {"x": draw.integers("x", -99, 99, rows, size), "out": draw.blank("out", rows)}
    return (rows,), {**given, "size": size}


def _blocked_sum(a: Any) -> None:
    a.out[: a.grid[0]] = a.x.astype(np.float64).reshape(a.grid[0], a.size).sum(1)


def _halving_launch(draw: Draw, programs: int):
    given = {"x": draw.integers("x", 0, 5000, programs), "out": draw.blank("out", programs, 16)}
    return (programs,), given


def _halving(a: Any) -> None:
    for program, x in enumerate(a.x.tolist()):
        steps = max(0, x.bit_length() - 1)
        a.out[16 * program : 16 * (program + 1)] = steps + np.arange(16)


EXAMPLES = (
    Example("grid_2d", _grid_2d_launch, ((1, 1), (5, 1), (1, 6), (3, 7)), _grid_2d),
    Example("grid_3d", _grid_3d_launch, ((1, 1, 1), (2, 3, 70), (3, 1, 32), (1, 4, 0)), _grid_3d),
    Example("persistent", _persistent_launch, ((0,), (1,), (64,), (200,), (700,)), _persistent),
    Example(
        "recurrence",
        _recurrence_launch,
        ((1, 1), (2, 9), (3, 0)),
        _recurrence,
        Tolerance(8, "whether a product and a sum are rounded once or twice", 1.0),
    ),
    Example("rows_of_a_table", _table_launch, ((1,), (2,), (9,)), _table),
    Example("branch", _branch_launch, ((4, 2), (3, 0), (3, 3), (2, -1)), _branch),
    Example("blocked_sum", _blocked_sum_launch, ((1, 1), (3, 64), (2, 200), (2, 0)), _blocked_sum),
    Example("halving", _halving_launch, ((1,), (8,)), _halving),
)
