"""L2 normalisation of q and k, and its gradient, both in one launch: y = x r with r = (sum x^2 +
1e-6)^-1/2, and dx = r (dy - y sum dy y)."""

import functools
from typing import Any

import torch
import triton
import triton.language as tl

from ops.chunk_kda import dispatch
from ops.chunk_kda.plan_types import ceil_div, check_tasks, next_power_of_two
from ops.chunk_kda.tile import load_tile, store_tile
from ops.common import backend as backend_lib
from ops.common import checks, replay
from ops.common import launch as launch_lib

OP = "chunk_kda_l2norm"

EPSILON = tl.constexpr(1e-6)
_ROWS = 32  # of a task
_LEAST_BLOCK = 32  # columns of a tile: arch35's compiler (1.2.0) crashes on 16


@triton.jit
def _normalise(x_ptr, y_ptr, rstd_ptr, at, row, rows, lane_t, lane_k, H, K, STRIDE_T: tl.constexpr):
    x = load_tile(x_ptr + at, rows, lane_t, lane_k, K, STRIDE_T).to(tl.float32)
    rstd = 1.0 / tl.sqrt(tl.sum(x * x, 1) + EPSILON)
    store_tile(y_ptr + row * K, x * rstd[:, None], rows, lane_t, lane_k, K, H * K)
    tl.store(rstd_ptr + row + lane_t * H, rstd, mask=lane_t < rows)


@triton.jit(do_not_specialize=["T", "num_tasks"])
def l2norm(
    q_ptr,
    k_ptr,
    q_out_ptr,
    k_out_ptr,
    q_rstd_ptr,
    k_rstd_ptr,
    T,
    num_tasks,
    q_stride_b,
    q_stride_h,
    k_stride_b,
    k_stride_h,
    H: tl.constexpr,
    K: tl.constexpr,
    Q_STRIDE_T: tl.constexpr,
    K_STRIDE_T: tl.constexpr,
    BLOCK_K: tl.constexpr,
    ROWS: tl.constexpr,
):
    """q_out, k_out [B, T, H, K], q_rstd, k_rstd [B, T, H]. Task: (batch, ROWS tokens, head), of
    both."""
    lane_t = tl.arange(0, ROWS)
    lane_k = tl.arange(0, BLOCK_K)
    parts = tl.cdiv(T, ROWS)
    for task in range(tl.program_id(0), num_tasks, tl.num_programs(0)):
        h = tl.cast(task % H, tl.int64)
        b = tl.cast(task // H // parts, tl.int64)
        first = tl.cast((task // H) % parts, tl.int64) * ROWS
        rows = tl.minimum(T - first, ROWS).to(tl.int32)
        row = (b * T + first) * H + h
        at = b * q_stride_b + first * Q_STRIDE_T + h * q_stride_h
        _normalise(q_ptr, q_out_ptr, q_rstd_ptr, at, row, rows, lane_t, lane_k, H, K, Q_STRIDE_T)
        at = b * k_stride_b + first * K_STRIDE_T + h * k_stride_h
        _normalise(k_ptr, k_out_ptr, k_rstd_ptr, at, row, rows, lane_t, lane_k, H, K, K_STRIDE_T)


@triton.jit
def _gradient(y_ptr, dy_ptr, rstd_ptr, dx_ptr, lane_r, lane_k, count, K):
    mask = (lane_r < count)[:, None] & (lane_k < K)[None, :]
    at = lane_r.to(tl.int64)[:, None] * K + lane_k[None, :]
    y = tl.load(y_ptr + at, mask=mask, other=0.0).to(tl.float32)
    dy = tl.load(dy_ptr + at, mask=mask, other=0.0).to(tl.float32)
    rstd = tl.load(rstd_ptr + lane_r, mask=lane_r < count, other=0.0)
    # Rows behind the last sequence may be anything, and 0 * NaN is NaN.
    without = tl.sum(tl.abs(dy), 1) == 0.0
    y = tl.where(without[:, None], 0.0, y)
    rstd = tl.where(without, 0.0, rstd)
    dx = rstd[:, None] * (dy - y * tl.sum(dy * y, 1)[:, None])
    tl.store(dx_ptr + at, dx.to(dx_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["count", "num_tasks"])
def l2norm_backward(
    q_ptr,
    k_ptr,
    q_rstd_ptr,
    k_rstd_ptr,
    dq_ptr,
    dk_ptr,
    dq_out_ptr,
    dk_out_ptr,
    count,
    num_tasks,
    K: tl.constexpr,
    BLOCK_K: tl.constexpr,
    ROWS: tl.constexpr,
):
    """From normalised q, k [count, K] and their gradients. Task: ROWS rows of both."""
    lane_k = tl.arange(0, BLOCK_K)
    for task in range(tl.program_id(0), num_tasks, tl.num_programs(0)):
        lane_r = task * ROWS + tl.arange(0, ROWS)
        _gradient(q_ptr, dq_ptr, q_rstd_ptr, dq_out_ptr, lane_r, lane_k, count, K)
        _gradient(k_ptr, dk_ptr, k_rstd_ptr, dk_out_ptr, lane_r, lane_k, count, K)


def check_tensors(q: Any, k: Any) -> None:
    """What the kernels need: q and k alike. What chunk_kda needs beside it is checked there."""
    for name, tensor in (("q", q), ("k", k)):
        checks.check_tensor(name, tensor)
        checks.check_strided(name, tensor)
    checks.check_dtype("q", q, (torch.float16, torch.bfloat16, torch.float32))
    checks.check_dtype_of("k", k, "q", q.dtype)
    checks.check_dims("q", q, "[B, T, H, K]")
    checks.check_shape("k", k, q.shape, "[B, T, H, K]")
    checks.check_same_device("k", k, q.device, "q")


_NORMS = replay.OneLaunch(("q", "k"))
_GRADIENTS = replay.OneLaunch(("q", "k", "q_rstd", "k_rstd", "dq", "dk"))


def normalised(q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """q and k over their norms, in their dtype, and r of each row [B, T, H], float32."""
    arguments = {"q": q, "k": k}
    found = _NORMS.again(arguments)
    if found is None:
        found = _normalised(arguments)
    names = ("q_out", "k_out")
    return *(found[name].to(q.dtype) for name in names), found["q_rstd"], found["k_rstd"]


def _normalised(arguments: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    check_tensors(**arguments)
    read = {name: x.resolve_neg() for name, x in arguments.items()}
    read = {name: x if x.stride(-1) == 1 else x.contiguous() for name, x in read.items()}
    q = read["q"]
    results = {
        name: torch.empty(q.shape, dtype=_stored(q), device=q.device) for name in ("q_out", "k_out")
    }
    for name in ("q_rstd", "k_rstd"):
        results[name] = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    b, t, h, _ = q.shape
    integers, constants = {"T": t, "num_tasks": b * h * ceil_div(t, _ROWS)}, {"H": h}
    for name, x in read.items():
        integers |= {f"{name}_stride_b": x.stride(0), f"{name}_stride_h": x.stride(2)}
        constants[f"{name.upper()}_STRIDE_T"] = x.stride(1)
    launched = _launch(l2norm, read, results, integers, constants)
    if launched is not None:
        _NORMS.remember(arguments, read, *launched, results)
    return results


def gradients(**arguments: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of what normalised() got, from its results q, k, q_rstd and k_rstd and their gradients dq and
    dk, in q's dtype."""
    found = _GRADIENTS.again(arguments)
    if found is None:
        found = _gradients(arguments)
    dtype = arguments["q"].dtype
    return found["dq_out"].to(dtype), found["dk_out"].to(dtype)


def _gradients(arguments: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    read = {name: x.resolve_neg().contiguous() for name, x in arguments.items()}
    q = read["q"]
    results = {
        name: torch.empty(q.shape, dtype=_stored(q), device=q.device)
        for name in ("dq_out", "dk_out")
    }
    count = q.numel() // max(q.shape[3], 1)
    integers = {"count": count, "num_tasks": ceil_div(count, _ROWS)}
    launched = _launch(l2norm_backward, read, results, integers, {})
    if launched is not None:
        _GRADIENTS.remember(arguments, read, *launched, results)
    return results


def _stored(q: torch.Tensor) -> torch.dtype:
    # The interpreter truncates where it should round to bf16; torch rounds then.
    half = q.dtype == torch.bfloat16 and backend_lib.backend_of(q) == backend_lib.CPU_REFERENCE
    return torch.float32 if half else q.dtype


def _launch(
    kernel: Any,
    read: dict[str, torch.Tensor],
    results: dict[str, torch.Tensor],
    integers: dict[str, int],
    constants: dict[str, int],
) -> tuple[launch_lib.Launch, Any] | None:
    """The launch, by the kernel's names, and what its run() returned; None without any row."""
    q, tasks = read["q"], integers["num_tasks"]
    if q.numel() == 0:
        return None
    check_tasks(kernel.__name__, tasks)
    backend = backend_lib.backend_of(q)
    width = q.shape[3]
    with backend_lib.device_guard(q):
        launch = launch_lib.Launch(
            kernel=kernel,
            backend=backend,
            grid=(min(tasks, backend_lib.core_count(backend)),),
            args={
                **{f"{name}_ptr": x for name, x in (read | results).items()},
                **integers,
            },
            constants={
                **constants,
                "K": width,
                "BLOCK_K": max(_LEAST_BLOCK, next_power_of_two(width)),
                "ROWS": _ROWS,
            },
            options={"num_warps": 4, "num_stages": 1} if backend == backend_lib.CUDA else {},
        )
        return launch, launch.run()


_BACKWARD = f"{OP}_backward"


def _fake(q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, ...]:
    check_tensors(q, k)
    of_rows = functools.partial(q.new_empty, q.shape[:3], dtype=torch.float32)
    return q.new_empty(q.shape), q.new_empty(q.shape), of_rows(), of_rows()


def _backward_op(**arguments: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    checks.check_no_gradients(_BACKWARD, arguments.items())
    return gradients(**arguments)


def _backward_fake(q: torch.Tensor, **_: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return q.new_empty(q.shape), q.new_empty(q.shape)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    del inputs
    ctx.mark_non_differentiable(*output[2:])
    ctx.save_for_backward(*output)


def _backward(ctx: Any, dq: torch.Tensor, dk: torch.Tensor, *_: Any) -> tuple[torch.Tensor, ...]:
    checks.check_first_derivative(OP)
    return torch.ops.ascend_ops.chunk_kda_l2norm_backward.default(*ctx.saved_tensors, dq, dk)


dispatch.register(
    _BACKWARD,
    dict.fromkeys(("q", "k", "q_rstd", "k_rstd", "dq", "dk"), "Tensor"),
    ("dq_in", "dk_in"),
    _backward_op,
    _backward_fake,
)
dispatch.register(
    OP,
    dict.fromkeys(("q", "k"), "Tensor"),
    ("q_out", "k_out", "q_rstd", "k_rstd"),
    normalised,
    _fake,
    (_setup, _backward),
)
