"""kda_step: check the arguments, plan, launch; its entries in torch.library."""

import functools
from typing import Any

import torch
from torch.autograd import graph

from ops.common import backend as backend_lib
from ops.common import checks, replay
from ops.common import launch as launch_lib
from ops.kda_step import contract, kernel
from ops.kda_step import plan as plan_lib


def kda_step(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    scale: float | None = None,
    *,
    state_indices: torch.Tensor | None = None,
    inplace_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    A_log: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    lower_bound: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One token of Kimi Delta Attention per sequence: what a decoder does between two samples.

    Per sequence and value head, with the state S [K, V] (Kimi Linear, arXiv 2510.26692):

        S' = diag(exp(gate)) S
        S_new = S' + k (beta (v - S'^T k))^T
        o = scale S_new^T q

    Applied to one token after the other it is the recurrence that chunk_kda computes in chunks.

    Args:
        q, k: [B, H, K], float16, bfloat16 or float32, 1 <= K <= 256.
        v: [B, HV, V], dtype of q, 1 <= V <= 256, HV a multiple of H: value head hv reads the q/k
            head hv // (HV // H).
        g: [B, HV, K], float16, bfloat16 or float32: the gate, natural logarithm of the decay, or
            what it is computed from.
        beta: [B, HV], float16, bfloat16 or float32, usually 0 to 1, or its logit.
        state: [N, HV, K, V], float32. N is B without state_indices.
        scale: any number that float32 holds; None is K^-0.5.
        state_indices: [B], int32: token b belongs to state[state_indices[b]], so that sequences of
            a batch may come and go. A negative one is padding: nothing is read or written for it,
            o is zero. Tensors on the CPU are checked; elsewhere an index of N or more reads and
            writes no state and gives NaN, and a state that stands twice is a data race with
            inplace_final_state (without, both tokens start from it).
        inplace_final_state: whether the new states replace the old ones in `state`, of which each
            must then lie dense: strides [any, K * V, V, 1].
        use_qk_l2norm_in_kernel: whether q and k are replaced by x / sqrt(sum x^2 + 1e-6).
        use_gate_in_kernel: whether the gate is, with y = g + dt_bias, -exp(A_log) softplus(y), or
            lower_bound sigmoid(exp(A_log) y) with a lower_bound; else it is g.
        use_beta_sigmoid_in_kernel: whether beta is sigmoid of what is given.
        allow_neg_eigval: doubles that sigmoid; only together with it.
        A_log: [HV], float32; None, which needs a lower_bound, is zero. dt_bias: [HV * K], float32;
            None is zero. lower_bound: in [-5, 0). All three only with use_gate_in_kernel.

    Returns:
        o: [B, HV, V], dtype of q, contiguous.
        new states: `state` itself with inplace_final_state; else a new tensor [B, HV, K, V],
            float32, token by token, zero for padding.

        The same call gives the same bits on the same kind of device.

    Raises:
        TypeError, ValueError: an argument violates the above; the message names it, what it got and
            what is allowed.
        RuntimeError: CPU tensors without TRITON_INTERPRET=1.
        NotImplementedError: a device without an implementation; an argument requires a gradient
            and gradients are enabled, or it has a tangent (there is no derivative).
    """
    tensors = {"q": q, "k": k, "v": v, "g": g, "beta": beta, "state": state}
    optional = {"state_indices": state_indices, "A_log": A_log, "dt_bias": dt_bias}
    flags = {
        "use_qk_l2norm_in_kernel": use_qk_l2norm_in_kernel,
        "use_gate_in_kernel": use_gate_in_kernel,
        "use_beta_sigmoid_in_kernel": use_beta_sigmoid_in_kernel,
        "allow_neg_eigval": allow_neg_eigval,
    }
    numbers = {"scale": scale, "lower_bound": lower_bound}
    in_place = {"inplace_final_state": inplace_final_state}
    checks.check_no_tangents(contract.OP, tensors | optional)
    contract.check_types(tensors, optional, flags | in_place, numbers)
    arguments = (*tensors.values(), *optional.values(), *flags.values(), *numbers.values())
    # Tensors on `meta` stand for a device's while pretending; torch's dispatcher would only see
    # `meta`. And it would hide from who watches launches what is allocated inside the op.
    directly = backend_lib.pretending() or launch_lib.watched()
    if inplace_final_state:
        update = _in_place if directly else torch.ops.ascend_ops.kda_step_.default
        return update(*arguments), state
    return (_anew if directly else torch.ops.ascend_ops.kda_step.default)(*arguments)


# In the order of the schema.
_TENSORS = ("q", "k", "v", "g", "beta", "state", "state_indices", "A_log", "dt_bias")
_OTHERS = (
    "use_qk_l2norm_in_kernel",
    "use_gate_in_kernel",
    "use_beta_sigmoid_in_kernel",
    "allow_neg_eigval",
    "scale",
    "lower_bound",
)


def _checked(given: dict[str, Any], in_place: bool) -> tuple[plan_lib.Problem, contract.Inputs]:
    checks.check_no_gradients(contract.OP, ((name, given[name]) for name in _TENSORS))
    return contract.check(**given, inplace_final_state=in_place)


def _anew(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
    results = _results(arguments, in_place=False)
    return results["o"], results["new_state"]


def _in_place(*arguments: Any) -> torch.Tensor:
    o = _results(arguments, in_place=True)["o"]
    # So that autograd refuses a backward that needs the old states; a kernel tells torch nothing.
    graph.increment_version(arguments[_TENSORS.index("state")])
    return o


_launches = replay.OneLaunch(_TENSORS)


def _named(arguments: tuple[Any, ...]) -> dict[str, Any]:
    return dict(zip((*_TENSORS, *_OTHERS), arguments, strict=True))


def _results(arguments: tuple[Any, ...], in_place: bool) -> dict[str, torch.Tensor]:
    """o and, unless in place, new_state. A call like an earlier one is not checked and planned
    again, except for the values of indices that are on the CPU."""
    given = _named(arguments)

    def check_indices() -> None:
        indices = given["state_indices"]
        if indices is not None and indices.device.type == "cpu":
            contract.check_indices(indices.tolist(), len(given["state"]), in_place)

    asked = {**given, "in_place": in_place}
    found = _launches.again(asked, check_indices)
    if found is not None:
        return found
    problem, inputs = _checked(given, in_place)
    check_indices()
    results = {"o": inputs.v.new_empty(problem.B, problem.HV, problem.V)}
    if not in_place:
        results["new_state"] = inputs.state.new_empty(problem.B, *inputs.state.shape[1:])
    if problem.empty:
        return results
    backend = backend_lib.backend_of(inputs.q)
    with backend_lib.device_guard(inputs.q):
        plan = _plan(
            problem, backend, backend_lib.device_cores(backend), backend_lib.program_limit()
        )
        o = results["o"]
        target = torch.empty_like(o, dtype=torch.float32) if plan.stage_output else o
        new_state = results.get("new_state", inputs.state)
        launch = make_launch(problem, inputs, target, new_state, in_place, backend, plan)
        compiled = launch.run()
    if plan.stage_output:
        o.copy_(target)
    else:
        written = {"new_state": "state"} if in_place else {}
        _launches.remember(asked, vars(inputs), launch, compiled, results, sources=written)
    return results


def make_launch(
    problem: plan_lib.Problem,
    inputs: contract.Inputs,
    o: torch.Tensor,
    new_state: torch.Tensor,
    in_place: bool,
    backend: str,
    plan: plan_lib.Plan,
) -> launch_lib.Launch:
    """The launch that a plan stands for, not run."""
    args: dict[str, Any] = {
        f"{name}_ptr": getattr(inputs, name)
        for name in ("q", "k", "v", "g", "beta", "A_log", "dt_bias", "state", "state_indices")
    }
    args |= {
        "o_ptr": o,
        "new_state_ptr": new_state,
        "scale": inputs.scale,
        "lower_bound": inputs.lower_bound or 0.0,
        "num_states": problem.N,
        "num_tasks": plan.num_tasks,
        "in_place": int(in_place),
        "state_stride_n": inputs.state.stride(0),
        "new_state_stride_n": new_state.stride(0),
    }
    for name in ("q", "k", "v", "g", "beta"):
        tensor = getattr(inputs, name)
        args[f"{name}_stride_b"] = tensor.stride(0)
        args[f"{name}_stride_h"] = tensor.stride(1)
    return launch_lib.Launch(
        kernel=kernel.kda_step,
        backend=backend,
        grid=(plan.programs,),
        args=args,
        constants=plan.constants,
        options=plan.options,
    )


# Callers repeat few shapes: planning once per shape keeps the host's share of a small call low.
_plan = functools.lru_cache(maxsize=1024)(plan_lib.make_plan)


def _fake(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Shapes, dtypes and errors without a computation: torch.compile, FakeTensor, meta tensors."""
    problem, inputs = _checked(_named(arguments), in_place=False)
    new_state = inputs.state.new_empty(problem.B, *inputs.state.shape[1:])
    return inputs.v.new_empty(problem.B, problem.HV, problem.V), new_state


def _fake_in_place(*arguments: Any) -> torch.Tensor:
    problem, inputs = _checked(_named(arguments), in_place=True)
    return inputs.v.new_empty(problem.B, problem.HV, problem.V)


_LIBRARY = torch.library.Library("ascend_ops", "FRAGMENT")
_SCHEMA = (
    "(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, Tensor{} state, Tensor? state_indices, "
    "Tensor? A_log, Tensor? dt_bias, bool use_qk_l2norm_in_kernel, bool use_gate_in_kernel, "
    "bool use_beta_sigmoid_in_kernel, bool allow_neg_eigval, float? scale, float? lower_bound) -> "
)
_LIBRARY.define("kda_step" + _SCHEMA.format("") + "(Tensor o, Tensor new_state)")
_LIBRARY.define("kda_step_" + _SCHEMA.format("(a!)") + "Tensor")
for _key in ("CPU", "CUDA", "PrivateUse1"):  # PrivateUse1 is torch_npu's
    _LIBRARY.impl("kda_step", _anew, _key)
    _LIBRARY.impl("kda_step_", _in_place, _key)
torch.library.register_fake("ascend_ops::kda_step", _fake, lib=_LIBRARY)
torch.library.register_fake("ascend_ops::kda_step_", _fake_in_place, lib=_LIBRARY)
