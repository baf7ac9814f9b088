"""A case's inputs as Torch tensors, each surrounded by guard bands that must not change."""

import hashlib
import math
from collections.abc import Mapping
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
    """

    def __init__(self, case: cases.Case, device: str):
        self.arguments: dict[str, Any] = {}
        self._storages: dict[str, torch.Tensor] = {}
        digest = hashlib.sha256()
        for name, spec in case.tensors.items():
            if spec is None:
                self.arguments[name] = None
                continue
            values = case.sample(name)
            digest.update(name.encode())
            digest.update(np.ascontiguousarray(values).data)
            storage, view = _place(values, spec)
            self._storages[name] = storage.to(device)
            self.arguments[name] = (
                self._storages[name]
                .view(view.dtype)
                .as_strided(view.shape, view.stride(), view.storage_offset())
            )
        self.arguments.update(case.attributes)
        self.digest = digest.hexdigest()
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


def meta(case: cases.Case) -> dict[str, Any]:
    """The arguments of one call with the case's shapes, strides and dtypes, but without memory."""
    arguments: dict[str, Any] = {}
    for name, spec in case.tensors.items():
        if spec is None:
            arguments[name] = None
            continue
        strides, cells, offset = _strides(spec.shape, spec.layout)
        storage = torch.empty(cells, dtype=getattr(torch, spec.dtype), device="meta")
        arguments[name] = storage.as_strided(spec.shape, strides, offset)
    return arguments | dict(case.attributes)


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
