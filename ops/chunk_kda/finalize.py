"""What is left of chunk_kda_bwd once the states and their gradients are known, chunk by chunk."""

import triton
import triton.language as tl

from ops.chunk_kda.gate import gate_gradient, gate_rate, load_gate_input
from ops.chunk_kda.tile import (
    dense_or_packed_chunk,
    level_pairs,
    load_anchors,
    load_last_row,
    load_state,
    load_tile,
    load_triangle,
    store_tile,
    sum_from_row,
)


@triton.jit(do_not_specialize=["T", "num_chunks", "num_tasks"])
def scores(
    k_ptr,
    v_ptr,
    g_ptr,
    beta_ptr,
    Akk_ptr,
    do_ptr,
    v_new_ptr,
    h_ptr,
    dv_ptr,
    cu_seqlens_ptr,
    chunk_indices_ptr,
    y_ptr,
    daqk_ptr,
    dakk_ptr,
    on_ptr,
    dbeta_ptr,
    dv_out_ptr,
    scale,
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
    beta_stride_t,
    beta_stride_h,
    Akk_stride_b,
    Akk_stride_h,
    do_stride_b,
    do_stride_h,
    v_new_stride_b,
    v_new_stride_h,
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
    AKK_STRIDE_T: tl.constexpr,
    DO_STRIDE_T: tl.constexpr,
    V_NEW_STRIDE_T: tl.constexpr,
    DV_STRIDE_T: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    GENERAL: tl.constexpr,
    PACKED: tl.constexpr,
    FP32_DOTS: tl.constexpr,
    TF32X3: tl.constexpr,
):
    """Gradients of a chunk's scores, of v, and v's part of beta's. Task: (chunk, value head).

    y = Akk^T dv, which may replace dv. With v_new from the forward the gradient of Akk is -y
    v_new^T below the diagonal, N. daqk is P + P^T and dakk is N + (beta N)^T, P the gradient of Aqk
    below its diagonal; `on` is P's diagonal.

    GENERAL: v_new may be any matrix, so that the one of the formula, Akk beta (v - kE h), is
    computed instead of read; dakk is N, and there is no Aqk.
    """
    K_TILES: tl.constexpr = (K + BLOCK_K - 1) // BLOCK_K
    V_TILES: tl.constexpr = (V + BLOCK_V - 1) // BLOCK_V
    DOT: tl.constexpr = tl.float32 if FP32_DOTS else v_ptr.dtype.element_ty
    PRECISION: tl.constexpr = "tf32x3" if TF32X3 else "ieee"
    lane_t = tl.arange(0, C)
    lane_c = tl.arange(0, C)
    for task in range(tl.program_id(0), num_tasks, tl.num_programs(0)):
        hv64 = tl.cast(task % HV, tl.int64)
        b, first, rows = dense_or_packed_chunk(
            task // HV, cu_seqlens_ptr, chunk_indices_ptr, T, num_chunks, C, PACKED
        )
        row = (b * T + first) * HV + hv64
        h64 = tl.cast((task % HV) // GROUP, tl.int64)
        k_base = k_ptr + b * k_stride_b + h64 * k_stride_h + first * K_STRIDE_T
        v_base = v_ptr + b * v_stride_b + hv64 * v_stride_h + first * V_STRIDE_T
        g_base = g_ptr + b * g_stride_b + hv64 * g_stride_h + first * G_STRIDE_T
        h_base = h_ptr + (tl.cast(task // HV, tl.int64) * HV + hv64) * (K * V)
        do_base = do_ptr + b * do_stride_b + hv64 * do_stride_h + first * DO_STRIDE_T
        v_new_base = v_new_ptr + b * v_new_stride_b + hv64 * v_new_stride_h
        v_new_base += first * V_NEW_STRIDE_T
        dv_base = dv_ptr + b * dv_stride_b + hv64 * dv_stride_h + first * DV_STRIDE_T
        akk_base = Akk_ptr + b * Akk_stride_b + hv64 * Akk_stride_h + first * AKK_STRIDE_T
        beta_base = beta_ptr + b * beta_stride_b + hv64 * beta_stride_h + first * beta_stride_t
        beta = tl.load(beta_base + lane_t * beta_stride_t, mask=lane_t < rows, other=0.0)
        beta = beta.to(tl.float32)
        akk = load_triangle(akk_base, rows, lane_t, C, AKK_STRIDE_T).to(DOT)
        p = tl.zeros((C, C), dtype=tl.float32)
        n = tl.zeros((C, C), dtype=tl.float32)
        dbeta = tl.zeros((C,), dtype=tl.float32)
        for v_tile in range(0, V_TILES):
            lane_v = v_tile * BLOCK_V + tl.arange(0, BLOCK_V)
            dv = load_tile(dv_base, rows, lane_t, lane_v, V, DV_STRIDE_T).to(DOT)
            v = load_tile(v_base, rows, lane_t, lane_v, V, V_STRIDE_T).to(tl.float32)
            if GENERAL:
                seen = tl.zeros((C, BLOCK_V), dtype=tl.float32)
                for k_tile in range(0, K_TILES):
                    lane_k = k_tile * BLOCK_K + tl.arange(0, BLOCK_K)
                    k = load_tile(k_base, rows, lane_t, lane_k, K, K_STRIDE_T).to(tl.float32)
                    g = load_tile(g_base, rows, lane_t, lane_k, K, G_STRIDE_T)
                    h = load_state(h_base, lane_k, lane_v, K, V).to(DOT)
                    k_in = (k * tl.exp2(g)).to(DOT)
                    seen += tl.dot(k_in, h, input_precision=PRECISION)
                z = (beta[:, None] * (v - seen)).to(DOT)
                v_new = tl.dot(akk, z, input_precision=PRECISION).to(DOT)
            else:
                v_new = load_tile(v_new_base, rows, lane_t, lane_v, V, V_NEW_STRIDE_T).to(DOT)
                do = load_tile(do_base, rows, lane_t, lane_v, V, DO_STRIDE_T).to(DOT)
            y = tl.dot(tl.trans(akk), dv, input_precision=PRECISION)
            dbeta += tl.sum(y * v, 1)
            dv_out = y * beta[:, None]
            store_tile(dv_out_ptr + row * V, dv_out, rows, lane_t, lane_v, V, HV * V)
            y = y.to(DOT)
            store_tile(y_ptr + row * V, y, rows, lane_t, lane_v, V, HV * V)
            if not GENERAL:
                p += tl.dot(do, tl.trans(v_new), input_precision=PRECISION)
            n -= tl.dot(y, tl.trans(v_new), input_precision=PRECISION)
        below = lane_t[:, None] > lane_c[None, :]
        n = tl.where(below, n, 0.0)
        if not GENERAL:
            n += tl.trans(n * beta[:, None])
            p = p * scale
            on = tl.sum(tl.where(lane_t[:, None] == lane_c[None, :], p, 0.0), 1)
            p = tl.where(below, p, 0.0)
            p += tl.trans(p)
            store_tile(daqk_ptr + row * C, p, rows, lane_t, lane_c, C, HV * C)
            tl.store(on_ptr + row + lane_t * HV, on, mask=lane_t < rows)
        store_tile(dakk_ptr + row * C, n, rows, lane_t, lane_c, C, HV * C)
        tl.store(dbeta_ptr + row + lane_t * HV, dbeta, mask=lane_t < rows)


@triton.jit(do_not_specialize=["T", "num_chunks", "num_tasks"])
def finalize(
    q_ptr,
    k_ptr,
    g_ptr,
    beta_ptr,
    do_ptr,
    v_new_ptr,
    y_ptr,
    daqk_ptr,
    dakk_ptr,
    on_ptr,
    h_ptr,
    dh_ptr,
    g_org_ptr,
    A_log_ptr,
    dt_bias_ptr,
    cu_seqlens_ptr,
    chunk_indices_ptr,
    dq_ptr,
    dk_ptr,
    dg_ptr,
    dbeta_ptr,
    dA_log_ptr,
    ddt_bias_ptr,
    scale,
    lower_bound,
    T,
    num_chunks,
    num_tasks,
    dbeta_stride_tile,
    q_stride_b,
    q_stride_h,
    k_stride_b,
    k_stride_h,
    g_stride_b,
    g_stride_h,
    beta_stride_b,
    beta_stride_t,
    beta_stride_h,
    do_stride_b,
    do_stride_h,
    v_new_stride_b,
    v_new_stride_h,
    g_org_stride_b,
    g_org_stride_h,
    HV: tl.constexpr,
    GROUP: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    C: tl.constexpr,
    Q_STRIDE_T: tl.constexpr,
    K_STRIDE_T: tl.constexpr,
    G_STRIDE_T: tl.constexpr,
    DO_STRIDE_T: tl.constexpr,
    V_NEW_STRIDE_T: tl.constexpr,
    G_ORG_STRIDE_T: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    LEVELS: tl.constexpr,
    GATE: tl.constexpr,
    HAS_A_LOG: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    SPLIT_SUMS: tl.constexpr,
    PACKED: tl.constexpr,
    FP32_DOTS: tl.constexpr,
    TF32X3: tl.constexpr,
):
    """Gradients of q, k, the gate, and the rest of beta's. Task: (chunk, value head, K tile).

    dq and dk are per value head. LEVELS: log2 C, or 0 to leave out what pairs inside the chunk
    contribute; dg is then the gradient of G itself, else that of the gate, or of g_org where the
    gate is computed here. dbeta has one slot for each K tile. dA_log [chunks, K tiles, HV] and
    ddt_bias [chunks, HV, K] are each chunk's own.
    """
    K_TILES: tl.constexpr = (K + BLOCK_K - 1) // BLOCK_K
    V_TILES: tl.constexpr = (V + BLOCK_V - 1) // BLOCK_V
    DOT: tl.constexpr = tl.float32 if FP32_DOTS else k_ptr.dtype.element_ty
    PRECISION: tl.constexpr = "tf32x3" if TF32X3 else "ieee"
    lane_t = tl.arange(0, C)
    lane_c = tl.arange(0, C)
    for task in range(tl.program_id(0), num_tasks, tl.num_programs(0)):
        k_tile = task % K_TILES
        hv64 = tl.cast((task // K_TILES) % HV, tl.int64)
        h64 = hv64 // GROUP
        chunk = task // (K_TILES * HV)
        b, first, rows = dense_or_packed_chunk(
            chunk, cu_seqlens_ptr, chunk_indices_ptr, T, num_chunks, C, PACKED
        )
        chunk64 = tl.cast(chunk, tl.int64)
        lane_k = k_tile * BLOCK_K + tl.arange(0, BLOCK_K)
        q_base = q_ptr + b * q_stride_b + h64 * q_stride_h + first * Q_STRIDE_T
        k_base = k_ptr + b * k_stride_b + h64 * k_stride_h + first * K_STRIDE_T
        g_base = g_ptr + b * g_stride_b + hv64 * g_stride_h + first * G_STRIDE_T
        beta_base = beta_ptr + b * beta_stride_b + hv64 * beta_stride_h + first * beta_stride_t
        do_base = do_ptr + b * do_stride_b + hv64 * do_stride_h + first * DO_STRIDE_T
        v_new_base = v_new_ptr + b * v_new_stride_b + hv64 * v_new_stride_h
        v_new_base += first * V_NEW_STRIDE_T
        at = (b * T + first) * HV + hv64
        h_at = (chunk64 * HV + hv64) * (K * V)
        beta = tl.load(beta_base + lane_t * beta_stride_t, mask=lane_t < rows, other=0.0)
        beta = beta.to(tl.float32)
        g_last = load_last_row(g_base, rows, lane_k, K, G_STRIDE_T)
        g = load_tile(g_base, rows, lane_t, lane_k, K, G_STRIDE_T)
        q = load_tile(q_base, rows, lane_t, lane_k, K, Q_STRIDE_T)
        k = load_tile(k_base, rows, lane_t, lane_k, K, K_STRIDE_T)

        dq = tl.zeros((C, BLOCK_K), dtype=tl.float32)
        written = tl.zeros((C, BLOCK_K), dtype=tl.float32)
        read = tl.zeros((C, BLOCK_K), dtype=tl.float32)
        h_dh = tl.zeros((BLOCK_K,), dtype=tl.float32)
        for v_tile in range(0, V_TILES):
            lane_v = v_tile * BLOCK_V + tl.arange(0, BLOCK_V)
            h = load_state(h_ptr + h_at, lane_k, lane_v, K, V).to(DOT)
            dh = load_state(dh_ptr + h_at, lane_k, lane_v, K, V).to(DOT)
            do = load_tile(do_base, rows, lane_t, lane_v, V, DO_STRIDE_T).to(DOT)
            y = load_tile(y_ptr + at * V, rows, lane_t, lane_v, V, HV * V).to(DOT)
            v_new = load_tile(v_new_base, rows, lane_t, lane_v, V, V_NEW_STRIDE_T).to(DOT)
            dq += tl.dot(do, tl.trans(h), input_precision=PRECISION)
            written -= tl.dot(y, tl.trans(h), input_precision=PRECISION)
            read += tl.dot(v_new, tl.trans(dh), input_precision=PRECISION)
            h_dh += tl.sum(h.to(tl.float32) * dh.to(tl.float32), 1)

        # dk = beta * written + read and dG = q dq + k (beta * written - read), between chunks
        # as inside one; dbeta has the row sums of k * written.
        q = q.to(tl.float32)
        k = k.to(tl.float32)
        decay = tl.exp2(g)
        dq = dq * (scale * decay)
        written = written * decay
        read = read * tl.exp2(g_last[None, :] - g)
        total = tl.exp2(g_last) * h_dh + tl.sum(k * read, 0)

        if LEVELS > 0:
            for level in range(LEVELS):
                # D_ij = F_i F_j for i in the upper and j in the lower half of a group; both are
                # at most 1, whatever the gates.
                upper = (((lane_t >> level) & 1) == 1)[:, None]
                g_anchor = load_anchors(g_base, rows, lane_t, lane_k, K, G_STRIDE_T, level)
                f = tl.exp2(tl.where(upper, g - g_anchor, g_anchor - g))
                pairs = level_pairs(lane_t, C, level)
                x = (f * k).to(DOT)
                z = (f * tl.where(upper, q, k)).to(DOT)
                p = load_tile(daqk_ptr + at * C, rows, lane_t, lane_c, C, HV * C)
                n = load_tile(dakk_ptr + at * C, rows, lane_t, lane_c, C, HV * C)
                t1 = tl.dot(tl.where(pairs, p, 0.0).to(DOT), z, input_precision=PRECISION) * f
                t2 = tl.dot(tl.where(pairs, n, 0.0).to(DOT), x, input_precision=PRECISION) * f
                # Factors of 0 and 1 instead of selections: 4 % faster on a GPU.
                into = tl.where(upper, 1.0, 0.0)
                dq += into * t1
                written += into * t2
                read += (1.0 - into) * (t1 + t2)

        dbeta = tl.sum(k * written, 1)
        written = written * beta[:, None]
        dg = q * dq + k * (written - read)
        # The chunk's total decay is the last token's.
        dg += tl.where(lane_t == rows - 1, 1.0, 0.0)[:, None] * total[None, :]
        dk = written + read
        if LEVELS > 0:
            # A pair of a token with itself has no decay.
            on = tl.load(on_ptr + at + lane_t * HV, mask=lane_t < rows, other=0.0)[:, None]
            dq += on * k
            dk += on * q
            dg = sum_from_row(dg, rows, lane_t, lane_c, SPLIT_SUMS)
        if GATE > 0:
            base = g_org_ptr + b * g_org_stride_b + hv64 * g_org_stride_h
            base += first * G_ORG_STRIDE_T
            y_gate = load_gate_input(
                base, dt_bias_ptr, hv64, rows, lane_t, lane_k, K, G_ORG_STRIDE_T, HAS_BIAS
            )
            rate = gate_rate(A_log_ptr, hv64, HAS_A_LOG)
            dg, da = gate_gradient(dg, y_gate, rate, lower_bound, GATE)
            valid = (lane_t < rows)[:, None] & (lane_k < K)[None, :]
            if HAS_A_LOG:
                da = tl.sum(tl.sum(tl.where(valid, da, 0.0), 1), 0)
                tl.store(dA_log_ptr + (chunk64 * K_TILES + k_tile) * HV + hv64, da)
            if HAS_BIAS:
                of_bias = tl.sum(tl.where(valid, dg, 0.0), 0)
                bias_ptrs = ddt_bias_ptr + (chunk64 * HV + hv64) * K + lane_k
                tl.store(bias_ptrs, of_bias, mask=lane_k < K)
        store_tile(dg_ptr + at * K, dg, rows, lane_t, lane_k, K, HV * K)
        dbeta_base = dbeta_ptr + k_tile * dbeta_stride_tile + at
        tl.store(dbeta_base + lane_t * HV, dbeta, mask=lane_t < rows)
        store_tile(dq_ptr + at * K, dq, rows, lane_t, lane_k, K, HV * K)
        store_tile(dk_ptr + at * K, dk, rows, lane_t, lane_k, K, HV * K)
