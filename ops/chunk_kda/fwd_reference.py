"""Goldens of the forward, in float64, by algorithms without chunks' algebra; see reference.py.

golden_fwd: chunk_kda by the token recurrence. golden_train: its gradients, by the recurrence's
reverse. golden_intra: chunk_kda_fwd_intra by its formulas, pair by pair, and a triangular solver.
"""

import torch

from ops.chunk_kda import preparation, reference
from ops.chunk_kda.sequences import Sequences, by_heads, gate

EPSILON = 1e-6


def unit(x: torch.Tensor) -> torch.Tensor:
    """x over its norm."""
    return x * (x.square().sum(-1, keepdim=True) + EPSILON).rsqrt()


def strength(beta: torch.Tensor, logits: bool, doubled: bool) -> torch.Tensor:
    """beta, or the sigmoid of its logits."""
    return (1 + doubled) * beta.sigmoid() if logits else beta


def _golden_fwd(
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
):
    """chunk_kda, one token at a time; differentiable. (o, last states or None), float64."""
    del safe_gate, chunk_indices
    heads, group = v.shape[2], v.shape[2] // q.shape[2]
    scale = q.shape[3] ** -0.5 if scale is None else scale
    q, k, v, g, beta = (x.double() for x in (q, k, v, g, beta))
    if use_qk_l2norm_in_kernel:
        q, k = unit(q), unit(k)
    beta = strength(beta, use_beta_sigmoid_in_kernel, allow_neg_eigval)
    if use_gate_in_kernel:
        g = gate(g, A_log, dt_bias, lower_bound, torch.float64)
    sequences = Sequences(q, cu_seqlens, chunk_size)

    def time_first(x):  # [B, T, HV, ...] -> [longest, N, HV, ...]
        return sequences.split(x)[:, : sequences.longest].movedim(0, 1)

    q, k = (time_first(x.repeat_interleave(group, dim=2)) for x in (q, k))
    v, beta, g = time_first(v), time_first(beta), time_first(g)
    # Rows behind a sequence's end neither decay nor write: the last state stays.
    state = v.new_zeros(sequences.count, heads, q.shape[3], v.shape[3])
    if initial_state is not None:
        state = initial_state.double()
    outputs = []
    for t in range(sequences.longest):
        state = g[t].exp()[..., None] * state
        written = beta[t][..., None] * (v[t] - (k[t][..., None, :] @ state)[..., 0, :])
        state = state + k[t][..., None] * written[..., None, :]
        outputs.append(scale * (q[t][..., None, :] @ state)[..., 0, :])
    o = torch.stack(outputs, dim=1) if outputs else v.movedim(0, 1)
    return sequences.join(o), state if output_final_state else None


golden_fwd = by_heads(_golden_fwd, (2, 1))


def _golden_train(q, k, v, g, beta, do, dht, **rest):
    """Gradients of q, k, v, beta, g, initial_state, A_log and dt_bias, float64; None where the
    argument is."""
    leaves = [x.double().detach().requires_grad_() for x in (q, k, beta)]
    with torch.enable_grad():
        unit_q, unit_k, weight = leaves
        if rest["use_qk_l2norm_in_kernel"]:
            unit_q, unit_k = unit(unit_q), unit(unit_k)
        weight = strength(weight, rest["use_beta_sigmoid_in_kernel"], rest["allow_neg_eigval"])
    normal_q, normal_k, given = (x.detach() for x in (unit_q, unit_k, weight))
    in_kernel = rest["use_gate_in_kernel"]
    G = None
    if not in_kernel:
        forward = preparation.Forward(
            normal_q, normal_k, v, given, rest["cu_seqlens"], rest["chunk_size"]
        )
        G = forward.cumulative_gate(g.double(), torch.float64)
    dq, dk, dv, dbeta, dg, dh0, dA_log, ddt_bias = reference.golden_bwd(
        q=normal_q,
        k=normal_k,
        v=v,
        beta=given,
        Aqk=None,
        Akk=None,
        do=do,
        dht=dht,
        g=G,
        g_org=g if in_kernel else None,
        **{
            name: rest[name]
            for name in (
                "scale",
                "initial_state",
                "cu_seqlens",
                "chunk_size",
                "lower_bound",
                "use_gate_in_kernel",
                "A_log",
                "dt_bias",
            )
        },
    )
    dq, dk, dbeta = torch.autograd.grad((unit_q, unit_k, weight), leaves, (dq, dk, dbeta))
    return dq, dk, dv, dbeta, dg, dh0, dA_log, ddt_bias


golden_train = by_heads(_golden_train, (2, 2, 2, 2, 2, 1, 0, 0))


def golden_intra(
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
):
    """chunk_kda_fwd_intra: w, u, qg, kg, Aqk, Akk, float64."""
    del chunk_indices, disable_recompute
    forward = preparation.Forward(q, k, v, beta, cu_seqlens, chunk_size)
    forward.use_gate(gk)
    Aqk, Akk = forward.scores(q.shape[3] ** -0.5 if scale is None else scale)
    parts = forward.products()
    return *(parts[name] for name in ("w", "u", "qg", "kg")), Aqk, Akk
