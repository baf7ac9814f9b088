"""What the forward computes inside each chunk: both score matrices, the inverse of one of them, and
what the scan over chunks multiplies with states.

Two launches, because together they are slower: 0.42 ms instead of 0.28 and 0.10 (H200, T 8192, 32
heads, K = V = 128, bf16). With the gate's sum computed in the first it takes 0.59, so that is a
launch of its own too (0.07).
"""

import triton
import triton.language as tl

from ops.chunk_kda.tile import (
    dense_or_packed_chunk,
    level_pairs,
    load_anchors,
    load_last_row,
    load_tile,
    store_tile,
    tasks_of_program,
)


@triton.jit(do_not_specialize=["T", "num_chunks", "num_tasks"])
def pair_scores(
    q_ptr,
    k_ptr,
    cu_seqlens_ptr,
    chunk_indices_ptr,
    g_ptr,
    pairs_ptr,
    qg_ptr,
    ke_ptr,
    kg_ptr,
    T,
    num_chunks,
    num_tasks,
    q_stride_b,
    q_stride_h,
    k_stride_b,
    k_stride_h,
    g_stride_b,
    g_stride_h,
    HV: tl.constexpr,
    GROUP: tl.constexpr,
    K: tl.constexpr,
    C: tl.constexpr,
    Q_STRIDE_T: tl.constexpr,
    K_STRIDE_T: tl.constexpr,
    G_STRIDE_T: tl.constexpr,
    BLOCK_K: tl.constexpr,
    LEVELS: tl.constexpr,
    HAS_QG: tl.constexpr,
    HAS_KE: tl.constexpr,
    ONE_TASK: tl.constexpr,
    PACKED: tl.constexpr,
    FP32_DOTS: tl.constexpr,
    TF32X3: tl.constexpr,
):
    """pairs [B, T, HV, C] fp32: sum_d q_i k_j D_ij for i >= j, and above the diagonal, at (j, i),
    sum_d k_i k_j D_ij; kg = k 2^(G_last - G) and, if HAS_QG and HAS_KE, qg = qE and ke = kE. Task:
    (chunk, value head). LEVELS: log2 C."""
    K_TILES: tl.constexpr = (K + BLOCK_K - 1) // BLOCK_K
    DOT: tl.constexpr = tl.float32 if FP32_DOTS else k_ptr.dtype.element_ty
    PRECISION: tl.constexpr = "tf32x3" if TF32X3 else "ieee"
    lane_t = tl.arange(0, C)
    lane_c = tl.arange(0, C)
    lane_n = tl.arange(0, C // 2)  # neighbours, rows 2 n and 2 n + 1
    for i in range(0, tasks_of_program(num_tasks, ONE_TASK)):
        task = tl.program_id(0) + i * tl.num_programs(0)
        hv64 = tl.cast(task % HV, tl.int64)
        h64 = tl.cast((task % HV) // GROUP, tl.int64)
        b, first, rows = dense_or_packed_chunk(
            task // HV, cu_seqlens_ptr, chunk_indices_ptr, T, num_chunks, C, PACKED
        )
        row = (b * T + first) * HV + hv64
        q_base = q_ptr + b * q_stride_b + h64 * q_stride_h + first * Q_STRIDE_T
        k_base = k_ptr + b * k_stride_b + h64 * k_stride_h + first * K_STRIDE_T
        g_base = g_ptr + b * g_stride_b + hv64 * g_stride_h + first * G_STRIDE_T
        pairs = tl.zeros((C, C), dtype=tl.float32)
        on = tl.zeros((C,), dtype=tl.float32)  # a token with itself has no decay
        neighbours_qk = tl.zeros((C // 2,), dtype=tl.float32)
        neighbours_kk = tl.zeros((C // 2,), dtype=tl.float32)
        for k_tile in range(0, K_TILES):
            lane_k = k_tile * BLOCK_K + tl.arange(0, BLOCK_K)
            # Level 0 has one pair in a row: sums of half as many rows are cheaper than a product
            # (0.28 ms instead of 0.31).
            g = load_tile(g_base, rows // 2, lane_n, lane_k, K, 2 * G_STRIDE_T).to(tl.float32)
            later = g_base + G_STRIDE_T
            g_later = load_tile(later, rows // 2, lane_n, lane_k, K, 2 * G_STRIDE_T).to(tl.float32)
            k = load_tile(k_base, rows // 2, lane_n, lane_k, K, 2 * K_STRIDE_T).to(tl.float32)
            decayed = tl.exp2(g_later - g) * k
            later = k_base + K_STRIDE_T
            k_later = load_tile(later, rows // 2, lane_n, lane_k, K, 2 * K_STRIDE_T).to(tl.float32)
            neighbours_kk += tl.sum(k_later * decayed, 1)
            later = q_base + Q_STRIDE_T
            q_later = load_tile(later, rows // 2, lane_n, lane_k, K, 2 * Q_STRIDE_T).to(tl.float32)
            neighbours_qk += tl.sum(q_later * decayed, 1)

            g = load_tile(g_base, rows, lane_t, lane_k, K, G_STRIDE_T).to(tl.float32)
            g_last = load_last_row(g_base, rows, lane_k, K, G_STRIDE_T).to(tl.float32)
            q = load_tile(q_base, rows, lane_t, lane_k, K, Q_STRIDE_T).to(tl.float32)
            k = load_tile(k_base, rows, lane_t, lane_k, K, K_STRIDE_T).to(tl.float32)
            if HAS_QG:
                store_tile(qg_ptr + row * K, q * tl.exp2(g), rows, lane_t, lane_k, K, HV * K)
            if HAS_KE:
                store_tile(ke_ptr + row * K, k * tl.exp2(g), rows, lane_t, lane_k, K, HV * K)
            kg = k * tl.exp2(g_last[None, :] - g)
            store_tile(kg_ptr + row * K, kg, rows, lane_t, lane_k, K, HV * K)
            on += tl.sum(q * k, 1)
            for level in range(1, LEVELS):
                # D_ij = F_i F_j for i in the upper and j in the lower half of a group; both are at
                # most 1, whatever the gates.
                upper = (((lane_t >> level) & 1) == 1)[:, None]
                g_anchor = load_anchors(g_base, rows, lane_t, lane_k, K, G_STRIDE_T, level)
                f = tl.exp2(tl.where(upper, g - g_anchor, g_anchor - g))
                x = (f * k).to(DOT)
                z = (f * tl.where(upper, q, k)).to(DOT)
                product = tl.dot(z, tl.trans(x), input_precision=PRECISION)
                pairs += tl.where(level_pairs(lane_t, C, level), product, 0.0)
        pairs = tl.where(lane_t[:, None] == lane_c[None, :], on[:, None], pairs)
        odd = (lane_t & 1) == 1
        neighbours = tl.where(
            odd,
            tl.interleave(neighbours_qk, neighbours_qk),
            tl.interleave(neighbours_kk, neighbours_kk),
        )
        pairs = tl.where(level_pairs(lane_t, C, 0), neighbours[:, None], pairs)
        store_tile(pairs_ptr + row * C, pairs, rows, lane_t, lane_c, C, HV * C)


@triton.jit
def inverse(
    blocks,
    lower,
    lane_t,
    C: tl.constexpr,
    LEVELS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """(I + lower)^-1, [C, C] fp32, of a strictly lower triangular matrix, by halves.

    Of [[A, 0], [B, D]] the inverse has -D^-1 B A^-1 below. Level l joins all pairs of blocks of 2^l
    rows at once: with x the inverse of what is inside blocks, and B the entries of pairs of level
    l, x - x B x is that of twice the size. blocks [C / 16, 16, 16] are those on the diagonal, for
    the first levels: [C, C] products have nine times as many zeros.
    """
    BLOCKS: tl.constexpr = C // 16
    row = tl.arange(0, 16)[None, :, None]
    column = tl.arange(0, 16)[None, None, :]
    differ = row ^ column
    x = tl.where(differ == 0, 1.0, 0.0) - tl.where(differ == 1, blocks, 0.0)
    for level in range(1, 4):
        between = tl.where((differ >> level) == 1, blocks, 0.0)
        step = tl.dot(x, between, input_precision=PRECISION)
        x -= tl.dot(step, x, input_precision=PRECISION)
    block = tl.arange(0, BLOCKS)
    same = block[:, None, None, None] == block[None, None, :, None]
    x = tl.reshape(tl.where(same, tl.expand_dims(x, 2), 0.0), (C, C))
    for level in range(4, LEVELS):
        between = tl.where(level_pairs(lane_t, C, level), lower, 0.0)
        step = tl.dot(x, between, input_precision=PRECISION)
        x -= tl.dot(step, x, input_precision=PRECISION)
    return x


@triton.jit(do_not_specialize=["T", "num_chunks", "num_tasks"])
def solve(
    k_ptr,
    v_ptr,
    g_ptr,
    beta_ptr,
    pairs_ptr,
    cu_seqlens_ptr,
    chunk_indices_ptr,
    Aqk_ptr,
    Akk_ptr,
    w_ptr,
    u_ptr,
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
    HV: tl.constexpr,
    GROUP: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    C: tl.constexpr,
    K_STRIDE_T: tl.constexpr,
    V_STRIDE_T: tl.constexpr,
    G_STRIDE_T: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    LEVELS: tl.constexpr,
    HAS_W: tl.constexpr,
    ONE_TASK: tl.constexpr,
    PACKED: tl.constexpr,
    FP32_DOTS: tl.constexpr,
    TF32X3: tl.constexpr,
    SOLVE: tl.constexpr,
):
    """Aqk, Akk and, if HAS_W, w = Akk beta kE and u = Akk beta v. Task: (chunk, value head). pairs:
    as pair_scores writes them. LEVELS: log2 C. SOLVE: the precision of the inverse's products."""
    K_TILES: tl.constexpr = (K + BLOCK_K - 1) // BLOCK_K
    V_TILES: tl.constexpr = (V + BLOCK_V - 1) // BLOCK_V
    DOT: tl.constexpr = tl.float32 if FP32_DOTS else k_ptr.dtype.element_ty
    PRECISION: tl.constexpr = "tf32x3" if TF32X3 else "ieee"
    lane_t = tl.arange(0, C)
    lane_c = tl.arange(0, C)
    # Entry (row, column) of the blocks on the diagonal.
    block = tl.arange(0, C // 16)[:, None, None] * 16
    block_row = block + tl.arange(0, 16)[None, :, None]
    block_column = block + tl.arange(0, 16)[None, None, :]
    for i in range(0, tasks_of_program(num_tasks, ONE_TASK)):
        task = tl.program_id(0) + i * tl.num_programs(0)
        hv64 = tl.cast(task % HV, tl.int64)
        h64 = tl.cast((task % HV) // GROUP, tl.int64)
        b, first, rows = dense_or_packed_chunk(
            task // HV, cu_seqlens_ptr, chunk_indices_ptr, T, num_chunks, C, PACKED
        )
        row = (b * T + first) * HV + hv64
        k_base = k_ptr + b * k_stride_b + h64 * k_stride_h + first * K_STRIDE_T
        v_base = v_ptr + b * v_stride_b + hv64 * v_stride_h + first * V_STRIDE_T
        g_base = g_ptr + b * g_stride_b + hv64 * g_stride_h + first * G_STRIDE_T
        beta_base = beta_ptr + b * beta_stride_b + hv64 * beta_stride_h + first * beta_stride_t
        beta = tl.load(beta_base + lane_t * beta_stride_t, mask=lane_t < rows, other=0.0)
        beta = beta.to(tl.float32)

        pairs = load_tile(pairs_ptr + row * C, rows, lane_t, lane_c, C, HV * C)
        aqk = tl.where(lane_t[:, None] >= lane_c[None, :], pairs, 0.0) * scale
        store_tile(Aqk_ptr + row * C, aqk, rows, lane_t, lane_c, C, HV * C)
        lower = tl.where(lane_t[:, None] > lane_c[None, :], tl.trans(pairs), 0.0) * beta[:, None]
        below = (block_row > block_column) & (block_row < rows)
        ptrs = pairs_ptr + row * C + block_column * (HV * C) + block_row
        blocks = tl.load(ptrs, mask=below, other=0.0)
        ptrs = beta_base + block_row * beta_stride_t
        blocks *= tl.load(ptrs, mask=block_row < rows, other=0.0).to(tl.float32)
        akk = inverse(blocks, lower, lane_t, C, LEVELS, SOLVE)
        store_tile(Akk_ptr + row * C, akk, rows, lane_t, lane_c, C, HV * C)
        if HAS_W:
            akk = akk.to(DOT)
            for k_tile in range(0, K_TILES):
                lane_k = k_tile * BLOCK_K + tl.arange(0, BLOCK_K)
                g = load_tile(g_base, rows, lane_t, lane_k, K, G_STRIDE_T).to(tl.float32)
                k = load_tile(k_base, rows, lane_t, lane_k, K, K_STRIDE_T).to(tl.float32)
                k_in = (k * tl.exp2(g) * beta[:, None]).to(DOT)
                w = tl.dot(akk, k_in, input_precision=PRECISION)
                store_tile(w_ptr + row * K, w, rows, lane_t, lane_k, K, HV * K)
            for v_tile in range(0, V_TILES):
                lane_v = v_tile * BLOCK_V + tl.arange(0, BLOCK_V)
                v = load_tile(v_base, rows, lane_t, lane_v, V, V_STRIDE_T).to(tl.float32)
                u = tl.dot(akk, (v * beta[:, None]).to(DOT), input_precision=PRECISION)
                store_tile(u_ptr + row * V, u, rows, lane_t, lane_v, V, HV * V)
