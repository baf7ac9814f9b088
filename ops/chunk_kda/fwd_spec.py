"""What chunk_kda tells the test kit about its results."""

import math
from typing import Any

from ops.chunk_kda import fwd_cases
from testing import cases, spec


def launches(case: cases.Case, device: str, cores: int | None = None) -> int:
    """What the plan says, and one for norms; none of the plan when no token belongs to a
    sequence."""
    problem = problem_of(case)
    norms = case.attributes.get("use_qk_l2norm_in_kernel", False) and problem.B * problem.T > 0
    if problem.empty:
        return int(norms)
    return norms + _plan().launch_count(problem, device, _cores(device, cores))


def workspace_bytes(case: cases.Case, device: str, cores: int | None = None) -> int:
    """What the plan says, what is kept for a backward, and copies of what the kernels cannot read
    in place."""
    own = kept_bytes(problem_of(case)) + prepared_bytes(case, device) + copied_bytes(case)
    return own + plan_bytes(case, device, cores)


def plan_bytes(case: cases.Case, device: str, cores: int | None = None) -> int:
    """What the plan says; none when no token belongs to a sequence."""
    problem = problem_of(case)
    if problem.empty:
        return 0
    own = _plan().workspace_bytes(problem, device, _cores(device, cores))
    return own + table_bytes(problem, device)


def table_bytes(problem: Any, device: str) -> int:
    """Of what tables of packed sequences are put together from, on the CPU."""
    here = problem.packed and device == "cpu-reference"
    return (24 * problem.N + 64 * problem.NT) * here


def kept_bytes(problem: Any) -> int:
    """Of G, Aqk and Akk."""
    rows = problem.B * problem.T * problem.HV
    return rows * (4 * problem.K + 2 * problem.C * cases.ITEMSIZE[problem.dtype])


def prepared_bytes(case: cases.Case, device: str) -> int:
    """Of normalised q and k with their norms, and of beta made of logits."""
    total = 0
    b, t, heads, k_dim = case.shape("q")
    if case.attributes["use_qk_l2norm_in_kernel"]:
        item = cases.ITEMSIZE[dtype_of(case)]
        # The interpreter's results are fp32 and then rounded.
        twice = 4 if device == "cpu-reference" and dtype_of(case) == "bfloat16" else 0
        total += 2 * b * t * heads * (k_dim * (item + twice) + 4)
        if drawn(case, "q").layout == "strided":
            total += 2 * b * t * heads * k_dim * item
    if case.attributes["use_beta_sigmoid_in_kernel"]:
        count = b * t * case.shape("v")[2]
        copies = 1 + case.attributes["allow_neg_eigval"] + (drawn(case, "beta").dtype != "float32")
        total += 4 * copies * count
    return total


def copied_bytes(case: cases.Case) -> int:
    """Of arguments whose rows have gaps."""
    normalised = case.attributes.get("use_qk_l2norm_in_kernel", False)
    return sum(
        math.prod(tensor.shape) * cases.ITEMSIZE[tensor.dtype]
        for name, tensor in case.tensors.items()
        if tensor is not None
        and tensor.layout == "strided"
        and not (normalised and name in ("q", "k"))
    )


def _plan() -> Any:
    # Not at the top: if the spec depended on the plan, each edit of it would compute goldens again.
    from ops.chunk_kda import fwd_plan

    return fwd_plan


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
    dtype = dtype_of(case)
    return problem_lib.Problem(
        **fwd_cases.common.sizes(case),
        dtype=dtype,
        Aqk_dtype=dtype,
        Akk_dtype=dtype,
        beta_dtype=drawn(case, "beta").dtype,
        gate=gate,
        g_org_dtype=gate_dtype_of(case),
        has_A_log=tensors["A_log"] is not None,
        has_dt_bias=tensors["dt_bias"] is not None,
        has_initial_state=tensors["initial_state"] is not None,
        forward=True,
        has_final_state=True,
    )


def drawn(case: cases.Case, name: str) -> cases.TensorSpec:
    """A tensor that every case has."""
    tensor = case.tensors[name]
    assert tensor is not None
    return tensor


def dtype_of(case: cases.Case) -> str:
    """Of q."""
    return drawn(case, "q").dtype


def gate_dtype_of(case: cases.Case) -> str:
    """Of g."""
    return drawn(case, "log_gate" if case.tensors["g_org"] is None else "g_org").dtype


def costs(case: cases.Case) -> spec.Costs:
    """FLOPs of the chunked form, and bytes if each tensor moves once.

    Multiplications of matrix products per token and value head, C the chunk size: K V each for w S,
    qg S and kg^T v_new; C V each for Akk beta v and Aqk v_new; C K for Akk beta kE and each of the
    two score matrices, which levels do in log2 C products of both at once; 2 C^2 (log2 C - 1) for
    the inverse. Vector work is an estimate: an exponential counts 8 and there are 4 + log2 C per
    gate, with 6 log2 C + 20 other operations; 6 per value; 4 log2 C per entry of a score matrix;
    2 K V / C for states.
    """
    size = fwd_cases.common.sizes(case)
    chunk, k_dim, v_dim = size["C"], size["K"], size["V"]
    rows = fwd_cases.common.tokens(case) * size["HV"]
    levels = chunk.bit_length() - 1
    matrix = 3 * k_dim * v_dim + 2 * chunk * v_dim + 3 * chunk * k_dim
    matrix += 2 * chunk * chunk * (levels - 1)
    vector = (
        k_dim * (8 * (4 + levels) + 6 * levels + 20)
        + 6 * v_dim
        + 4 * chunk * levels
        + 2 * k_dim * v_dim / chunk
    )
    read = sum(
        math.prod(tensor.shape) * cases.ITEMSIZE[tensor.dtype]
        for tensor in case.tensors.values()
        if tensor is not None
    )
    written = size["B"] * size["T"] * size["HV"] * v_dim * cases.ITEMSIZE[dtype_of(case)]
    written += size["N"] * size["HV"] * k_dim * v_dim * 4
    return spec.Costs(2.0 * rows * matrix, float(rows * vector), read + written)


SPEC = spec.OpSpec(
    name=fwd_cases.FWD,
    function="ops.chunk_kda:chunk_kda",
    golden="ops.chunk_kda.fwd_reference:golden_fwd",
    same_precision="ops.chunk_kda.fwd_same_precision:same_precision_fwd",
    prepare="ops.chunk_kda.preparation:fwd",
    cases=fwd_cases.FWD_CASES,
    outputs=(
        spec.Output("o", rows_axis=1, precision_of="q"),
        # Its roundings are those of q's dtype, though it is fp32.
        spec.Output("final_state", rows_axis=2, precision_of="q"),
    ),
    launches=launches,
    workspace_bytes=workspace_bytes,
    costs=costs,
    baselines=(
        # Pinned in third_party/baselines_x86_64.txt.
        spec.Baseline(
            name="fla",
            function="testing.baselines.fla_core:chunk_kda",
            distribution="fla-core",
            devices=("cuda",),
            tune="testing.baselines.fla_core:tune_fwd",
            minimum=1.5,
            minimum_per_case={"*": 1.3},
        ),
    ),
)
