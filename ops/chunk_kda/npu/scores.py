"""Gradients of a chunk's scores, ready for the products of each level."""

import triton
import triton.language as tl

from ops.chunk_kda.npu.tile import load_matrix, load_rows, load_tile, store_state_products
from ops.chunk_kda.tile import dense_or_packed_chunk


@triton.jit
def _products(
    do_base,
    v_new_base,
    y_base,
    rows,
    lane_t,
    lane_v,
    first_v,
    V: tl.constexpr,
    HV: tl.constexpr,
    DO_STRIDE_T: tl.constexpr,
    V_NEW_STRIDE_T: tl.constexpr,
    FULL_V: tl.constexpr,
    FILL: tl.constexpr,
):
    """do v_new^T and y v_new^T of one V tile, each with its transpose."""
    do = load_tile(do_base, rows, lane_t, lane_v, first_v, V, DO_STRIDE_T, FULL_V, FILL)
    v_new = load_tile(v_new_base, rows, lane_t, lane_v, first_v, V, V_NEW_STRIDE_T, FULL_V, FILL)
    y = load_tile(y_base, rows, lane_t, lane_v, first_v, V, HV * V, FULL_V, FILL)
    # A transpose on the vector cores would cost more than the second product.
    return (
        tl.dot(do, tl.trans(v_new), input_precision="ieee"),
        tl.dot(v_new, tl.trans(do), input_precision="ieee"),
        tl.dot(y, tl.trans(v_new), input_precision="ieee"),
        tl.dot(v_new, tl.trans(y), input_precision="ieee"),
    )


@triton.jit(do_not_specialize=["T", "num_chunks", "first_chunk", "num_tasks"])
def level_scores(
    beta_ptr,
    do_ptr,
    v_new_ptr,
    y_ptr,
    h_ptr,
    dh_ptr,
    pairs_ptr,
    below_ptr,
    diagonal_ptr,
    numbers_ptr,
    cu_seqlens_ptr,
    chunk_indices_ptr,
    masked_ptr,
    on_ptr,
    h_dh_ptr,
    scale,
    T,
    num_chunks,
    first_chunk,
    num_tasks,
    beta_stride_b,
    beta_stride_h,
    do_stride_b,
    do_stride_h,
    v_new_stride_b,
    v_new_stride_h,
    HV: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    C: tl.constexpr,
    BETA_STRIDE_T: tl.constexpr,
    DO_STRIDE_T: tl.constexpr,
    V_NEW_STRIDE_T: tl.constexpr,
    LEVELS: tl.constexpr,
    BLOCK_V: tl.constexpr,
    STATE_ROWS: tl.constexpr,
    STATE_BLOCK: tl.constexpr,
    CUBES: tl.constexpr,
    PACKED: tl.constexpr,
    FILL: tl.constexpr,
):
    """masked, [chunks of the launch, HV, 2, LEVELS, C, C]: the matrices below, times each level's
    pairs. h_dh: sums of h dh over V. Task: (chunk from first_chunk on, value head).

    With P the gradient of Aqk and N that of Akk below its diagonal: the first matrix is P there and
    on the diagonal, which is also stored as `on`, and P^T above; the second is N and (beta N)^T.
    CUBES: all levels at once, as tensors of three axes.
    """
    DTYPE: tl.constexpr = masked_ptr.dtype.element_ty
    FULL_V: tl.constexpr = V % BLOCK_V == 0
    lane_t = tl.arange(0, C)
    lane_c = tl.arange(0, C)
    lane_v = tl.arange(0, BLOCK_V)
    below = load_matrix(below_ptr, lane_t, lane_c, C)
    for task in range(tl.program_id(0), num_tasks, tl.num_programs(0)):
        hv64 = tl.cast(task % HV, tl.int64)
        slot = task // HV
        chunk = first_chunk + slot
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
        do_base = do_ptr + b * do_stride_b + hv64 * do_stride_h + first * DO_STRIDE_T
        v_new_base = v_new_ptr + b * v_new_stride_b + hv64 * v_new_stride_h
        v_new_base += first * V_NEW_STRIDE_T
        beta_base = beta_ptr + b * beta_stride_b + hv64 * beta_stride_h + first * BETA_STRIDE_T
        y_base = y_ptr + row * V
        beta = load_rows(beta_base, rows, lane_c, BETA_STRIDE_T)[None, :]
        p, p_t, n, n_t = _products(
            do_base,
            v_new_base,
            y_base,
            rows,
            lane_t,
            lane_v,
            0,
            V,
            HV,
            DO_STRIDE_T,
            V_NEW_STRIDE_T,
            FULL_V,
            FILL,
        )
        if V > BLOCK_V:
            for first_v in tl.static_range(BLOCK_V, V, BLOCK_V):
                more_p, more_p_t, more_n, more_n_t = _products(
                    do_base,
                    v_new_base,
                    y_base,
                    rows,
                    lane_t,
                    lane_v,
                    first_v,
                    V,
                    HV,
                    DO_STRIDE_T,
                    V_NEW_STRIDE_T,
                    FULL_V,
                    FILL,
                )
                p += more_p
                p_t += more_p_t
                n += more_n
                n_t += more_n_t
        n_t = n_t * beta
        p = (p * below + p_t * (1.0 - below)) * scale
        n = (n * below + n_t * (1.0 - below)) * -1.0
        # Products leave columns behind a short chunk's end as they were, and NaN times 0 is NaN.
        inside = (tl.load(numbers_ptr + lane_c) < rows.to(tl.float32))[None, :]
        p = tl.where(inside, p, 0.0)
        n = tl.where(inside, n, 0.0)
        on = tl.sum(p * load_matrix(diagonal_ptr, lane_t, lane_c, C), 1)
        tl.store(on_ptr + row + lane_t * HV, on, mask=lane_t < rows)
        out = masked_ptr + (tl.cast(slot, tl.int64) * HV + hv64) * (2 * LEVELS * C * C)
        if CUBES:
            level = tl.arange(0, LEVELS)[:, None, None] * (C * C)
            at = level + lane_t[None, :, None] * C + lane_c[None, None, :]
            pairs = tl.load(pairs_ptr + at).to(tl.float32)
            tl.store(out + at, (p[None, :, :] * pairs).to(DTYPE))
            tl.store(out + LEVELS * C * C + at, (n[None, :, :] * pairs).to(DTYPE))
        else:
            for level in range(0, LEVELS):
                at = level * (C * C) + lane_t[:, None] * C + lane_c[None, :]
                pairs = tl.load(pairs_ptr + at).to(tl.float32)
                tl.store(out + at, (p * pairs).to(DTYPE))
                tl.store(out + LEVELS * C * C + at, (n * pairs).to(DTYPE))
