"""What the compiled kernels of chunk_kda's forward may cost on an NPU; judged by the compile
targets.

The limits are what ascendnpu-ir 1.2.0 makes of the kernels today (2026-12-01, the cases tagged
npu): a change that costs more should be meant.
"""

from ops.chunk_kda import npu_budgets

SCORE, SOLVE = {"score_chunk": (48, 68)}, {"solve_chunk": (24, 57)}
MIXED = {**SCORE, **SOLVE, "output_states": (24, 30)}
VECTOR = ("cumulative_gate", "l2norm")

BUDGETS = (*npu_budgets.vector(*VECTOR), *npu_budgets.mixed(MIXED))
