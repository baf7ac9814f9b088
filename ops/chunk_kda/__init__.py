"""Kimi Delta Attention in chunks: the backward."""

from ops.chunk_kda.dispatch import chunk_kda_bwd, chunk_kda_bwd_wy_dqkg_fused

__all__ = ["chunk_kda_bwd", "chunk_kda_bwd_wy_dqkg_fused"]
