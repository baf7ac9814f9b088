"""What the compiled kernels may cost on an NPU; judged by the compile targets of this package.

The limits are what ascendnpu-ir 1.2.0 makes of the kernels today (2026-11-30, every case of the
table): a change that costs more should be meant. Neither compiler gives the second vector core rows
of its own (on arch35 triton-ascend does not ask for it; on arch32 only 2 of 25 stores are split),
and arch35's does not double-buffer, so neither is asked.
"""

from testing.npu_compile import budgets

_FORWARD = "mamba3_siso_fwd"
_STATES = "segment_states"
_SCAN = "segment_scan"

BUDGETS = (
    # The compiler keeps second buffers as long as they fit, so a share of UB says nothing here.
    budgets.Budget(
        _FORWARD,
        "arch32",
        double_buffered=True,
        max_scalar_loads=11,
        max_scalar_stores=18,
        max_cross_core_syncs=35,
        max_launches=3,
    ),
    budgets.Budget(
        _FORWARD,
        "arch32",
        where={"SEGMENTED": False},
        max_scalar_loads=9,
        max_scalar_stores=16,
        max_cross_core_syncs=32,
        max_launches=1,
    ),
    # fp16 holds its operands in units (SCALE_OPERANDS), which takes scalars from tile to tile.
    budgets.Budget(
        _FORWARD,
        "arch32",
        where={"SCALE_OPERANDS": False},
        max_scalar_loads=4,
        max_scalar_stores=2,
        max_cross_core_syncs=24,
    ),
    budgets.Budget(
        _STATES,
        "arch32",
        double_buffered=True,
        max_scalar_loads=8,
        max_scalar_stores=19,
        max_cross_core_syncs=21,
        max_launches=3,
    ),
    budgets.Budget(
        _SCAN,
        "arch32",
        double_buffered=True,
        max_scalar_loads=13,
        max_scalar_stores=18,
        max_cross_core_syncs=0,
        max_launches=3,
    ),
    budgets.Budget(
        _FORWARD,
        "arch35",
        max_scalar_loads=9,
        max_scalar_stores=11,
        max_cross_core_syncs=42,
        max_launches=3,
    ),
    budgets.Budget(
        _FORWARD,
        "arch35",
        where={"SEGMENTED": False},
        max_scalar_loads=7,
        max_scalar_stores=9,
        max_launches=1,
    ),
    budgets.Budget(_FORWARD, "arch35", where={"BLOCK_K": 64, "ONE_TILE": False}, max_ub_share=0.97),
    budgets.Budget(_FORWARD, "arch35", where={"ONE_TILE": True}, max_ub_share=0.999),
    budgets.Budget(_FORWARD, "arch35", where={"BLOCK_K": 128}, max_ub_share=0.999),
    budgets.Budget(
        _FORWARD, "arch35", where={"SCALE_OPERANDS": False}, max_scalar_loads=3, max_scalar_stores=4
    ),
    budgets.Budget(
        _STATES,
        "arch35",
        max_ub_share=0.65,
        max_scalar_loads=7,
        max_scalar_stores=12,
        max_cross_core_syncs=9,
        max_launches=3,
    ),
    budgets.Budget(
        _SCAN,
        "arch35",
        max_ub_share=0.15,
        max_scalar_loads=8,
        max_scalar_stores=12,
        max_cross_core_syncs=0,
        max_launches=3,
    ),
)
