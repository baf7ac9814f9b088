"""What a plan is made of. Plain Python: no torch, no triton."""

import dataclasses
import math
from collections.abc import Mapping

from ops.chunk_kda import problem as problem_lib

# As in gate.py; 0 where G is given.
GATES = {problem_lib.GIVEN: 0, problem_lib.SOFTPLUS: 1, problem_lib.BOUNDED: 2}
ITEMSIZE = {problem_lib.FLOAT16: 2, problem_lib.BFLOAT16: 2, problem_lib.FLOAT32: 4}

_MAX_TASKS = 2**31 - 2**16  # task counters are int32 and step by up to 2^16


@dataclasses.dataclass(frozen=True)
class KernelPlan:
    """One kernel launch.

    Attributes:
        kernel: its name.
        programs: size of the one-dimensional persistent grid.
        num_tasks: pieces of work; program p does p, p + programs, p + 2 programs, ...
        constants: the kernel's tl.constexpr arguments.
        options: compiler options.
        first_chunk: where the tasks begin, of a launch for a range of the chunks.
        first_slot: of dbeta, where the kernel's parts begin, behind those of kernels before it.
    """

    kernel: str
    programs: int
    num_tasks: int
    constants: Mapping[str, int | bool | str]
    options: Mapping[str, int]
    first_chunk: int = 0
    first_slot: int = 0


@dataclasses.dataclass(frozen=True)
class Buffer:
    """A tensor that kernels write.

    Attributes:
        shape: its sizes.
        stored: the dtype that kernels store.
        dtype: the dtype of the result, which torch converts to; stored where it is None.
        first, last: positions in Plan.kernels of the first and the last launch that use it.
    """

    shape: tuple[int, ...]
    stored: str
    dtype: str | None
    first: int
    last: int

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * ITEMSIZE[self.stored]


@dataclasses.dataclass(frozen=True)
class Plan:
    """How a call is computed.

    Attributes:
        kernels: what is launched, in this order.
        workspace: tensors between kernels, and sums that torch finishes, by name.
        outputs: results that kernels write, by name.
    """

    kernels: tuple[KernelPlan, ...]
    workspace: Mapping[str, Buffer]
    outputs: Mapping[str, Buffer]

    def explain(self) -> str:
        """The plan in words, a line for each launch and one for the workspace."""
        lines = []
        for each in self.kernels:
            tiles = {
                name.removeprefix("BLOCK_").lower(): value
                for name, value in each.constants.items()
                if name.startswith("BLOCK")
            }
            lines.append(
                f"{each.kernel}: {each.num_tasks} tasks on {each.programs} programs, "
                f"tiles {tiles}" + (f", options {dict(each.options)}" if each.options else "")
            )
        held = ", ".join(f"{name} {buffer.bytes}" for name, buffer in self.workspace.items())
        lines.append(f"workspace in bytes: {held}")
        return "\n".join(lines)

    def workspace_bytes(self, peak: bool) -> int:
        """Device bytes beside the outputs: of what is held at the same time, or (peak=False) of all
        that is allocated."""
        converted = [b for b in self.outputs.values() if b.dtype not in (None, b.stored)]
        if not peak:
            return sum(b.bytes for b in (*self.workspace.values(), *converted))
        most = 0
        for i in range(len(self.kernels)):
            held = sum(b.bytes for b in self.workspace.values() if b.first <= i <= b.last)
            # Outputs that are allocated later leave room.
            held -= sum(b.bytes for b in self.outputs.values() if b.first > i)
            most = max(most, held)
        return most + sum(b.bytes for b in converted)


def gate_constants(problem: problem_lib.Problem) -> dict[str, int | bool]:
    """Of the kernels that compute the gate or its gradient."""
    return {
        "GATE": GATES[problem.gate],
        "HAS_A_LOG": problem.has_A_log,
        "HAS_BIAS": problem.has_dt_bias,
        "G_ORG_STRIDE_T": problem.strides.g_org[1],
    }


def shared_constants(problem: problem_lib.Problem) -> dict[str, int | bool]:
    """Of all kernels: sizes and strides."""
    p, s = problem, problem.strides
    return {
        "HV": p.HV,
        "GROUP": p.group,
        "K": p.K,
        "V": p.V,
        "C": p.C,
        "Q_STRIDE_T": s.q[1],
        "K_STRIDE_T": s.k[1],
        "V_STRIDE_T": s.v[1],
        "G_STRIDE_T": p.HV * p.K if p.computes_gate else s.g[1],
        "BETA_STRIDE_T": s.beta[1],
        "AQK_STRIDE_T": s.Aqk[1],
        "AKK_STRIDE_T": s.Akk[1],
        "DO_STRIDE_T": s.do[1],
        "V_NEW_STRIDE_T": p.HV * p.V if p.recompute else s.v_new[1],
        "DV_STRIDE_T": s.dv[1] or p.HV * p.V,
        "PACKED": p.packed,
    }


def check_tasks(kernel: str, count: int) -> None:
    if count > _MAX_TASKS:
        raise ValueError(
            f"pieces of work of {kernel}: got {count}, allowed: up to {_MAX_TASKS}; their number "
            "grows with B * T * HV"
        )


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def next_power_of_two(value: int) -> int:
    return 1 << (value - 1).bit_length()
