"""What the compiled kernels of chunk_kda_bwd may cost on an NPU; judged by the compile targets.

The limits are what ascendnpu-ir 1.2.0 makes of the kernels today (2026-11-30, every case of the
table): a change that costs more should be meant. arch35's compiler neither splits rows between its
vector cores nor double-buffers, so neither is asked there. A call has two launches for each range
of chunks (npu_plan.py), so their number is no property of a kernel.
"""

from testing.npu_compile import budgets

# Of kernels with matrix products: signals between cube and vector cores, arch32 and arch35.
_SYNCS = {
    "forward_states": (18, 24),
    "reverse_states": (21, 25),
    "level_scores": (12, 28),
    "level_gradients": (40, 45),
}
_VECTOR = ("cumulative_gate", "decayed", "gate_backward")

BUDGETS = (
    *(
        budgets.Budget(name, "arch32", double_buffered=True, max_cross_core_syncs=0)
        for name in _VECTOR
    ),
    *(budgets.Budget(name, "arch35", max_cross_core_syncs=0) for name in _VECTOR),
    *(
        budgets.Budget(
            name,
            "arch32",
            double_buffered=True,
            both_vector_cores=True,
            max_scalar_loads=8,
            max_scalar_stores=0,
            max_cross_core_syncs=limit,
        )
        for name, (limit, _) in _SYNCS.items()
    ),
    *(
        budgets.Budget(
            name, "arch35", max_scalar_loads=6, max_scalar_stores=0, max_cross_core_syncs=limit
        )
        for name, (_, limit) in _SYNCS.items()
    ),
)
