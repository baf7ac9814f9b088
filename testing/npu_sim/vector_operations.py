"""What the vector unit computes, operation by operation.

Sources are files of the public repository Ascend/AscendNPU-IR: the definitions in
`bishengir/include/bishengir/Dialect/HIVM/IR/HIVMVectorOps.td` and the library that is linked for
them, `bishengir/lib/Template/lib/Vector/`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from testing.npu_sim import memory, numerics
from testing.npu_sim.findings import UnsupportedOperationError
from testing.npu_sim.transfers import BLOCK_BYTES, cast_scalar, enumeration

Attributes = Mapping[str, Any]
Run = Callable[[Attributes, Sequence[Any], Sequence[memory.View]], None]
_REPEAT_BYTES = 256  # what the vector unit takes at once


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

    def run(
        attributes: Attributes, inputs: Sequence[Any], outputs: Sequence[memory.View]
    ) -> None:
        target = outputs[0]
        elements = [value.element for value in inputs if isinstance(value, memory.View)]
        if name == "vsel":
            elements = [
                value.element for value in inputs[1:] if isinstance(value, memory.View)
            ] or [target.element]
        values = [
            _operand(
                name,
                attributes,
                value,
                target,
                memory.BIT if name == "vsel" and not index else elements[-1],
            )
            for index, value in enumerate(inputs)
        ]
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
        if values[0].dtype == bool:
            raise UnsupportedOperationError(name, "elements of i1")
        with np.errstate(over="ignore"):
            if values[0].dtype.kind in "iu":
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
        return result if dtype == bool else result.view(dtype)

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


_COMPARE = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "gt": np.greater,
    "ge": np.greater_equal,
    "le": np.less_equal,
}


def compare(
    attributes: Attributes, inputs: Sequence[Any], outputs: Sequence[memory.View]
) -> None:
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
    numbers.
    """
    source, target = inputs[0], outputs[0]
    mode = enumeration(attributes, "round_mode", "rint")
    signs = enumeration(attributes, "cast", "cast_signed")
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


# Broadcasts, reductions, scans.


def broadcast(
    attributes: Attributes, inputs: Sequence[Any], outputs: Sequence[memory.View]
) -> None:
    """A scalar, or a view with one element along `broadcast_dims`, repeated."""
    source, target = inputs[0], outputs[0]
    dimensions = attributes.get("broadcast_dims") or ()
    if not isinstance(source, memory.View):
        value = cast_scalar(source, target.element)
        if target.memory.space == "cbuf" and target.count and target.contiguous:
            # L1 is set in blocks of 32 bytes.
            block = BLOCK_BYTES // target.unit
            count = -(-target.count // block) * block
            target = memory.View(target.memory, target.offset, (count,), (1,), target.element)
        target.write(value)
        return
    for axis, (size, wanted) in enumerate(zip(source.sizes, target.sizes, strict=True)):
        if size != (1 if axis in dimensions else wanted):
            raise UnsupportedOperationError("vbrc", f"{source} to {target}, dims {dimensions}")
    target.write(np.array(source.read()))



_REDUCE: Mapping[str, Callable[..., Any]] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "any": np.logical_or,
    "all": np.logical_and,
    "xori": np.bitwise_xor,
    "ori": np.bitwise_or,
    "andi": np.bitwise_and,
}


def reduce(attributes: Attributes, inputs: Sequence[Any], outputs: Sequence[memory.View]) -> None:
    """Combines the elements along an axis, in the library's order (`numerics.tree_reduce`).

    Rows are halved down to one repeat of the vector unit and then added pairwise (source:
    ReduceAR.cpp; the order within a repeat: AscendC's documentation of ReduceSum), an outer axis is
    halved down to one (ReduceRA.cpp). Maximum and minimum give NaN if there is one.
    """
    source, target = inputs[0], outputs[0]
    written = enumeration(attributes, "arith", "none")
    match = re.fullmatch(r"(\w+?)(_with_index(?:_left|_right)?)?", written)
    kind, indexed = (match[1], match[2]) if match else (written, None)
    axes = attributes["reduce_dims"]
    if kind not in _REDUCE or len(axes) != 1 or (indexed and kind not in ("max", "min")):
        raise UnsupportedOperationError("vreduce", f"{written} over axes {axes}")
    axis = axes[0]
    if indexed:
        if indexed == "_with_index":
            left = attributes.get("tie_break_left", True)
            indexed += "_left" if left else "_right"
        _reduce_with_index(kind, indexed.endswith("left"), axis, source, outputs)
        return
    if len(outputs) != 1:
        raise UnsupportedOperationError("vreduce", f"{written} with {len(outputs)} outputs")
    values = source.read()
    if attributes.get("unsigned_src") and values.dtype.kind == "i":
        values = numerics.bits_of(values)
    logical = kind in ("any", "all")
    if logical != (values.dtype == bool) and (logical or kind in ("sum", "prod", "max", "min")):
        raise UnsupportedOperationError("vreduce", f"{written} of {source.element}")
    if not values.shape[axis]:
        raise UnsupportedOperationError("vreduce", "over no elements")
    last = axis == values.ndim - 1
    lanes = _REPEAT_BYTES // max(1, values.dtype.itemsize) if last else 1

    def combine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        if numerics.is_float(a.dtype):
            return numerics.once_rounded(_REDUCE[kind], a, b)
        with np.errstate(over="ignore"):
            return _REDUCE[kind](a, b)

    result = numerics.tree_reduce(combine, np.moveaxis(values, axis, -1), lanes)
    result = np.expand_dims(result, axis)
    target.write(result.view(memory.DTYPES[target.element]) if result.dtype != bool else result)


def _reduce_with_index(
    kind: str, left: bool, axis: int, source: memory.View, outputs: Sequence[memory.View]
) -> None:
    """The extreme value and its position; of several the first (left) or the last. NaN counts as
    the extreme (guess)."""
    values = source.read()
    if values.dtype == numerics.BFLOAT16:
        values = values.astype(np.float32)
    best = np.max if kind == "max" else np.min
    with np.errstate(invalid="ignore"):
        extreme = best(values, axis=axis, keepdims=True)
    hits = (values == extreme) | ((values != values) & (extreme != extreme))
    if left:
        index = np.argmax(hits, axis=axis)
    else:
        index = values.shape[axis] - 1 - np.argmax(np.flip(hits, axis), axis=axis)
    index = np.expand_dims(index, axis)
    found = np.take_along_axis(source.read(), index, axis)
    outputs[0].write(np.array(found))
    if len(outputs) > 1:
        outputs[1].write(index.astype(memory.DTYPES[outputs[1].element]))


def cumulative(name: str, function: Callable[..., Any]) -> Run:
    """Each element combined with all before it along the axis (with `reverse`: after it), one after
    the other (source: CumsumRA.cpp)."""

    def run(
        attributes: Attributes, inputs: Sequence[Any], outputs: Sequence[memory.View]
    ) -> None:
        values, axes = inputs[0].read(), attributes["cum_dims"]
        if len(axes) != 1 or values.dtype == bool:
            raise UnsupportedOperationError(name, f"axes {axes} of {inputs[0]}")
        reverse = bool(attributes.get("reverse"))
        values = np.flip(values, axes[0]) if reverse else values

        def combine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
            if numerics.is_float(a.dtype):
                return numerics.once_rounded(function, a, b)
            with np.errstate(over="ignore"):
                return function(a, b)

        result = numerics.running(combine, values, axes[0])
        outputs[0].write(np.flip(result, axes[0]) if reverse else result)

    return run


# Elements change places.


def deinterleave(
    attributes: Attributes, inputs: Sequence[Any], outputs: Sequence[memory.View]
) -> None:
    """Every `channel_num`-th element of the last axis, from the first or from the second on, or all
    of them apart. A source that has as many elements as the destination already lies apart: its
    elements are copied (channel 0)."""
    source, channels = inputs[0], int(attributes.get("channel_num", 2))
    mode = enumeration(attributes, "index_mode", "ALL_CHANNELS")
    every = mode == "ALL_CHANNELS"
    if mode not in ("CHANNEL_0", "CHANNEL_1", "ALL_CHANNELS") or (
        len(outputs) != (channels if every else 1)
    ):
        raise UnsupportedOperationError("vdeinterleave", f"{mode} of {channels} channels")
    values = np.array(source.read())
    if not every and source.sizes == outputs[0].sizes:
        if mode != "CHANNEL_0":
            raise UnsupportedOperationError("vdeinterleave", f"{mode} from {source}")
        outputs[0].write(values)
        return
    first = 0 if every else int(mode[-1])
    for channel, target in enumerate(outputs, first):
        part = values[..., channel::channels]
        if part.shape != target.sizes:
            raise UnsupportedOperationError("vdeinterleave", f"{source} into {target}")
        target.write(part)


def interleave(
    attributes: Attributes, inputs: Sequence[Any], outputs: Sequence[memory.View]
) -> None:
    """The inputs' elements in turn, along the last axis."""
    channels = int(attributes.get("interleave_channel_nums", 2))
    if channels != len(inputs):
        raise UnsupportedOperationError("vinterleave", f"{channels} channels")
    stacked = np.stack([value.read() for value in inputs], axis=-1)
    outputs[0].write(stacked.reshape(*stacked.shape[:-2], -1))


def transpose(
    attributes: Attributes, inputs: Sequence[Any], outputs: Sequence[memory.View]
) -> None:
    """Axis i of the destination is axis permutation[i] of the source."""
    result = np.transpose(inputs[0].read(), attributes["permutation"])
    if result.shape != outputs[0].sizes:
        raise UnsupportedOperationError("vtranspose", f"{inputs[0]} into {outputs[0]}")
    outputs[0].write(np.array(result))


def arange(attributes: Attributes, inputs: Sequence[Any], outputs: Sequence[memory.View]) -> None:
    """offset + the sum of strides[axis] times the position along each axis."""
    target = outputs[0]
    values = iter(inputs)
    offset = next(values) if attributes["operandSegmentSizes"][1] else 0
    strides = list(values)
    if len(strides) != len(target.sizes):
        raise UnsupportedOperationError("varange", f"{len(strides)} strides for {target}")
    found = np.asarray(offset, np.int64)
    for size, stride in zip(target.sizes, strides, strict=True):
        found = found[..., None] + np.arange(size, dtype=np.int64) * int(stride)
    dtype = memory.DTYPES[target.element]
    floats = numerics.is_float(dtype)
    target.write(numerics.to_float(found, dtype) if floats else numerics.wrap(found, dtype))


def gather(attributes: Attributes, inputs: Sequence[Any], outputs: Sequence[memory.View]) -> None:
    """The elements of the last axis that the indices name."""
    del attributes
    source, indices = inputs[0], inputs[1].read().astype(np.int64)
    size = source.sizes[-1]
    if indices.size and (indices.min() < 0 or indices.max() >= size):
        outside = indices[(indices < 0) | (indices >= size)][0]
        raise memory.OutOfBoundsError(f"vgather: index {outside} of {source}")
    values = np.array(source.read())
    if not values.size:
        return
    lead = indices.shape[:-1]
    outputs[0].write(np.take_along_axis(np.broadcast_to(values, (*lead, size)), indices, -1))


def flip(attributes: Attributes, inputs: Sequence[Any], outputs: Sequence[memory.View]) -> None:
    outputs[0].write(np.flip(np.array(inputs[0].read()), attributes["flip_axis"]))


def sort(attributes: Attributes, inputs: Sequence[Any], outputs: Sequence[memory.View]) -> None:
    """Along the last axis; with a second output the positions, of equal elements the first first
    (guess). NaN comes last in ascending order (guess)."""
    values = np.array(inputs[0].read())
    axis = attributes.get("sort_axis", -1) % values.ndim
    if axis != values.ndim - 1:
        raise UnsupportedOperationError("vsort", f"axis {axis} of {inputs[0]}")
    keys = values.astype(np.float32) if values.dtype == numerics.BFLOAT16 else values
    if attributes.get("descending"):
        order = np.flip(np.argsort(np.flip(keys, -1), -1, kind="stable"), -1)
        order = keys.shape[-1] - 1 - order
    else:
        order = np.argsort(keys, -1, kind="stable")
    outputs[0].write(np.take_along_axis(values, order, -1))
    if len(outputs) > 1:
        outputs[1].write(order.astype(memory.DTYPES[outputs[1].element]))


def multiply_extended(
    attributes: Attributes, inputs: Sequence[Any], outputs: Sequence[memory.View]
) -> None:
    """The upper and the lower 16 bits of the products of i16."""
    del attributes
    product = inputs[0].read().astype(np.int32) * inputs[1].read().astype(np.int32)
    outputs[0].write((product >> 16).astype(np.int16))
    outputs[1].write(numerics.wrap(product, np.dtype(np.int16)))


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
