"""The facts about a call that its plan depends on. Plain Python: no torch, no triton."""

import dataclasses

FLOAT16 = "float16"
BFLOAT16 = "bfloat16"


@dataclasses.dataclass(frozen=True)
class Strides:
    """Strides, in elements, of what the kernel reads in place; zeros for an absent argument.

    The last axis of every tensor here has stride 1. A stride of an axis of size 1 never matters to
    the result, so it is replaced: by 0 on the batch axis, by a contiguous tensor's stride on the
    others. An odd one then neither recompiles nor overflows.
    """

    q: tuple[int, int, int]  # batch, token, head
    k: tuple[int, int, int]
    v: tuple[int, int, int]
    angles: tuple[int, int, int]
    z: tuple[int, int, int]
    adt: tuple[int, int]  # batch, head
    dt: tuple[int, int]
    trap: tuple[int, int]
    q_bias: int  # head
    k_bias: int
    d: int


# For plans whose launches and workspace are asked for, which no stride changes.
NO_STRIDES = Strides(
    q=(0, 0, 0),
    k=(0, 0, 0),
    v=(0, 0, 0),
    angles=(0, 0, 0),
    z=(0, 0, 0),
    adt=(0, 0),
    dt=(0, 0),
    trap=(0, 0),
    q_bias=0,
    k_bias=0,
    d=0,
)


@dataclasses.dataclass(frozen=True)
class Problem:
    """A checked call of mamba3_siso_fwd_kernel.

    Attributes:
        B, S, HQ, H, K, V: sizes as in the contract; output head h reads the q/k head h // (H //
            HQ).
        A: rotated pairs, 0 to K // 2.
        dtype: FLOAT16 or BFLOAT16, of q, k, v, z and the output.
        has_d, has_z: whether the optional arguments are given.
        chunk_size: 32 or 64; the result does not depend on it.
        strides: of the tensors that the kernel will read.
    """

    B: int
    S: int
    HQ: int
    H: int
    K: int
    V: int
    A: int
    dtype: str
    has_d: bool
    has_z: bool
    chunk_size: int
    strides: Strides

    @property
    def empty(self) -> bool:
        return self.B == 0 or self.S == 0
