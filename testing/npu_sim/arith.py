"""The arith, math and affine dialects on run-time values.

Integers of the scalar unit are Python ints, kept in the range of their type (i1: 0 or 1; index: 64
bits); floats are NumPy scalars of their type. Vectors are NumPy arrays. The functions here take all
of them, so that the scalar unit and arch35's vector functions share one table.

Source: MLIR's documentation of the three dialects.
"""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from testing.npu_compile import ir
from testing.npu_sim import findings, memory, numerics

Function = Callable[..., Any]

_PREDICATES_I = ("eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge")
_PREDICATES_F = ("false", "oeq", "ogt", "oge", "olt", "ole", "one", "ord") + (
    "ueq",
    "ugt",
    "uge",
    "ult",
    "ule",
    "une",
    "uno",
    "true",
)
_COMPARE: Mapping[str, Function] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}


def bits(kind: ir.Type) -> int:
    """The width of an integer type."""
    element = kind.element if isinstance(kind, ir.Vector) else str(kind)
    return 64 if element == "index" else int(element.lstrip("sui"))


def is_float(kind: ir.Type) -> bool:
    element = kind.element if isinstance(kind, ir.Vector) else str(kind)
    return element in memory.DTYPES and element[0] in "fb"


def wrap(value: int, width: int) -> int:
    """A Python int in the range of a signed integer of that width; i1 is 0 or 1."""
    value &= (1 << width) - 1
    return value - (1 << width) if width > 1 and value >> (width - 1) else value


def _dtype(kind: ir.Type) -> np.dtype:
    element = kind.element if isinstance(kind, ir.Vector) else str(kind)
    if element == "i1":
        return np.dtype(bool)
    return memory.DTYPES["i64" if element == "index" else element]


def _unsigned(value: Any, width: int) -> Any:
    if isinstance(value, np.ndarray):
        return value if width == 1 else value.view(f"u{width // 8}")
    return value & ((1 << width) - 1)


def _signed_like(value: Any, like: Any) -> Any:
    return value.view(like.dtype) if isinstance(value, np.ndarray) else value


def _divide(a: Any, b: Any) -> Any:
    """Quotient rounded to zero. Without absolute values, which the least integer has none of."""
    rounded_down = (a % b != 0) & ((a < 0) != (b < 0))
    return a // b + rounded_down


def _remainder(a: Any, b: Any) -> Any:
    return a - b * _divide(a, b)


def smaller(a: Any, b: Any) -> Any:
    return np.minimum(a, b) if np.ndim(a) or np.ndim(b) else min(a, b)


def larger(a: Any, b: Any) -> Any:
    return np.maximum(a, b) if np.ndim(a) or np.ndim(b) else max(a, b)


_INTEGER: Mapping[str, Function] = {
    "addi": operator.add,
    "subi": operator.sub,
    "muli": operator.mul,
    "divsi": _divide,
    "remsi": _remainder,
    "floordivsi": operator.floordiv,
    "ceildivsi": lambda a, b: -(-a // b),
    "andi": operator.and_,
    "ori": operator.or_,
    "xori": operator.xor,
    "shli": operator.lshift,
    "shrsi": operator.rshift,
    "minsi": smaller,
    "maxsi": larger,
}
_UNSIGNED: Mapping[str, Function] = {
    "divui": operator.floordiv,
    "remui": operator.mod,
    "shrui": operator.rshift,
    "minui": smaller,
    "maxui": larger,
}
# minimumf and maximumf give NaN if either operand is one; minnumf and maxnumf the other operand.
_FLOAT: Mapping[str, Function] = {
    "addf": np.add,
    "subf": np.subtract,
    "mulf": np.multiply,
    "divf": np.divide,
    "remf": np.fmod,
    "negf": np.negative,
    "minimumf": np.minimum,
    "maximumf": np.maximum,
    "minnumf": np.fmin,
    "maxnumf": np.fmax,
    "absf": np.abs,
    "exp": np.exp,
    "exp2": np.exp2,
    "log": np.log,
    "log2": np.log2,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "roundeven": np.rint,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
}


def function(operation: ir.Operation) -> Function | None:
    """What an operation of arith or math computes from its operands; None for other operations.

    Raises:
        UnsupportedOperationError: an operation of these dialects that is not known.
    """
    dialect, _, name = operation.name.partition(".")
    if dialect not in ("arith", "math"):
        return None
    made = _function(operation, name)
    if made is None:
        raise findings.UnsupportedOperationError(operation.name, "no such entry in arith.py")
    return made


def _function(operation: ir.Operation, name: str) -> Function | None:
    source = operation.operand_types[0] if operation.operand_types else ""
    if name == "constant":
        value = constant(operation)
        return lambda: value
    if name in _INTEGER:
        return _wrapped(_INTEGER[name], bits(source))
    if name in _UNSIGNED:
        width, compute = bits(source), _UNSIGNED[name]
        return _wrapped(
            lambda a, b: _signed_like(compute(_unsigned(a, width), _unsigned(b, width)), a), width
        )
    if name in _FLOAT:
        return _rounded(_FLOAT[name], source)
    if name == "fma":
        return _rounded(lambda a, b, c: a * b + c, source, exact=True)
    if name in ("mulsi_extended", "mului_extended"):
        return _extended(name, source)
    if name == "absi":
        return _wrapped(abs, bits(source))
    if name == "cmpi":
        return _compare_integers(operation, bits(source))
    if name == "cmpf":
        return _compare_floats(operation)
    if name == "select":
        return _select
    if name == "round":
        return _round_mode(operation)
    return _conversion(operation, name)


def _wrapped(compute: Function, width: int) -> Function:
    def run(*operands: Any) -> Any:
        value = compute(*operands)
        return value if isinstance(value, np.ndarray) else wrap(value, width)

    return run


def _rounded(compute: Function, kind: ir.Type, exact: bool = False) -> Function:
    """Computes in fp32 (fp64 where products must be exact) and rounds once to the type."""
    dtype = _dtype(kind)
    inner = np.float64 if exact or dtype == np.float64 else np.float32
    plain = dtype == inner

    def run(*operands: Any) -> Any:
        with np.errstate(all="ignore"):
            if plain:
                return compute(*operands)
            return np.asarray(compute(*(np.asarray(x).astype(inner) for x in operands))).astype(
                dtype
            )[()]

    return run


def _extended(name: str, kind: ir.Type) -> Function:
    """A product in two halves, low and high."""
    width = bits(kind)

    def run(a: Any, b: Any) -> tuple[Any, Any]:
        if name == "mului_extended":
            a, b = _unsigned(a, width), _unsigned(b, width)
        if not (np.ndim(a) or np.ndim(b)):
            return wrap(a * b, width), wrap(a * b >> width, width)
        if width > 32:
            raise findings.UnsupportedOperationError(f"arith.{name}", f"{kind}")
        wide = np.asarray(a).astype(np.int64) * np.asarray(b).astype(np.int64)
        narrow = _dtype(kind)
        return wide.astype(narrow), (wide >> width).astype(narrow)

    return run


def _compare_integers(operation: ir.Operation, width: int) -> Function:
    predicate = _PREDICATES_I[operation.attributes["predicate"]]
    compute = _COMPARE[predicate[-2:]]
    if predicate[0] != "u":
        return lambda a, b: compute(a, b)
    return lambda a, b: compute(_unsigned(a, width), _unsigned(b, width))


def _compare_floats(operation: ir.Operation) -> Function:
    predicate = _PREDICATES_F[operation.attributes["predicate"]]
    if predicate in ("false", "true"):
        return lambda a, b: (np.asarray(a) == a) & False | (predicate == "true")
    if predicate in ("ord", "uno"):
        return lambda a, b: (np.isnan(a) | np.isnan(b)) == (predicate == "uno")
    compute, unordered = _COMPARE[predicate[-2:]], predicate[0] == "u"

    def run(a: Any, b: Any) -> Any:
        either = np.isnan(a) | np.isnan(b)
        return compute(a, b) | either if unordered else compute(a, b) & ~either

    return run


def _select(condition: Any, a: Any, b: Any) -> Any:
    if not np.ndim(condition):
        return a if condition else b
    # One condition for each iteration, and vectors to choose from: see vectors.py.
    missing = max(np.ndim(a), np.ndim(b)) - condition.ndim
    return np.where(condition.reshape(*condition.shape, *(1,) * max(0, missing)), a, b)


def _round_mode(operation: ir.Operation) -> Function:
    """math.round; the Ascend compiler attaches another rounding mode to it."""
    match = re.search(r"<(\w+)>", str(operation.attributes.get("round_mode", "<round>")))
    mode = match[1] if match else "round"
    return lambda x: numerics.round_to_integer(x, mode)


def _conversion(operation: ir.Operation, name: str) -> Function | None:
    source, target = operation.operand_types[0], operation.result_types[0]
    dtype = _dtype(target)
    if name in ("trunci", "extsi", "index_cast", "extui", "index_castui"):
        unsigned = "u" in name.replace("trunci", "")
        width, wide = bits(source), bits(target)

        def resize(value: Any) -> Any:
            if isinstance(value, np.ndarray):
                if value.dtype == bool:
                    number = value.astype(dtype)
                    return number if unsigned or wide == 1 else -number
                plain = _unsigned(value, width) if unsigned else value
                return plain & 1 == 1 if wide == 1 else plain.astype(dtype)
            if width == 1 and not unsigned:
                return wrap(-value, wide)
            return wrap(_unsigned(value, width) if unsigned else value, wide)

        return resize
    if name in ("sitofp", "uitofp"):
        width = bits(source)

        def to_float(value: Any) -> Any:
            number = _unsigned(value, width) if name == "uitofp" else value
            if width == 1 and name == "sitofp":
                number = -np.asarray(number).astype(np.int8)
            return np.asarray(number).astype(np.float64).astype(dtype)[()]

        return to_float
    if name in ("fptosi", "fptoui"):

        def to_integer(value: Any) -> Any:
            with np.errstate(invalid="ignore"):
                whole = np.trunc(np.asarray(value).astype(np.float64))
            if isinstance(value, np.ndarray):
                return numerics.saturate(whole, dtype)
            return int(numerics.saturate(whole, dtype))

        return to_integer
    if name in ("extf", "truncf"):
        round_mode = re.search(r"<(\w+)>", str(operation.attributes.get("round_mode", "")))
        mode = round_mode[1] if round_mode else "rint"
        return lambda value: numerics.to_float(np.asarray(value), dtype, mode)[()]
    if name == "bitcast":
        width = bits(target) if not is_float(target) else 0

        def reinterpret(value: Any) -> Any:
            raw = np.asarray(value, _dtype(source)).view(dtype)
            return raw if raw.ndim else int(raw) if width else raw[()]

        return reinterpret
    return None


def constant(operation: ir.Operation) -> Any:
    """The value of an arith.constant: int, NumPy scalar, or array for a vector."""
    value, kind = operation.attributes["value"], operation.result_types[0]
    if isinstance(kind, ir.Vector):
        values = dense(value, _dtype(kind), kind.element, operation.name)
        # With an axis for iterations in front: see vectors.py.
        shape = (1, *kind.shape)
        return np.full(shape, values[0]) if len(values) == 1 else values.reshape(shape)
    return _literal(value, str(kind))


def dense(value: Any, dtype: np.dtype, element: str, name: str) -> np.ndarray:
    """The elements of a dense attribute, flat; one for a splat. name: the operation that has it.

    Raises:
        UnsupportedOperationError: another attribute.
    """
    match = re.match(r"dense<(.*)> : ", str(value))
    if not match:
        raise findings.UnsupportedOperationError(name, f"value {value}")
    written = re.fullmatch(r'"0x([0-9A-F]*)"', match[1])
    if written:  # a large one is written as its bytes
        if element == memory.BIT:
            raise findings.UnsupportedOperationError(name, f"value {value}")
        return np.frombuffer(bytes.fromhex(written[1]), dtype)
    elements = re.findall(r"[^\[\], ]+", match[1])
    return np.array([_literal(each, element) for each in elements]).astype(dtype)


def _literal(value: Any, element: str) -> Any:
    text = str(value).partition(" : ")[0]
    if element in memory.DTYPES and element[0] in "fb":
        dtype = memory.DTYPES[element]
        if text.startswith("0x"):  # MLIR writes infinities and NaNs as their bits
            return np.frombuffer(int(text, 16).to_bytes(dtype.itemsize, "little"), dtype)[0]
        return np.asarray(float(text)).astype(dtype)[()]
    if text in ("true", "false", "True", "False"):
        return int(text.lower() == "true")
    return int(text, 0)


# affine maps.

_TOKEN = re.compile(r"\s*(->|[ds]\d+|\d+|floordiv|ceildiv|mod|[-+*(),\[\]])")
_PRODUCT = {"*": "*", "floordiv": "//", "mod": "%"}


def affine_map(text: str) -> Callable[..., Sequence[int]]:
    """`affine_map<(d0)[s0] -> (d0 floordiv 2, s0)>` -> a function of d0, s0 to the results."""
    inner = re.fullmatch(r"affine_map<(.*)>", text)
    if not inner:
        raise findings.UnsupportedOperationError("affine", f"map {text}")
    dimensions, arrow, results = inner[1].partition("->")
    if not arrow:
        raise findings.UnsupportedOperationError("affine", f"map {text}")
    names = re.findall(r"[ds]\d+", dimensions)
    # The expression is made of these tokens only, so evaluating it evaluates arithmetic only.
    code = _Expressions(results).python()
    return eval(f"lambda {', '.join(names)}: {code}")


class _Expressions:
    """A recursive-descent reader of `(e, e, ...)` that writes a Python tuple."""

    def __init__(self, text: str):
        self._text = text
        self._tokens = _TOKEN.findall(text)
        if "".join(self._tokens) != re.sub(r"\s", "", text):
            raise findings.UnsupportedOperationError("affine", f"expression {text}")
        self._at = 0

    def python(self) -> str:
        self._take("(")
        parts = [self._sum()]
        while self._peek() == ",":
            self._take(",")
            parts.append(self._sum())
        self._take(")")
        return f"({', '.join(parts)},)"

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self, expected: str = "") -> str:
        token = self._peek()
        if not token or (expected and token != expected):
            raise findings.UnsupportedOperationError("affine", f"expression {self._text}")
        self._at += 1
        return token

    def _sum(self) -> str:
        code = self._product()
        while self._peek() in ("+", "-"):
            code = f"({code} {self._take()} {self._product()})"
        return code

    def _product(self) -> str:
        code = self._factor()
        while self._peek() in ("*", "floordiv", "ceildiv", "mod"):
            sign = self._take()
            other = self._factor()
            if sign == "ceildiv":
                code = f"(-(-{code} // {other}))"
            else:
                code = f"({code} {_PRODUCT[sign]} {other})"
        return code

    def _factor(self) -> str:
        if self._peek() == "-":
            self._take()
            return f"(-{self._factor()})"
        if self._peek() == "(":
            self._take()
            code = self._sum()
            self._take(")")
            return f"({code})"
        return self._take()
