"""A training step's share of chunk_kda: forward and backward in one call, as tests and timings need
it."""

from typing import Any

import torch

from ops.chunk_kda import forward


def gradients(
    do: torch.Tensor, dht: torch.Tensor | None, **arguments: Any
) -> tuple[torch.Tensor | None, ...]:
    """The gradients of sum(do o) + sum(dht final_state), by torch.autograd.

    Args:
        do, dht: as o and final_state; with dht None there is no second sum.
        **arguments: of chunk_kda, but for output_final_state.

    Returns:
        Those of q, k, v, beta, g, initial_state, A_log and dt_bias; None where the argument is.
    """
    names = ("q", "k", "v", "beta", "g", "initial_state", "A_log", "dt_bias")
    leaves = {
        name: arguments[name].detach().requires_grad_()
        for name in names
        if arguments.get(name) is not None
    }
    with torch.enable_grad():
        o, final_state = forward.chunk_kda(
            **{**arguments, **leaves}, output_final_state=dht is not None
        )
    results, cotangents = [o], [do]
    if final_state is not None and dht is not None:
        results.append(final_state)
        cotangents.append(dht)
    found = torch.autograd.grad(results, list(leaves.values()), cotangents)
    by_name = dict(zip(leaves, found, strict=True))
    return tuple(by_name.get(name) for name in names)
