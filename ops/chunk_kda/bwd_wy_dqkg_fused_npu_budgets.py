"""The same as bwd_npu_budgets.py, for chunk_kda_bwd_wy_dqkg_fused."""

from testing.npu_compile import budgets

BUDGETS = (
    budgets.Budget(
        "wy_chunk",
        "arch32",
        double_buffered=True,
        both_vector_cores=True,
        max_scalar_loads=8,
        max_cross_core_syncs=30,
        max_launches=2,
    ),
    budgets.Budget(
        "wy_dqkg",
        "arch32",
        double_buffered=True,
        both_vector_cores=True,
        max_scalar_loads=8,
        max_cross_core_syncs=15,
        max_launches=2,
    ),
    budgets.Budget("wy_chunk", "arch35", max_cross_core_syncs=28, max_launches=2),
    budgets.Budget("wy_dqkg", "arch35", max_cross_core_syncs=30, max_launches=2),
)
