"""The case table of chunk_kda_bwd_wy_dqkg_fused."""

from typing import Any

from ops.chunk_kda import cases as common
from ops.chunk_kda.cases import BF16, BIG, FP16, FP32, FULL, MASKED, NPU, PERF, SMALL
from testing import cases
from testing import distributions as dist

OP = "chunk_kda_bwd_wy_dqkg_fused"

_SUBNORMAL = (
    "Rows 16 to 31 of the chunk have faded to 1e-36, and what is below 2^-126 the GPU's exp2 "
    "flushes to zero: of the golden itself that takes 0.9 % (dk) and 1.6 % (dg) away."
)


def _on_cuda(output: str, limit: float, measured: float) -> cases.Waiver:
    return cases.Waiver(
        output, "G2 worst block", limit, measured, "2026-12-01", _SUBNORMAL, ("cuda",)
    )


def _wy(
    name: str,
    sizes: common.Sizes,
    dtype: str,
    style: str,
    *,
    chunk_size: int = 64,
    cu_seqlens: tuple[int, ...] | None = None,
    index_dtype: str = "int32",
    scale: float | None = None,
    values: dict[str, Any] | None = None,
    layout: str = "contiguous",
    beta_dtype: str = "float32",
    one_beta: bool = False,
    tags: tuple[str, ...] = ("ci",),
    waivers: tuple[cases.Waiver, ...] = (),
) -> cases.Case:
    """One row of chunk_kda_bwd_wy_dqkg_fused: v_new, h, dh and dv belong to no forward."""
    b, t, heads, value_heads, k_dim, v_dim = sizes
    of_value = ((b, t, value_heads, v_dim), dtype)
    chunks = common.num_chunks(t, cu_seqlens, chunk_size)
    states = ((b, chunks, value_heads, k_dim, v_dim), dtype)
    tensors: dict[str, tuple[tuple[int, ...], str] | None] = {
        "q": ((b, t, heads, k_dim), dtype),
        "k": ((b, t, heads, k_dim), dtype),
        "v": of_value,
        "v_new": of_value,
        "beta": ((b, t, 1 if one_beta else value_heads), beta_dtype),
        "h": states,
        "do": of_value,
        "dh": states,
        "dv": of_value,
        "log_gate": ((b, t, value_heads, k_dim), FP32),
    }
    attributes = {
        "scale": scale,
        "cu_seqlens": cu_seqlens,
        "index_dtype": index_dtype,
        "chunk_size": chunk_size,
    }
    return common.row(OP, name, tensors, style, attributes, values, layout, tags, waivers)


_WY_SMALL = (
    _wy("example", (1, 128, 2, 4, 64, 64), FP16, "model"),
    _wy("t1", (2, 1, 1, 2, 32, 16), FP16, "uniform", tags=NPU),
    _wy("t17", (2, 17, 1, 1, 32, 48), BF16, "model", chunk_size=32, tags=NPU),
    _wy("t64", (1, 64, 2, 2, 32, 32), FP16, "uniform", tags=NPU),
    _wy("t65", (1, 65, 1, 2, 32, 32), BF16, "model", tags=NPU),
    _wy("no_tokens", (2, 0, 1, 2, 32, 16), FP16, "uniform", tags=NPU),
    _wy("k60_v96", (1, 40, 1, 1, 60, 96), FP16, "uniform", chunk_size=32),
    _wy("k100_v60", (1, 70, 1, 1, 100, 60), FP16, "model", tags=NPU),
    _wy("k128", (1, 70, 1, 1, 128, 128), BF16, "model", tags=NPU),
    _wy("k256_v32", (1, 33, 1, 1, 256, 32), FP16, "model"),
    _wy("k3_v5", (1, 40, 1, 2, 3, 5), FP16, "uniform", chunk_size=32),
    _wy("fp32", (1, 70, 1, 2, 32, 32), FP32, "model", tags=NPU),
    _wy("h2_hv6", (1, 40, 2, 6, 32, 32), BF16, "uniform", tags=NPU),
    _wy("packed_17_80", (1, 145, 1, 1, 32, 32), FP16, "model", cu_seqlens=common.PACKINGS[1]),
    _wy(
        "packed_slack",
        (1, 137, 1, 1, 32, 32),
        FP16,
        "uniform",
        cu_seqlens=common.PACKINGS[2],
        chunk_size=32,
        index_dtype="int64",
        tags=NPU,
    ),
    _wy("masked_tokens", SMALL, FP16, "uniform", values={"log_gate": MASKED}, tags=NPU),
    _wy(
        "gate_5",
        SMALL,
        BF16,
        "model",
        values={"log_gate": dist.Constant(-5.0)},
        tags=NPU,
        waivers=(_on_cuda("dk", 5.3e-3, 3.55e-3), _on_cuda("dg", 8.6e-3, 5.72e-3)),
    ),
    _wy("gate_0", SMALL, FP16, "uniform", values={"log_gate": dist.Constant(0.0)}, tags=NPU),
    _wy("beta_0", SMALL, FP16, "model", values={"beta": dist.Constant(0.0)}, tags=NPU),
    _wy("beta_expanded", SMALL, BF16, "uniform", one_beta=True, beta_dtype=BF16),
    _wy("scale_negative", SMALL, FP16, "model", scale=-0.25, tags=NPU),
    _wy("slice", (2, 40, 1, 2, 32, 32), FP16, "model", chunk_size=32, layout="slice"),
    _wy("permuted", (2, 40, 2, 4, 32, 16), BF16, "uniform", chunk_size=32, layout="permuted"),
    _wy("strided", (1, 40, 1, 2, 32, 32), FP16, "uniform", chunk_size=32, layout="strided"),
)
_WY_DEVICE = (
    _wy("perf_b1_t8192_h32", (1, 8192, 32, 32, 128, 128), BF16, "model", tags=PERF),
    _wy("perf_b4_t4096_h16", (4, 4096, 16, 16, 128, 128), BF16, "model", tags=PERF),
    _wy(
        "perf_packed_h32",
        (1, 16384, 32, 32, 128, 128),
        BF16,
        "model",
        cu_seqlens=common.LONG_PACKING,
        tags=PERF,
    ),
    _wy("perf_b1_t8192_h16_hv32", (1, 8192, 16, 32, 128, 128), BF16, "model", tags=PERF),
    *(
        _wy(
            f"full_k{k_dim}_v{v_dim}_{dtype}",
            (1, 500, 2, 4, k_dim, v_dim),
            dtype,
            ("model", "uniform")[(i + j) % 2],
            chunk_size=(64, 32)[i % 2],
            tags=FULL,
        )
        for i, (k_dim, v_dim) in enumerate(((60, 100), (96, 64), (128, 256), (256, 128)))
        for j, dtype in enumerate(common.DTYPES)
    ),
    *(
        _wy(
            f"full_packed{i}",
            (1, packing[-1] + 5, 4, 8, 128, 128),
            (BF16, FP16)[i % 2],
            ("model", "uniform")[i % 2],
            cu_seqlens=packing,
            tags=FULL,
        )
        for i, packing in enumerate(common.PACKINGS)
    ),
    _wy("full_t2049", (2, 2049, 4, 4, 128, 128), FP16, "uniform", chunk_size=32, tags=FULL),
    _wy(
        "full_masked_tokens",
        BIG,
        BF16,
        "model",
        values={"log_gate": MASKED},
        tags=FULL,
    ),
    _wy("full_h96", (1, 300, 96, 96, 64, 128), BF16, "uniform", beta_dtype=BF16, tags=FULL),
    _wy("full_b2048_t1", (2048, 1, 16, 32, 16, 16), FP16, "model", chunk_size=32, tags=FULL),
)

CASES = (*_WY_SMALL, *_WY_DEVICE)
