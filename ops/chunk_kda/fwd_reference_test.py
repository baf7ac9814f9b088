"""Tests of the forward's goldens and same-precision references: each against other algorithms, in
float64."""

import torch
from absl.testing import absltest, parameterized

from ops.chunk_kda import fwd_reference, fwd_same_precision

_OPTIONS = {
    "scale": None,
    "initial_state": None,
    "use_qk_l2norm_in_kernel": False,
    "use_gate_in_kernel": False,
    "use_beta_sigmoid_in_kernel": False,
    "allow_neg_eigval": False,
    "lower_bound": None,
    "cu_seqlens": None,
    "chunk_size": 32,
    "A_log": None,
    "dt_bias": None,
}
_EXACT = {"compute_dtype": torch.float64, "operand_dtype": None}
# Of a golden in float64.
_LIMIT = 1e-13


def _arguments(b=2, t=70, heads=1, value_heads=2, k_dim=8, v_dim=6, **options):
    generator = torch.Generator().manual_seed(3)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    n = len(options["cu_seqlens"]) - 1 if options.get("cu_seqlens") else b
    x = {
        "q": normal(b, t, heads, k_dim),
        "k": normal(b, t, heads, k_dim) / k_dim**0.5,
        "v": normal(b, t, value_heads, v_dim),
        "g": -normal(b, t, value_heads, k_dim).exp() / 8,
        "beta": normal(b, t, value_heads).sigmoid(),
    }
    if options.get("use_gate_in_kernel"):
        x["g"] = normal(b, t, value_heads, k_dim)
        options = {"A_log": normal(value_heads), "dt_bias": normal(value_heads * k_dim)} | options
    if options.pop("states", True):
        options["initial_state"] = normal(n, value_heads, k_dim, v_dim)
    return x | _OPTIONS | options


_CASES = (
    {},
    {"states": False, "chunk_size": 64, "scale": -0.2},
    {"heads": 2, "value_heads": 6, "t": 33},
    {"use_qk_l2norm_in_kernel": True},
    {"use_beta_sigmoid_in_kernel": True},
    {"use_beta_sigmoid_in_kernel": True, "allow_neg_eigval": True},
    {"use_gate_in_kernel": True},
    {"use_gate_in_kernel": True, "lower_bound": -5.0},
    {"b": 1, "cu_seqlens": (0, 17, 17, 60), "use_qk_l2norm_in_kernel": True},
)


def _distance(actual, expected):
    return ((actual - expected).norm() / expected.norm().clamp(min=1e-300)).item()


class ReferenceTest(parameterized.TestCase):
    @parameterized.parameters(*_CASES)
    def test_chunks_are_the_recurrence(self, **options):
        x = _arguments(**options)
        o, state = fwd_reference.golden_fwd(**x, output_final_state=True)
        found = fwd_same_precision.chunked_fwd(**x, output_final_state=True, **_EXACT)
        self.assertLess(_distance(found["o"], o), _LIMIT)
        self.assertLess(_distance(found["final_state"], state), _LIMIT)
        same, none = fwd_reference.golden_fwd(**x)
        self.assertTrue(torch.equal(same, o))
        self.assertIsNone(none)

    @parameterized.parameters(*_CASES)
    def test_gradients_are_those_of_autograd(self, **options):
        x = _arguments(**options)
        names = ("q", "k", "v", "beta", "g", "initial_state", "A_log", "dt_bias")
        leaves = {n: x[n].clone().requires_grad_() for n in names if x[n] is not None}
        results = fwd_reference.golden_fwd(**(x | leaves), output_final_state=True)
        cotangents = [torch.randn_like(result) for result in results]
        expected = torch.autograd.grad(results, list(leaves.values()), cotangents)
        do, dht = cotangents
        found = fwd_reference.golden_train(**x, do=do, dht=dht)
        by_name = dict(zip(names, found, strict=True))
        for name, gradient in zip(leaves, expected, strict=True):
            self.assertLess(_distance(by_name[name], gradient), _LIMIT, name)
        for name in set(names) - set(leaves):
            self.assertIsNone(by_name[name], name)

    def test_recurrence_by_hand(self):
        one = torch.ones(1, 2, 1, 1, dtype=torch.float64)
        state = torch.full((1, 1, 1, 1), 4.0, dtype=torch.float64)
        o, last = fwd_reference.golden_fwd(
            q=2 * one,
            k=one,
            v=one,
            g=torch.log(0.5 * one),
            beta=0.5 * one[..., 0],
            scale=3.0,
            initial_state=state,
            output_final_state=True,
        )
        # 4 fades to 2 and moves half the way to 1; 1.5 fades to 0.75 and moves half the way to 1.
        self.assertEqual(o.flatten().tolist(), [9.0, 5.25])
        self.assertEqual(last.item(), 0.875)

    @parameterized.parameters(32, 64)
    def test_intra(self, chunk_size):
        x = _arguments(t=150, chunk_size=chunk_size)
        G = torch.cat([part.cumsum(1) for part in x["g"].split(chunk_size, 1)], 1)
        given = {name: x[name] for name in ("q", "k", "v", "beta", "chunk_size")} | {"gk": G}
        golden = fwd_reference.golden_intra(**given)
        found = fwd_same_precision.chunked_intra(**given, **_EXACT)
        for one, other in zip(found, golden, strict=True):
            self.assertLess(_distance(one, other), _LIMIT)
        # (I + tril(beta k k D, -1)) Akk = I, pair by pair, in the last chunk, which is short.
        first = 150 // chunk_size * chunk_size
        rows = 150 - first
        k, g, beta = x["k"][1, first:, 0], G[1, first:, 1], x["beta"][1, first:, 1]
        lower = torch.zeros(rows, rows, dtype=torch.float64)
        for i in range(rows):
            for j in range(i):
                lower[i, j] = beta[i] * (k[i] * k[j] * (g[i] - g[j]).exp2()).sum()
        product = (torch.eye(rows) + lower) @ golden[5][1, first:, 1, :rows]
        self.assertLess(_distance(product, torch.eye(rows, dtype=torch.float64)), _LIMIT)

    def test_roundings(self):
        x = _arguments(t=100)
        half = {n: x[n].half() for n in ("q", "k", "v")} | {n: x[n].float() for n in ("g", "beta")}
        x |= half | {"initial_state": x["initial_state"].float()}
        golden = fwd_reference.golden_fwd(**x, output_final_state=True)
        found = fwd_same_precision.same_precision_fwd(**x, output_final_state=True)
        self.assertEqual([result.dtype for result in found], [torch.float16, torch.float32])
        for one, other in zip(found, golden, strict=True):
            self.assertBetween(_distance(one.double(), other), 2.0**-13, 2.0**-10)

    def test_steep_gates_are_cut(self):
        x = _arguments(b=1, t=32)
        x["g"][:, :11] = -1000.0
        exact = fwd_reference.golden_fwd(**x)[0]
        single = {n: v.float() if isinstance(v, torch.Tensor) else v for n, v in x.items()}
        found = fwd_same_precision.same_precision_fwd(**single)[0]
        self.assertLess(_distance(found.double(), exact), 2.0**-12)


if __name__ == "__main__":
    absltest.main()
