"""Two references: the recurrence in float64 (golden) and a chunked form in fp32 (same precision).

Both are plain torch, take the keyword arguments of mamba3_siso_fwd_kernel, and run on any torch
device that has the dtypes. Neither shares code with the kernel.
"""

import torch


def golden(
    q, k, v, adt, dt, trap, q_bias, k_bias, angles, d=None, z=None, chunk_size=64
) -> torch.Tensor:
    """The token recurrence in float64: the op's definition, one token at a time, no chunks.

    Returns:
        [B, S, H, V] float64, not rounded.
    """
    del chunk_size  # an artefact of the chunked form
    b, s, heads, v_dim = v.shape
    out = torch.zeros(b, s, heads, v_dim, dtype=torch.float64, device=v.device)
    if out.numel() == 0:
        return out
    q_rot = _rotate(_per_head(q, q_bias, torch.float64), angles.double())  # [B, S, H, K]
    k_rot = _rotate(_per_head(k, k_bias, torch.float64), angles.double())
    values = v.double()
    decay = torch.exp(adt.double())  # [B, H, S]
    gate = torch.sigmoid(trap.double())
    gamma = gate * dt.double()
    carried = (1 - gate) * dt.double() * decay  # weight of the previous token's v k^T

    def heads_flat(x, t):  # [B, H, n] of token t as [B * H, n]
        return x[:, t].reshape(b * heads, x.shape[-1])

    def gate_flat(x, t):  # [B * H, 1, 1]
        return x[:, :, t].reshape(b * heads, 1, 1)

    state = torch.zeros(b * heads, v_dim, q.shape[3], dtype=torch.float64, device=v.device)
    for t in range(s):
        v_now = heads_flat(values, t)[:, :, None] * gate_flat(gamma, t)
        k_now = heads_flat(k_rot, t)[:, None, :]
        if t == 0:  # nothing is there to decay, whatever adt says
            state.baddbmm_(v_now, k_now)
        else:
            v_before = heads_flat(values, t - 1)[:, :, None] * gate_flat(carried, t)
            k_before = heads_flat(k_rot, t - 1)[:, None, :]
            state.mul_(gate_flat(decay, t))
            state.baddbmm_(torch.cat((v_before, v_now), 2), torch.cat((k_before, k_now), 1))
        out[:, t] = torch.bmm(state, heads_flat(q_rot, t)[:, :, None]).view(b, heads, v_dim)
    if d is not None:
        out += d.double()[:, None] * values
    if z is not None:
        out *= z.double() * torch.sigmoid(z.double())
    return out


def same_precision(
    q, k, v, adt, dt, trap, q_bias, k_bias, angles, d=None, z=None, chunk_size=64
) -> torch.Tensor:
    """The chunked form in fp32 with the roundings that README.md documents, and no others.

    Returns:
        [B, S, H, V] in the dtype of q.
    """
    out = chunked(
        q,
        k,
        v,
        adt,
        dt,
        trap,
        q_bias,
        k_bias,
        angles,
        d,
        z,
        chunk_size,
        compute_dtype=torch.float32,
        operand_dtype=q.dtype,
    )
    return out.to(q.dtype)


def chunked(
    q,
    k,
    v,
    adt,
    dt,
    trap,
    q_bias,
    k_bias,
    angles,
    d=None,
    z=None,
    chunk_size=64,
    *,
    compute_dtype: torch.dtype,
    operand_dtype: torch.dtype | None,
) -> torch.Tensor:
    """The chunked form in compute_dtype, with matrix operands rounded to operand_dtype if given.

    With float64 and None it equals golden() up to float64's rounding, which is how the two are
    checked against each other.

    Returns:
        [B, S, H, V] in compute_dtype.
    """

    def operand(x):
        return x if operand_dtype is None else x.to(operand_dtype).to(compute_dtype)

    def scaled_operand(x):  # [..., rows, columns] of one tile, in a unit that suits the dtype
        exponent = torch.frexp(x.abs().amax((-2, -1), keepdim=True)).exponent
        return torch.ldexp(operand(torch.ldexp(x, -exponent)), exponent)

    b, s, heads, v_dim = v.shape
    out = torch.zeros(b, s, heads, v_dim, dtype=compute_dtype, device=v.device)
    q_flat = _per_head(q, q_bias, compute_dtype)
    k_flat = _per_head(k, k_bias, compute_dtype)
    q_rot = operand(_rotate(q_flat, angles.to(compute_dtype))).transpose(1, 2)  # [B, H, S, K]
    k_rot = operand(_rotate(k_flat, angles.to(compute_dtype))).transpose(1, 2)
    values = v.to(compute_dtype).transpose(1, 2)  # [B, H, S, V]
    gate = trap.to(compute_dtype)
    step = dt.to(compute_dtype)
    gamma = step * torch.sigmoid(gate)
    ahead = step * torch.sigmoid(-gate)
    scale = gamma + torch.nn.functional.pad(ahead[:, :, 1:], (0, 1))[:, :, :s]
    diagonal = gamma * (q_flat * k_flat).sum(-1).transpose(1, 2)
    if d is not None:
        diagonal = diagonal + d.to(compute_dtype)[:, None]

    # Sums of adt stay in float64: the README documents no rounding of them. The first token's is
    # dropped: there is nothing that it could scale.
    log_decay = torch.nn.functional.pad(adt.double()[:, :, 1:], (1, 0))[:, :, :s]
    state = torch.zeros(b, heads, v_dim, q.shape[3], dtype=compute_dtype, device=v.device)
    for start in range(0, s, chunk_size):
        part = slice(start, min(start + chunk_size, s))
        steps = log_decay[:, :, part]
        since_start = torch.exp(steps.cumsum(-1)).to(compute_dtype)
        # [i, j]: the sum over tokens j + 1 to i, added up as such, so that -inf needs no care.
        between = steps[..., :, None].expand(*steps.shape, steps.shape[-1]).tril(-1).cumsum(-2)
        decay = torch.exp(between).to(compute_dtype)
        q_c, k_c, v_c, s_c = (
            q_rot[:, :, part],
            k_rot[:, :, part],
            values[:, :, part],
            scale[:, :, part],
        )
        weights = (q_c @ k_c.mT) * decay * s_c[..., None, :]
        o = (q_c @ scaled_operand(state).mT) * since_start[..., None]
        o = o + scaled_operand(weights.tril(-1)) @ v_c + diagonal[:, :, part, None] * v_c
        weighted = scaled_operand(v_c * (s_c * decay[..., -1, :])[..., None])
        state = state * since_start[..., -1:, None] + weighted.mT @ k_c
        out[:, part] = o.transpose(1, 2)
    if z is not None:
        gate_z = z.to(compute_dtype)
        out = out * (gate_z * torch.sigmoid(gate_z))
    return out


def _per_head(x: torch.Tensor, bias: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """[B, S, Hq, K] and [H, K] -> [B, S, H, K], biased."""
    return x.to(dtype).repeat_interleave(bias.shape[0] // x.shape[2], dim=2) + bias.to(dtype)


def _rotate(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Rotates the first A interleaved pairs of the last axis of x [..., K] by angles [..., A]."""
    pairs = angles.shape[-1]
    rotated = torch.view_as_complex(
        x[..., : 2 * pairs].reshape(*x.shape[:-1], pairs, 2).contiguous()
    )
    rotated = rotated * torch.polar(torch.ones_like(angles), angles)
    return torch.cat((torch.view_as_real(rotated).flatten(-2), x[..., 2 * pairs :]), -1)
