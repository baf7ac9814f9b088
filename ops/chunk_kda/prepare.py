"""What the serial passes need of each chunk and no state decides, for all chunks at once."""

import triton
import triton.language as tl

from ops.chunk_kda.tile import (
    dense_or_packed_chunk,
    load_last_row,
    load_tile,
    load_triangle,
    store_tile,
)


@triton.jit(do_not_specialize=["T", "num_chunks", "num_tasks"])
def prepare(
    q_ptr,
    k_ptr,
    v_ptr,
    g_ptr,
    beta_ptr,
    Aqk_ptr,
    Akk_ptr,
    do_ptr,
    cu_seqlens_ptr,
    chunk_indices_ptr,
    w_ptr,
    u_ptr,
    qg_ptr,
    kg_ptr,
    dv_ptr,
    scale,
    T,
    num_chunks,
    num_tasks,
    q_stride_b,
    q_stride_h,
    k_stride_b,
    k_stride_h,
    v_stride_b,
    v_stride_h,
    g_stride_b,
    g_stride_h,
    beta_stride_b,
    beta_stride_t,
    beta_stride_h,
    Aqk_stride_b,
    Aqk_stride_h,
    Akk_stride_b,
    Akk_stride_h,
    do_stride_b,
    do_stride_h,
    HV: tl.constexpr,
    GROUP: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    C: tl.constexpr,
    Q_STRIDE_T: tl.constexpr,
    K_STRIDE_T: tl.constexpr,
    V_STRIDE_T: tl.constexpr,
    G_STRIDE_T: tl.constexpr,
    AQK_STRIDE_T: tl.constexpr,
    AKK_STRIDE_T: tl.constexpr,
    DO_STRIDE_T: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    HAS_U: tl.constexpr,
    PACKED: tl.constexpr,
    FP32_DOTS: tl.constexpr,
    TF32X3: tl.constexpr,
):
    """w = Akk beta kE, u = Akk beta v, qg = scale qE, kg = k 2^(G_last - G) and Aqk^T do, which is
    the first part of dv; u only if HAS_U. Task: (chunk, value head)."""
    K_TILES: tl.constexpr = (K + BLOCK_K - 1) // BLOCK_K
    V_TILES: tl.constexpr = (V + BLOCK_V - 1) // BLOCK_V
    DOT: tl.constexpr = tl.float32 if FP32_DOTS else k_ptr.dtype.element_ty
    PRECISION: tl.constexpr = "tf32x3" if TF32X3 else "ieee"
    lane_t = tl.arange(0, C)
    for task in range(tl.program_id(0), num_tasks, tl.num_programs(0)):
        hv = task % HV
        hv64 = tl.cast(hv, tl.int64)
        h64 = tl.cast(hv // GROUP, tl.int64)
        b, first, rows = dense_or_packed_chunk(
            task // HV, cu_seqlens_ptr, chunk_indices_ptr, T, num_chunks, C, PACKED
        )
        row = (b * T + first) * HV + hv64
        q_base = q_ptr + b * q_stride_b + h64 * q_stride_h + first * Q_STRIDE_T
        k_base = k_ptr + b * k_stride_b + h64 * k_stride_h + first * K_STRIDE_T
        v_base = v_ptr + b * v_stride_b + hv64 * v_stride_h + first * V_STRIDE_T
        g_base = g_ptr + b * g_stride_b + hv64 * g_stride_h + first * G_STRIDE_T
        do_base = do_ptr + b * do_stride_b + hv64 * do_stride_h + first * DO_STRIDE_T
        beta_base = beta_ptr + b * beta_stride_b + hv64 * beta_stride_h + first * beta_stride_t
        beta = tl.load(beta_base + lane_t * beta_stride_t, mask=lane_t < rows, other=0.0)
        beta = beta.to(tl.float32)
        akk_base = Akk_ptr + b * Akk_stride_b + hv64 * Akk_stride_h + first * AKK_STRIDE_T
        akk = load_triangle(akk_base, rows, lane_t, C, AKK_STRIDE_T).to(DOT)
        for k_tile in range(0, K_TILES):
            lane_k = k_tile * BLOCK_K + tl.arange(0, BLOCK_K)
            g = load_tile(g_base, rows, lane_t, lane_k, K, G_STRIDE_T).to(tl.float32)
            g_last = load_last_row(g_base, rows, lane_k, K, G_STRIDE_T).to(tl.float32)
            q = load_tile(q_base, rows, lane_t, lane_k, K, Q_STRIDE_T).to(tl.float32)
            k = load_tile(k_base, rows, lane_t, lane_k, K, K_STRIDE_T).to(tl.float32)
            decay = tl.exp2(g)
            store_tile(qg_ptr + row * K, q * (scale * decay), rows, lane_t, lane_k, K, HV * K)
            kg = k * tl.exp2(g_last[None, :] - g)
            store_tile(kg_ptr + row * K, kg, rows, lane_t, lane_k, K, HV * K)
            k_in = (k * decay * beta[:, None]).to(DOT)
            w = tl.dot(akk, k_in, input_precision=PRECISION)
            store_tile(w_ptr + row * K, w, rows, lane_t, lane_k, K, HV * K)
        aqk_base = Aqk_ptr + b * Aqk_stride_b + hv64 * Aqk_stride_h + first * AQK_STRIDE_T
        aqk = load_triangle(aqk_base, rows, lane_t, C, AQK_STRIDE_T).to(DOT)
        for v_tile in range(0, V_TILES):
            lane_v = v_tile * BLOCK_V + tl.arange(0, BLOCK_V)
            if HAS_U:
                v = load_tile(v_base, rows, lane_t, lane_v, V, V_STRIDE_T).to(tl.float32)
                u = tl.dot(akk, (v * beta[:, None]).to(DOT), input_precision=PRECISION)
                store_tile(u_ptr + row * V, u, rows, lane_t, lane_v, V, HV * V)
            do = load_tile(do_base, rows, lane_t, lane_v, V, DO_STRIDE_T).to(DOT)
            dv = tl.dot(tl.trans(aqk), do, input_precision=PRECISION)
            store_tile(dv_ptr + row * V, dv, rows, lane_t, lane_v, V, HV * V)
