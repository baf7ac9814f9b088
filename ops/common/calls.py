"""Calls that were made before: recognised by their arguments' kinds, without checking them again.

The checks of a call, its plan and Triton's search for its kernels take longer than small kernels
run. They depend on few facts; a call with the same facts as an earlier one need not repeat them.
"""

import operator
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch._C._dynamo import guards

from ops.common import launch

_Made = TypeVar("_Made")
_Tensors = Sequence[torch.Tensor | None]


class Calls(Generic[_Made]):
    """What an op remembers of its calls.

    Two calls are alike if their keys and the grad mode are equal, and their tensors agree in: which
    are absent, Python type, dtype, device, sizes, strides, address modulo 16, and what torch's
    dispatcher looks at (whether a gradient is required, lazy negation, modes, transforms). The key
    holds whatever else checks, plan or launches depend on, see `key`. The tensors' values and
    addresses are no part of it.
    """

    def __init__(self, most: int = 1024):
        """most: calls that are remembered; one more forgets them all."""
        self._most = most
        self._made: dict[Hashable, list[tuple[_Likeness, _Made]]] = {}
        self._count = 0

    def find(self, key: Hashable, tensors: _Tensors) -> tuple[_Made, list[int]] | None:
        """What was remembered of a call like this, and addresses of the tensors that are there."""
        if not launch.repeatable(tensors[0]):
            return None
        for likeness, made in self._made.get(_where(key, tensors), ()):
            addresses = likeness.addresses_of(tensors)
            if addresses is not None:
                return made, addresses
        return None

    def may_remember(self, tensors: _Tensors, read: _Tensors) -> bool:
        """Whether launches may be repeated that read these tensors. What the check of the arguments
        had to copy has other addresses than they, so such a call is made in full each time."""
        return launch.repeatable(tensors[0]) and all(map(operator.is_, tensors, read))

    def remember(self, key: Hashable, tensors: _Tensors, made: _Made) -> None:
        """Keeps `made`, which must hold none of the tensors, for calls like this one.

        Nothing is kept of a call that would not be found: one tensor in two places.
        """
        likeness = _Likeness(tensors)
        if likeness.addresses_of(tensors) is None:
            return
        if self._count >= self._most:
            self._made.clear()
            self._count = 0
        self._made.setdefault(_where(key, tensors), []).append((likeness, made))
        self._count += 1


def key(values: Iterable[Any]) -> tuple[Hashable, ...]:
    """Of a call's arguments that are numbers, flags, None or tuples of integers."""
    # repr tells True from 1, and 0.0 from -0.0, which are equal.
    return tuple([value if isinstance(value, tuple) else repr(value) for value in values])


def _where(key: Hashable, tensors: _Tensors) -> Hashable:
    # Shapes tell absent tensors, and keep lists of calls short. What is no tensor has its type.
    shapes = [getattr(tensor, "shape", type(tensor)) for tensor in tensors]
    return key, torch.is_grad_enabled(), *shapes


class _Likeness:
    """What tensors have to be like, beside their shapes."""

    def __init__(self, tensors: _Tensors):
        present = [tensor for tensor in tensors if tensor is not None]
        # One call compares all but alignments in 2 us; asking 11 tensors one by one takes 16.
        self._guards = guards.TensorGuards(
            *present,
            dynamic_dims_sizes=[list(tensor.shape) for tensor in present],
            dynamic_dims_strides=[list(tensor.stride()) for tensor in present],
        )
        self._alignments = [tensor.data_ptr() & 15 for tensor in present]

    def addresses_of(self, tensors: _Tensors) -> list[int] | None:
        """Of tensors of the same shapes; None where they are not alike."""
        present: list[Any] = [tensor for tensor in tensors if tensor is not None]
        if not self._guards.check(*present):
            return None
        addresses = [tensor.data_ptr() for tensor in present]
        if [address & 15 for address in addresses] != self._alignments:
            return None
        return addresses
