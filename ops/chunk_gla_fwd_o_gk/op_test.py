"""Tests of chunk_gla_fwd_o_gk's results on the device that the target is for."""

import itertools

import torch
from absl.testing import absltest, parameterized
from torch._subclasses import fake_tensor
from torch.autograd import forward_ad

from ops.chunk_gla_fwd_o_gk import chunk_gla_fwd_o_gk, reference
from ops.common import launch
from testing import guard, repeats, unit

_DEVICE = unit.DEVICE.torch_device
_HALF = torch.float16
# fp32 with sums in another order; 2^-22.6 is the worst measured here in the interpreter.
_LIMIT = 2.0**-20


def _inputs(
    b=1,
    t=70,
    heads=1,
    value_heads=2,
    k_dim=32,
    v_dim=24,
    dtype=torch.float32,
    *,
    chunk_size=64,
    bounds=None,
    seed=0,
):
    """On the device. A is nowhere zero."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    packed = (0, t) if bounds is None else bounds
    chunks = sum(-(-(end - start) // chunk_size) for start, end in itertools.pairwise(packed))
    x = {
        "q": normal(b, t, heads, k_dim).to(dtype),
        "v": normal(b, t, value_heads, v_dim).to(dtype),
        "g": -normal(b, t, value_heads, k_dim).abs(),
        "A": normal(b, t, value_heads, chunk_size).to(dtype),
        "h": normal(b, chunks, value_heads, k_dim, v_dim).to(dtype),
    }
    x = {name: value.to(_DEVICE) for name, value in x.items()}
    cu_seqlens = None if bounds is None else torch.tensor(bounds, device=_DEVICE)
    return x | {"cu_seqlens": cu_seqlens, "chunk_size": chunk_size}


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


def _of_tokens(name):
    return name in ("q", "v", "g", "A")


class ValuesTest(parameterized.TestCase):
    @parameterized.parameters(
        {},
        {"b": 2, "t": 1, "heads": 2, "value_heads": 6},
        {"t": 40, "k_dim": 100, "v_dim": 130, "chunk_size": 32},
        {"t": 70, "k_dim": 1, "v_dim": 1},
        {"t": 150, "bounds": (0, 17, 17, 100, 145)},
        {"t": 150, "bounds": (0, 17, 17, 100, 145), "chunk_size": 32},
    )
    def test_formula(self, **sizes):
        x = _inputs(**sizes)
        self.assertLess(_distance(chunk_gla_fwd_o_gk(**x), _golden(x)), _LIMIT)
        self.assertLess(
            _distance(chunk_gla_fwd_o_gk(**x, scale=-2.0), _golden(x | {"scale": -2.0})), _LIMIT
        )

    @parameterized.parameters(torch.float16, torch.bfloat16)
    def test_half_precision(self, dtype):
        x = _inputs(dtype=dtype)
        o = chunk_gla_fwd_o_gk(**x)
        self.assertEqual(o.dtype, dtype)
        self.assertLess(_distance(o, _golden(x)), torch.finfo(dtype).eps)
        wide = {name: x[name].float() for name in ("A", "h")}
        self.assertTrue(torch.equal(chunk_gla_fwd_o_gk(**(x | wide)), o))

    @parameterized.product(bounds=(None, (0, 17, 17, 81)), dtype=(torch.float32, _HALF))
    def test_what_is_not_read(self, bounds, dtype):
        # Above A's diagonal, and behind the last sequence, whose rows are zero.
        t = 81 if bounds is None else 100
        x = _inputs(t=t, bounds=bounds, dtype=dtype)
        expected = chunk_gla_fwd_o_gk(**x)
        starts = (0,) if bounds is None else bounds
        for i in range(81):
            row = (i - max(s for s in starts if s <= i)) % 64
            x["A"][:, i, :, row + 1 :] = torch.nan
        for name in ("q", "v", "g", "A"):
            x[name][:, 81:] = torch.nan
        with guard.GuardedAllocations():
            found = chunk_gla_fwd_o_gk(**x)
        self.assertTrue(torch.equal(found, expected))
        self.assertFalse(found[:, 81:].any())

    def test_later_tokens_change_nothing(self):
        x, y = _inputs(dtype=_HALF), _inputs(dtype=_HALF)
        for name in ("q", "v", "g", "A"):
            y[name][:, 40:] *= 2
        x, y = chunk_gla_fwd_o_gk(**x), chunk_gla_fwd_o_gk(**y)
        self.assertTrue(torch.equal(x[:, :40], y[:, :40]))
        self.assertFalse(torch.equal(x[:, 40:], y[:, 40:]))

    def test_packed_sequences_are_independent(self):
        bounds, chunks = (0, 17, 17, 100, 145), (0, 1, 1, 3, 4)
        x = _inputs(t=145, bounds=bounds, dtype=_HALF)
        packed = chunk_gla_fwd_o_gk(**x)
        for n, (start, end) in enumerate(itertools.pairwise(bounds)):
            alone = {name: x[name][:, start:end] for name in x if _of_tokens(name)}
            alone |= {"h": x["h"][:, chunks[n] : chunks[n + 1]], "cu_seqlens": None}
            self.assertTrue(torch.equal(packed[:, start:end], chunk_gla_fwd_o_gk(**(x | alone))))

    def test_grouped_heads_are_repeated_heads(self):
        x = _inputs(heads=2, value_heads=6)
        y = x | {"q": x["q"].repeat_interleave(3, dim=2)}
        self.assertTrue(torch.equal(chunk_gla_fwd_o_gk(**x), chunk_gla_fwd_o_gk(**y)))

    def test_gates_that_leave_nothing(self):
        x = _inputs(dtype=_HALF)
        x["g"][..., ::2] = -1e5
        forgotten = x["q"].clone()
        forgotten[..., ::2] = 0
        same = chunk_gla_fwd_o_gk(**(x | {"q": forgotten}))
        self.assertTrue(torch.equal(chunk_gla_fwd_o_gk(**x), same))


class LayoutTest(parameterized.TestCase):
    def _check(self, change):
        x = _inputs(b=2, t=37, heads=2, value_heads=4, dtype=_HALF)
        views = {n: change(n, v) for n, v in x.items() if isinstance(v, torch.Tensor)}
        self.assertTrue(torch.equal(chunk_gla_fwd_o_gk(**(x | views)), chunk_gla_fwd_o_gk(**x)))

    def test_slices_of_wider_tensors(self):
        # NaN all around: an access outside the slice shows, whichever axis it leaves.
        def change(name, value):
            del name
            wide = value.new_full([n + 4 for n in value.shape], torch.nan)
            inner = tuple(slice(2, -2) for _ in value.shape)
            wide[inner] = value
            return wide[inner]

        self._check(change)

    def test_head_major_memory(self):
        self._check(lambda name, value: value.transpose(1, 2).contiguous().transpose(1, 2))

    def test_rows_with_gaps(self):
        def change(name, value):
            del name
            wide = value.new_full((*value.shape, 2), torch.nan)
            wide[..., 0] = value
            return wide[..., 0]

        self._check(change)

    # A stride below 2^31 reaches a kernel as int32, one above as int64.
    @parameterized.parameters((0, 2**30 + 16), (0, 2**31 + 16), (2, 2**31 + 16))
    def test_offsets_beyond_32_bits(self, axis, stride):
        # A sparse allocation: the pages between the rows are never touched on the CPU.
        x = _inputs(b=3, t=34, value_heads=3, dtype=_HALF)
        expected = chunk_gla_fwd_o_gk(**x)
        v = x["v"]
        strides = [16384 * 24, 128 * 24, 24, 1]
        strides[axis] = stride
        extent = 1 + sum((n - 1) * step for n, step in zip(v.shape, strides, strict=True))
        self.assertGreater(extent, 2**31)
        far = torch.empty(extent, dtype=v.dtype, device=_DEVICE).as_strided(v.shape, strides)
        far.copy_(v)
        self.assertTrue(torch.equal(chunk_gla_fwd_o_gk(**(x | {"v": far})), expected))


class CallTest(parameterized.TestCase):
    def test_one_launch(self):
        for bounds in (None, (0, 3, 70)):
            with launch.record() as launches:
                chunk_gla_fwd_o_gk(**_inputs(bounds=bounds))
            self.assertLen(launches, 1)

    def test_nothing_to_do(self):
        with launch.record() as launches:
            self.assertEqual(chunk_gla_fwd_o_gk(**_inputs(t=0)).shape, (1, 0, 2, 24))
            self.assertEqual(chunk_gla_fwd_o_gk(**_inputs(b=0)).shape, (0, 70, 2, 24))
            self.assertFalse(chunk_gla_fwd_o_gk(**_inputs(bounds=(0, 0))).any())
        self.assertEmpty(launches)

    def test_errors_come_through_torch(self):
        x = _inputs(dtype=_HALF)
        with self.assertRaisesRegex(TypeError, "^v: got dtype torch.float32, allowed: torch.float"):
            chunk_gla_fwd_o_gk(**(x | {"v": x["v"].float()}))
        with self.assertRaisesRegex(NotImplementedError, "^use_graph: got True, allowed: False"):
            chunk_gla_fwd_o_gk(**x, use_graph=True)
        with self.assertRaisesRegex(TypeError, "^h: got NoneType, allowed: torch.Tensor"):
            chunk_gla_fwd_o_gk(**(x | {"h": None}))

    def test_gradients_are_refused(self):
        x = _inputs()
        expected = chunk_gla_fwd_o_gk(**x)
        x["h"].requires_grad_()
        with self.assertRaisesRegex(NotImplementedError, "^h: got a tensor that requires a grad"):
            chunk_gla_fwd_o_gk(**x)
        with torch.no_grad():
            self.assertTrue(torch.equal(chunk_gla_fwd_o_gk(**x), expected))

    def test_tangents_are_refused(self):
        x = _inputs()
        chunk_gla_fwd_o_gk(**x)  # a call like an earlier one is no way around
        message = "^h: got a tensor with a tangent, but chunk_gla_fwd_o_gk has no forward-mode"
        with forward_ad.dual_level():
            y = x | {"h": forward_ad.make_dual(x["h"], x["h"])}
            with self.assertRaisesRegex(NotImplementedError, message):
                chunk_gla_fwd_o_gk(**y)
        with self.assertRaisesRegex(NotImplementedError, message):
            torch.func.jvp(lambda h: chunk_gla_fwd_o_gk(**(x | {"h": h})), (x["h"],), (x["h"],))


class RepeatTest(repeats.TestCase):
    """A call like an earlier one is neither checked nor planned again (ops.common.calls)."""

    def _call(self, x):
        return chunk_gla_fwd_o_gk(**x)

    @parameterized.product(dtype=(torch.float32, _HALF), bounds=(None, (0, 17, 17, 60, 66)))
    def test_values_and_addresses_are_new(self, dtype, bounds):
        x, y = (_inputs(dtype=dtype, bounds=bounds, seed=seed) for seed in (0, 1))
        first = self._call(x)
        expected = repeats.planned(self._call, y)
        self.assertTrue(torch.equal(repeats.repeated(self._call, y), expected))
        self.assertTrue(torch.equal(repeats.repeated(self._call, x), first))

    @parameterized.parameters(
        ({}, {"scale": 0.5}),
        ({"scale": 0.0}, {"scale": -0.0}),
        ({"cu_seqlens": (0, 17, 60)}, {"cu_seqlens": (0, 16, 60)}),
        ({"cu_seqlens": (0, 64, 70)}, {"cu_seqlens": None}),
    )
    def test_other_options_are_another_call(self, first, second):
        # Tensors are the same: two chunks each.
        packed = [
            own | {"cu_seqlens": torch.tensor(own["cu_seqlens"], device=_DEVICE)}
            if own.get("cu_seqlens")
            else own
            for own in (first, second)
        ]
        x = _inputs() | packed[1]
        expected = repeats.planned(self._call, x)
        self._call(_inputs() | packed[0])
        found = self._call(x)
        self.assertTrue(torch.equal(found, expected))
        self.assertTrue(torch.equal(found.signbit(), expected.signbit()))

    def test_errors_of_a_call_that_is_nearly_like_an_earlier_one(self):
        x = _inputs()
        self._call(x)
        with self.assertRaisesRegex(ValueError, "^h: got shape"):
            self._call(x | {"h": x["h"][:, :1]})
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

    @parameterized.parameters({"bounds": None}, {"bounds": (0, 3, 17)})
    def test_opcheck(self, bounds):
        for dtype in (_HALF, torch.bfloat16):
            x = _inputs(t=20, bounds=bounds, dtype=dtype)
            tensors = (x[name] for name in ("q", "v", "g", "A", "h"))
            values = None if bounds is None else list(bounds)
            op = torch.ops.ascend_ops.chunk_gla_fwd_o_gk.default
            torch.library.opcheck(op, (*tensors, 0.5, values, 64))

    def test_compile(self):
        # aot_eager: what is tested is the tracing, and inductor needs a C++ compiler.
        def doubled(x):
            return 2 * chunk_gla_fwd_o_gk(**x)

        compiled = torch.compile(doubled, backend="aot_eager", fullgraph=True)
        for t in (5, 6, 70):
            x = _inputs(t=t, dtype=_HALF)
            self.assertTrue(torch.equal(compiled(x), doubled(x)))
        x = _inputs(t=20, bounds=(0, 3, 17), dtype=_HALF)
        self.assertTrue(torch.equal(torch.compile(doubled, backend="aot_eager")(x), doubled(x)))

    def test_without_memory(self):
        x = _inputs(dtype=_HALF)
        tensors = {n: v for n, v in x.items() if isinstance(v, torch.Tensor)}
        o = chunk_gla_fwd_o_gk(**(x | {n: v.to("meta") for n, v in tensors.items()}))
        self.assertEqual((o.shape, o.dtype, o.device.type), ((1, 70, 2, 24), _HALF, "meta"))
        with fake_tensor.FakeTensorMode() as mode:
            y = {name: mode.from_tensor(value) for name, value in tensors.items()}
            self.assertEqual(chunk_gla_fwd_o_gk(**(x | y)).shape, (1, 70, 2, 24))


if __name__ == "__main__":
    absltest.main()
