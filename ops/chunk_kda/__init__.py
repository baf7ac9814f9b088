"""Kimi Delta Attention in chunks: forward and backward.

The public functions are imported when they are first asked for: case tables, references and plan of
this package need no triton, and TRITON_INTERPRET counts at the moment triton is imported.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ops.chunk_kda.dispatch import chunk_kda_bwd, chunk_kda_bwd_wy_dqkg_fused
    from ops.chunk_kda.forward import chunk_kda, chunk_kda_fwd_intra

__all__ = ["chunk_kda", "chunk_kda_bwd", "chunk_kda_bwd_wy_dqkg_fused", "chunk_kda_fwd_intra"]


def __getattr__(name: str):
    if name in __all__:
        from ops.chunk_kda import dispatch, forward

        return getattr(dispatch if hasattr(dispatch, name) else forward, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
