"""Tests of chunk_gla_fwd_o_gk's plan: tiles, grids, what changes a kernel. Plain Python."""

import dataclasses
import sys

from absl.testing import absltest, parameterized

from ops.chunk_gla_fwd_o_gk import plan

_PROBLEM = plan.Problem(
    B=1, T=8192, H=32, HV=32, K=128, V=128, C=64, N=1, NT=128, packed=False, dtype="bfloat16"
)
_BACKENDS = (plan.CPU_REFERENCE, plan.NPU_ARCH32, plan.NPU_ARCH35, plan.CUDA)


def _problem(**changes):
    return dataclasses.replace(_PROBLEM, **changes)


class PlanTest(parameterized.TestCase):
    def test_needs_no_triton(self):
        self.assertNotIn("triton", sys.modules)
        self.assertNotIn("torch", sys.modules)

    @parameterized.product(
        backend=_BACKENDS, dtype=("float16", "float32"), k_dim=(1, 128, 256), v_dim=(1, 100, 256)
    )
    def test_tiles(self, backend, dtype, k_dim, v_dim):
        made = plan.make_plan(_problem(K=k_dim, V=v_dim, dtype=dtype), backend, 24)
        block_k, block_v = made.constants["BLOCK_K"], made.constants["BLOCK_V"]
        self.assertEqual(made.num_tasks, 128 * 32 * -(-v_dim // block_v))
        if "npu" in backend:
            # Bytes of q, g and what is computed of them on arch35's one vector core.
            size = 4 if dtype == "float32" else 2
            self.assertLessEqual(64 * block_k * (4 + size), 1 << 17)
            self.assertLessEqual(block_k * block_v, 16384)
        else:
            self.assertEqual(block_k, 64)

    def test_kernels(self):
        found = [plan.make_plan(_PROBLEM, backend, 24).kernel for backend in _BACKENDS]
        self.assertEqual(found, ["outputs", "outputs_npu", "outputs_npu", "outputs"])

    def test_a_cap_changes_the_grid_only(self):
        for backend in _BACKENDS:
            free, capped = (plan.make_plan(_PROBLEM, backend, 24, n) for n in (None, 3))
            self.assertEqual((free.programs, capped.programs), (24, 3))
            self.assertEqual(dataclasses.replace(free, programs=3), capped)

    def test_precision(self):
        flags = {
            (backend, dtype): (
                made.stage_output,
                made.constants.get("FP32_DOTS", False),
                made.constants.get("TF32X3", False),
            )
            for backend in _BACKENDS
            for dtype in ("float16", "bfloat16", "float32")
            for made in [plan.make_plan(_problem(dtype=dtype), backend, 24)]
        }
        special = {key: value for key, value in flags.items() if any(value)}
        self.assertEqual(
            special,
            {
                (plan.CPU_REFERENCE, "bfloat16"): (True, True, False),
                (plan.CUDA, "float32"): (False, False, True),
            },
        )

    def test_neither_length_nor_batch_makes_another_kernel(self):
        for backend in _BACKENDS:
            a, b = (
                plan.make_plan(_problem(T=64 * n, NT=n, B=n), backend, 24).constants for n in (7, 9)
            )
            self.assertEqual(a, b)

    def test_refusals(self):
        with self.assertRaisesRegex(NotImplementedError, "^chunk_gla_fwd_o_gk: no kernel for 'tpu"):
            plan.make_plan(_PROBLEM, "tpu", 8)
        with self.assertRaisesRegex(ValueError, "^pieces of work: got 4294967296, allowed: up to"):
            plan.make_plan(_problem(B=2**20), plan.CUDA, 1056)


if __name__ == "__main__":
    absltest.main()
