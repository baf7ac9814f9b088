"""What chunk_kda_bwd_wy_dqkg_fused tells the test kit about itself."""

import math
from typing import Any

from ops.chunk_kda import bwd_wy_dqkg_fused_cases as case_table
from testing import cases, spec


def launches(case: cases.Case, device: str, cores: int | None = None) -> int:
    """What the plan says; none when there is nothing to compute."""
    problem = problem_of(case)
    return 0 if problem.empty else _plan().wy_launch_count(problem, device, _cores(device, cores))


def workspace_bytes(case: cases.Case, device: str, cores: int | None = None) -> int:
    """What the plan says, and copies of what the kernel cannot read in place."""
    problem = problem_of(case)
    own = 0 if problem.empty else _plan().wy_workspace_bytes(problem, device, _cores(device, cores))
    return own + sum(
        math.prod(tensor.shape) * cases.ITEMSIZE[tensor.dtype]
        for tensor in case.tensors.values()
        if tensor is not None and tensor.layout == "strided"
    )


def _plan() -> Any:
    # Not at the top: if the spec depended on the plan, each edit of it would compute goldens again.
    from ops.chunk_kda import plan

    return plan


def _cores(device: str, cores: int | None) -> int:
    if cores is not None:
        return cores
    from ops.common import backend  # imports Triton, so not before the device is prepared

    return backend.device_cores(device)


def problem_of(case: cases.Case) -> Any:
    """The Problem of a case's call, without strides."""
    from ops.chunk_kda import problem as problem_lib

    dtype, beta = _dtype(case), case.tensors["beta"]
    return problem_lib.Problem(
        **case_table.common.sizes(case),
        dtype=dtype,
        Aqk_dtype=dtype,
        Akk_dtype=dtype,
        beta_dtype=beta.dtype if beta else "",
        recompute=False,
    )


def _dtype(case: cases.Case) -> str:
    return SPEC.outputs[0].precision_in(case)


def costs(case: cases.Case) -> spec.Costs:
    """FLOPs of the contract's step 3, and bytes if each tensor moves once.

    Multiplications of matrix products per token and value head, C the chunk size: K V each for do
    h^T, v_new dh^T and dv h^T; C V each for dv v^T and A^T dv; C K each for dw (kE)^T and A^T dw; 2
    C^2 for A^T M A^T. Vector work is an estimate: three exponentials of 8 and 20 other operations
    per gate, 4 per value, 4 per entry of a score matrix, 3 K V / C for states.
    """
    size = case_table.common.sizes(case)
    chunk, k_dim, v_dim = size["C"], size["K"], size["V"]
    rows = case_table.common.tokens(case) * size["HV"]
    matrix = 3 * k_dim * v_dim + 2 * chunk * (k_dim + v_dim + chunk)
    vector = 44 * k_dim + 4 * v_dim + 4 * chunk + 3 * k_dim * v_dim / chunk
    item = cases.ITEMSIZE[_dtype(case)]
    all_rows = size["B"] * size["T"] * size["HV"]
    moved = sum(  # log_gate stands for G, which has its shape and dtype
        math.prod(tensor.shape) * cases.ITEMSIZE[tensor.dtype]
        for tensor in case.tensors.values()
        if tensor is not None
    )
    moved += all_rows * chunk * item  # A
    moved += all_rows * (3 * k_dim * 4 + v_dim * item + 4 + chunk * 4)  # dq, dk, dg; dv; dbeta; dA
    return spec.Costs(2.0 * rows * matrix, float(rows * vector), moved)


SPEC = spec.OpSpec(
    name=case_table.OP,
    function="ops.chunk_kda:chunk_kda_bwd_wy_dqkg_fused",
    golden="ops.chunk_kda.reference:golden_wy",
    same_precision="ops.chunk_kda.same_precision:same_precision_wy",
    prepare="ops.chunk_kda.preparation:wy",
    cases=case_table.CASES,
    outputs=tuple(
        # The last axis of dbeta is that of heads, and there may be one.
        spec.Output(name, rows_axis=1, precision_of="q", pooled_rows=64 if name == "dbeta" else 1)
        for name in ("dq", "dk", "dv", "dbeta", "dg", "dA")
    ),
    launches=launches,
    workspace_bytes=workspace_bytes,
    costs=costs,
    baselines=(
        # Pinned in third_party/baselines_x86_64.txt.
        spec.Baseline(
            name="fla",
            function="testing.baselines.fla_core:chunk_kda_bwd_wy_dqkg_fused",
            distribution="fla-core",
            devices=("cuda",),
            tune="testing.baselines.fla_core:tune_wy",
            minimum=2.0,
            minimum_per_case={"*": 1.3},
        ),
    ),
)
