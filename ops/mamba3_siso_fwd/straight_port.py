"""What a straight port of the public kernel (mamba-ssm's mamba3_siso_fwd) to Ascend looks like.

Test only: port_comparison compiles it beside the op's kernel, to show what rewriting was worth. It
keeps the public structure: a program per (head, batch) with all of v's columns; a first pass that
writes rotated q and k to global memory and a second one that reads them back; a 1-D cumsum;
descriptors. It departs from it only where Ascend's compilers 1.2.0 take nothing else:

1. no inline assembly, no `runtime and CONSTEXPR`, casts before stores through descriptors;
2. pairs are split as they are loaded, and biased afterwards;
3. rotated halves are stored side by side instead of joined: q . k does not care for the order of K;
4. row sums instead of a product with a column of ones.
"""

from typing import Any

import torch
import triton
import triton.language as tl

from ops.common import backend, launch

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def straight_port(
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
    q_rot_ptr,
    k_rot_ptr,
    diagonal_ptr,
    S,
    H: tl.constexpr,
    HQ: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    A: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    K2: tl.constexpr = K // 2
    h = tl.program_id(0)
    b = tl.program_id(1)
    hq = h // (H // HQ)
    rows = tl.arange(0, CHUNK)
    half = tl.arange(0, K2)
    gates = (b * H + h) * S
    qk = (b * S * HQ + hq) * K
    vz = (b * S * H + h) * V
    rot = (b * S * H + h) * K
    bias = h * K + 2 * half

    q_desc = tl.make_tensor_descriptor(q_ptr + qk, [S, K], [HQ * K, 1], [CHUNK, K])
    k_desc = tl.make_tensor_descriptor(k_ptr + qk, [S, K], [HQ * K, 1], [CHUNK, K])
    v_desc = tl.make_tensor_descriptor(v_ptr + vz, [S, V], [H * V, 1], [CHUNK, BLOCK_V])
    z_desc = tl.make_tensor_descriptor(z_ptr + vz, [S, V], [H * V, 1], [CHUNK, BLOCK_V])
    out_desc = tl.make_tensor_descriptor(out_ptr + vz, [S, V], [H * V, 1], [CHUNK, BLOCK_V])
    q_halves = tl.make_tensor_descriptor(q_rot_ptr + rot, [S, K], [H * K, 1], [CHUNK, K2])
    k_halves = tl.make_tensor_descriptor(k_rot_ptr + rot, [S, K], [H * K, 1], [CHUNK, K2])
    q_rot = tl.make_tensor_descriptor(q_rot_ptr + rot, [S, K], [H * K, 1], [CHUNK, K])
    k_rot = tl.make_tensor_descriptor(k_rot_ptr + rot, [S, K], [H * K, 1], [CHUNK, K])
    dtype = q_ptr.dtype.element_ty

    # First pass: biases, rotation, the diagonal.
    for start in range(0, S, CHUNK):
        tokens = start + rows
        in_seq = tokens < S
        in_next = tokens + 1 < S
        angles = tl.load(
            angles_ptr + ((b * S + tokens) * H + h)[:, None] * A + half[None, :],
            mask=in_seq[:, None] & (half < A)[None, :],
            other=0.0,
        )
        sin = tl.sin(angles)
        cos = tl.cos(angles)
        gamma = tl.load(dt_ptr + gates + tokens, mask=in_seq, other=0.0)
        gamma *= tl.sigmoid(tl.load(trap_ptr + gates + tokens, mask=in_seq, other=0.0))
        nu = tl.load(dt_ptr + gates + tokens + 1, mask=in_next, other=0.0)
        nu *= 1 - tl.sigmoid(tl.load(trap_ptr + gates + tokens + 1, mask=in_next, other=0.0))
        scale = (gamma + nu)[:, None]
        q_0, q_1 = tl.split(tl.reshape(q_desc.load([start, 0]), [CHUNK, K2, 2]))
        k_0, k_1 = tl.split(tl.reshape(k_desc.load([start, 0]), [CHUNK, K2, 2]))
        q_0 = q_0 + tl.load(q_bias_ptr + bias)[None, :]
        q_1 = q_1 + tl.load(q_bias_ptr + bias + 1)[None, :]
        k_0 = k_0 + tl.load(k_bias_ptr + bias)[None, :]
        k_1 = k_1 + tl.load(k_bias_ptr + bias + 1)[None, :]
        diagonal = tl.sum(q_0 * k_0 + q_1 * k_1, 1) * gamma
        tl.store(diagonal_ptr + gates + tokens, diagonal, mask=in_seq)
        k_halves.store([start, 0], ((k_0 * cos - k_1 * sin) * scale).to(dtype))
        k_halves.store([start, K2], ((k_0 * sin + k_1 * cos) * scale).to(dtype))
        q_halves.store([start, 0], (q_0 * cos - q_1 * sin).to(dtype))
        q_halves.store([start, K2], (q_0 * sin + q_1 * cos).to(dtype))

    # Second pass: outputs and state.
    state = tl.zeros([BLOCK_V, K], dtype=tl.float32)
    skip = tl.load(d_ptr + h)
    for start in range(0, S, CHUNK):
        tokens = start + rows
        adt = tl.load(adt_ptr + gates + tokens, mask=tokens < S, other=0.0) * LOG2_E
        q = q_rot.load([start, 0])
        k = k_rot.load([start, 0])
        v = v_desc.load([start, 0])
        z = z_desc.load([start, 0]).to(tl.float32)
        c = tl.cumsum(adt)
        total = tl.sum(adt)
        out = tl.dot(q, tl.trans(state).to(dtype)) * tl.exp2(c)[:, None]
        weights = tl.dot(q, tl.trans(k)) * tl.exp2(tl.minimum(c[:, None] - c[None, :], 0.0))
        weights = tl.where(rows[:, None] > rows[None, :], weights, 0.0)
        out += tl.dot(weights.to(dtype), v)
        diagonal = tl.load(diagonal_ptr + gates + tokens, mask=tokens < S, other=0.0)
        out += (skip + diagonal)[:, None] * v
        out_desc.store([start, 0], (out * z * tl.sigmoid(z)).to(dtype))
        v_weighted = (v * tl.exp2(total - c)[:, None]).to(dtype)
        state = state * tl.exp2(total) + tl.dot(tl.trans(v_weighted), k)


def forward(
    q, k, v, adt, dt, trap, q_bias, k_bias, angles, d, z, chunk_size: int = 64
) -> torch.Tensor:
    """The op's arguments; contiguous, with d and z, K a power of two, A > 0 only."""
    b, s, hq, k_dim = q.shape
    heads, v_dim = v.shape[2:]
    given: dict[str, Any] = {"q": q, "k": k, "v": v, "adt": adt, "dt": dt, "trap": trap}
    given |= {"q_bias": q_bias, "k_bias": k_bias, "angles": angles, "d": d, "z": z}
    given["out"] = torch.empty_like(v)
    given["q_rot"] = q.new_empty((b, s, heads, k_dim))
    given["k_rot"] = q.new_empty((b, s, heads, k_dim))
    given["diagonal"] = torch.empty_like(adt)
    launch.Launch(
        kernel=straight_port,
        backend=backend.backend_of(q),
        grid=(heads, b),
        args={f"{name}_ptr": value for name, value in given.items()} | {"S": s},
        constants={
            "H": heads,
            "HQ": hq,
            "K": k_dim,
            "V": v_dim,
            "A": angles.shape[3],
            "CHUNK": chunk_size,
            "BLOCK_V": triton.next_power_of_2(v_dim),
        },
        options={},
    ).run()
    return given["out"]
