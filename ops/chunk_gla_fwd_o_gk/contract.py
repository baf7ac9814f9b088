"""The argument contract of chunk_gla_fwd_o_gk, and the copies that its layout rules need."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

from ops.chunk_gla_fwd_o_gk import plan
from ops.chunk_kda import contract as kda
from ops.common import checks, chunks

OP = "chunk_gla_fwd_o_gk"
# What callers of the reference implementation pass and this one has no other value of.
OPTIONS: Mapping[str, Any] = {
    "state_v_first": False,
    "transpose_state_layout": False,  # an older name of state_v_first
    "use_graph": False,
}
TENSORS = ("q", "v", "g", "A", "h")


@dataclasses.dataclass(frozen=True)
class Inputs:
    """What a launch reads: tokens with rows of stride 1, g in fp32, contiguous states; cu_seqlens
    on the host."""

    q: torch.Tensor
    v: torch.Tensor
    g: torch.Tensor
    A: torch.Tensor
    h: torch.Tensor
    scale: float
    cu_seqlens: tuple[int, ...] | None


def check_options(scale, chunk_size, options: Mapping[str, Any]) -> None:
    """Checks what is no tensor."""
    checks.check_options(OP, options, OPTIONS)
    checks.check_choice("chunk_size", chunk_size, kda.CHUNK_SIZES)
    if scale is not None:
        checks.check_number("scale", scale)


def check(
    q,
    v,
    g,
    A,
    h,
    scale=None,
    cu_seqlens=None,
    chunk_size=64,
    chunk_indices=None,
    **options,
) -> tuple[plan.Problem, Inputs]:
    """Checks a call's arguments, which are those of chunk_gla_fwd_o_gk; cu_seqlens may also be a
    Boundaries of ops.chunk_kda.contract.

    Raises:
        TypeError: an argument has another type, dtype or layout, or is unknown.
        ValueError: a shape, a device, a number, or a combination is not allowed.
        NotImplementedError: an option of the reference implementation that this one lacks.
    """
    check_options(scale, chunk_size, options)
    tensors = {"q": q, "v": v, "g": g, "A": A, "h": h}
    kda.check_tensors(tensors)
    dtypes = tuple(kda.DTYPES)
    checks.check_dtype("q", q, dtypes)
    checks.check_dtype_of("v", v, "q", q.dtype)
    checks.check_dtype("g", g, dtypes)
    for name in ("A", "h"):
        checks.check_dtype_of(name, tensors[name], "q", q.dtype, (torch.float32,))

    checks.check_dims("q", q, "[B, T, H, K]")
    checks.check_dims("v", v, "[B, T, HV, V]")
    b, t, heads, k_dim = q.shape
    value_heads, v_dim = v.shape[2:]
    checks.check_range("T (q.shape[1])", t, 0, kda.MAX_TOKENS)
    checks.check_range("H (q.shape[2])", heads, 1)
    checks.check_range("K (q.shape[3])", k_dim, kda.MIN_WIDTH, kda.MAX_WIDTH)
    checks.check_range("HV (v.shape[2])", value_heads, 1)
    checks.check_range("V (v.shape[3])", v_dim, kda.MIN_WIDTH, kda.MAX_WIDTH)
    if value_heads % heads:
        raise ValueError(
            f"HV (v.shape[2]): got {value_heads}, allowed: multiples of H = {heads} (q.shape[2])"
        )
    checks.check_shape("v", v, (b, t, value_heads, v_dim), "[B, T, HV, V]")
    checks.check_shape("g", g, (b, t, value_heads, k_dim), "[B, T, HV, K]")
    checks.check_shape("A", A, (b, t, value_heads, chunk_size), "[B, T, HV, chunk_size]")
    for name, tensor in tensors.items():
        checks.check_same_device(name, tensor, q.device, "q")
    bounds = kda.sequences(cu_seqlens, chunk_indices, q, chunk_size)
    num_chunks, count = -(-t // chunk_size), b
    if bounds is not None:
        num_chunks, count = sum(chunks.counts(bounds, chunk_size)), len(bounds) - 1
    of_chunk = (b, num_chunks, value_heads, k_dim, v_dim)
    checks.check_shape("h", h, of_chunk, "[B, NT, HV, K, V]")

    inputs = Inputs(
        q=kda.as_rows(q),
        v=kda.as_rows(v),
        g=kda.as_rows(g.to(torch.float32)),
        A=kda.as_rows(A),
        h=h.resolve_neg().contiguous(),
        scale=kda.scale_or_default(scale, k_dim),
        cu_seqlens=bounds,
    )
    problem = plan.Problem(
        B=b,
        T=t,
        H=heads,
        HV=value_heads,
        K=k_dim,
        V=v_dim,
        C=chunk_size,
        N=count,
        NT=num_chunks,
        packed=bounds is not None,
        dtype=kda.DTYPES[q.dtype],
        strides={name: _strides(getattr(inputs, name)) for name in ("q", "v", "g", "A")},
    )
    return problem, inputs


def _strides(tensor: torch.Tensor) -> tuple[int, int, int]:
    """Of batch, token and head; those of axes of size 1 are replaced, because they never matter."""
    b, t, heads, columns = tensor.shape
    return (
        tensor.stride(0) if b > 1 else 0,
        tensor.stride(1) if t > 1 else heads * columns,
        tensor.stride(2) if heads > 1 else columns,
    )
