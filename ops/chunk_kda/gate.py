"""The gate that chunk_kda computes itself: its cumulative sum, its gradient. Its formulas are those
of ops.common.kda_gate, with g_org for g."""

import triton
import triton.language as tl

from ops.chunk_kda.tile import dense_or_packed_chunk, load_tile, store_tile, tasks_of_program
from ops.common.kda_gate import MIN_GATE, gate_gradient, gate_rate, gate_value

INV_LN2 = tl.constexpr(1.4426950408889634)


@triton.jit
def load_gate_input(
    base, dt_bias_ptr, hv, rows, lane_t, lane_k, K, STRIDE_T: tl.constexpr, HAS_BIAS: tl.constexpr
):
    """y, [C, BLOCK_K] fp32."""
    y = load_tile(base, rows, lane_t, lane_k, K, STRIDE_T).to(tl.float32)
    if HAS_BIAS:
        y += tl.load(dt_bias_ptr + hv * K + lane_k, mask=lane_k < K, other=0.0)[None, :]
    return y


@triton.jit(do_not_specialize=["T", "num_chunks", "num_tasks"])
def cumulative_gate(
    g_org_ptr,
    A_log_ptr,
    dt_bias_ptr,
    cu_seqlens_ptr,
    chunk_indices_ptr,
    g_ptr,
    lower_bound,
    T,
    num_chunks,
    num_tasks,
    g_org_stride_b,
    g_org_stride_h,
    HV: tl.constexpr,
    K: tl.constexpr,
    C: tl.constexpr,
    G_ORG_STRIDE_T: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GATE: tl.constexpr,
    HAS_A_LOG: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ONE_TASK: tl.constexpr,
    PACKED: tl.constexpr,
):
    """G [B, T, HV, K] fp32: the sum of the gate, at least MIN_GATE a step, from the chunk's first
    token on, in base-2 units. Task: (chunk, value head, K tile)."""
    K_TILES: tl.constexpr = (K + BLOCK_K - 1) // BLOCK_K
    lane_t = tl.arange(0, C)
    for i in range(0, tasks_of_program(num_tasks, ONE_TASK)):
        task = tl.program_id(0) + i * tl.num_programs(0)
        hv64 = tl.cast((task // K_TILES) % HV, tl.int64)
        lane_k = (task % K_TILES) * BLOCK_K + tl.arange(0, BLOCK_K)
        b, first, rows = dense_or_packed_chunk(
            task // (K_TILES * HV), cu_seqlens_ptr, chunk_indices_ptr, T, num_chunks, C, PACKED
        )
        base = g_org_ptr + b * g_org_stride_b + hv64 * g_org_stride_h + first * G_ORG_STRIDE_T
        rate = gate_rate(A_log_ptr, hv64, HAS_A_LOG)
        y = load_gate_input(
            base, dt_bias_ptr, hv64, rows, lane_t, lane_k, K, G_ORG_STRIDE_T, HAS_BIAS
        )
        g = gate_value(y, rate, lower_bound, GATE)
        g = tl.where(g < MIN_GATE, MIN_GATE, g) * INV_LN2  # NaN stays
        row = (b * T + first) * HV + hv64
        # 0.069 ms on an H200; 0.088 as a product with ones.
        store_tile(g_ptr + row * K, tl.cumsum(g, 0), rows, lane_t, lane_k, K, HV * K)


@triton.jit(do_not_specialize=["T", "num_chunks", "num_tasks"])
def gate_backward(
    g_org_ptr,
    A_log_ptr,
    dt_bias_ptr,
    dgate_ptr,
    cu_seqlens_ptr,
    chunk_indices_ptr,
    dg_ptr,
    dA_log_ptr,
    ddt_bias_ptr,
    lower_bound,
    T,
    num_chunks,
    num_tasks,
    g_org_stride_b,
    g_org_stride_h,
    HV: tl.constexpr,
    K: tl.constexpr,
    C: tl.constexpr,
    G_ORG_STRIDE_T: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GATE: tl.constexpr,
    HAS_A_LOG: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    PACKED: tl.constexpr,
):
    """The gradient of g_org, from that of the gate, for kernels that leave this to a launch of its
    own. dA_log [chunks, K tiles, HV] and ddt_bias [chunks, HV, K] are each chunk's own. Task:
    (chunk, value head, K tile)."""
    K_TILES: tl.constexpr = (K + BLOCK_K - 1) // BLOCK_K
    lane_t = tl.arange(0, C)
    for task in range(tl.program_id(0), num_tasks, tl.num_programs(0)):
        k_tile = task % K_TILES
        hv64 = tl.cast((task // K_TILES) % HV, tl.int64)
        lane_k = k_tile * BLOCK_K + tl.arange(0, BLOCK_K)
        chunk = task // (K_TILES * HV)
        b, first, rows = dense_or_packed_chunk(
            chunk, cu_seqlens_ptr, chunk_indices_ptr, T, num_chunks, C, PACKED
        )
        at = ((b * T + first) * HV + hv64) * K
        dgate = load_tile(dgate_ptr + at, rows, lane_t, lane_k, K, HV * K)
        base = g_org_ptr + b * g_org_stride_b + hv64 * g_org_stride_h + first * G_ORG_STRIDE_T
        y = load_gate_input(
            base, dt_bias_ptr, hv64, rows, lane_t, lane_k, K, G_ORG_STRIDE_T, HAS_BIAS
        )
        rate = gate_rate(A_log_ptr, hv64, HAS_A_LOG)
        dg, da = gate_gradient(dgate, y, rate, lower_bound, GATE)
        valid = (lane_t < rows)[:, None] & (lane_k < K)[None, :]
        chunk64 = tl.cast(chunk, tl.int64)
        if HAS_A_LOG:
            da = tl.sum(tl.sum(tl.where(valid, da, 0.0), 1), 0)
            tl.store(dA_log_ptr + (chunk64 * K_TILES + k_tile) * HV + hv64, da)
        if HAS_BIAS:
            of_bias = tl.sum(tl.where(valid, dg, 0.0), 0)
            bias_ptrs = ddt_bias_ptr + (chunk64 * HV + hv64) * K + lane_k
            tl.store(bias_ptrs, of_bias, mask=lane_k < K)
        store_tile(dg_ptr + at, dg, rows, lane_t, lane_k, K, HV * K)
