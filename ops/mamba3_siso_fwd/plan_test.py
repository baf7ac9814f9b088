"""Tests of the plan: grids, tiles and constants, with neither torch nor triton."""

import dataclasses
import sys

from absl.testing import absltest, parameterized

from ops.mamba3_siso_fwd import plan as plan_lib
from ops.mamba3_siso_fwd import problem as problem_lib

_BACKENDS = ("cpu-reference", "npu-arch32", "npu-arch35", "cuda")
_STRIDES = problem_lib.Strides(
    q=(0, 128, 64),
    k=(0, 256, 64),
    v=(0, 384, 96),
    angles=(0, 64, 32),
    z=(0, 512, 96),
    adt=(0, 128),
    dt=(0, 128),
    trap=(0, 128),
    q_bias=64,
    k_bias=80,
    d=1,
)
_PROBLEM = problem_lib.Problem(
    B=1,
    S=128,
    HQ=2,
    H=4,
    K=64,
    V=96,
    A=32,
    dtype="float16",
    has_d=True,
    has_z=True,
    chunk_size=64,
    strides=_STRIDES,
)


def _plan(backend="npu-arch32", cores=24, **changes):
    return plan_lib.make_plan(dataclasses.replace(_PROBLEM, **changes), backend, cores)


def _tiles(**changes):
    constants = _plan(**changes).constants
    return constants["BLOCK_T"], constants["BLOCK_K"], constants["BLOCK_V"]


class PlanTest(parameterized.TestCase):
    def test_needs_neither_torch_nor_triton(self):
        self.assertNotIn("torch", sys.modules)
        self.assertNotIn("triton", sys.modules)

    def test_is_pure(self):
        before = dataclasses.asdict(_PROBLEM)
        self.assertEqual(_plan(), _plan())
        self.assertEqual(dataclasses.asdict(_PROBLEM), before)

    def test_the_quoted_example(self):
        plan = _plan()
        self.assertEqual(plan.num_tasks, 1 * 4 * 3)
        self.assertEqual(plan.programs, 12)
        self.assertFalse(plan.stage_output)
        self.assertEqual(
            plan.constants,
            {
                "H": 4,
                "HEADS_PER_GROUP": 2,
                "K": 64,
                "V": 96,
                "A": 32,
                "Q_STRIDE_S": 128,
                "K_STRIDE_S": 256,
                "V_STRIDE_S": 384,
                "ANGLES_STRIDE_S": 64,
                "Z_STRIDE_S": 512,
                "Q_BIAS_STRIDE_H": 64,
                "K_BIAS_STRIDE_H": 80,
                "D_STRIDE_H": 1,
                "BLOCK_T": 64,
                "BLOCK_K": 64,
                "BLOCK_V": 32,
                "HAS_D": True,
                "HAS_Z": True,
                "SCALE_OPERANDS": True,
                "FP32_DOTS": False,
                "FILL_V": False,
            },
        )

    @parameterized.parameters(
        # B * H * V tiles, cores, programs
        (2048, 32, 64, 24, 24),  # 65536 tiles: one program each would be refused on Ascend
        (1, 4, 64, 24, 4),
        (1, 4, 65, 24, 12),
        (1, 1, 1, 24, 1),
        (1, 1, 1, 1, 1),
        (2**20, 32, 64, 40, 40),
    )
    def test_grid_is_the_core_count_or_less(self, b, heads, v_dim, cores, programs):
        plan = _plan(cores=cores, B=b, H=heads, V=v_dim, S=1)
        self.assertEqual(plan.programs, programs)
        self.assertLess(plan.programs, 65536)
        self.assertEqual(plan.num_tasks, b * heads * -(-v_dim // plan.constants["BLOCK_V"]))

    def test_more_tiles_than_the_kernel_counts(self):
        with self.assertRaisesRegex(ValueError, r"B \* H \* ceil\(V / 64\): got 2147483648, allow"):
            _plan(B=2**26, H=32, V=64)
        self.assertEqual(_plan(B=2**26 - 2**11, H=32, V=64).num_tasks, 2**31 - 2**16)

    @parameterized.product(
        k_dim=(4, 16, 33, 63, 64, 65, 96, 128, 129, 200, 256),
        v_dim=(1, 16, 33, 64, 96, 128, 200),
        seqlen=(1, 31, 32, 33, 4096),
        chunk_size=(32, 64),
    )
    def test_tiles_cover_the_problem(self, k_dim, v_dim, seqlen, chunk_size):
        block_t, block_k, block_v = _tiles(K=k_dim, V=v_dim, S=seqlen, chunk_size=chunk_size)
        for block in (block_t, block_k, block_v):
            self.assertEqual(block & (block - 1), 0, "a power of two")
        self.assertBetween(block_t, 32, chunk_size)
        self.assertBetween(block_k, max(k_dim, 64), max(2 * k_dim - 1, 64))
        self.assertIn(block_v, (32, 64))
        # What fits a vector core, see plan._tiles.
        self.assertLessEqual(block_t * block_k, 64 * 128)
        self.assertLessEqual(block_k * block_v, 128 * 64)

    @parameterized.parameters(
        (64, 64, 64, (64, 64, 64)),
        (64, 64, 32, (32, 64, 64)),
        (128, 64, 64, (32, 128, 64)),
        (128, 128, 64, (32, 128, 64)),
        (256, 128, 64, (32, 256, 32)),
        (64, 96, 64, (64, 64, 32)),
        (17, 1, 64, (64, 64, 32)),
    )
    def test_tiles(self, k_dim, v_dim, chunk_size, tiles):
        self.assertEqual(_tiles(K=k_dim, V=v_dim, chunk_size=chunk_size, S=4096), tiles)

    def test_tiles_are_longer_on_cuda(self):
        self.assertEqual(_tiles(backend="cuda", K=128, V=64), (64, 128, 64))
        self.assertEqual(_tiles(backend="cuda", K=128, V=64, chunk_size=32), (32, 128, 64))
        self.assertEqual(_tiles(backend="cuda", K=256, V=64), (32, 256, 32))

    @parameterized.product(
        k_dim=[16, 64, 96, 128, 256], v_dim=[1, 16, 33, 64, 96], chunk_size=[32, 64]
    )
    def test_cuda_never_has_fewer_columns_than_pairs_beside_64_tokens(
        self, k_dim, v_dim, chunk_size
    ):
        block_t, block_k, block_v = _tiles(
            backend="cuda", K=k_dim, V=v_dim, chunk_size=chunk_size, S=4096
        )
        self.assertTrue(block_t < 64 or block_v >= block_k // 2)

    @parameterized.parameters(*_BACKENDS)
    def test_bf16_is_special_in_the_interpreter_only(self, backend):
        special = backend == "cpu-reference"
        plan = _plan(backend=backend, dtype="bfloat16")
        self.assertEqual(plan.stage_output, special)
        self.assertEqual(plan.constants["FP32_DOTS"], special)
        self.assertFalse(plan.constants["SCALE_OPERANDS"])
        plan = _plan(backend=backend, dtype="float16")
        self.assertFalse(plan.stage_output)
        self.assertFalse(plan.constants["FP32_DOTS"])
        self.assertTrue(plan.constants["SCALE_OPERANDS"])

    @parameterized.parameters(*_BACKENDS)
    def test_v_is_filled_where_the_compiler_drops_the_zeros(self, backend):
        self.assertEqual(_plan(backend=backend).constants["FILL_V"], backend == "npu-arch35")

    @parameterized.parameters(*_BACKENDS)
    def test_compiler_options_are_for_cuda(self, backend):
        small = _plan(backend=backend).options
        wide = _plan(backend=backend, K=128, V=64).options
        if backend == "cuda":
            self.assertEqual(small, {"num_warps": 4, "num_stages": 1})
            self.assertEqual(wide, {"num_warps": 8, "num_stages": 1})
        else:
            self.assertEqual((small, wide), ({}, {}))

    def test_constants_do_not_depend_on_batch_or_length(self):
        # Else every new length would compile a kernel of its own.
        longer = dataclasses.replace(_STRIDES, adt=(4000, 1000), dt=(4000, 1000), trap=(4000, 1000))
        self.assertEqual(_plan(B=9, S=1000, strides=longer).constants, _plan().constants)

    def test_empty_problems(self):
        self.assertFalse(_PROBLEM.empty)
        self.assertTrue(dataclasses.replace(_PROBLEM, S=0).empty)
        self.assertTrue(dataclasses.replace(_PROBLEM, B=0).empty)


if __name__ == "__main__":
    absltest.main()
