"""What plan.py says, for Ascend NPUs: which kernels, tiles and compiler options. Plain Python.

The tiles are what fits 192 KiB (arch32) and 256 KiB (arch35) of a vector core's memory; an
architecture's two vector cores share a tile's rows on arch32, on arch35 one holds all of them.
records/2026-11-30_npu.md and 2026-12-01_npu.md compare the choices.
"""

import dataclasses
from collections.abc import Mapping

from ops.chunk_kda import problem as problem_lib
from ops.chunk_kda.plan_types import (
    ITEMSIZE,
    Buffer,
    KernelPlan,
    Plan,
    ceil_div,
    check_tasks,
    gate_constants,
    next_power_of_two,
    shared_constants,
)

# Names of ops.common.backend; plan_test compares them.
NPU_ARCH32 = "npu-arch32"
NPU_ARCH35 = "npu-arch35"
BACKENDS = (NPU_ARCH32, NPU_ARCH35)

# Names of the kernels, as launches report them.
GATE = "cumulative_gate"
DECAYED = "decayed"
FORWARD = "forward_states"
REVERSE = "reverse_states"
SCORES = "level_scores"
GRADIENTS = "level_gradients"
GATE_BACKWARD = "gate_backward"
SCORE_CHUNK = "score_chunk"
SOLVE_CHUNK = "solve_chunk"
WU_CHUNK = "wu_chunk"
OUTPUT = "output_states"
WY_CHUNK = "wy_chunk"
WY_DQKG = "wy_dqkg"

# Masked matrices take 96 KiB per chunk and head: that of a range of the chunks is held at a time.
_MAX_MASKED_BYTES = 64 << 20
# Elements of an fp32 tile in kernels without matrix products, which hold several.
_VECTOR_TILE = 4096
# arch35's compiler (1.2.0) crashes on 16 columns.
_LEAST_BLOCK = {NPU_ARCH32: 16, NPU_ARCH35: 32}

_Constants = Mapping[str, int | bool]


def make_plan(
    problem: problem_lib.Problem, backend: str, cores: int, max_programs: int | None = None
) -> Plan:
    """See plan.make_plan. cores: cube cores; each brings two vector cores."""
    p = problem
    maker = _Maker(problem, backend, cores, max_programs)
    gate = gate_constants(problem)
    kernels = []
    if p.computes_gate:
        kernels.append(maker.cumulative_gate(gate))
    decayed = len(kernels)
    kernels.append(maker.decayed())
    if p.recompute:
        kernels.append(maker.scan(FORWARD, {"HAS_H0": p.has_initial_state}))
    reverse = len(kernels)
    flags = {"HAS_DHT": p.has_dht, "HAS_DH0": p.has_initial_state}
    kernels.append(maker.scan(REVERSE, flags))
    scores = len(kernels)
    size = maker.chunks_of_range()
    for first in range(0, p.chunks, size):
        count = min(size, p.chunks - first)
        kernels += [maker.scores(first, count), maker.gradients(first, count)]
    gradients = len(kernels) - 1
    if p.gate != problem_lib.GIVEN:
        kernels.append(maker.gate(GATE_BACKWARD, gate))
    last = len(kernels) - 1

    rows, states = (p.B, p.T, p.HV), (p.chunks, p.HV, p.K, p.V)
    fp32 = problem_lib.FLOAT32

    def inner(shape: tuple[int, ...], dtype: str, first: int, last: int) -> Buffer:
        return Buffer(shape, dtype, None, first, last)

    workspace = {}
    if p.computes_gate:
        workspace["g"] = inner((*rows, p.K), fp32, 0, gradients)
    for name in ("qg", "ke", "kg"):
        shape = (p.chunks, p.HV, p.C, maker.scan_block_k)
        workspace[name] = inner(shape, p.dtype, decayed, reverse)
    for name in ("scores", "inverse"):
        workspace[name] = inner((p.chunks, p.HV, p.C, p.C), p.dtype, decayed, reverse)
    if p.recompute:
        workspace["v_new"] = inner((*rows, p.V), p.dtype, decayed + 1, gradients)
        workspace["h"] = inner(states, p.dtype, decayed + 1, gradients)
    workspace["y"] = inner((*rows, p.V), p.dtype, reverse, gradients)
    workspace["dh"] = inner(states, p.dtype, reverse, gradients)
    workspace["masked"] = inner((size, *maker.masked_shape), p.dtype, scores, gradients)
    workspace["on"] = inner(rows, fp32, scores, gradients)
    workspace["h_dh"] = inner((p.chunks, p.HV, p.K), fp32, scores, gradients)
    slots = maker.v_tiles + ceil_div(p.K, maker.gradients_block_k)
    workspace["dbeta"] = inner((slots, *rows), fp32, reverse, last)
    if p.gate != problem_lib.GIVEN:
        workspace["dgate"] = inner((*rows, p.K), fp32, scores, last)
    if p.has_A_log:
        tiles = ceil_div(p.K, maker.gate_block_k)
        workspace["dA_log"] = inner((p.chunks * tiles, p.HV), fp32, last, last)
    if p.has_dt_bias:
        workspace["ddt_bias"] = inner((p.chunks, p.HV * p.K), fp32, last, last)

    def outer(shape: tuple[int, ...], dtype: str, first: int) -> Buffer:
        return Buffer(shape, dtype, dtype, first, last)

    of_key = (p.B, p.T, p.H, p.K)
    outputs = {name: outer(of_key, p.dtype, scores) for name in ("dq", "dk")}
    outputs["dv_out"] = outer((*rows, p.V), p.dtype, reverse)
    if p.gate == problem_lib.GIVEN:
        outputs["dg"] = outer((*rows, p.K), fp32, scores)
    else:
        outputs["dg"] = outer((*rows, p.K), p.g_org_dtype, last)
    if p.has_initial_state:
        outputs["dh0"] = outer((p.N, p.HV, p.K, p.V), fp32, reverse)
    return Plan(tuple(kernels), workspace, outputs)


def make_wy_plan(
    problem: problem_lib.Problem, backend: str, cores: int, max_programs: int | None = None
) -> Plan:
    """See plan.make_wy_plan."""
    p = problem
    maker = _Maker(problem, backend, cores, max_programs)
    kernels = (maker.wy_chunk(), maker.wy_dqkg())
    rows, fp32 = (p.B, p.T, p.HV), problem_lib.FLOAT32
    slots = 1 + ceil_div(p.K, maker.wy_block_k)
    workspace = {
        "y": Buffer((*rows, p.V), p.dtype, None, 0, 1),
        "h_dh": Buffer((p.chunks, p.HV, p.K), fp32, None, 0, 1),
        "dbeta": Buffer((slots, *rows), fp32, None, 0, 1),
    }
    outputs = {name: Buffer((*rows, p.K), fp32, fp32, 1, 1) for name in ("dq", "dk", "dg")}
    outputs["dv_out"] = Buffer((*rows, p.V), p.dtype, p.dtype, 0, 1)
    outputs["dakk"] = Buffer((*rows, p.C), fp32, fp32, 0, 1)
    return Plan(kernels, workspace, outputs)


def make_fwd_plan(
    problem: problem_lib.Problem, backend: str, cores: int, max_programs: int | None = None
) -> Plan:
    """See fwd_plan.make_plan."""
    p = problem
    maker = _Maker(problem, backend, cores, max_programs)
    flags = {"HAS_H0": p.has_initial_state, "HAS_FINAL_STATE": p.has_final_state}
    kernels = (
        maker.cumulative_gate(gate_constants(problem)),
        maker.score_chunk({"PADDED": True, "HAS_QG": True}),
        maker.solve_chunk(),
        maker.output_states(flags),
    )
    rows, fp32 = (p.B, p.T, p.HV), problem_lib.FLOAT32
    padded = (p.chunks, p.HV, p.C, maker.padded_k)
    workspace = {name: Buffer(padded, p.dtype, None, 1, 3) for name in ("qg", "ke", "kg")}
    workspace["system"] = Buffer((p.chunks, p.HV, p.C, p.C), fp32, None, 1, 2)
    outputs = {
        "o": Buffer((*rows, p.V), p.dtype, p.dtype, 3, 3),
        "g": Buffer((*rows, p.K), fp32, fp32, 0, 3),
        "Aqk": Buffer((*rows, p.C), p.dtype, p.dtype, 1, 3),
        "Akk": Buffer((*rows, p.C), p.dtype, p.dtype, 2, 3),
    }
    if p.has_final_state:
        outputs["final_state"] = Buffer((p.N, p.HV, p.K, p.V), fp32, fp32, 3, 3)
    return Plan(kernels, workspace, outputs)


def make_intra_plan(
    problem: problem_lib.Problem, backend: str, cores: int, max_programs: int | None = None
) -> Plan:
    """See fwd_plan.make_intra_plan."""
    p = problem
    maker = _Maker(problem, backend, cores, max_programs)
    kernels = (
        maker.score_chunk({"PADDED": False, "HAS_QG": not p.recompute}),
        maker.solve_chunk(),
        maker.wu_chunk(),
    )
    rows = (p.B, p.T, p.HV)

    def result(width: int, first: int) -> Buffer:
        return Buffer((*rows, width), p.dtype, p.dtype, first, 2)

    outputs = {"w": result(p.K, 2), "u": result(p.V, 2), "kg": result(p.K, 0)}
    if not p.recompute:
        outputs["qg"] = result(p.K, 0)
    outputs |= {"Aqk": result(p.C, 0), "Akk": result(p.C, 1)}
    system = Buffer((p.chunks, p.HV, p.C, p.C), problem_lib.FLOAT32, None, 0, 1)
    return Plan(kernels, {"system": system}, outputs)


class _Maker:
    """Kernel plans of a problem on an architecture."""

    def __init__(
        self, problem: problem_lib.Problem, backend: str, cores: int, max_programs: int | None
    ):
        p = problem
        self._problem = p
        self._arch32 = backend == NPU_ARCH32
        self._cores, self._max_programs = cores, max_programs
        self._fp32 = p.dtype == problem_lib.FLOAT32
        self._wide = p.K > 128 or p.V > 128
        self._levels = p.C.bit_length() - 1
        self._least = _LEAST_BLOCK[backend]
        self._block_k, self._block_v = self._block(p.K), self._block(p.V)
        # Of operands that are multiplied along V.
        self._part_v = self._block_v
        if self._fp32 and p.V > 128:
            self._part_v = 128 if self._arch32 else 64
        # Rows of products are multiples of 16 anyway; 32 saves a quarter of K = 96 against 128.
        self.scan_block_k = min(self._block_k, 32 * ceil_div(p.K, 32))
        self.gate_block_k = min(64, self._block_k)
        self.gradients_block_k = min(self._gradients_block(), self._block_k)
        self.wy_block_k = min(self._wy_block(), self._block_k)
        # Of dbeta, each with a slot of its own.
        self.v_tiles = ceil_div(p.V, self._scan_block(REVERSE))
        self.score_block_k = min(self._score_block(), self.scan_block_k)
        # Of what the forward's scan reads: full tiles of score_chunk.
        self.padded_k = self.score_block_k * ceil_div(p.K, self.score_block_k)
        self.masked_shape = (p.HV, 2, self._levels, p.C, p.C)

    def _block(self, size: int) -> int:
        return max(self._least, next_power_of_two(size))

    def _gradients_block(self) -> int:
        p = self._problem
        if self._arch32:
            return 64
        # One vector core holds all rows: with sums over a group's heads, masks of columns or fp32
        # operands beside them, 64 columns do not fit.
        fits = p.group == 1 and p.K in (64, 128) and p.V in (64, 128)
        return 64 if fits and not self._fp32 else 32

    def _score_block(self) -> int:
        return 128 if self._arch32 else 64

    def _wy_block(self) -> int:
        p = self._problem
        if p.K > 128 and p.V > 128:
            return 32
        return 32 if self._fp32 and not self._arch32 else 64

    def chunks_of_range(self) -> int:
        """Chunks whose masked matrices exist at a time."""
        p = self._problem
        of_chunk = ITEMSIZE[p.dtype]
        for size in self.masked_shape:
            of_chunk *= size
        ranges = ceil_div(p.chunks, max(1, _MAX_MASKED_BYTES // of_chunk))
        return ceil_div(p.chunks, ranges)

    def cumulative_gate(self, constants: _Constants) -> KernelPlan:
        return self.gate(GATE, {**constants, "ONE_TASK": False})

    def gate(self, name: str, constants: _Constants) -> KernelPlan:
        p = self._problem
        count = p.chunks * p.HV * ceil_div(p.K, self.gate_block_k)
        return self._kernel(name, count, {**constants, "BLOCK_K": self.gate_block_k}, vector=True)

    def decayed(self) -> KernelPlan:
        p = self._problem
        block_t = min(p.C, max(16, _VECTOR_TILE // self._block_k))
        count = p.chunks * p.HV * (p.C // block_t)
        constants = {"BLOCK_T": block_t, "BLOCK_K": self.scan_block_k}
        return self._kernel(DECAYED, count, constants, vector=True)

    def scan(self, name: str, constants: _Constants) -> KernelPlan:
        p = self._problem
        block_v = self._scan_block(name)
        count = p.N * p.HV * ceil_div(p.V, block_v)
        tiles = {"BLOCK_K": self.scan_block_k, "BLOCK_V": block_v}
        return self._kernel(name, count, {**constants, **tiles})

    def _scan_block(self, name: str) -> int:
        """Columns of the state. A chunk of 128 columns takes 1.5 times as long as one of 64 (arch32
        1.4), so 64 are better only for programs that would idle."""
        p = self._problem
        if p.K > 128:
            widest = 64 if self._arch32 and not self._fp32 else 32
        elif self._fp32 or (name == REVERSE and not self._arch32):
            widest = 64
        else:
            widest = 128
        if p.N * p.HV * ceil_div(p.V, widest) < self._cores:
            widest = min(widest, 64)
        return min(widest, self._block_v)

    def scores(self, first: int, count: int) -> KernelPlan:
        p = self._problem
        constants = {
            "LEVELS": self._levels,
            "BLOCK_V": self._part_v,
            "STATE_ROWS": min(64 if self._wide else 128, self._block_k),
            "STATE_BLOCK": self._block_v,
            "CUBES": self._arch32,
        }
        return self._kernel(SCORES, count * p.HV, constants, first_chunk=first)

    def gradients(self, first: int, count: int) -> KernelPlan:
        p = self._problem
        tiles = ceil_div(p.K, self.gradients_block_k)
        constants = {
            "LEVELS": self._levels,
            "BLOCK_K": self.gradients_block_k,
            "BLOCK_V": self._part_v,
            # Two levels at a time: 56 -> 46 kcycles a tile on arch32; arch35 has no room for it.
            # Unrolled beside it is 2 % faster, takes three times as long to compile, and with wide
            # or fp32 operands fills L1 and deadlocks (found by the simulator).
            "PAIRS": self._arch32,
        }
        launch = self._kernel(GRADIENTS, count * p.H * tiles, constants, first_chunk=first)
        return dataclasses.replace(launch, first_slot=self.v_tiles)

    def score_chunk(self, flags: _Constants) -> KernelPlan:
        p = self._problem
        constants = {
            **flags,
            "LEVELS": self._levels,
            "BLOCK_K": self.score_block_k,
            "PAIRS": self._arch32,
        }
        return self._kernel(SCORE_CHUNK, p.chunks * p.HV, constants)

    def solve_chunk(self) -> KernelPlan:
        p = self._problem
        return self._kernel(SOLVE_CHUNK, p.chunks * p.HV, {"LEVELS": self._levels})

    def wu_chunk(self) -> KernelPlan:
        p = self._problem
        constants = {"BLOCK_K": self.score_block_k, "BLOCK_V": min(128, self._block_v)}
        return self._kernel(WU_CHUNK, p.chunks * p.HV, constants)

    def output_states(self, flags: _Constants) -> KernelPlan:
        launch = self.scan(OUTPUT, flags)
        constants = {**launch.constants, "BLOCK_K": self.padded_k}
        return dataclasses.replace(launch, constants=constants)

    def wy_chunk(self) -> KernelPlan:
        p = self._problem
        constants = {
            "BLOCK_K": self._block_k,
            "BLOCK_V": min(128, self._block_v),
            "STATE_ROWS": min(64, self._block_k),
            "STATE_BLOCK": self._block_v,
        }
        return self._kernel(WY_CHUNK, p.chunks * p.HV, constants)

    def wy_dqkg(self) -> KernelPlan:
        p = self._problem
        count = p.chunks * p.HV * ceil_div(p.K, self.wy_block_k)
        constants = {"BLOCK_K": self.wy_block_k, "BLOCK_V": self._block_v}
        return dataclasses.replace(self._kernel(WY_DQKG, count, constants), first_slot=1)

    def _kernel(
        self,
        name: str,
        count: int,
        constants: _Constants,
        vector: bool = False,
        first_chunk: int = 0,
    ) -> KernelPlan:
        """vector: a kernel without matrix products runs on each vector core by itself."""
        check_tasks(name, count)
        limit = 2 * self._cores if vector else self._cores
        if self._max_programs is not None:
            limit = min(limit, self._max_programs)
        constants = {
            **shared_constants(self._problem),
            # See npu/tile.py.
            "FILL": not self._arch32,
            **constants,
        }
        # arch32's compiler would multi-buffer the workspace between cube and vector cores too:
        # the second vector core then idles, and some kernels race on it (found by the simulator).
        options = {"limit_auto_multi_buffer_only_for_local_buffer": True} if self._arch32 else {}
        return KernelPlan(name, min(count, limit), count, constants, options, first_chunk)
