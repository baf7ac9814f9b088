"""The public Triton kernels of Kimi Delta Attention (package fla-core), as baselines of chunk_kda,
its gradients, single steps of both, kda_step, chunk_gla_fwd_o_gk and kda_gate_chunk_cumsum.

For tests only; nothing in ops/ imports it. The functions have the keyword arguments of ours. Theirs
return dq and dk in fp32 and leave rows behind the last packed sequence unwritten.
"""

import functools
import importlib
import importlib.metadata
import math
import sys
from collections.abc import Callable, Iterator
from typing import Any

DISTRIBUTION = "fla-core"
VERSION = "0.6.0"
MODULE = "fla.ops.kda.chunk_bwd"
_FORWARD = "fla.ops.kda.chunk"
_INTRA = "fla.ops.kda.chunk_intra"
RECURRENT = "fla.ops.kda.fused_recurrent"
GLA = "fla.ops.gla.chunk"
GATE = "fla.ops.kda.gate"


def chunk_kda(**arguments: Any) -> tuple[Any, ...]:
    return _module(_FORWARD).chunk_kda(**arguments)


def chunk_kda_gradients(do: Any, dht: Any, **arguments: Any) -> tuple[Any, ...]:
    """As ops.chunk_kda.training.gradients."""
    import torch

    names = ("q", "k", "v", "beta", "g", "initial_state", "A_log", "dt_bias")
    leaves = {
        name: arguments[name].detach().requires_grad_()
        for name in names
        if arguments.get(name) is not None
    }
    results = chunk_kda(**{**arguments, **leaves}, output_final_state=dht is not None)
    given = [(result, d) for result, d in zip(results, (do, dht), strict=True) if d is not None]
    outputs, cotangents = zip(*given, strict=True)
    found = torch.autograd.grad(outputs, list(leaves.values()), cotangents)
    by_name = dict(zip(leaves, found, strict=True))
    return tuple(by_name.get(name) for name in names)


def chunk_kda_fwd_intra(**arguments: Any) -> tuple[Any, ...]:
    return _module(_INTRA).chunk_kda_fwd_intra(**arguments)


def chunk_kda_bwd(**arguments: Any) -> tuple[Any, ...]:
    return _module(MODULE).chunk_kda_bwd(**arguments)


def chunk_kda_bwd_wy_dqkg_fused(**arguments: Any) -> tuple[Any, ...]:
    return _module(MODULE).chunk_kda_bwd_wy_dqkg_fused(**arguments)


def kda_step(state: Any, state_indices: Any = None, **arguments: Any) -> tuple[Any, Any]:
    """Their recurrence over sequences of one token; states of a pool are found, padding is not."""
    tokens = {name: arguments.pop(name)[:, None] for name in ("q", "k", "v", "g", "beta")}
    o, states = _module(RECURRENT).fused_recurrent_kda_fwd(
        **tokens,
        **arguments,
        initial_state=state,
        ssm_state_indices=state_indices,
        output_final_state=True,
        inplace_final_state=False,
    )
    return o[:, 0], states


def chunk_gla_fwd_o_gk(scale: Any = None, **arguments: Any) -> Any:
    if scale is None:
        scale = arguments["q"].shape[-1] ** -0.5
    return _module(GLA).chunk_gla_fwd_o_gk(scale=scale, **arguments)


def kda_gate_chunk_cumsum(**arguments: Any) -> Any:
    """Theirs sums natural logarithms without a floor; to base 2 by its `scale`."""
    return _module(GATE).kda_gate_chunk_cumsum(scale=1 / math.log(2), **arguments)


def tune_bwd(**arguments: Any) -> str:
    """Chooses the fastest of the package's own configurations of each kernel for these very
    arguments; returns them, in words."""
    return _tune(chunk_kda_bwd, arguments)


def tune_wy(**arguments: Any) -> str:
    """The same for the one kernel of chunk_kda_bwd_wy_dqkg_fused."""
    return _tune(chunk_kda_bwd_wy_dqkg_fused, arguments)


def tune_fwd(**arguments: Any) -> str:
    """The same for chunk_kda."""
    return _tune(chunk_kda, arguments)


def tune_train(**arguments: Any) -> str:
    """The same for its gradients."""
    return _tune(chunk_kda_gradients, arguments)


def tune_intra(**arguments: Any) -> str:
    """The same for chunk_kda_fwd_intra."""
    return _tune(chunk_kda_fwd_intra, arguments)


def tune_o_gk(**arguments: Any) -> str:
    """The same for the one kernel of chunk_gla_fwd_o_gk."""
    return _tune(chunk_gla_fwd_o_gk, arguments)


def tune_cumsum(**arguments: Any) -> str:
    """The same for the one kernel of kda_gate_chunk_cumsum."""
    return _tune(kda_gate_chunk_cumsum, arguments)


def _tune(function: Callable[..., Any], arguments: dict[str, Any]) -> str:
    _module(MODULE)
    # They remember a choice by head sizes and would use it for every B, T and H.
    for _, tuner in _tuners():
        tuner.cache.clear()
    function(**arguments)
    chosen = [f"{name}: {tuner.best_config}" for name, tuner in _tuners() if tuner.cache]
    return "; ".join(chosen)


def _tuners() -> Iterator[tuple[str, Any]]:
    """Every autotuner of the package, by its kernel's name. A kernel may be wrapped in others and
    be known to several modules."""
    seen: set[int] = set()
    for module_name in sorted(name for name in sys.modules if name.startswith("fla.")):
        for name, value in sorted(vars(sys.modules[module_name]).items()):
            while value is not None:
                if hasattr(value, "configs") and isinstance(getattr(value, "cache", None), dict):
                    if id(value) not in seen:
                        seen.add(id(value))
                        yield name, value
                    break
                value = getattr(value, "fn", None)


@functools.cache
def _module(name: str) -> Any:
    try:
        found = importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        found = "none"
    if found != VERSION:
        raise ImportError(
            f"{DISTRIBUTION}: got version {found}, expected {VERSION}; "
            "third_party/baselines_x86_64.txt says how to install it"
        )
    return importlib.import_module(name)
