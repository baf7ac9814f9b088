"""Tests of the case table and of what the spec declares; NumPy only."""

import sys

from absl.testing import absltest

from ops.kda_gate_chunk_cumsum import cases as case_table
from ops.kda_gate_chunk_cumsum import spec as op_spec
from testing import cases

_CI = cases.select(case_table.CASES, ["ci"])
_BY_NAME = {case.name: case for case in case_table.CASES}


class CasesTest(absltest.TestCase):
    def test_needs_neither_torch_nor_triton(self):
        self.assertNotIn("torch", sys.modules)
        self.assertNotIn("triton", sys.modules)

    def test_ci_cases_cover_the_contract(self):
        problems = [op_spec.problem_of(case) for case in _CI]
        self.assertEqual({p.gate for p in problems}, {0, 1, 2})
        formulas = {(p.gate, p.has_A_log, p.has_dt_bias) for p in problems}
        self.assertLen(formulas, 6)
        self.assertEqual({p.C for p in problems}, {32, 64})
        self.assertContainsSubset({0, 1, 15, 16, 17, 63, 64, 65, 129}, {p.T for p in problems})
        self.assertContainsSubset({1, 17, 100, 128, 256}, {p.K for p in problems})
        dtypes = {case.tensors["g"].dtype for case in _CI}
        self.assertEqual(dtypes, {"float16", "bfloat16", "float32"})
        layouts = {case.tensors["g"].layout for case in _CI}
        self.assertEqual(layouts, set(cases.LAYOUTS))

    def test_what_is_compiled_for_ascend_has_every_path(self):
        problems = [op_spec.problem_of(case) for case in cases.for_ascend(case_table.CASES)]
        self.assertEqual({p.gate for p in problems}, {0, 1, 2})
        self.assertEqual({p.packed for p in problems}, {False, True})
        self.assertEqual({p.has_A_log for p in problems if p.gate == 2}, {False, True})

    def test_special_values(self):
        self.assertIn(-1000.0, _BY_NAME["masked"].sample("g"))
        self.assertIn(-float("inf"), _BY_NAME["gate_inf"].sample("g"))

    def test_costs(self):
        case = _BY_NAME["perf_b1_t8192_h32"]
        count = 8192 * 32 * 128
        self.assertEqual(op_spec.costs(case).bytes, 6 * count + 4 * 32 + 4 * 32 * 128)
        self.assertEqual(
            (op_spec.launches(case, "cuda"), op_spec.workspace_bytes(case, "cuda")), (1, 0)
        )
        self.assertEqual(op_spec.workspace_bytes(_BY_NAME["strided"], "cuda"), 2 * 70 * 2 * 32 * 2)
        self.assertEqual(op_spec.workspace_bytes(_BY_NAME["packed_0"], "cuda"), 4 * (10 + 8))
        self.assertEqual(op_spec.launches(_BY_NAME["packed_empty"], "cuda"), 0)


if __name__ == "__main__":
    absltest.main()
