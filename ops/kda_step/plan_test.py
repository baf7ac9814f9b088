"""Tests of kda_step's plan: tiles, grids, what changes a kernel. Plain Python."""

import dataclasses
import sys

from absl.testing import absltest, parameterized

from ops.kda_step import plan

_PROBLEM = plan.Problem(B=16, H=32, HV=32, K=128, V=128, N=16, dtype="bfloat16")
_BACKENDS = (plan.CPU_REFERENCE, plan.NPU_ARCH32, plan.NPU_ARCH35, plan.CUDA)


def _problem(**changes):
    return dataclasses.replace(_PROBLEM, **changes)


class PlanTest(parameterized.TestCase):
    def test_needs_no_triton(self):
        self.assertNotIn("triton", sys.modules)
        self.assertNotIn("torch", sys.modules)

    @parameterized.product(backend=_BACKENDS, k_dim=(1, 17, 128, 256), v_dim=(1, 100, 256))
    def test_tiles_hold_all_rows(self, backend, k_dim, v_dim):
        made = plan.make_plan(_problem(K=k_dim, V=v_dim), backend, 24)
        block_k, block_v = made.constants["BLOCK_K"], made.constants["BLOCK_V"]
        self.assertBetween(block_k, max(16, k_dim), max(16, 2 * k_dim))
        self.assertLessEqual(block_v, max(16, 2 * v_dim))
        self.assertEqual(made.num_tasks, 16 * 32 * -(-v_dim // block_v))
        if "npu" in backend:
            self.assertLessEqual(block_k * block_v, 8192)

    def test_grids(self):
        self.assertEqual(plan.make_plan(_PROBLEM, plan.CUDA, 1056).programs, 1056)
        self.assertEqual(plan.make_plan(_problem(B=1), plan.CUDA, 1056).programs, 256)
        # Both vector cores of a cube core.
        self.assertEqual(plan.make_plan(_PROBLEM, plan.NPU_ARCH32, 24).programs, 48)
        self.assertEqual(plan.make_plan(_PROBLEM, plan.NPU_ARCH32, 24, 3).programs, 3)

    def test_the_more_tokens_the_wider_tiles_on_a_gpu(self):
        plans = [plan.make_plan(_problem(B=b), plan.CUDA, 1056) for b in (1, 16, 128)]
        tiles = [(each.constants["BLOCK_V"], each.options["num_warps"]) for each in plans]
        self.assertEqual(tiles, [(16, 4), (32, 1), (64, 2)])
        self.assertEqual(plans[2].programs, 4 * 1056)
        self.assertEqual(
            plan.make_plan(_problem(B=128, K=256), plan.CUDA, 1056).constants["BLOCK_V"], 16
        )

    def test_a_cap_changes_the_grid_only(self):
        for backend in _BACKENDS:
            free, capped = (plan.make_plan(_PROBLEM, backend, 24, n) for n in (None, 3))
            self.assertEqual(dataclasses.replace(free, programs=3), capped)

    def test_only_arch32_waits_with_the_output(self):
        together = [
            plan.make_plan(_PROBLEM, backend, 24).constants["SUMS_TOGETHER"]
            for backend in _BACKENDS
        ]
        self.assertEqual(together, [True, False, True, True])

    def test_only_the_interpreter_stages_bf16(self):
        staged = {
            (backend, dtype)
            for backend in _BACKENDS
            for dtype in ("float16", "bfloat16", "float32")
            if plan.make_plan(_problem(dtype=dtype), backend, 24).stage_output
        }
        self.assertEqual(staged, {(plan.CPU_REFERENCE, "bfloat16")})

    def test_neither_batch_nor_pool_makes_another_kernel(self):
        for backend in _BACKENDS:
            made = [
                plan.make_plan(_problem(B=b, N=n), backend, 24) for b, n in ((64, 64), (65, 999))
            ]
            self.assertEqual(made[0].constants, made[1].constants)

    def test_refusals(self):
        with self.assertRaisesRegex(NotImplementedError, "^kda_step: no kernel for 'tpu'; impl"):
            plan.make_plan(_PROBLEM, "tpu", 8)
        with self.assertRaisesRegex(ValueError, "^pieces of work: got 2147483648, allowed: up to"):
            plan.make_plan(_problem(B=2**25), plan.CUDA, 1056)


if __name__ == "__main__":
    absltest.main()
