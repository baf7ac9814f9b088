"""Reads MLIR's generic form (`--mlir-print-op-generic`), whatever the dialects. Pure Python.

The text is a tree: operations have regions, regions blocks, blocks operations. Names of values,
types and attributes stay as MLIR writes them, except where a structure is worth having: memref and
vector types, integers, booleans, strings and lists of them.

    module = ir.parse(text)
    for operation, ancestors in module.walk():
        if operation.name == "hivm.hir.load": ...
"""

import dataclasses
import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any

ELEMENT_BITS = {
    "i1": 1,
    "i8": 8,
    "ui8": 8,
    "f8E4M3FN": 8,
    "f8E5M2": 8,
    "i16": 16,
    "f16": 16,
    "bf16": 16,
    "i32": 32,
    "f32": 32,
    "i64": 64,
    "f64": 64,
    "index": 64,
}


class ParseError(ValueError):
    """The text is not an MLIR module in the generic form."""


@dataclasses.dataclass(frozen=True)
class MemRef:
    """A memref type. None in shape, strides or offset: known at run time only.

    strides: None for the default, row-major layout. space: `gm` (global memory), `ub`, `cbuf` (L1),
    `ca`, `cb`, `cc` (L0A, L0B, L0C).
    """

    shape: tuple[int | None, ...]
    element: str
    strides: tuple[int | None, ...] | None
    offset: int | None
    space: str

    @property
    def bits(self) -> int | None:
        """Bits from its first to its last element; None when an extent is not known.

        Elements of i1 are packed.
        """
        if None in self.shape or self.element not in ELEMENT_BITS:
            return None
        shape = [extent for extent in self.shape if extent is not None]
        if 0 in shape:
            return 0
        strides: list[int | None] = list(self.strides or [])
        if self.strides is None:
            step = 1
            for extent in reversed(shape):
                strides.insert(0, step)
                step *= extent
        last = 0
        for extent, stride in zip(shape, strides, strict=True):
            if extent > 1 and stride is None:
                return None
            last += (extent - 1) * (stride or 0)
        return (last + 1) * ELEMENT_BITS[self.element]


@dataclasses.dataclass(frozen=True)
class Vector:
    """A vector type."""

    shape: tuple[int, ...]
    element: str


Type = MemRef | Vector | str


@dataclasses.dataclass(frozen=True)
class Frame:
    """A place in a source file."""

    file: str
    line: int


@dataclasses.dataclass(slots=True)
class Operation:
    """One operation.

    results, operands: names of values (`%3`, `%3#1`). attributes: properties and discardable
    attributes together. location: as written, see `Module.frames`. line: in the parsed text.
    """

    name: str
    results: tuple[str, ...]
    operands: tuple[str, ...]
    attributes: Mapping[str, Any]
    regions: tuple["Region", ...]
    operand_types: tuple[Type, ...]
    result_types: tuple[Type, ...]
    location: str
    line: int


@dataclasses.dataclass(slots=True)
class Block:
    arguments: tuple[tuple[str, Type], ...]
    operations: list[Operation]


Region = tuple[Block, ...]


@dataclasses.dataclass(slots=True)
class Module:
    """A whole text: its top-level operation and the aliases (`#map3`, `#loc7`) it uses."""

    operation: Operation
    aliases: Mapping[str, str]

    def walk(self) -> Iterator[tuple[Operation, tuple[Operation, ...]]]:
        """Every operation in the order of the text, with the operations around it, outermost
        first."""
        return walk(self.operation)

    def functions(self) -> dict[str, Operation]:
        """Symbol name -> func.func."""
        return {
            operation.attributes["sym_name"]: operation
            for operation, _ in self.walk()
            if operation.name == "func.func"
        }

    def frames(self, location: str) -> list[Frame]:
        """The source lines of a location, the innermost call first; empty when unknown."""
        if location.startswith("#"):
            return self.frames(self.aliases.get(location, "unknown"))
        if match := re.fullmatch(r'"((?:[^"\\]|\\.)*)":(\d+):\d+(?: to .*)?', location):
            return [Frame(match[1], int(match[2]))]
        if location.startswith("callsite("):
            callee, _, caller = _inside(location).rpartition(" at ")
            return self.frames(callee) + self.frames(caller)
        if location.startswith("fused"):
            parts = split(location[location.index("[") + 1 : -1])
            return next(filter(None, map(self.frames, parts)), [])
        if location.startswith('"') and location.endswith(")"):  # a name, then where it is
            return self.frames(_inside(location))
        return []


def walk(
    operation: Operation, ancestors: tuple[Operation, ...] = ()
) -> Iterator[tuple[Operation, tuple[Operation, ...]]]:
    """The operation and everything inside it, with the operations around each."""
    yield operation, ancestors
    inner = (*ancestors, operation)
    for region in operation.regions:
        for block in region:
            for child in block.operations:
                yield from walk(child, inner)


def parse(text: str) -> Module:
    """Parses the text of one module.

    Raises:
        ParseError: with the line that is not understood.
    """
    return _Parser(text).module()


def split(text: str, separator: str = ",") -> list[str]:
    """Splits at separators that are outside of strings and brackets; empty text has no parts."""
    parts, depth, start = [], 0, 0
    for match in _BRACKET_OR_COMMA.finditer(text):
        token = match[0]
        if token in _OPENING:
            depth += 1
        elif token in _CLOSING:
            depth -= 1
        elif token == separator and depth == 0:
            parts.append(text[start : match.start()].strip())
            start = match.end()
    tail = text[start:].strip()
    return [*parts, tail] if tail or parts else []


_OPENING = frozenset("([{<")
_CLOSING = frozenset(")]}>")
# Strings, arrows and comparisons are tokens of their own, so that what is in them is no bracket.
_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*"|->|[<>]=|[()\[\]{}<>]')
_BRACKET_OR_COMMA = re.compile(_BRACKET.pattern + "|,")
_ALIAS = re.compile(r"(#[\w$.-]+) = (.*)\n")
_SPACE = re.compile(r"(?:\s|//[^\n]*)*")
_HEAD = re.compile(r'(?:(%[^"=]*?) = )?"([^"]+)"\(([^)]*)\)')
_DIMENSIONS = re.compile(r"(?:(?:\?|\d+|\[\d+\])x)*")
_BLOCK = re.compile(r"\^[\w$.-]+")


def _inside(text: str) -> str:
    """What stands between the first opening and the last closing parenthesis."""
    return text[text.index("(") + 1 : text.rindex(")")]


class _Parser:
    def __init__(self, text: str):
        self._text = text
        self._at = 0
        self._line = 1
        self._counted = 0

    def module(self) -> Module:
        aliases: dict[str, str] = {}
        self._aliases(aliases)
        operation = self._operation()
        self._aliases(aliases)
        if self._at != len(self._text):
            raise self._error("text after the module")
        return Module(operation, aliases)

    def _aliases(self, found: dict[str, str]) -> None:
        self._skip()
        while match := _ALIAS.match(self._text, self._at):
            value = match[2].strip()
            found[match[1]] = _inside(value) if value.startswith("loc(") else value
            self._at = match.end()
            self._skip()

    def _skip(self) -> None:
        match = _SPACE.match(self._text, self._at)
        if match:
            self._at = match.end()

    def _error(self, expected: str) -> ParseError:
        line = self._text.count("\n", 0, self._at) + 1
        rest = self._text[self._at : self._at + 120].split("\n")[0]
        return ParseError(f"line {line}: {expected}: {rest!r}")

    def _take(self, token: str) -> bool:
        if self._text.startswith(token, self._at):
            self._at += len(token)
            return True
        return False

    def _expect(self, token: str) -> None:
        if not self._take(token):
            raise self._error(f"expected {token!r}")

    def _bracketed(self) -> str:
        """What is inside the bracket that opens here."""
        depth = 0
        for match in _BRACKET.finditer(self._text, self._at):
            if match[0] in _OPENING:
                depth += 1
            elif match[0] in _CLOSING:
                depth -= 1
                if depth == 0:
                    inside = self._text[self._at + 1 : match.start()]
                    self._at = match.end()
                    return inside
        raise self._error("a bracket that nothing closes")

    def _operation(self) -> Operation:
        self._skip()
        match = _HEAD.match(self._text, self._at)
        if not match:
            raise self._error("expected an operation in the generic form")
        self._line += self._text.count("\n", self._counted, match.start(2))
        self._counted = match.start(2)
        line = self._line
        self._at = match.end()
        attributes: Mapping[str, Any] = {}
        regions: list[Region] = []
        self._skip()
        if self._take("["):  # successors, of which structured control flow has none
            self._at -= 1
            self._bracketed()
            self._skip()
        if self._take("<{"):
            self._at -= 1
            attributes = _attributes(self._bracketed())
            self._expect(">")
            self._skip()
        if self._text.startswith("({", self._at):
            self._at += 1
            while True:
                regions.append(self._region())
                self._skip()
                if self._take(")"):
                    break
                self._expect(",")
                self._skip()
            self._skip()
        if self._text.startswith("{", self._at):
            attributes = {**attributes, **_attributes(self._bracketed())}
            self._skip()
        self._expect(":")
        self._skip()
        operand_types = _types(self._bracketed())
        self._skip()
        self._expect("->")
        self._skip()
        result_types = self._result_types()
        location = "unknown"
        if self._take(" loc("):
            self._at -= 1
            location = self._bracketed()
        return Operation(
            match[2],
            _results(match[1]),
            tuple(split(match[3])),
            attributes,
            tuple(regions),
            operand_types,
            result_types,
            location,
            line,
        )

    def _result_types(self) -> tuple[Type, ...]:
        if self._text.startswith("(", self._at):
            return _types(self._bracketed())
        end = self._text.find("\n", self._at)
        end = len(self._text) if end < 0 else end
        written = self._text[self._at : end].split(" loc(")[0]
        self._at += len(written)
        return _types(written)

    def _region(self) -> Region:
        self._expect("{")
        blocks: list[Block] = []
        while True:
            self._skip()
            if self._take("}"):
                return tuple(blocks)
            if match := _BLOCK.match(self._text, self._at):
                self._at = match.end()
                arguments = ""
                if self._text.startswith("(", self._at):
                    arguments = self._bracketed()
                self._expect(":")
                blocks.append(Block(_arguments(arguments), []))
                continue
            if not blocks:
                blocks.append(Block((), []))
            blocks[-1].operations.append(self._operation())


def _results(text: str | None) -> tuple[str, ...]:
    names: list[str] = []
    for part in (text or "").split(","):
        name, _, count = part.strip().partition(":")
        if count:
            names += [f"{name}#{index}" for index in range(int(count))]
        elif name:
            names.append(name)
    return tuple(names)


def _arguments(text: str) -> tuple[tuple[str, Type], ...]:
    pairs = []
    for part in split(text):
        name, _, kind = part.partition(":")
        pairs.append((name.strip(), parse_type(kind.strip().split(" loc(")[0])))
    return tuple(pairs)


@functools.cache
def _types(text: str) -> tuple[Type, ...]:
    return tuple(parse_type(part) for part in split(text))


@functools.cache
def parse_type(text: str) -> Type:
    """A memref or vector type as a structure, any other as its text."""
    if text.startswith("vector<"):
        extents, element = _shaped(text[7:-1])
        return Vector(tuple(int(extent) for extent in extents if extent is not None), element)
    if not text.startswith("memref<"):
        return text
    shape, *rest = split(text[7:-1])
    extents, element = _shaped(shape)
    strides: tuple[int | None, ...] | None = None
    offset: int | None = 0
    space = "gm"
    for part in rest:
        if match := re.fullmatch(r"strided<\[(.*?)\](?:, offset: (\S+))?>", part):
            strides = tuple(_extent(stride.strip()) for stride in split(match[1]))
            offset = _extent(match[2] or "0")
        elif match := re.fullmatch(r"#hivm\.address_space<(\w+)>", part):
            space = match[1]
    return MemRef(extents, element, strides, offset, space)


def _shaped(text: str) -> tuple[tuple[int | None, ...], str]:
    """`4x?xf32` -> ((4, None), "f32"). The element may hold an x too: `index`."""
    dimensions = _DIMENSIONS.match(text)
    written = dimensions[0] if dimensions else ""
    extents = tuple(_extent(extent.strip("[]")) for extent in written.split("x")[:-1])
    return extents, text[len(written) :]


def _extent(text: str) -> int | None:
    return None if text == "?" else int(text)


@functools.cache
def _attributes(text: str) -> Mapping[str, Any]:
    """`name = value, unit` -> {name: value, unit: True}."""
    found = {}
    for part in split(text):
        name, equals, value = part.partition(" = ")
        found[name.strip('"')] = parse_attribute(value) if equals else True
    return found


def parse_attribute(text: str) -> Any:
    """An attribute's value: int, float, bool, str, tuple or dict where it is one, else its text."""
    if text in ("true", "false"):
        return text == "true"
    if match := re.fullmatch(r"(-?\d+)(?: : \w+)?", text):
        return int(match[1])
    if match := re.fullmatch(r"(-?\d+\.\d*(?:[eE][+-]?\d+)?)(?: : \w+)?", text):
        return float(match[1])
    if match := re.fullmatch(r'"((?:[^"\\]|\\.)*)"', text):
        return match[1]
    if text.startswith("[") and text.endswith("]"):
        return tuple(parse_attribute(part) for part in split(text[1:-1]))
    if text.startswith("{") and text.endswith("}"):
        return _attributes(text[1:-1])
    if match := re.fullmatch(r"array<\w+(?:: (.*))?>", text):
        return tuple(parse_attribute(part) for part in split(match[1] or ""))
    return text
