"""Examples over the rows of matrices."""

from typing import Any

import numpy as np

from testing.npu_sim.examples.example import Draw, Example, Tolerance

_NO_BF16 = "it does not round bf16 as hardware does"
_LONG_SUMS = "it sums int32 in int64 and stores that over the end of the output"
_COLUMNS = ((3, 128), (1, 1), (2, 5), (4, 127), (2, 64))
_TILES = ((16, 32), (1, 1), (1, 32), (16, 1), (7, 19), (13, 8))


# ---- Softmax, layer norm ----------------------------------------------------------------------


def _softmax_launch(draw: Draw, rows: int, columns: int):
    x = draw.normal("x", rows, columns, scale=3.0)
    return (rows,), {"x": x, "out": draw.blank("out", rows, columns), "columns": columns}


def _softmax_tile_launch(draw: Draw, rows: int, columns: int):
    _, given = _softmax_launch(draw, rows, columns)
    return (-(-rows // 16),), {**given, "rows": rows}


def _softmax(a: Any) -> None:
    x = a.x.astype(np.float64).reshape(-1, a.columns)
    out = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    a.out[: out.size] = out.reshape(-1)


def _layer_norm_launch(draw: Draw, rows: int, columns: int):
    given = {
        **{"x": draw.normal("x", rows, columns), "weight": draw.normal("weight", columns)},
        **{"bias": draw.normal("bias", columns), "out": draw.blank("out", rows, columns)},
        **{"mean": draw.blank("mean", rows), "scale": draw.blank("scale", rows)},
    }
    return (rows,), {**given, "columns": columns, "epsilon": 1e-5}


def _layer_norm(a: Any) -> None:
    x, weight, bias = (v.astype(np.float64) for v in (a.x, a.weight, a.bias))
    x = x.reshape(-1, a.columns)
    scale = 1 / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    out = (x - x.mean(1, keepdims=True)) * scale * weight + bias
    a.out[: out.size] = out.reshape(-1)
    a.mean[: len(x)] = x.mean(1)
    a.scale[: len(x)] = scale[:, 0]


# ---- Reductions and scans, of whole numbers: exact in any order --------------------------------


def _tile(draw: Draw, rows: int, columns: int) -> dict[str, Any]:
    return {"x": draw.integers("x", -30, 31, rows, columns), "rows": rows, "columns": columns}


def _reductions_launch(draw: Draw, rows: int, columns: int):
    lengths = {"row_sum": rows, "row_max": rows, "row_min": rows, "total": 1}
    lengths |= {"column_sum": columns, "column_max": columns}
    blanks = {name: draw.blank(name, length) for name, length in lengths.items()}
    return (1,), {**_tile(draw, rows, columns), **blanks}


def _reductions(a: Any) -> None:
    # What is not loaded counts as 0, in sums and in extremes.
    x = np.zeros((16, 32))
    x[: a.rows, : a.columns] = a.x.reshape(a.rows, a.columns)
    a.row_sum[: a.rows] = x.sum(1)[: a.rows]
    a.row_max[: a.rows] = x.max(1)[: a.rows]
    a.row_min[: a.rows] = x.min(1)[: a.rows]
    a.column_sum[: a.columns] = x.sum(0)[: a.columns]
    a.column_max[: a.columns] = x.max(0)[: a.columns]
    a.total[0] = x.sum()


def _argmax_launch(draw: Draw, columns: int):
    given = {"x": draw.integers("x", -5, 6, 8, columns), "max": draw.blank("max", 8)}
    return (1,), {**given, "min": draw.blank("min", 8), "columns": columns}


def _argmax(a: Any) -> None:
    # The first of equals.
    x = np.zeros((8, 32))
    x[:, : a.columns] = a.x.reshape(8, a.columns)
    a.max[:8] = x.argmax(1)
    a.min[:8] = x.argmin(1)


def _cumsum_vector_launch(draw: Draw, size: int):
    x = draw.integers("x", -100, 100, size)
    return (1,), {"x": x, "out": draw.blank("out", size), "size": size}


def _cumsum_vector(a: Any) -> None:
    a.out[: a.size] = np.cumsum(a.x.astype(np.float64))


def _cumsum_launch(draw: Draw, rows: int, columns: int):
    return (1,), {**_tile(draw, rows, columns), "out": draw.blank("out", rows, columns)}


def _cumsum(axis: int):
    def expected(a: Any) -> None:
        x = a.x.astype(np.float64).reshape(a.rows, a.columns)
        a.out[: x.size] = np.cumsum(x, axis).reshape(-1)

    return expected


def _whole_launch(draw: Draw, rows: int, columns: int):
    x = draw.normal("x", rows, columns) * 0.25 + 1
    return (1,), {"x": x.astype(np.float32), "out": draw.blank("out", rows, columns)}


def _cumprod(a: Any) -> None:
    a.out[:512] = np.cumprod(a.x.reshape(16, 32).astype(np.float64), 0).reshape(-1)


def _xor_launch(draw: Draw, rows: int, columns: int):
    return (1,), {"x": draw.words("x", rows * columns), "out": draw.blank("out", rows)}


def _xor_rows(a: Any) -> None:
    a.out[:16] = np.bitwise_xor.reduce(a.x.reshape(16, 32), 1)


def _sum_middle_launch(draw: Draw, *_: int):
    return (1,), {"x": draw.integers("x", -99, 99, 4, 8, 32), "out": draw.blank("out", 4, 32)}


def _sum_middle(a: Any) -> None:
    a.out[:128] = a.x.reshape(4, 8, 32).astype(np.float64).sum(1).reshape(-1)


def _scan_launch(draw: Draw, size: int):
    x = 1 + 0.125 * draw.normal("x", size)
    return (1,), {"x": x.astype(np.float32), "out": draw.blank("out", size)}


def _scan(a: Any) -> None:
    a.out[:64] = np.cumprod(a.x.astype(np.float64))


def _product_rows_launch(draw: Draw, rows: int, columns: int):
    _, given = _whole_launch(draw, rows, columns)
    return (1,), {**given, "out": draw.blank("out", rows)}


def _product_rows(a: Any) -> None:
    a.out[:16] = a.x.reshape(16, 32).astype(np.float64).prod(1)


def _histogram_launch(draw: Draw, size: int):
    return (1,), {"x": draw.integers("x", 0, 16, size), "out": draw.blank("out", 16)}


def _histogram(a: Any) -> None:
    a.out[:16] = np.bincount(a.x, minlength=16)


# ---- Broadcasts -------------------------------------------------------------------------------


def _broadcast_launch(draw: Draw, rows: int, columns: int):
    vectors = {"row": draw.integers("row", -8, 9, columns), "column": draw.normal("column", rows)}
    out = draw.blank("out", rows, columns)
    return (1,), {**_tile(draw, rows, columns), **vectors, "out": out}


def _broadcast(a: Any) -> None:
    # The products are whole numbers, so only the sum rounds.
    product = a.x.reshape(a.rows, a.columns) * a.row[None, :]
    a.out[: product.size] = (product + a.column[:, None]).reshape(-1)


def _outer_launch(draw: Draw, rows: int, columns: int):
    given = {"x": draw.normal("x", rows), "y": draw.normal("y", columns)}
    return (1,), {**given, "out": draw.blank("out", rows, columns)}


def _outer(a: Any) -> None:
    a.out[:512] = np.tril(a.x[:, None] - a.y[None, :]).reshape(-1)


_SUMS = "sums of up to 128 numbers in another order, exp"

EXAMPLES = (
    Example("softmax_fp32", _softmax_launch, _COLUMNS, _softmax, Tolerance(16, _SUMS)),
    Example("softmax_fp16", _softmax_launch, _COLUMNS, _softmax, Tolerance(4, _SUMS, 1e-2)),
    Example(
        "softmax_tile_fp32",
        _softmax_tile_launch,
        ((16, 64), (1, 1), (5, 63), (33, 20)),
        _softmax,
        Tolerance(16, _SUMS),
    ),
    Example(
        "layer_norm_fp32",
        _layer_norm_launch,
        _COLUMNS,
        _layer_norm,
        Tolerance(16, "differences and sums of up to 128 numbers of size 1", 1.0),
    ),
    Example(
        "layer_norm_bf16",
        _layer_norm_launch,
        _COLUMNS,
        _layer_norm,
        Tolerance(1, "fp32 rounded to bf16; mean and scale, in fp32, sum in another order", 1.0),
        interpreter=_NO_BF16,
    ),
    *(
        Example(
            f"reductions_{t}",
            _reductions_launch,
            _TILES,
            _reductions,
            interpreter=_LONG_SUMS if t == "i32" else "",
        )
        for t in ("fp32", "fp16", "i32")
    ),
    Example("argmax_rows_fp32", _argmax_launch, ((32,), (1,), (7,), (31,)), _argmax),
    Example(
        "cumsum_vector_fp32", _cumsum_vector_launch, ((64,), (0,), (1,), (33,)), _cumsum_vector
    ),
    *(
        Example(
            f"cumsum_matrix_{t}",
            _cumsum_launch,
            _TILES,
            _cumsum(int(t[-1])),
            interpreter=_LONG_SUMS if "i32" in t else "",
        )
        for t in ("fp32_0", "fp16_0", "i32_0", "fp32_1")
    ),
    Example(
        "cumprod_matrix_fp32",
        _whole_launch,
        ((16, 32),),
        _cumprod,
        Tolerance(16, "15 products, each rounded"),
    ),
    Example("scan", _scan_launch, ((64,),), _scan, Tolerance(64, "63 products, each rounded")),
    Example(
        "product_rows",
        _product_rows_launch,
        ((16, 32),),
        _product_rows,
        Tolerance(32, "31 products, each rounded"),
    ),
    Example("histogram", _histogram_launch, ((64,),), _histogram, interpreter=_LONG_SUMS),
    Example("xor_rows_i32", _xor_launch, ((16, 32),), _xor_rows),
    Example("sum_middle_fp32", _sum_middle_launch, ((4, 8, 32),), _sum_middle),
    *(Example(f"broadcast_{t}", _broadcast_launch, _TILES, _broadcast) for t in ("fp32", "fp16")),
    Example("outer_product_fp32", _outer_launch, ((16, 32),), _outer),
)
