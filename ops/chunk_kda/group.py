"""Gradients of q and k from those per value head."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["num_rows", "num_tasks"])
def sum_group(
    dq_parts_ptr,
    dk_parts_ptr,
    dq_ptr,
    dk_ptr,
    num_rows,
    num_tasks,
    GROUP: tl.constexpr,
    K: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """dq and dk [rows, K] are the sums of the parts [rows, GROUP, K], where a row is a token's q/k
    head. Task: BLOCK_T rows."""
    lane_k = tl.arange(0, BLOCK_K)
    for task in range(tl.program_id(0), num_tasks, tl.num_programs(0)):
        row = tl.cast(task, tl.int64) * BLOCK_T + tl.arange(0, BLOCK_T)
        mask = (row < num_rows)[:, None] & (lane_k < K)[None, :]
        part = row[:, None] * (GROUP * K) + lane_k[None, :]
        dq = tl.load(dq_parts_ptr + part, mask=mask, other=0.0)
        dk = tl.load(dk_parts_ptr + part, mask=mask, other=0.0)
        for member in range(1, GROUP):
            dq += tl.load(dq_parts_ptr + part + member * K, mask=mask, other=0.0)
            dk += tl.load(dk_parts_ptr + part + member * K, mask=mask, other=0.0)
        out = row[:, None] * K + lane_k[None, :]
        tl.store(dq_ptr + out, dq.to(dq_ptr.dtype.element_ty), mask=mask)
        tl.store(dk_ptr + out, dk.to(dk_ptr.dtype.element_ty), mask=mask)
