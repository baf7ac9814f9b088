"""Tests of the forward's plans: launches, grids, tiles, buffers; with neither torch nor triton."""

import dataclasses
import sys

from absl.testing import absltest, parameterized

from ops.chunk_kda import fwd_intra_spec, fwd_plan, fwd_spec
from ops.chunk_kda import plan as plan_lib
from ops.chunk_kda import problem as problem_lib

_CORES = {plan_lib.CPU_REFERENCE: 4, plan_lib.CUDA: 1056}
_BACKENDS = tuple(_CORES)
# B=1, T=128, H=2, HV=4, K=64, V=96, contiguous.
_PROBLEM = problem_lib.Problem(
    B=1,
    T=128,
    H=2,
    HV=4,
    K=64,
    V=96,
    C=64,
    N=1,
    NT=2,
    packed=False,
    slack=False,
    dtype="float16",
    Aqk_dtype="float16",
    Akk_dtype="float16",
    beta_dtype="float32",
    g_org_dtype="float32",
    forward=True,
    has_final_state=True,
    strides=problem_lib.Strides(
        q=(0, 128, 64), k=(0, 130, 65), v=(0, 384, 96), g_org=(0, 256, 64), beta=(0, 4, 1)
    ),
)


def _plan(backend=plan_lib.CUDA, maker=fwd_plan.make_plan, limit=None, **changes):
    return maker(dataclasses.replace(_PROBLEM, **changes), backend, _CORES[backend], limit)


class PlanTest(parameterized.TestCase):
    def test_needs_neither_torch_nor_triton(self):
        self.assertNotIn("torch", sys.modules)
        self.assertNotIn("triton", sys.modules)

    @parameterized.parameters(*_BACKENDS)
    def test_launches(self, backend):
        names = [plan_lib.GATE, plan_lib.PAIR_SCORES, plan_lib.SOLVE, fwd_plan.OUTPUT]
        for gate in (problem_lib.GIVEN, problem_lib.SOFTPLUS):
            kernels = _plan(backend, gate=gate).kernels
            self.assertEqual([each.kernel for each in kernels], names)
        self.assertEqual(fwd_plan.launch_count(_PROBLEM, backend, 4), 4)
        kernels = _plan(backend, fwd_plan.make_intra_plan, forward=False).kernels
        self.assertEqual([each.kernel for each in kernels], names[1:3])

    def test_tasks(self):
        gate, scores, solve, output = _plan(K=100).kernels
        self.assertEqual(gate.num_tasks, 2 * 4 * 2)  # chunks, heads, tiles of 64 columns
        self.assertEqual((scores.num_tasks, solve.num_tasks), (2 * 4, 2 * 4))  # chunks, heads
        self.assertEqual(output.num_tasks, 1 * 4 * 3)  # sequences, heads, tiles of 32 columns
        for limit in (1, 3, 1056):
            for each in _plan(limit=limit).kernels:
                self.assertEqual(each.programs, min(limit, each.num_tasks))

    def test_one_task_for_each_program(self):
        # 32768 chunks of 4 heads are more than a grid may have.
        for chunks, backend, limit, one_task in (
            (2048, plan_lib.CUDA, None, True),
            (32768, plan_lib.CUDA, None, False),
            (2048, plan_lib.CUDA, 1000, False),
            (2048, plan_lib.CPU_REFERENCE, None, False),
        ):
            *without_loop, output = _plan(backend, limit=limit, T=64 * chunks, NT=chunks).kernels
            for each in without_loop:
                self.assertEqual(each.constants["ONE_TASK"], one_task)
                if one_task:
                    self.assertEqual(each.programs, each.num_tasks)
                else:
                    self.assertEqual(each.programs, limit or _CORES[backend])
            self.assertLessEqual(output.programs, _CORES[backend])
        with self.assertRaisesRegex(ValueError, "^pieces of work of cumulative_gate: got "):
            _plan(B=2**20, NT=2**10)

    def test_constants(self):
        gate, scores, solve, output = _plan(gate=problem_lib.SOFTPLUS, has_A_log=True).kernels
        self.assertEqual((gate.constants["GATE"], gate.constants["HAS_A_LOG"]), (1, True))
        self.assertEqual(_plan().kernels[0].constants["GATE"], 0)
        self.assertEqual((scores.constants["LEVELS"], solve.constants["LEVELS"]), (6, 6))
        self.assertEqual(_plan(C=32).kernels[2].constants["LEVELS"], 5)
        self.assertEqual(scores.constants["Q_STRIDE_T"], 128)
        self.assertEqual(scores.constants["G_STRIDE_T"], 4 * 64)
        for flag in ("HAS_H0", "HAS_FINAL_STATE"):
            self.assertEqual(output.constants[flag], flag == "HAS_FINAL_STATE")
        self.assertTrue(_plan(has_initial_state=True).kernels[3].constants["HAS_H0"])
        self.assertFalse(_plan(has_final_state=False).kernels[3].constants["HAS_FINAL_STATE"])

    def test_what_the_intra_function_returns_besides(self):
        _, scores, solve, _ = _plan().kernels
        flags = [scores.constants["HAS_QG"], scores.constants["HAS_KE"], solve.constants["HAS_W"]]
        self.assertEqual(flags, [True, True, False])
        for kept in (False, True):
            plan = _plan(maker=fwd_plan.make_intra_plan, forward=False, recompute=not kept)
            scores, solve = plan.kernels
            flags = [scores.constants["HAS_QG"], scores.constants["HAS_KE"]]
            self.assertEqual(flags, [kept, False])
            self.assertTrue(solve.constants["HAS_W"])
            self.assertEqual("qg" in plan.outputs, kept)
            self.assertEqual(set(plan.workspace), {"pairs"})

    def test_precision(self):
        solve = {
            (backend, dtype): _plan(backend, dtype=dtype).kernels[2].constants["SOLVE"]
            for backend in _BACKENDS
            for dtype in ("float16", "bfloat16", "float32")
        }
        self.assertEqual(
            {solve[plan_lib.CPU_REFERENCE, d] for d in ("float16", "float32")}, {"ieee"}
        )
        self.assertEqual(solve[plan_lib.CUDA, "bfloat16"], "tf32")
        self.assertEqual(solve[plan_lib.CUDA, "float16"], "bf16x3")
        self.assertEqual(solve[plan_lib.CUDA, "float32"], "tf32x3")
        for each in _plan(dtype="float32").kernels[1:]:
            self.assertTrue(each.constants["TF32X3"])

    @parameterized.parameters(
        ("bfloat16", 128, 32, 3), ("float16", 256, 64, 1), ("float32", 64, 64, 1)
    )
    def test_tiles_of_the_scan(self, dtype, k_dim, block_v, stages):
        constants = _plan(dtype=dtype, K=k_dim).kernels[3].constants
        self.assertEqual((constants["BLOCK_V"], constants["STAGES"]), (block_v, stages))
        if dtype != "float32":
            # What is under way, the state and v_new, in 227 KiB of shared memory.
            of_chunk = 64 * (3 * k_dim + 2 * 64 + block_v)
            self.assertLessEqual(2 * (stages * of_chunk + (k_dim + 64) * block_v), 227 * 1024)

    def test_buffers(self):
        plan = _plan()
        self.assertEqual(set(plan.workspace), {"pairs", "qg", "ke", "kg"})
        self.assertEqual(set(plan.outputs), {"o", "g", "Aqk", "Akk", "final_state"})
        self.assertEqual(plan.outputs["o"].shape, (1, 128, 4, 96))
        self.assertEqual(plan.outputs["g"].stored, "float32")
        self.assertEqual(plan.outputs["Aqk"].shape, (1, 128, 4, 64))
        self.assertEqual(plan.outputs["final_state"].shape, (1, 4, 64, 96))
        self.assertNotIn("final_state", _plan(has_final_state=False).outputs)
        for buffer in (*plan.workspace.values(), *plan.outputs.values()):
            self.assertLess(buffer.last, len(plan.kernels))

    def test_workspace(self):
        # qg, ke and kg to the end; pairs before it, when o and the last states are not there yet.
        rows = 128 * 4
        pairs, of_keys = rows * 64 * 4, rows * 3 * 64 * 2
        self.assertEqual(fwd_plan.workspace_bytes(_PROBLEM, plan_lib.CUDA, 4), of_keys)
        narrow = dataclasses.replace(_PROBLEM, V=16)
        later = rows * 16 * 2 + 4 * 64 * 16 * 4
        self.assertEqual(
            fwd_plan.workspace_bytes(narrow, plan_lib.CUDA, 4), pairs + of_keys - later
        )
        packed = dataclasses.replace(_PROBLEM, packed=True, N=3)
        tables = 4 * (2 * 4 + 2 * 2)
        self.assertEqual(fwd_plan.workspace_bytes(packed, plan_lib.CUDA, 4), of_keys + tables)
        self.assertEqual(fwd_plan.intra_workspace_bytes(packed, plan_lib.CUDA, 4), pairs + tables)
        # The interpreter keeps bf16 in fp32, and torch converts the results.
        bf16 = dataclasses.replace(_PROBLEM, dtype="bfloat16")
        results = rows * (96 + 2 * 64) * 2
        expected = pairs + rows * 3 * 64 * 4 + 2 * results
        self.assertEqual(fwd_plan.workspace_bytes(bf16, plan_lib.CPU_REFERENCE, 4), expected)

    @parameterized.parameters(fwd_plan.make_plan, fwd_plan.make_intra_plan)
    def test_backends_without_kernels(self, maker):
        message = "^chunk_kda: no kernels for 'npu-arch36'; "
        with self.assertRaisesRegex(NotImplementedError, message):
            maker(_PROBLEM, "npu-arch36", 24)

    def test_every_case_has_a_plan(self):
        for spec, maker in (
            (fwd_spec, fwd_plan.make_plan),
            (fwd_intra_spec, fwd_plan.make_intra_plan),
        ):
            for case in spec.SPEC.cases:
                problem = spec.problem_of(case)
                if not problem.empty:
                    plan = maker(problem, plan_lib.CUDA, 1056)
                    self.assertLessEqual(max(each.programs for each in plan.kernels), 65535)


if __name__ == "__main__":
    absltest.main()
