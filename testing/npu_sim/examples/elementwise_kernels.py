"""Kernels of elementwise work: one block of a vector per program, several outputs where it saves a
compilation."""

import triton
import triton.language as tl
from triton.language.extra.ascend import libdevice


@triton.jit
def add(x_ptr, y_ptr, out_ptr, size, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < size
    x = tl.load(x_ptr + offsets, mask=mask)
    y = tl.load(y_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, x + y, mask=mask)


@triton.jit
def fill_tail(x_ptr, out_ptr, first, last, BLOCK: tl.constexpr):
    # Loads [first, last) of the block and stores all of it.
    offsets = tl.arange(0, BLOCK)
    mask = (offsets >= first) & (offsets < last)
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=mask, other=-7.5))


@triton.jit
def store_window(x_ptr, out_ptr, first, last, BLOCK: tl.constexpr):
    # Stores [first, last) of the block and nothing else.
    offsets = tl.arange(0, BLOCK)
    mask = (offsets >= first) & (offsets < last)
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets), mask=mask)


@triton.jit
def arithmetic(
    x_ptr, y_ptr, sum_ptr, difference_ptr, product_ptr, quotient_ptr, fused_ptr, low_ptr, high_ptr,
    size, BLOCK: tl.constexpr,
):  # fmt: skip
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < size
    x = tl.load(x_ptr + offsets, mask=mask, other=1.0)
    y = tl.load(y_ptr + offsets, mask=mask, other=1.0)
    tl.store(sum_ptr + offsets, x + y, mask=mask)
    tl.store(difference_ptr + offsets, x - y, mask=mask)
    tl.store(product_ptr + offsets, x * y, mask=mask)
    tl.store(quotient_ptr + offsets, x / y, mask=mask)
    tl.store(fused_ptr + offsets, x * 2.0 + 0.5, mask=mask)
    tl.store(low_ptr + offsets, tl.minimum(x, y), mask=mask)
    tl.store(high_ptr + offsets, tl.maximum(x, y), mask=mask)


@triton.jit
def functions(
    x_ptr, exp_ptr, log_ptr, sqrt_ptr, rsqrt_ptr, abs_ptr, sigmoid_ptr, exp2_ptr, log2_ptr,
    size, BLOCK: tl.constexpr,
):  # fmt: skip
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < size
    x = tl.load(x_ptr + offsets, mask=mask, other=1.0)
    positive = tl.abs(x) + 0.125
    tl.store(exp_ptr + offsets, tl.exp(x), mask=mask)
    tl.store(log_ptr + offsets, tl.log(positive), mask=mask)
    tl.store(sqrt_ptr + offsets, tl.sqrt(positive), mask=mask)
    tl.store(rsqrt_ptr + offsets, tl.rsqrt(positive), mask=mask)
    tl.store(abs_ptr + offsets, tl.abs(x), mask=mask)
    tl.store(sigmoid_ptr + offsets, tl.sigmoid(x), mask=mask)
    tl.store(exp2_ptr + offsets, tl.exp2(x), mask=mask)
    tl.store(log2_ptr + offsets, tl.log2(positive), mask=mask)


@triton.jit
def angles(x_ptr, sin_ptr, cos_ptr, size, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < size
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0)
    tl.store(sin_ptr + offsets, tl.sin(x), mask=mask)
    tl.store(cos_ptr + offsets, tl.cos(x), mask=mask)


@triton.jit
def error_function(x_ptr, out_ptr, size, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < size
    tl.store(out_ptr + offsets, tl.erf(tl.load(x_ptr + offsets, mask=mask, other=0.0)), mask=mask)


@triton.jit
def rounded(x_ptr, floor_ptr, ceil_ptr, size, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < size
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0)
    tl.store(floor_ptr + offsets, tl.floor(x), mask=mask)
    tl.store(ceil_ptr + offsets, tl.ceil(x), mask=mask)


@triton.jit
def nearest(x_ptr, out_ptr, size, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < size
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0)
    tl.store(out_ptr + offsets, libdevice.round(x), mask=mask)


@triton.jit
def tanh(x_ptr, out_ptr, size, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < size
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0)
    tl.store(out_ptr + offsets, libdevice.tanh(x), mask=mask)


@triton.jit
def cast(x_ptr, out_ptr, size, BLOCK: tl.constexpr):
    # To the element type of out_ptr.
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < size
    x = tl.load(x_ptr + offsets, mask=mask, other=0)
    tl.store(out_ptr + offsets, x.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def choose(x_ptr, y_ptr, out_ptr, code_ptr, size, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < size
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0)
    y = tl.load(y_ptr + offsets, mask=mask, other=0.0)
    tl.store(out_ptr + offsets, tl.where((x > y) & (x != 0.0), x, y + 0.5), mask=mask)
    code = tl.where(x < y, 1.0, 0.0) + tl.where(x <= y, 2.0, 0.0) + tl.where(x == y, 4.0, 0.0)
    code += tl.where(x >= y, 8.0, 0.0) + tl.where((x > 0.0) | (y > 0.0), 16.0, 0.0)
    tl.store(code_ptr + offsets, code, mask=mask)


@triton.jit
def inspect(x_ptr, zeroed_ptr, positive_ptr, clamped_ptr, size, BLOCK: tl.constexpr):
    # NaN to 0; a comparison as bytes; a range.
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < size
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0)
    zeroed = tl.where(x != x, 0.0, x)
    tl.store(zeroed_ptr + offsets, zeroed, mask=mask)
    tl.store(positive_ptr + offsets, (x > 0.0).to(tl.int8), mask=mask)
    tl.store(clamped_ptr + offsets, tl.clamp(zeroed, -1.0, 1.0), mask=mask)


@triton.jit
def clear_sign(x_ptr, out_ptr, size, BLOCK: tl.constexpr):
    # Through the bits of the float.
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < size
    bits = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.int32, bitcast=True)
    tl.store(out_ptr + offsets, (bits & 0x7FFFFFFF).to(tl.float32, bitcast=True), mask=mask)


@triton.jit
def integers(
    x_ptr, y_ptr, sum_ptr, difference_ptr, product_ptr, low_ptr, high_ptr, and_ptr, or_ptr, xor_ptr,
    not_ptr, chosen_ptr, size, BLOCK: tl.constexpr,
):  # fmt: skip
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < size
    x = tl.load(x_ptr + offsets, mask=mask, other=0)
    y = tl.load(y_ptr + offsets, mask=mask, other=0)
    tl.store(sum_ptr + offsets, x + y, mask=mask)
    tl.store(difference_ptr + offsets, x - y, mask=mask)
    tl.store(product_ptr + offsets, x * y, mask=mask)
    tl.store(low_ptr + offsets, tl.minimum(x, y), mask=mask)
    tl.store(high_ptr + offsets, tl.maximum(x, y), mask=mask)
    tl.store(and_ptr + offsets, x & y, mask=mask)
    tl.store(or_ptr + offsets, x | y, mask=mask)
    tl.store(xor_ptr + offsets, x ^ y, mask=mask)
    tl.store(not_ptr + offsets, ~x, mask=mask)
    tl.store(chosen_ptr + offsets, tl.where(x > y, x, -y), mask=mask)


@triton.jit
def quotient(x_ptr, y_ptr, out_ptr, size, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < size
    x = tl.load(x_ptr + offsets, mask=mask, other=0)
    y = tl.load(y_ptr + offsets, mask=mask, other=1)
    tl.store(out_ptr + offsets, x // y, mask=mask)


@triton.jit
def remainder(x_ptr, y_ptr, out_ptr, size, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < size
    x = tl.load(x_ptr + offsets, mask=mask, other=0)
    y = tl.load(y_ptr + offsets, mask=mask, other=1)
    tl.store(out_ptr + offsets, x % y, mask=mask)


@triton.jit
def shift_left(x_ptr, out_ptr, size, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < size
    x = tl.load(x_ptr + offsets, mask=mask, other=0)
    tl.store(out_ptr + offsets, x << 3, mask=mask)


@triton.jit
def shift_right(x_ptr, out_ptr, size, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < size
    x = tl.load(x_ptr + offsets, mask=mask, other=0)
    tl.store(out_ptr + offsets, x >> 5, mask=mask)


@triton.jit
def random(out_ptr, seed, size, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, tl.rand(seed, offsets), mask=offsets < size)
