"""What the case tables of chunk_kda_bwd and chunk_kda_bwd_wy_dqkg_fused share: styles of inputs,
packings, and how a row is made.

What a row draws is what the forward starts from (q, k, v, beta, gates, states) and the gradients
that come in; ops/chunk_kda/preparation.py makes Aqk, Akk and G of it. About half of the rows draw
uniform inputs, half are model-like (unit q and k, log-spaced decays). `ci` rows are sized for
Triton's interpreter, `full` rows for devices; `perf` are the shapes of the performance table.
"""

import itertools
import math
from collections.abc import Callable
from typing import Any

from testing import cases
from testing import distributions as dist

FP16, BF16, FP32 = "float16", "bfloat16", "float32"
DTYPES = (FP16, BF16, FP32)
FULL = ("full",)
PERF = ("full", "perf")

# Why fp32 misses a gate on CUDA.
SHORT_OF_FP32 = (
    "What is left of a sum is small beside its terms. Three tf32 products keep 22 bits of an "
    "operand and exp2 on the GPU is 2 ulp off, where r has 24 bits of both."
)
# Compiled for Ascend and simulated. Every shape, dtype, gate and flag makes kernels of its own,
# about 7 a call with up to half a minute of compiling each; the cases with this tag share most of
# theirs, and every path of the plan is among them.
NPU = ("ci", "npu")
# Where waivers for the kernels for NPUs hold.
NPUS = ("npu-arch32", "npu-arch35", "npu-arch32-sim", "npu-arch35-sim")

# B, T, H, HV, K, V
Sizes = tuple[int, int, int, int, int, int]
SMALL: Sizes = (1, 70, 1, 2, 32, 32)  # two chunks, the second one nearly empty
BIG: Sizes = (2, 1000, 8, 8, 128, 128)

PACKINGS = (
    (0, 1, 64, 65, 129),
    (0, 17, 80, 145),
    (0, 0, 63, 128, 130),
    (0, 31, 96, 160),
    tuple(range(33)),
)
LONG_PACKING = (0, 117, 1500, 1501, 5000, 8192, 9000, 12001, 16384)

# name, sizes, cu_seqlens
PERFORMANCE: tuple[tuple[str, Sizes, tuple[int, ...] | None], ...] = (
    ("perf_b1_t8192_h32", (1, 8192, 32, 32, 128, 128), None),
    ("perf_b4_t4096_h16", (4, 4096, 16, 16, 128, 128), None),
    ("perf_b1_t32768_h16", (1, 32768, 16, 16, 128, 128), None),
    ("perf_packed_h32", (1, 16384, 32, 32, 128, 128), LONG_PACKING),
    ("perf_b1_t8192_h16_hv32", (1, 8192, 16, 32, 128, 128), None),
)

# Every third token is the first of another document.
MASKED = dist.Cycle((-1000.0, -0.3, -0.02), axis=1)
# The same by what a gate is computed from; the largest number of fp16.
MASKED_RAW = dist.Cycle((65504.0, -1.5, -4.0), axis=1)


def _uniform(k_dim: int) -> dict[str, Any]:
    # The write k k^T must not grow the state: |k|^2 is 1 on average.
    side = math.sqrt(3 / k_dim)
    return {
        "q": dist.Uniform(-5, 5),
        "k": dist.Uniform(-side, side),
        "v": dist.Uniform(-5, 5),
        "beta": dist.Uniform(0, 1),
        "do": dist.Uniform(-5, 5),
        "log_gate": dist.Uniform(-1, 0),
        "g_org": dist.Uniform(-5, 5),
        "A_log": dist.Uniform(-2, 1),
        "dt_bias": dist.Uniform(-2, 2),
        "initial_state": dist.Uniform(-2, 2),
        "dht": dist.Uniform(-2, 2),
        # Of the standalone function only.
        "v_new": dist.Uniform(-5, 5),
        "h": dist.Uniform(-2, 2),
        "dh": dist.Uniform(-2, 2),
        "dv": dist.Uniform(-5, 5),
    }


def _model(k_dim: int) -> dict[str, Any]:
    return {
        "q": dist.UnitVectors(math.sqrt(k_dim)),  # scale takes the root out again
        "k": dist.UnitVectors(),
        "v": dist.Normal(),
        "beta": dist.Uniform(0.05, 0.95),
        "do": dist.Normal(),
        "log_gate": dist.Octaves(-10, 0, sign=-1.0),
        "g_org": dist.Normal(0, 2),
        "A_log": dist.Uniform(0, 2.8),  # log of 1 to 16, as models start
        "dt_bias": dist.Normal(-4, 1.5),
        "initial_state": dist.Normal(),
        "dht": dist.Normal(),
        "v_new": dist.Normal(),
        "h": dist.Normal(),
        "dh": dist.Normal(),
        "dv": dist.Normal(),
    }


_STYLES = {"uniform": _uniform, "model": _model}


def row(
    op: str,
    name: str,
    tensors: dict[str, tuple[tuple[int, ...], str] | None],
    style: str,
    attributes: dict[str, Any],
    values: dict[str, Any] | None,
    layout: str,
    tags: tuple[str, ...],
    waivers: tuple[cases.Waiver, ...] = (),
) -> cases.Case:
    """One row. layout: of what has four axes and tokens; "permuted" of beta too. values replaces
    distributions of the style."""
    of_q = tensors["q"]
    assert of_q is not None
    drawn = _STYLES[style](of_q[0][3]) | (values or {})
    with_layout = {"q", "k", "v", "do", "g_org", "v_new", "dv"}
    if layout == "permuted":
        with_layout.add("beta")
    return cases.Case(
        op,
        name,
        {
            key: shape_and_dtype
            and cases.TensorSpec(
                *shape_and_dtype, drawn[key], layout if key in with_layout else "contiguous"
            )
            for key, shape_and_dtype in tensors.items()
        },
        attributes,
        frozenset(tags),
        waivers=waivers,
    )


def sizes(case: cases.Case) -> dict[str, Any]:
    """The sizes of a case's call, as a Problem names them."""
    b, t, heads, k_dim = case.shape("q")
    value_heads, v_dim = case.shape("v")[2:]
    size, bounds = case.attributes["chunk_size"], case.attributes["cu_seqlens"]
    return {
        "B": b,
        "T": t,
        "H": heads,
        "HV": value_heads,
        "K": k_dim,
        "V": v_dim,
        "C": size,
        "N": b if bounds is None else len(bounds) - 1,
        "NT": num_chunks(t, bounds, size),
        "packed": bounds is not None,
        "slack": bounds is not None and bounds[-1] < t,
    }


def num_chunks(t: int, cu_seqlens: tuple[int, ...] | None, chunk_size: int) -> int:
    """Of a batch row, or of all packed sequences."""
    bounds = (0, t) if cu_seqlens is None else cu_seqlens
    return sum(-(-(end - start) // chunk_size) for start, end in itertools.pairwise(bounds))


def tokens(case: cases.Case) -> int:
    """That belong to a sequence."""
    bounds = case.attributes["cu_seqlens"]
    b, t = case.shape("q")[:2]
    return b * t if bounds is None else bounds[-1]


# Rows of real sizes that the tables share. row(name, sizes, dtype, style, **options) makes one.
Row = Callable[..., cases.Case]


def full_lengths(row: Row, option: str) -> tuple[cases.Case, ...]:
    """Each length at both chunk sizes, with dtypes, styles, gates and widths in turn; `option` is
    true for every fourth length."""
    return tuple(
        row(
            f"full_t{t}_chunk{chunk_size}",
            (2, t, 2, 4, (128, 64)[i % 2], (64, 128)[i % 2]),
            DTYPES[(i + j) % 3],
            ("model", "uniform")[(i + j) % 2],
            chunk_size=chunk_size,
            gate=("given", "softplus", "bounded")[(i + 2 * j) % 3],
            tags=FULL,
            **{option: i % 4 == 3},
        )
        for i, t in enumerate((1, 15, 16, 17, 63, 64, 65, 129, 2049))
        for j, chunk_size in enumerate((32, 64))
    )


def full_widths(row: Row) -> tuple[cases.Case, ...]:
    """K and V that are no powers of two, differ, or are the largest, in each dtype."""
    return tuple(
        row(
            f"full_k{k_dim}_v{v_dim}_{dtype}",
            (1, 500, 2, 4, k_dim, v_dim),
            dtype,
            ("model", "uniform")[(i + j) % 2],
            chunk_size=(64, 32)[i % 2],
            tags=FULL,
        )
        for i, (k_dim, v_dim) in enumerate(
            ((60, 64), (64, 60), (96, 100), (100, 96), (128, 256), (256, 128), (256, 256))
        )
        for j, dtype in enumerate(DTYPES)
    )


def full_packings(row: Row) -> tuple[cases.Case, ...]:
    """Packed sequences, with rows behind the last one in every other case."""
    return tuple(
        row(
            f"full_packed{i}_{gate}",
            (1, packing[-1] + (0, 11)[(i + j) % 2], 4, 8, 128, 128),
            (BF16, FP16)[i % 2],
            ("model", "uniform")[j],
            chunk_size=(64, 32)[(i + j) % 2],
            cu_seqlens=packing,
            index_dtype=("int32", "int64")[i % 2],
            gate=gate,
            tags=FULL,
        )
        for i, packing in enumerate(PACKINGS)
        for j, gate in enumerate(("given", "softplus"))
    )
