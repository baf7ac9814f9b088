"""What the compiled kernels may cost on an NPU; judged by the compile targets of this package.

The limits are what ascendnpu-ir 1.2.0 makes of the kernels today (2026-11-30, every case of the
table): a change that costs more should be meant. On arch32 every store of gated_tiles is shared by
the two vector cores; no other mixed kernel's is, and on arch35 triton-ascend does not ask for it.
arch35's compiler does not double-buffer either, so neither is asked there.
"""

from testing.npu_compile import budgets

_FORWARD = "mamba3_siso_fwd"  # one tile
_GATES = "gates"
_STATES = "gated_states"
_SCAN = "segment_scan"
_TILES = "gated_tiles"

BUDGETS = (
    # The compiler keeps second buffers as long as they fit, so a share of UB says nothing here.
    budgets.Budget(
        _TILES,
        "arch32",
        double_buffered=True,
        both_vector_cores=True,
        max_unsplit_stores=0,
        max_scalar_loads=4,
        max_scalar_stores=0,
        max_cross_core_syncs=33,
        max_launches=4,
    ),
    budgets.Budget(
        _TILES, "arch32", where={"SEGMENTED": False}, max_scalar_loads=3, max_launches=2
    ),
    # fp16 holds its operands in units (SCALE_OPERANDS), which takes a scalar from tile to tile.
    budgets.Budget(_TILES, "arch32", where={"SCALE_OPERANDS": False}, max_scalar_loads=2),
    budgets.Budget(
        _GATES,
        "arch32",
        double_buffered=True,
        max_scalar_loads=5,
        max_scalar_stores=6,
        max_cross_core_syncs=0,
        max_launches=4,
    ),
    budgets.Budget(
        _GATES,
        "arch32",
        where={"SCALE_OPERANDS": False},
        max_scalar_loads=3,
        max_scalar_stores=2,
    ),
    budgets.Budget(
        _STATES,
        "arch32",
        double_buffered=True,
        max_scalar_loads=2,
        max_scalar_stores=1,
        max_cross_core_syncs=9,
        max_launches=4,
    ),
    budgets.Budget(
        _SCAN,
        "arch32",
        double_buffered=True,
        max_scalar_loads=9,
        max_scalar_stores=10,
        max_cross_core_syncs=0,
        max_launches=4,
    ),
    budgets.Budget(
        _FORWARD,
        "arch32",
        double_buffered=True,
        max_scalar_loads=8,
        max_scalar_stores=13,
        max_cross_core_syncs=24,
        max_launches=1,
    ),
    budgets.Budget(
        _FORWARD,
        "arch32",
        where={"SCALE_OPERANDS": False},
        max_scalar_loads=4,
        max_scalar_stores=2,
    ),
    budgets.Budget(
        _TILES,
        "arch35",
        max_scalar_loads=4,
        max_scalar_stores=0,
        max_cross_core_syncs=25,
        max_launches=4,
    ),
    budgets.Budget(
        _TILES, "arch35", where={"SEGMENTED": False}, max_scalar_loads=3, max_launches=2
    ),
    budgets.Budget(_TILES, "arch35", where={"SCALE_OPERANDS": False}, max_scalar_loads=2),
    budgets.Budget(_TILES, "arch35", where={"BLOCK_K": 64}, max_ub_share=0.9),
    budgets.Budget(_TILES, "arch35", where={"BLOCK_K": 128}, max_ub_share=0.82),
    budgets.Budget(_TILES, "arch35", where={"BLOCK_K": 256}, max_ub_share=0.9999),
    budgets.Budget(
        _GATES,
        "arch35",
        max_ub_share=0.03,
        max_scalar_loads=4,
        max_scalar_stores=7,
        max_cross_core_syncs=0,
        max_launches=4,
    ),
    budgets.Budget(
        _STATES,
        "arch35",
        max_ub_share=0.59,
        max_scalar_loads=2,
        max_scalar_stores=1,
        max_cross_core_syncs=6,
        max_launches=4,
    ),
    budgets.Budget(
        _SCAN,
        "arch35",
        max_ub_share=0.13,
        max_scalar_loads=8,
        max_scalar_stores=4,
        max_cross_core_syncs=0,
        max_launches=4,
    ),
    budgets.Budget(
        _FORWARD,
        "arch35",
        max_ub_share=0.99,
        max_scalar_loads=7,
        max_scalar_stores=9,
        max_cross_core_syncs=34,
        max_launches=1,
    ),
    budgets.Budget(
        _FORWARD, "arch35", where={"SCALE_OPERANDS": False}, max_scalar_loads=3, max_scalar_stores=4
    ),
)
