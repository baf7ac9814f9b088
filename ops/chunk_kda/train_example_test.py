"""The example learns, and step by step as with the recurrence, one token at a time."""

import torch
from absl.testing import absltest
from torch import nn

from ops import chunk_kda
from ops.chunk_kda import train_example

_SIZE = train_example.SIZES["tiny"]


def _recurrence(q, k, v, g, beta, A_log, dt_bias, **options):
    """chunk_kda with normalised q and k, the gate and beta computed, in float64."""
    del options
    q, k, v, g, beta, A_log = (x.double() for x in (q, k, v, g, beta, A_log))
    q, k = (x * ((x * x).sum(-1, keepdim=True) + 1e-6).rsqrt() for x in (q, k))
    bias = dt_bias.double().view(g.shape[2:])
    decay = torch.exp(-A_log.exp()[:, None] * nn.functional.softplus(g + bias))
    beta = torch.sigmoid(beta)
    state = q.new_zeros(q.shape[0], q.shape[2], q.shape[3], v.shape[3])
    o = []
    for t in range(q.shape[1]):
        state = state * decay[:, t, :, :, None]
        read = torch.einsum("bhkv,bhk->bhv", state, k[:, t])
        written = beta[:, t, :, None] * (v[:, t] - read)
        state = state + k[:, t, :, :, None] * written[:, :, None]
        o.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t]) * q.shape[3] ** -0.5)
    return torch.stack(o, 1).float(), None


class TrainExampleTest(absltest.TestCase):
    def test_learns_the_sequence(self):
        losses, times = train_example.train(_SIZE, chunk_kda.chunk_kda, "cpu")
        self.assertGreater(losses[0], 2.5)  # about log 16 = 2.77
        self.assertLess(losses[-1], 0.2)
        self.assertEmpty(times)

    def test_every_step_is_that_of_the_recurrence(self):
        found, _ = train_example.train(_SIZE, chunk_kda.chunk_kda, "cpu", steps=6)
        expected, _ = train_example.train(_SIZE, _recurrence, "cpu", steps=6)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


if __name__ == "__main__":
    absltest.main()
