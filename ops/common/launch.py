"""Kernel launches, planned as data so that a tool can compile exactly what a call would launch.

Every launch of every op goes through `Launch.run`, where tests and tools can watch it.
"""

import contextlib
import ctypes
import dataclasses
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import triton

from ops.common import backend

# A grid of 65536 programs or more is refused by Ascend's runtime. Persistent grids never come near
# it, so the limit holds everywhere.
MAX_PROGRAMS = 65535

# Versions of Triton whose kernels for GPUs `Repeated` was run with: it calls them their way.
_REPEATABLE = ("3.6.0",)

# Triton's interpreter keeps the running program's number, and the functions that stand in for its
# language, in globals: two threads at once get wrong results.
_interpreter = threading.RLock()

_recordings: list[list["Launch"]] = []


@dataclasses.dataclass(frozen=True)
class Launch:
    """One kernel launch.

    Attributes:
        kernel: the function decorated with triton.jit.
        backend: one of ops.common.backend.BACKENDS.
        grid: programs per axis, 1 to 3 axes, at least 1 and at most 65535 programs in all.
        args: run-time arguments by name: tensors, integers, floats (fp32 in the kernel), booleans,
            or None for an absent tensor.
        constants: tl.constexpr arguments by name.
        options: compiler options by name, such as num_warps on CUDA.
    """

    kernel: Any
    backend: str
    grid: tuple[int, ...]
    args: Mapping[str, torch.Tensor | int | float | None]
    constants: Mapping[str, int | bool]
    options: Mapping[str, int]

    @property
    def name(self) -> str:
        return self.kernel.__name__

    @property
    def programs(self) -> int:
        count = 1
        for axis in self.grid:
            count *= axis
        return count

    def signature(self) -> dict[str, str]:
        """Triton's type of each run-time argument, such as '*fp16' or 'i32'.

        Absent tensors are left out: Triton makes them constants.

        Raises:
            ValueError: an argument that has no such type.
        """
        return {
            name: _triton_type(name, value)
            for name, value in self.args.items()
            if value is not None
        }

    def run(self) -> Any:
        """Launches the kernel, asynchronously where the device works that way.

        Inside `backend.pretend` it is recorded, and goes to what was given there as `run`, if
        anything; not to a device.

        Returns:
            The compiled kernel, for `Repeated`; None inside `backend.pretend`.

        Raises:
            ValueError: an empty grid or one above MAX_PROGRAMS, or a tensor with PyTorch's negative
                bit, which a kernel would read with the wrong sign.
        """
        if not 1 <= len(self.grid) <= 3 or not 0 < self.programs <= MAX_PROGRAMS:
            raise ValueError(
                f"grid of {self.name}: got {self.grid}, "
                f"allowed: 1 to 3 axes, 1 to {MAX_PROGRAMS} programs in all"
            )
        for name, value in self.args.items():
            if isinstance(value, torch.Tensor) and value.is_neg():
                raise ValueError(
                    f"{name} of {self.name}: got a view with PyTorch's negative bit, "
                    "allowed: tensors after resolve_neg()"
                )
        for recording in _recordings:
            recording.append(self)
        if backend.run_pretended(self):
            return None
        if self.backend != backend.CPU_REFERENCE:
            return self.kernel[self.grid](**self.args, **self.constants, **self.options)
        args = {name: _base_only(value) for name, value in self.args.items()}
        with _interpreter:
            self.kernel[self.grid](**args, **self.constants, **self.options)
        return _Interpreted(self)


class Repeated:
    """A launch made again and again with other tensors, without Triton's search for the kernel.

    That search takes longer than a small kernel runs (about 60 us for 50 arguments). The caller
    promises what it would have found: same types, constants, options and integers, and tensors
    whose addresses are multiples of 16 where the first ones' were. No tensor is kept alive.
    """

    def __init__(self, launch: Launch, compiled: Any, names: Sequence[str]):
        """compiled: what launch.run() returned. names: of tensors whose addresses run() gets."""
        arguments = {**launch.args, **launch.constants}
        self._values = [arguments[name] for name in launch.kernel.arg_names]
        self._positions = [launch.kernel.arg_names.index(name) for name in names]
        for position in self._positions:
            self._values[position] = None
        self._start = compiled[(*launch.grid, 1, 1)[:3]]

    def run(self, addresses: Sequence[int], order: Sequence[int]) -> None:
        """Launches on the current device; the i-th named tensor is at addresses[order[i]]."""
        values = self._values.copy()
        for position, index in zip(self._positions, order, strict=True):
            values[position] = addresses[index]
        self._start(*values)


class _Interpreted:
    """Stands for a compiled kernel where there is none: compiled[grid](*values), pointers as
    addresses. So the interpreter runs a repeated call as a GPU does."""

    def __init__(self, launch: Launch):
        self._kernel, self._options = launch.kernel, launch.options
        self._pointers = {
            name: value.dtype
            for name, value in launch.args.items()
            if isinstance(value, torch.Tensor)
        }

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def start(*values: Any) -> None:
            args = dict(zip(self._kernel.arg_names, values, strict=True))
            for name, dtype in self._pointers.items():
                memory = (ctypes.c_char * dtype.itemsize).from_address(args[name])
                args[name] = torch.frombuffer(memory, dtype=dtype)
            with _interpreter:
                self._kernel[grid](**args, **self._options)

        return start


def watched() -> bool:
    """Whether the caller is inside `record`."""
    return bool(_recordings)


def repeatable(tensor: torch.Tensor | None) -> bool:
    """Whether `Repeated` works for kernels on this tensor, and nobody watches launches."""
    if _recordings or backend.pretending() or backend.program_limit() is not None:
        return False
    kind = None if tensor is None else tensor.device.type
    return kind == "cpu" or (kind == "cuda" and triton.__version__ in _REPEATABLE)


@contextlib.contextmanager
def record() -> Iterator[list[Launch]]:
    """Collects the launches made inside the block, in order."""
    launches: list[Launch] = []
    _recordings.append(launches)
    try:
        yield launches
    finally:
        # By identity: two recordings with equal contents are different recordings.
        _recordings[:] = [other for other in _recordings if other is not launches]


def _base_only(value):
    # After a launch the interpreter copies each argument onto itself: that costs time, and raises
    # for an expanded tensor (stride 0). A one-element view has the same address and type, which is
    # all that the kernel sees.
    if isinstance(value, torch.Tensor):
        return value.detach().as_strided((1,), (1,))
    return value


_TRITON_TYPES = {
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.float32: "*fp32",
    torch.bool: "*i1",
    torch.int8: "*i8",
    torch.uint8: "*u8",
    torch.int16: "*i16",
    torch.int32: "*i32",
    torch.int64: "*i64",
}


def _triton_type(name: str, value: torch.Tensor | float) -> str:
    if isinstance(value, torch.Tensor):
        if value.dtype not in _TRITON_TYPES:
            raise ValueError(
                f"{name}: got dtype {value.dtype}, allowed: {', '.join(map(str, _TRITON_TYPES))}"
            )
        return _TRITON_TYPES[value.dtype]
    if isinstance(value, bool):
        return "i1"
    if isinstance(value, float):
        return "fp32"
    if not isinstance(value, int):
        raise ValueError(
            f"{name}: got a {type(value).__name__}, allowed: a tensor, int, float, bool or None"
        )
    if not -(2**63) <= value < 2**64:
        raise ValueError(f"{name}: got {value}, allowed: -2^63 to 2^64-1")
    if value >= 2**63:
        return "u64"
    return "i32" if -(2**31) <= value < 2**31 else "i64"
