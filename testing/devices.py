"""The devices that ops are tested on: detection, synchronisation, timers and memory counters.

This is the only module that knows how a device is driven; `devices.bzl` is the only table of their
names in Bazel. A device that was asked for and is not there raises DeviceNotFoundError with what
was looked for: nothing falls back to another one.
"""

import abc
import contextlib
import importlib
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:  # they import Triton
    from testing import cases, spec
    from testing.npu_sim import executor


class DeviceNotFoundError(RuntimeError):
    """The requested device is not on this machine."""


class Session(Protocol):
    """Some calls of one op with the same arguments, which are judged together."""

    def calling(self) -> contextlib.AbstractContextManager[None]:
        """Where the op has to be called; one call for each block."""

    def simulation(self) -> "executor.Simulation | None":
        """What a simulator saw of the calls so far; None from other devices."""


class _Direct:
    """A session of a device that tensors lead to by themselves."""

    def calling(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def simulation(self) -> None:
        return None


class Device(abc.ABC):
    """One device. Nothing is imported or looked for before `require`."""

    # True when times and memory of this device say something about an accelerator.
    is_accelerator = True
    # The name under which Torch knows it.
    torch_device: str

    def __init__(self, name: str):
        self.name = name

    @property
    def case_tags(self) -> tuple[str, ...]:
        """The tags of the cases that the device can bear: an interpreter gets the small ones."""
        return ("ci", "full") if self.is_accelerator else ("ci",)

    def leaves_out(self, op: "spec.OpSpec", case: "cases.Case") -> str:
        """Why a case with such a tag is too much for the device; empty when it is not."""
        del op, case
        return ""

    def session(self) -> Session:
        """For calls of one op. The device is there."""
        return _Direct()

    def prepare(self) -> None:
        """Sets what must be set before Triton is first imported."""
        if os.environ.get("TRITON_INTERPRET") == "1":
            raise DeviceNotFoundError(
                f"device {self.name}: TRITON_INTERPRET=1 is set: Triton runs on the CPU; unset it"
            )

    @abc.abstractmethod
    def require(self) -> None:
        """Raises DeviceNotFoundError unless the device is there and of the right kind."""

    @abc.abstractmethod
    def describe(self) -> str:
        """The device's own name, for reports."""

    @abc.abstractmethod
    def synchronize(self) -> None:
        """Waits until all submitted work is done."""


class Interpreter(Device):
    """Triton's interpreter: the kernel's source, operation by operation, with NumPy."""

    is_accelerator = False
    torch_device = "cpu"

    def prepare(self) -> None:
        if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
            raise DeviceNotFoundError(
                f"device {self.name}: Triton was imported before TRITON_INTERPRET=1 was set; "
                "set it in the environment"
            )
        os.environ["TRITON_INTERPRET"] = "1"

    def require(self) -> None:
        try:
            importlib.import_module("triton")
        except ImportError as error:
            raise DeviceNotFoundError(
                f"device {self.name}: looked for the package triton: {error}"
            ) from error

    def synchronize(self) -> None:
        pass  # a call returns when its result is there

    def describe(self) -> str:
        return f"Triton {importlib.import_module('triton').__version__} interpreter"


class Simulator(Device):
    """The code that Ascend's compiler makes of a kernel, executed on the CPU: testing/npu_sim."""

    is_accelerator = False
    torch_device = "cpu"

    # A case beyond this many floating-point operations, as its op's spec counts them, is left out:
    # it would take more than about half a minute (mamba3_siso_fwd: 2.6e7 take 7 s on one core).
    MAX_FLOPS = 1e8

    def __init__(self, name: str):
        super().__init__(name)
        self._folders: list[str] = []
        self.modules: Any = None  # compiled.Modules, once it was required

    @property
    def architecture(self) -> str:
        """As testing/npu_compile/chips.py calls it."""
        return self.name.removeprefix("npu-").removesuffix("-sim")

    def leaves_out(self, op: "spec.OpSpec", case: "cases.Case") -> str:
        from testing import cases

        if case not in cases.for_ascend(op.cases):
            return "not tagged npu"
        costs = op.costs(case)
        flops = costs.matrix_flops + costs.vector_flops
        if flops <= self.MAX_FLOPS:
            return ""
        return f"{flops:.2g} floating-point operations; {self.name} takes {self.MAX_FLOPS:.2g}"

    def use_compiled(self, folder: str) -> None:
        """Takes modules from the folder of a compile target, beside what is compiled on the
        spot."""
        self._folders.append(folder)
        if self.modules is not None:
            self.modules.add(folder)

    def require(self) -> None:
        try:
            from testing.npu_compile import chips
            from testing.npu_sim import compiled
        except ImportError as error:
            raise DeviceNotFoundError(
                f"device {self.name}: looked for the packages triton-ascend and ml_dtypes, and for "
                f"testing.npu_sim: {error}"
            ) from error
        self.modules = compiled.Modules(chips.architecture(self.architecture), self._folders)

    def session(self) -> Session:
        from testing.npu_sim import executor

        return executor.Executor(self.modules)

    def synchronize(self) -> None:
        pass  # a call returns when its result is there

    def describe(self) -> str:
        return f"{self.modules.chip}, simulated: testing/npu_sim"


class Accelerator(Device):
    """A device that Torch drives through a module with torch.cuda's interface (torch.cuda itself,
    torch_npu's torch.npu).

    Nothing here but `require` and `_module` tells the two apart.
    """

    # Larger than the last-level cache of the devices here (60 MB on an H200, 192 MiB on an Ascend
    # 910B).
    _FLUSH_BYTES = 512 << 20

    @abc.abstractmethod
    def _module(self) -> Any:
        """torch.cuda or torch.npu."""

    def describe(self) -> str:
        return self._module().get_device_name(0)

    def synchronize(self) -> None:
        self._module().synchronize()

    def peak_bytes(self, call: Callable[[], Any]) -> int:
        """Device bytes at the peak of one call beyond what was allocated before it, its results
        included."""
        module = self._module()
        module.synchronize()
        before = module.memory_allocated()
        module.reset_peak_memory_stats()
        result = call()
        module.synchronize()
        peak = module.max_memory_allocated() - before
        del result
        return peak

    def time_ms(
        self, candidates: Mapping[str, Callable[[], Any]], repeats: int
    ) -> dict[str, list[float]]:
        """Device milliseconds of each candidate, `repeats` samples each, taken in turn, with a cold
        last-level cache.

        Writing the flush buffer also keeps the device busy while the host submits the call, so that
        launch latency is not timed: the buffer is written as often as the host's own submission
        time needs.
        """
        import torch

        module = self._module()
        buffer = torch.empty(self._FLUSH_BYTES, dtype=torch.int8, device=self.torch_device)
        flushes = self._flushes_per_call(candidates, buffer)
        times: dict[str, list[float]] = {name: [] for name in candidates}
        for _ in range(repeats):
            for name, call in candidates.items():
                start, end = (module.Event(enable_timing=True) for _ in range(2))
                for _ in range(flushes[name]):
                    buffer.zero_()
                start.record()
                call()
                end.record()
                module.synchronize()
                times[name].append(start.elapsed_time(end))
        return times

    def _flushes_per_call(
        self, candidates: Mapping[str, Callable[[], Any]], buffer: Any
    ) -> dict[str, int]:
        for _ in range(3):  # compiles, fills caches, and lets clocks rise
            for call in candidates.values():
                call()
        flush_ms = self._wall_ms(buffer.zero_, wait=True)
        # Three times the host's time and 0.3 ms: with half of that, calls of 10 us were now and
        # then submitted too late and timed at up to 40 us (H200).
        return {
            name: 1 + int((0.3 + 3 * self._wall_ms(call)) / flush_ms)
            for name, call in candidates.items()
        }

    def host_ms(self, call: Callable[[], Any]) -> float:
        """Median host milliseconds to submit one call."""
        return self._wall_ms(call)

    def _wall_ms(self, call: Callable[[], Any], wait: bool = False) -> float:
        samples = []
        for _ in range(11):
            self.synchronize()
            start = time.perf_counter()
            call()
            if wait:
                self.synchronize()
            samples.append(1e3 * (time.perf_counter() - start))
        return statistics.median(samples)


class Cuda(Accelerator):
    """Triton on an NVIDIA GPU."""

    torch_device = "cuda"

    def _module(self) -> Any:
        import torch

        return torch.cuda

    def require(self) -> None:
        import torch

        if not torch.cuda.is_available():
            raise DeviceNotFoundError(
                f"device {self.name}: Torch {torch.__version__} sees no NVIDIA GPU "
                "(torch.cuda.is_available() needs a CUDA build of Torch, a driver, a visible GPU)"
            )


class Npu(Accelerator):
    """Triton on an Ascend NPU of one architecture; the chip's own name decides which that is.

    Not run yet: nobody on the project has an NPU. Its detection is tested with a stand-in.
    """

    torch_device = "npu"

    def _module(self) -> Any:
        import torch

        return torch.npu

    def require(self) -> None:
        if not os.environ.get("ASCEND_HOME_PATH"):
            raise DeviceNotFoundError(
                f"device {self.name}: ASCEND_HOME_PATH is not set; source CANN's set_env.sh first"
            )
        try:
            importlib.import_module("torch_npu")
        except ImportError as error:
            raise DeviceNotFoundError(
                f"device {self.name}: torch_npu does not import: {error}"
            ) from error
        if not self._module().is_available():
            raise DeviceNotFoundError(
                f"device {self.name}: torch.npu.is_available() is false: the driver shows no NPU"
            )
        from ops.common import backend

        chip = self.describe()
        found = backend.architecture(chip)
        if found != self.name:
            raise DeviceNotFoundError(f"device {self.name}: this machine's {chip} is {found}")


_DEVICES: dict[str, Callable[[str], Device]] = {
    "cpu-reference": Interpreter,
    "npu-arch32-sim": Simulator,
    "npu-arch35-sim": Simulator,
    "npu-arch32": Npu,
    "npu-arch35": Npu,
    "cuda": Cuda,
}

NAMES = tuple(_DEVICES)


def get(name: str) -> Device:
    """The device of that name, not looked for yet."""
    if name not in _DEVICES:
        raise ValueError(f"device: got {name!r}, allowed are {', '.join(NAMES)}")
    return _DEVICES[name](name)


def require(name: str) -> Device:
    """The device of that name, prepared and found; raises DeviceNotFoundError otherwise.

    Call it before Triton, or anything that imports it, is imported.
    """
    device = get(name)
    device.prepare()
    device.require()
    return device


def best() -> str:
    """The name of the best device present: an NPU, else a GPU, else the interpreter."""
    for name in ("npu-arch35", "npu-arch32", "cuda"):
        device = get(name)
        with contextlib.suppress(DeviceNotFoundError, NotImplementedError):
            device.prepare()
            device.require()
            return name
    return "cpu-reference"
