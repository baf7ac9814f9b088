"""Tests of kda_step's references, against loops over single numbers."""

import math

import torch
from absl.testing import absltest, parameterized

from ops.kda_step import reference


def _drawn(b=2, heads=1, value_heads=2, k_dim=3, v_dim=2, n=4):
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    return {
        "q": normal(b, heads, k_dim),
        "k": normal(b, heads, k_dim),
        "v": normal(b, value_heads, v_dim),
        "g": normal(b, value_heads, k_dim),
        "beta": normal(b, value_heads),
        "state": normal(n, value_heads, k_dim, v_dim),
        "A_log": normal(value_heads),
        "dt_bias": normal(value_heads * k_dim),
    }


def _by_number(x, slot, b, hv, *, gate, l2norm, logits, lower_bound):
    """o and the new state of one token and head."""
    q, k, v = x["q"][b, 0].tolist(), x["k"][b, 0].tolist(), x["v"][b, hv].tolist()
    if l2norm:
        q, k = ([e / math.sqrt(sum(f * f for f in r) + 1e-6) for e in r] for r in (q, k))
    beta = x["beta"][b, hv].item()
    if logits:
        beta = 1 / (1 + math.exp(-beta))
    s = x["state"][slot, hv].tolist()
    for i, raw in enumerate(x["g"][b, hv].tolist()):
        if gate:
            y = raw + x["dt_bias"][hv * len(k) + i].item()
            rate = math.exp(x["A_log"][hv].item())
            if lower_bound is None:
                raw = -rate * math.log(1 + math.exp(y))
            else:
                raw = lower_bound / (1 + math.exp(-rate * y))
        s[i] = [math.exp(raw) * e for e in s[i]]
    wrong = [v[j] - sum(s[i][j] * k[i] for i in range(len(k))) for j in range(len(v))]
    s = [[s[i][j] + k[i] * beta * wrong[j] for j in range(len(v))] for i in range(len(k))]
    o = [sum(s[i][j] * q[i] for i in range(len(k))) / math.sqrt(len(k)) for j in range(len(v))]
    return torch.tensor(o, dtype=torch.float64), torch.tensor(s, dtype=torch.float64)


class ReferenceTest(parameterized.TestCase):
    @parameterized.product(
        gate=(False, True), l2norm=(False, True), logits=(False, True), lower_bound=(None, -5.0)
    )
    def test_golden(self, gate, l2norm, logits, lower_bound):
        x = _drawn()
        indices = torch.tensor([3, 1], dtype=torch.int32)
        flags = {
            "use_gate_in_kernel": gate,
            "use_qk_l2norm_in_kernel": l2norm,
            "use_beta_sigmoid_in_kernel": logits,
            "lower_bound": lower_bound,
        }
        o, state = reference.golden(**x, **flags, state_indices=indices)
        for b in range(2):
            for hv in range(2):
                found = _by_number(
                    x,
                    indices[b],
                    b,
                    hv,
                    gate=gate,
                    l2norm=l2norm,
                    logits=logits,
                    lower_bound=lower_bound,
                )
                torch.testing.assert_close(o[b, hv], found[0], rtol=1e-12, atol=1e-12)
                torch.testing.assert_close(state[b, hv], found[1], rtol=1e-12, atol=1e-12)

    def test_padding(self):
        x = _drawn()
        o, state = reference.golden(**x, state_indices=torch.tensor([-1, 0], dtype=torch.int32))
        self.assertFalse(o[0].any() or state[0].any())
        self.assertTrue(o[1].all() and state[1].all())

    def test_same_precision(self):
        x = {name: value.half() for name, value in _drawn(n=2).items()}
        x |= {name: x[name].float() for name in ("state", "A_log", "dt_bias")}
        o, state = reference.same_precision(**x, use_gate_in_kernel=True)
        self.assertEqual((o.dtype, state.dtype), (torch.float16, torch.float32))
        wide = reference.golden(**{n: v.double() for n, v in x.items()}, use_gate_in_kernel=True)
        torch.testing.assert_close(o.double(), wide[0], rtol=2**-10, atol=2**-10)
        torch.testing.assert_close(state.double(), wide[1], rtol=1e-5, atol=1e-5)


if __name__ == "__main__":
    absltest.main()
