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


def _forward(**changes):
    return _plan(**changes).kernels[-1]


def _tiles(**changes):
    constants = _forward(**changes).constants
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
        self.assertEqual(plan.path, plan_lib.DENSE)
        self.assertFalse(plan.stage_output)
        self.assertEqual((plan.segments, plan.slots), (1, 0))
        # 4 heads of 2 tiles, each 6 rows of 64 tokens and 8 numbers.
        self.assertEqual(plan.workspace_bytes, 4 * 4 * 2 * (6 * 64 + 8))
        gates, tiles = plan.kernels
        self.assertEqual((gates.kernel, gates.num_tasks, gates.programs), ("gates", 8, 8))
        self.assertEqual(
            gates.constants, {"H": 4, "BLOCK_T": 64, "SCALE_OPERANDS": True, "GATES": 392}
        )
        self.assertEqual((tiles.kernel, tiles.num_tasks, tiles.programs), ("gated_tiles", 12, 12))
        self.assertEqual(
            tiles.constants,
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
                "SEGMENTED": False,
                "GATES": 392,
                "INSERT": True,
            },
        )

    def test_the_quoted_example_on_a_gpu(self):
        plan = _plan("cuda", 1056)
        self.assertEqual((plan.path, plan.workspace_bytes), (plan_lib.ONE_TILE, 0))
        (kernel,) = plan.kernels
        self.assertEqual((kernel.kernel, kernel.programs), ("mamba3_siso_fwd", 8))
        arrangement = ("GPU", "JOIN", "PREFETCH", "ONE_TILE", "SEGMENTED", "FILL_V")
        self.assertEqual(
            [kernel.constants[name] for name in arrangement],
            [True, True, False, True, False, False],
        )
        self.assertNotIn("INSERT", kernel.constants)

    @parameterized.parameters(
        # backend, cores, (B, S, Hq, H, K, V), path, segments, tokens of each
        ("cuda", 1056, (8, 4096, 1, 32, 128, 64), plan_lib.DENSE, 1, 4096),
        ("cuda", 1056, (1, 4096, 1, 32, 128, 64), plan_lib.SPLIT, 8, 512),
        ("cuda", 1056, (1, 32768, 1, 32, 128, 64), plan_lib.SPLIT, 8, 4096),
        ("cuda", 1056, (4, 2048, 8, 32, 64, 64), plan_lib.SPLIT, 2, 1024),
        ("cuda", 1056, (2, 2048, 4, 16, 128, 128), plan_lib.SPLIT, 4, 512),
        ("cuda", 1056, (1, 128, 2, 4, 64, 96), plan_lib.ONE_TILE, 1, 128),
        # Each side of every border.
        ("cuda", 1056, (1, 64, 1, 1, 128, 64), plan_lib.ONE_TILE, 1, 64),
        ("cuda", 1056, (1, 65, 1, 1, 128, 64), plan_lib.DENSE, 1, 128),
        ("cuda", 1056, (1, 129, 1, 1, 64, 64), plan_lib.DENSE, 1, 192),
        ("cuda", 1056, (4, 128, 1, 33, 64, 64), plan_lib.ONE_TILE, 1, 128),  # 132 tasks, one each
        ("cuda", 1056, (1, 128, 1, 133, 64, 64), plan_lib.DENSE, 1, 128),
        ("cuda", 1056, (1, 320, 1, 1, 64, 64), plan_lib.DENSE, 1, 320),  # 5 tiles
        ("cuda", 1056, (1, 321, 1, 1, 64, 64), plan_lib.SPLIT, 3, 128),
        ("cuda", 1056, (1, 4096, 1, 132, 64, 64), plan_lib.SPLIT, 2, 2048),
        ("cuda", 1056, (1, 4096, 1, 133, 64, 64), plan_lib.DENSE, 1, 4096),
        ("npu-arch32", 24, (1, 4096, 1, 12, 64, 64), plan_lib.SPLIT, 2, 2048),
        ("npu-arch32", 24, (1, 4096, 1, 13, 64, 64), plan_lib.DENSE, 1, 4096),
        ("npu-arch32", 24, (1, 1024, 1, 1, 64, 64), plan_lib.SPLIT, 2, 512),
        ("npu-arch32", 24, (1, 960, 1, 1, 64, 64), plan_lib.DENSE, 1, 960),
        ("npu-arch35", 32, (1, 64, 1, 1, 64, 64), plan_lib.ONE_TILE, 1, 64),
        ("npu-arch35", 32, (1, 33, 1, 1, 128, 64), plan_lib.DENSE, 1, 64),
    )
    def test_paths(self, backend, cores, sizes, path, segments, segment):
        b, s, hq, heads, k_dim, v_dim = sizes
        plan = _plan(backend, cores, B=b, S=s, HQ=hq, H=heads, K=k_dim, V=v_dim)
        self.assertEqual((plan.path, plan.segments, plan.segment), (path, segments, segment))
        gated = backend != "cuda" and path != plan_lib.ONE_TILE
        self.assertLen(plan.kernels, gated + (3 if path == plan_lib.SPLIT else 1))
        forward = plan.kernels[-1]
        self.assertEqual(forward.kernel, "gated_tiles" if gated else "mamba3_siso_fwd")
        self.assertEqual(forward.constants.get("ONE_TILE", False), path == plan_lib.ONE_TILE)
        self.assertEqual(forward.constants["SEGMENTED"], path == plan_lib.SPLIT)

    def test_one_tile_in_bf16(self):
        sizes = {"S": 64, "dtype": "bfloat16"}
        self.assertEqual(_plan("cuda", 1056, **sizes).path, plan_lib.ONE_TILE)
        for backend in ("npu-arch32", "npu-arch35", "cpu-reference"):
            plan = _plan(backend, 24, **sizes)
            self.assertEqual((plan.path, plan.workspace_bytes), (plan_lib.DENSE, 0))
            self.assertEqual([each.kernel for each in plan.kernels], ["mamba3_siso_fwd"])

    @parameterized.product(
        seqlen=(384, 385, 1000, 2345, 4096), heads=(1, 3, 32), backend=("cuda", "npu-arch32")
    )
    def test_segments_cover_the_sequence(self, seqlen, heads, backend):
        cores = 1056 if backend == "cuda" else 24
        plan = _plan(backend, cores, S=seqlen, H=heads, HQ=1, V=64)
        tile = plan.kernels[-1].constants["BLOCK_T"]
        self.assertEqual(plan.segment % tile, 0)
        self.assertGreaterEqual(plan.segments * plan.segment, seqlen)
        self.assertLess((plan.segments - 1) * plan.segment, seqlen)
        self.assertEqual(plan.slots, (plan.segments - 1) * heads)
        tiles = -(-seqlen // tile)
        gates = 0 if backend == "cuda" else heads * tiles * (6 * tile + 8)
        self.assertEqual(plan.workspace_bytes, 4 * (plan.slots * (64 * 64 + 2) + gates))
        self.assertEqual(plan.kernels[-1].num_tasks, heads * plan.segments)

    def test_a_split_in_full(self):
        plan = _plan("cuda", 1056, S=4096, HQ=1, H=32, K=128, V=64)
        states, scan, forward = plan.kernels
        self.assertEqual((states.kernel, states.num_tasks), ("segment_states", 7 * 32))
        self.assertEqual((scan.kernel, scan.num_tasks), ("segment_scan", 32 * 128 * 64 // 1024))
        self.assertEqual((forward.kernel, forward.num_tasks), ("mamba3_siso_fwd", 8 * 32))
        for name in ("BLOCK_T", "BLOCK_K", "BLOCK_V", "JOIN", "SCALE_OPERANDS"):
            self.assertEqual(states.constants[name], forward.constants[name])
        self.assertEqual(scan.constants["STATE"], 128 * 64)

    def test_a_split_in_full_on_an_npu(self):
        plan = _plan("npu-arch32", 24, S=4096, HQ=1, H=2, K=128, V=64)
        self.assertEqual(
            [(each.kernel, each.num_tasks, each.programs) for each in plan.kernels],
            [
                # Kernels without products have 48 vector cores.
                ("gates", 2 * 128, 48),
                ("gated_states", 2 * 11, 22),
                ("segment_scan", 2 * 128 * 64 // 1024, 16),
                ("gated_tiles", 2 * 12, 24),
            ],
        )
        gates, states, _, tiles = plan.kernels
        for name in ("BLOCK_T", "GATES", "SCALE_OPERANDS"):
            self.assertEqual(gates.constants[name], tiles.constants[name])
            self.assertEqual(states.constants[name], tiles.constants[name])
        for name in ("BLOCK_K", "BLOCK_V", "INSERT"):
            self.assertEqual(states.constants[name], tiles.constants[name])

    def test_a_smaller_grid_changes_grids_only(self):
        for sizes in ({}, {"S": 4096, "H": 1, "HQ": 1}, {"S": 20}):
            for backend, cores in (("cuda", 1056), ("npu-arch32", 24), ("cpu-reference", 4)):
                problem = dataclasses.replace(_PROBLEM, **sizes)
                plan = plan_lib.make_plan(problem, backend, cores)
                other = plan_lib.make_plan(problem, backend, cores, 3)
                self.assertEqual(
                    [min(3, each.programs) for each in plan.kernels],
                    [each.programs for each in other.kernels],
                )
                kernels = tuple(
                    dataclasses.replace(each, programs=mine.programs)
                    for each, mine in zip(other.kernels, plan.kernels, strict=True)
                )
                self.assertEqual(dataclasses.replace(other, kernels=kernels), plan)

    def test_explain(self):
        text = _plan("cuda", 1056, S=4096, HQ=1, H=32, K=128, V=64).explain()
        self.assertEqual(
            text.splitlines()[0],
            "split: 32 (batch, head, V tile) tasks leave most of 264 programs idle; 64 tiles are "
            "enough for 8 segments",
        )
        self.assertIn(
            "mamba3_siso_fwd: 256 tasks on 256 programs, tiles {'t': 64, 'k': 128, ", text
        )
        self.assertIn("8 segments of 512 tokens, workspace of 7341824 bytes", text)
        self.assertIn("one tile: S = 20 fits a tile of 32 tokens", _plan(S=20).explain())
        text = _plan().explain()
        self.assertIn("dense: 12 (batch, head, V tile) tasks of 2 tiles for 24 p", text)
        self.assertIn("  gates: 8 tasks on 8 programs, tiles {'t': 64}\n", text)
        self.assertEqual(text.splitlines()[-1], "  workspace of 12544 bytes")
        self.assertNotIn("workspace", _plan("cuda", 1056).explain())

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
        plan = _forward(cores=cores, B=b, H=heads, V=v_dim, S=1)
        self.assertEqual(plan.programs, programs)
        self.assertLess(plan.programs, 65536)
        self.assertEqual(plan.num_tasks, b * heads * -(-v_dim // plan.constants["BLOCK_V"]))

    def test_more_tiles_than_the_kernel_counts(self):
        with self.assertRaisesRegex(ValueError, r"B \* H \* ceil\(V / 64\): got 2147483648, allow"):
            _plan(B=2**26, H=32, V=64)
        self.assertEqual(_forward(B=2**26 - 2**11, H=32, V=64).num_tasks, 2**31 - 2**16)

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
        k_dim=[16, 64, 96, 128, 256],
        v_dim=[1, 16, 33, 64, 96],
        s=[20, 50, 100, 4096],
        chunk=[32, 64],
    )
    def test_cuda_never_has_32_columns_beside_64_tokens(self, k_dim, v_dim, s, chunk):
        block_t, _, block_v = _tiles(
            backend="cuda", cores=1056, K=k_dim, V=v_dim, S=s, chunk_size=chunk
        )
        self.assertTrue(block_t < 64 or block_v == 64)

    def test_tiles_ahead_where_registers_allow(self):
        def ahead(**changes):
            return [
                each.constants["PREFETCH"]
                for each in _plan("cuda", 1056, HQ=1, H=1, V=64, **changes).kernels
                if "PREFETCH" in each.constants
            ]

        self.assertEqual(ahead(S=4096, K=64), [True, True])
        self.assertEqual(ahead(S=4096, K=128), [True, False])
        self.assertEqual(ahead(S=128, K=64), [False])
        self.assertNotIn("PREFETCH", _forward(S=4096).constants)

    @parameterized.parameters(*_BACKENDS)
    def test_bf16_is_special_in_the_interpreter_only(self, backend):
        special = backend == "cpu-reference"
        plan = _plan(backend=backend, dtype="bfloat16")
        constants = plan.kernels[-1].constants
        self.assertEqual(plan.stage_output, special)
        self.assertEqual(constants["FP32_DOTS"], special)
        self.assertFalse(constants["SCALE_OPERANDS"])
        plan = _plan(backend=backend, dtype="float16")
        constants = plan.kernels[-1].constants
        self.assertFalse(plan.stage_output)
        self.assertFalse(constants["FP32_DOTS"])
        self.assertTrue(constants["SCALE_OPERANDS"])

    @parameterized.parameters(*_BACKENDS)
    def test_v_is_filled_where_the_compiler_drops_the_zeros(self, backend):
        self.assertEqual(_forward(backend=backend).constants["FILL_V"], backend == "npu-arch35")

    @parameterized.parameters(*_BACKENDS)
    def test_compiler_options_are_for_cuda(self, backend):
        small = _forward(backend=backend, S=4096).options
        wide = _forward(backend=backend, K=256, V=64).options
        one_tile = _forward(backend=backend, cores=1056, S=100).options
        if backend == "cuda":
            self.assertEqual(small, {"num_warps": 4, "num_stages": 1})
            self.assertEqual(wide, {"num_warps": 8, "num_stages": 1})
            self.assertEqual(one_tile, {"num_warps": 8, "num_stages": 1})
        else:
            self.assertEqual((small, wide, one_tile), ({}, {}, {}))

    def test_constants_do_not_depend_on_batch_or_length(self):
        # Else every new length would compile a kernel of its own.
        longer = dataclasses.replace(_STRIDES, adt=(4000, 1000), dt=(4000, 1000), trap=(4000, 1000))
        self.assertEqual(_forward(B=9, S=1000, strides=longer).constants, _forward().constants)
        shorter = _plan("cuda", 1056, S=1000, strides=longer)
        self.assertEqual(
            [each.constants for each in shorter.kernels],
            [each.constants for each in _plan("cuda", 1056, S=4096).kernels],
        )

    def test_empty_problems(self):
        self.assertFalse(_PROBLEM.empty)
        self.assertTrue(dataclasses.replace(_PROBLEM, S=0).empty)
        self.assertTrue(dataclasses.replace(_PROBLEM, B=0).empty)


if __name__ == "__main__":
    absltest.main()
