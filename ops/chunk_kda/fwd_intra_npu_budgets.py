"""The same for chunk_kda_fwd_intra, see fwd_npu_budgets."""

from ops.chunk_kda import fwd_npu_budgets, npu_budgets

BUDGETS = npu_budgets.mixed({**fwd_npu_budgets.SCORE, **fwd_npu_budgets.SOLVE, "wu_chunk": (6, 18)})
