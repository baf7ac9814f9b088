"""Views, attributes and a way to run one operation on them, for tests."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from testing.npu_sim import memory, operations

POISON = 0xA5  # what memories are filled with


def space(name: str = "ub", size: int = 1 << 14) -> memory.Memory:
    """A memory of its own."""
    return memory.Memory.on_chip(name, name, size, POISON)


def view(
    values: Any = None,
    element: str = "f32",
    offset: int = 0,
    sizes: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    where: str = "ub",
    within: memory.Memory | None = None,
) -> memory.View:
    """A view in a memory of its own, dense unless strides are given, filled with values."""
    array = None if values is None else np.asarray(values)
    extents = array.shape if array is not None else tuple(sizes or ())
    made = memory.View(
        within or space(where), offset, extents, strides or memory.row_major(extents), element
    )
    if array is not None:
        dtype = np.dtype(bool) if element == memory.BIT else memory.DTYPES[element]
        with np.errstate(over="ignore"):
            made.write(array.astype(dtype))
    return made


def run(
    name: str, inputs: Sequence[Any], output: memory.View | list[memory.View], **attributes: Any
) -> np.ndarray:
    """Runs an operation and returns what its first output holds then."""
    outputs = output if isinstance(output, list) else [output]
    operations.TABLE[name].run(attributes, inputs, outputs)
    return outputs[0].read()


def attribute(kind: str, value: str) -> str:
    """As the parser gives it."""
    return f"#hivm.{kind}<{value}>"
