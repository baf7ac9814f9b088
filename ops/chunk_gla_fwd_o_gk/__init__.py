"""The outputs of chunked gated linear attention, from the states before each chunk.

The public functions are imported when they are first asked for: case table, references and plan of
this package need no triton, and TRITON_INTERPRET counts at the moment triton is imported.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ops.chunk_gla_fwd_o_gk.dispatch import chunk_gla_fwd_o_gk

__all__ = ["chunk_gla_fwd_o_gk"]


def __getattr__(name: str):
    if name in __all__:
        from ops.chunk_gla_fwd_o_gk import dispatch

        return getattr(dispatch, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
