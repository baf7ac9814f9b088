"""A parsed module as a program that a core's scalar unit executes.

Control flow, integer arithmetic and addresses are the scalar unit's own; everything else it hands
to the pipes through `Unit`, which `machine` implements. Each function is turned once into nested
lists of closures; a launch runs them for every block and core.
"""

import abc
import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import numpy as np

from testing.npu_compile import ir
from testing.npu_sim import arith, findings, memory, operations, vectors

# What MLIR writes for "known at run time only" in lists of static sizes.
_DYNAMIC = -(2**63)

Environment = dict[str, Any]
# What the scalar unit waits for; `machine` decides when it may go on, and with which value.
Request = Any
Steps = Generator[Request, Any, None]


class Unit(abc.ABC):
    """What a program asks of the core that executes it.

    The methods that return a request block the scalar unit until it is met; None does not block.
    """

    block: int
    blocks: int
    sub_block: int
    sub_blocks: int

    @abc.abstractmethod
    def tick(self, operations: int) -> None:
        """The scalar unit spent this many operations."""

    def at_once(self, loop: "Loop", counts: range, environment: Environment) -> bool:
        """Executes all iterations of a loop at once; False if it cannot, and nothing is done."""
        del loop, counts, environment
        return False

    @abc.abstractmethod
    def on_chip(self, space: str) -> memory.Memory: ...

    @abc.abstractmethod
    def issue(self, work: "Work", operands: Sequence[Any]) -> None: ...

    @abc.abstractmethod
    def multiply(self, work: "Work", operands: Sequence[Any]) -> None: ...

    @abc.abstractmethod
    def call_vector_function(self, work: "Work", operands: Sequence[Any]) -> None: ...

    @abc.abstractmethod
    def load(self, work: "Work", view: memory.View) -> Request: ...

    @abc.abstractmethod
    def store(self, work: "Work", view: memory.View, value: Any) -> Request: ...

    @abc.abstractmethod
    def set_flag(self, work: "Work", set_pipe: str, wait_pipe: str, event: int) -> None: ...

    @abc.abstractmethod
    def wait_flag(
        self, work: "Work", set_pipe: str, wait_pipe: str, event: int
    ) -> Request | None: ...

    @abc.abstractmethod
    def barrier(self, work: "Work", pipe: str) -> Request | None: ...

    @abc.abstractmethod
    def set_block_flag(self, work: "Work", pipe: str, flag: int) -> None: ...

    @abc.abstractmethod
    def wait_block_flag(self, work: "Work", pipe: str, flag: int) -> Request | None: ...


@dataclasses.dataclass(frozen=True, eq=False)
class Work:
    """An operation of the program and where it comes from.

    name: without `hivm.hir.`. layout: which operands are inputs, outputs, temporaries. places: the
    kernel's source lines, innermost first, or the module's line. callee: of a call.
    """

    name: str
    operation: ir.Operation
    places: tuple[str, ...]
    layout: operations.Layout | None = None
    callee: "Function | None" = None


@dataclasses.dataclass(eq=False)
class Loop:
    """The body of an scf.for that carries no values. in_order: known to need its order."""

    counter: str
    body: "Body"
    in_order: bool = False

    def run(self, unit: Unit, environment: Environment) -> Steps:
        """One iteration, or all of them where the counter is an array."""
        yield from _execute(self.body, unit, environment)


class DivergenceError(Exception):
    """Iterations that are executed at once do not do the same."""


def exhaust(steps: Steps) -> None:
    """Runs steps whose requests are met at once, by themselves."""
    value = None
    try:
        while True:
            value = steps.send(value)
    except StopIteration:
        return


@dataclasses.dataclass(frozen=True, eq=False)
class Function:
    """One function of the module: its arguments' names and types, and its body."""

    name: str
    operation: ir.Operation
    arguments: tuple[tuple[str, ir.Type], ...]
    constants: Environment
    body: "Body"

    def run(self, unit: Unit, arguments: Sequence[Any]) -> Steps:
        """Executes it: a generator of the requests that block the scalar unit."""
        environment = dict(self.constants)
        for (name, _), value in zip(self.arguments, arguments, strict=True):
            environment[name] = value
        yield from _execute(self.body, unit, environment)


class Program:
    """A module's entry functions by core type, ready to run.

    entries: 'AIC' (cube core), 'AIV' (vector core) -> function; a mixed kernel has both.
    workspace_bytes: global memory per block through which its cores exchange data. target: entries
    of the compiler's own description of the chip, such as UB_SIZE in bits. arch35: vector work is
    in vector functions, and the library is that of arch35.

    Raises:
        ir.ParseError: not a module.
        UnsupportedOperationError: it has an operation that the simulator does not know.
    """

    def __init__(self, module: ir.Module):
        self.module = module
        self.workspace_bytes = 0
        self.entries: dict[str, Function] = {}
        self.arch35 = _is_arch35(module)
        self.target = _target(module)
        self._constants: Environment = {}
        self._functions: dict[str, Function] = {}
        self._tables: dict[str, memory.View] = {}
        self._declared = module.functions()
        for name, operation in self._declared.items():
            if name.endswith("_infer_workspace_shape_function"):
                self.workspace_bytes = _returned(operation)
            elif "hacc.entry" in operation.attributes:
                self.entries[_core_type(operation)] = self.function(name)
        if not self.entries:
            raise findings.UnsupportedOperationError("builtin.module", "it has no entry function")

    @staticmethod
    def parse(text: str) -> "Program":
        return Program(ir.parse(text))

    def table(self, name: str, kind: ir.MemRef) -> memory.View:
        """A constant table of the module (memref.global), in a global memory of its own."""
        if name not in self._tables:
            (found,) = (
                operation
                for operation, _ in self.module.walk()
                if operation.name == "memref.global" and operation.attributes["sym_name"] == name
            )
            sizes = [extent for extent in kind.shape if extent is not None]
            dtype = memory.DTYPES[kind.element]
            values = arith.dense(found.attributes["initial_value"], dtype, kind.element, found.name)
            data = np.broadcast_to(values, math.prod(sizes)).copy().view(np.uint8)
            made = memory.Memory("gm", name, data)
            self._tables[name] = memory.View(made, 0, sizes, memory.row_major(sizes), kind.element)
        return self._tables[name]

    def has_vector_function(self, name: str) -> bool:
        return name in self._declared and _is_vector_function(self._declared[name])

    def function(self, name: str) -> Function:
        """The function of that name, compiled on first use."""
        if name not in self._functions:
            operation = self._declared[name]
            block = operation.regions[0][0]
            constants: Environment = {}
            body = _Compiler(self, constants).body(block)
            self._functions[name] = Function(name, operation, block.arguments, constants, body)
        return self._functions[name]

    def places(self, operation: ir.Operation) -> tuple[str, ...]:
        """Source lines of an operation, the innermost call first."""
        frames = [
            f"{frame.file}:{frame.line}"
            for frame in self.module.frames(operation.location)
            if not frame.file.endswith(".mlir")
        ]
        return tuple(frames) or (f"hivm line {operation.line}",)


def _target(module: ir.Module) -> dict[str, int]:
    text = str(module.operation.attributes.get("dlti.target_system_spec", ""))
    entries = re.findall(r'dl_entry<"(\w+)", (\d+) : i32>', text)
    return {name: int(value) for name, value in entries}


def _is_arch35(module: ir.Module) -> bool:
    # A kernel without vector work has no vector function: then the chip's name says it.
    text = str(module.operation.attributes.get("dlti.target_system_spec", ""))
    return '"ARCH", "dav-c310"' in text or any(
        map(_is_vector_function, module.functions().values())
    )


def _core_type(function: ir.Operation) -> str:
    text = str(function.attributes.get("hivm.func_core_type", ""))
    match = re.search(r"<(AIC|AIV)>", text)
    if not match:
        raise findings.UnsupportedOperationError("func.func", f"an entry for the core type {text}")
    return match[1]


def _is_vector_function(function: ir.Operation) -> bool:
    return "hivm.vector_function" in function.attributes


def _returned(function: ir.Operation) -> int:
    """The constant that a function returns."""
    values = {}
    for operation, _ in ir.walk(function):
        if operation.name == "arith.constant":
            values[operation.results[0]] = arith.constant(operation)
        if operation.name == "func.return" and operation.operands:
            return int(values[operation.operands[0]])
    return 0


# A body is a list of steps: a closure over the environment alone, one that needs the unit, or a
# generator of requests.
_PURE, _ISSUE, _BLOCKING = range(3)
Body = list[tuple[int, Callable[..., Any]]]


def _execute(body: Body, unit: Unit, environment: Environment) -> Steps:
    for kind, step in body:
        if kind == _PURE:
            step(environment)
            unit.tick(1)
        elif kind == _ISSUE:
            step(unit, environment)
        else:
            yield from step(unit, environment)


class _Compiler:
    """Turns blocks of one function into bodies."""

    def __init__(self, program: Program, constants: Environment):
        self._program = program
        self._constants = constants

    def body(self, block: ir.Block, results: Sequence[str] = ()) -> Body:
        """results: the names that the block's yield gives its values to."""
        body: Body = []
        for operation in block.operations:
            if operation.name == "arith.constant":
                self._constants[operation.results[0]] = arith.constant(operation)
                continue
            try:
                step = self._step(operation, results)
            except findings.UnsupportedOperationError as error:
                raise error.at(self._program.places(operation)) from error
            if step is not None:
                body.append(step)
        return body

    def _step(
        self, operation: ir.Operation, results: Sequence[str]
    ) -> tuple[int, Callable[..., Any]] | None:
        name = operation.name
        if name in ("func.return", "annotation.mark"):
            return None
        if name == "scf.yield":
            return _PURE, _assign(results, operation.operands)
        if name == "scf.for":
            return _BLOCKING, self._for(operation)
        if name == "scf.if":
            return _BLOCKING, self._if(operation)
        if name == "scf.while":
            return _BLOCKING, self._while(operation)
        if name == "func.call":
            return self._call(operation)
        compute = arith.function(operation)
        if compute is None and name.startswith("affine."):
            compute = self._affine(operation)
        if compute is None and name.startswith("memref."):
            if name in ("memref.load", "memref.store"):
                return _BLOCKING, self._access(operation)
            if name == "memref.get_global":
                (kind,) = operation.result_types
                assert isinstance(kind, ir.MemRef)
                table = self._program.table(str(operation.attributes["name"]).lstrip("@"), kind)
                return _PURE, _compute(lambda: table, operation.results, ())
            compute = _memref(operation)
        if compute is not None:
            return _PURE, _compute(compute, operation.results, operation.operands)
        vector = vectors.step(operation, self._program.module.aliases)
        if vector is not None:
            return _ISSUE, vector
        if name.startswith("hivm.hir."):
            return self._hivm(operation, name.removeprefix("hivm.hir."))
        raise findings.UnsupportedOperationError(name, "no such entry in program.py")

    def _work(self, operation: ir.Operation, name: str, **more: Any) -> Work:
        return Work(name, operation, self._program.places(operation), **more)

    # Control flow.

    def _for(self, operation: ir.Operation) -> Callable[[Unit, Environment], Steps]:
        low, high, step, *initial = operation.operands
        block = operation.regions[0][0]
        counter, *carried = [name for name, _ in block.arguments]
        body = self.body(block, carried)
        enter = _assign(carried, initial)
        leave = _assign(operation.results, carried)
        loop = Loop(counter, body)

        def run(unit: Unit, environment: Environment) -> Steps:
            bounds = environment[low], environment[high], environment[step]
            if any(map(np.ndim, bounds)):
                raise DivergenceError
            enter(environment)
            counts = range(*bounds)
            if not carried and unit.at_once(loop, counts, environment):
                return
            for value in counts:
                environment[counter] = value
                unit.tick(2)  # compare and branch
                yield from _execute(body, unit, environment)
            leave(environment)

        return run

    def _if(self, operation: ir.Operation) -> Callable[[Unit, Environment], Steps]:
        bodies = [
            self.body(region[0], operation.results) if region else []
            for region in operation.regions
        ]
        condition = operation.operands[0]

        def run(unit: Unit, environment: Environment) -> Steps:
            unit.tick(1)
            if np.ndim(environment[condition]):
                raise DivergenceError
            if environment[condition]:
                yield from _execute(bodies[0], unit, environment)
            elif len(bodies) > 1:
                yield from _execute(bodies[1], unit, environment)

        return run

    def _while(self, operation: ir.Operation) -> Callable[[Unit, Environment], Steps]:
        before, after = (region[0] for region in operation.regions)
        checked = [name for name, _ in before.arguments]
        carried = [name for name, _ in after.arguments]
        condition, *passed = before.operations[-1].operands
        head = self.body(ir.Block(before.arguments, before.operations[:-1]))
        body = self.body(after, checked)
        enter = _assign(checked, operation.operands)
        go_on, leave = _assign(carried, passed), _assign(operation.results, passed)

        def run(unit: Unit, environment: Environment) -> Steps:
            enter(environment)
            while True:
                yield from _execute(head, unit, environment)
                unit.tick(2)
                if np.ndim(environment[condition]):
                    raise DivergenceError
                if not environment[condition]:
                    break
                go_on(environment)
                yield from _execute(body, unit, environment)
            leave(environment)

        return run

    def _call(self, operation: ir.Operation) -> tuple[int, Callable[..., Any]]:
        name = str(operation.attributes["callee"]).lstrip("@")
        if not self._program.has_vector_function(name):
            raise findings.UnsupportedOperationError(
                operation.name, f"{name} is not a vector function of the module"
            )
        work = self._work(operation, name, callee=self._program.function(name))
        return _ISSUE, lambda unit, environment: unit.call_vector_function(
            work, [environment[operand] for operand in operation.operands]
        )

    # Addresses.

    def _affine(self, operation: ir.Operation) -> Callable[..., Any]:
        name = str(operation.attributes["map"])
        evaluate = arith.affine_map(self._program.module.aliases.get(name, name))
        if operation.name == "affine.apply":
            return lambda *operands: evaluate(*operands)[0]
        if operation.name == "affine.min":
            return lambda *operands: functools.reduce(arith.smaller, evaluate(*operands))
        if operation.name == "affine.max":
            return lambda *operands: functools.reduce(arith.larger, evaluate(*operands))
        raise findings.UnsupportedOperationError(operation.name, "no such entry in program.py")

    def _access(self, operation: ir.Operation) -> Callable[[Unit, Environment], Steps]:
        work = self._work(operation, operation.name)
        loads = operation.name == "memref.load"
        stored = None if loads else operation.operands[0]
        target, *indices = operation.operands[0 if loads else 1 :]
        result = operation.results[0] if loads else ""

        def run(unit: Unit, environment: Environment) -> Steps:
            view: memory.View = environment[target]
            ones = [1] * len(view.sizes)
            element = view.subview([environment[index] for index in indices], ones, ones)
            if stored is None:
                environment[result] = yield unit.load(work, element)
            else:
                yield unit.store(work, element, environment[stored])

        return run

    # The pipes.

    def _hivm(self, operation: ir.Operation, name: str) -> tuple[int, Callable[..., Any]] | None:
        attributes, operands = operation.attributes, operation.operands
        if name in ("set_mask_norm", "set_ffts_base_addr", "set_ctrl"):
            return None  # registers of which nothing here depends
        if name == "pointer_cast":
            return _ISSUE, _pointer_cast(operation)
        if name == "bitcast":
            (kind,) = operation.result_types
            assert isinstance(kind, ir.MemRef)
            element = kind.element
            return _PURE, _compute(lambda view: view.bitcast(element), operation.results, operands)
        if name in _INDICES:
            read, result = _INDICES[name], operation.results[0]

            def index(unit: Unit, environment: Environment) -> None:
                environment[result] = read(unit)

            return _ISSUE, index
        work = self._work(operation, name)
        if name in ("set_flag", "wait_flag"):
            pipes = (_pipe(attributes["set_pipe"]), _pipe(attributes["wait_pipe"]))
            event = _number(operation, "static_event_id")
            if name == "set_flag":
                return _ISSUE, lambda unit, environment: unit.set_flag(
                    work, *pipes, event(environment)
                )
            return _maybe_blocking(
                lambda unit, environment: unit.wait_flag(work, *pipes, event(environment))
            )
        if name == "pipe_barrier":
            pipe = _pipe(attributes["pipe"])
            return _maybe_blocking(lambda unit, environment: unit.barrier(work, pipe))
        if name in ("sync_block_set", "sync_block_wait"):
            flag = _number(operation, "static_flag_id")
            mode = str(attributes.get("tsync_instr_mode", "INTRA_BLOCK_SYNCHRONIZATION"))
            if "INTRA_BLOCK" not in mode:
                raise findings.UnsupportedOperationError(operation.name, f"mode {mode}")
            if name == "sync_block_set":
                pipe = _pipe(attributes["tpipe"])
                return _ISSUE, lambda unit, environment: unit.set_block_flag(
                    work, pipe, flag(environment)
                )
            pipe = _pipe(attributes["pipe"])
            return _maybe_blocking(
                lambda unit, environment: unit.wait_block_flag(work, pipe, flag(environment))
            )
        if name == "mmadL1":
            return _ISSUE, lambda unit, environment: unit.multiply(
                work, [environment[operand] for operand in operands]
            )
        work = dataclasses.replace(work, layout=operations.layout(operation))
        return _ISSUE, lambda unit, environment: unit.issue(
            work, [environment[operand] for operand in operands]
        )


_INDICES: Mapping[str, Callable[[Unit], int]] = {
    "get_block_idx": lambda unit: unit.block,
    "get_block_num": lambda unit: unit.blocks,
    "get_sub_block_idx": lambda unit: unit.sub_block,
    "get_sub_block_num": lambda unit: unit.sub_blocks,
}


def _assign(names: Sequence[str], values: Sequence[str]) -> Callable[[Environment], None]:
    if not names:
        return lambda environment: None

    def run(environment: Environment) -> None:
        # All are read before any is written: a loop may swap its values.
        found = [environment[value] for value in values]
        for name, value in zip(names, found, strict=True):
            environment[name] = value

    return run


def _compute(
    compute: Callable[..., Any], results: Sequence[str], operands: Sequence[str]
) -> Callable[[Environment], None]:
    if len(results) == 1:
        result = results[0]
        if len(operands) == 1:
            operand = operands[0]

            def one(environment: Environment) -> None:
                environment[result] = compute(environment[operand])

            return one

        def run(environment: Environment) -> None:
            environment[result] = compute(*[environment[operand] for operand in operands])

        return run

    def several(environment: Environment) -> None:
        values = compute(*[environment[operand] for operand in operands])
        for name, value in zip(results, values, strict=True):
            environment[name] = value

    return several


def _maybe_blocking(
    ask: Callable[[Unit, Environment], Request | None],
) -> tuple[int, Callable[..., Any]]:
    def run(unit: Unit, environment: Environment) -> Steps:
        request = ask(unit, environment)
        if request is not None:
            yield request

    return _BLOCKING, run


def _pipe(attribute: Any) -> str:
    """`#hivm.pipe<PIPE_MTE1>` -> `MTE1`."""
    match = re.fullmatch(r"#hivm\.pipe<PIPE_(\w+)>", str(attribute))
    if not match:
        raise findings.UnsupportedOperationError("pipe", str(attribute))
    return match[1]


def _number(operation: ir.Operation, attribute: str) -> Callable[[Environment], int]:
    """A flag's number: an attribute where it is static, else the first operand."""
    if attribute in operation.attributes:
        match = re.search(r"\d+", str(operation.attributes[attribute]))
        number = int(match[0]) if match else 0
        return lambda environment: number
    operand = operation.operands[0]
    return lambda environment: int(environment[operand])


def _list(static: Sequence[int], dynamic: Sequence[int]) -> list[int]:
    """A list of sizes, offsets or strides, with the run-time ones filled in."""
    values = iter(dynamic)
    return [next(values) if number == _DYNAMIC else number for number in static]


def _memref(operation: ir.Operation) -> Callable[..., Any]:
    """What an operation of the memref dialect makes of its operands."""
    name, attributes = operation.name.removeprefix("memref."), operation.attributes
    kind = operation.result_types[0]
    segments = attributes.get("operandSegmentSizes", ())
    if name in ("cast", "memory_space_cast"):
        return lambda view: view
    if name == "alloca":
        return _alloca(operation)
    if name == "alloc":
        raise findings.UnsupportedOperationError(
            operation.name, "the compiler planned no memory for this buffer, which nothing writes"
        )
    if name == "dim":
        return lambda view, axis: view.sizes[axis]
    if name == "extract_strided_metadata":
        return lambda view: (
            memory.View(view.memory, view.base, (), (), view.element, view.base),
            (view.offset - view.base) // view.unit,
            *view.sizes,
            *view.strides,
        )
    if not isinstance(kind, ir.MemRef):
        raise findings.UnsupportedOperationError(operation.name, f"result type {kind}")
    element = kind.element
    if name in ("reinterpret_cast", "subview"):
        offsets, sizes, strides = (
            attributes[f"static_{part}"] for part in ("offsets", "sizes", "strides")
        )
        first = 1 + segments[1]
        second = first + segments[2]

        def parts(dynamic: Sequence[int]) -> tuple[list[int], list[int], list[int]]:
            return (
                _list(offsets, dynamic[: first - 1]),
                _list(sizes, dynamic[first - 1 : second - 1]),
                _list(strides, dynamic[second - 1 :]),
            )

        if name == "reinterpret_cast":

            def reinterpret(view: memory.View, *dynamic: int) -> memory.View:
                (offset,), size, stride = parts(dynamic)
                return view.reinterpret(element, offset, size, stride)

            return reinterpret
        rank = len(kind.shape)

        def subview(view: memory.View, *dynamic: int) -> memory.View:
            offset, size, stride = parts(dynamic)
            if any(map(np.ndim, (*size, *stride))):
                raise DivergenceError
            result = view.subview(offset, size, stride)
            return result if rank == len(sizes) else _drop(result, kind)

        return subview
    if name == "collapse_shape":
        groups = attributes["reassociation"]
        return lambda view: view.collapse(groups)
    if name == "expand_shape":
        groups, shape = attributes["reassociation"], attributes["static_output_shape"]
        return lambda view, *dynamic: view.expand(groups, _list(shape, dynamic))
    if name == "view":
        shape = [_DYNAMIC if extent is None else extent for extent in kind.shape]
        return lambda view, shift, *dynamic: view.retype(element, shift, _list(shape, dynamic))
    raise findings.UnsupportedOperationError(operation.name, "no such entry in program.py")


def _alloca(operation: ir.Operation) -> Callable[..., Any]:
    """A variable on the scalar unit's own stack."""
    kind = operation.result_types[0]
    if not isinstance(kind, ir.MemRef) or None in kind.shape or kind.bits is None:
        raise findings.UnsupportedOperationError(operation.name, f"type {kind}")
    sizes = [extent or 0 for extent in kind.shape]
    size = -(-kind.bits // 8)

    def make() -> memory.View:
        stack = memory.Memory.on_chip("stack", "of the scalar unit", size, 0xFF)
        return memory.View(stack, 0, sizes, memory.row_major(sizes), kind.element)

    return make


def _drop(view: memory.View, kind: ir.MemRef) -> memory.View:
    """A rank-reducing subview: without axes of size 1, such that sizes and strides agree with the
    result's type."""
    for kept in itertools.combinations(range(len(view.sizes)), len(kind.shape)):
        dropped = set(range(len(view.sizes))) - set(kept)
        if all(view.sizes[axis] == 1 for axis in dropped) and all(
            size in (None, view.sizes[axis]) and stride in (None, view.strides[axis])
            for axis, size, stride in zip(
                kept, kind.shape, kind.strides or [None] * len(kind.shape), strict=True
            )
        ):
            return view.drop_dimensions(kept)
    raise findings.UnsupportedOperationError("memref.subview", f"{view} as {kind}")


def _pointer_cast(operation: ir.Operation) -> Callable[[Unit, Environment], None]:
    """A buffer at a planned address."""
    kind, result = operation.result_types[0], operation.results[0]
    addresses, _ = operation.attributes.get("operandSegmentSizes", (len(operation.operands), 0))
    if not isinstance(kind, ir.MemRef) or addresses != 1:
        raise findings.UnsupportedOperationError(operation.name, f"{addresses} addresses, {kind}")
    address, *dynamic = operation.operands
    shape = [_DYNAMIC if extent is None else extent for extent in kind.shape]
    fixed = [stride for stride in kind.strides or () if stride is not None]
    factor = 8 if kind.element == memory.BIT else 1

    def run(unit: Unit, environment: Environment) -> None:
        sizes = _list(shape, [environment[operand] for operand in dynamic])
        environment[result] = memory.View(
            unit.on_chip(kind.space),
            environment[address] * factor,
            sizes,
            fixed if len(fixed) == len(sizes) else memory.row_major(sizes),
            kind.element,
        )

    return run
