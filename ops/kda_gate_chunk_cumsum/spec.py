"""What kda_gate_chunk_cumsum tells the test kit about itself."""

import math
from typing import Any

from ops.chunk_kda import cases as kda
from ops.kda_gate_chunk_cumsum import cases as case_table
from testing import cases, spec


def launches(case: cases.Case, device: str) -> int:
    """One, or none when no token belongs to a sequence."""
    del device
    return 0 if problem_of(case).empty else 1


def workspace_bytes(case: cases.Case, device: str) -> int:
    """None, but a copy of what the kernel cannot read in place, and tables of packed sequences."""
    problem = problem_of(case)
    g = case.tensors["g"]
    total = 0
    if g is not None and g.layout == "strided":
        total += math.prod(g.shape) * cases.ITEMSIZE[g.dtype]
    if problem.packed and not problem.empty:
        total += 4 * (2 * (problem.N + 1) + 2 * problem.NT)
        if device == "cpu-reference":  # where the making of the tables, in int64, counts too
            total += 24 * problem.N + 64 * problem.NT
    return total


def problem_of(case: cases.Case) -> Any:
    """The Problem of a case's call, without strides, which neither launches nor workspace depend
    on."""
    # Not at the top: if the spec depended on the plan, each edit of it would compute goldens again.
    from ops.kda_gate_chunk_cumsum import plan

    b, t, heads, k_dim = case.shape("g")
    size, bounds = case.attributes["chunk_size"], case.attributes["cu_seqlens"]
    gate = plan.GIVEN
    if case.attributes["lower_bound"] is not None:
        gate = plan.BOUNDED
    elif case.tensors["A_log"] is not None:
        gate = plan.SOFTPLUS
    return plan.Problem(
        B=b,
        T=t,
        HV=heads,
        K=k_dim,
        C=size,
        N=b if bounds is None else len(bounds) - 1,
        NT=kda.num_chunks(t, bounds, size),
        packed=bounds is not None,
        gate=gate,
        has_A_log=case.tensors["A_log"] is not None,
        has_dt_bias=case.tensors["dt_bias"] is not None,
    )


def costs(case: cases.Case) -> spec.Costs:
    """Per element an addition and a multiplication and, with a formula, two functions (8 each) and
    8 more; bytes if everything moves once."""
    count = math.prod(case.shape("g"))
    formula = case.tensors["A_log"] is not None or case.attributes["lower_bound"] is not None
    moved = count * 4.0
    for tensor in case.tensors.values():
        if tensor is not None:
            moved += math.prod(tensor.shape) * cases.ITEMSIZE[tensor.dtype]
    return spec.Costs(0.0, count * (2.0 + 24.0 * formula), moved)


SPEC = spec.OpSpec(
    name=case_table.OP,
    function="ops.kda_gate_chunk_cumsum:kda_gate_chunk_cumsum",
    golden="ops.kda_gate_chunk_cumsum.reference:golden",
    same_precision="ops.kda_gate_chunk_cumsum.reference:same_precision",
    prepare="ops.kda_gate_chunk_cumsum.reference:arguments",
    cases=case_table.CASES,
    outputs=(spec.Output("G", rows_axis=1, precision="float32", summed_rows=64),),
    launches=launches,
    workspace_bytes=workspace_bytes,
    costs=costs,
    kind="vector",
    baselines=(
        # Pinned in third_party/baselines_x86_64.txt.
        spec.Baseline(
            name="fla",
            function="testing.baselines.fla_core:kda_gate_chunk_cumsum",
            distribution="fla-core",
            devices=("cuda",),
            tune="testing.baselines.fla_core:tune_cumsum",
        ),
    ),
)
