"""The argument contracts of chunk_kda and of the two ops of its forward."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

from ops.chunk_kda import contract
from ops.chunk_kda import problem as problem_lib
from ops.common import checks

FORWARD = "chunk_kda"
FWD = "chunk_kda_fwd"
INTRA = "chunk_kda_fwd_intra"

# What callers of the reference implementation pass and chunk_kda has no other value of.
OPTIONS: Mapping[str, Any] = {
    "disable_recompute": False,
    "return_intermediate_states": False,
    "state_v_first": False,
    "transpose_state_layout": False,  # an older name of state_v_first
    "cp_context": None,
    "use_graph": False,
    "max_num_seqs": None,
}
INTRA_OPTIONS: Mapping[str, Any] = {"use_graph": False}


@dataclasses.dataclass(frozen=True)
class FwdInputs:
    """What launches of chunk_kda_fwd read, as contract.BwdInputs. g_org: the gate or, where it is
    computed, what it is computed from."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    g_org: torch.Tensor
    beta: torch.Tensor
    scale: float
    initial_state: torch.Tensor | None
    cu_seqlens: tuple[int, ...] | None
    lower_bound: float | None
    A_log: torch.Tensor | None
    dt_bias: torch.Tensor | None

    def tensors(self) -> dict[str, torch.Tensor]:
        """Those that are given, by name."""
        return contract.tensors_of(self)


@dataclasses.dataclass(frozen=True)
class IntraInputs:
    """The same for chunk_kda_fwd_intra. g: G."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    g: torch.Tensor
    beta: torch.Tensor
    scale: float
    cu_seqlens: tuple[int, ...] | None

    def tensors(self) -> dict[str, torch.Tensor]:
        """By name."""
        return contract.tensors_of(self)


def check_fwd(
    q,
    k,
    v,
    g,
    beta,
    scale=None,
    initial_state=None,
    output_final_state=False,
    use_gate_in_kernel=False,
    safe_gate=False,
    lower_bound=None,
    cu_seqlens=None,
    chunk_indices=None,
    chunk_size=64,
    A_log=None,
    dt_bias=None,
) -> tuple[problem_lib.Problem, FwdInputs]:
    """Checks a call of chunk_kda_fwd and returns what the plan and the launches need.

    Raises:
        TypeError: an argument has another type, dtype or layout.
        ValueError: a shape, a device, a number, or a combination is not allowed.
    """
    check_fwd_options(
        scale, output_final_state, use_gate_in_kernel, safe_gate, lower_bound, chunk_size
    )
    lower_bound = None if lower_bound is None else float(lower_bound)
    if use_gate_in_kernel:
        contract.check_gate_formula(A_log, lower_bound, safe_gate)
    else:
        contract.check_no_gate_formula({"A_log": A_log, "dt_bias": dt_bias})
    tensors = {"q": q, "k": k, "v": v, "g": g, "beta": beta}
    optional = {"initial_state": initial_state, "A_log": A_log, "dt_bias": dt_bias}
    given = {name: value for name, value in optional.items() if value is not None}
    sizes = contract.check_sizes(tensors | given, cu_seqlens, chunk_indices, chunk_size)
    for name, tensor in given.items():
        checks.check_dtype(name, tensor, (torch.float32,))
    inputs = FwdInputs(
        q=contract.as_rows(q),
        k=contract.as_rows(k),
        v=contract.as_rows(v),
        g_org=contract.as_rows(g),
        beta=contract.as_near_rows(beta.resolve_neg()),
        scale=contract.scale_or_default(scale, sizes["K"]),
        initial_state=contract.as_dense(initial_state),
        cu_seqlens=sizes.pop("cu_seqlens"),
        lower_bound=lower_bound if use_gate_in_kernel else None,
        A_log=contract.as_dense(A_log),
        dt_bias=contract.as_dense(dt_bias),
    )
    gate = problem_lib.GIVEN
    if use_gate_in_kernel:
        gate = problem_lib.SOFTPLUS if lower_bound is None else problem_lib.BOUNDED
    dtype = contract.DTYPES[q.dtype]
    problem = problem_lib.Problem(
        **sizes,
        dtype=dtype,
        Aqk_dtype=dtype,
        Akk_dtype=dtype,
        beta_dtype=contract.DTYPES[beta.dtype],
        gate=gate,
        g_org_dtype=contract.DTYPES[g.dtype],
        has_A_log=A_log is not None,
        has_dt_bias=dt_bias is not None,
        has_initial_state=initial_state is not None,
        forward=True,
        has_final_state=output_final_state,
        strides=contract.strides_of(inputs),
    )
    return problem, inputs


def check_intra(
    q,
    k,
    v,
    gk,
    beta,
    scale=None,
    cu_seqlens=None,
    chunk_size=64,
    chunk_indices=None,
    disable_recompute=False,
) -> tuple[problem_lib.Problem, IntraInputs]:
    """The same for chunk_kda_fwd_intra."""
    check_intra_options(scale, chunk_size, disable_recompute)
    tensors = {"q": q, "k": k, "v": v, "gk": gk, "beta": beta}
    sizes = contract.check_sizes(tensors, cu_seqlens, chunk_indices, chunk_size)
    inputs = IntraInputs(
        q=contract.as_rows(q),
        k=contract.as_rows(k),
        v=contract.as_rows(v),
        g=contract.as_rows(gk.to(torch.float32)),
        beta=contract.as_near_rows(beta.resolve_neg()),
        scale=contract.scale_or_default(scale, sizes["K"]),
        cu_seqlens=sizes.pop("cu_seqlens"),
    )
    dtype = contract.DTYPES[q.dtype]
    problem = problem_lib.Problem(
        **sizes,
        dtype=dtype,
        Aqk_dtype=dtype,
        Akk_dtype=dtype,
        beta_dtype=contract.DTYPES[beta.dtype],
        recompute=not disable_recompute,
        strides=contract.strides_of(inputs),
    )
    return problem, inputs


def check_fwd_options(
    scale, output_final_state, use_gate_in_kernel, safe_gate, lower_bound, chunk_size
) -> None:
    """Checks what is no tensor."""
    checks.check_choice("chunk_size", chunk_size, contract.CHUNK_SIZES)
    for name, flag in (
        ("output_final_state", output_final_state),
        ("use_gate_in_kernel", use_gate_in_kernel),
        ("safe_gate", safe_gate),
    ):
        checks.check_bool(name, flag)
    for name, number in (("scale", scale), ("lower_bound", lower_bound)):
        if number is not None:
            checks.check_number(name, number)


def check_intra_options(scale, chunk_size, disable_recompute) -> None:
    """Checks what is no tensor."""
    checks.check_choice("chunk_size", chunk_size, contract.CHUNK_SIZES)
    checks.check_bool("disable_recompute", disable_recompute)
    if scale is not None:
        checks.check_number("scale", scale)


def on_host(cu_seqlens: Any, cu_seqlens_cpu: Any) -> torch.Tensor:
    """Checks that cu_seqlens_cpu can stand for cu_seqlens, and returns it."""
    if cu_seqlens is None:
        raise ValueError("cu_seqlens_cpu: got a tensor, allowed: None without cu_seqlens")
    for name, value in (("cu_seqlens", cu_seqlens), ("cu_seqlens_cpu", cu_seqlens_cpu)):
        checks.check_tensor(name, value)
    checks.check_shape("cu_seqlens_cpu", cu_seqlens_cpu, cu_seqlens.shape, "cu_seqlens's")
    checks.check_same_device("cu_seqlens_cpu", cu_seqlens_cpu, torch.device("cpu"), "it")
    return cu_seqlens_cpu


def check_beta_options(use_beta_sigmoid_in_kernel, allow_neg_eigval) -> None:
    """Checks how beta comes to be."""
    checks.check_bool("use_beta_sigmoid_in_kernel", use_beta_sigmoid_in_kernel)
    checks.check_bool("allow_neg_eigval", allow_neg_eigval)
    if allow_neg_eigval and not use_beta_sigmoid_in_kernel:
        raise ValueError(
            "allow_neg_eigval: got True, allowed: False with use_beta_sigmoid_in_kernel=False"
        )
