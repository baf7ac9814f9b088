"""References of chunk_gla_fwd_o_gk: the float64 golden and r, which makes the roundings that
README.md documents; and the call's arguments from a case's. Plain torch."""

import torch

from ops.chunk_kda.sequences import Sequences


def arguments(q, v, g, A, h, *, scale, cu_seqlens, index_dtype, chunk_size):
    """Of a call. cu_seqlens: numbers, or None; given as a tensor of index_dtype."""
    if cu_seqlens is not None:
        # A call needs their values on the host: on `meta` there would be none.
        device = "cpu" if q.is_meta else q.device
        cu_seqlens = torch.tensor(cu_seqlens, dtype=getattr(torch, index_dtype), device=device)
    return {
        "q": q,
        "v": v,
        "g": g,
        "A": A,
        "h": h,
        "scale": scale,
        "cu_seqlens": cu_seqlens,
        "chunk_size": chunk_size,
    }


def golden(q, v, g, A, h, scale=None, cu_seqlens=None, chunk_size=64):
    """By the formula, in the dtype of the arguments (float64)."""
    return _outputs(q, v, g, A, h, scale, cu_seqlens, chunk_size, q.dtype, None)


def same_precision(q, v, g, A, h, scale=None, cu_seqlens=None, chunk_size=64):
    """fp32; operands of products and the result have q's dtype."""
    found = _outputs(q, v, g, A, h, scale, cu_seqlens, chunk_size, torch.float32, q.dtype)
    return found.to(q.dtype)


def _outputs(q, v, g, A, h, scale, cu_seqlens, chunk_size, dtype, operand_dtype):
    group = v.shape[2] // q.shape[2]
    sequences = Sequences(q, cu_seqlens, chunk_size)
    scale = q.shape[3] ** -0.5 if scale is None else scale

    def rounded(x):
        return x if operand_dtype is None else x.to(operand_dtype).to(dtype)

    def chunked(x):  # [B, T, HV, ...] -> [N, chunks, HV, C, ...]
        x = sequences.split(x.to(dtype))
        return x.unflatten(1, (sequences.chunks, chunk_size)).movedim(3, 2)

    q, v, g, A = (chunked(x) for x in (q.repeat_interleave(group, dim=2), v, g, A))
    h = rounded(sequences.split_chunks(h.to(dtype)))
    o = scale * (rounded(q * g.exp2()) @ h) + rounded(A.tril()) @ v
    return sequences.join(o.movedim(2, 3).flatten(1, 2))
