"""The case table of kda_gate_chunk_cumsum.

`ci` rows are sized for Triton's interpreter, `full` rows for devices; `perf` are the shapes of the
performance table. Rows tagged `npu` are compiled for Ascend and simulated: every shape, dtype and
flag makes a kernel of its own.
"""

from typing import Any

from ops.chunk_kda import cases as kda
from ops.chunk_kda.cases import BF16, FP16, FP32, FULL, MASKED, NPU, PACKINGS, PERF
from testing import cases
from testing import distributions as dist

OP = "kda_gate_chunk_cumsum"


def _row(
    name: str,
    sizes: tuple[int, int, int, int],  # B, T, HV, K
    dtype: str,
    gate: str,
    *,
    rate: bool = True,
    bias: bool = True,
    chunk_size: int = 64,
    cu_seqlens: tuple[int, ...] | None = None,
    index_dtype: str = "int32",
    values: dict[str, Any] | None = None,
    layout: str = "contiguous",
    tags: tuple[str, ...] = ("ci",),
) -> cases.Case:
    """gate: "given", "softplus" or "bounded"; rate, bias: whether A_log and dt_bias are given."""
    _, _, heads, k_dim = sizes
    given = gate == "given"
    drawn: dict[str, Any] = {
        "g": dist.Octaves(-10, 0, sign=-1.0) if given else dist.Normal(0, 2),
        "A_log": dist.Uniform(0, 2.8),  # log of 1 to 16, as models start
        "dt_bias": dist.Normal(-4, 1.5),
    } | (values or {})
    return cases.Case(
        OP,
        name,
        {
            "g": cases.TensorSpec(sizes, dtype, drawn["g"], layout),
            "A_log": None
            if given or not rate
            else cases.TensorSpec((heads,), FP32, drawn["A_log"]),
            "dt_bias": None
            if given or not bias
            else cases.TensorSpec((heads * k_dim,), FP32, drawn["dt_bias"]),
        },
        {
            "lower_bound": -5.0 if gate == "bounded" else None,
            "cu_seqlens": cu_seqlens,
            "index_dtype": index_dtype,
            "chunk_size": chunk_size,
        },
        frozenset(tags),
    )


_SMALL = (1, 70, 2, 32)

# What users of the op quote.
EXAMPLE = _row("example", (1, 128, 4, 64), BF16, "softplus", tags=NPU)

_SIZES = (
    EXAMPLE,
    *(_row(f"t{t}", (1, t, 2, 32), FP32, "given") for t in (1, 15, 16, 17, 63, 64, 65, 129)),
    _row("b3_chunk32", (3, 70, 2, 32), FP16, "given", chunk_size=32, tags=NPU),
    _row("k1", (2, 70, 1, 1), FP32, "bounded"),
    _row("k17", (1, 70, 2, 17), FP16, "bounded", tags=NPU),
    _row("k100", (1, 70, 2, 100), BF16, "given", tags=NPU),
    _row("k128", (1, 130, 2, 128), BF16, "softplus", tags=NPU),
    _row("k256", (1, 70, 1, 256), FP32, "softplus"),
    _row("heads_96", (1, 33, 96, 16), FP16, "softplus", chunk_size=32),
    _row("no_token", (1, 0, 2, 32), FP32, "given"),
)

_FLAGS = (
    _row("given_fp32", _SMALL, FP32, "given", tags=NPU),
    _row("softplus_fp32", _SMALL, FP32, "softplus", tags=NPU),
    _row("softplus_no_bias", _SMALL, FP16, "softplus", bias=False),
    _row("bounded_fp32", _SMALL, FP32, "bounded"),
    _row("bounded_no_rate", _SMALL, FP32, "bounded", rate=False, tags=NPU),
    _row("bounded_bare", _SMALL, BF16, "bounded", rate=False, bias=False),
)

_PACKED = (
    *(
        _row(
            f"packed_{i}",
            (1, bounds[-1] + 3 * i, 2, 32),
            FP32,
            ("given", "softplus", "bounded")[i % 3],
            cu_seqlens=bounds,
            index_dtype=("int32", "int64")[i % 2],
            tags=NPU if i == 2 else ("ci",),
        )
        for i, bounds in enumerate(PACKINGS)
    ),
    _row("packed_chunk32", (1, 160, 2, 32), FP32, "given", chunk_size=32, cu_seqlens=PACKINGS[3]),
    _row("packed_empty", (1, 8, 2, 32), FP32, "given", cu_seqlens=(0, 0, 0)),
)

_VALUES = (
    _row("masked", _SMALL, FP32, "given", values={"g": MASKED}, tags=NPU),
    _row("gate_5", _SMALL, FP32, "given", values={"g": dist.Constant(-5.0)}),
    _row("gate_0", _SMALL, FP32, "given", values={"g": dist.Constant(0.0)}),
    _row("gate_inf", _SMALL, FP32, "given", values={"g": dist.Cycle((-float("inf"), -0.1), 1)}),
    _row("positive", _SMALL, FP32, "given", values={"g": dist.Uniform(0, 0.1)}),
    _row("steep", _SMALL, FP32, "softplus", values={"g": dist.Normal(0, 60)}),
    _row(
        "steep_rate",
        _SMALL,
        FP32,
        "bounded",
        values={"A_log": dist.Cycle((100.0, -200.0)), "dt_bias": dist.Normal()},
    ),
)

_LAYOUTS = tuple(
    _row(layout, (2, 70, 2, 32), FP16, "softplus", layout=layout)
    for layout in cases.LAYOUTS
    if layout != "contiguous"
)

_DEVICE = (
    *(
        _row(f"full_{dtype}_{gate}", (2, 1000, 8, 128), dtype, gate, tags=FULL)
        for dtype in (FP16, BF16, FP32)
        for gate in ("given", "softplus", "bounded")
    ),
    _row("full_chunk32", (2, 1000, 8, 128), FP32, "given", chunk_size=32, tags=FULL),
    _row(
        "full_packed", (1, 16384, 8, 128), BF16, "softplus", cu_seqlens=kda.LONG_PACKING, tags=FULL
    ),
    *(
        _row(f"perf_b{b}_t{t}_h{h}", (b, t, h, 128), BF16, "softplus", tags=PERF)
        for b, t, h in ((1, 8192, 32), (4, 4096, 16), (1, 32768, 16))
    ),
)

CASES = (*_SIZES, *_FLAGS, *_PACKED, *_VALUES, *_LAYOUTS, *_DEVICE)
