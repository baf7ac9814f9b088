"""Kimi Delta Attention in chunks: the backward.

The public functions are imported when they are first asked for: case tables, references and plan of
this package need no triton, and TRITON_INTERPRET counts at the moment triton is imported.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ops.chunk_kda.dispatch import chunk_kda_bwd, chunk_kda_bwd_wy_dqkg_fused

__all__ = ["chunk_kda_bwd", "chunk_kda_bwd_wy_dqkg_fused"]


def __getattr__(name: str):
    if name in __all__:
        from ops.chunk_kda import dispatch

        return getattr(dispatch, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
