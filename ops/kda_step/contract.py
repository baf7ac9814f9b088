"""The argument contract of kda_step, and the copies that its layout rules need."""

import dataclasses
from collections.abc import Mapping, Sequence

import torch

from ops.common import checks
from ops.kda_step import plan

OP = "kda_step"
MIN_WIDTH, MAX_WIDTH = 1, 256
# [-5, 0): below -5 the reference implementation's own kernels lose precision.
LEAST_LOWER_BOUND = -5.0

_DTYPES = {
    torch.float16: plan.FLOAT16,
    torch.bfloat16: plan.BFLOAT16,
    torch.float32: plan.FLOAT32,
}


@dataclasses.dataclass(frozen=True)
class Inputs:
    """What a launch reads: rows of stride 1, states as [N, HV, K, V] with dense heads."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    g: torch.Tensor
    beta: torch.Tensor
    state: torch.Tensor
    state_indices: torch.Tensor | None
    A_log: torch.Tensor | None
    dt_bias: torch.Tensor | None
    scale: float
    lower_bound: float | None


def check_types(
    tensors: Mapping[str, object],
    optional: Mapping[str, object],
    flags: Mapping[str, object],
    numbers: Mapping[str, object],
) -> None:
    """What torch's dispatcher would refuse less clearly."""
    for name, value in (*tensors.items(), *optional.items()):
        if value is not None or name in tensors:
            checks.check_strided(name, checks.check_tensor(name, value))
    for name, flag in flags.items():
        checks.check_bool(name, flag)
    if flags["inplace_final_state"]:
        checks.check_written("state", checks.check_tensor("state", tensors["state"]))
    for name, number in numbers.items():
        if number is not None:
            checks.check_number(name, number)


def check(
    q,
    k,
    v,
    g,
    beta,
    state,
    scale=None,
    *,
    state_indices=None,
    inplace_final_state=False,
    use_qk_l2norm_in_kernel=False,
    use_gate_in_kernel=False,
    use_beta_sigmoid_in_kernel=False,
    allow_neg_eigval=False,
    A_log=None,
    dt_bias=None,
    lower_bound=None,
) -> tuple[plan.Problem, Inputs]:
    """Checks a call's arguments, which are those of kda_step; reads no values.

    Raises:
        TypeError: an argument has another type, dtype or layout.
        ValueError: a shape, a stride, a device, a number, or a combination is not allowed.
    """
    tensors = {"q": q, "k": k, "v": v, "g": g, "beta": beta, "state": state}
    optional = {"state_indices": state_indices, "A_log": A_log, "dt_bias": dt_bias}
    flags = {
        "inplace_final_state": inplace_final_state,
        "use_qk_l2norm_in_kernel": use_qk_l2norm_in_kernel,
        "use_gate_in_kernel": use_gate_in_kernel,
        "use_beta_sigmoid_in_kernel": use_beta_sigmoid_in_kernel,
        "allow_neg_eigval": allow_neg_eigval,
    }
    check_types(tensors, optional, flags, {"scale": scale, "lower_bound": lower_bound})
    if allow_neg_eigval and not use_beta_sigmoid_in_kernel:
        raise ValueError(
            "allow_neg_eigval: got True, allowed: False with use_beta_sigmoid_in_kernel=False"
        )
    _check_gate(use_gate_in_kernel, A_log, dt_bias, lower_bound)
    tensors |= {name: value for name, value in optional.items() if value is not None}
    checks.check_dtype("q", q, tuple(_DTYPES))
    for name in ("k", "v"):
        checks.check_dtype_of(name, tensors[name], "q", q.dtype)
    for name in ("g", "beta"):
        checks.check_dtype(name, tensors[name], tuple(_DTYPES))
    for name in ("state", "A_log", "dt_bias"):
        if name in tensors:
            checks.check_dtype(name, tensors[name], (torch.float32,))
    if state_indices is not None:
        checks.check_dtype("state_indices", state_indices, (torch.int32,))

    checks.check_dims("q", q, "[B, H, K]")
    checks.check_dims("v", v, "[B, HV, V]")
    checks.check_dims("state", state, "[N, HV, K, V]")
    b, heads, k_dim = q.shape
    value_heads, v_dim = v.shape[1:]
    checks.check_range("H (q.shape[1])", heads, 1)
    checks.check_range("K (q.shape[2])", k_dim, MIN_WIDTH, MAX_WIDTH)
    checks.check_range("HV (v.shape[1])", value_heads, 1)
    checks.check_range("V (v.shape[2])", v_dim, MIN_WIDTH, MAX_WIDTH)
    if value_heads % heads:
        raise ValueError(
            f"HV (v.shape[1]): got {value_heads}, allowed: multiples of H = {heads} (q.shape[1])"
        )
    count = state.shape[0] if state_indices is not None else b
    for name, shape, axes in (
        ("k", (b, heads, k_dim), "[B, H, K]"),
        ("v", (b, value_heads, v_dim), "[B, HV, V]"),
        ("g", (b, value_heads, k_dim), "[B, HV, K]"),
        ("beta", (b, value_heads), "[B, HV]"),
        ("state", (count, value_heads, k_dim, v_dim), "[N, HV, K, V]"),
        ("state_indices", (b,), "[B]"),
        ("A_log", (value_heads,), "[HV]"),
        ("dt_bias", (value_heads * k_dim,), "[HV * K]"),
    ):
        if name in tensors:
            checks.check_shape(name, tensors[name], shape, axes)
    if state_indices is not None and b:
        checks.check_range("N (state.shape[0])", count, 1, 2**31 - 1)
    for name, tensor in tensors.items():
        checks.check_same_device(name, tensor, q.device, "q")
    if not _dense_heads(state):
        if inplace_final_state:
            raise ValueError(
                f"state: got strides {list(state.stride())}, allowed with "
                f"inplace_final_state=True: [HV * K * V or more, K * V, V, 1] = "
                f"[{value_heads * k_dim * v_dim} or more, {k_dim * v_dim}, {v_dim}, 1]"
            )
        state = state.contiguous()

    problem = plan.Problem(
        B=b,
        H=heads,
        HV=value_heads,
        K=k_dim,
        V=v_dim,
        N=count,
        dtype=_DTYPES[q.dtype],
        gate=_gate(use_gate_in_kernel, lower_bound),
        has_A_log=A_log is not None,
        has_dt_bias=dt_bias is not None,
        l2norm=use_qk_l2norm_in_kernel,
        beta_logits=use_beta_sigmoid_in_kernel,
        doubled=allow_neg_eigval,
        indexed=state_indices is not None,
    )
    inputs = Inputs(
        q=_rows(q),
        k=_rows(k),
        v=_rows(v),
        g=_rows(g),
        beta=beta.resolve_neg(),
        state=state if inplace_final_state else state.resolve_neg(),
        state_indices=None if state_indices is None else state_indices.contiguous(),
        A_log=None if A_log is None else A_log.resolve_neg().contiguous(),
        dt_bias=None if dt_bias is None else dt_bias.resolve_neg().contiguous(),
        scale=k_dim**-0.5 if scale is None else float(scale),
        lower_bound=None if lower_bound is None else float(lower_bound),
    )
    return problem, inputs


def check_indices(indices: Sequence[int], count: int, in_place: bool) -> None:
    """Raises ValueError for an index beyond the pool and, in place, for one that stands twice.

    Only where values can be read without waiting for a device.
    """
    seen: dict[int, int] = {}
    for b, index in enumerate(indices):
        if index >= count:
            raise ValueError(
                f"state_indices[{b}]: got {index}, allowed: below N = {count}, or negative"
            )
        if index >= 0 and in_place and index in seen:
            raise ValueError(
                f"state_indices[{b}]: got {index}, which state_indices[{seen[index]}] is too, "
                "allowed with inplace_final_state=True: each state once"
            )
        seen[index] = b


def _gate(use_gate_in_kernel: bool, lower_bound: float | None) -> int:
    if not use_gate_in_kernel:
        return plan.GIVEN
    return plan.SOFTPLUS if lower_bound is None else plan.BOUNDED


def _check_gate(use_gate_in_kernel: bool, A_log, dt_bias, lower_bound) -> None:
    if not use_gate_in_kernel:
        for name, value in (("A_log", A_log), ("dt_bias", dt_bias), ("lower_bound", lower_bound)):
            if value is not None:
                raise ValueError(
                    f"{name}: got {type(value).__name__}, "
                    "allowed: None with use_gate_in_kernel=False"
                )
    elif lower_bound is None:
        if A_log is None:
            raise ValueError(
                "A_log: got None, allowed: a tensor with use_gate_in_kernel=True and no lower_bound"
            )
    elif not LEAST_LOWER_BOUND <= lower_bound < 0:
        raise ValueError(f"lower_bound: got {lower_bound}, allowed: a number in [-5, 0)")


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.resolve_neg()  # a view that torch negates when it is read; a kernel would not
    if tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        return tensor.contiguous()
    return tensor


def _dense_heads(state: torch.Tensor) -> bool:
    """Whether each state lies as in a contiguous tensor, and no two on one another."""
    n, heads, k_dim, v_dim = state.shape
    dense = (heads * k_dim * v_dim, k_dim * v_dim, v_dim, 1)
    inner = zip(state.shape[1:], state.stride()[1:], dense[1:], strict=True)
    return all(size == 1 or stride == of for size, stride, of in inner) and (
        n == 1 or state.stride(0) >= dense[0]
    )
