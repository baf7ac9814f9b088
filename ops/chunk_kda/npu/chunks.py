"""What the forward computes inside each chunk: both score matrices, then the inverse of one.

Both are written without a transpose: the sums of q k lie on and below the diagonal of one matrix,
those of k k above it; their transpose is inverted, and the last product of that turns it back.
"""

import triton
import triton.language as tl

from ops.chunk_kda.npu.tile import (
    decay,
    level_exponents,
    load_last_row,
    load_matrix,
    load_rows,
    load_tile,
    power_of_2,
    store_tile,
)
from ops.chunk_kda.tile import dense_or_packed_chunk


@triton.jit
def _operands(exponents, upper_ptr, q, k, level, lane_t, C: tl.constexpr, DTYPE: tl.constexpr):
    """Of a level: F q in upper halves and F k in lower ones; F k."""
    f = decay(exponents)
    upper = tl.load(upper_ptr + level * C + lane_t)[:, None]
    x = (f * k).to(DTYPE)
    z = (f * tl.where(upper > 0.0, q, k)).to(DTYPE)
    return z, x


@triton.jit
def _product(z, x, pairs_ptr, level, at, C: tl.constexpr):
    pairs = tl.load(pairs_ptr + level * C * C + at).to(tl.float32)
    return tl.where(pairs > 0.0, tl.dot(z, tl.trans(x), input_precision="ieee"), 0.0)


@triton.jit(do_not_specialize=["T", "num_chunks", "num_tasks", "width"])
def score_chunk(
    q_ptr,
    k_ptr,
    g_ptr,
    beta_ptr,
    anchors_ptr,
    upper_ptr,
    pairs_ptr,
    lower_ptr,
    diagonal_ptr,
    cu_seqlens_ptr,
    chunk_indices_ptr,
    Aqk_ptr,
    system_ptr,
    qg_ptr,
    ke_ptr,
    kg_ptr,
    scale,
    T,
    num_chunks,
    num_tasks,
    width,
    q_stride_b,
    q_stride_h,
    k_stride_b,
    k_stride_h,
    g_stride_b,
    g_stride_h,
    beta_stride_b,
    beta_stride_h,
    HV: tl.constexpr,
    GROUP: tl.constexpr,
    K: tl.constexpr,
    C: tl.constexpr,
    Q_STRIDE_T: tl.constexpr,
    K_STRIDE_T: tl.constexpr,
    G_STRIDE_T: tl.constexpr,
    BETA_STRIDE_T: tl.constexpr,
    LEVELS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    HAS_QG: tl.constexpr,
    PADDED: tl.constexpr,
    PAIRS: tl.constexpr,
    PACKED: tl.constexpr,
    FILL: tl.constexpr,
):
    """Aqk; system [chunks, HV, C, C] fp32, above its diagonal -beta_i sum_d k_i k_j D_ij at (j, i),
    elsewhere 0; and q, k times decays. Task: (chunk, value head).

    PADDED: for output_states, qg = scale q 2^G, ke = k 2^G and kg = k 2^(G_last - G), each [chunks,
    HV, C, K in full tiles] with zeros behind a short chunk's end and behind K. Else results: kg
    and, if HAS_QG, qg = q 2^G, [B, T, HV, K]. PAIRS: two levels at a time. width: K, see
    level_gradients.
    """
    DTYPE: tl.constexpr = k_ptr.dtype.element_ty
    FULL_K: tl.constexpr = K % BLOCK_K == 0
    WIDE: tl.constexpr = (K + BLOCK_K - 1) // BLOCK_K * BLOCK_K
    ALONE: tl.constexpr = LEVELS // 2 * 2 if PAIRS else 0  # the first that has no partner
    lane_t = tl.arange(0, C)
    lane_c = tl.arange(0, C)
    lane_k = tl.arange(0, BLOCK_K)
    at = lane_t[:, None] * C + lane_c[None, :]
    for task in range(tl.program_id(0), num_tasks, tl.num_programs(0)):
        hv64 = tl.cast(task % HV, tl.int64)
        h64 = tl.cast(task % HV // GROUP, tl.int64)
        chunk = task // HV
        b, first, rows = dense_or_packed_chunk(
            chunk, cu_seqlens_ptr, chunk_indices_ptr, T, num_chunks, C, PACKED
        )
        row = (b * T + first) * HV + hv64
        tile = tl.cast(chunk, tl.int64) * HV + hv64
        q_base = q_ptr + b * q_stride_b + h64 * q_stride_h + first * Q_STRIDE_T
        k_base = k_ptr + b * k_stride_b + h64 * k_stride_h + first * K_STRIDE_T
        g_base = g_ptr + b * g_stride_b + hv64 * g_stride_h + first * G_STRIDE_T
        beta_base = beta_ptr + b * beta_stride_b + hv64 * beta_stride_h + first * BETA_STRIDE_T
        sums = tl.zeros((C, C), tl.float32)
        on = tl.zeros((C,), tl.float32)  # a token with itself has no decay
        for first_k in tl.static_range(0, K, BLOCK_K):
            q = load_tile(q_base, rows, lane_t, lane_k, first_k, K, Q_STRIDE_T, FULL_K, FILL)
            k = load_tile(k_base, rows, lane_t, lane_k, first_k, K, K_STRIDE_T, FULL_K, FILL)
            g = load_tile(g_base, rows, lane_t, lane_k, first_k, K, G_STRIDE_T, FULL_K, FILL)
            q = q.to(tl.float32)
            k = k.to(tl.float32)
            on += tl.sum(q * k, 1)
            if PAIRS:
                for pair in range(0, LEVELS // 2):
                    # What waits for nothing comes first, then all operands leave the vector cores
                    # before the first product is waited for.
                    e0 = level_exponents(anchors_ptr, g, 2 * pair, at, C)
                    e1 = level_exponents(anchors_ptr, g, 2 * pair + 1, at, C)
                    z0, x0 = _operands(e0, upper_ptr, q, k, 2 * pair, lane_t, C, DTYPE)
                    z1, x1 = _operands(e1, upper_ptr, q, k, 2 * pair + 1, lane_t, C, DTYPE)
                    sums += _product(z0, x0, pairs_ptr, 2 * pair, at, C)
                    sums += _product(z1, x1, pairs_ptr, 2 * pair + 1, at, C)
            if ALONE < LEVELS:
                for level in range(ALONE, LEVELS):
                    e0 = level_exponents(anchors_ptr, g, level, at, C)
                    z0, x0 = _operands(e0, upper_ptr, q, k, level, lane_t, C, DTYPE)
                    sums += _product(z0, x0, pairs_ptr, level, at, C)
            e = power_of_2(g)
            g_last = load_last_row(g_base, rows, lane_k, first_k, width, G_STRIDE_T)
            kg = k * decay(g_last[None, :] - g)
            if PADDED:
                out = tile * (C * WIDE) + lane_t[:, None] * WIDE + (first_k + lane_k)[None, :]
                tl.store(qg_ptr + out, (q * (e * scale)).to(DTYPE))
                tl.store(ke_ptr + out, (k * e).to(DTYPE))
                tl.store(kg_ptr + out, kg.to(DTYPE))
            else:
                out = row * K
                store_tile(kg_ptr + out, kg, rows, lane_t, lane_k, first_k, width, HV * K, FULL_K)
                if HAS_QG:
                    store_tile(
                        qg_ptr + out, q * e, rows, lane_t, lane_k, first_k, width, HV * K, FULL_K
                    )
        sums = tl.where(load_matrix(diagonal_ptr, lane_t, lane_c, C) > 0.0, on[:, None], sums)
        lower = load_matrix(lower_ptr, lane_t, lane_c, C)
        # Chosen, not multiplied by 0 or 1: a q that is no number reaches no other token.
        aqk = tl.where(lower > 0.0, sums, 0.0) * scale
        store_tile(Aqk_ptr + row * C, aqk, rows, lane_t, lane_c, 0, C, HV * C, True)
        beta = load_rows(beta_base, rows, lane_c, BETA_STRIDE_T)[None, :]
        system = tl.where(lower > 0.0, 0.0, sums) * beta * -1.0
        tl.store(system_ptr + tile * (C * C) + at, system)


@triton.jit(do_not_specialize=["T", "num_chunks", "num_tasks"])
def solve_chunk(
    system_ptr,
    pairs_ptr,
    diagonal_ptr,
    cu_seqlens_ptr,
    chunk_indices_ptr,
    Akk_ptr,
    T,
    num_chunks,
    num_tasks,
    HV: tl.constexpr,
    C: tl.constexpr,
    LEVELS: tl.constexpr,
    PACKED: tl.constexpr,
):
    """Akk, the transpose of (I - system)^-1. Task: (chunk, value head).

    By halves: of [[A, -B], [0, D]] the inverse has A^-1 B D^-1 above. Level l joins all pairs of
    blocks of 2^l rows at once: with x the inverse of what is inside blocks, and B the entries of
    system of level l, x + x B x is that of twice the size. x in the sum is a product with the unit
    matrix, so that it stays in the cube core's accumulator: the levels after the first wait for no
    vector core.
    """
    DTYPE: tl.constexpr = Akk_ptr.dtype.element_ty
    lane_t = tl.arange(0, C)
    lane_c = tl.arange(0, C)
    identity = load_matrix(diagonal_ptr, lane_t, lane_c, C)
    for task in range(tl.program_id(0), num_tasks, tl.num_programs(0)):
        hv64 = tl.cast(task % HV, tl.int64)
        chunk = task // HV
        b, first, rows = dense_or_packed_chunk(
            chunk, cu_seqlens_ptr, chunk_indices_ptr, T, num_chunks, C, PACKED
        )
        at = (tl.cast(chunk, tl.int64) * HV + hv64) * (C * C)
        system = load_matrix(system_ptr + at, lane_t, lane_c, C)
        x = identity + system * load_matrix(pairs_ptr, lane_t, lane_c, C).to(tl.float32)
        # Unrolled: arch32's compiler loses a product that the next turn of a loop multiplies.
        for level in tl.static_range(1, LEVELS):
            pairs = load_matrix(pairs_ptr + level * (C * C), lane_t, lane_c, C).to(tl.float32)
            step = tl.dot(x, system * pairs, input_precision="ieee")
            if level < LEVELS - 1:
                same = tl.dot(x, identity, input_precision="ieee")
                x = tl.dot(step, x, same, input_precision="ieee")
            else:
                same = tl.dot(tl.trans(x), identity, input_precision="ieee")
                akk = tl.dot(tl.trans(x), tl.trans(step), same, input_precision="ieee")
                base = Akk_ptr + ((b * T + first) * HV + hv64) * C
                store_tile(base, akk.to(DTYPE), rows, lane_t, lane_c, 0, C, HV * C, True)


@triton.jit(do_not_specialize=["T", "num_chunks", "num_tasks", "width"])
def wu_chunk(
    k_ptr,
    v_ptr,
    g_ptr,
    beta_ptr,
    Akk_ptr,
    cu_seqlens_ptr,
    chunk_indices_ptr,
    w_ptr,
    u_ptr,
    T,
    num_chunks,
    num_tasks,
    width,
    k_stride_b,
    k_stride_h,
    v_stride_b,
    v_stride_h,
    g_stride_b,
    g_stride_h,
    beta_stride_b,
    beta_stride_h,
    HV: tl.constexpr,
    GROUP: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    C: tl.constexpr,
    K_STRIDE_T: tl.constexpr,
    V_STRIDE_T: tl.constexpr,
    G_STRIDE_T: tl.constexpr,
    BETA_STRIDE_T: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    PACKED: tl.constexpr,
    FILL: tl.constexpr,
):
    """w = Akk beta k 2^G and u = Akk beta v. Akk: as solve_chunk leaves it. Task: (chunk, value
    head). width: K, see level_gradients."""
    DTYPE: tl.constexpr = k_ptr.dtype.element_ty
    FULL_K: tl.constexpr = K % BLOCK_K == 0
    FULL_V: tl.constexpr = V % BLOCK_V == 0
    lane_t = tl.arange(0, C)
    lane_c = tl.arange(0, C)
    lane_k = tl.arange(0, BLOCK_K)
    lane_v = tl.arange(0, BLOCK_V)
    for task in range(tl.program_id(0), num_tasks, tl.num_programs(0)):
        hv64 = tl.cast(task % HV, tl.int64)
        h64 = tl.cast(task % HV // GROUP, tl.int64)
        b, first, rows = dense_or_packed_chunk(
            task // HV, cu_seqlens_ptr, chunk_indices_ptr, T, num_chunks, C, PACKED
        )
        row = (b * T + first) * HV + hv64
        k_base = k_ptr + b * k_stride_b + h64 * k_stride_h + first * K_STRIDE_T
        v_base = v_ptr + b * v_stride_b + hv64 * v_stride_h + first * V_STRIDE_T
        g_base = g_ptr + b * g_stride_b + hv64 * g_stride_h + first * G_STRIDE_T
        beta_base = beta_ptr + b * beta_stride_b + hv64 * beta_stride_h + first * BETA_STRIDE_T
        beta = load_rows(beta_base, rows, lane_t, BETA_STRIDE_T)[:, None]
        akk = load_tile(Akk_ptr + row * C, rows, lane_t, lane_c, 0, C, HV * C, True, False)
        for first_k in tl.static_range(0, K, BLOCK_K):
            k = load_tile(k_base, rows, lane_t, lane_k, first_k, K, K_STRIDE_T, FULL_K, FILL)
            g = load_tile(g_base, rows, lane_t, lane_k, first_k, K, G_STRIDE_T, FULL_K, FILL)
            ke = (k.to(tl.float32) * power_of_2(g) * beta).to(DTYPE)
            w = tl.dot(akk, ke, input_precision="ieee")
            store_tile(w_ptr + row * K, w, rows, lane_t, lane_k, first_k, width, HV * K, FULL_K)
        for first_v in tl.static_range(0, V, BLOCK_V):
            v = load_tile(v_base, rows, lane_t, lane_v, first_v, V, V_STRIDE_T, FULL_V, FILL)
            v = (v.to(tl.float32) * beta).to(DTYPE)
            u = tl.dot(akk, v, input_precision="ieee")
            store_tile(u_ptr + row * V, u, rows, lane_t, lane_v, first_v, V, HV * V, FULL_V)
