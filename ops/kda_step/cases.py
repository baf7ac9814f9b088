"""The case table of kda_step.

About half of the rows draw uniform inputs, half are model-like (unit q and k, log-spaced decays).
`ci` rows are sized for Triton's interpreter, `full` rows for devices; `perf` are the shapes of the
performance table. Rows tagged `npu` are compiled for Ascend and simulated: every shape, dtype and
flag makes a kernel of its own.
"""

import math
from typing import Any

from testing import cases
from testing import distributions as dist

OP = "kda_step"
FP16, BF16, FP32 = "float16", "bfloat16", "float32"
CI, NPU, FULL, PERF = ("ci",), ("ci", "npu"), ("full",), ("full", "perf")


def _uniform(k_dim: int) -> dict[str, Any]:
    # The write k k^T must not grow the state: |k|^2 is 1 on average.
    side = math.sqrt(3 / k_dim)
    return {
        "q": dist.Uniform(-5, 5),
        "k": dist.Uniform(-side, side),
        "v": dist.Uniform(-5, 5),
        "log_gate": dist.Uniform(-1, 0),
        "raw_gate": dist.Uniform(-5, 5),
        "beta": dist.Uniform(0, 1),
        "state": dist.Uniform(-2, 2),
        "A_log": dist.Uniform(-2, 1),
        "dt_bias": dist.Uniform(-2, 2),
    }


def _model(k_dim: int) -> dict[str, Any]:
    return {
        "q": dist.UnitVectors(math.sqrt(k_dim)),  # scale takes the root out again
        "k": dist.UnitVectors(),
        "v": dist.Normal(),
        "log_gate": dist.Octaves(-10, 0, sign=-1.0),
        "raw_gate": dist.Normal(0, 2),
        "beta": dist.Uniform(0.05, 0.95),
        "state": dist.Normal(),
        "A_log": dist.Uniform(0, 2.8),  # log of 1 to 16, as models start
        "dt_bias": dist.Normal(-4, 1.5),
    }


_STYLES = {"uniform": _uniform, "model": _model}


def _row(
    name: str,
    sizes: tuple[int, int, int, int, int],  # B, H, HV, K, V
    dtype: str,
    style: str,
    *,
    gate: str = "given",
    rate: bool = True,
    bias: bool = True,
    l2norm: bool = False,
    beta_logits: bool = False,
    doubled: bool = False,
    small_dtype: str = FP32,
    indices: tuple[int, ...] | None = None,
    pool: int | None = None,
    scale: float | None = None,
    values: dict[str, Any] | None = None,
    layout: str = "contiguous",
    tags: tuple[str, ...] = CI,
) -> cases.Case:
    """gate: "given", "softplus" or "bounded". doubled: twice the sigmoid of beta's logits.
    small_dtype: of g and beta. indices: repeated to the batch, into a pool of `pool` states.
    layout: of q, k, v and g."""
    b, heads, value_heads, k_dim, v_dim = sizes
    drawn = _STYLES[style](k_dim)
    in_kernel = gate != "given"
    drawn["g"] = drawn["raw_gate"] if in_kernel else drawn["log_gate"]
    if beta_logits:
        drawn["beta"] = dist.Normal(0, 2)
    if indices is not None:
        drawn["state_indices"] = dist.Cycle(tuple(map(float, indices)))
    drawn |= values or {}
    shapes: dict[str, tuple[tuple[int, ...], str] | None] = {
        "q": ((b, heads, k_dim), dtype),
        "k": ((b, heads, k_dim), dtype),
        "v": ((b, value_heads, v_dim), dtype),
        "g": ((b, value_heads, k_dim), small_dtype),
        "beta": ((b, value_heads), small_dtype),
        "state": ((pool or b, value_heads, k_dim, v_dim), FP32),
        "state_indices": None if indices is None else ((b,), "int32"),
        "A_log": ((value_heads,), FP32) if in_kernel and rate else None,
        "dt_bias": ((value_heads * k_dim,), FP32) if in_kernel and bias else None,
    }
    return cases.Case(
        OP,
        name,
        {
            key: shape_and_dtype
            and cases.TensorSpec(
                *shape_and_dtype, drawn[key], layout if key in "qkvg" else "contiguous"
            )
            for key, shape_and_dtype in shapes.items()
        },
        {
            "scale": scale,
            "use_qk_l2norm_in_kernel": l2norm,
            "use_gate_in_kernel": in_kernel,
            "use_beta_sigmoid_in_kernel": beta_logits,
            "allow_neg_eigval": doubled,
            "lower_bound": -5.0 if gate == "bounded" else None,
        },
        frozenset(tags),
    )


_MODEL = (4, 2, 4, 64, 64)
_WHOLE: dict[str, Any] = {"l2norm": True, "beta_logits": True}  # what a model's decoder asks for
# Two of eight states are used by nobody, two tokens are padding.
_SLOTS: dict[str, Any] = {"indices": (5, -1, 0, 7, 2, -3, 6, 3), "pool": 8}

# What users of the op quote.
EXAMPLE = _row("example", _MODEL, FP16, "model", gate="softplus", **_WHOLE, tags=NPU)

_SIZES = (
    EXAMPLE,
    _row("given", _MODEL, FP16, "uniform"),
    _row("b1", (1, 1, 1, 32, 32), FP32, "uniform", tags=NPU),
    _row("b17_grouped", (17, 2, 6, 32, 16), FP16, "model"),
    _row("k1_v1", (3, 1, 2, 1, 1), FP32, "uniform", tags=NPU),
    _row("k17_v5", (3, 2, 2, 17, 5), FP32, "uniform", tags=NPU),
    _row("k60_v100", (2, 2, 2, 60, 100), FP16, "model"),
    _row("k96_v64", (2, 1, 2, 96, 64), BF16, "model"),
    _row("k100_v60", (2, 2, 2, 100, 60), FP16, "uniform", tags=NPU),
    _row("k128", (2, 2, 4, 128, 128), BF16, "model", gate="bounded", **_WHOLE, **_SLOTS, tags=NPU),
    _row("k256_v256", (2, 1, 1, 256, 256), BF16, "model", tags=NPU),
    _row("k32_v256", (2, 2, 2, 32, 256), FP32, "model"),
    _row("k256_v32", (2, 2, 2, 256, 32), FP16, "uniform"),
    _row("heads_48", (2, 48, 96, 16, 16), FP16, "uniform"),
)

_FLAGS = (
    _row("softplus", _MODEL, FP32, "uniform", gate="softplus"),
    _row("softplus_no_bias", _MODEL, FP16, "model", gate="softplus", bias=False),
    _row("bounded", _MODEL, FP16, "model", gate="bounded"),
    _row("bounded_no_rate", _MODEL, FP32, "uniform", gate="bounded", rate=False),
    _row("bounded_bare", _MODEL, FP32, "model", gate="bounded", rate=False, bias=False),
    _row("l2norm", _MODEL, FP32, "uniform", l2norm=True),
    _row("beta_logits", _MODEL, FP32, "uniform", beta_logits=True),
    _row("doubled", _MODEL, FP32, "uniform", beta_logits=True, doubled=True, tags=NPU),
    _row("halves", _MODEL, FP16, "model", gate="softplus", small_dtype=FP16),
    _row("bf16_gate", _MODEL, BF16, "uniform", small_dtype=BF16),
)

_POOL = (
    _row("slots", (8, 1, 2, 32, 32), FP32, "uniform", **_SLOTS, tags=NPU),
    _row("slots_half", (8, 2, 2, 64, 64), FP16, "model", gate="softplus", **_WHOLE, **_SLOTS),
    _row("shared_slot", (4, 1, 2, 32, 32), FP32, "model", indices=(1, 1, 0, 1), pool=2, tags=NPU),
    _row("all_padding", (3, 1, 2, 32, 32), FP32, "model", indices=(-1,), pool=2, tags=NPU),
)

_VALUES = (
    _row("masked", _MODEL, FP16, "model", values={"g": dist.Cycle((-1000.0, -0.3, -0.02))}),
    _row("gate_5", _MODEL, FP32, "uniform", values={"g": dist.Constant(-5.0)}),
    _row("gate_0", _MODEL, FP16, "uniform", values={"g": dist.Constant(0.0)}, tags=NPU),
    _row("beta_0", _MODEL, FP16, "uniform", values={"beta": dist.Constant(0.0)}),
    _row("beta_1", _MODEL, FP16, "model", values={"beta": dist.Constant(1.0)}),
    _row("scale_0", _MODEL, FP16, "uniform", scale=0.0),
    _row("scale_negative", _MODEL, FP32, "uniform", scale=-0.3),
    _row("first_token", _MODEL, FP16, "model", values={"state": dist.Constant(0.0)}),
    _row(
        "steep_rate",
        _MODEL,
        FP32,
        "uniform",
        gate="bounded",
        values={"A_log": dist.Cycle((100.0, -200.0, 88.0))},
        tags=NPU,
    ),
    _row("steep_gate", _MODEL, FP32, "uniform", gate="softplus", values={"g": dist.Normal(0, 60)}),
    _row("zero_k", _MODEL, FP32, "uniform", l2norm=True, values={"k": dist.Constant(0.0)}),
)

_LAYOUTS = (
    _row("sliced", _MODEL, FP16, "uniform", layout="slice", tags=NPU),
    _row("permuted", _MODEL, FP16, "model", layout="permuted"),
    _row("strided", _MODEL, FP16, "uniform", layout="strided"),
    _row("odd", (1, 1, 1, 64, 64), FP16, "model", layout="odd"),
)

_DEVICE = (
    *(
        _row(f"full_{dtype}_{gate}", (33, 4, 8, 128, 128), dtype, "model", gate=gate, tags=FULL)
        for dtype in (FP16, BF16, FP32)
        for gate in ("given", "softplus", "bounded")
    ),
    _row("full_slots", (64, 8, 8, 128, 128), BF16, "model", **_WHOLE, **_SLOTS, tags=FULL),
    _row("full_k256", (17, 4, 4, 256, 256), FP16, "uniform", tags=FULL),
    *(
        _row(
            f"perf_b{b}", (b, 32, 32, 128, 128), BF16, "model", gate="softplus", **_WHOLE, tags=PERF
        )
        for b in (1, 16, 128)
    ),
)

CASES = (*_SIZES, *_FLAGS, *_POOL, *_VALUES, *_LAYOUTS, *_DEVICE)
