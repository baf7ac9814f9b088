"""Tests of kda_step's argument contract: each check with its message, copies. No triton."""

import sys

import numpy as np
import torch
from absl.testing import absltest, parameterized

from ops.kda_step import contract, plan

_B, _H, _HV, _K, _V, _N = 3, 2, 4, 16, 8, 5
_HALF = torch.float16


def _arguments(**changes):
    return {
        "q": torch.zeros(_B, _H, _K, dtype=_HALF),
        "k": torch.zeros(_B, _H, _K, dtype=_HALF),
        "v": torch.zeros(_B, _HV, _V, dtype=_HALF),
        "g": torch.zeros(_B, _HV, _K),
        "beta": torch.zeros(_B, _HV),
        "state": torch.zeros(_B, _HV, _K, _V),
    } | changes


def _full(**changes):
    return (
        _arguments(
            state=torch.zeros(_N, _HV, _K, _V),
            state_indices=torch.zeros(_B, dtype=torch.int32),
            use_gate_in_kernel=True,
            A_log=torch.zeros(_HV),
            dt_bias=torch.zeros(_HV * _K),
        )
        | changes
    )


_SHAPES = {
    "k": "[B, H, K] = [3, 2, 16]",
    "v": "[B, HV, V] = [3, 4, 8]",
    "g": "[B, HV, K] = [3, 4, 16]",
    "beta": "[B, HV] = [3, 4]",
    "state_indices": "[B] = [3]",
    "A_log": "[HV] = [4]",
    "dt_bias": "[HV * K] = [64]",
}
_TENSORS = ("q", "state", *_SHAPES)
_OPTIONAL = ("state_indices", "A_log", "dt_bias")
_FLAGS = (
    "inplace_final_state",
    "use_qk_l2norm_in_kernel",
    "use_gate_in_kernel",
    "use_beta_sigmoid_in_kernel",
    "allow_neg_eigval",
)

_NUMBERS = "finite float32 numbers, -3.4028235e+38 to 3.4028235e+38"


class CheckTest(parameterized.TestCase):
    def test_needs_no_triton(self):
        self.assertNotIn("triton", sys.modules)

    def _refused(self, kind, message, **changes):
        with self.assertRaises(kind) as caught:
            contract.check(**_full(**changes))
        self.assertEqual(str(caught.exception), message)

    def test_good_arguments(self):
        problem, inputs = contract.check(**_arguments())
        self.assertEqual(
            problem, plan.Problem(B=_B, H=_H, HV=_HV, K=_K, V=_V, N=_B, dtype="float16")
        )
        self.assertEqual((inputs.scale, inputs.lower_bound), (0.25, None))
        problem, inputs = contract.check(
            **_full(lower_bound=-5, use_qk_l2norm_in_kernel=True, scale=2)
        )
        self.assertEqual((problem.gate, problem.N, inputs.scale), (plan.BOUNDED, _N, 2.0))
        self.assertTrue(problem.has_A_log and problem.has_dt_bias and problem.indexed)
        self.assertEqual((problem.l2norm, problem.beta_logits), (True, False))
        for doubled in (False, True):
            problem, _ = contract.check(
                **_full(use_beta_sigmoid_in_kernel=True, allow_neg_eigval=doubled)
            )
            self.assertEqual((problem.beta_logits, problem.doubled), (True, doubled))
        self._refused(
            ValueError,
            "allow_neg_eigval: got True, allowed: False with use_beta_sigmoid_in_kernel=False",
            allow_neg_eigval=True,
        )
        self.assertEqual(contract.check(**_full())[0].gate, plan.SOFTPLUS)

    @parameterized.parameters(*_TENSORS)
    def test_not_a_tensor(self, name):
        message = f"{name}: got ndarray, allowed: torch.Tensor"
        self._refused(TypeError, message, **{name: np.zeros(3)})

    @parameterized.parameters(*(name for name in _TENSORS if name not in _OPTIONAL))
    def test_missing(self, name):
        message = f"{name}: got NoneType, allowed: torch.Tensor"
        self._refused(TypeError, message, **{name: None})

    @parameterized.parameters(*_TENSORS)
    def test_sparse(self, name):
        message = f"{name}: got layout torch.sparse_coo, allowed: torch.strided"
        self._refused(TypeError, message, **{name: _full()[name].to_sparse()})

    @parameterized.parameters(*_FLAGS)
    def test_flags(self, name):
        message = f"{name}: got 1 of type int, allowed: a bool"
        self._refused(TypeError, message, **{name: 1})

    @parameterized.parameters("scale", "lower_bound")
    def test_numbers(self, name):
        message = f"{name}: got '1' of type str, allowed: an int or a float"
        self._refused(TypeError, message, **{name: "1"})
        for number, got in ((np.nan, "nan"), (1e39, "1e+39"), (10**400, "an int of 1329 bits")):
            self._refused(ValueError, f"{name}: got {got}, allowed: {_NUMBERS}", **{name: number})

    @parameterized.parameters("q", "g", "beta")
    def test_dtypes(self, name):
        message = (
            f"{name}: got dtype torch.float64, allowed: torch.float16, torch.bfloat16, "
            "torch.float32"
        )
        self._refused(TypeError, message, **{name: _full()[name].double()})

    @parameterized.parameters("k", "v")
    def test_dtypes_of_q(self, name):
        message = f"{name}: got dtype torch.bfloat16, allowed: torch.float16, the dtype of q"
        self._refused(TypeError, message, **{name: _full()[name].bfloat16()})

    @parameterized.parameters("state", "A_log", "dt_bias")
    def test_dtypes_of_parameters(self, name):
        message = f"{name}: got dtype torch.float16, allowed: torch.float32"
        self._refused(TypeError, message, **{name: _full()[name].half()})

    def test_dtype_of_indices(self):
        message = "state_indices: got dtype torch.int64, allowed: torch.int32"
        self._refused(TypeError, message, state_indices=torch.zeros(_B, dtype=torch.int64))

    @parameterized.parameters(("q", "[B, H, K]"), ("v", "[B, HV, V]"), ("state", "[N, HV, K, V]"))
    def test_dimensions(self, name, axes):
        value = _full()[name][None]
        message = (
            f"{name}: got {value.dim()} dimensions {list(value.shape)}, "
            f"allowed: {axes.count(',') + 1}, {axes}"
        )
        self._refused(ValueError, message, **{name: value})

    @parameterized.parameters(*_SHAPES)
    def test_shapes(self, name):
        good = _full()[name]
        for axis in (0,) if name == "v" else range(good.dim()):
            wrong = torch.cat((good, good.narrow(axis, 0, 1)), axis)
            message = f"{name}: got shape {list(wrong.shape)}, allowed: {_SHAPES[name]}"
            self._refused(ValueError, message, **{name: wrong})

    def test_shape_of_states(self):
        message = "state: got shape [5, 3, 16, 8], allowed: [N, HV, K, V] = [5, 4, 16, 8]"
        self._refused(ValueError, message, state=torch.zeros(_N, 3, _K, _V))
        with self.assertRaisesRegex(ValueError, r"^state: got shape \[5, 4, 16, 8\], allowed: .*3"):
            contract.check(**_arguments(state=torch.zeros(_N, _HV, _K, _V)))
        message = "N (state.shape[0]): got 0, allowed: 1 to 2147483647"
        self._refused(ValueError, message, state=torch.zeros(0, _HV, _K, _V))

    @parameterized.parameters(
        ("q", (_B, 0, _K), "H (q.shape[1]): got 0, allowed: 1 or more"),
        ("q", (_B, _H, 257), "K (q.shape[2]): got 257, allowed: 1 to 256"),
        ("q", (_B, _H, 0), "K (q.shape[2]): got 0, allowed: 1 to 256"),
        ("v", (_B, _HV, 257), "V (v.shape[2]): got 257, allowed: 1 to 256"),
        ("v", (_B, 0, _V), "HV (v.shape[1]): got 0, allowed: 1 or more"),
        ("v", (_B, 3, _V), "HV (v.shape[1]): got 3, allowed: multiples of H = 2 (q.shape[1])"),
    )
    def test_sizes(self, name, shape, message):
        self._refused(ValueError, message, **{name: torch.zeros(shape, dtype=_HALF)})

    @parameterized.parameters(*(name for name in _TENSORS if name != "q"))
    def test_devices(self, name):
        message = f"{name}: got device meta, allowed: cpu, the device of q"
        self._refused(ValueError, message, **{name: _full()[name].to("meta")})

    @parameterized.parameters(
        ("A_log", torch.zeros(_HV), "Tensor"),
        ("dt_bias", torch.zeros(_HV * _K), "Tensor"),
        ("lower_bound", -5.0, "float"),
    )
    def test_arguments_of_the_gate(self, name, value, got):
        with self.assertRaises(ValueError) as caught:
            contract.check(**_arguments(**{name: value}))
        message = f"{name}: got {got}, allowed: None with use_gate_in_kernel=False"
        self.assertEqual(str(caught.exception), message)

    def test_gate_needs_a_rate(self):
        message = (
            "A_log: got None, allowed: a tensor with use_gate_in_kernel=True and no lower_bound"
        )
        self._refused(ValueError, message, A_log=None)
        self.assertFalse(contract.check(**_full(A_log=None, lower_bound=-1.0))[0].has_A_log)

    @parameterized.parameters(-5.1, 0.0, 1)
    def test_lower_bound(self, value):
        message = f"lower_bound: got {value}, allowed: a number in [-5, 0)"
        self._refused(ValueError, message, lower_bound=value)


class LayoutTest(parameterized.TestCase):
    def test_rows_are_read_in_place(self):
        x = _arguments()
        inputs = contract.check(**x)[1]
        for name, value in x.items():
            self.assertIs(getattr(inputs, name), value)
        wide = torch.zeros(_B, _H, 3 * _K, dtype=_HALF)[..., _K : 2 * _K]
        self.assertIs(contract.check(**_arguments(q=wide))[1].q, wide)

    def test_columns_with_gaps_are_copied(self):
        gaps = torch.zeros(_B, _H, _K, 2, dtype=_HALF)[..., 0]
        q = contract.check(**_arguments(q=gaps))[1].q
        self.assertEqual(q.stride(), (_H * _K, _K, 1))

    def test_states_with_gaps(self):
        transposed = torch.zeros(_B, _HV, _V, _K).mT
        state = contract.check(**_arguments(state=transposed))[1].state
        self.assertTrue(state.is_contiguous())
        with self.assertRaises(ValueError) as caught:
            contract.check(**_arguments(state=transposed, inplace_final_state=True))
        self.assertEqual(
            str(caught.exception),
            "state: got strides [512, 128, 1, 16], allowed with inplace_final_state=True: "
            "[HV * K * V or more, K * V, V, 1] = [512 or more, 128, 8, 1]",
        )

    def test_states_on_one_another(self):
        expanded = torch.zeros(1, _HV, _K, _V).expand(_B, -1, -1, -1)
        with self.assertRaisesRegex(ValueError, r"^state: got strides \[0, 128, 8, 1\], allowed"):
            contract.check(**_arguments(state=expanded, inplace_final_state=True))

    def test_pages_of_states(self):
        pages = torch.zeros(_B, 2 * _HV, _K, _V)[:, :_HV]
        x = _arguments(state=pages, inplace_final_state=True)
        self.assertIs(contract.check(**x)[1].state, pages)


class IndicesTest(parameterized.TestCase):
    def _refused(self, message, *arguments):
        with self.assertRaises(ValueError) as caught:
            contract.check_indices(*arguments)
        self.assertEqual(str(caught.exception), message)

    def test_allowed(self):
        contract.check_indices([4, -1, 0, -1], 5, True)
        contract.check_indices([4, 4, -7], 5, False)

    def test_beyond_the_pool(self):
        message = "state_indices[1]: got 5, allowed: below N = 5, or negative"
        self._refused(message, [0, 5], 5, False)

    def test_one_state_for_two_tokens(self):
        message = (
            "state_indices[3]: got 2, which state_indices[1] is too, "
            "allowed with inplace_final_state=True: each state once"
        )
        self._refused(message, [0, 2, -1, 2], 5, True)


if __name__ == "__main__":
    absltest.main()
