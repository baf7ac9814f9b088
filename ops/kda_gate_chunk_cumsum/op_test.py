"""Tests of kda_gate_chunk_cumsum's results on the device that the target is for."""

import itertools
import math

import torch
from absl.testing import absltest, parameterized
from torch._subclasses import fake_tensor
from torch.autograd import forward_ad

from ops.common import launch
from ops.kda_gate_chunk_cumsum import kda_gate_chunk_cumsum, reference
from testing import guard, repeats, unit

_DEVICE = unit.DEVICE.torch_device
# Of a sum of up to 64 steps; 2^-23.3 is the worst measured here in the interpreter.
_LIMIT = 2.0**-21


def _inputs(
    b=1, t=70, heads=2, k_dim=24, dtype=torch.float32, *, gate="given", bounds=None, **rest
):
    """On the device. gate: "given", "softplus" or "bounded"."""
    generator = torch.Generator().manual_seed(0)
    g = torch.randn(b, t, heads, k_dim, generator=generator)
    x = {"g": (g if gate != "given" else -torch.exp(g - 2)).to(dtype).to(_DEVICE)}
    if gate != "given":
        x |= {
            "A_log": torch.randn(heads, generator=generator).to(_DEVICE),
            "dt_bias": (torch.randn(heads * k_dim, generator=generator) - 2).to(_DEVICE),
        }
    if gate == "bounded":
        x["lower_bound"] = -4.0
    if bounds is not None:
        x["cu_seqlens"] = torch.tensor(bounds, device=_DEVICE)
    return x | rest


def _golden(x):
    return reference.golden(
        **{
            name: value.double()
            if isinstance(value, torch.Tensor) and value.is_floating_point()
            else value
            for name, value in x.items()
        }
    )


def _distance(actual, expected):
    return ((actual.double() - expected).norm() / expected.norm()).item()


class ValuesTest(parameterized.TestCase):
    @parameterized.product(
        gate=("given", "softplus", "bounded"),
        dtype=(torch.float32, torch.bfloat16),
        chunk_size=(32, 64),
        bounds=(None, (0, 17, 17, 60, 66)),
    )
    def test_formulas(self, gate, dtype, chunk_size, bounds):
        x = _inputs(gate=gate, dtype=dtype, chunk_size=chunk_size, bounds=bounds)
        found = kda_gate_chunk_cumsum(**x)
        self.assertEqual(found.dtype, torch.float32)
        self.assertLess(_distance(found, _golden(x)), _LIMIT)

    def test_a_rate_or_a_bias_alone(self):
        for gate, without in (
            ("softplus", "dt_bias"),
            ("bounded", "A_log"),
            ("bounded", "dt_bias"),
        ):
            x = _inputs(gate=gate) | {without: None}
            self.assertLess(_distance(kda_gate_chunk_cumsum(**x), _golden(x)), _LIMIT)

    def test_a_step_has_a_floor(self):
        x = _inputs()
        x["g"][:, 3] = -1000.0
        x["g"][:, 5] = -torch.inf
        x["g"][:, 7] = -40.0
        floored = x | {"g": x["g"].clamp(min=-40.0)}
        found = kda_gate_chunk_cumsum(**x)
        self.assertTrue(torch.equal(found, kda_gate_chunk_cumsum(**floored)))
        step = found[:, 3] - found[:, 2]
        self.assertLess((step * math.log(2) + 40).abs().max().item(), 1e-4)

    def test_nan_is_not_hidden(self):
        x = _inputs()
        x["g"][0, 5, 1, 3] = torch.nan
        found = kda_gate_chunk_cumsum(**x)
        self.assertTrue(found[0, 5:64, 1, 3].isnan().all())
        self.assertTrue(found[0, 64:].isfinite().all())
        self.assertTrue(found[0, :, 0].isfinite().all())

    def test_sums_begin_again_with_each_chunk(self):
        for chunk_size in (32, 64):
            found = kda_gate_chunk_cumsum(
                g=torch.full((1, 150, 2, 8), -0.5, device=_DEVICE), chunk_size=chunk_size
            )
            steps = torch.arange(150, device=_DEVICE) % chunk_size + 1
            expected = -0.5 / math.log(2) * steps[None, :, None, None].expand_as(found)
            torch.testing.assert_close(found, expected, rtol=_LIMIT, atol=0)

    def test_later_tokens_change_nothing(self):
        x, y = _inputs(), _inputs()
        y["g"][:, 40:] *= 3
        x, y = kda_gate_chunk_cumsum(**x), kda_gate_chunk_cumsum(**y)
        self.assertTrue(torch.equal(x[:, :40], y[:, :40]))
        self.assertFalse(torch.equal(x[:, 40:], y[:, 40:]))

    @parameterized.parameters("given", "softplus")
    def test_packed_sequences_are_independent(self, gate):
        bounds = (0, 17, 17, 100, 145)
        x = _inputs(t=150, gate=gate, bounds=bounds)
        x["g"][:, 145:] = torch.nan
        with guard.GuardedAllocations():
            packed = kda_gate_chunk_cumsum(**x)
        self.assertFalse(packed[:, 145:].any())
        for start, end in itertools.pairwise(bounds):
            alone = x | {"g": x["g"][:, start:end], "cu_seqlens": None}
            self.assertTrue(torch.equal(packed[:, start:end], kda_gate_chunk_cumsum(**alone)))


class LayoutTest(parameterized.TestCase):
    def test_views(self):
        x = _inputs(b=2, gate="softplus", dtype=torch.float16)
        expected = kda_gate_chunk_cumsum(**x)
        g = x["g"]
        wide = g.new_full([n + 4 for n in g.shape], torch.nan)
        inner = tuple(slice(2, -2) for _ in g.shape)
        wide[inner] = g
        gaps = g.new_full((*g.shape, 2), torch.nan)
        gaps[..., 0] = g
        for view in (wide[inner], gaps[..., 0], g.transpose(1, 2).contiguous().transpose(1, 2)):
            self.assertTrue(torch.equal(kda_gate_chunk_cumsum(**(x | {"g": view})), expected))

    # A stride below 2^31 reaches a kernel as int32, one above as int64.
    @parameterized.parameters((0, 2**30 + 16), (0, 2**31 + 16), (2, 2**31 + 16))
    def test_offsets_beyond_32_bits(self, axis, stride):
        # A sparse allocation: the pages between the rows are never touched on the CPU.
        x = _inputs(b=3, t=34, heads=3)
        expected = kda_gate_chunk_cumsum(**x)
        strides = [16384 * 24, 128 * 24, 24, 1]
        strides[axis] = stride
        extent = 1 + sum((n - 1) * step for n, step in zip(x["g"].shape, strides, strict=True))
        self.assertGreater(extent, 2**31)
        far = torch.empty(extent, device=_DEVICE).as_strided(x["g"].shape, strides)
        far.copy_(x["g"])
        self.assertTrue(torch.equal(kda_gate_chunk_cumsum(g=far), expected))


class CallTest(parameterized.TestCase):
    def test_one_launch(self):
        with launch.record() as launches:
            kda_gate_chunk_cumsum(**_inputs(gate="softplus", bounds=(0, 3, 70)))
        self.assertEqual([each.name for each in launches], ["cumulative_gate"])

    def test_nothing_to_do(self):
        with launch.record() as launches:
            self.assertEqual(kda_gate_chunk_cumsum(**_inputs(t=0)).shape, (1, 0, 2, 24))
            self.assertEqual(kda_gate_chunk_cumsum(**_inputs(b=0)).shape, (0, 70, 2, 24))
            self.assertFalse(kda_gate_chunk_cumsum(**_inputs(bounds=(0, 0))).any())
        self.assertEmpty(launches)

    def test_errors_come_through_torch(self):
        x = _inputs()
        with self.assertRaisesRegex(
            TypeError, "^g: got dtype torch.float64, allowed: torch.float16"
        ):
            kda_gate_chunk_cumsum(g=x["g"].double())
        with self.assertRaisesRegex(TypeError, "^A_log: got float, allowed: torch.Tensor"):
            kda_gate_chunk_cumsum(**x, A_log=0.5)
        with self.assertRaisesRegex(NotImplementedError, "^use_graph: got True, allowed: False"):
            kda_gate_chunk_cumsum(**x, use_graph=True)

    def test_gradients_are_refused(self):
        x = _inputs(gate="softplus")
        expected = kda_gate_chunk_cumsum(**x)
        x["A_log"].requires_grad_()
        with self.assertRaisesRegex(NotImplementedError, "^A_log: got a tensor that requires a gr"):
            kda_gate_chunk_cumsum(**x)
        with torch.no_grad():
            self.assertTrue(torch.equal(kda_gate_chunk_cumsum(**x), expected))

    def test_tangents_are_refused(self):
        x = _inputs(gate="softplus")
        kda_gate_chunk_cumsum(**x)  # a call like an earlier one is no way around
        message = "^A_log: got a tensor with a tangent, but kda_gate_chunk_cumsum "
        with forward_ad.dual_level():
            y = x | {"A_log": forward_ad.make_dual(x["A_log"], x["A_log"])}
            with self.assertRaisesRegex(NotImplementedError, message):
                kda_gate_chunk_cumsum(**y)
        with self.assertRaisesRegex(NotImplementedError, message):
            torch.func.jvp(
                lambda A_log: kda_gate_chunk_cumsum(**(x | {"A_log": A_log})),
                (x["A_log"],),
                (x["A_log"],),
            )


class RepeatTest(repeats.TestCase):
    """A call like an earlier one is neither checked nor planned again (ops.common.calls)."""

    def _call(self, x):
        return kda_gate_chunk_cumsum(**x)

    @parameterized.product(
        gate=("given", "softplus", "bounded"), bounds=(None, (0, 17, 17, 60, 66))
    )
    def test_values_and_addresses_are_new(self, gate, bounds):
        x = _inputs(gate=gate, bounds=bounds)
        first = self._call(x)
        y = {
            name: 0.5 * value
            if isinstance(value, torch.Tensor) and value.is_floating_point()
            else value
            for name, value in x.items()
        }
        expected = repeats.planned(self._call, y)
        self.assertFalse(torch.equal(first, expected))
        self.assertTrue(torch.equal(repeats.repeated(self._call, y), expected))
        self.assertTrue(torch.equal(repeats.repeated(self._call, x), first))

    @parameterized.parameters(
        ({"gate": "bounded"}, {"gate": "bounded", "lower_bound": -3.0}),
        ({"gate": "bounded"}, {"gate": "softplus"}),
        ({"chunk_size": 32}, {"chunk_size": 64}),
        ({"bounds": (0, 17, 60)}, {"bounds": (0, 16, 60)}),
        ({"bounds": (0, 17, 60)}, {}),
    )
    def test_other_options_are_another_call(self, first, second):
        x = _inputs(**second)
        expected = repeats.planned(self._call, x)
        self._call(_inputs(**first))
        self.assertTrue(torch.equal(self._call(x), expected))

    def test_errors_of_a_call_that_is_nearly_like_an_earlier_one(self):
        x = _inputs(gate="softplus")
        self._call(x)
        with self.assertRaisesRegex(ValueError, "^A_log: got shape"):
            self._call(x | {"A_log": x["A_log"][:1]})
        with torch.no_grad():
            leaf = x["g"].clone().requires_grad_()
            self._call(x | {"g": leaf})
        with self.assertRaisesRegex(NotImplementedError, "^g: got a tensor that requires"):
            self._call(x | {"g": leaf})


class TorchLibraryTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        # It remembers which arguments other tests changed, and makes symbols of them.
        torch._dynamo.reset()

    @parameterized.product(gate=("given", "bounded"), packed=(False, True))
    def test_opcheck(self, gate, packed):
        x = _inputs(t=20, gate=gate, dtype=torch.float16)
        names = ("g", "A_log", "dt_bias", "lower_bound")
        values = [0, 3, 17] if packed else None
        op = torch.ops.ascend_ops.kda_gate_chunk_cumsum.default
        torch.library.opcheck(op, (*(x.get(name) for name in names), values, 32))

    def test_compile(self):
        # aot_eager: what is tested is the tracing, and inductor needs a C++ compiler.
        def doubled(x):
            return 2 * kda_gate_chunk_cumsum(**x)

        compiled = torch.compile(doubled, backend="aot_eager", fullgraph=True)
        for t in (5, 6, 70):
            x = _inputs(t=t, gate="softplus")
            self.assertTrue(torch.equal(compiled(x), doubled(x)))

    def test_without_memory(self):
        x = _inputs(dtype=torch.float16)
        found = kda_gate_chunk_cumsum(g=x["g"].to("meta"))
        self.assertEqual((found.shape, found.dtype), ((1, 70, 2, 24), torch.float32))
        with fake_tensor.FakeTensorMode() as mode:
            self.assertEqual(kda_gate_chunk_cumsum(g=mode.from_tensor(x["g"])).shape, found.shape)


if __name__ == "__main__":
    absltest.main()
