"""Tests of chunk_gla_fwd_o_gk's references, against the recurrence that the chunks stand for."""

import itertools

import torch
from absl.testing import absltest, parameterized

from ops.chunk_gla_fwd_o_gk import reference


def _gla(t, bounds, chunk_size):
    """Gated linear attention token by token, and what its chunks would hand over; float64."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    q, k, v = normal(1, t, 1, 5), normal(1, t, 1, 5), normal(1, t, 1, 3)
    decay = torch.rand(1, t, 1, 5, generator=generator, dtype=torch.float64)
    scale = 0.3
    o, g, A = torch.zeros_like(v), torch.zeros_like(decay), v.new_zeros(1, t, 1, chunk_size)
    h = []
    for start, end in itertools.pairwise(bounds):
        state = v.new_zeros(5, 3)
        for i in range(start, end):
            first = i - (i - start) % chunk_size
            if i == first:
                h.append(state)
            g[0, i, 0] = decay[0, first : i + 1, 0].log2().sum(0)
            for j in range(first, i + 1):
                fade = 2 ** (g[0, i, 0] - g[0, j, 0])
                A[0, i, 0, j - first] = scale * (q[0, i, 0] * k[0, j, 0] * fade).sum()
            state = decay[0, i, 0][:, None] * state + k[0, i, 0][:, None] * v[0, i, 0]
            o[0, i, 0] = scale * (q[0, i, 0] @ state)
    return {"q": q, "v": v, "g": g, "A": A, "h": torch.stack(h)[None, :, None], "scale": scale}, o


class ReferenceTest(parameterized.TestCase):
    @parameterized.parameters(
        (70, None, 32), (70, None, 64), (80, (0, 1, 34, 34, 75), 32), (5, None, 32)
    )
    def test_golden(self, t, bounds, chunk_size):
        x, expected = _gla(t, bounds or (0, t), chunk_size)
        packed = None if bounds is None else torch.tensor(bounds)
        found = reference.golden(**x, cu_seqlens=packed, chunk_size=chunk_size)
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)

    def test_above_the_diagonal_is_not_read(self):
        x, expected = _gla(40, (0, 40), 32)
        x["A"] += torch.triu(torch.ones(32, 32), 1).repeat(2, 1)[None, :40, None].double()
        torch.testing.assert_close(reference.golden(**x, chunk_size=32), expected)

    def test_same_precision(self):
        x, expected = _gla(70, (0, 70), 64)
        x = {n: v.half() if isinstance(v, torch.Tensor) and n != "g" else v for n, v in x.items()}
        found = reference.same_precision(**(x | {"g": x["g"].float()}))
        self.assertEqual(found.dtype, torch.float16)
        self.assertLess(((found.double() - expected).norm() / expected.norm()).item(), 2**-9)

    def test_heads_share_q(self):
        x, expected = _gla(40, (0, 40), 32)
        y = {n: x[n].repeat_interleave(2, 3 if n == "h" else 2) for n in ("v", "g", "A")}
        y["h"] = x["h"].repeat_interleave(2, 2)
        found = reference.golden(**(x | y), chunk_size=32)
        torch.testing.assert_close(found, expected.repeat_interleave(2, 2))


if __name__ == "__main__":
    absltest.main()
