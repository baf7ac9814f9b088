"""The chunked forward with the roundings that README.md documents, and no others: r.

chunked_fwd and chunked_intra compute in any dtype and round operands and stored intermediates to
another one, or not at all; see same_precision.py.
"""

import torch

from ops.chunk_kda.fwd_reference import EPSILON
from ops.chunk_kda.same_precision import Chunks, chunked_bwd, summed_gate
from ops.chunk_kda.sequences import by_heads, gate


def _same_precision_fwd(q, k, v, g, beta, **rest):
    """chunk_kda: fp32 with the documented roundings, results in the contract's dtypes."""
    out = chunked_fwd(q, k, v, g, beta, **rest, compute_dtype=torch.float32, operand_dtype=q.dtype)
    return out["o"].to(v.dtype), out["final_state"]


same_precision_fwd = by_heads(_same_precision_fwd, (2, 1))


def _same_precision_intra(q, k, v, gk, beta, **rest):
    """chunk_kda_fwd_intra: fp32 with the documented roundings."""
    out = chunked_intra(
        q, k, v, gk, beta, **rest, compute_dtype=torch.float32, operand_dtype=q.dtype
    )
    return tuple(x.to(q.dtype) for x in out)


same_precision_intra = by_heads(_same_precision_intra, (2,) * 6)


def chunked_fwd(
    q,
    k,
    v,
    g,
    beta,
    scale=None,
    initial_state=None,
    output_final_state=False,
    use_qk_l2norm_in_kernel=False,
    use_gate_in_kernel=False,
    use_beta_sigmoid_in_kernel=False,
    allow_neg_eigval=False,
    safe_gate=False,
    lower_bound=None,
    cu_seqlens=None,
    chunk_indices=None,
    chunk_size=64,
    A_log=None,
    dt_bias=None,
    *,
    compute_dtype: torch.dtype,
    operand_dtype: torch.dtype | None,
):
    """chunk_kda as README.md describes it, in compute_dtype; with what is kept for the backward, by
    name."""
    del safe_gate, chunk_indices
    chunks = Chunks(q, v, scale, cu_seqlens, chunk_size, compute_dtype, operand_dtype)
    rounded = chunks.rounded
    if use_qk_l2norm_in_kernel:
        q, k = (rounded(unit(x.to(compute_dtype))[0]) for x in (q, k))
    beta = beta.to(compute_dtype)
    if use_beta_sigmoid_in_kernel:
        beta = (1 + allow_neg_eigval) * beta.sigmoid()
    natural = g.to(compute_dtype)
    if use_gate_in_kernel:
        natural = gate(g, A_log, dt_bias, lower_bound, compute_dtype)
    G = summed_gate(chunks, natural)
    q_, k_, v_ = chunks.tokens(q, True), chunks.tokens(k, True), chunks.tokens(v)
    beta_ = chunks.tokens(beta)[..., None]
    Aqk, Akk = _matrices(chunks, q_, k_, G, beta_)
    qg, ke, kg = _decayed(chunks, q_, k_, G)
    state = chunks.state(initial_state, (v.shape[2], q.shape[3], v.shape[3]))
    fade = G[..., -1:, :].exp2().mT  # [N, chunks, HV, K, 1]
    o = torch.zeros_like(v_)
    for c in range(chunks.sequences.chunks):
        h = rounded(state)
        x = rounded(beta_[:, c] * (v_[:, c] - ke[:, c] @ h))
        v_new = rounded(Akk[:, c] @ x)
        o[:, c] = chunks.scale * (qg[:, c] @ h) + Aqk[:, c] @ v_new
        state = fade[:, c] * state + kg[:, c].mT @ v_new
    return {
        "o": chunks.join(o),
        "final_state": state if output_final_state else None,
        "q": q,
        "k": k,
        "beta": beta,
        "G": chunks.join(G),
        "Aqk": chunks.join(Aqk),
        "Akk": chunks.join(Akk),
    }


def chunked_intra(
    q,
    k,
    v,
    gk,
    beta,
    scale=None,
    cu_seqlens=None,
    chunk_size=64,
    chunk_indices=None,
    disable_recompute=True,
    *,
    compute_dtype: torch.dtype,
    operand_dtype: torch.dtype | None,
):
    """chunk_kda_fwd_intra: w, u, qg, kg, Aqk, Akk in compute_dtype."""
    del chunk_indices, disable_recompute
    chunks = Chunks(q, v, scale, cu_seqlens, chunk_size, compute_dtype, operand_dtype)
    q_, k_, v_ = chunks.tokens(q, True), chunks.tokens(k, True), chunks.tokens(v)
    results = _intra(chunks, q_, k_, v_, chunks.gates(gk), chunks.tokens(beta)[..., None])
    return tuple(chunks.join(x) for x in results)


def _intra(chunks, q, k, v, G, beta):
    rounded = chunks.rounded
    Aqk, Akk = _matrices(chunks, q, k, G, beta)
    qg, _, kg = _decayed(chunks, q, k, G)
    w, u = (rounded(Akk @ rounded(beta * x)) for x in (k * G.exp2(), v))
    return w, u, qg, kg, Aqk, Akk


def _decayed(chunks, q, k, G):
    """qE, kE and k 2^(G_last - G)."""
    E = G.exp2()
    return tuple(chunks.rounded(x) for x in (q * E, k * E, k * (G[..., -1:, :] - G).exp2()))


def _matrices(chunks, q, k, G, beta):
    """Aqk and Akk."""
    rounded = chunks.rounded
    qk, kk = scores(q, k, G, rounded)
    lower = beta * kk
    identity = torch.eye(lower.shape[-1], dtype=lower.dtype, device=lower.device)
    Akk = torch.linalg.solve_triangular(lower + identity, identity.expand_as(lower), upper=False)
    valid = chunks.sequences.valid
    valid = valid.view(len(valid), chunks.sequences.chunks, 1, 1, chunks.sequences.chunk_size)
    Akk = torch.where(valid, Akk, 0.0)  # columns behind the end, as the kernels leave them
    return rounded(chunks.scale * qk), rounded(Akk)


def scores(q, k, G, rounded=lambda x: x):
    """Sums over channels of q_i k_j D_ij, i >= j, and of k_i k_j D_ij, i > j, by levels; see
    same_precision.intra. A token with itself has no decay, and its operands are not rounded."""
    size = G.shape[-2]
    row = torch.arange(size, device=G.device)
    differ, below = row[:, None] ^ row, row[:, None] > row
    qk = torch.diag_embed((q * k).sum(-1))
    kk = torch.zeros_like(qk)
    for level in range(size.bit_length() - 1):
        late = ((row >> level) & 1 == 1)[:, None]  # rows i of this level's pairs; the others are j
        anchor = G[..., ((row >> level) | 1) << level, :]
        F = torch.where(late, G - anchor, anchor - G).exp2()
        pairs = ((differ >> level) == 1) & below
        keys = rounded(F * k).mT
        qk += torch.where(pairs, rounded(F * q) @ keys, 0.0)
        kk += torch.where(pairs, rounded(F * k) @ keys, 0.0)
    return qk, kk


def unit(x):
    """x over its norm, and one over the norm."""
    r = (x.square().sum(-1, keepdim=True) + EPSILON).rsqrt()
    return x * r, r


def _same_precision_train(q, k, v, g, beta, do, dht, **rest):
    """Gradients of chunk_kda: the forward, then the backward from what it keeps."""
    fp32 = torch.float32
    options = {"compute_dtype": fp32, "operand_dtype": q.dtype}
    kept = chunked_fwd(q, k, v, g, beta, **rest, **options)
    in_kernel = rest["use_gate_in_kernel"]
    dq, dk, dv, dbeta, dg, dh0, dA_log, ddt_bias = chunked_bwd(
        kept["q"],
        kept["k"],
        v,
        kept["beta"],
        kept["Aqk"],
        kept["Akk"],
        rest["scale"],
        rest["initial_state"],
        do,
        dht,
        None if in_kernel else kept["G"],
        g if in_kernel else None,
        **{
            name: rest[name]
            for name in (
                "cu_seqlens",
                "chunk_size",
                "lower_bound",
                "use_gate_in_kernel",
                "A_log",
                "dt_bias",
            )
        },
        **options,
    )
    dq, dk = dq.to(q.dtype), dk.to(q.dtype)
    if rest["use_qk_l2norm_in_kernel"]:
        dq, dk = (_unit_gradient(x, dy) for x, dy in ((q, dq), (k, dk)))
    if rest["use_beta_sigmoid_in_kernel"]:
        top = 1 + rest["allow_neg_eigval"]
        dbeta = dbeta * kept["beta"] * (1 - kept["beta"] / top)
    dtypes = (q.dtype, q.dtype, v.dtype, beta.dtype, g.dtype)
    first = (x.to(dtype) for x, dtype in zip((dq, dk, dv, dbeta, dg), dtypes, strict=True))
    return *first, dh0, dA_log, ddt_bias


same_precision_train = by_heads(_same_precision_train, (2, 2, 2, 2, 2, 1, 0, 0))


def _unit_gradient(x, dy):
    y, r = unit(x.float())
    y, dy = y.to(x.dtype).float(), dy.float()
    return r * (dy - y * (dy * y).sum(-1, keepdim=True))
