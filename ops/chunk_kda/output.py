"""The forward's serial pass over a sequence: states, and the outputs that read them."""

import triton
import triton.language as tl

from ops.chunk_kda.scans import sequence
from ops.chunk_kda.tile import load_last_row, load_state, load_tile, store_state, store_tile


@triton.jit(do_not_specialize=["T", "num_tasks"])
def output_scan(
    w_ptr,
    qg_ptr,
    kg_ptr,
    g_ptr,
    Aqk_ptr,
    h0_ptr,
    cu_seqlens_ptr,
    chunk_offsets_ptr,
    o_ptr,
    final_state_ptr,
    scale,
    T,
    num_tasks,
    HV: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    C: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    HAS_H0: tl.constexpr,
    HAS_FINAL_STATE: tl.constexpr,
    PACKED: tl.constexpr,
    FP32_DOTS: tl.constexpr,
    TF32X3: tl.constexpr,
    STAGES: tl.constexpr,
):
    """o = scale qg h + Aqk v_new with v_new = u - w h, which replaces u; and the last states. Task:
    (sequence, value head, V tile).

    Neither h nor v_new goes to memory: for one more product per chunk and tile, and a read of qg
    and Aqk, that spares 3 V + K V / 64 elements per token and value head.
    """
    V_TILES: tl.constexpr = (V + BLOCK_V - 1) // BLOCK_V
    DOT: tl.constexpr = tl.float32 if FP32_DOTS else w_ptr.dtype.element_ty
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
        state_at = (tl.cast(n, tl.int64) * HV + hv64) * (K * V)
        state = tl.zeros((BLOCK_K, BLOCK_V), dtype=tl.float32)
        if HAS_H0:
            state += load_state(h0_ptr + state_at, lane_k, lane_v, K, V)
        for start in tl.range(0, length, C, num_stages=STAGES):
            rows = tl.minimum(length - start, C)
            at = row + tl.cast(start, tl.int64) * HV
            w = load_tile(w_ptr + at * K, rows, lane_t, lane_k, K, HV * K).to(DOT)
            u = load_tile(o_ptr + at * V, rows, lane_t, lane_v, V, HV * V).to(tl.float32)
            qg = load_tile(qg_ptr + at * K, rows, lane_t, lane_k, K, HV * K).to(DOT)
            aqk = load_tile(Aqk_ptr + at * C, rows, lane_t, lane_c, C, HV * C).to(DOT)
            kg = load_tile(kg_ptr + at * K, rows, lane_t, lane_k, K, HV * K).to(DOT)
            g_last = load_last_row(g_ptr + at * K, rows, lane_k, K, HV * K)
            before = state.to(DOT)
            v_new = (u - tl.dot(w, before, input_precision=PRECISION)).to(DOT)
            o = tl.dot(qg, before, input_precision=PRECISION) * scale
            o += tl.dot(aqk, v_new, input_precision=PRECISION)
            store_tile(o_ptr + at * V, o, rows, lane_t, lane_v, V, HV * V)
            state = state * tl.exp2(g_last)[:, None]
            state += tl.dot(tl.trans(kg), v_new, input_precision=PRECISION)
        if HAS_FINAL_STATE:
            store_state(final_state_ptr + state_at, state, lane_k, lane_v, K, V)
