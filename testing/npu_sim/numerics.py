"""Rounding, saturation and arithmetic as the chip does them, on NumPy arrays.

Everything here is exact to the last bit of the result's type, except the transcendental functions,
which are NumPy's float32 ones rounded once (guess: the hardware's own accuracy is not published).
"""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FLOAT16 = np.dtype(np.float16)
FLOAT32 = np.dtype(np.float32)

# vcast's round_mode (source: HIVMAttrs.td): to the nearest with ties to even, to the nearest with
# ties away from zero, down, up, to zero, to odd (von Neumann), to zero with wrapped overflow.
ROUND_MODES = ("rint", "round", "floor", "ceil", "trunc", "odd", "truncwithoverflow")

# (bits of the fraction, exponent of the smallest normal number)
_FORMATS = {
    np.dtype(np.float64): (52, -1022),
    FLOAT32: (23, -126),
    FLOAT16: (10, -14),
    BFLOAT16: (7, -126),
}


def is_float(dtype: np.dtype) -> bool:
    return dtype in _FORMATS


def round_to_integer(values: Any, mode: str) -> Any:
    """Whole numbers in the type of `values` (float16, float32, float64, longdouble).

    odd: what is not whole becomes the odd one of its two neighbours. Signs of zero, infinities and
    NaN stay.

    Raises:
        ValueError: a mode that is none of ROUND_MODES.
    """
    if mode == "rint":
        return np.rint(values)
    if mode == "floor":
        return np.floor(values)
    if mode == "ceil":
        return np.ceil(values)
    whole = np.trunc(values)
    if mode in ("trunc", "truncwithoverflow"):
        return whole
    away = np.copysign(np.ones_like(whole), values)
    with np.errstate(invalid="ignore"):
        rest = np.abs(values - whole)
        if mode == "round":
            return np.where(rest >= 0.5, whole + away, whole)
        if mode == "odd":
            return np.where((rest > 0) & (np.fmod(whole, 2) == 0), whole + away, whole)
    raise ValueError(f"round mode {mode!r} is none of {', '.join(ROUND_MODES)}")


def to_float(values: np.ndarray, dtype: np.dtype, mode: str = "rint") -> np.ndarray:
    """Rounds numbers (floats or integers) to a floating-point type, once.

    Overflow follows IEEE 754: to infinity, or to the largest number where the mode rounds the other
    way.
    """
    values = np.asarray(values)
    if values.dtype == dtype:
        return values
    if values.dtype == bool:
        return values.astype(dtype)
    narrow = values.dtype in (FLOAT32, FLOAT16, BFLOAT16)
    if mode == "rint" and (narrow or dtype in (np.float32, np.float64)):
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            return values.astype(dtype)
    # Exact: a float64 holds every float and int32, a longdouble every int64 as well.
    wide = np.longdouble if values.dtype.itemsize == 8 else np.float64
    return _round_to_format(values.astype(wide), dtype, mode)


def _round_to_format(values: np.ndarray, dtype: np.dtype, mode: str) -> np.ndarray:
    digits, smallest = _FORMATS[dtype]
    finite = np.isfinite(values)
    number = np.where(finite, values, 0)
    _, exponent = np.frexp(number)
    unit = np.maximum(exponent - 1, smallest) - digits  # exponent of the last place
    rounded = np.ldexp(round_to_integer(np.ldexp(number, -unit), mode), unit)
    largest = (2 - 2.0**-digits) * 2.0 ** (1 - smallest)
    with np.errstate(over="ignore"):
        limit = np.where(np.abs(rounded) > largest, np.copysign(np.inf, rounded), rounded)
    beyond = np.abs(rounded) > largest
    if mode in ("trunc", "truncwithoverflow", "odd"):
        limit = np.where(beyond, np.copysign(largest, rounded), limit)
    elif mode == "floor":
        limit = np.where(beyond & (rounded > 0), largest, limit)
    elif mode == "ceil":
        limit = np.where(beyond & (rounded < 0), -largest, limit)
    with np.errstate(invalid="ignore"):
        return np.where(finite, limit, values).astype(np.float64).astype(dtype)


def saturate(whole: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Whole numbers (floats or integers) as an integer type; what is beyond becomes its end.

    NaN becomes 0 (source: AscendC's Cast).
    """
    whole = np.asarray(whole)
    info = np.iinfo(dtype)
    if whole.dtype.kind in "iu":
        return np.clip(
            whole,
            max(info.min, np.iinfo(whole.dtype).min),
            min(info.max, np.iinfo(whole.dtype).max),
        ).astype(dtype)
    wide = whole.astype(np.float64)
    above = wide >= float(info.max)  # int64's largest is no float64: the next one up is
    below = wide <= float(info.min)
    inside = np.where(above | below | np.isnan(wide), 0, wide).astype(dtype)
    return np.where(above, info.max, np.where(below, info.min, inside)).astype(dtype)


def wrap(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The low bits of integers, as another integer type."""
    return np.asarray(values).astype(dtype)


def once_rounded(function: Callable[..., Any], *operands: Any) -> np.ndarray:
    """A function of floats, computed in float32 and rounded to the operands' type.

    For sum, difference, product, quotient and square root of 16-bit floats that is the correctly
    rounded result, since float32 has more than twice their digits. float32 and float64 are computed
    as they are.
    """
    dtype = np.result_type(*[operand.dtype for operand in operands])
    with np.errstate(all="ignore"):
        if dtype in (FLOAT16, BFLOAT16):
            wide = [operand.astype(np.float32) for operand in operands]
            return np.asarray(function(*wide)).astype(dtype)
        return np.asarray(function(*operands))


def divide_integers(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Quotients rounded to zero. Division by zero gives 0, the smallest number by -1 itself."""
    safe = np.where(b == 0, np.ones_like(b), b)
    with np.errstate(over="ignore"):
        quotient = a // safe
        rest = a - quotient * safe
    quotient = quotient + ((rest != 0) & ((a < 0) != (safe < 0)))
    return np.where(b == 0, 0, quotient).astype(a.dtype)


def bits_of(values: np.ndarray) -> np.ndarray:
    """The same bytes as unsigned integers; bool stays."""
    if values.dtype == bool:
        return values
    return np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}")


def to_hf32(values: np.ndarray) -> np.ndarray:
    """float32 with 11 bits of fraction, the cube's HF32 mode.

    Ties to even (source: AscendC's SetHF32TransMode, its default).
    """
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    dropped = 23 - 11
    half = np.uint32((1 << (dropped - 1)) - 1)
    rounded = bits + half + ((bits >> np.uint32(dropped)) & np.uint32(1))
    rounded &= np.uint32(~((1 << dropped) - 1) & 0xFFFFFFFF)
    return np.where(np.isfinite(values), rounded.view(np.float32), values).astype(np.float32)


def tree_reduce(
    combine: Callable[[np.ndarray, np.ndarray], np.ndarray], values: np.ndarray, lanes: int
) -> np.ndarray:
    """Combines the elements of the last axis in the vector unit's order; shape without that axis.

    First halves are added to halves while there are more than `lanes` elements (those beyond the
    largest power of two first), then neighbours, in pairs, within one repeat of `lanes` elements.
    """
    count = values.shape[-1]
    if count > lanes:
        main = 1 << (count.bit_length() - 1)
        half = max(main // 2, lanes)
        folded = (
            combine(values[..., :half], values[..., half : 2 * half])
            if main > half
            else (values[..., :half])
        )
        for start in range(main, count, half):
            part = values[..., start : start + half]
            width = part.shape[-1]
            folded = np.concatenate(
                [combine(folded[..., :width], part), folded[..., width:]], axis=-1
            )
        while folded.shape[-1] > lanes:
            half = folded.shape[-1] // 2
            folded = combine(folded[..., :half], folded[..., half:])
        values = folded
    while values.shape[-1] > 1:
        even = values.shape[-1] // 2 * 2
        paired = combine(values[..., 0:even:2], values[..., 1:even:2])
        values = np.concatenate([paired, values[..., even:]], axis=-1)
    return values[..., 0]


def running(
    combine: Callable[[np.ndarray, np.ndarray], np.ndarray], values: np.ndarray, axis: int
) -> np.ndarray:
    """Combines each element with the result before it, one after the other."""
    moved = np.moveaxis(values, axis, 0)
    found = moved.copy()
    for index in range(1, len(moved)):
        found[index] = combine(found[index - 1], moved[index])
    return np.moveaxis(found, 0, axis)
