"""The chunked algorithms with the roundings that README.md documents, and no others: r.

chunked_bwd and chunked_wy compute in any dtype and round operands and stored intermediates to
another one, or not at all: with float64 and no rounding they equal the goldens, which is how the
two are checked against each other. Plain torch; no code is shared with kernels.

The roundings are those of the kernels for GPUs, which store w, u and Aqk^T do in the operands'
dtype. Those for Ascend NPUs never form w and u (v_new = Akk z there, with z = beta (v - kE h)
rounded, and beta y in its place on the way back) and keep Aqk^T do in fp32: fewer roundings, the
same gates.

Shapes inside: [N, chunks, HV, C, ...] for tokens, [N, chunks, HV, K, V] for states.
"""

import math

import torch

from ops.chunk_kda.sequences import Sequences, by_heads, gate


def _same_precision_bwd(
    q, k, v, beta, Aqk, Akk, scale, initial_state, do, dht, g=None, g_org=None, **rest
):
    """chunk_kda_bwd: fp32 with the documented roundings, results in the contract's dtypes."""
    out = chunked_bwd(
        q,
        k,
        v,
        beta,
        Aqk,
        Akk,
        scale,
        initial_state,
        do,
        dht,
        g,
        g_org,
        **rest,
        compute_dtype=torch.float32,
        operand_dtype=q.dtype,
    )
    dq, dk, dv, dbeta, dg, dh0, dA_log, ddt_bias = out
    if rest.get("use_gate_in_kernel"):
        dg = dg.to(g_org.dtype)
    return dq.to(q.dtype), dk.to(q.dtype), dv.to(v.dtype), dbeta, dg, dh0, dA_log, ddt_bias


same_precision_bwd = by_heads(_same_precision_bwd, (2, 2, 2, 2, 2, 1, 0, 0))


def _same_precision_wy(q, k, v, v_new, g, beta, A, h, do, dh, dv, **rest):
    """chunk_kda_bwd_wy_dqkg_fused: fp32 with the documented roundings."""
    out = chunked_wy(
        q,
        k,
        v,
        v_new,
        g,
        beta,
        A,
        h,
        do,
        dh,
        dv,
        **rest,
        compute_dtype=torch.float32,
        operand_dtype=q.dtype,
    )
    return *out[:2], out[2].to(v.dtype), *out[3:]


same_precision_wy = by_heads(_same_precision_wy, (2, 2, 2, 2, 2, 2))


class Chunks:
    """Splits arguments into chunks in the compute dtype; joins results."""

    def __init__(self, q, v, scale, cu_seqlens, chunk_size, compute_dtype, operand_dtype):
        self.sequences = Sequences(q, cu_seqlens, chunk_size)
        self.group = v.shape[2] // q.shape[2]
        self.scale = q.shape[3] ** -0.5 if scale is None else scale
        self.dtype, self._operand = compute_dtype, operand_dtype

    def rounded(self, x):
        """As a stored intermediate or an operand of a product has it."""
        return x if self._operand is None else x.to(self._operand).to(self.dtype)

    def tokens(self, x, heads_are_of_q=False):
        x = x.to(self.dtype)
        if heads_are_of_q:
            x = x.repeat_interleave(self.group, dim=2)
        return self.chunked(self.sequences.split(x))

    def chunked(self, x):  # [N, length, HV, ...] -> [N, chunks, HV, C, ...]
        return x.unflatten(1, (self.sequences.chunks, self.sequences.chunk_size)).movedim(3, 2)

    def gates(self, g):
        return self.chunked(self.sequences.split_gates(g.to(self.dtype)))

    def states(self, x):
        return self.rounded(self.sequences.split_chunks(x.to(self.dtype)))

    def join(self, x):  # [N, chunks, HV, C, ...] -> [B, T, HV, ...]
        return self.sequences.join(x.movedim(2, 3).flatten(1, 2))

    def state(self, given, shape):  # [N, HV, K, V]
        if given is not None:
            return given.to(self.dtype)
        shape = (self.sequences.count, *shape)
        return torch.zeros(shape, dtype=self.dtype, device=self.sequences.valid.device)


def chunked_bwd(
    q,
    k,
    v,
    beta,
    Aqk,
    Akk,
    scale,
    initial_state,
    do,
    dht,
    g=None,
    g_org=None,
    cu_seqlens=None,
    chunk_indices=None,
    chunk_size=64,
    safe_gate=False,
    lower_bound=None,
    use_gate_in_kernel=False,
    A_log=None,
    dt_bias=None,
    disable_recompute=False,
    *,
    compute_dtype: torch.dtype,
    operand_dtype: torch.dtype | None,
    **saved,
):
    """chunk_kda_bwd as README.md describes it; results in compute_dtype."""
    del chunk_indices, safe_gate
    chunks = Chunks(q, v, scale, cu_seqlens, chunk_size, compute_dtype, operand_dtype)
    rounded, scale = chunks.rounded, chunks.scale
    state_shape = (v.shape[2], q.shape[3], v.shape[3])
    if use_gate_in_kernel and not disable_recompute:
        G = cumulative_gate(chunks, g_org, A_log, dt_bias, lower_bound)
    else:
        G = chunks.gates(g)
    q_, k_ = chunks.tokens(q, True), chunks.tokens(k, True)
    v_, do_ = chunks.tokens(v), rounded(chunks.tokens(do))
    beta_ = chunks.tokens(beta)[..., None]
    scores, inverse = rounded(chunks.tokens(Aqk).tril()), rounded(chunks.tokens(Akk).tril())
    E, G_last = G.exp2(), G[..., -1:, :]
    kE, kg = k_ * E, k_ * (G_last - G).exp2()
    fade = G_last.exp2().mT  # [N, chunks, HV, K, 1]

    # Forward: h before each chunk, v_new.
    w = rounded(inverse @ rounded(beta_ * kE))
    if disable_recompute:
        h, v_new = chunks.states(saved["h"]), rounded(chunks.tokens(saved["v_new"]))
    else:
        u = rounded(inverse @ rounded(beta_ * v_))
        state, h, v_new = chunks.state(initial_state, state_shape), [], []
        for c in range(chunks.sequences.chunks):
            h.append(rounded(state))
            v_new.append(rounded(u[:, c] - w[:, c] @ h[-1]))
            state = fade[:, c] * state + rounded(kg[:, c]).mT @ v_new[-1]
        h, v_new = stack(h, state_shape, v_), stack(v_new, v_.shape[2:], v_)

    # Backward: dh behind each chunk, y = Akk^T dv.
    dstate = chunks.state(dht, state_shape)
    dh, y = [], []
    qE = rounded(scale * q_ * E)
    inner = rounded(scores.mT @ do_)
    for c in reversed(range(chunks.sequences.chunks)):
        dh.append(rounded(dstate))
        dv = rounded(inner[:, c] + rounded(kg[:, c]) @ dh[-1])
        y.append(inverse[:, c].mT @ dv)
        dstate = fade[:, c] * dstate + (qE[:, c].mT @ do_[:, c] - w[:, c].mT @ dv)
    dh, y = stack(dh[::-1], state_shape, v_), stack(y[::-1], v_.shape[2:], v_)
    dv, dbeta = beta_ * y, (y * v_).sum(-1)
    y = rounded(y)

    # Finalize.
    dscores = (scale * (do_ @ v_new.mT)).tril()
    dinner = -(y @ v_new.mT).tril(-1)
    dq = scale * E * (do_ @ h.mT)
    dk1 = (G_last - G).exp2() * (v_new @ dh.mT)
    dkb = -(y @ h.mT)
    dk = dk1 + beta_ * E * dkb
    dG = q_ * dq - k_ * dk1 + beta_ * kE * dkb
    at_last = fade.mT * (h * dh).sum(-1)[..., None, :] + (k_ * dk1).sum(-2, keepdim=True)
    dG[..., -1:, :] += at_last  # rows behind the end count into the rows before, as the last one
    dbeta = dbeta + (dkb * kE).sum(-1)

    dq_intra, r, c = intra(q_, k_, G, beta_, dscores, dinner, rounded)
    dG = dG + q_ * dq_intra + k_ * (beta_ * r - c)
    diagonal = dscores.diagonal(dim1=-2, dim2=-1)[..., None]
    dq = dq + dq_intra + diagonal * k_
    dk = dk + beta_ * r + c + diagonal * q_
    dbeta = dbeta + (k_ * r).sum(-1)

    dg = chunks.join(running_sum(dG.flip(-2)).flip(-2))
    dA_log = ddt_bias = None
    if use_gate_in_kernel:
        dg, dA_log, ddt_bias = _gate_backward(g_org, A_log, dt_bias, lower_bound, dg)

    def per_query_head(x):  # [B, T, HV, K] -> [B, T, H, K]
        return x.unflatten(2, (q.shape[2], chunks.group)).sum(3)

    return (
        per_query_head(chunks.join(dq)),
        per_query_head(chunks.join(dk)),
        chunks.join(dv),
        chunks.join(dbeta[..., None])[..., 0],
        dg,
        None if initial_state is None else dstate,
        dA_log,
        ddt_bias,
    )


def stack(parts, shape, like):
    """[N, chunks, ...] of the chunks' parts; shape: of a part without N, if there is none."""
    if not parts:
        return like.new_zeros(like.shape[0], 0, *shape)
    return torch.stack(parts, dim=1)


def running_sum(x):
    """Along the axis of tokens, one after the other: torch.cumsum adds fp32 in float64 on a CPU."""
    sums = [x[..., 0, :]]
    for i in range(1, x.shape[-2]):
        sums.append(sums[-1] + x[..., i, :])
    return torch.stack(sums, dim=-2)


MIN_GATE = -40.0  # what a step's gate is at least


def cumulative_gate(chunks, g_org, A_log, dt_bias, lower_bound):
    """G from the raw gate, base 2, [N, chunks, HV, C, K]."""
    natural = gate(g_org, A_log, dt_bias, lower_bound, chunks.dtype)
    return summed_gate(chunks, natural)


def summed_gate(chunks, natural):
    """G from the natural-log gate."""
    natural = natural.clamp(min=MIN_GATE)
    # Rows behind the end add 0: they repeat the last sum.
    return running_sum(chunks.chunked(chunks.sequences.split(natural))) * (1 / math.log(2))


def _gate_backward(x, A_log, dt_bias, lower_bound, dg):
    x, A_log, dt_bias = (t if t is None else t.to(dg.dtype) for t in (x, A_log, dt_bias))
    y = x if dt_bias is None else x + dt_bias.view(x.shape[2:])
    rate = torch.ones((), dtype=x.dtype, device=x.device) if A_log is None else A_log.exp()[:, None]
    if lower_bound is None:
        natural = gate(x, A_log, dt_bias, None, x.dtype)
        dg = torch.where(natural < MIN_GATE, 0.0, dg)
        dx = -rate * torch.sigmoid(y) * dg
        dA_log = (dg * natural.clamp(min=MIN_GATE)).sum((0, 1, 3))
    else:
        sigmoid = torch.sigmoid(rate * y)
        slope = sigmoid * (1 - sigmoid)
        # The slope vanishes faster than the rate grows, but the product of 0 and inf is NaN.
        dx = torch.where(slope == 0, 0.0, dg * lower_bound * slope * rate)
        dA_log = (dx * y).sum((0, 1, 3))
    return (
        dx,
        None if A_log is None else dA_log,
        None if dt_bias is None else dx.sum((0, 1)).flatten(),
    )


def intra(q, k, G, beta, dscores, dinner, rounded=lambda x: x):
    """The part of the scores' gradients inside a chunk, by levels; without the diagonal.

    For i > j let l be the highest bit in which i and j differ and a = ((i >> l) | 1) << l, the same
    row for both, j < a <= i: D_ij = 2^(G_i - G_a) 2^(G_a - G_j), and for gates <= 0 neither factor
    exceeds 1.

    Returns:
        dq_i = sum over j of dscores_ij k_j D_ij, r_i = sum over j of dinner_ij k_j D_ij and c_j =
        sum over i of (dscores_ij q_i + dinner_ij beta_i k_i) D_ij, all over i > j.
    """
    size = G.shape[-2]
    row = torch.arange(size, device=G.device)
    differ = row[:, None] ^ row
    lower = dscores.tril(-1)
    Q = rounded(lower + lower.mT)
    B = rounded(dinner + (beta * dinner).mT)
    dq, r, c = (torch.zeros_like(G) for _ in range(3))
    for level in range(size.bit_length() - 1):
        late = ((row >> level) & 1 == 1)[:, None]  # rows i of this level's pairs; the others are j
        anchor = G[..., ((row >> level) | 1) << level, :]
        F = torch.where(late, G - anchor, anchor - G).exp2()
        pairs = (differ >> level) == 1
        t1 = F * (torch.where(pairs, Q, 0.0) @ rounded(F * torch.where(late, q, k)))
        t2 = F * (torch.where(pairs, B, 0.0) @ rounded(F * k))
        dq += torch.where(late, t1, 0.0)
        r += torch.where(late, t2, 0.0)
        c += torch.where(late, 0.0, t1 + t2)
    return dq, r, c


def chunked_wy(
    q,
    k,
    v,
    v_new,
    g,
    beta,
    A,
    h,
    do,
    dh,
    dv,
    scale=None,
    cu_seqlens=None,
    chunk_size=64,
    chunk_indices=None,
    *,
    compute_dtype: torch.dtype,
    operand_dtype: torch.dtype | None,
):
    """Step 3 of the backward, for any v_new, h, dh and dv."""
    del chunk_indices
    chunks = Chunks(q, v, scale, cu_seqlens, chunk_size, compute_dtype, operand_dtype)
    rounded, scale = chunks.rounded, chunks.scale
    q_, k_, G = chunks.tokens(q, True), chunks.tokens(k, True), chunks.gates(g)
    v_, beta_ = chunks.tokens(v), chunks.tokens(beta)[..., None]
    do_, v_new_, dv_ = (rounded(chunks.tokens(x)) for x in (do, v_new, dv))
    h, dh = chunks.states(h), chunks.states(dh)
    inverse = rounded(chunks.tokens(A).tril())
    E, G_last = G.exp2(), G[..., -1:, :]
    kE = k_ * E
    dq = scale * E * (do_ @ h.mT)
    dk1 = (G_last - G).exp2() * (v_new_ @ dh.mT)
    # With y = A^T dv: dkb = A^T dw = -y h^T, and A^T M A^T = y (A beta (v - kE h))^T below the
    # diagonal, because only entries of M below it reach entries of the product below it.
    y = inverse.mT @ dv_
    x = rounded(inverse @ rounded(beta_ * (v_ - rounded(kE) @ h)))
    dA = -(rounded(y) @ x.mT).tril(-1)
    dkb = -(rounded(y) @ h.mT)
    dbeta = (y * v_).sum(-1) + (dkb * kE).sum(-1)
    dk = dk1 + beta_ * E * dkb
    dG = q_ * dq - k_ * dk1 + beta_ * kE * dkb
    at_last = G_last.exp2() * (h * dh).sum(-1)[..., None, :] + (k_ * dk1).sum(-2, keepdim=True)
    last = chunks.chunked(chunks.sequences.last_rows().flatten(1)[..., None, None])
    dG = dG + torch.where(last, at_last, 0.0)
    return (
        chunks.join(dq),
        chunks.join(dk),
        chunks.join(beta_ * y),
        chunks.join(dbeta[..., None])[..., 0],
        chunks.join(dG),
        chunks.join(dA),
    )
