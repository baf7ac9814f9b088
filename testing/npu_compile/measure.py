"""What a compiled kernel's final module says about it: memory, operations, synchronisation.

The module is what `chain` keeps as hivm.mlir: memory planned (addresses are constants),
synchronised, not yet lowered. arch32 has vector work as `hivm.hir.v*` operations; arch35 has it
outlined into functions of the vector dialect.
"""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence

from testing.npu_compile import ir

# Name in reports -> (address space in types, entry of the module's target description).
MEMORIES = {
    "UB": ("ub", "UB_SIZE"),
    "L1": ("cbuf", "L1_SIZE"),
    "L0A": ("ca", "L0A_SIZE"),
    "L0B": ("cb", "L0B_SIZE"),
    "L0C": ("cc", "L0C_SIZE"),
}
_ALIGNMENT = {"ub": "UB_ALIGN_SIZE", "cbuf": "L1_ALIGN_SIZE", "cc": "L0C_ALIGN_SIZE"}

PIPES = ("vector", "cube", "load", "store", "fixpipe")
_PIPE_OF = {
    "hivm.hir.load": "load",  # MTE2: global memory to UB or L1
    "hivm.hir.nd2nz": "load",
    "hivm.hir.store": "store",  # MTE3: UB to global memory
    "hivm.hir.fixpipe": "fixpipe",  # L0C to global memory or UB
    "hivm.hir.mmadL1": "cube",
    "hivm.hir.batchMmadL1": "cube",
}
_VECTOR_DIALECTS = ("vector", "arith", "math")


@dataclasses.dataclass(frozen=True)
class Measurement:
    """Static counts of one module.

    memory: MEMORIES name -> (bytes used, bytes available); used is None where this stage does not
    plan that memory (L0A and L0B: the matrix operation's own template does). operations: PIPES name
    -> operations in the text. scalar_loads, scalar_stores: accesses by the scalar unit, times the
    trip counts of the loops around them as far as those are constants. scalar_loops: innermost
    loops in which nothing but the scalar unit works. cross_core_syncs: signals between cube and
    vector cores. split_stores: those of the operations of pipe `store` that each of two vector
    cores makes for rows of its own: they depend on the core's number. limited_stores: those that
    only the first one executes. workspace_bytes: global memory per program through which the cores
    exchange data. core_type: AIC (cube), AIV (vector) or MIX.
    """

    memory: Mapping[str, tuple[int | None, int]]
    operations: Mapping[str, int]
    scalar_loads: int
    scalar_stores: int
    scalar_loops: int
    cross_core_syncs: int
    split_stores: int
    limited_stores: int
    workspace_bytes: int
    core_type: str

    @property
    def ub_share(self) -> float:
        used, available = self.memory["UB"]
        return (used or 0) / available

    @property
    def idle_vector_core(self) -> bool:
        """Whether the second vector core of a mixed kernel does the first one's work once more.

        The compiler could not give it rows of its own: what leaves the cores is the same on both,
        or comes from the first one, for the most part.
        """
        if self.core_type != "MIX" or not self.operations["store"]:
            return False
        return 2 * self.split_stores < self.operations["store"]


def measure(module: ir.Module) -> Measurement:
    """Counts everything in one walk."""
    constants = _constants(module)
    sizes = _target(module)
    used: dict[str, int] = {}
    operations = dict.fromkeys(PIPES, 0)
    loads = stores = syncs = limited = split = 0
    own, guarded = _of_one_vector_core(module)
    loops: dict[int, bool] = {}  # innermost loops, by identity: whether only scalars work in them
    for operation, ancestors in module.walk():
        if operation.name == "hivm.hir.pointer_cast":
            _place(operation, constants, sizes, used)
        elif operation.name == "memref.load":
            loads += _trips(ancestors, constants)
        elif operation.name == "memref.store":
            stores += _trips(ancestors, constants)
        elif operation.name == "hivm.hir.sync_block_set":
            syncs += 1
        if _is_loop(operation):
            loops[id(operation)] = _touches_memory(operation)
            loops = {key: scalar for key, scalar in loops.items() if key not in _ids(ancestors)}
        pipe = pipe_of(operation)
        if pipe:
            operations[pipe] += 1
            for ancestor in ancestors:
                if id(ancestor) in loops:
                    loops[id(ancestor)] = False
            if pipe == "store":
                only_first = id(operation) in guarded or any(
                    "limit_sub_block_id0" in ancestor.attributes for ancestor in ancestors
                )
                limited += only_first
                split += id(operation) in own and not only_first
    return Measurement(
        memory={
            name: (used.get(space), sizes[entry] // 8) for name, (space, entry) in MEMORIES.items()
        },
        operations=operations,
        scalar_loads=loads,
        scalar_stores=stores,
        scalar_loops=sum(loops.values()),
        cross_core_syncs=syncs,
        split_stores=split,
        limited_stores=limited,
        workspace_bytes=_workspace(module, constants),
        core_type=_core_type(module),
    )


def pipe_of(operation: ir.Operation) -> str | None:
    """The PIPES name of an operation that occupies one; None for scalar work and bookkeeping."""
    name = operation.name
    if name in _PIPE_OF:
        return _PIPE_OF[name]
    types = (*operation.operand_types, *operation.result_types)
    if name.startswith("hivm.hir.v") or name == "hivm.hir.copy":
        # Into L1 the transfer engines do it, whatever the operation is called.
        last = types[-1] if types else ""
        if isinstance(last, ir.MemRef) and last.space == "cbuf":
            return "store" if name == "hivm.hir.copy" else "load"
        return "vector"
    if name.partition(".")[0] in _VECTOR_DIALECTS and any(isinstance(t, ir.Vector) for t in types):
        return "vector"
    return None


def _of_one_vector_core(module: ir.Module) -> tuple[set[int], set[int]]:
    """(operations with an operand that depends on which of the two vector cores executes them,
    operations inside a condition on that), by identity."""
    values: set[str] = set()
    own: set[int] = set()
    guarded: set[int] = set()
    for operation, ancestors in module.walk():
        if any(a.name == "scf.if" and a.operands[0] in values for a in ancestors):
            guarded.add(id(operation))
        if operation.name == "hivm.hir.get_sub_block_idx" or not values.isdisjoint(
            operation.operands
        ):
            own.add(id(operation))
            values.update(operation.results)
            for region in operation.regions:
                for block in region:
                    values.update(name for name, _ in block.arguments)
    return own, guarded


def _constants(module: ir.Module) -> dict[str, int]:
    """Value -> integer, for every arith.constant. The compiler's dumps name each value once.

    Raises:
        ValueError: a name that stands for two integers.
    """
    constants: dict[str, int] = {}
    for operation, _ in module.walk():
        value = operation.attributes.get("value")
        if operation.name == "arith.constant" and isinstance(value, int):
            name = operation.results[0]
            if constants.setdefault(name, value) != value:
                raise ValueError(f"line {operation.line}: {name} is {constants[name]} and {value}")
    return constants


def _place(
    operation: ir.Operation,
    constants: Mapping[str, int],
    sizes: Mapping[str, int],
    used: dict[str, int],
) -> None:
    """Raises the memory's mark to the end of a buffer; a multi-buffered one has several."""
    kind = operation.result_types[0]
    if not isinstance(kind, ir.MemRef):
        return
    bits = kind.bits
    # The compiler plans whole units: 32 bytes of UB and L1, 512 of L0C.
    unit = sizes.get(_ALIGNMENT.get(kind.space, ""), 256) // 8
    addresses = operation.attributes.get("operandSegmentSizes", (len(operation.operands),))[0]
    for address in operation.operands[:addresses]:
        if bits is not None and address in constants:
            end = constants[address] + math.ceil(bits / 8 / unit) * unit
            used[kind.space] = max(used.get(kind.space, 0), end)


def _is_loop(operation: ir.Operation) -> bool:
    return operation.name in ("scf.for", "scf.while")


def _ids(operations: Sequence[ir.Operation]) -> set[int]:
    return {id(operation) for operation in operations}


def _touches_memory(loop: ir.Operation) -> bool:
    return any(inner.name in ("memref.load", "memref.store") for inner, _ in ir.walk(loop))


def _trips(ancestors: Sequence[ir.Operation], constants: Mapping[str, int]) -> int:
    """How often the innermost of these is executed, counting loops with constant bounds only."""
    trips = 1
    for operation in ancestors:
        if operation.name == "scf.for":
            bounds = [constants.get(operand) for operand in operation.operands[:3]]
            low, high, step = bounds
            if low is not None and high is not None and step:
                trips *= max(0, -(-(high - low) // step))
    return trips


def _target(module: ir.Module) -> dict[str, int]:
    """The compiler's own description of the chip: cores, and sizes in bits."""
    text = str(module.operation.attributes.get("dlti.target_system_spec", ""))
    entries = re.findall(r'dl_entry<"(\w+)", (\d+) : i32>', text)
    return {name: int(value) for name, value in entries}


def _core_type(module: ir.Module) -> str:
    text = str(module.operation.attributes.get("hivm.module_core_type", ""))
    match = re.search(r"<(\w+)>", text)
    return match[1] if match else "unknown"


def _workspace(module: ir.Module, constants: Mapping[str, int]) -> int:
    for name, function in module.functions().items():
        if name.endswith("_infer_workspace_shape_function"):
            for operation, _ in ir.walk(function):
                if operation.name == "func.return" and operation.operands:
                    return constants.get(operation.operands[0], 0)
    return 0
