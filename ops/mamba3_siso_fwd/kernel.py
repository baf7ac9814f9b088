"""The Triton kernel of mamba3_siso_fwd: one program walks the chunks of one (batch, head, V tile).

One portable source for every device, written for Ascend's rules (no tensor with a second user is
split, halves are never joined, masked loads only, no `%` or `//` on tensors, the grid is the core
count) and valid in upstream Triton.

The rotation acts on interleaved pairs (2i, 2i+1), so q, k and the state's K axis live as two halves
all the way: the even and the odd elements of the pairs. A product over K is the sum of the products
over the halves, and nothing is put back together.

Names: T tokens of a tile, K2 = BLOCK_K / 2 pairs, N = BLOCK_V columns of v.
"""

import triton
import triton.language as tl

# Below this, adt is a full reset. Any bound under -104 keeps exp() exact (e^-104 rounds to 0 in
# fp32), and -inf has to go: its differences are NaN. With this one, 64 integer parts add exactly.
RESET = tl.constexpr(-65536.0)

# The unit of a state without content, 2^-60: its square and its quotients are normal numbers.
MIN_UNIT = tl.constexpr(8.673617379884035e-19)


@triton.jit
def sin_cos(theta):
    """Sine and cosine of fp32 radians; absolute error below 2^-22 for |theta| <= 2^13 * pi.

    theta = n * pi + r with |r| <= pi / 2 (Cody and Waite): pi is split into 11 + 11 + 24 bits, so
    the first two products and differences are exact for |n| <= 2^13, with fused multiply-adds or
    without. cos r = sin(pi/2 - |r|), which shares the polynomial. Cosines below 6e-8 may have the
    wrong sign (2 of the 16001 multiples of pi/2 around 0). Taking that difference from the
    unrounded r mends it, but then K = 256 no longer fits the on-chip memory of arch32.
    """
    n = tl.floor(theta * 0.3183098861837907 + 0.5)
    r = theta - n * 3.140625
    r = r - n * 0.0009675025939941406
    r = r - n * 1.5099580252808664e-07
    # The sign of an odd number of half turns goes to the arguments of the odd polynomial.
    sign = 1.0 - 2.0 * (n - 2.0 * tl.floor(n * 0.5))
    to_quarter = (1.5707963705062866 - tl.abs(r)) - 4.371138828673793e-08
    return _sin_polynomial(sign * r), _sin_polynomial(sign * to_quarter)


@triton.jit
def _sin_polynomial(x):
    # Minimax on [-pi/2, pi/2], odd, degree 9: 4.7e-9 off in exact arithmetic, 1.1e-7 evaluated in
    # fp32.
    x2 = x * x
    p = -0.00019806601591377905 + x2 * 2.6000244746924966e-06
    p = 0.0083330171045247 + x2 * p
    p = -0.16666657088931647 + x2 * p
    return x + x * (x2 * p)


@triton.jit
def sigmoid(x):
    # Accurate relative to its value for either sign: for x < -88 the exponential is inf and the
    # result 0 (the true one is < 1e-38).
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def power_of_two(x):
    # The exponent bits alone: 2^floor(log2 x) of a positive normal scalar.
    bits = x.to(tl.int32, bitcast=True) & 0x7F800000
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _row_offsets(rows, STRIDE: tl.constexpr):
    # 64 rows of a stride up to 2^24 stay inside int32; a wider one (a view into a huge tensor)
    # needs 64-bit offsets.
    if STRIDE <= 16777216:
        return rows[:, None] * STRIDE
    else:
        return rows[:, None].to(tl.int64) * STRIDE


@triton.jit
def _bias_halves(ptrs, mask, BLOCK_K: tl.constexpr):
    # Stride-2 loads would do as well, but Ascend's arch35 compiler (1.2.0) rejects them masked.
    row = tl.load(ptrs, mask=mask, other=0.0)  # [BLOCK_K]
    even, odd = tl.split(tl.reshape(row, (BLOCK_K // 2, 2)))
    return even.to(tl.float32), odd.to(tl.float32)  # [K2] each


@triton.jit
def _biased_halves(ptrs, mask, even_bias, odd_bias, BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr):
    # The raw 16-bit tile is split before anything else uses it; the fp32 bias comes afterwards.
    raw = tl.load(ptrs, mask=mask, other=0.0)  # [T, BLOCK_K]
    even, odd = tl.split(tl.reshape(raw, (BLOCK_T, BLOCK_K // 2, 2)))
    even = even.to(tl.float32) + even_bias[None, :]
    odd = odd.to(tl.float32) + odd_bias[None, :]
    return even, odd  # [T, K2] each


# S and num_tasks vary from call to call and gain nothing from a variant of their own (1, or 16 n).
@triton.jit(do_not_specialize=["S", "num_tasks"])
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
    S,
    num_tasks,
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
):
    V_TILES: tl.constexpr = (V + BLOCK_V - 1) // BLOCK_V
    K2: tl.constexpr = BLOCK_K // 2
    # The matrix operands' dtype: the inputs' own, except where the plan says that the device cannot
    # multiply it (see plan.py).
    DOT: tl.constexpr = tl.float32 if FP32_DOTS else q_ptr.dtype.element_ty

    rows = tl.arange(0, BLOCK_T)
    cols = tl.arange(0, BLOCK_K)
    pairs = tl.arange(0, K2)
    v_lane = tl.arange(0, BLOCK_V)
    earlier = rows[:, None] > rows[None, :]  # [T, T]: token j strictly before token i
    up_to = rows[:, None] >= rows[None, :]

    for task in range(tl.program_id(0), num_tasks, tl.num_programs(0)):
        v_tile = task % V_TILES
        h = (task // V_TILES) % H
        b = tl.cast(task // (V_TILES * H), tl.int64)
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
        k_mask = cols < K
        q_bias_even, q_bias_odd = _bias_halves(q_bias_base + cols, k_mask, BLOCK_K)
        k_bias_even, k_bias_odd = _bias_halves(k_bias_base + cols, k_mask, BLOCK_K)
        if HAS_D:
            skip = tl.load(d_ptr + h64 * D_STRIDE_H)

        state_even = tl.zeros((K2, BLOCK_V), dtype=tl.float32)
        state_odd = tl.zeros((K2, BLOCK_V), dtype=tl.float32)
        unit = MIN_UNIT

        for start in range(0, S, BLOCK_T):
            start64 = tl.cast(start, tl.int64)
            left = S - start  # tokens from here to the end; the last tile has fewer than BLOCK_T
            in_seq = rows < left

            # Gates, [T] fp32. Beyond the end all are 0: such a token neither decays nor adds. The
            # first token's adt has nothing to scale; as 0 it cannot make inf * 0 of it. That is not
            # in the load's mask: Ascend's compiler (1.2.0) loads whole tiles, past the tensor's
            # end, unless a mask is a plain range.
            adt = tl.load(adt_base + start64 + rows, mask=in_seq, other=0.0)
            adt = tl.where(rows > -start, adt, 0.0)
            dt = tl.load(dt_base + start64 + rows, mask=in_seq, other=0.0)
            trap = tl.load(trap_base + start64 + rows, mask=in_seq, other=0.0)
            # nu looks one token ahead, across the tile's edge, and is 0 at the last token.
            in_seq_next = rows < left - 1
            dt_next = tl.load(dt_base + start64 + 1 + rows, mask=in_seq_next, other=0.0)
            trap_next = tl.load(trap_base + start64 + 1 + rows, mask=in_seq_next, other=0.0)
            gamma = dt * sigmoid(trap)
            scale = gamma + dt_next * sigmoid(-trap_next)  # s = gamma + nu

            # Running sums c of adt, as integer plus fraction: integers add and subtract exactly, so
            # e^{c_i - c_j} stays accurate however many resets lie before token j. One fp32 sum near
            # -8000 would be off by 5e-4, a unit of fp16 (measured: up to 1.18 times r's error).
            # Masked sums, because a 1-D scan is a scalar loop on arch32.
            adt = tl.where(adt < RESET, RESET, adt)
            whole = tl.floor(adt + 0.5)
            part = adt - whole
            c_whole = tl.sum(tl.where(up_to, whole[None, :], 0.0), 1)
            c_part = tl.sum(tl.where(up_to, part[None, :], 0.0), 1)
            total_whole = tl.sum(whole, 0)
            total_part = tl.sum(part, 0)
            decay_in = tl.exp(c_whole + c_part)  # from the tile's start to token i
            decay_out = tl.exp((total_whole - c_whole) + (total_part - c_part))  # j to the end
            decay_tile = tl.exp(total_whole + total_part)

            if SCALE_OPERANDS:
                # fp16 is subnormal below 6e-5, where products with small steps dt lie. State and
                # weights are therefore held in units of 32 times the largest s that they contain:
                # full precision for any dt as long as 2^-9 < |q.k| < 2^21. Powers of two, so that
                # no operand is rounded otherwise than without a unit.
                largest = power_of_two(32.0 * tl.max(tl.abs(scale), 0))
                faded = power_of_two(unit * decay_tile)
                next_unit = tl.maximum(tl.maximum(faded, largest), MIN_UNIT)
                decay_in *= unit / next_unit
                decay_tile *= unit / next_unit
                scale = scale / next_unit
                unit = next_unit

            # q and k: bias, rows' products, rotation, one rounding to the operand dtype.
            qk_mask = in_seq[:, None] & k_mask[None, :]
            q_ptrs = q_base + start64 * Q_STRIDE_S + _row_offsets(rows, Q_STRIDE_S) + cols[None, :]
            k_ptrs = k_base + start64 * K_STRIDE_S + _row_offsets(rows, K_STRIDE_S) + cols[None, :]
            qe, qo = _biased_halves(q_ptrs, qk_mask, q_bias_even, q_bias_odd, BLOCK_T, BLOCK_K)
            ke, ko = _biased_halves(k_ptrs, qk_mask, k_bias_even, k_bias_odd, BLOCK_T, BLOCK_K)
            # A rotation keeps q.k at equal positions.
            diagonal = gamma * tl.sum(qe * ke + qo * ko, 1)
            if HAS_D:
                diagonal += skip
            if A > 0:
                angles_ptrs = angles_base + start64 * ANGLES_STRIDE_S
                angles_ptrs += _row_offsets(rows, ANGLES_STRIDE_S) + pairs[None, :]
                angles_mask = in_seq[:, None] & (pairs < A)[None, :]
                # Angle 0 beyond A: those pairs stay as they are.
                sin, cos = sin_cos(tl.load(angles_ptrs, mask=angles_mask, other=0.0))
                q_rot_even = (qe * cos - qo * sin).to(DOT)
                q_rot_odd = (qe * sin + qo * cos).to(DOT)
                k_rot_even = (ke * cos - ko * sin).to(DOT)
                k_rot_odd = (ke * sin + ko * cos).to(DOT)
            else:
                q_rot_even = qe.to(DOT)
                q_rot_odd = qo.to(DOT)
                k_rot_even = ke.to(DOT)
                k_rot_odd = ko.to(DOT)

            # Weights of earlier tokens of the tile, [T, T] fp32. The exponent is masked before
            # exp(): above the diagonal it could overflow.
            exponent = c_whole[:, None] - c_whole[None, :]
            exponent += c_part[:, None] - c_part[None, :]
            decay = tl.exp(tl.where(earlier, exponent, -256.0))  # exactly 0 where masked
            weights = tl.dot(q_rot_even, tl.trans(k_rot_even), input_precision="ieee")
            weights += tl.dot(q_rot_odd, tl.trans(k_rot_odd), input_precision="ieee")
            weights = weights * (decay * scale[None, :])

            v_mask = in_seq[:, None] & (v_cols < V)[None, :]
            v_ptrs = v_base + start64 * V_STRIDE_S + v_cols[None, :]
            v_ptrs += _row_offsets(rows, V_STRIDE_S)
            v = tl.load(v_ptrs, mask=v_mask, other=0.0)  # [T, N]
            if FILL_V:
                v = tl.where(v_mask, v, 0.0)
            v_fp32 = v.to(tl.float32)

            # Output: state before the tile, earlier tokens of the tile, the token itself.
            o = tl.dot(q_rot_even, state_even.to(DOT), input_precision="ieee")
            o += tl.dot(q_rot_odd, state_odd.to(DOT), input_precision="ieee")
            o = o * decay_in[:, None]
            o += tl.dot(weights.to(DOT), v.to(DOT), input_precision="ieee")
            if SCALE_OPERANDS:
                o = o * unit
            o += diagonal[:, None] * v_fp32

            # State: the weight goes to v, which is exact in 16 bits; k has been rounded already.
            v_weighted = (v_fp32 * (scale * decay_out)[:, None]).to(DOT)
            state_even *= decay_tile
            state_even += tl.dot(tl.trans(k_rot_even), v_weighted, input_precision="ieee")
            state_odd *= decay_tile
            state_odd += tl.dot(tl.trans(k_rot_odd), v_weighted, input_precision="ieee")

            if HAS_Z:
                z_ptrs = z_base + start64 * Z_STRIDE_S + v_cols[None, :]
                z_ptrs += _row_offsets(rows, Z_STRIDE_S)
                z = tl.load(z_ptrs, mask=v_mask, other=0.0).to(tl.float32)
                o = o * (z * sigmoid(z))
            out_ptrs = out_base + start64 * (H * V) + _row_offsets(rows, H * V) + v_cols[None, :]
            tl.store(out_ptrs, o.to(out_ptr.dtype.element_ty), mask=v_mask)
