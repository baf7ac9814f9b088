"""The architectures that kernels are compiled for, and the chips that stand for each. Pure Python.

Core counts are those of the compiler's own description of each chip (ascendnpu-ir 1.2.0).
"""

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Architecture:
    """One instruction set.

    backend: its name in ops.common.backend. chips: the compiler's target name -> cube cores; the
    first one is compiled by default. program: which compiler. double_buffers: whether
    triton-ascend asks for multi-buffering there. final_pass: the dump before this pass is the final
    module, planned and synchronised.
    """

    name: str
    backend: str
    chips: Mapping[str, int]
    program: str
    double_buffers: bool
    final_pass: str


ARCHITECTURES = {
    "arch32": Architecture(
        name="arch32",
        backend="npu-arch32",
        # One of each family, with different core counts: a constant that depends on the grid gives
        # different specialisations.
        chips={"Ascend910B1": 24, "Ascend910_9362": 20},
        program="bishengir-compile",
        double_buffers=True,
        final_pass="convert-hivm-to-std",
    ),
    "arch35": Architecture(
        name="arch35",
        backend="npu-arch35",
        # Two names of one chip, as the driver and as the compiler know it.
        chips={"Ascend910_9589": 32, "Ascend950PR_9589": 32},
        program="bishengir-compile-a5",
        double_buffers=False,
        final_pass="convert-vector-to-hivmave",
    ),
}


def architecture(name: str) -> Architecture:
    """Raises ValueError, with the names there are, for another one."""
    if name not in ARCHITECTURES:
        raise ValueError(f"arch: got {name!r}, valid are {', '.join(ARCHITECTURES)}")
    return ARCHITECTURES[name]
