"""Kernels with matrix products, alone and together with vector work."""

import triton
import triton.language as tl


@triton.jit
def matmul(
    a_ptr, b_ptr, out_ptr, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, TRANSPOSE_A: tl.constexpr, TRANSPOSE_B: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    # out [M, N] = a [M, K] or [K, M], b [K, N] or [N, K].
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, K, BLOCK_K):
        inner = start + tl.arange(0, BLOCK_K)
        if TRANSPOSE_A:
            a_mask = (inner[:, None] < K) & (row[None, :] < M)
            a = tl.load(a_ptr + inner[:, None] * M + row[None, :], mask=a_mask, other=0.0)
            a = tl.trans(a)
        else:
            a_mask = (row[:, None] < M) & (inner[None, :] < K)
            a = tl.load(a_ptr + row[:, None] * K + inner[None, :], mask=a_mask, other=0.0)
        if TRANSPOSE_B:
            b_mask = (column[:, None] < N) & (inner[None, :] < K)
            b = tl.load(b_ptr + column[:, None] * K + inner[None, :], mask=b_mask, other=0.0)
            b = tl.trans(b)
        else:
            b_mask = (inner[:, None] < K) & (column[None, :] < N)
            b = tl.load(b_ptr + inner[:, None] * N + column[None, :], mask=b_mask, other=0.0)
        total = tl.dot(a, b, total, input_precision=PRECISION)
    mask = (row[:, None] < M) & (column[None, :] < N)
    out = total.to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + row[:, None] * N + column[None, :], out, mask=mask)


@triton.jit
def product(x_ptr, y_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    # The product is the cube core's alone.
    rows, columns, inner = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    x = tl.load(x_ptr + rows[:, None] * K + inner[None, :])
    y = tl.load(y_ptr + inner[:, None] * N + columns[None, :])
    out = tl.dot(x, y, input_precision="ieee")
    tl.store(out_ptr + rows[:, None] * N + columns[None, :], out)


@triton.jit
def batched_product(x_ptr, y_ptr, out_ptr, B: tl.constexpr, N: tl.constexpr):
    batch, index = tl.arange(0, B)[:, None, None], tl.arange(0, N)
    offsets = batch * N * N + index[None, :, None] * N + index[None, None, :]
    out = tl.dot(tl.load(x_ptr + offsets), tl.load(y_ptr + offsets), input_precision="ieee")
    tl.store(out_ptr + offsets, out)


@triton.jit
def sums_of_products(x_ptr, y_ptr, out_ptr, tasks, steps, N: tl.constexpr):
    # out[task] = sum over steps of x[step] y[task, step]: an accumulator in the inner loop.
    index = tl.arange(0, N)
    square = index[:, None] * N + index[None, :]
    for task in range(tasks):
        total = tl.zeros((N, N), tl.float32)
        for step in range(steps):
            x = tl.load(x_ptr + step * N * N + square)
            y = tl.load(y_ptr + (task * steps + step) * N * N + square)
            total = tl.dot(x, y, total, input_precision="ieee")
        tl.store(out_ptr + task * N * N + square, total)


@triton.jit
def linear(x_ptr, weight_ptr, bias_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    # out = max(x w + bias, 0): a vector epilogue.
    rows, columns, inner = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    x = tl.load(x_ptr + rows[:, None] * K + inner[None, :])
    weight = tl.load(weight_ptr + inner[:, None] * N + columns[None, :])
    bias = tl.load(bias_ptr + columns).to(tl.float32)
    out = tl.dot(x, weight, input_precision="ieee") + bias[None, :]
    out = tl.maximum(out, 0.0).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + rows[:, None] * N + columns[None, :], out)


@triton.jit
def scaled_operand(x_ptr, scale_ptr, y_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr):
    # out = (x * scale[:, None]) y: a vector prologue. K = M.
    rows, columns = tl.arange(0, M), tl.arange(0, N)
    x = tl.load(x_ptr + rows[:, None] * M + rows[None, :])
    scale = tl.load(scale_ptr + rows)
    y = tl.load(y_ptr + rows[:, None] * N + columns[None, :])
    out = tl.dot(x * scale[:, None], y, input_precision="ieee")
    tl.store(out_ptr + rows[:, None] * N + columns[None, :], out)


@triton.jit
def masked_attention(q_ptr, k_ptr, v_ptr, out_ptr, T: tl.constexpr, D: tl.constexpr):
    # out = lower(q k') v, a head per program: dot -> mask -> dot.
    head = tl.program_id(0) * T * D
    time, feature = tl.arange(0, T), tl.arange(0, D)
    place = head + time[:, None] * D + feature[None, :]
    q = tl.load(q_ptr + place)
    k = tl.load(k_ptr + place)
    v = tl.load(v_ptr + place)
    scores = tl.dot(q, tl.trans(k), input_precision="ieee")
    scores = tl.where(time[:, None] >= time[None, :], scores, 0.0)
    out = tl.dot(scores.to(v.dtype), v, input_precision="ieee")
    tl.store(out_ptr + place, out.to(out_ptr.dtype.element_ty))


@triton.jit
def softmax_attention(q_ptr, k_ptr, v_ptr, out_ptr, keys, scale, T: tl.constexpr, D: tl.constexpr):
    # Softmax over blocks of keys with a running maximum; a block of T queries per program.
    time, feature = tl.arange(0, T), tl.arange(0, D)
    block = time[:, None] * D + feature[None, :]
    q_place = tl.program_id(0) * T * D + block
    q = tl.load(q_ptr + q_place)
    largest = tl.full((T,), -1e30, tl.float32)
    weight = tl.zeros((T,), tl.float32)
    out = tl.zeros((T, D), tl.float32)
    for start in range(0, keys, T):
        mask = (start + time < keys)[:, None]
        k = tl.load(k_ptr + start * D + block, mask=mask, other=0.0)
        v = tl.load(v_ptr + start * D + block, mask=mask, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        scores = tl.where((start + time < keys)[None, :], scores, -1e30)
        peak = tl.maximum(largest, tl.max(scores, 1))
        grown = tl.exp(largest - peak)
        p = tl.exp(scores - peak[:, None])
        weight = weight * grown + tl.sum(p, 1)
        out = out * grown[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        largest = peak
    tl.store(out_ptr + q_place, out / weight[:, None])


@triton.jit
def linear_attention(
    q_ptr, k_ptr, v_ptr, out_ptr, state_ptr, chunks, T: tl.constexpr, D: tl.constexpr,
    DECAY: tl.constexpr,
):  # fmt: skip
    # out = lower(q k') v + q state, then state = decay state + k' v, over chunks of T; a head per
    # program. Without DECAY the sum is `+=`.
    time, feature = tl.arange(0, T), tl.arange(0, D)
    head = tl.program_id(0) * chunks * T * D
    state = tl.zeros((D, D), tl.float32)
    for chunk in range(chunks):
        place = head + (chunk * T + time[:, None]) * D + feature[None, :]
        q = tl.load(q_ptr + place)
        k = tl.load(k_ptr + place)
        v = tl.load(v_ptr + place)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")
        scores = tl.where(time[:, None] >= time[None, :], scores, 0.0)
        out = tl.dot(scores.to(v.dtype), v, input_precision="ieee")
        out += tl.dot(q, state.to(q.dtype), input_precision="ieee")
        tl.store(out_ptr + place, out)
        if DECAY:
            state = state * 0.5 + tl.dot(tl.trans(k), v, input_precision="ieee")
        else:
            state += tl.dot(tl.trans(k), v, input_precision="ieee")
    square = feature[:, None] * D + feature[None, :]
    tl.store(state_ptr + tl.program_id(0) * D * D + square, state)
