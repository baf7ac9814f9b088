"""Rows of a batch, or of a packed batch, sorted by sequence: what references and preparation loop
over."""

import functools
import itertools
from collections.abc import Callable

import torch


class Sequences:
    """The sequences of [B, T, ...] tensors, each padded to a common length.

    Without cu_seqlens every batch row is a sequence; with it B is 1 and sequence n has the rows
    cu_seqlens[n] to cu_seqlens[n + 1] - 1.

    count: N. longest: of the sequences. length: of the padded ones, a multiple of chunk_size.
    chunks: length // chunk_size. valid: [N, length], which rows exist.
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
        self.longest = max(lengths, default=0)
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
        """[N, length or longest, ...] -> [B, T, ...]; rows of no sequence are 0."""
        b, t = self.shape
        out = x.new_zeros(b * t, *x.shape[2:])
        valid, rows = self.valid[:, : x.shape[1]], self._rows[:, : x.shape[1]]
        out[(self._starts[:, None] + rows)[valid]] = x[valid]
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


# Elements that the states of all chunks may have: 2 GB in float64, and references hold several.
MOST_STATES = 1 << 28

# Where the heads of an argument are; of q and k, those of q.
_HEAD_AXIS = dict.fromkeys(
    ("q", "k", "v", "beta", "Aqk", "Akk", "do", "g", "g_org", "v_new", "A", "h", "dh", "dv"), 2
)
_HEAD_AXIS |= {"initial_state": 1, "dht": 1, "A_log": 0, "dt_bias": 0}


def by_heads(function: Callable[..., tuple], output_axes: tuple[int, ...]) -> Callable[..., tuple]:
    """The function, called for some q/k heads after others when states would not fit into memory.

    output_axes: the axis of heads of each result.
    """

    @functools.wraps(function)
    def sliced(**arguments):
        q, v = arguments["q"], arguments["v"]
        heads, group = q.shape[2], v.shape[2] // q.shape[2]
        size, bounds = arguments.get("chunk_size", 64), arguments.get("cu_seqlens")
        sequences = Sequences(q, bounds, size)
        per_head = sequences.count * sequences.chunks * group * q.shape[3] * v.shape[3]
        step = max(1, MOST_STATES // max(per_head, 1))
        if step >= heads:
            return function(**arguments)
        parts = []
        for start in range(0, heads, step):
            count = min(step, heads - start)
            part = dict(arguments)
            for name, axis in _HEAD_AXIS.items():
                tensor = arguments.get(name)
                if tensor is not None:
                    each = tensor.shape[axis] // heads
                    part[name] = tensor.narrow(axis, start * each, count * each)
            parts.append(function(**part))
        return tuple(
            None if of_part[0] is None else torch.cat(of_part, dim=axis)
            for of_part, axis in zip(zip(*parts, strict=True), output_axes, strict=True)
        )

    return sliced


def gate(g_org, A_log, dt_bias, lower_bound, dtype: torch.dtype) -> torch.Tensor:
    """The natural-log gate of a step, [B, T, HV, K], computed in dtype."""
    g_org, A_log, dt_bias = (x if x is None else x.to(dtype) for x in (g_org, A_log, dt_bias))
    y = g_org if dt_bias is None else g_org + dt_bias.view(g_org.shape[2:])
    rate = 1.0 if A_log is None else A_log.exp()[:, None]
    if lower_bound is None:
        return -rate * torch.logaddexp(y, torch.zeros_like(y))  # softplus; torch's own is cut at 20
    return lower_bound * torch.sigmoid(rate * y)
