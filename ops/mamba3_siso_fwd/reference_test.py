"""Tests of the two references against each other, against plain Python and against known cases."""

import cmath
import math

import torch
from absl.testing import absltest, parameterized

from ops.mamba3_siso_fwd import reference


def _inputs(b=2, s=70, hq=2, heads=4, k_dim=12, v_dim=5, pairs=6, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    wide = torch.float64 if dtype == torch.float64 else torch.float32
    return {
        "q": normal(b, s, hq, k_dim).to(dtype),
        "k": normal(b, s, hq, k_dim).to(dtype),
        "v": normal(b, s, heads, v_dim).to(dtype),
        "adt": (-0.3 * normal(b, heads, s).abs()).to(wide),
        "dt": (0.2 * normal(b, heads, s)).to(wide),
        "trap": (2 * normal(b, heads, s)).to(wide),
        "q_bias": (0.5 * normal(heads, k_dim)).to(wide),
        "k_bias": (0.5 * normal(heads, k_dim)).to(wide),
        "angles": (4 * normal(b, s, heads, pairs)).to(wide),
        "d": normal(heads).to(wide),
        "z": normal(b, s, heads, v_dim).to(dtype),
    }


def _distance(actual, expected):
    return ((actual.double() - expected).norm() / expected.norm()).item()


def _plain_python(x, b, h):
    """The definition for one batch and head, in lists, with rotations as complex products."""
    hq = h // (x["v"].shape[2] // x["q"].shape[2])
    k_dim, v_dim, pairs = x["q"].shape[3], x["v"].shape[3], x["angles"].shape[3]

    def rotated(name, t):
        row = (x[name][b, t, hq] + x[f"{name}_bias"][h]).tolist()
        for i in range(pairs):
            turned = complex(*row[2 * i : 2 * i + 2]) * cmath.rect(1, x["angles"][b, t, h, i])
            row[2 * i : 2 * i + 2] = turned.real, turned.imag
        return row

    state = [[0.0] * k_dim for _ in range(v_dim)]
    before = None  # v and rotated k of the previous token
    out = []
    for t in range(x["v"].shape[1]):
        q_row, k_row, v_row = rotated("q", t), rotated("k", t), x["v"][b, t, h].tolist()
        gate = 1 / (1 + math.exp(-x["trap"][b, h, t]))
        dt, decay = x["dt"][b, h, t].item(), math.exp(x["adt"][b, h, t])
        row_out = []
        for n in range(v_dim):
            for i in range(k_dim):
                state[n][i] = decay * state[n][i] + gate * dt * v_row[n] * k_row[i]
                if before:
                    state[n][i] += (1 - gate) * dt * decay * before[0][n] * before[1][i]
            o = sum(s * q for s, q in zip(state[n], q_row, strict=True))
            o += x["d"][h].item() * v_row[n]
            z = x["z"][b, t, h, n].item()
            row_out.append(o * z / (1 + math.exp(-z)))
        out.append(row_out)
        before = v_row, k_row
    return torch.tensor(out, dtype=torch.float64)


class GoldenTest(parameterized.TestCase):
    def test_equals_the_definition_in_plain_python(self):
        x = _inputs(s=9)
        golden = reference.golden(**x)
        for b in range(2):
            for h in range(4):
                self.assertLess(_distance(golden[b, :, h], _plain_python(x, b, h)), 1e-14)

    def test_is_linear_attention_without_decay_gates_and_rotation(self):
        x = _inputs(hq=4, pairs=0) | {"d": None, "z": None}
        x["adt"].zero_()
        x["trap"].fill_(1e9)  # lambda = 1
        q, k = x["q"] + x["q_bias"], x["k"] + x["k_bias"]
        weights = torch.einsum("bihk,bjhk->bhij", q, k).tril() * x["dt"][:, :, None, :]
        expected = torch.einsum("bhij,bjhv->bihv", weights, x["v"])
        self.assertLess(_distance(reference.golden(**x), expected), 1e-14)

    def test_a_reset_forgets(self):
        x = _inputs(s=20)
        x["adt"][:, :, 10] = -math.inf
        x["trap"][:, :, 10] = 1e9  # nor is the previous token carried over, though e^-inf does that
        golden = reference.golden(**x)
        self.assertTrue(golden.isfinite().all())
        tail = {
            name: value[:, 10:] if name in ("q", "k", "v", "z", "angles") else value[..., 10:]
            for name, value in x.items()
            if name not in ("q_bias", "k_bias", "d")
        }
        # Absolute: token 10 is the tail's first, whose adt has nothing to scale.
        tail |= {name: x[name] for name in ("q_bias", "k_bias", "d")}
        self.assertLess(_distance(golden[:, 10:], reference.golden(**tail)), 1e-14)

    def test_the_first_tokens_decay_has_nothing_to_scale(self):
        x = _inputs(s=3)
        expected = reference.golden(**x)
        for value in (-math.inf, 1e3):
            x["adt"][:, :, 0] = value
            self.assertTrue(torch.equal(reference.golden(**x), expected))

    def test_defaults_and_dtype(self):
        x = _inputs(s=5, dtype=torch.bfloat16)
        plain = {name: value for name, value in x.items() if name not in ("d", "z")}
        golden = reference.golden(**plain)
        self.assertEqual(golden.dtype, torch.float64)
        self.assertTrue(torch.equal(golden, reference.golden(**plain, d=None, z=None)))
        zero_skip = reference.golden(**plain, d=torch.zeros(4))
        self.assertTrue(torch.equal(golden, zero_skip))

    def test_no_tokens(self):
        self.assertEqual(reference.golden(**_inputs(s=0)).shape, (2, 0, 4, 5))
        r = reference.same_precision(**_inputs(s=0, dtype=torch.float16))
        self.assertEqual((r.shape, r.dtype), ((2, 0, 4, 5), torch.float16))


class ChunkedTest(parameterized.TestCase):
    @parameterized.product(
        s=(1, 31, 32, 33, 64, 65, 200), chunk_size=(32, 64), pairs=(0, 2, 6), hq=(1, 2)
    )
    def test_equals_the_recurrence_in_float64(self, s, chunk_size, pairs, hq):
        x = _inputs(s=s, pairs=pairs, hq=hq)
        chunked = reference.chunked(
            **x, chunk_size=chunk_size, compute_dtype=torch.float64, operand_dtype=None
        )
        self.assertLess(_distance(chunked, reference.golden(**x)), 1e-13)

    def test_equals_it_for_special_decays(self):
        for values in ((-math.inf, -0.1, -0.2), (0.0,), (0.3, -0.2), (-1e9, -88.0), (-1e4, 0.05)):
            x = _inputs()
            x["adt"][:] = torch.tensor(values, dtype=torch.float64).repeat(70)[:70]
            chunked = reference.chunked(**x, compute_dtype=torch.float64, operand_dtype=None)
            self.assertLess(_distance(chunked, reference.golden(**x)), 1e-13, values)

    @parameterized.product(
        dtype_and_u=((torch.float16, 2.0**-11), (torch.bfloat16, 2.0**-8)), chunk_size=(32, 64)
    )
    def test_same_precision_is_off_by_its_roundings_alone(self, dtype_and_u, chunk_size):
        dtype, u = dtype_and_u
        x = _inputs(b=1, s=128, k_dim=64, v_dim=64, pairs=16, dtype=dtype)
        r = reference.same_precision(**x, chunk_size=chunk_size)
        self.assertEqual(r.dtype, dtype)
        # Rounding the output alone costs 0.42 u, operands and output 0.8 to 0.9 u; see README.md.
        self.assertBetween(_distance(r, reference.golden(**x)), 0.4 * u, 1.0 * u)

    def test_small_steps_do_not_underflow_in_fp16(self):
        x = _inputs(b=1, s=128, k_dim=64, v_dim=64, dtype=torch.float16) | {"d": None, "z": None}
        x["dt"] = x["dt"] * 1e-5
        x["v"] = x["v"] * 1e3
        self.assertLess(_distance(reference.same_precision(**x), reference.golden(**x)), 2.0**-11)


if __name__ == "__main__":
    absltest.main()
