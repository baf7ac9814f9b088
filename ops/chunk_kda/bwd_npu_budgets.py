"""What the compiled kernels of chunk_kda_bwd may cost on an NPU; judged by the compile targets.

The limits are what ascendnpu-ir 1.2.0 makes of the kernels today (2026-11-30, every case of the
table): a change that costs more should be meant. A call has two launches for each range of chunks
(npu_plan.py), so their number is no property of a kernel.
"""

from ops.chunk_kda import npu_budgets

MIXED = {
    "forward_states": (18, 24),
    "reverse_states": (21, 25),
    "level_scores": (12, 28),
    "level_gradients": (40, 45),
}
VECTOR = ("cumulative_gate", "decayed", "gate_backward")

BUDGETS = (*npu_budgets.vector(*VECTOR), *npu_budgets.mixed(MIXED))
