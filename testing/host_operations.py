"""What a function asks PyTorch to compute beside the kernels that it launches itself.

Each such operation is a launch of its own on a device, and moves memory. `counted` runs on `meta`
tensors as well.
"""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

TRANSPOSE = "transpose"  # a copy with another order of axes in memory
CAST = "cast"
COPY = "copy"
FILL = "fill"
OTHER = "other"
KINDS = (TRANSPOSE, CAST, COPY, FILL, OTHER)

_COPIES = ("clone", "copy_", "contiguous", "_to_copy")
_FILLS = ("zero_", "fill_", "zeros", "zeros_like", "new_zeros", "ones", "full", "new_full")
# Neither views nor empty memory are work. Views are recognised by their schema.
_NOTHING = ("empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "detach")


@dataclasses.dataclass(frozen=True)
class Operation:
    """One operation.

    name: as PyTorch calls it. kind: one of KINDS. shape: of its first result. bytes: of the tensors
    that it reads and writes, each once.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    bytes: int


class _Counter(TorchDispatchMode):
    def __init__(self, found: list[Operation]):
        super().__init__()
        self._found = found

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        results = _tensors(result)
        if name not in _NOTHING and not func.is_view and results:
            inputs = _tensors((args, kwargs))
            moved = {id(tensor): tensor for tensor in (*inputs, *results)}
            if name in _FILLS:
                moved = {id(tensor): tensor for tensor in results}
            size = sum(tensor.numel() * tensor.itemsize for tensor in moved.values())
            shape = tuple(results[0].shape)
            self._found.append(Operation(name, _kind(name, inputs, results[0]), shape, size))
        return result


def _kind(name: str, inputs: list[torch.Tensor], result: torch.Tensor) -> str:
    if name in _FILLS:
        return FILL
    if name not in _COPIES:
        return OTHER
    source = inputs[-1]  # copy_ has the target first
    if source.dtype != result.dtype:
        return CAST
    return COPY if _order(source) == _order(result) else TRANSPOSE


def _order(tensor: torch.Tensor) -> list[int]:
    """Axes from the outermost to the innermost in memory, without those of one element."""
    axes = [axis for axis in range(tensor.ndim) if tensor.shape[axis] > 1]
    strides = tensor.stride()
    return sorted(axes, key=lambda axis: -strides[axis])


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in _pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


@contextlib.contextmanager
def counted() -> Iterator[list[Operation]]:
    """Collects the operations inside the block, in order."""
    found: list[Operation] = []
    with _Counter(found):
        yield found
