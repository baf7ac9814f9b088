"""The kernel of chunk_gla_fwd_o_gk for GPUs and the interpreter."""

import triton
import triton.language as tl

from ops.chunk_kda.tile import (
    dense_or_packed_chunk,
    load_state,
    load_tile,
    load_triangle,
    store_tile,
)


@triton.jit(do_not_specialize=["T", "num_chunks", "num_tasks"])
def outputs(
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
    FP32_DOTS: tl.constexpr,
    TF32X3: tl.constexpr,
):
    """o = scale (q 2^g) h + tril(A) v. Task: (chunk, value head, V tile)."""
    K_TILES: tl.constexpr = (K + BLOCK_K - 1) // BLOCK_K
    V_TILES: tl.constexpr = (V + BLOCK_V - 1) // BLOCK_V
    DOT: tl.constexpr = tl.float32 if FP32_DOTS else q_ptr.dtype.element_ty
    PRECISION: tl.constexpr = "tf32x3" if TF32X3 else "ieee"
    lane_t = tl.arange(0, C)
    for task in range(tl.program_id(0), num_tasks, tl.num_programs(0)):
        lane_v = (task % V_TILES) * BLOCK_V + tl.arange(0, BLOCK_V)
        hv = (task // V_TILES) % HV
        hv64 = tl.cast(hv, tl.int64)
        h64 = tl.cast(hv // GROUP, tl.int64)
        chunk = task // (V_TILES * HV)
        b, first, rows = dense_or_packed_chunk(
            chunk, cu_seqlens_ptr, chunk_indices_ptr, T, num_chunks, C, PACKED
        )
        q_base = q_ptr + b * q_stride_b + h64 * q_stride_h + first * Q_STRIDE_T
        g_base = g_ptr + b * g_stride_b + hv64 * g_stride_h + first * G_STRIDE_T
        h_base = h_ptr + (tl.cast(chunk, tl.int64) * HV + hv64) * (K * V)
        o = tl.zeros((C, BLOCK_V), tl.float32)
        for k_tile in range(0, K_TILES):
            lane_k = k_tile * BLOCK_K + tl.arange(0, BLOCK_K)
            q = load_tile(q_base, rows, lane_t, lane_k, K, Q_STRIDE_T).to(tl.float32)
            g = load_tile(g_base, rows, lane_t, lane_k, K, G_STRIDE_T)
            h = load_state(h_base, lane_k, lane_v, K, V).to(DOT)
            o = tl.dot((q * tl.exp2(g)).to(DOT), h, o, input_precision=PRECISION)
        a_base = A_ptr + b * A_stride_b + hv64 * A_stride_h + first * A_STRIDE_T
        v_base = v_ptr + b * v_stride_b + hv64 * v_stride_h + first * V_STRIDE_T
        a = load_triangle(a_base, rows, lane_t, C, A_STRIDE_T).to(DOT)
        v = load_tile(v_base, rows, lane_t, lane_v, V, V_STRIDE_T).to(DOT)
        o = tl.dot(a, v, o * scale, input_precision=PRECISION)
        row = (b * T + first) * HV + hv64
        store_tile(o_ptr + row * V, o, rows, lane_t, lane_v, V, HV * V)
