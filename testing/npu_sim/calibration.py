"""The numbers of the cost model, one set per chip.

Nobody on the project has measured one: what a source states is marked so, everything else is a
guess to be refitted from `msprof op` of a chip. The guesses alone move results by a factor of two;
rank variants with the model, do not quote its microseconds.
"""

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Chip:
    """Constants of a chip. Unless a unit is named, cycles of the core's clock.

    name: as the compiler calls it. clock_hz, cores (cube cores), gm_bytes_per_second (all cores
    together).

    Transfers with global memory: gm_burst_bytes is what each row is rounded up to; a row that does
    not start at a multiple of gm_aligned_bytes reaches gm_unaligned_share of the bandwidth;
    dma_row is spent on each row but the first, dma_latency until data has arrived.

    Vector unit: repeat_bytes at a time; issue cycles per operation; cycles per repeat by class.
    """

    name: str
    clock_hz: float
    cores: int

    gm_bytes_per_second: float
    gm_burst_bytes: int
    gm_aligned_bytes: int
    gm_unaligned_share: float
    dma_issue: float
    dma_latency: float
    dma_row: float
    dma_element: float  # a transfer of single elements, per element

    repeat_bytes: int
    vector_issue: float
    vector_latency: float
    vector_repeat: float  # add, multiply, compare, cast, copy, ...
    slow_repeat: float  # divide, exp, ln, sqrt
    reduce_repeat: float
    scan_step: float  # one row of a cumulative sum
    transpose_repeat: float
    gather_element: float
    sort_repeat: float
    scalar_element: float  # the library's loops of the scalar unit

    l1_bytes_per_cycle: float  # L1 to L0A or L0B
    l1_issue: float
    l1_latency: float
    cube_issue: float
    cube_latency: float
    cube_cycles: Mapping[str, float]  # element -> cycles for 16 x 16 x 32 bytes of k
    fixpipe_bytes_per_cycle: float
    fixpipe_issue: float
    fixpipe_latency: float

    scalar_operation: float
    issue: float  # the scalar unit's time to queue one task
    scalar_gm: float
    scalar_ub: float
    flag: float
    flag_latency: float
    barrier: float
    block_flag: float
    block_flag_latency: float


ASCEND_910B1 = Chip(
    name="Ascend910B1",
    clock_hz=1.8e9,  # guide: 16 x 16 x 16 a cycle on 24 cores is 354 TFLOP/s
    cores=24,  # the compiler's description of the chip: CUBE_CORE_COUNT
    gm_bytes_per_second=1.6e12,  # guide: HBM; L2 serves about 7 TB/s, which is not modelled
    gm_burst_bytes=128,  # guide: transfers are rounded to 128, 256 or 512 bytes
    gm_aligned_bytes=512,  # guide: rows at multiples of 512 bytes are fastest
    gm_unaligned_share=0.7,  # guide: 32-byte alignment reaches at least 70 % of that
    dma_issue=20,  # guess
    dma_latency=400,  # guess
    dma_row=4,  # guess
    dma_element=8,  # guess
    repeat_bytes=256,  # VecUtils.h: INTR_BYTES_PER_REPEAT
    vector_issue=12,  # guess
    vector_latency=8,  # guess
    vector_repeat=1,  # guess: one repeat a cycle
    slow_repeat=4,  # guess
    reduce_repeat=2,  # guess
    scan_step=16,  # guess: an addition and a barrier per row
    transpose_repeat=2,  # guess
    gather_element=1,  # guess
    sort_repeat=16,  # guess
    scalar_element=8,  # guess
    l1_bytes_per_cycle=256,  # guess
    l1_issue=10,  # guess
    l1_latency=30,  # guess
    cube_issue=4,  # guess
    cube_latency=20,  # guess
    cube_cycles={
        "f16": 1,  # guide: 16 x 16 x 16 a cycle
        "bf16": 1,  # as f16
        "i8": 1,  # guess: 16 x 16 x 32 a cycle
        "f32": 2,  # guess: a quarter of the fp16 rate
        "hf32": 1,  # HIVMMacroOps.td: twice the rate of f32
    },
    fixpipe_bytes_per_cycle=64,  # guess
    fixpipe_issue=10,  # guess
    fixpipe_latency=60,  # guess
    scalar_operation=1,  # guess
    issue=2,  # guess
    scalar_gm=200,  # guess
    scalar_ub=20,  # guess
    flag=1,  # guess
    flag_latency=10,  # guess
    barrier=2,  # guess
    block_flag=4,  # guess
    block_flag_latency=150,  # guess
)

# Same architecture, fewer cores; everything else is taken over (guess).
ASCEND_910_9362 = dataclasses.replace(ASCEND_910B1, name="Ascend910_9362", cores=20)
# Another architecture: only the number of cores is known here.
ASCEND_910_9589 = dataclasses.replace(ASCEND_910B1, name="Ascend910_9589", cores=32)

# Number of cube cores in the compiler's description of the chip -> its constants.
BY_CORES = {chip.cores: chip for chip in (ASCEND_910B1, ASCEND_910_9362, ASCEND_910_9589)}
