"""Tests of kda_step's results on the device that the target is for."""

import torch
from absl.testing import absltest, parameterized
from torch._subclasses import fake_tensor
from torch.autograd import forward_ad

from ops.chunk_kda import chunk_kda
from ops.common import backend, launch
from ops.kda_step import kda_step, reference
from testing import guard, repeats, unit

_DEVICE = unit.DEVICE.torch_device
_HALF = torch.float16
# fp32 with sums over K in another order; 2^-22.9 is the worst measured here in the interpreter.
_LIMIT = 2.0**-20
_MODEL = {
    "use_qk_l2norm_in_kernel": True,
    "use_gate_in_kernel": True,
    "use_beta_sigmoid_in_kernel": True,
}


def _inputs(
    b=3,
    heads=2,
    value_heads=4,
    k_dim=32,
    v_dim=24,
    dtype=torch.float32,
    *,
    n=None,
    indices=None,
    seed=0,
    **flags,
):
    """On the device. n: states of a pool, for the indices."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    k = normal(b, heads, k_dim)
    x = {
        "q": normal(b, heads, k_dim).to(dtype),
        "k": (k / k.norm(dim=-1, keepdim=True)).to(dtype),
        "v": normal(b, value_heads, v_dim).to(dtype),
        "g": -torch.exp(normal(b, value_heads, k_dim) - 2),
        "beta": normal(b, value_heads).sigmoid(),
        "state": normal(n or b, value_heads, k_dim, v_dim),
    }
    if flags.get("use_gate_in_kernel"):
        x |= {"A_log": normal(value_heads), "dt_bias": normal(value_heads * k_dim) - 2}
    if indices is not None:
        x["state_indices"] = torch.tensor(indices, dtype=torch.int32)
    return {name: value.to(_DEVICE) for name, value in x.items()} | flags


def _distance(actual, expected):
    actual, expected = actual.double().cpu(), expected.double().cpu()
    return ((actual - expected).norm() / expected.norm()).item()


def _golden(x):
    return reference.golden(
        **{
            name: value.double()
            if isinstance(value, torch.Tensor) and value.is_floating_point()
            else value
            for name, value in x.items()
        }
    )


class ValuesTest(parameterized.TestCase):
    @parameterized.parameters(
        {},
        {"b": 1, "heads": 1, "value_heads": 1, "k_dim": 1, "v_dim": 1},
        {"k_dim": 100, "v_dim": 130},
        {"lower_bound": -3.0, **_MODEL},
        _MODEL,
    )
    def test_one_step(self, **changes):
        x = _inputs(**changes)
        for result, expected in zip(kda_step(**x), _golden(x), strict=True):
            self.assertEqual(result.shape, expected.shape)
            self.assertLess(_distance(result, expected), _LIMIT)

    def test_steps_are_the_recurrence(self):
        # Of 40 tokens, in fp32: states of the golden and of the op, each fed by its own.
        for flags in ({}, _MODEL):
            state = _inputs()["state"]
            wide = state.double()
            for t in range(40):
                x = _inputs(seed=t + 1, **flags)
                o, wide = _golden(x | {"state": wide})
                found, state = kda_step(**(x | {"state": state}))
                self.assertLess(_distance(found, o), 2 * _LIMIT, t)
            self.assertLess(_distance(state, wide), 2 * _LIMIT)

    @parameterized.parameters(torch.float16, torch.bfloat16)
    def test_half_precision(self, dtype):
        x = _inputs(dtype=dtype)
        o, state = kda_step(**x)
        self.assertEqual((o.dtype, state.dtype), (dtype, torch.float32))
        expected = _golden(x)
        self.assertLess(_distance(o, expected[0]), torch.finfo(dtype).eps / 2)
        self.assertLess(_distance(state, expected[1]), _LIMIT)

    def test_a_reset(self):
        x = _inputs()
        x["g"][:, 1] = -torch.inf
        forgotten = x["state"].clone()
        forgotten[:, 1] = 0
        for result, expected in zip(
            kda_step(**x), kda_step(**(x | {"state": forgotten})), strict=True
        ):
            self.assertTrue(torch.equal(result, expected))

    def test_grouped_heads_are_repeated_heads(self):
        x = _inputs(value_heads=6)
        y = x | {name: x[name].repeat_interleave(3, dim=1) for name in ("q", "k")}
        for result, expected in zip(kda_step(**x), kda_step(**y), strict=True):
            self.assertTrue(torch.equal(result, expected))

    def test_tokens_are_independent(self):
        x = _inputs(b=5, dtype=_HALF, **_MODEL)
        o, state = kda_step(**x)
        for b in range(5):
            part = {
                name: value[b : b + 1]
                if isinstance(value, torch.Tensor) and value.dim() > 1
                else value
                for name, value in x.items()
            }
            alone = kda_step(**part)
            self.assertTrue(torch.equal(o[b : b + 1], alone[0]))
            self.assertTrue(torch.equal(state[b : b + 1], alone[1]))


# chunk_kda's forward has no kernels for NPUs yet. There the test does not exist, rather than look
# green.
if unit.DEVICE.name in (backend.CPU_REFERENCE, backend.CUDA):

    class ChunksTest(parameterized.TestCase):
        @parameterized.parameters({}, _MODEL, {"lower_bound": -5.0, **_MODEL})
        def test_steps_are_what_chunks_compute(self, **flags):
            tokens = [_inputs(1, 1, 2, seed=t, **flags) for t in range(70)]
            state = tokens[0].pop("state")
            shared = {"A_log": tokens[0].get("A_log"), "dt_bias": tokens[0].get("dt_bias")}
            of_all = {
                n: torch.stack([x[n] for x in tokens], 1) for n in ("q", "k", "v", "g", "beta")
            }
            expected, last = chunk_kda(
                **of_all, **shared, **flags, initial_state=state, output_final_state=True
            )
            for t, x in enumerate(tokens):
                o, state = kda_step(**(x | shared | {"state": state}))
                self.assertLess(_distance(o, expected[:, t]), 8 * _LIMIT, t)
            self.assertLess(_distance(state, last), 8 * _LIMIT)


class StatesTest(parameterized.TestCase):
    @parameterized.parameters({}, _MODEL)
    def test_in_place(self, **flags):
        x = _inputs(dtype=_HALF, **flags)
        o, state = kda_step(**x)
        kept = x["state"]
        found, same = kda_step(**x, inplace_final_state=True)
        self.assertIs(same, kept)
        self.assertTrue(torch.equal(found, o))
        self.assertTrue(torch.equal(kept, state))

    @parameterized.parameters(False, True)
    def test_pool(self, in_place):
        indices = (4, -1, 0, 6, -9)
        x = _inputs(b=5, n=8, indices=indices, dtype=_HALF)
        before = x["state"].clone()
        for name in ("q", "k", "v", "g", "beta"):
            x[name][1] = torch.nan  # padding may be anything
        of_tokens = x | {
            "state": before[[max(index, 0) for index in indices]],
            "state_indices": None,
        }
        expected = kda_step(**of_tokens)
        with guard.GuardedAllocations():
            o, state = kda_step(**x, inplace_final_state=in_place)
        for b, index in enumerate(indices):
            if index < 0:
                self.assertFalse(o[b].any())
                self.assertTrue(in_place or not state[b].any())
            else:
                self.assertTrue(torch.equal(o[b], expected[0][b]))
                self.assertTrue(torch.equal(state[index if in_place else b], expected[1][b]))
        if in_place:
            self.assertIs(state, x["state"])
            for index in set(range(8)) - set(indices):
                self.assertTrue(torch.equal(state[index], before[index]))
        else:
            self.assertTrue(torch.equal(x["state"], before))

    def test_tokens_that_start_from_one_state(self):
        x = _inputs(n=2, indices=(1, 1, 0))
        y = x | {"state": x["state"][[1, 1, 0]], "state_indices": None}
        for result, expected in zip(kda_step(**x), kda_step(**y), strict=True):
            self.assertTrue(torch.equal(result, expected))

    def test_pages_of_a_larger_buffer(self):
        x = _inputs(dtype=_HALF)
        expected = kda_step(**x)
        pages = torch.full((3, 9, 32, 24), torch.nan, device=_DEVICE)
        pages[:, 2:6] = x["state"]
        o, state = kda_step(**(x | {"state": pages[:, 2:6]}), inplace_final_state=True)
        self.assertTrue(torch.equal(o, expected[0]))
        self.assertTrue(torch.equal(state, expected[1]))
        self.assertTrue(pages[:, :2].isnan().all() and pages[:, 6:].isnan().all())

    def test_states_beyond_32_bits(self):
        # A sparse allocation: the pages between the states are never touched on the CPU.
        x = _inputs(b=2, value_heads=2)
        expected = kda_step(**x)
        size = (2, 2, 32, 24)
        step = 2**31 + 16
        whole = torch.empty(step + 2 * 32 * 24, device=_DEVICE)
        far = whole.as_strided(size, (step, 32 * 24, 24, 1))
        far.copy_(x["state"])
        o, state = kda_step(**(x | {"state": far}), inplace_final_state=True)
        self.assertTrue(torch.equal(o, expected[0]))
        self.assertTrue(torch.equal(state, expected[1]))


class LayoutTest(parameterized.TestCase):
    def test_slices_of_wider_tensors(self):
        # NaN all around: an access outside the slice shows, whichever axis it leaves.
        x = _inputs(dtype=_HALF, **_MODEL)
        expected = kda_step(**x)
        views = {}
        for name, value in x.items():
            if isinstance(value, torch.Tensor):
                wide = value.new_full([n + 4 for n in value.shape], torch.nan)
                views[name] = wide[tuple(slice(2, -2) for _ in value.shape)]
                views[name].copy_(value)
        for result, same in zip(kda_step(**(x | views)), expected, strict=True):
            self.assertTrue(torch.equal(result, same))

    def test_other_views(self):
        x = _inputs(dtype=_HALF)
        expected = kda_step(**x)
        views = {
            name: value.transpose(0, 1).contiguous().transpose(0, 1)
            for name, value in x.items()
            if name != "state"
        }
        gaps = x["k"].new_full((*x["k"].shape, 2), torch.nan)
        gaps[..., 0] = x["k"]
        views["k"] = gaps[..., 0]
        views["state"] = x["state"].mT.contiguous().mT
        for result, same in zip(kda_step(**(x | views)), expected, strict=True):
            self.assertTrue(torch.equal(result, same))

    def test_expanded(self):
        x = _inputs()
        views = x | {
            "q": x["q"][:1].expand_as(x["q"]),
            "beta": x["beta"][:, :1].expand_as(x["beta"]),
            "state": x["state"][:1].expand_as(x["state"]),
        }
        dense = {name: value.contiguous() for name, value in views.items()}
        for result, same in zip(kda_step(**views), kda_step(**dense), strict=True):
            self.assertTrue(torch.equal(result, same))


class CallTest(parameterized.TestCase):
    def test_one_launch(self):
        for flags in ({}, _MODEL, {"inplace_final_state": True}):
            with launch.record() as launches:
                kda_step(**_inputs(**flags))
            self.assertEqual([each.name for each in launches], ["kda_step"])

    def test_empty(self):
        with launch.record() as launches:
            o, state = kda_step(**_inputs(b=0))
        self.assertEqual((o.shape, state.shape), ((0, 4, 24), (0, 4, 32, 24)))
        self.assertEmpty(launches)

    def test_gradients_are_refused(self):
        x = _inputs()
        expected = kda_step(**x)
        x["beta"].requires_grad_()
        for in_place in (False, True):
            with self.assertRaisesRegex(NotImplementedError, "^beta: got a tensor that requires"):
                kda_step(**x, inplace_final_state=in_place)
        with torch.no_grad():
            self.assertTrue(torch.equal(kda_step(**x)[0], expected[0]))

    def test_lazy_views_are_not_written(self):
        x = _inputs()
        pairs = torch.view_as_complex(torch.stack((x["state"], -x["state"]), dim=-1))
        for bit, view in (("negative", pairs.conj().imag), ("conjugate", pairs.conj())):
            with self.assertRaisesRegex(ValueError, f"^state: got a view with PyTorch's {bit} bit"):
                kda_step(**(x | {"state": view}), inplace_final_state=True)
        # A state that is only read may be such a view.
        y = x | {"state": torch._neg_view(-x["state"])}
        for found, expected in zip(kda_step(**y), kda_step(**x), strict=True):
            self.assertTrue(torch.equal(found, expected))

    def test_tangents_are_refused(self):
        x = _inputs()
        kda_step(**x)  # a call like an earlier one is no way around
        message = "^beta: got a tensor with a tangent, but kda_step has no forward-mode"
        with forward_ad.dual_level():
            y = x | {"beta": forward_ad.make_dual(x["beta"], x["beta"])}
            with self.assertRaisesRegex(NotImplementedError, message):
                kda_step(**y)
        with self.assertRaisesRegex(NotImplementedError, message):
            torch.func.jvp(
                lambda beta: kda_step(**(x | {"beta": beta})), (x["beta"],), (x["beta"],)
            )

    def test_errors_come_through_torch(self):
        x = _inputs()
        with self.assertRaisesRegex(TypeError, "^k: got dtype torch.float16, allowed: torch.float"):
            kda_step(**(x | {"k": x["k"].half()}))
        with self.assertRaisesRegex(TypeError, "^q: got list, allowed: torch.Tensor"):
            kda_step(**(x | {"q": [1.0]}))
        with self.assertRaisesRegex(TypeError, "^scale: got '1' of type str"):
            kda_step(**x, scale="1")

    if not unit.DEVICE.is_accelerator:

        def test_indices_on_the_cpu_are_checked(self):
            x = _inputs(n=2, indices=(1, 1, 0))
            kept = x["state"].clone()
            with self.assertRaisesRegex(ValueError, r"^state_indices\[1\]: got 1, which state_ind"):
                kda_step(**x, inplace_final_state=True)
            x["state_indices"][2] = 2
            with self.assertRaisesRegex(ValueError, r"^state_indices\[2\]: got 2, allowed: below"):
                kda_step(**x)
            self.assertTrue(torch.equal(x["state"], kept))

    else:

        def test_an_index_beyond_the_pool_shows(self):
            x = _inputs(n=2, indices=(1, 2, 0))
            kept = x["state"].clone()
            o, state = kda_step(**x)
            self.assertTrue(o[1].isnan().all() and state[1].isnan().all())
            self.assertTrue(o[::2].isfinite().all() and state[::2].isfinite().all())
            o, state = kda_step(**x, inplace_final_state=True)
            self.assertTrue(o[1].isnan().all() and state.isfinite().all())
            self.assertFalse(torch.equal(state, kept))


class RepeatTest(repeats.TestCase):
    """A call like an earlier one is neither checked nor planned again (ops.common.calls)."""

    def _call(self, x):
        x = x | {"state": x["state"].clone()}
        o, state = kda_step(**x)
        self.assertIs(state is x["state"], x.get("inplace_final_state", False))
        return o, state

    def assert_same(self, found, expected):
        for result, other in zip(found, expected, strict=True):
            self.assertTrue(torch.equal(result, other))
            self.assertTrue(torch.equal(result.signbit(), other.signbit()))

    @parameterized.product(
        inplace_final_state=(False, True), dtype=(torch.float32, _HALF), indices=(None, (3, -1, 0))
    )
    def test_values_and_addresses_are_new(self, inplace_final_state, dtype, indices):
        own = {"dtype": dtype, "indices": indices, "n": 5 if indices else None, **_MODEL}
        own["inplace_final_state"] = inplace_final_state
        x, y = _inputs(**own), _inputs(seed=1, **own)
        self._call(x)
        for z in (y, x):
            expected = repeats.planned(self._call, z)
            self.assert_same(repeats.repeated(self._call, z), expected)

    @parameterized.parameters(
        ({"scale": 0.5}, {"scale": 0.25}),
        ({"scale": 0.0}, {"scale": -0.0}),
        ({"inplace_final_state": False}, {"inplace_final_state": True}),
        ({"inplace_final_state": True}, {"inplace_final_state": False}),
        ({"use_qk_l2norm_in_kernel": True}, {}),
        ({"use_beta_sigmoid_in_kernel": True}, {}),
        ({"allow_neg_eigval": True, **_MODEL}, _MODEL),
        ({"lower_bound": -3.0, **_MODEL}, {"lower_bound": -4.0, **_MODEL}),
        ({"lower_bound": -3.0, **_MODEL}, _MODEL),
    )
    def test_other_options_are_another_call(self, first, second):
        x = _inputs(**second)
        expected = repeats.planned(self._call, x)
        self._call(_inputs(**first))
        self.assert_same(self._call(x), expected)

    if not unit.DEVICE.is_accelerator:  # those of a device are not read

        def test_indices_on_the_host_are_checked_each_time(self):
            x = _inputs(n=5, indices=(3, -1, 0))
            self._call(x)
            with self.assertRaisesRegex(ValueError, r"^state_indices\[1\]: got 5, allowed"):
                self._call(x | {"state_indices": torch.tensor([3, 5, 0], dtype=torch.int32)})
            x["inplace_final_state"] = True
            self._call(x)
            with self.assertRaisesRegex(ValueError, r"^state_indices\[2\]: got 3, which"):
                self._call(x | {"state_indices": torch.tensor([3, -1, 3], dtype=torch.int32)})

    def test_errors_of_a_call_that_is_nearly_like_an_earlier_one(self):
        x = _inputs()
        self._call(x)
        with self.assertRaisesRegex(TypeError, "^use_qk_l2norm_in_kernel: got 0 of type int"):
            self._call(x | {"use_qk_l2norm_in_kernel": 0})
        with self.assertRaisesRegex(ValueError, "^g: got shape"):
            self._call(x | {"g": x["g"][:, :1]})

    def test_a_backward_does_not_get_new_states_for_old_ones(self):
        x = _inputs()
        weight = torch.ones_like(x["state"]).requires_grad_()
        for _ in range(2):  # planned, then repeated
            product = (weight * x["state"]).sum()
            with torch.no_grad():
                kda_step(**x, inplace_final_state=True)
            with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
                product.backward()


class TorchLibraryTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        # It remembers which arguments other tests changed, and makes symbols of them.
        torch._dynamo.reset()

    def _arguments(self, **changes):
        """In the order of the schema."""
        x = _inputs(**changes)
        flags = [x.pop(name, False) for name in (*_MODEL, "allow_neg_eigval")]
        optional = [x.pop(name, None) for name in ("state_indices", "A_log", "dt_bias")]
        return (*x.values(), *optional, *flags, None, None)

    @parameterized.parameters({}, _MODEL, {"n": 4, "indices": (2, -1, 0), "dtype": torch.bfloat16})
    def test_opcheck(self, **changes):
        for op in (torch.ops.ascend_ops.kda_step, torch.ops.ascend_ops.kda_step_):
            torch.library.opcheck(op.default, self._arguments(**changes))

    @parameterized.parameters(False, True)
    def test_compile(self, in_place):
        # aot_eager: what is tested is the tracing, and inductor needs a C++ compiler.
        def doubled(x):
            o, state = kda_step(**x, inplace_final_state=in_place)
            return 2 * o, state

        compiled = torch.compile(doubled, backend="aot_eager", fullgraph=True)
        for b in (3, 4):
            expected = doubled(_inputs(b=b, **_MODEL))
            found = compiled(_inputs(b=b, **_MODEL))
            for result, same in zip(found, expected, strict=True):
                self.assertTrue(torch.equal(result, same))

    def test_without_memory(self):
        x = {name: value.to("meta") for name, value in _inputs(dtype=_HALF).items()}
        o, state = kda_step(**x)
        self.assertEqual((o.shape, o.dtype, o.device.type), ((3, 4, 24), _HALF, "meta"))
        self.assertEqual((state.shape, state.dtype), ((3, 4, 32, 24), torch.float32))
        with fake_tensor.FakeTensorMode() as mode:
            y = {n: mode.from_tensor(v) for n, v in _inputs(n=9, indices=(0, 1, 2)).items()}
            o, state = kda_step(**y)
            self.assertEqual(state.shape, (3, 4, 32, 24))
            self.assertIs(kda_step(**y, inplace_final_state=True)[1], y["state"])


if __name__ == "__main__":
    absltest.main()
