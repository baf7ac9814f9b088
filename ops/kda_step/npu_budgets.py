"""What the compiled kernel may cost on an NPU; judged by the compile targets of this package.

The limits are what ascendnpu-ir 1.2.0 makes of it today (2026-11-30, the cases tagged npu): a
change that costs more should be meant. arch35's compiler does not double-buffer, so it is not asked
there. The scalars are beta, an index, and what q and k are normalised with.
"""

from testing.npu_compile import budgets

_STEP = "kda_step"

BUDGETS = (
    budgets.Budget(
        _STEP,
        "arch32",
        max_ub_share=0.91,
        double_buffered=True,
        max_scalar_loads=8,
        max_scalar_stores=4,
        max_cross_core_syncs=0,
        max_launches=1,
    ),
    budgets.Budget(
        _STEP, "arch32", where={"L2NORM": False, "GATE": 0}, max_scalar_loads=2, max_scalar_stores=0
    ),
    budgets.Budget(
        _STEP,
        "arch35",
        max_ub_share=0.8,
        max_scalar_loads=5,
        max_scalar_stores=7,
        max_cross_core_syncs=0,
        max_launches=1,
    ),
)
