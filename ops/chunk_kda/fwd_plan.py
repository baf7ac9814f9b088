"""The plans of the forward: chunk_kda_fwd and chunk_kda_fwd_intra. Plain Python."""

from ops.chunk_kda import npu_plan
from ops.chunk_kda import plan as plan_lib
from ops.chunk_kda import problem as problem_lib
from ops.chunk_kda.plan_types import Buffer, KernelPlan, Plan, gate_constants

INTRA = plan_lib.INTRA
OUTPUT = "output_scan"


def make_plan(
    problem: problem_lib.Problem, backend: str, cores: int, max_programs: int | None = None
) -> Plan:
    """Plans the launches of chunk_kda_fwd for a problem that is not empty; see plan.make_plan."""
    p = problem
    maker = _maker(problem, backend, cores, max_programs)
    flags = {"HAS_H0": p.has_initial_state, "HAS_FINAL_STATE": p.has_final_state}
    kernels = (
        maker.cumulative_gate(gate_constants(problem)),
        _intra(maker, problem, backend),
        maker.scan(OUTPUT, flags, operands=3),
    )
    rows = (p.B, p.T, p.HV)
    stored, fp32 = maker.stored, problem_lib.FLOAT32
    workspace = {name: Buffer((*rows, p.K), stored, None, 1, 2) for name in ("w", "qg", "kg")}
    outputs = {
        # First u, which has the same shape.
        "o": Buffer((*rows, p.V), stored, p.dtype, 1, 2),
        "g": Buffer((*rows, p.K), fp32, fp32, 0, 2),
        "Aqk": Buffer((*rows, p.C), stored, p.dtype, 1, 2),
        "Akk": Buffer((*rows, p.C), stored, p.dtype, 1, 2),
    }
    if p.has_final_state:
        outputs["final_state"] = Buffer((p.N, p.HV, p.K, p.V), fp32, fp32, 2, 2)
    return Plan(kernels, workspace, outputs)


def make_intra_plan(
    problem: problem_lib.Problem, backend: str, cores: int, max_programs: int | None = None
) -> Plan:
    """The same for chunk_kda_fwd_intra."""
    p = problem
    maker = _maker(problem, backend, cores, max_programs)
    rows = (p.B, p.T, p.HV)

    def result(width: int) -> Buffer:
        return Buffer((*rows, width), maker.stored, p.dtype, 0, 0)

    outputs = {"w": result(p.K), "u": result(p.V), "kg": result(p.K)}
    if not p.recompute:
        outputs["qg"] = result(p.K)
    outputs |= {"Aqk": result(p.C), "Akk": result(p.C)}
    return Plan((_intra(maker, problem, backend),), {}, outputs)


def launch_count(problem: problem_lib.Problem, backend: str, cores: int) -> int:
    """Of a call of chunk_kda_fwd."""
    return len(make_plan(problem, backend, cores).kernels)


def workspace_bytes(problem: problem_lib.Problem, backend: str, cores: int) -> int:
    """Device bytes that a call of chunk_kda_fwd needs beside its results, see plan.py."""
    return plan_lib.workspace_of(problem, backend, make_plan(problem, backend, cores))


def intra_workspace_bytes(problem: problem_lib.Problem, backend: str, cores: int) -> int:
    """The same for chunk_kda_fwd_intra."""
    return plan_lib.workspace_of(problem, backend, make_intra_plan(problem, backend, cores))


def check_backend(backend: str) -> None:
    """Raises NotImplementedError where the forward has no kernels."""
    if backend in npu_plan.BACKENDS:
        raise NotImplementedError(
            f"chunk_kda's forward: no kernels for {backend!r}; implemented are "
            f"{plan_lib.CPU_REFERENCE}, {plan_lib.CUDA}"
        )


def _maker(
    problem: problem_lib.Problem, backend: str, cores: int, max_programs: int | None
) -> plan_lib.Maker:
    check_backend(backend)
    return plan_lib.Maker(problem, backend, cores, max_programs)


def _intra(maker: plan_lib.Maker, problem: problem_lib.Problem, backend: str) -> KernelPlan:
    return maker.intra(problem.forward or not problem.recompute, _solve(problem, backend))


def _solve(problem: problem_lib.Problem, backend: str) -> str:
    """The precision of the inverse's products of fp32 values.

    tf32 cuts operands to 11 bits. That is a quarter of what rounding Akk to bf16 costs, but twice
    of what rounding it to fp16 does.
    """
    if backend != plan_lib.CUDA:
        return "ieee"
    return "tf32" if problem.dtype == problem_lib.BFLOAT16 else "tf32x3"
