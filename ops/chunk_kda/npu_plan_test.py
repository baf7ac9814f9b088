"""Tests of the plans for Ascend NPUs, with neither torch nor triton."""

import dataclasses
import sys

from absl.testing import absltest, parameterized

from ops.chunk_kda import (
    bwd_spec,
    bwd_wy_dqkg_fused_spec,
    fwd_intra_spec,
    fwd_plan,
    fwd_spec,
    npu_plan,
)
from ops.chunk_kda import plan as plan_lib
from ops.chunk_kda import problem as problem_lib

_CORES = {npu_plan.NPU_ARCH32: 24, npu_plan.NPU_ARCH35: 32}
_PROBLEM = problem_lib.Problem(
    B=1,
    T=8192,
    H=32,
    HV=32,
    K=128,
    V=128,
    C=64,
    N=1,
    NT=128,
    packed=False,
    slack=False,
    dtype="bfloat16",
    Aqk_dtype="bfloat16",
    Akk_dtype="bfloat16",
    beta_dtype="float32",
)
_IN_KERNEL = {
    "gate": problem_lib.SOFTPLUS,
    "g_org_dtype": "bfloat16",
    "has_A_log": True,
    "has_dt_bias": True,
}
_SPECS = (
    (bwd_spec, plan_lib.make_plan),
    (bwd_wy_dqkg_fused_spec, plan_lib.make_wy_plan),
    (fwd_spec, fwd_plan.make_plan),
    (fwd_intra_spec, fwd_plan.make_intra_plan),
)
_FORWARD = {"forward": True, "has_final_state": True}


def _plan(backend=npu_plan.NPU_ARCH32, maker=plan_lib.make_plan, limit=None, **changes):
    problem = dataclasses.replace(_PROBLEM, **changes)
    return maker(problem, backend, _CORES[backend], limit)


def _names(plan):
    return [kernel.kernel for kernel in plan.kernels]


class NpuPlanTest(parameterized.TestCase):
    def test_needs_neither_torch_nor_triton(self):
        self.assertNotIn("torch", sys.modules)
        self.assertNotIn("triton", sys.modules)

    def test_launches(self):
        few = {"T": 128, "NT": 2}
        tail = ["level_scores", "level_gradients"]
        plain = ["decayed", "forward_states", "reverse_states", *tail]
        self.assertEqual(_names(_plan(**few)), plain)
        self.assertEqual(
            _names(_plan(**few, **_IN_KERNEL)), ["cumulative_gate", *plain, "gate_backward"]
        )
        kept = [name for name in plain if name != "forward_states"]
        self.assertEqual(
            _names(_plan(**few, **_IN_KERNEL, recompute=False)), [*kept, "gate_backward"]
        )
        self.assertEqual(_names(_plan(maker=plan_lib.make_wy_plan)), ["wy_chunk", "wy_dqkg"])
        inside = ["score_chunk", "solve_chunk"]
        self.assertEqual(
            _names(_plan(maker=fwd_plan.make_plan, **_FORWARD)),
            ["cumulative_gate", *inside, "output_states"],
        )
        self.assertEqual(_names(_plan(maker=fwd_plan.make_intra_plan)), [*inside, "wu_chunk"])

    def test_ranges_of_chunks(self):
        # 128 chunks of 32 heads with 96 KiB each: 7 ranges of 19 chunks, the last one of 14.
        plan = _plan()
        ranges = [kernel for kernel in plan.kernels if kernel.kernel == "level_scores"]
        self.assertEqual([kernel.first_chunk for kernel in ranges], list(range(0, 128, 19)))
        self.assertEqual([kernel.num_tasks for kernel in ranges], [19 * 32] * 6 + [14 * 32])
        gradients = [kernel for kernel in plan.kernels if kernel.kernel == "level_gradients"]
        self.assertEqual(
            [kernel.first_chunk for kernel in gradients], [kernel.first_chunk for kernel in ranges]
        )
        self.assertEqual(sum(kernel.num_tasks for kernel in gradients), 128 * 32 * 2)
        self.assertEqual(plan.workspace["masked"].shape, (19, 32, 2, 6, 64, 64))
        self.assertLessEqual(plan.workspace["masked"].bytes, 64 << 20)
        # One chunk that is larger is a range of its own.
        self.assertEqual(_plan(H=1000, HV=1000, NT=2, T=128).workspace["masked"].shape[0], 1)

    @parameterized.parameters(*npu_plan.BACKENDS)
    def test_grids(self, backend):
        plan = _plan(backend, **_IN_KERNEL)
        vector = {"cumulative_gate", "decayed", "gate_backward"}
        for kernel in plan.kernels:
            cores = _CORES[backend] * (2 if kernel.kernel in vector else 1)
            self.assertEqual(kernel.programs, min(cores, kernel.num_tasks))
        for kernel in _plan(backend, limit=3, **_IN_KERNEL).kernels:
            self.assertEqual(kernel.programs, 3)

    def test_a_smaller_grid_changes_grids_only(self):
        for maker in (plan_lib.make_plan, plan_lib.make_wy_plan):
            plan, other = _plan(maker=maker), _plan(maker=maker, limit=3)
            kernels = tuple(
                dataclasses.replace(each, programs=mine.programs)
                for each, mine in zip(other.kernels, plan.kernels, strict=True)
            )
            self.assertEqual(dataclasses.replace(other, kernels=kernels), plan)

    @parameterized.product(
        backend=npu_plan.BACKENDS,
        k_dim=(1, 17, 64, 100, 128, 256),
        v_dim=(1, 60, 128, 200),
        dtype=("float16", "float32"),
    )
    def test_tiles_cover_the_widths(self, backend, k_dim, v_dim, dtype):
        plan = _plan(backend, K=k_dim, V=v_dim, dtype=dtype, T=128, NT=2)
        found = {kernel.kernel: kernel for kernel in plan.kernels}
        for name in ("decayed", "forward_states", "reverse_states"):
            self.assertGreaterEqual(found[name].constants["BLOCK_K"], k_dim)
        self.assertGreaterEqual(found["level_scores"].constants["STATE_BLOCK"], v_dim)
        gradients = found["level_gradients"]
        tiles = -(-k_dim // gradients.constants["BLOCK_K"])
        self.assertEqual(gradients.num_tasks, 2 * 32 * tiles)
        v_tiles = -(-v_dim // found["reverse_states"].constants["BLOCK_V"])
        self.assertEqual(gradients.first_slot, v_tiles)
        self.assertEqual(plan.workspace["dbeta"].shape[0], v_tiles + tiles)

    @parameterized.product(
        backend=npu_plan.BACKENDS,
        k_dim=(1, 17, 64, 96, 100, 128, 140, 256),
        v_dim=(1, 60, 128, 200),
        dtype=("float16", "float32"),
    )
    def test_tiles_of_the_forward(self, backend, k_dim, v_dim, dtype):
        sizes = {"K": k_dim, "V": v_dim, "dtype": dtype}
        plan = _plan(backend, fwd_plan.make_plan, **_FORWARD, **sizes)
        _, score, _, output = plan.kernels
        tile, padded = score.constants["BLOCK_K"], plan.workspace["ke"].shape[-1]
        self.assertGreaterEqual(padded, k_dim)
        self.assertLess(padded, k_dim + tile)
        self.assertEqual((padded % tile, output.constants["BLOCK_K"]), (0, padded))
        v_tiles = -(-v_dim // output.constants["BLOCK_V"])
        self.assertEqual(output.num_tasks, 32 * v_tiles)
        self.assertTrue(score.constants["PADDED"])
        _, _, products = _plan(backend, fwd_plan.make_intra_plan, **sizes).kernels
        self.assertEqual(products.num_tasks, 128 * 32)

    @parameterized.parameters(False, True)
    def test_results_of_the_forward(self, kept):
        plan = _plan(maker=fwd_plan.make_plan, forward=True, has_final_state=kept)
        self.assertEqual(set(plan.outputs) - {"final_state"}, {"o", "g", "Aqk", "Akk"})
        self.assertEqual("final_state" in plan.outputs, kept)
        self.assertEqual(plan.kernels[3].constants["HAS_FINAL_STATE"], kept)
        plan = _plan(maker=fwd_plan.make_intra_plan, recompute=not kept)
        self.assertEqual("qg" in plan.outputs, kept)
        self.assertEqual(plan.kernels[0].constants["HAS_QG"], kept)
        self.assertFalse(plan.kernels[0].constants["PADDED"])

    def test_few_heads_get_more_programs(self):
        def block(heads):
            plan = _plan(H=heads, HV=heads)
            return next(k for k in plan.kernels if k.kernel == "forward_states").constants[
                "BLOCK_V"
            ]

        self.assertEqual((block(32), block(4)), (128, 64))

    def test_buffers_exist_while_they_are_used(self):
        backward = [
            _plan(**changes, has_initial_state=True)
            for changes in ({}, _IN_KERNEL, _IN_KERNEL | {"recompute": False})
        ]
        forward = [
            _plan(maker=fwd_plan.make_plan, **_FORWARD),
            _plan(maker=fwd_plan.make_intra_plan, recompute=False),
        ]
        for plan in backward + forward:
            last = len(plan.kernels) - 1
            for name, found in (*plan.workspace.items(), *plan.outputs.items()):
                self.assertBetween(found.first, 0, found.last, name)
                self.assertLessEqual(found.last, last, name)
            for found in plan.outputs.values():
                self.assertEqual(found.last, last)
        for plan in backward:
            # What the scans read is gone before the masked matrices come.
            self.assertLess(plan.workspace["ke"].last, plan.workspace["masked"].first)

    @parameterized.parameters(*npu_plan.BACKENDS)
    def test_what_the_specs_declare(self, backend):
        cores = _CORES[backend]
        for spec, maker in _SPECS:
            for case in spec.SPEC.cases:
                problem = spec.problem_of(case)
                if problem.empty:
                    self.assertEqual(spec.launches(case, backend, cores), 0)
                    continue
                plan = maker(problem, backend, cores)
                norms = case.attributes.get("use_qk_l2norm_in_kernel", False)
                self.assertEqual(spec.launches(case, backend, cores), len(plan.kernels) + norms)
                self.assertGreaterEqual(
                    spec.workspace_bytes(case, backend, cores), plan.workspace_bytes(peak=True)
                )


if __name__ == "__main__":
    absltest.main()
