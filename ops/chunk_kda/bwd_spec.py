"""What chunk_kda_bwd tells the test kit about itself."""

import math
from typing import Any

from ops.chunk_kda import bwd_cases
from testing import cases, spec


def launches(case: cases.Case, device: str, cores: int | None = None) -> int:
    """What the plan says; none when no token belongs to a sequence.

    cores: of the device; asked for when it is not given.
    """
    problem = problem_of(case)
    return 0 if problem.empty else _plan().launch_count(problem, device, _cores(device, cores))


def workspace_bytes(case: cases.Case, device: str, cores: int | None = None) -> int:
    """What the plan says, and copies of what the kernels cannot read in place."""
    problem = problem_of(case)
    own = 0 if problem.empty else _plan().workspace_bytes(problem, device, _cores(device, cores))
    return own + copied_bytes(case)


def copied_bytes(case: cases.Case) -> int:
    """Of arguments whose rows have gaps, or whose dtype the kernels do not convert."""
    total = 0
    for name, tensor in case.tensors.items():
        if tensor is None:
            continue
        count = math.prod(tensor.shape)
        if name == "do" and tensor.dtype != _dtype(case):
            total += count * cases.ITEMSIZE[_dtype(case)]
        elif tensor.layout == "strided":
            total += count * cases.ITEMSIZE[tensor.dtype]
    return total


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
    """The Problem of a case's call, without strides, which neither launches nor workspace depend
    on."""
    from ops.chunk_kda import problem as problem_lib

    tensors, attributes = case.tensors, case.attributes
    g_org = tensors["g_org"]
    gate = problem_lib.GIVEN
    if g_org is not None:
        bounded = attributes["lower_bound"] is not None
        gate = problem_lib.BOUNDED if bounded else problem_lib.SOFTPLUS
    score_dtype = attributes["score_dtype"] or _dtype(case)
    beta = tensors["beta"]
    return problem_lib.Problem(
        **bwd_cases.common.sizes(case),
        dtype=_dtype(case),
        Aqk_dtype=score_dtype,
        Akk_dtype=score_dtype,
        beta_dtype=beta.dtype if beta else "",
        gate=gate,
        g_org_dtype="" if g_org is None else g_org.dtype,
        has_A_log=tensors["A_log"] is not None,
        has_dt_bias=tensors["dt_bias"] is not None,
        has_initial_state=tensors["initial_state"] is not None,
        has_dht=tensors["dht"] is not None,
        recompute=not attributes["disable_recompute"],
    )


def _dtype(case: cases.Case) -> str:
    return SPEC.outputs[0].precision_in(case)


def costs(case: cases.Case) -> spec.Costs:
    """FLOPs of the chunked form, and bytes if each tensor moves once.

    Multiplications of matrix products per token and value head, C the chunk size: K V each for kE S
    and kg^T v_new (forward), kg dh, qE^T do and kE^T (beta y) (reverse), do h^T, v_new dh^T and y
    h^T; C V each for Akk z, Aqk^T do, Akk^T dv, do v_new^T and y v_new^T; C K each for the four
    sums inside a chunk, which levels do in 2 log2 C products of C K. What the forward saved spares
    2 K V + C V. Vector work is an estimate: an exponential counts 8 and there are 3 + log2 C per
    gate, with 4 log2 C + 40 other operations; 6 per value; 6 per entry of the two score matrices;
    10 K V / C for states.
    """
    size = bwd_cases.common.sizes(case)
    chunk, k_dim, v_dim = size["C"], size["K"], size["V"]
    rows = bwd_cases.common.tokens(case) * size["HV"]
    kept = case.attributes["disable_recompute"]
    matrix = 8 * k_dim * v_dim + 5 * chunk * v_dim + 4 * chunk * k_dim
    matrix -= kept * (2 * k_dim * v_dim + chunk * v_dim)
    levels = chunk.bit_length() - 1
    vector = (
        k_dim * (8 * (3 + levels) + 4 * levels + 40)
        + 6 * v_dim
        + 12 * chunk
        + 10 * k_dim * v_dim / chunk
    )
    item = cases.ITEMSIZE[_dtype(case)]
    score = cases.ITEMSIZE[case.attributes["score_dtype"] or _dtype(case)]
    all_rows = size["B"] * size["T"] * size["HV"]
    drawn = sum(
        math.prod(tensor.shape) * cases.ITEMSIZE[tensor.dtype]
        for name, tensor in case.tensors.items()
        if tensor is not None and name != "log_gate"
    )
    # Read beside what is drawn: Aqk, Akk; G, unless it is computed; v_new and h.
    read = drawn + all_rows * 2 * chunk * score
    in_kernel = case.attributes["use_gate_in_kernel"]
    if kept or not in_kernel:
        read += all_rows * k_dim * 4
    if kept:
        states = size["B"] * size["NT"] * size["HV"] * k_dim * v_dim
        read += (all_rows * v_dim + states) * item
    g_org = case.tensors["g_org"]
    gate_item = 4 if g_org is None else cases.ITEMSIZE[g_org.dtype]
    written = size["B"] * size["T"] * size["H"] * 2 * k_dim * item  # dq, dk
    written += all_rows * (v_dim * item + k_dim * gate_item + 4)  # dv, dg, dbeta
    for name in ("initial_state", "A_log", "dt_bias"):
        tensor = case.tensors[name]
        written += 0 if tensor is None else math.prod(tensor.shape) * 4
    return spec.Costs(2.0 * rows * matrix, float(rows * vector), read + written)


SPEC = spec.OpSpec(
    name=bwd_cases.OP,
    function="ops.chunk_kda:chunk_kda_bwd",
    golden="ops.chunk_kda.reference:golden_bwd",
    same_precision="ops.chunk_kda.same_precision:same_precision_bwd",
    prepare="ops.chunk_kda.preparation:bwd",
    cases=bwd_cases.CASES,
    # Their roundings are those of q's dtype, also where they are fp32.
    outputs=(
        spec.Output("dq", rows_axis=1, precision_of="q"),
        spec.Output("dk", rows_axis=1, precision_of="q"),
        spec.Output("dv", rows_axis=1, precision_of="q"),
        # The last axis is that of heads, and there may be one.
        spec.Output("dbeta", rows_axis=1, precision_of="q", pooled_rows=64),
        # Summed up inside each chunk, from its end.
        spec.Output("dg", rows_axis=1, precision_of="q", summed_rows=64),
        spec.Output("dh0", rows_axis=2, precision_of="q", when="initial_state"),
        spec.Output("dA_log", rows_axis=None, precision_of="q", when="A_log", cancels=True),
        spec.Output("ddt_bias", rows_axis=None, precision_of="q", when="dt_bias", cancels=True),
    ),
    launches=launches,
    workspace_bytes=workspace_bytes,
    costs=costs,
    baselines=(
        # Pinned in third_party/baselines_x86_64.txt.
        spec.Baseline(
            name="fla",
            function="testing.baselines.fla_core:chunk_kda_bwd",
            distribution="fla-core",
            devices=("cuda",),
            tune="testing.baselines.fla_core:tune_bwd",
            minimum=2.0,
            minimum_per_case={"*": 1.3},
        ),
    ),
)
