"""What a call of kda_gate_chunk_cumsum launches: tile, grid, constants. Plain Python: no torch, no
triton."""

import dataclasses
from collections.abc import Mapping

# Names of ops.common.backend, repeated here because that module imports torch and triton; plan_test
# compares them.
CPU_REFERENCE = "cpu-reference"
NPU_ARCH32 = "npu-arch32"
NPU_ARCH35 = "npu-arch35"
CUDA = "cuda"

# How the gate comes to be, as in ops.common.kda_gate.
GIVEN, SOFTPLUS, BOUNDED = 0, 1, 2

_MAX_TASKS = 2**31 - 2**16  # task counters are int32 and step by up to 2^16
# Of ops.common.launch.
_MAX_PROGRAMS = 65535
_BLOCK = 64
# arch35's compiler (1.2.0) crashes on 16 columns.
_LEAST_BLOCK = {NPU_ARCH32: 16, NPU_ARCH35: 32}


@dataclasses.dataclass(frozen=True)
class Problem:
    """A checked call.

    Attributes:
        B, T, HV, K: sizes as in the contract.
        C: the chunk size, 32 or 64.
        N: sequences: B, or the number of packed ones.
        NT: chunks of a batch row; of all sequences when they are packed.
        packed: whether cu_seqlens is given; then B is 1.
        gate: GIVEN, SOFTPLUS or BOUNDED.
        has_A_log, has_dt_bias: whether the argument is given.
        strides: of g in elements: batch, token and head. The last axis has stride 1.
    """

    B: int
    T: int
    HV: int
    K: int
    C: int
    N: int
    NT: int
    packed: bool
    gate: int
    has_A_log: bool
    has_dt_bias: bool
    strides: tuple[int, int, int] = (0, 0, 0)

    @property
    def empty(self) -> bool:
        """No token belongs to a sequence."""
        return self.B * self.NT == 0


@dataclasses.dataclass(frozen=True)
class Plan:
    """The one launch of a call.

    Attributes:
        programs: size of the one-dimensional persistent grid.
        num_tasks: pieces of work; program p does p, p + programs, p + 2 programs, ...
        constants: the kernel's tl.constexpr arguments.
        options: compiler options.
    """

    programs: int
    num_tasks: int
    constants: Mapping[str, int | bool]
    options: Mapping[str, int]


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
            f"kda_gate_chunk_cumsum: no kernel for {backend!r}; implemented are "
            f"{CPU_REFERENCE}, {NPU_ARCH32}, {NPU_ARCH35}, {CUDA}"
        )
    npu = backend in _LEAST_BLOCK
    block_k = _BLOCK
    if npu:
        block_k = min(_BLOCK, max(_LEAST_BLOCK[backend], 1 << (p.K - 1).bit_length()))
    num_tasks = p.B * p.NT * p.HV * -(-p.K // block_k)
    if num_tasks > _MAX_TASKS:
        raise ValueError(
            f"pieces of work: got {num_tasks}, allowed: up to {_MAX_TASKS}; their number grows "
            "with B * T * HV"
        )
    # A kernel without matrix products runs on each vector core by itself; cores counts cube cores.
    limit = 2 * cores if npu else cores
    if max_programs is not None:
        limit = min(limit, max_programs)
    one_task = backend == CUDA and max_programs is None and num_tasks <= _MAX_PROGRAMS
    if one_task:
        limit = num_tasks
    constants = {
        "HV": p.HV,
        "K": p.K,
        "C": p.C,
        "G_ORG_STRIDE_T": p.strides[1],
        "BLOCK_K": block_k,
        "GATE": p.gate,
        "HAS_A_LOG": p.has_A_log,
        "HAS_BIAS": p.has_dt_bias,
        "PACKED": p.packed,
        "ONE_TASK": one_task,
    }
    options = {"num_warps": 4, "num_stages": 1} if backend == CUDA else {}
    return Plan(min(num_tasks, limit), num_tasks, constants, options)
