"""The launches of a call, written down to be made again for a call like it (ops.common.calls)."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from ops.common import launch as launch_lib

# Name, shape and dtype of a tensor that kernels write.
Buffer = tuple[str, tuple[int, ...], torch.dtype]


@dataclasses.dataclass(frozen=True)
class _Step:
    """One launch. ended, begun: tensors that are freed and allocated before it. shifted: further
    addresses, each an earlier one by its position and the bytes between them. order: which of all
    addresses the launch gets."""

    ended: Sequence[str]
    begun: Sequence[Buffer]
    shifted: Sequence[tuple[int, int]]
    launch: launch_lib.Repeated
    order: Sequence[int]


class Replay:
    """The launches of one call. Keeps none of its tensors alive."""

    def __init__(self, names: Iterable[str], device: torch.device):
        """names: of the tensors whose addresses run() gets, in this order."""
        self._positions = {name: i for i, name in enumerate(names)}
        self._addresses = len(self._positions)
        self._device = device
        self._steps: list[_Step] = []

    @classmethod
    def of_one(
        cls,
        launch: launch_lib.Launch,
        compiled: Any,
        given: Mapping[str, torch.Tensor],
        results: Mapping[str, torch.Tensor],
        **sources: str,
    ) -> "Replay":
        """Of a call that made one launch.

        Args:
            launch, compiled: the launch and what its run() returned.
            given: the tensors whose addresses run() gets, in this order.
            results: what was allocated and run() returns.
            **sources: which of all these the launch's x_ptr is, if it is not x.
        """
        values = {**given, **results}
        written = cls(given, next(iter(values.values())).device)
        pointers = [name for name, x in launch.args.items() if isinstance(x, torch.Tensor)]
        found = {name: name.removesuffix("_ptr") for name in pointers}
        found |= {f"{name}_ptr": source for name, source in sources.items()}
        begun = [(name, tuple(x.shape), x.dtype) for name, x in results.items()]
        written.add(launch, compiled, values, found, [], begun)
        return written

    def add(
        self,
        launch: launch_lib.Launch,
        compiled: Any,
        values: Mapping[str, Any],
        sources: Mapping[str, str],
        ended: Sequence[str],
        begun: Sequence[Buffer],
    ) -> None:
        """Writes down a launch that was run.

        Args:
            launch, compiled: the launch and what its run() returned.
            values: tensors by name; more than these may be there.
            sources: which of them each of the launch's tensors is, or is a part of.
            ended, begun: names that it freed and tensors that it allocated before.
        """
        for name, _, _ in begun:
            self._positions[name] = self._next()
        shifted, order = [], []
        for name, source in sources.items():
            tensor: Any = launch.args[name]
            offset = tensor.data_ptr() - values[source].data_ptr()
            position = self._positions[source]
            if offset:
                shifted.append((position, offset))
                position = self._next()
            order.append(position)
        repeated = launch_lib.Repeated(launch, compiled, list(sources))
        self._steps.append(_Step(ended, begun, shifted, repeated, order))

    def _next(self) -> int:
        self._addresses += 1
        return self._addresses - 1

    def run(self, addresses: Sequence[int]) -> dict[str, torch.Tensor]:
        """Makes the launches on the current device; returns what they have not freed, by name."""
        known = list(addresses)
        held: dict[str, torch.Tensor] = {}
        for step in self._steps:
            for name in step.ended:
                del held[name]
            for name, shape, dtype in step.begun:
                # Aligned as the first call's were: an allocator's blocks begin at multiples of 64.
                held[name] = torch.empty(shape, dtype=dtype, device=self._device)
                known.append(held[name].data_ptr())
            for position, offset in step.shifted:
                known.append(known[position] + offset)
            step.launch.run(known, step.order)
        return held
