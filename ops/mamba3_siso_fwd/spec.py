"""What mamba3_siso_fwd tells the test kit about itself."""

import math
from typing import Any

from ops.mamba3_siso_fwd import cases as case_table
from testing import cases, spec


def launches(case: cases.Case, device: str, cores: int | None = None) -> int:
    """What the plan says: 1, or 3 for a split sequence; except on a GPU one more when there is more
    than one tile; none when there is nothing to compute.

    cores: of the device; asked for when it is not given.
    """
    return len(_plan(case, device, cores).kernels) if math.prod(case.shape("v")) else 0


def workspace_bytes(case: cases.Case, device: str, cores: int | None = None) -> int:
    """Gates, and states of a split sequence; copies of what the kernel cannot read in place; fp32
    staging of bf16 in the interpreter."""
    if not math.prod(case.shape("v")):
        return 0
    total = _plan(case, device, cores).workspace_bytes
    for tensor in case.tensors.values():
        if tensor is None:
            continue
        # Last axes with gaps are copied. A permuted tensor of three axes has its last one moved.
        if tensor.layout == "strided" or (tensor.layout == "permuted" and len(tensor.shape) == 3):
            total += math.prod(tensor.shape) * cases.ITEMSIZE[tensor.dtype]
        if tensor.dtype == "float64":  # a bias: converted to fp32
            total += math.prod(tensor.shape) * 4
    if device == "cpu-reference" and _dtype(case) == "bfloat16":
        total += math.prod(case.shape("v")) * 4
    return total


def _plan(case: cases.Case, device: str, cores: int | None) -> Any:
    # Not at the top: if the spec depended on the plan, each edit of it would compute goldens again.
    from ops.mamba3_siso_fwd import plan as plan_lib
    from ops.mamba3_siso_fwd import problem as problem_lib

    if cores is None:
        from ops.common import backend  # imports Triton, so not before the device is prepared

        cores = backend.device_cores(device)
    b, s, heads, v_dim = case.shape("v")
    hq, k_dim = case.shape("q")[2:]
    problem = problem_lib.Problem(
        B=b,
        S=s,
        HQ=hq,
        H=heads,
        K=k_dim,
        V=v_dim,
        A=case.shape("angles")[3],
        dtype=_dtype(case),
        has_d=case.tensors["d"] is not None,
        has_z=case.tensors["z"] is not None,
        chunk_size=case.attributes["chunk_size"],
        # Neither launches nor workspace depend on them.
        strides=problem_lib.NO_STRIDES,
    )
    return plan_lib.make_plan(problem, device, cores)


def _dtype(case: cases.Case) -> str:
    return SPEC.outputs[0].precision_in(case)


def costs(case: cases.Case) -> spec.Costs:
    """FLOPs of the chunked form at the case's chunk size C, and bytes if each tensor moves once.

    Matrix products per token and head: q k^T and its product with v cost 2 C (K + V), the state's
    read and update 4 K V. Vector work is an estimate: 40 per sine and cosine pair, 10 K for biases,
    rotation and the diagonal, 20 C for the decay weights (an exponential counts 8), 16 V for the
    output and its gate, 3 K V / C for decaying and rounding the state.
    """
    b, s, heads, v_dim = case.shape("v")
    k_dim, pairs = case.shape("q")[3], case.shape("angles")[3]
    chunk = case.attributes["chunk_size"]
    tokens = b * s * heads
    matrix = tokens * (2 * chunk * (k_dim + v_dim) + 4 * k_dim * v_dim)
    vector = tokens * (
        40 * pairs + 10 * k_dim + 20 * chunk + 16 * v_dim + 3 * k_dim * v_dim / chunk
    )
    given = [tensor for tensor in case.tensors.values() if tensor is not None]
    moved = sum(math.prod(tensor.shape) * cases.ITEMSIZE[tensor.dtype] for tensor in given)
    moved += b * s * heads * v_dim * cases.ITEMSIZE[_dtype(case)]
    return spec.Costs(matrix_flops=matrix, vector_flops=vector, bytes=moved)


SPEC = spec.OpSpec(
    name=case_table.OP,
    function="ops.mamba3_siso_fwd:mamba3_siso_fwd_kernel",
    golden="ops.mamba3_siso_fwd.reference:golden",
    same_precision="ops.mamba3_siso_fwd.reference:same_precision",
    cases=case_table.CASES,
    outputs=(spec.Output("out", rows_axis=1, precision_of="q"),),
    launches=launches,
    workspace_bytes=workspace_bytes,
    costs=costs,
    baselines=(
        # Pinned in third_party/baselines_x86_64.txt; times of 2026-11-30 are in records/.
        spec.Baseline(
            name="public",
            function="testing.baselines.mamba_ssm:forward",
            distribution="mamba-ssm",
            devices=("cuda",),
            minimum=2.7,
            minimum_per_case={"*": 1.3, "perf_b1_s32768": 5.0},
            tune="testing.baselines.mamba_ssm:tune",
        ),
    ),
)
