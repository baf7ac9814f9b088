"""What the compiled kernel may cost on an NPU; judged by the compile targets of this package.

The limits are what ascendnpu-ir 1.2.0 makes of the kernel today (2026-11-30, every case of the
table): a change that costs more should be meant. Neither compiler gives the second vector core rows
of its own (on arch35 triton-ascend does not ask for it; on arch32 only 2 of 25 stores are split),
and arch35's does not double-buffer, so neither is asked.
"""

from testing.npu_compile import budgets

_KERNEL = "mamba3_siso_fwd"

BUDGETS = (
    # The compiler keeps second buffers as long as they fit, so a share of UB says nothing here.
    budgets.Budget(
        _KERNEL,
        "arch32",
        double_buffered=True,
        max_scalar_loads=8,
        max_scalar_stores=13,
        max_cross_core_syncs=31,
        max_launches=1,
    ),
    # fp16 holds its operands in units (SCALE_OPERANDS), which takes scalars from tile to tile.
    budgets.Budget(
        _KERNEL,
        "arch32",
        where={"SCALE_OPERANDS": False},
        max_scalar_loads=4,
        max_scalar_stores=2,
        max_cross_core_syncs=24,
    ),
    budgets.Budget(
        _KERNEL,
        "arch35",
        max_scalar_loads=7,
        max_scalar_stores=9,
        max_cross_core_syncs=42,
        max_launches=1,
    ),
    budgets.Budget(_KERNEL, "arch35", where={"BLOCK_K": 64}, max_ub_share=0.97),
    budgets.Budget(_KERNEL, "arch35", where={"BLOCK_K": 128}, max_ub_share=0.999),
    budgets.Budget(
        _KERNEL, "arch35", where={"SCALE_OPERANDS": False}, max_scalar_loads=3, max_scalar_stores=4
    ),
)
