"""Kernels over the rows of matrices: reductions, scans, broadcasts."""

import triton
import triton.language as tl


@triton.jit
def softmax(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):
    # One row per program.
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < columns
    x = tl.load(x_ptr + row * columns + offsets, mask=mask, other=-float("inf"))
    numerator = tl.exp(x - tl.max(x, 0))
    out = numerator / tl.sum(numerator, 0)
    tl.store(out_ptr + row * columns + offsets, out, mask=mask)


@triton.jit
def softmax_tile(x_ptr, out_ptr, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    # ROWS rows per program.
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    mask = (row < rows) & (column < columns)
    x = tl.load(x_ptr + row * columns + column, mask=mask, other=-1e30)
    numerator = tl.exp(x - tl.max(x, 1)[:, None])
    out = numerator / tl.sum(numerator, 1)[:, None]
    tl.store(out_ptr + row * columns + column, out, mask=mask)


@triton.jit
def layer_norm(
    x_ptr, weight_ptr, bias_ptr, out_ptr, mean_ptr, scale_ptr, columns, epsilon,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < columns
    x = tl.load(x_ptr + row * columns + offsets, mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(x, 0) / columns
    centred = tl.where(mask, x - mean, 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(centred * centred, 0) / columns + epsilon)
    weight = tl.load(weight_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    out = centred * scale * weight + bias
    tl.store(out_ptr + row * columns + offsets, out.to(out_ptr.dtype.element_ty), mask=mask)
    tl.store(mean_ptr + row, mean)
    tl.store(scale_ptr + row, scale)


@triton.jit
def reductions(
    x_ptr, row_sum_ptr, row_max_ptr, row_min_ptr, column_sum_ptr, column_max_ptr, total_ptr, rows,
    columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row, column = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    row_mask, column_mask = row < rows, column < columns
    mask = row_mask[:, None] & column_mask[None, :]
    offsets = row[:, None] * columns + column[None, :]
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0)
    tl.store(row_sum_ptr + row, tl.sum(x, 1), mask=row_mask)
    tl.store(row_max_ptr + row, tl.max(x, 1), mask=row_mask)
    tl.store(row_min_ptr + row, tl.min(x, 1), mask=row_mask)
    tl.store(column_sum_ptr + column, tl.sum(x, 0), mask=column_mask)
    tl.store(column_max_ptr + column, tl.max(x, 0), mask=column_mask)
    tl.store(total_ptr, tl.sum(tl.sum(x, 1), 0))


@triton.jit
def argmax_rows(x_ptr, max_ptr, min_ptr, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row, column = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    mask = column[None, :] < columns
    offsets = row[:, None] * columns + column[None, :]
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0)
    tl.store(max_ptr + row, tl.argmax(x, 1))
    tl.store(min_ptr + row, tl.argmin(x, 1))


@triton.jit
def cumsum_vector(x_ptr, out_ptr, size, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    mask = offsets < size
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0)
    tl.store(out_ptr + offsets, tl.cumsum(x, 0), mask=mask)


@triton.jit
def cumsum_matrix(
    x_ptr, out_ptr, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr, AXIS: tl.constexpr
):
    row, column = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    mask = (row < rows) & (column < columns)
    x = tl.load(x_ptr + row * columns + column, mask=mask, other=0.0)
    tl.store(out_ptr + row * columns + column, tl.cumsum(x, AXIS), mask=mask)


@triton.jit
def cumprod_matrix(x_ptr, out_ptr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    offsets = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    tl.store(out_ptr + offsets, tl.cumprod(tl.load(x_ptr + offsets), 0))


@triton.jit
def xor_rows(x_ptr, out_ptr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row, column = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    x = tl.load(x_ptr + row[:, None] * COLUMNS + column[None, :])
    tl.store(out_ptr + row, tl.xor_sum(x, 1))


@triton.jit
def sum_middle(x_ptr, out_ptr, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr):
    a, b, c = tl.arange(0, A), tl.arange(0, B), tl.arange(0, C)
    x = tl.load(x_ptr + (a[:, None, None] * B + b[None, :, None]) * C + c[None, None, :])
    tl.store(out_ptr + a[:, None] * C + c[None, :], tl.sum(x, 1))


@triton.jit
def broadcast(
    x_ptr, row_ptr, column_ptr, out_ptr, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    # x [rows, columns] * row [columns] + column [rows].
    row, column = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    row_mask, column_mask = row < rows, column < columns
    mask = row_mask[:, None] & column_mask[None, :]
    offsets = row[:, None] * columns + column[None, :]
    scale = tl.load(row_ptr + column, mask=column_mask, other=0.0)
    shift = tl.load(column_ptr + row, mask=row_mask, other=0.0)
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0)
    tl.store(out_ptr + offsets, x * scale[None, :] + shift[:, None], mask=mask)


@triton.jit
def outer_product(x_ptr, y_ptr, out_ptr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row, column = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    out = tl.load(x_ptr + row)[:, None] - tl.load(y_ptr + column)[None, :]
    out = tl.where(row[:, None] >= column[None, :], out, 0.0)
    tl.store(out_ptr + row[:, None] * COLUMNS + column[None, :], out)


@triton.jit
def _multiply(a, b):
    return a * b


@triton.jit
def scan(x_ptr, out_ptr, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, tl.associative_scan(tl.load(x_ptr + offsets), 0, _multiply))


@triton.jit
def product_rows(x_ptr, out_ptr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row, column = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    x = tl.load(x_ptr + row[:, None] * COLUMNS + column[None, :])
    tl.store(out_ptr + row, tl.reduce(x, 1, _multiply))


@triton.jit
def histogram(x_ptr, out_ptr, BLOCK: tl.constexpr, BINS: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, BLOCK))
    tl.store(out_ptr + tl.arange(0, BINS), tl.histogram(x, BINS))
