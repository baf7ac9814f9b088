"""The launches of a call, written down to be made again for a call like it (ops.common.calls)."""

import dataclasses
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import torch

from ops.common import backend, calls, tables
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

        Raises:
            ValueError: a tensor of the launch is no part of its source.
        """
        for name, _, _ in begun:
            self._positions[name] = self._next()
        shifted, order = [], []
        for name, source in sources.items():
            tensor: Any = launch.args[name]
            offset = tensor.data_ptr() - values[source].data_ptr()
            if offset and not 0 < offset < values[source].nbytes:
                raise ValueError(f"{name}: got a tensor elsewhere, allowed: a part of {source}")
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


class OneLaunch:
    """Calls of an op that makes one launch. One like an earlier one is that launch again."""

    def __init__(self, tensors: Sequence[str], **pointers: str):
        """tensors: names of the arguments that are tensors. pointers: what the kernel calls them,
        where that differs."""
        self._tensors = tensors
        self._pointers = pointers
        self._calls: calls.Calls[Replay] = calls.Calls()

    def again(
        self, arguments: Mapping[str, Any], check: Callable[[], None] | None = None
    ) -> dict[str, torch.Tensor] | None:
        """The results, by the kernel's names, of a call like an earlier one; None of another one.

        arguments: as torch's dispatcher converted them, and whatever else the launch depends on. If
        there are cu_seqlens, the kernel reads their tables, for chunks of chunk_size. check: what
        depends on values; called before the launch.
        """
        key, tensors = self._key(arguments)
        found = self._calls.find(key, tensors)
        if found is None:
            return None
        if check is not None:
            check()
        made, addresses = found
        first: Any = tensors[0]
        with backend.device_guard(first):
            packed = _tables(arguments, first.device)
            return made.run(addresses + [table.data_ptr() for table in packed.values()])

    def remember(
        self,
        arguments: Mapping[str, Any],
        read: Mapping[str, Any],
        launch: launch_lib.Launch,
        compiled: Any,
        results: Mapping[str, torch.Tensor],
        packed: Mapping[str, torch.Tensor] | None = None,
        sources: Mapping[str, str] | None = None,
    ) -> None:
        """For calls like this one, if launches may be repeated.

        Args:
            arguments: as for again().
            read: by the arguments' names, the tensors that the launch read in their place.
            launch, compiled: the launch and what its run() returned.
            results: what was allocated for the launch, by the kernel's names.
            packed: the tables of cu_seqlens that it read.
            sources: which of all tensors the launch's x_ptr is, if it is not x.
        """
        key, tensors = self._key(arguments)
        if not self._calls.may_remember(tensors, [read[name] for name in self._tensors]):
            return
        values = {
            self._pointers.get(name, name): tensor
            for name, tensor in zip(self._tensors, tensors, strict=True)
            if tensor is not None
        }
        device = next(iter(values.values())).device
        values |= packed or {}
        made = Replay(values, device)
        pointers = [name for name, x in launch.args.items() if isinstance(x, torch.Tensor)]
        found = {name: name.removesuffix("_ptr") for name in pointers}
        found |= {f"{name}_ptr": source for name, source in (sources or {}).items()}
        begun = [(name, tuple(x.shape), x.dtype) for name, x in results.items()]
        made.add(launch, compiled, {**values, **results}, found, [], begun)
        self._calls.remember(key, tensors, made)

    def _key(self, arguments: Mapping[str, Any]) -> tuple[Hashable, list[torch.Tensor | None]]:
        others = [value for name, value in arguments.items() if name not in self._tensors]
        return calls.key(others), [arguments[name] for name in self._tensors]


def _tables(arguments: Mapping[str, Any], device: torch.device) -> Mapping[str, torch.Tensor]:
    if arguments.get("cu_seqlens") is None:
        return {}
    return tables.of_sequences(arguments["cu_seqlens"], arguments["chunk_size"], device)
