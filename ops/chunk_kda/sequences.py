"""Rows of a batch, or of a packed batch, sorted by sequence: what references and preparation loop
over."""

import itertools

import torch


class Sequences:
    """The sequences of [B, T, ...] tensors, each padded to a common length.

    Without cu_seqlens every batch row is a sequence; with it B is 1 and sequence n has the rows
    cu_seqlens[n] to cu_seqlens[n + 1] - 1.

    count: N. length: of the padded sequences, a multiple of chunk_size. chunks: length //
    chunk_size. valid: [N, length], which rows exist.
    """

    def __init__(self, like: torch.Tensor, cu_seqlens, chunk_size: int):
        b, t = like.shape[:2]
        if cu_seqlens is None:
            bounds = [n * t for n in range(b + 1)]
        else:
            bounds = [int(bound) for bound in torch.as_tensor(cu_seqlens).tolist()]
        lengths = [end - start for start, end in itertools.pairwise(bounds)]
        self.shape = (b, t)
        self.chunk_size = chunk_size
        self.count = len(lengths)
        self.chunks = max((-(-length // chunk_size) for length in lengths), default=0)
        self.length = self.chunks * chunk_size
        device = like.device
        self._starts = torch.tensor(bounds[:-1], dtype=torch.int64, device=device)
        self._lengths = torch.tensor(lengths, dtype=torch.int64, device=device)
        self._rows = torch.arange(self.length, device=device).expand(self.count, -1)  # [N, length]
        self.valid = self._rows < self._lengths[:, None]
        counts = -(-self._lengths // chunk_size)
        self._first_chunks = counts.cumsum(0) - counts
        self._chunk_rows = torch.arange(self.chunks, device=device).expand(self.count, -1)
        self._chunk_valid = self._chunk_rows < counts[:, None]
        self.num_chunks = int(counts.sum())

    def split(self, x: torch.Tensor) -> torch.Tensor:
        """[B, T, ...] -> [N, length, ...], rows that do not exist are 0."""
        taken = self._take(x, self._rows)
        return taken.masked_fill_(self._expand(~self.valid, taken), 0)

    def split_gates(self, x: torch.Tensor) -> torch.Tensor:
        """The same for a gate that is summed up inside each chunk: rows behind a sequence's end
        repeat its last one as long as its last chunk lasts, and are 0 in later chunks."""
        last = (self._lengths - 1).clamp(min=0)[:, None]
        taken = self._take(x, torch.minimum(self._rows, last))
        past = ~self._chunk_valid.repeat_interleave(self.chunk_size, dim=1)
        return taken.masked_fill_(self._expand(past, taken), 0)

    def join(self, x: torch.Tensor) -> torch.Tensor:
        """[N, length, ...] -> [B, T, ...]; rows of no sequence are 0."""
        b, t = self.shape
        out = x.new_zeros(b * t, *x.shape[2:])
        out[(self._starts[:, None] + self._rows)[self.valid]] = x[self.valid]
        return out.view(b, t, *x.shape[2:])

    def split_chunks(self, x: torch.Tensor) -> torch.Tensor:
        """States [B, chunks of a batch row, ...] -> [N, chunks, ...], 0 where no chunk is."""
        flat = x.flatten(0, 1)
        index = (self._first_chunks[:, None] + self._chunk_rows).clamp(max=max(len(flat) - 1, 0))
        taken = flat[index] if len(flat) else flat.new_zeros(*index.shape, *flat.shape[1:])
        return taken.masked_fill_(self._expand(~self._chunk_valid, taken), 0)

    def join_chunks(self, x: torch.Tensor) -> torch.Tensor:
        """[N, chunks, ...] -> [B, chunks of a batch row, ...]."""
        b = self.shape[0]
        return x[self._chunk_valid].view(b, self.num_chunks // max(b, 1), *x.shape[2:])

    def last_rows(self) -> torch.Tensor:
        """[N, chunks, chunk_size], True at the last existing row of each chunk."""
        behind = torch.nn.functional.pad(self.valid[:, 1:], (0, 1))
        shape = (self.count, self.chunks, self.chunk_size)
        last = (self.valid & ~behind).view(shape)
        last[:, :, -1] |= self.valid.view(shape)[:, :, -1]
        return last

    def _take(self, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        flat = x.reshape(-1, *x.shape[2:])
        index = (self._starts[:, None] + rows).clamp(max=max(len(flat) - 1, 0))
        return flat[index] if len(flat) else flat.new_zeros(*rows.shape, *flat.shape[1:])

    @staticmethod
    def _expand(mask: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        return mask.view(*mask.shape, *[1] * (like.dim() - 2))


def gate(g_org, A_log, dt_bias, lower_bound, dtype: torch.dtype) -> torch.Tensor:
    """The natural-log gate of a step, [B, T, HV, K], computed in dtype."""
    g_org, A_log, dt_bias = (x if x is None else x.to(dtype) for x in (g_org, A_log, dt_bias))
    y = g_org if dt_bias is None else g_org + dt_bias.view(g_org.shape[2:])
    rate = 1.0 if A_log is None else A_log.exp()[:, None]
    if lower_bound is None:
        return -rate * torch.logaddexp(y, torch.zeros_like(y))  # softplus; torch's own is cut at 20
    return lower_bound * torch.sigmoid(rate * y)
