"""Variants of a launch, run on the simulated chip to be traced and compared.

A variant is an op's case, or a kernel with arguments of its own, with changes: another kernel with
the same arguments, other constants, compiler options, grid, or architecture. Imports Triton.
"""

import ast
import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from triton.backends.ascend import compiler as ascend

from ops.common import launch as launch_lib
from testing import accuracy, devices, spec
from testing.npu_compile import ir
from testing.npu_compile.specialisation import Constant
from testing.npu_sim import compiled, executor, findings, summary

# What a change can name, beside constants of the kernel and options of the compiler.
SETTINGS = ("arch", "case", "grid", "kernel")
_CALLS = 3  # in time order, then in random schedules with other memory contents

Changes = Mapping[str, Constant]


class VariantError(ValueError):
    """A variant that cannot be run as it was asked for."""


@dataclasses.dataclass(frozen=True)
class Run:
    """What became of one variant.

    failures: why it is wrong; empty when nothing is. found: all that the simulator said. launches:
    of the first call. outputs: a kernel's tensors after the first call, by name.
    """

    label: str
    chip: str
    failures: tuple[str, ...]
    found: tuple[findings.Finding, ...]
    launches: tuple[executor.Launch, ...]
    outputs: Mapping[str, torch.Tensor]

    @property
    def summaries(self) -> list[summary.Summary]:
        return [summary.of_launch(item) for item in self.launches]


def changes(text: str) -> dict[str, Constant]:
    """`BLOCK=512,kernel=m:f` -> {"BLOCK": 512, "kernel": "m:f"}.

    Raises:
        VariantError: not of that form.
    """
    found: dict[str, Constant] = {}
    for part in ir.split(text):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not name or not equals or not value:
            raise VariantError(f"got {part!r}; valid is name=value,name=value")
        found[name] = literal(value)
    return found


def literal(text: str) -> Constant:
    """The Python constant that a text is, else the text."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
    return value if value is None or isinstance(value, bool | int | float | str) else text


def arguments(text: str) -> dict[str, Any]:
    """The run-time arguments of a kernel: `x=float16[64,96],n=4096`, or a function `module:name`
    that returns them by name.

    Tensors are contiguous; floating ones are standard normal (the same values each time), integer
    ones count from 0.

    Raises:
        VariantError: not of that form.
    """
    if re.fullmatch(r"[\w.]+:\w+", text):
        return dict(_resolve(text)())
    found: dict[str, Any] = {}
    for part in ir.split(text):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not name or not equals:
            raise VariantError(f"--args: got {part!r}; valid is name=type[shape] or name=integer")
        found[name] = _argument(name, value)
    return found


_TYPES = {
    name: getattr(torch, name) for name in ("float16", "bfloat16", "float32", "int32", "int64")
}


def _argument(name: str, text: str) -> torch.Tensor | int | None:
    if text == "None":
        return None
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    match = re.fullmatch(r"(\w+)\[(\d[\d, ]*)\]", text)
    if not match or match[1] not in _TYPES:
        raise VariantError(
            f"--args: {name}: got {text!r}; valid is an integer, None, or type[shape] such as "
            f"float16[64,96] with one of the types {', '.join(_TYPES)}"
        )
    shape = [int(extent) for extent in ir.split(match[2])]
    dtype = _TYPES[match[1]]
    if dtype.is_floating_point:
        generator = torch.Generator().manual_seed(sum(name.encode()))
        return torch.randn(shape, generator=generator).to(dtype)
    return torch.arange(torch.Size(shape).numel(), dtype=dtype).reshape(shape)


def grid(text: Constant) -> tuple[int, ...]:
    """`24` or `4x3x2`."""
    if not re.fullmatch(r"\d+(x\d+){0,2}", str(text)):
        raise VariantError(f"grid: got {text!r}; valid is 24, 4x6 or 4x3x2")
    return tuple(int(extent) for extent in str(text).split("x"))


class _Change:
    """Applies a variant's changes to each launch it can be applied to.

    Raises (when called, or by `check_used`):
        VariantError: a change that fits no launch.
    """

    def __init__(self, wanted: Changes):
        self._kernel = _kernel(wanted["kernel"]) if "kernel" in wanted else None
        self._grid = grid(wanted["grid"]) if "grid" in wanted else None
        values = {name: value for name, value in wanted.items() if name not in SETTINGS}
        self._options = {
            name: value for name, value in values.items() if name in _compiler_options()
        }
        self._constants = {
            name: value for name, value in values.items() if name not in self._options
        }
        self._unused = set(self._constants) | ({"kernel"} if self._kernel is not None else set())
        self._seen: dict[str, None] = {}

    def __call__(self, item: launch_lib.Launch) -> launch_lib.Launch:
        self._seen.update(dict.fromkeys(item.constants))
        kernel = item.kernel
        if self._kernel is not None and self._kernel.arg_names == kernel.arg_names:
            kernel = self._kernel
            self._unused.discard("kernel")
        own = {name: self._constants[name] for name in self._constants if name in item.constants}
        self._unused -= set(own)
        constants: dict[str, Any] = {**item.constants, **own}
        options: dict[str, Any] = {**item.options, **self._options}
        return dataclasses.replace(
            item,
            kernel=kernel,
            grid=self._grid or item.grid,
            constants=constants,
            options=options,
        )

    def check_used(self) -> None:
        if "kernel" in self._unused:
            raise VariantError("kernel: no launch has a kernel with the same arguments in order")
        if self._unused:
            raise VariantError(
                f"{', '.join(sorted(self._unused))}: neither {', '.join(SETTINGS)}, a constant of "
                f"the kernel ({', '.join(self._seen)}), nor an option of the compiler"
            )


class _Simulator(devices.Simulator):
    """The device, with changed launches and with events."""

    def __init__(self, name: str, change: Callable[[launch_lib.Launch], launch_lib.Launch]):
        super().__init__(name)
        self._change = change
        self.last: executor.Executor | None = None

    def session(self) -> devices.Session:
        self.last = executor.Executor(self.modules, trace=True, change=self._change)
        return self.last


def run_case(label: str, op: spec.OpSpec, folders: Sequence[str], wanted: Changes) -> Run:
    """Judges the op's case `wanted["case"]` on the simulated chip, all gates included.

    folders: of the op's compile targets for the architecture.

    Raises:
        VariantError: a change that fits no launch.
    """
    change = _Change(wanted)
    device = _Simulator(f"npu-{wanted['arch']}-sim", change)
    device.require()
    for folder in folders:
        device.use_compiled(folder)
    case = next(case for case in op.cases if case.name == wanted["case"])
    try:
        verdict = accuracy.judge(op, case, device, None)
    except (compiled.NotCompiledError, findings.UnsupportedOperationError) as error:
        return Run(label, device.modules.chip, (str(error),), (), (), {})
    change.check_used()
    assert verdict.simulation is not None
    return Run(
        label,
        device.modules.chip,
        tuple(verdict.failures()),
        verdict.simulation.findings,
        verdict.simulation.first_call,
        {},
    )


def run_kernel(label: str, given: Mapping[str, Any], wanted: Changes) -> Run:
    """Launches a kernel three times, in different schedules and memory, on copies of its arguments.

    given: run-time arguments by name. wanted: kernel, grid, arch, constants and compiler options.

    Raises:
        VariantError: missing or unknown arguments.
    """
    kernel = _kernel(wanted["kernel"])
    options = {name: wanted[name] for name in wanted if name in _compiler_options()}
    constants = {
        name: value
        for name, value in wanted.items()
        if name not in SETTINGS and name not in options
    }
    defaults = {
        parameter.name: parameter.default
        for parameter in kernel.params
        if parameter.has_default and parameter.name not in given
    }
    constants = {**defaults, **constants}
    missing = [name for name in kernel.arg_names if name not in {**given, **constants}]
    unknown = sorted({*given, *constants} - set(kernel.arg_names))
    if missing or unknown:
        raise VariantError(
            f"arguments of {wanted['kernel']}: missing {missing}, unknown {unknown}; they are "
            f"{', '.join(kernel.arg_names)}"
        )
    device = devices.require(f"npu-{wanted['arch']}-sim")
    assert isinstance(device, devices.Simulator)
    session = executor.Executor(device.modules, trace=True)
    results = []
    try:
        for _ in range(_CALLS):
            fresh = {
                name: value.clone() if isinstance(value, torch.Tensor) else value
                for name, value in given.items()
            }
            item = launch_lib.Launch(
                kernel=kernel,
                backend=f"npu-{wanted['arch']}",
                grid=grid(wanted["grid"]),
                args=fresh,
                constants=constants,  # type: ignore[arg-type]
                options=options,  # type: ignore[arg-type]
            )
            with session.calling():
                item.run()
            results.append({n: v for n, v in fresh.items() if isinstance(v, torch.Tensor)})
    except (compiled.NotCompiledError, findings.UnsupportedOperationError) as error:
        return Run(label, device.modules.chip, (str(error),), (), (), {})
    simulation = session.simulation()
    failures = [str(finding) for finding in simulation.errors]
    changed = [
        name
        for name in results[0]
        if not all(accuracy.same_bits(results[0][name], other[name]) for other in results[1:])
    ]
    if changed:
        failures.append(f"{', '.join(changed)}: {accuracy.unwritten(simulation)}")
    return Run(
        label,
        device.modules.chip,
        tuple(failures),
        simulation.findings,
        simulation.first_call,
        results[0],
    )


def difference(first: Run, other: Run) -> str:
    """How the tensors of two runs differ after their launches; empty when nothing can be said."""
    parts = []
    for name, tensor in first.outputs.items():
        rival = other.outputs.get(name)
        if rival is None or rival.shape != tensor.shape or rival.dtype != tensor.dtype:
            parts.append(f"{name}: not comparable")
        elif accuracy.same_bits(tensor, rival):
            parts.append(f"{name}: same bits")
        else:
            apart = (tensor.double() - rival.double()).abs().max().item()
            parts.append(f"{name}: at most {apart:.3g} apart")
    return "; ".join(parts)


def _kernel(path: Constant) -> Any:
    kernel = _resolve(str(path))
    if not hasattr(kernel, "params"):
        raise VariantError(f"kernel: {path} is not decorated with triton.jit")
    return kernel


def _resolve(path: str) -> Any:
    try:
        return spec.resolve(path)
    except (ImportError, AttributeError, ValueError) as error:
        raise VariantError(f"{path}: {error}") from error


def _compiler_options() -> Mapping[str, Any]:
    return ascend.NPUOptions.__annotations__
