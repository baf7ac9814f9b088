"""The vector unit's operations that combine, repeat or move elements.

Sources: see `vector_operations`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from testing.npu_sim import memory, numerics
from testing.npu_sim.findings import UnsupportedOperationError
from testing.npu_sim.transfers import BLOCK_BYTES, cast_scalar, enumeration
from testing.npu_sim.vector_operations import Run

Attributes = Mapping[str, Any]
_REPEAT_BYTES = 256  # what the vector unit takes at once


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

    def run(attributes: Attributes, inputs: Sequence[Any], outputs: Sequence[memory.View]) -> None:
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
