"""The forward's serial pass over a sequence: states, and the outputs that read them."""

import triton
import triton.language as tl

from ops.chunk_kda.scans import sequence
from ops.chunk_kda.tile import load_last_row, load_state, load_tile, store_state, store_tile


@triton.jit(do_not_specialize=["T", "num_tasks"])
def output_scan(
    v_ptr,
    beta_ptr,
    qg_ptr,
    ke_ptr,
    kg_ptr,
    g_ptr,
    Aqk_ptr,
    Akk_ptr,
    h0_ptr,
    cu_seqlens_ptr,
    chunk_offsets_ptr,
    o_ptr,
    final_state_ptr,
    scale,
    T,
    num_tasks,
    v_stride_b,
    v_stride_h,
    beta_stride_b,
    beta_stride_t,
    beta_stride_h,
    HV: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    C: tl.constexpr,
    V_STRIDE_T: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    HAS_H0: tl.constexpr,
    HAS_FINAL_STATE: tl.constexpr,
    PACKED: tl.constexpr,
    FP32_DOTS: tl.constexpr,
    TF32X3: tl.constexpr,
    STAGES: tl.constexpr,
):
    """o = scale qg h + Aqk v_new with v_new = Akk beta (v - ke h); and the last states. Task:
    (sequence, value head, V tile).

    Neither h nor v_new goes to memory, nor do w = Akk beta ke and u = Akk beta v: with those a
    chunk waits for one product less, 0.17 ms instead of 0.20, but computing them takes 0.10
    (H200, T 8192, 32 heads, K = V = 128, bf16).
    """
    V_TILES: tl.constexpr = (V + BLOCK_V - 1) // BLOCK_V
    DOT: tl.constexpr = tl.float32 if FP32_DOTS else ke_ptr.dtype.element_ty
    PRECISION: tl.constexpr = "tf32x3" if TF32X3 else "ieee"
    lane_t = tl.arange(0, C)
    lane_c = tl.arange(0, C)
    lane_k = tl.arange(0, BLOCK_K)
    for task in range(tl.program_id(0), num_tasks, tl.num_programs(0)):
        v_tile = task % V_TILES
        hv64 = tl.cast((task // V_TILES) % HV, tl.int64)
        n = task // (V_TILES * HV)
        b, first, length, _ = sequence(n, cu_seqlens_ptr, chunk_offsets_ptr, T, C, PACKED)
        lane_v = v_tile * BLOCK_V + tl.arange(0, BLOCK_V)
        row = (b * T + first) * HV + hv64
        v_base = v_ptr + b * v_stride_b + hv64 * v_stride_h + first * V_STRIDE_T
        beta_base = beta_ptr + b * beta_stride_b + hv64 * beta_stride_h + first * beta_stride_t
        state_at = (tl.cast(n, tl.int64) * HV + hv64) * (K * V)
        state = tl.zeros((BLOCK_K, BLOCK_V), dtype=tl.float32)
        if HAS_H0:
            state += load_state(h0_ptr + state_at, lane_k, lane_v, K, V)
        for start in tl.range(0, length, C, num_stages=STAGES):
            rows = tl.minimum(length - start, C)
            start64 = tl.cast(start, tl.int64)
            at = row + start64 * HV
            ke = load_tile(ke_ptr + at * K, rows, lane_t, lane_k, K, HV * K).to(DOT)
            v = load_tile(v_base + start64 * V_STRIDE_T, rows, lane_t, lane_v, V, V_STRIDE_T).to(
                tl.float32
            )
            beta = tl.load(
                beta_base + (start64 + lane_t) * beta_stride_t, mask=lane_t < rows, other=0.0
            ).to(tl.float32)
            akk = load_tile(Akk_ptr + at * C, rows, lane_t, lane_c, C, HV * C).to(DOT)
            qg = load_tile(qg_ptr + at * K, rows, lane_t, lane_k, K, HV * K).to(DOT)
            aqk = load_tile(Aqk_ptr + at * C, rows, lane_t, lane_c, C, HV * C).to(DOT)
            kg = load_tile(kg_ptr + at * K, rows, lane_t, lane_k, K, HV * K).to(DOT)
            g_last = load_last_row(g_ptr + at * K, rows, lane_k, K, HV * K)
            before = state.to(DOT)
            x = v - tl.dot(ke, before, input_precision=PRECISION)
            o = tl.dot(qg, before, input_precision=PRECISION) * scale
            v_new = tl.dot(akk, (beta[:, None] * x).to(DOT), input_precision=PRECISION).to(DOT)
            state = state * tl.exp2(g_last)[:, None]
            state += tl.dot(tl.trans(kg), v_new, input_precision=PRECISION)
            o += tl.dot(aqk, v_new, input_precision=PRECISION)
            store_tile(o_ptr + at * V, o, rows, lane_t, lane_v, V, HV * V)
        if HAS_FINAL_STATE:
            store_state(final_state_ptr + state_at, state, lane_k, lane_v, K, V)
