"""What the compiled kernel may cost on an NPU; judged by the compile targets of this package.

The limits are what ascendnpu-ir 1.2.0 makes of it today (2026-11-30, the cases tagged npu): a
change that costs more should be meant. arch35's compiler neither splits rows between its vector
cores nor double-buffers, so neither is asked there. The scalars are boundaries of packed sequences.
"""

from testing.npu_compile import budgets

_OUTPUTS = "outputs_npu"

BUDGETS = (
    budgets.Budget(
        _OUTPUTS,
        "arch32",
        max_ub_share=0.62,
        double_buffered=True,
        both_vector_cores=True,
        max_unsplit_stores=0,
        max_scalar_loads=8,
        max_scalar_stores=0,
        max_cross_core_syncs=9,
        max_launches=1,
    ),
    budgets.Budget(_OUTPUTS, "arch32", where={"PACKED": False}, max_scalar_loads=0),
    budgets.Budget(
        _OUTPUTS,
        "arch35",
        max_ub_share=0.98,
        max_scalar_loads=4,
        max_scalar_stores=0,
        max_cross_core_syncs=18,
        max_launches=1,
    ),
    budgets.Budget(_OUTPUTS, "arch35", where={"PACKED": False}, max_scalar_loads=0),
)
