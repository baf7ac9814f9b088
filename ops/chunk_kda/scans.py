"""The two serial passes of chunk_kda_bwd over a sequence: states forward, their gradients back."""

import triton
import triton.language as tl

from ops.chunk_kda.tile import (
    load_last_row,
    load_state,
    load_tile,
    store_state,
    store_tile,
)


@triton.jit
def sequence(n, cu_seqlens_ptr, chunk_offsets_ptr, T, C: tl.constexpr, PACKED: tl.constexpr):
    """(batch, first token, tokens, global number of the first chunk) of sequence n."""
    if PACKED:
        first = tl.load(cu_seqlens_ptr + n)
        length = tl.load(cu_seqlens_ptr + n + 1) - first
        chunk = tl.load(chunk_offsets_ptr + n)
        b = 0
    else:
        first = 0
        length = T
        chunk = n * ((T + C - 1) // C)
        b = n
    return tl.cast(b, tl.int64), tl.cast(first, tl.int64), length, tl.cast(chunk, tl.int64)


@triton.jit(do_not_specialize=["T", "num_tasks"])
def forward_scan(
    w_ptr,
    kg_ptr,
    g_ptr,
    h0_ptr,
    cu_seqlens_ptr,
    chunk_offsets_ptr,
    v_new_ptr,
    h_ptr,
    T,
    num_tasks,
    g_stride_b,
    g_stride_h,
    HV: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    C: tl.constexpr,
    G_STRIDE_T: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    HAS_H0: tl.constexpr,
    PACKED: tl.constexpr,
    FP32_DOTS: tl.constexpr,
    TF32X3: tl.constexpr,
    STAGES: tl.constexpr,
):
    """h of every chunk; v_new = u - w h, which replaces u. Task: (sequence, value head, V tile)."""
    V_TILES: tl.constexpr = (V + BLOCK_V - 1) // BLOCK_V
    DOT: tl.constexpr = tl.float32 if FP32_DOTS else w_ptr.dtype.element_ty
    PRECISION: tl.constexpr = "tf32x3" if TF32X3 else "ieee"
    lane_t = tl.arange(0, C)
    lane_k = tl.arange(0, BLOCK_K)
    for task in range(tl.program_id(0), num_tasks, tl.num_programs(0)):
        v_tile = task % V_TILES
        hv64 = tl.cast((task // V_TILES) % HV, tl.int64)
        n = task // (V_TILES * HV)
        b, first, length, chunk = sequence(n, cu_seqlens_ptr, chunk_offsets_ptr, T, C, PACKED)
        lane_v = v_tile * BLOCK_V + tl.arange(0, BLOCK_V)
        row = (b * T + first) * HV + hv64
        g_base = g_ptr + b * g_stride_b + hv64 * g_stride_h + first * G_STRIDE_T
        state = tl.zeros((BLOCK_K, BLOCK_V), dtype=tl.float32)
        if HAS_H0:
            at = (tl.cast(n, tl.int64) * HV + hv64) * (K * V)
            state += load_state(h0_ptr + at, lane_k, lane_v, K, V)
        for start in tl.range(0, length, C, num_stages=STAGES):
            rows = tl.minimum(length - start, C)
            at = row + tl.cast(start, tl.int64) * HV
            w = load_tile(w_ptr + at * K, rows, lane_t, lane_k, K, HV * K).to(DOT)
            u = load_tile(v_new_ptr + at * V, rows, lane_t, lane_v, V, HV * V).to(tl.float32)
            kg = load_tile(kg_ptr + at * K, rows, lane_t, lane_k, K, HV * K).to(DOT)
            g_last = load_last_row(
                g_base + tl.cast(start, tl.int64) * G_STRIDE_T, rows, lane_k, K, G_STRIDE_T
            )
            h_at = ((chunk + start // C) * HV + hv64) * (K * V)
            before = state.to(DOT)
            store_state(h_ptr + h_at, before, lane_k, lane_v, K, V)
            v_new = (u - tl.dot(w, before, input_precision=PRECISION)).to(DOT)
            store_tile(v_new_ptr + at * V, v_new, rows, lane_t, lane_v, V, HV * V)
            state = state * tl.exp2(g_last.to(tl.float32))[:, None]
            state += tl.dot(tl.trans(kg), v_new, input_precision=PRECISION)


@triton.jit(do_not_specialize=["T", "num_tasks"])
def reverse_scan(
    w_ptr,
    qg_ptr,
    kg_ptr,
    g_ptr,
    do_ptr,
    dht_ptr,
    cu_seqlens_ptr,
    chunk_offsets_ptr,
    dv_ptr,
    dh_ptr,
    dh0_ptr,
    T,
    num_tasks,
    g_stride_b,
    g_stride_h,
    do_stride_b,
    do_stride_h,
    HV: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    C: tl.constexpr,
    G_STRIDE_T: tl.constexpr,
    DO_STRIDE_T: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    HAS_DHT: tl.constexpr,
    HAS_DH0: tl.constexpr,
    PACKED: tl.constexpr,
    FP32_DOTS: tl.constexpr,
    TF32X3: tl.constexpr,
    STAGES: tl.constexpr,
):
    """dh of every chunk, and dh0; kg dh is added to dv. Task: (sequence, value head, V tile)."""
    V_TILES: tl.constexpr = (V + BLOCK_V - 1) // BLOCK_V
    DOT: tl.constexpr = tl.float32 if FP32_DOTS else w_ptr.dtype.element_ty
    PRECISION: tl.constexpr = "tf32x3" if TF32X3 else "ieee"
    lane_t = tl.arange(0, C)
    lane_k = tl.arange(0, BLOCK_K)
    for task in range(tl.program_id(0), num_tasks, tl.num_programs(0)):
        v_tile = task % V_TILES
        hv64 = tl.cast((task // V_TILES) % HV, tl.int64)
        n = task // (V_TILES * HV)
        b, first, length, chunk = sequence(n, cu_seqlens_ptr, chunk_offsets_ptr, T, C, PACKED)
        num_chunks = (length + C - 1) // C
        lane_v = v_tile * BLOCK_V + tl.arange(0, BLOCK_V)
        row = (b * T + first) * HV + hv64
        g_base = g_ptr + b * g_stride_b + hv64 * g_stride_h + first * G_STRIDE_T
        do_base = do_ptr + b * do_stride_b + hv64 * do_stride_h + first * DO_STRIDE_T
        state_at = (tl.cast(n, tl.int64) * HV + hv64) * (K * V)
        dh = tl.zeros((BLOCK_K, BLOCK_V), dtype=tl.float32)
        if HAS_DHT:
            dh += load_state(dht_ptr + state_at, lane_k, lane_v, K, V)
        for i in tl.range(0, num_chunks, num_stages=STAGES):
            c = num_chunks - 1 - i
            start = tl.cast(c, tl.int64) * C
            rows = tl.minimum(length - c * C, C)
            at = row + start * HV
            kg = load_tile(kg_ptr + at * K, rows, lane_t, lane_k, K, HV * K).to(DOT)
            dv = load_tile(dv_ptr + at * V, rows, lane_t, lane_v, V, HV * V).to(tl.float32)
            qg = load_tile(qg_ptr + at * K, rows, lane_t, lane_k, K, HV * K).to(DOT)
            do = load_tile(do_base + start * DO_STRIDE_T, rows, lane_t, lane_v, V, DO_STRIDE_T)
            w = load_tile(w_ptr + at * K, rows, lane_t, lane_k, K, HV * K).to(DOT)
            g_last = load_last_row(g_base + start * G_STRIDE_T, rows, lane_k, K, G_STRIDE_T)
            after = dh.to(DOT)
            store_state(dh_ptr + ((chunk + c) * HV + hv64) * (K * V), after, lane_k, lane_v, K, V)
            dv = (dv + tl.dot(kg, after, input_precision=PRECISION)).to(DOT)
            store_tile(dv_ptr + at * V, dv, rows, lane_t, lane_v, V, HV * V)
            dh = dh * tl.exp2(g_last.to(tl.float32))[:, None]
            dh += tl.dot(tl.trans(qg), do.to(DOT), input_precision=PRECISION)
            dh -= tl.dot(tl.trans(w), dv, input_precision=PRECISION)
        if HAS_DH0:
            store_state(dh0_ptr + state_at, dh, lane_k, lane_v, K, V)
