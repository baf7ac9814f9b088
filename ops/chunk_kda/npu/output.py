"""The forward's serial pass over a sequence: states, and the outputs that read them."""

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
def output_states(
    qg_ptr,
    ke_ptr,
    kg_ptr,
    Aqk_ptr,
    Akk_ptr,
    v_ptr,
    g_ptr,
    beta_ptr,
    h0_ptr,
    cu_seqlens_ptr,
    chunk_offsets_ptr,
    o_ptr,
    final_state_ptr,
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
    HAS_FINAL_STATE: tl.constexpr,
    PACKED: tl.constexpr,
    FILL: tl.constexpr,
):
    """o = qg h + Aqk v_new with v_new = Akk beta (v - ke h), and the last states. qg, ke, kg: as
    score_chunk pads them. Task: (sequence, value head, V tile).

    With scale in qg both sums of o stay in the cube core's accumulator, which leaves it as o.
    """
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
        state_at = (tl.cast(n, tl.int64) * HV + hv64) * (K * V)
        state = tl.zeros((BLOCK_K, BLOCK_V), tl.float32)
        if HAS_H0:
            state += load_state(h0_ptr + state_at, rows_k, 0, lane_v, first_v, K, V, FULL_V, False)
        for c in range(0, tl.cdiv(length, C)):
            rows = tl.minimum(length - c * C, C)
            token = first + tl.cast(c, tl.int64) * C
            tile = (chunk + c) * HV + hv64
            row = (b * T + token) * HV + hv64
            before = state.to(DTYPE)
            g_last = load_last_row(g_head + token * G_STRIDE_T, rows, rows_k, 0, K, G_STRIDE_T)
            beta = load_rows(beta_head + token * BETA_STRIDE_T, rows, lane_t, BETA_STRIDE_T)
            ke = load_matrix(ke_ptr + tile * (C * BLOCK_K), lane_t, lane_k, BLOCK_K)
            kg = load_matrix(kg_ptr + tile * (C * BLOCK_K), lane_t, lane_k, BLOCK_K)
            qg = load_matrix(qg_ptr + tile * (C * BLOCK_K), lane_t, lane_k, BLOCK_K)
            akk = load_tile(Akk_ptr + row * C, rows, lane_t, lane_c, 0, C, HV * C, True, False)
            aqk = load_tile(Aqk_ptr + row * C, rows, lane_t, lane_c, 0, C, HV * C, True, False)
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
            x = tl.dot(ke, before, input_precision="ieee")
            o = tl.dot(qg, before, input_precision="ieee")
            z = ((v - x) * beta[:, None]).to(DTYPE)
            v_new = tl.dot(akk, z, input_precision="ieee")
            # Rows that a product did not compute are not zero.
            v_new = tl.where((lane_t < rows)[:, None], v_new, 0.0).to(DTYPE)
            written = tl.dot(tl.trans(kg), v_new, input_precision="ieee")
            state = state * power_of_2(g_last)[:, None] + written
            o = tl.dot(aqk, v_new, o, input_precision="ieee")
            store_tile(o_ptr + row * V, o, rows, lane_t, lane_v, first_v, V, HV * V, FULL_V)
        if HAS_FINAL_STATE:
            store_tile(final_state_ptr + state_at, state, K, rows_k, lane_v, first_v, V, V, FULL_V)
