"""The vector unit's elementwise operations and casts; the others are in `vector_shapes`.

Sources are files of the public repository Ascend/AscendNPU-IR: the definitions in
`bishengir/include/bishengir/Dialect/HIVM/IR/HIVMVectorOps.td` and the library that is linked for
them, `bishengir/lib/Template/lib/Vector/`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from testing.npu_sim import memory, numerics
from testing.npu_sim.findings import UnsupportedOperationError
from testing.npu_sim.transfers import cast_scalar, enumeration

Attributes = Mapping[str, Any]
Run = Callable[[Attributes, Sequence[Any], Sequence[memory.View]], None]


# Elementwise.


def _operand(
    name: str, attributes: Attributes, value: Any, target: memory.View, element: str
) -> np.ndarray:
    """The values of an operand: a view's, or a scalar in the element type."""
    if not isinstance(value, memory.View):
        return cast_scalar(value, element)
    if attributes.get("transpose"):
        return value.read()
    stretched = attributes.get("broadcast") or ()
    for axis, (size, wanted) in enumerate(zip(value.sizes, target.sizes, strict=True)):
        if size != wanted and (size != 1 or axis not in stretched):
            raise UnsupportedOperationError(name, f"{value} for {target}, broadcast {stretched}")
    return value.read()


def elementwise(name: str, function: Callable[[Attributes, list[np.ndarray]], np.ndarray]) -> Run:
    """An operation on corresponding elements.

    `broadcast` names axes along which operands with one element are repeated; `transpose` permutes
    the result: axis i of it is axis transpose[i] of the computed.
    """

    def run(attributes: Attributes, inputs: Sequence[Any], outputs: Sequence[memory.View]) -> None:
        target = outputs[0]
        elements = [value.element for value in inputs if isinstance(value, memory.View)]
        if name == "vsel":
            elements = [
                value.element for value in inputs[1:] if isinstance(value, memory.View)
            ] or [target.element]
        values = [_operand(name, attributes, value, target, elements[-1]) for value in inputs]
        result = function(attributes, values)
        permutation = attributes.get("transpose")
        if permutation:
            result = np.transpose(result, permutation)
            if result.shape != target.sizes:
                raise UnsupportedOperationError(name, f"{result.shape} into {target}")
        target.write(result)

    return run


def arithmetic(name: str, function: Callable[..., Any]) -> Run:
    """A NumPy function; integers wrap, 16-bit floats are rounded once."""

    def compute(attributes: Attributes, values: list[np.ndarray]) -> np.ndarray:
        del attributes
        if values[0].dtype == bool and function not in (np.maximum, np.minimum):
            raise UnsupportedOperationError(name, "elements of i1")
        with np.errstate(over="ignore"):
            if not numerics.is_float(values[0].dtype):
                return function(*values)
            return numerics.once_rounded(function, *values)

    return elementwise(name, compute)


def floating(name: str, function: Callable[..., Any]) -> Run:
    """A function of floats only."""

    def compute(attributes: Attributes, values: list[np.ndarray]) -> np.ndarray:
        del attributes
        if not numerics.is_float(values[0].dtype):
            raise UnsupportedOperationError(name, f"elements of {values[0].dtype}")
        return numerics.once_rounded(function, *values)

    return elementwise(name, compute)


def _reciprocal(x: np.ndarray) -> np.ndarray:
    return np.float32(1) / x


def _reciprocal_root(x: np.ndarray) -> np.ndarray:
    return np.float32(1) / np.sqrt(x)


def _relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, np.zeros((), x.dtype))


def divide(attributes: Attributes, values: list[np.ndarray]) -> np.ndarray:
    a, b = values
    if a.dtype.kind in "iu":
        if not attributes.get("isSigned", True):
            unsigned = f"u{a.dtype.itemsize}"
            return numerics.divide_integers(a.view(unsigned), b.view(unsigned)).view(a.dtype)
        return numerics.divide_integers(a, b)
    return numerics.once_rounded(np.divide, a, b)


def remainder(attributes: Attributes, values: list[np.ndarray]) -> np.ndarray:
    """With the sign of the dividend."""
    del attributes
    a, b = values
    if a.dtype.kind in "iu":
        return (a - numerics.divide_integers(a, b) * b).astype(a.dtype)
    return numerics.once_rounded(np.fmod, a, b)


def bitwise(name: str, function: Callable[..., Any]) -> Run:
    """On the bits of the elements, whatever their type."""

    def compute(attributes: Attributes, values: list[np.ndarray]) -> np.ndarray:
        del attributes
        dtype = values[0].dtype
        result = function(*[numerics.bits_of(value) for value in values])
        return result if result.dtype == dtype else result.view(dtype)

    return elementwise(name, compute)


def shift_left(attributes: Attributes, values: list[np.ndarray]) -> np.ndarray:
    del attributes
    a, count = values
    return np.left_shift(a, count).astype(a.dtype)


def shift_right(attributes: Attributes, values: list[np.ndarray]) -> np.ndarray:
    """Arithmetic for signed elements. The attribute `round` has no effect: the library passes 0."""
    a, count = values
    if enumeration(attributes, "cast", "cast_signed") == "cast_unsigned":
        return np.right_shift(numerics.bits_of(a), numerics.bits_of(count)).view(a.dtype)
    return np.right_shift(a, count).astype(a.dtype)


def multiply_high(attributes: Attributes, values: list[np.ndarray]) -> np.ndarray:
    """The upper 32 bits of the signed product."""
    del attributes
    a, b = values
    return ((a.astype(np.int64) * b.astype(np.int64)) >> 32).astype(np.int32)


def power(attributes: Attributes, values: list[np.ndarray]) -> np.ndarray:
    """Of integers; a negative exponent gives the truncated fraction."""
    del attributes
    base, exponent = np.broadcast_arrays(*values)
    if base.dtype.kind != "i":
        raise UnsupportedOperationError("vpow", f"elements of {base.dtype}")
    with np.errstate(over="ignore"):
        positive = np.power(base, np.maximum(exponent, 0))
    odd = exponent & 1
    fraction = np.where(base == 1, 1, np.where(base == -1, np.where(odd, -1, 1), 0))
    return np.where(exponent < 0, fraction, positive).astype(base.dtype)


_COMPARE: Mapping[str, Callable[..., Any]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "gt": np.greater,
    "ge": np.greater_equal,
    "le": np.less_equal,
}


def compare(attributes: Attributes, inputs: Sequence[Any], outputs: Sequence[memory.View]) -> None:
    """To i1; into elements of i8, true is 1 (guess: the definition says "1 or 8")."""
    mode = enumeration(attributes, "compare_mode", "eq")
    if mode not in _COMPARE:
        raise UnsupportedOperationError("vcmp", f"compare_mode {mode}")
    target = outputs[0]
    integers = memory.DTYPES.get(target.element)

    def compute(attributes: Attributes, values: list[np.ndarray]) -> np.ndarray:
        del attributes
        found = _COMPARE[mode](*values)
        return found if integers is None else found.astype(integers)

    if target.element not in (memory.BIT, "i8"):
        raise UnsupportedOperationError("vcmp", f"into {target}")
    elementwise("vcmp", compute)(attributes, inputs, outputs)


def select(attributes: Attributes, values: list[np.ndarray]) -> np.ndarray:
    """The second operand where the first is true, else the third."""
    del attributes
    condition, yes, no = values
    return np.where(condition.astype(bool), yes, no)


# Casts.

# Pairs of types that the library has (source: Cast1D.cpp, the registered names).
_FROM = {
    memory.BIT: "f16 f32 bf16 i16 i32 ui16 ui32",
    "f32": "f32 f16 bf16 i64 i32 i16",
    "f16": "f32 i32 i16 i8 ui8",
    "bf16": "f32 i32",
    "ui8": "f16",
    "i8": "f16",
    "i16": "f16 f32 i8",
    "i32": "f32 i64 i16 i8",
    "i64": "i32 f32",
}
_MODES = ("rint", "round", "floor", "ceil", "trunc")


def cast(attributes: Attributes, inputs: Sequence[Any], outputs: Sequence[memory.View]) -> None:
    """Between element types.

    Integers that become narrower wrap with round mode `truncwithoverflow` and else saturate; floats
    that become integers are rounded by the mode and saturate. From f32 to f32 rounds to whole
    numbers. cast_unsigned: a source of i8 is one of ui8.
    """
    source, target = inputs[0], outputs[0]
    mode = enumeration(attributes, "round_mode", "rint")
    signs = enumeration(attributes, "cast", "cast_signed")
    if signs == "cast_unsigned" and source.element == "i8":
        inputs = [source := source.bitcast("ui8")]
    pair = (source.element, target.element)
    odd = mode == "odd" and pair == ("f32", "f16")
    narrows = pair in (("i64", "i32"), ("i32", "i16"), ("i32", "i8"), ("i16", "i8"))
    wraps = mode == "truncwithoverflow" and narrows
    if (
        target.element not in _FROM.get(source.element, "").split()
        or signs == "bitcast"
        or not (mode in _MODES or odd or wraps)
        or (pair in (("i32", "i8"), ("i16", "i8")) and not wraps)
        or (signs == "cast_unsigned" and source.element not in (memory.BIT, "ui8"))
    ):
        raise UnsupportedOperationError(
            "vcast", f"from {pair[0]} to {pair[1]}, round_mode {mode}, {signs}"
        )

    def compute(attributes: Attributes, values: list[np.ndarray]) -> np.ndarray:
        del attributes
        return convert(values[0], memory.DTYPES[target.element], mode)

    elementwise("vcast", compute)(attributes, inputs, outputs)


def convert(values: np.ndarray, dtype: np.dtype, mode: str) -> np.ndarray:
    """Values in another type, or floats of the same type as whole numbers."""
    if values.dtype == bool:
        return values.astype(dtype)
    if values.dtype == dtype:
        return numerics.round_to_integer(values, mode)
    if numerics.is_float(dtype):
        return numerics.to_float(values, dtype, mode)
    if values.dtype.kind in "iu":
        wraps = mode == "truncwithoverflow"
        return (numerics.wrap if wraps else numerics.saturate)(values, dtype)
    with np.errstate(invalid="ignore"):
        whole = numerics.round_to_integer(values.astype(np.float64), mode)
    return numerics.saturate(whole, dtype)


ELEMENTWISE: Mapping[str, Run] = {
    "vadd": arithmetic("vadd", np.add),
    "vsub": arithmetic("vsub", np.subtract),
    "vmul": arithmetic("vmul", np.multiply),
    "vmax": arithmetic("vmax", np.maximum),
    "vmin": arithmetic("vmin", np.minimum),
    "vabs": arithmetic("vabs", np.abs),
    "vrelu": arithmetic("vrelu", _relu),
    "vdiv": elementwise("vdiv", divide),
    "vmod": elementwise("vmod", remainder),
    "vexp": floating("vexp", np.exp),
    "vln": floating("vln", np.log),
    "vsqrt": floating("vsqrt", np.sqrt),
    "vrsqrt": floating("vrsqrt", _reciprocal_root),
    "vrec": floating("vrec", _reciprocal),
    "vnot": bitwise("vnot", np.invert),
    "vand": bitwise("vand", np.bitwise_and),
    "vor": bitwise("vor", np.bitwise_or),
    "vxor": bitwise("vxor", np.bitwise_xor),
    "vshl": elementwise("vshl", shift_left),
    "vshr": elementwise("vshr", shift_right),
    "vmulext": elementwise("vmulext", multiply_high),
    "vpow": elementwise("vpow", power),
    "vsel": elementwise("vsel", select),
    "vcmp": compare,
    "vcast": cast,
}
