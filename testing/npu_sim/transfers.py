"""What the transfer engines do: load, store, nd2nz, nz2nd, fixpipe, copy.

They move whole blocks of 32 bytes on the on-chip side, so that what lies next to a destination may
change with it; that is simulated where the sources tell. Sources are files of the public repository
Ascend/AscendNPU-IR, below `bishengir/lib/Template/`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from testing.npu_sim import memory, numerics
from testing.npu_sim.findings import UnsupportedOperationError

BLOCK_BYTES = 32
FRACTAL = 16  # rows of a fractal; also its columns for 16-bit types and in L0C

Attributes = Mapping[str, Any]


def enumeration(attributes: Attributes, name: str, default: str) -> str:
    """`#hivm.dma_mode<nz2nd>` -> `nz2nd`."""
    written = str(attributes.get(name, f"<{default}>"))
    match = re.search(r"<(?:\w+ = )?(\w+)>$", written)
    if not match:
        raise UnsupportedOperationError("attribute", f"{name} = {written}")
    return match[1]


def refuse(name: str, attributes: Attributes, *absent: str) -> None:
    """Raises unless these attributes are absent or false."""
    for attribute in absent:
        if attributes.get(attribute):
            raise UnsupportedOperationError(name, f"{attribute} = {attributes[attribute]}")


def cast_scalar(value: Any, element: str) -> np.ndarray:
    """A scalar operand in an element type."""
    if element == memory.BIT:
        return np.asarray(bool(value))
    dtype = memory.DTYPES[element]
    if isinstance(value, int) and dtype.kind in "iu":
        bits = 8 * dtype.itemsize
        return np.asarray(value & ((1 << bits) - 1), f"u{dtype.itemsize}").view(dtype)
    return np.asarray(value).astype(dtype)


def load(attributes: Attributes, inputs: Sequence[Any], outputs: Sequence[memory.View]) -> None:
    """Global memory to UB or L1, in bursts of contiguous elements.

    In UB each burst is padded with the pad value, or 0, on the right to a multiple of 32 bytes, and
    by `left_padding_num` elements on the left.
    """
    _load(attributes, inputs, outputs, pads_right=True)


def load_arch35(
    attributes: Attributes, inputs: Sequence[Any], outputs: Sequence[memory.View]
) -> None:
    """The same on arch35, where only bursts that are padded on the left are padded on the right.

    Source: include/RegBase/DMAUtils.h. Guess: bursts may start anywhere.
    """
    _load(attributes, inputs, outputs, pads_right=False)


def _load(
    attributes: Attributes, inputs: Sequence[Any], outputs: Sequence[memory.View], pads_right: bool
) -> None:
    refuse("load", attributes, "init_out_buffer")
    source, target = inputs[0], outputs[0]
    if source.sizes != target.sizes:
        raise UnsupportedOperationError("load", f"{source} into {target}")
    if not target.count:
        return
    present = attributes.get("operandSegmentSizes", (1, 1, 0, 0, 0, 0))
    values = iter(inputs[1:])
    pad_value = next(values) if present[2] else None
    left = int(next(values)) if present[3] else 0
    mode = enumeration(attributes, "pad_mode", "PadNull")
    if mode not in ("PadNull", "PadValue") or (mode == "PadValue") != (pad_value is not None):
        raise UnsupportedOperationError("load", f"pad_mode {mode} with pad value {pad_value}")
    if len(present) > 4 and present[4] and int(next(values)):
        raise UnsupportedOperationError("load", "right padding")
    if len(present) > 5 and present[5]:
        raise UnsupportedOperationError("load", "init_condition")
    if target.memory.space == "ub" and (pads_right or left):
        _pad(source, target, left, 0 if pad_value is None else pad_value)
    target.write(source.read())


def _pad(source: memory.View, target: memory.View, left: int, value: Any) -> None:
    """Writes what surrounds each burst of a load to UB.

    A burst is a row whose elements follow each other on both sides, or else a single element.
    """
    width = target.unit
    rows = target.sizes[-1] == 1 or (source.strides[-1] == 1 and target.strides[-1] == 1)
    if not rows and not left and _transposes(source, target):
        return  # the scalar unit copies element by element
    burst = target.sizes[-1] if rows else 1
    sizes = target.sizes[:-1] if rows else target.sizes
    strides = target.strides[:-1] if rows else target.strides
    if target.offset % BLOCK_BYTES != left * width % BLOCK_BYTES:
        raise UnsupportedOperationError("load", f"{target} does not start at 32 bytes")
    for size, stride in zip(sizes, strides, strict=True):
        if size > 1 and stride * width % BLOCK_BYTES:
            raise UnsupportedOperationError(
                "load", f"{target}: bursts start at multiples of 32 bytes"
            )
    right = -((left + burst) * width) % BLOCK_BYTES // width
    for count, shift in ((left, -left), (right, burst)):
        memory.View(
            target.memory,
            target.offset + shift * width,
            (*sizes, count),
            (*strides, 1),
            target.element,
        ).write(cast_scalar(value, target.element))


def _transposes(source: memory.View, target: memory.View) -> bool:
    """Whether the two axes of a transfer change places, in steps that bursts cannot take."""
    if len(target.sizes) != 2:
        return False
    (outer, inner), aligned = target.strides, BLOCK_BYTES // target.unit
    swapped = source.strides[0] < source.strides[1] or outer < inner
    return swapped and bool(outer % aligned or inner % aligned)


_ATOMIC: Mapping[str, Callable[..., Any]] = {"add": np.add, "max": np.maximum, "min": np.minimum}


def store(attributes: Attributes, inputs: Sequence[Any], outputs: Sequence[memory.View]) -> None:
    """UB to global memory; with an atomic kind, added to (or maximum, minimum with) what is
    there."""
    source, target = inputs[0], outputs[0]
    if source.sizes != target.sizes:
        raise UnsupportedOperationError("store", f"{source} into {target}")
    kind = enumeration(attributes, "atomic_kind", "none")
    if kind == "none":
        target.write(source.read())
    elif kind in _ATOMIC:
        target.write(numerics.once_rounded(_ATOMIC[kind], target.read(), source.read()))
    else:
        raise UnsupportedOperationError("store", f"atomic_kind {kind}")


def copy(attributes: Attributes, inputs: Sequence[Any], outputs: Sequence[memory.View]) -> None:
    """Between on-chip memories, element by element."""
    source, target = inputs[0], outputs[0]
    mode = enumeration(attributes, "pad_mode", "PadNull")
    if source.sizes != target.sizes or mode != "PadNull" or len(inputs) > 1:
        raise UnsupportedOperationError("copy", f"{source} into {target}, pad_mode {mode}")
    target.write(source.read())


def nd2nz(attributes: Attributes, inputs: Sequence[Any], outputs: Sequence[memory.View]) -> None:
    """Rows of global memory to fractals of L1, [columns/c0, rows/16, 16, c0] with c0 = 32 bytes.

    Columns up to a multiple of c0 become zero; rows up to a multiple of 16 stay.
    """
    refuse("nd2nz", attributes, "init_out_buffer")
    source, target = inputs[0], outputs[0]
    if len(inputs) > 1 or len(source.sizes) != 2 or len(target.sizes) != 4:
        raise UnsupportedOperationError("nd2nz", f"{source} into {target}")
    rows, columns = source.sizes
    if not rows or not columns:
        return
    c0 = BLOCK_BYTES // target.unit
    if columns > 1 and source.strides[1] != 1:
        raise UnsupportedOperationError("nd2nz", f"{source}: columns are not contiguous")
    if target.sizes[3] != c0 or target.strides[3] != 1 or target.strides[2] != c0:
        raise UnsupportedOperationError("nd2nz", f"into {target}")
    blocks = -(-columns // c0)
    padded = np.zeros((rows, blocks * c0), memory.DTYPES[target.element])
    padded[:, :columns] = source.read()
    memory.View(
        target.memory, target.offset, (blocks, rows, c0), (target.strides[0], c0, 1), target.element
    ).write(padded.reshape(rows, blocks, c0).transpose(1, 0, 2))


def nz2nd(attributes: Attributes, inputs: Sequence[Any], outputs: Sequence[memory.View]) -> None:
    """Fractals of L1 to rows of global memory."""
    del attributes
    source, target = inputs[0], outputs[0]
    if len(source.sizes) != 4 or len(target.sizes) != 2:
        raise UnsupportedOperationError("nz2nd", f"{source} into {target}")
    if target.count:
        target.write(_rows_of(source, *target.sizes))


def _rows_of(source: memory.View, rows: int, columns: int) -> np.ndarray:
    """The first rows and columns of fractals [columns/c0, rows/16, 16, c0], as a matrix."""
    c0 = source.sizes[3]
    if source.strides[3] != 1 or source.strides[1] != FRACTAL * source.strides[2]:
        raise UnsupportedOperationError("fixpipe", f"from {source}")
    blocks = -(-columns // c0)
    fractals = memory.View(
        source.memory,
        source.offset,
        (blocks, rows, c0),
        (source.strides[0], source.strides[2], 1),
        source.element,
    ).read()
    return fractals.transpose(1, 0, 2).reshape(rows, blocks * c0)[:, :columns]


_QUANTISED = {
    ("NO_QUANT", "f32"): "f32",
    ("NO_QUANT", "i32"): "i32",
    ("F322F16", "f32"): "f16",
    ("F322BF16", "f32"): "bf16",
}


def fixpipe(attributes: Attributes, inputs: Sequence[Any], outputs: Sequence[memory.View]) -> None:
    """L0C to global memory or L1: fractals to rows (nz2nd), or fractals as they are (normal).

    pre_quant rounds float32 to a 16-bit type (guess: to the nearest, ties to even, beyond the
    largest to infinity); pre_relu replaces what is negative by 0.
    """
    refuse("fixpipe", attributes, "channel_split")
    source, target = inputs[0], outputs[0]
    if enumeration(attributes, "unit_flag_mode", "DISABLED") != "DISABLED" or len(inputs) > 1:
        raise UnsupportedOperationError("fixpipe", "unit flags")
    if enumeration(attributes, "dual_dst_mode", "NO_DUAL") != "NO_DUAL":
        raise UnsupportedOperationError("fixpipe", "dual_dst_mode")
    quant = enumeration(attributes, "pre_quant", "NO_QUANT")
    if _QUANTISED.get((quant, source.element)) != target.element:
        raise UnsupportedOperationError(
            "fixpipe", f"pre_quant {quant} from {source.element} to {target.element}"
        )
    relu = enumeration(attributes, "pre_relu", "NO_RELU")
    if relu not in ("NO_RELU", "NORMAL_RELU"):
        raise UnsupportedOperationError("fixpipe", f"pre_relu {relu}")
    mode = enumeration(attributes, "dma_mode", "normal")
    if attributes.get("enable_nz2nd"):
        mode = "nz2nd"
    if mode == "nz2nd" and (len(source.sizes), len(target.sizes)) == (4, 2):
        if not target.count:
            return
        values = _rows_of(source, *target.sizes)
    elif mode == "normal" and source.sizes == target.sizes and len(source.sizes) == 4:
        values = source.read()
    else:
        raise UnsupportedOperationError("fixpipe", f"dma_mode {mode} from {source} to {target}")
    if relu == "NORMAL_RELU":
        values = np.where(values < 0, np.zeros((), values.dtype), values)
    dtype = memory.DTYPES[target.element]
    target.write(numerics.to_float(values, dtype) if quant != "NO_QUANT" else values)
