"""The argument contracts of chunk_kda_bwd and chunk_kda_bwd_wy_dqkg_fused, and the copies that
their layout rules need."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

from ops.chunk_kda import problem as problem_lib
from ops.common import checks, chunks

BWD = "chunk_kda_bwd"
WY = "chunk_kda_bwd_wy_dqkg_fused"

CHUNK_SIZES = (32, 64)
# Tiles are padded to a power of two, 16 or more, and masked, so one column is as good as 16; at 256
# a chunk's operands still fit into on-chip memory.
MIN_WIDTH, MAX_WIDTH = 1, 256
# [-5, 0): below -5 the reference implementation's own kernels lose precision.
LEAST_LOWER_BOUND = -5.0
# Kernels count the tokens of a batch row in int32, a chunk at a time.
MAX_TOKENS = 2**31 - max(CHUNK_SIZES)
# They address a chunk's rows in int32 too; rows that lie farther apart are copied. So are rows that
# are one and the same: Ascend's compilers refuse a stride of 0.
MAX_ROW_STRIDE = 2**31 // max(CHUNK_SIZES) - MAX_WIDTH

DTYPES = {
    torch.float16: problem_lib.FLOAT16,
    torch.bfloat16: problem_lib.BFLOAT16,
    torch.float32: problem_lib.FLOAT32,
}
_HALVES = (torch.float16, torch.bfloat16)

# What callers of the reference implementation pass and this one has no other value of.
OPTIONS: Mapping[str, Any] = {
    "state_v_first": False,
    "transpose_state_layout": False,  # an older name of state_v_first
    "cp_context": None,
    "use_graph": False,
    "chunk_offsets": None,
}
# What the forward may have saved. v_new and h are read when nothing is to be recomputed; the others
# are accepted and not read.
SAVED = ("w", "u", "qg", "kg", "v_new", "h")


@dataclasses.dataclass(frozen=True)
class BwdInputs:
    """What launches of chunk_kda_bwd read: token tensors with rows of stride 1, contiguous states,
    everything in a dtype that the kernels convert.

    g: fp32, None when it is to be computed from g_org. v_new, h: None when they are to be computed.
    cu_seqlens: on the host.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    beta: torch.Tensor
    Aqk: torch.Tensor
    Akk: torch.Tensor
    scale: float
    initial_state: torch.Tensor | None
    do: torch.Tensor
    dht: torch.Tensor | None
    g: torch.Tensor | None
    g_org: torch.Tensor | None
    cu_seqlens: tuple[int, ...] | None
    lower_bound: float | None
    A_log: torch.Tensor | None
    dt_bias: torch.Tensor | None
    v_new: torch.Tensor | None
    h: torch.Tensor | None

    def tensors(self) -> dict[str, torch.Tensor]:
        """Those that are given, by name."""
        return tensors_of(self)


@dataclasses.dataclass(frozen=True)
class WyInputs:
    """The same for chunk_kda_bwd_wy_dqkg_fused."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    v_new: torch.Tensor
    g: torch.Tensor
    beta: torch.Tensor
    A: torch.Tensor
    h: torch.Tensor
    do: torch.Tensor
    dh: torch.Tensor
    dv: torch.Tensor
    scale: float
    cu_seqlens: tuple[int, ...] | None

    def tensors(self) -> dict[str, torch.Tensor]:
        """By name."""
        return tensors_of(self)


def tensors_of(inputs: Any) -> dict[str, torch.Tensor]:
    values = {field.name: getattr(inputs, field.name) for field in dataclasses.fields(inputs)}
    return {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}


def check_bwd(
    q,
    k,
    v,
    beta,
    Aqk,
    Akk,
    scale,
    initial_state,
    do,
    dht,
    g=None,
    g_org=None,
    cu_seqlens=None,
    chunk_indices=None,
    chunk_size=64,
    safe_gate=False,
    lower_bound=None,
    use_gate_in_kernel=False,
    A_log=None,
    dt_bias=None,
    disable_recompute=False,
    **saved,
) -> tuple[problem_lib.Problem, BwdInputs]:
    """Checks a call of chunk_kda_bwd and returns what the plan and the launches need.

    The arguments are those of the function; cu_seqlens may also be a Boundaries.

    Raises:
        TypeError: an argument has another type, dtype or layout, or is unknown.
        ValueError: a shape, a device, a number, or a combination is not allowed.
        NotImplementedError: an option of the reference implementation that this one lacks.
    """
    kept = check_bwd_options(
        scale,
        chunk_size,
        safe_gate,
        lower_bound,
        use_gate_in_kernel,
        disable_recompute,
        saved,
    )
    lower_bound = _check_gate(
        g, g_org, A_log, dt_bias, lower_bound, safe_gate, use_gate_in_kernel, disable_recompute
    )
    if use_gate_in_kernel and not disable_recompute:
        g = None  # it is computed anew, as the reference implementation does
    v_new, h = (kept[name] if disable_recompute else None for name in ("v_new", "h"))
    if disable_recompute:
        for name in ("v_new", "h"):
            if kept[name] is None:
                raise ValueError(f"{name}: got None, allowed: a tensor with disable_recompute=True")
    tensors = {"q": q, "k": k, "v": v, "beta": beta, "Aqk": Aqk, "Akk": Akk, "do": do}
    optional = {
        "initial_state": initial_state,
        "dht": dht,
        "g": g,
        "g_org": g_org,
        "A_log": A_log,
        "dt_bias": dt_bias,
        "v_new": v_new,
        "h": h,
    }
    tensors |= {name: value for name, value in optional.items() if value is not None}
    sizes = check_sizes(tensors, cu_seqlens, chunk_indices, chunk_size)
    for name in ("v_new", "h"):
        if name in tensors:
            checks.check_dtype_of(name, tensors[name], "q", q.dtype)
    # A 16-bit do is exact in fp32; the other way round, precision would be lost unasked.
    checks.check_dtype_of("do", do, "q", q.dtype, _HALVES if q.dtype == torch.float32 else ())
    for name in ("Aqk", "Akk"):
        checks.check_dtype_of(name, tensors[name], "q", q.dtype, (torch.float32,))
    for name in ("initial_state", "dht", "A_log", "dt_bias"):
        if name in tensors:
            checks.check_dtype(name, tensors[name], (torch.float32,))
    if g_org is not None:
        checks.check_dtype("g_org", g_org, tuple(DTYPES))

    inputs = BwdInputs(
        q=as_rows(q),
        k=as_rows(k),
        v=as_rows(v),
        beta=as_near_rows(beta.resolve_neg()),
        Aqk=as_rows(Aqk),
        Akk=as_rows(Akk),
        scale=scale_or_default(scale, sizes["K"]),
        initial_state=as_dense(initial_state),
        do=as_rows(do.to(q.dtype)),
        dht=as_dense(dht),
        g=None if g is None else as_rows(g.to(torch.float32)),
        g_org=None if g_org is None else as_rows(g_org),
        cu_seqlens=sizes.pop("cu_seqlens"),
        lower_bound=lower_bound if use_gate_in_kernel else None,
        A_log=as_dense(A_log),
        dt_bias=as_dense(dt_bias),
        v_new=None if v_new is None else as_rows(v_new),
        h=as_dense(h),
    )
    gate = problem_lib.GIVEN
    if use_gate_in_kernel:
        gate = problem_lib.SOFTPLUS if lower_bound is None else problem_lib.BOUNDED
    problem = problem_lib.Problem(
        **sizes,
        dtype=DTYPES[q.dtype],
        Aqk_dtype=DTYPES[Aqk.dtype],
        Akk_dtype=DTYPES[Akk.dtype],
        beta_dtype=DTYPES[beta.dtype],
        gate=gate,
        g_org_dtype="" if g_org is None else DTYPES[g_org.dtype],
        has_A_log=A_log is not None,
        has_dt_bias=dt_bias is not None,
        has_initial_state=initial_state is not None,
        has_dht=dht is not None,
        recompute=not disable_recompute,
        strides=strides_of(inputs),
    )
    return problem, inputs


def check_wy(
    q,
    k,
    v,
    v_new,
    g,
    beta,
    A,
    h,
    do,
    dh,
    dv,
    scale=None,
    cu_seqlens=None,
    chunk_size=64,
    chunk_indices=None,
    **options,
) -> tuple[problem_lib.Problem, WyInputs]:
    """The same for chunk_kda_bwd_wy_dqkg_fused."""
    check_wy_options(scale, chunk_size, options)
    tensors = {
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
    }
    sizes = check_sizes(tensors, cu_seqlens, chunk_indices, chunk_size)
    for name in ("v_new", "h", "do", "dh", "dv"):
        checks.check_dtype_of(name, tensors[name], "q", q.dtype)
    checks.check_dtype_of("A", A, "q", q.dtype, (torch.float32,))
    inputs = WyInputs(
        q=as_rows(q),
        k=as_rows(k),
        v=as_rows(v),
        v_new=as_rows(v_new),
        g=as_rows(g.to(torch.float32)),
        beta=as_near_rows(beta.resolve_neg()),
        A=as_rows(A),
        h=h.resolve_neg().contiguous(),
        do=as_rows(do),
        dh=dh.resolve_neg().contiguous(),
        dv=as_rows(dv),
        scale=scale_or_default(scale, sizes["K"]),
        cu_seqlens=sizes.pop("cu_seqlens"),
    )
    problem = problem_lib.Problem(
        **sizes,
        dtype=DTYPES[q.dtype],
        Aqk_dtype=DTYPES[A.dtype],
        Akk_dtype=DTYPES[A.dtype],
        beta_dtype=DTYPES[beta.dtype],
        recompute=False,
        strides=strides_of(inputs),
    )
    return problem, inputs


def check_bwd_options(
    scale,
    chunk_size,
    safe_gate,
    lower_bound,
    use_gate_in_kernel,
    disable_recompute,
    saved: Mapping[str, Any],
) -> dict[str, Any]:
    """Checks what is no tensor; returns what the forward may have saved, by name."""
    others = {name: value for name, value in saved.items() if name not in SAVED}
    checks.check_options(BWD, others, OPTIONS, also=SAVED)
    checks.check_choice("chunk_size", chunk_size, CHUNK_SIZES)
    for name, flag in (
        ("safe_gate", safe_gate),
        ("use_gate_in_kernel", use_gate_in_kernel),
        ("disable_recompute", disable_recompute),
    ):
        checks.check_bool(name, flag)
    for name, number in (("scale", scale), ("lower_bound", lower_bound)):
        if number is not None:
            checks.check_number(name, number)
    return {name: saved.get(name) for name in SAVED}


def check_wy_options(scale, chunk_size, options: Mapping[str, Any]) -> None:
    """Checks what is no tensor."""
    checks.check_options(WY, options, OPTIONS)
    checks.check_choice("chunk_size", chunk_size, CHUNK_SIZES)
    if scale is not None:
        checks.check_number("scale", scale)


def check_tensors(tensors: Mapping[str, Any]) -> None:
    """Raises TypeError for what is no tensor with strides."""
    for name, value in tensors.items():
        checks.check_tensor(name, value)
        checks.check_strided(name, value)


def _check_gate(
    g, g_org, A_log, dt_bias, lower_bound, safe_gate, use_gate_in_kernel, disable_recompute
) -> float | None:
    """Which of the gate's arguments belong together; returns lower_bound as a float."""
    lower_bound = None if lower_bound is None else float(lower_bound)
    if not use_gate_in_kernel:
        if g is None:
            raise ValueError("g: got None, allowed: a tensor with use_gate_in_kernel=False")
        check_no_gate_formula({"g_org": g_org, "A_log": A_log, "dt_bias": dt_bias})
        # lower_bound and safe_gate then describe gates that the caller computed: nothing to do.
        return lower_bound
    if g_org is None:
        raise ValueError("g_org: got None, allowed: a tensor with use_gate_in_kernel=True")
    if g is None and disable_recompute:
        raise ValueError("g: got None, allowed: a tensor with disable_recompute=True")
    check_gate_formula(A_log, lower_bound, safe_gate)
    return lower_bound


def check_no_gate_formula(arguments: Mapping[str, Any]) -> None:
    """Raises ValueError for an argument of a formula that is not used."""
    for name, value in arguments.items():
        if value is not None:
            raise ValueError(
                f"{name}: got {type(value).__name__}, allowed: None with use_gate_in_kernel=False"
            )


def check_gate_formula(A_log, lower_bound: float | None, safe_gate: bool) -> None:
    """Which of the arguments of the gate's formula belong together."""
    if lower_bound is None:
        if A_log is None:
            raise ValueError(
                "A_log: got None, allowed: a tensor with use_gate_in_kernel=True and no lower_bound"
            )
        if safe_gate:
            raise ValueError(
                "lower_bound: got None, allowed: a number in [-5, 0) with safe_gate=True and "
                "use_gate_in_kernel=True"
            )
    elif not LEAST_LOWER_BOUND <= lower_bound < 0:
        raise ValueError(f"lower_bound: got {lower_bound}, allowed: a number in [-5, 0)")


def check_sizes(
    tensors: Mapping[str, torch.Tensor], cu_seqlens, chunk_indices, chunk_size: int
) -> dict[str, Any]:
    """Types, layouts, shapes and devices of all tensors, and the dtypes that every call shares;
    returns the sizes of a Problem and cu_seqlens on the host."""
    check_tensors(tensors)
    q, v = tensors["q"], tensors["v"]
    checks.check_dtype("q", q, tuple(DTYPES))
    for name in ("k", "v"):
        checks.check_dtype_of(name, tensors[name], "q", q.dtype)
    checks.check_dtype("beta", tensors["beta"], tuple(DTYPES))
    for name in ("g", "gk"):
        if name in tensors:
            checks.check_dtype(name, tensors[name], tuple(DTYPES))

    checks.check_dims("q", q, "[B, T, H, K]")
    checks.check_dims("v", v, "[B, T, HV, V]")
    b, t, heads, k_dim = q.shape
    value_heads, v_dim = v.shape[2:]
    checks.check_range("T (q.shape[1])", t, 0, MAX_TOKENS)
    checks.check_range("H (q.shape[2])", heads, 1)
    checks.check_range("K (q.shape[3])", k_dim, MIN_WIDTH, MAX_WIDTH)
    checks.check_range("HV (v.shape[2])", value_heads, 1)
    checks.check_range("V (v.shape[3])", v_dim, MIN_WIDTH, MAX_WIDTH)
    if value_heads % heads:
        raise ValueError(
            f"HV (v.shape[2]): got {value_heads}, allowed: multiples of H = {heads} (q.shape[2])"
        )
    checks.check_shape("k", tensors["k"], q.shape, "[B, T, H, K]")
    of_value, of_key = (b, t, value_heads, v_dim), (b, t, value_heads, k_dim)
    of_scores = (b, t, value_heads, chunk_size)
    for name, shape, axes in (
        ("v", of_value, "[B, T, HV, V]"),
        ("do", of_value, "[B, T, HV, V]"),
        ("v_new", of_value, "[B, T, HV, V]"),
        ("dv", of_value, "[B, T, HV, V]"),
        ("g", of_key, "[B, T, HV, K]"),
        ("gk", of_key, "[B, T, HV, K]"),
        ("g_org", of_key, "[B, T, HV, K]"),
        ("beta", (b, t, value_heads), "[B, T, HV]"),
        ("Aqk", of_scores, "[B, T, HV, chunk_size]"),
        ("Akk", of_scores, "[B, T, HV, chunk_size]"),
        ("A", of_scores, "[B, T, HV, chunk_size]"),
        ("A_log", (value_heads,), "[HV]"),
        ("dt_bias", (value_heads * k_dim,), "[HV * K]"),
    ):
        if name in tensors:
            checks.check_shape(name, tensors[name], shape, axes)
    for name, tensor in tensors.items():
        checks.check_same_device(name, tensor, q.device, "q")

    bounds = sequences(cu_seqlens, chunk_indices, q, chunk_size)
    num_chunks, count = -(-t // chunk_size), b
    if bounds is not None:
        num_chunks, count = sum(chunks.counts(bounds, chunk_size)), len(bounds) - 1
    for name in ("h", "dh"):
        if name in tensors:
            of_chunk = (b, num_chunks, value_heads, k_dim, v_dim)
            checks.check_shape(name, tensors[name], of_chunk, "[B, NT, HV, K, V]")
    for name in ("initial_state", "dht"):
        if name in tensors:
            of_sequence = (count, value_heads, k_dim, v_dim)
            checks.check_shape(name, tensors[name], of_sequence, "[N, HV, K, V]")
    return {
        "B": b,
        "T": t,
        "H": heads,
        "HV": value_heads,
        "K": k_dim,
        "V": v_dim,
        "C": chunk_size,
        "N": count,
        "NT": num_chunks,
        "packed": bounds is not None,
        "slack": bounds is not None and bounds[-1] < t,
        "cu_seqlens": bounds,
    }


class Boundaries(tuple[int, ...]):
    """The checked values of a cu_seqlens."""


def sequences(cu_seqlens, chunk_indices, q: torch.Tensor, chunk_size: int) -> Boundaries | None:
    """Checks how sequences are packed and reads it; None without cu_seqlens.

    Reading a device's tensor waits for the device, see ops.common.chunks.boundaries.
    """
    if cu_seqlens is None:
        if chunk_indices is not None:
            raise ValueError("chunk_indices: got a tensor, allowed: None without cu_seqlens")
        return None
    if isinstance(cu_seqlens, Boundaries):
        values = cu_seqlens
    else:
        _check_integers("cu_seqlens", cu_seqlens, q)
        checks.check_dims("cu_seqlens", cu_seqlens, "[N + 1]")
        if len(cu_seqlens) < 2:
            raise ValueError(
                f"cu_seqlens: got {len(cu_seqlens)} entries, allowed: 2 or more, [N + 1]"
            )
        values = Boundaries(chunks.boundaries(cu_seqlens))
    if q.shape[0] != 1:
        raise ValueError(f"B (q.shape[0]): got {q.shape[0]}, allowed: 1 with cu_seqlens")
    chunks.check_boundaries(values, q.shape[1])
    if chunk_indices is not None:
        _check_integers("chunk_indices", chunk_indices, q)
        num_chunks = sum(chunks.counts(values, chunk_size))
        axes = "[chunks of cu_seqlens, 2]"
        checks.check_shape("chunk_indices", chunk_indices, (num_chunks, 2), axes)
    return values


def _check_integers(name: str, tensor, q: torch.Tensor) -> None:
    """int32 or int64, where q is or on the CPU."""
    checks.check_tensor(name, tensor)
    checks.check_strided(name, tensor)
    checks.check_dtype(name, tensor, (torch.int32, torch.int64))
    if tensor.is_meta or tensor.device not in (torch.device("cpu"), q.device):
        allowed = " or ".join(dict.fromkeys(("cpu", str(q.device))))
        raise ValueError(f"{name}: got device {tensor.device}, allowed: {allowed}, with values")


def scale_or_default(scale, k_dim: int) -> float:
    return k_dim**-0.5 if scale is None else checks.check_number("scale", scale)


def as_rows(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.resolve_neg()  # a view that torch negates when it is read; a kernel would not
    # The devices read rows; a stride inside the row costs less as one copy here than as scattered
    # reads in the kernel.
    repeated = tensor.shape[1] > 1 and tensor.stride(1) == 0
    if repeated or (tensor.shape[-1] > 1 and tensor.stride(-1) != 1):
        return tensor.contiguous()
    return as_near_rows(tensor)


def as_near_rows(tensor: torch.Tensor) -> torch.Tensor:
    far = tensor.shape[1] > 1 and tensor.stride(1) > MAX_ROW_STRIDE
    return tensor.contiguous() if far else tensor


def as_dense(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else tensor.resolve_neg().contiguous()


def strides_of(inputs: Any) -> problem_lib.Strides:
    found = {}
    for name, tensor in inputs.tensors().items():
        name = "Akk" if name == "A" else name
        if name not in problem_lib.Strides.__dataclass_fields__:
            continue
        b, t, heads = tensor.shape[:3]
        columns = tensor.shape[3] if tensor.dim() == 4 else 1
        found[name] = (
            tensor.stride(0) if b > 1 else 0,
            tensor.stride(1) if t > 1 else heads * columns,
            tensor.stride(2) if heads > 1 else columns,
        )
    return problem_lib.Strides(**found)
