"""Deletes one synchronisation of a compiled program at a time: the simulator must notice each.

What a simulator finds on the compiler's own output shows little, because there is little to find.
Here the faults are known: a program without one of its waits, barriers or flags is wrong.
"""

import dataclasses
from collections.abc import Iterator, Sequence

from testing.npu_compile import ir

# Synchronisation arguments of mmadL1, after its seven operands: see cube.py.
_PRODUCT_OPERANDS = 7
_NONE = -1
_PRODUCT_ARGUMENTS = ("wait for A", "wait for B", "release of A", "release of B")


@dataclasses.dataclass(frozen=True)
class Mutation:
    """One synchronisation that can be taken out of a module.

    kind: `wait_flag`, `pipe_barrier V`, `mmadL1 wait for A`, ... line: of the module's text.
    """

    kind: str
    line: int
    module: ir.Module
    block: ir.Block
    index: int
    operand: int | None = None

    def __str__(self) -> str:
        return f"{self.kind}, line {self.line}"

    def mutated(self) -> ir.Module:
        """The module without it; the original stays as it is."""
        operation = self.block.operations[self.index]
        before, after = self.block.operations[: self.index], self.block.operations[self.index + 1 :]
        if self.operand is None:
            return _replaced(self.module, self.block, [*before, *after])
        none = f"%none_{self.line}_{self.operand}"
        constant = dataclasses.replace(
            operation,
            name="arith.constant",
            results=(none,),
            operands=(),
            attributes={"value": _NONE},
            operand_types=(),
            result_types=("i64",),
        )
        operands = list(operation.operands)
        operands[self.operand] = none
        changed = dataclasses.replace(operation, operands=tuple(operands))
        return _replaced(self.module, self.block, [*before, constant, changed, *after])


def mutations(module: ir.Module) -> Iterator[Mutation]:
    """Every synchronisation of the module, in the order of the text."""
    for function in module.functions().values():
        unused = {
            operation.results[0]
            for operation, _ in ir.walk(function)
            if operation.name == "arith.constant" and operation.attributes["value"] == _NONE
        }
        for block in _blocks(function):
            for index, operation in enumerate(block.operations):
                for kind, operand in _kinds(operation):
                    if operand is None or operation.operands[operand] not in unused:
                        yield Mutation(kind, operation.line, module, block, index, operand)


def _blocks(operation: ir.Operation) -> Iterator[ir.Block]:
    for region in operation.regions:
        for block in region:
            yield block
            for inner in block.operations:
                yield from _blocks(inner)


def _kinds(operation: ir.Operation) -> Iterator[tuple[str, int | None]]:
    name = operation.name.removeprefix("hivm.hir.")
    if name in ("set_flag", "wait_flag", "sync_block_set", "sync_block_wait"):
        yield name, None
    elif name == "pipe_barrier":
        pipe = str(operation.attributes["pipe"]).partition("PIPE_")[2].rstrip(">")
        yield f"pipe_barrier {pipe}", None
    elif name == "mmadL1" and operation.attributes["operandSegmentSizes"][_PRODUCT_OPERANDS]:
        for position, argument in enumerate(_PRODUCT_ARGUMENTS, _PRODUCT_OPERANDS):
            yield f"mmadL1 {argument}", position


def _replaced(module: ir.Module, block: ir.Block, operations: Sequence[ir.Operation]) -> ir.Module:
    """The module with another body of one block. Only what is around it is copied."""

    def rebuild(operation: ir.Operation) -> ir.Operation:
        regions = tuple(tuple(map(rebuild_block, region)) for region in operation.regions)
        if all(
            new is old
            for mine, theirs in zip(regions, operation.regions, strict=True)
            for new, old in zip(mine, theirs, strict=True)
        ):
            return operation
        return dataclasses.replace(operation, regions=regions)

    def rebuild_block(old: ir.Block) -> ir.Block:
        if old is block:
            return ir.Block(old.arguments, list(operations))
        inner = [rebuild(operation) for operation in old.operations]
        if all(a is b for a, b in zip(inner, old.operations, strict=True)):
            return old
        return ir.Block(old.arguments, inner)

    return ir.Module(rebuild(module.operation), module.aliases)
