"""What chunk_kda tells the test kit about its gradients: forward and backward in one call."""

import math
from typing import Any

from ops.chunk_kda import fwd_cases, fwd_spec
from testing import cases, spec


def launches(case: cases.Case, device: str, cores: int | None = None) -> int:
    """Of the forward, of chunk_kda_bwd, and one more for the gradients of what is normalised."""
    problem = backward_of(case)
    norms = case.attributes["use_qk_l2norm_in_kernel"] and problem.B * problem.T > 0
    total = fwd_spec.launches(case, device, cores) + norms
    if problem.empty:
        return total
    return total + _plan().launch_count(problem, device, _cores(device, cores))


def workspace_bytes(case: cases.Case, device: str, cores: int | None = None) -> int:
    """What is kept between, o and the last states, and the larger of what the two plans say;
    results before they get their argument's dtype. On cpu-reference an upper bound: what torch's
    dispatcher allocates inside an op is not seen there."""
    problem = backward_of(case)
    size = fwd_cases.common.sizes(case)
    rows = size["B"] * size["T"] * size["HV"]
    states = size["N"] * size["HV"] * size["K"] * size["V"]
    own = fwd_spec.kept_bytes(fwd_spec.problem_of(case))
    own += rows * size["V"] * cases.ITEMSIZE[fwd_spec.dtype_of(case)] + 4 * states
    own += 2 * fwd_spec.prepared_bytes(case, device) + 2 * fwd_spec.copied_bytes(case)
    own += 4 * rows * size["K"] * (fwd_spec.gate_dtype_of(case) != "float32")
    own += 4 * rows * (fwd_spec.drawn(case, "beta").dtype != "float32")
    if problem.empty:
        return own
    cores = _cores(device, cores)
    forward = fwd_spec.plan_bytes(case, device, cores)
    return own + max(forward, _plan().workspace_bytes(problem, device, cores))


def backward_of(case: cases.Case) -> Any:
    """The Problem of the call of chunk_kda_bwd."""
    import dataclasses

    problem = fwd_spec.problem_of(case)
    return dataclasses.replace(
        problem, forward=False, has_final_state=False, has_dht=case.tensors["dht"] is not None
    )


def _plan() -> Any:
    from ops.chunk_kda import plan  # see fwd_spec

    return plan


def _cores(device: str, cores: int | None) -> int:
    if cores is not None:
        return cores
    from ops.common import backend  # imports Triton, so not before the device is prepared

    return backend.device_cores(device)


def costs(case: cases.Case) -> spec.Costs:
    """Those of the forward and of the backward, see fwd_spec and bwd_spec: 8 K V + 5 C V + 4 C K
    multiplications more. Bytes: every argument read and every gradient written once."""
    forward = fwd_spec.costs(case)
    size = fwd_cases.common.sizes(case)
    chunk, k_dim, v_dim = size["C"], size["K"], size["V"]
    rows = fwd_cases.common.tokens(case) * size["HV"]
    matrix = 8 * k_dim * v_dim + 5 * chunk * v_dim + 4 * chunk * k_dim
    levels = chunk.bit_length() - 1
    vector = k_dim * (8 * (3 + levels) + 4 * levels + 40) + 6 * v_dim + 12 * chunk
    moved = 0
    for name, tensor in case.tensors.items():
        if tensor is not None:
            times = 1 if name in ("do", "dht") else 2
            moved += times * math.prod(tensor.shape) * cases.ITEMSIZE[tensor.dtype]
    return spec.Costs(
        forward.matrix_flops + 2.0 * rows * matrix,
        forward.vector_flops + float(rows * (vector + 10 * k_dim * v_dim / chunk)),
        moved,
    )


SPEC = spec.OpSpec(
    name=fwd_cases.TRAIN,
    function="ops.chunk_kda.training:gradients",
    golden="ops.chunk_kda.fwd_reference:golden_train",
    same_precision="ops.chunk_kda.fwd_same_precision:same_precision_train",
    prepare="ops.chunk_kda.preparation:train",
    cases=fwd_cases.TRAIN_CASES,
    # Their roundings are those of q's dtype, also where they are fp32; see bwd_spec.
    outputs=(
        spec.Output("dq", rows_axis=1, precision_of="q"),
        spec.Output("dk", rows_axis=1, precision_of="q"),
        spec.Output("dv", rows_axis=1, precision_of="q"),
        spec.Output("dbeta", rows_axis=1, precision_of="q", pooled_rows=64),
        spec.Output("dg", rows_axis=1, precision_of="q", summed_rows=64),
        spec.Output("dh0", rows_axis=2, precision_of="q", when="initial_state"),
        spec.Output("dA_log", rows_axis=None, precision_of="q", when="A_log", cancels=True),
        spec.Output("ddt_bias", rows_axis=None, precision_of="q", when="dt_bias", cancels=True),
    ),
    launches=launches,
    workspace_bytes=workspace_bytes,
    costs=costs,
    baselines=(
        spec.Baseline(
            name="fla",
            function="testing.baselines.fla_core:chunk_kda_gradients",
            distribution="fla-core",
            devices=("cuda",),
            tune="testing.baselines.fla_core:tune_train",
            minimum=1.8,
            minimum_per_case={"*": 1.5},
        ),
    ),
)
