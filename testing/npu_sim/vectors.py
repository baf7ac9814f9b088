"""The vector dialect on run-time values: what the bodies of arch35's vector functions are made of.

A vector of a type of shape s is an array [n, *s]: n is the number of loop iterations that are
executed at once (see `vector_function`), or 1 for what is the same in all of them. A scalar that
differs between iterations is an array [n]. Transfers go through a `Lanes` unit, which notes the
bytes that they touch.

Source: MLIR's documentation of the dialect; `withoutInitMergeOp` from the tests of AscendNPU-IR.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from testing.npu_compile import ir
from testing.npu_sim import arith, findings, memory

Environment = dict[str, Any]


class Lanes(Protocol):
    """What a transfer asks of the unit that executes it.

    lanes: offsets from the view's first element, in elements, [n, ...]; active: which of them
    count, None for all.
    """

    def gather(
        self, view: memory.View, lanes: np.ndarray, active: np.ndarray | None, padding: Any
    ) -> np.ndarray:
        """The elements there, and the padding where a lane is not active."""

    def scatter(
        self, view: memory.View, lanes: np.ndarray, active: np.ndarray | None, values: np.ndarray
    ) -> None:
        """Stores the values of the active lanes."""


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
    if name == "vector.mask":
        return _masked(operation)
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
        mask_axes = sorted(kept, key=lambda axis: self._axes[axis] or 0)
        self._mask_order = (0, *(1 + position for position in np.argsort(np.argsort(mask_axes))))
        self._mask_shape = [1] * len(shape)
        for axis in kept:
            self._mask_shape[axis] = self._shape[axis]
        self._offsets: dict[tuple[int, ...], np.ndarray] = {}

    def lanes(
        self, view: memory.View, indices: Sequence[Any], mask: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """(offset of each lane in elements [n, *shape], which are active: None for all)."""
        start: Any = 0
        for index, stride in zip(indices, view.strides, strict=True):
            start = start + index * stride
        lanes = self._spread(start) + self._steps(view.strides)
        active = None
        for axis, walked in enumerate(self._axes):
            if walked is None or self._in_bounds[axis]:
                continue
            left = view.sizes[walked] - self._spread(indices[walked])
            inside = self._along(axis) < left
            active = inside if active is None else active & inside
        if mask is not None:
            own = np.transpose(mask, self._mask_order).reshape(len(mask), *self._mask_shape)
            active = own if active is None else active & own
        if active is None or active.all():
            return lanes, None
        return lanes, active

    def _spread(self, value: Any) -> np.ndarray:
        """A number, or one for each iteration, as an array with the vector's axes."""
        return np.reshape(value, (-1, *(1,) * len(self._shape)))

    def _along(self, axis: int) -> np.ndarray:
        shape = [1] * (1 + len(self._shape))
        shape[1 + axis] = self._shape[axis]
        return np.arange(self._shape[axis]).reshape(shape)

    def _steps(self, strides: tuple[int, ...]) -> np.ndarray:
        """The lanes' offsets from the first one, [1, *shape]."""
        if strides not in self._offsets:
            offsets = np.zeros((1, *self._shape), np.int64)
            for axis, walked in enumerate(self._axes):
                if walked is not None:
                    offsets = offsets + self._along(axis) * strides[walked]
            self._offsets[strides] = offsets
        return self._offsets[strides]


def _read(operation: ir.Operation, aliases: Mapping[str, str]) -> Step:
    transfer = _Transfer(operation, aliases, _shape(operation.result_types[0]))
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
        environment[result] = unit.gather(view, lanes, active, environment[padding])

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
        unit.scatter(view, lanes, active, environment[source])

    return run


def _gather(operation: ir.Operation) -> Step:
    base, *indices, index_vector, mask, pass_through = operation.operands
    result = operation.results[0]
    # Of bytes, 16-bit indices fill two registers: that of the odd lanes is an attribute.
    written = operation.attributes.get("secondary_index")
    second = None
    if written is not None:
        second = arith.dense(written, np.dtype(np.int16), "i16", operation.name)

    def run(unit: Lanes, environment: Environment) -> None:
        view = environment[base]
        if len(indices) != len(view.sizes):
            raise findings.UnsupportedOperationError(operation.name, f"{len(indices)} indices")
        start: Any = 0
        for index, stride in zip(indices, view.strides, strict=True):
            start = start + environment[index] * stride
        steps = environment[index_vector].astype(np.int64)
        if second is not None:
            odd = np.broadcast_to(second, steps.shape)
            steps = np.stack([steps, odd], axis=-1).reshape(len(steps), -1)
        lanes = np.reshape(start, (-1, 1)) + steps * view.strides[-1]
        active = environment[mask]
        environment[result] = unit.gather(view, lanes, active, environment[pass_through])

    return run


# The rest computes.


def _regroup(operation: ir.Operation) -> Callable[..., Any]:
    """unrealized_conversion_cast: registers joined into a longer vector, a vector cut into
    registers, the first register of a vector (what two half filled ones were interleaved to), or
    one element as a vector of one."""
    shapes = [_shape(kind) for kind in operation.result_types]
    scalar = [not isinstance(kind, ir.Vector) for kind in operation.result_types]

    def regroup(*operands: Any) -> Any:
        flat = [
            np.reshape(value, _flat(value, kind))
            for value, kind in zip(operands, operation.operand_types, strict=True)
        ]
        count = max(len(part) for part in flat)
        joined = np.concatenate(
            [np.broadcast_to(part, (count, part.shape[1])) for part in flat], axis=1
        )
        parts, start = [], 0
        for shape, is_scalar in zip(shapes, scalar, strict=True):
            size = int(np.prod(shape, dtype=int))
            part = joined[:, start : start + size]
            parts.append(plain(part[:, 0]) if is_scalar else part.reshape(count, *shape))
            start += size
        if start > joined.shape[1]:
            raise findings.UnsupportedOperationError(
                operation.name, f"{joined.shape[1]} elements into {start}"
            )
        return parts[0] if len(parts) == 1 else parts

    return regroup


def _flat(value: Any, kind: ir.Type) -> tuple[int, int]:
    """[n, elements] of a vector or a scalar."""
    elements = int(np.prod(_shape(kind), dtype=int))
    return np.size(value) // elements, elements


def plain(values: np.ndarray) -> Any:
    """Scalars [n] as the program keeps them: a plain one where there is one only."""
    if len(values) > 1:
        return values
    value = values[0]
    return int(value) if value.dtype.kind in "iub" else value


def _constant_mask(operation: ir.Operation) -> Callable[..., Any]:
    shape = _shape(operation.result_types[0])
    mask = _mask(shape, operation.attributes["mask_dim_sizes"])
    return lambda: mask


def _create_mask(operation: ir.Operation) -> Callable[..., Any]:
    shape = _shape(operation.result_types[0])
    return lambda *extents: _mask(shape, extents)


def _mask(shape: Sequence[int], extents: Sequence[Any]) -> np.ndarray:
    mask = np.ones((1, *shape), bool)
    for axis, extent in enumerate(extents):
        along = [1] * (1 + len(shape))
        along[1 + axis] = shape[axis]
        limit = np.reshape(extent, (-1, *(1,) * len(shape)))
        mask = mask & (np.arange(shape[axis]).reshape(along) < limit)
    return mask


def _broadcast(operation: ir.Operation) -> Callable[..., Any]:
    kind = operation.result_types[0]
    assert isinstance(kind, ir.Vector)
    dtype = np.dtype(bool) if kind.element == memory.BIT else _element(kind.element)
    rank = len(_shape(operation.operand_types[0]))

    def run(value: Any) -> np.ndarray:
        array = np.asarray(value).astype(dtype)
        array = array.reshape(-1, *array.shape[array.ndim - rank :] if rank else ())
        spread = (1,) * (len(kind.shape) - rank)
        array = array.reshape(len(array), *spread, *array.shape[1:])
        return np.broadcast_to(array, (len(array), *kind.shape))

    return run


def _element(name: str) -> np.dtype:
    return memory.DTYPES["i64" if name == "index" else name]


def _shape_cast(operation: ir.Operation) -> Callable[..., Any]:
    shape = _shape(operation.result_types[0])
    return lambda value: value.reshape(len(value), *shape)


def _reduction(operation: ir.Operation) -> Callable[..., Any]:
    match = re.search(r"<(\w+)>", str(operation.attributes["kind"]))
    kind = match[1] if match else ""
    if kind not in _REDUCTIONS:
        raise findings.UnsupportedOperationError(operation.name, f"kind {kind}")
    reduce, unsigned = _REDUCTIONS[kind], kind.endswith("ui")
    merged = "withoutInitMergeOp" not in operation.attributes
    rank = len(_shape(operation.operand_types[0]))
    axes = tuple(1 + axis for axis in operation.attributes.get("reduction_dims", range(rank)))
    vector = isinstance(operation.result_types[0], ir.Vector)

    def run(value: np.ndarray, *initial: Any, mask: np.ndarray | None = None) -> Any:
        values = value.view(f"u{value.dtype.itemsize}") if unsigned else value
        if mask is not None:
            values = np.where(mask, values, _neutral(kind, values.dtype))
        result = reduce.reduce(values, axis=axes).astype(values.dtype)
        if initial and merged:
            # Through the signed type: that is what a scalar's bits are kept in.
            first = np.asarray(initial[0]).astype(value.dtype).view(values.dtype)
            result = reduce(result, first)
        result = result.view(value.dtype)
        return result if vector else plain(result)

    return run


def _neutral(kind: str, dtype: np.dtype) -> np.ndarray:
    """What a reduction's result does not depend on, of that type."""
    lowest: Any = -np.inf
    highest: Any = np.inf
    if dtype.kind in "iu":
        lowest, highest = np.iinfo(dtype).min, np.iinfo(dtype).max
    value = {"mul": 1, "and": -1}.get(kind, 0)
    if kind.startswith("max"):
        value = lowest
    elif kind.startswith("min"):
        value = highest
    return np.asarray(value).astype(dtype)


def _masked(operation: ir.Operation) -> Step:
    """vector.mask around a reduction: the lanes whose mask is not set do not take part."""
    (block,) = operation.regions[0]
    inner, *rest = block.operations
    if inner.name not in ("vector.reduction", "vector.multi_reduction") or len(rest) != 1:
        raise findings.UnsupportedOperationError(operation.name, f"around {inner.name}")
    compute = _reduction(inner)
    mask, *passed = operation.operands
    if passed:
        raise findings.UnsupportedOperationError(operation.name, "with a value passed through")
    result = operation.results[0]

    def run(unit: Any, environment: Environment) -> None:
        del unit
        operands = [environment[operand] for operand in inner.operands]
        environment[result] = compute(*operands, mask=environment[mask])

    return run


def _deinterleave(operation: ir.Operation) -> Callable[..., Any]:
    del operation
    return lambda value: (value[..., 0::2], value[..., 1::2])


def _interleave(operation: ir.Operation) -> Callable[..., Any]:
    shape = _shape(operation.result_types[0])
    return lambda a, b: np.stack(np.broadcast_arrays(a, b), axis=-1).reshape(-1, *shape)


def _position(operation: ir.Operation, dynamic: Sequence[Any]) -> tuple[Any, ...]:
    given = iter(dynamic)
    static = operation.attributes.get("static_position", ())
    position = tuple(next(given) if number < 0 else number for number in static)
    if any(np.ndim(number) for number in position):
        raise findings.UnsupportedOperationError(operation.name, "a position for each iteration")
    return (slice(None), *position)


def _extract(operation: ir.Operation) -> Callable[..., Any]:
    vector = isinstance(operation.result_types[0], ir.Vector)

    def run(value: np.ndarray, *dynamic: Any) -> Any:
        found = value[_position(operation, dynamic)]
        return found if vector else plain(found)

    return run


def _insert(operation: ir.Operation) -> Callable[..., Any]:
    def run(part: Any, value: np.ndarray, *dynamic: Any) -> Any:
        count = max(len(value), len(part) if np.ndim(part) else 1)
        result = np.repeat(value, count // len(value), axis=0)
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
    return lambda value: value[(slice(None), *index)]


def _transpose(operation: ir.Operation) -> Callable[..., Any]:
    permutation = (0, *(1 + axis for axis in operation.attributes["permutation"]))
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
    "step": lambda operation: lambda: np.arange(_shape(operation.result_types[0])[0])[None],
}
