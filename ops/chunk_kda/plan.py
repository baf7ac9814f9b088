"""Which kernels a call launches, with which tiles, grids, constants and workspace. Plain Python: no
torch, no triton."""

import dataclasses
from collections.abc import Mapping

from ops.chunk_kda import npu_plan
from ops.chunk_kda import problem as problem_lib
from ops.chunk_kda.plan_types import (
    Buffer,
    KernelPlan,
    Plan,
    ceil_div,
    check_tasks,
    gate_constants,
    next_power_of_two,
    shared_constants,
)

# Names of ops.common.backend, repeated here because that module imports torch and triton; plan_test
# compares them.
CPU_REFERENCE = "cpu-reference"
CUDA = "cuda"

# Names of the kernels, as launches report them; those for NPUs are in npu_plan.py.
GATE = "cumulative_gate"
PREPARE = "prepare"
FORWARD = "forward_scan"
REVERSE = "reverse_scan"
SCORES = "scores"
FINALIZE = "finalize"
GROUP = "sum_group"
PAIR_SCORES = "pair_scores"
SOLVE = "solve"

# 64 columns beside a chunk of 64 tokens. With 32 Triton 3.6 miscompiles some products of Hopper's
# wgmma: finalize was off by 2000 %, the scans right only while their loads are pipelined.
_BLOCK = 64
# Of ops.common.launch, see CPU_REFERENCE.
_MAX_PROGRAMS = 65535


def make_plan(
    problem: problem_lib.Problem, backend: str, cores: int, max_programs: int | None = None
) -> Plan:
    """Plans the launches of chunk_kda_bwd for a problem that is not empty.

    Args:
        problem: the checked call.
        backend: name of the backend, see ops.common.backend.
        cores: programs that a persistent grid should have there.
        max_programs: the most that a grid may have; it changes no result's bits. Default: cores.

    Raises:
        NotImplementedError: no kernels are written for this backend, or not for these sizes.
        ValueError: more pieces of work than kernels can count.
    """
    if backend in npu_plan.BACKENDS:
        return npu_plan.make_plan(problem, backend, cores, max_programs)
    p = problem
    maker = Maker(problem, backend, cores, max_programs)
    gate = gate_constants(problem)
    kernels = []
    if p.computes_gate:
        kernels.append(maker.cumulative_gate(gate))
    prepare = len(kernels)
    kernels.append(maker.prepare())
    if p.recompute:
        kernels.append(maker.scan(FORWARD, {"HAS_H0": p.has_initial_state}))
    reverse = len(kernels)
    flags = {"HAS_DHT": p.has_dht, "HAS_DH0": p.has_initial_state}
    kernels.append(maker.scan(REVERSE, flags | {"DO_STRIDE_T": p.strides.do[1]}))
    scores = len(kernels)
    kernels.append(maker.scores(general=False))
    finalize = len(kernels)
    kernels.append(maker.finalize(p.C.bit_length() - 1, gate))
    last = finalize
    if p.group > 1:
        kernels.append(maker.sum_group())
        last += 1

    rows = (p.B, p.T, p.HV)
    states = (p.chunks, p.HV, p.K, p.V)
    stored, fp32 = maker.stored, problem_lib.FLOAT32

    def inner(shape: tuple[int, ...], dtype: str, first: int, last: int) -> Buffer:
        return Buffer(shape, dtype, None, first, last)

    workspace = {}
    if p.computes_gate:
        workspace["g"] = inner((*rows, p.K), fp32, 0, finalize)
    for name in ("w", "qg", "kg"):
        workspace[name] = inner((*rows, p.K), stored, prepare, reverse)
    if p.recompute:
        workspace["v_new"] = inner((*rows, p.V), stored, prepare, finalize)
        workspace["h"] = inner(states, stored, prepare, finalize)
    workspace["y"] = inner((*rows, p.V), stored, prepare, finalize)
    workspace["dh"] = inner(states, stored, prepare, finalize)
    for name in ("daqk", "dakk"):
        workspace[name] = inner((*rows, p.C), stored, scores, finalize)
    workspace["on"] = inner(rows, fp32, scores, finalize)
    workspace["dbeta"] = inner((1 + maker.k_tiles, *rows), fp32, scores, last)
    if p.group > 1:
        for name in ("dq_parts", "dk_parts"):
            workspace[name] = inner((*rows, p.K), fp32, finalize, last)
    if p.has_A_log:
        workspace["dA_log"] = inner((p.chunks * maker.k_tiles, p.HV), fp32, finalize, last)
    if p.has_dt_bias:
        workspace["ddt_bias"] = inner((p.chunks, p.HV * p.K), fp32, finalize, last)

    of_key = (p.B, p.T, p.H, p.K)
    of_gate = fp32 if p.gate == problem_lib.GIVEN else p.g_org_dtype
    outputs = {
        "dq": Buffer(of_key, stored, p.dtype, last, last),
        "dk": Buffer(of_key, stored, p.dtype, last, last),
        "dv_out": Buffer((*rows, p.V), stored, p.dtype, scores, last),
        "dg": Buffer((*rows, p.K), maker.stored_as(of_gate), of_gate, finalize, last),
    }
    if p.has_initial_state:
        outputs["dh0"] = Buffer((p.N, p.HV, p.K, p.V), fp32, fp32, reverse, last)
    return Plan(tuple(kernels), workspace, outputs)


def make_wy_plan(
    problem: problem_lib.Problem, backend: str, cores: int, max_programs: int | None = None
) -> Plan:
    """The same for chunk_kda_bwd_wy_dqkg_fused."""
    if backend in npu_plan.BACKENDS:
        return npu_plan.make_wy_plan(problem, backend, cores, max_programs)
    p = problem
    maker = Maker(problem, backend, cores, max_programs)
    given = {"GATE": 0, "HAS_A_LOG": False, "HAS_BIAS": False, "G_ORG_STRIDE_T": 0}
    kernels = (maker.scores(general=True), maker.finalize(0, given))
    rows, fp32 = (p.B, p.T, p.HV), problem_lib.FLOAT32
    workspace = {
        "y": Buffer((*rows, p.V), maker.stored, None, 0, 1),
        "dbeta": Buffer((1 + maker.k_tiles, *rows), fp32, None, 0, 1),
    }
    outputs = {name: Buffer((*rows, p.K), fp32, fp32, 0, 1) for name in ("dq", "dk", "dg")}
    outputs["dv_out"] = Buffer((*rows, p.V), maker.stored, p.dtype, 0, 1)
    outputs["dakk"] = Buffer((*rows, p.C), fp32, fp32, 0, 1)
    return Plan(kernels, workspace, outputs)


def launch_count(problem: problem_lib.Problem, backend: str, cores: int) -> int:
    """Of a call of chunk_kda_bwd."""
    return len(make_plan(problem, backend, cores).kernels)


def wy_launch_count(problem: problem_lib.Problem, backend: str, cores: int) -> int:
    """Of a call of chunk_kda_bwd_wy_dqkg_fused."""
    return len(make_wy_plan(problem, backend, cores).kernels)


def workspace_bytes(problem: problem_lib.Problem, backend: str, cores: int) -> int:
    """Device bytes that a call of chunk_kda_bwd needs beside its results: at the peak; on
    cpu-reference in all, which is what is measured there."""
    return workspace_of(problem, backend, make_plan(problem, backend, cores))


def wy_workspace_bytes(problem: problem_lib.Problem, backend: str, cores: int) -> int:
    """The same for chunk_kda_bwd_wy_dqkg_fused."""
    return workspace_of(problem, backend, make_wy_plan(problem, backend, cores))


def workspace_of(problem: problem_lib.Problem, backend: str, plan: Plan) -> int:
    """Device bytes of a plan beside its results, tables of packed sequences among them."""
    tables = 4 * (2 * (problem.N + 1) + 2 * problem.NT) if problem.packed else 0
    return tables + plan.workspace_bytes(peak=backend != CPU_REFERENCE)


class Maker:
    """Kernel plans of a problem on a backend."""

    def __init__(
        self, problem: problem_lib.Problem, backend: str, cores: int, max_programs: int | None
    ):
        if backend not in (CPU_REFERENCE, CUDA):
            implemented = ", ".join((CPU_REFERENCE, CUDA, *npu_plan.BACKENDS))
            raise NotImplementedError(
                f"chunk_kda: no kernels for {backend!r}; implemented are {implemented}"
            )
        self._problem = problem
        self._gpu = backend == CUDA
        self._max_programs = max_programs
        self._limit = cores if max_programs is None else min(cores, max_programs)
        # Triton's interpreter multiplies bf16 matrices as if they were integers and truncates where
        # it should round to bf16 (triton 3.2). There, and only there, bf16 operands and what is
        # stored stay in fp32: that device judges the algorithm, not bf16.
        self._fp32_dots = backend == CPU_REFERENCE and problem.dtype == problem_lib.BFLOAT16
        self._interpreter = backend == CPU_REFERENCE
        self.stored = self.stored_as(problem.dtype)
        self.k_tiles = ceil_div(problem.K, _BLOCK)

    def stored_as(self, dtype: str) -> str:
        """The dtype that kernels store where the contract has `dtype`."""
        if self._interpreter and dtype == problem_lib.BFLOAT16:
            return problem_lib.FLOAT32
        return dtype

    def cumulative_gate(self, gate: Mapping[str, int | bool]) -> KernelPlan:
        p = self._problem
        constants = {**gate, "BLOCK_K": _BLOCK}
        return self._each(GATE, p.chunks * p.HV * self.k_tiles, constants)

    def prepare(self) -> KernelPlan:
        p = self._problem
        # As few tiles as possible: 0.23 ms instead of 0.27.
        constants = {"BLOCK_K": self._wide(p.K), "BLOCK_V": self._wide(p.V), "HAS_U": p.recompute}
        return self._kernel(PREPARE, p.chunks * p.HV, constants, 4)

    def pair_scores(self, has_qg: bool, has_ke: bool) -> KernelPlan:
        p = self._problem
        constants = {
            "BLOCK_K": _BLOCK,
            "LEVELS": p.C.bit_length() - 1,
            "HAS_QG": has_qg,
            "HAS_KE": has_ke,
        }
        return self._each(PAIR_SCORES, p.chunks * p.HV, constants)

    def solve(self, has_w: bool) -> KernelPlan:
        p = self._problem
        precision = "ieee"
        if self._gpu:
            # tf32 keeps 11 bits of an operand, enough where Akk is rounded to bf16's 8; three
            # products of bf16 halves keep 16 (0.13 ms instead of 0.10), tf32x3 keeps 22.
            precision = {
                problem_lib.BFLOAT16: "tf32",
                problem_lib.FLOAT16: "bf16x3",
                problem_lib.FLOAT32: "tf32x3",
            }[p.dtype]
        constants: dict[str, int | bool | str] = {
            "BLOCK_K": self._wide(p.K),
            "BLOCK_V": self._wide(p.V),
            "LEVELS": p.C.bit_length() - 1,
            "HAS_W": has_w,
            "SOLVE": precision,
        }
        return self._each(SOLVE, p.chunks * p.HV, constants)

    def scan(self, name: str, constants: Mapping[str, int | bool], operands: int = 2) -> KernelPlan:
        """operands: [C, K] matrices that a chunk multiplies."""
        p = self._problem
        block_v, stages = self._scan_tiles()
        if p.K > 128 and operands > 2 and stages > 1:
            block_v, stages = _BLOCK, 1  # two stages of three matrices need 233 KiB
        count = p.N * p.HV * ceil_div(p.V, block_v)
        tiles = {"BLOCK_K": max(_BLOCK, next_power_of_two(p.K)), "BLOCK_V": block_v}
        return self._kernel(name, count, {**constants, **tiles, "STAGES": stages}, 4)

    def _scan_tiles(self) -> tuple[int, int]:
        """Columns of the state, and chunks whose loads are under way.

        A chunk waits for the one before it, so that more programs with fewer columns are faster:
        0.14 ms with 32 columns and 3 stages, 0.21 with 16, 0.30 with 64 (H200, T 8192, 32 heads,
        K = V = 128). The stages' tiles have to fit 227 KiB of shared memory.
        """
        p = self._problem
        if p.dtype == problem_lib.FLOAT32:
            return _BLOCK, 1
        return 32, 3 if p.K <= 128 else 2

    def scores(self, general: bool) -> KernelPlan:
        p = self._problem
        if general:  # 0.21 ms; 0.31 with tiles of 64 and one stage
            tiles, stages = {"BLOCK_K": self._wide(p.K), "BLOCK_V": self._wide(p.V)}, 2
        else:  # 0.18 ms; 0.20 with one stage, 0.22 with tiles of 128 and two
            tiles, stages = {"BLOCK_K": _BLOCK, "BLOCK_V": _BLOCK}, 3
        return self._kernel(SCORES, p.chunks * p.HV, {**tiles, "GENERAL": general}, 4, stages)

    def finalize(self, levels: int, gate: Mapping[str, int | bool]) -> KernelPlan:
        p = self._problem
        constants = {
            **gate,
            "BLOCK_K": _BLOCK,
            "BLOCK_V": _BLOCK,
            "LEVELS": levels,
            "SPLIT_SUMS": self._gpu,
        }
        # With levels 4 warps spill fp32 tiles (3.3 ms instead of 1.1), and 16 take 1.7. Without
        # levels 4 warps that load ahead take 0.40, 8 warps 0.47.
        fp32 = p.dtype == problem_lib.FLOAT32
        warps, stages = (8, 1) if levels or fp32 else (4, 2)
        count = p.chunks * p.HV * self.k_tiles
        launch = self._kernel(FINALIZE, count, constants, warps, stages)
        return dataclasses.replace(launch, first_slot=1)

    def sum_group(self) -> KernelPlan:
        p = self._problem
        block_k = next_power_of_two(p.K)
        constants = {"GROUP": p.group, "K": p.K, "BLOCK_T": 4096 // block_k, "BLOCK_K": block_k}
        count = ceil_div(p.B * p.T * p.H, constants["BLOCK_T"])
        check_tasks(GROUP, count)
        options = {"num_warps": 4} if self._gpu else {}
        return KernelPlan(GROUP, min(count, self._limit), count, constants, options)

    def _wide(self, size: int) -> int:
        """Columns of a tile where registers suffice for 128."""
        fp32 = self._problem.dtype == problem_lib.FLOAT32
        return _BLOCK if fp32 or size <= _BLOCK else 2 * _BLOCK

    def _each(self, name: str, count: int, constants: Mapping[str, int | bool | str]) -> KernelPlan:
        """A kernel that can do without its loop over tasks, see tile.tasks_of_program."""
        one_task = self._gpu and self._max_programs is None and count <= _MAX_PROGRAMS
        launch = self._kernel(name, count, {**constants, "ONE_TASK": one_task}, 4)
        return dataclasses.replace(launch, programs=count) if one_task else launch

    def _kernel(
        self,
        name: str,
        count: int,
        constants: Mapping[str, int | bool | str],
        warps: int,
        stages: int = 1,
    ) -> KernelPlan:
        check_tasks(name, count)
        fp32 = self._problem.dtype == problem_lib.FLOAT32
        shared = {
            **shared_constants(self._problem),
            "FP32_DOTS": self._fp32_dots,
            # Matrix units round fp32 operands to 11 bits; three products of split ones keep 22.
            "TF32X3": self._gpu and fp32,
        }
        if fp32:  # tiles of twice the size: what loads ahead has no room
            stages = 1
        options = {"num_warps": warps, "num_stages": stages} if self._gpu else {}
        return KernelPlan(name, min(count, self._limit), count, {**shared, **constants}, options)
