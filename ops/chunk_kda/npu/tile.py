"""Tiles as Ascend's compilers take them well: a column is masked only where there is one too many.

`first_x + lane_x` are a tile's columns; lane_x itself is compared, so that a mask is a plain range.
FILL: arch35's compiler (1.2.0) drops the zeros of a masked load that a product reads transposed.
"""

import triton
import triton.language as tl

LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def power_of_2(x):
    return tl.exp(x * LN2)


@triton.jit
def decay(x):
    """2^x for x that is at most 0 but for roundings."""
    return tl.exp(tl.minimum(x, 0.0) * LN2)


@triton.jit
def tile_mask(rows, lane_t, lane_x, first_x, X, FULL: tl.constexpr):
    mask = (lane_t < rows)[:, None]
    if not FULL:
        mask = mask & (lane_x < X - first_x)[None, :]
    return mask


@triton.jit
def load_tile(
    base,
    rows,
    lane_t,
    lane_x,
    first_x,
    X: tl.constexpr,
    STRIDE_T: tl.constexpr,
    FULL: tl.constexpr,
    FILL: tl.constexpr,
):
    """[C, BLOCK] of a token-major tensor; zeros beyond `rows` tokens and X columns. FULL: there is
    no column beyond X."""
    mask = tile_mask(rows, lane_t, lane_x, first_x, X, FULL)
    ptrs = base + lane_t[:, None] * STRIDE_T + (first_x + lane_x)[None, :]
    x = tl.load(ptrs, mask=mask, other=0.0)
    if FILL:
        x = tl.where(mask, x, 0.0)
    return x


@triton.jit
def store_tile(
    base,
    value,
    rows,
    lane_t,
    lane_x,
    first_x,
    X,
    STRIDE_T: tl.constexpr,
    FULL: tl.constexpr,
):
    mask = tile_mask(rows, lane_t, lane_x, first_x, X, FULL)
    ptrs = base + lane_t[:, None] * STRIDE_T + (first_x + lane_x)[None, :]
    tl.store(ptrs, value.to(base.dtype.element_ty), mask=mask)


@triton.jit
def load_rows(base, rows, lane_t, STRIDE_T: tl.constexpr):
    """[C] fp32, one number of each token; zeros beyond `rows`. STRIDE_T: 0 is one for all tokens,
    which the compilers do not take as a stride."""
    if STRIDE_T == 0:
        x = tl.where(lane_t < rows, tl.load(base).to(tl.float32), 0.0)
    else:
        x = tl.load(base + lane_t * STRIDE_T, mask=lane_t < rows, other=0.0).to(tl.float32)
    return x


@triton.jit
def load_last_row(base, rows, lane_x, first_x, X, STRIDE_T: tl.constexpr):
    ptrs = base + tl.cast(rows - 1, tl.int64) * STRIDE_T + first_x + lane_x
    return tl.load(ptrs, mask=lane_x < X - first_x, other=0.0)


@triton.jit
def load_matrix(base, lane_r, lane_x, X: tl.constexpr):
    """[R, X] of a matrix that has no row or column more."""
    return tl.load(base + lane_r[:, None] * X + lane_x[None, :])


@triton.jit
def level_exponents(anchors_ptr, g, level, at, C: tl.constexpr):
    """[C, BLOCK] fp32: a level's factors F are 2 to these, but for roundings above 0. at: where the
    entries of a [C, C] matrix are."""
    anchors = tl.load(anchors_ptr + level * C * C + at)
    return tl.dot(anchors, g, input_precision="ieee")


@triton.jit
def load_state(
    base,
    lane_k,
    first_k,
    lane_v,
    first_v,
    K: tl.constexpr,
    V: tl.constexpr,
    FULL_V: tl.constexpr,
    FILL: tl.constexpr,
):
    """[BLOCK_K, BLOCK_V] of a [K, V] matrix."""
    mask = tile_mask(K - first_k, lane_k, lane_v, first_v, V, FULL_V)
    ptrs = base + (first_k + lane_k)[:, None] * V + (first_v + lane_v)[None, :]
    x = tl.load(ptrs, mask=mask, other=0.0)
    if FILL:
        x = tl.where(mask, x, 0.0)
    return x


@triton.jit
def store_state_products(
    h_base,
    dh_base,
    out_base,
    K: tl.constexpr,
    V: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """[K] fp32: sums of h dh over V. BLOCK: V or more. ROWS are taken at a time."""
    lane_k = tl.arange(0, ROWS)
    lane_v = tl.arange(0, BLOCK)
    for first in range(0, K, ROWS):
        h = load_state(h_base, lane_k, first, lane_v, 0, K, V, BLOCK == V, False)
        dh = load_state(dh_base, lane_k, first, lane_v, 0, K, V, BLOCK == V, False)
        sums = tl.sum(h.to(tl.float32) * dh.to(tl.float32), 1)
        tl.store(out_base + first + lane_k, sums, mask=lane_k < K - first)
