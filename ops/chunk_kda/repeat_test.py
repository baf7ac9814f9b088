"""Tests of calls like earlier ones, which are neither checked nor planned again (ops.common.calls),
on the device that the target is for."""

from unittest import mock

import torch
from absl.testing import absltest, parameterized

from ops.chunk_kda import dispatch, training
from ops.chunk_kda import test_calls as calls
from ops.common import backend
from ops.common import calls as repeated_calls
from testing import repeats

_HALF = torch.float16


def _intra(disable_recompute=False, **options):
    return calls.intra(**options) | {"disable_recompute": disable_recompute}


def _call_intra(arguments):
    return {name: x for name, x in calls.call_intra(arguments).items() if x is not None}


_FUNCTIONS = {
    "fwd": (calls.fwd, calls.call_fwd),
    "intra": (_intra, _call_intra),
    "bwd": (calls.bwd, calls.call_bwd),
    "wy": (calls.wy, calls.call_wy),
}
_PACKED = {"t": 40, "cu_seqlens": (0, 17, 17, 36)}


class RepeatTest(repeats.TestCase):
    def setUp(self):
        super().setUp()
        # What other tests called would hide that two calls are taken for one.
        self.enterContext(mock.patch.object(dispatch, "_calls", repeated_calls.Calls()))

    def assert_same(self, found, expected):
        self.assertEqual(set(found), set(expected))
        for name, result in found.items():
            self.assertEqual(result.dtype, expected[name].dtype, name)
            self.assertTrue(torch.equal(result, expected[name]), name)

    @parameterized.parameters(
        ("fwd", {}),
        ("fwd", {"dtype": torch.bfloat16, "gate": "bounded", **_PACKED}),
        ("fwd", {"heads": 1, "value_heads": 4, "gate": "softplus", "states": False}),
        ("fwd", {"use_qk_l2norm_in_kernel": True, "dtype": _HALF}),
        ("intra", {}),
        ("intra", {"disable_recompute": True, **_PACKED}),
        ("bwd", {}),
        ("bwd", {"dtype": torch.bfloat16, "gate": "softplus", **_PACKED}),
        ("bwd", {"heads": 1, "value_heads": 4, "gate": "bounded", "states": False}),
        ("bwd", {"keep": True, "dtype": _HALF, "v_dim": 80}),
        ("wy", {}),
        ("wy", {"dtype": _HALF, "chunk_size": 32, **_PACKED}),
    )
    def test_values_and_addresses_are_new(self, function, options):
        make, call = _FUNCTIONS[function]
        first = make(**options)
        expected_first = call(first)
        second = make(**options, seed=1)
        expected = repeats.planned(call, second)
        self.assert_same(repeats.repeated(call, second), expected)
        self.assert_same(repeats.repeated(call, first), expected_first)

    @parameterized.parameters(
        ("fwd", {"scale": 0.5}, {"scale": 0.25}),
        ("fwd", {"scale": 0.0}, {"scale": -0.0}),
        ("fwd", {"gate": "bounded"}, {"gate": "bounded", "lower_bound": -3.0}),
        ("fwd", {"gate": "bounded"}, {"gate": "softplus"}),
        ("fwd", {"chunk_size": 64}, {"chunk_size": 32}),
        ("fwd", {"output_final_state": True}, {"output_final_state": False}),
        ("fwd", {"output_final_state": False}, {"output_final_state": True}),
        ("fwd", {"lower_bound": -4.0}, {"lower_bound": -4.0, "use_gate_in_kernel": True}),
        ("fwd", {"states": True}, {"states": False}),
        ("fwd", {**_PACKED}, {"t": 40, "cu_seqlens": (0, 16, 17, 36)}),
        ("fwd", {"use_beta_sigmoid_in_kernel": True}, {}),
        ("intra", {"scale": 0.5}, {"scale": 0.25}),
        ("intra", {"disable_recompute": True}, {}),
        ("intra", {}, {"disable_recompute": True}),
        ("bwd", {"scale": 0.5}, {"scale": 0.25}),
        ("bwd", {"gate": "bounded"}, {"gate": "bounded", "lower_bound": -3.0}),
        ("bwd", {"gate": "softplus"}, {"gate": "bounded"}),
        ("bwd", {**_PACKED}, {"t": 40, "cu_seqlens": (0, 16, 17, 36)}),
        ("wy", {"scale": 0.5}, {"scale": 0.25}),
        ("wy", {**_PACKED}, {"t": 40, "cu_seqlens": (0, 16, 17, 36)}),
    )
    def test_other_options_are_another_call(self, function, options, others):
        make, call = _FUNCTIONS[function]
        # Tensors are drawn alike, so the options are all that differs.
        lower_bound = others.get("lower_bound")
        if lower_bound is not None and function == "bwd":
            others = {name: value for name, value in others.items() if name != "lower_bound"}
        first, second = make(**options), make(**others)
        if lower_bound is not None:
            second["lower_bound"] = lower_bound
        expected = repeats.planned(call, second)
        call(first)
        found = call(second)
        self.assert_same(found, expected)
        for name, result in found.items():
            self.assertTrue(torch.equal(result.signbit(), expected[name].signbit()), name)

    def test_what_was_copied_is_copied_again(self):
        x = calls.on_device(calls.fwd(t=20))
        for seed in (0, 1):
            y = calls.on_device(calls.fwd(t=20, seed=seed))
            y["q"] = y["q"].transpose(1, 3).contiguous().transpose(1, 3)
            y["initial_state"] = y["initial_state"].mT.contiguous().mT
            found = calls.call_fwd(y)
            self.assert_same(found, repeats.planned(calls.call_fwd, y))
        self.assert_same(calls.call_fwd(x), repeats.planned(calls.call_fwd, x))

    def test_one_tensor_in_two_places(self):
        x = calls.on_device(calls.fwd(t=20))
        x["q"] = x["k"]
        calls.call_fwd(x)
        y = calls.on_device(calls.fwd(t=20, seed=1))
        self.assert_same(calls.call_fwd(y), repeats.planned(calls.call_fwd, y))
        y["q"] = y["k"]
        self.assert_same(calls.call_fwd(y), repeats.planned(calls.call_fwd, y))

    def test_errors_of_a_call_that_is_nearly_like_an_earlier_one(self):
        x = calls.on_device(calls.bwd(t=20, gate="softplus"))
        calls.call_bwd(x)
        with self.assertRaisesRegex(ValueError, "^Aqk: got shape"):
            calls.call_bwd(x | {"Aqk": x["Aqk"][..., :32]})
        with self.assertRaisesRegex(ValueError, "^chunk_size: got 16"):
            calls.call_bwd(x | {"chunk_size": 16})
        with self.assertRaisesRegex(TypeError, "^safe_gate: got 1 of type int"):
            calls.call_bwd(x | {"safe_gate": 1})
        with self.assertRaisesRegex(ValueError, "^lower_bound: got None"):
            calls.call_bwd(x | {"safe_gate": True})
        x["q"] = x["q"].clone().requires_grad_()
        with torch.no_grad():
            calls.call_bwd(x)
            repeats.repeated(calls.call_bwd, x)
        with self.assertRaisesRegex(NotImplementedError, "^q: got a tensor that requires a grad"):
            calls.call_bwd(x)

    def test_gradients(self):
        def call(x):
            x = calls.on_device(x)
            do, dht = x.pop("do"), x.pop("dht")
            return training.gradients(do, dht, **x)

        def make(seed):
            x = calls.fwd(t=40, dtype=_HALF, use_qk_l2norm_in_kernel=True, seed=seed)
            del x["output_final_state"]
            generator = torch.Generator().manual_seed(seed)
            shapes = {"do": x["v"].shape, "dht": x["initial_state"].shape}
            drawn = {name: torch.randn(s, generator=generator) for name, s in shapes.items()}
            return x | {"do": drawn["do"].half(), "dht": drawn["dht"]}

        call(make(0))
        expected = repeats.planned(call, make(1))
        for found, result in zip(repeats.repeated(call, make(1)), expected, strict=True):
            self.assertEqual(found is None, result is None)
            if found is not None:
                self.assertTrue(torch.equal(found, result))

    def test_a_limit_of_programs_holds(self):
        x = calls.fwd(t=130)
        expected = calls.call_fwd(x)
        with (
            backend.limit_programs(1),
            mock.patch.object(dispatch, "plan_for", wraps=dispatch.plan_for) as plan_for,
        ):
            self.assert_same(calls.call_fwd(x), expected)
        plan_for.assert_called_once()


if __name__ == "__main__":
    absltest.main()
