"""What chunk_kda_fwd_intra tells the test kit about itself."""

import math
from typing import Any

from ops.chunk_kda import fwd_cases
from ops.chunk_kda.fwd_spec import copied_bytes, drawn, dtype_of, table_bytes
from testing import cases, spec


def launches(case: cases.Case, device: str, cores: int | None = None) -> int:
    """What the plan says; none when no token belongs to a sequence."""
    from ops.chunk_kda import fwd_plan  # see fwd_spec

    problem = problem_of(case)
    return 0 if problem.empty else fwd_plan.intra_launch_count(problem, device, cores or 1)


def workspace_bytes(case: cases.Case, device: str, cores: int | None = None) -> int:
    """What the plan says, and copies of what the kernels cannot read in place."""
    from ops.chunk_kda import fwd_plan  # see fwd_spec

    problem = problem_of(case)
    if problem.empty:
        return copied_bytes(case)
    own = fwd_plan.intra_workspace_bytes(problem, device, cores or 1)
    return own + table_bytes(problem, device) + copied_bytes(case)


def problem_of(case: cases.Case) -> Any:
    """The Problem of a case's call, without strides."""
    from ops.chunk_kda import problem as problem_lib

    dtype = dtype_of(case)
    return problem_lib.Problem(
        **fwd_cases.common.sizes(case),
        dtype=dtype,
        Aqk_dtype=dtype,
        Akk_dtype=dtype,
        beta_dtype=drawn(case, "beta").dtype,
        recompute=False,
    )


def costs(case: cases.Case) -> spec.Costs:
    """As fwd_spec.costs, without states: C V + 3 C K + 2 C^2 (log2 C - 1) multiplications."""
    size = fwd_cases.common.sizes(case)
    chunk, k_dim, v_dim = size["C"], size["K"], size["V"]
    rows = fwd_cases.common.tokens(case) * size["HV"]
    levels = chunk.bit_length() - 1
    matrix = chunk * v_dim + 3 * chunk * k_dim + 2 * chunk * chunk * (levels - 1)
    vector = k_dim * (8 * (3 + levels) + 6 * levels + 16) + 2 * v_dim + 4 * chunk * levels
    read = sum(
        math.prod(tensor.shape) * cases.ITEMSIZE[tensor.dtype]
        for tensor in case.tensors.values()
        if tensor is not None
    )
    all_rows = size["B"] * size["T"] * size["HV"]
    written = all_rows * (3 * k_dim + v_dim + 2 * chunk) * cases.ITEMSIZE[dtype_of(case)]
    return spec.Costs(2.0 * rows * matrix, float(rows * vector), read + written)


SPEC = spec.OpSpec(
    name=fwd_cases.INTRA,
    function="ops.chunk_kda:chunk_kda_fwd_intra",
    golden="ops.chunk_kda.fwd_reference:golden_intra",
    same_precision="ops.chunk_kda.fwd_same_precision:same_precision_intra",
    prepare="ops.chunk_kda.preparation:intra",
    cases=fwd_cases.INTRA_CASES,
    outputs=tuple(
        spec.Output(name, rows_axis=1, precision_of="q")
        for name in ("w", "u", "qg", "kg", "Aqk", "Akk")
    ),
    launches=launches,
    workspace_bytes=workspace_bytes,
    costs=costs,
    baselines=(
        spec.Baseline(
            name="fla",
            function="testing.baselines.fla_core:chunk_kda_fwd_intra",
            distribution="fla-core",
            devices=("cuda",),
            tune="testing.baselines.fla_core:tune_intra",
        ),
    ),
)
