"""Tests of the case tables and of what the specs declare; NumPy only."""

import sys
import types
from unittest import mock

import numpy as np
from absl.testing import absltest, parameterized

from ops.chunk_kda import bwd_spec, bwd_wy_dqkg_fused_spec
from testing import cases

_BWD = {case.name: case for case in bwd_spec.SPEC.cases}
_WY = {case.name: case for case in bwd_wy_dqkg_fused_spec.SPEC.cases}


def _sizes(case):
    """(B, T, H, HV, K, V)"""
    return (*case.shape("q")[:3], case.shape("v")[2], case.shape("q")[3], case.shape("v")[3])


class CasesTest(parameterized.TestCase):
    def test_needs_neither_torch_nor_triton(self):
        self.assertNotIn("torch", sys.modules)
        self.assertNotIn("triton", sys.modules)

    def test_numbers(self):
        for tag, least in (("ci", 20), ("full", 60), ("perf", 5)):
            self.assertGreaterEqual(len(cases.select(list(_BWD.values()), [tag])), least)
        self.assertGreaterEqual(len(cases.select(list(_WY.values()), ["ci"])), 20)

    def test_small_cases_are_small(self):
        for table in (_BWD, _WY):
            for case in cases.select(list(table.values()), ["ci"]):
                _, t, _, value_heads, k_dim, v_dim = _sizes(case)
                self.assertLessEqual(t, 200, case.name)
                self.assertLessEqual(value_heads, 6, case.name)
                self.assertLessEqual(k_dim * v_dim, 128 * 128, case.name)

    @parameterized.parameters("ci", "full")
    def test_the_contract_is_covered(self, tag):
        chosen = cases.select(list(_BWD.values()), [tag])
        axes = [set(axis) for axis in zip(*map(_sizes, chosen), strict=True)]
        lengths = {1, 15, 16, 17, 63, 64, 65, 129} | ({0} if tag == "ci" else {2049})
        self.assertContainsSubset(lengths, axes[1])
        self.assertContainsSubset({60, 64, 96, 100, 128, 256}, axes[4])
        self.assertContainsSubset({60, 64, 96, 100, 128, 256}, axes[5])
        self.assertEqual({c.attributes["chunk_size"] for c in chosen}, {32, 64})
        dtypes = {c.tensors["q"].dtype for c in chosen}
        self.assertEqual(dtypes, {"float16", "bfloat16", "float32"})
        packings = {c.attributes["cu_seqlens"] for c in chosen}
        self.assertContainsSubset(
            {(0, 1, 64, 65, 129), (0, 17, 80, 145), (0, 0, 63, 128, 130), (0, 31, 96, 160)},
            packings,
        )
        self.assertIn(tuple(range(33)), packings)
        self.assertTrue(any(bwd_spec.problem_of(case).slack for case in chosen))
        gates = {bwd_spec.problem_of(case).gate for case in chosen}
        self.assertEqual(gates, {"given", "softplus", "bounded"})
        self.assertEqual({c.attributes["disable_recompute"] for c in chosen}, {True, False})
        self.assertTrue(any(c.attributes["scale"] == 0 for c in chosen))
        self.assertTrue(any((c.attributes["scale"] or 0) < 0 for c in chosen))
        layouts = {c.tensors["q"].layout for c in chosen}
        self.assertContainsSubset({"slice", "permuted"}, layouts)
        self.assertTrue(any(c.tensors["beta"].dtype != "float32" for c in chosen))
        self.assertTrue(any(h < hv for _, _, h, hv, *_ in map(_sizes, chosen)))

    def test_both_styles_are_common(self):
        for table in (_BWD, _WY):
            uniform = [type(c.tensors["q"].values).__name__ == "Uniform" for c in table.values()]
            self.assertBetween(sum(uniform) / len(uniform), 0.35, 0.65)

    @parameterized.parameters(
        ("masked_tokens", "log_gate", {-1000.0, np.float32(-0.3), np.float32(-0.02)}),
        ("full_gate_5_bfloat16", "log_gate", {-5.0}),
        ("gate_0", "log_gate", {0.0}),
        ("beta_0", "beta", {0.0}),
        ("full_beta_1", "beta", {1.0}),
        ("bounded_steep", "A_log", {1.5, 100.0}),
    )
    def test_special_values(self, case, tensor, values):
        self.assertEqual(
            set(np.unique(_BWD[case].sample(tensor)).tolist()), set(map(float, values))
        )

    def test_only_the_diagonal(self):
        do = _BWD["diagonal_only"].sample("do")
        self.assertTrue(do[:, 0].all())
        self.assertFalse(do[:, 1:].any())

    def test_limits_of_devices(self):
        big = bwd_spec.problem_of(_BWD["full_b2048_t1"])
        self.assertGreaterEqual(big.chunks * big.HV, 65536)
        far = bwd_spec.problem_of(_BWD["full_offsets"])
        self.assertGreater(far.chunks * far.HV * far.K * far.V, 2**31)

    def test_performance_shapes(self):
        perf = {case.name: case for case in cases.select(list(_BWD.values()), ["perf"])}
        self.assertEqual(
            [_sizes(case) for case in perf.values()],
            [
                (1, 8192, 32, 32, 128, 128),
                (4, 4096, 16, 16, 128, 128),
                (1, 32768, 16, 16, 128, 128),
                (1, 16384, 32, 32, 128, 128),
                (1, 8192, 16, 32, 128, 128),
            ],
        )
        self.assertEqual(
            perf["perf_packed_h32"].attributes["cu_seqlens"],
            (0, 117, 1500, 1501, 5000, 8192, 9000, 12001, 16384),
        )
        for case in perf.values():
            self.assertEqual(case.tensors["q"].dtype, "bfloat16")
            self.assertEqual(case.attributes["chunk_size"], 64)


class SpecTest(parameterized.TestCase):
    def test_costs_of_the_contracts_example(self):
        # The contract: 118 GFLOP and 806 MB. Its formulas form w and dw, which cancel out here.
        costs = bwd_spec.costs(_BWD["perf_b1_t8192_h32"])
        self.assertAlmostEqual(costs.bytes / 1e6, 806, delta=2)
        self.assertAlmostEqual(costs.matrix_flops / 1e9, 107.4, delta=0.1)

    def test_bytes_by_hand(self):
        rows = 128 * 4
        read = 128 * 2 * 64 * 2 * 2 + rows * (2 * 64 * 2 + 2 * 64 * 2 + 64 * 4 + 4)
        written = 128 * 2 * 64 * 2 * 2 + rows * (64 * 2 + 64 * 4 + 4)
        states = 3 * 4 * 64 * 64 * 4
        self.assertEqual(bwd_spec.costs(_BWD["example"]).bytes, read + written + states)
        read = 128 * 2 * 64 * 2 * 2 + rows * (4 * 64 * 2 + 64 * 2 + 64 * 4 + 4)
        states = 2 * 2 * 4 * 64 * 64 * 2
        written = rows * (3 * 64 * 4 + 64 * 2 + 4 + 64 * 4)
        costs = bwd_wy_dqkg_fused_spec.costs(_WY["example"])
        self.assertEqual(costs.bytes, read + states + written)

    def test_matrix_work_by_hand(self):
        per_row = 3 * 64 * 64 + 6 * 64 * 64
        costs = bwd_wy_dqkg_fused_spec.costs(_WY["example"])
        self.assertEqual(costs.matrix_flops, 2 * 128 * 4 * per_row)
        full, kept = (
            bwd_spec.costs(_BWD[name]).matrix_flops for name in ("only_dht", "kept")
        )  # both SMALL
        self.assertEqual(full - kept, 2 * 70 * 2 * (2 * 32 * 32 + 64 * 32))

    def test_slack_costs_no_work(self):
        costs = bwd_spec.costs(_BWD["packed_slack"])
        per_row = 8 * 32 * 32 + 9 * 32 * 32
        self.assertEqual(costs.matrix_flops, 2 * 160 * per_row)

    def test_problems(self):
        problem = bwd_spec.problem_of(_BWD["softplus_packed"])
        self.assertEqual(
            (problem.B, problem.T, problem.N, problem.NT, problem.gate, problem.computes_gate),
            (1, 100, 3, 4, "softplus", True),
        )
        problem = bwd_spec.problem_of(_BWD["only_dht"])
        self.assertEqual((problem.Aqk_dtype, problem.dtype), ("float32", "float16"))
        self.assertEqual((problem.has_initial_state, problem.has_dht), (False, True))
        self.assertTrue(bwd_spec.problem_of(_BWD["packed_nothing"]).empty)
        self.assertFalse(bwd_spec.problem_of(_BWD["kept_bounded"]).computes_gate)
        problem = bwd_wy_dqkg_fused_spec.problem_of(_WY["packed_slack"])
        self.assertEqual((problem.N, problem.NT, problem.slack), (4, 6, True))

    def test_the_plan_is_asked(self):
        plan = types.ModuleType("ops.chunk_kda.plan")
        plan.launch_count = lambda problem, device, cores: problem.NT * cores
        plan.workspace_bytes = lambda problem, device, cores: 1000
        plan.wy_launch_count = lambda problem, device, cores: 1
        plan.wy_workspace_bytes = lambda problem, device, cores: 0
        import ops.chunk_kda

        with (
            mock.patch.dict(sys.modules, {plan.__name__: plan}),
            mock.patch.object(ops.chunk_kda, "plan", plan, create=True),
        ):
            self.assertEqual(bwd_spec.launches(_BWD["t65"], "cuda", cores=3), 6)
            self.assertEqual(bwd_spec.launches(_BWD["no_tokens"], "cuda", cores=3), 0)
            self.assertEqual(bwd_spec.workspace_bytes(_BWD["t65"], "cuda", cores=3), 1000)
            copied = 2 * 40 * (2 * 32 + 2 * 2 * 32)
            self.assertEqual(
                bwd_spec.workspace_bytes(_BWD["strided"], "cuda", cores=3), 1000 + copied
            )
            widened = 40 * 2 * 24 * 4
            self.assertEqual(
                bwd_spec.workspace_bytes(_BWD["fp32_chunk32"], "cuda", cores=3), 1000 + widened
            )
            self.assertEqual(bwd_spec.workspace_bytes(_BWD["permuted"], "cuda", cores=3), 1000)
            wy = bwd_wy_dqkg_fused_spec
            self.assertEqual(wy.launches(_WY["t1"], "cuda", cores=3), 1)
            copied = 2 * 40 * (2 * 32 + 4 * 2 * 32)
            self.assertEqual(wy.workspace_bytes(_WY["strided"], "cuda", cores=3), copied)

    def test_outputs_that_hang_on_inputs(self):
        names = {
            case: [output.name for output in bwd_spec.SPEC.outputs_in(_BWD[case])][5:]
            for case in ("example", "only_dht", "softplus", "bounded_plain", "softplus_bf16")
        }
        self.assertEqual(
            names,
            {
                "example": ["dh0"],
                "only_dht": [],
                "softplus": ["dh0", "dA_log", "ddt_bias"],
                "bounded_plain": ["dh0"],
                "softplus_bf16": ["dh0", "dA_log"],
            },
        )


if __name__ == "__main__":
    absltest.main()
