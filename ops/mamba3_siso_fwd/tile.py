"""What the kernels do with one tile of tokens: gates, and biased, rotated q and k.

T: tokens of a tile, K2 = BLOCK_K / 2. q and k are loaded as two halves of K2 columns each. Which
columns a half has depends on the device (`GPU`):

* Ascend: the even and the odd elements of the pairs that a rotation turns. A tile is split when it
  is loaded and never joined again, because a join goes through scalar memory there: a product over
  K is the sum of two, or gated.py puts the halves beside each other.
* GPU: the low and the high columns. Splitting and joining pairs costs nothing there (a thread holds
  whole pairs), and the high half needs neither sine nor cosine when A <= K / 4.
"""

import triton
import triton.language as tl

from ops.mamba3_siso_fwd.device_math import exponent_units, sigmoid

# Below this, adt is a full reset. Any bound under -152 keeps exponentials exact (2^-152 and e^-152
# round to 0 in fp32), and -inf has to go: its differences are NaN. With this one, the integer parts
# of 128 tokens add exactly.
RESET = tl.constexpr(-65536.0)


@triton.jit
def row_offsets(rows, STRIDE: tl.constexpr):
    # 128 rows of a stride up to 2^23 stay inside int32; a wider one (a view into a huge tensor)
    # needs 64-bit offsets.
    if STRIDE <= 8388608:
        return rows[:, None] * STRIDE
    else:
        return rows[:, None].to(tl.int64) * STRIDE


@triton.jit
def load_gates(adt_base, dt_base, trap_base, start, S, rows):
    # [T] fp32. Beyond the end all are 0: such a token neither decays nor adds. The first token's
    # adt has nothing to scale; as 0, it cannot make inf * 0 of it. That is not in the load's mask:
    # Ascend's compilers (1.2.0) load a whole tile, past the tensor's end, unless a mask is a plain
    # range.
    start64 = tl.cast(start, tl.int64)
    left = S - start  # tokens from here to the end; the last tile has fewer than T
    in_seq = rows < left
    adt = tl.load(adt_base + start64 + rows, mask=in_seq, other=0.0)
    adt = tl.where(rows > -start, adt, 0.0)
    dt = tl.load(dt_base + start64 + rows, mask=in_seq, other=0.0)
    trap = tl.load(trap_base + start64 + rows, mask=in_seq, other=0.0)
    # nu looks one token ahead, across the tile's edge, and is 0 at the last token.
    in_seq_next = rows < left - 1
    dt_next = tl.load(dt_base + start64 + 1 + rows, mask=in_seq_next, other=0.0)
    trap_next = tl.load(trap_base + start64 + 1 + rows, mask=in_seq_next, other=0.0)
    return adt, dt, trap, dt_next, trap_next


@triton.jit
def step_weights(dt, trap, dt_next, trap_next, GPU: tl.constexpr):
    """gamma and s = gamma + nu, [T] fp32."""
    gamma = dt * sigmoid(trap, GPU)
    scale = gamma + dt_next * sigmoid(-trap_next, GPU)
    if GPU:
        # A sum over an axis of one element, which changes nothing, but which Triton does not
        # compute again for each layout in which it needs the result (12 loads and 12 exponentials
        # per thread fewer, 145 of 3480 instructions in Triton 3.6).
        gamma = tl.sum(gamma[:, None], 1)
        scale = tl.sum(scale[:, None], 1)
    return gamma, scale


@triton.jit
def _add_both(a, b, c, d):
    return a + c, b + d


@triton.jit
def running_sums(adt, rows, GPU: tl.constexpr):
    """Inclusive sums of adt and their totals, as integer plus fraction, in `exponent_units`.

    Integers add and subtract exactly, so e^{c_i - c_j} stays accurate however many resets lie
    before token j. One fp32 sum near -8000 would be off by 5e-4, a unit of fp16 (measured: up to
    1.18 times r's error).
    """
    adt = tl.where(adt < RESET, RESET, adt * exponent_units(GPU))
    whole = tl.floor(adt + 0.5)
    part = adt - whole
    if GPU:
        c_whole, c_part = tl.associative_scan((whole, part), 0, _add_both)
        total_whole, total_part = tl.reduce((whole, part), 0, _add_both)
    else:
        # Masked sums, because a 1-D scan is a scalar loop on arch32.
        up_to = rows[:, None] >= rows[None, :]
        c_whole = tl.sum(tl.where(up_to, whole[None, :], 0.0), 1)
        c_part = tl.sum(tl.where(up_to, part[None, :], 0.0), 1)
        total_whole = tl.sum(whole, 0)
        total_part = tl.sum(part, 0)
    return c_whole, c_part, total_whole, total_part


@triton.jit
def load_rows(
    base,
    start,
    S,
    rows,
    FIRST: tl.constexpr,
    N: tl.constexpr,
    LIMIT: tl.constexpr,
    STRIDE: tl.constexpr,
):
    """Columns FIRST to FIRST + N of T rows, [T, N]; zeros from column LIMIT and token S on."""
    cols = FIRST + tl.arange(0, N)
    in_seq = rows < S - start
    mask = in_seq[:, None]
    if LIMIT < FIRST + N:
        mask = mask & (cols < LIMIT)[None, :]
    ptrs = base + tl.cast(start, tl.int64) * STRIDE + row_offsets(rows, STRIDE) + cols[None, :]
    return tl.load(ptrs, mask=mask, other=0.0)


@triton.jit
def load_halves(
    base,
    start,
    S,
    rows,
    K: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STRIDE: tl.constexpr,
    GPU: tl.constexpr,
):
    """Both halves of a tile of q or k as they are in memory, [T, K2] each."""
    K2: tl.constexpr = BLOCK_K // 2
    if GPU:
        first = load_rows(base, start, S, rows, 0, K2, K, STRIDE)
        second = load_rows(base, start, S, rows, K2, K2, K, STRIDE)
        return first, second
    else:
        # Split before anything else uses it: a second user costs 2 to 7 times the on-chip memory.
        cols = tl.arange(0, BLOCK_K)
        mask = (rows < S - start)[:, None] & (cols < K)[None, :]
        ptrs = base + tl.cast(start, tl.int64) * STRIDE + row_offsets(rows, STRIDE) + cols[None, :]
        raw = tl.load(ptrs, mask=mask, other=0.0)  # [T, BLOCK_K]
        return tl.split(tl.reshape(raw, (rows.shape[0], K2, 2)))


@triton.jit
def even_odd_bias(ptr, K: tl.constexpr, BLOCK_K: tl.constexpr):
    # Stride-2 loads would do as well, but Ascend's arch35 compiler (1.2.0) rejects them masked.
    cols = tl.arange(0, BLOCK_K)
    row = tl.load(ptr + cols, mask=cols < K, other=0.0)  # [BLOCK_K]
    even, odd = tl.split(tl.reshape(row, (BLOCK_K // 2, 2)))
    return even.to(tl.float32), odd.to(tl.float32)  # [K2] each


@triton.jit
def rotate_even_odd(even, odd, sin, cos, DOT: tl.constexpr):
    return (even * cos - odd * sin).to(DOT), (even * sin + odd * cos).to(DOT)


@triton.jit
def biased_columns(raw, bias_ptr, FIRST: tl.constexpr, K: tl.constexpr):
    """A half of columns with its bias, [T, K2] fp32; on a GPU."""
    K2: tl.constexpr = raw.shape[1]
    cols = FIRST + tl.arange(0, K2)
    bias = tl.load(bias_ptr + cols, mask=cols < K, other=0.0).to(tl.float32)
    # Changes no value. Triton follows operands of a product back to loads, through anything but a
    # comparison of positions, and would bias and rotate once more in the layout of each product
    # (sine and cosine twice, 620 of 4216 instructions in Triton 3.6).
    bias = tl.where(cols < K, bias, 0.0)
    return raw.to(tl.float32) + bias[None, :]


@triton.jit
def rotate_columns(x, sin, cos, DOT: tl.constexpr):
    """Rotates the interleaved pairs of columns [T, K2] and rounds to the operands' dtype."""
    T: tl.constexpr = x.shape[0]
    K2: tl.constexpr = x.shape[1]
    even, odd = tl.split(tl.reshape(x, (T, K2 // 2, 2)))
    even_rotated = (even * cos - odd * sin).to(DOT)
    odd_rotated = (even * sin + odd * cos).to(DOT)
    return tl.reshape(tl.join(even_rotated, odd_rotated), (T, K2))


@triton.jit
def join_halves(low, high):
    """[T, 2 K2]; the order of the columns is another one, the same for q, k and the state."""
    return tl.reshape(tl.join(low, high), (low.shape[0], 2 * low.shape[1]))
