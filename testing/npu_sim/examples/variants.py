"""What is compiled for the examples: kernels with argument types and constants. Pure Python.

A table of its own, so that an edit of an example's sizes or expected values compiles nothing.
"""

# Left out, because ascendnpu-ir 1.2.0 or triton-ascend 3.2.0 rejects it:
#
# linear_attention, fp32     arch32  'func.call' op operand type mismatch: expected operand type
#                                    memref<..., address_space<cc>>, but provided ... <cbuf>
# tl.argmax, tl.argmin       arch35  failed to legalize operation 'linalg.reduce' that was
#                                    explicitly marked illegal
# division of uint32         arch32  'hivm.hir.vcast' op currently don't support cast
#                                    uint32_t_to_uint64_t_rintmode
# descriptor to descriptor   both    AssertionError: cannot cast fp32[constexpr[16], constexpr[16]]
#                                    to <[16, 16], fp32>
# atomic_cas with a scalar   both    'tt.atomic_cas' op requires the same shape for all operands and
#                                    results
# fp8                        both    ValueError: unexpected type fp8
#
# Accepted, but not as written: fp_downcast_rounding="rtz" becomes a cast that rounds to nearest;
# `//` of int32 becomes a division of fp32 on arch32, which is wrong beyond 2^24.

import dataclasses
from collections.abc import Iterable, Mapping

BOTH = ("arch32", "arch35")


@dataclasses.dataclass(frozen=True)
class Variant:
    """One kernel to compile.

    function: "module:function". signature: run-time argument -> Triton's type, in the kernel's
    order; no integer is promised to be a multiple of 16 or 1, so one variant serves every size.
    constants: the tl.constexpr arguments. architectures: that the compiler takes it for.
    """

    name: str
    function: str
    signature: Mapping[str, str]
    constants: Mapping[str, int | bool | str]
    architectures: tuple[str, ...] = BOTH


def _signature(text: str) -> dict[str, str]:
    """ "x y: *fp32, size: i32" -> {"x_ptr": "*fp32", "y_ptr": "*fp32", "size": "i32"}."""
    signature = {}
    for group in text.split(","):
        names, _, element = group.partition(":")
        element = element.strip()
        for name in names.split():
            signature[f"{name}_ptr" if element.startswith("*") else name] = element
    return signature


def _variants(
    function: str,
    signature: str,
    elements: Iterable[str],
    constants: Mapping[str, int | bool | str],
    architectures: tuple[str, ...] = BOTH,
) -> Iterable[Variant]:
    """One variant per element type, or "from to" pair of them, which replace {0} and {1}.

    function: "module:function", without what all share. The name is the function's with the types.
    """
    module, _, name = function.partition(":")
    for element in elements:
        types = element.split()
        yield Variant(
            "_".join([name, *types]),
            f"testing.npu_sim.examples.{module}_kernels:{name}",
            _signature(signature.format(*types)),
            constants,
            architectures,
        )


def _matmul(name: str, types: str, a: bool, b: bool, precision: str = "ieee") -> Variant:
    source, result = types.split()
    return Variant(
        f"matmul_{name}",
        "testing.npu_sim.examples.cube_kernels:matmul",
        _signature(f"a b: *{source}, out: *{result}, M N K: i32"),
        {
            **{"BLOCK_M": 32, "BLOCK_N": 48, "BLOCK_K": 32, "PRECISION": precision},
            **{"TRANSPOSE_A": a, "TRANSPOSE_B": b},
        },
    )


CASTS = (
    *("fp32 fp16", "fp32 bf16", "fp16 fp32", "bf16 fp32", "fp16 bf16", "bf16 fp16"),
    *("fp32 i8", "fp32 u8", "fp32 i16", "fp32 i32", "fp32 i64", "fp16 i8", "fp16 i32", "bf16 i32"),
    *("i8 fp32", "u8 fp32", "i16 fp32", "i32 fp32", "i64 fp32", "i8 fp16", "i32 fp16", "i32 bf16"),
    *("i32 i8", "i32 i16", "i32 i64", "i64 i32", "i8 i32", "u8 i32"),
)
_AS_IT_IS = ("",)
_FLOATS = ("fp32", "fp16", "bf16")
_ARITHMETIC = "x y sum difference product quotient fused low high: *{0}, size: i32"
_FUNCTIONS = "x exp log sqrt rsqrt abs sigmoid exp2 log2: *{0}, size: i32"
_INTEGERS = "x y sum difference product low high and or xor not chosen: *{0}, size: i32"
_REDUCTIONS = "x row_sum row_max row_min column_sum column_max total: *{0}, rows columns: i32"
_TILE = {"ROWS": 16, "COLUMNS": 32}

_ALL = (
    # Elementwise.
    *_variants(
        "elementwise:add",
        "x y out: *{0}, size: i32",
        (*_FLOATS, "i8", "i16", "i32", "i64"),
        {"BLOCK": 256},
    ),
    *_variants("elementwise:fill_tail", "x out: *{0}, first last: i32", _FLOATS, {"BLOCK": 64}),
    *_variants("elementwise:store_window", "x out: *{0}, first last: i32", _FLOATS, {"BLOCK": 64}),
    *_variants("elementwise:arithmetic", _ARITHMETIC, _FLOATS, {"BLOCK": 64}),
    *_variants("elementwise:functions", _FUNCTIONS, ("fp32", "fp16"), {"BLOCK": 64}),
    *_variants("elementwise:angles", "x sin cos: *{0}, size: i32", ("fp32",), {"BLOCK": 64}),
    *_variants("elementwise:error_function", "x out: *{0}, size: i32", ("fp32",), {"BLOCK": 64}),
    *_variants("elementwise:tanh", "x out: *{0}, size: i32", ("fp32",), {"BLOCK": 64}),
    *_variants("elementwise:rounded", "x floor ceil: *{0}, size: i32", ("fp32",), {"BLOCK": 64}),
    *_variants("elementwise:nearest", "x out: *{0}, size: i32", ("fp32",), {"BLOCK": 64}),
    *_variants("elementwise:cast", "x: *{0}, out: *{1}, size: i32", CASTS, {"BLOCK": 128}),
    *_variants(
        "elementwise:choose", "x y out code: *{0}, size: i32", ("fp32", "fp16"), {"BLOCK": 64}
    ),
    *_variants(
        "elementwise:inspect",
        "x zeroed: *{0}, positive: *i8, clamped: *{0}, size: i32",
        ("fp32", "fp16"),
        {"BLOCK": 64},
    ),
    *_variants("elementwise:clear_sign", "x out: *{0}, size: i32", ("fp32",), {"BLOCK": 64}),
    *_variants("elementwise:integers", _INTEGERS, ("i32", "i16"), {"BLOCK": 64}),
    *_variants("elementwise:quotient", "x y out: *{0}, size: i32", ("i32",), {"BLOCK": 64}),
    *_variants("elementwise:remainder", "x y out: *{0}, size: i32", ("i32",), {"BLOCK": 64}),
    *_variants("elementwise:shift_left", "x out: *{0}, size: i32", ("i32",), {"BLOCK": 64}),
    *_variants("elementwise:shift_right", "x out: *{0}, size: i32", ("i32",), {"BLOCK": 64}),
    *_variants("elementwise:random", "out: *fp32, seed size: i32", _AS_IT_IS, {"BLOCK": 64}),
    # Movement.
    *_variants("movement:every_second", "x out: *{0}, size: i32", ("fp32", "fp16"), {"BLOCK": 64}),
    *_variants(
        "movement:strided",
        "x out: *{0}, x_stride out_stride size: i32",
        ("fp32", "fp16"),
        {"BLOCK": 64},
    ),
    *_variants(
        "movement:gather", "x: *fp32, index: *i32, out: *fp32, size: i32", _AS_IT_IS, {"BLOCK": 64}
    ),
    *_variants(
        "movement:permute", "x: *{0}, index: *i32, out: *{0}", ("fp32", "fp16"), {"BLOCK": 64}
    ),
    *_variants("movement:reverse", "x out: *{0}", ("fp32", "fp16"), {"BLOCK": 64}),
    *_variants("movement:sort", "x out: *{0}", ("fp32", "fp16"), {"BLOCK": 64}),
    *_variants("movement:concatenate", "x y out: *{0}", ("fp32",), {"BLOCK": 64}),
    *_variants(
        "movement:transpose",
        "x out: *{0}, rows columns: i32",
        ("fp32", "fp16", "i32", "i8"),
        _TILE,
    ),
    *_variants("movement:swap_leading", "x out: *{0}", ("fp32", "fp16"), {"A": 4, "B": 8, "C": 32}),
    *_variants("movement:split_pairs", "x even odd: *{0}", _FLOATS, {"ROWS": 16, "COLUMNS": 64}),
    *_variants("movement:join_pairs", "even odd out: *{0}", _FLOATS, {"ROWS": 16, "COLUMNS": 64}),
    *_variants(
        "movement:window",
        "x out: *{0}, rows columns row_stride out_stride: i32",
        ("fp32",),
        _TILE,
    ),
    *_variants(
        "movement:add_atomically", "x total: *{0}, size: i32", ("fp32", "i32"), {"BLOCK": 64}
    ),
    *_variants("movement:largest_atomically", "x out: *{0}", ("fp32", "i32"), {"BLOCK": 64}),
    *_variants("movement:total_atomically", "x out: *{0}", ("fp32",), {"BLOCK": 64}),
    # Rows.
    *_variants("row:softmax", "x out: *{0}, columns: i32", ("fp32", "fp16"), {"BLOCK": 128}),
    *_variants(
        "row:softmax_tile", "x out: *{0}, rows columns: i32", ("fp32",), {"ROWS": 16, "COLUMNS": 64}
    ),
    *_variants(
        "row:layer_norm",
        "x weight bias out: *{0}, mean scale: *fp32, columns: i32, epsilon: fp32",
        ("fp32", "bf16"),
        {"BLOCK": 128},
    ),
    *_variants("row:reductions", _REDUCTIONS, ("fp32", "fp16", "i32"), _TILE),
    *_variants(
        "row:argmax_rows",
        "x: *{0}, max min: *i32, columns: i32",
        ("fp32",),
        {"ROWS": 8, "COLUMNS": 32},
        ("arch32",),
    ),
    *_variants("row:cumsum_vector", "x out: *{0}, size: i32", ("fp32",), {"BLOCK": 64}),
    *(
        dataclasses.replace(variant, name=f"{variant.name}_{axis}")
        for axis, elements in ((0, ("fp32", "fp16", "i32")), (1, ("fp32",)))
        for variant in _variants(
            "row:cumsum_matrix", "x out: *{0}, rows columns: i32", elements, {**_TILE, "AXIS": axis}
        )
    ),
    *_variants("row:cumprod_matrix", "x out: *{0}", ("fp32",), _TILE),
    *_variants("row:xor_rows", "x out: *{0}", ("i32",), _TILE),
    *_variants("row:sum_middle", "x out: *{0}", ("fp32",), {"A": 4, "B": 8, "C": 32}),
    *_variants(
        "row:broadcast", "x row column out: *{0}, rows columns: i32", ("fp32", "fp16"), _TILE
    ),
    *_variants("row:outer_product", "x y out: *{0}", ("fp32",), _TILE),
    *_variants("row:scan", "x out: *fp32", _AS_IT_IS, {"BLOCK": 64}),
    *_variants("row:product_rows", "x out: *fp32", _AS_IT_IS, _TILE),
    *_variants("row:histogram", "x out: *i32", _AS_IT_IS, {"BLOCK": 64, "BINS": 16}),
    # Control.
    *_variants("control:grid_2d", "out: *i32", _AS_IT_IS, {"BLOCK": 16}),
    *_variants("control:grid_3d", "x out: *fp32, size: i32", _AS_IT_IS, {"BLOCK": 32}),
    *_variants(
        "control:persistent",
        "x out: *fp32, size tasks: i32",
        _AS_IT_IS,
        {"BLOCK": 64, "PROGRAMS": 3},
    ),
    *_variants(
        "control:recurrence", "x decay out last: *fp32, length: i32", _AS_IT_IS, {"BLOCK": 64}
    ),
    *_variants(
        "control:rows_of_a_table",
        "x: *fp32, start length: *i32, out: *fp32",
        _AS_IT_IS,
        {"BLOCK": 64},
    ),
    *_variants("control:branch", "x out: *fp32, threshold: i32", _AS_IT_IS, {"BLOCK": 64}),
    *_variants("control:blocked_sum", "x out: *fp32, size: i32", _AS_IT_IS, {"BLOCK": 64}),
    *_variants("control:halving", "x out: *i32", _AS_IT_IS, {"BLOCK": 16}),
    # Cube.
    _matmul("fp16", "fp16 fp32", False, False),
    _matmul("fp16_ta", "fp16 fp16", True, False),
    _matmul("bf16_tb", "bf16 bf16", False, True),
    _matmul("bf16_ta_tb", "bf16 fp32", True, True),
    _matmul("fp32", "fp32 fp32", False, False),
    _matmul("fp32_ta", "fp32 fp32", True, False),
    _matmul("fp32_tb", "fp32 fp32", False, True),
    _matmul("fp32_ta_tb", "fp32 fp32", True, True),
    _matmul("hf32", "fp32 fp32", False, False, "hf32"),
    *_variants(
        "cube:product", "x y: *{0}, out: *{1}", ("fp16 fp32", "i8 i32"), {"M": 64, "N": 48, "K": 96}
    ),
    *_variants("cube:batched_product", "x y: *{0}, out: *fp32", ("fp16",), {"B": 2, "N": 32}),
    *_variants(
        "cube:sums_of_products", "x y: *{0}, out: *fp32, tasks steps: i32", ("fp16",), {"N": 32}
    ),
    *_variants("cube:linear", "x weight bias out: *{0}", _FLOATS, {"M": 64, "N": 48, "K": 32}),
    *_variants(
        "cube:scaled_operand", "x scale y: *{0}, out: *fp32", ("fp16", "fp32"), {"M": 32, "N": 48}
    ),
    *_variants("cube:masked_attention", "q k v out: *{0}", _FLOATS, {"T": 32, "D": 64}),
    *_variants(
        "cube:softmax_attention",
        "q k v: *{0}, out: *fp32, keys: i32, scale: fp32",
        ("fp16",),
        {"T": 32, "D": 64},
    ),
    *(
        dataclasses.replace(variant, name=f"{name}_{variant.name}")
        for name, decay in (("plain", False), ("decaying", True))
        for variant in _variants(
            "cube:linear_attention",
            "q k v: *{0}, out state: *fp32, chunks: i32",
            ("fp16", "bf16"),
            {"T": 32, "D": 64, "DECAY": decay},
        )
    ),
)
VARIANTS = {variant.name: variant for variant in _ALL}
