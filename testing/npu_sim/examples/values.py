"""Values of floating-point types at which rounding goes wrong first."""

from typing import Any

import ml_dtypes
import numpy as np

# Subnormal, normal and large numbers, with even and odd last bits.
_PATTERNS = [0, 1, 2, 3, 0x3B, 0x7F, 0x80, 0x3F80, 0x3F81, 0x3C00, 0x3C01, 0x4A7E]


def special(dtype: Any) -> np.ndarray:
    """Zeros, infinities, NaN, subnormals and extremes of a floating-point type, both signs."""
    info = ml_dtypes.finfo(dtype)
    sizes = [info.max, info.tiny, info.smallest_subnormal, 1 + float(info.eps)]
    plain = [0.0, 1.0, np.inf, np.nan, 0.5, 1.5, 2.5, 3.5, 0.49, 1e-3]
    positive = np.array([*plain, *map(float, sizes)]).astype(dtype)
    return np.concatenate([positive, -positive])


def around_ties(narrow: Any) -> np.ndarray:
    """fp32 values on, just below and just above the middle between neighbours of a 16-bit type.

    Beyond its largest number, as if the type went on: from the middle there, it is infinity.
    """
    last = int(np.array(ml_dtypes.finfo(narrow).max, narrow).view(np.uint16))
    patterns = np.array([*_PATTERNS, last - 1, last], np.uint16)

    def values(of: np.ndarray) -> np.ndarray:
        return of.view(narrow).astype(np.float64)

    below, here, above = values(patterns - np.uint16(1)), values(patterns), values(patterns + 1)
    gap = np.where(np.isfinite(above), above - here, here - below)
    middle = (here + gap / 2).astype(np.float32)
    lower, higher = (np.nextafter(middle, np.float32(to)) for to in (0, np.inf))
    ties = np.concatenate([middle, lower, higher])
    return np.concatenate([ties, -ties])
