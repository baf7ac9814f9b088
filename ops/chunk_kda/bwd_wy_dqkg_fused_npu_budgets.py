"""The same as bwd_npu_budgets.py, for chunk_kda_bwd_wy_dqkg_fused."""

from testing.npu_compile import budgets

BUDGETS = (
    budgets.Budget("wy_chunk", "arch32", max_cross_core_syncs=60, max_launches=2),
    budgets.Budget("wy_dqkg", "arch32", max_cross_core_syncs=30, max_launches=2),
    budgets.Budget("wy_chunk", "arch35", max_cross_core_syncs=80, max_launches=2),
    budgets.Budget("wy_dqkg", "arch35", max_cross_core_syncs=40, max_launches=2),
    *(
        budgets.Budget(
            name,
            "arch32",
            where={"K": 128, "V": 128, "C": 64},
            both_vector_cores=True,
        )
        for name in ("wy_chunk", "wy_dqkg")
    ),
)
