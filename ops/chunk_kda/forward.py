"""chunk_kda and chunk_kda_fwd_intra: the forward, its derivative, and their entries in
torch.library."""

from typing import Any

import torch

from ops.chunk_kda import contract, dispatch, fwd_contract, fwd_plan, normalise
from ops.chunk_kda import problem as problem_lib
from ops.common import checks


def chunk_kda(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    *,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    safe_gate: bool = False,
    lower_bound: float | None = None,
    cu_seqlens: torch.Tensor | None = None,
    cu_seqlens_cpu: torch.Tensor | None = None,
    chunk_indices: torch.Tensor | None = None,
    chunk_size: int = 64,
    A_log: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    **options: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Kimi Delta Attention (Kimi Linear, arXiv 2510.26692), chunk by chunk; differentiable.

    Per sequence and value head, with the decay a_t = exp(gate_t) of each channel of k and the state
    S [K, V]:

        S_t = diag(a_t) S_{t-1} + k_t (beta_t (v_t - (diag(a_t) S_{t-1})^T k_t))^T
        o_t = scale S_t^T q_t

    Names are those of FLA's function, from v0.4.1 on; what its versions order differently are
    keywords here. Gradients come for q, k, v, g, beta, initial_state, A_log and dt_bias; there is
    no second derivative. A token's results depend on no later token, to the last bit; but NaN and
    inf reach all tokens of their chunk.

    Args:
        q, k: [B, T, H, K], float16, bfloat16 or float32, 1 <= K <= 256.
        v: [B, T, HV, V], dtype of q, 1 <= V <= 256, HV a multiple of H: value head hv reads the q/k
            head hv // (HV // H).
        g: [B, T, HV, K], float16, bfloat16 or float32, the gate: the decay's natural logarithm, 0
            or less. With use_gate_in_kernel what it is computed from. A step's gate counts as -40
            where it is less, which is a decay of 4e-18.
        beta: [B, T, HV], float16, bfloat16 or float32, usually 0 to 1.
        scale: any number that float32 holds; None is K^-0.5.
        initial_state: [N, HV, K, V], float32, N the number of sequences; None is zero.
        output_final_state: whether to return the last states.
        use_qk_l2norm_in_kernel: whether to divide q and k by their norms, the root of the sum of
            squares and 1e-6; the quotients are rounded to q's dtype.
        use_gate_in_kernel: whether to compute the gate, with y = g + dt_bias: -exp(A_log)
            softplus(y), or with a lower_bound lower_bound sigmoid(exp(A_log) y).
        use_beta_sigmoid_in_kernel: whether beta is given by its logits; sigmoid(beta), in float32,
            takes its place.
        allow_neg_eigval: doubles that sigmoid; only together with it.
        safe_gate: whether a lower_bound is needed to compute the gate; no result depends on it.
        lower_bound: in [-5, 0); None is none. See use_gate_in_kernel.
        cu_seqlens: [N + 1], int32 or int64, on q's device or the CPU: rows cu_seqlens[n] to
            cu_seqlens[n + 1] - 1 are sequence n, empty ones included; then B is 1. Its values are
            read on the host, see chunk_kda_bwd.
        cu_seqlens_cpu: the same values on the CPU, which are read instead; only with cu_seqlens.
        chunk_indices: [chunks, 2], int32 or int64: its shape is checked, its values follow from
            cu_seqlens and are not read.
        chunk_size: 32 or 64. Results differ by rounding only.
        A_log: [HV], float32; None, which needs a lower_bound, is zero. dt_bias: [HV * K], float32;
            None is zero. Both only with use_gate_in_kernel.
        **options: FLA's other options at their defaults.

    Under torch.autocast q, k and v are converted to its dtype, as for a matrix product; everything
    else stays as it is, and computation inside is in float32.

    Returns:
        o: as v, [B, T, HV, V]. Rows behind the last sequence are zero.
        final_state: [N, HV, K, V], float32; None without output_final_state.

        Both are new, contiguous tensors. For the backward are kept, beside arguments: Aqk and Akk
        and, unless use_gate_in_kernel, G (see chunk_kda_bwd): B T HV (2 chunk_size itemsize + 4 K)
        bytes. q and k are kept normalised where use_qk_l2norm_in_kernel, with 8 B T H bytes of
        norms. The rest is computed anew.

    Raises:
        TypeError, ValueError: an argument violates the above; the message names it, what it got and
            what is allowed.
        RuntimeError: CPU tensors without TRITON_INTERPRET=1.
        NotImplementedError: a device without an implementation; an option that FLA has and this
            function has not; a second derivative; a forward-mode one.
    """
    checks.check_options(fwd_contract.FORWARD, options, fwd_contract.OPTIONS)
    checks.check_bool("use_qk_l2norm_in_kernel", use_qk_l2norm_in_kernel)
    fwd_contract.check_beta_options(use_beta_sigmoid_in_kernel, allow_neg_eigval)
    contract.check_tensors({"q": q, "k": k, "v": v, "g": g, "beta": beta})
    if cu_seqlens_cpu is not None:
        cu_seqlens = fwd_contract.on_host(cu_seqlens, cu_seqlens_cpu)
    given = {"q": q, "k": k, "v": v, "g": g, "beta": beta, "initial_state": initial_state}
    checks.check_no_tangents(fwd_contract.FORWARD, given | {"A_log": A_log, "dt_bias": dt_bias})
    q, k, v = _autocast(q, k, v)
    if use_qk_l2norm_in_kernel:
        normalise.check_tensors(q, k)
        if dispatch.directly() and not _differentiable(q, k):
            q, k = normalise.normalised(q, k)[:2]
        else:
            q, k = torch.ops.ascend_ops.chunk_kda_l2norm.default(q, k)[:2]
    if use_beta_sigmoid_in_kernel:
        checks.check_dtype("beta", beta, tuple(contract.DTYPES))
        beta = _strength(beta.float(), cu_seqlens is not None)
        if allow_neg_eigval:
            beta = 2 * beta
    arguments = {
        "q": q,
        "k": k,
        "v": v,
        "g": g,
        "beta": beta,
        "scale": scale,
        "initial_state": initial_state,
        "output_final_state": output_final_state,
        "use_gate_in_kernel": use_gate_in_kernel,
        "safe_gate": safe_gate,
        "lower_bound": lower_bound,
        "cu_seqlens": cu_seqlens,
        "chunk_indices": chunk_indices,
        "chunk_size": chunk_size,
        "A_log": A_log,
        "dt_bias": dt_bias,
    }
    tensors = (q, k, v, g, beta, initial_state, A_log, dt_bias)
    if dispatch.directly() and not _differentiable(*tensors):
        found = _fwd_results(**arguments)
        return found["o"], found["final_state"]
    fwd_contract.check_fwd_options(
        scale, output_final_state, use_gate_in_kernel, safe_gate, lower_bound, chunk_size
    )
    dispatch.to_schema(arguments, _REQUIRED, _OPTIONAL)
    o, final_state, *_ = torch.ops.ascend_ops.chunk_kda_fwd.default(**arguments)
    return o, final_state if output_final_state else None


def chunk_kda_fwd_intra(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    gk: torch.Tensor,
    beta: torch.Tensor,
    scale: float | None = None,
    cu_seqlens: torch.Tensor | None = None,
    chunk_size: int = 64,
    chunk_indices: torch.Tensor | None = None,
    safe_gate: bool = False,
    lower_bound: float | None = None,
    disable_recompute: bool = False,
    **options: Any,
) -> tuple[torch.Tensor | None, ...]:
    """What chunk_kda computes inside each chunk, before any state is known.

    Per chunk and value head, with D_ij = 2^(G_i - G_j), E = 2^G and G_last the chunk's last row:

        Akk = (I + tril(beta_i sum_d k_i k_j D_ij, -1))^-1     Aqk = scale tril(sum_d q_i k_j D_ij)
        w = Akk (beta k E)      u = Akk (beta v)      qg = q E      kg = k 2^(G_last - G)

    (Kimi Linear, arXiv 2510.26692; FLA's function of this name, from v0.4.1 on). No factor above 1
    is formed for gates <= 0.

    Args:
        q, k, v, beta, scale, cu_seqlens, chunk_size, chunk_indices: as for chunk_kda.
        gk: [B, T, HV, K], G: the sum of the gate's natural logarithm from the chunk's first token
            on, over ln 2; float32 (16-bit ones are converted).
        safe_gate, lower_bound: what the gates are like; no result depends on it.
        disable_recompute: whether qg is returned.
        **options: FLA's options at their defaults.

    Returns:
        w: [B, T, HV, K]. u: [B, T, HV, V]. qg: [B, T, HV, K]; None unless disable_recompute.
        kg: [B, T, HV, K]. Aqk, Akk: [B, T, HV, chunk_size], row t is token t's row of its chunk's
        matrix, zero above the diagonal.

        All have q's dtype and are new, contiguous tensors; rows behind the last sequence are zero.

    Raises:
        As chunk_kda; and NotImplementedError for an argument that requires a gradient while
        gradients are enabled, or has a tangent.
    """
    checks.check_options(fwd_contract.INTRA, options, fwd_contract.INTRA_OPTIONS)
    checks.check_bool("safe_gate", safe_gate)
    if lower_bound is not None:
        checks.check_number("lower_bound", lower_bound)
    arguments = {
        "q": q,
        "k": k,
        "v": v,
        "gk": gk,
        "beta": beta,
        "scale": scale,
        "cu_seqlens": cu_seqlens,
        "chunk_indices": chunk_indices,
        "chunk_size": chunk_size,
        "disable_recompute": disable_recompute,
    }
    checks.check_no_tangents(fwd_contract.INTRA, arguments)
    if dispatch.directly():
        results = _intra_results(**arguments)
        return tuple(results[name] for name in _INTRA_RESULTS)
    fwd_contract.check_intra_options(scale, chunk_size, disable_recompute)
    dispatch.to_schema(arguments, _INTRA_TENSORS, ())
    found = torch.ops.ascend_ops.chunk_kda_fwd_intra.default(**arguments)
    return tuple(
        None if name == "qg" and not disable_recompute else result
        for name, result in zip(_INTRA_RESULTS, found, strict=True)
    )


def explain(*args: Any, **kwargs: Any) -> str:
    """The plan of chunk_kda_fwd, whose arguments these are, in words; nothing is launched."""
    problem, inputs = fwd_contract.check_fwd(*args, **kwargs)
    return dispatch.explain(fwd_plan.make_plan, problem, inputs.q)


def _strength(logits: torch.Tensor, packed: bool) -> torch.Tensor:
    """sigmoid(logits). packed: rows behind the last sequence may be NaN, whose gradient is 0."""
    if not packed:
        return logits.sigmoid()
    absent = logits.isnan()
    return logits.detach().where(absent, logits.masked_fill(absent, 0.0).sigmoid())


def _autocast(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    kind = tensors[0].device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return tensors
    dtype = torch.get_autocast_dtype(kind)
    return tuple(x.to(dtype) if x.dtype in contract.DTYPES else x for x in tensors)


def _differentiable(*arguments: Any) -> bool:
    """Whether an argument, not checked yet, requires a gradient."""
    return torch.is_grad_enabled() and any(
        isinstance(x, torch.Tensor) and x.requires_grad for x in arguments
    )


_REQUIRED = ("q", "k", "v", "g", "beta")
_OPTIONAL = ("initial_state", "A_log", "dt_bias")
_RESULTS = ("o", "final_state", "G", "Aqk", "Akk")
_INTRA_TENSORS = ("q", "k", "v", "gk", "beta")
_INTRA_RESULTS = ("w", "u", "qg", "kg", "Aqk", "Akk")


def _fwd_results(**arguments: Any) -> dict[str, Any]:
    """chunk_kda_fwd without torch's dispatcher; results by name."""
    call = dispatch.Call(fwd_contract.FWD, (*_REQUIRED, *_OPTIONAL), arguments, g="g_org")
    found = call.again()
    if found is None:
        problem, inputs = fwd_contract.check_fwd(**arguments)
        if problem.empty:
            return _nothing(problem, inputs)
        found = call.run(fwd_plan.make_plan, problem, inputs)
    found["G"] = found.pop("g")
    return {name: found.get(name) for name in _RESULTS}


def _nothing(problem: problem_lib.Problem, inputs: fwd_contract.FwdInputs) -> dict[str, Any]:
    """Results when no token belongs to a sequence: the last states are the first ones."""
    results: dict[str, Any] = dict.fromkeys(_RESULTS)
    for name, (shape, dtype) in fwd_shapes(problem).items():
        if name == "final_state" and inputs.initial_state is not None:
            results[name] = inputs.initial_state.clone()
        else:
            results[name] = inputs.q.new_zeros(shape, dtype=dtype)
    return results


def _intra_results(**arguments: Any) -> dict[str, torch.Tensor | None]:
    """chunk_kda_fwd_intra without torch's dispatcher; results by name."""
    call = dispatch.Call(fwd_contract.INTRA, _INTRA_TENSORS, arguments, gk="g")
    found = call.again()
    if found is None:
        tensors = ((name, arguments.get(name)) for name in _INTRA_TENSORS)
        checks.check_no_gradients(fwd_contract.INTRA, dispatch.tensors_only(tensors))
        problem, inputs = fwd_contract.check_intra(**arguments)
        if problem.empty:
            shapes = intra_shapes(problem).items()
            return dict.fromkeys(_INTRA_RESULTS) | {
                name: inputs.q.new_zeros(shape, dtype=dtype) for name, (shape, dtype) in shapes
            }
        found = call.run(fwd_plan.make_intra_plan, problem, inputs)
    return {name: found.get(name) for name in _INTRA_RESULTS}


def fwd_shapes(problem: problem_lib.Problem) -> dispatch.Shapes:
    """Results of chunk_kda_fwd."""
    p, fp32 = problem, torch.float32
    dtype, rows = getattr(torch, p.dtype), (p.B, p.T, p.HV)
    shapes: dispatch.Shapes = {"o": ((*rows, p.V), dtype)}
    if p.has_final_state:
        shapes["final_state"] = ((p.N, p.HV, p.K, p.V), fp32)
    shapes["G"] = ((*rows, p.K), fp32)
    return shapes | dict.fromkeys(("Aqk", "Akk"), ((*rows, p.C), dtype))


def intra_shapes(problem: problem_lib.Problem) -> dispatch.Shapes:
    """Results of chunk_kda_fwd_intra."""
    p = problem
    dtype, rows = getattr(torch, p.dtype), (p.B, p.T, p.HV)
    widths = {"w": p.K, "u": p.V, "qg": p.K, "kg": p.K, "Aqk": p.C, "Akk": p.C}
    if p.recompute:
        del widths["qg"]
    return {name: ((*rows, width), dtype) for name, width in widths.items()}


def _fwd_op(*, cu_seqlens: list[int] | None, **arguments: Any) -> tuple[torch.Tensor, ...]:
    """A schema has no results that may be absent: an empty tensor stands for None."""
    results = _fwd_results(**arguments, cu_seqlens=dispatch.boundaries(cu_seqlens))
    return tuple(_present(results[name], arguments["q"]) for name in _RESULTS)


def _fwd_fake(*, cu_seqlens: list[int] | None, **arguments: Any) -> tuple[torch.Tensor, ...]:
    """Shapes, dtypes and errors without a computation: torch.compile, FakeTensor, meta tensors."""
    problem, _ = fwd_contract.check_fwd(**arguments, cu_seqlens=dispatch.boundaries(cu_seqlens))
    return _fake(fwd_shapes(problem), _RESULTS, arguments["q"])


def _intra_op(*, cu_seqlens: list[int] | None, **arguments: Any) -> tuple[torch.Tensor, ...]:
    results = _intra_results(**arguments, cu_seqlens=dispatch.boundaries(cu_seqlens))
    return tuple(_present(results[name], arguments["q"]) for name in _INTRA_RESULTS)


def _intra_fake(*, cu_seqlens: list[int] | None, **arguments: Any) -> tuple[torch.Tensor, ...]:
    tensors = ((name, arguments.get(name)) for name in _INTRA_TENSORS)
    checks.check_no_gradients(fwd_contract.INTRA, dispatch.tensors_only(tensors))
    problem, _ = fwd_contract.check_intra(**arguments, cu_seqlens=dispatch.boundaries(cu_seqlens))
    return _fake(intra_shapes(problem), _INTRA_RESULTS, arguments["q"])


def _present(result: torch.Tensor | None, q: torch.Tensor) -> torch.Tensor:
    return q.new_empty(0, dtype=torch.float32) if result is None else result


def _fake(
    shapes: dispatch.Shapes, names: tuple[str, ...], q: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    found = (shapes.get(name, ((0,), torch.float32)) for name in names)
    return tuple(q.new_empty(shape, dtype=dtype) for shape, dtype in found)


_TYPES = {
    **dict.fromkeys(_REQUIRED, "Tensor"),
    **dict.fromkeys(_OPTIONAL, "Tensor?"),
    "scale": "float?",
    "output_final_state": "bool",
    "use_gate_in_kernel": "bool",
    "safe_gate": "bool",
    "lower_bound": "float?",
    "cu_seqlens": "int[]?",
    "chunk_size": "int",
}


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    arguments = dict(zip(_TYPES, inputs, strict=True))
    _, final_state, G, Aqk, Akk = output
    absent = () if arguments["output_final_state"] else (final_state,)
    ctx.mark_non_differentiable(*absent, G, Aqk, Akk)
    ctx.set_materialize_grads(False)
    in_kernel = arguments["use_gate_in_kernel"]
    # The backward needs G; where a formula makes it of g, g is smaller or there anyway.
    gate = arguments["g"] if in_kernel else G
    names = ("q", "k", "v", "beta", *_OPTIONAL)
    ctx.save_for_backward(*(arguments[name] for name in names), gate, Aqk, Akk)
    ctx.of_gate = arguments["g"].dtype
    ctx.shape_of_o = output[0].shape
    ctx.options = {
        name: arguments[name]
        for name in (
            "scale",
            "cu_seqlens",
            "chunk_size",
            "safe_gate",
            "lower_bound",
            "use_gate_in_kernel",
        )
    }


def _backward(ctx: Any, do: Any, dht: Any, *_: Any) -> tuple[torch.Tensor | None, ...]:
    checks.check_first_derivative(fwd_contract.FORWARD)
    q, k, v, beta, initial_state, A_log, dt_bias, gate, Aqk, Akk = ctx.saved_tensors
    in_kernel = ctx.options["use_gate_in_kernel"]
    if do is None:
        do = v.new_zeros(ctx.shape_of_o)
    dq, dk, dv, dbeta, dg, dh0, dA_log, ddt_bias = torch.ops.ascend_ops.chunk_kda_bwd.default(
        q=q,
        k=k,
        v=v,
        beta=beta,
        Aqk=Aqk,
        Akk=Akk,
        do=do,
        initial_state=initial_state,
        dht=dht,
        g=None if in_kernel else gate,
        g_org=gate if in_kernel else None,
        A_log=A_log,
        dt_bias=dt_bias,
        v_new=None,
        h=None,
        disable_recompute=False,
        **ctx.options,
    )
    gradients = {
        "q": dq,
        "k": dk,
        "v": dv,
        "g": dg.to(ctx.of_gate),
        "beta": dbeta.to(beta.dtype),
        "initial_state": None if initial_state is None else dh0,
        "A_log": None if A_log is None else dA_log,
        "dt_bias": None if dt_bias is None else ddt_bias,
    }
    return tuple(gradients.get(name) for name in _TYPES)


dispatch.register(fwd_contract.FWD, _TYPES, _RESULTS, _fwd_op, _fwd_fake, (_setup, _backward))
dispatch.register(
    fwd_contract.INTRA,
    {
        **dict.fromkeys(_INTRA_TENSORS, "Tensor"),
        "scale": "float?",
        "cu_seqlens": "int[]?",
        "chunk_size": "int",
        "disable_recompute": "bool",
    },
    _INTRA_RESULTS,
    _intra_op,
    _intra_fake,
)
