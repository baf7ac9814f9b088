"""The kernels of a split sequence: what each segment adds to the state, and the scan over segments.

A sequence of few heads leaves cores idle when one program walks all of it. It is cut into segments:
`segment_states` (on an NPU gated.py's `gated_states`) computes each segment's state as if nothing
came before, `segment_scan` adds up what arrives at each segment's start, and the forward kernel
computes the outputs of all segments side by side. The last segment's state is nobody's past, so
there is one slot less than segments.
"""

import triton
import triton.language as tl

from ops.mamba3_siso_fwd.device_math import exponential, power_of_two, sin_cos
from ops.mamba3_siso_fwd.kernel import MAX_UNIT, MIN_UNIT, load_v, next_unit_of, unit_of
from ops.mamba3_siso_fwd.tile import (
    biased_columns,
    join_halves,
    load_gates,
    load_halves,
    load_rows,
    rotate_columns,
    running_sums,
    step_weights,
)


@triton.jit(do_not_specialize=["S", "num_tasks", "num_slots", "segment"])
def segment_states(
    k_ptr,
    v_ptr,
    adt_ptr,
    dt_ptr,
    trap_ptr,
    k_bias_ptr,
    angles_ptr,
    states_ptr,
    decays_ptr,
    units_ptr,
    S,
    num_tasks,
    num_slots,
    segment,
    k_stride_b,
    k_stride_h,
    v_stride_b,
    v_stride_h,
    angles_stride_b,
    angles_stride_h,
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
    K_STRIDE_S: tl.constexpr,
    V_STRIDE_S: tl.constexpr,
    ANGLES_STRIDE_S: tl.constexpr,
    K_BIAS_STRIDE_H: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    SCALE_OPERANDS: tl.constexpr,
    FP32_DOTS: tl.constexpr,
    JOIN: tl.constexpr,
    PREFETCH: tl.constexpr,
):
    """Writes a segment's own state [BLOCK_K, N] fp32, its decay and, for fp16, its unit."""
    V_TILES: tl.constexpr = (V + BLOCK_V - 1) // BLOCK_V
    K2: tl.constexpr = BLOCK_K // 2
    STATE_K: tl.constexpr = BLOCK_K if JOIN else BLOCK_K // 2
    ANGLE_PAIRS: tl.constexpr = BLOCK_K // 4
    DOT: tl.constexpr = tl.float32 if FP32_DOTS else k_ptr.dtype.element_ty

    rows = tl.arange(0, BLOCK_T)
    state_rows = tl.arange(0, STATE_K)
    v_lane = tl.arange(0, BLOCK_V)

    for task in range(tl.program_id(0), num_tasks, tl.num_programs(0)):
        v_tile = task % V_TILES
        h = (task // V_TILES) % H
        first = ((task // (V_TILES * H)) % num_slots) * segment
        b = tl.cast(task // (V_TILES * H) // num_slots, tl.int64)
        hq = tl.cast(h // HEADS_PER_GROUP, tl.int64)
        h64 = tl.cast(h, tl.int64)
        v_cols = v_tile * BLOCK_V + v_lane

        k_base = k_ptr + b * k_stride_b + hq * k_stride_h
        v_base = v_ptr + b * v_stride_b + h64 * v_stride_h
        adt_base = adt_ptr + b * adt_stride_b + h64 * adt_stride_h
        dt_base = dt_ptr + b * dt_stride_b + h64 * dt_stride_h
        trap_base = trap_ptr + b * trap_stride_b + h64 * trap_stride_h
        if A > 0:
            angles_base = angles_ptr + b * angles_stride_b + h64 * angles_stride_h
        k_bias_base = k_bias_ptr + h64 * K_BIAS_STRIDE_H

        state_a = tl.zeros((STATE_K, BLOCK_V), dtype=tl.float32)
        if not JOIN:
            state_b = tl.zeros((STATE_K, BLOCK_V), dtype=tl.float32)
        unit = MIN_UNIT
        decay_segment = 1.0

        if PREFETCH:
            k_raw_a, k_raw_b = load_halves(k_base, first, S, rows, K, BLOCK_K, K_STRIDE_S, True)
            if A > 0:
                angles = load_rows(angles_base, first, S, rows, 0, ANGLE_PAIRS, A, ANGLES_STRIDE_S)
            v = load_v(v_base, first, S, rows, v_cols, V, V_STRIDE_S, False)
            adt, dt, trap, dt_next, trap_next = load_gates(
                adt_base, dt_base, trap_base, first, S, rows
            )

        # Only the last segment of a sequence can be short, and it has no slot: here no row of v is
        # behind the last token.
        for start in range(first, first + segment, BLOCK_T):
            if not PREFETCH:
                adt, dt, trap, dt_next, trap_next = load_gates(
                    adt_base, dt_base, trap_base, start, S, rows
                )
            _, scale = step_weights(dt, trap, dt_next, trap_next, True)
            c_whole, c_part, total_whole, total_part = running_sums(adt, rows, True)
            decay_out = exponential((total_whole - c_whole) + (total_part - c_part), True)
            decay_tile = exponential(total_whole + total_part, True)
            decay_segment *= decay_tile
            if SCALE_OPERANDS:
                next_unit = next_unit_of(unit, decay_tile, unit_of(scale))
                decay_tile *= unit / next_unit
                scale = scale / next_unit
                unit = next_unit

            if not PREFETCH:
                k_raw_a, k_raw_b = load_halves(k_base, start, S, rows, K, BLOCK_K, K_STRIDE_S, True)
                if A > 0:
                    angles = load_rows(
                        angles_base, start, S, rows, 0, ANGLE_PAIRS, A, ANGLES_STRIDE_S
                    )
            k_a = biased_columns(k_raw_a, k_bias_base, 0, K)
            if A > 0:
                sin, cos = sin_cos(angles)
                k_rot_a = rotate_columns(k_a, sin, cos, DOT)
            else:
                k_rot_a = k_a.to(DOT)
            k_b = biased_columns(k_raw_b, k_bias_base, K2, K)
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
            else:
                k_rot_b = k_b.to(DOT)
            if JOIN:
                k_rot_a = join_halves(k_rot_a, k_rot_b)

            if not PREFETCH:
                v = load_v(v_base, start, S, rows, v_cols, V, V_STRIDE_S, False)  # [T, N]
            v_weighted = (v.to(tl.float32) * (scale * decay_out)[:, None]).to(DOT)
            if PREFETCH:
                ahead = start + BLOCK_T
                k_raw_a, k_raw_b = load_halves(k_base, ahead, S, rows, K, BLOCK_K, K_STRIDE_S, True)
                if A > 0:
                    angles = load_rows(
                        angles_base, ahead, S, rows, 0, ANGLE_PAIRS, A, ANGLES_STRIDE_S
                    )
                v = load_v(v_base, ahead, S, rows, v_cols, V, V_STRIDE_S, False)
                adt, dt, trap, dt_next, trap_next = load_gates(
                    adt_base, dt_base, trap_base, ahead, S, rows
                )
            state_a *= decay_tile
            state_a += tl.dot(tl.trans(k_rot_a), v_weighted, input_precision="ieee")
            if not JOIN:
                state_b *= decay_tile
                state_b += tl.dot(tl.trans(k_rot_b), v_weighted, input_precision="ieee")

        # Tasks are numbered as slots are.
        slot = tl.cast(task, tl.int64)
        state_ptrs = states_ptr + slot * (BLOCK_K * BLOCK_V)
        state_ptrs += state_rows[:, None] * BLOCK_V + v_lane[None, :]
        if SCALE_OPERANDS:
            state_a *= unit
            if not JOIN:
                state_b *= unit
            tl.store(units_ptr + slot, unit)
        tl.store(state_ptrs, state_a)
        if not JOIN:
            tl.store(state_ptrs + K2 * BLOCK_V, state_b)
        tl.store(decays_ptr + slot, decay_segment)


@triton.jit
def _load_slot(states_ptr, decays_ptr, slot, last, lanes, STATE: tl.constexpr):
    # Slots behind the last one are read as the last one, and what comes of them is not stored. A
    # mask would not do: Ascend's compilers (1.2.0) load first and mask afterwards, unless a mask is
    # a plain range.
    slot = tl.minimum(slot, last)
    return tl.load(decays_ptr + slot), tl.load(states_ptr + slot * STATE + lanes)


@triton.jit
def _carried(past, decay, state):
    # Nothing decays to nothing, also where adt > 0 makes the decay of a whole segment inf.
    return tl.where(past == 0.0, 0.0, past * decay) + state


@triton.jit(do_not_specialize=["num_tasks", "num_slots", "heads"])
def segment_scan(
    states_ptr,
    decays_ptr,
    units_ptr,
    num_tasks,
    num_slots,
    heads,
    STATE: tl.constexpr,
    BLOCK: tl.constexpr,
    SCALE_OPERANDS: tl.constexpr,
):
    """Replaces each slot's state by the one after all segments up to it, BLOCK elements a task.

    heads: slots of one segment, (head, V tile) pairs.
    """
    PARTS: tl.constexpr = STATE // BLOCK
    for task in range(tl.program_id(0), num_tasks, tl.num_programs(0)):
        part = task % PARTS
        head = (task // PARTS) % heads
        b = tl.cast(task // PARTS // heads, tl.int64)
        lanes = part * BLOCK + tl.arange(0, BLOCK)
        base = b * num_slots * heads + head
        last = base + tl.cast(num_slots - 1, tl.int64) * heads
        past = tl.zeros((BLOCK,), dtype=tl.float32)
        # Four slots at a time: their loads are under way together.
        for s in range(0, num_slots, 4):
            slot = base + tl.cast(s, tl.int64) * heads
            has_1 = s + 1 < num_slots
            has_2 = s + 2 < num_slots
            has_3 = s + 3 < num_slots
            decay_0, state_0 = _load_slot(states_ptr, decays_ptr, slot, last, lanes, STATE)
            decay_1, state_1 = _load_slot(states_ptr, decays_ptr, slot + heads, last, lanes, STATE)
            decay_2, state_2 = _load_slot(
                states_ptr, decays_ptr, slot + 2 * heads, last, lanes, STATE
            )
            decay_3, state_3 = _load_slot(
                states_ptr, decays_ptr, slot + 3 * heads, last, lanes, STATE
            )
            state_0 = _carried(past, decay_0, state_0)
            state_1 = _carried(state_0, decay_1, state_1)
            state_2 = _carried(state_1, decay_2, state_2)
            past = _carried(state_2, decay_3, state_3)
            out_ptrs = states_ptr + slot * STATE + lanes
            all_lanes = lanes >= 0
            tl.store(out_ptrs, state_0)
            tl.store(out_ptrs + heads * STATE, state_1, mask=all_lanes & has_1)
            tl.store(out_ptrs + 2 * heads * STATE, state_2, mask=all_lanes & has_2)
            tl.store(out_ptrs + 3 * heads * STATE, past, mask=all_lanes & has_3)
        if SCALE_OPERANDS:  # noqa: SIM102 Ascend's frontend does not fold `CONSTEXPR and runtime`
            # Units, by one task of each head: no other one reads them.
            if part == 0:
                unit = MIN_UNIT
                for s in range(0, num_slots):
                    slot = base + tl.cast(s, tl.int64) * heads
                    faded = tl.minimum(unit * tl.load(decays_ptr + slot), MAX_UNIT)
                    own = tl.load(units_ptr + slot)
                    unit = tl.maximum(tl.maximum(power_of_two(faded), own), MIN_UNIT)
                    tl.store(units_ptr + slot, unit)
