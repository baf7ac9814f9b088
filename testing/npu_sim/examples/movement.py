"""Examples that move data. Expected values are NumPy's indexing, bit for bit."""

import math
from typing import Any

import numpy as np

from testing.npu_sim.examples import values
from testing.npu_sim.examples.example import Draw, Example

_NO_GATHER = "it has no tl.gather, tl.flip, tl.sort of triton-ascend"
_NO_BF16 = "it does not round bf16 as hardware does"
_SIZES = ((0,), (1,), (15,), (63,), (64,), (65,), (201,))
_TILES = ((16, 32), (1, 1), (1, 32), (16, 1), (7, 19), (13, 8), (3, 32))


def _programs(size: int) -> tuple[int]:
    return (max(1, math.ceil(size / 64)),)


def _every_second_launch(draw: Draw, size: int):
    given = {"x": draw.normal("x", max(0, 2 * size - 1)), "out": draw.blank("out", size)}
    return _programs(size), {**given, "size": size}


def _every_second(a: Any) -> None:
    a.out[: a.size] = a.x[::2]


def _strided_launch(draw: Draw, size: int, x_stride: int, out_stride: int):
    given = {"x": draw.normal("x", size * x_stride), "out": draw.blank("out", size * out_stride)}
    return _programs(size), {**given, "x_stride": x_stride, "out_stride": out_stride, "size": size}


def _strided(a: Any) -> None:
    a.out[: a.size * a.out_stride : a.out_stride] = a.x[:: a.x_stride]


def _gather_launch(draw: Draw, size: int):
    given = {"x": draw.normal("x", 500), "index": draw.integers("index", 0, 500, size)}
    return _programs(size), {**given, "out": draw.blank("out", size), "size": size}


def _gather(a: Any) -> None:
    a.out[: a.size] = a.x[a.index]


def _block_launch(draw: Draw, _: int):
    return (1,), {"x": draw.normal("x", 64), "out": draw.blank("out", 64)}


def _permute_launch(draw: Draw, _: int):
    grid, given = _block_launch(draw, _)
    return grid, {**given, "index": draw.integers("index", 0, 64, 64)}


def _permute(a: Any) -> None:
    a.out[:64] = a.x[a.index]


def _reverse(a: Any) -> None:
    a.out[:64] = a.x[::-1]


def _sort(a: Any) -> None:
    a.out[:64] = np.sort(a.x)


def _concatenate_launch(draw: Draw, _: int):
    given = {"x": draw.normal("x", 64), "y": draw.normal("y", 64)}
    return (1,), {**given, "out": draw.blank("out", 128)}


def _concatenate(a: Any) -> None:
    a.out[:128] = np.concatenate([a.x, a.y])


def _transpose_launch(draw: Draw, rows: int, columns: int):
    if np.dtype(draw.dtype("x")).kind == "i":
        x = draw.words("x", rows * columns)
    else:
        x = draw.normal("x", rows, columns)
    out = draw.blank("out", rows, columns)
    return (1,), {"x": x, "out": out, "rows": rows, "columns": columns}


def _transpose(a: Any) -> None:
    a.out[: len(a.x)] = a.x.reshape(a.rows, a.columns).T.reshape(-1)


def _swap_launch(draw: Draw, _: int):
    return (1,), {"x": draw.normal("x", 4 * 8 * 32), "out": draw.blank("out", 4 * 8 * 32)}


def _swap_leading(a: Any) -> None:
    a.out[: len(a.x)] = a.x.reshape(4, 8, 32).swapaxes(0, 1).reshape(-1)


def _pairs(draw: Draw, _: int):
    # Few bits, so that what the kernels compute is exact in every type.
    x = draw.integers("x", -60, 60, 16, 64)
    return (1,), {"x": x, "even": draw.blank("even", 512), "odd": draw.blank("odd", 512)}


def _split_pairs(a: Any) -> None:
    a.even[:512] = a.x[0::2] + 1
    a.odd[:512] = a.x[1::2] * 2


def _join_launch(draw: Draw, _: int):
    even = draw.normal("even", 512)
    extremes = values.special(draw.dtype("even"))
    even[: len(extremes)] = extremes
    return (1,), {"even": even, "odd": draw.normal("odd", 512), "out": draw.blank("out", 1024)}


def _join_pairs(a: Any) -> None:
    a.out[0:1024:2] = a.even
    a.out[1:1024:2] = a.odd


def _window_launch(draw: Draw, rows: int, columns: int, row_stride: int, out_stride: int):
    given = {"x": draw.integers("x", -60, 60, rows, row_stride)}
    given["out"] = draw.blank("out", rows, out_stride)
    sizes = {"rows": rows, "columns": columns, "row_stride": row_stride, "out_stride": out_stride}
    return (math.ceil(rows / 16),), {**given, **sizes}


def _window(a: Any) -> None:
    x = a.x.reshape(a.rows, a.row_stride)
    out = a.out[: a.rows * a.out_stride].reshape(a.rows, a.out_stride)
    out[:, : a.columns] = x[:, : a.columns] + 1


def _add_atomically_launch(draw: Draw, size: int):
    # Whole numbers: the order of the programs does not change the sum.
    given = {"x": draw.integers("x", -1000, 1000, size), "total": draw.blank("total", 64)}
    given["total"][:64] = 5
    return _programs(size), {**given, "size": size}


def _add_atomically(a: Any) -> None:
    for i, x in enumerate(a.x):
        a.total[i % 64] += x


def _largest_launch(draw: Draw, programs: int):
    given = {"x": draw.integers("x", -1000, 1000, programs, 64), "out": draw.blank("out", 64)}
    given["out"][:64] = 3
    return (programs,), given


def _largest(a: Any) -> None:
    a.out[:64] = np.maximum(3, a.x.reshape(-1, 64).max(0))


def _total_launch(draw: Draw, programs: int):
    given = {"x": draw.integers("x", -1000, 1000, programs, 64), "out": draw.blank("out", 1)}
    given["out"][0] = 7
    return (programs,), given


def _total(a: Any) -> None:
    a.out[0] = 7 + a.x.astype(np.float64).sum()


_ONE = ((64,),)
_STRIDES = ((0, 2, 3), (1, 3, 5), (33, 3, 2), (64, 1, 1), (100, 2, 3))
_PROGRAMS = ((1,), (2,), (7,))
_WINDOWS = ((16, 32, 32, 32), (1, 1, 3, 2), (20, 31, 40, 35), (33, 8, 64, 8), (15, 5, 6, 7))

EXAMPLES = (
    *(
        Example(f"every_second_{t}", _every_second_launch, _SIZES, _every_second)
        for t in ("fp32", "fp16")
    ),
    *(Example(f"strided_{t}", _strided_launch, _STRIDES, _strided) for t in ("fp32", "fp16")),
    Example("gather", _gather_launch, _SIZES, _gather),
    *(
        Example(f"permute_{t}", _permute_launch, _ONE, _permute, interpreter=_NO_GATHER)
        for t in ("fp32", "fp16")
    ),
    *(
        Example(f"reverse_{t}", _block_launch, _ONE, _reverse, interpreter=_NO_GATHER)
        for t in ("fp32", "fp16")
    ),
    *(
        Example(f"sort_{t}", _block_launch, _ONE, _sort, interpreter=_NO_GATHER)
        for t in ("fp32", "fp16")
    ),
    Example("concatenate_fp32", _concatenate_launch, _ONE, _concatenate),
    *(
        Example(f"transpose_{t}", _transpose_launch, _TILES, _transpose)
        for t in ("fp32", "fp16", "i32", "i8")
    ),
    *(Example(f"swap_leading_{t}", _swap_launch, _ONE, _swap_leading) for t in ("fp32", "fp16")),
    *(Example(f"split_pairs_{t}", _pairs, _ONE, _split_pairs) for t in ("fp32", "fp16")),
    Example("split_pairs_bf16", _pairs, _ONE, _split_pairs, interpreter=_NO_BF16),
    *(Example(f"join_pairs_{t}", _join_launch, _ONE, _join_pairs) for t in ("fp32", "fp16")),
    Example("join_pairs_bf16", _join_launch, _ONE, _join_pairs, interpreter=_NO_BF16),
    Example("window_fp32", _window_launch, _WINDOWS, _window),
    *(
        Example(f"add_atomically_{t}", _add_atomically_launch, _SIZES, _add_atomically)
        for t in ("fp32", "i32")
    ),
    Example("largest_atomically_i32", _largest_launch, _PROGRAMS, _largest),
    Example(
        "largest_atomically_fp32",
        _largest_launch,
        _PROGRAMS,
        _largest,
        interpreter="it has no atomic maximum of floats",
    ),
    Example("total_atomically_fp32", _total_launch, _PROGRAMS, _total),
)
