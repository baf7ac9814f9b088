"""Kernels that move data: strides, gathers, permutations, transposes, splits, atomic updates."""

import triton
import triton.language as tl


@triton.jit
def every_second(x_ptr, out_ptr, size, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < size
    x = tl.load(x_ptr + 2 * offsets, mask=mask, other=0.0)
    tl.store(out_ptr + offsets, x, mask=mask)


@triton.jit
def strided(x_ptr, out_ptr, x_stride, out_stride, size, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < size
    x = tl.load(x_ptr + offsets * x_stride, mask=mask, other=0.0)
    tl.store(out_ptr + offsets * out_stride, x, mask=mask)


@triton.jit
def gather(x_ptr, index_ptr, out_ptr, size, BLOCK: tl.constexpr):
    # From global memory, by indices from memory.
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < size
    index = tl.load(index_ptr + offsets, mask=mask, other=0)
    tl.store(out_ptr + offsets, tl.load(x_ptr + index, mask=mask, other=0.0), mask=mask)


@triton.jit
def permute(x_ptr, index_ptr, out_ptr, BLOCK: tl.constexpr):
    # A gather inside the block.
    offsets = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets)
    tl.store(out_ptr + offsets, tl.gather(x, tl.load(index_ptr + offsets), 0))


@triton.jit
def reverse(x_ptr, out_ptr, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, tl.flip(tl.load(x_ptr + offsets), 0))


@triton.jit
def sort(x_ptr, out_ptr, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, tl.sort(tl.load(x_ptr + offsets)))


@triton.jit
def concatenate(x_ptr, y_ptr, out_ptr, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    both = tl.cat(tl.load(x_ptr + offsets), tl.load(y_ptr + offsets), can_reorder=True)
    tl.store(out_ptr + tl.arange(0, 2 * BLOCK), both)


@triton.jit
def transpose(x_ptr, out_ptr, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row, column = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    mask = (row[:, None] < rows) & (column[None, :] < columns)
    x = tl.load(x_ptr + row[:, None] * columns + column[None, :], mask=mask, other=0.0)
    mask = (column[:, None] < columns) & (row[None, :] < rows)
    tl.store(out_ptr + column[:, None] * rows + row[None, :], tl.trans(x), mask=mask)


@triton.jit
def swap_leading(x_ptr, out_ptr, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr):
    a, b, c = tl.arange(0, A), tl.arange(0, B), tl.arange(0, C)
    x = tl.load(x_ptr + (a[:, None, None] * B + b[None, :, None]) * C + c[None, None, :])
    out = tl.permute(x, (1, 0, 2))
    tl.store(out_ptr + (b[:, None, None] * A + a[None, :, None]) * C + c[None, None, :], out)


@triton.jit
def split_pairs(x_ptr, even_ptr, odd_ptr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row, column, half = tl.arange(0, ROWS), tl.arange(0, COLUMNS), tl.arange(0, COLUMNS // 2)
    x = tl.load(x_ptr + row[:, None] * COLUMNS + column[None, :])
    even, odd = tl.split(tl.reshape(x, (ROWS, COLUMNS // 2, 2)))
    offsets = row[:, None] * (COLUMNS // 2) + half[None, :]
    tl.store(even_ptr + offsets, even + 1.0)
    tl.store(odd_ptr + offsets, odd * 2.0)


@triton.jit
def join_pairs(even_ptr, odd_ptr, out_ptr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row, column, half = tl.arange(0, ROWS), tl.arange(0, COLUMNS), tl.arange(0, COLUMNS // 2)
    offsets = row[:, None] * (COLUMNS // 2) + half[None, :]
    even = tl.load(even_ptr + offsets)
    odd = tl.load(odd_ptr + offsets)
    out = tl.reshape(tl.join(even, odd), (ROWS, COLUMNS))
    tl.store(out_ptr + row[:, None] * COLUMNS + column[None, :], out)


@triton.jit
def window(
    x_ptr, out_ptr, rows, columns, row_stride, out_stride, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    # A window of a wider matrix, through block pointers.
    x_block = tl.make_block_ptr(
        x_ptr, (rows, columns), (row_stride, 1), (tl.program_id(0) * ROWS, 0), (ROWS, COLUMNS),
        (1, 0),
    )  # fmt: skip
    out_block = tl.make_block_ptr(
        out_ptr, (rows, columns), (out_stride, 1), (tl.program_id(0) * ROWS, 0), (ROWS, COLUMNS),
        (1, 0),
    )  # fmt: skip
    x = tl.load(x_block, boundary_check=(0, 1), padding_option="zero")
    tl.store(out_block, x + 1.0, boundary_check=(0, 1))


@triton.jit
def add_atomically(x_ptr, total_ptr, size, BLOCK: tl.constexpr):
    # Every program adds its block to the same memory.
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < size
    x = tl.load(x_ptr + offsets, mask=mask, other=0)
    tl.atomic_add(total_ptr + tl.arange(0, BLOCK), x, mask=mask)


@triton.jit
def largest_atomically(x_ptr, out_ptr, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + tl.program_id(0) * BLOCK + offsets)
    tl.atomic_max(out_ptr + offsets, x)


@triton.jit
def total_atomically(x_ptr, out_ptr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out_ptr, tl.sum(tl.load(x_ptr + offsets), 0))
