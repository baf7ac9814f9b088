"""The kernel of kda_step: each element of a state is read once and written once."""

import triton
import triton.language as tl

from ops.common.kda_gate import MAX_RATE, gate_value, sigmoid

L2_EPSILON = tl.constexpr(1e-6)


@triton.jit
def _load_row(base, lane, left):
    return tl.load(base + lane, mask=lane < left, other=0.0).to(tl.float32)


@triton.jit
def _normalised(x):
    return x * (1.0 / tl.sqrt(tl.sum(x * x, 0) + L2_EPSILON))


@triton.jit
def _update(
    q_base,
    k_base,
    v_base,
    g_base,
    beta_base,
    A_log_ptr,
    dt_bias_ptr,
    state_base,
    o_base,
    new_state_base,
    scale,
    lower_bound,
    hv,
    lane_k,
    lane_v,
    left_v,
    K: tl.constexpr,
    V: tl.constexpr,
    GATE: tl.constexpr,
    HAS_A_LOG: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    L2NORM: tl.constexpr,
    BETA_LOGITS: tl.constexpr,
    DOUBLED: tl.constexpr,
    SUMS_TOGETHER: tl.constexpr,
):
    """`left_v` columns of one head's state; bases point at the first of them."""
    # The large transfer first: what is computed of rows does not need it.
    mask = (lane_k < K)[:, None] & (lane_v < left_v)[None, :]
    at = lane_k[:, None] * V + lane_v[None, :]
    state = tl.load(state_base + at, mask=mask, other=0.0)
    q = _load_row(q_base, lane_k, K)
    k = _load_row(k_base, lane_k, K)
    gate = _load_row(g_base, lane_k, K)
    v = _load_row(v_base, lane_v, left_v)
    beta = tl.load(beta_base).to(tl.float32)
    if L2NORM:
        q = _normalised(q)
        k = _normalised(k)
    if GATE != 0:
        if HAS_BIAS:
            gate += _load_row(dt_bias_ptr + hv * K, lane_k, K)
        # exp and sigmoid of rows that hold one number: with the number itself an NPU's scalar unit
        # would wait for its vector unit.
        if HAS_A_LOG:
            rate = tl.minimum(tl.exp(tl.load(A_log_ptr + hv) + lane_k * 0.0), MAX_RATE)
        else:
            rate = 1.0
        gate = gate_value(gate, rate, lower_bound, GATE)
    if BETA_LOGITS:
        beta = sigmoid(beta + lane_v * 0.0)
        if DOUBLED:
            beta *= 2.0

    state *= tl.exp(gate)[:, None]
    u = beta * (v - tl.sum(state * k[:, None], 0))
    if SUMS_TOGETHER:
        # (S + k u^T)^T q = S^T q + (q k) u
        o = tl.sum(state * q[:, None], 0) + tl.sum(q * k, 0) * u
        state += k[:, None] * u[None, :]
    else:
        state += k[:, None] * u[None, :]
        o = tl.sum(state * q[:, None], 0)
    tl.store(new_state_base + at, state, mask=mask)
    tl.store(o_base + lane_v, (scale * o).to(o_base.dtype.element_ty), mask=lane_v < left_v)


@triton.jit(do_not_specialize=["num_states", "num_tasks", "in_place"])
def kda_step(
    q_ptr,
    k_ptr,
    v_ptr,
    g_ptr,
    beta_ptr,
    A_log_ptr,
    dt_bias_ptr,
    state_ptr,
    state_indices_ptr,
    o_ptr,
    new_state_ptr,
    scale,
    lower_bound,
    num_states,
    num_tasks,
    in_place,
    q_stride_b,
    q_stride_h,
    k_stride_b,
    k_stride_h,
    v_stride_b,
    v_stride_h,
    g_stride_b,
    g_stride_h,
    beta_stride_b,
    beta_stride_h,
    state_stride_n,
    new_state_stride_n,
    HV: tl.constexpr,
    GROUP: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    GATE: tl.constexpr,
    HAS_A_LOG: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    L2NORM: tl.constexpr,
    BETA_LOGITS: tl.constexpr,
    DOUBLED: tl.constexpr,
    INDEXED: tl.constexpr,
    SUMS_TOGETHER: tl.constexpr,
):
    """Task: (token, value head, V tile).

    in_place: 1 where new_state is the pool, so that a token's row is its index; 0 where it is the
    token's own. No constant, so that what is compiled of one is the other. SUMS_TOGETHER: both sums
    over K are of the decayed state, so that neither waits for the other.
    """
    V_TILES: tl.constexpr = (V + BLOCK_V - 1) // BLOCK_V
    lane_k = tl.arange(0, BLOCK_K)
    lane_v = tl.arange(0, BLOCK_V)
    for task in range(tl.program_id(0), num_tasks, tl.num_programs(0)):
        first_v = (task % V_TILES) * BLOCK_V
        hv = (task // V_TILES) % HV
        h64 = tl.cast(hv // GROUP, tl.int64)
        hv64 = tl.cast(hv, tl.int64)
        token = task // (V_TILES * HV)
        b = tl.cast(token, tl.int64)
        left_v = V - first_v
        q_base = q_ptr + b * q_stride_b + h64 * q_stride_h
        k_base = k_ptr + b * k_stride_b + h64 * k_stride_h
        v_base = v_ptr + b * v_stride_b + hv64 * v_stride_h + first_v
        g_base = g_ptr + b * g_stride_b + hv64 * g_stride_h
        beta_base = beta_ptr + b * beta_stride_b + hv64 * beta_stride_h
        o_base = o_ptr + (b * HV + hv64) * V + first_v
        of_head = hv64 * (K * V) + first_v
        if INDEXED:
            index = tl.load(state_indices_ptr + token)
            if (index >= 0) & (index < num_states):
                slot = tl.cast(index, tl.int64)
                row = b + in_place * (slot - b)
                _update(
                    q_base,
                    k_base,
                    v_base,
                    g_base,
                    beta_base,
                    A_log_ptr,
                    dt_bias_ptr,
                    state_ptr + slot * state_stride_n + of_head,
                    o_base,
                    new_state_ptr + row * new_state_stride_n + of_head,
                    scale,
                    lower_bound,
                    hv64,
                    lane_k,
                    lane_v,
                    left_v,
                    K,
                    V,
                    GATE,
                    HAS_A_LOG,
                    HAS_BIAS,
                    L2NORM,
                    BETA_LOGITS,
                    DOUBLED,
                    SUMS_TOGETHER,
                )
            else:
                # Of padding; an index that is too large shows as NaN.
                nothing = tl.where(index < 0, 0.0, float("nan"))
                o = tl.zeros((BLOCK_V,), tl.float32) + nothing
                tl.store(o_base + lane_v, o.to(o_ptr.dtype.element_ty), mask=lane_v < left_v)
                if in_place == 0:
                    mask = (lane_k < K)[:, None] & (lane_v < left_v)[None, :]
                    at = lane_k[:, None] * V + lane_v[None, :]
                    state = tl.zeros((BLOCK_K, BLOCK_V), tl.float32) + nothing
                    base = new_state_ptr + b * new_state_stride_n + of_head
                    tl.store(base + at, state, mask=mask)
        else:
            _update(
                q_base,
                k_base,
                v_base,
                g_base,
                beta_base,
                A_log_ptr,
                dt_bias_ptr,
                state_ptr + b * state_stride_n + of_head,
                o_base,
                new_state_ptr + b * new_state_stride_n + of_head,
                scale,
                lower_bound,
                hv64,
                lane_k,
                lane_v,
                left_v,
                K,
                V,
                GATE,
                HAS_A_LOG,
                HAS_BIAS,
                L2NORM,
                BETA_LOGITS,
                DOUBLED,
                SUMS_TOGETHER,
            )
