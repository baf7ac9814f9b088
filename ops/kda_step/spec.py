"""What kda_step tells the test kit about itself."""

import math
from typing import Any

from ops.kda_step import cases as case_table
from testing import cases, spec


def launches(case: cases.Case, device: str) -> int:
    """One, whatever the call."""
    del device
    return int(case.shape("q")[0] > 0)


def workspace_bytes(case: cases.Case, device: str, cores: int | None = None) -> int:
    """None, but copies of what the kernel cannot read in place, and fp32 staging of bf16 in the
    interpreter."""
    total = 0
    for tensor in case.tensors.values():
        # A permuted tensor of three axes has its last one moved.
        if tensor is not None and tensor.layout in ("strided", "permuted"):
            total += math.prod(tensor.shape) * cases.ITEMSIZE[tensor.dtype]
    if launches(case, device) and _plan(case, device, cores).stage_output:
        total += math.prod(case.shape("v")) * 4
    return total


def problem_of(case: cases.Case) -> Any:
    """The Problem of a case's call."""
    from ops.kda_step import plan

    b, heads, k_dim = case.shape("q")
    attributes = case.attributes
    gate = plan.GIVEN
    if attributes["use_gate_in_kernel"]:
        gate = plan.SOFTPLUS if attributes["lower_bound"] is None else plan.BOUNDED
    return plan.Problem(
        B=b,
        H=heads,
        HV=case.shape("v")[1],
        K=k_dim,
        V=case.shape("v")[2],
        N=case.shape("state")[0],
        dtype=SPEC.outputs[0].precision_in(case),
        gate=gate,
        has_A_log=case.tensors["A_log"] is not None,
        has_dt_bias=case.tensors["dt_bias"] is not None,
        l2norm=attributes["use_qk_l2norm_in_kernel"],
        beta_logits=attributes["use_beta_sigmoid_in_kernel"],
        doubled=attributes["allow_neg_eigval"],
        indexed=case.tensors["state_indices"] is not None,
    )


def _plan(case: cases.Case, device: str, cores: int | None) -> Any:
    # Not at the top: if the spec depended on the plan, each edit of it would compute goldens again.
    from ops.kda_step import plan

    if cores is None:
        from ops.common import backend  # imports Triton, so not before the device is prepared

        cores = backend.device_cores(device)
    return plan.make_plan(problem_of(case), device, cores)


def costs(case: cases.Case) -> spec.Costs:
    """No matrix products. Per element of a state: a decay, three multiplications and three
    additions; per channel of k an exponential or two (8 each). Bytes if everything moves once: of a
    pool's states those that tokens belong to."""
    b, value_heads, v_dim = case.shape("v")
    k_dim = case.shape("q")[2]
    vector = b * value_heads * (7.0 * k_dim * v_dim + 24 * k_dim)
    moved = 2 * b * value_heads * k_dim * v_dim * 4
    for name, tensor in case.tensors.items():
        if tensor is not None and name != "state":
            moved += math.prod(tensor.shape) * cases.ITEMSIZE[tensor.dtype]
    moved += b * value_heads * v_dim * cases.ITEMSIZE[SPEC.outputs[0].precision_in(case)]
    return spec.Costs(0.0, vector, moved)


SPEC = spec.OpSpec(
    name=case_table.OP,
    function="ops.kda_step:kda_step",
    golden="ops.kda_step.reference:golden",
    same_precision="ops.kda_step.reference:same_precision",
    cases=case_table.CASES,
    outputs=(
        spec.Output("o", rows_axis=0, precision_of="q"),
        spec.Output("new_state", rows_axis=2, precision="float32"),
    ),
    launches=launches,
    workspace_bytes=workspace_bytes,
    costs=costs,
    kind="vector",
    baselines=(
        # Pinned in third_party/baselines_x86_64.txt.
        spec.Baseline(
            name="fla",
            function="testing.baselines.fla_core:kda_step",
            distribution="fla-core",
            devices=("cuda",),
            minimum=1.0,
        ),
    ),
)
