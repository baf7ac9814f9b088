"""chunk_kda_bwd_wy_dqkg_fused in two launches, one of whole chunks and one of their K tiles.

With y = A^T dv and w = A beta (v - ke h), for any v_new: dkb = -y h^T, and A^T M A^T is y w^T below
the diagonal.
"""

import triton
import triton.language as tl

from ops.chunk_kda.npu.tile import (
    decay,
    load_last_row,
    load_matrix,
    load_rows,
    load_state,
    load_tile,
    power_of_2,
    store_state_products,
    store_tile,
    tile_mask,
)
from ops.chunk_kda.tile import dense_or_packed_chunk


@triton.jit(do_not_specialize=["T", "num_chunks", "num_tasks"])
def wy_chunk(
    k_ptr,
    v_ptr,
    g_ptr,
    beta_ptr,
    Akk_ptr,
    h_ptr,
    dh_ptr,
    dv_ptr,
    lower_ptr,
    below_ptr,
    numbers_ptr,
    cu_seqlens_ptr,
    chunk_indices_ptr,
    y_ptr,
    dv_out_ptr,
    dbeta_ptr,
    dakk_ptr,
    h_dh_ptr,
    T,
    num_chunks,
    num_tasks,
    k_stride_b,
    k_stride_h,
    v_stride_b,
    v_stride_h,
    g_stride_b,
    g_stride_h,
    beta_stride_b,
    beta_stride_h,
    Akk_stride_b,
    Akk_stride_h,
    dv_stride_b,
    dv_stride_h,
    HV: tl.constexpr,
    GROUP: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    C: tl.constexpr,
    K_STRIDE_T: tl.constexpr,
    V_STRIDE_T: tl.constexpr,
    G_STRIDE_T: tl.constexpr,
    BETA_STRIDE_T: tl.constexpr,
    AKK_STRIDE_T: tl.constexpr,
    DV_STRIDE_T: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    STATE_ROWS: tl.constexpr,
    STATE_BLOCK: tl.constexpr,
    PACKED: tl.constexpr,
    FILL: tl.constexpr,
):
    """y, dv, dA, the part of dbeta over V (its slot 0), and the sums of h dh over V. BLOCK_K: K or
    more. Task: (chunk, value head)."""
    DTYPE: tl.constexpr = k_ptr.dtype.element_ty
    FULL_K: tl.constexpr = BLOCK_K == K
    FULL_V: tl.constexpr = V % BLOCK_V == 0
    FILL_STATES: tl.constexpr = FILL and not (FULL_K and FULL_V)
    lane_t = tl.arange(0, C)
    lane_c = tl.arange(0, C)
    lane_k = tl.arange(0, BLOCK_K)
    lane_v = tl.arange(0, BLOCK_V)
    below = load_matrix(below_ptr, lane_t, lane_c, C)
    for task in range(tl.program_id(0), num_tasks, tl.num_programs(0)):
        hv64 = tl.cast(task % HV, tl.int64)
        h64 = tl.cast(task % HV // GROUP, tl.int64)
        chunk = task // HV
        b, first, rows = dense_or_packed_chunk(
            chunk, cu_seqlens_ptr, chunk_indices_ptr, T, num_chunks, C, PACKED
        )
        row = (b * T + first) * HV + hv64
        state = tl.cast(chunk, tl.int64) * HV + hv64
        store_state_products(
            h_ptr + state * (K * V),
            dh_ptr + state * (K * V),
            h_dh_ptr + state * K,
            K,
            V,
            STATE_ROWS,
            STATE_BLOCK,
        )
        k_base = k_ptr + b * k_stride_b + h64 * k_stride_h + first * K_STRIDE_T
        v_base = v_ptr + b * v_stride_b + hv64 * v_stride_h + first * V_STRIDE_T
        g_base = g_ptr + b * g_stride_b + hv64 * g_stride_h + first * G_STRIDE_T
        beta_base = beta_ptr + b * beta_stride_b + hv64 * beta_stride_h + first * BETA_STRIDE_T
        akk_base = Akk_ptr + b * Akk_stride_b + hv64 * Akk_stride_h + first * AKK_STRIDE_T
        dv_base = dv_ptr + b * dv_stride_b + hv64 * dv_stride_h + first * DV_STRIDE_T
        k = load_tile(k_base, rows, lane_t, lane_k, 0, K, K_STRIDE_T, FULL_K, FILL)
        g = load_tile(g_base, rows, lane_t, lane_k, 0, K, G_STRIDE_T, FULL_K, FILL)
        ke = (k.to(tl.float32) * power_of_2(g)).to(DTYPE)
        akk = load_tile(akk_base, rows, lane_t, lane_c, 0, C, AKK_STRIDE_T, True, FILL)
        # Above the diagonal may be anything. Compared is what was loaded: see tables.py.
        akk = tl.where(load_matrix(lower_ptr, lane_t, lane_c, C) > 0.0, akk, 0.0).to(DTYPE)
        beta = load_rows(beta_base, rows, lane_t, BETA_STRIDE_T)[:, None]
        valid = (lane_t < rows)[:, None]
        dbeta = tl.zeros((C,), tl.float32)
        da = tl.zeros((C, C), tl.float32)
        for first_v in tl.static_range(0, V, BLOCK_V):
            dv = load_tile(dv_base, rows, lane_t, lane_v, first_v, V, DV_STRIDE_T, FULL_V, FILL)
            h = load_state(
                h_ptr + state * (K * V), lane_k, 0, lane_v, first_v, K, V, FULL_V, FILL_STATES
            )
            y = tl.dot(tl.trans(akk), dv, input_precision="ieee")
            x = tl.dot(ke, h, input_precision="ieee")
            v = load_tile(v_base, rows, lane_t, lane_v, first_v, V, V_STRIDE_T, FULL_V, FILL)
            v = v.to(tl.float32)
            w = tl.dot(akk, ((v - x) * beta).to(DTYPE), input_precision="ieee")
            # Rows and columns that a product did not compute are not zero.
            y = tl.where(valid, y, 0.0)
            w = tl.where(valid, w, 0.0)
            if not FULL_V:
                inside = (tl.load(numbers_ptr + lane_v) < V - first_v)[None, :]
                y = tl.where(inside, y, 0.0)
                w = tl.where(inside, w, 0.0)
            stored = y.to(DTYPE)
            store_tile(y_ptr + row * V, stored, rows, lane_t, lane_v, first_v, V, HV * V, FULL_V)
            store_tile(
                dv_out_ptr + row * V, y * beta, rows, lane_t, lane_v, first_v, V, HV * V, FULL_V
            )
            dbeta += tl.sum(y * v, 1)
            da += tl.dot(stored, tl.trans(w.to(DTYPE)), input_precision="ieee")
        tl.store(dbeta_ptr + row + lane_t * HV, dbeta, mask=lane_t < rows)
        da = da * below * -1.0
        store_tile(dakk_ptr + row * C, da, rows, lane_t, lane_c, 0, C, HV * C, True)


@triton.jit(do_not_specialize=["T", "num_chunks", "num_tasks", "width"])
def wy_dqkg(
    q_ptr,
    k_ptr,
    v_new_ptr,
    g_ptr,
    beta_ptr,
    h_ptr,
    do_ptr,
    dh_ptr,
    y_ptr,
    h_dh_ptr,
    last_ptr,
    last_rows_ptr,
    cu_seqlens_ptr,
    chunk_indices_ptr,
    dq_ptr,
    dk_ptr,
    dg_ptr,
    dbeta_ptr,
    scale,
    T,
    num_chunks,
    num_tasks,
    width,
    dbeta_stride_tile,
    q_stride_b,
    q_stride_h,
    k_stride_b,
    k_stride_h,
    v_new_stride_b,
    v_new_stride_h,
    g_stride_b,
    g_stride_h,
    beta_stride_b,
    beta_stride_h,
    do_stride_b,
    do_stride_h,
    HV: tl.constexpr,
    GROUP: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    C: tl.constexpr,
    Q_STRIDE_T: tl.constexpr,
    K_STRIDE_T: tl.constexpr,
    V_NEW_STRIDE_T: tl.constexpr,
    G_STRIDE_T: tl.constexpr,
    BETA_STRIDE_T: tl.constexpr,
    DO_STRIDE_T: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    PACKED: tl.constexpr,
    FILL: tl.constexpr,
):
    """dq, dk, dg, and the parts of dbeta over K, one slot for each K tile. BLOCK_V: V or more.
    width: K, see level_gradients. Task: (chunk, value head, K tile)."""
    K_TILES: tl.constexpr = (K + BLOCK_K - 1) // BLOCK_K
    FULL_K: tl.constexpr = K % BLOCK_K == 0
    FULL_V: tl.constexpr = BLOCK_V == V
    lane_t = tl.arange(0, C)
    lane_c = tl.arange(0, C)
    lane_k = tl.arange(0, BLOCK_K)
    rows_k = tl.arange(0, BLOCK_K)
    lane_v = tl.arange(0, BLOCK_V)
    for task in range(tl.program_id(0), num_tasks, tl.num_programs(0)):
        k_tile = task % K_TILES
        first_k = k_tile * BLOCK_K
        hv64 = tl.cast((task // K_TILES) % HV, tl.int64)
        h64 = tl.cast((task // K_TILES) % HV // GROUP, tl.int64)
        chunk = task // (K_TILES * HV)
        b, first, rows = dense_or_packed_chunk(
            chunk, cu_seqlens_ptr, chunk_indices_ptr, T, num_chunks, C, PACKED
        )
        row = (b * T + first) * HV + hv64
        state = tl.cast(chunk, tl.int64) * HV + hv64
        valid = tile_mask(rows, lane_t, lane_k, first_k, width, FULL_K)
        FILL_STATES: tl.constexpr = FILL and not (FULL_K and FULL_V)
        h_at = state * (K * V)
        h = load_state(h_ptr + h_at, rows_k, first_k, lane_v, 0, K, V, FULL_V, FILL_STATES)
        dh = load_state(dh_ptr + h_at, rows_k, first_k, lane_v, 0, K, V, FULL_V, FILL_STATES)
        do_base = do_ptr + b * do_stride_b + hv64 * do_stride_h + first * DO_STRIDE_T
        v_new_base = v_new_ptr + b * v_new_stride_b + hv64 * v_new_stride_h
        v_new_base += first * V_NEW_STRIDE_T
        q_base = q_ptr + b * q_stride_b + h64 * q_stride_h + first * Q_STRIDE_T
        k_base = k_ptr + b * k_stride_b + h64 * k_stride_h + first * K_STRIDE_T
        g_base = g_ptr + b * g_stride_b + hv64 * g_stride_h + first * G_STRIDE_T
        beta_base = beta_ptr + b * beta_stride_b + hv64 * beta_stride_h + first * BETA_STRIDE_T
        do = load_tile(do_base, rows, lane_t, lane_v, 0, V, DO_STRIDE_T, FULL_V, FILL)
        v_new = load_tile(v_new_base, rows, lane_t, lane_v, 0, V, V_NEW_STRIDE_T, FULL_V, FILL)
        y = load_tile(y_ptr + row * V, rows, lane_t, lane_v, 0, V, HV * V, FULL_V, FILL)
        q = load_tile(q_base, rows, lane_t, lane_k, first_k, K, Q_STRIDE_T, FULL_K, FILL)
        k = load_tile(k_base, rows, lane_t, lane_k, first_k, K, K_STRIDE_T, FULL_K, FILL)
        q = q.to(tl.float32)
        k = k.to(tl.float32)
        g = load_tile(g_base, rows, lane_t, lane_k, first_k, K, G_STRIDE_T, FULL_K, FILL)
        g_last = load_last_row(g_base, rows, lane_k, first_k, width, G_STRIDE_T)[None, :]
        beta = load_rows(beta_base, rows, lane_t, BETA_STRIDE_T)[:, None]
        at_last = tl.load(
            h_dh_ptr + state * K + first_k + lane_k, mask=lane_k < width - first_k, other=0.0
        )[None, :]
        at_last = at_last * power_of_2(g_last)
        is_last = tl.load(last_ptr + (C - rows) + lane_t)[:, None]
        into_last = load_matrix(last_rows_ptr, C - rows + lane_t, lane_c, C)
        e = power_of_2(g)
        kept = tl.dot(v_new, tl.trans(dh), input_precision="ieee") * decay(g_last - g)
        # Rows and columns that a product did not compute are not zero.
        k_kept = tl.where(valid, k * kept, 0.0)
        written = tl.dot(y, tl.trans(h), input_precision="ieee") * e * -1.0
        dq = tl.dot(do, tl.trans(h), input_precision="ieee") * (e * scale)
        # A sum over tokens, in the last one's row.
        add = tl.dot(into_last, k_kept, input_precision="ieee") + is_last * at_last
        k_written = tl.where(valid, k * written, 0.0)
        at = row * K
        dg = q * dq - k_kept + k_written * beta + add
        dk = kept + written * beta
        store_tile(dq_ptr + at, dq, rows, lane_t, lane_k, first_k, width, HV * K, FULL_K)
        store_tile(dk_ptr + at, dk, rows, lane_t, lane_k, first_k, width, HV * K, FULL_K)
        store_tile(dg_ptr + at, dg, rows, lane_t, lane_k, first_k, width, HV * K, FULL_K)
        dbeta_base = dbeta_ptr + k_tile * dbeta_stride_tile + row
        tl.store(dbeta_base + lane_t * HV, tl.sum(k_written, 1), mask=lane_t < rows)
