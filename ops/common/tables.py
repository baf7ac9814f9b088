"""What kernels look up of packed sequences, on their device."""

import functools
from collections.abc import Mapping
from typing import Any

import torch

from ops.common import backend, chunks


def of_sequences(
    bounds: tuple[int, ...] | None, chunk_size: int, device: torch.device
) -> Mapping[str, torch.Tensor]:
    """cu_seqlens [N + 1], chunk_offsets [N + 1] and chunk_indices [2 NT], int32, of the boundaries;
    nothing without any.

    On a device they are remembered: a step uses the same packing in every layer, and one copy
    serves them all.
    """
    if bounds is None:
        return {}
    if backend.pretending() or device.type == "cpu":
        return make(bounds, chunk_size, device)
    # By stream, because the last reference may go while a kernel on its stream still reads.
    stream = getattr(torch, device.type).current_stream(device)
    return kept(bounds, chunk_size, device, stream)


def make(
    bounds: tuple[int, ...], chunk_size: int, device: torch.device
) -> Mapping[str, torch.Tensor]:
    """The same, anew."""
    offsets = chunks.chunk_offsets(bounds, chunk_size)
    indices = chunks.chunk_indices(bounds, chunk_size).view(-1)
    starts = torch.tensor(bounds, dtype=torch.int32)
    whole = torch.cat((starts, offsets, indices)).to(device)
    parts = whole.split((len(starts), len(offsets), len(indices)))
    return dict(zip(("cu_seqlens", "chunk_offsets", "chunk_indices"), parts, strict=True))


@functools.lru_cache(maxsize=16)
def kept(
    bounds: tuple[int, ...], chunk_size: int, device: torch.device, stream: Any
) -> Mapping[str, torch.Tensor]:
    """The same, of the last 16 packings."""
    del stream
    return make(bounds, chunk_size, device)
