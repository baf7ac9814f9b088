"""The case tables of chunk_kda: its results and, with the same inputs, its gradients; and of
chunk_kda_fwd_intra."""

from typing import Any

from ops.chunk_kda import cases as common
from ops.chunk_kda.cases import (
    BF16,
    BIG,
    FP16,
    FP32,
    FULL,
    MASKED,
    MASKED_RAW,
    NPU,
    PERF,
    SMALL,
)
from testing import cases
from testing import distributions as dist

FWD, TRAIN, INTRA = "chunk_kda_fwd", "chunk_kda_train", "chunk_kda_fwd_intra"


def _on_cuda(output: str, gate: str, limit: float, measured: float, reason: str) -> cases.Waiver:
    return cases.Waiver(output, gate, limit, measured, "2026-12-01", reason, ("cuda",))


def _on_npus(output: str, gate: str, limit: float, measured: float, reason: str) -> cases.Waiver:
    return cases.Waiver(output, gate, limit, measured, "2026-12-01", reason, common.NPUS)


_FEW_SUMS = "Few sums that cancel, as in chunk_kda_bwd's slice_softplus."


def _anywhere(output: str, gate: str, limit: float, measured: float, reason: str) -> cases.Waiver:
    return cases.Waiver(output, gate, limit, measured, "2026-12-01", reason)


_WAIVERS = {
    (FWD, "full_gate_5_float32"): (
        _on_cuda("final_state", "G2 worst block", 1.5e-5, 1.01e-5, common.SHORT_OF_FP32),
        _on_cuda("final_state", "G3 scaled max", 3.2e-5, 2.09e-5, common.SHORT_OF_FP32),
    ),
    (TRAIN, "everything"): (
        _anywhere("dA_log", "G1 norm", 4.5e-3, 2.956e-3, _FEW_SUMS),
        _anywhere("dA_log", "G2 worst block", 4.5e-3, 2.956e-3, _FEW_SUMS),
        _on_cuda("dA_log", "G3 scaled max", 2.5e-3, 1.629e-3, _FEW_SUMS),
        # Twice what r reaches.
        _on_npus(
            "dg",
            "G2 worst block",
            0.0286,
            0.02342,
            "The block is what is left of sums over its chunk that cancel; kernels for NPUs round "
            "elsewhere than r.",
        ),
    ),
    (TRAIN, "everything_fp32"): (
        _anywhere("dA_log", "G1 norm", 6.4e-6, 4.278e-6, _FEW_SUMS),
        _anywhere("dA_log", "G2 worst block", 6.4e-6, 4.278e-6, _FEW_SUMS),
        _on_cuda("ddt_bias", "G1 norm", 2.8e-6, 1.884e-6, _FEW_SUMS),
    ),
    (TRAIN, "masked_softplus_fp32"): (
        _anywhere("dA_log", "G1 norm", 5.8e-5, 3.9e-5, _FEW_SUMS),
        _anywhere("dA_log", "G2 worst block", 5.8e-5, 3.9e-5, _FEW_SUMS),
        _on_cuda("dA_log", "G3 scaled max", 3.2e-5, 2.151e-5, _FEW_SUMS),
    ),
    (INTRA, "full_k96_v100_float32"): (
        _on_cuda("w", "G3 scaled max", 3.2e-5, 2.1e-5, common.SHORT_OF_FP32),
    ),
    (INTRA, "full_t2049_float32"): (
        _on_cuda("Aqk", "G3 scaled max", 1.4e-4, 9.27e-5, common.SHORT_OF_FP32),
    ),
}

# Compiled for Ascend and simulated, see cases.NPU.
_ON_NPUS = {
    FWD: (
        "example",
        "t1",
        "t65",
        "k100_v60",
        "k128",
        "k256_v32",
        "fp32",
        "packed_empty",
        "bounded",
        "everything",
        "masked_tokens",
        "no_initial_state",
    ),
    TRAIN: ("t65", "everything"),
    INTRA: ("example", "t65", "k100_v60", "fp32", "packed_empty", "masked_tokens"),
}

_LOGITS = {"beta": dist.Normal(0, 2)}
# What is normalised in the kernel has other lengths.
_LONG = {"q": dist.Normal(0, 3), "k": dist.Normal(0, 0.5)}


def _row(
    op: str,
    name: str,
    sizes: common.Sizes,
    dtype: str,
    style: str,
    *,
    chunk_size: int = 64,
    cu_seqlens: tuple[int, ...] | None = None,
    index_dtype: str = "int32",
    initial_state: bool = True,
    gate: str = "given",
    rate: bool = True,
    bias: bool = True,
    gate_dtype: str = "float32",
    l2norm: bool = False,
    logits: bool = False,
    doubled: bool = False,
    scale: float | None = None,
    values: dict[str, Any] | None = None,
    layout: str = "contiguous",
    beta_dtype: str = "float32",
    one_beta: bool = False,
    tags: tuple[str, ...] = ("ci",),
) -> cases.Case:
    """One row. gate: "given", "softplus" or "bounded"; rate, bias: whether A_log and dt_bias are
    given; doubled: twice the sigmoid of beta's logits; one_beta: the same for all heads."""
    b, t, heads, value_heads, k_dim, v_dim = sizes
    n = b if cu_seqlens is None else len(cu_seqlens) - 1
    states = ((n, value_heads, k_dim, v_dim), FP32)
    gates, of_value = (b, t, value_heads, k_dim), (b, t, value_heads, v_dim)
    in_kernel = gate != "given"
    tensors: dict[str, tuple[tuple[int, ...], str] | None] = {
        "q": ((b, t, heads, k_dim), dtype),
        "k": ((b, t, heads, k_dim), dtype),
        "v": (of_value, dtype),
        "beta": ((b, t, 1 if one_beta else value_heads), beta_dtype),
    }
    attributes: dict[str, Any] = {
        "scale": scale,
        "cu_seqlens": cu_seqlens,
        "index_dtype": index_dtype,
        "chunk_size": chunk_size,
    }
    if op == INTRA:
        tensors["log_gate"] = (gates, FP32)
    else:
        tensors |= {
            "log_gate": None if in_kernel else (gates, gate_dtype),
            "g_org": (gates, gate_dtype) if in_kernel else None,
            "A_log": ((value_heads,), FP32) if in_kernel and rate else None,
            "dt_bias": ((value_heads * k_dim,), FP32) if in_kernel and bias else None,
            "initial_state": states if initial_state else None,
        }
        attributes |= {
            "safe_gate": gate == "bounded",
            "lower_bound": -5.0 if gate == "bounded" else None,
            "use_gate_in_kernel": in_kernel,
            "use_qk_l2norm_in_kernel": l2norm,
            "use_beta_sigmoid_in_kernel": logits,
            "allow_neg_eigval": doubled,
        }
    if op == TRAIN:
        tensors |= {"do": (of_value, dtype), "dht": states}
    if name in _ON_NPUS[op]:
        tags = NPU
    drawn = {**(_LONG if l2norm else {}), **(_LOGITS if logits else {}), **(values or {})}
    return common.row(
        op, name, tensors, style, attributes, drawn, layout, tags, _WAIVERS.get((op, name), ())
    )


def _table(op: str) -> tuple[cases.Case, ...]:
    """Rows of chunk_kda, for its results or its gradients."""

    def row(name: str, sizes: common.Sizes, dtype: str, style: str, **options: Any) -> cases.Case:
        return _row(op, name, sizes, dtype, style, **options)

    # What users of the op quote: B=1, T=128, H=2, HV=4, K=64, V=64.
    lengths = (
        row("example", (1, 128, 2, 4, 64, 64), FP16, "model"),
        row("t1", (3, 1, 1, 2, 32, 16), FP16, "uniform"),
        row("t15", (1, 15, 1, 2, 32, 32), BF16, "model", chunk_size=32),
        row("t16", (1, 16, 2, 2, 32, 32), FP16, "uniform", chunk_size=32),
        row("t17", (2, 17, 1, 1, 32, 48), FP16, "model", chunk_size=32),
        row("t63", (1, 63, 1, 2, 32, 32), BF16, "uniform"),
        row("t64", (1, 64, 1, 2, 32, 32), FP16, "model"),
        row("t65", (1, 65, 1, 2, 32, 32), FP16, "uniform"),
        row("t129", (1, 129, 1, 1, 32, 32), BF16, "model"),
        row("no_tokens", (2, 0, 1, 2, 32, 16), FP16, "uniform"),
    )
    widths = (
        row("k60_v96", (1, 40, 1, 1, 60, 96), FP16, "model"),
        row("k100_v60", (1, 40, 1, 1, 100, 60), BF16, "uniform", chunk_size=32),
        row("k96_v100", (1, 33, 1, 1, 96, 100), FP16, "uniform", chunk_size=32),
        row("k128", (1, 70, 1, 1, 128, 128), BF16, "model"),
        row("k256_v32", (1, 33, 1, 1, 256, 32), FP16, "model"),
        row("k32_v256", (1, 33, 1, 1, 32, 256), FP16, "uniform", chunk_size=32),
        row("k3_v5", (1, 40, 1, 2, 3, 5), FP16, "model", chunk_size=32),
        row("k1_v1", (1, 20, 1, 2, 1, 1), FP16, "uniform", chunk_size=32),
        row("h2_hv6", (1, 40, 2, 6, 32, 32), FP16, "model"),
        row("fp32", (1, 70, 1, 2, 32, 32), FP32, "model"),
        row("fp32_chunk32", (1, 40, 2, 2, 48, 24), FP32, "uniform", chunk_size=32),
    )
    packed = (
        row("packed_64_65", (1, 129, 1, 1, 32, 32), FP16, "model", cu_seqlens=common.PACKINGS[0]),
        row(
            "packed_17_80",
            (1, 145, 1, 2, 32, 32),
            BF16,
            "uniform",
            cu_seqlens=common.PACKINGS[1],
            index_dtype="int64",
        ),
        row("packed_empty", (1, 130, 1, 1, 32, 32), FP16, "uniform", cu_seqlens=common.PACKINGS[2]),
        row(
            "packed_slack",
            (1, 171, 1, 1, 32, 32),
            FP16,
            "model",
            cu_seqlens=common.PACKINGS[3],
            chunk_size=32,
        ),
        row("packed_ones", (1, 40, 1, 1, 16, 16), FP16, "uniform", cu_seqlens=common.PACKINGS[4]),
        row("packed_nothing", (1, 20, 1, 2, 16, 16), FP16, "uniform", cu_seqlens=(0, 0, 0)),
    )
    options = (
        row("softplus", SMALL, FP16, "model", gate="softplus"),
        row("softplus_bf16", SMALL, BF16, "uniform", gate="softplus", gate_dtype=BF16, bias=False),
        row("bounded", SMALL, FP16, "model", gate="bounded"),
        row("bounded_plain", SMALL, FP16, "uniform", gate="bounded", rate=False, bias=False),
        row(
            "bounded_steep",
            SMALL,
            FP16,
            "model",
            gate="bounded",
            values={"A_log": dist.Cycle((1.5, 100.0))},
        ),
        row("l2norm", SMALL, FP16, "model", l2norm=True),
        row("l2norm_bf16", (1, 40, 2, 4, 48, 32), BF16, "uniform", l2norm=True),
        row("logits", SMALL, FP16, "uniform", logits=True, beta_dtype=FP16),
        row(
            "everything",
            (1, 100, 1, 2, 32, 32),
            FP16,
            "model",
            gate="softplus",
            l2norm=True,
            logits=True,
            doubled=True,
            chunk_size=32,
            cu_seqlens=(0, 33, 33, 90),
        ),
        row("everything_fp32", SMALL, FP32, "model", gate="softplus", l2norm=True, logits=True),
    )
    special = (
        row("masked_tokens", SMALL, FP16, "model", values={"log_gate": MASKED}),
        row("masked_softplus", SMALL, FP16, "model", gate="softplus", values={"g_org": MASKED_RAW}),
        row(
            "masked_softplus_fp32",
            SMALL,
            FP32,
            "uniform",
            gate="softplus",
            initial_state=False,
            values={"g_org": MASKED_RAW},
        ),
        row(
            "masked_channels",
            SMALL,
            BF16,
            "uniform",
            values={"log_gate": dist.Sprinkled(dist.Uniform(-1, 0), -1000.0, 0.05)},
        ),
        row("gate_5", SMALL, FP16, "uniform", values={"log_gate": dist.Constant(-5.0)}),
        row("gate_0", SMALL, BF16, "model", values={"log_gate": dist.Constant(0.0)}),
        row("gate_fp16", SMALL, FP16, "model", gate_dtype=FP16),
        row("beta_0", SMALL, FP16, "model", values={"beta": dist.Constant(0.0)}),
        row("beta_1", SMALL, FP16, "model", values={"beta": dist.Constant(1.0)}),
        row("beta_bf16", SMALL, BF16, "uniform", beta_dtype=BF16),
        row("beta_expanded", SMALL, FP16, "model", one_beta=True, beta_dtype=FP16),
        row("scale_0", SMALL, FP16, "model", scale=0.0),
        row("scale_negative", SMALL, BF16, "uniform", scale=-0.25),
        row("no_initial_state", SMALL, FP16, "model", initial_state=False),
    )
    layouts = (
        row("slice", (2, 40, 1, 2, 32, 32), FP16, "uniform", chunk_size=32, layout="slice"),
        row("permuted", (2, 40, 2, 4, 32, 16), BF16, "model", chunk_size=32, layout="permuted"),
        row("strided", (1, 40, 1, 2, 32, 32), FP16, "model", chunk_size=32, layout="strided"),
        row("odd_strides", (1, 1, 1, 1, 32, 16), FP16, "uniform", layout="odd"),
        row(
            "slice_everything",
            (1, 40, 1, 2, 32, 32),
            FP16,
            "model",
            layout="slice",
            gate="softplus",
            gate_dtype=FP16,
            l2norm=True,
        ),
    )
    return *lengths, *widths, *packed, *options, *special, *layouts, *_full(row)


def _full(row: Any) -> tuple[cases.Case, ...]:
    # As in training: no states come in.
    performance = tuple(
        row(name, sizes, BF16, "model", cu_seqlens=bounds, initial_state=False, tags=PERF)
        for name, sizes, bounds in common.PERFORMANCE
    )
    lengths = common.full_lengths(row, "l2norm")
    widths = common.full_widths(row)
    packed = common.full_packings(row)
    masked = dist.Sprinkled(dist.Octaves(-10, 0, sign=-1.0), -1000.0, 0.02)
    special = (
        row("full_masked_tokens", BIG, BF16, "model", values={"log_gate": MASKED}, tags=FULL),
        row("full_masked_fp32", BIG, FP32, "model", values={"log_gate": MASKED}, tags=FULL),
        row("full_masked_channels", BIG, FP16, "uniform", values={"log_gate": masked}, tags=FULL),
        *(
            row(
                f"full_gate_{-gate}_{dtype}",
                BIG,
                dtype,
                style,
                values={"log_gate": dist.Constant(gate)},
                tags=FULL,
            )
            for gate in (-5, 0)
            for dtype, style in ((BF16, "model"), (FP32, "uniform"))
        ),
        row(
            "full_bounded_steep",
            BIG,
            BF16,
            "model",
            gate="bounded",
            values={"A_log": dist.Cycle((100.0, 4.0, -3.0))},
            tags=FULL,
        ),
        row("full_beta_0", BIG, BF16, "model", values={"beta": dist.Constant(0.0)}, tags=FULL),
        row("full_beta_1", BIG, BF16, "uniform", values={"beta": dist.Constant(1.0)}, tags=FULL),
        row("full_scale_0", BIG, BF16, "model", scale=0.0, tags=FULL),
        row("full_scale_negative", BIG, FP16, "uniform", scale=-0.1, tags=FULL),
        row("full_slice", BIG, BF16, "model", layout="slice", l2norm=True, tags=FULL),
        row(
            "full_permuted",
            (2, 1000, 4, 8, 128, 64),
            FP16,
            "uniform",
            layout="permuted",
            beta_dtype=FP16,
            tags=FULL,
        ),
        row("full_h1", (1, 2000, 1, 1, 128, 128), FP16, "model", tags=FULL),
        row("full_h96", (1, 300, 96, 96, 64, 128), BF16, "uniform", beta_dtype=BF16, tags=FULL),
        row("full_h3_hv96", (1, 300, 3, 96, 64, 64), BF16, "model", chunk_size=32, tags=FULL),
        row("full_fp16", (1, 4096, 16, 16, 128, 128), FP16, "model", tags=FULL),
        row(
            "full_layer",
            (1, 4096, 16, 32, 128, 128),
            BF16,
            "model",
            gate="softplus",
            l2norm=True,
            logits=True,
            beta_dtype=BF16,
            gate_dtype=BF16,
            tags=FULL,
        ),
        # 65536 chunks and heads.
        row("full_b2048_t1", (2048, 1, 16, 32, 16, 16), FP16, "uniform", chunk_size=32, tags=FULL),
    )
    return *performance, *lengths, *widths, *packed, *special


def _intra(name: str, sizes: common.Sizes, dtype: str, style: str, **options: Any) -> cases.Case:
    return _row(INTRA, name, sizes, dtype, style, **options)


_INTRA_CI = (
    _intra("example", (1, 128, 2, 4, 64, 64), FP16, "model"),
    _intra("t1", (3, 1, 1, 2, 32, 16), FP16, "uniform"),
    _intra("t15", (1, 15, 1, 2, 32, 32), BF16, "model", chunk_size=32),
    _intra("t16", (1, 16, 2, 2, 32, 32), FP16, "uniform", chunk_size=32),
    _intra("t17", (2, 17, 1, 1, 32, 48), FP16, "model"),
    _intra("t63", (1, 63, 1, 2, 32, 32), BF16, "uniform"),
    _intra("t64", (1, 64, 1, 2, 32, 32), FP16, "model"),
    _intra("t65", (1, 65, 1, 2, 32, 32), FP16, "uniform", chunk_size=32),
    _intra("t129", (1, 129, 1, 1, 32, 32), BF16, "model"),
    _intra("no_tokens", (2, 0, 1, 2, 32, 16), FP16, "uniform"),
    _intra("k60_v96", (1, 40, 1, 1, 60, 96), FP16, "model"),
    _intra("k100_v60", (1, 40, 1, 1, 100, 60), BF16, "uniform", chunk_size=32),
    _intra("k256_v32", (1, 33, 1, 1, 256, 32), FP16, "model"),
    _intra("k3_v5", (1, 40, 1, 2, 3, 5), FP16, "model", chunk_size=32),
    _intra("h2_hv6", (1, 40, 2, 6, 32, 32), FP16, "model"),
    _intra("fp32", (1, 70, 1, 2, 32, 32), FP32, "model"),
    _intra("fp32_chunk32", (1, 40, 2, 2, 48, 24), FP32, "uniform", chunk_size=32),
    _intra("packed_slack", (1, 171, 1, 1, 32, 32), FP16, "model", cu_seqlens=common.PACKINGS[3]),
    _intra("packed_empty", (1, 130, 1, 1, 32, 32), FP16, "uniform", cu_seqlens=common.PACKINGS[2]),
    _intra("masked_tokens", SMALL, FP16, "model", values={"log_gate": MASKED}),
    _intra("gate_5", SMALL, FP16, "uniform", values={"log_gate": dist.Constant(-5.0)}),
    _intra("gate_0", SMALL, BF16, "model", values={"log_gate": dist.Constant(0.0)}),
    _intra("beta_0", SMALL, FP16, "model", values={"beta": dist.Constant(0.0)}),
    _intra("beta_1", SMALL, FP16, "model", values={"beta": dist.Constant(1.0)}),
    _intra("scale_negative", SMALL, BF16, "uniform", scale=-0.25),
    _intra("slice", (2, 40, 1, 2, 32, 32), FP16, "uniform", chunk_size=32, layout="slice"),
    _intra("strided", (1, 40, 1, 2, 32, 32), FP16, "model", chunk_size=32, layout="strided"),
)
_INTRA_FULL = (
    *(
        _intra(name, sizes, BF16, "model", cu_seqlens=bounds, tags=PERF)
        for name, sizes, bounds in common.PERFORMANCE
    ),
    *(
        _intra(
            f"full_t{t}_{dtype}",
            (2, t, 2, 4, 128, 64),
            dtype,
            ("model", "uniform")[(i + j) % 2],
            chunk_size=(64, 32)[(i + j) % 2],
            tags=FULL,
        )
        for i, t in enumerate((1, 17, 63, 65, 2049))
        for j, dtype in enumerate(common.DTYPES)
    ),
    *(
        _intra(
            f"full_k{k_dim}_v{v_dim}_{dtype}",
            (1, 500, 2, 4, k_dim, v_dim),
            dtype,
            ("model", "uniform")[(i + j) % 2],
            tags=FULL,
        )
        for i, (k_dim, v_dim) in enumerate(((60, 64), (96, 100), (128, 256), (256, 128)))
        for j, dtype in enumerate(common.DTYPES)
    ),
    *(
        _intra(
            f"full_packed{i}",
            (1, packing[-1] + 11 * (i % 2), 4, 8, 128, 128),
            (BF16, FP16)[i % 2],
            ("model", "uniform")[i % 2],
            cu_seqlens=packing,
            tags=FULL,
        )
        for i, packing in enumerate(common.PACKINGS)
    ),
    _intra("full_masked_tokens", BIG, BF16, "model", values={"log_gate": MASKED}, tags=FULL),
    _intra(
        "full_gate_5", BIG, BF16, "uniform", values={"log_gate": dist.Constant(-5.0)}, tags=FULL
    ),
    _intra("full_gate_0", BIG, FP16, "model", values={"log_gate": dist.Constant(0.0)}, tags=FULL),
    _intra("full_beta_1", BIG, BF16, "model", values={"beta": dist.Constant(1.0)}, tags=FULL),
    _intra("full_slice", BIG, BF16, "model", layout="slice", tags=FULL),
    _intra("full_h3_hv96", (1, 300, 3, 96, 64, 64), BF16, "model", chunk_size=32, tags=FULL),
    _intra("full_b2048_t1", (2048, 1, 16, 32, 16, 16), FP16, "uniform", chunk_size=32, tags=FULL),
)

FWD_CASES = _table(FWD)
TRAIN_CASES = _table(TRAIN)
INTRA_CASES = (*_INTRA_CI, *_INTRA_FULL)
