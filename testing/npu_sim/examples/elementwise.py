"""Examples of elementwise work. Expected values are NumPy's, rounded once by ml_dtypes."""

import math
from typing import Any

import ml_dtypes
import numpy as np

from testing import distributions
from testing.npu_sim.examples import blocks, values
from testing.npu_sim.examples.example import Draw, Example, Tolerance
from testing.npu_sim.examples.variants import CASTS

_SIZES = blocks.sizes(64)
_FLOATS = ("fp32", "fp16", "bf16")
_NO_BF16 = "it does not round bf16 as hardware does"
_INTEGER_RANGE = {"i8": 127, "u8": 255, "i16": 32767, "i32": 2**31 - 128, "i64": 2**52}


def _normals(draw: Draw, size: int, *names: str) -> dict[str, Any]:
    return {name: draw.normal(name, size, scale=2.0) for name in names}


def _interpreter(element: str) -> str:
    return _NO_BF16 if "bf16" in element else ""


# ---- Additions, masks -------------------------------------------------------------------------


def _add_launch(draw: Draw, size: int):
    if np.dtype(draw.dtype("x")).kind == "i":
        inputs = {"x": draw.words("x", size), "y": draw.words("y", size)[::-1]}
    else:
        inputs = _normals(draw, size, "x", "y")
        extremes = values.special(draw.dtype("x"))[:size]
        inputs["x"][: len(extremes)] = extremes
    return blocks.launch(256, draw, size, inputs, "out")


def _add(a: Any) -> None:
    a.out[: a.size] = a.x + a.y


def _window_launch(draw: Draw, first: int, last: int):
    given = {"x": draw.normal("x", 64), "out": draw.blank("out", 64)}
    return (1,), {**given, "first": first, "last": last}


_WINDOWS = ((0, 64), (0, 0), (0, 1), (0, 33), (5, 6), (7, 40), (17, 64), (20, 20), (64, 64))


def _fill_tail(a: Any) -> None:
    a.out[:64] = -7.5
    a.out[a.first : a.last] = a.x[a.first : a.last]


def _store_window(a: Any) -> None:
    a.out[a.first : a.last] = a.x[a.first : a.last]


# ---- Arithmetic -------------------------------------------------------------------------------


def _arithmetic_launch(draw: Draw, size: int):
    outputs = ("sum", "difference", "product", "quotient", "fused", "low", "high")
    return blocks.launch(64, draw, size, _normals(draw, size, "x", "y"), *outputs)


def _arithmetic(a: Any) -> None:
    # Of 16-bit types, fp32 holds sums and products exactly or far more bits than are kept.
    x, y, dtype = a.x.astype(np.float32), a.y.astype(np.float32), a.x.dtype
    a.sum[: a.size] = x + y
    a.difference[: a.size] = x - y
    a.product[: a.size] = x * y
    a.quotient[: a.size] = x / y
    doubled = (x * np.float32(2)).astype(dtype).astype(np.float32)
    a.fused[: a.size] = doubled + np.float32(0.5)
    a.low[: a.size] = np.minimum(x, y)
    a.high[: a.size] = np.maximum(x, y)


# ---- Functions --------------------------------------------------------------------------------


def _functions_launch(draw: Draw, size: int):
    names = ("exp", "log", "sqrt", "rsqrt", "abs", "sigmoid", "exp2", "log2")
    return blocks.launch(64, draw, size, {"x": draw.normal("x", size, scale=1.5)}, *names)


def _functions(a: Any) -> None:
    x = a.x.astype(np.float64)
    positive = (np.abs(a.x) + np.asarray(0.125, a.x.dtype)).astype(np.float64)
    a.exp[: a.size] = np.exp(x)
    a.log[: a.size] = np.log(positive)
    a.sqrt[: a.size] = np.sqrt(positive)
    a.rsqrt[: a.size] = 1 / np.sqrt(positive)
    a.abs[: a.size] = np.abs(x)
    a.sigmoid[: a.size] = 1 / (1 + np.exp(-x))
    a.exp2[: a.size] = np.exp2(x)
    a.log2[: a.size] = np.log2(positive)


def _angles_launch(draw: Draw, size: int):
    return blocks.launch(64, draw, size, {"x": draw.normal("x", size, scale=10.0)}, "sin", "cos")


def _angles(a: Any) -> None:
    a.sin[: a.size] = np.sin(a.x.astype(np.float64))
    a.cos[: a.size] = np.cos(a.x.astype(np.float64))


def _unary_launch(draw: Draw, size: int):
    return blocks.launch(64, draw, size, {"x": draw.normal("x", size, scale=1.5)}, "out")


def _error_function(a: Any) -> None:
    a.out[: a.size] = [math.erf(x) for x in a.x]


def _tanh(a: Any) -> None:
    a.out[: a.size] = np.tanh(a.x.astype(np.float64))


# ---- Rounding and casts -----------------------------------------------------------------------

_HALVES = np.array([0.5, 1.5, 2.5, 0.49999997, 0.50000006, 8388607.5, 8388609.0, 3e9, 1e30])


def _rounding_values(draw: Draw, size: int) -> np.ndarray:
    chosen = np.concatenate([_HALVES, -_HALVES, values.special(np.float32)]).astype(np.float32)
    return np.concatenate([chosen, draw.normal("x", size, scale=100.0)])[:size]


def _rounded_launch(draw: Draw, size: int):
    return blocks.launch(64, draw, size, {"x": _rounding_values(draw, size)}, "floor", "ceil")


def _rounded(a: Any) -> None:
    a.floor[: a.size] = np.floor(a.x)
    a.ceil[: a.size] = np.ceil(a.x)


def _nearest_launch(draw: Draw, size: int):
    return blocks.launch(64, draw, size, {"x": _rounding_values(draw, size)}, "out")


def _nearest(a: Any) -> None:
    # Halves away from zero. float64 holds x + 0.5 exactly where it matters.
    x = a.x.astype(np.float64)
    a.out[: a.size] = np.copysign(np.floor(np.abs(x) + 0.5), x)


def _cast_launch(draw: Draw, size: int):
    source, target = draw.dtype("x"), draw.dtype("out")
    if np.dtype(source).kind in "iu":
        x = draw.words("x", size)
    elif np.dtype(target).kind in "iu":
        # Beyond the range the result is the hardware's affair.
        limit = min(_INTEGER_RANGE[_name(target)], float(ml_dtypes.finfo(source).max))
        low = 0 if np.dtype(target).kind == "u" else -limit
        small = draw.normal("x", size, scale=20.0).astype(np.float64)
        x = low + (limit - low) * distributions.Stream(f"{size}").uniform((size,))
        x[::2] = np.clip(small, low, limit)[::2]
        x = x.astype(source)
        x[np.abs(x.astype(np.float64)) > limit] = 0  # rounded over the edge
    else:
        chosen = [values.special(source), draw.normal("x", size, scale=3.0)]
        if np.dtype(target).itemsize == 2:
            with np.errstate(over="ignore"):
                chosen.insert(0, values.around_ties(target).astype(source))
        x = np.concatenate(chosen)[:size]
    return blocks.launch(128, draw, size, {"x": x}, "out")


def _name(dtype: Any) -> str:
    return f"{np.dtype(dtype).kind}{8 * np.dtype(dtype).itemsize}"


def _cast(a: Any) -> None:
    x, target = a.x, a.out.dtype
    if target.kind == "u":
        # Triton's cast of a float in range; of an integer, its last bits.
        x = x.astype(np.int64)
    elif x.dtype.kind in "iu" and target.itemsize == 2 and target.kind != "i":
        x = x.astype(np.float32)  # the compiler's way: exact up to 2^24, beyond it rounds twice
    elif x.dtype == ml_dtypes.bfloat16:
        x = x.astype(np.float32)  # exact
    a.out[: a.size] = x.astype(target)


# ---- Comparisons, bits ------------------------------------------------------------------------


def _choose_launch(draw: Draw, size: int):
    x = draw.integers("x", -3, 4, size)  # small, so that many are equal
    y = draw.integers("y", -3, 4, size)
    return blocks.launch(64, draw, size, {"x": x, "y": y}, "out", "code")


def _choose(a: Any) -> None:
    for i, (x, y) in enumerate(zip(a.x.tolist(), a.y.tolist(), strict=True)):
        a.out[i] = x if x > y and x != 0 else y + 0.5
        code = 1 * (x < y) + 2 * (x <= y) + 4 * (x == y) + 8 * (x >= y)
        a.code[i] = code + 16 * (x > 0 or y > 0)


def _inspect_launch(draw: Draw, size: int):
    chosen = np.concatenate([values.special(draw.dtype("x")), draw.normal("x", size)])[:size]
    return blocks.launch(64, draw, size, {"x": chosen}, "zeroed", "positive", "clamped")


def _inspect(a: Any) -> None:
    for i, x in enumerate(a.x):
        value = a.x.dtype.type(0) if math.isnan(x) else x
        a.zeroed[i] = value
        a.positive[i] = x > 0
        a.clamped[i] = min(max(value, -1), 1)


def _clear_sign_launch(draw: Draw, size: int):
    chosen = np.concatenate([values.special(np.float32), draw.normal("x", size)])[:size]
    return blocks.launch(64, draw, size, {"x": chosen}, "out")


def _clear_sign(a: Any) -> None:
    a.out[: a.size].view(np.uint32)[:] = a.x.view(np.uint32) & 0x7FFFFFFF


_EXP = Tolerance(4, "exp, log and their quotients: libraries differ by a spacing or two", 1e-3)

EXAMPLES = (
    *(
        Example(f"add_{t}", _add_launch, blocks.sizes(256), _add, interpreter=_interpreter(t))
        for t in (*_FLOATS, "i8", "i16", "i32", "i64")
    ),
    *(
        Example(f"{name}_{t}", _window_launch, _WINDOWS, expected, interpreter=_interpreter(t))
        for name, expected in (("fill_tail", _fill_tail), ("store_window", _store_window))
        for t in _FLOATS
    ),
    *(
        # Bounds in the wrong order: a transfer of -20 elements, which the library (Copy1D.cpp) only
        # leaves out when it is 0.
        Example(
            f"{name}_fp32",
            _window_launch,
            ((40, 20),),
            expected,
            label="inverted",
            miscompiled={
                "arch32": "out of bounds: .*: -20 f32",
                "arch35": "out of bounds: .*: -20 f32",
            },
        )
        for name, expected in (("fill_tail", _fill_tail), ("store_window", _store_window))
    ),
    *(
        Example(
            f"arithmetic_{t}",
            _arithmetic_launch,
            _SIZES,
            _arithmetic,
            interpreter=_interpreter(t),
        )
        for t in _FLOATS
    ),
    Example("functions_fp32", _functions_launch, _SIZES, _functions, _EXP),
    Example("functions_fp16", _functions_launch, _SIZES, _functions, _EXP),
    Example(
        "angles_fp32",
        _angles_launch,
        _SIZES,
        _angles,
        Tolerance(40, "arch35's series of the sine ends with x^9: 3.6e-6 at pi/2", 1.0),
    ),
    Example(
        "error_function_fp32",
        _unary_launch,
        _SIZES,
        _error_function,
        Tolerance(8, "a quotient of polynomials", 1e-2),
    ),
    Example(
        "tanh_fp32",
        _unary_launch,
        _SIZES,
        _tanh,
        Tolerance(2, "(exp(2x) - 1) / (exp(2x) + 1) cancels near 0", 1.0),
        interpreter="it has no libdevice",
    ),
    Example("rounded_fp32", _rounded_launch, _SIZES, _rounded),
    Example(
        "nearest_fp32",
        _nearest_launch,
        _SIZES,
        _nearest,
        interpreter="it has no libdevice",
    ),
    *(
        Example(
            f"cast_{t.replace(' ', '_')}",
            _cast_launch,
            blocks.sizes(128),
            _cast,
            interpreter=_interpreter(t),
        )
        for t in CASTS
    ),
    *(Example(f"choose_{t}", _choose_launch, _SIZES, _choose) for t in ("fp32", "fp16")),
    *(Example(f"inspect_{t}", _inspect_launch, _SIZES, _inspect) for t in ("fp32", "fp16")),
    Example("clear_sign_fp32", _clear_sign_launch, _SIZES, _clear_sign),
)
