"""Variants of a launch, run on the simulated chip to be traced and compared.

A variant is an op's case, or a kernel with arguments of its own, with changes: another kernel with
the same arguments, other constants, compiler options, grid, or architecture. Imports Triton.
"""

import ast
import dataclasses
import difflib
import importlib
import math
import os
import re
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
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

# The verdict on a kernel of which nobody says what it should compute.
UNJUDGED = "nothing wrong with the execution; values are not judged (--expect compares them)"

Changes = Mapping[str, Constant]
Progress = Callable[[executor.Launch, float], None]  # gets each launch and its seconds


class VariantError(ValueError):
    """A variant that cannot be run as it was asked for.

    setting: what is wrong about it: one of SETTINGS, `args`, `expect`, or the name of a constant or
    a compiler option; the message does not repeat it.
    """

    def __init__(self, message: str, setting: str = ""):
        super().__init__(message)
        self.setting = setting


@dataclasses.dataclass(frozen=True)
class Run:
    """What became of one variant.

    failures: why it is wrong; empty when nothing is. found: all that the simulator said. launches:
    of the first call. outputs: a kernel's tensors after the first call, by name. judged: values
    were compared with what is expected; else only the execution was looked at.
    """

    label: str
    chip: str
    failures: tuple[str, ...]
    found: tuple[findings.Finding, ...]
    launches: tuple[executor.Launch, ...]
    outputs: Mapping[str, torch.Tensor]
    judged: bool = True

    @property
    def verdict(self) -> str:
        if self.failures:
            return "FAIL"
        return "pass" if self.judged else UNJUDGED

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
        if name in found:
            raise VariantError(f"got {name} twice; valid is once")
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
    """The run-time arguments of a kernel: `x=float16[64,96],n=4096,eps=0.001`, or a function
    `module:name` that returns them by name.

    Tensors are contiguous; floating ones are standard normal (the same values each time), integer
    ones count from 0 (and around), boolean ones alternate.

    Raises:
        VariantError: not of that form.
    """
    if re.fullmatch(r"[\w.]+:\w+", text):
        return _returned(text, "args")
    found: dict[str, Any] = {}
    for part in ir.split(text):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not name or not equals:
            raise VariantError(
                f"got {part!r}; valid is name=type[shape], name=number or module:function", "args"
            )
        if name in found:
            raise VariantError(f"got {name} twice; valid is once", "args")
        found[name] = _argument(name, value)
    return found


def expected(path: str, given: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """What the function `module:name` says that tensors hold after the launch.

    It gets copies of the arguments, by name, and returns tensors or arrays by name.

    Raises:
        VariantError: it does not, or there is no such function.
    """
    found = _returned(path, "expect", **_copies(given))
    tensors: dict[str, torch.Tensor] = {}
    for name, value in found.items():
        argument = given.get(name)
        if not isinstance(argument, torch.Tensor):
            names = [each for each in given if isinstance(given[each], torch.Tensor)]
            raise VariantError(f"{path} returned {name}; valid are {', '.join(names)}", "expect")
        try:
            tensors[name] = torch.as_tensor(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise VariantError(
                f"{path} returned {name} as {type(value).__name__}; valid is a tensor or an array",
                "expect",
            ) from error
        if tensors[name].shape != argument.shape:
            raise VariantError(
                f"{path} returned {name} of shape {list(tensors[name].shape)}; valid is "
                f"{list(argument.shape)}",
                "expect",
            )
    return tensors


def _returned(path: str, setting: str, **given: Any) -> dict[str, Any]:
    """The mapping that a function returns."""
    function = _resolve(path, setting)
    try:
        found = function(**given)
    except (Exception, SystemExit) as error:  # whatever the user's code may raise
        raise VariantError(f"{path} raised {_said(error)}", setting) from error
    if not isinstance(found, Mapping) or not all(isinstance(name, str) for name in found):
        raise VariantError(
            f"{path} returned a {type(found).__name__}; valid is a dict of values by name", setting
        )
    return dict(found)


_TYPES = {
    name: getattr(torch, name)
    for name in (
        *("float16", "bfloat16", "float32"),
        *("bool", "int8", "uint8", "int16", "int32", "int64"),
    )
}


def _argument(name: str, text: str) -> torch.Tensor | int | float | None:
    if text in ("None", "True", "False"):
        return {"None": None, "True": True, "False": False}[text]
    try:
        return int(text) if re.fullmatch(r"-?\d+", text) else float(text)
    except ValueError:
        pass
    match = re.fullmatch(r"(\w+)\[(\d[\d, ]*)\]", text)
    if not match or match[1] not in _TYPES:
        raise VariantError(
            f"{name}: got {text!r}; valid is a number, True, False, None, or type[shape] such as "
            f"float16[64,96] with one of the types {', '.join(_TYPES)}",
            "args",
        )
    shape = [int(extent) for extent in ir.split(match[2])]
    dtype, elements = _TYPES[match[1]], math.prod(shape)
    # Values are made in four or eight bytes, and copied for each call.
    limit = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 16
    if elements > limit:
        raise VariantError(
            f"{name}: got {text!r}; valid are up to {limit:.2g} elements on this machine", "args"
        )
    if dtype.is_floating_point:
        generator = torch.Generator().manual_seed(sum(name.encode()))
        return torch.randn(shape, generator=generator).to(dtype)
    numbers = torch.arange(elements).reshape(shape)
    return numbers % 2 == 1 if dtype == torch.bool else numbers.to(dtype)


def _copies(given: Mapping[str, Any]) -> dict[str, Any]:
    """Copies of the arguments that lie in memory as the originals do.

    Every storage is copied once, with all that is in it: strides stay, and what shares memory still
    does.
    """
    storages: dict[tuple[int, int], torch.UntypedStorage] = {}
    found = dict(given)
    for name, value in given.items():
        if isinstance(value, torch.Tensor):
            storage = value.untyped_storage()
            # Not by identity: two tensors made of one NumPy array have two.
            key = storage.data_ptr(), storage.nbytes()
            if key not in storages:
                storages[key] = storage.clone()
            found[name] = torch.empty(0, dtype=value.dtype).set_(
                storages[key], value.storage_offset(), value.shape, value.stride()
            )
    return found


def grid(text: Constant) -> tuple[int, ...]:
    """`24` or `4x3x2`."""
    extents = (
        [int(extent) for extent in str(text).split("x")]
        if re.fullmatch(r"\d+(x\d+){0,2}", str(text))
        else []
    )
    if not 1 <= math.prod(extents) <= launch_lib.MAX_PROGRAMS or not extents:
        raise VariantError(
            f"got {text!r}; valid is 24, 4x6 or 4x3x2, with 1 to {launch_lib.MAX_PROGRAMS} "
            "programs in all",
            "grid",
        )
    return tuple(extents)


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
            raise VariantError("no launch has a kernel with the same arguments in order", "kernel")
        for name in sorted(self._unused):
            raise _unknown(name, SETTINGS, self._seen)


def _unknown(name: str, settings: Iterable[str], constants: Iterable[str]) -> VariantError:
    """A change that names nothing."""
    known = [*settings, *constants, *_compiler_options()]
    close = difflib.get_close_matches(name, known)
    return VariantError(
        f"neither {', '.join(settings)}, an argument of the kernel ({', '.join(constants)}), nor "
        f"an option of the compiler; close are {', '.join(close)}"
        if close
        else f"neither {', '.join(settings)}, an argument of the kernel ({', '.join(constants)}), "
        f"nor an option of the compiler ({', '.join(_compiler_options())})",
        name,
    )


class _Simulator(devices.Simulator):
    """The device, with changed launches and with events."""

    def __init__(
        self,
        name: str,
        change: Callable[[launch_lib.Launch], launch_lib.Launch],
        progress: Progress,
    ):
        super().__init__(name)
        self._change = change
        self._progress = progress

    def session(self) -> devices.Session:
        return executor.Executor(
            self.modules, trace=True, change=self._change, progress=self._progress
        )


@dataclasses.dataclass(frozen=True)
class Tolerated:
    """What tensors should hold, by name, give or take atol + rtol |expected|; NaN is NaN."""

    expected: Mapping[str, torch.Tensor]
    rtol: float = 0.0
    atol: float = 0.0

    def differences(self, outputs: Mapping[str, torch.Tensor]) -> list[str]:
        """One line for each tensor that holds something else."""
        lines = []
        for name, wanted in self.expected.items():
            found = outputs[name]
            floating = found.is_floating_point() or wanted.is_floating_point()
            x, y = (t.double() if floating else t.long() for t in (found, wanted))
            wrong = ~torch.isclose(x, y, self.rtol, self.atol, equal_nan=True)
            if wrong.any():
                at = tuple(wrong.nonzero()[0].tolist())
                lines.append(
                    f"{name}: {int(wrong.sum())} of {wrong.numel()} elements are not what is "
                    f"expected; the first, at {list(at)}, is {x[at].item():.8g} instead of "
                    f"{y[at].item():.8g}"
                )
        return lines


def check_case(wanted: Changes) -> None:
    """Raises what `run_case` would raise before it runs anything."""
    _Change(wanted)


def run_case(
    label: str,
    op: spec.OpSpec,
    folders: Sequence[str],
    wanted: Changes,
    progress: Progress = lambda item, seconds: None,
) -> Run:
    """Judges the op's case `wanted["case"]` on the simulated chip, all gates included.

    folders: of the op's compile targets for the architecture.

    Raises:
        VariantError: a change that fits no launch.
    """
    change = _Change(wanted)
    device = _Simulator(f"npu-{wanted['arch']}-sim", change, progress)
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


def kernel_launch(given: Mapping[str, Any], wanted: Changes) -> launch_lib.Launch:
    """The launch of a kernel on arguments of its own.

    given: arguments by name. wanted: kernel, grid, arch, constants and compiler options; they go
    before what is given.

    Raises:
        VariantError: missing or unknown arguments, or values that no kernel takes.
    """
    extents = grid(wanted["grid"])
    kernel = _kernel(wanted["kernel"])
    options = {name: wanted[name] for name in wanted if name in _compiler_options()}
    known = {parameter.name: parameter for parameter in kernel.params}
    changed = {
        name: value
        for name, value in wanted.items()
        if name not in SETTINGS and name not in options
    }
    for name in changed:
        if name not in known:
            raise _unknown(name, [each for each in SETTINGS if each != "case"], known)
    values = {name: each.default for name, each in known.items() if each.has_default}
    values |= {**given, **changed}
    missing = [name for name in known if name not in values]
    unknown = sorted(set(given) - set(known))
    if missing or unknown:
        raise VariantError(
            f"{wanted['kernel']}: missing {missing}, unknown {unknown}; its arguments are "
            f"{', '.join(known)}",
            "args" if unknown else "kernel",
        )
    constants = {name: values[name] for name in known if known[name].is_constexpr}
    for name, value in constants.items():
        if not isinstance(value, int | float | str | None):
            raise VariantError(
                f"{name}: got a {type(value).__name__}, valid for a constant is a number or a text",
                "args",
            )
    item = launch_lib.Launch(
        kernel=kernel,
        backend=f"npu-{wanted['arch']}",
        grid=extents,
        args={name: values[name] for name in known if name not in constants},
        constants=constants,
        options=options,  # type: ignore[arg-type]
    )
    for name, value in item.args.items():
        if isinstance(value, torch.Tensor) and (
            value.device.type != "cpu" or value.layout != torch.strided or value.is_neg()
        ):
            raise VariantError(
                f"{name}: got a {value.layout} tensor on {value.device}"
                f"{' with the negative bit' if value.is_neg() else ''}; valid are plain ones on "
                "the CPU",
                "args",
            )
    try:
        item.signature()
    except ValueError as error:
        name = str(error).partition(":")[0]
        raise VariantError(str(error), "args" if name in given else "constants") from error
    return item


def run_kernel(
    label: str,
    given: Mapping[str, Any],
    wanted: Changes,
    tolerated: Tolerated | None = None,
    progress: Progress = lambda item, seconds: None,
) -> Run:
    """Launches a kernel three times, in different schedules and memory, on copies of its arguments.

    given, wanted: see `kernel_launch`. tolerated: what its tensors should hold; None: not judged.

    Raises:
        VariantError: as kernel_launch.
    """
    planned = kernel_launch(given, wanted)
    device = devices.require(f"npu-{wanted['arch']}-sim")
    assert isinstance(device, devices.Simulator)
    session = executor.Executor(device.modules, trace=True, progress=progress)
    results = []
    try:
        for _ in range(_CALLS):
            item = dataclasses.replace(planned, args=_copies(planned.args))
            with session.calling():
                item.run()
            results.append({n: v for n, v in item.args.items() if isinstance(v, torch.Tensor)})
    except (compiled.NotCompiledError, findings.UnsupportedOperationError) as error:
        return Run(label, device.modules.chip, (str(error),), (), (), {}, False)
    simulation = session.simulation()
    failures = [str(finding) for finding in simulation.errors]
    for name, first in results[0].items():
        same = [accuracy.same_bits(first, other[name]) for other in results[1:]]
        if not all(same):
            failures.append(f"{name}: {accuracy.cause(simulation, same)}")
    if tolerated is not None:
        failures += tolerated.differences(results[0])
    return Run(
        label,
        device.modules.chip,
        tuple(failures),
        simulation.findings,
        simulation.first_call,
        results[0],
        tolerated is not None,
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
    kernel = _resolve(str(path), "kernel")
    if not hasattr(kernel, "params"):
        raise VariantError(f"{path} is not decorated with triton.jit", "kernel")
    return kernel


def _resolve(path: str, setting: str) -> Any:
    try:
        return spec.resolve(path)
    except (Exception, SystemExit) as error:  # whatever the user's module may raise
        raise VariantError(
            f"got {path!r}, valid is module:function; {_said(error)}", setting
        ) from error


def _said(error: BaseException) -> str:
    """An exception in one line, with where it was raised."""
    text = f"{type(error).__name__}: {' '.join(str(error).split())}"
    if isinstance(error, SyntaxError):  # says where itself
        return text
    ours = (__file__, spec.__file__, importlib.__file__)
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<frozen") and frame.filename not in ours
    ]
    return text + (
        f" at {os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""
    )


def _compiler_options() -> Mapping[str, Any]:
    return ascend.NPUOptions.__annotations__
