"""Mamba-3 SISO forward pass; see README.md in this folder.

The public function is imported when it is first asked for: the case table, the references and the
plan of this package need no triton, and TRITON_INTERPRET counts at the moment triton is imported.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ops.mamba3_siso_fwd.dispatch import mamba3_siso_fwd_kernel

__all__ = ["mamba3_siso_fwd_kernel"]


def __getattr__(name: str):
    if name in __all__:
        from ops.mamba3_siso_fwd import dispatch

        return getattr(dispatch, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
