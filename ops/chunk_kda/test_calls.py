"""Arguments of the functions for unit tests, as a forward would hand them over, and distances.

arguments = test_calls.bwd(t=70, gate="softplus")    # on the CPU
results = test_calls.call_bwd(arguments)             # on the test's device, by name
"""

import itertools
from typing import Any

import torch

from ops import chunk_kda
from ops.chunk_kda import fwd_reference, preparation, reference
from testing import unit

DEVICE = unit.DEVICE.torch_device
BWD_RESULTS = ("dq", "dk", "dv", "db", "dg", "dh0", "dA_log", "ddt_bias")
WY_RESULTS = ("dq", "dk", "dv", "db", "dg", "dA")
INTRA_RESULTS = ("w", "u", "qg", "kg", "Aqk", "Akk")


def bwd(
    b: int = 1,
    t: int = 70,
    heads: int = 1,
    value_heads: int = 2,
    k_dim: int = 32,
    v_dim: int = 32,
    dtype: torch.dtype = torch.float32,
    *,
    seed: int = 0,
    gate: str = "given",
    states: bool = True,
    chunk_size: int = 64,
    cu_seqlens: tuple[int, ...] | None = None,
    keep: bool = False,
    scale: float | None = None,
    **values: Any,
) -> dict[str, Any]:
    """Of chunk_kda_bwd: normal q, v and do, unit k, decays from 0.4 to 1.

    gate: "given", "softplus" or "bounded". keep: with v_new and h. values: arguments of
    preparation.bwd that replace what is drawn.
    """
    drawn = _drawn(b, t, heads, value_heads, k_dim, v_dim, dtype, seed)
    normal = drawn.pop("normal")
    n = b if cu_seqlens is None else len(cu_seqlens) - 1
    in_kernel = gate != "given"
    drawn |= {
        "initial_state": normal(n, value_heads, k_dim, v_dim) if states else None,
        "dht": normal(n, value_heads, k_dim, v_dim) if states else None,
        "g_org": normal(b, t, value_heads, k_dim).to(dtype) if in_kernel else None,
        "A_log": normal(value_heads) if in_kernel else None,
        "dt_bias": normal(value_heads * k_dim) - 2 if in_kernel else None,
    }
    if in_kernel:
        drawn["log_gate"] = None
    return preparation.bwd(
        **(drawn | values),
        scale=scale,
        cu_seqlens=cu_seqlens,
        index_dtype="int64",
        chunk_size=chunk_size,
        score_dtype=None,
        safe_gate=False,
        lower_bound=-5.0 if gate == "bounded" else None,
        use_gate_in_kernel=in_kernel,
        disable_recompute=keep,
    )


def wy(
    b: int = 1,
    t: int = 70,
    heads: int = 1,
    value_heads: int = 2,
    k_dim: int = 32,
    v_dim: int = 32,
    dtype: torch.dtype = torch.float32,
    *,
    seed: int = 0,
    chunk_size: int = 64,
    cu_seqlens: tuple[int, ...] | None = None,
    scale: float | None = None,
    **values: Any,
) -> dict[str, Any]:
    """Of chunk_kda_bwd_wy_dqkg_fused; v_new, h, dh and dv are normal, of no forward."""
    drawn = _drawn(b, t, heads, value_heads, k_dim, v_dim, dtype, seed)
    normal = drawn.pop("normal")
    bounds = (0, t) if cu_seqlens is None else cu_seqlens
    chunks = sum(-(-(e - s) // chunk_size) for s, e in itertools.pairwise(bounds))
    states = (b, chunks, value_heads, k_dim, v_dim)
    drawn |= {name: normal(*states).to(dtype) for name in ("h", "dh")}
    drawn |= {name: normal(b, t, value_heads, v_dim).to(dtype) for name in ("v_new", "dv")}
    return preparation.wy(
        **(drawn | values),
        scale=scale,
        cu_seqlens=cu_seqlens,
        index_dtype="int64",
        chunk_size=chunk_size,
    )


def fwd(
    b: int = 1,
    t: int = 70,
    heads: int = 1,
    value_heads: int = 2,
    k_dim: int = 32,
    v_dim: int = 32,
    dtype: torch.dtype = torch.float32,
    *,
    seed: int = 0,
    gate: str = "given",
    states: bool = True,
    cu_seqlens: tuple[int, ...] | None = None,
    **values: Any,
) -> dict[str, Any]:
    """Of chunk_kda: as bwd, with the last states. values: arguments that replace what is drawn."""
    drawn = _drawn(b, t, heads, value_heads, k_dim, v_dim, dtype, seed)
    normal, log_gate, _ = drawn.pop("normal"), drawn.pop("log_gate"), drawn.pop("do")
    n = b if cu_seqlens is None else len(cu_seqlens) - 1
    drawn |= {"g": log_gate, "output_final_state": True}
    if states:
        drawn["initial_state"] = normal(n, value_heads, k_dim, v_dim)
    if gate != "given":
        drawn |= {
            "g": normal(b, t, value_heads, k_dim).to(dtype),
            "A_log": normal(value_heads),
            "dt_bias": normal(value_heads * k_dim) - 2,
            "use_gate_in_kernel": True,
            "lower_bound": -5.0 if gate == "bounded" else None,
        }
    if cu_seqlens is not None:
        drawn["cu_seqlens"] = torch.tensor(cu_seqlens)
    return drawn | values


def call_fwd(arguments: dict[str, Any]) -> dict[str, torch.Tensor]:
    """o and, if it is there, final_state, on the device."""
    o, final_state = chunk_kda.chunk_kda(**on_device(arguments))
    return {"o": o} | ({} if final_state is None else {"final_state": final_state})


def golden_fwd(arguments: dict[str, Any]) -> dict[str, torch.Tensor]:
    o, final_state = fwd_reference.golden_fwd(**_wide(arguments))
    return {"o": o} | ({} if final_state is None else {"final_state": final_state})


def intra(**options: Any) -> dict[str, Any]:
    """Of chunk_kda_fwd_intra, with qg; options: as of wy."""
    x = wy(**options)
    names = ("q", "k", "v", "beta", "scale", "cu_seqlens", "chunk_size")
    return {name: x[name] for name in names} | {"gk": x["g"], "disable_recompute": True}


def call_intra(arguments: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The results by name, on the device."""
    results = chunk_kda.chunk_kda_fwd_intra(**on_device(arguments))
    return dict(zip(INTRA_RESULTS, results, strict=True))


def golden_intra(arguments: dict[str, Any]) -> dict[str, torch.Tensor]:
    results = fwd_reference.golden_intra(**_wide(arguments))
    return dict(zip(INTRA_RESULTS, results, strict=True))


def _drawn(b, t, heads, value_heads, k_dim, v_dim, dtype, seed) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    k = normal(b, t, heads, k_dim)
    return {
        "normal": normal,
        "q": normal(b, t, heads, k_dim).to(dtype),
        "k": (k / k.norm(dim=-1, keepdim=True)).to(dtype),
        "v": normal(b, t, value_heads, v_dim).to(dtype),
        "do": normal(b, t, value_heads, v_dim).to(dtype),
        "beta": normal(b, t, value_heads).sigmoid(),
        "log_gate": -torch.exp(normal(b, t, value_heads, k_dim) - 3),
    }


def on_device(arguments: dict[str, Any]) -> dict[str, Any]:
    """Keeps strides; a tensor that is there already is the same one."""
    return {
        name: value.to(DEVICE) if isinstance(value, torch.Tensor) else value
        for name, value in arguments.items()
    }


def call_bwd(arguments: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The results that are not None, by name, on the device."""
    results = chunk_kda.chunk_kda_bwd(**on_device(arguments))
    named = zip(BWD_RESULTS, results, strict=True)
    return {name: result for name, result in named if result is not None}


def call_wy(arguments: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The results by name, on the device."""
    results = chunk_kda.chunk_kda_bwd_wy_dqkg_fused(**on_device(arguments))
    return dict(zip(WY_RESULTS, results, strict=True))


def golden_bwd(arguments: dict[str, Any]) -> dict[str, torch.Tensor]:
    results = reference.golden_bwd(**_wide(arguments))
    named = zip(BWD_RESULTS, results, strict=True)
    return {name: result for name, result in named if result is not None}


def golden_wy(arguments: dict[str, Any]) -> dict[str, torch.Tensor]:
    return dict(zip(WY_RESULTS, reference.golden_wy(**_wide(arguments)), strict=True))


def _wide(arguments: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value.double()
        if isinstance(value, torch.Tensor) and value.is_floating_point()
        else value
        for name, value in arguments.items()
    }


def distance(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """|actual - expected| / |expected|; 0 where they are equal, NaN where actual is."""
    actual, expected = actual.double().cpu(), expected.double().cpu()
    error = (actual - expected).norm()
    return (error / expected.norm()).item() if error != 0 else 0.0
