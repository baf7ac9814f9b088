"""Kimi Delta Attention, one token at a time: the step of a decoder.

The public functions are imported when they are first asked for: case table, references and plan of
this package need no triton, and TRITON_INTERPRET counts at the moment triton is imported.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ops.kda_step.dispatch import kda_step

__all__ = ["kda_step"]


def __getattr__(name: str):
    if name in __all__:
        from ops.kda_step import dispatch

        return getattr(dispatch, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
