"""What a call of kda_step launches: tile, grid, constants. Plain Python: no torch, no triton."""

import dataclasses
from collections.abc import Mapping

# Names of ops.common.backend, repeated here because that module imports torch and triton; plan_test
# compares them.
CPU_REFERENCE = "cpu-reference"
NPU_ARCH32 = "npu-arch32"
NPU_ARCH35 = "npu-arch35"
CUDA = "cuda"

FLOAT16 = "float16"
BFLOAT16 = "bfloat16"
FLOAT32 = "float32"

# How the gate comes to be; the last two as in ops.common.kda_gate.
GIVEN, SOFTPLUS, BOUNDED = 0, 1, 2

_MAX_TASKS = 2**31 - 2**16  # task counters are int32 and step by up to 2^16
# Elements of a tile on a vector core. With 8192, 64 columns of K = 128, it fills up to 0.91 of the
# 192 KiB of arch32, and 12 tokens of 8 heads take an estimated 24.9 kcycles; 32.5 with 4096.
_NPU_TILE = 8192


@dataclasses.dataclass(frozen=True)
class Problem:
    """A checked call.

    Attributes:
        B, H, HV, K, V: sizes as in the contract; value head hv reads the q/k head hv // (HV // H).
        N: states of the pool; B without state_indices.
        dtype: of q, k, v and o.
        gate: GIVEN, SOFTPLUS or BOUNDED.
        has_A_log, has_dt_bias: whether the argument is given.
        l2norm: whether q and k are normalised.
        beta_logits: whether beta is sigmoid of what is given; doubled: twice that.
        indexed: whether state_indices are given.
    """

    B: int
    H: int
    HV: int
    K: int
    V: int
    N: int
    dtype: str
    gate: int = GIVEN
    has_A_log: bool = False
    has_dt_bias: bool = False
    l2norm: bool = False
    beta_logits: bool = False
    doubled: bool = False
    indexed: bool = False

    @property
    def empty(self) -> bool:
        return self.B == 0


@dataclasses.dataclass(frozen=True)
class Plan:
    """The one launch of a call.

    Attributes:
        programs: size of the one-dimensional persistent grid.
        num_tasks: pieces of work; program p does p, p + programs, p + 2 programs, ...
        constants: the kernel's tl.constexpr arguments.
        options: compiler options.
        stage_output: whether the kernel stores o as fp32, which torch then converts.
    """

    programs: int
    num_tasks: int
    constants: Mapping[str, int | bool]
    options: Mapping[str, int]
    stage_output: bool


def make_plan(problem: Problem, backend: str, cores: int, max_programs: int | None = None) -> Plan:
    """Plans the launch for a problem that is not empty.

    Args:
        problem: the checked call.
        backend: name of the backend, see ops.common.backend.
        cores: programs that a persistent grid should have there.
        max_programs: the most that a grid may have; it changes no result's bits. Default: cores.

    Raises:
        NotImplementedError: no kernel is written for this backend.
        ValueError: more pieces of work than the kernel can count.
    """
    p = problem
    if backend not in (CPU_REFERENCE, NPU_ARCH32, NPU_ARCH35, CUDA):
        raise NotImplementedError(
            f"kda_step: no kernel for {backend!r}; implemented are "
            f"{CPU_REFERENCE}, {NPU_ARCH32}, {NPU_ARCH35}, {CUDA}"
        )
    npu = backend in (NPU_ARCH32, NPU_ARCH35)
    block_k = max(16, _next_power_of_two(p.K))
    columns, warps = _columns(p, backend, cores, block_k)
    block_v = min(columns, max(16, _next_power_of_two(p.V)))
    tiles = -(-p.V // block_v)
    num_tasks = p.B * p.HV * tiles
    if num_tasks > _MAX_TASKS:
        raise ValueError(
            f"pieces of work: got {num_tasks}, allowed: up to {_MAX_TASKS}; their number grows "
            "with B * HV"
        )
    # A kernel without matrix products runs on each vector core by itself; cores counts cube cores.
    limit = 2 * cores if npu else cores
    if backend == CUDA and columns == 64:
        limit = 4 * cores  # 0.136 ms for 128 tokens of 32 heads, 0.141 with `cores` (H200)
    if max_programs is not None:
        limit = min(limit, max_programs)
    constants = {
        "HV": p.HV,
        "GROUP": p.HV // p.H,
        "K": p.K,
        "V": p.V,
        "BLOCK_K": block_k,
        "BLOCK_V": block_v,
        "GATE": p.gate,
        "HAS_A_LOG": p.has_A_log,
        "HAS_BIAS": p.has_dt_bias,
        "L2NORM": p.l2norm,
        "BETA_LOGITS": p.beta_logits,
        "DOUBLED": p.doubled,
        "INDEXED": p.indexed,
        # arch32's scalar unit, which starts the next task's loads, would wait for the product of q
        # and k: estimated 31.8 kcycles for those 12 tokens instead of 24.9. arch35: 23.2 and 25.9.
        "SUMS_TOGETHER": backend != NPU_ARCH32,
    }
    options = {"num_warps": warps} if backend == CUDA else {}
    # The interpreter truncates where it should round to bf16.
    stage = backend == CPU_REFERENCE and p.dtype == BFLOAT16
    return Plan(min(num_tasks, limit), num_tasks, constants, options, stage)


def _columns(problem: Problem, backend: str, cores: int, block_k: int) -> tuple[int, int]:
    """Columns of the state that a task takes, and warps. A task reads all K rows of them once."""
    p = problem
    if backend in (NPU_ARCH32, NPU_ARCH35):
        return max(16, _NPU_TILE // block_k), 0
    if block_k > 128:
        return 16, 4
    # The wider the faster, as long as there is work for every multiprocessor, for which cores
    # counts 8. H200, 32 heads, K = V = 128: 128 tokens 0.136 ms with 64 columns, 0.142 with 32,
    # 0.151 with 16; 16 tokens 0.022, 0.021 and 0.023.
    for columns, warps, least in ((64, 2, 4 * cores), (32, 1, cores // 4)):
        if p.B * p.HV * -(-p.V // columns) >= least:
            return columns, warps
    return 16, 4


def _next_power_of_two(value: int) -> int:
    return 1 << (value - 1).bit_length()
