"""Tests of the case table and of what the spec declares; NumPy only."""

import math
import sys

from absl.testing import absltest, parameterized

from ops.mamba3_siso_fwd import cases as case_table
from ops.mamba3_siso_fwd import spec as op_spec
from testing import cases

_CI = cases.select(case_table.CASES, ["ci"])
_BY_NAME = {case.name: case for case in case_table.CASES}


def _sizes(case):
    """(B, S, Hq, H, K, V, A)"""
    b, s, hq, k_dim = case.tensors["q"].shape
    return (
        b,
        s,
        hq,
        case.tensors["v"].shape[2],
        k_dim,
        *(case.tensors[name].shape[3] for name in ("v", "angles")),
    )


class CasesTest(parameterized.TestCase):
    def test_needs_neither_torch_nor_triton(self):
        self.assertNotIn("torch", sys.modules)
        self.assertNotIn("triton", sys.modules)

    def test_the_example_is_the_quoted_one(self):
        example = case_table.EXAMPLE
        self.assertIn(example, _CI)
        self.assertEqual(_sizes(example), (1, 128, 2, 4, 64, 96, 32))
        self.assertEqual(example.tensors["q"].dtype, "float16")
        self.assertIsNotNone(example.tensors["d"])
        self.assertIsNotNone(example.tensors["z"])
        self.assertEqual(example.attributes, {"chunk_size": 64})

    def test_ci_cases_cover_the_contract(self):
        self.assertGreaterEqual(len(_CI), 24)
        dtypes = [case.tensors["q"].dtype for case in _CI]
        self.assertGreaterEqual(min(dtypes.count("float16"), dtypes.count("bfloat16")), 10)
        optional = {(c.tensors["d"] is None, c.tensors["z"] is None) for c in _CI}
        self.assertLen(optional, 4)
        self.assertEqual({case.attributes["chunk_size"] for case in _CI}, {32, 64})
        layouts = {spec.layout for case in _CI for spec in case.tensors.values() if spec}
        self.assertEqual(layouts, set(cases.LAYOUTS))
        # The sizes that broke other implementations.
        axes = list(zip(*map(_sizes, _CI), strict=True))
        self.assertContainsSubset({0, 1, 31, 33, 63, 65, 100, 2345}, axes[1])
        self.assertContainsSubset({64, 128, 256}, axes[4])
        self.assertContainsSubset({1, 16, 33, 96}, axes[5])
        self.assertContainsSubset({0, 2}, axes[6])
        self.assertIn((50, 10), [(sizes[1], sizes[3]) for sizes in map(_sizes, _CI)])
        self.assertIn((2, 6), [(sizes[2], sizes[3]) for sizes in map(_sizes, _CI)])

    @parameterized.parameters(
        ("adt_88", "adt", {-88.0}),
        ("adt_1e4", "adt", {-1e4}),
        ("adt_1e9", "adt", {-1e9}),
        ("adt_0", "adt", {0.0}),
        ("dt_0", "dt", {0.0}),
        ("angle_3e_4", "angles", {3e-4, -3e-4}),
    )
    def test_special_values(self, case, tensor, values):
        drawn = set(_BY_NAME[case].sample(tensor).ravel().tolist())
        self.assertLen(drawn, len(values))
        for expected, actual in zip(sorted(values), sorted(drawn), strict=True):
            self.assertAlmostEqual(actual, expected, delta=1e-7 * abs(expected))

    def test_resets_and_quarter_turns(self):
        self.assertIn(-math.inf, _BY_NAME["adt_inf"].sample("adt"))
        self.assertTrue((_BY_NAME["adt_positive"].sample("adt") > 0).any())
        turns = _BY_NAME["angle_quarter_turns"].sample("angles") / (math.pi / 2)
        self.assertLess(abs(turns - turns.round()).max(), 1e-5)
        self.assertGreater(len(set(turns.round().ravel().tolist())), 30)

    def test_performance_shapes(self):
        perf = [_sizes(case) for case in cases.select(case_table.CASES, ["perf"])]
        self.assertEqual(
            perf,
            [
                (8, 4096, 1, 32, 128, 64, 32),
                (1, 4096, 1, 32, 128, 64, 32),
                (1, 32768, 1, 32, 128, 64, 32),
                (4, 2048, 8, 32, 64, 64, 16),
                (2, 2048, 4, 16, 128, 128, 32),
                (1, 128, 2, 4, 64, 96, 16),
            ],
        )


class SpecTest(parameterized.TestCase):
    def test_costs_of_the_largest_performance_shape(self):
        # The contract's own figures: 60 GFLOP and 564 MB; 64 B of q and k per token more is 566 MB.
        costs = op_spec.costs(_BY_NAME["perf_b8_s4096"])
        self.assertAlmostEqual(costs.matrix_flops / 1e9, 60, delta=0.2)
        self.assertAlmostEqual(costs.bytes / 1e6, 564, delta=3)

    def test_bytes_by_hand(self):
        case = case_table.EXAMPLE
        tokens = 128
        halves = tokens * (2 * 2 * 64 + 3 * 4 * 96)  # q, k; v, z, out
        singles = tokens * (3 * 4 + 4 * 32) + 2 * 4 * 64 + 4  # gates, angles; biases, d
        self.assertEqual(op_spec.costs(case).bytes, 2 * halves + 4 * singles)

    def test_launches(self):
        self.assertEqual(op_spec.launches(case_table.EXAMPLE, "cuda", cores=1056), 1)
        self.assertEqual(op_spec.launches(_BY_NAME["no_tokens"], "cuda", cores=1056), 0)
        self.assertEqual(op_spec.launches(_BY_NAME["perf_b8_s4096"], "cuda", cores=1056), 1)
        self.assertEqual(op_spec.launches(_BY_NAME["perf_b1_s4096"], "cuda", cores=1056), 3)
        self.assertEqual(op_spec.launches(_BY_NAME["perf_b1_s4096"], "npu-arch32", cores=24), 2)
        self.assertEqual(op_spec.launches(_BY_NAME["s2345"], "npu-arch35", cores=32), 4)
        for name in ("s1", "s31", "s63"):
            self.assertEqual(op_spec.launches(_BY_NAME[name], "npu-arch32", cores=24), 1)

    def test_workspace(self):
        def workspace(case, device, cores):
            return op_spec.workspace_bytes(_BY_NAME[case], device, cores)

        gates = 4 * 4 * 2 * (6 * 64 + 8)  # 4 heads of 2 tiles of 64 tokens
        self.assertEqual(workspace("example", "cuda", 1056), 0)
        self.assertEqual(workspace("example", "cpu-reference", 4), gates)
        self.assertEqual(workspace("example_bf16", "cpu-reference", 4), gates + 4 * 128 * 4 * 96)
        self.assertEqual(workspace("example_bf16", "npu-arch32", 24), gates)
        self.assertEqual(workspace("s63", "npu-arch32", 24), 0)
        copied = 2 * 40 * (2 * 64 + 2 * 2 * 32) + 4 * 40 * (3 * 2 + 2 * 16)
        self.assertEqual(workspace("strided", "cuda", 1056), copied)
        gates = 3 * 2 * 4 * 40
        self.assertEqual(workspace("permuted", "cuda", 1056), 4 * gates)
        # Biases in float64 become fp32.
        self.assertEqual(workspace("k96_v80", "cuda", 1056), 4 * 2 * 2 * 96)
        # 7 states of 32 heads between 8 segments, each with a decay and a unit.
        states = 7 * 32 * (128 * 64 + 2)
        self.assertEqual(workspace("perf_b1_s4096", "cuda", 1056), 4 * states)


if __name__ == "__main__":
    absltest.main()
