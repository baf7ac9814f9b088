"""Tests of the case table and of what the spec declares; NumPy only."""

import sys

from absl.testing import absltest

from ops.kda_step import cases as case_table
from ops.kda_step import spec as op_spec
from testing import cases

_CI = cases.select(case_table.CASES, ["ci"])
_BY_NAME = {case.name: case for case in case_table.CASES}


class CasesTest(absltest.TestCase):
    def test_needs_neither_torch_nor_triton(self):
        self.assertNotIn("torch", sys.modules)
        self.assertNotIn("triton", sys.modules)

    def test_ci_cases_cover_the_contract(self):
        for name in ("q", "g", "beta"):
            dtypes = {case.tensors[name].dtype for case in _CI}
            self.assertEqual(dtypes, {"float16", "bfloat16", "float32"}, name)
        for name in ("A_log", "dt_bias", "state_indices"):
            self.assertLen({case.tensors[name] is None for case in _CI}, 2)
        for name in ("use_qk_l2norm_in_kernel", "use_beta_sigmoid_in_kernel", "allow_neg_eigval"):
            self.assertLen({case.attributes[name] for case in _CI}, 2)
        gates = {
            (c.attributes["use_gate_in_kernel"], c.attributes["lower_bound"], c.tensors["A_log"])
            for c in _CI
        }
        self.assertGreaterEqual(len(gates), 4)
        layouts = {spec.layout for case in _CI for spec in case.tensors.values() if spec}
        self.assertEqual(layouts, set(cases.LAYOUTS))
        widths = {case.shape("q")[2] for case in _CI}
        self.assertContainsSubset({1, 17, 60, 96, 100, 128, 256}, widths)
        self.assertContainsSubset({1, 5, 60, 100, 256}, {case.shape("v")[2] for case in _CI})

    def test_what_is_compiled_for_ascend_has_every_path(self):
        chosen = cases.for_ascend(case_table.CASES)
        problems = [op_spec.problem_of(case) for case in chosen]
        self.assertEqual({p.gate for p in problems}, {0, 1, 2})
        for name in ("l2norm", "beta_logits", "doubled", "indexed", "has_dt_bias"):
            self.assertEqual({getattr(p, name) for p in problems}, {False, True}, name)
        self.assertEqual({p.dtype for p in problems}, {"float16", "bfloat16", "float32"})
        self.assertTrue(any(p.HV > p.H for p in problems))

    def test_pools(self):
        self.assertIn(-1.0, _BY_NAME["slots"].sample("state_indices"))
        self.assertEqual(set(_BY_NAME["all_padding"].sample("state_indices").tolist()), {-1})
        shared = _BY_NAME["shared_slot"].sample("state_indices").tolist()
        self.assertLess(len(set(shared)), len(shared))

    def test_costs(self):
        case = _BY_NAME["perf_b128"]
        states = 2 * 128 * 32 * 128 * 128 * 4
        self.assertBetween(op_spec.costs(case).bytes, states, 1.03 * states)
        self.assertEqual(op_spec.launches(case, "cuda"), 1)
        self.assertEqual(op_spec.workspace_bytes(case, "cuda", 1056), 0)
        strided = op_spec.workspace_bytes(_BY_NAME["strided"], "cuda", 1056)
        self.assertEqual(strided, 2 * 2 * 4 * 2 * 64 + 4 * 4 * 64 * (2 + 4))
        self.assertEqual(
            op_spec.workspace_bytes(_BY_NAME["bf16_gate"], "cpu-reference", 4), 4 * 4 * 4 * 64
        )


if __name__ == "__main__":
    absltest.main()
