"""What the serial passes multiply by, all chunks at once, on the vector cores."""

import triton
import triton.language as tl

from ops.chunk_kda.npu.tile import decay, load_last_row, load_tile, power_of_2
from ops.chunk_kda.tile import dense_or_packed_chunk


@triton.jit(do_not_specialize=["T", "num_chunks", "num_tasks"])
def decayed(
    q_ptr,
    k_ptr,
    g_ptr,
    Aqk_ptr,
    Akk_ptr,
    cu_seqlens_ptr,
    chunk_indices_ptr,
    qg_ptr,
    ke_ptr,
    kg_ptr,
    scores_ptr,
    inverse_ptr,
    scale,
    T,
    num_chunks,
    num_tasks,
    q_stride_b,
    q_stride_h,
    k_stride_b,
    k_stride_h,
    g_stride_b,
    g_stride_h,
    Aqk_stride_b,
    Aqk_stride_h,
    Akk_stride_b,
    Akk_stride_h,
    HV: tl.constexpr,
    GROUP: tl.constexpr,
    K: tl.constexpr,
    C: tl.constexpr,
    Q_STRIDE_T: tl.constexpr,
    K_STRIDE_T: tl.constexpr,
    G_STRIDE_T: tl.constexpr,
    AQK_STRIDE_T: tl.constexpr,
    AKK_STRIDE_T: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PACKED: tl.constexpr,
):
    """qg = scale q 2^G, ke = k 2^G and kg = k 2^(G_last - G), [chunks, HV, C, BLOCK_K]; scores and
    inverse, the lower triangles of Aqk and Akk, [chunks, HV, C, C]. Zeros behind a short chunk's
    end and behind K, so that matrix cores can load them as they are. Task: (chunk, value head,
    BLOCK_T rows)."""
    DTYPE: tl.constexpr = k_ptr.dtype.element_ty
    PARTS: tl.constexpr = C // BLOCK_T
    FULL_K: tl.constexpr = BLOCK_K == K
    lane_t = tl.arange(0, BLOCK_T)
    lane_k = tl.arange(0, BLOCK_K)
    lane_c = tl.arange(0, C)
    for task in range(tl.program_id(0), num_tasks, tl.num_programs(0)):
        part = task % PARTS
        hv64 = tl.cast((task // PARTS) % HV, tl.int64)
        h64 = tl.cast((task // PARTS) % HV // GROUP, tl.int64)
        chunk = task // (PARTS * HV)
        b, first, rows = dense_or_packed_chunk(
            chunk, cu_seqlens_ptr, chunk_indices_ptr, T, num_chunks, C, PACKED
        )
        start = part * BLOCK_T
        left = rows - start
        # A part behind the chunk's end has its addresses at the last row, and reads nothing.
        at = first + tl.cast(tl.minimum(start, rows - 1), tl.int64)
        q_base = q_ptr + b * q_stride_b + h64 * q_stride_h + at * Q_STRIDE_T
        k_base = k_ptr + b * k_stride_b + h64 * k_stride_h + at * K_STRIDE_T
        g_head = g_ptr + b * g_stride_b + hv64 * g_stride_h
        q = load_tile(q_base, left, lane_t, lane_k, 0, K, Q_STRIDE_T, FULL_K, True)
        k = load_tile(k_base, left, lane_t, lane_k, 0, K, K_STRIDE_T, FULL_K, True)
        g = load_tile(
            g_head + at * G_STRIDE_T, left, lane_t, lane_k, 0, K, G_STRIDE_T, FULL_K, True
        )
        g_last = load_last_row(g_head + first * G_STRIDE_T, rows, lane_k, 0, K, G_STRIDE_T)
        e = power_of_2(g)
        k = k.to(tl.float32)
        tile = tl.cast(chunk, tl.int64) * HV + hv64
        out = tile * (C * BLOCK_K) + (start + lane_t)[:, None] * BLOCK_K + lane_k[None, :]
        tl.store(ke_ptr + out, (k * e).to(DTYPE))
        tl.store(kg_ptr + out, (k * decay(g_last[None, :] - g)).to(DTYPE))
        tl.store(qg_ptr + out, (q.to(tl.float32) * (e * scale)).to(DTYPE))
        lower = (start + lane_t)[:, None] >= lane_c[None, :]
        out = tile * (C * C) + (start + lane_t)[:, None] * C + lane_c[None, :]
        base = Aqk_ptr + b * Aqk_stride_b + hv64 * Aqk_stride_h + at * AQK_STRIDE_T
        a = load_tile(base, left, lane_t, lane_c, 0, C, AQK_STRIDE_T, True, True)
        tl.store(scores_ptr + out, tl.where(lower, a, 0.0).to(DTYPE))
        base = Akk_ptr + b * Akk_stride_b + hv64 * Akk_stride_h + at * AKK_STRIDE_T
        a = load_tile(base, left, lane_t, lane_c, 0, C, AKK_STRIDE_T, True, True)
        tl.store(inverse_ptr + out, tl.where(lower, a, 0.0).to(DTYPE))
