"""Plans an op's cases, or the kernels of a module, and lowers each specialisation to linalg.

What the first action of the rule npu_compile runs. Writes plan.json and shard_<n>.json, which
compile_main takes; a kernel that cannot be lowered is a verdict in them, not an error here.
"""

from collections.abc import Sequence

from absl import app, flags

from testing import spec
from testing.npu_compile import chips, frontend, planning
from testing.npu_compile.specialisation import write_plan

_SPEC = flags.DEFINE_string("spec", None, "Module that holds the op's SPEC.")
_KERNELS = flags.DEFINE_string("kernels", None, "Module that holds KERNELS, to compile instead.")
_ARCH = flags.DEFINE_enum("arch", None, list(chips.ARCHITECTURES), "Architecture.", required=True)
_SHARDS = flags.DEFINE_integer("shards", 1, "How many parts the work is cut into.")
_EVERY_CHIP = flags.DEFINE_bool("every_chip", True, "For each chip, or only the first one.")
_LIMIT = flags.DEFINE_float("limit_s", frontend.DEFAULT_LIMIT_S, "Seconds for one specialisation.")
_OUT = flags.DEFINE_string("out", None, "The folder to write.", required=True)


def main(argv: Sequence[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments: {argv[1:]}")
    if (_SPEC.value is None) == (_KERNELS.value is None):
        raise app.UsageError("one of --spec and --kernels is needed")
    architecture = chips.architecture(_ARCH.value)
    op = spec.load(_SPEC.value) if _SPEC.value else None
    kernels = spec.resolve(f"{_KERNELS.value}:KERNELS") if _KERNELS.value else ()
    chosen = list(architecture.chips)[: None if _EVERY_CHIP.value else 1]
    planner = planning.plan(architecture, chosen, op, kernels=kernels)
    for key, unit in planner.units.items():
        frontend.lower(unit, planner.kernels[key], architecture, _LIMIT.value)
    write_plan(_OUT.value, planner.calls, list(planner.units.values()), _SHARDS.value)


if __name__ == "__main__":
    app.run(main)
