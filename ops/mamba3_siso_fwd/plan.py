"""Which kernels a call launches, with which tiles, grids and constants. Plain Python: no torch, no
triton."""

import dataclasses
from collections.abc import Mapping

from ops.mamba3_siso_fwd import problem as problem_lib

# Names of ops.common.backend, repeated here because that module imports torch and triton; plan_test
# compares them.
CPU_REFERENCE = "cpu-reference"
CUDA = "cuda"
NPU_ARCH32 = "npu-arch32"
NPU_ARCH35 = "npu-arch35"

# The three ways to compute a sequence.
ONE_TILE = "one tile"
DENSE = "dense"
SPLIT = "split"

# Names of the kernels, as launches report them.
FORWARD = "mamba3_siso_fwd"
STATES = "segment_states"
SCAN = "segment_scan"
GATES = "gates"
GATED_STATES = "gated_states"
GATED_TILES = "gated_tiles"

# Ascend's arch35 compiler (1.2.0) rejects narrower tiles (halves of 16, or 16 columns of v).
_MIN_BLOCK_K = 64
_MIN_BLOCK_V = 32
_MAX_TASKS = 2**31 - 2**16  # the kernel's task counter is an int32 that steps by up to 2^16
# State elements that a program of the scan adds up.
_SCAN_BLOCK = 1024
# What gated.gates writes for a tile: 6 numbers of each token and, in the 32 bytes that Ascend moves
# at least, 2 of the tile.
_GATES_PER_TOKEN = 6
_GATES_PER_TILE = 8

# A persistent CUDA grid has 8 programs per multiprocessor (backend.core_count); the kernels' 255
# registers leave room for 2 of 4 warps, or 1 of 8, at a time.
_CUDA_GRID_PER_CORE = 8


@dataclasses.dataclass(frozen=True)
class _Split:
    """When splitting a sequence repays two launches more and the second pass over k.

    least_tiles: of the whole sequence. least_segment_tiles: of a segment. README.md has what both
    were chosen by.
    """

    least_tiles: int
    least_segment_tiles: int


_SPLIT = {CUDA: _Split(6, 2)}
_SPLIT_ELSEWHERE = _Split(16, 8)


@dataclasses.dataclass(frozen=True)
class KernelPlan:
    """One kernel launch.

    Attributes:
        kernel: FORWARD, STATES, SCAN, GATES, GATED_STATES or GATED_TILES.
        programs: size of the one-dimensional persistent grid.
        num_tasks: pieces of work; program p does p, p + programs, p + 2 programs, ...
        constants: the kernel's tl.constexpr arguments.
        options: compiler options.
    """

    kernel: str
    programs: int
    num_tasks: int
    constants: Mapping[str, int | bool]
    options: Mapping[str, int]


@dataclasses.dataclass(frozen=True)
class Plan:
    """How a call is computed.

    Attributes:
        path: ONE_TILE, DENSE or SPLIT.
        reason: why this path, in words.
        kernels: what is launched, in this order.
        segments: pieces that a sequence is cut into, 1 unless SPLIT.
        segment: tokens of each, a multiple of the tile; the last one may have fewer.
        slots: states that are kept between kernels.
        state: fp32 elements of each.
        gates: fp32 elements that GATES leaves to the kernels after it; 0 without it.
        stage_output: the kernel stores fp32 and torch rounds to the output's dtype afterwards.
    """

    path: str
    reason: str
    kernels: tuple[KernelPlan, ...]
    segments: int
    segment: int
    slots: int
    state: int
    gates: int
    stage_output: bool

    @property
    def workspace_bytes(self) -> int:
        """Device bytes beside the output, all fp32: gates; states, each one's decay and unit."""
        return 4 * (self.gates + self.slots * (self.state + 2))

    def explain(self) -> str:
        """The plan in words, a line for the path and one for each launch."""
        lines = [f"{self.path}: {self.reason}"]
        for each in self.kernels:
            tiles = {
                name.removeprefix("BLOCK_").lower(): value
                for name, value in each.constants.items()
                if name.startswith("BLOCK")
            }
            lines.append(
                f"  {each.kernel}: {each.num_tasks} tasks on {each.programs} programs, "
                f"tiles {tiles}" + (f", options {dict(each.options)}" if each.options else "")
            )
        if self.workspace_bytes:
            pieces = f"{self.segments} segments of {self.segment} tokens, " if self.slots else ""
            lines.append(f"  {pieces}workspace of {self.workspace_bytes} bytes")
        return "\n".join(lines)


def make_plan(
    problem: problem_lib.Problem, backend: str, cores: int, max_programs: int | None = None
) -> Plan:
    """Plans the launches for a problem that is not empty.

    Args:
        problem: the checked call.
        backend: name of the backend, see ops.common.backend.
        cores: programs that a persistent grid should have there. Path and tiles depend on it.
        max_programs: the most that a grid may have; it changes no result's bits. Default: cores.

    Raises:
        ValueError: more (batch, head, V tile) combinations than the kernel can count.
    """
    gpu = backend == CUDA
    block_t, block_k, block_v = _tiles(problem, gpu)
    v_tiles = _ceil_div(problem.V, block_v)
    tasks = problem.B * problem.H * v_tiles
    if tasks > _MAX_TASKS:
        raise ValueError(
            f"B * H * ceil(V / {block_v}): got {tasks}, allowed: up to {_MAX_TASKS} tiles of work"
        )
    resident = max(1, 2 * cores // _CUDA_GRID_PER_CORE) if gpu else cores
    if gpu and (block_t, block_k) == (64, 64) and 64 < problem.S <= 128 and 2 * tasks <= resident:
        # One tile of 128 tokens and no state instead of two tiles, where every program has a core
        # to itself: 10.7 us instead of 13.9 (H200, B1 S128 H4), but 20.4 instead of 18.2 for B8
        # S100 H32.
        block_t = 128
    tiles = _ceil_div(problem.S, block_t)
    split = _SPLIT.get(backend, _SPLIT_ELSEWHERE)
    segments = min(resident // tasks, tiles // split.least_segment_tiles)
    # Without a state Ascend's arch32 compiler (1.2.0) gives up the second buffers of bf16 kernels
    # of 64 tokens, not of fp16 ones; there bf16 keeps the state without needing it.
    if tiles == 1 and (gpu or problem.dtype == problem_lib.FLOAT16):
        path, segments = ONE_TILE, 1
        reason = f"S = {problem.S} fits a tile of {block_t} tokens, no state is needed"
    elif segments < 2 or tiles < split.least_tiles:
        path, segments = DENSE, 1
        reason = (
            f"{tasks} (batch, head, V tile) tasks of {tiles} tiles for {resident} programs at once"
        )
    else:
        path = SPLIT
        reason = (
            f"{tasks} (batch, head, V tile) tasks leave most of {resident} programs idle; "
            f"{tiles} tiles are enough for {segments} segments"
        )
    segment = _ceil_div(tiles, segments) * block_t
    segments = _ceil_div(problem.S, segment)
    # On an NPU what is summed over tokens has a launch of its own: README.md has what that gains.
    # One tile would not repay it.
    gated = not gpu and tiles > 1

    # Triton's interpreter multiplies bf16 matrices as if they were integers and truncates where it
    # should round to bf16 (triton 3.2). There, and only there, bf16 operands stay in fp32 and the
    # output is rounded by torch: that device judges the algorithm, not bf16.
    interpreted_bf16 = backend == CPU_REFERENCE and problem.dtype == problem_lib.BFLOAT16
    strides = problem.strides
    scale_operands = problem.dtype == problem_lib.FLOAT16
    join = gpu and block_k == 64
    tokens_and_k = {
        "H": problem.H,
        "HEADS_PER_GROUP": problem.H // problem.HQ,
        "K": problem.K,
        "V": problem.V,
        "A": problem.A,
        "K_STRIDE_S": strides.k[1],
        "V_STRIDE_S": strides.v[1],
        "ANGLES_STRIDE_S": strides.angles[1],
        "K_BIAS_STRIDE_H": strides.k_bias,
        "BLOCK_T": block_t,
        "BLOCK_K": block_k,
        "BLOCK_V": block_v,
        "SCALE_OPERANDS": scale_operands,
        "FP32_DOTS": interpreted_bf16,
    }
    outputs = {
        "Q_STRIDE_S": strides.q[1],
        "Z_STRIDE_S": strides.z[1],
        "Q_BIAS_STRIDE_H": strides.q_bias,
        "D_STRIDE_H": strides.d,
        "HAS_D": problem.has_d,
        "HAS_Z": problem.has_z,
        # arch35's compiler (1.2.0) drops the zeros of a masked load that goes to a product: the
        # rows behind the last token are what L1 held, and a NaN there spoils the whole tile.
        "FILL_V": backend == NPU_ARCH35,
        "SEGMENTED": path == SPLIT,
    }
    arrangement: dict[str, int | bool]
    if gated:
        gates_of_tile = _GATES_PER_TOKEN * block_t + _GATES_PER_TILE
        arrangement = {"GATES": gates_of_tile, "INSERT": backend != CPU_REFERENCE}
    else:
        gates_of_tile = 0
        arrangement = {"JOIN": join}
        outputs |= {
            "GPU": gpu,
            "ONE_TILE": path == ONE_TILE,
            # A whole tile ahead fits the registers beside a state of 64 columns: 1.15 times as
            # fast; with 128 it spills and is 2.5 times as slow (H200).
            "PREFETCH": join and path != ONE_TILE and block_t == 64,
        }
    options = _options(block_t, block_k, block_v) if gpu else {}
    kernels = []

    def add(
        name: str,
        count: int,
        constants: Mapping[str, int | bool],
        options: Mapping[str, int] = options,
        grid: int = cores,
    ) -> None:
        if max_programs is not None:
            grid = min(grid, max_programs)
        kernels.append(KernelPlan(name, min(count, grid), count, constants, options))

    # A kernel without products occupies one vector core, of which an NPU has two per cube core.
    vector_cores = 2 * cores if backend in (NPU_ARCH32, NPU_ARCH35) else cores
    if gated:
        constants = {name: tokens_and_k[name] for name in ("H", "BLOCK_T", "SCALE_OPERANDS")}
        constants["GATES"] = gates_of_tile
        add(GATES, problem.B * problem.H * tiles, constants, grid=vector_cores)
    slots = problem.B * (segments - 1) * problem.H * v_tiles
    state = block_k * block_v
    if path == SPLIT:
        constants = tokens_and_k | arrangement
        if not gated:
            # q is not there, so a tile ahead fits: 1.3 times as fast.
            constants["PREFETCH"] = block_t == 64
        add(GATED_STATES if gated else STATES, slots, constants)
        scan = {"STATE": state, "BLOCK": _SCAN_BLOCK, "SCALE_OPERANDS": scale_operands}
        scan_options = {"num_warps": 4} if gpu else {}
        add(SCAN, tasks * state // _SCAN_BLOCK, scan, scan_options, vector_cores)
    constants = tokens_and_k | outputs | arrangement
    add(GATED_TILES if gated else FORWARD, tasks * segments, constants)
    return Plan(
        path=path,
        reason=reason,
        kernels=tuple(kernels),
        segments=segments,
        segment=segment,
        slots=slots,
        state=state,
        gates=problem.B * problem.H * tiles * gates_of_tile,
        stage_output=interpreted_bf16,
    )


def _tiles(problem: problem_lib.Problem, gpu: bool) -> tuple[int, int, int]:
    """(BLOCK_T, BLOCK_K, BLOCK_V), sized for the 192 KiB of an Ascend 910B's vector core.

    The halves of q, k and of the rotation grow with T * K, the state with K * V: (64, 128, 64) and
    (32, 256, 64) need 211 and 203 KiB.
    """
    block_k = max(_MIN_BLOCK_K, _next_power_of_two(problem.K))
    # A GPU has room for 64 tokens of K = 128, and tiles of 32 take 1.5 times as long there (H200).
    widest = 128 if gpu else 64
    block_t = problem.chunk_size if problem.S > 32 and block_k <= widest else 32
    # 64 columns where they divide V, so that no lane idles.
    block_v = 64 if problem.V % 64 == 0 and block_k <= 128 else _MIN_BLOCK_V
    if gpu and block_t == 64:
        # 32 columns beside 64 or 128 tokens gave results off by 100 % or an illegal access: Triton
        # 3.6 miscompiles such products of Hopper's wgmma (right under DISABLE_MMA_V3=1; compare
        # triton-lang/triton issue 11366, an access beyond shared memory with 32 columns in 3.7.1).
        block_v = 64
    return block_t, block_k, block_v


def _options(block_t: int, block_k: int, block_v: int) -> dict[str, int]:
    # Eight warps where the fp32 tiles would fill the registers of four: 128 tokens, or 32 tokens
    # with a state of 64 KiB. With 64 tokens eight warps are 1.7 times as slow (their products have
    # another layout than the rest). One stage: Triton's own pipelining made it 1.4 times as slow.
    warps = 8 if block_t == 128 or (block_t == 32 and block_k * block_v >= 128 * 64) else 4
    return {"num_warps": warps, "num_stages": 1}


def _next_power_of_two(value: int) -> int:
    return 1 << (value - 1).bit_length()


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)
