"""References of kda_gate_chunk_cumsum: the float64 golden and r, fp32; and the arguments of a call.
Plain torch."""

import math

import torch

from ops.chunk_kda.sequences import Sequences, gate

MIN_GATE = -40.0  # of a step; the docstring of kda_gate_chunk_cumsum says why


def arguments(g, A_log, dt_bias, *, lower_bound, cu_seqlens, index_dtype, chunk_size):
    """Of a call. cu_seqlens: numbers, or None; given as a tensor of index_dtype."""
    if cu_seqlens is not None:
        # A call needs their values on the host: on `meta` there would be none.
        device = "cpu" if g.is_meta else g.device
        cu_seqlens = torch.tensor(cu_seqlens, dtype=getattr(torch, index_dtype), device=device)
    return {
        "g": g,
        "A_log": A_log,
        "dt_bias": dt_bias,
        "lower_bound": lower_bound,
        "cu_seqlens": cu_seqlens,
        "chunk_size": chunk_size,
    }


def golden(**given):
    """By the formulas, in float64."""
    return _sums(**given, dtype=torch.float64)


def same_precision(**given):
    """The same in fp32."""
    return _sums(**given, dtype=torch.float32)


def _sums(g, A_log=None, dt_bias=None, lower_bound=None, cu_seqlens=None, chunk_size=64, *, dtype):
    natural = g.to(dtype)
    if A_log is not None or lower_bound is not None:
        natural = gate(g, A_log, dt_bias, lower_bound, dtype)
    sequences = Sequences(g, cu_seqlens, chunk_size)
    steps = sequences.split(natural.clamp(min=MIN_GATE) / math.log(2))
    sums = steps.unflatten(1, (sequences.chunks, chunk_size)).cumsum(2)
    return sequences.join(sums.flatten(1, 2))
