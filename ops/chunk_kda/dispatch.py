"""chunk_kda_bwd and chunk_kda_bwd_wy_dqkg_fused: check the arguments, plan, launch; the functions'
entries in torch.library."""

import dataclasses
import functools
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import torch

from ops.chunk_kda import (
    contract,
    finalize,
    fwd_plan,
    gate,
    group,
    intra,
    npu_plan,
    output,
    prepare,
    scans,
)
from ops.chunk_kda import plan as plan_lib
from ops.chunk_kda import problem as problem_lib
from ops.chunk_kda.npu import chunks as npu_chunks
from ops.chunk_kda.npu import decayed as npu_decayed
from ops.chunk_kda.npu import finalize as npu_finalize
from ops.chunk_kda.npu import output as npu_output
from ops.chunk_kda.npu import scans as npu_scans
from ops.chunk_kda.npu import scores as npu_scores
from ops.chunk_kda.npu import tables as npu_tables
from ops.chunk_kda.npu import wy as npu_wy
from ops.common import backend as backend_lib
from ops.common import calls, checks, replay, tables
from ops.common import launch as launch_lib

_KERNELS = {
    plan_lib.GATE: gate.cumulative_gate,
    plan_lib.PREPARE: prepare.prepare,
    plan_lib.FORWARD: scans.forward_scan,
    plan_lib.REVERSE: scans.reverse_scan,
    plan_lib.SCORES: finalize.scores,
    plan_lib.FINALIZE: finalize.finalize,
    plan_lib.GROUP: group.sum_group,
    plan_lib.PAIR_SCORES: intra.pair_scores,
    plan_lib.SOLVE: intra.solve,
    fwd_plan.OUTPUT: output.output_scan,
    npu_plan.DECAYED: npu_decayed.decayed,
    npu_plan.FORWARD: npu_scans.forward_states,
    npu_plan.REVERSE: npu_scans.reverse_states,
    npu_plan.SCORES: npu_scores.level_scores,
    npu_plan.GRADIENTS: npu_finalize.level_gradients,
    npu_plan.GATE_BACKWARD: gate.gate_backward,
    npu_plan.WY_CHUNK: npu_wy.wy_chunk,
    npu_plan.WY_DQKG: npu_wy.wy_dqkg,
    npu_plan.SCORE_CHUNK: npu_chunks.score_chunk,
    npu_plan.SOLVE_CHUNK: npu_chunks.solve_chunk,
    npu_plan.WU_CHUNK: npu_chunks.wu_chunk,
    npu_plan.OUTPUT: npu_output.output_states,
}


def chunk_kda_bwd(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    beta: torch.Tensor,
    Aqk: torch.Tensor,
    Akk: torch.Tensor,
    scale: float | None,
    initial_state: torch.Tensor | None,
    do: torch.Tensor,
    dht: torch.Tensor | None,
    g: torch.Tensor | None = None,
    g_org: torch.Tensor | None = None,
    cu_seqlens: torch.Tensor | None = None,
    chunk_indices: torch.Tensor | None = None,
    chunk_size: int = 64,
    safe_gate: bool = False,
    lower_bound: float | None = None,
    use_gate_in_kernel: bool = False,
    A_log: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    disable_recompute: bool = False,
    **saved: Any,
) -> tuple[torch.Tensor | None, ...]:
    """Backward pass of Kimi Delta Attention, from what its chunked forward saved.

    The forward is, per sequence and value head, with the decay a_t = exp(gate_t) of each channel of
    k and the state S [K, V] (Kimi Linear, arXiv 2510.26692):

        S_t = diag(a_t) S_{t-1} + k_t (beta_t (v_t - (diag(a_t) S_{t-1})^T k_t))^T
        o_t = scale S_t^T q_t

    and this returns the gradients of sum(do o) + sum(dht last state). It computes them chunk by
    chunk: with G the sum of the gate from the chunk's first token on, over ln 2, D_ij = 2^(G_i -
    G_j) and lower-triangular

        Akk = (I + tril(beta_i sum_d k_i k_j D_ij, -1))^-1
        Aqk = scale tril(sum_d q_i k_j D_ij)

    Any gate is safe, no factor above 1 is formed for gates <= 0. Sequences are the rows of the
    batch or, with cu_seqlens, the parts of its only row. Names and order are those of FLA's
    function, from v0.4.1 on.

    Args:
        q, k: [B, T, H, K], float16, bfloat16 or float32, 1 <= K <= 256.
        v: [B, T, HV, V], dtype of q, 1 <= V <= 256, HV a multiple of H: value head hv reads the q/k
            head hv // (HV // H).
        beta: [B, T, HV], float16, bfloat16 or float32, usually 0 to 1.
        Aqk, Akk: [B, T, HV, chunk_size], dtype of q or float32: row t is token t's row of its
            chunk's matrix. What is above the diagonal is not read.
        scale: any number that float32 holds; None is K^-0.5.
        initial_state: [N, HV, K, V], float32, N the number of sequences; None is zero, and then
            there is no dh0.
        do: [B, T, HV, V], gradient of o, dtype of q (with float32 q, 16-bit ones too).
        dht: [N, HV, K, V], float32, gradient of the last states; None is zero.
        g: [B, T, HV, K], G as above, float32 (16-bit ones are converted). Not read, and may be
            None, when it is computed anew: with use_gate_in_kernel, unless disable_recompute.
        g_org: [B, T, HV, K], float16, bfloat16 or float32, what the gate is computed from; only
            with use_gate_in_kernel.
        cu_seqlens: [N + 1], int32 or int64, on q's device or the CPU; rows cu_seqlens[n] to
            cu_seqlens[n + 1] - 1 are sequence n, empty ones included; then B is 1. Its values are
            read on the host: a tensor on a device is waited for once, then remembered until torch
            changes it. Under torch.compile the graph breaks there, and each packing is compiled
            anew; without it there is one graph.
        chunk_indices: [NT, 2], int32 or int64: what FLA's callers pass; its shape is checked, its
            values follow from cu_seqlens and are not read.
        chunk_size: 32 or 64, what Aqk and Akk were made with.
        safe_gate: whether the forward needed a lower_bound; nothing else depends on it.
        lower_bound: in [-5, 0); None is none. See use_gate_in_kernel.
        use_gate_in_kernel: whether the forward computed the gate, with y = g_org + dt_bias, as
            -exp(A_log) softplus(y), or as lower_bound sigmoid(exp(A_log) y) with a lower_bound. dg
            is then the gradient of g_org.
        A_log: [HV], float32; None, which needs a lower_bound, is zero. dt_bias: [HV * K], float32;
            None is zero. Both only with use_gate_in_kernel.
        disable_recompute: whether v_new and h (and g) are given instead of computed.
        **saved: v_new [B, T, HV, V] and h [B, NT, HV, K, V], dtype of q, the states before each
            chunk; w, u, qg, kg, which are not read; FLA's options at their defaults.

    Returns:
        dq, dk: as q, summed over the value heads of a q/k head.
        dv: as v.
        db: [B, T, HV], float32.
        dg: [B, T, HV, K], gradient of the gate's natural logarithm, float32; with
            use_gate_in_kernel that of g_org, in its dtype.
        dh0: [N, HV, K, V], float32; None without initial_state.
        dA_log, ddt_bias: as A_log and dt_bias; None without them.

        All are new, contiguous tensors. Rows behind the last sequence are zero. The same call gives
        the same bits on the same kind of device.

    Raises:
        TypeError, ValueError: an argument violates the above; the message names it, what it got and
            what is allowed.
        RuntimeError: CPU tensors without TRITON_INTERPRET=1.
        NotImplementedError: a device without an implementation; an option that FLA has and this
            function has not; an argument requires a gradient and gradients are enabled, or it has
            a tangent (there is no second derivative).
    """
    arguments = {
        "q": q,
        "k": k,
        "v": v,
        "beta": beta,
        "Aqk": Aqk,
        "Akk": Akk,
        "scale": scale,
        "initial_state": initial_state,
        "do": do,
        "dht": dht,
        "g": g,
        "g_org": g_org,
        "cu_seqlens": cu_seqlens,
        "chunk_indices": chunk_indices,
        "chunk_size": chunk_size,
        "safe_gate": safe_gate,
        "lower_bound": lower_bound,
        "use_gate_in_kernel": use_gate_in_kernel,
        "A_log": A_log,
        "dt_bias": dt_bias,
        "disable_recompute": disable_recompute,
    }
    checks.check_no_tangents(contract.BWD, arguments | saved)
    if directly():
        results = _bwd_results(**arguments, **saved)
        return tuple(results[name] for name in _BWD_RESULTS)
    kept = contract.check_bwd_options(
        scale, chunk_size, safe_gate, lower_bound, use_gate_in_kernel, disable_recompute, saved
    )
    # What is not read may be anything.
    if use_gate_in_kernel and not disable_recompute:
        arguments["g"] = None
    for name in ("v_new", "h"):
        arguments[name] = kept[name] if disable_recompute else None
    to_schema(arguments, _BWD_REQUIRED, _BWD_OPTIONAL)
    found = torch.ops.ascend_ops.chunk_kda_bwd.default(**arguments)
    given = {"dh0": initial_state, "dA_log": A_log, "ddt_bias": dt_bias}
    return tuple(
        None if name in given and given[name] is None else result
        for name, result in zip(_BWD_RESULTS, found, strict=True)
    )


def chunk_kda_bwd_wy_dqkg_fused(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    v_new: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    A: torch.Tensor,
    h: torch.Tensor,
    do: torch.Tensor,
    dh: torch.Tensor,
    dv: torch.Tensor,
    scale: float | None = None,
    cu_seqlens: torch.Tensor | None = None,
    chunk_size: int = 64,
    chunk_indices: torch.Tensor | None = None,
    **options: Any,
) -> tuple[torch.Tensor, ...]:
    """One step of chunk_kda_bwd: gradients through a chunk's use of states and of Akk.

    Per chunk and value head, with E = 2^G, kE = k E, and G_last the chunk's last row:

        dq   = scale E (do h^T)            dk1 = 2^(G_last - G) (v_new dh^T)
        dw   = -dv h^T                     M   = tril(dv v^T + dw kE^T, -1) beta_j  (column j)
        dA   = -tril(A^T M A^T, -1)        dvb = A^T dv,   dkb = A^T dw
        dv   = beta dvb                    db  = sum_V dvb v + sum_K dkb kE
        dk   = dk1 + beta E dkb            dg  = q dq - k dk1 + beta kE dkb
        dg[last row] += 2^G_last sum_V h dh + sum_t k dk1

    (Kimi Linear, arXiv 2510.26692; FLA's function of this name). v_new, h, dh and dv may be
    anything; chunk_kda_bwd knows how they belong together and does less.

    Args:
        q, k, v, beta, cu_seqlens, chunk_size, chunk_indices: as for chunk_kda_bwd.
        v_new: [B, T, HV, V], dtype of q, what each token wrote to the state.
        g: [B, T, HV, K], G: the sum of the gate's natural logarithm inside the chunk, over ln 2;
            float32 (16-bit ones are converted).
        A: [B, T, HV, chunk_size], Akk, dtype of q or float32; what is above the diagonal is not
            read.
        h, dh: [B, NT, HV, K, V], dtype of q: the states before each chunk, the gradients of those
            after it. NT: chunks of a batch row, or of all packed sequences.
        do, dv: [B, T, HV, V], dtype of q: gradients of o and of v_new.
        scale: any number that float32 holds; None is K^-0.5.
        **options: FLA's options at their defaults.

    Returns:
        dq, dk: [B, T, HV, K], float32, not summed over the heads that share q and k.
        dv: as v.
        db: [B, T, HV], float32.
        dg: [B, T, HV, K], float32, gradient of G ln 2: its sums from each row to the chunk's end
            are the gradients of the gate's natural logarithm.
        dA: [B, T, HV, chunk_size], float32, zero on the diagonal and above it.

        All are new, contiguous tensors; rows behind the last sequence are zero.

    Raises:
        As chunk_kda_bwd.
    """
    arguments = {
        "q": q,
        "k": k,
        "v": v,
        "v_new": v_new,
        "g": g,
        "beta": beta,
        "A": A,
        "h": h,
        "do": do,
        "dh": dh,
        "dv": dv,
        "scale": scale,
        "cu_seqlens": cu_seqlens,
        "chunk_size": chunk_size,
        "chunk_indices": chunk_indices,
    }
    checks.check_no_tangents(contract.WY, arguments)
    if directly():
        results = _wy_results(**arguments, **options)
        return tuple(results[name] for name in _WY_RESULTS)
    contract.check_wy_options(scale, chunk_size, options)
    to_schema(arguments, _WY_TENSORS, ())
    return tuple(torch.ops.ascend_ops.chunk_kda_bwd_wy_dqkg_fused.default(**arguments))


def explain_bwd(*args: Any, **kwargs: Any) -> str:
    """The plan of a call of chunk_kda_bwd with these arguments, in words; nothing is launched."""
    problem, inputs = contract.check_bwd(*args, **kwargs)
    return explain(plan_lib.make_plan, problem, inputs.q)


def explain_wy_dqkg_fused(*args: Any, **kwargs: Any) -> str:
    """The same for chunk_kda_bwd_wy_dqkg_fused."""
    problem, inputs = contract.check_wy(*args, **kwargs)
    return explain(plan_lib.make_wy_plan, problem, inputs.q)


def explain(maker: Any, problem: problem_lib.Problem, q: torch.Tensor) -> str:
    """The plan of a checked call in words."""
    if problem.empty:
        return "empty: nothing is launched"
    with backend_lib.device_guard(q):
        return plan_for(maker, problem, backend_lib.backend_of(q)).explain()


def directly() -> bool:
    """Whether a public function goes around torch's dispatcher."""
    # Tensors on `meta` stand for a device's while pretending; torch's dispatcher would only see
    # `meta`. And it would hide from who watches launches what is allocated inside the op.
    return backend_lib.pretending() or launch_lib.watched()


_BWD_REQUIRED = ("q", "k", "v", "beta", "Aqk", "Akk", "do")
_BWD_OPTIONAL = ("initial_state", "dht", "g", "g_org", "A_log", "dt_bias", "v_new", "h")
_BWD_RESULTS = ("dq", "dk", "dv", "db", "dg", "dh0", "dA_log", "ddt_bias")
_WY_TENSORS = ("q", "k", "v", "v_new", "g", "beta", "A", "h", "do", "dh", "dv")
_WY_RESULTS = ("dq", "dk", "dv", "db", "dg", "dA")
# Names of results -> what kernels call them, where that differs.
_IN_KERNELS = {"dv": "dv_out", "db": "dbeta", "dA": "dakk"}


def to_schema(
    arguments: dict[str, Any], required: tuple[str, ...], optional: tuple[str, ...]
) -> None:
    """Turns checked options and unchecked tensors into what the op takes, whose own errors would
    not say what is allowed. cu_seqlens becomes its values, chunk_indices goes."""
    tensors = {name: arguments[name] for name in required}
    given = {name: arguments[name] for name in optional if arguments[name] is not None}
    contract.check_tensors(tensors | given)
    indices = arguments.pop("chunk_indices")
    if arguments["cu_seqlens"] is not None or indices is not None:
        checks.check_dims("q", arguments["q"], "[B, T, H, K]")
        arguments["cu_seqlens"] = read_boundaries(
            arguments["cu_seqlens"], indices, arguments["q"], arguments["chunk_size"]
        )


# Whoever traces the program goes on with the values as numbers.
@torch.compiler.disable
def read_boundaries(cu_seqlens, chunk_indices, q: torch.Tensor, chunk_size: int) -> list[int]:
    """The checked values of cu_seqlens."""
    return list(contract.sequences(cu_seqlens, chunk_indices, q, chunk_size) or ())


def _bwd_results(**arguments: Any) -> dict[str, torch.Tensor | None]:
    """chunk_kda_bwd without torch's dispatcher; results by name."""
    call = Call(contract.BWD, (*_BWD_REQUIRED, *_BWD_OPTIONAL), arguments)
    found = call.again()
    if found is None:
        tensors = ((name, arguments.get(name)) for name in (*_BWD_REQUIRED, *_BWD_OPTIONAL))
        checks.check_no_gradients(contract.BWD, tensors_only(tensors))
        problem, inputs = contract.check_bwd(**arguments)
        if problem.empty:
            return _nothing(bwd_shapes(problem), inputs.q, dh0=inputs.dht)
        found = call.run(plan_lib.make_plan, problem, inputs)
    return {name: found.get(_IN_KERNELS.get(name, name)) for name in _BWD_RESULTS}


def _wy_results(**arguments: Any) -> dict[str, torch.Tensor]:
    """chunk_kda_bwd_wy_dqkg_fused without torch's dispatcher; results by name."""
    call = Call(contract.WY, _WY_TENSORS, arguments)
    found = call.again()
    if found is None:
        tensors = ((name, arguments.get(name)) for name in _WY_TENSORS)
        checks.check_no_gradients(contract.WY, tensors_only(tensors))
        problem, inputs = contract.check_wy(**arguments)
        if problem.empty:
            return _nothing(wy_shapes(problem), inputs.q)
        found = call.run(plan_lib.make_wy_plan, problem, inputs)
    return {name: found[_IN_KERNELS.get(name, name)] for name in _WY_RESULTS}


def tensors_only(pairs: Any) -> list[tuple[str, torch.Tensor]]:
    """The pairs (name, value) whose value is a tensor."""
    return [(name, value) for name, value in pairs if isinstance(value, torch.Tensor)]


# name -> (shape, dtype) of the results that a call has.
Shapes = dict[str, tuple[tuple[int, ...], torch.dtype]]


def bwd_shapes(problem: problem_lib.Problem) -> Shapes:
    """Results of chunk_kda_bwd."""
    p, fp32 = problem, torch.float32
    dtype = getattr(torch, p.dtype)
    rows = (p.B, p.T, p.HV)
    of_gate = fp32 if p.gate == problem_lib.GIVEN else getattr(torch, p.g_org_dtype)
    shapes: Shapes = {
        "dq": ((p.B, p.T, p.H, p.K), dtype),
        "dk": ((p.B, p.T, p.H, p.K), dtype),
        "dv": ((*rows, p.V), dtype),
        "db": (rows, fp32),
        "dg": ((*rows, p.K), of_gate),
    }
    if p.has_initial_state:
        shapes["dh0"] = ((p.N, p.HV, p.K, p.V), fp32)
    if p.has_A_log:
        shapes["dA_log"] = ((p.HV,), fp32)
    if p.has_dt_bias:
        shapes["ddt_bias"] = ((p.HV * p.K,), fp32)
    return shapes


def wy_shapes(problem: problem_lib.Problem) -> Shapes:
    """Results of chunk_kda_bwd_wy_dqkg_fused."""
    p, fp32 = problem, torch.float32
    rows = (p.B, p.T, p.HV)
    shapes: Shapes = dict.fromkeys(("dq", "dk", "dg"), ((*rows, p.K), fp32))
    shapes["dv"] = ((*rows, p.V), getattr(torch, p.dtype))
    shapes["db"] = (rows, fp32)
    shapes["dA"] = ((*rows, p.C), fp32)
    return {name: shapes[name] for name in _WY_RESULTS}


def _nothing(shapes: Shapes, q: torch.Tensor, dh0: torch.Tensor | None = None) -> dict[str, Any]:
    """Results when no token belongs to a sequence: the last states are the first ones."""
    results: dict[str, Any] = dict.fromkeys(_BWD_RESULTS)
    for name, (shape, dtype) in shapes.items():
        if name == "dh0" and dh0 is not None:
            results[name] = dh0.clone()
        else:
            results[name] = q.new_zeros(shape, dtype=dtype)
    return results


@dataclasses.dataclass(frozen=True)
class _Made:
    """What is left of a call that was made, for one like it."""

    problem: problem_lib.Problem
    plan: plan_lib.Plan
    backend: str
    bounds: tuple[int, ...] | None
    replay: replay.Replay


_calls: calls.Calls[_Made] = calls.Calls()
# What kernels call arguments, where that differs.
_POINTERS = {"initial_state": "h0", "A": "Akk"}


class Call:
    """A call of an op. One like an earlier one is neither checked nor planned again."""

    def __init__(
        self, op: str, names: tuple[str, ...], arguments: Mapping[str, Any], **pointers: str
    ):
        """names: of the arguments that are tensors, q first. pointers: what kernels call them,
        where that differs."""
        pointers = _POINTERS | pointers
        self._names = [pointers.get(name, name) for name in names]
        self._tensors = [arguments.get(name) for name in names]
        self._key: tuple[Hashable, ...] = ()
        if not directly():  # then they are as torch's dispatcher converted them
            others = [value for name, value in arguments.items() if name not in names]
            self._key = (op, *calls.key(others))

    def again(self) -> dict[str, torch.Tensor] | None:
        """What run() returns, if a call like this one was made before."""
        found = _calls.find(self._key, self._tensors)
        if found is None:
            return None
        made, addresses = found
        q: Any = self._tensors[0]
        with backend_lib.device_guard(q):
            looked_up = tables_for(made.problem, made.bounds, made.backend, q)
            addresses += [table.data_ptr() for table in looked_up.values()]
            held = _kept(made.plan, made.replay.run(addresses))
            return _finished(made.problem, made.plan, made.bounds, held)

    def run(self, maker: Any, problem: problem_lib.Problem, inputs: Any) -> dict[str, torch.Tensor]:
        """Plans and launches; returns the plan's outputs and finished sums, by the kernels' names.

        inputs: what the check of the arguments made of them.
        """
        q, bounds = inputs.q, inputs.cu_seqlens
        given = {_POINTERS.get(name, name): tensor for name, tensor in inputs.tensors().items()}
        numbers = {
            "scale": inputs.scale,
            "lower_bound": getattr(inputs, "lower_bound", None) or 0.0,
        }
        backend = backend_lib.backend_of(q)
        with backend_lib.device_guard(q):
            plan = plan_for(maker, problem, backend)
            looked_up = tables_for(problem, bounds, backend, q)
            written = None
            if _calls.may_remember(self._tensors, [given.get(name) for name in self._names]):
                present = [name for name in self._names if name in given]
                written = replay.Replay((*present, *looked_up), q.device)
            held = launch_plan(problem, plan, backend, {**given, **numbers, **looked_up}, written)
            if written is not None:
                made = _Made(problem, plan, backend, bounds, written)
                _calls.remember(self._key, self._tensors, made)
            return _finished(problem, plan, bounds, held)


def _finished(
    problem: problem_lib.Problem,
    plan: plan_lib.Plan,
    bounds: tuple[int, ...] | None,
    found: dict[str, torch.Tensor],
) -> dict[str, torch.Tensor]:
    """What is left to torch once a plan's launches are made."""
    if bounds is not None and bounds[-1] < problem.T:
        for name in plan.outputs:
            if name not in _STATES:
                found[name][:, bounds[-1] :] = 0
        if "dbeta" in found:
            found["dbeta"][:, :, bounds[-1] :] = 0
    for name, buffer in plan.outputs.items():
        if buffer.dtype is not None:
            found[name] = found[name].to(getattr(torch, buffer.dtype))
    for name in _SUMS:
        if name in found:
            found[name] = found[name].sum(0)
    return found


# Outputs that have sequences instead of tokens.
_STATES = ("dh0", "final_state")
# Workspace that holds parts of results, to be added up along the first axis.
_SUMS = ("dbeta", "dA_log", "ddt_bias")


def launch_plan(
    problem: problem_lib.Problem,
    plan: plan_lib.Plan,
    backend: str,
    given: Mapping[str, Any],
    written: replay.Replay | None = None,
) -> dict[str, torch.Tensor]:
    """Makes a plan's launches; returns its outputs, and sums to be finished along their first axis.

    What the plan says of buffers decides how long each exists. Tools may launch another backend's
    plan; given are arguments and tables by the kernels' names. written: where the launches are
    written down.
    """
    buffers = {**plan.workspace, **plan.outputs}
    held: dict[str, torch.Tensor] = {}
    for i, kernel in enumerate(plan.kernels):
        ended = [name for name in held if buffers[name].last < i]
        for name in ended:
            del held[name]  # its memory may serve what follows
        begun = [
            (name, buffer.shape, getattr(torch, buffer.stored))
            for name, buffer in buffers.items()
            if buffer.first == i
        ]
        for name, shape, dtype in begun:
            held[name] = torch.empty(shape, dtype=dtype, device=given["q"].device)
        _launch(problem, kernel, backend, {**given, **held}, written, ended, begun)
    return _kept(plan, held)


def _kept(plan: plan_lib.Plan, held: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: held[name] for name in held if name in plan.outputs or name in _SUMS}


def _launch(problem, kernel, backend, values, written, ended, begun) -> None:
    launch = make_launch(problem, kernel, backend, values)
    compiled = launch.run()
    if written is not None:
        sources = {
            name: _source(name.removesuffix("_ptr"), values)
            for name, value in launch.args.items()
            if isinstance(value, torch.Tensor)
        }
        written.add(launch, compiled, values, sources, ended, begun)


def make_launch(
    problem: problem_lib.Problem,
    kernel: plan_lib.KernelPlan,
    backend: str,
    values: Mapping[str, Any],
) -> launch_lib.Launch:
    """One launch of a plan, not run. values: arguments, tables and buffers by name.

    A kernel's arguments are known by their names: `x_ptr` is the tensor x, `x_stride_b`, `_t` and
    `_h` its strides, the others are listed here.
    """
    p, s = problem, problem.strides
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
        "num_rows": p.B * p.T * p.H,
        "num_tasks": kernel.num_tasks,
        "first_chunk": kernel.first_chunk,
        "width": p.K,
        "dbeta_stride_tile": p.B * p.T * p.HV,
        "scale": values["scale"],
        "lower_bound": values["lower_bound"],
    }
    for name, of_tensor in strides.items():
        for axis, stride in zip("bth", of_tensor, strict=True):
            own[f"{name}_stride_{axis}"] = stride
    function = _KERNELS[kernel.kernel]
    constants: dict[str, Any] = {
        name: value for name, value in kernel.constants.items() if name in function.arg_names
    }
    args = {
        name: values.get(_source(name.removesuffix("_ptr"), values))
        if name.endswith("_ptr")
        else own[name]
        for name in function.arg_names
        if name not in constants
    }
    if kernel.first_slot:
        args["dbeta_ptr"] = values["dbeta"][kernel.first_slot :]
    return launch_lib.Launch(
        kernel=function,
        backend=backend,
        grid=(kernel.programs,),
        args=args,
        constants=constants,
        options=kernel.options,
    )


def _source(name: str, values: Mapping[str, Any]) -> str:
    """Which of the values a kernel knows by this name."""
    return name if name in values else _ELSEWHERE.get(name, name)


# v_new is written over u. dv is given, or lies where y is to be; first Aqk^T do lies there. The
# gate's gradient is dg, unless a later kernel makes dg of it. dq and dk of a group's heads are
# added up later.
_ELSEWHERE = {"u": "v_new", "dv": "y", "dgate": "dg", "dq": "dq_parts", "dk": "dk_parts"}


def tables_for(
    problem: problem_lib.Problem, bounds: tuple[int, ...] | None, backend: str, q: torch.Tensor
) -> Mapping[str, torch.Tensor]:
    """What a backend's kernels look up."""
    packed = tables.of_sequences(bounds, problem.C, q.device)
    return {**packed, **_constants_for(problem, backend, q)}


def _constants_for(
    problem: problem_lib.Problem, backend: str, q: torch.Tensor
) -> Mapping[str, torch.Tensor]:
    """Constant tensors that kernels for NPUs read, 0.3 MB, made once; no workspace of a call."""
    if backend not in npu_plan.BACKENDS:
        return {}
    if backend_lib.pretending():
        return npu_tables.make(problem.C, q.dtype, q.device)
    return _kept_constants(problem.C, q.dtype, q.device)


_kept_constants = functools.cache(npu_tables.make)


# Callers repeat few shapes: planning once per shape keeps the host's share of a small call low.
_plan = functools.lru_cache(maxsize=1024)(lambda maker, *arguments: maker(*arguments))


def plan_for(maker: Any, problem: problem_lib.Problem, backend: str) -> plan_lib.Plan:
    """The plan of a maker such as plan.make_plan, remembered for each problem."""
    return _plan(
        maker, problem, backend, backend_lib.device_cores(backend), backend_lib.program_limit()
    )


def boundaries(cu_seqlens: list[int] | None) -> contract.Boundaries | None:
    """What an op gets as numbers."""
    return None if cu_seqlens is None else contract.Boundaries(cu_seqlens)


def _bwd_op(*, cu_seqlens: list[int] | None, **arguments: Any) -> tuple[torch.Tensor, ...]:
    """A schema has no results that may be absent: an empty tensor stands for None."""
    results = _bwd_results(**arguments, cu_seqlens=boundaries(cu_seqlens))
    found = (results[name] for name in _BWD_RESULTS)
    absent = functools.partial(arguments["q"].new_empty, 0, dtype=torch.float32)
    return tuple(absent() if result is None else result for result in found)


def _bwd_fake(*, cu_seqlens: list[int] | None, **arguments: Any) -> tuple[torch.Tensor, ...]:
    """Shapes, dtypes and errors without a computation: torch.compile, FakeTensor, meta tensors."""
    tensors = ((name, arguments.get(name)) for name in (*_BWD_REQUIRED, *_BWD_OPTIONAL))
    checks.check_no_gradients(contract.BWD, tensors_only(tensors))
    problem, _ = contract.check_bwd(**arguments, cu_seqlens=boundaries(cu_seqlens))
    shapes = bwd_shapes(problem)
    q = arguments["q"]
    absent = ((0,), torch.float32)
    found = (shapes.get(name, absent) for name in _BWD_RESULTS)
    return tuple(q.new_empty(shape, dtype=dtype) for shape, dtype in found)


def _wy_op(*, cu_seqlens: list[int] | None, **arguments: Any) -> tuple[torch.Tensor, ...]:
    results = _wy_results(**arguments, cu_seqlens=boundaries(cu_seqlens))
    return tuple(results[name] for name in _WY_RESULTS)


def _wy_fake(*, cu_seqlens: list[int] | None, **arguments: Any) -> tuple[torch.Tensor, ...]:
    tensors = ((name, arguments.get(name)) for name in _WY_TENSORS)
    checks.check_no_gradients(contract.WY, tensors_only(tensors))
    problem, _ = contract.check_wy(**arguments, cu_seqlens=boundaries(cu_seqlens))
    q = arguments["q"]
    return tuple(q.new_empty(shape, dtype=dtype) for shape, dtype in wy_shapes(problem).values())


_LIBRARY = torch.library.Library("ascend_ops", "FRAGMENT")


def register(
    op: str,
    types: Mapping[str, str],
    results: tuple[str, ...],
    run: Callable[..., Any],
    fake: Callable[..., Any],
    autograd: tuple[Callable[..., Any], Callable[..., Any]] | None = None,
) -> None:
    """Defines an op whose arguments run and fake get by name. None has a default: the public
    functions pass them all. autograd: setup_context and backward of torch.library."""
    arguments = ", ".join(f"{kind} {name}" for name, kind in types.items())
    _LIBRARY.define(f"{op}({arguments}) -> ({', '.join(f'Tensor {name}' for name in results)})")

    def by_name(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *values: function(**dict(zip(types, values, strict=True)))

    for key in ("CPU", "CUDA", "PrivateUse1"):  # PrivateUse1 is torch_npu's
        _LIBRARY.impl(op, by_name(run), key)

    def shapes_only(**arguments: Any) -> Any:
        # While pretending, tensors on `meta` stand for a device's: what is launched is the point.
        return (run if backend_lib.pretending() else fake)(**arguments)

    torch.library.register_fake(f"ascend_ops::{op}", by_name(shapes_only), lib=_LIBRARY)
    if autograd is not None:
        setup, backward = autograd
        torch.library.register_autograd(
            f"ascend_ops::{op}", backward, setup_context=setup, lib=_LIBRARY
        )


register(
    contract.BWD,
    {
        **dict.fromkeys(_BWD_REQUIRED, "Tensor"),
        **dict.fromkeys(_BWD_OPTIONAL, "Tensor?"),
        "scale": "float?",
        "cu_seqlens": "int[]?",
        "chunk_size": "int",
        "safe_gate": "bool",
        "lower_bound": "float?",
        "use_gate_in_kernel": "bool",
        "disable_recompute": "bool",
    },
    _BWD_RESULTS,
    _bwd_op,
    _bwd_fake,
)
register(
    contract.WY,
    {
        **dict.fromkeys(_WY_TENSORS, "Tensor"),
        "scale": "float?",
        "cu_seqlens": "int[]?",
        "chunk_size": "int",
    },
    _WY_RESULTS,
    _wy_op,
    _wy_fake,
)
