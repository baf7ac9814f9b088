"""The plans of the forward: chunk_kda_fwd and chunk_kda_fwd_intra. Plain Python."""

from ops.chunk_kda import npu_plan
from ops.chunk_kda import plan as plan_lib
from ops.chunk_kda import problem as problem_lib
from ops.chunk_kda.plan_types import Buffer, Plan, gate_constants

OUTPUT = "output_scan"


def make_plan(
    problem: problem_lib.Problem, backend: str, cores: int, max_programs: int | None = None
) -> Plan:
    """Plans the launches of chunk_kda_fwd for a problem that is not empty; see plan.make_plan."""
    if backend in npu_plan.BACKENDS:
        return npu_plan.make_fwd_plan(problem, backend, cores, max_programs)
    p = problem
    maker = plan_lib.Maker(problem, backend, cores, max_programs)
    flags = {"HAS_H0": p.has_initial_state, "HAS_FINAL_STATE": p.has_final_state}
    kernels = (
        maker.cumulative_gate(gate_constants(problem)),
        maker.pair_scores(True, True),
        maker.solve(False),
        maker.scan(OUTPUT, flags, operands=3),
    )
    rows = (p.B, p.T, p.HV)
    stored, fp32 = maker.stored, problem_lib.FLOAT32
    workspace = {
        "pairs": Buffer((*rows, p.C), fp32, None, 1, 2),
        "qg": Buffer((*rows, p.K), stored, None, 1, 3),
        "kg": Buffer((*rows, p.K), stored, None, 1, 3),
        "ke": Buffer((*rows, p.K), stored, None, 1, 3),
    }
    outputs = {
        "o": Buffer((*rows, p.V), stored, p.dtype, 3, 3),
        "g": Buffer((*rows, p.K), fp32, fp32, 0, 3),
        "Aqk": Buffer((*rows, p.C), stored, p.dtype, 2, 3),
        "Akk": Buffer((*rows, p.C), stored, p.dtype, 2, 3),
    }
    if p.has_final_state:
        outputs["final_state"] = Buffer((p.N, p.HV, p.K, p.V), fp32, fp32, 3, 3)
    return Plan(kernels, workspace, outputs)


def make_intra_plan(
    problem: problem_lib.Problem, backend: str, cores: int, max_programs: int | None = None
) -> Plan:
    """The same for chunk_kda_fwd_intra."""
    if backend in npu_plan.BACKENDS:
        return npu_plan.make_intra_plan(problem, backend, cores, max_programs)
    p = problem
    maker = plan_lib.Maker(problem, backend, cores, max_programs)
    kernels = (maker.pair_scores(not p.recompute, False), maker.solve(True))
    rows = (p.B, p.T, p.HV)

    def result(width: int, first: int) -> Buffer:
        return Buffer((*rows, width), maker.stored, p.dtype, first, 1)

    outputs = {"w": result(p.K, 1), "u": result(p.V, 1), "kg": result(p.K, 0)}
    if not p.recompute:
        outputs["qg"] = result(p.K, 0)
    outputs |= {"Aqk": result(p.C, 1), "Akk": result(p.C, 1)}
    pairs = Buffer((*rows, p.C), problem_lib.FLOAT32, None, 0, 1)
    return Plan(kernels, {"pairs": pairs}, outputs)


def launch_count(problem: problem_lib.Problem, backend: str, cores: int) -> int:
    """Of a call of chunk_kda_fwd."""
    return len(make_plan(problem, backend, cores).kernels)


def intra_launch_count(problem: problem_lib.Problem, backend: str, cores: int) -> int:
    """Of a call of chunk_kda_fwd_intra."""
    return len(make_intra_plan(problem, backend, cores).kernels)


def workspace_bytes(problem: problem_lib.Problem, backend: str, cores: int) -> int:
    """Device bytes that a call of chunk_kda_fwd needs beside its results, see plan.py."""
    return plan_lib.workspace_of(problem, backend, make_plan(problem, backend, cores))


def intra_workspace_bytes(problem: problem_lib.Problem, backend: str, cores: int) -> int:
    """The same for chunk_kda_fwd_intra."""
    return plan_lib.workspace_of(problem, backend, make_intra_plan(problem, backend, cores))
