"""Constant tensors that the Ascend kernels read instead of comparing numbers of rows and columns,
which would cost arch32 its second vector core."""

import torch


def make(chunk_size: int, dtype: torch.dtype, device: torch.device) -> dict[str, torch.Tensor]:
    """By the kernels' names, without `_ptr`. C: chunk_size, L: its levels, log2 C.

    anchors: [L, C, C] fp32: a product with G is, of each row, the difference to its anchor of that
    level: G_i - G_a in the upper half of a group, G_a - G_j in the lower. A row has one 1 and one
    -1, or neither, so that the difference is exact.
    pairs: [L, C, C] dtype: 1 where two rows are in different halves of a group of 2^(level + 1).
    upper: [L, C] fp32: 1 for the rows of upper halves.
    from_row, lower, below, diagonal: [C, C] fp32: 1 for columns >= row, <= row, < row, = row.
    last: [2 C] fp32: 1 at C - 1; read from C - rows on, it selects a chunk's last row.
    last_rows: [2 C, C] fp32: the same as rows of ones.
    numbers: [256] fp32: 0, 1, 2, ...
    """
    size, levels = chunk_size, chunk_size.bit_length() - 1
    row = torch.arange(size)
    anchors, pairs, upper = [], [], []
    for level in range(levels):
        late = (row >> level) & 1
        sign = (2 * late - 1).float()[:, None]
        own, anchor = torch.eye(size), torch.eye(size)[((row >> level) | 1) << level]
        anchors.append(sign * (own - anchor))
        pairs.append(((row[:, None] ^ row) >> level) == 1)
        upper.append(late.float())
    last = torch.zeros(2 * size, size)
    last[size - 1] = 1.0
    found = {
        "anchors": torch.stack(anchors),
        "pairs": torch.stack(pairs).to(dtype),
        "upper": torch.stack(upper),
        "from_row": (row[:, None] <= row).float(),
        "lower": (row[:, None] >= row).float(),
        "below": (row[:, None] > row).float(),
        "diagonal": torch.eye(size),
        "last": last[:, 0].contiguous(),
        "last_rows": last,
        "numbers": torch.arange(256).float(),
    }
    return {name: tensor.to(device) for name, tensor in found.items()}
