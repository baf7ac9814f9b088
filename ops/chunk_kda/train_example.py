"""Trains a Kimi-Linear-style layer with chunk_kda until it knows a sequence of tokens by heart.

    ./bazelw run //ops/chunk_kda:train_example
Without Bazel, at the repository's root; the second at a real layer's size, beside FLA's operator:
    python3 -m ops.chunk_kda.train_example
    python3 -m ops.chunk_kda.train_example --device=cuda --size=layer --public
"""

import dataclasses
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch
from absl import app, flags
from torch import nn

from ops import chunk_kda
from testing import devices

_DEVICE = flags.DEFINE_enum("device", None, devices.NAMES, "Device. Default: the best one present.")
_PUBLIC = flags.DEFINE_boolean(
    "public", False, "Train with FLA's operator too, from equal weights."
)


@dataclasses.dataclass(frozen=True)
class Size:
    """tokens: of the sequence. hidden: width of the residual stream. width: K = V of a head.
    half: whether bf16 is used for products, through autocast."""

    tokens: int
    vocabulary: int
    hidden: int
    heads: int
    width: int
    steps: int
    rate: float
    half: bool


SIZES = {
    # The interpreter takes a second for a step.
    "tiny": Size(48, 16, 32, 2, 16, 40, 1e-2, False),
    "layer": Size(8192, 1024, 2048, 16, 128, 40, 1e-3, True),
}
_SIZE = flags.DEFINE_enum("size", "tiny", list(SIZES), "Sizes of the layer and the sequence.")

Attention = Callable[..., tuple[torch.Tensor, Any]]


class Layer(nn.Module):
    """Embedding, Kimi Delta Attention with its projections and gates, prediction of the next token.

    As in Kimi Linear (arXiv 2510.26692), but without short convolutions and feed-forward part.
    """

    def __init__(self, size: Size):
        super().__init__()
        self._heads, self._width = size.heads, size.width
        inner = size.heads * size.width
        self.embedding = nn.Embedding(size.vocabulary, size.hidden)
        self.norm = nn.RMSNorm(size.hidden)
        self.q, self.k, self.v = (nn.Linear(size.hidden, inner, bias=False) for _ in range(3))
        self.decay = _low_rank(size.hidden, size.width, inner)
        self.strength = nn.Linear(size.hidden, size.heads, bias=False)
        self.A_log = nn.Parameter(torch.zeros(size.heads))
        self.dt_bias = nn.Parameter(torch.full((inner,), -3.0))  # a slow decay to begin with
        self.output_gate = _low_rank(size.hidden, size.width, inner)
        self.output_norm = nn.RMSNorm(size.width)
        self.output = nn.Linear(inner, size.hidden, bias=False)
        self.logits = nn.Linear(size.hidden, size.vocabulary)

    def forward(self, tokens: torch.Tensor, attention: Attention) -> torch.Tensor:
        """Logits of the tokens that follow, [B, T, vocabulary]. attention: chunk_kda or another
        function with its keywords."""
        residual = self.embedding(tokens)
        x = self.norm(residual)
        shape = (*tokens.shape, self._heads, self._width)
        q, k, v, decay, gate = (
            part(x).view(shape) for part in (self.q, self.k, self.v, self.decay, self.output_gate)
        )
        o, _ = attention(
            q=q,
            k=k,
            v=v,
            g=decay,
            beta=self.strength(x),
            A_log=self.A_log,
            dt_bias=self.dt_bias,
            use_qk_l2norm_in_kernel=True,
            use_gate_in_kernel=True,
            use_beta_sigmoid_in_kernel=True,
        )
        o = self.output_norm(o) * torch.sigmoid(gate)
        return self.logits(residual + self.output(o.flatten(2)))


def _low_rank(inputs: int, rank: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, rank, bias=False), nn.Linear(rank, outputs, bias=False))


def train(
    size: Size, attention: Attention, device: str, steps: int | None = None
) -> tuple[list[float], list[float]]:
    """(loss of each step, milliseconds of each step on a GPU) from weights that a seed decides."""
    torch.manual_seed(0)
    layer = Layer(size).to(device)
    sequence = torch.randint(size.vocabulary, (1, size.tokens + 1)).to(device)
    optimizer = torch.optim.Adam(layer.parameters(), lr=size.rate)
    losses, times = [], []
    for _ in range(size.steps if steps is None else steps):
        events = [torch.cuda.Event(enable_timing=True) for _ in "ab"] if device == "cuda" else []
        if events:
            events[0].record()
        with torch.autocast(device, torch.bfloat16, enabled=size.half):
            logits = layer(sequence[:, :-1], attention)
        loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), sequence[0, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
        if events:
            events[1].record()
            events[1].synchronize()
            times.append(events[0].elapsed_time(events[1]))
    return losses, times


def main(argv: Sequence[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments: {' '.join(argv[1:])}")
    # Before the op is first used: without an accelerator this switches Triton's interpreter on.
    device = devices.require(_DEVICE.value or devices.best())
    operators: dict[str, Attention] = {"chunk_kda": chunk_kda.chunk_kda}
    if _PUBLIC.value:
        from testing.baselines import fla_core

        operators["fla"] = fla_core.chunk_kda
    size, curves = SIZES[_SIZE.value], {}
    for name, operator in operators.items():
        losses, times = train(size, operator, device.torch_device)
        curves[name] = losses
        shown = ", ".join(f"{loss:.3f}" for loss in losses[:: max(1, len(losses) // 8)])
        print(f"{name}: loss {shown}, last {losses[-1]:.4f}")
        if times:
            print(f"{name}: {statistics.median(times):.2f} ms a step, median of {len(times)}")
    if _PUBLIC.value:
        apart = max(abs(a - b) for a, b in zip(*curves.values(), strict=True))
        print(f"largest difference of the losses: {apart:.4f}")
    print(f"device: {device.name}, {device.describe()}")


if __name__ == "__main__":
    app.run(main)
