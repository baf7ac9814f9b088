"""Runs the examples in Triton's interpreter and writes what they leave in memory.

A program of its own, because triton.jit decides when a kernel is defined: TRITON_INTERPRET=1 must
be set.
"""

from collections.abc import Sequence

import numpy as np
import torch
from absl import app, flags

from ops.common import backend
from testing import spec
from testing.npu_sim.examples import table, tensors
from testing.npu_sim.examples.example import Example
from testing.npu_sim.examples.variants import VARIANTS

_OUT = flags.DEFINE_string("out", None, "The .npz file to write.", required=True)


def interpret(example: Example) -> dict[str, np.ndarray]:
    """`<launch>/<argument>` -> the array after the launch."""
    variant = VARIANTS[example.variant]
    results: dict[str, np.ndarray] = {}
    for index, planned in enumerate(example.launches()):
        run = planned.copy()
        arguments = {name: _argument(value) for name, value in run.arguments.items()}
        kernel = spec.resolve(variant.function)
        kernel[run.grid](**arguments, **variant.constants)
        results |= {
            f"{index}/{name}": value
            for name, value in run.arguments.items()
            if isinstance(value, np.ndarray)
        }
    return results


def _argument(value: np.ndarray | int | float) -> torch.Tensor | int | float:
    return tensors.tensor(value) if isinstance(value, np.ndarray) else value


def main(argv: Sequence[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments: {argv[1:]}")
    if not backend.INTERPRETED:
        raise app.UsageError("TRITON_INTERPRET=1 is not set")
    with np.errstate(all="ignore"):  # overflows are among what is tried
        arrays = {
            f"{example.name}/{name}": value
            for example in table.EXAMPLES
            if not example.interpreter
            for name, value in interpret(example).items()
        }
    with open(_OUT.value, "wb") as file:
        np.savez(file, **arrays)


if __name__ == "__main__":
    app.run(main)
