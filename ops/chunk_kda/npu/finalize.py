"""Gradients of q, k, the gate and beta, once states, their gradients and those of scores are known.

Inside a chunk a pair i > j decays by D_ij = F_i F_j with its level's factors F: see intra of
same_precision.py. Here F is 2 to the power of a product of a constant matrix with G, and the masked
matrices come from level_scores.
"""

import triton
import triton.language as tl

from ops.chunk_kda.npu.tile import (
    decay,
    level_exponents,
    load_last_row,
    load_rows,
    load_state,
    load_tile,
    power_of_2,
    store_tile,
    tile_mask,
)
from ops.chunk_kda.tile import dense_or_packed_chunk


@triton.jit
def _operands(
    exponents,
    upper_ptr,
    masked,
    q,
    k,
    level,
    at,
    lane_t,
    C: tl.constexpr,
    LEVELS: tl.constexpr,
):
    """Of a level: both masked matrices, what they are multiplied by, F and the rows' halves."""
    p = tl.load(masked + level * C * C + at)
    n = tl.load(masked + (LEVELS + level) * C * C + at)
    f = decay(exponents)
    upper = tl.load(upper_ptr + level * C + lane_t)[:, None]
    x = (f * k).to(n.dtype)
    z = (f * (k + (q - k) * upper)).to(p.dtype)
    return p, n, z, x, f, upper


@triton.jit
def _products(dq, written, read, p, n, z, x, f, upper):
    """Adds a level to the sums: rows of upper halves get from it what the others give."""
    t1 = tl.dot(p, z, input_precision="ieee") * f
    t2 = tl.dot(n, x, input_precision="ieee") * f
    return dq + t1 * upper, written + t2 * upper, read + (t1 + t2) * (1.0 - upper)


@triton.jit
def _one_level(
    dq,
    written,
    read,
    anchors_ptr,
    upper_ptr,
    masked,
    q,
    k,
    g,
    level,
    at,
    lane_t,
    C: tl.constexpr,
    LEVELS: tl.constexpr,
):
    e = level_exponents(anchors_ptr, g, level, at, C)
    p, n, z, x, f, upper = _operands(e, upper_ptr, masked, q, k, level, at, lane_t, C, LEVELS)
    return _products(dq, written, read, p, n, z, x, f, upper)


@triton.jit
def _two_levels(
    dq,
    written,
    read,
    anchors_ptr,
    upper_ptr,
    masked,
    q,
    k,
    g,
    level,
    at,
    lane_t,
    C: tl.constexpr,
    LEVELS: tl.constexpr,
):
    """What waits for nothing comes first, then all operands leave the vector cores before the first
    product is waited for."""
    e = level_exponents(anchors_ptr, g, level, at, C)
    e1 = level_exponents(anchors_ptr, g, level + 1, at, C)
    p, n, z, x, f, upper = _operands(e, upper_ptr, masked, q, k, level, at, lane_t, C, LEVELS)
    p1, n1, z1, x1, f1, upper1 = _operands(
        e1, upper_ptr, masked, q, k, level + 1, at, lane_t, C, LEVELS
    )
    dq, written, read = _products(dq, written, read, p, n, z, x, f, upper)
    return _products(dq, written, read, p1, n1, z1, x1, f1, upper1)


@triton.jit
def _between_chunks(
    h_base,
    dh_base,
    do_base,
    v_new_base,
    y_base,
    rows,
    lane_t,
    rows_k,
    first_k,
    lane_v,
    first_v,
    K: tl.constexpr,
    V: tl.constexpr,
    HV: tl.constexpr,
    DO_STRIDE_T: tl.constexpr,
    V_NEW_STRIDE_T: tl.constexpr,
    FULL_K: tl.constexpr,
    FULL_V: tl.constexpr,
    FILL: tl.constexpr,
):
    """do h^T, v_new dh^T and y h^T of one V tile."""
    FILL_STATES: tl.constexpr = FILL and not (FULL_K and FULL_V)
    h = load_state(h_base, rows_k, first_k, lane_v, first_v, K, V, FULL_V, FILL_STATES)
    dh = load_state(dh_base, rows_k, first_k, lane_v, first_v, K, V, FULL_V, FILL_STATES)
    do = load_tile(do_base, rows, lane_t, lane_v, first_v, V, DO_STRIDE_T, FULL_V, FILL)
    v_new = load_tile(v_new_base, rows, lane_t, lane_v, first_v, V, V_NEW_STRIDE_T, FULL_V, FILL)
    y = load_tile(y_base, rows, lane_t, lane_v, first_v, V, HV * V, FULL_V, FILL)
    return (
        tl.dot(do, tl.trans(h), input_precision="ieee"),
        tl.dot(v_new, tl.trans(dh), input_precision="ieee"),
        tl.dot(y, tl.trans(h), input_precision="ieee"),
    )


@triton.jit(do_not_specialize=["T", "num_chunks", "first_chunk", "num_tasks", "width"])
def level_gradients(
    q_ptr,
    k_ptr,
    g_ptr,
    beta_ptr,
    do_ptr,
    v_new_ptr,
    y_ptr,
    h_ptr,
    dh_ptr,
    masked_ptr,
    on_ptr,
    h_dh_ptr,
    anchors_ptr,
    upper_ptr,
    from_row_ptr,
    below_ptr,
    last_ptr,
    cu_seqlens_ptr,
    chunk_indices_ptr,
    dq_ptr,
    dk_ptr,
    dgate_ptr,
    dbeta_ptr,
    scale,
    T,
    num_chunks,
    first_chunk,
    num_tasks,
    width,
    dbeta_stride_tile,
    q_stride_b,
    q_stride_h,
    k_stride_b,
    k_stride_h,
    g_stride_b,
    g_stride_h,
    beta_stride_b,
    beta_stride_h,
    do_stride_b,
    do_stride_h,
    v_new_stride_b,
    v_new_stride_h,
    HV: tl.constexpr,
    GROUP: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    C: tl.constexpr,
    Q_STRIDE_T: tl.constexpr,
    K_STRIDE_T: tl.constexpr,
    G_STRIDE_T: tl.constexpr,
    BETA_STRIDE_T: tl.constexpr,
    DO_STRIDE_T: tl.constexpr,
    V_NEW_STRIDE_T: tl.constexpr,
    LEVELS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    PAIRS: tl.constexpr,
    PACKED: tl.constexpr,
    FILL: tl.constexpr,
):
    """Task: (chunk from first_chunk on, q/k head, K tile), all value heads of the group.

    dgate: the gradient of the gate's natural logarithm. dbeta has one slot for each K tile. PAIRS:
    two levels at a time. width: K, which arch35's compiler (1.2.0) must not know where it is less
    than a tile's: it takes a part of a row for a row of other strides, and fails.
    """
    K_TILES: tl.constexpr = (K + BLOCK_K - 1) // BLOCK_K
    H: tl.constexpr = HV // GROUP
    FULL_K: tl.constexpr = K % BLOCK_K == 0
    FULL_V: tl.constexpr = V % BLOCK_V == 0
    lane_t = tl.arange(0, C)
    lane_c = tl.arange(0, C)
    lane_k = tl.arange(0, BLOCK_K)
    rows_k = tl.arange(0, BLOCK_K)
    lane_v = tl.arange(0, BLOCK_V)
    at = lane_t[:, None] * C + lane_c[None, :]
    from_row = tl.load(from_row_ptr + at)
    below = tl.load(below_ptr + at)
    for task in range(tl.program_id(0), num_tasks, tl.num_programs(0)):
        k_tile = task % K_TILES
        first_k = k_tile * BLOCK_K
        head = (task // K_TILES) % H
        h64 = tl.cast(head, tl.int64)
        slot = task // (K_TILES * H)
        chunk = first_chunk + slot
        b, first, rows = dense_or_packed_chunk(
            chunk, cu_seqlens_ptr, chunk_indices_ptr, T, num_chunks, C, PACKED
        )
        valid = tile_mask(rows, lane_t, lane_k, first_k, width, FULL_K)
        q_base = q_ptr + b * q_stride_b + h64 * q_stride_h + first * Q_STRIDE_T
        k_base = k_ptr + b * k_stride_b + h64 * k_stride_h + first * K_STRIDE_T
        q = load_tile(q_base, rows, lane_t, lane_k, first_k, K, Q_STRIDE_T, FULL_K, FILL)
        k = load_tile(k_base, rows, lane_t, lane_k, first_k, K, K_STRIDE_T, FULL_K, FILL)
        q = q.to(tl.float32)
        k = k.to(tl.float32)
        of_key = ((b * T + first) * H + h64) * K
        if GROUP > 1:
            dq_sum = tl.zeros((C, BLOCK_K), tl.float32)
            dk_sum = tl.zeros((C, BLOCK_K), tl.float32)
        for member in range(0, GROUP):
            hv64 = h64 * GROUP + member
            row = (b * T + first) * HV + hv64
            state = tl.cast(chunk, tl.int64) * HV + hv64
            g_base = g_ptr + b * g_stride_b + hv64 * g_stride_h + first * G_STRIDE_T
            g = load_tile(g_base, rows, lane_t, lane_k, first_k, K, G_STRIDE_T, FULL_K, FILL)
            g_last = load_last_row(g_base, rows, lane_k, first_k, width, G_STRIDE_T)[None, :]
            beta_base = beta_ptr + b * beta_stride_b + hv64 * beta_stride_h + first * BETA_STRIDE_T
            beta = load_rows(beta_base, rows, lane_t, BETA_STRIDE_T)[:, None]
            on = load_rows(on_ptr + row, rows, lane_t, HV)[:, None]

            # Inside the chunk.
            masked = masked_ptr + (tl.cast(slot, tl.int64) * HV + hv64) * (2 * LEVELS * C * C)
            dq = tl.zeros((C, BLOCK_K), tl.float32)
            written = tl.zeros((C, BLOCK_K), tl.float32)
            read = tl.zeros((C, BLOCK_K), tl.float32)
            if PAIRS:
                for pair in range(0, LEVELS // 2):
                    dq, written, read = _two_levels(
                        dq,
                        written,
                        read,
                        anchors_ptr,
                        upper_ptr,
                        masked,
                        q,
                        k,
                        g,
                        pair * 2,
                        at,
                        lane_t,
                        C,
                        LEVELS,
                    )
            ALONE: tl.constexpr = LEVELS // 2 * 2 if PAIRS else 0  # the first that has no partner
            if ALONE < LEVELS:
                for level in range(ALONE, LEVELS):
                    dq, written, read = _one_level(
                        dq,
                        written,
                        read,
                        anchors_ptr,
                        upper_ptr,
                        masked,
                        q,
                        k,
                        g,
                        level,
                        at,
                        lane_t,
                        C,
                        LEVELS,
                    )

            # Between chunks.
            h_base = h_ptr + state * (K * V)
            dh_base = dh_ptr + state * (K * V)
            do_base = do_ptr + b * do_stride_b + hv64 * do_stride_h + first * DO_STRIDE_T
            v_new_base = v_new_ptr + b * v_new_stride_b + hv64 * v_new_stride_h
            v_new_base += first * V_NEW_STRIDE_T
            do_h, kept, y_h = _between_chunks(
                h_base,
                dh_base,
                do_base,
                v_new_base,
                y_ptr + row * V,
                rows,
                lane_t,
                rows_k,
                first_k,
                lane_v,
                0,
                K,
                V,
                HV,
                DO_STRIDE_T,
                V_NEW_STRIDE_T,
                FULL_K,
                FULL_V,
                FILL,
            )
            if V > BLOCK_V:
                for first_v in tl.static_range(BLOCK_V, V, BLOCK_V):
                    more_do_h, more_kept, more_y_h = _between_chunks(
                        h_base,
                        dh_base,
                        do_base,
                        v_new_base,
                        y_ptr + row * V,
                        rows,
                        lane_t,
                        rows_k,
                        first_k,
                        lane_v,
                        first_v,
                        K,
                        V,
                        HV,
                        DO_STRIDE_T,
                        V_NEW_STRIDE_T,
                        FULL_K,
                        FULL_V,
                        FILL,
                    )
                    do_h += more_do_h
                    kept += more_kept
                    y_h += more_y_h
            e = power_of_2(g)
            dq += do_h * (e * scale)
            kept = kept * decay(g_last - g)
            written -= y_h * e
            at_last = tl.load(
                h_dh_ptr + state * K + first_k + lane_k, mask=lane_k < width - first_k, other=0.0
            )[None, :]
            at_last = at_last * power_of_2(g_last)
            is_last = tl.load(last_ptr + (C - rows) + lane_t)[:, None]
            # Rows and columns that a product did not compute are not zero.
            dbeta = tl.sum(tl.where(valid, k * written, 0.0), 1)
            written = written * beta

            # The sum from row i on has -k kept of these rows and k kept of all: what is left is
            # that of the rows before i. Added up so, nothing cancels.
            rest = q * dq + k * (written - read) + is_last * at_last
            rest = tl.where(valid, rest, 0.0)
            k_kept = tl.where(valid, k * kept, 0.0)
            dgate = tl.dot(from_row, rest, input_precision="ieee")
            dgate = tl.dot(below, k_kept, dgate, input_precision="ieee")
            store_tile(
                dgate_ptr + row * K, dgate, rows, lane_t, lane_k, first_k, width, HV * K, FULL_K
            )
            dbeta_base = dbeta_ptr + k_tile * dbeta_stride_tile + row
            tl.store(dbeta_base + lane_t * HV, dbeta, mask=lane_t < rows)
            dq += on * k
            dk = kept + written + read + on * q
            if GROUP > 1:
                dq_sum += dq
                dk_sum += dk
            else:
                store_tile(dq_ptr + of_key, dq, rows, lane_t, lane_k, first_k, width, H * K, FULL_K)
                store_tile(dk_ptr + of_key, dk, rows, lane_t, lane_k, first_k, width, H * K, FULL_K)
        if GROUP > 1:
            store_tile(dq_ptr + of_key, dq_sum, rows, lane_t, lane_k, first_k, width, H * K, FULL_K)
            store_tile(dk_ptr + of_key, dk_sum, rows, lane_t, lane_k, first_k, width, H * K, FULL_K)
