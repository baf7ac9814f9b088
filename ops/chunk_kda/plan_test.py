"""Tests of the plan: launches, grids, tiles, constants, buffers; with neither torch nor triton."""

import dataclasses
import sys

from absl.testing import absltest, parameterized

from ops.chunk_kda import bwd_spec, bwd_wy_dqkg_fused_spec
from ops.chunk_kda import plan as plan_lib
from ops.chunk_kda import problem as problem_lib

_BACKENDS = (plan_lib.CPU_REFERENCE, plan_lib.CUDA)
_CORES = {plan_lib.CPU_REFERENCE: 4, plan_lib.CUDA: 1056}
# B=1, T=128, H=2, HV=4, K=64, V=96, contiguous.
_OF_KEY, _OF_VALUE, _OF_SCORES = (0, 256, 64), (0, 384, 96), (0, 256, 64)
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
    strides=problem_lib.Strides(
        q=(0, 128, 64),
        k=(0, 130, 65),
        v=_OF_VALUE,
        g=_OF_KEY,
        beta=(0, 4, 1),
        Aqk=_OF_SCORES,
        Akk=(0, 260, 65),
        do=(0, 388, 97),
    ),
)
_IN_KERNEL = {
    "gate": problem_lib.SOFTPLUS,
    "g_org_dtype": "bfloat16",
    "has_A_log": True,
    "has_dt_bias": True,
}


def _plan(backend=plan_lib.CUDA, maker=plan_lib.make_plan, limit=None, **changes):
    problem = dataclasses.replace(_PROBLEM, **changes)
    return maker(problem, backend, _CORES[backend], limit)


def _kernel(name, **changes):
    (found,) = [each for each in _plan(**changes).kernels if each.kernel == name]
    return found


def _names(plan):
    return [each.kernel for each in plan.kernels]


class PlanTest(parameterized.TestCase):
    def test_needs_neither_torch_nor_triton(self):
        self.assertNotIn("torch", sys.modules)
        self.assertNotIn("triton", sys.modules)

    def test_is_pure(self):
        before = dataclasses.asdict(_PROBLEM)
        for maker in (plan_lib.make_plan, plan_lib.make_wy_plan):
            self.assertEqual(_plan(maker=maker), _plan(maker=maker))
        self.assertEqual(dataclasses.asdict(_PROBLEM), before)

    def test_launches(self):
        plain = ["prepare", "forward_scan", "reverse_scan", "scores", "finalize", "sum_group"]
        self.assertEqual(_names(_plan()), plain)
        self.assertEqual(_names(_plan(**_IN_KERNEL)), ["cumulative_gate", *plain])
        self.assertEqual(_names(_plan(H=4)), plain[:-1])
        kept = [name for name in plain if name != "forward_scan"]
        self.assertEqual(_names(_plan(recompute=False)), kept)
        self.assertEqual(_names(_plan(recompute=False, **_IN_KERNEL)), kept)
        self.assertEqual(_names(_plan(maker=plan_lib.make_wy_plan)), ["scores", "finalize"])

    @parameterized.parameters(*_BACKENDS)
    def test_tasks_and_grids(self, backend):
        changes = {"B": 3, "N": 3, "T": 320, "NT": 5, "K": 130, "V": 70, "backend": backend}
        plan = _plan(**changes, **_IN_KERNEL)
        block_v = _kernel("reverse_scan", **changes).constants["BLOCK_V"]
        tasks = {
            "cumulative_gate": 15 * 4 * 3,
            "prepare": 15 * 4,
            "forward_scan": 3 * 4 * -(-70 // block_v),
            "reverse_scan": 3 * 4 * -(-70 // block_v),
            "scores": 15 * 4,
            "finalize": 15 * 4 * 3,
            "sum_group": 3 * 320 * 2 * 256 // 4096,
        }
        self.assertEqual({each.kernel: each.num_tasks for each in plan.kernels}, tasks)
        self.assertEqual(plan.kernels[-1].constants["BLOCK_T"], 4096 // 256)
        for each in plan.kernels:
            self.assertEqual(each.programs, min(each.num_tasks, _CORES[backend]))
        scores, finalize = _plan(**changes, maker=plan_lib.make_wy_plan).kernels
        self.assertEqual((scores.num_tasks, finalize.num_tasks), (15 * 4, 15 * 4 * 3))

    def test_tasks_of_packed_sequences(self):
        changes = {"packed": True, "N": 7, "NT": 9, "T": 300}
        self.assertEqual(_kernel("prepare", **changes).num_tasks, 9 * 4)
        self.assertEqual(_kernel("reverse_scan", **changes).num_tasks, 7 * 4 * 3)
        for each in _plan(**changes).kernels[:-1]:
            self.assertTrue(each.constants["PACKED"])

    def test_strides_of_what_is_read(self):
        names = {
            "Q_STRIDE_T": 128,
            "K_STRIDE_T": 130,
            "V_STRIDE_T": 384,
            "G_STRIDE_T": 256,
            "AQK_STRIDE_T": 256,
            "AKK_STRIDE_T": 260,
            "DO_STRIDE_T": 388,
        }
        for each in _plan().kernels[:-1]:
            self.assertEqual({name: each.constants[name] for name in names}, names)
            self.assertEqual(
                [each.constants[name] for name in ("HV", "GROUP", "K", "V", "C", "PACKED")],
                [4, 2, 64, 96, 64, False],
            )

    def test_strides_of_what_is_computed_or_given(self):
        given = dataclasses.replace(
            _PROBLEM.strides, v_new=(0, 400, 100), g=(0, 260, 65), dv=(0, 396, 99)
        )
        plan = _plan(strides=given, **_IN_KERNEL)
        for each in plan.kernels[:-1]:  # new tensors
            self.assertEqual(each.constants["G_STRIDE_T"], 4 * 64)
            self.assertEqual(each.constants["V_NEW_STRIDE_T"], 4 * 96)
        for each in _plan(strides=given, recompute=False, **_IN_KERNEL).kernels[:-1]:
            self.assertEqual(each.constants["G_STRIDE_T"], 260)
            self.assertEqual(each.constants["V_NEW_STRIDE_T"], 400)
        for each in _plan(strides=given, recompute=False, maker=plan_lib.make_wy_plan).kernels:
            self.assertEqual(each.constants["DV_STRIDE_T"], 396)
        self.assertEqual(_kernel("scores").constants["DV_STRIDE_T"], 4 * 96)  # beside y

    def test_flags(self):
        def flags(name, *constants, **changes):
            found = _kernel(name, **changes).constants
            return [found[constant] for constant in constants]

        self.assertEqual(flags("prepare", "HAS_U"), [True])
        self.assertEqual(flags("prepare", "HAS_U", recompute=False), [False])
        self.assertEqual(flags("forward_scan", "HAS_H0"), [False])
        self.assertEqual(flags("forward_scan", "HAS_H0", has_initial_state=True), [True])
        states = ("HAS_DHT", "HAS_DH0")
        self.assertEqual(flags("reverse_scan", *states), [False, False])
        self.assertEqual(flags("reverse_scan", *states, has_dht=True), [True, False])
        self.assertEqual(flags("reverse_scan", *states, has_initial_state=True), [False, True])
        of_gate = ("GATE", "HAS_A_LOG", "HAS_BIAS")
        self.assertEqual(flags("finalize", *of_gate), [0, False, False])
        self.assertEqual(flags("finalize", *of_gate, **_IN_KERNEL), [1, True, True])
        bounded = _IN_KERNEL | {"gate": problem_lib.BOUNDED, "has_A_log": False}
        self.assertEqual(flags("finalize", *of_gate, **bounded), [2, False, True])
        self.assertEqual(flags("cumulative_gate", *of_gate, **bounded), [2, False, True])
        self.assertEqual(flags("finalize", "LEVELS"), [6])
        self.assertEqual(flags("finalize", "LEVELS", C=32), [5])
        self.assertEqual(flags("sum_group", "GROUP"), [2])
        wy = {"maker": plan_lib.make_wy_plan}
        self.assertEqual(flags("finalize", "LEVELS", "GATE", **wy), [0, 0])
        self.assertEqual(flags("scores", "GENERAL"), [False])
        self.assertEqual(flags("scores", "GENERAL", **wy), [True])

    @parameterized.product(k_dim=(1, 64, 65, 96, 128, 129, 256), backend=_BACKENDS)
    def test_tiles_cover_the_widths(self, k_dim, backend):
        for name in ("forward_scan", "reverse_scan"):
            found = _kernel(name, K=k_dim, backend=backend).constants
            self.assertGreaterEqual(found["BLOCK_K"], k_dim)  # the state is not split there
            self.assertLess(found["BLOCK_K"], max(2 * k_dim, 65))
            for block in (found["BLOCK_K"], found["BLOCK_V"]):
                self.assertEqual(block & (block - 1), 0)
        tiles = _kernel("finalize", K=k_dim, backend=backend)
        self.assertEqual(tiles.num_tasks, 2 * 4 * -(-k_dim // tiles.constants["BLOCK_K"]))
        self.assertGreaterEqual(
            _kernel("sum_group", K=k_dim, backend=backend).constants["BLOCK_K"], k_dim
        )

    @parameterized.product(backend=_BACKENDS, dtype=("float16", "bfloat16", "float32"))
    def test_dtypes(self, backend, dtype):
        # The interpreter does not round to bf16 as hardware does, so bf16 is fp32 there.
        widened = backend == plan_lib.CPU_REFERENCE and dtype == "bfloat16"
        plan = _plan(backend, dtype=dtype, **_IN_KERNEL)
        for each in plan.kernels:
            self.assertEqual(each.constants.get("FP32_DOTS", widened), widened)
            precise = backend == plan_lib.CUDA and dtype == "float32"
            self.assertEqual(each.constants.get("TF32X3", precise), precise)
            self.assertEqual(each.options != {}, backend == plan_lib.CUDA)
        stored = "float32" if widened else dtype
        for name in ("w", "qg", "kg", "v_new", "h", "y", "dh", "daqk", "dakk"):
            self.assertEqual(plan.workspace[name].stored, stored, name)
        for name in ("g", "on", "dbeta", "dq_parts", "dk_parts", "dA_log", "ddt_bias"):
            self.assertEqual(plan.workspace[name].stored, "float32", name)
        for name in ("dq", "dk", "dv_out"):
            found = plan.outputs[name]
            self.assertEqual((found.stored, found.dtype), (stored, dtype), name)
        of_gate = "float32" if backend == plan_lib.CPU_REFERENCE else "bfloat16"
        found = plan.outputs["dg"]
        self.assertEqual((found.stored, found.dtype), (of_gate, "bfloat16"))
        self.assertEqual(_plan(backend, dtype=dtype).outputs["dg"].dtype, "float32")
        for name, found in _plan(backend, plan_lib.make_wy_plan, dtype=dtype).outputs.items():
            self.assertEqual(found.dtype, dtype if name == "dv_out" else "float32", name)

    def test_buffers(self):
        plan = _plan(**_IN_KERNEL, has_initial_state=True, N=1, K=130)
        rows = (1, 128, 4)
        shapes = {
            "g": (*rows, 130),
            "w": (*rows, 130),
            "qg": (*rows, 130),
            "kg": (*rows, 130),
            "v_new": (*rows, 96),
            "h": (2, 4, 130, 96),
            "y": (*rows, 96),
            "dh": (2, 4, 130, 96),
            "daqk": (*rows, 64),
            "dakk": (*rows, 64),
            "on": rows,
            "dbeta": (1 + 3, *rows),
            "dq_parts": (*rows, 130),
            "dk_parts": (*rows, 130),
            "dA_log": (2 * 3, 4),
            "ddt_bias": (2, 4 * 130),
        }
        self.assertEqual({name: found.shape for name, found in plan.workspace.items()}, shapes)
        shapes = {
            "dq": (1, 128, 2, 130),
            "dk": (1, 128, 2, 130),
            "dv_out": (*rows, 96),
            "dg": (*rows, 130),
            "dh0": (1, 4, 130, 96),
        }
        self.assertEqual({name: found.shape for name, found in plan.outputs.items()}, shapes)
        self.assertNoCommonElements(("g", "dA_log", "ddt_bias"), _plan().workspace)
        self.assertNoCommonElements(("dq_parts", "dk_parts"), _plan(H=4).workspace)
        self.assertNotIn("dh0", _plan().outputs)
        self.assertNoCommonElements(("v_new", "h", "g"), _plan(recompute=False).workspace)
        wy = _plan(maker=plan_lib.make_wy_plan)
        self.assertEqual(set(wy.workspace), {"y", "dbeta"})
        self.assertEqual(list(wy.outputs), ["dq", "dk", "dg", "dv_out", "dakk"])

    @parameterized.product(
        in_kernel=(False, True), recompute=(False, True), maker=("make_plan", "make_wy_plan")
    )
    def test_buffers_exist_while_they_are_used(self, in_kernel, recompute, maker):
        plan = _plan(
            maker=getattr(plan_lib, maker), recompute=recompute, **(_IN_KERNEL if in_kernel else {})
        )
        last = len(plan.kernels) - 1
        for name, found in (*plan.workspace.items(), *plan.outputs.items()):
            self.assertBetween(found.first, 0, found.last, name)
            self.assertLessEqual(found.last, last)
        for found in plan.outputs.values():
            self.assertEqual(found.last, last)

    def test_workspace_bytes(self):
        plan = plan_lib.Plan(
            kernels=_plan().kernels[:3],
            workspace={
                "a": plan_lib.Buffer((10,), "float32", None, 0, 1),
                "b": plan_lib.Buffer((10,), "float16", None, 2, 2),
                "c": plan_lib.Buffer((4,), "float32", None, 0, 2),
            },
            outputs={
                "d": plan_lib.Buffer((3,), "float32", "float32", 2, 2),
                "e": plan_lib.Buffer((5,), "float32", "bfloat16", 0, 2),
            },
        )
        self.assertEqual(plan.workspace["b"].bytes, 20)
        # e is written in fp32 and converted.
        self.assertEqual(plan.workspace_bytes(peak=False), 40 + 20 + 16 + 20)
        # While a is held, d is not there yet.
        self.assertEqual(plan.workspace_bytes(peak=True), 40 + 16 - 12 + 20)

    def test_a_smaller_grid_changes_grids_only(self):
        for maker in (plan_lib.make_plan, plan_lib.make_wy_plan):
            for backend in _BACKENDS:
                plan, other = _plan(backend, maker), _plan(backend, maker, limit=3)
                self.assertEqual(
                    [each.programs for each in other.kernels],
                    [min(3, each.num_tasks, _CORES[backend]) for each in plan.kernels],
                )
                kernels = tuple(
                    dataclasses.replace(each, programs=mine.programs)
                    for each, mine in zip(other.kernels, plan.kernels, strict=True)
                )
                self.assertEqual(dataclasses.replace(other, kernels=kernels), plan)

    def test_constants_do_not_depend_on_batch_or_length(self):
        # Else every new length would compile kernels of its own.
        longer = _plan(B=9, N=9, T=1000, NT=16, **_IN_KERNEL)
        for each, mine in zip(longer.kernels, _plan(**_IN_KERNEL).kernels, strict=True):
            self.assertEqual(each.constants, mine.constants)

    def test_explain(self):
        plan = _plan(**_IN_KERNEL)
        lines = plan.explain().splitlines()
        self.assertLen(lines, len(plan.kernels) + 1)
        for line, each in zip(lines, plan.kernels, strict=False):
            self.assertStartsWith(
                line, f"{each.kernel}: {each.num_tasks} tasks on {each.programs} programs, tiles {{"
            )
            tile = "v" if "BLOCK_V" in each.constants else "k"
            self.assertIn(f"'{tile}': {each.constants[f'BLOCK_{tile.upper()}']}", line)
            self.assertEndsWith(line, f", options {dict(each.options)}")
        self.assertStartsWith(lines[-1], "workspace in bytes: g 131072, w 65536, ")
        self.assertNotIn("options", _plan(plan_lib.CPU_REFERENCE).explain())

    def test_more_pieces_than_kernels_count(self):
        with self.assertRaisesRegex(
            ValueError,
            r"^pieces of work of prepare: got 2147483648, allowed: up to 2147418112; their number "
            r"grows with B \* T \* HV$",
        ):
            _plan(B=2**28, NT=2)
        with self.assertRaisesRegex(ValueError, "^pieces of work of scores: got 21474"):
            _plan(B=2**28, NT=2, maker=plan_lib.make_wy_plan)
        with self.assertRaisesRegex(ValueError, "^pieces of work of forward_scan: got 3000"):
            _plan(N=250_000_000)
        self.assertEqual(_kernel("prepare", NT=2**29 - 2**14).num_tasks, 2**31 - 2**16)

    def test_backends_without_kernels(self):
        for maker in (plan_lib.make_plan, plan_lib.make_wy_plan):
            with self.assertRaisesRegex(
                NotImplementedError,
                "^chunk_kda: no kernels for 'npu-arch36'; implemented are cpu-reference, cuda, "
                "npu-arch32, npu-arch35$",
            ):
                maker(_PROBLEM, "npu-arch36", 24)

    @parameterized.parameters(*_BACKENDS)
    def test_what_the_specs_declare(self, backend):
        cores = _CORES[backend]
        for spec, maker in (
            (bwd_spec, plan_lib.make_plan),
            (bwd_wy_dqkg_fused_spec, plan_lib.make_wy_plan),
        ):
            for case in spec.SPEC.cases:
                problem = spec.problem_of(case)
                if problem.empty:
                    self.assertEqual(spec.launches(case, backend, cores), 0)
                    continue
                plan = maker(problem, backend, cores)
                self.assertEqual(spec.launches(case, backend, cores), len(plan.kernels))
                peak = backend != plan_lib.CPU_REFERENCE
                declared = spec.workspace_bytes(case, backend, cores)
                tables = 8 * (problem.N + 1 + problem.NT) if problem.packed else 0
                if case.name in ("strided", "fp32_chunk32"):  # arguments that are copied
                    self.assertGreater(declared, plan.workspace_bytes(peak) + tables)
                else:
                    self.assertEqual(declared, plan.workspace_bytes(peak) + tables, case.name)


if __name__ == "__main__":
    absltest.main()
