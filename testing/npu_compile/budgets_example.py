"""A result and a budget that it exceeds, for the tests of this package."""

from testing.npu_compile import budgets
from testing.npu_compile.measure import Measurement
from testing.npu_compile.result import Result
from testing.npu_compile.specialisation import Specialisation

MEASUREMENT = Measurement(
    memory={"UB": (90, 100), "L1": (5, 50), "L0C": (None, 10), "L0A": (None, 1), "L0B": (None, 1)},
    operations={"vector": 9, "cube": 2, "load": 3, "store": 4, "fixpipe": 1},
    scalar_loads=5,
    scalar_stores=6,
    scalar_loops=1,
    cross_core_syncs=7,
    split_stores=1,
    limited_stores=3,
    workspace_bytes=64,
    core_type="MIX",
)
_VARIANT = Specialisation("scan", "m", {}, {"BLOCK": 64}, (), {})
RESULT = Result(
    _VARIANT, "arch32", "Ascend910B1", "ok", 1.5, ("code-motion",), False, MEASUREMENT, "", "here"
)
BUDGETS = (budgets.Budget("scan", "arch32", max_scalar_loads=4),)
