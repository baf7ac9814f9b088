"""The kernels of chunk_kda for Ascend NPUs, and the constant tensors that they read.

They compute what the kernels beside this folder do, arranged for a machine whose matrix and vector
cores exchange tiles through memory: everything that is a sum over tokens is a product, no tile is
compared with another or indexed by rows, and what several tasks need is made once by a launch of
its own. records/2026-11-30_npu.md has the measurements behind it.
"""
