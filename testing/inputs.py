"""A case's inputs as Torch tensors, each surrounded by guard bands that must not change."""

import hashlib
import math
from collections.abc import Callable, Mapping
from concurrent import futures
from typing import Any

import numpy as np
import torch

from testing import cases

# Bytes before and after each tensor. 512 keeps the alignment that an accelerator's allocator gives.
BAND = 512


class Inputs:
    """The arguments of one call of the op.

    arguments: keyword -> tensor, None or attribute. digest: sha256 over all quantised values, in
    the table's order.

    An op whose inputs depend on each other has a preparation: it takes the case's tensors and
    attributes as keywords and returns the arguments of the call, computed in float64 and rounded
    once to the dtypes that the op takes. A tensor that is one of the case's, or a view of one, is
    passed on as it lies; a new one becomes contiguous, with guard bands of its own. The preparation
    runs once, before the op and its references, which therefore get the same bits. `ci` cases are
    prepared on the CPU, as those of the goldens in a folder were, others on the device, where it is
    fast. The digest covers what is drawn, which is the same on every machine. What is computed may
    differ in the last bit of float64 between processors, so about one fp32 value in 2^28 may round
    the other way: the golden then changes by 1e-7 of one element, far below every gate.
    """

    def __init__(
        self,
        case: cases.Case,
        device: str,
        prepare: Callable[..., dict[str, Any]] | None = None,
    ):
        self.case = case
        self._storages: dict[str, torch.Tensor] = {}
        drawn: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        digest = hashlib.sha256()
        home = "cpu" if prepare and "ci" in case.tags else device
        given = {name: spec for name, spec in case.tensors.items() if spec is not None}
        with futures.ThreadPoolExecutor() as pool:  # NumPy lets other threads run meanwhile
            samples = pool.map(case.sample, given)
        for (name, spec), values in zip(given.items(), samples, strict=True):
            digest.update(name.encode())
            digest.update(np.ascontiguousarray(values).data)
            drawn[name] = _moved(*_place(values, spec), home)
        self.digest = digest.hexdigest()
        arguments: dict[str, Any] = {
            name: drawn[name][1] if name in drawn else None for name in case.tensors
        }
        arguments.update(case.attributes)
        if prepare:
            arguments = prepare(**arguments)
        of_storage = {
            view.untyped_storage().data_ptr(): storage for storage, view in drawn.values()
        }
        moved: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # id of the first -> both
        for name, value in arguments.items():
            if not isinstance(value, torch.Tensor):
                continue
            storage = of_storage.get(value.untyped_storage().data_ptr())
            if storage is None:
                storage, value = _banded(value)
            if id(storage) not in moved:
                self._storages[name] = storage.to(device)
                moved[id(storage)] = storage, self._storages[name]
            arguments[name] = _view(moved[id(storage)][1], value)
        self.arguments = arguments
        self._before = {name: storage.clone() for name, storage in self._storages.items()}

    def changed(self) -> list[str]:
        """The names of the inputs whose bytes, or whose guard bands, differ from what they were."""
        return [
            name
            for name, storage in self._storages.items()
            if not torch.equal(storage, self._before[name])
        ]

    def widened(self) -> Mapping[str, Any]:
        """The same arguments with every floating tensor in float64, contiguous: what a golden
        function takes."""
        return {
            name: value.double()
            if isinstance(value, torch.Tensor) and value.is_floating_point()
            else value
            for name, value in self.arguments.items()
        }


def meta(case: cases.Case, prepare: Callable[..., dict[str, Any]] | None = None) -> dict[str, Any]:
    """The arguments of one call with the case's shapes, strides and dtypes, but without memory.

    prepare: as for Inputs; from tensors on `meta` it must make tensors on `meta`.
    """
    arguments: dict[str, Any] = {}
    for name, spec in case.tensors.items():
        if spec is None:
            arguments[name] = None
            continue
        strides, cells, offset = _strides(spec.shape, spec.layout)
        storage = torch.empty(cells, dtype=getattr(torch, spec.dtype), device="meta")
        arguments[name] = storage.as_strided(spec.shape, strides, offset)
    arguments |= case.attributes
    return prepare(**arguments) if prepare else arguments


def _place(values: np.ndarray, spec: cases.TensorSpec) -> tuple[torch.Tensor, torch.Tensor]:
    """(byte storage with bands and gaps of NaN, the tensor in it) on the CPU."""
    shape = spec.shape
    strides, cells, offset = _strides(shape, spec.layout)
    dtype = getattr(torch, spec.dtype)
    # 0xff everywhere is a NaN in every floating type and -1 in the integers.
    storage = torch.full((2 * BAND + cells * dtype.itemsize,), 0xFF, dtype=torch.uint8)
    first = BAND // dtype.itemsize + offset
    view = storage.view(dtype).as_strided(shape, strides, first)
    view.copy_(to_torch(values, spec.dtype))
    return storage, view


def _banded(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(byte storage with bands, the tensor in it, contiguous) on the tensor's device."""
    size = tensor.numel() * tensor.itemsize
    storage = torch.full((2 * BAND + size,), 0xFF, dtype=torch.uint8, device=tensor.device)
    view = storage.view(tensor.dtype)[BAND // tensor.itemsize :][: tensor.numel()]
    view = view.view(tensor.shape)
    view.copy_(tensor)
    return storage, view


def _view(storage: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The tensor that lies in a copy of its storage as `like` does in its own."""
    return storage.view(like.dtype).as_strided(like.shape, like.stride(), like.storage_offset())


def _moved(
    storage: torch.Tensor, view: torch.Tensor, device: str
) -> tuple[torch.Tensor, torch.Tensor]:
    storage = storage.to(device)
    return storage, _view(storage, view)


def _strides(shape: tuple[int, ...], layout: str) -> tuple[tuple[int, ...], int, int]:
    """(strides, cells of memory, offset of the first element) of a layout, in elements."""

    def dense(extent: tuple[int, ...]) -> list[int]:
        return [math.prod(extent[i + 1 :]) for i in range(len(extent))]

    if layout == "slice":
        # 16 more elements on either side: rows keep the 32-byte alignment that 16-bit rows of a
        # real buffer have.
        wide = (*shape[:-1], shape[-1] + 32)
        return tuple(dense(wide)), math.prod(wide), 16
    if layout == "permuted":
        swapped = (shape[0], shape[2], shape[1], *shape[3:])
        inner = dense(swapped)
        inner[1], inner[2] = inner[2], inner[1]
        return tuple(inner), math.prod(shape), 0
    if layout == "strided":
        wide = (*shape[:-1], 2 * shape[-1])
        return (*dense(wide)[:-1], 2), math.prod(wide), 0
    strides = dense(shape)
    if layout == "odd":
        strides = [
            7 if extent == 1 else stride for extent, stride in zip(shape, strides, strict=True)
        ]
    return tuple(strides), math.prod(shape), 0


def to_torch(values: np.ndarray, dtype: str) -> torch.Tensor:
    """A carrier array (cases.CARRIERS) as a tensor of `dtype`, on the CPU."""
    if dtype == "bfloat16":
        return torch.from_numpy(values.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(values)


def to_numpy(tensor: torch.Tensor) -> tuple[np.ndarray, str]:
    """(carrier array, dtype name) of a tensor, from any device."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    host = tensor.detach().cpu().contiguous()
    if dtype == "bfloat16":
        return host.view(torch.int16).numpy().view(np.uint16), dtype
    return host.numpy(), dtype
