"""Tests of the case table and of what the spec declares; NumPy only."""

import sys

from absl.testing import absltest

from ops.chunk_gla_fwd_o_gk import cases as case_table
from ops.chunk_gla_fwd_o_gk import spec as op_spec
from testing import cases

_CI = cases.select(case_table.CASES, ["ci"])
_BY_NAME = {case.name: case for case in case_table.CASES}


class CasesTest(absltest.TestCase):
    def test_needs_neither_torch_nor_triton(self):
        self.assertNotIn("torch", sys.modules)
        self.assertNotIn("triton", sys.modules)

    def test_ci_cases_cover_the_contract(self):
        self.assertEqual({c.tensors["q"].dtype for c in _CI}, {"float16", "bfloat16", "float32"})
        for name in ("A", "h"):
            pairs = {(c.tensors["q"].dtype, c.tensors[name].dtype) for c in _CI}
            self.assertGreaterEqual(len(pairs), 4, name)
        self.assertEqual({c.attributes["chunk_size"] for c in _CI}, {32, 64})
        self.assertEqual({c.attributes["index_dtype"] for c in _CI}, {"int32", "int64"})
        lengths = {c.shape("q")[1] for c in _CI}
        self.assertContainsSubset({0, 1, 15, 16, 17, 63, 64, 65, 129}, lengths)
        self.assertContainsSubset({1, 17, 60, 96, 128, 256}, {c.shape("q")[3] for c in _CI})
        self.assertTrue(any(c.shape("v")[2] > c.shape("q")[2] for c in _CI))
        layouts = {spec.layout for case in _CI for spec in case.tensors.values()}
        self.assertEqual(layouts, set(cases.LAYOUTS))
        behind = [c for c in _CI if c.attributes["cu_seqlens"] and op_spec.kda.sizes(c)["slack"]]
        self.assertNotEmpty(behind)

    def test_what_is_compiled_for_ascend_has_every_path(self):
        problems = [op_spec.problem_of(case) for case in cases.for_ascend(case_table.CASES)]
        self.assertEqual({p.dtype for p in problems}, {"float16", "bfloat16", "float32"})
        self.assertEqual({p.C for p in problems}, {32, 64})
        self.assertEqual({p.packed for p in problems}, {False, True})
        self.assertTrue(any(p.K > 128 and p.dtype == "float32" for p in problems))  # K tiles

    def test_costs(self):
        case = _BY_NAME["perf_b1_t8192_h32"]
        rows = 8192 * 32
        costs = op_spec.costs(case)
        self.assertEqual(costs.matrix_flops, rows * 2 * (128 * 128 + 64 * 128))
        self.assertEqual(costs.bytes, rows * (2 * 128 + 4 * 128 + 4 * 128 + 2 * 64 + 2 * 256))
        self.assertEqual(op_spec.launches(case, "cuda"), 1)
        self.assertEqual(op_spec.workspace_bytes(case, "cuda", 1056), 0)
        self.assertEqual(op_spec.launches(_BY_NAME["packed_empty"], "cuda"), 0)
        packed = op_spec.workspace_bytes(_BY_NAME["packed_0"], "cuda", 1056)
        self.assertEqual(packed, 4 * (2 * 5 + 2 * 4))
        gate = op_spec.workspace_bytes(_BY_NAME["fp16_gate"], "cuda", 1056)
        self.assertEqual(gate, 70 * 2 * 32 * 4)


if __name__ == "__main__":
    absltest.main()
