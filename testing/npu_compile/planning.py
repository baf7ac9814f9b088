"""From an op's case table, or a kernel and a signature, to the specialisations to compile.

Nothing is allocated and nothing launched: the op's own public function plans on `meta` tensors
inside `backend.pretend`. Imports Triton.
"""

import contextlib
import dataclasses
import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from triton.backends.ascend.compiler import AscendAttrsDescriptor

from ops.common import backend, launch
from testing import cases, inputs, spec
from testing.npu_compile import chips, rules
from testing.npu_compile.specialisation import Call, Constant, Failure, Specialisation, Unit


@dataclasses.dataclass(frozen=True)
class Kernel:
    """A kernel to compile that no op's cases launch.

    function: "module:function". signature: run-time argument -> Triton's type, such as `*fp16` or
    `i32`; pointers count as multiples of 16, as allocators give them, and `i32:16` says the same of
    an integer. constants: the other arguments. options: compiler options. architectures: for which
    it is compiled.
    """

    function: str
    signature: Mapping[str, str]
    constants: Mapping[str, Constant] = dataclasses.field(default_factory=dict)
    options: Mapping[str, Constant] = dataclasses.field(default_factory=dict)
    architectures: tuple[str, ...] = tuple(chips.ARCHITECTURES)


class _Address:
    """Stands for a tensor where Triton looks at an argument's alignment."""

    def __init__(self, tensor: torch.Tensor):
        # Allocators give multiples of 512; what can break the alignment is a view's offset.
        self._offset = int(tensor.storage_offset() * tensor.itemsize)

    def data_ptr(self) -> int:
        return self._offset


def of_launch(item: launch.Launch) -> Specialisation:
    """What Triton would compile for a launch, by Triton's own rules for alignment and ones."""
    parameters = item.kernel.params
    signature = item.signature()
    given: dict[str, Any] = {**item.args, **item.constants}
    names = [parameter.name for parameter in parameters]
    missing = [name for name in names if name not in given]
    if missing or len(given) != len(names):
        unknown = sorted(set(given) - set(names))
        raise ValueError(f"launch of {item.name}: missing {missing}, unknown {unknown}")
    values = [
        _Address(given[name]) if isinstance(given[name], torch.Tensor) else given[name]
        for name in names
    ]
    attributes = AscendAttrsDescriptor(parameters, values)
    ones = set(attributes.arg_properties["tt.equal_to"])
    constants = {
        parameter.name: given[parameter.name]
        for parameter in parameters
        if parameter.is_constexpr or parameter.num in ones or given[parameter.name] is None
    }
    aligned = set(attributes.arg_properties["tt.divisibility"])
    return Specialisation(
        kernel=item.name,
        module=item.kernel.fn.__module__,
        # Absent tensors are constants, of the type that Triton gives them.
        signature={
            parameter.name: signature.get(parameter.name, "*i8")
            for parameter in parameters
            if not parameter.is_constexpr
        },
        constants=constants,
        aligned=tuple(
            parameter.name
            for parameter in parameters
            if parameter.num in aligned and parameter.name not in constants
        ),
        options=dict(item.options),
    )


def of_kernel(kernel: Kernel) -> Specialisation:
    """The specialisation that a Kernel stands for.

    Raises:
        ValueError: names that are not the kernel's, or arguments that are not given.
    """
    function = spec.resolve(kernel.function)
    if not hasattr(function, "params"):
        raise ValueError(f"kernel: {kernel.function} is not decorated with triton.jit")
    names = [parameter.name for parameter in function.params]
    defaults = {
        parameter.name: parameter.default
        for parameter in inspect.signature(function.fn).parameters.values()
        if parameter.default is not inspect.Parameter.empty
    }
    constants = {**defaults, **kernel.constants}
    for name in kernel.signature:
        constants.pop(name, None)
    given = {*kernel.signature, *constants}
    if given != set(names):
        raise ValueError(
            f"arguments of {kernel.function}: missing {sorted(set(names) - given)}, "
            f"unknown {sorted(given - set(names))}; they are {', '.join(names)}"
        )
    types = {name: text.partition(":")[0] for name, text in kernel.signature.items()}
    for name in constants:
        if not function.params[names.index(name)].is_constexpr:
            types[name] = "*i8" if constants[name] is None else "i32"
    return Specialisation(
        kernel=function.__name__,
        module=function.fn.__module__,
        signature={name: types[name] for name in names if name in types},
        constants=constants,
        aligned=tuple(
            name
            for name in names
            if kernel.signature.get(name, "").startswith("*")
            or kernel.signature.get(name, "").endswith(":16")
        ),
        options=dict(kernel.options),
    )


@contextlib.contextmanager
def _chip(architecture: chips.Architecture, chip: str) -> Iterator[None]:
    with backend.pretend(architecture.backend, architecture.chips[chip]):
        yield


class Planner:
    """Collects the specialisations of calls, each once.

    calls: what each case launches. kernels: specialisation key -> the triton.jit function.
    """

    def __init__(self, architecture: chips.Architecture):
        self.architecture = architecture
        self.calls: list[Call] = []
        self.units: dict[str, Unit] = {}
        self.kernels: dict[str, Any] = {}

    def add_case(self, op: spec.OpSpec, case: cases.Case, chip: str) -> None:
        """Plans one call of the op; an error of the op becomes the call's failure."""
        call = Call(case.name, chip, [])
        self.calls.append(call)
        with launch.record() as launches:
            try:
                with _chip(self.architecture, chip):
                    spec.resolve(op.function)(**inputs.meta(case, op.preparation))
                for item in launches:
                    call.launches.append(self.add_launch(item, chip))
            except Exception as error:  # whatever an op may raise is its verdict
                message = f"{type(error).__name__}: {error}"
                lines = [message, *map(rules.line, rules.by_message(message))]
                call.failure = Failure("plan", "failed", "\n".join(lines))

    def add_launch(self, item: launch.Launch, chip: str) -> str:
        """Plans what one launch needs; returns the specialisation's key."""
        return self._add(of_launch(item), item.kernel, chip)

    def add_kernel(self, kernel: Kernel, chip: str) -> None:
        specialised = of_kernel(kernel)
        key = self._add(specialised, spec.resolve(kernel.function), chip)
        self.calls.append(Call(specialised.kernel, chip, [key]))

    def _add(self, specialised: Specialisation, function: Any, chip: str) -> str:
        key = specialised.key
        unit = self.units.setdefault(key, Unit(specialised, []))
        if chip not in unit.chips:
            unit.chips.append(chip)
        self.kernels[key] = function
        return key


def plan(
    architecture: chips.Architecture,
    chosen: Sequence[str],
    op: spec.OpSpec | None = None,
    case_names: Sequence[str] | None = None,
    kernels: Sequence[Kernel] = (),
) -> Planner:
    """Plans the op's cases (those for Ascend, or those named) and the kernels, on the chosen
    chips."""
    planner = Planner(architecture)
    for chip in chosen:
        if op:
            for case in cases.for_ascend(op.cases) if case_names is None else op.cases:
                if case_names is None or case.name in case_names:
                    planner.add_case(op, case, chip)
        for kernel in kernels:
            if architecture.name in kernel.architectures:
                planner.add_kernel(kernel, chip)
    return planner
