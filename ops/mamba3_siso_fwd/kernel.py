"""The Triton kernel of mamba3_siso_fwd: one program walks the tiles of one (batch, head, V tile).

It computes all on a GPU, and on an NPU a sequence that fits one tile; gated.py has the kernels for
a longer one there. One portable source for every device, written for Ascend's rules (no tensor with
a second user is split, masked loads only, no `%` or `//` on tensors, the grid is the core count)
and valid in upstream Triton. `GPU` chooses between two arrangements of the same computation;
tile.py has both.

Names: T tokens of a tile, K2 = BLOCK_K / 2 columns of a half, N = BLOCK_V columns of v.
"""

import triton
import triton.language as tl

from ops.mamba3_siso_fwd.device_math import exponential, power_of_two, sigmoid, sin_cos
from ops.mamba3_siso_fwd.tile import (
    biased_columns,
    even_odd_bias,
    join_halves,
    load_gates,
    load_halves,
    load_rows,
    rotate_columns,
    rotate_even_odd,
    row_offsets,
    running_sums,
    step_weights,
)

# The unit of a state without content, 2^-60: its square and its quotients are normal numbers.
MIN_UNIT = tl.constexpr(8.673617379884035e-19)
# 2^60: while adt > 0 the unit of an empty state would grow until it is inf.
MAX_UNIT = tl.constexpr(1.152921504606847e18)


# S and the counts vary from call to call and gain nothing from a variant of their own (1, or 16 n).
@triton.jit(do_not_specialize=["S", "num_tasks", "num_segments", "segment"])
def mamba3_siso_fwd(
    q_ptr,
    k_ptr,
    v_ptr,
    adt_ptr,
    dt_ptr,
    trap_ptr,
    q_bias_ptr,
    k_bias_ptr,
    angles_ptr,
    d_ptr,
    z_ptr,
    out_ptr,
    states_ptr,
    units_ptr,
    S,
    num_tasks,
    num_segments,
    segment,
    q_stride_b,
    q_stride_h,
    k_stride_b,
    k_stride_h,
    v_stride_b,
    v_stride_h,
    angles_stride_b,
    angles_stride_h,
    z_stride_b,
    z_stride_h,
    adt_stride_b,
    adt_stride_h,
    dt_stride_b,
    dt_stride_h,
    trap_stride_b,
    trap_stride_h,
    H: tl.constexpr,
    HEADS_PER_GROUP: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    A: tl.constexpr,
    Q_STRIDE_S: tl.constexpr,
    K_STRIDE_S: tl.constexpr,
    V_STRIDE_S: tl.constexpr,
    ANGLES_STRIDE_S: tl.constexpr,
    Z_STRIDE_S: tl.constexpr,
    Q_BIAS_STRIDE_H: tl.constexpr,
    K_BIAS_STRIDE_H: tl.constexpr,
    D_STRIDE_H: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    HAS_D: tl.constexpr,
    HAS_Z: tl.constexpr,
    SCALE_OPERANDS: tl.constexpr,
    FP32_DOTS: tl.constexpr,
    FILL_V: tl.constexpr,
    ONE_TILE: tl.constexpr,
    SEGMENTED: tl.constexpr,
    GPU: tl.constexpr,
    JOIN: tl.constexpr,
    PREFETCH: tl.constexpr,
):
    """Outputs of all tokens of a task: a whole sequence or, SEGMENTED, `segment` tokens of it.

    ONE_TILE: the sequence is one tile, so that no state is needed. JOIN (GPU): q, k and the state
    are one tile of BLOCK_K columns. PREFETCH (GPU): a tile is loaded while the one before it is
    computed.
    """
    V_TILES: tl.constexpr = (V + BLOCK_V - 1) // BLOCK_V
    K2: tl.constexpr = BLOCK_K // 2
    STATE_K: tl.constexpr = BLOCK_K if JOIN else BLOCK_K // 2
    ANGLE_PAIRS: tl.constexpr = BLOCK_K // 4 if GPU else BLOCK_K // 2
    # The matrix operands' dtype: the inputs' own, except where the plan says that the device cannot
    # multiply it (see plan.py).
    DOT: tl.constexpr = tl.float32 if FP32_DOTS else q_ptr.dtype.element_ty

    rows = tl.arange(0, BLOCK_T)
    state_rows = tl.arange(0, STATE_K)
    v_lane = tl.arange(0, BLOCK_V)
    earlier = rows[:, None] > rows[None, :]  # [T, T]: token j strictly before token i

    for task in range(tl.program_id(0), num_tasks, tl.num_programs(0)):
        v_tile = task % V_TILES
        h = (task // V_TILES) % H
        if SEGMENTED:
            # Heads next to each other: they share q and k in the cache.
            segment_index = (task // (V_TILES * H)) % num_segments
            b = tl.cast(task // (V_TILES * H) // num_segments, tl.int64)
            first = segment_index * segment
            last = tl.minimum(first + segment, S)
        else:
            b = tl.cast(task // (V_TILES * H), tl.int64)
            first = 0
            last = S
        hq = tl.cast(h // HEADS_PER_GROUP, tl.int64)
        h64 = tl.cast(h, tl.int64)
        v_cols = v_tile * BLOCK_V + v_lane

        q_base = q_ptr + b * q_stride_b + hq * q_stride_h
        k_base = k_ptr + b * k_stride_b + hq * k_stride_h
        v_base = v_ptr + b * v_stride_b + h64 * v_stride_h
        adt_base = adt_ptr + b * adt_stride_b + h64 * adt_stride_h
        dt_base = dt_ptr + b * dt_stride_b + h64 * dt_stride_h
        trap_base = trap_ptr + b * trap_stride_b + h64 * trap_stride_h
        out_base = out_ptr + b * S * (H * V) + h64 * V
        if A > 0:
            angles_base = angles_ptr + b * angles_stride_b + h64 * angles_stride_h
        if HAS_Z:
            z_base = z_ptr + b * z_stride_b + h64 * z_stride_h

        q_bias_base = q_bias_ptr + h64 * Q_BIAS_STRIDE_H
        k_bias_base = k_bias_ptr + h64 * K_BIAS_STRIDE_H
        if not GPU:
            q_bias_a, q_bias_b = even_odd_bias(q_bias_base, K, BLOCK_K)
            k_bias_a, k_bias_b = even_odd_bias(k_bias_base, K, BLOCK_K)
        if HAS_D:
            skip = tl.load(d_ptr + h64 * D_STRIDE_H)

        if not ONE_TILE:
            state_a = tl.zeros((STATE_K, BLOCK_V), dtype=tl.float32)
            if not JOIN:
                state_b = tl.zeros((STATE_K, BLOCK_V), dtype=tl.float32)
        unit = MIN_UNIT
        if SEGMENTED:
            slot, has_past, state_ptrs, state_mask = past_state(
                states_ptr,
                b,
                num_segments,
                segment_index,
                task,
                H * V_TILES,
                BLOCK_K,
                state_rows,
                v_lane,
            )
            state_a = tl.load(state_ptrs, mask=state_mask, other=0.0)
            if not JOIN:
                state_b = tl.load(state_ptrs + K2 * BLOCK_V, mask=state_mask, other=0.0)
            if SCALE_OPERANDS:
                unit = tl.load(units_ptr + slot, mask=has_past, other=MIN_UNIT)
                state_a = state_a / unit
                if not JOIN:
                    state_b = state_b / unit

        if PREFETCH:
            k_raw_a, k_raw_b = load_halves(k_base, first, S, rows, K, BLOCK_K, K_STRIDE_S, GPU)
            if A > 0:
                angles = load_rows(angles_base, first, S, rows, 0, ANGLE_PAIRS, A, ANGLES_STRIDE_S)
            q_raw_a, q_raw_b = load_halves(q_base, first, S, rows, K, BLOCK_K, Q_STRIDE_S, GPU)
            v = load_v(v_base, first, S, rows, v_cols, V, V_STRIDE_S, FILL_V)
            adt, dt, trap, dt_next, trap_next = load_gates(
                adt_base, dt_base, trap_base, first, S, rows
            )

        for start in range(first, last, BLOCK_T):
            start64 = tl.cast(start, tl.int64)
            if not PREFETCH:
                adt, dt, trap, dt_next, trap_next = load_gates(
                    adt_base, dt_base, trap_base, start, S, rows
                )
            gamma, scale = step_weights(dt, trap, dt_next, trap_next, GPU)
            c_whole, c_part, total_whole, total_part = running_sums(adt, rows, GPU)
            # Decay from the tile's start to token i, from token j to the end, and of all.
            decay_in = exponential(c_whole + c_part, GPU)
            decay_out = exponential((total_whole - c_whole) + (total_part - c_part), GPU)
            decay_tile = exponential(total_whole + total_part, GPU)

            if SCALE_OPERANDS:
                # fp16 is subnormal below 6e-5, where products with small steps dt lie. State and
                # weights are therefore held in units of 32 times the largest s that they contain:
                # full precision for any dt as long as 2^-9 < |q.k| < 2^21. Powers of two, so that
                # no operand is rounded otherwise than without a unit.
                next_unit = next_unit_of(unit, decay_tile, unit_of(scale))
                decay_in *= unit / next_unit
                decay_tile *= unit / next_unit
                scale = scale / next_unit
                unit = next_unit

            # q and k: bias, rows' products, rotation, one rounding to the operand dtype. A rotation
            # keeps q.k at equal positions.
            if not PREFETCH:
                q_raw_a, q_raw_b = load_halves(q_base, start, S, rows, K, BLOCK_K, Q_STRIDE_S, GPU)
                k_raw_a, k_raw_b = load_halves(k_base, start, S, rows, K, BLOCK_K, K_STRIDE_S, GPU)
                if A > 0:
                    # Angle 0 beyond A: those pairs stay as they are.
                    angles = load_rows(
                        angles_base, start, S, rows, 0, ANGLE_PAIRS, A, ANGLES_STRIDE_S
                    )
            if GPU:
                # One half after the other: both at once take more registers than there are.
                k_a = biased_columns(k_raw_a, k_bias_base, 0, K)
                q_a = biased_columns(q_raw_a, q_bias_base, 0, K)
                dots = tl.sum(q_a * k_a, 1)
                if A > 0:
                    sin, cos = sin_cos(angles)
                    k_rot_a = rotate_columns(k_a, sin, cos, DOT)
                    q_rot_a = rotate_columns(q_a, sin, cos, DOT)
                else:
                    k_rot_a = k_a.to(DOT)
                    q_rot_a = q_a.to(DOT)
                k_b = biased_columns(k_raw_b, k_bias_base, K2, K)
                q_b = biased_columns(q_raw_b, q_bias_base, K2, K)
                dots += tl.sum(q_b * k_b, 1)
                if A > ANGLE_PAIRS:
                    sin, cos = sin_cos(
                        load_rows(
                            angles_base,
                            start,
                            S,
                            rows,
                            ANGLE_PAIRS,
                            ANGLE_PAIRS,
                            A,
                            ANGLES_STRIDE_S,
                        )
                    )
                    k_rot_b = rotate_columns(k_b, sin, cos, DOT)
                    q_rot_b = rotate_columns(q_b, sin, cos, DOT)
                else:
                    k_rot_b = k_b.to(DOT)
                    q_rot_b = q_b.to(DOT)
                if JOIN:
                    k_rot_a = join_halves(k_rot_a, k_rot_b)
                    q_rot_a = join_halves(q_rot_a, q_rot_b)
            else:
                q_even = q_raw_a.to(tl.float32) + q_bias_a[None, :]
                q_odd = q_raw_b.to(tl.float32) + q_bias_b[None, :]
                k_even = k_raw_a.to(tl.float32) + k_bias_a[None, :]
                k_odd = k_raw_b.to(tl.float32) + k_bias_b[None, :]
                dots = tl.sum(q_even * k_even + q_odd * k_odd, 1)
                if A > 0:
                    sin, cos = sin_cos(angles)
                    q_rot_a, q_rot_b = rotate_even_odd(q_even, q_odd, sin, cos, DOT)
                    k_rot_a, k_rot_b = rotate_even_odd(k_even, k_odd, sin, cos, DOT)
                else:
                    q_rot_a = q_even.to(DOT)
                    q_rot_b = q_odd.to(DOT)
                    k_rot_a = k_even.to(DOT)
                    k_rot_b = k_odd.to(DOT)
            diagonal = gamma * dots
            if HAS_D:
                diagonal += skip

            # Weights of earlier tokens of the tile, [T, T] fp32. The exponent is masked before the
            # exponential: above the diagonal it could overflow. Token j's fraction goes to its own
            # weight, which is one [T, T] operation and, on a GPU, one change of layout less.
            weights = tl.dot(q_rot_a, tl.trans(k_rot_a), input_precision="ieee")
            if not JOIN:
                weights += tl.dot(q_rot_b, tl.trans(k_rot_b), input_precision="ieee")
            exponent = c_whole[:, None] - c_whole[None, :] + c_part[:, None]
            decay = exponential(tl.where(earlier, exponent, -256.0), GPU)  # exactly 0 where masked
            weights = weights * (scale * exponential(-c_part, GPU))[None, :] * decay

            v_mask = (rows < S - start)[:, None] & (v_cols < V)[None, :]
            if not PREFETCH:
                v = load_v(v_base, start, S, rows, v_cols, V, V_STRIDE_S, FILL_V)  # [T, N]
            if HAS_Z:
                z_ptrs = z_base + start64 * Z_STRIDE_S + v_cols[None, :]
                z_ptrs += row_offsets(rows, Z_STRIDE_S)
                if PREFETCH:
                    z = tl.load(z_ptrs, mask=v_mask, other=0.0)
            v_fp32 = v.to(tl.float32)

            # Output: state before the tile, earlier tokens of the tile, the token itself.
            if ONE_TILE:
                o = tl.dot(weights.to(DOT), v.to(DOT), input_precision="ieee")
            else:
                o = tl.dot(q_rot_a, state_a.to(DOT), input_precision="ieee")
                if not JOIN:
                    o += tl.dot(q_rot_b, state_b.to(DOT), input_precision="ieee")
                o = o * decay_in[:, None]
                o += tl.dot(weights.to(DOT), v.to(DOT), input_precision="ieee")
            if SCALE_OPERANDS:
                o = o * unit
            o += diagonal[:, None] * v_fp32
            if not ONE_TILE:
                # State: the weight goes to v, exact in 16 bits; k has been rounded already.
                v_weighted = (v_fp32 * (scale * decay_out)[:, None]).to(DOT)

            if PREFETCH:
                ahead = start + BLOCK_T
                k_raw_a, k_raw_b = load_halves(k_base, ahead, S, rows, K, BLOCK_K, K_STRIDE_S, GPU)
                if A > 0:
                    angles = load_rows(
                        angles_base, ahead, S, rows, 0, ANGLE_PAIRS, A, ANGLES_STRIDE_S
                    )
                q_raw_a, q_raw_b = load_halves(q_base, ahead, S, rows, K, BLOCK_K, Q_STRIDE_S, GPU)
                v = load_v(v_base, ahead, S, rows, v_cols, V, V_STRIDE_S, FILL_V)
                adt, dt, trap, dt_next, trap_next = load_gates(
                    adt_base, dt_base, trap_base, ahead, S, rows
                )

            if not ONE_TILE:
                state_a *= decay_tile
                state_a += tl.dot(tl.trans(k_rot_a), v_weighted, input_precision="ieee")
                if not JOIN:
                    state_b *= decay_tile
                    state_b += tl.dot(tl.trans(k_rot_b), v_weighted, input_precision="ieee")

            if HAS_Z:
                if not PREFETCH:
                    z = tl.load(z_ptrs, mask=v_mask, other=0.0)
                z_fp32 = z.to(tl.float32)
                o = o * (z_fp32 * sigmoid(z_fp32, GPU))
            out_ptrs = out_base + start64 * (H * V) + row_offsets(rows, H * V) + v_cols[None, :]
            tl.store(out_ptrs, o.to(out_ptr.dtype.element_ty), mask=v_mask)


@triton.jit
def load_v(base, start, S, rows, v_cols, V: tl.constexpr, STRIDE: tl.constexpr, FILL: tl.constexpr):
    mask = (rows < S - start)[:, None] & (v_cols < V)[None, :]
    ptrs = base + tl.cast(start, tl.int64) * STRIDE + v_cols[None, :] + row_offsets(rows, STRIDE)
    v = tl.load(ptrs, mask=mask, other=0.0)  # [T, N]
    if FILL:
        v = tl.where(mask, v, 0.0)
    return v


@triton.jit
def past_state(
    states_ptr,
    b,
    num_segments,
    segment_index,
    task,
    HEADS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    state_rows,
    v_lane,
):
    """Where segment_scan left what the segments before this one leave, and whether there are any.

    Slot s is what segment s + 1 begins with. HEADS: (head, V tile) pairs.
    """
    slot = (b * (num_segments - 1) + segment_index - 1) * HEADS + (task % HEADS)
    has_past = segment_index > 0
    slot = tl.maximum(slot, 0)  # a masked load may still be made, see load_gates
    ptrs = states_ptr + slot * (BLOCK_K * v_lane.shape[0])
    ptrs += state_rows[:, None] * v_lane.shape[0] + v_lane[None, :]
    mask = (state_rows >= 0)[:, None] & (v_lane >= 0)[None, :] & has_past
    return slot, has_past, ptrs, mask


@triton.jit
def unit_of(scale):
    """A power of two, 32 times the largest |s| of a tile."""
    return power_of_two(32.0 * tl.max(tl.abs(scale), 0))


@triton.jit
def next_unit_of(unit, decay, own):
    """The state's unit after a tile: the largest so far, faded by decay."""
    faded = power_of_two(tl.minimum(unit * decay, MAX_UNIT))
    return tl.maximum(tl.maximum(faded, own), MIN_UNIT)
