"""Verdicts of other accuracy standards, printed beside ours. They gate nothing. Needs NumPy only.

Each function takes float64 arrays over finite elements: a (actual), g (golden), r (same-precision
reference), and the dtype.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np

# Threshold and error-balance limit of Ascend's single-benchmark standard, "high precision" class.
_SINGLE = {
    "float16": (2.0**-11, 2.0**-10),
    "bfloat16": (2.0**-8, 2.0**-7),
    "float32": (2.0**-14, 2.0**-14),
}
# Floor below which the dual benchmark does not tell two errors apart.
_DUAL_FLOOR = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-14}
# Allowed ratios of MARE, MERE, RMSE against r; the strictest level comes first.
_DUAL_LEVELS = {"L2": (2, 1.2, 1.2), "L1": (5, 1.5, 1.5), "L0": (10, 2, 2)}
_MERE = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-13}
# atol, rtol, largest error.
_MIXED = {
    "float16": (2.0**-9, 2.0**-9, 0.1),
    "bfloat16": (2.0**-6, 2.0**-6, 1.0),
    "float32": (2.0**-10, 2.0**-16, 0.01),
}
_FLA_RATIO = 0.005


@dataclasses.dataclass(frozen=True)
class Opinion:
    """One standard's verdict with the figures behind it."""

    verdict: str
    detail: str


def _relative(a: np.ndarray, g: np.ndarray) -> np.ndarray:
    return np.abs(a - g) / (np.abs(g) + 1e-7)


def single_benchmark(a: np.ndarray, g: np.ndarray, dtype: str) -> Opinion:
    threshold, balance_limit = _SINGLE[dtype]
    size = np.maximum(1.0, np.abs(g))
    worst = float(np.max(np.abs(a - g) / size))
    balance = float(abs(np.mean((a - g) / size)))
    passed = worst <= threshold and balance <= balance_limit
    return Opinion(
        "pass" if passed else "fail", f"worst {worst:.2e}/{threshold:.2e}, balance {balance:.2e}"
    )


def dual_benchmark(a: np.ndarray, g: np.ndarray, r: np.ndarray, dtype: str) -> Opinion:
    floor = _DUAL_FLOOR[dtype]

    def figures(x: np.ndarray) -> np.ndarray:
        relative = _relative(x, g)
        return np.array([relative.max(), relative.mean(), np.sqrt(np.mean((x - g) ** 2))])

    ratios = figures(a) / np.maximum(figures(r), floor)
    reached = next(
        (name for name, limits in _DUAL_LEVELS.items() if np.all(ratios <= limits)), "fail"
    )
    return Opinion(reached, "MARE {:.2f}, MERE {:.2f}, RMSE {:.2f} of r".format(*ratios))


def mere_mare(a: np.ndarray, g: np.ndarray, dtype: str) -> Opinion:
    limit = _MERE[dtype]
    relative = _relative(a, g)
    mere, mare = float(relative.mean()), float(relative.max())
    passed = mere < limit and mare < 10 * limit
    return Opinion(
        "pass" if passed else "fail",
        f"MERE {mere:.2e}/{limit:.2e}, MARE {mare:.2e}/{10 * limit:.2e}",
    )


def mixed_tolerance(a: np.ndarray, g: np.ndarray, dtype: str) -> Opinion:
    atol, rtol, largest = _MIXED[dtype]
    error = np.abs(a - g)
    share = float(np.mean(error <= atol + rtol * np.abs(g)))
    passed = share >= 0.99 and float(error.max()) <= largest
    return Opinion(
        "pass" if passed else "fail", f"{share:.2%} within, largest {error.max():.2e}/{largest:g}"
    )


def norm_ratio(a: np.ndarray, g: np.ndarray) -> Opinion:
    """Root mean square of the error over that of the golden, as flash-linear-attention's tests use
    it."""
    ratio = float(np.sqrt(np.mean((a - g) ** 2)) / (np.sqrt(np.mean(g**2)) + 1e-8))
    return Opinion("pass" if ratio < _FLA_RATIO else "fail", f"{ratio:.2e}/{_FLA_RATIO:g}")


def opinions(a: np.ndarray, g: np.ndarray, r: np.ndarray, dtype: str) -> Mapping[str, Opinion]:
    """Every standard's verdict on one floating output; empty when the output has no finite
    element."""
    finite = np.isfinite(a) & np.isfinite(g) & np.isfinite(r)
    a, g, r = a[finite], g[finite], r[finite]
    if not a.size:
        return {}
    return {
        "single benchmark": single_benchmark(a, g, dtype),
        "dual benchmark": dual_benchmark(a, g, r, dtype),
        "MERE/MARE": mere_mare(a, g, dtype),
        "mixed tolerance": mixed_tolerance(a, g, dtype),
        "norm ratio": norm_ratio(a, g),
    }
