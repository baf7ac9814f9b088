"""The gate of Kimi Delta Attention, summed up inside each chunk.

The public functions are imported when they are first asked for: case table, references and plan of
this package need no triton, and TRITON_INTERPRET counts at the moment triton is imported.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ops.kda_gate_chunk_cumsum.dispatch import kda_gate_chunk_cumsum

__all__ = ["kda_gate_chunk_cumsum"]


def __getattr__(name: str):
    if name in __all__:
        from ops.kda_gate_chunk_cumsum import dispatch

        return getattr(dispatch, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
