"""Packed sequences: the boundaries on the host, and which chunk of which sequence is which.

A packed batch holds N sequences in the rows of one batch row; cu_seqlens [N + 1] has their
boundaries. A chunk never crosses a boundary. Plain torch.
"""

import itertools
from collections.abc import Sequence

import torch
from torch.utils import weak

# cu_seqlens on a device -> (its version, its values).
_read: weak.WeakTensorKeyDictionary = weak.WeakTensorKeyDictionary()


def boundaries(cu_seqlens: torch.Tensor) -> tuple[int, ...]:
    """The values of cu_seqlens.

    Reading a device's tensor waits for the device, so the values are remembered for this very
    tensor object until an operation of torch changes it. What torch does not see (a kernel that
    writes into the same tensor, `.data`) goes unnoticed: make a new tensor then. A tensor on the
    CPU, or one made in inference mode (torch counts no changes of it), is read each time.
    """
    if cu_seqlens.device.type == "cpu" or cu_seqlens.is_inference():
        return tuple(cu_seqlens.tolist())
    found = _read.get(cu_seqlens)
    if found is None or found[0] != cu_seqlens._version:
        found = cu_seqlens._version, tuple(cu_seqlens.tolist())
        _read[cu_seqlens] = found
    return found[1]


def check_boundaries(values: Sequence[int], rows: int) -> None:
    """Raises ValueError unless values start at 0, never fall, and end at `rows` or before.

    Rows behind the last boundary belong to no sequence.
    """
    if values[0] != 0:
        raise ValueError(f"cu_seqlens[0]: got {values[0]}, allowed: 0")
    for i, (start, end) in enumerate(itertools.pairwise(values), 1):
        if end < start:
            raise ValueError(
                f"cu_seqlens[{i}]: got {end}, allowed: {start} (the one before) or more"
            )
    if values[-1] > rows:
        raise ValueError(f"cu_seqlens[-1]: got {values[-1]}, allowed: 0 to T = {rows}")


def counts(values: Sequence[int], chunk_size: int) -> list[int]:
    """How many chunks each sequence has; none, if it is empty."""
    return [-(-(end - start) // chunk_size) for start, end in itertools.pairwise(values)]


def chunk_offsets(
    values: Sequence[int],
    chunk_size: int,
    dtype: torch.dtype = torch.int32,
    device: torch.device | str = "cpu",
) -> torch.Tensor:
    """[N + 1]: the number of the first chunk of each sequence; the last entry is their sum."""
    sums = itertools.accumulate(counts(values, chunk_size), initial=0)
    return torch.tensor(list(sums), dtype=dtype).to(device)


def chunk_indices(
    values: Sequence[int],
    chunk_size: int,
    dtype: torch.dtype = torch.int32,
    device: torch.device | str = "cpu",
) -> torch.Tensor:
    """[NT, 2]: (sequence, chunk within the sequence) of each chunk, in order."""
    of_each = torch.tensor(counts(values, chunk_size), dtype=torch.int64)
    sequence = torch.arange(len(of_each)).repeat_interleave(of_each)
    first = (of_each.cumsum(0) - of_each)[sequence]
    return torch.stack((sequence, torch.arange(len(sequence)) - first), dim=1).to(dtype).to(device)
