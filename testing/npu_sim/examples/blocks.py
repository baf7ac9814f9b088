"""Launches over one vector, a block of it per program."""

import math
from typing import Any

from testing.npu_sim.examples.example import Draw


def sizes(block: int) -> tuple[tuple[int], ...]:
    """Nothing, one, around a block, around several."""
    return ((0,), (1,), (15,), (block - 1,), (block,), (block + 1,), (3 * block + 17,))


def launch(block: int, draw: Draw, size: int, given: dict[str, Any], *outputs: str):
    """A launch over one vector: inputs as given, an empty array for each output.

    One program more than needed, whose block is masked away.
    """
    blanks = {name: draw.blank(name, size) for name in outputs}
    return (math.ceil(size / block) + 1,), {**given, **blanks, "size": size}
