"""Tile sizes, grid and compile-time constants of a call. Plain Python: no torch, no triton."""

import dataclasses
from collections.abc import Mapping

from ops.mamba3_siso_fwd import problem as problem_lib

# Names of ops.common.backend, repeated here because that module imports torch and triton; plan_test
# compares them.
CPU_REFERENCE = "cpu-reference"
CUDA = "cuda"
NPU_ARCH35 = "npu-arch35"

# Ascend's arch35 compiler (1.2.0) rejects narrower tiles (halves of 16, or 16 columns of v).
_MIN_BLOCK_K = 64
_MIN_BLOCK_V = 32
_MAX_TASKS = 2**31 - 2**16  # the kernel's task counter is an int32 that steps by up to 2^16


@dataclasses.dataclass(frozen=True)
class Plan:
    """How one kernel launch computes a problem.

    Attributes:
        programs: size of the one-dimensional persistent grid.
        num_tasks: (batch, head, V tile) combinations; program p does p, p + programs, p + 2
            programs, ...
        constants: the kernel's tl.constexpr arguments.
        options: compiler options.
        stage_output: the kernel stores fp32 and torch rounds to the output's dtype afterwards.
    """

    programs: int
    num_tasks: int
    constants: Mapping[str, int | bool]
    options: Mapping[str, int]
    stage_output: bool


def make_plan(problem: problem_lib.Problem, backend: str, cores: int) -> Plan:
    """Plans the launch for a problem that is not empty.

    Args:
        problem: the checked call.
        backend: name of the backend, see ops.common.backend.
        cores: programs that a persistent grid should have there.

    Raises:
        ValueError: more (batch, head, V tile) combinations than the kernel can count.
    """
    block_t, block_k, block_v = _tiles(problem, backend)
    num_tasks = problem.B * problem.H * _ceil_div(problem.V, block_v)
    if num_tasks > _MAX_TASKS:
        raise ValueError(
            f"B * H * ceil(V / {block_v}): got {num_tasks}, "
            f"allowed: up to {_MAX_TASKS} tiles of work"
        )
    # Triton's interpreter multiplies bf16 matrices as if they were integers and truncates where it
    # should round to bf16 (triton 3.2). There, and only there, bf16 operands stay in fp32 and the
    # output is rounded by torch: that device judges the algorithm, not bf16.
    interpreted_bf16 = backend == CPU_REFERENCE and problem.dtype == problem_lib.BFLOAT16
    strides = problem.strides
    constants = {
        "H": problem.H,
        "HEADS_PER_GROUP": problem.H // problem.HQ,
        "K": problem.K,
        "V": problem.V,
        "A": problem.A,
        "Q_STRIDE_S": strides.q[1],
        "K_STRIDE_S": strides.k[1],
        "V_STRIDE_S": strides.v[1],
        "ANGLES_STRIDE_S": strides.angles[1],
        "Z_STRIDE_S": strides.z[1],
        "Q_BIAS_STRIDE_H": strides.q_bias,
        "K_BIAS_STRIDE_H": strides.k_bias,
        "D_STRIDE_H": strides.d,
        "BLOCK_T": block_t,
        "BLOCK_K": block_k,
        "BLOCK_V": block_v,
        "HAS_D": problem.has_d,
        "HAS_Z": problem.has_z,
        "SCALE_OPERANDS": problem.dtype == problem_lib.FLOAT16,
        "FP32_DOTS": interpreted_bf16,
        # arch35's compiler (1.2.0) drops the zeros of a masked load that goes to a product: the
        # rows behind the last token are what L1 held, and a NaN there spoils the whole tile.
        "FILL_V": backend == NPU_ARCH35,
    }
    return Plan(
        programs=min(num_tasks, cores),
        num_tasks=num_tasks,
        constants=constants,
        options=_options(block_k, block_v) if backend == CUDA else {},
        stage_output=interpreted_bf16,
    )


def _tiles(problem: problem_lib.Problem, backend: str) -> tuple[int, int, int]:
    """(BLOCK_T, BLOCK_K, BLOCK_V), sized for the 192 KiB of an Ascend 910B's vector core.

    The halves of q, k and of the rotation grow with T * K, the state with K * V: (64, 128, 64) and
    (32, 256, 64) need 211 and 203 KiB.
    """
    block_k = max(_MIN_BLOCK_K, _next_power_of_two(problem.K))
    # A GPU has room for 64 tokens of K = 128, and tiles of 32 take 1.5 times as long there (H200).
    widest = 128 if backend == CUDA else 64
    block_t = problem.chunk_size if problem.S > 32 and block_k <= widest else 32
    # 64 columns where they divide V, so that no lane idles.
    block_v = 64 if problem.V % 64 == 0 and block_k <= 128 else _MIN_BLOCK_V
    if backend == CUDA and block_t == 64:
        # Fewer columns than pairs, with 64 tokens and 4 warps, gave results off by 100 % or an
        # illegal access: Triton 3.6 miscompiles such chains of Hopper's wgmma (they are right under
        # DISABLE_MMA_V3=1; compare triton-lang/triton issue 11366, seen in 3.7.1).
        block_v = max(block_v, block_k // 2)
    return block_t, block_k, block_v


def _options(block_k: int, block_v: int) -> dict[str, int]:
    # One stage: the loads are by pointer, which pipelining slowed down on an H200. Eight warps for
    # a wide tile, because the fp32 state halves alone would fill the registers of four.
    return {"num_warps": 8 if block_k * block_v >= 128 * 64 else 4, "num_stages": 1}


def _next_power_of_two(value: int) -> int:
    return 1 << (value - 1).bit_length()


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)
