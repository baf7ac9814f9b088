"""mamba3_siso_fwd_kernel: check the arguments, plan, launch; the op's entry in torch.library."""

import functools
import threading
from collections.abc import Sequence
from typing import Any

import torch

from ops.common import backend as backend_lib
from ops.common import calls, checks
from ops.common import launch as launch_lib
from ops.mamba3_siso_fwd import contract, gated, kernel, segments
from ops.mamba3_siso_fwd import plan as plan_lib
from ops.mamba3_siso_fwd import problem as problem_lib

_KERNELS = {
    plan_lib.FORWARD: kernel.mamba3_siso_fwd,
    plan_lib.STATES: segments.segment_states,
    plan_lib.SCAN: segments.segment_scan,
    plan_lib.GATES: gated.gates,
    plan_lib.GATED_STATES: gated.gated_states,
    plan_lib.GATED_TILES: gated.gated_tiles,
}


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
        [B, S, H, V], dtype of q, contiguous. Empty when B or S is 0.

    Raises:
        TypeError, ValueError: an argument violates the above; the message names it, what it got and
            what is allowed.
        RuntimeError: CPU tensors without TRITON_INTERPRET=1.
        NotImplementedError: a device or an NPU architecture without an implementation; an argument
            requires a gradient and gradients are enabled, or has a tangent (no derivative yet).
    """
    tensors = (q, k, v, adt, dt, trap, q_bias, k_bias, angles, d, z)
    checks.check_no_tangents(
        "mamba3_siso_fwd_kernel", dict(zip(contract.ARGUMENTS, tensors, strict=True))
    )
    if backend_lib.pretending() or launch_lib.watched():
        # Tensors on `meta` stand for a device's while pretending; torch's dispatcher would only see
        # `meta`. And it would hide from who watches launches what is allocated inside the op.
        contract.check_types(*tensors, chunk_size)
        return _forward(*tensors, chunk_size)
    if torch.compiler.is_compiling() or not (
        type(q) is type(v) is torch.Tensor and type(chunk_size) is int
    ):
        contract.check_types(*tensors, chunk_size)
        return torch.ops.ascend_ops.mamba3_siso_fwd.default(*tensors, chunk_size)

    found = _calls.find(chunk_size, tensors)
    if found is not None:
        prepared, addresses = found
        with backend_lib.device_guard(q):
            return prepared.run(addresses)
    contract.check_types(*tensors, chunk_size)
    _local.made = None
    out = torch.ops.ascend_ops.mamba3_siso_fwd.default(*tensors, chunk_size)
    if _local.made is not None:
        _calls.remember(chunk_size, tensors, _Prepared(_local.made, tensors, out))
        _local.made = None
    return out


def explain(*args, **kwargs) -> str:
    """The plan of a call with these arguments, in words; nothing is launched."""
    names = (*contract.ARGUMENTS, "chunk_size")
    arguments: dict[str, Any] = {"d": None, "z": None, "chunk_size": 64}
    arguments |= dict(zip(names, args, strict=False)) | kwargs
    problem, inputs = contract.check(**arguments)
    if problem.empty:
        return "empty: nothing is launched"
    with backend_lib.device_guard(inputs.q):
        return _plan_for(problem, backend_lib.backend_of(inputs.q)).explain()


def _forward(
    q, k, v, adt, dt, trap, q_bias, k_bias, angles, d=None, z=None, chunk_size=64
) -> torch.Tensor:
    tensors = (q, k, v, adt, dt, trap, q_bias, k_bias, angles, d, z)
    _refuse_gradients(tensors)
    problem, inputs = contract.check(*tensors, chunk_size)
    out = torch.empty(problem.B, problem.S, problem.H, problem.V, dtype=v.dtype, device=v.device)
    if problem.empty:
        return out
    backend = backend_lib.backend_of(q)
    with backend_lib.device_guard(q):
        plan = _plan_for(problem, backend)
        target = torch.empty_like(out, dtype=torch.float32) if plan.stage_output else out
        launches = make_launches(problem, inputs, target, backend, plan)
        compiled = [launch.run() for launch in launches]
    if plan.stage_output:
        return out.copy_(target)
    if _calls.may_remember(tensors, inputs.in_order()):
        _local.made = plan, launches, compiled
    return out


def _refuse_gradients(tensors: Sequence[torch.Tensor | None]) -> None:
    if not torch.is_grad_enabled():
        return
    for i, tensor in enumerate(tensors):
        if tensor is not None and tensor.requires_grad:
            raise NotImplementedError(
                f"{contract.ARGUMENTS[i]}: got a tensor that requires a gradient, but "
                "mamba3_siso_fwd has no backward yet; allowed: tensors after detach(), or a call "
                "under torch.no_grad()"
            )


# What _forward leaves for the public function to remember: plan, launches, compiled kernels.
_Made = tuple[plan_lib.Plan, Sequence[launch_lib.Launch], Sequence[Any]]


class _Prepared:
    """What is left of a call that was made, for one like it: its launches.

    It saves checks, torch's dispatcher, plan and Triton's search for the kernels: README.md has the
    host time with and without, on a GPU.
    """

    def __init__(
        self,
        made: _Made,
        tensors: Sequence[torch.Tensor | None],
        out: torch.Tensor,
    ):
        plan, launches, compiled = made
        self._shape, self._dtype, self._device = out.shape, out.dtype, out.device
        self._workspace_bytes = plan.workspace_bytes
        # As _workspace lays it out: where states, decays, units and gates begin.
        self._offsets = [4 * plan.gates]
        self._offsets.append(self._offsets[-1] + 4 * plan.slots * plan.state)
        self._offsets += (self._offsets[-1] + 4 * plan.slots, 0)
        self._launches = []
        present = [i for i, tensor in enumerate(tensors) if tensor is not None]
        names = [f"{contract.ARGUMENTS[i]}_ptr" for i in present]
        names += [f"{name}_ptr" for name in ("out", *_WORKSPACE)]
        for launch, kernel_ in zip(launches, compiled, strict=True):
            given = [name for name in names if launch.args.get(name) is not None]
            order = [names.index(name) for name in given]
            self._launches.append((launch_lib.Repeated(launch, kernel_, given), order))

    def run(self, addresses: list[int]) -> torch.Tensor:
        """Launches on the current device."""
        out = torch.empty(self._shape, dtype=self._dtype, device=self._device)
        addresses.append(out.data_ptr())
        if self._workspace_bytes:
            # Freed when this returns; the allocator keeps its order.
            whole = torch.empty(self._workspace_bytes, dtype=torch.int8, device=self._device)
            addresses += [whole.data_ptr() + offset for offset in self._offsets]
        for launch, order in self._launches:
            launch.run(addresses, order)
        return out


_calls: calls.Calls[_Prepared] = calls.Calls()
_local = threading.local()  # made: what _forward made for the public function to remember


def make_launches(
    problem: problem_lib.Problem,
    inputs: contract.Inputs,
    out: torch.Tensor,
    backend: str,
    plan: plan_lib.Plan,
) -> list[launch_lib.Launch]:
    """The launches that a plan stands for, without launching; allocates their workspace.

    Tools compile them; the plan's backend need not be present, and the tensors may be on any
    device.
    """
    workspace = _workspace(problem, plan, out.device)
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
        **{f"{name}_ptr": value for name, value in zip(_WORKSPACE, workspace, strict=True)},
        "S": problem.S,
        "num_segments": plan.segments,
        "num_slots": plan.segments - 1,
        "segment": plan.segment,
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
    launches = []
    for each in plan.kernels:
        function = _KERNELS[each.kernel]
        own = args | {"num_tasks": each.num_tasks}
        if plan.slots:
            own["heads"] = plan.slots // (problem.B * (plan.segments - 1))
        launches.append(
            launch_lib.Launch(
                kernel=function,
                backend=backend,
                grid=(each.programs,),
                args={name: own[name] for name in function.arg_names if name in own},
                constants=each.constants,
                options=each.options,
            )
        )
    return launches


_WORKSPACE = ("states", "decays", "units", "gates")


def _workspace(
    problem: problem_lib.Problem, plan: plan_lib.Plan, device: torch.device
) -> tuple[torch.Tensor | None, ...]:
    """What the kernels leave each other: states of a split sequence, with their decays and, for
    fp16, units; and gates, which begin at a multiple of 32 bytes."""
    if not plan.workspace_bytes:
        return (None,) * len(_WORKSPACE)
    whole = torch.empty(plan.workspace_bytes // 4, dtype=torch.float32, device=device)
    gates = whole[: plan.gates] if plan.gates else None
    if not plan.slots:
        return None, None, None, gates
    states, decays, units = whole[plan.gates :].split(
        (plan.slots * plan.state, plan.slots, plan.slots)
    )
    return states, decays, units if problem.dtype == problem_lib.FLOAT16 else None, gates


# Callers repeat few shapes: planning once per shape keeps the host's share of a small call low.
_plan = functools.lru_cache(maxsize=1024)(plan_lib.make_plan)


def _plan_for(problem: problem_lib.Problem, backend: str) -> plan_lib.Plan:
    return _plan(problem, backend, backend_lib.device_cores(backend), backend_lib.program_limit())


def _fake(
    q, k, v, adt, dt, trap, q_bias, k_bias, angles, d=None, z=None, chunk_size=64
) -> torch.Tensor:
    """Shape, dtype and errors without a computation: torch.compile, FakeTensor, meta tensors."""
    tensors = (q, k, v, adt, dt, trap, q_bias, k_bias, angles, d, z)
    _refuse_gradients(tensors)
    contract.check(*tensors, chunk_size)
    return torch.empty(v.shape, dtype=v.dtype, device=v.device)


_LIBRARY = torch.library.Library("ascend_ops", "FRAGMENT")
_LIBRARY.define(
    "mamba3_siso_fwd(Tensor q, Tensor k, Tensor v, Tensor adt, Tensor dt, Tensor trap, "
    "Tensor q_bias, Tensor k_bias, Tensor angles, Tensor? d=None, Tensor? z=None, "
    "int chunk_size=64) -> Tensor"
)
for _key in ("CPU", "CUDA", "PrivateUse1"):  # PrivateUse1 is torch_npu's
    _LIBRARY.impl("mamba3_siso_fwd", _forward, _key)
for _key in ("SparseCPU", "SparseCUDA", "SparseCsrCPU", "SparseCsrCUDA"):
    _LIBRARY.impl("mamba3_siso_fwd", _fake, _key)  # raises the contract's error
torch.library.register_fake("ascend_ops::mamba3_siso_fwd", _fake, lib=_LIBRARY)
