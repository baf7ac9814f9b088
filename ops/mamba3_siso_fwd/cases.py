"""The case table of mamba3_siso_fwd: shapes, dtypes, memory layouts and input distributions.

Half of the cases draw uniform inputs, half are model-like (unit q and k, log-spaced decays and
steps, accumulated angles). `ci` cases are sized for Triton's interpreter, `full` cases for devices;
`perf` are the six shapes of the op's performance table.
"""

import math
from typing import Any

from testing import cases
from testing import distributions as dist

OP = "mamba3_siso_fwd"

# Eight turns: what an accumulated angle reaches before a model reduces it.
_EIGHT_TURNS = 16 * math.pi

# Distributions per style. Steps and biases are sized so that outputs are O(1) to O(10).
_UNIFORM: dict[str, Any] = {
    "q": dist.Uniform(-5, 5),
    "k": dist.Uniform(-5, 5),
    "v": dist.Uniform(-5, 5),
    "adt": dist.Uniform(-2, 0),
    "dt": dist.Uniform(-0.1, 0.1),
    "trap": dist.Uniform(-5, 5),
    "q_bias": dist.Uniform(-1, 1),
    "k_bias": dist.Uniform(-1, 1),
    "angles": dist.Uniform(-_EIGHT_TURNS, _EIGHT_TURNS),
    "d": dist.Uniform(-1, 1),
    "z": dist.Uniform(-5, 5),
}
_MODEL: dict[str, Any] = {
    "q": dist.UnitVectors(),
    "k": dist.UnitVectors(),
    "v": dist.Normal(),
    "adt": dist.Octaves(-9, -1, sign=-1.0),
    "dt": dist.Octaves(-7, -2),
    "trap": dist.Normal(0, 2),
    "q_bias": dist.Normal(0, 0.3),
    "k_bias": dist.Normal(0, 0.3),
    "angles": dist.Accumulated(dist.Uniform(-1.5, 1.5), axis=1, modulus=2 * math.pi),
    "d": dist.Normal(),
    "z": dist.Normal(),
}
_STYLES = {"uniform": _UNIFORM, "model": _MODEL}
_FP16 = "float16"
_BF16 = "bfloat16"


def _case(
    name: str,
    sizes: tuple[int, int, int, int, int, int, int],
    dtype: str,
    style: str,
    *,
    d: bool = True,
    z: bool = True,
    chunk_size: int = 64,
    values: dict[str, Any] | None = None,
    layout: str = "contiguous",
    bias_dtype: str = "float32",
    tags: tuple[str, ...] = ("ci",),
) -> cases.Case:
    """One row: sizes are (B, S, Hq, H, K, V, A); `values` replaces distributions of the style."""
    b, s, hq, heads, k_dim, v_dim, pairs = sizes
    drawn = _STYLES[style] | (values or {})
    shapes: dict[str, tuple[tuple[int, ...], str]] = {
        "q": ((b, s, hq, k_dim), dtype),
        "k": ((b, s, hq, k_dim), dtype),
        "v": ((b, s, heads, v_dim), dtype),
        "adt": ((b, heads, s), "float32"),
        "dt": ((b, heads, s), "float32"),
        "trap": ((b, heads, s), "float32"),
        "q_bias": ((heads, k_dim), bias_dtype),
        "k_bias": ((heads, k_dim), bias_dtype),
        "angles": ((b, s, heads, pairs), "float32"),
        "d": ((heads,), "float32"),
        "z": ((b, s, heads, v_dim), dtype),
    }
    tensors: dict[str, cases.TensorSpec | None] = {
        # Layouts that need three axes leave the biases and d contiguous.
        key: cases.TensorSpec(shape, kind, drawn[key], layout if len(shape) > 2 else "contiguous")
        for key, (shape, kind) in shapes.items()
    }
    if not d:
        tensors["d"] = None
    if not z:
        tensors["z"] = None
    return cases.Case(OP, name, tensors, {"chunk_size": chunk_size}, frozenset(tags))


# What users of the op quote: B=1, S=128, Hq=2, H=4, K=64, V=96, A=K/2.
EXAMPLE = _case("example", (1, 128, 2, 4, 64, 96, 32), _FP16, "model")

_SMALL = (1, 70, 1, 2, 64, 32, 16)  # two tiles, the second one nearly empty

_SHAPES = (
    EXAMPLE,
    _case("example_bf16", (1, 128, 2, 4, 64, 96, 32), _BF16, "uniform"),
    _case("s1", (3, 1, 1, 2, 64, 64, 16), _FP16, "uniform"),
    _case("s31", (2, 31, 1, 2, 64, 64, 32), _BF16, "model", z=False),
    _case("s33", (1, 33, 2, 2, 64, 64, 16), _FP16, "model", d=False, chunk_size=32),
    _case("s63", (1, 63, 1, 2, 64, 64, 32), _BF16, "uniform", d=False, z=False),
    _case("s65", (1, 65, 1, 2, 64, 64, 32), _FP16, "uniform", z=False),
    _case("s100", (1, 100, 1, 2, 128, 64, 32), _BF16, "model"),
    _case("s2345", (1, 2345, 1, 1, 64, 32, 16), _FP16, "model"),
    _case("h10_s50", (1, 50, 1, 10, 32, 16, 8), _BF16, "uniform"),
    _case("hq2_h6_v33", (2, 40, 2, 6, 64, 33, 32), _FP16, "uniform", chunk_size=32),
    _case("v16", (1, 64, 1, 2, 64, 16, 16), _FP16, "model", d=False, z=False),
    _case("v33_bf16", (1, 96, 1, 2, 64, 33, 16), _BF16, "model", chunk_size=32),
    _case("k128_v96", (1, 96, 1, 2, 128, 96, 64), _FP16, "uniform"),
    _case("k128_chunk32", (1, 80, 2, 2, 128, 128, 32), _BF16, "uniform", chunk_size=32),
    _case("k256", (1, 48, 1, 1, 256, 48, 64), _FP16, "model"),
    _case("k96_v80", (1, 65, 1, 2, 96, 80, 24), _FP16, "model", bias_dtype="float64"),
    _case("k17_v1", (2, 37, 1, 2, 17, 1, 8), _BF16, "uniform", bias_dtype="bfloat16"),
    _case("no_rotation", (1, 70, 1, 2, 64, 32, 0), _FP16, "uniform", bias_dtype="float16"),
    _case("a2", (1, 70, 2, 4, 64, 32, 2), _BF16, "model"),
    _case("no_tokens", (2, 0, 1, 2, 64, 32, 16), _FP16, "uniform"),
)

_VALUES = (
    _case(
        "angle_3e_4", _SMALL, _FP16, "model", values={"angles": dist.Cycle((3e-4, -3e-4), axis=1)}
    ),
    _case(
        "angle_quarter_turns",
        _SMALL,
        _FP16,
        "uniform",
        values={"angles": dist.Cycle(tuple(n * math.pi / 2 for n in range(-16, 17)), axis=1)},
    ),
    _case("adt_88", _SMALL, _FP16, "model", values={"adt": dist.Constant(-88.0)}),
    _case("adt_1e4", _SMALL, _BF16, "uniform", values={"adt": dist.Constant(-1e4)}),
    _case("adt_1e9", _SMALL, _FP16, "uniform", values={"adt": dist.Constant(-1e9)}),
    _case("adt_0", _SMALL, _BF16, "model", values={"adt": dist.Constant(0.0)}),
    _case(
        "adt_inf",
        _SMALL,
        _FP16,
        "uniform",
        values={"adt": dist.Sprinkled(dist.Uniform(-0.5, 0), -math.inf, 0.1)},
    ),
    _case(
        "adt_every_other_reset",
        _SMALL,
        _FP16,
        "uniform",
        values={"adt": dist.Cycle((-130.3, -0.01)), "trap": dist.Constant(-6.0)},
        d=False,
    ),
    _case("adt_positive", _SMALL, _FP16, "model", values={"adt": dist.Uniform(-0.1, 0.2)}),
    _case("dt_0", _SMALL, _BF16, "uniform", values={"dt": dist.Constant(0.0)}),
    _case(
        "dt_1e_4",
        _SMALL,
        _FP16,
        "model",
        values={"dt": dist.Octaves(-15, -12), "v": dist.Normal(0, 100)},
        d=False,
        z=False,
    ),
    _case(
        "trap_saturated",
        _SMALL,
        _FP16,
        "uniform",
        values={"trap": dist.Cycle((-200.0, 200.0, 0.0))},
    ),
)

_LAYOUTS = (
    _case("slice", (2, 70, 2, 2, 64, 32, 16), _FP16, "uniform", layout="slice"),
    _case("permuted", (2, 40, 2, 4, 64, 32, 16), _BF16, "model", layout="permuted"),
    _case("strided", (1, 40, 1, 2, 64, 32, 16), _FP16, "model", layout="strided"),
    _case("odd_strides", (1, 1, 1, 1, 64, 32, 16), _FP16, "uniform", layout="odd"),
)

_FULL = ("full",)
_PERF = ("full", "perf")

_DEVICE = (
    _case("perf_b8_s4096", (8, 4096, 1, 32, 128, 64, 32), _BF16, "model", tags=_PERF),
    _case("perf_b1_s4096", (1, 4096, 1, 32, 128, 64, 32), _BF16, "model", tags=_PERF),
    _case("perf_b1_s32768", (1, 32768, 1, 32, 128, 64, 32), _BF16, "model", tags=_PERF),
    _case("perf_b4_s2048", (4, 2048, 8, 32, 64, 64, 16), _BF16, "model", tags=_PERF),
    _case("perf_b2_s2048_v128", (2, 2048, 4, 16, 128, 128, 32), _BF16, "model", tags=_PERF),
    _case("perf_b1_s128", (1, 128, 2, 4, 64, 96, 16), _BF16, "model", tags=_PERF),
    _case("full_b8_s4096_fp16", (8, 4096, 1, 32, 128, 64, 32), _FP16, "model", tags=_FULL),
    _case("full_b4_s2048_fp16", (4, 2048, 8, 32, 64, 64, 32), _FP16, "uniform", tags=_FULL),
    _case("full_b2_s2048_v128_fp16", (2, 2048, 4, 16, 128, 128, 64), _FP16, "uniform", tags=_FULL),
    _case("full_b2_s2345", (2, 2345, 2, 6, 96, 80, 48), _FP16, "model", tags=_FULL, chunk_size=32),
    _case("full_k256", (2, 1000, 1, 8, 256, 128, 64), _BF16, "uniform", tags=_FULL),
    # 65536 tiles of work: one program each would be refused on Ascend.
    _case("full_b2048_s1", (2048, 1, 1, 32, 64, 64, 16), _FP16, "uniform", tags=_FULL),
)

CASES = (*_SHAPES, *_VALUES, *_LAYOUTS, *_DEVICE)
