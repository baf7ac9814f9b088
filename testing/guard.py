"""Allocations with poison inside and guard bands around, for any op, without the op's help.

Inside `GuardedAllocations` every uninitialised tensor that Torch creates (torch.empty and its
relatives) is filled with a byte pattern and lies between two bands of the same pattern. A kernel
that reads what it has not written meets the poison; a kernel that writes past its output changes a
band.
"""

from typing import Any

import torch
from torch.utils import _python_dispatch, _pytree

from testing import inputs

# 0xff.. is NaN in every floating type; 0x7b.. is finite and large in all: 6e4 in float16, 1.3e36 in
# bfloat16 and float32. Results that differ between the two depend on memory that nobody wrote.
NAN_POISON = 0xFF
HUGE_POISON = 0x7B

_UNINITIALISED = (
    torch.ops.aten.empty.memory_format,
    torch.ops.aten.empty_like.default,
    torch.ops.aten.empty_strided.default,
    torch.ops.aten.new_empty.default,
    torch.ops.aten.new_empty_strided.default,
)


class GuardedAllocations(_python_dispatch.TorchDispatchMode):
    """Context manager. After it, `broken_bands()` and the counters tell what happened.

    allocations, allocated_bytes: number and bytes of all tensors with storage of their own that
    Torch created inside, results included, bands not.
    """

    def __init__(self, poison: int = NAN_POISON):
        super().__init__()
        self.allocated_bytes = 0
        self.allocations = 0
        self._poison = poison
        self._blocks: list[tuple[torch.Tensor, int]] = []
        # Kept alive, so that no address is used twice and counted once.
        self._seen: dict[int, torch.UntypedStorage] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        del types
        kwargs = kwargs or {}
        for value in _pytree.tree_leaves((args, kwargs)):
            self._know(value)
        if func in _UNINITIALISED:
            result = self._allocate(func, args, kwargs)
        else:
            result = func(*args, **kwargs)
        for value in _pytree.tree_leaves(result):
            self._count(value)
        return result

    def _allocate(self, func: Any, args: Any, kwargs: dict[str, Any]) -> torch.Tensor:
        device = kwargs.get("device") or (
            args[0].device if isinstance(args[0], torch.Tensor) else "cpu"
        )
        wanted = func(*args, **{**kwargs, "device": "meta"})
        cells = (
            1
            + sum(
                (size - 1) * stride
                for size, stride in zip(wanted.shape, wanted.stride(), strict=True)
            )
            if wanted.numel()
            else 0
        )
        size = cells * wanted.itemsize
        # Whole bands after the tensor too, so that the storage can be viewed in the wanted dtype.
        block = torch.full(
            (2 * inputs.BAND + -(-size // 8) * 8,), self._poison, dtype=torch.uint8, device=device
        )
        self._blocks.append((block, size))
        tensor = block.view(wanted.dtype).as_strided(
            wanted.shape, wanted.stride(), inputs.BAND // wanted.itemsize
        )
        self._seen[block.untyped_storage().data_ptr()] = block.untyped_storage()
        self._add(size)
        return tensor

    def _know(self, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            storage = value.untyped_storage()
            self._seen.setdefault(storage.data_ptr(), storage)

    def _count(self, value: Any) -> None:
        if not isinstance(value, torch.Tensor):
            return
        storage = value.untyped_storage()
        if storage.data_ptr() not in self._seen:
            self._seen[storage.data_ptr()] = storage
            self._add(storage.nbytes())

    def _add(self, size: int) -> None:
        self.allocated_bytes += size
        self.allocations += 1

    def broken_bands(self) -> int:
        """How many of the guarded tensors have a band whose bytes changed."""
        broken = 0
        for block, size in self._blocks:
            intact = torch.all(block[: inputs.BAND] == self._poison) and torch.all(
                block[inputs.BAND + size :] == self._poison
            )
            broken += not intact
        return broken
