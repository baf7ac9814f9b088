"""What mamba3_siso_fwd tells the test kit about itself."""

import math

from ops.mamba3_siso_fwd import cases as case_table
from testing import cases, spec


def launches(case: cases.Case, device: str) -> int:
    """One kernel, whatever the shape; none when there is nothing to compute."""
    del device
    return 1 if math.prod(case.shape("v")) else 0


def workspace_bytes(case: cases.Case, device: str) -> int:
    """Copies of what the kernel cannot read in place; fp32 staging of bf16 in the interpreter."""
    total = 0
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
)
