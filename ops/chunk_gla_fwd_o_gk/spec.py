"""What chunk_gla_fwd_o_gk tells the test kit about itself."""

import math
from typing import Any

from ops.chunk_gla_fwd_o_gk import cases as case_table
from ops.chunk_kda import cases as kda
from testing import cases, spec


def launches(case: cases.Case, device: str) -> int:
    """One, or none when no token belongs to a sequence."""
    del device
    return 0 if problem_of(case).empty else 1


def workspace_bytes(case: cases.Case, device: str, cores: int | None = None) -> int:
    """None, but copies of what the kernel cannot read in place, tables of packed sequences, and
    fp32 staging of bf16 in the interpreter."""
    problem = problem_of(case)
    total = 0
    for name, tensor in case.tensors.items():
        if tensor is None:
            continue
        if tensor.layout == "strided":
            total += math.prod(tensor.shape) * cases.ITEMSIZE[tensor.dtype]
        elif name == "g" and tensor.dtype != "float32":
            total += math.prod(tensor.shape) * 4
    if problem.empty:
        return total
    if problem.packed:
        total += 4 * (2 * (problem.N + 1) + 2 * problem.NT)
        if device == "cpu-reference":  # where the making of the tables, in int64, counts too
            total += 24 * problem.N + 64 * problem.NT
    if _plan(problem, device, cores).stage_output:
        total += math.prod(case.shape("v")) * 4
    return total


def problem_of(case: cases.Case) -> Any:
    """The Problem of a case's call, without strides, which neither launches nor workspace depend
    on."""
    from ops.chunk_gla_fwd_o_gk import plan

    sizes = kda.sizes(case)
    del sizes["slack"]
    return plan.Problem(**sizes, dtype=SPEC.outputs[0].precision_in(case))


def _plan(problem: Any, device: str, cores: int | None) -> Any:
    # Not at the top: if the spec depended on the plan, each edit of it would compute goldens again.
    from ops.chunk_gla_fwd_o_gk import plan

    if cores is None:
        from ops.common import backend  # imports Triton, so not before the device is prepared

        cores = backend.device_cores(device)
    return plan.make_plan(problem, device, cores)


def costs(case: cases.Case) -> spec.Costs:
    """FLOPs of the two products, of the whole C x C matrix; an exponential (8) and two
    multiplications per element of g; bytes if each tensor moves once."""
    size = kda.sizes(case)
    rows = kda.tokens(case) * size["HV"]
    matrix = 2.0 * rows * (size["K"] * size["V"] + size["C"] * size["V"])
    moved = sum(
        math.prod(tensor.shape) * cases.ITEMSIZE[tensor.dtype]
        for tensor in case.tensors.values()
        if tensor is not None
    )
    moved += math.prod(case.shape("v")) * cases.ITEMSIZE[SPEC.outputs[0].precision_in(case)]
    return spec.Costs(matrix, 10.0 * rows * size["K"], moved)


SPEC = spec.OpSpec(
    name=case_table.OP,
    function="ops.chunk_gla_fwd_o_gk:chunk_gla_fwd_o_gk",
    golden="ops.chunk_gla_fwd_o_gk.reference:golden",
    same_precision="ops.chunk_gla_fwd_o_gk.reference:same_precision",
    prepare="ops.chunk_gla_fwd_o_gk.reference:arguments",
    cases=case_table.CASES,
    outputs=(spec.Output("o", rows_axis=1, precision_of="q"),),
    launches=launches,
    workspace_bytes=workspace_bytes,
    costs=costs,
    baselines=(
        # Pinned in third_party/baselines_x86_64.txt.
        spec.Baseline(
            name="fla",
            function="testing.baselines.fla_core:chunk_gla_fwd_o_gk",
            distribution="fla-core",
            devices=("cuda",),
            tune="testing.baselines.fla_core:tune_o_gk",
        ),
    ),
)
