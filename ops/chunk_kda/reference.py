"""Goldens of the two functions, in float64, by algorithms without chunks' algebra.

golden_bwd: the token recurrence and its hand-written reverse, one token at a time. golden_wy:
torch's autograd through the forward expression that the function differentiates. Both are plain
torch, take the keyword arguments of their function and run on any torch device that has float64.
"""

import math

import torch

from ops.chunk_kda.sequences import Sequences, by_heads, gate

_SEGMENT = 64  # tokens whose states are kept at a time; before them, one state for each segment


def _golden_bwd(
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
    **saved,
):
    """chunk_kda_bwd by the token recurrence.

    What the forward saved (Aqk, Akk, v_new, h, ...) is not used. The gate of each step is the
    difference of two rows of the very G that the op gets, exact in float64; without one (the gate
    is computed in the kernel) it is computed from g_org.

    Returns:
        dq, dk, dv, dbeta, dg, dh0, dA_log, ddt_bias: float64; None where the op returns None.
    """
    del Aqk, Akk, chunk_indices, safe_gate, saved
    heads, group = v.shape[2], v.shape[2] // q.shape[2]
    if scale is None:
        scale = q.shape[3] ** -0.5
    sequences = Sequences(q, cu_seqlens, chunk_size)
    use_formula = use_gate_in_kernel and not disable_recompute
    if use_formula:
        natural = gate(g_org, A_log, dt_bias, lower_bound, torch.float64)
        decay = sequences.split(natural).exp()
    else:
        steps = sequences.split_gates(g.double())  # [N, length, HV, K], base 2
        first = torch.arange(sequences.length, device=q.device) % chunk_size == 0
        before = steps.roll(1, dims=1).masked_fill_(first[:, None, None], 0)
        steps = steps - before
        decay = torch.where(sequences.valid[:, :, None, None], steps, 0.0).exp2()

    def time_first(x):  # [N, length, HV, ...] -> [longest, N * HV, ...]
        return x[:, : sequences.longest].movedim(0, 1).flatten(1, 2).contiguous()

    def per_value_head(x):
        return sequences.split(x.double()).repeat_interleave(group, dim=2)

    states = (sequences.count * heads, q.shape[3], v.shape[3])
    dq, dk, dv, dbeta, dg, dh0 = _reverse(
        time_first(per_value_head(q)),
        time_first(per_value_head(k)),
        time_first(sequences.split(v.double())),
        time_first(sequences.split(beta.double())),
        time_first(decay),
        scale,
        _state(initial_state, states, q.device),
        time_first(sequences.split(do.double())),
        _state(dht, states, q.device),
    )

    def by_token(x):  # [longest, N * HV, ...] -> [B, T, HV, ...]
        x = x.view(sequences.longest, sequences.count, heads, *x.shape[2:])
        return sequences.join(x.movedim(1, 0))

    def per_query_head(x):  # [B, T, HV, K] -> [B, T, H, K]
        return x.unflatten(2, (q.shape[2], group)).sum(3)

    dg = by_token(dg)
    dA_log = ddt_bias = None
    if use_gate_in_kernel:
        dg, dA_log, ddt_bias = _gate_backward(g_org, A_log, dt_bias, lower_bound, dg)
    return (
        per_query_head(by_token(dq)),
        per_query_head(by_token(dk)),
        by_token(dv),
        by_token(dbeta),
        dg,
        None if initial_state is None else dh0.view(initial_state.shape),
        dA_log,
        ddt_bias,
    )


golden_bwd = by_heads(_golden_bwd, (2, 2, 2, 2, 2, 1, 0, 0))


def _state(given, shape, device) -> torch.Tensor:
    if given is None:
        return torch.zeros(shape, dtype=torch.float64, device=device)
    return given.double().reshape(shape)


def _step(state, k, v, beta, decay):
    """One token on states [M, K, V]: (decayed state, v - k^T of it, the state after)."""
    decayed = decay[:, :, None] * state
    residual = v - torch.bmm(k[:, None, :], decayed)[:, 0]
    after = torch.baddbmm(decayed, k[:, :, None], (beta[:, None] * residual)[:, None, :])
    return decayed, residual, after


def _reverse(q, k, v, beta, decay, scale, state, do, dstate):
    """Gradients of sum(do o) + sum(dstate last_state) for sequences [length, M, ...].

    States are kept at the start of each segment and computed again inside it.
    """
    length = len(q)
    starts = range(0, length, _SEGMENT)
    kept = []
    for start in starts:
        kept.append(state)
        for t in range(start, min(start + _SEGMENT, length)):
            state = _step(state, k[t], v[t], beta[t], decay[t])[2]
    dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
    dbeta, dg = torch.empty_like(beta), torch.empty_like(decay)
    for start in reversed(starts):
        part = slice(start, min(start + _SEGMENT, length))
        state = kept.pop()
        forward = []
        for t in range(part.start, part.stop):
            forward.append(_step(state, k[t], v[t], beta[t], decay[t]))
            state = forward[-1][2]
        dafter, ddecayed, dv_part, dwritten = [], [], [], []
        for t in reversed(range(part.start, part.stop)):
            # o = scale S^T q; S = D + k (beta r)^T; r = v - D^T k; D = decay * (the state before)
            dstate = torch.baddbmm(dstate, scale * q[t][:, :, None], do[t][:, None, :])
            dafter.append(dstate)
            dwritten.append(torch.bmm(k[t][:, None, :], dstate)[:, 0])
            dv_part.append(beta[t][:, None] * dwritten[-1])
            dstate = torch.baddbmm(dstate, k[t][:, :, None], dv_part[-1][:, None, :], alpha=-1)
            ddecayed.append(dstate)
            dstate = decay[t][:, :, None] * dstate
        decayed, residual, after = (torch.stack(x) for x in zip(*forward, strict=True))
        at_after, at_decayed, dv[part], at_written = (
            torch.stack(x[::-1]) for x in (dafter, ddecayed, dv_part, dwritten)
        )
        dq[part] = scale * (after @ do[part][..., None])[..., 0]
        written = beta[part][..., None] * residual
        dk[part] = (at_after @ written[..., None] - decayed @ dv[part][..., None])[..., 0]
        dbeta[part] = (at_written * residual).sum(-1)
        dg[part] = (at_decayed * decayed).sum(-1)
    return dq, dk, dv, dbeta, dg, dstate


def _gate_backward(g_org, A_log, dt_bias, lower_bound, dg):
    """(dx, dA_log, ddt_bias) by autograd through the gate's formula."""
    leaves = [
        None if x is None else x.double().detach().requires_grad_() for x in (g_org, A_log, dt_bias)
    ]
    given = [x for x in leaves if x is not None]
    with torch.enable_grad():
        x, rate, bias = leaves
        natural = gate(x, rate, bias, lower_bound, torch.float64)
        gradients = iter(torch.autograd.grad(natural, given, dg))
    return tuple(None if x is None else next(gradients) for x in leaves)


def _golden_wy(
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
):
    """chunk_kda_bwd_wy_dqkg_fused by autograd, for any v_new, h, dh and dv.

    Per chunk, with gamma = G ln 2, E = exp(gamma), kE = k E and the lower-triangular A as a
    function A - A dL A of the strictly lower dL = 0, which makes A the inverse of A^-1 + dL, it
    differentiates

        <do, scale (q E) h> + <dh, exp(gamma_last) h + (k exp(gamma_last - gamma))^T v_new>
            + <dv, A (beta v) - A (beta kE) h>

    with respect to q, k, v, beta, gamma and dL: three of the forward's expressions, each with the
    cotangent that the caller gives, and v_new, h as constants in them.

    Returns:
        dq, dk [B, T, HV, K], dv [B, T, HV, V], dbeta [B, T, HV], dg [B, T, HV, K], dA [B, T, HV,
        C]: float64.
    """
    del chunk_indices
    group = v.shape[2] // q.shape[2]
    if scale is None:
        scale = q.shape[3] ** -0.5
    sequences = Sequences(q, cu_seqlens, chunk_size)

    def chunked(x):  # [N, length, HV, ...] -> [N, chunks, HV, C, ...]
        return x.unflatten(1, (sequences.chunks, chunk_size)).movedim(3, 2)

    def tokens(x):  # [B, T, HV, ...] -> [N, chunks, HV, C, ...]
        return chunked(sequences.split(x.double()))

    def leaf(x):
        return x.detach().requires_grad_()

    q_leaf, k_leaf = (leaf(tokens(x.repeat_interleave(group, dim=2))) for x in (q, k))
    v_leaf, beta_leaf = leaf(tokens(v)), leaf(tokens(beta)[..., None])
    gamma = leaf(chunked(sequences.split_gates(g.double())) * math.log(2))
    weights = tokens(A).tril()
    inner = leaf(torch.zeros_like(weights))
    h, dh = (sequences.split_chunks(x.double()) for x in (h, dh))
    last = chunked(sequences.last_rows().flatten(1)[..., None, None])  # [N, chunks, 1, C, 1]
    with torch.enable_grad():
        gamma_last = torch.where(last, gamma, 0.0).sum(-2, keepdim=True)
        inverse = weights - weights @ inner.tril(-1) @ weights
        faded = k_leaf * gamma.exp()
        written = inverse @ (beta_leaf * v_leaf) - inverse @ (beta_leaf * faded) @ h
        state = gamma_last.exp().mT * h + (k_leaf * (gamma_last - gamma).exp()).mT @ tokens(v_new)
        total = (tokens(do) * (scale * (q_leaf * gamma.exp()) @ h)).sum()
        total = total + (dh * state).sum() + (tokens(dv) * written).sum()
        leaves = (q_leaf, k_leaf, v_leaf, beta_leaf, gamma, inner)
        gradients = torch.autograd.grad(total, leaves, allow_unused=True)
    dq, dk, dv, dbeta, dg, dA = (sequences.join(x.movedim(2, 3).flatten(1, 2)) for x in gradients)
    return dq, dk, dv, dbeta[..., 0], dg, dA


golden_wy = by_heads(_golden_wy, (2, 2, 2, 2, 2, 2))
