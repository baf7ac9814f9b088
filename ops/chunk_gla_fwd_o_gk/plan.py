"""What a call of chunk_gla_fwd_o_gk launches: tiles, grid, constants. Plain Python: no torch, no
triton."""

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

# Names of the kernels, as launches report them.
OUTPUTS = "outputs"
NPU_OUTPUTS = "outputs_npu"

_MAX_TASKS = 2**31 - 2**16  # task counters are int32 and step by up to 2^16
# arch35's compiler (1.2.0) crashes on 16 columns.
_LEAST_BLOCK = {NPU_ARCH32: 16, NPU_ARCH35: 32}

_Rows = tuple[int, int, int]  # strides of batch, token, head


@dataclasses.dataclass(frozen=True)
class Problem:
    """A checked call.

    Attributes:
        B, T, H, HV, K, V: sizes as in the contract; value head hv reads the q head hv // (HV // H).
        C: the chunk size, 32 or 64.
        N: sequences: B, or the number of packed ones.
        NT: chunks of a batch row; of all sequences when they are packed.
        packed: whether cu_seqlens is given; then B is 1.
        dtype: of q, v and o.
        strides: of q, v, g and A in elements: batch, token and head. The last axis has stride 1.
    """

    B: int
    T: int
    H: int
    HV: int
    K: int
    V: int
    C: int
    N: int
    NT: int
    packed: bool
    dtype: str
    strides: Mapping[str, _Rows] = dataclasses.field(default_factory=dict, hash=False)

    @property
    def empty(self) -> bool:
        """No token belongs to a sequence."""
        return self.B * self.NT == 0


@dataclasses.dataclass(frozen=True)
class Plan:
    """The one launch of a call.

    Attributes:
        kernel: its name.
        programs: size of the one-dimensional persistent grid.
        num_tasks: pieces of work; program p does p, p + programs, p + 2 programs, ...
        constants: the kernel's tl.constexpr arguments.
        options: compiler options.
        stage_output: whether the kernel stores o as fp32, which torch then converts.
    """

    kernel: str
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
    fp32 = p.dtype == FLOAT32
    if backend in (CPU_REFERENCE, CUDA):
        # K and V are padded to tiles of 64: with 32 columns beside a chunk of 64 tokens Triton 3.6
        # miscompiles some products of Hopper's wgmma. 128 columns of V read q and g once instead
        # of twice; three products of split fp32 operands leave no registers for them.
        kernel, block_k = OUTPUTS, 64
        block_v = 128 if p.V > 64 and not fp32 else 64
        own = {
            # The interpreter multiplies bf16 matrices as if they were integers.
            "FP32_DOTS": backend == CPU_REFERENCE and p.dtype == BFLOAT16,
            # Matrix units round fp32 operands to 11 bits; three products of split ones keep 22.
            "TF32X3": backend == CUDA and fp32,
        }
        # Two stages leave 209 registers (sm_90, K = V = 128); fp32 spills with them.
        options = {"num_warps": 4, "num_stages": 1 if fp32 else 2} if backend == CUDA else {}
    elif backend in _LEAST_BLOCK:
        arch32 = backend == NPU_ARCH32
        kernel = NPU_OUTPUTS
        # What fits: 0.98 of arch35's 248 KiB, where one vector core holds all rows.
        least = _LEAST_BLOCK[backend]
        block_k = min(128 if fp32 else 256, max(least, _next_power_of_two(p.K)))
        block_v = min(128 if p.K <= 128 and not fp32 else 64, max(least, _next_power_of_two(p.V)))
        # See ops/chunk_kda/npu/tile.py.
        own = {"FILL": not arch32}
        # The workspace between cube and vector cores would be multi-buffered too, and lose the
        # split of rows over both vector cores.
        options = {"limit_auto_multi_buffer_only_for_local_buffer": True} if arch32 else {}
    else:
        raise NotImplementedError(
            f"chunk_gla_fwd_o_gk: no kernel for {backend!r}; implemented are "
            f"{CPU_REFERENCE}, {NPU_ARCH32}, {NPU_ARCH35}, {CUDA}"
        )
    num_tasks = p.B * p.NT * p.HV * -(-p.V // block_v)
    if num_tasks > _MAX_TASKS:
        raise ValueError(
            f"pieces of work: got {num_tasks}, allowed: up to {_MAX_TASKS}; their number grows "
            "with B * T * HV"
        )
    constants = {
        "HV": p.HV,
        "GROUP": p.HV // p.H,
        "K": p.K,
        "V": p.V,
        "C": p.C,
        **{f"{name.upper()}_STRIDE_T": strides[1] for name, strides in p.strides.items()},
        "BLOCK_K": block_k,
        "BLOCK_V": block_v,
        "PACKED": p.packed,
        **own,
    }
    limit = cores if max_programs is None else min(cores, max_programs)
    stage = backend == CPU_REFERENCE and p.dtype == BFLOAT16
    return Plan(kernel, min(num_tasks, limit), num_tasks, constants, options, stage)


def _next_power_of_two(value: int) -> int:
    return 1 << (value - 1).bit_length()
