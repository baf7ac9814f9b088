"""The kernel of chunk_gla_fwd_o_gk for Ascend NPUs."""

import triton
import triton.language as tl

from ops.chunk_kda.npu.tile import load_state, load_tile, power_of_2, store_tile
from ops.chunk_kda.tile import dense_or_packed_chunk


@triton.jit
def _of_state(
    q_base,
    g_base,
    h_base,
    scale,
    rows,
    lane_t,
    lane_k,
    rows_k,
    first_k,
    lane_v,
    first_v,
    K: tl.constexpr,
    V: tl.constexpr,
    Q_STRIDE_T: tl.constexpr,
    G_STRIDE_T: tl.constexpr,
    FULL_K: tl.constexpr,
    FULL_V: tl.constexpr,
    FILL: tl.constexpr,
):
    """(scale q 2^g) h, of one K tile."""
    DTYPE: tl.constexpr = q_base.dtype.element_ty
    q = load_tile(q_base, rows, lane_t, lane_k, first_k, K, Q_STRIDE_T, FULL_K, FILL)
    g = load_tile(g_base, rows, lane_t, lane_k, first_k, K, G_STRIDE_T, FULL_K, FILL)
    qg = (q.to(tl.float32) * (power_of_2(g) * scale)).to(DTYPE)
    h = load_state(h_base, rows_k, first_k, lane_v, first_v, K, V, FULL_V, FILL).to(DTYPE)
    return tl.dot(qg, h, input_precision="ieee")


@triton.jit(do_not_specialize=["T", "num_chunks", "num_tasks"])
def outputs_npu(
    q_ptr,
    v_ptr,
    g_ptr,
    A_ptr,
    h_ptr,
    cu_seqlens_ptr,
    chunk_indices_ptr,
    o_ptr,
    scale,
    T,
    num_chunks,
    num_tasks,
    q_stride_b,
    q_stride_h,
    v_stride_b,
    v_stride_h,
    g_stride_b,
    g_stride_h,
    A_stride_b,
    A_stride_h,
    HV: tl.constexpr,
    GROUP: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    C: tl.constexpr,
    Q_STRIDE_T: tl.constexpr,
    V_STRIDE_T: tl.constexpr,
    G_STRIDE_T: tl.constexpr,
    A_STRIDE_T: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    PACKED: tl.constexpr,
    FILL: tl.constexpr,
):
    """o = (scale q 2^g) h + tril(A) v. Task: (chunk, value head, V tile).

    With scale among the operands both sums stay in the cube core's accumulator, which leaves it as
    o.
    """
    V_TILES: tl.constexpr = (V + BLOCK_V - 1) // BLOCK_V
    DTYPE: tl.constexpr = q_ptr.dtype.element_ty
    FULL_K: tl.constexpr = K % BLOCK_K == 0
    FULL_V: tl.constexpr = V % BLOCK_V == 0
    lane_t = tl.arange(0, C)
    lane_c = tl.arange(0, C)
    lane_k = tl.arange(0, BLOCK_K)
    rows_k = tl.arange(0, BLOCK_K)
    lane_v = tl.arange(0, BLOCK_V)
    for task in range(tl.program_id(0), num_tasks, tl.num_programs(0)):
        first_v = (task % V_TILES) * BLOCK_V
        hv = (task // V_TILES) % HV
        hv64 = tl.cast(hv, tl.int64)
        h64 = tl.cast(hv // GROUP, tl.int64)
        chunk = task // (V_TILES * HV)
        b, first, rows = dense_or_packed_chunk(
            chunk, cu_seqlens_ptr, chunk_indices_ptr, T, num_chunks, C, PACKED
        )
        q_base = q_ptr + b * q_stride_b + h64 * q_stride_h + first * Q_STRIDE_T
        g_base = g_ptr + b * g_stride_b + hv64 * g_stride_h + first * G_STRIDE_T
        a_base = A_ptr + b * A_stride_b + hv64 * A_stride_h + first * A_STRIDE_T
        v_base = v_ptr + b * v_stride_b + hv64 * v_stride_h + first * V_STRIDE_T
        h_base = h_ptr + (tl.cast(chunk, tl.int64) * HV + hv64) * (K * V)
        a = load_tile(a_base, rows, lane_t, lane_c, 0, C, A_STRIDE_T, True, FILL)
        a = tl.where(lane_t[:, None] >= lane_c[None, :], a.to(tl.float32), 0.0).to(DTYPE)
        v = load_tile(v_base, rows, lane_t, lane_v, first_v, V, V_STRIDE_T, FULL_V, FILL)
        o = _of_state(
            q_base,
            g_base,
            h_base,
            scale,
            rows,
            lane_t,
            lane_k,
            rows_k,
            0,
            lane_v,
            first_v,
            K,
            V,
            Q_STRIDE_T,
            G_STRIDE_T,
            FULL_K,
            FULL_V,
            FILL,
        )
        if K > BLOCK_K:
            for first_k in tl.static_range(BLOCK_K, K, BLOCK_K):
                o += _of_state(
                    q_base,
                    g_base,
                    h_base,
                    scale,
                    rows,
                    lane_t,
                    lane_k,
                    rows_k,
                    first_k,
                    lane_v,
                    first_v,
                    K,
                    V,
                    Q_STRIDE_T,
                    G_STRIDE_T,
                    FULL_K,
                    FULL_V,
                    FILL,
                )
        o = tl.dot(a, v, o, input_precision="ieee")
        row = (b * T + first) * HV + hv64
        store_tile(o_ptr + row * V, o, rows, lane_t, lane_v, first_v, V, HV * V, FULL_V)
