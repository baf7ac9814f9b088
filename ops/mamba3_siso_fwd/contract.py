"""The argument contract of mamba3_siso_fwd_kernel, and the copies that its layout rules need."""

import dataclasses

import torch

from ops.common import checks
from ops.mamba3_siso_fwd import problem as problem_lib

ARGUMENTS = ("q", "k", "v", "adt", "dt", "trap", "q_bias", "k_bias", "angles", "d", "z")
CHUNK_SIZES = (32, 64)
MIN_K = 4  # the least with a rotation; arch35's compiler (1.2.0) rejects 1 and 2
MAX_K = 256  # the two fp32 state halves, [K / 2, V tile] each, live on chip
_DTYPES = {torch.float16: problem_lib.FLOAT16, torch.bfloat16: problem_lib.BFLOAT16}
_BIAS_DTYPES = (torch.float16, torch.bfloat16, torch.float32)  # what the kernel converts itself


@dataclasses.dataclass(frozen=True)
class Inputs:
    """The tensors that a launch reads: last axes with stride 1, biases in a dtype it converts."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    adt: torch.Tensor
    dt: torch.Tensor
    trap: torch.Tensor
    q_bias: torch.Tensor
    k_bias: torch.Tensor
    angles: torch.Tensor
    d: torch.Tensor | None
    z: torch.Tensor | None

    def in_order(self) -> tuple[torch.Tensor | None, ...]:
        """As ARGUMENTS names them."""
        return tuple(getattr(self, name) for name in ARGUMENTS)


def check_types(q, k, v, adt, dt, trap, q_bias, k_bias, angles, d, z, chunk_size) -> None:
    """Raises what torch's dispatcher would say less clearly: a wrong type or chunk_size."""
    checks.check_choice("chunk_size", chunk_size, CHUNK_SIZES)
    for name, value in zip(
        ARGUMENTS, (q, k, v, adt, dt, trap, q_bias, k_bias, angles, d, z), strict=True
    ):
        if value is not None or name not in ("d", "z"):
            checks.check_tensor(name, value)


def check(
    q, k, v, adt, dt, trap, q_bias, k_bias, angles, d, z, chunk_size
) -> tuple[problem_lib.Problem, Inputs]:
    """Checks a call's arguments and returns what the plan and the launch need.

    Raises:
        TypeError: an argument is no tensor, has another dtype or layout, or chunk_size is no int.
        ValueError: a shape, a device or a number is out of range.
    """
    check_types(q, k, v, adt, dt, trap, q_bias, k_bias, angles, d, z, chunk_size)
    tensors = {
        "q": q,
        "k": k,
        "v": v,
        "adt": adt,
        "dt": dt,
        "trap": trap,
        "q_bias": q_bias,
        "k_bias": k_bias,
        "angles": angles,
    }
    if d is not None:
        tensors["d"] = d
    if z is not None:
        tensors["z"] = z
    for name, tensor in tensors.items():
        checks.check_strided(name, tensor)
    _check_dtypes(tensors)

    checks.check_dims("q", q, "[B, S, Hq, K]")
    checks.check_dims("v", v, "[B, S, H, V]")
    checks.check_dims("angles", angles, "[B, S, H, A]")
    b, s, hq, k_dim = q.shape
    heads, v_dim = v.shape[2:]
    pairs = angles.shape[3]
    checks.check_range("Hq (q.shape[2])", hq, 1)
    checks.check_range("K (q.shape[3])", k_dim, MIN_K, MAX_K)
    checks.check_range("H (v.shape[2])", heads, 1)
    checks.check_range("V (v.shape[3])", v_dim, 1)
    if heads % hq:
        raise ValueError(
            f"H (v.shape[2]): got {heads}, allowed: multiples of Hq = {hq} (q.shape[2])"
        )
    if pairs % 2 or pairs > k_dim // 2:
        raise ValueError(
            f"A (angles.shape[3]): got {pairs}, "
            f"allowed: even numbers from 0 to K // 2 = {k_dim // 2}"
        )
    checks.check_shape("k", k, q.shape, "[B, S, Hq, K]")
    checks.check_shape("v", v, (b, s, heads, v_dim), "[B, S, H, V]")
    for name in ("adt", "dt", "trap"):
        checks.check_shape(name, tensors[name], (b, heads, s), "[B, H, S]")
    for name in ("q_bias", "k_bias"):
        checks.check_shape(name, tensors[name], (heads, k_dim), "[H, K]")
    checks.check_shape("angles", angles, (b, s, heads, pairs), "[B, S, H, A]")
    if d is not None:
        checks.check_shape("d", d, (heads,), "[H]")
    if z is not None:
        checks.check_shape("z", z, (b, s, heads, v_dim), "[B, S, H, V]")
    for name, tensor in tensors.items():
        checks.check_same_device(name, tensor, q.device, "q")

    inputs = Inputs(
        q=_rows(q),
        k=_rows(k),
        v=_rows(v),
        adt=_rows(adt),
        dt=_rows(dt),
        trap=_rows(trap),
        q_bias=_bias(q_bias),
        k_bias=_bias(k_bias),
        angles=_rows(angles),
        d=None if d is None else d.resolve_neg(),
        z=None if z is None else _rows(z),
    )
    problem = problem_lib.Problem(
        B=b,
        S=s,
        HQ=hq,
        H=heads,
        K=k_dim,
        V=v_dim,
        A=pairs,
        dtype=_DTYPES[q.dtype],
        has_d=d is not None,
        has_z=z is not None,
        chunk_size=chunk_size,
        strides=_strides(inputs),
    )
    return problem, inputs


def _check_dtypes(tensors: dict[str, torch.Tensor]) -> None:
    checks.check_dtype("q", tensors["q"], tuple(_DTYPES))
    for name in ("k", "v", "z"):
        if name in tensors and tensors[name].dtype != tensors["q"].dtype:
            raise TypeError(
                f"{name}: got dtype {tensors[name].dtype}, "
                f"allowed: {tensors['q'].dtype}, the dtype of q"
            )
    for name in ("adt", "dt", "trap", "angles", "d"):
        if name in tensors:
            checks.check_dtype(name, tensors[name], (torch.float32,))
    for name in ("q_bias", "k_bias"):
        checks.check_floating(name, tensors[name])


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.resolve_neg()  # a view that torch negates when it is read; a kernel would not
    # The devices read rows; a stride inside the row costs less as one copy here than as scattered
    # reads in the kernel.
    if tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        return tensor.contiguous()
    return tensor


def _bias(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype not in _BIAS_DTYPES:
        tensor = tensor.to(torch.float32)
    return _rows(tensor)


def _strides(inputs: Inputs) -> problem_lib.Strides:
    def token_rows(tensor: torch.Tensor | None) -> tuple[int, int, int]:  # [B, S, heads, columns]
        if tensor is None or tensor.shape[3] == 0:
            return 0, 0, 0
        b, s, heads, columns = tensor.shape
        return (
            tensor.stride(0) if b > 1 else 0,
            tensor.stride(1) if s > 1 else heads * columns,
            tensor.stride(2) if heads > 1 else columns,
        )

    def gates(tensor: torch.Tensor) -> tuple[int, int]:  # [B, H, S]
        b, heads, s = tensor.shape
        return tensor.stride(0) if b > 1 else 0, tensor.stride(1) if heads > 1 else s

    def per_head(tensor: torch.Tensor | None) -> int:  # [H, ...]
        if tensor is None:
            return 0
        return tensor.stride(0) if tensor.shape[0] > 1 else tensor.numel()

    return problem_lib.Strides(
        q=token_rows(inputs.q),
        k=token_rows(inputs.k),
        v=token_rows(inputs.v),
        angles=token_rows(inputs.angles),
        z=token_rows(inputs.z),
        adt=gates(inputs.adt),
        dt=gates(inputs.dt),
        trap=gates(inputs.trap),
        q_bias=per_head(inputs.q_bias),
        k_bias=per_head(inputs.k_bias),
        d=per_head(inputs.d),
    )
