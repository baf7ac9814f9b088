"""What the compiled kernel may cost on an NPU; judged by the compile targets of this package.

The limits are what ascendnpu-ir 1.2.0 makes of it today (2026-11-30, the cases tagged npu): a
change that costs more should be meant. arch35's compiler does not double-buffer, so it is not asked
there. The scalars are the rate and the boundaries of packed sequences.
"""

from testing.npu_compile import budgets

_GATE = "cumulative_gate"

BUDGETS = (
    budgets.Budget(
        _GATE,
        "arch32",
        max_ub_share=0.93,
        double_buffered=True,
        max_scalar_loads=7,
        max_scalar_stores=4,
        max_cross_core_syncs=0,
        max_launches=1,
    ),
    budgets.Budget(
        _GATE, "arch32", where={"HAS_A_LOG": False}, max_scalar_loads=0, max_scalar_stores=0
    ),
    budgets.Budget(
        _GATE,
        "arch35",
        max_ub_share=0.3,
        max_scalar_loads=5,
        max_scalar_stores=1,
        max_cross_core_syncs=0,
        max_launches=1,
    ),
    budgets.Budget(
        _GATE, "arch35", where={"HAS_A_LOG": False}, max_scalar_loads=0, max_scalar_stores=0
    ),
)
