"""Runs an example in the simulator and says what is not as it should be."""

import glob
import os
import zipfile
from collections.abc import Iterator, Mapping

import numpy as np
import torch

from testing.npu_compile import chips, specialisation
from testing.npu_sim import findings, simulate
from testing.npu_sim.examples import example as example_lib
from testing.npu_sim.examples import tensors
from testing.npu_sim.examples.variants import Variant
from testing.npu_sim.program import Program


class Compiled:
    """The modules that a target of the rule npu_compile left in `folder`, for its first chip."""

    def __init__(self, folder: str, architecture: chips.Architecture):
        self._chip = next(iter(architecture.chips))
        self._modules: dict[tuple, tuple[str, str]] = {}
        for path in sorted(glob.glob(os.path.join(folder, "result_*.json"))):
            stages = path.replace("result_", "stages_").replace(".json", ".zip")
            for result in specialisation.load(path):
                if result["chip"] == self._chip and result["verdict"] == "ok":
                    found = specialisation.Specialisation.from_json(result["specialisation"])
                    name = f"{found.key}/{self._chip}/hivm.mlir"
                    self._modules[
                        _identity(
                            f"{found.module}:{found.kernel}", found.signature, found.constants
                        )
                    ] = (stages, name)

    def text(self, variant: Variant) -> str:
        """Raises KeyError for a variant that was not compiled."""
        identity = _identity(variant.function, variant.signature, variant.constants)
        stages, name = self._modules[identity]
        with zipfile.ZipFile(stages) as archive:
            return archive.read(name).decode()


def _identity(function: str, signature: Mapping, constants: Mapping) -> tuple:
    return function, tuple(sorted(signature.items())), tuple(sorted(constants.items()))


def problems(
    example: example_lib.Example,
    text: str,
    interpreted: Mapping[str, np.ndarray] | None = None,
) -> Iterator[str]:
    """Everything wrong with the example's launches, in words. text: the compiled module.

    Each is run in time order, in random schedules and on other memory contents, which must all give
    the same bits and no finding that is an error; then compared with NumPy and, where the example
    allows, with what Triton's interpreter left (`<example>/<launch>/<argument>`).
    """
    try:
        program = Program.parse(text)
        yield from _problems(example, program, interpreted)
    except findings.UnsupportedOperationError as error:
        yield f"{example.name}: {error}"


def _problems(
    example: example_lib.Example, program: Program, interpreted: Mapping[str, np.ndarray] | None
) -> Iterator[str]:
    for index, (size, launch) in enumerate(zip(example.sizes, example.launches(), strict=True)):
        where = f"{example.name} {size}"
        left, found = run(launch, program)
        yield from (f"{where}: {finding}" for finding in found)
        for name, expected in example.expect(launch).items():
            against = {"NumPy": expected}
            if interpreted is not None and not example.interpreter:
                against["Triton's interpreter"] = interpreted[f"{example.name}/{index}/{name}"]
            for who, values in against.items():
                text = example_lib.difference(left[name], values, example.tolerance)
                if text:
                    yield f"{where}: {name} against {who}: {text}"


def run(launch: example_lib.Launch, program: Program) -> tuple[Mapping[str, np.ndarray], list[str]]:
    """What a launch leaves in its arrays, and the findings that are errors."""
    runs: list[Mapping[str, np.ndarray]] = []

    def once(settings: simulate.Settings) -> tuple[simulate.Outcome, list[torch.Tensor]]:
        copy = launch.copy()
        arguments = [
            tensors.tensor(value) if isinstance(value, np.ndarray) else value
            for value in copy.arguments.values()
        ]
        outcome = simulate.run(program, copy.grid, arguments, settings, names=list(copy.arguments))
        runs.append({n: v for n, v in copy.arguments.items() if isinstance(v, np.ndarray)})
        return outcome, [value for value in arguments if isinstance(value, torch.Tensor)]

    _, found = simulate.examine(once)
    return runs[0], [str(finding) for finding in found if finding.is_error]
