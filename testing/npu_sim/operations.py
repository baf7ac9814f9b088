"""The table of the pipe operations `hivm.hir.*`: pipe, semantics, cost class and source of each.

`mmadL1` is not here: it becomes several tasks, see `cube`. What a `source` calls a file is in the
public repository Ascend/AscendNPU-IR: `*.td` in `bishengir/include/bishengir/Dialect/HIVM/IR/`,
`*.cpp` and `*.h` in `bishengir/lib/Template/`.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from testing.npu_compile import ir
from testing.npu_sim import memory, transfers, vector_operations, vector_shapes
from testing.npu_sim.findings import UnsupportedOperationError


@dataclasses.dataclass(frozen=True)
class Semantics:
    """One operation.

    pipe: V, MTE2, MTE3 or FIX; see pipe_of. run: reads the inputs (views or scalars) and writes the
    outputs. cost: a class of `timing`. source: where the semantics were taken from, or "guess: …".
    form: its operands in order, see layout.
    """

    pipe: str
    run: Callable[[Mapping[str, Any], Sequence[Any], Sequence[memory.View]], None]
    cost: str
    source: str
    form: str


@dataclasses.dataclass(frozen=True)
class Layout:
    """Positions of an operation's operands. inputs include scalars."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    temporaries: tuple[int, ...]


# Operands in the order of the definitions: i input, o output, t temporary. Without
# operandSegmentSizes each stands for one operand, and those at the end may be missing; a `*` takes
# all that remain.
_ELEMENTWISE_FORM = "iot"
_ELEMENTWISE_SOURCE = "HIVMVectorOps.td; Vector/Elementwise/EltWise1D.cpp"
_APPROXIMATE = (
    "HIVMVectorOps.td; guess: the accuracy of the hardware's function is not published, NumPy's of "
    "float32 is taken"
)
_SLOW = ("vdiv", "vmod", "vexp", "vln", "vsqrt", "vrsqrt", "vrec", "vpow")
_ELEMENTWISE_SOURCES = {
    "vexp": _APPROXIMATE,
    "vln": _APPROXIMATE,
    "vsqrt": _APPROXIMATE,
    "vrsqrt": _APPROXIMATE,
    "vrec": _APPROXIMATE,
    "vdiv": "HIVMVectorOps.td; guess: correctly rounded; integers to zero, by zero 0",
    "vmod": "HIVMVectorOps.td; guess: the remainder is exact",
    "vmax": "HIVMVectorOps.td; guess: NaN if either operand is (stated for vreduce only)",
    "vmin": "HIVMVectorOps.td; guess: NaN if either operand is (stated for vreduce only)",
    "vshr": "Elementwise: vshr intrinsic with round 0; guess: arithmetic for signed types",
    "vcmp": "HIVMVectorOps.td; Vector/CmpSel/Cmp1D.cpp; bits of i1 from the lowest: Utils.h",
    "vsel": "HIVMVectorOps.td; Vector/CmpSel/Sel1D.cpp",
    "vcast": "HIVMVectorOps.td; Vector/Cast/Cast1D.cpp; guess: beyond the largest to infinity",
    "vmulext": "HIVMVectorOps.td",
    "vpow": "HIVMVectorOps.td; guess: a negative exponent gives the truncated fraction",
}
_SCALAR_BY_NATURE = ("vmulext", "vmod", "vpow")  # no vector instruction: element by element


def _elementwise(name: str) -> Semantics:
    cost = "vector_slow" if name in _SLOW else "vector"
    return Semantics(
        "V",
        vector_operations.ELEMENTWISE[name],
        "vector_scalar" if name in _SCALAR_BY_NATURE else cost,
        _ELEMENTWISE_SOURCES.get(name, _ELEMENTWISE_SOURCE),
        _ELEMENTWISE_FORM,
    )


TABLE: Mapping[str, Semantics] = {
    **{name: _elementwise(name) for name in vector_operations.ELEMENTWISE},
    "load": Semantics(
        "MTE2",
        transfers.load,
        "dma",
        "HIVMDMAOps.td; lib/DMA/Ubuf/Copy1D.cpp, DMAUtils.h",
        "ioiiii",
    ),
    "store": Semantics(
        "MTE3", transfers.store, "dma", "HIVMDMAOps.td; lib/DMA/Ubuf/Copy1D.cpp", "io"
    ),
    "nd2nz": Semantics(
        "MTE2",
        transfers.nd2nz,
        "dma",
        "HIVMDMAOps.td; lib/DMA/Cbuf/nd2nz.cpp; guess: tail columns become zero, tail rows stay",
        "ioii",
    ),
    "nz2nd": Semantics("MTE3", transfers.nz2nd, "dma", "HIVMDMAOps.td", "io"),
    "fixpipe": Semantics(
        "FIX",
        transfers.fixpipe,
        "fixpipe",
        "HIVMDMAOps.td; lib/Fixpipe/Fixpipe.cpp; guess: rounds to even, beyond the largest to "
        "infinity",
        "ioii",
    ),
    "copy": Semantics("V", transfers.copy, "copy", "HIVMDMAOps.td; include/DMA/DMAUtils.h", "ioi"),
    "vbrc": Semantics(
        "V",
        vector_shapes.broadcast,
        "vector",
        "HIVMVectorOps.td; into L1: lib/DMA/Cbuf/set2d.cpp, whole blocks",
        "iot",
    ),
    "vreduce": Semantics(
        "V",
        vector_shapes.reduce,
        "vector_reduce",
        "HIVMVectorOps.td; Vector/Reduction/ReduceAR.cpp, ReduceRA.cpp, ReductionUtils.h",
        "iot",
    ),
    "vcumsum": Semantics(
        "V",
        vector_shapes.cumulative("vcumsum", np.add),
        "vector_scan",
        "HIVMVectorOps.td; Vector/Cumulative/CumsumRA.cpp",
        "iot",
    ),
    "vcumprod": Semantics(
        "V",
        vector_shapes.cumulative("vcumprod", np.multiply),
        "vector_scan",
        "HIVMVectorOps.td; Vector/Cumulative/CumprodRA.cpp",
        "iot",
    ),
    "vdeinterleave": Semantics(
        "V",
        vector_shapes.deinterleave,
        "vector",
        "HIVMVectorOps.td; Vector/Deinterleave/Deinterleave1D.cpp",
        "io*",
    ),
    "vinterleave": Semantics(
        "V",
        vector_shapes.interleave,
        "vector_slow",
        "HIVMVectorOps.td; Vector/Interleave/Interleave1D.cpp",
        "iot",
    ),
    "vtranspose": Semantics(
        "V",
        vector_shapes.transpose,
        "vector_transpose",
        "HIVMVectorOps.td; Vector/Transpose/Transpose2D.cpp",
        "iot",
    ),
    "varange": Semantics(
        "V",
        vector_shapes.arange,
        "vector_slow",
        "HIVMVectorOps.td; Vector/Arange/Arange2D.cpp",
        "oii",
    ),
    "vgather": Semantics(
        "V",
        vector_shapes.gather,
        "vector_gather",
        "HIVMVectorOps.td; Vector/Gather/Gather1D.cpp",
        "iiot",
    ),
    "vflip": Semantics(
        "V",
        vector_shapes.flip,
        "vector_gather",
        "HIVMVectorOps.td; Vector/Gather/Flip1D.cpp",
        "io",
    ),
    "vsort": Semantics(
        "V",
        vector_shapes.sort,
        "vector_sort",
        "HIVMVectorOps.td; guess: stable, NaN last in ascending order",
        "iot",
    ),
    "vmulextended": Semantics(
        "V",
        vector_shapes.multiply_extended,
        "vector_slow",
        "HIVMVectorOps.td; Vector/MulExtended/MulExtended1D.cpp",
        "iot",
    ),
}

# What arch35's library does in another way.
_ARCH35: Mapping[str, Semantics] = {
    "load": dataclasses.replace(
        TABLE["load"],
        run=transfers.load_arch35,
        source="HIVMDMAOps.td; include/RegBase/DMAUtils.h; guess: bursts may start anywhere",
    )
}


def semantics(name: str, arch35: bool = False) -> Semantics:
    """What an operation of the table does on an architecture."""
    return _ARCH35[name] if arch35 and name in _ARCH35 else TABLE[name]


def layout(operation: ir.Operation) -> Layout:
    """Which operands of an operation are inputs, outputs and temporaries.

    Raises:
        UnsupportedOperationError: an operation that is not in the table, or has other operands.
    """
    name = operation.name.removeprefix("hivm.hir.")
    if name not in TABLE:
        raise UnsupportedOperationError(name, "it is not in the table of operations.py")
    form, count = TABLE[name].form, len(operation.operands)
    found: dict[str, list[int]] = {"i": [], "o": [], "t": []}
    segments = operation.attributes.get("operandSegmentSizes")
    if segments is None:
        if form.endswith("*"):
            form = form[:-1] + form[-2] * (count - len(form) + 1)
        segments = [1] * count
    kinds = form.removesuffix("*")
    if sum(segments) != count or any(segments[len(kinds) :]):
        raise UnsupportedOperationError(name, f"{count} operands in groups {list(segments)}")
    position = 0
    for kind, size in zip(kinds, segments, strict=False):
        found[kind] += range(position, position + size)
        position += size
    if not found["o"]:
        raise UnsupportedOperationError(name, f"{count} operands, none of them an output")
    return Layout(tuple(found["i"]), tuple(found["o"]), tuple(found["t"]))


def pipe_of(name: str, outputs: Sequence[memory.View]) -> str:
    """The pipe that executes it. Into L1 the transfer engines do it, whatever it is called (source:
    VBrcOp::getPipe, CopyOp::getPipe of the repository)."""
    if outputs and outputs[0].memory.space == "cbuf":
        if name == "vbrc":
            return "MTE2"
        if name == "copy":
            return "MTE3"
    return TABLE[name].pipe


def is_atomic(operation: ir.Operation) -> bool:
    """Whether it adds to what is in global memory instead of replacing it."""
    return transfers.enumeration(operation.attributes, "atomic_kind", "none") != "none"
