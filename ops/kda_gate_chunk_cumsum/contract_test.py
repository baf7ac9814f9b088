"""Tests of kda_gate_chunk_cumsum's argument contract: each check with its message. No triton."""

import math
import sys

import numpy as np
import torch
from absl.testing import absltest, parameterized

from ops.kda_gate_chunk_cumsum import contract, plan

_B, _T, _HV, _K, _C = 2, 70, 4, 16, 32


def _arguments(**changes):
    """As FLA's callers pass them."""
    return {
        "g": torch.zeros(_B, _T, _HV, _K, dtype=torch.float16),
        "A_log": torch.zeros(_HV),
        "dt_bias": torch.zeros(_HV * _K),
        "scale": 1 / math.log(2),
        "chunk_size": _C,
        "cu_seqlens": None,
        "chunk_indices": None,
        "lower_bound": None,
        "output_dtype": torch.float32,
        "use_graph": False,
    } | changes


def _packed(**changes):
    x = _arguments(cu_seqlens=torch.tensor([0, 0, 33, 60]))
    return x | {"g": x["g"][:1]} | changes


class CheckTest(parameterized.TestCase):
    def test_needs_no_triton(self):
        self.assertNotIn("triton", sys.modules)

    def _refused(self, kind, message, make=_arguments, **changes):
        with self.assertRaises(kind) as caught:
            contract.check(**make(**changes))
        self.assertEqual(str(caught.exception), message)

    def test_good_arguments(self):
        x = _arguments()
        problem, inputs = contract.check(**x)
        sizes = [getattr(problem, name) for name in ("B", "T", "HV", "K", "C", "N", "NT")]
        self.assertEqual(sizes, [_B, _T, _HV, _K, _C, _B, 3])
        self.assertEqual(problem.strides, (_T * _HV * _K, _HV * _K, _K))
        self.assertEqual(
            (problem.gate, problem.has_A_log, problem.has_dt_bias), (plan.SOFTPLUS, True, True)
        )
        self.assertIs(inputs.g, x["g"])

    def test_gates(self):
        for changes, expected in (
            ({"A_log": None, "dt_bias": None}, plan.GIVEN),
            ({"dt_bias": None}, plan.SOFTPLUS),
            ({"lower_bound": -5}, plan.BOUNDED),
            ({"lower_bound": -0.5, "A_log": None}, plan.BOUNDED),
        ):
            self.assertEqual(contract.check(**_arguments(**changes))[0].gate, expected)
        message = "dt_bias: got Tensor, allowed: None without A_log and lower_bound"
        self._refused(ValueError, message, A_log=None)

    def test_packed_arguments(self):
        problem, inputs = contract.check(**_packed())
        self.assertEqual((problem.N, problem.NT, problem.packed), (3, 3, True))
        self.assertEqual(inputs.cu_seqlens, (0, 0, 33, 60))

    @parameterized.parameters("g", "A_log", "dt_bias")
    def test_no_tensor(self, name):
        message = f"{name}: got ndarray, allowed: torch.Tensor"
        self._refused(TypeError, message, **{name: np.zeros(3)})
        message = f"{name}: got layout torch.sparse_coo, allowed: torch.strided"
        self._refused(TypeError, message, **{name: _arguments()[name].to_sparse()})

    def test_no_gate(self):
        self._refused(TypeError, "g: got NoneType, allowed: torch.Tensor", g=None)

    def test_dtypes(self):
        message = (
            "g: got dtype torch.float64, allowed: torch.float16, torch.bfloat16, torch.float32"
        )
        self._refused(TypeError, message, g=_arguments()["g"].double())
        for name in ("A_log", "dt_bias"):
            message = f"{name}: got dtype torch.float16, allowed: torch.float32"
            self._refused(TypeError, message, **{name: _arguments()[name].half()})

    @parameterized.parameters(
        ("g", (_T, _HV, _K), "g: got 3 dimensions [70, 4, 16], allowed: 4, [B, T, HV, K]"),
        ("g", (_B, _T, 0, _K), "HV (g.shape[2]): got 0, allowed: 1 or more"),
        ("g", (_B, _T, _HV, 257), "K (g.shape[3]): got 257, allowed: 1 to 256"),
        ("g", (_B, _T, _HV, 0), "K (g.shape[3]): got 0, allowed: 1 to 256"),
        ("A_log", (5,), "A_log: got shape [5], allowed: [HV] = [4]"),
        ("dt_bias", (_HV, _K), "dt_bias: got shape [4, 16], allowed: [HV * K] = [64]"),
    )
    def test_shapes(self, name, shape, message):
        self._refused(ValueError, message, **{name: torch.zeros(shape)})

    @parameterized.parameters("A_log", "dt_bias")
    def test_devices(self, name):
        message = f"{name}: got device meta, allowed: cpu, the device of g"
        self._refused(ValueError, message, **{name: _arguments()[name].to("meta")})

    def test_numbers_and_options(self):
        self._refused(ValueError, "chunk_size: got 16, allowed: 32 or 64", chunk_size=16)
        for value in (-5.1, 0.0, 1):
            message = f"lower_bound: got {value}, allowed: a number in [-5, 0)"
            self._refused(ValueError, message, lower_bound=value)
        message = "lower_bound: got '1' of type str, allowed: an int or a float"
        self._refused(TypeError, message, lower_bound="1")
        message = (
            "scale: got 1.0, allowed: None or 1 / ln 2 = 1.4426950408889634; "
            "kda_gate_chunk_cumsum has no other"
        )
        self._refused(NotImplementedError, message, scale=1.0)
        contract.check(**_arguments(scale=None))
        message = "use_graph: got True, allowed: False; kda_gate_chunk_cumsum has no other"
        self._refused(NotImplementedError, message, use_graph=True)
        with self.assertRaisesRegex(NotImplementedError, "^output_dtype: got dtype, allowed: torc"):
            contract.check(**_arguments(output_dtype=torch.float16))

    def test_packings(self):
        message = "B (g.shape[0]): got 2, allowed: 1 with cu_seqlens"
        self._refused(ValueError, message, cu_seqlens=torch.tensor([0, 70]))
        message = "cu_seqlens[-1]: got 71, allowed: 0 to T = 70"
        self._refused(ValueError, message, _packed, cu_seqlens=torch.tensor([0, 71]))
        message = "chunk_indices: got a tensor, allowed: None without cu_seqlens"
        self._refused(ValueError, message, chunk_indices=torch.zeros(3, 2, dtype=torch.int64))

    def test_rows_with_gaps_are_copied(self):
        gaps = torch.zeros(_B, _T, _HV, _K, 2)[..., 0]
        self.assertEqual(contract.check(**_arguments(g=gaps))[1].g.stride(-1), 1)


if __name__ == "__main__":
    absltest.main()
