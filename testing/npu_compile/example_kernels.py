"""Small kernels for the tests of this package: good ones, and one for each way to fail."""

import triton
import triton.language as tl


@triton.jit
def add(x_ptr, y_ptr, out_ptr, size, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < size
    total = tl.load(x_ptr + offsets, mask=mask, other=0.0)
    total += tl.load(y_ptr + offsets, mask=mask, other=0.0)
    tl.store(out_ptr + offsets, total, mask=mask)


@triton.jit
def product(x_ptr, y_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    rows, columns, inner = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    x = tl.load(x_ptr + rows[:, None] * K + inner[None, :])
    y = tl.load(y_ptr + inner[:, None] * N + columns[None, :])
    out = tl.dot(x, y, input_precision="ieee")
    tl.store(out_ptr + rows[:, None] * N + columns[None, :], out * 2.0)


@triton.jit
def running_sum(x_ptr, out_ptr, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, tl.cumsum(tl.load(x_ptr + offsets), 0))


@triton.jit
def wide_outer(x_ptr, y_ptr, out_ptr, N: tl.constexpr):
    # The outer sum alone needs 4 N^2 bytes of UB.
    index = tl.arange(0, N)
    x = tl.load(x_ptr + index)
    y = tl.load(y_ptr + index)
    outer = tl.exp(x[:, None] + y[None, :])
    tl.store(out_ptr + index[:, None] * N + index[None, :], outer)


@triton.jit
def split_with_second_user(x_ptr, out_ptr, N: tl.constexpr):
    index, half = tl.arange(0, N), tl.arange(0, N // 2)
    x = tl.load(x_ptr + index[:, None] * N + index[None, :]) + 1.0
    even, odd = tl.split(tl.reshape(x, (N, N // 2, 2)))
    length = tl.sum(x * x, 1)
    tl.store(out_ptr + index[:, None] * N + half[None, :], even * odd + length[:, None])


@triton.jit
def split_alone(x_ptr, out_ptr, N: tl.constexpr):
    index, half = tl.arange(0, N), tl.arange(0, N // 2)
    x = tl.load(x_ptr + index[:, None] * N + index[None, :])
    even, odd = tl.split(tl.reshape(x, (N, N // 2, 2)))
    even, odd = even + 1.0, odd + 1.0
    length = tl.sum(even * even + odd * odd, 1)
    tl.store(out_ptr + index[:, None] * N + half[None, :], even * odd + length[:, None])


@triton.jit
def accumulator_through_two_loops(
    x_ptr, y_ptr, out_ptr, count, N: tl.constexpr, HALVE: tl.constexpr
):
    index = tl.arange(0, N)
    square = index[:, None] * N + index[None, :]
    total = tl.zeros((N, N), dtype=tl.float32)
    for i in range(count):
        for j in range(count):
            x = tl.load(x_ptr + (i * count + j) * N * N + square)
            y = tl.load(y_ptr + (i * count + j) * N * N + square)
            total = tl.dot(x, y, total, input_precision="ieee")
        if HALVE:
            total = total * 0.5
        tl.store(out_ptr + i * N * N + square, total)


@triton.jit
def accumulator_per_loop(x_ptr, y_ptr, out_ptr, count, N: tl.constexpr):
    index = tl.arange(0, N)
    square = index[:, None] * N + index[None, :]
    total = tl.zeros((N, N), dtype=tl.float32)
    for i in range(count):
        inner = tl.zeros((N, N), dtype=tl.float32)
        for j in range(count):
            x = tl.load(x_ptr + (i * count + j) * N * N + square)
            y = tl.load(y_ptr + (i * count + j) * N * N + square)
            inner = tl.dot(x, y, inner, input_precision="ieee")
        total = (total + inner) * 0.5
        tl.store(out_ptr + i * N * N + square, total)


@triton.jit
def square_of_a_matrix(x_ptr, out_ptr, count, N: tl.constexpr):
    index = tl.arange(0, N)
    square = index[:, None] * N + index[None, :]
    total = tl.zeros((N, N), dtype=tl.float32)
    for i in range(count):
        x = tl.load(x_ptr + i * N * N + square)
        total += tl.dot(x, x, input_precision="ieee")
    tl.store(out_ptr + square, total)


@triton.jit
def inline_assembly(x_ptr, out_ptr, N: tl.constexpr):
    index = tl.arange(0, N)
    square = index[:, None] * N + index[None, :]
    x = tl.load(x_ptr + square)
    doubled = tl.inline_asm_elementwise(
        "add.f32 $0, $1, $1;", "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1
    )
    tl.store(out_ptr + square, doubled)


@triton.jit
def double_precision(x_ptr, out_ptr, N: tl.constexpr):
    index = tl.arange(0, N)
    tl.store(out_ptr + index, tl.exp(tl.load(x_ptr + index)) * 2.0)


@triton.jit
def tf32_product(x_ptr, out_ptr, N: tl.constexpr):
    index = tl.arange(0, N)
    square = index[:, None] * N + index[None, :]
    x = tl.load(x_ptr + square)
    tl.store(out_ptr + square, tl.dot(x, x, input_precision="tf32"))


@triton.jit
def misspelt(x_ptr, out_ptr, N: tl.constexpr):
    index = tl.arange(0, N)
    tl.store(out_ptr + index, tl.load(x_ptr + indices))  # type: ignore[name-defined]  # noqa: F821


@triton.jit
def descriptor_store(x_ptr, out_ptr, N: tl.constexpr):
    index = tl.arange(0, N)
    out = tl.make_tensor_descriptor(out_ptr, [N, N], [N, 1], [N, N])
    out.store([0, 0], tl.load(x_ptr + index[:, None] * N + index[None, :]))
