"""The public Triton kernel of Mamba-3 SISO (package mamba-ssm), as a baseline of mamba3_siso_fwd.

For tests only; nothing in ops/ imports it. The package's `__init__` modules import CUDA extensions
that this kernel does not need, so its folders are taken as plain namespaces.
"""

import functools
import importlib
import importlib.metadata
import os
import sys
import types
from typing import Any

import torch

DISTRIBUTION = "mamba-ssm"
VERSION = "2.3.2.post1"
_KERNEL_MODULE = "mamba_ssm.ops.triton.mamba3.mamba3_siso_fwd"


def forward(
    q, k, v, adt, dt, trap, q_bias, k_bias, angles, d=None, z=None, chunk_size=64
) -> torch.Tensor:
    """The package's forward pass with the arguments of our op; outputs only."""
    return _module().mamba3_siso_fwd(
        q, k, v, adt, dt, trap, q_bias, k_bias, angles, D=d, Z=z, chunk_size=chunk_size
    )[0]


def tune(**arguments: Any) -> str:
    """Chooses the fastest of the package's own configurations for these very arguments.

    Its autotuner remembers a choice by head sizes and flags and would use it for every B, S and H.

    Returns:
        The configuration, in words.
    """
    tuner = _module().mamba3_siso_fwd_kernel
    tuner.cache.clear()
    forward(**arguments)
    return f"{tuner.best_config} of {len(tuner.configs)}"


@functools.cache
def _module() -> Any:
    try:
        found = importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        found = "none"
    roots = [path for path in sys.path if os.path.isdir(os.path.join(path, "mamba_ssm"))]
    if found != VERSION or not roots:
        raise ImportError(
            f"{DISTRIBUTION}: got version {found}, expected {VERSION}; "
            "third_party/baselines_x86_64.txt says how to install it"
        )
    parts = _KERNEL_MODULE.split(".")[:-1]
    for depth in range(1, len(parts) + 1):
        name = ".".join(parts[:depth])
        if name not in sys.modules:
            namespace = types.ModuleType(name)
            namespace.__path__ = [os.path.join(roots[0], *parts[:depth])]
            sys.modules[name] = namespace
    return importlib.import_module(_KERNEL_MODULE)
