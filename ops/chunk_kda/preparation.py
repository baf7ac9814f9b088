"""What the forward would hand to the backward: a case's primary tensors -> keyword arguments.

Aqk, Akk and G of a call are no independent numbers. They are computed here in float64 from the
drawn tensors, by the formulas of the contract, and rounded once to the dtypes that the op takes.
Plain torch. Tensors on `meta` give tensors on `meta`, with the right shapes.
"""

import itertools
import math

import torch

from ops.chunk_kda.sequences import Sequences, gate

_SLICE = 64  # chunks and heads whose [C, C, K] decays are in memory at a time


def bwd(
    q,
    k,
    v,
    beta,
    do,
    log_gate,
    g_org,
    A_log,
    dt_bias,
    initial_state,
    dht,
    *,
    scale,
    cu_seqlens,
    index_dtype,
    chunk_size,
    score_dtype,
    safe_gate,
    lower_bound,
    use_gate_in_kernel,
    disable_recompute,
    gate_dtype=torch.float32,
):
    """Arguments of chunk_kda_bwd.

    log_gate: [B, T, HV, K], the natural-log gate of each step; None where it comes from g_org.
    beta: [B, T, HV], or [B, T, 1], which is expanded. cu_seqlens: numbers, or None; given as a
    tensor of index_dtype with chunk_indices. score_dtype: of Aqk and Akk, None for q's. gate_dtype:
    of G; the op takes fp32.
    """
    beta = beta.expand(v.shape[:3])
    if scale is None:
        scale = q.shape[3] ** -0.5
    bounds = None if cu_seqlens is None else _bounds(cu_seqlens, index_dtype, q)
    forward = Forward(q, k, v, beta, cu_seqlens, chunk_size)
    natural = log_gate
    if use_gate_in_kernel:
        natural = gate(g_org, A_log, dt_bias, lower_bound, torch.float64)
    G = forward.cumulative_gate(natural, gate_dtype)
    Aqk, Akk = forward.scores(scale)
    saved: dict[str, torch.Tensor | None] = dict.fromkeys(("w", "u", "qg", "kg", "v_new", "h"))
    if disable_recompute:
        saved |= {name: x.to(q.dtype) for name, x in forward.saved(initial_state).items()}
    score = q.dtype if score_dtype is None else getattr(torch, score_dtype)
    return {
        "q": q,
        "k": k,
        "v": v,
        "beta": beta,
        "Aqk": Aqk.to(score),
        "Akk": Akk.to(score),
        "scale": scale,
        "initial_state": initial_state,
        "do": do,
        "dht": dht,
        "g": None if use_gate_in_kernel and not disable_recompute else G,
        "g_org": g_org,
        "cu_seqlens": bounds,
        "chunk_indices": None if bounds is None else forward.chunk_indices(bounds),
        "chunk_size": chunk_size,
        "safe_gate": safe_gate,
        "lower_bound": lower_bound,
        "use_gate_in_kernel": use_gate_in_kernel,
        "A_log": A_log,
        "dt_bias": dt_bias,
        "disable_recompute": disable_recompute,
        **saved,
    }


def wy(
    q,
    k,
    v,
    v_new,
    beta,
    h,
    do,
    dh,
    dv,
    log_gate,
    *,
    scale,
    cu_seqlens,
    index_dtype,
    chunk_size,
):
    """Arguments of chunk_kda_bwd_wy_dqkg_fused: G and A belong to k and beta; v_new, h, dh and dv
    are whatever was drawn, h and dh [B, chunks, HV, K, V]."""
    beta = beta.expand(v.shape[:3])
    bounds = None if cu_seqlens is None else _bounds(cu_seqlens, index_dtype, q)
    forward = Forward(q, k, v, beta, cu_seqlens, chunk_size)
    G = forward.cumulative_gate(log_gate)
    A = forward.scores(1.0)[1]
    return {
        "q": q,
        "k": k,
        "v": v,
        "v_new": v_new,
        "g": G,
        "beta": beta,
        "A": A.to(q.dtype),
        "h": h,
        "do": do,
        "dh": dh,
        "dv": dv,
        "scale": scale,
        "cu_seqlens": bounds,
        "chunk_size": chunk_size,
        "chunk_indices": None if bounds is None else forward.chunk_indices(bounds),
    }


def fwd(q, k, v, beta, log_gate, g_org, *, cu_seqlens, index_dtype, **rest):
    """Arguments of chunk_kda, and of its gradients: rest is passed on. log_gate, g_org: one of them
    is the gate."""
    return {
        "q": q,
        "k": k,
        "v": v,
        "g": g_org if rest["use_gate_in_kernel"] else log_gate,
        "beta": beta.expand(v.shape[:3]),
        "cu_seqlens": None if cu_seqlens is None else _bounds(cu_seqlens, index_dtype, q),
        "output_final_state": True,
        **rest,
    }


def train(do, dht, **rest):
    """Arguments of training.gradients."""
    arguments = fwd(**rest)
    del arguments["output_final_state"]
    return {**arguments, "do": do, "dht": dht}


def intra(q, k, v, beta, log_gate, *, scale, cu_seqlens, index_dtype, chunk_size):
    """Arguments of chunk_kda_fwd_intra; with qg."""
    beta = beta.expand(v.shape[:3])
    forward = Forward(q, k, v, beta, cu_seqlens, chunk_size)
    return {
        "q": q,
        "k": k,
        "v": v,
        "gk": forward.cumulative_gate(log_gate),
        "beta": beta,
        "scale": scale,
        "cu_seqlens": None if cu_seqlens is None else _bounds(cu_seqlens, index_dtype, q),
        "chunk_size": chunk_size,
        "disable_recompute": True,
    }


def _bounds(cu_seqlens, index_dtype: str, like: torch.Tensor) -> torch.Tensor:
    # A call needs their values on the host: on `meta` there would be none.
    device = "cpu" if like.is_meta else like.device
    return torch.tensor(cu_seqlens, dtype=getattr(torch, index_dtype), device=device)


class Forward:
    """The forward's formulas in float64; inside, tokens are [N, chunks, HV, C, ...]."""

    def __init__(self, q, k, v, beta, cu_seqlens, chunk_size: int):
        self._chunk_size = chunk_size
        self._cu_seqlens = cu_seqlens
        self._rows = v.shape[:3]  # B, T, HV
        self._widths = q.shape[3], v.shape[3]
        self._meta = q.is_meta
        # What decides shapes needs numbers.
        on = torch.empty(q.shape[:2]) if q.is_meta else q
        self._sequences = Sequences(on, cu_seqlens, chunk_size)
        if self._meta:
            return
        group = v.shape[2] // q.shape[2]
        self._q, self._k = (self._chunked(x).repeat_interleave(group, dim=2) for x in (q, k))
        self._v, self._beta = self._chunked(v), self._chunked(beta)[..., None]

    def _chunked(self, x):
        return self._by_chunk(self._sequences.split(x.double()))

    def _by_chunk(self, x):
        return x.unflatten(1, (self._sequences.chunks, self._chunk_size)).movedim(3, 2)

    def _join(self, x):
        return self._sequences.join(x.movedim(2, 3).flatten(1, 2))

    def _empty(self, *shape, dtype=torch.float64):
        return torch.empty(shape, dtype=dtype, device="meta")

    def chunk_indices(self, bounds: torch.Tensor) -> torch.Tensor:
        size = self._chunk_size
        pairs = [
            (n, c)
            for n, (start, end) in enumerate(itertools.pairwise(self._cu_seqlens))
            for c in range(-(-(end - start) // size))
        ]
        return torch.tensor(pairs, dtype=bounds.dtype, device=bounds.device).view(-1, 2)

    def cumulative_gate(self, natural, dtype=torch.float32) -> torch.Tensor:
        """G, [B, T, HV, K]; the other methods use it as rounded."""
        if self._meta:
            return self._empty(*natural.shape, dtype=dtype)
        G = self._join(self._chunked(natural).cumsum(-2) / math.log(2)).to(dtype)
        self.use_gate(G)
        return G

    def use_gate(self, G: torch.Tensor) -> None:
        """For the other methods: a G that is given."""
        self._G = self._by_chunk(self._sequences.split_gates(G.double()))

    def scores(self, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Aqk and Akk, [B, T, HV, C]."""
        if self._meta:
            return (self._empty(*self._rows, self._chunk_size),) * 2
        q, k, G = (x.flatten(0, 2) for x in (self._q, self._k, self._G))
        size = self._chunk_size
        qk, kk = q.new_zeros(len(q), size, size), q.new_zeros(len(q), size, size)
        lower = torch.ones(size, size, dtype=torch.bool, device=q.device).tril()[..., None]
        for start in range(0, len(q), _SLICE):
            part = slice(start, start + _SLICE)
            steps = torch.where(lower, G[part, :, None] - G[part, None], -math.inf)
            faded = steps.exp2_().mul_(k[part, None])  # k_j D_ij
            qk[part] = (faded @ q[part, ..., None])[..., 0]
            kk[part] = (faded @ k[part, ..., None])[..., 0]
        kk = (self._beta.flatten(0, 2) * kk).tril(-1)
        identity = torch.eye(size, dtype=kk.dtype, device=kk.device)
        inverse = torch.linalg.solve_triangular(kk + identity, identity.expand_as(kk), upper=False)
        self._Akk = inverse.unflatten(0, self._k.shape[:3])
        Aqk = (scale * qk).tril().unflatten(0, self._k.shape[:3])
        # Rows and columns behind a sequence's end are 0 as the forward leaves them.
        return self._join(Aqk), self._join(self._without_tail(self._Akk))

    def _without_tail(self, x):
        sequences = self._sequences
        valid = sequences.valid.view(sequences.count, sequences.chunks, 1, 1, self._chunk_size)
        return torch.where(valid, x, 0.0)

    def saved(self, initial_state) -> dict[str, torch.Tensor]:
        """What the forward keeps when nothing is to be recomputed."""
        b, t, heads = self._rows
        if self._meta:
            k_dim, v_dim = self._widths
            chunks = self._sequences.num_chunks // max(b, 1)
            shapes: dict[str, tuple[int, ...]] = dict.fromkeys(
                ("w", "qg", "kg"), (b, t, heads, k_dim)
            )
            shapes |= dict.fromkeys(("u", "v_new"), (b, t, heads, v_dim))
            shapes["h"] = (b, chunks, heads, k_dim, v_dim)
            return {name: self._empty(*shape) for name, shape in shapes.items()}
        w, u, _, kg = self._products()
        last = self._G[..., -1:, :]
        state = self._k.new_zeros(len(w), heads, *self._widths)
        if initial_state is not None:
            state = initial_state.double()
        h, v_new = [], []
        for c in range(self._sequences.chunks):
            h.append(state)
            v_new.append(u[:, c] - w[:, c] @ state)
            state = last[:, c].exp2().mT * state + kg[:, c].mT @ v_new[-1]
        return {
            **self.products(),
            "v_new": self._join(torch.stack(v_new, 1) if v_new else u),
            "h": self._sequences.join_chunks(torch.stack(h, 1) if h else state[:, None][:, :0]),
        }

    def products(self) -> dict[str, torch.Tensor]:
        """w, u, qg and kg."""
        found = map(self._join, self._products())
        return dict(zip(("w", "u", "qg", "kg"), found, strict=True))

    def _products(self):
        E, last = self._G.exp2(), self._G[..., -1:, :]
        return (
            self._Akk @ (self._beta * self._k * E),
            self._Akk @ (self._beta * self._v),
            self._q * E,
            self._k * (last - self._G).exp2(),
        )
