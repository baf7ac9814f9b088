"""The two serial passes over a sequence, the state in on-chip memory: states forward, their
gradients back."""

import triton
import triton.language as tl

from ops.chunk_kda.npu.tile import (
    load_last_row,
    load_matrix,
    load_rows,
    load_state,
    load_tile,
    power_of_2,
    store_tile,
)
from ops.chunk_kda.scans import sequence


@triton.jit(do_not_specialize=["T", "num_tasks"])
def forward_states(
    ke_ptr,
    kg_ptr,
    inverse_ptr,
    v_ptr,
    g_ptr,
    beta_ptr,
    h0_ptr,
    cu_seqlens_ptr,
    chunk_offsets_ptr,
    v_new_ptr,
    h_ptr,
    T,
    num_tasks,
    v_stride_b,
    v_stride_h,
    g_stride_b,
    g_stride_h,
    beta_stride_b,
    beta_stride_h,
    HV: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    C: tl.constexpr,
    V_STRIDE_T: tl.constexpr,
    G_STRIDE_T: tl.constexpr,
    BETA_STRIDE_T: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    HAS_H0: tl.constexpr,
    PACKED: tl.constexpr,
    FILL: tl.constexpr,
):
    """h of every chunk and v_new = Akk beta (v - ke h). Task: (sequence, value head, V tile)."""
    DTYPE: tl.constexpr = ke_ptr.dtype.element_ty
    V_TILES: tl.constexpr = (V + BLOCK_V - 1) // BLOCK_V
    FULL_V: tl.constexpr = V % BLOCK_V == 0
    lane_t = tl.arange(0, C)
    lane_c = tl.arange(0, C)
    lane_k = tl.arange(0, BLOCK_K)
    rows_k = tl.arange(0, BLOCK_K)
    lane_v = tl.arange(0, BLOCK_V)
    for task in range(tl.program_id(0), num_tasks, tl.num_programs(0)):
        first_v = (task % V_TILES) * BLOCK_V
        hv64 = tl.cast((task // V_TILES) % HV, tl.int64)
        n = task // (V_TILES * HV)
        b, first, length, chunk = sequence(n, cu_seqlens_ptr, chunk_offsets_ptr, T, C, PACKED)
        v_head = v_ptr + b * v_stride_b + hv64 * v_stride_h
        g_head = g_ptr + b * g_stride_b + hv64 * g_stride_h
        beta_head = beta_ptr + b * beta_stride_b + hv64 * beta_stride_h
        state = tl.zeros((BLOCK_K, BLOCK_V), tl.float32)
        if HAS_H0:
            state_at = h0_ptr + (tl.cast(n, tl.int64) * HV + hv64) * (K * V)
            state += load_state(state_at, rows_k, 0, lane_v, first_v, K, V, FULL_V, False)
        for c in range(0, tl.cdiv(length, C)):
            rows = tl.minimum(length - c * C, C)
            token = first + tl.cast(c, tl.int64) * C
            tile = (chunk + c) * HV + hv64
            before = state.to(DTYPE)
            store_tile(h_ptr + tile * (K * V), before, K, rows_k, lane_v, first_v, V, V, FULL_V)
            g_last = load_last_row(g_head + token * G_STRIDE_T, rows, rows_k, 0, K, G_STRIDE_T)
            beta = load_rows(beta_head + token * BETA_STRIDE_T, rows, lane_t, BETA_STRIDE_T)
            ke = load_matrix(ke_ptr + tile * (C * BLOCK_K), lane_t, lane_k, BLOCK_K)
            kg = load_matrix(kg_ptr + tile * (C * BLOCK_K), lane_t, lane_k, BLOCK_K)
            v = load_tile(
                v_head + token * V_STRIDE_T,
                rows,
                lane_t,
                lane_v,
                first_v,
                V,
                V_STRIDE_T,
                FULL_V,
                FILL,
            ).to(tl.float32)
            inverse = load_matrix(inverse_ptr + tile * (C * C), lane_t, lane_c, C)
            x = tl.dot(ke, before, input_precision="ieee")
            z = ((v - x) * beta[:, None]).to(DTYPE)
            v_new = tl.dot(inverse, z, input_precision="ieee")
            # Rows that a product did not compute are not zero.
            v_new = tl.where((lane_t < rows)[:, None], v_new, 0.0).to(DTYPE)
            at = v_new_ptr + ((b * T + token) * HV + hv64) * V
            store_tile(at, v_new, rows, lane_t, lane_v, first_v, V, HV * V, FULL_V)
            state = state * power_of_2(g_last)[:, None]
            state += tl.dot(tl.trans(kg), v_new, input_precision="ieee")


@triton.jit(do_not_specialize=["T", "num_tasks"])
def reverse_states(
    qg_ptr,
    ke_ptr,
    kg_ptr,
    scores_ptr,
    inverse_ptr,
    v_ptr,
    g_ptr,
    beta_ptr,
    do_ptr,
    dht_ptr,
    numbers_ptr,
    cu_seqlens_ptr,
    chunk_offsets_ptr,
    dh_ptr,
    y_ptr,
    dv_out_ptr,
    dbeta_ptr,
    dh0_ptr,
    T,
    num_tasks,
    dbeta_stride_tile,
    v_stride_b,
    v_stride_h,
    g_stride_b,
    g_stride_h,
    beta_stride_b,
    beta_stride_h,
    do_stride_b,
    do_stride_h,
    HV: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    C: tl.constexpr,
    V_STRIDE_T: tl.constexpr,
    G_STRIDE_T: tl.constexpr,
    BETA_STRIDE_T: tl.constexpr,
    DO_STRIDE_T: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    HAS_DHT: tl.constexpr,
    HAS_DH0: tl.constexpr,
    PACKED: tl.constexpr,
    FILL: tl.constexpr,
):
    """dh of every chunk, y = Akk^T dv with dv = Aqk^T do + kg dh, the gradient of v, v's part of
    dbeta, which has one slot for each V tile, and dh0. Task: (sequence, value head, V tile)."""
    DTYPE: tl.constexpr = ke_ptr.dtype.element_ty
    V_TILES: tl.constexpr = (V + BLOCK_V - 1) // BLOCK_V
    FULL_V: tl.constexpr = V % BLOCK_V == 0
    lane_t = tl.arange(0, C)
    lane_c = tl.arange(0, C)
    lane_k = tl.arange(0, BLOCK_K)
    rows_k = tl.arange(0, BLOCK_K)
    lane_v = tl.arange(0, BLOCK_V)
    for task in range(tl.program_id(0), num_tasks, tl.num_programs(0)):
        v_tile = task % V_TILES
        first_v = v_tile * BLOCK_V
        hv64 = tl.cast((task // V_TILES) % HV, tl.int64)
        n = task // (V_TILES * HV)
        b, first, length, chunk = sequence(n, cu_seqlens_ptr, chunk_offsets_ptr, T, C, PACKED)
        v_head = v_ptr + b * v_stride_b + hv64 * v_stride_h
        g_head = g_ptr + b * g_stride_b + hv64 * g_stride_h
        beta_head = beta_ptr + b * beta_stride_b + hv64 * beta_stride_h
        do_head = do_ptr + b * do_stride_b + hv64 * do_stride_h
        state_at = (tl.cast(n, tl.int64) * HV + hv64) * (K * V)
        dh = tl.zeros((BLOCK_K, BLOCK_V), tl.float32)
        if HAS_DHT:
            dh += load_state(dht_ptr + state_at, rows_k, 0, lane_v, first_v, K, V, FULL_V, False)
        num_chunks = tl.cdiv(length, C)
        for i in range(0, num_chunks):
            c = num_chunks - 1 - i
            rows = tl.minimum(length - c * C, C)
            token = first + tl.cast(c, tl.int64) * C
            tile = (chunk + c) * HV + hv64
            after = dh.to(DTYPE)
            store_tile(dh_ptr + tile * (K * V), after, K, rows_k, lane_v, first_v, V, V, FULL_V)
            g_last = load_last_row(g_head + token * G_STRIDE_T, rows, rows_k, 0, K, G_STRIDE_T)
            beta = load_rows(beta_head + token * BETA_STRIDE_T, rows, lane_t, BETA_STRIDE_T)
            ke = load_matrix(ke_ptr + tile * (C * BLOCK_K), lane_t, lane_k, BLOCK_K)
            kg = load_matrix(kg_ptr + tile * (C * BLOCK_K), lane_t, lane_k, BLOCK_K)
            qg = load_matrix(qg_ptr + tile * (C * BLOCK_K), lane_t, lane_k, BLOCK_K)
            do = load_tile(
                do_head + token * DO_STRIDE_T,
                rows,
                lane_t,
                lane_v,
                first_v,
                V,
                DO_STRIDE_T,
                FULL_V,
                FILL,
            )
            scores = load_matrix(scores_ptr + tile * (C * C), lane_t, lane_c, C)
            inverse = load_matrix(inverse_ptr + tile * (C * C), lane_t, lane_c, C)
            read = tl.dot(tl.trans(qg), do, input_precision="ieee")
            dv = tl.dot(tl.trans(scores), do, input_precision="ieee")
            dv += tl.dot(kg, after, input_precision="ieee")
            # Rows that a product did not compute are not zero.
            valid = (lane_t < rows)[:, None]
            dv = tl.where(valid, dv, 0.0).to(DTYPE)
            y = tl.where(valid, tl.dot(tl.trans(inverse), dv, input_precision="ieee"), 0.0)
            if not FULL_V:  # nor are such columns
                inside = (tl.load(numbers_ptr + lane_v) < V - first_v)[None, :]
                y = tl.where(inside, y, 0.0)
            v = load_tile(
                v_head + token * V_STRIDE_T,
                rows,
                lane_t,
                lane_v,
                first_v,
                V,
                V_STRIDE_T,
                FULL_V,
                FILL,
            ).to(tl.float32)
            row = (b * T + token) * HV + hv64
            dbeta_base = dbeta_ptr + v_tile * dbeta_stride_tile + row
            tl.store(dbeta_base + lane_t * HV, tl.sum(y * v, 1), mask=lane_t < rows)
            dv = y * beta[:, None]
            at = row * V
            store_tile(y_ptr + at, y, rows, lane_t, lane_v, first_v, V, HV * V, FULL_V)
            store_tile(dv_out_ptr + at, dv, rows, lane_t, lane_v, first_v, V, HV * V, FULL_V)
            written = tl.dot(tl.trans(ke), dv.to(DTYPE), input_precision="ieee")
            dh = dh * power_of_2(g_last)[:, None] + (read - written)
        if HAS_DH0:
            store_tile(dh0_ptr + state_at, dh, K, rows_k, lane_v, first_v, V, V, FULL_V)
