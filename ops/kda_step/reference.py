"""References of kda_step, plain torch: the float64 golden, and r, fp32 with o rounded once."""

import torch


def golden(**arguments):
    """The recurrence as the contract states it, in the dtype of its arguments (float64)."""
    return _step(**arguments, dtype=torch.float64)


def same_precision(**arguments):
    """fp32 throughout; o is rounded to q's dtype."""
    o, state = _step(**arguments, dtype=torch.float32)
    return o.to(arguments["q"].dtype), state


def _step(
    q,
    k,
    v,
    g,
    beta,
    state,
    scale=None,
    state_indices=None,
    use_qk_l2norm_in_kernel=False,
    use_gate_in_kernel=False,
    use_beta_sigmoid_in_kernel=False,
    allow_neg_eigval=False,
    A_log=None,
    dt_bias=None,
    lower_bound=None,
    *,
    dtype,
):
    q, k, v, g, beta = (x.to(dtype) for x in (q, k, v, g, beta))
    group = v.shape[1] // q.shape[1]
    if use_qk_l2norm_in_kernel:
        q, k = (x * ((x * x).sum(-1, keepdim=True) + 1e-6).rsqrt() for x in (q, k))
    q, k = (x.repeat_interleave(group, dim=1) for x in (q, k))
    if use_gate_in_kernel:
        y = g if dt_bias is None else g + dt_bias.to(dtype).view(g.shape[1:])
        rate = 1.0 if A_log is None else A_log.to(dtype).exp()[:, None]
        if lower_bound is None:  # torch's own softplus is cut at 20
            g = -rate * torch.logaddexp(y, torch.zeros_like(y))
        else:
            g = lower_bound * torch.sigmoid(rate * y)
    if use_beta_sigmoid_in_kernel:
        beta = (1 + allow_neg_eigval) * torch.sigmoid(beta)
    padding = None
    if state_indices is not None:
        padding = state_indices < 0
        state = state[state_indices.clamp(min=0).long()]
    # [B, HV, K, V]
    state = state.to(dtype) * g.exp()[..., None]
    read = (state * k[..., None]).sum(-2)
    state = state + k[..., None] * (beta[..., None] * (v - read))[..., None, :]
    o = (q.shape[-1] ** -0.5 if scale is None else scale) * (state * q[..., None]).sum(-2)
    if padding is not None:
        o, state = (x.masked_fill(padding.view(-1, *[1] * (x.dim() - 1)), 0) for x in (o, state))
    return o, state
