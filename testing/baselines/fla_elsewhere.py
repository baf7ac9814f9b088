"""The package fla-core as it is on a device that this machine does not have.

Its modules ask Triton's driver where they run and choose kernels, tiles and grids by what it says.
`loaded` answers for a device of the caller's choice while they are imported and while their host
code runs on `meta` tensors. Nothing is launched: `testing.npu_compile.foreign.recorded` sees what
would be. For tests only; nothing in ops/ imports it.
"""

import contextlib
import dataclasses
import functools
import importlib
import importlib.metadata
import os
import shutil
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import torch
import triton

from testing.baselines import fla_core

PACKAGE = "fla"
# Packages whose __init__ import every op there is; what is needed here is below them.
_NAMESPACES = (PACKAGE, f"{PACKAGE}.ops", f"{PACKAGE}.ops.kda")
_UB_VARIABLE = "ASCEND_UB_CAPACITY_BITS"  # read before CANN, which is not here, is asked


@dataclasses.dataclass(frozen=True)
class Device:
    """What the package asks about a device.

    platform: Triton's name of its backend. name: PyTorch's of the chip. properties: what Triton's
    driver says, by Triton's names. capability: of a CUDA device. ub_bytes: of one vector core of an
    NPU.
    """

    platform: str
    name: str
    properties: Mapping[str, int]
    capability: tuple[int, int] = (0, 0)
    ub_bytes: int = 0


H200 = Device(
    "cuda",
    "NVIDIA H200",
    {"multiprocessor_count": 132, "max_shared_mem": 232448},
    capability=(9, 0),
)


def ascend(chip: str, cube_cores: int, ub_bytes: int) -> Device:
    """An NPU; each cube core brings two vector cores."""
    cores = {"num_aicore": cube_cores, "num_vectorcore": 2 * cube_cores}
    return Device("npu", chip, cores, ub_bytes=ub_bytes)


def check_version(site: str) -> None:
    """Raises ImportError unless the folder has the pinned version."""
    found = [
        distribution.version
        for distribution in importlib.metadata.distributions(path=[site])
        if distribution.name == fla_core.DISTRIBUTION
    ]
    if found != [fla_core.VERSION] or not os.path.isdir(os.path.join(site, PACKAGE)):
        raise ImportError(
            f"{fla_core.DISTRIBUTION} in {site}: got {', '.join(found) or 'none'}, "
            f"expected {fla_core.VERSION}"
        )


@dataclasses.dataclass(frozen=True)
class Edit:
    """Another text in one of the package's files. count: how often `old` is there."""

    file: str
    old: str
    new: str
    count: int = 1


def edited(site: str, folder: str, edits: Sequence[Edit]) -> str:
    """A copy of the package in `folder`, with edits; returns the folder.

    Raises:
        ValueError: a text that is not there as often as expected.
    """
    shutil.copytree(os.path.join(site, PACKAGE), os.path.join(folder, PACKAGE))
    for edit in edits:
        path = os.path.join(folder, edit.file)
        with open(path, encoding="utf-8") as file:
            text = file.read()
        if text.count(edit.old) != edit.count:
            raise ValueError(
                f"{edit.file} has {text.count(edit.old)} times {edit.old!r}, expected {edit.count}"
            )
        with open(path, "w", encoding="utf-8") as file:
            file.write(text.replace(edit.old, edit.new))
    return folder


@contextlib.contextmanager
def loaded(site: str, device: Device, module: str = fla_core.MODULE) -> Iterator[Any]:
    """A module of the package, freshly imported as on `device`, for the time of the block.

    Its kernels live on afterwards. Another block imports everything again.
    """
    active = triton.runtime.driver
    index = {"current_device": lambda: 0, "device_count": lambda: 1, "is_available": lambda: True}
    answers = {**index, "get_device_name": lambda *_: device.name}
    before = _taken_from_sys_modules()
    with contextlib.ExitStack() as stack:
        stack.callback(sys.modules.update, before)
        stack.callback(_taken_from_sys_modules)
        stack.callback(active.set_active, active.active)
        active.set_active(_driver(device))
        if device.platform == "npu":
            stack.enter_context(
                mock.patch.object(torch, "npu", types.SimpleNamespace(**answers), create=True)
            )
            bits = {_UB_VARIABLE: str(8 * device.ub_bytes)}
            stack.enter_context(mock.patch.dict(os.environ, bits))
        else:
            answers["get_device_capability"] = lambda *_: device.capability
            for name, answer in answers.items():
                stack.enter_context(mock.patch.object(torch.cuda, name, answer))
        for name in _NAMESPACES:
            namespace = types.ModuleType(name)
            namespace.__path__ = [os.path.join(site, *name.split("."))]
            namespace.__dict__["__version__"] = fla_core.VERSION
            sys.modules[name] = namespace
        yield importlib.import_module(module)


def _taken_from_sys_modules() -> dict[str, types.ModuleType]:
    names = [name for name in sys.modules if name == PACKAGE or name.startswith(f"{PACKAGE}.")]
    return {name: sys.modules.pop(name) for name in names}


def _driver(device: Device) -> Any:
    target = types.SimpleNamespace(backend=device.platform, arch=device.name, warp_size=32)
    return types.SimpleNamespace(
        get_current_target=lambda: target,
        get_current_device=lambda: 0,
        get_benchmarker=lambda: functools.partial(_refuse, device),
        utils=types.SimpleNamespace(get_device_properties=lambda _: dict(device.properties)),
    )


def _refuse(device: Device, *_: Any, **__: Any) -> Any:
    raise RuntimeError(f"{device.name} is not here: nothing can be timed")
