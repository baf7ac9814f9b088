"""chunk_gla_fwd_o_gk: check the arguments, plan, launch; its entry in torch.library."""

import functools
from collections.abc import Mapping
from typing import Any

import torch

from ops.chunk_gla_fwd_o_gk import contract, kernel, npu_kernel
from ops.chunk_gla_fwd_o_gk import plan as plan_lib
from ops.chunk_kda import contract as kda
from ops.common import backend as backend_lib
from ops.common import checks, replay, tables
from ops.common import launch as launch_lib

_KERNELS = {plan_lib.OUTPUTS: kernel.outputs, plan_lib.NPU_OUTPUTS: npu_kernel.outputs_npu}


def chunk_gla_fwd_o_gk(
    q: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    A: torch.Tensor,
    h: torch.Tensor,
    scale: float | None = None,
    cu_seqlens: torch.Tensor | None = None,
    chunk_size: int = 64,
    chunk_indices: torch.Tensor | None = None,
    **options: Any,
) -> torch.Tensor:
    """The outputs of chunked linear attention with a gate per channel of k (GLA, KDA and others).

    Per chunk and value head, with the state h before the chunk:

        o = scale (q 2^g) h + tril(A) v

    (Gated Linear Attention, arXiv 2312.06635; FLA's function of this name and these keywords. For
    Kimi Delta Attention v is v_new and A is Aqk.)

    Args:
        q: [B, T, H, K], float16, bfloat16 or float32, 1 <= K <= 256.
        v: [B, T, HV, V], dtype of q, 1 <= V <= 256, HV a multiple of H: value head hv reads the q
            head hv // (HV // H).
        g: [B, T, HV, K], the gate's logarithm to base 2, summed up from the chunk's first token on;
            float32 (16-bit ones are converted). At most 0 in ordinary use; 2^g is formed.
        A: [B, T, HV, chunk_size], dtype of q or float32: row t is token t's row of its chunk's
            matrix, with any scale in it. What is above the diagonal is not read.
        h: [B, NT, HV, K, V], dtype of q or float32. NT: chunks of a batch row, or of all packed
            sequences.
        scale: any number that float32 holds; None is K^-0.5.
        cu_seqlens: [N + 1], int32 or int64, on q's device or the CPU: rows cu_seqlens[n] to
            cu_seqlens[n + 1] - 1 are sequence n, empty ones included; then B is 1. Its values are
            read on the host, see ops.common.chunks.boundaries; under torch.compile the graph breaks
            there.
        chunk_size: 32 or 64. A chunk never crosses a sequence's end.
        chunk_indices: [NT, 2], int32 or int64: what FLA's callers pass; its shape is checked, its
            values follow from cu_seqlens and are not read.
        **options: FLA's options at their defaults.

    Returns:
        [B, T, HV, V], dtype of q, contiguous; rows behind the last sequence are zero. The same call
        gives the same bits on the same kind of device.

    Raises:
        TypeError, ValueError: an argument violates the above; the message names it, what it got and
            what is allowed.
        RuntimeError: CPU tensors without TRITON_INTERPRET=1.
        NotImplementedError: a device without an implementation; an option that FLA has and this
            function has not; an argument requires a gradient and gradients are enabled, or it has
            a tangent (there is no derivative).
    """
    tensors = {"q": q, "v": v, "g": g, "A": A, "h": h}
    checks.check_no_tangents(contract.OP, tensors)
    if backend_lib.pretending() or launch_lib.watched():
        # Tensors on `meta` stand for a device's while pretending; torch's dispatcher would only see
        # `meta`. And it would hide from who watches launches what is allocated inside the op.
        return _run(
            **tensors,
            scale=scale,
            cu_seqlens=cu_seqlens,
            chunk_size=chunk_size,
            chunk_indices=chunk_indices,
            **options,
        )
    # What the schema's own errors would say less clearly.
    contract.check_options(scale, chunk_size, options)
    kda.check_tensors(tensors)
    bounds = None
    if cu_seqlens is not None or chunk_indices is not None:
        checks.check_dims("q", q, "[B, T, H, K]")
        bounds = _read(cu_seqlens, chunk_indices, q, chunk_size)
    return torch.ops.ascend_ops.chunk_gla_fwd_o_gk.default(q, v, g, A, h, scale, bounds, chunk_size)


# Whoever traces the program goes on with the values as numbers.
@torch.compiler.disable
def _read(cu_seqlens, chunk_indices, q: torch.Tensor, chunk_size: int) -> list[int]:
    return list(kda.sequences(cu_seqlens, chunk_indices, q, chunk_size) or ())


_launches = replay.OneLaunch(contract.TENSORS)


def _run(**arguments: Any) -> torch.Tensor:
    """A call like an earlier one is not checked and planned again."""
    found = _launches.again(arguments)
    o = _anew(arguments) if found is None else found["o"]
    if arguments["cu_seqlens"] is not None:
        o[:, arguments["cu_seqlens"][-1] :] = 0
    return o


def _anew(arguments: dict[str, Any]) -> torch.Tensor:
    checks.check_no_gradients(contract.OP, _tensors(arguments))
    problem, inputs = contract.check(**arguments)
    p = problem
    o = inputs.v.new_empty(p.B, p.T, p.HV, p.V)
    if p.empty:
        return o
    backend = backend_lib.backend_of(inputs.q)
    with backend_lib.device_guard(inputs.q):
        plan = _plan(
            problem, backend, backend_lib.device_cores(backend), backend_lib.program_limit()
        )
        packed = tables.of_sequences(inputs.cu_seqlens, problem.C, o.device)
        target = torch.zeros_like(o, dtype=torch.float32) if plan.stage_output else o
        launch = make_launch(problem, inputs, packed, target, backend, plan)
        compiled = launch.run()
    if plan.stage_output:
        return o.copy_(target)
    _launches.remember(arguments, vars(inputs), launch, compiled, {"o": o}, packed)
    return o


def make_launch(
    problem: plan_lib.Problem,
    inputs: contract.Inputs,
    packed: Mapping[str, torch.Tensor],
    o: torch.Tensor,
    backend: str,
    plan: plan_lib.Plan,
) -> launch_lib.Launch:
    """The launch that a plan stands for, not run. packed: tables of packed sequences."""
    args: dict[str, Any] = {f"{name}_ptr": getattr(inputs, name) for name in contract.TENSORS}
    args |= {
        "cu_seqlens_ptr": packed.get("cu_seqlens"),
        "chunk_indices_ptr": packed.get("chunk_indices"),
        "o_ptr": o,
        "scale": inputs.scale,
        "T": problem.T,
        "num_chunks": problem.NT,
        "num_tasks": plan.num_tasks,
    }
    for name, (batch, _, head) in problem.strides.items():
        args[f"{name}_stride_b"] = batch
        args[f"{name}_stride_h"] = head
    return launch_lib.Launch(
        kernel=_KERNELS[plan.kernel],
        backend=backend,
        grid=(plan.programs,),
        args=args,
        constants=plan.constants,
        options=plan.options,
    )


# Callers repeat few shapes: planning once per shape keeps the host's share of a small call low.
_plan = functools.lru_cache(maxsize=1024)(plan_lib.make_plan)


def _tensors(arguments: Mapping[str, Any]) -> list[tuple[str, torch.Tensor]]:
    given = ((name, arguments[name]) for name in contract.TENSORS)
    return [(name, value) for name, value in given if isinstance(value, torch.Tensor)]


def _bounds(cu_seqlens: list[int] | None) -> kda.Boundaries | None:
    return None if cu_seqlens is None else kda.Boundaries(cu_seqlens)


def _op(q, v, g, A, h, scale, cu_seqlens, chunk_size) -> torch.Tensor:
    return _run(
        q=q,
        v=v,
        g=g,
        A=A,
        h=h,
        scale=scale,
        cu_seqlens=_bounds(cu_seqlens),
        chunk_size=chunk_size,
    )


def _fake(q, v, g, A, h, scale, cu_seqlens, chunk_size) -> torch.Tensor:
    """Shape, dtype and errors without a computation: torch.compile, FakeTensor, meta tensors."""
    tensors = {"q": q, "v": v, "g": g, "A": A, "h": h}
    checks.check_no_gradients(contract.OP, _tensors(tensors))
    contract.check(**tensors, scale=scale, cu_seqlens=_bounds(cu_seqlens), chunk_size=chunk_size)
    return torch.empty(v.shape, dtype=v.dtype, device=v.device)


_LIBRARY = torch.library.Library("ascend_ops", "FRAGMENT")
_LIBRARY.define(
    "chunk_gla_fwd_o_gk(Tensor q, Tensor v, Tensor g, Tensor A, Tensor h, float? scale, "
    "int[]? cu_seqlens, int chunk_size) -> Tensor"
)
for _key in ("CPU", "CUDA", "PrivateUse1"):  # PrivateUse1 is torch_npu's
    _LIBRARY.impl("chunk_gla_fwd_o_gk", _op, _key)
torch.library.register_fake("ascend_ops::chunk_gla_fwd_o_gk", _fake, lib=_LIBRARY)
