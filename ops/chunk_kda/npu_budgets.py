"""Budgets that the kernels of chunk_kda share; see testing/npu_compile/budgets.py.

arch35's compiler neither splits rows between its vector cores nor double-buffers, so neither is
asked there. The scalars are boundaries of packed sequences.
"""

from collections.abc import Mapping

from testing.npu_compile import budgets


def vector(*names: str) -> tuple[budgets.Budget, ...]:
    """Of kernels without matrix products."""
    return tuple(
        budgets.Budget(name, arch, double_buffered=arch == "arch32", max_cross_core_syncs=0)
        for name in names
        for arch in ("arch32", "arch35")
    )


def mixed(syncs: Mapping[str, tuple[int, int]]) -> tuple[budgets.Budget, ...]:
    """Of kernels with matrix products. syncs: of each, signals between cube and vector cores on
    arch32 and on arch35."""
    found: list[budgets.Budget] = []
    for name, (on_arch32, on_arch35) in syncs.items():
        found += (
            budgets.Budget(
                name,
                "arch32",
                double_buffered=True,
                both_vector_cores=True,
                max_scalar_loads=8,
                max_scalar_stores=0,
                max_cross_core_syncs=on_arch32,
            ),
            budgets.Budget(
                name,
                "arch35",
                max_scalar_loads=8,
                max_scalar_stores=0,
                max_cross_core_syncs=on_arch35,
            ),
        )
    return tuple(found)
