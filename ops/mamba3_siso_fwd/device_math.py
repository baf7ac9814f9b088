"""Elementary functions of the kernels: sine and cosine, exponential, sigmoid, powers of two."""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def sin_cos(theta):
    """Sine and cosine of fp32 radians; absolute error below 2^-22 for |theta| <= 2^13 * pi.

    theta = n * pi + r with |r| <= pi / 2 (Cody and Waite): pi is split into 11 + 11 + 24 bits, so
    the first two products and differences are exact for |n| <= 2^13, with fused multiply-adds or
    without. cos r = sin(pi/2 - |r|), which shares the polynomial. Cosines below 6e-8 may have the
    wrong sign (2 of the 16001 multiples of pi/2 around 0). Taking that difference from the
    unrounded r mends it, but then K = 256 no longer fits the on-chip memory of arch32.
    """
    n = tl.floor(theta * 0.3183098861837907 + 0.5)
    r = theta - n * 3.140625
    r = r - n * 0.0009675025939941406
    r = r - n * 1.5099580252808664e-07
    # The sign of an odd number of half turns goes to the arguments of the odd polynomial.
    sign = 1.0 - 2.0 * (n - 2.0 * tl.floor(n * 0.5))
    to_quarter = (1.5707963705062866 - tl.abs(r)) - 4.371138828673793e-08
    return _sin_polynomial(sign * r), _sin_polynomial(sign * to_quarter)


@triton.jit
def _sin_polynomial(x):
    # Minimax on [-pi/2, pi/2], odd, degree 9: 4.7e-9 off in exact arithmetic, 1.1e-7 evaluated in
    # fp32.
    x2 = x * x
    p = -0.00019806601591377905 + x2 * 2.6000244746924966e-06
    p = 0.0083330171045247 + x2 * p
    p = -0.16666657088931647 + x2 * p
    return x + x * (x2 * p)


@triton.jit
def exponent_units(GPU: tl.constexpr):
    """What turns a natural exponent into the argument of `exponential`."""
    if GPU:
        return LOG2_E
    else:
        return 1.0


@triton.jit
def exponential(x, GPU: tl.constexpr):
    """e^x for x in natural units; on a GPU 2^x for x in `exponent_units`.

    exp2 is one instruction on a GPU, exp five: it rescales subnormal results, which are below 1e-37
    and flushed here.
    """
    if GPU:
        return tl.exp2(x)
    else:
        return tl.exp(x)


@triton.jit
def sigmoid(x, GPU: tl.constexpr):
    # Accurate relative to its value for either sign: for x < -88 the exponential is inf and the
    # result 0 (the true one is < 1e-38).
    return 1.0 / (1.0 + exponential(x * -exponent_units(GPU), GPU))


@triton.jit
def power_of_two(x):
    # The exponent bits alone: 2^floor(log2 x) of a positive normal scalar.
    bits = x.to(tl.int32, bitcast=True) & 0x7F800000
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def exponent_of(x):
    """floor(log2 x) of a positive normal scalar, int32; -127 of 0, 128 of inf."""
    return (x.to(tl.int32, bitcast=True) >> 23) - 127


@triton.jit
def two_to(n):
    """2^n of an int32 scalar up to 127, and no more than that; 0 below -126."""
    bits = tl.minimum(tl.maximum(n + 127, 0), 254) << 23
    return bits.to(tl.float32, bitcast=True)
