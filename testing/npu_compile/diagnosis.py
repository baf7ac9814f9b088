"""One clear message for a kernel that does not compile: what, where, how much, and what to do.

A rule is only named when its pattern is found in the kernel or in the compiler's output.
"""

import dataclasses
import os
import re
import subprocess
from collections.abc import Iterator, Sequence

from testing.npu_compile import chain, ir, rules
from testing.npu_compile.specialisation import Failure

SHOWN_BUFFERS = 6
# What LLVM prints of a crash, which says nothing to a reader and differs from run to run.
_BACKTRACE = re.compile(
    r"PLEASE submit a bug report|Stack dump|\d+\.\s+Program arguments|\s*#?\d+ .*\b0x[0-9a-f]+"
)


@dataclasses.dataclass(frozen=True)
class Overflow:
    """A memory that is too small, as the compiler says it. Bytes."""

    memory: str
    needed: int
    available: int


@dataclasses.dataclass(frozen=True)
class Buffer:
    """One buffer: bytes, type, and the source line of the operation it is for."""

    bytes: int
    shape: str
    place: str


def diagnose(
    failure: Failure,
    log: str = "",
    folder: str | None = None,
    ttir: str = "",
    kept: str | None = None,
    stopped_in: str = "",
) -> str:
    """The message for a failure.

    log: the compiler's output. folder: where chain.compile_linalg left the stages. ttir: the
    kernel's first stage. kept: where the message says that the stages are. stopped_in: the pass
    that failed.
    """
    what = f"{failure.stage}: {failure.kind}: "
    end = f"\nstages: {kept or folder}" if kept or folder else ""
    if failure.kind == "timeout":
        return what + failure.message + end
    overflow = find_overflow(log)
    text = log or failure.message
    if overflow:
        headline = (
            f"{overflow.memory} overflow: {overflow.needed:,} bytes are needed, "
            f"{overflow.available:,} are there ({overflow.needed / overflow.available:.2f} times)"
        )
    elif failure.stage == "hivm":
        headline = f"{failure.message}: {first_error(log)}" if log else failure.message
        headline += f" (in the pass {stopped_in})" if stopped_in else ""
    elif failure.stage == "linalg":
        headline = first_error(failure.message)
    else:
        headline = failure.message
    lines = [what + headline]
    if overflow and overflow.memory == "UB" and folder:
        lines += _largest(folder)
    names = matching(text, folder)
    if failure.stage == "linalg" and "elementwise_inline_asm" in ttir:
        names.append("assembly")
    if overflow and not names:
        names.append("overflow")
    return "\n".join([*lines, *map(rules.line, names)]) + end


def find_overflow(log: str) -> Overflow | None:
    """What the compiler's last complaint about a full memory says."""
    found = re.findall(r"(\w+) overflow, requires (\d+) bits while (\d+) bits available", log)
    if not found:
        return None
    memory, needed, available = found[-1]
    return Overflow(memory.upper(), int(needed) // 8, int(available) // 8)


def first_error(log: str) -> str:
    """The first error that says more than that something failed, or the log's last line."""
    errors = re.findall(r"^.*\berror: .*$", log, re.M)
    telling = chain.telling_errors(log)
    assertion = re.findall(r"^.*(?:Assertion .* failed|LLVM ERROR: ).*$", log, re.M)
    unreachable = re.findall(r"^(.+)\nUNREACHABLE executed at ", log, re.M)
    lines = [line for line in log.splitlines() if line.strip() and not _BACKTRACE.match(line)]
    chosen = (telling or assertion or unreachable or errors or lines[-1:] or ["no output"])[0]
    return re.sub(r'^loc\("([^"]+)":(\d+):\d+\)', r"\1:\2", chosen.strip())[:400]


def matching(text: str, folder: str | None) -> list[str]:
    """Names of the rules that apply, by the messages and by the kernel's linalg module."""
    names = rules.by_message(text)
    module = _linalg(folder) if folder else None
    if module:
        if _splits_a_shared_tensor(module):
            names.append("split")
        if _carries_accumulator_twice(module):
            names.append("accumulator")
        if any(op.operands[0] == op.operands[1] for op in _products(module)):
            names.append("operand")
    return names


def _linalg(folder: str) -> ir.Module | None:
    """The kernel's linalg module, printed in the generic form by the compiler's own printer."""
    arguments = [
        os.path.join(chain.compiler_folder(), "bishengir-opt"),
        os.path.join(folder, chain.LINALG),
        "--mlir-print-op-generic",
        "--mlir-print-debuginfo",
        "--allow-unregistered-dialect",
    ]
    try:
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=30, check=True)
        return ir.parse(done.stdout)
    except (subprocess.SubprocessError, OSError, ir.ParseError):
        return None  # a diagnosis without this rule is better than none


_RESHAPES = ("tensor.expand_shape", "tensor.collapse_shape", "tensor.reshape")


def _users(module: ir.Module) -> dict[str, list[ir.Operation]]:
    users: dict[str, list[ir.Operation]] = {}
    for operation, _ in module.walk():
        for operand in operation.operands:
            users.setdefault(operand, []).append(operation)
    return users


def _splits_a_shared_tensor(module: ir.Module) -> bool:
    users = _users(module)
    makers = {name: op for op, _ in module.walk() for name in op.results}

    def is_half(operation: ir.Operation) -> bool:
        strides = operation.attributes.get("static_strides", ())
        return operation.name == "tensor.extract_slice" and bool(strides) and strides[-1] == 2

    for operation, _ in module.walk():
        if not is_half(operation):
            continue
        source = operation.operands[0]
        while True:
            others = [user for user in users[source] if not is_half(user)]
            if len(users[source]) > 1 and any(user.name not in _RESHAPES for user in others):
                return True
            maker = makers.get(source)
            if maker is None or maker.name not in _RESHAPES:
                break
            source = maker.operands[0]
    return False


_PRODUCTS = ("linalg.matmul", "linalg.batch_matmul")


def _products(module: ir.Module) -> list[ir.Operation]:
    return [operation for operation, _ in module.walk() if operation.name in _PRODUCTS]


def _carries_accumulator_twice(module: ir.Module) -> bool:
    """Whether a matrix product adds to a value that two loops carry."""
    sums = {op.results[0]: op.operands[-1] for op in _products(module)}
    for operation, ancestors in module.walk():
        if operation.name not in _PRODUCTS:
            continue
        carried = operation.operands[-1]
        levels = 0
        for loop in reversed([ancestor for ancestor in ancestors if ancestor.name == "scf.for"]):
            arguments = [name for name, _ in loop.regions[0][0].arguments][1:]
            if carried not in arguments:
                break
            carried = loop.operands[3 + arguments.index(carried)]
            carried = sums.get(carried, carried)  # a product of the outer loop starts the inner
            levels += 1
        if levels > 1:
            return True
    return False


def _largest(folder: str) -> list[str]:
    """The largest buffers at the moment of the greatest need, one line each."""
    path = os.path.join(folder, chain.BEFORE_PLANNING)
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as file:
        module = ir.parse(file.read())
    alive = live_buffers(module)
    if not alive:
        return []
    total = sum(buffer.bytes for buffer in alive)
    shown = sorted(alive, key=lambda buffer: -buffer.bytes)[:SHOWN_BUFFERS]
    lines = [
        f"largest of {len(alive)} buffers that live at the same time (estimate: {total:,} bytes, "
        "before multi-buffering and reuse):"
    ]
    return lines + [f"  {buffer.bytes:>9,}  {buffer.shape:<24} {buffer.place}" for buffer in shown]


def live_buffers(module: ir.Module) -> list[Buffer]:
    """The UB buffers that live where the most bytes of them do, by the order of the text."""
    worst: list[Buffer] = []
    for function in module.functions().values():
        alive = _live_in(function, module)
        if sum(b.bytes for b in alive) > sum(b.bytes for b in worst):
            worst = alive
    return worst


def _live_in(function: ir.Operation, module: ir.Module) -> list[Buffer]:
    owner: dict[str, int] = {}  # value -> the buffer it is, or is part of
    buffers: list[ir.Operation] = []
    spans: list[list[int]] = []
    # Position of each operation and of the end of each loop around it.
    visited = list(_positions(function))
    for position, (operation, loops) in enumerate(visited):
        kind = operation.result_types[0] if operation.result_types else None
        if operation.name == "memref.alloc" and isinstance(kind, ir.MemRef) and kind.space == "ub":
            owner[operation.results[0]] = len(buffers)
            buffers.append(operation)
            spans.append([position, position])
            continue
        for operand in operation.operands:
            if operand in owner:
                first, last = spans[owner[operand]]
                # Used in a loop that began after it: it lives until that loop ends.
                ends = [end for begin, end in loops if begin > first]
                spans[owner[operand]][1] = max(last, position, *ends)
        if isinstance(kind, ir.MemRef):
            for operand in operation.operands:
                if operand in owner:
                    owner.setdefault(operation.results[0], owner[operand])
    sizes = [_bytes(buffer) for buffer in buffers]
    best: list[int] = []
    for position, _ in spans:
        alive = [i for i, (first, last) in enumerate(spans) if first <= position <= last]
        if sum(sizes[i] for i in alive) > sum(sizes[i] for i in best):
            best = alive
    return [Buffer(sizes[i], _shape(buffers[i]), place(module, buffers[i].location)) for i in best]


def _positions(
    function: ir.Operation,
) -> Iterator[tuple[ir.Operation, Sequence[tuple[int, int]]]]:
    """Every operation with (begin, end) of each loop around it."""
    order = {id(operation): i for i, (operation, _) in enumerate(ir.walk(function))}
    ends: dict[int, int] = {}
    for operation, _ in ir.walk(function):
        if operation.name in ("scf.for", "scf.while"):
            ends[id(operation)] = max(order[id(inner)] for inner, _ in ir.walk(operation))
    for operation, ancestors in ir.walk(function):
        loops = [(order[id(a)], ends[id(a)]) for a in ancestors if id(a) in ends]
        yield operation, loops


def _bytes(buffer: ir.Operation) -> int:
    kind = buffer.result_types[0]
    bits = kind.bits if isinstance(kind, ir.MemRef) else None
    return -(-(bits or 0) // 256) * 32


def _shape(buffer: ir.Operation) -> str:
    kind = buffer.result_types[0]
    if not isinstance(kind, ir.MemRef):
        return str(kind)
    return f"{list(kind.shape)} {kind.element}"


def place(module: ir.Module, location: str) -> str:
    """`file:line` of the kernel's own code, with the line it was called from."""
    frames = module.frames(location)
    own = [frame for frame in frames if not frame.file.startswith("triton/")] or frames
    text = [f"{frame.file}:{frame.line}" for frame in own]
    return ", called at ".join(text) or "unknown line"
