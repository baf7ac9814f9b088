"""kda_gate_chunk_cumsum: check the arguments, plan, launch; its entry in torch.library."""

import functools
from collections.abc import Mapping
from typing import Any

import torch

from ops.chunk_kda import contract as kda
from ops.chunk_kda import gate
from ops.common import backend as backend_lib
from ops.common import checks, replay, tables
from ops.common import launch as launch_lib
from ops.kda_gate_chunk_cumsum import contract
from ops.kda_gate_chunk_cumsum import plan as plan_lib


def kda_gate_chunk_cumsum(
    g: torch.Tensor,
    A_log: torch.Tensor | None = None,
    chunk_size: int = 64,
    scale: float | None = None,
    dt_bias: torch.Tensor | None = None,
    cu_seqlens: torch.Tensor | None = None,
    chunk_indices: torch.Tensor | None = None,
    lower_bound: float | None = None,
    **options: Any,
) -> torch.Tensor:
    """The gate of Kimi Delta Attention as its chunked kernels take it: G, the sum of its logarithm
    to base 2 from the chunk's first token on.

    With y = g + dt_bias, the natural logarithm of a step's decay is

        g                                       without A_log and lower_bound
        -exp(A_log) softplus(y)                 with A_log
        lower_bound sigmoid(exp(A_log) y)       with lower_bound

    (Kimi Linear, arXiv 2510.26692; FLA's function of this name and these keywords, except that a
    gate that is already computed is summed too.) **A step counts as at least -40**: a decay of
    4e-18 is nothing beside 1, but a masked step of -1000 in the sum would cost later decays of its
    chunk up to 8e-3 of error in fp32; with this floor it is 4e-4.

    Args:
        g: [B, T, HV, K], float16, bfloat16 or float32, 1 <= K <= 256.
        A_log: [HV], float32; None with a lower_bound is zero.
        chunk_size: 32 or 64. A chunk never crosses a sequence's end.
        scale: None or 1 / ln 2, what FLA's callers pass for base 2.
        dt_bias: [HV * K], float32; None is zero. Only with A_log or lower_bound.
        cu_seqlens: [N + 1], int32 or int64, on g's device or the CPU: rows cu_seqlens[n] to
            cu_seqlens[n + 1] - 1 are sequence n, empty ones included; then B is 1. Its values are
            read on the host, see ops.common.chunks.boundaries; under torch.compile the graph breaks
            there.
        chunk_indices: [NT, 2], int32 or int64: what FLA's callers pass; its shape is checked, its
            values follow from cu_seqlens and are not read.
        lower_bound: in [-5, 0).
        **options: FLA's options at their defaults.

    Returns:
        [B, T, HV, K], float32, contiguous; rows behind the last sequence are zero. The same call
        gives the same bits on the same kind of device.

    Raises:
        TypeError, ValueError: an argument violates the above; the message names it, what it got and
            what is allowed.
        RuntimeError: CPU tensors without TRITON_INTERPRET=1.
        NotImplementedError: a device without an implementation; an option that FLA has and this
            function has not; an argument requires a gradient and gradients are enabled, or it has
            a tangent (there is no derivative).
    """
    checks.check_no_tangents(contract.OP, {"g": g, "A_log": A_log, "dt_bias": dt_bias})
    if backend_lib.pretending() or launch_lib.watched():
        # Tensors on `meta` stand for a device's while pretending; torch's dispatcher would only see
        # `meta`. And it would hide from who watches launches what is allocated inside the op.
        return _run(
            g=g,
            A_log=A_log,
            chunk_size=chunk_size,
            scale=scale,
            dt_bias=dt_bias,
            cu_seqlens=cu_seqlens,
            chunk_indices=chunk_indices,
            lower_bound=lower_bound,
            **options,
        )
    # What the schema's own errors would say less clearly.
    contract.check_options(scale, lower_bound, chunk_size, options)
    contract.check_tensors(g, A_log, dt_bias)
    bounds = None
    if cu_seqlens is not None or chunk_indices is not None:
        checks.check_dims("g", g, "[B, T, HV, K]")
        bounds = _read(cu_seqlens, chunk_indices, g, chunk_size)
    return torch.ops.ascend_ops.kda_gate_chunk_cumsum.default(
        g, A_log, dt_bias, lower_bound, bounds, chunk_size
    )


# Whoever traces the program goes on with the values as numbers.
@torch.compiler.disable
def _read(cu_seqlens, chunk_indices, g: torch.Tensor, chunk_size: int) -> list[int]:
    return list(contract.sequences(cu_seqlens, chunk_indices, g, chunk_size) or ())


def _checked(**arguments: Any) -> tuple[plan_lib.Problem, contract.Inputs]:
    tensors = ((name, arguments[name]) for name in contract.TENSORS)
    given = [(name, value) for name, value in tensors if isinstance(value, torch.Tensor)]
    checks.check_no_gradients(contract.OP, given)
    return contract.check(**arguments)


_launches = replay.OneLaunch(contract.TENSORS, g="g_org")


def _run(**arguments: Any) -> torch.Tensor:
    """A call like an earlier one is not checked and planned again."""
    found = _launches.again(arguments)
    out = _anew(arguments) if found is None else found["g"]
    if arguments["cu_seqlens"] is not None:
        out[:, arguments["cu_seqlens"][-1] :] = 0
    return out


def _anew(arguments: dict[str, Any]) -> torch.Tensor:
    problem, inputs = _checked(**arguments)
    out = inputs.g.new_empty(inputs.g.shape, dtype=torch.float32)
    if problem.empty:
        return out
    backend = backend_lib.backend_of(inputs.g)
    with backend_lib.device_guard(inputs.g):
        plan = _plan(
            problem, backend, backend_lib.device_cores(backend), backend_lib.program_limit()
        )
        packed = tables.of_sequences(inputs.cu_seqlens, problem.C, out.device)
        launch = make_launch(problem, inputs, packed, out, backend, plan)
        compiled = launch.run()
    _launches.remember(arguments, vars(inputs), launch, compiled, {"g": out}, packed)
    return out


def make_launch(
    problem: plan_lib.Problem,
    inputs: contract.Inputs,
    packed: Mapping[str, torch.Tensor],
    out: torch.Tensor,
    backend: str,
    plan: plan_lib.Plan,
) -> launch_lib.Launch:
    """The launch that a plan stands for, not run. packed: tables of packed sequences."""
    return launch_lib.Launch(
        kernel=gate.cumulative_gate,
        backend=backend,
        grid=(plan.programs,),
        args={
            "g_org_ptr": inputs.g,
            "A_log_ptr": inputs.A_log,
            "dt_bias_ptr": inputs.dt_bias,
            "cu_seqlens_ptr": packed.get("cu_seqlens"),
            "chunk_indices_ptr": packed.get("chunk_indices"),
            "g_ptr": out,
            "lower_bound": inputs.lower_bound or 0.0,
            "T": problem.T,
            "num_chunks": problem.NT,
            "num_tasks": plan.num_tasks,
            "g_org_stride_b": problem.strides[0],
            "g_org_stride_h": problem.strides[2],
        },
        constants=plan.constants,
        options=plan.options,
    )


# Callers repeat few shapes: planning once per shape keeps the host's share of a small call low.
_plan = functools.lru_cache(maxsize=1024)(plan_lib.make_plan)


def _bounds(cu_seqlens: list[int] | None) -> kda.Boundaries | None:
    return None if cu_seqlens is None else kda.Boundaries(cu_seqlens)


def _op(g, A_log, dt_bias, lower_bound, cu_seqlens, chunk_size) -> torch.Tensor:
    return _run(
        g=g,
        A_log=A_log,
        dt_bias=dt_bias,
        lower_bound=lower_bound,
        cu_seqlens=_bounds(cu_seqlens),
        chunk_size=chunk_size,
    )


def _fake(g, A_log, dt_bias, lower_bound, cu_seqlens, chunk_size) -> torch.Tensor:
    """Shape, dtype and errors without a computation: torch.compile, FakeTensor, meta tensors."""
    _checked(
        g=g,
        A_log=A_log,
        dt_bias=dt_bias,
        lower_bound=lower_bound,
        cu_seqlens=_bounds(cu_seqlens),
        chunk_size=chunk_size,
    )
    return torch.empty(g.shape, dtype=torch.float32, device=g.device)


_LIBRARY = torch.library.Library("ascend_ops", "FRAGMENT")
_LIBRARY.define(
    "kda_gate_chunk_cumsum(Tensor g, Tensor? A_log, Tensor? dt_bias, float? lower_bound, "
    "int[]? cu_seqlens, int chunk_size) -> Tensor"
)
for _key in ("CPU", "CUDA", "PrivateUse1"):  # PrivateUse1 is torch_npu's
    _LIBRARY.impl("kda_gate_chunk_cumsum", _op, _key)
torch.library.register_fake("ascend_ops::kda_gate_chunk_cumsum", _fake, lib=_LIBRARY)
