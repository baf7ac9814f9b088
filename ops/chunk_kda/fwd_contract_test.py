"""Tests of the forward's argument contracts: each check with its message, strides, copies. No
triton."""

import math
import sys

import torch
from absl.testing import absltest

from ops.chunk_kda import fwd_contract
from ops.chunk_kda import problem as problem_lib

_B, _T, _H, _HV, _K, _V, _C = 2, 70, 2, 4, 16, 8, 32
_HALF = torch.float16


def _half(*shape):
    return torch.zeros(*shape, dtype=_HALF)


def _fwd(**changes):
    """Arguments of chunk_kda_fwd, with a given gate."""
    arguments = {
        "q": _half(_B, _T, _H, _K),
        "k": _half(_B, _T, _H, _K),
        "v": _half(_B, _T, _HV, _V),
        "g": torch.zeros(_B, _T, _HV, _K),
        "beta": torch.zeros(_B, _T, _HV),
        "initial_state": torch.zeros(_B, _HV, _K, _V),
        "output_final_state": True,
        "chunk_size": _C,
    }
    return arguments | changes


def _in_kernel(**changes):
    arguments = {
        "use_gate_in_kernel": True,
        "A_log": torch.zeros(_HV),
        "dt_bias": torch.zeros(_HV * _K),
    }
    return _fwd(**(arguments | changes))


def _intra(**changes):
    arguments = _fwd()
    kept = {name: arguments[name] for name in ("q", "k", "v", "beta", "chunk_size")}
    return kept | {"gk": arguments["g"]} | changes


class ContractTest(absltest.TestCase):
    def test_needs_no_triton(self):
        self.assertNotIn("triton", sys.modules)

    def test_problem(self):
        problem, inputs = fwd_contract.check_fwd(**_fwd())
        self.assertEqual(
            (problem.B, problem.T, problem.H, problem.HV, problem.K, problem.V, problem.C),
            (_B, _T, _H, _HV, _K, _V, _C),
        )
        self.assertEqual((problem.N, problem.NT, problem.packed), (_B, 3, False))
        self.assertEqual((problem.dtype, problem.Aqk_dtype, problem.Akk_dtype), ("float16",) * 3)
        self.assertEqual((problem.gate, problem.g_org_dtype), (problem_lib.GIVEN, "float32"))
        self.assertTrue(problem.forward and problem.computes_gate and problem.has_final_state)
        self.assertTrue(problem.has_initial_state)
        self.assertFalse(problem.has_A_log or problem.has_dt_bias or problem.has_dht)
        self.assertEqual(problem.strides.g_org, (_T * _HV * _K, _HV * _K, _K))
        self.assertEqual(problem.strides.g, (0, 0, 0))
        self.assertEqual(inputs.scale, _K**-0.5)
        self.assertEqual(set(inputs.tensors()), {"q", "k", "v", "g_org", "beta", "initial_state"})

    def test_gates(self):
        problem, inputs = fwd_contract.check_fwd(**_in_kernel(g=_half(_B, _T, _HV, _K)))
        self.assertEqual((problem.gate, problem.g_org_dtype), (problem_lib.SOFTPLUS, "float16"))
        self.assertTrue(problem.has_A_log and problem.has_dt_bias)
        self.assertIsNone(inputs.lower_bound)
        problem, inputs = fwd_contract.check_fwd(
            **_in_kernel(lower_bound=-5, A_log=None, dt_bias=None, safe_gate=True)
        )
        self.assertEqual((problem.gate, inputs.lower_bound), (problem_lib.BOUNDED, -5.0))
        self.assertFalse(problem.has_A_log or problem.has_dt_bias)
        # Then it describes gates that the caller computed.
        problem, inputs = fwd_contract.check_fwd(**_fwd(lower_bound=-7.0, safe_gate=True))
        self.assertEqual((problem.gate, inputs.lower_bound), (problem_lib.GIVEN, None))

    def test_packed(self):
        packed = {
            name: value[:1] if isinstance(value, torch.Tensor) else value
            for name, value in _fwd().items()
        }
        packed |= {"cu_seqlens": torch.tensor([0, 33, 33, 60]), "initial_state": None}
        problem, inputs = fwd_contract.check_fwd(**packed)
        self.assertEqual((problem.N, problem.NT, problem.slack), (3, 3, True))
        self.assertEqual(inputs.cu_seqlens, (0, 33, 33, 60))
        states = torch.zeros(2, _HV, _K, _V)
        with self.assertRaisesRegex(ValueError, r"^initial_state: got shape .* \[3, 4, 16, 8\]"):
            fwd_contract.check_fwd(**(packed | {"initial_state": states}))

    def test_refused(self):
        for name, value, kind, message in (
            ("q", None, TypeError, "^q: got NoneType, allowed: torch.Tensor"),
            ("q", _half(_B, _T, _H), ValueError, "^q: got 3 dimensions .* allowed: 4, "),
            ("q", torch.zeros(_B, _T, _H, _K).double(), TypeError, "^q: got dtype torch.float64"),
            ("k", _half(_B, _T, _HV, _K), ValueError, r"^k: got shape \[2, 70, 4, 16\], allowed: "),
            (
                "k",
                torch.zeros(_B, _T, _H, _K),
                TypeError,
                "^k: got dtype torch.float32, allowed: tor",
            ),
            (
                "v",
                _half(_B, _T, 3, _V),
                ValueError,
                r"^HV \(v.shape\[2\]\): got 3, allowed: multiples",
            ),
            (
                "v",
                _half(_B, _T, _HV, 257),
                ValueError,
                r"^V \(v.shape\[3\]\): got 257, allowed: 1 to",
            ),
            ("g", None, TypeError, "^g: got NoneType, allowed: torch.Tensor"),
            ("g", torch.zeros(_B, _T, _H, _K), ValueError, "^g: got shape .* allowed: "),
            (
                "g",
                torch.zeros(_B, _T, _HV, _K).int(),
                TypeError,
                "^g: got dtype torch.int32, allowed",
            ),
            (
                "g",
                torch.zeros(_B, _T, _HV, _K).to_sparse(),
                TypeError,
                "^g: got layout torch.sparse",
            ),
            ("beta", torch.zeros(_B, _T, _H), ValueError, "^beta: got shape .* allowed: "),
            (
                "beta",
                torch.zeros(_B, _T, _HV).double(),
                TypeError,
                "^beta: got dtype torch.float64",
            ),
            ("beta", torch.zeros(_B, _T, _HV, device="meta"), ValueError, "^beta: got device meta"),
            (
                "initial_state",
                _half(_B, _HV, _K, _V),
                TypeError,
                "^initial_state: got dtype torch.fl",
            ),
            (
                "initial_state",
                torch.zeros(_B, _HV, _V, _K),
                ValueError,
                "^initial_state: got shape",
            ),
            ("output_final_state", 1, TypeError, "^output_final_state: got 1 of type int"),
            (
                "use_gate_in_kernel",
                None,
                TypeError,
                "^use_gate_in_kernel: got None of type NoneType",
            ),
            (
                "use_gate_in_kernel",
                True,
                ValueError,
                "^A_log: got None, allowed: a tensor with use_g",
            ),
            ("safe_gate", "yes", TypeError, "^safe_gate: got 'yes' of type str"),
            ("scale", math.inf, ValueError, "^scale: got inf, allowed: finite float32 numbers"),
            ("lower_bound", "0", TypeError, "^lower_bound: got '0' of type str"),
            ("chunk_size", 16, ValueError, "^chunk_size: got 16, allowed: 32 or 64"),
            (
                "A_log",
                torch.zeros(_HV),
                ValueError,
                "^A_log: got Tensor, allowed: None with use_gate",
            ),
            (
                "dt_bias",
                torch.zeros(_HV * _K),
                ValueError,
                "^dt_bias: got Tensor, allowed: None with",
            ),
            (
                "cu_seqlens",
                torch.tensor([0, 70]),
                ValueError,
                r"^B \(q.shape\[0\]\): got 2, allowed: 1",
            ),
            (
                "chunk_indices",
                torch.tensor([0]),
                ValueError,
                "^chunk_indices: got a tensor, allowed:",
            ),
        ):
            with self.subTest(message), self.assertRaisesRegex(kind, message):
                fwd_contract.check_fwd(**_fwd(**{name: value}))

    def test_refused_gates(self):
        for name, value, kind, message in (
            (
                "A_log",
                None,
                ValueError,
                "^A_log: got None, allowed: a tensor with use_gate_in_kernel",
            ),
            ("A_log", torch.zeros(_H), ValueError, r"^A_log: got shape \[2\], allowed: \[HV\]"),
            (
                "A_log",
                _half(_HV),
                TypeError,
                "^A_log: got dtype torch.float16, allowed: torch.float32",
            ),
            (
                "dt_bias",
                torch.zeros(_K),
                ValueError,
                r"^dt_bias: got shape \[16\], allowed: \[HV \* K",
            ),
            (
                "dt_bias",
                _half(_HV * _K),
                TypeError,
                "^dt_bias: got dtype torch.float16, allowed: tor",
            ),
            (
                "lower_bound",
                0.0,
                ValueError,
                r"^lower_bound: got 0.0, allowed: a number in \[-5, 0\)",
            ),
            ("lower_bound", -5.1, ValueError, r"^lower_bound: got -5.1, allowed: a number in"),
            ("safe_gate", True, ValueError, "^lower_bound: got None, allowed: a number in"),
        ):
            with self.subTest(message), self.assertRaisesRegex(kind, message):
                fwd_contract.check_fwd(**_in_kernel(**{name: value}))

    def test_refused_by_intra(self):
        for name, value, kind, message in (
            ("gk", None, TypeError, "^gk: got NoneType, allowed: torch.Tensor"),
            ("gk", torch.zeros(_B, _T, _H, _K), ValueError, "^gk: got shape .* allowed: "),
            (
                "gk",
                torch.zeros(_B, _T, _HV, _K).double(),
                TypeError,
                "^gk: got dtype torch.float64",
            ),
            ("beta", None, TypeError, "^beta: got NoneType, allowed: torch.Tensor"),
            ("scale", True, TypeError, "^scale: got True of type bool"),
            ("chunk_size", 16, ValueError, "^chunk_size: got 16, allowed: 32 or 64"),
            ("disable_recompute", 0, TypeError, "^disable_recompute: got 0 of type int"),
            (
                "cu_seqlens",
                torch.tensor([0, 70]),
                ValueError,
                r"^B \(q.shape\[0\]\): got 2, allowed: 1",
            ),
        ):
            with self.subTest(message), self.assertRaisesRegex(kind, message):
                fwd_contract.check_intra(**_intra(**{name: value}))

    def test_problem_of_intra(self):
        problem, inputs = fwd_contract.check_intra(**_intra(gk=_half(_B, _T, _HV, _K)))
        self.assertTrue(problem.recompute)
        self.assertFalse(problem.forward or problem.computes_gate)
        self.assertEqual(inputs.g.dtype, torch.float32)
        self.assertEqual(problem.strides.g, (_T * _HV * _K, _HV * _K, _K))
        problem, _ = fwd_contract.check_intra(**_intra(disable_recompute=True))
        self.assertFalse(problem.recompute)

    def test_how_beta_comes_to_be(self):
        for given in ((False, False), (True, False), (True, True)):
            fwd_contract.check_beta_options(*given)
        with self.assertRaisesRegex(ValueError, "^allow_neg_eigval: got True, allowed: False with"):
            fwd_contract.check_beta_options(False, True)
        with self.assertRaisesRegex(TypeError, "^use_beta_sigmoid_in_kernel: got 1 of type int"):
            fwd_contract.check_beta_options(1, False)
        with self.assertRaisesRegex(TypeError, "^allow_neg_eigval: got None of type NoneType"):
            fwd_contract.check_beta_options(True, None)

    def test_boundaries_on_the_host(self):
        bounds = torch.tensor([0, 3, 5])
        self.assertIs(fwd_contract.on_host(bounds.clone(), bounds), bounds)
        for cu_seqlens, host, kind, message in (
            (None, bounds, ValueError, "^cu_seqlens_cpu: got a tensor, allowed: None without"),
            (bounds, [0, 3, 5], TypeError, "^cu_seqlens_cpu: got list, allowed: torch.Tensor"),
            (bounds, bounds[1:], ValueError, r"^cu_seqlens_cpu: got shape \[2\], allowed: "),
            (bounds, bounds.to("meta"), ValueError, "^cu_seqlens_cpu: got device meta, allowed: "),
        ):
            with self.assertRaisesRegex(kind, message):
                fwd_contract.on_host(cu_seqlens, host)

    def test_what_is_copied(self):
        x = _fwd()
        _, inputs = fwd_contract.check_fwd(**x)
        for name in ("q", "k", "v", "beta", "initial_state"):
            self.assertIs(getattr(inputs, name), x[name])
        self.assertIs(inputs.g_org, x["g"])
        wide = _half(_B, _T, _H, 2 * _K)
        problem, inputs = fwd_contract.check_fwd(**_fwd(q=wide[..., :_K], k=wide[..., ::2]))
        self.assertEqual(inputs.q.data_ptr(), wide.data_ptr())
        self.assertEqual(problem.strides.q[1], 2 * _H * _K)
        self.assertTrue(inputs.k.is_contiguous())


if __name__ == "__main__":
    absltest.main()
