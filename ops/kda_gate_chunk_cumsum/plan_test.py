"""Tests of kda_gate_chunk_cumsum's plan: tiles, grids, what changes a kernel. Plain Python."""

import dataclasses
import sys

from absl.testing import absltest, parameterized

from ops.kda_gate_chunk_cumsum import plan

_PROBLEM = plan.Problem(
    B=1,
    T=8192,
    HV=32,
    K=128,
    C=64,
    N=1,
    NT=128,
    packed=False,
    gate=plan.SOFTPLUS,
    has_A_log=True,
    has_dt_bias=True,
    strides=(0, 4096, 128),
)
_BACKENDS = (plan.CPU_REFERENCE, plan.NPU_ARCH32, plan.NPU_ARCH35, plan.CUDA)


def _problem(**changes):
    return dataclasses.replace(_PROBLEM, **changes)


class PlanTest(parameterized.TestCase):
    def test_needs_no_triton(self):
        self.assertNotIn("triton", sys.modules)
        self.assertNotIn("torch", sys.modules)

    @parameterized.product(backend=_BACKENDS, k_dim=(1, 17, 128, 256))
    def test_tiles(self, backend, k_dim):
        made = plan.make_plan(_problem(K=k_dim), backend, 24)
        block = made.constants["BLOCK_K"]
        self.assertEqual(made.num_tasks, 128 * 32 * -(-k_dim // block))
        self.assertLessEqual(block, 64)
        self.assertGreaterEqual(block, {plan.NPU_ARCH32: 16, plan.NPU_ARCH35: 32}.get(backend, 64))

    def test_grids(self):
        programs = [plan.make_plan(_PROBLEM, backend, 24).programs for backend in _BACKENDS]
        # Both vector cores of a cube core; on a GPU one for each task.
        self.assertEqual(programs, [24, 48, 48, 128 * 32 * 2])
        self.assertEqual(plan.make_plan(_PROBLEM, plan.NPU_ARCH32, 24, 3).programs, 3)

    def test_a_cap_changes_the_grid_only(self):
        for backend in _BACKENDS:
            free, capped = (plan.make_plan(_PROBLEM, backend, 24, n) for n in (None, 3))
            self.assertEqual(
                dataclasses.replace(free, programs=3, constants={}),
                dataclasses.replace(capped, constants={}),
            )
            self.assertEqual(capped.constants, {**free.constants, "ONE_TASK": False})

    def test_one_task_for_each_program(self):
        for chunks, backend, one_task in (
            (512, plan.CUDA, True),
            (1024, plan.CUDA, False),  # 65536 tasks are more than a grid may have
            (512, plan.CPU_REFERENCE, False),
            (512, plan.NPU_ARCH32, False),
        ):
            made = plan.make_plan(_problem(T=64 * chunks, NT=chunks), backend, 24)
            self.assertEqual(made.constants["ONE_TASK"], one_task)
            self.assertEqual(made.programs == made.num_tasks, one_task)

    def test_neither_length_nor_batch_makes_another_kernel(self):
        for backend in _BACKENDS:
            a, b = (
                plan.make_plan(_problem(T=64 * n, NT=n, B=n), backend, 24).constants for n in (7, 9)
            )
            self.assertEqual(a, b)

    def test_refusals(self):
        with self.assertRaisesRegex(
            NotImplementedError, "^kda_gate_chunk_cumsum: no kernel for 't"
        ):
            plan.make_plan(_PROBLEM, "tpu", 8)
        with self.assertRaisesRegex(ValueError, "^pieces of work: got 8589934592, allowed: up to"):
            plan.make_plan(_problem(B=2**20), plan.CUDA, 1056)


if __name__ == "__main__":
    absltest.main()
