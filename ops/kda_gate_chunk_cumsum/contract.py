"""The argument contract of kda_gate_chunk_cumsum, and the copies that its layout rules need."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import torch

from ops.chunk_kda import contract as kda
from ops.common import checks, chunks
from ops.kda_gate_chunk_cumsum import plan

OP = "kda_gate_chunk_cumsum"
TENSORS = ("g", "A_log", "dt_bias")
# What callers of the reference implementation pass and this one has no other value of.
OPTIONS: Mapping[str, Any] = {"output_dtype": torch.float32, "use_graph": False}
INV_LN2 = 1 / math.log(2)


@dataclasses.dataclass(frozen=True)
class Inputs:
    """What a launch reads: g with rows of stride 1; cu_seqlens on the host."""

    g: torch.Tensor
    A_log: torch.Tensor | None
    dt_bias: torch.Tensor | None
    lower_bound: float | None
    cu_seqlens: tuple[int, ...] | None


def check_options(scale, lower_bound, chunk_size, options: Mapping[str, Any]) -> None:
    """Checks what is no tensor."""
    checks.check_options(OP, options, OPTIONS)
    checks.check_choice("chunk_size", chunk_size, kda.CHUNK_SIZES)
    if lower_bound is not None:
        checks.check_number("lower_bound", lower_bound)
    if scale is not None and not math.isclose(
        checks.check_number("scale", scale), INV_LN2, rel_tol=1e-6
    ):
        raise NotImplementedError(
            f"scale: got {scale}, allowed: None or 1 / ln 2 = {INV_LN2}; {OP} has no other"
        )


def check_tensors(g, A_log, dt_bias) -> None:
    """Raises TypeError for what is no tensor with strides."""
    optional = {"A_log": A_log, "dt_bias": dt_bias}
    kda.check_tensors({"g": g} | {n: value for n, value in optional.items() if value is not None})


def check(
    g,
    A_log=None,
    chunk_size=64,
    scale=None,
    dt_bias=None,
    cu_seqlens=None,
    chunk_indices=None,
    lower_bound=None,
    **options,
) -> tuple[plan.Problem, Inputs]:
    """Checks a call's arguments, which are those of kda_gate_chunk_cumsum; cu_seqlens may also be a
    Boundaries of ops.chunk_kda.contract.

    Raises:
        TypeError: an argument has another type, dtype or layout, or is unknown.
        ValueError: a shape, a device, a number, or a combination is not allowed.
        NotImplementedError: an option of the reference implementation that this one lacks.
    """
    check_options(scale, lower_bound, chunk_size, options)
    check_tensors(g, A_log, dt_bias)
    gate = _gate(A_log, dt_bias, lower_bound)
    checks.check_dtype("g", g, tuple(kda.DTYPES))
    checks.check_dims("g", g, "[B, T, HV, K]")
    b, t, heads, k_dim = g.shape
    checks.check_range("T (g.shape[1])", t, 0, kda.MAX_TOKENS)
    checks.check_range("HV (g.shape[2])", heads, 1)
    checks.check_range("K (g.shape[3])", k_dim, kda.MIN_WIDTH, kda.MAX_WIDTH)
    for name, tensor, shape, axes in (
        ("A_log", A_log, (heads,), "[HV]"),
        ("dt_bias", dt_bias, (heads * k_dim,), "[HV * K]"),
    ):
        if tensor is not None:
            checks.check_dtype(name, tensor, (torch.float32,))
            checks.check_shape(name, tensor, shape, axes)
            checks.check_same_device(name, tensor, g.device, "g")
    bounds = sequences(cu_seqlens, chunk_indices, g, chunk_size)
    num_chunks, count = -(-t // chunk_size), b
    if bounds is not None:
        num_chunks, count = sum(chunks.counts(bounds, chunk_size)), len(bounds) - 1

    inputs = Inputs(
        g=kda.as_rows(g),
        A_log=kda.as_dense(A_log),
        dt_bias=kda.as_dense(dt_bias),
        lower_bound=None if lower_bound is None else float(lower_bound),
        cu_seqlens=bounds,
    )
    strides = inputs.g.stride()
    problem = plan.Problem(
        B=b,
        T=t,
        HV=heads,
        K=k_dim,
        C=chunk_size,
        N=count,
        NT=num_chunks,
        packed=bounds is not None,
        gate=gate,
        has_A_log=A_log is not None,
        has_dt_bias=dt_bias is not None,
        # Those of axes of size 1 never matter, so they are replaced.
        strides=(
            strides[0] if b > 1 else 0,
            strides[1] if t > 1 else heads * k_dim,
            strides[2] if heads > 1 else k_dim,
        ),
    )
    return problem, inputs


def sequences(cu_seqlens, chunk_indices, g, chunk_size: int) -> kda.Boundaries | None:
    """Checks how sequences are packed and reads it; None without cu_seqlens."""
    if cu_seqlens is not None and g.shape[0] != 1:
        raise ValueError(f"B (g.shape[0]): got {g.shape[0]}, allowed: 1 with cu_seqlens")
    return kda.sequences(cu_seqlens, chunk_indices, g, chunk_size)


def _gate(A_log, dt_bias, lower_bound) -> int:
    if lower_bound is not None:
        if not kda.LEAST_LOWER_BOUND <= lower_bound < 0:
            raise ValueError(f"lower_bound: got {lower_bound}, allowed: a number in [-5, 0)")
        return plan.BOUNDED
    if A_log is not None:
        return plan.SOFTPLUS
    if dt_bias is not None:
        raise ValueError("dt_bias: got Tensor, allowed: None without A_log and lower_bound")
    return plan.GIVEN
