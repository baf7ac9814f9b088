"""The vector dialect on run-time values: what the bodies of arch35's vector functions are made of.

A vector is a NumPy array of its type's shape. Transfers go through a `Lanes` unit, which notes the
bytes that they touch.

Source: MLIR's documentation of the dialect; `withoutInitMergeOp` from the tests of AscendNPU-IR.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from testing.npu_compile import ir
from testing.npu_sim import findings, memory

Environment = dict[str, Any]


class Lanes(Protocol):
    """What a transfer asks of the unit that executes it."""

    def gather(self, view: memory.View, lanes: np.ndarray) -> np.ndarray:
        """The elements at these offsets (in elements, any shape) from the view's first one."""

    def scatter(self, view: memory.View, lanes: np.ndarray, values: np.ndarray) -> None:
        """Stores values at these offsets."""


Step = Callable[[Any, Environment], None]

_REDUCTIONS: Mapping[str, Any] = {
    "add": np.add,
    "mul": np.multiply,
    "minsi": np.minimum,
    "maxsi": np.maximum,
    "minui": np.minimum,
    "maxui": np.maximum,
    "minimumf": np.minimum,
    "maximumf": np.maximum,
    "minnumf": np.fmin,
    "maxnumf": np.fmax,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def step(operation: ir.Operation, aliases: Mapping[str, str]) -> Step | None:
    """How to execute an operation of the vector dialect; None for other operations.

    Raises:
        UnsupportedOperationError: an operation of the dialect, or a form of it, that is not known.
    """
    name = operation.name
    if name == "vector.transfer_read":
        return _read(operation, aliases)
    if name == "vector.transfer_write":
        return _write(operation, aliases)
    if name == "vector.gather":
        return _gather(operation)
    if name == "builtin.unrealized_conversion_cast":
        return _values(operation, _regroup(operation))
    if not name.startswith("vector."):
        return None
    build = _PURE.get(name.removeprefix("vector."))
    if build is None:
        raise findings.UnsupportedOperationError(name, "no such entry in vectors.py")
    return _values(operation, build(operation))


def _values(operation: ir.Operation, compute: Callable[..., Any]) -> Step:
    results, operands = operation.results, operation.operands

    def run(unit: Any, environment: Environment) -> None:
        del unit
        found = compute(*[environment[operand] for operand in operands])
        if len(results) == 1:
            environment[results[0]] = found
        else:
            environment.update(zip(results, found, strict=True))

    return run


def _shape(kind: ir.Type) -> tuple[int, ...]:
    return kind.shape if isinstance(kind, ir.Vector) else ()


# Transfers.


class _Transfer:
    """Where the lanes of a transfer lie.

    The permutation map gives, for each axis of the vector, the axis of the memref that it walks, or
    0 for an axis along which the value is repeated.
    """

    def __init__(self, operation: ir.Operation, aliases: Mapping[str, str], shape: Sequence[int]):
        text = str(operation.attributes["permutation_map"])
        text = aliases.get(text, text)
        match = re.fullmatch(r"affine_map<\(([^()]*)\) -> \(([^()]*)\)>", text)
        if not match:
            raise findings.UnsupportedOperationError(operation.name, f"permutation map {text}")
        dimensions = ir.split(match[1])
        self._axes = [
            None if part == "0" else dimensions.index(part) for part in ir.split(match[2])
        ]
        self._shape = tuple(shape)
        self._in_bounds = tuple(operation.attributes.get("in_bounds", ())) or (False,) * len(shape)
        # A mask has the axes that are not repeated, in the memref's order.
        kept = [axis for axis, walked in enumerate(self._axes) if walked is not None]
        self._mask_axes = sorted(kept, key=lambda axis: self._axes[axis] or 0)

    def lanes(
        self, view: memory.View, indices: Sequence[int], mask: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """(offset of each lane in elements, whether it is active), in the vector's shape."""
        offset = np.array(
            sum(index * stride for index, stride in zip(indices, view.strides, strict=True))
        )
        active = np.ones((), bool)
        for axis, walked in enumerate(self._axes):
            along = [1] * len(self._shape)
            if walked is None:
                continue
            along[axis] = self._shape[axis]
            positions = np.arange(self._shape[axis]).reshape(along)
            offset = offset + positions * view.strides[walked]
            if not self._in_bounds[axis]:
                active = active & (positions + indices[walked] < view.sizes[walked])
        if mask is not None:
            spread = [1] * len(self._shape)
            for axis in self._mask_axes:
                spread[axis] = self._shape[axis]
            order = np.argsort(np.argsort(self._mask_axes))
            active = active & np.transpose(mask, order).reshape(spread)
        return np.broadcast_to(offset, self._shape), np.broadcast_to(active, self._shape)


def _read(operation: ir.Operation, aliases: Mapping[str, str]) -> Step:
    shape = _shape(operation.result_types[0])
    transfer = _Transfer(operation, aliases, shape)
    _, count, _, masked = operation.attributes["operandSegmentSizes"]
    source, *rest = operation.operands
    indices, padding = rest[:count], rest[count]
    mask = rest[count + 1] if masked else None
    result = operation.results[0]

    def run(unit: Lanes, environment: Environment) -> None:
        view = environment[source]
        lanes, active = transfer.lanes(
            view,
            [environment[index] for index in indices],
            None if mask is None else environment[mask],
        )
        if active.all():
            environment[result] = unit.gather(view, lanes)
            return
        dtype = bool if view.element == memory.BIT else memory.DTYPES[view.element]
        values = np.full(shape, environment[padding], dtype)
        values[active] = unit.gather(view, lanes[active])
        environment[result] = values

    return run


def _write(operation: ir.Operation, aliases: Mapping[str, str]) -> Step:
    transfer = _Transfer(operation, aliases, _shape(operation.operand_types[0]))
    _, _, count, masked = operation.attributes["operandSegmentSizes"]
    source, target, *rest = operation.operands
    indices = rest[:count]
    mask = rest[count] if masked else None

    def run(unit: Lanes, environment: Environment) -> None:
        view = environment[target]
        lanes, active = transfer.lanes(
            view,
            [environment[index] for index in indices],
            None if mask is None else environment[mask],
        )
        values = environment[source]
        if active.all():
            unit.scatter(view, lanes, values)
        elif active.any():
            unit.scatter(view, lanes[active], values[active])

    return run


def _gather(operation: ir.Operation) -> Step:
    base, *indices, index_vector, mask, pass_through = operation.operands
    result = operation.results[0]

    def run(unit: Lanes, environment: Environment) -> None:
        view = environment[base]
        if len(indices) != len(view.sizes):
            raise findings.UnsupportedOperationError(operation.name, f"{len(indices)} indices")
        start = sum(
            environment[index] * stride
            for index, stride in zip(indices, view.strides, strict=True)
        )
        active = environment[mask]
        lanes = start + environment[index_vector].astype(np.int64) * view.strides[-1]
        values = environment[pass_through].copy()
        if active.any():
            values[active] = unit.gather(view, lanes[active])
        environment[result] = values

    return run


# The rest computes.


def _regroup(operation: ir.Operation) -> Callable[..., Any]:
    """unrealized_conversion_cast: registers joined into a longer vector, a vector cut into
    registers, or one element as a vector of one."""
    shapes = [_shape(kind) for kind in operation.result_types]
    scalar = [not isinstance(kind, ir.Vector) for kind in operation.result_types]

    def regroup(*operands: Any) -> Any:
        flat = np.concatenate([np.asarray(operand).reshape(-1) for operand in operands])
        parts, start = [], 0
        for shape, is_scalar in zip(shapes, scalar, strict=True):
            count = int(np.prod(shape, dtype=int))
            part = flat[start : start + count].reshape(shape)
            parts.append(_plain(part[()]) if is_scalar else part)
            start += count
        if start != flat.size:
            raise findings.UnsupportedOperationError(
                operation.name, f"{flat.size} elements into {start}"
            )
        return parts[0] if len(parts) == 1 else parts

    return regroup


def _plain(value: Any) -> Any:
    """Integers outside of vectors are Python's."""
    kind = np.asarray(value).dtype.kind
    return int(value) if kind in "iub" else value


def _constant_mask(operation: ir.Operation) -> Callable[..., Any]:
    shape = _shape(operation.result_types[0])
    mask = _mask(shape, operation.attributes["mask_dim_sizes"])
    return lambda: mask


def _create_mask(operation: ir.Operation) -> Callable[..., Any]:
    shape = _shape(operation.result_types[0])
    return lambda *extents: _mask(shape, extents)


def _mask(shape: Sequence[int], extents: Sequence[int]) -> np.ndarray:
    mask = np.zeros(shape, bool)
    mask[tuple(slice(max(0, extent)) for extent in extents)] = True
    return mask


def _broadcast(operation: ir.Operation) -> Callable[..., Any]:
    kind = operation.result_types[0]
    assert isinstance(kind, ir.Vector)
    dtype = np.dtype(bool) if kind.element == memory.BIT else _element(kind.element)
    return lambda value: np.broadcast_to(np.asarray(value).astype(dtype), kind.shape)


def _element(name: str) -> np.dtype:
    return memory.DTYPES["i64" if name == "index" else name]


def _shape_cast(operation: ir.Operation) -> Callable[..., Any]:
    shape = _shape(operation.result_types[0])
    return lambda value: value.reshape(shape)


def _reduction(operation: ir.Operation) -> Callable[..., Any]:
    match = re.search(r"<(\w+)>", str(operation.attributes["kind"]))
    kind = match[1] if match else ""
    if kind not in _REDUCTIONS:
        raise findings.UnsupportedOperationError(operation.name, f"kind {kind}")
    reduce, unsigned = _REDUCTIONS[kind], kind.endswith("ui")
    merged = "withoutInitMergeOp" not in operation.attributes
    axes = tuple(operation.attributes.get("reduction_dims", ())) or None

    def run(value: np.ndarray, *initial: Any) -> Any:
        values = value.view(f"u{value.dtype.itemsize}") if unsigned else value
        result = reduce.reduce(values, axis=axes).astype(values.dtype).view(value.dtype)
        if initial and merged:
            result = reduce(result, np.asarray(initial[0]).astype(value.dtype))
        return result if isinstance(operation.result_types[0], ir.Vector) else _plain(result[()])

    return run


def _deinterleave(operation: ir.Operation) -> Callable[..., Any]:
    del operation
    return lambda value: (value[..., 0::2], value[..., 1::2])


def _interleave(operation: ir.Operation) -> Callable[..., Any]:
    shape = _shape(operation.result_types[0])
    return lambda a, b: np.stack([a, b], axis=-1).reshape(shape)


def _position(operation: ir.Operation, dynamic: Sequence[int]) -> tuple[int, ...]:
    given = iter(dynamic)
    static = operation.attributes.get("static_position", ())
    return tuple(next(given) if number < 0 else number for number in static)


def _extract(operation: ir.Operation) -> Callable[..., Any]:
    vector = isinstance(operation.result_types[0], ir.Vector)

    def run(value: np.ndarray, *dynamic: int) -> Any:
        found = value[_position(operation, dynamic)]
        return found if vector else _plain(found)

    return run


def _insert(operation: ir.Operation) -> Callable[..., Any]:
    def run(part: Any, value: np.ndarray, *dynamic: int) -> Any:
        result = value.copy()
        result[_position(operation, dynamic)] = part
        return result

    return run


def _strided_slice(operation: ir.Operation) -> Callable[..., Any]:
    attributes = operation.attributes
    index = tuple(
        slice(offset, offset + size * stride, stride)
        for offset, size, stride in zip(
            attributes["offsets"], attributes["sizes"], attributes["strides"], strict=True
        )
    )
    return lambda value: value[index]


def _transpose(operation: ir.Operation) -> Callable[..., Any]:
    permutation = operation.attributes["permutation"]
    return lambda value: np.transpose(value, permutation)


def _bitcast(operation: ir.Operation) -> Callable[..., Any]:
    kind = operation.result_types[0]
    assert isinstance(kind, ir.Vector)
    return lambda value: np.ascontiguousarray(value).view(_element(kind.element))


_PURE: Mapping[str, Callable[[ir.Operation], Callable[..., Any]]] = {
    "constant_mask": _constant_mask,
    "create_mask": _create_mask,
    "broadcast": _broadcast,
    "splat": _broadcast,
    "shape_cast": _shape_cast,
    "reduction": _reduction,
    "multi_reduction": _reduction,
    "deinterleave": _deinterleave,
    "interleave": _interleave,
    "extract": _extract,
    "insert": _insert,
    "extract_strided_slice": _strided_slice,
    "transpose": _transpose,
    "bitcast": _bitcast,
    "step": lambda operation: lambda: np.arange(_shape(operation.result_types[0])[0]),
}
