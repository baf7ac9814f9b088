"""chunk_kda_bwd and chunk_kda_bwd_wy_dqkg_fused: check the arguments, plan, launch; the functions'
entries in torch.library."""

import functools
from collections.abc import Mapping
from typing import Any

import torch

from ops.chunk_kda import contract, finalize, gate, prepare, scans
from ops.chunk_kda import plan as plan_lib
from ops.chunk_kda import problem as problem_lib
from ops.common import backend as backend_lib
from ops.common import chunks
from ops.common import launch as launch_lib

_KERNELS = {
    plan_lib.GATE: gate.cumulative_gate,
    plan_lib.PREPARE: prepare.prepare,
    plan_lib.FORWARD: scans.forward_scan,
    plan_lib.REVERSE: scans.reverse_scan,
    plan_lib.SCORES: finalize.scores,
    plan_lib.FINALIZE: finalize.finalize,
}

def run_bwd(problem: problem_lib.Problem, inputs: contract.BwdInputs) -> dict[str, Any]:
    """The results of a checked call of chunk_kda_bwd, by name; None for those that it has not."""
    q = inputs.q
    if problem.empty:
        return _nothing(problem, inputs)
    backend = backend_lib.backend_of(q)
    with backend_lib.device_guard(q):
        plan = _plan_for(plan_lib.make_plan, problem, backend)
        found = _launch(
            problem,
            plan,
            backend,
            {
                **inputs.tensors(),
                "h0": inputs.initial_state,
                "scale": inputs.scale,
                "lower_bound": inputs.lower_bound or 0.0,
            },
            inputs.cu_seqlens,
        )
    names = ("dq", "dk", "dv_out", "dbeta", "dg", "dh0")
    results = {name: found.get(name) for name in names}
    for name in ("dA_log", "ddt_bias"):
        partial = found.get(name)
        results[name] = None if partial is None else partial.sum(0)
    return results


def run_wy(problem: problem_lib.Problem, inputs: contract.WyInputs) -> dict[str, Any]:
    """The results of a checked call of chunk_kda_bwd_wy_dqkg_fused, by name."""
    q = inputs.q
    names = ("dq", "dk", "dv_out", "dbeta", "dg", "dakk")
    if problem.empty:
        key = (problem.B, problem.T, problem.HV)
        shapes = {"dv_out": (problem.V,), "dbeta": (), "dakk": (problem.C,)}
        return {
            name: q.new_zeros(
                (*key, *shapes.get(name, (problem.K,))),
                dtype=q.dtype if name == "dv_out" else torch.float32,
            )
            for name in names
        }
    backend = backend_lib.backend_of(q)
    with backend_lib.device_guard(q):
        plan = _plan_for(plan_lib.make_wy_plan, problem, backend)
        tensors = {**inputs.tensors(), "scale": inputs.scale, "lower_bound": 0.0}
        tensors["Akk"] = tensors.pop("A")
        found = _launch(problem, plan, backend, tensors, inputs.cu_seqlens)
    return {name: found[name] for name in names}


def _launch(
    problem: problem_lib.Problem,
    plan: plan_lib.Plan,
    backend: str,
    given: Mapping[str, Any],
    bounds: tuple[int, ...] | None,
) -> dict[str, torch.Tensor]:
    """Makes a plan's launches; returns outputs in the contract's dtypes and sums to finish."""
    device = given["q"].device
    tables = _tables(bounds, problem.C, device)
    buffers = {**plan.workspace, **plan.outputs}
    tensors: dict[str, torch.Tensor] = {}
    for i, kernel in enumerate(plan.kernels):
        for name in [name for name in tensors if buffers[name].last < i]:
            del tensors[name]  # its memory may serve what follows
        for name, buffer in buffers.items():
            if buffer.first == i:
                dtype = getattr(torch, buffer.stored)
                tensors[name] = torch.empty(buffer.shape, dtype=dtype, device=device)
        make_launch(problem, kernel, backend, {**given, **tables, **tensors}).run()
    end = None if bounds is None else bounds[-1]
    if end is not None and end < problem.T:
        for name in plan.outputs:
            if name != "dh0":
                tensors[name][:, end:] = 0
        tensors["dbeta"][:, :, end:] = 0
    for name, buffer in plan.outputs.items():
        tensors[name] = tensors[name].to(getattr(torch, buffer.dtype or buffer.stored))
    tensors["dbeta"] = tensors["dbeta"].sum(0)
    return tensors


def make_launch(
    problem: problem_lib.Problem,
    kernel: plan_lib.KernelPlan,
    backend: str,
    values: Mapping[str, Any],
) -> launch_lib.Launch:
    """One launch of a plan, not run. values: arguments, tables and buffers by name."""
    p, s = problem, problem.strides
    # v_new is written over u. dv is given, or lies where y is to be; first Aqk^T do lies there.
    values = {"dv": values.get("y"), "u": values.get("v_new"), **values}
    of_key, of_value = (p.T * p.HV * p.K, p.HV * p.K, p.K), (p.T * p.HV * p.V, p.HV * p.V, p.V)
    strides = {name: getattr(s, name) for name in s.__dataclass_fields__}
    if p.computes_gate:
        strides["g"] = of_key
    if p.recompute:
        strides["v_new"] = of_value
    if not any(s.dv):
        strides["dv"] = of_value
    own = {
        "T": p.T,
        "num_chunks": p.NT,
        "num_tasks": kernel.num_tasks,
        "dbeta_stride_tile": p.B * p.T * p.HV,
        "scale": values["scale"],
        "lower_bound": values["lower_bound"],
    }
    for name, of_tensor in strides.items():
        for axis, stride in zip("bth", of_tensor, strict=True):
            own[f"{name}_stride_{axis}"] = stride
    function = _KERNELS[kernel.kernel]
    constants = {
        name: value for name, value in kernel.constants.items() if name in function.arg_names
    }
    args = {
        name: values.get(name.removesuffix("_ptr")) if name.endswith("_ptr") else own[name]
        for name in function.arg_names
        if name not in constants
    }
    if kernel.kernel == plan_lib.FINALIZE:
        args["dbeta_ptr"] = values["dbeta"][1:]
    return launch_lib.Launch(
        kernel=function,
        backend=backend,
        grid=(kernel.programs,),
        args=args,
        constants=constants,
        options=kernel.options,
    )


def _tables(
    bounds: tuple[int, ...] | None, chunk_size: int, device: torch.device
) -> dict[str, torch.Tensor]:
    """What kernels look up of packed sequences."""
    if bounds is None:
        return {}
    offsets = chunks.chunk_offsets(bounds, chunk_size)
    indices = chunks.chunk_indices(bounds, chunk_size).view(-1)
    starts = torch.tensor(bounds, dtype=torch.int32)
    whole = torch.cat((starts, offsets, indices)).to(device)
    parts = whole.split((len(starts), len(offsets), len(indices)))
    return dict(zip(("cu_seqlens", "chunk_offsets", "chunk_indices"), parts, strict=True))


# Callers repeat few shapes: planning once per shape keeps the host's share of a small call low.
_plan = functools.lru_cache(maxsize=1024)(lambda maker, *arguments: maker(*arguments))


def _plan_for(maker: Any, problem: problem_lib.Problem, backend: str) -> plan_lib.Plan:
    return _plan(
        maker, problem, backend, backend_lib.device_cores(backend), backend_lib.program_limit()
    )


def _nothing(problem: problem_lib.Problem, inputs: contract.BwdInputs) -> dict[str, Any]:
    """Results when no token belongs to a sequence: the last state is the first one."""
    p, q = problem, inputs.q
    rows = (p.B, p.T, p.HV)
    of_gate = torch.float32 if inputs.g_org is None else inputs.g_org.dtype
    fp32 = functools.partial(q.new_zeros, dtype=torch.float32)
    dh0 = None
    if inputs.initial_state is not None:
        dh0 = fp32(inputs.initial_state.shape) if inputs.dht is None else inputs.dht.clone()
    return {
        "dq": q.new_zeros(q.shape),
        "dk": q.new_zeros(q.shape),
        "dv_out": q.new_zeros((*rows, p.V)),
        "dbeta": fp32(rows),
        "dg": q.new_zeros((*rows, p.K), dtype=of_gate),
        "dh0": dh0,
        "dA_log": fp32(p.HV) if p.has_A_log else None,
        "ddt_bias": fp32(p.HV * p.K) if p.has_dt_bias else None,
    }


def chunk_kda_bwd(*args: Any, **kwargs: Any) -> tuple:
    """TODO"""
    problem, inputs = contract.check_bwd(*args, **kwargs)
    return tuple(run_bwd(problem, inputs).values())


def chunk_kda_bwd_wy_dqkg_fused(*args: Any, **kwargs: Any) -> tuple:
    """TODO"""
    problem, inputs = contract.check_wy(*args, **kwargs)
    return tuple(run_wy(problem, inputs).values())
