"""The facts about a call that its plan depends on. Plain Python: no torch, no triton."""

import dataclasses

FLOAT16 = "float16"
BFLOAT16 = "bfloat16"
FLOAT32 = "float32"

# How the gate of a step comes to be.
GIVEN = "given"  # G is an argument
SOFTPLUS = "softplus"  # -exp(A_log) softplus(g_org + dt_bias)
BOUNDED = "bounded"  # lower_bound sigmoid(exp(A_log) (g_org + dt_bias))

_Rows = tuple[int, int, int]  # strides of batch, token, head


@dataclasses.dataclass(frozen=True)
class Strides:
    """Strides, in elements, of what kernels read in place: (batch, token, head); zeros for an
    absent argument.

    The last axis of every tensor here has stride 1, except that beta has none behind the head's. A
    stride of an axis of size 1 never matters to the result, so it is replaced: by 0 on the batch
    axis, by a contiguous tensor's stride on the others. States are read as contiguous ones.
    """

    q: _Rows = (0, 0, 0)
    k: _Rows = (0, 0, 0)
    v: _Rows = (0, 0, 0)
    v_new: _Rows = (0, 0, 0)
    g: _Rows = (0, 0, 0)
    g_org: _Rows = (0, 0, 0)
    beta: _Rows = (0, 0, 0)
    Aqk: _Rows = (0, 0, 0)
    Akk: _Rows = (0, 0, 0)  # A of chunk_kda_bwd_wy_dqkg_fused
    do: _Rows = (0, 0, 0)
    dv: _Rows = (0, 0, 0)


@dataclasses.dataclass(frozen=True)
class Problem:
    """A checked call of one of the functions.

    Attributes:
        B, T, H, HV, K, V: sizes as in the contract; value head hv reads the q/k head hv // (HV //
            H).
        C: the chunk size, 32 or 64.
        N: sequences: B, or the number of packed ones.
        NT: chunks of a batch row; of all sequences when they are packed.
        packed: whether cu_seqlens is given; then B is 1.
        slack: whether there are rows behind the last packed sequence.
        dtype: of q, k, v, do, and of states and v_new that are given.
        Aqk_dtype, Akk_dtype: dtype, or FLOAT32.
        beta_dtype: FLOAT16, BFLOAT16 or FLOAT32.
        gate: GIVEN, SOFTPLUS or BOUNDED.
        g_org_dtype: of g_org and of dg; "" when the gate is GIVEN.
        has_A_log, has_dt_bias, has_initial_state, has_dht: whether the argument is given.
        recompute: whether v_new and h, and G of a gate that is not GIVEN, have to be computed; of
            chunk_kda_fwd_intra, whether qg is left to be computed.
        forward: chunk_kda_fwd, which computes G of every gate; the raw gate is g_org to its
            kernels. Aqk_dtype and Akk_dtype are then those of results.
        has_final_state: whether the forward returns the last states.
        strides: of the tensors that the kernels will read.
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
    slack: bool
    dtype: str
    Aqk_dtype: str
    Akk_dtype: str
    beta_dtype: str
    gate: str = GIVEN
    g_org_dtype: str = ""
    has_A_log: bool = False
    has_dt_bias: bool = False
    has_initial_state: bool = False
    has_dht: bool = False
    recompute: bool = True
    forward: bool = False
    has_final_state: bool = False
    strides: Strides = dataclasses.field(default_factory=Strides)

    @property
    def group(self) -> int:
        """Value heads per q/k head."""
        return self.HV // self.H

    @property
    def chunks(self) -> int:
        """Of the whole call, for one head."""
        return self.B * self.NT

    @property
    def empty(self) -> bool:
        """No token belongs to a sequence. Gradients of states are still to be returned."""
        return self.chunks == 0

    @property
    def computes_gate(self) -> bool:
        return self.forward or (self.gate != GIVEN and self.recompute)
