"""Kernels that other packages launch, compiled as ours are: beside an op's own, in one table.

Their host code runs as it is, on `meta` tensors inside `backend.pretend`; what it would launch is
recorded as launches of ops.common. Imports Triton.
"""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any
from unittest import mock

import torch
from triton.backends.ascend.compiler import NPUOptions
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

from ops.common import backend, launch
from testing.npu_compile import compiling, frontend, planning
from testing.npu_compile.result import Result

# Options of GPU compilers, which triton-ascend takes and has no use for.
_GPU_OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg", "debug")


@dataclasses.dataclass(frozen=True)
class Choice:
    """One launch of a package's host code, with all that its autotuner would choose from.

    candidates: launches that differ in constants, one if nothing is tuned. dropped: compiler
    options that this version of triton-ascend does not know.
    """

    candidates: tuple[launch.Launch, ...]
    dropped: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.candidates[0].name


def launch_of(
    kernel: Any, grid: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> launch.Launch:
    """What `kernel[grid](*args, **kwargs)` would launch, on the pretended backend if there is one.

    kernel: a triton.jit function. Options of GPU compilers are left out.
    """
    given = {
        parameter.name: parameter.default for parameter in kernel.params if parameter.has_default
    }
    given |= dict(zip(kernel.arg_names, args, strict=False)) | dict(kwargs)
    constants = {parameter.name for parameter in kernel.params if parameter.is_constexpr}
    names = set(kernel.arg_names)
    tensor = next(value for value in given.values() if isinstance(value, torch.Tensor))
    return launch.Launch(
        kernel=kernel,
        backend=backend.backend_of(tensor),
        grid=tuple(grid(given) if callable(grid) else grid),
        args={n: v for n, v in given.items() if n in names - constants},
        constants={n: v for n, v in given.items() if n in constants},
        options={n: v for n, v in given.items() if n not in names and n not in _GPU_OPTIONS},
    )


@contextlib.contextmanager
def recorded() -> Iterator[list[Choice]]:
    """Collects what is launched inside the block, in order, instead of launching it.

    An autotuner does not time its configurations: each that differs in constants is a candidate.
    """
    choices: list[Choice] = []
    group: list[launch.Launch] | None = None

    def run(self: Any, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> None:
        item = launch_of(self, grid, args, kwargs)
        if group is None:
            choices.append(_choice([item]))
        else:
            group.append(item)

    def tune(self: Any, *args: Any, **kwargs: Any) -> None:
        nonlocal group
        configs = self.configs
        if self.early_config_prune:
            named = dict(zip(self.arg_names, args, strict=False))
            configs = self.early_config_prune(configs, named, **kwargs)
        group = []
        try:
            for constants in _distinct([config.kwargs for config in configs]):
                self.fn.run(*args, **{**kwargs, **constants})
            choices.append(_choice(group))
        finally:
            group = None

    with (
        mock.patch.object(JITFunction, "run", run),
        mock.patch.object(Autotuner, "run", tune),
    ):
        yield choices


def _distinct(values: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = []
    for value in values:
        if value not in found:
            found.append(value)
    return found


def _choice(items: Sequence[launch.Launch]) -> Choice:
    known = NPUOptions.__annotations__
    dropped = [name for name in items[0].options if name not in known]
    kept = [
        dataclasses.replace(item, options={n: v for n, v in item.options.items() if n in known})
        for item in items
    ]
    return Choice(tuple(kept), tuple(dropped))


def compile_planned(
    planner: planning.Planner,
    chip: str,
    folder: str,
    limit_s: float,
    tell: Callable[[Result], None] = lambda _: None,
    known: MutableMapping[tuple[str, str], Result] | None = None,
) -> dict[str, Result]:
    """Compiles all that a planner has, for one chip: key of the specialisation -> Result.

    folder: each specialisation's stages go into a folder of it named after its key. tell: gets each
    result. known: results of other planners for the same chip; what is there, with the same source,
    is not compiled again.
    """
    known = {} if known is None else known
    found = {}
    for key, unit in planner.units.items():
        kernel = planner.kernels[key]
        place = (key, kernel.cache_key)
        if place not in known:
            frontend.lower(unit, kernel, planner.architecture, limit_s)
            stages = os.path.join(folder, key)
            known[place] = compiling.compile_unit(unit, planner.architecture, chip, stages, limit_s)
            tell(known[place])
        found[key] = known[place]
    return found
