"""Which backend a tensor's kernels run on, and how many programs a persistent grid has there.

A backend's name is the device name used everywhere in this repository: `cpu-reference` (Triton's
interpreter), `npu-arch32`, `npu-arch35` (Huawei Ascend, by the chip's name) and `cuda`.
"""

import contextlib
import dataclasses
import functools
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
import triton

CPU_REFERENCE = "cpu-reference"
NPU_ARCH32 = "npu-arch32"
NPU_ARCH35 = "npu-arch35"
CUDA = "cuda"
BACKENDS = (CPU_REFERENCE, NPU_ARCH32, NPU_ARCH35, CUDA)

# Chip names as torch_npu reports them: 910B1..910B4 and 910_93xx ("A2", "A3"); 950xx and its
# compiler name 910_95xx ("A5").
_ARCHITECTURES = (
    (re.compile(r"Ascend910(B\d|_93\d\d)", re.IGNORECASE), NPU_ARCH32),
    (re.compile(r"Ascend(950|910_95\d\d)", re.IGNORECASE), NPU_ARCH35),
)

_program_limit: int | None = None


@dataclasses.dataclass(frozen=True)
class _Pretence:
    """What holds inside `pretend`."""

    backend: str
    cores: int
    run: Callable[[Any], None] | None


_pretended: _Pretence | None = None


@triton.jit
def _probe():
    pass


# Triton decides at decoration time whether a kernel is interpreted, so the environment at a later
# time says nothing.
INTERPRETED = type(_probe).__name__ == "InterpretedFunction"


def architecture(chip_name: str) -> str:
    """The backend of an Ascend chip, e.g. `Ascend910B2` -> `npu-arch32`.

    Raises:
        NotImplementedError: no kernel is written for this chip.
    """
    for pattern, name in _ARCHITECTURES:
        if pattern.match(chip_name):
            return name
    raise NotImplementedError(
        f"no kernel is implemented for the NPU {chip_name!r}; implemented are "
        f"{NPU_ARCH32} (Ascend910B*, Ascend910_93*) and {NPU_ARCH35} (Ascend950*, Ascend910_95*)"
    )


def backend_of(tensor: torch.Tensor) -> str:
    """The name of the backend that runs kernels on this tensor.

    Raises:
        RuntimeError: a CPU tensor without Triton's interpreter, or a device tensor with it.
        NotImplementedError: a device, or an NPU architecture, without an implementation.
    """
    kind = tensor.device.type
    if _pretended is not None:
        if kind not in ("cpu", "meta"):
            raise RuntimeError(
                f"tensors are on {tensor.device}, but inside backend.pretend nothing is launched "
                "there; allowed: cpu, meta"
            )
        return _pretended.backend
    if kind == "cpu":
        if not INTERPRETED:
            raise RuntimeError(
                "CPU tensors run only in Triton's interpreter: set TRITON_INTERPRET=1 before "
                "triton is imported, or pass tensors that are on an NPU or a CUDA device"
            )
        return CPU_REFERENCE
    if kind not in ("npu", "cuda"):
        raise NotImplementedError(
            f"no kernel is implemented for tensors on {tensor.device}; allowed: cpu, npu, cuda"
        )
    if INTERPRETED:
        raise RuntimeError(
            "TRITON_INTERPRET=1 was set when triton was imported, so kernels run on the CPU, but "
            f"the tensors are on {tensor.device}: unset it, or pass CPU tensors"
        )
    if kind == "cuda":
        return CUDA
    return architecture(torch.npu.get_device_name(tensor.device))


def device_guard(tensor: torch.Tensor) -> contextlib.AbstractContextManager[object]:
    """Makes the tensor's device the current one, which is where Triton launches kernels."""
    device = tensor.device
    if device.type == "cpu" or _pretended is not None:
        return contextlib.nullcontext()
    module = getattr(torch, device.type)
    if module.current_device() == device.index:
        return contextlib.nullcontext()
    return module.device(device)


def program_limit() -> int | None:
    """What `limit_programs` caps grids at; None outside it."""
    return _program_limit


def device_cores(name: str) -> int:
    """`core_count` without the cap: what a plan's choices may depend on.

    Another cap must not change a result's bits, so it may change nothing but grids.
    """
    if _pretended is not None and _pretended.backend == name:
        return _pretended.cores
    return _core_count(name)


def core_count(name: str) -> int:
    """Programs that a persistent grid should have on a backend; `limit_programs` caps it.

    NPU: the cube cores; each brings two vector cores. CUDA: 8 per multiprocessor, more than are
    resident at once, so that none idles whatever a program's size. cpu-reference: 4, so that the
    interpreter too walks several tasks per program.
    """
    count = device_cores(name)
    return count if _program_limit is None else min(count, _program_limit)


def _core_count(name: str) -> int:
    if name == CPU_REFERENCE:
        return 4
    if name == CUDA:
        return _cuda_core_count(torch.cuda.current_device())
    if name in (NPU_ARCH32, NPU_ARCH35):
        return _npu_core_count(torch.npu.current_device())
    raise ValueError(f"backend: got {name!r}, allowed: {', '.join(BACKENDS)}")


@functools.cache
def _cuda_core_count(device: int) -> int:
    return 8 * torch.cuda.get_device_properties(device).multi_processor_count


@functools.cache
def _npu_core_count(device: int) -> int:
    properties = triton.runtime.driver.active.utils.get_device_properties(device)
    return int(properties["num_aicore"])


@contextlib.contextmanager
def limit_programs(count: int) -> Iterator[None]:
    """Caps core_count() inside the block: another launch grid must not change a result's bits."""
    global _program_limit
    if count < 1:
        raise ValueError(f"count: got {count}, allowed: 1 or more")
    previous, _program_limit = _program_limit, count
    try:
        yield
    finally:
        _program_limit = previous


@contextlib.contextmanager
def pretend(name: str, cores: int, run: Callable[[Any], None] | None = None) -> Iterator[None]:
    """Inside the block, calls plan for the backend `name` with `cores` cores and launch nothing.

    An op's public function then takes tensors on `meta` (shapes and strides without memory) or on
    the CPU, checks, dispatches and plans as it would on that backend; `launch.record` sees the
    launches, results are uninitialised. Tools compile what production would launch this way.

    Args:
        name: one of BACKENDS.
        cores: what core_count() says of it, 1 or more.
        run: gets each `launch.Launch` instead of the backend, in order, and fills its outputs: a
            simulator. None: nothing does.
    """
    global _pretended
    if name not in BACKENDS:
        raise ValueError(f"backend: got {name!r}, allowed: {', '.join(BACKENDS)}")
    if cores < 1:
        raise ValueError(f"cores: got {cores}, allowed: 1 or more")
    previous, _pretended = _pretended, _Pretence(name, cores, run)
    try:
        yield
    finally:
        _pretended = previous


def pretending() -> bool:
    """Whether the caller is inside `pretend`."""
    return _pretended is not None


def run_pretended(launch: Any) -> bool:
    """Whether the caller is inside `pretend`, which then has taken care of the launch."""
    if _pretended is None:
        return False
    if _pretended.run is not None:
        _pretended.run(launch)
    return True
