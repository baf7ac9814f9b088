"""The kernels of Ascend for more than one tile: sums over tokens first, then the tiles.

A kernel's two vector cores share its work only if the compiler can give each of them half of the
rows of every tile (arch32; arch35 is not asked to). A sum over tokens in the same kernel prevents
it: the second core then repeats the first one's work. So `gates` computes what needs such sums, a
tile a task, and `gated_tiles`, which loads it, is kernel.py's computation without one.
`gated_states` is what segments.segment_states is on a GPU.

Each time that a core waits for another one's data it waits about as long as a tile's arithmetic
takes. So K is one axis, four products a tile instead of seven, and all operands but the weights
are written before the first product is waited for.

Names: T tokens of a tile, K2 = BLOCK_K / 2 columns of a half, N = BLOCK_V columns of v.
"""

import triton
import triton.language as tl

from ops.mamba3_siso_fwd.device_math import exponent_of, exponential, sigmoid, sin_cos, two_to
from ops.mamba3_siso_fwd.kernel import MIN_UNIT, load_v, past_state, unit_of
from ops.mamba3_siso_fwd.tile import (
    even_odd_bias,
    join_halves,
    load_gates,
    load_halves,
    load_rows,
    rotate_even_odd,
    row_offsets,
    running_sums,
    step_weights,
)

# What `gates` writes for a tile, GATES fp32 numbers: rows of T tokens, and scalars behind them.
# C is the inclusive sum of adt in the tile, as whole number and rest; OWN the tile's own unit, with
# SCALE_OPERANDS (else no division, and OWN is not written); s, gamma and T as in README.md.
C_WHOLE = tl.constexpr(0)
C_PART = tl.constexpr(1)
COLUMN = tl.constexpr(2)  # s_j e^(-c_part) / OWN: of token j in the weights
INTO = tl.constexpr(3)  # e^c: from the tile's start to token i
ONTO = tl.constexpr(4)  # s_j e^(T - c) / OWN: of token j in the state at the tile's end
GAMMA = tl.constexpr(5)
SCALARS = tl.constexpr(6)  # first DECAY, e^T, then OWN
OWN = tl.constexpr(1)

# Of kernel.MIN_UNIT and MAX_UNIT.
MIN_EXPONENT = tl.constexpr(-60)
MAX_EXPONENT = tl.constexpr(60)


@triton.jit(do_not_specialize=["S", "num_tasks"])
def gates(
    adt_ptr,
    dt_ptr,
    trap_ptr,
    gates_ptr,
    S,
    num_tasks,
    adt_stride_b,
    adt_stride_h,
    dt_stride_b,
    dt_stride_h,
    trap_stride_b,
    trap_stride_h,
    H: tl.constexpr,
    BLOCK_T: tl.constexpr,
    GATES: tl.constexpr,
    SCALE_OPERANDS: tl.constexpr,
):
    """Writes what a tile's tokens weigh, for each (batch, head, tile): a task."""
    rows = tl.arange(0, BLOCK_T)
    tiles = (S + BLOCK_T - 1) // BLOCK_T
    for task in range(tl.program_id(0), num_tasks, tl.num_programs(0)):
        start = (task % tiles) * BLOCK_T
        h = tl.cast((task // tiles) % H, tl.int64)
        b = tl.cast(task // tiles // H, tl.int64)
        adt, dt, trap, dt_next, trap_next = load_gates(
            adt_ptr + b * adt_stride_b + h * adt_stride_h,
            dt_ptr + b * dt_stride_b + h * dt_stride_h,
            trap_ptr + b * trap_stride_b + h * trap_stride_h,
            start,
            S,
            rows,
        )
        gamma, scale = step_weights(dt, trap, dt_next, trap_next, False)
        c_whole, c_part, total_whole, total_part = running_sums(adt, rows, False)
        tile_ptr = gates_ptr + tl.cast(task, tl.int64) * GATES
        if SCALE_OPERANDS:
            own = tl.maximum(unit_of(scale), MIN_UNIT)
            scale = scale / own
            tl.store(tile_ptr + SCALARS * BLOCK_T + OWN, own)
        tl.store(tile_ptr + SCALARS * BLOCK_T, exponential(total_whole + total_part, False))
        tl.store(tile_ptr + C_WHOLE * BLOCK_T + rows, c_whole)
        tl.store(tile_ptr + C_PART * BLOCK_T + rows, c_part)
        tl.store(tile_ptr + COLUMN * BLOCK_T + rows, scale * exponential(-c_part, False))
        tl.store(tile_ptr + INTO * BLOCK_T + rows, exponential(c_whole + c_part, False))
        decay_out = exponential((total_whole - c_whole) + (total_part - c_part), False)
        tl.store(tile_ptr + ONTO * BLOCK_T + rows, scale * decay_out)
        tl.store(tile_ptr + GAMMA * BLOCK_T + rows, gamma)


@triton.jit
def beside(low, high, INSERT: tl.constexpr):
    """[T, 2 K2] of two halves; the order of the columns is the same for q, k and the state.

    INSERT: by insert_slice, the one way that arch32's compiler splits over both vector cores;
    upstream Triton and the interpreter lack it.
    """
    T: tl.constexpr = low.shape[0]
    K2: tl.constexpr = low.shape[1]
    if INSERT:
        both = tl.zeros((T, 2 * K2), dtype=low.dtype)
        both = tl.insert_slice(both, low, (0, 0), (T, K2), (1, 1))
        return tl.insert_slice(both, high, (0, K2), (T, K2), (1, 1))
    else:
        return join_halves(low, high)


@triton.jit
def next_exponent_of(exponent, decay, own):
    """Of the state's unit after a tile, kernel.next_unit_of in int32.

    arch32 computes fp32 scalars with vectors of one element, and each takes as long to get back as
    a tile's operand: 4 kcycles a tile for the units. Integers stay in the scalar unit.
    """
    faded = tl.minimum(exponent + exponent_of(decay), MAX_EXPONENT)
    return tl.maximum(tl.maximum(faded, own), MIN_EXPONENT)


@triton.jit(do_not_specialize=["S", "num_tasks", "num_slots", "segment"])
def gated_states(
    k_ptr,
    v_ptr,
    gates_ptr,
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
    GATES: tl.constexpr,
    SCALE_OPERANDS: tl.constexpr,
    FP32_DOTS: tl.constexpr,
    INSERT: tl.constexpr,
):
    """segments.segment_states: a segment's own state, its decay and, for fp16, its unit."""
    V_TILES: tl.constexpr = (V + BLOCK_V - 1) // BLOCK_V
    K2: tl.constexpr = BLOCK_K // 2
    DOT: tl.constexpr = tl.float32 if FP32_DOTS else k_ptr.dtype.element_ty

    rows = tl.arange(0, BLOCK_T)
    state_rows = tl.arange(0, BLOCK_K)
    v_lane = tl.arange(0, BLOCK_V)
    tiles = (S + BLOCK_T - 1) // BLOCK_T

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
        gates_base = gates_ptr + (b * H + h64) * tiles * GATES
        if A > 0:
            angles_base = angles_ptr + b * angles_stride_b + h64 * angles_stride_h
        k_bias_even, k_bias_odd = even_odd_bias(k_bias_ptr + h64 * K_BIAS_STRIDE_H, K, BLOCK_K)

        state = tl.zeros((BLOCK_K, BLOCK_V), dtype=tl.float32)
        exponent = MIN_EXPONENT
        # A vector for the same reason: a product of scalars would be one of vectors with waits.
        decay_segment = tl.full((8,), 1.0, dtype=tl.float32)
        for start in range(first, first + segment, BLOCK_T):
            tile_ptr = gates_base + tl.cast(start // BLOCK_T, tl.int64) * GATES
            onto = tl.load(tile_ptr + ONTO * BLOCK_T + rows)
            decay_tile = tl.load(tile_ptr + SCALARS * BLOCK_T)
            decay_segment *= decay_tile
            if SCALE_OPERANDS:
                own = exponent_of(tl.load(tile_ptr + SCALARS * BLOCK_T + OWN))
                next_exponent = next_exponent_of(exponent, decay_tile, own)
                state_scale = two_to(exponent - next_exponent)
                onto *= two_to(own - next_exponent)
                exponent = next_exponent
            if A > 0:
                sin, cos = sin_cos(
                    load_rows(angles_base, start, S, rows, 0, K2, A, ANGLES_STRIDE_S)
                )
            k_even, k_odd = load_halves(k_base, start, S, rows, K, BLOCK_K, K_STRIDE_S, False)
            v = load_v(v_base, start, S, rows, v_cols, V, V_STRIDE_S, False)  # [T, N]
            v_weighted = (v.to(tl.float32) * onto[:, None]).to(DOT)
            k_even = k_even.to(tl.float32) + k_bias_even[None, :]
            k_odd = k_odd.to(tl.float32) + k_bias_odd[None, :]
            if A > 0:
                k_rot_even, k_rot_odd = rotate_even_odd(k_even, k_odd, sin, cos, DOT)
            else:
                k_rot_even = k_even.to(DOT)
                k_rot_odd = k_odd.to(DOT)
            k_rot = beside(k_rot_even, k_rot_odd, INSERT)
            added = tl.dot(tl.trans(k_rot), v_weighted, input_precision="ieee")
            state = state * decay_tile
            if SCALE_OPERANDS:
                state *= state_scale
            state += added

        # Tasks are numbered as slots are.
        slot = tl.cast(task, tl.int64)
        state_ptrs = states_ptr + slot * (BLOCK_K * BLOCK_V)
        state_ptrs += state_rows[:, None] * BLOCK_V + v_lane[None, :]
        if SCALE_OPERANDS:
            unit = two_to(exponent)
            state *= unit
            tl.store(units_ptr + slot, unit)
        tl.store(state_ptrs, state)
        lanes = tl.arange(0, 8)
        tl.store(decays_ptr + slot + lanes, decay_segment, mask=lanes < 1)


@triton.jit(do_not_specialize=["S", "num_tasks", "num_segments", "segment"])
def gated_tiles(
    q_ptr,
    k_ptr,
    v_ptr,
    gates_ptr,
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
    GATES: tl.constexpr,
    HAS_D: tl.constexpr,
    HAS_Z: tl.constexpr,
    SCALE_OPERANDS: tl.constexpr,
    FP32_DOTS: tl.constexpr,
    FILL_V: tl.constexpr,
    SEGMENTED: tl.constexpr,
    INSERT: tl.constexpr,
):
    """kernel.mamba3_siso_fwd: outputs of a whole sequence or, SEGMENTED, `segment` tokens of it."""
    V_TILES: tl.constexpr = (V + BLOCK_V - 1) // BLOCK_V
    K2: tl.constexpr = BLOCK_K // 2
    DOT: tl.constexpr = tl.float32 if FP32_DOTS else q_ptr.dtype.element_ty

    rows = tl.arange(0, BLOCK_T)
    state_rows = tl.arange(0, BLOCK_K)
    v_lane = tl.arange(0, BLOCK_V)
    earlier = rows[:, None] > rows[None, :]  # [T, T]: token j strictly before token i
    tiles = (S + BLOCK_T - 1) // BLOCK_T

    for task in range(tl.program_id(0), num_tasks, tl.num_programs(0)):
        v_tile = task % V_TILES
        h = (task // V_TILES) % H
        if SEGMENTED:
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
        gates_base = gates_ptr + (b * H + h64) * tiles * GATES
        out_base = out_ptr + b * S * (H * V) + h64 * V
        if A > 0:
            angles_base = angles_ptr + b * angles_stride_b + h64 * angles_stride_h
        if HAS_Z:
            z_base = z_ptr + b * z_stride_b + h64 * z_stride_h
        q_bias_even, q_bias_odd = even_odd_bias(q_bias_ptr + h64 * Q_BIAS_STRIDE_H, K, BLOCK_K)
        k_bias_even, k_bias_odd = even_odd_bias(k_bias_ptr + h64 * K_BIAS_STRIDE_H, K, BLOCK_K)
        if HAS_D:
            skip = tl.load(d_ptr + h64 * D_STRIDE_H)

        exponent = MIN_EXPONENT
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
            state = tl.load(state_ptrs, mask=state_mask, other=0.0)
            if SCALE_OPERANDS:
                unit = exponent_of(tl.load(units_ptr + slot))
                exponent = tl.where(has_past, unit, MIN_EXPONENT)
                state *= two_to(-exponent)
        else:
            state = tl.zeros((BLOCK_K, BLOCK_V), dtype=tl.float32)

        for start in range(first, last, BLOCK_T):
            start64 = tl.cast(start, tl.int64)
            tile_ptr = gates_base + tl.cast(start // BLOCK_T, tl.int64) * GATES
            c_whole = tl.load(tile_ptr + C_WHOLE * BLOCK_T + rows)
            c_part = tl.load(tile_ptr + C_PART * BLOCK_T + rows)
            column = tl.load(tile_ptr + COLUMN * BLOCK_T + rows)
            into = tl.load(tile_ptr + INTO * BLOCK_T + rows)
            onto = tl.load(tile_ptr + ONTO * BLOCK_T + rows)
            gamma = tl.load(tile_ptr + GAMMA * BLOCK_T + rows)
            decay_tile = tl.load(tile_ptr + SCALARS * BLOCK_T)
            if SCALE_OPERANDS:
                # As in kernel.py: all of the tile in the unit that the state has after it.
                own = exponent_of(tl.load(tile_ptr + SCALARS * BLOCK_T + OWN))
                next_exponent = next_exponent_of(exponent, decay_tile, own)
                own_scale = two_to(own - next_exponent)
                column *= own_scale
                onto *= own_scale
                state_scale = two_to(exponent - next_exponent)
                into *= state_scale
                exponent = next_exponent

            # Sine and cosine first: what only they need is free again before the rest is loaded.
            if A > 0:
                sin, cos = sin_cos(
                    load_rows(angles_base, start, S, rows, 0, K2, A, ANGLES_STRIDE_S)
                )
            q_even, q_odd = load_halves(q_base, start, S, rows, K, BLOCK_K, Q_STRIDE_S, False)
            k_even, k_odd = load_halves(k_base, start, S, rows, K, BLOCK_K, K_STRIDE_S, False)
            v = load_v(v_base, start, S, rows, v_cols, V, V_STRIDE_S, FILL_V)  # [T, N]
            v_fp32 = v.to(tl.float32)
            v_weighted = (v_fp32 * onto[:, None]).to(DOT)
            state_operand = state.to(DOT)
            q_even = q_even.to(tl.float32) + q_bias_even[None, :]
            q_odd = q_odd.to(tl.float32) + q_bias_odd[None, :]
            k_even = k_even.to(tl.float32) + k_bias_even[None, :]
            k_odd = k_odd.to(tl.float32) + k_bias_odd[None, :]
            diagonal = gamma * tl.sum(q_even * k_even + q_odd * k_odd, 1)
            if HAS_D:
                diagonal += skip
            if A > 0:
                q_rot_even, q_rot_odd = rotate_even_odd(q_even, q_odd, sin, cos, DOT)
                k_rot_even, k_rot_odd = rotate_even_odd(k_even, k_odd, sin, cos, DOT)
            else:
                q_rot_even = q_even.to(DOT)
                q_rot_odd = q_odd.to(DOT)
                k_rot_even = k_even.to(DOT)
                k_rot_odd = k_odd.to(DOT)
            q_rot = beside(q_rot_even, q_rot_odd, INSERT)
            k_rot = beside(k_rot_even, k_rot_odd, INSERT)

            weights = tl.dot(q_rot, tl.trans(k_rot), input_precision="ieee")
            added = tl.dot(tl.trans(k_rot), v_weighted, input_precision="ieee")
            o = tl.dot(q_rot, state_operand, input_precision="ieee")
            power = c_whole[:, None] - c_whole[None, :] + c_part[:, None]
            decay = exponential(tl.where(earlier, power, -256.0), False)  # 0 where masked
            weights = weights * column[None, :] * decay
            within = tl.dot(weights.to(DOT), v.to(DOT), input_precision="ieee")
            state = state * decay_tile
            if SCALE_OPERANDS:
                state *= state_scale
            state += added
            o = o * into[:, None] + within
            if SCALE_OPERANDS:
                # Of the sum: arch35's compiler (1.2.0) crashes on such a product with one operand.
                o *= two_to(exponent)
            o += diagonal[:, None] * v_fp32

            v_mask = (rows < S - start)[:, None] & (v_cols < V)[None, :]
            if HAS_Z:
                z_ptrs = z_base + start64 * Z_STRIDE_S + v_cols[None, :]
                z_ptrs += row_offsets(rows, Z_STRIDE_S)
                z = tl.load(z_ptrs, mask=v_mask, other=0.0).to(tl.float32)
                o = o * (z * sigmoid(z, False))
            out_ptrs = out_base + start64 * (H * V) + row_offsets(rows, H * V) + v_cols[None, :]
            tl.store(out_ptrs, o.to(out_ptr.dtype.element_ty), mask=v_mask)
