"""The performance policy's arithmetic: statistics of samples, ratios, rooflines, and the
cross-device limit."""

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence

from testing import spec


@dataclasses.dataclass(frozen=True)
class Timing:
    """Milliseconds of one candidate: median, 10th and 90th percentile of `samples` runs."""

    median: float
    p10: float
    p90: float
    samples: int


def summarise(samples: Sequence[float]) -> Timing:
    """Raises ValueError for fewer than 20 samples, the policy's least."""
    if len(samples) < 20:
        raise ValueError(f"samples: got {len(samples)}, the policy asks for 20 or more")
    deciles = statistics.quantiles(samples, n=10, method="inclusive")
    return Timing(statistics.median(samples), deciles[0], deciles[-1], len(samples))


def geometric_mean(ratios: Sequence[float]) -> float:
    if not ratios or min(ratios) <= 0:
        raise ValueError(f"ratios: got {list(ratios)}, expected positive numbers, at least one")
    return math.exp(statistics.fmean(math.log(ratio) for ratio in ratios))


@dataclasses.dataclass(frozen=True)
class Limits:
    """What a chip can do at best, by its vendor's public figures: FLOP/s of 16-bit matrix products
    and of fp32 vector operations, and bytes/s of its main memory."""

    matrix: float
    vector: float
    memory: float


# By a part of the chip's own name.
_LIMITS: Mapping[str, Limits] = {
    "H200": Limits(matrix=989e12, vector=67e12, memory=4.8e12),
    "A100": Limits(matrix=312e12, vector=19.5e12, memory=2.039e12),
    "Ascend910B2": Limits(matrix=354e12, vector=11e12, memory=1.6e12),
}


def limits(chip: str) -> Limits | None:
    """The limits of a chip by its name, None when they are not known here."""
    return next((value for part, value in _LIMITS.items() if part in chip), None)


def roofline(costs: spec.Costs, chip: Limits) -> tuple[str, float]:
    """(binding resource, least milliseconds) of a case on a chip."""
    floors = {
        "matrix": 1e3 * costs.matrix_flops / chip.matrix,
        "vector": 1e3 * costs.vector_flops / chip.vector,
        "memory": 1e3 * costs.bytes / chip.memory,
    }
    binding = max(floors, key=floors.__getitem__)
    return binding, floors[binding]


# Ascend 910B2 relative to an A100-SXM of 80 GB (354/312 TFLOP/s, 1.6/2.039 TB/s, 11/19.5 TFLOP/s),
# and the share of it that an op of each kind must reach.
_A100_RATIO = {"matrix": 1.13, "memory": 0.785, "vector": 0.57}
_A100_SHARE = {"cube+vector": 0.7, "vector": 0.9}


def a100_limit_ms(a100_ms: float, binding: str, kind: str) -> float:
    """The longest time allowed on an Ascend 910B2 for a case that takes `a100_ms` on an A100-SXM.

    binding: "matrix", "memory" or "vector", the resource that bounds the case. kind: the op's kind.
    """
    return a100_ms / (_A100_RATIO[binding] * _A100_SHARE[kind])
