"""mamba3_siso_fwd_kernel: check the arguments, plan, launch."""

import functools

import torch

from ops.common import backend as backend_lib
from ops.common import launch as launch_lib
from ops.mamba3_siso_fwd import contract, kernel
from ops.mamba3_siso_fwd import plan as plan_lib
from ops.mamba3_siso_fwd import problem as problem_lib


def mamba3_siso_fwd_kernel(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    adt: torch.Tensor,
    dt: torch.Tensor,
    trap: torch.Tensor,
    q_bias: torch.Tensor,
    k_bias: torch.Tensor,
    angles: torch.Tensor,
    d: torch.Tensor | None = None,
    z: torch.Tensor | None = None,
    chunk_size: int = 64,
) -> torch.Tensor:
    """Mamba-3 SISO forward pass: dense, zero initial state, output only.

    With q' = q + q_bias and k' = k + k_bias of the head's group, R(t) the rotation of the
    interleaved pairs (2i, 2i + 1), i < A, by angles[t], and lambda = sigmoid(trap), per (batch,
    head):

        h_t = e^adt_t h_{t-1} + (1 - lambda_t) dt_t e^adt_t v_{t-1} (R k')_{t-1}^T + lambda_t dt_t
        v_t (R k')_t^T out_t = (h_t (R q')_t + d v_t) * z_t sigmoid(z_t)

    (Mamba-3's trapezoidal discretisation; see README.md of this folder for the chunked form that is
    computed.)

    Args:
        q, k: [B, S, Hq, K], float16 or bfloat16, 4 <= K <= 256.
        v: [B, S, H, V], dtype of q, H a multiple of Hq; output head h reads q/k head h // (H //
            Hq).
        adt: [B, H, S], float32, A * dt, the log of the decay; usually <= 0, positive values are
            exact, -inf is a full reset.
        dt: [B, H, S], float32, any sign.
        trap: [B, H, S], float32, a logit.
        q_bias, k_bias: [H, K], any floating-point dtype.
        angles: [B, S, H, A], float32, radians, already accumulated; A even, 0 <= A <= K // 2;
            accurate for |angle| <= 25735 (2^13 pi).
        d: [H], float32, weight of the skip connection; None is 0.
        z: [B, S, H, V], dtype of q, gate; None leaves the output ungated.
        chunk_size: 32 or 64. It bounds the tile that the kernel works on; results differ only by
            rounding.

    Returns:
        [B, S, H, V], dtype of q, contiguous. Empty when B or S is 0. Gradients are not recorded.

    Raises:
        TypeError, ValueError: an argument violates the above; the message names it, what it got and
            what is allowed.
        RuntimeError: CPU tensors without TRITON_INTERPRET=1.
        NotImplementedError: a device or an NPU architecture without an implementation.
    """
    problem, inputs = contract.check(
        q, k, v, adt, dt, trap, q_bias, k_bias, angles, d, z, chunk_size
    )
    out = torch.empty(problem.B, problem.S, problem.H, problem.V, dtype=v.dtype, device=v.device)
    if problem.empty:
        return out
    backend = backend_lib.backend_of(q)
    with backend_lib.device_guard(q):
        plan = _plan(problem, backend, backend_lib.core_count(backend))
        target = torch.empty_like(out, dtype=torch.float32) if plan.stage_output else out
        make_launch(problem, inputs, target, backend, plan).run()
    if plan.stage_output:
        out.copy_(target)
    return out


def make_launch(
    problem: problem_lib.Problem,
    inputs: contract.Inputs,
    out: torch.Tensor,
    backend: str,
    plan: plan_lib.Plan,
) -> launch_lib.Launch:
    """The launch that a plan stands for, without launching.

    Tools compile it; the plan's backend need not be present, and the tensors may be on any device.
    """
    strides = problem.strides
    args = {
        "q_ptr": inputs.q,
        "k_ptr": inputs.k,
        "v_ptr": inputs.v,
        "adt_ptr": inputs.adt,
        "dt_ptr": inputs.dt,
        "trap_ptr": inputs.trap,
        "q_bias_ptr": inputs.q_bias,
        "k_bias_ptr": inputs.k_bias,
        "angles_ptr": inputs.angles if problem.A else None,
        "d_ptr": inputs.d,
        "z_ptr": inputs.z,
        "out_ptr": out,
        "S": problem.S,
        "num_tasks": plan.num_tasks,
    }
    for name, (batch, _, head) in (
        ("q", strides.q),
        ("k", strides.k),
        ("v", strides.v),
        ("angles", strides.angles),
        ("z", strides.z),
    ):
        args[f"{name}_stride_b"] = batch
        args[f"{name}_stride_h"] = head
    for name, (batch, head) in (("adt", strides.adt), ("dt", strides.dt), ("trap", strides.trap)):
        args[f"{name}_stride_b"] = batch
        args[f"{name}_stride_h"] = head
    return launch_lib.Launch(
        kernel=kernel.mamba3_siso_fwd,
        backend=backend,
        grid=(plan.programs,),
        args=args,
        constants=plan.constants,
        options=plan.options,
    )


# Callers repeat few shapes: planning once per shape keeps the host's share of a small call low.
_plan = functools.lru_cache(maxsize=1024)(plan_lib.make_plan)
