"""What the kernels of chunk_kda share: where a chunk lies, tiles of it, levels of its pairs.

C: tokens of a chunk. `rows` of them exist; the last chunk of a sequence may have fewer than C.
"""

import triton
import triton.language as tl


@triton.jit
def dense_or_packed_chunk(
    chunk, cu_seqlens_ptr, chunk_indices_ptr, T, num_chunks, C: tl.constexpr, PACKED: tl.constexpr
):
    """(batch, first token, tokens) of a chunk by its global number."""
    if PACKED:
        n = tl.load(chunk_indices_ptr + 2 * chunk)
        i = tl.load(chunk_indices_ptr + 2 * chunk + 1)
        first = tl.load(cu_seqlens_ptr + n) + i * C
        end = tl.load(cu_seqlens_ptr + n + 1)
        b = 0
    else:
        b = chunk // num_chunks
        first = (chunk % num_chunks) * C
        end = T
    return tl.cast(b, tl.int64), tl.cast(first, tl.int64), tl.minimum(end - first, C).to(tl.int32)


@triton.jit
def tasks_of_program(num_tasks, ONE_TASK: tl.constexpr):
    """How many tasks are this program's: program p does p, p + programs, ... ONE_TASK: there is one
    program for each, and no loop for which compilers keep numbers in registers: pair_scores takes
    0.28 ms instead of 0.31."""
    if ONE_TASK:
        return 1
    else:
        return tl.cdiv(num_tasks - tl.program_id(0), tl.num_programs(0))


@triton.jit
def load_tile(base, rows, lane_t, lane_x, X, STRIDE_T: tl.constexpr):
    """[C, BLOCK] of a token-major tensor; zeros beyond `rows` tokens and X columns."""
    mask = (lane_t < rows)[:, None] & (lane_x < X)[None, :]
    return tl.load(base + lane_t[:, None] * STRIDE_T + lane_x[None, :], mask=mask, other=0.0)


@triton.jit
def store_tile(base, value, rows, lane_t, lane_x, X, STRIDE_T: tl.constexpr):
    mask = (lane_t < rows)[:, None] & (lane_x < X)[None, :]
    ptrs = base + lane_t[:, None] * STRIDE_T + lane_x[None, :]
    tl.store(ptrs, value.to(base.dtype.element_ty), mask=mask)


@triton.jit
def load_state(base, lane_k, lane_v, K, V):
    """[BLOCK_K, BLOCK_V] of a [K, V] matrix."""
    mask = (lane_k < K)[:, None] & (lane_v < V)[None, :]
    return tl.load(base + lane_k[:, None] * V + lane_v[None, :], mask=mask, other=0.0)


@triton.jit
def store_state(base, value, lane_k, lane_v, K, V):
    mask = (lane_k < K)[:, None] & (lane_v < V)[None, :]
    ptrs = base + lane_k[:, None] * V + lane_v[None, :]
    tl.store(ptrs, value.to(base.dtype.element_ty), mask=mask)


@triton.jit
def load_last_row(base, rows, lane_x, X, STRIDE_T: tl.constexpr):
    return tl.load(base + (rows - 1) * STRIDE_T + lane_x, mask=lane_x < X, other=0.0)


@triton.jit
def load_triangle(base, rows, lane_t, C: tl.constexpr, STRIDE_T: tl.constexpr):
    """[C, C] of Aqk or Akk. What lies above the diagonal may be anything and reads as zero."""
    a = load_tile(base, rows, lane_t, tl.arange(0, C), C, STRIDE_T)
    return tl.where(lane_t[:, None] >= tl.arange(0, C)[None, :], a, 0.0)


@triton.jit
def load_anchors(g_base, rows, lane_t, lane_k, K, STRIDE_T: tl.constexpr, level):
    """[C, BLOCK_K] fp32: for each row the G of its anchor, which is the first row of the upper half
    of the group of 2^(level + 1) rows that the row is in."""
    anchor = tl.minimum(((lane_t >> level) | 1) << level, rows - 1)
    mask = (lane_t < rows)[:, None] & (lane_k < K)[None, :]
    ptrs = g_base + anchor[:, None] * STRIDE_T + lane_k[None, :]
    return tl.load(ptrs, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def level_pairs(lane_t, C: tl.constexpr, level):
    """[C, C]: whether two rows are in different halves of one group of 2^(level + 1)."""
    other = tl.arange(0, C)
    return ((lane_t[:, None] ^ other[None, :]) >> level) == 1


@triton.jit
def sum_from_row(x, rows, lane_t, lane_c, SPLIT: tl.constexpr):
    """[C, BLOCK] fp32: row i is the sum of x's rows from i to the last token.

    A product with ones: matrix units add up in fp32. SPLIT: x as three bf16 terms of 8 bits each,
    for units that round fp32 operands.
    """
    # With `rows` in the ones, no compiler keeps them in registers from chunk to chunk.
    taken = (lane_t[:, None] <= lane_c[None, :]) & (lane_c < rows)[None, :]
    ones = tl.where(taken, 1.0, 0.0)
    if SPLIT:
        ones = ones.to(tl.bfloat16)
        high = x.to(tl.bfloat16)
        x -= high.to(tl.float32)
        middle = x.to(tl.bfloat16)
        low = (x - middle.to(tl.float32)).to(tl.bfloat16)
        return tl.dot(ones, low) + tl.dot(ones, middle) + tl.dot(ones, high)
    else:
        return tl.dot(ones, x, input_precision="ieee")
