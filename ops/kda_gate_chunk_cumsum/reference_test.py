"""Tests of kda_gate_chunk_cumsum's references, against sums of single numbers."""

import itertools
import math

import torch
from absl.testing import absltest, parameterized

from ops.kda_gate_chunk_cumsum import reference


def _step(x, a_log, bias, lower_bound, formula):
    """The natural logarithm of one decay."""
    if not formula:
        return max(x, -40.0)
    if lower_bound is None:
        return max(-math.exp(a_log) * math.log(1 + math.exp(x + bias)), -40.0)
    return lower_bound / (1 + math.exp(-math.exp(a_log) * (x + bias)))


class ReferenceTest(parameterized.TestCase):
    @parameterized.product(gate=("given", "softplus", "bounded"), bounds=(None, (0, 1, 34, 34, 66)))
    def test_golden(self, gate, bounds):
        formula, bound = gate != "given", -3.0 if gate == "bounded" else None
        generator = torch.Generator().manual_seed(0)
        g = 8 * torch.randn(1, 70, 2, 3, generator=generator, dtype=torch.float64) - 20
        if formula:
            g += 20
        a_log, bias = (torch.randn(n, generator=generator, dtype=torch.float64) for n in (2, 6))
        given = {"A_log": a_log, "dt_bias": bias, "lower_bound": bound} if formula else {}
        packed = None if bounds is None else torch.tensor(bounds)
        found = reference.golden(g=g, cu_seqlens=packed, chunk_size=32, **given)
        ends = (0, 70) if bounds is None else bounds
        for i in range(70):
            inside = [s for s, e in itertools.pairwise(ends) if s <= i < e]
            for hv in range(2):
                for k in range(3):
                    expected = 0.0
                    if inside:
                        start = i - (i - inside[0]) % 32
                        expected = sum(
                            _step(x, a_log[hv].item(), bias[3 * hv + k].item(), bound, formula)
                            for x in g[0, start : i + 1, hv, k].tolist()
                        ) / math.log(2)
                    self.assertAlmostEqual(found[0, i, hv, k].item(), expected, delta=1e-9)

    def test_same_precision(self):
        g = -torch.rand(1, 70, 2, 3, generator=torch.Generator().manual_seed(0))
        found = reference.same_precision(g=g)
        self.assertEqual(found.dtype, torch.float32)
        torch.testing.assert_close(found.double(), reference.golden(g=g.double()))


if __name__ == "__main__":
    absltest.main()
