"""The same for the gradients of chunk_kda: those of its forward and of chunk_kda_bwd."""

from ops.chunk_kda import bwd_npu_budgets, fwd_npu_budgets, npu_budgets

BUDGETS = (
    *npu_budgets.vector(
        *dict.fromkeys((*fwd_npu_budgets.VECTOR, *bwd_npu_budgets.VECTOR, "l2norm_backward"))
    ),
    *npu_budgets.mixed(fwd_npu_budgets.MIXED | bwd_npu_budgets.MIXED),
)
