"""The gate of Kimi Delta Attention, for the kernels of all ops that compute it themselves.

With y = g + dt_bias and rate = exp(A_log), the natural logarithm of a step's decay is

    SOFTPLUS: -rate softplus(y)          BOUNDED: lower_bound sigmoid(rate y)
"""

import triton
import triton.language as tl

GIVEN = tl.constexpr(0)  # y itself
SOFTPLUS = tl.constexpr(1)
BOUNDED = tl.constexpr(2)

# exp(A_log) is inf from A_log = 88.7 on, and inf * 0 is NaN. This rate saturates a sigmoid as well.
MAX_RATE = tl.constexpr(1e37)
# Of a step where steps are summed, natural logarithm: a decay of 4e-18. A masked step of -1000
# would make G of its chunk 1e5 and more, where fp32 leaves later decays 8e-3 of error; with this
# floor it is 4e-4.
MIN_GATE = tl.constexpr(-40.0)


@triton.jit
def softplus(y):
    # log1p(u) as log(w) u / (w - 1), w = 1 + u rounded: exact to a few ulp for any u.
    u = tl.exp(-tl.abs(y))
    w = 1.0 + u
    small = w == 1.0
    log1p = tl.where(small, u, tl.log(w) * (u / tl.where(small, 1.0, w - 1.0)))
    return tl.maximum(y, 0.0) + log1p


@triton.jit
def sigmoid(y):
    """Without a factor above 1, so that it neither overflows nor loses digits for any y."""
    u = tl.exp(-tl.abs(y))
    return tl.where(y >= 0.0, 1.0, u) / (1.0 + u)


@triton.jit
def gate_rate(a_log_ptr, hv, HAS_A_LOG: tl.constexpr):
    if HAS_A_LOG:
        return tl.minimum(tl.exp(tl.load(a_log_ptr + hv)), MAX_RATE)
    else:
        return 1.0


@triton.jit
def gate_value(y, rate, lower_bound, GATE: tl.constexpr):
    if GATE == GIVEN:
        return y
    elif GATE == SOFTPLUS:
        return -rate * softplus(y)
    else:
        return lower_bound * sigmoid(rate * y)


@triton.jit
def gate_gradient(dg, y, rate, lower_bound, GATE: tl.constexpr):
    """From the gradient of the gate, MIN_GATE or more: those of y, and of A_log element by element.

    What counts as MIN_GATE has none: rounding leaves 1e-7 of a chunk's largest gradient in dg, and
    the factors of a masked step may be 1e5 and more.
    """
    if GATE == SOFTPLUS:
        value = -rate * softplus(y)
        dg = tl.where(value < MIN_GATE, 0.0, dg)
        # Of what is above the floor: 0 * inf is NaN.
        value = tl.maximum(value, MIN_GATE)
        return -rate * sigmoid(y) * dg, dg * value
    else:
        u = tl.exp(-tl.abs(rate * y))
        dy = dg * lower_bound * (rate * (u / ((1.0 + u) * (1.0 + u))))
        return dy, dy * y
