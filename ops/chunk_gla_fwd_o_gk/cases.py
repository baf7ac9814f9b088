"""The case table of chunk_gla_fwd_o_gk.

`ci` rows are sized for Triton's interpreter, `full` rows for devices; `perf` are the shapes of the
performance table. Rows tagged `npu` are compiled for Ascend and simulated: every shape, dtype and
flag makes a kernel of its own.
"""

import math
from typing import Any

from ops.chunk_kda import cases as kda
from ops.chunk_kda.cases import BF16, BIG, FP16, FP32, FULL, NPU, PACKINGS, PERF, SMALL
from testing import cases
from testing import distributions as dist

OP = "chunk_gla_fwd_o_gk"


def _row(
    name: str,
    sizes: kda.Sizes,
    dtype: str,
    style: str,
    *,
    chunk_size: int = 64,
    cu_seqlens: tuple[int, ...] | None = None,
    index_dtype: str = "int32",
    scale: float | None = None,
    values: dict[str, Any] | None = None,
    layout: str = "contiguous",
    score_dtype: str | None = None,
    state_dtype: str | None = None,
    gate_dtype: str = FP32,
    tags: tuple[str, ...] = ("ci",),
) -> cases.Case:
    """score_dtype, state_dtype: of A and h; layout: of q and v."""
    b, t, heads, value_heads, k_dim, v_dim = sizes
    chunks = kda.num_chunks(t, cu_seqlens, chunk_size)
    side = 1 / math.sqrt(k_dim)
    drawn: dict[str, Any] = {
        # Sums of up to 64 steps; what is above A's diagonal is not zero.
        "g": dist.Uniform(-8, 0) if style == "uniform" else dist.Octaves(-7, 4, sign=-1.0),
        "A": dist.Uniform(-1, 1) if style == "uniform" else dist.Normal(0, side),
    }
    return kda.row(
        OP,
        name,
        {
            "q": ((b, t, heads, k_dim), dtype),
            "v": ((b, t, value_heads, v_dim), dtype),
            "g": ((b, t, value_heads, k_dim), gate_dtype),
            "A": ((b, t, value_heads, chunk_size), score_dtype or dtype),
            "h": ((b, chunks, value_heads, k_dim, v_dim), state_dtype or dtype),
        },
        style,
        {
            "scale": scale,
            "cu_seqlens": cu_seqlens,
            "index_dtype": index_dtype,
            "chunk_size": chunk_size,
        },
        drawn | (values or {}),
        layout,
        tags,
    )


# What users of the op quote.
EXAMPLE = _row("example", (1, 128, 2, 4, 64, 64), FP16, "model", tags=NPU)

_SIZES = (
    EXAMPLE,
    *(
        _row(f"t{t}", (1, t, 1, 2, 32, 32), FP16, "uniform", tags=NPU if t == 65 else ("ci",))
        for t in (1, 15, 16, 17, 63, 64, 65, 129)
    ),
    _row("b3_chunk32", (3, 70, 1, 2, 32, 32), FP32, "uniform", chunk_size=32, tags=NPU),
    _row("k1_v1", (2, 70, 1, 1, 1, 1), FP32, "uniform"),
    _row("k17_v5", (1, 70, 1, 2, 17, 5), FP16, "model", tags=NPU),
    _row("k60_v100", (1, 70, 1, 2, 60, 100), FP16, "uniform"),
    _row("k96_v64", (1, 70, 1, 1, 96, 64), BF16, "model"),
    _row("k128", (1, 130, 1, 2, 128, 128), BF16, "model", tags=NPU),
    _row("k256_v256", (1, 70, 1, 1, 256, 256), BF16, "model", tags=NPU),
    _row("k100_v60_chunk32", (1, 70, 1, 1, 100, 60), FP32, "model", chunk_size=32),
    _row("fp32_k128", (1, 70, 1, 1, 128, 128), FP32, "uniform", tags=NPU),
    _row("fp32_k256", (1, 40, 1, 1, 256, 70), FP32, "model", tags=NPU),
    _row("heads_12", (1, 40, 4, 12, 16, 16), FP16, "uniform"),
    _row("no_token", (1, 0, 1, 2, 32, 32), FP16, "uniform"),
)

_PACKED = (
    *(
        _row(
            f"packed_{i}",
            (1, bounds[-1] + 3 * i, 1, 2, 32, 32),
            FP16,
            "uniform",
            cu_seqlens=bounds,
            index_dtype=("int32", "int64")[i % 2],
            tags=NPU if i == 2 else ("ci",),
        )
        for i, bounds in enumerate(PACKINGS)
    ),
    _row(
        "packed_chunk32", (1, 150, 1, 2, 32, 32), BF16, "model", chunk_size=32, cu_seqlens=(0, 31)
    ),
    _row("packed_empty", (1, 8, 1, 2, 32, 32), FP16, "model", cu_seqlens=(0, 0, 0)),
)

_VALUES = (
    _row("scale_0", SMALL, FP16, "uniform", scale=0.0),
    _row("scale_negative", SMALL, FP32, "uniform", scale=-0.3),
    _row("gate_0", SMALL, FP16, "model", values={"g": dist.Constant(0.0)}),
    _row("gate_masked", SMALL, FP16, "model", values={"g": dist.Cycle((-1e5, -3.0, 0.0), axis=1)}),
    _row("no_state", SMALL, FP16, "model", values={"h": dist.Constant(0.0)}),
    _row("no_scores", SMALL, FP16, "model", values={"A": dist.Constant(0.0)}),
    _row("fp32_scores", SMALL, FP16, "uniform", score_dtype=FP32),
    _row("fp32_states", SMALL, BF16, "uniform", state_dtype=FP32, score_dtype=FP32, tags=NPU),
    _row("fp16_gate", SMALL, FP16, "uniform", gate_dtype=FP16),
)

_LAYOUTS = tuple(
    _row(layout, (2, 70, 2, 2, 32, 32), FP16, "uniform", layout=layout)
    for layout in cases.LAYOUTS
    if layout != "contiguous"
)

_DEVICE = (
    *(
        _row(f"full_{dtype}_chunk{size}", BIG, dtype, "model", chunk_size=size, tags=FULL)
        for dtype in (FP16, BF16, FP32)
        for size in (32, 64)
    ),
    _row(
        "full_packed",
        (1, 16384, 4, 8, 128, 128),
        BF16,
        "model",
        cu_seqlens=kda.LONG_PACKING,
        tags=FULL,
    ),
    _row("full_k256", (2, 500, 4, 4, 256, 256), FP16, "uniform", tags=FULL),
    _row("full_k256_fp32", (2, 500, 4, 4, 256, 256), FP32, "uniform", tags=FULL),
    *(
        _row(f"perf_b{b}_t{t}_h{h}", (b, t, h, h, 128, 128), BF16, "model", tags=PERF)
        for b, t, h in ((1, 8192, 32), (4, 4096, 16), (1, 32768, 16))
    ),
    _row("perf_b2_t8192_h16_hv32", (2, 8192, 16, 32, 128, 128), BF16, "model", tags=PERF),
    _row("perf_b8_t2048_h32_k64", (8, 2048, 32, 32, 64, 64), BF16, "model", tags=PERF),
)

CASES = (*_SIZES, *_PACKED, *_VALUES, *_LAYOUTS, *_DEVICE)
