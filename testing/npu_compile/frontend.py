"""Kernel -> TTIR -> linalg, with triton-ascend's own frontend. Imports Triton; needs no device.

Each kernel is lowered in a child process, so that a crash or an endless loop of the frontend is the
verdict of one kernel.
"""

import contextlib
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from multiprocessing import connection
from typing import IO, Any

from triton._C.libtriton import ir as triton_ir
from triton.backends.ascend import compiler as ascend
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import ASTSource

from ops.common import backend
from testing.npu_compile import chips
from testing.npu_compile.specialisation import Failure, Specialisation, Unit

DEFAULT_LIMIT_S = 120.0


def lower(unit: Unit, kernel: Any, architecture: chips.Architecture, limit_s: float) -> None:
    """Fills in the unit's ttir and linalg, or its failure."""
    if backend.INTERPRETED:
        raise RuntimeError("TRITON_INTERPRET=1 was set when triton was imported; unset it")
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(
        target=_child, args=(sender, unit.specialisation, kernel, architecture), daemon=True
    )
    child.start()
    sender.close()
    deadline = time.monotonic() + limit_s
    while not (unit.linalg or unit.failure):
        stage = "linalg" if unit.ttir else "ttir"
        if not receiver.poll(max(0.0, deadline - time.monotonic())):
            unit.failure = Failure(stage, "timeout", f"no result after {limit_s:g} s")
            break
        try:
            stage, kind, text = receiver.recv()
        except EOFError:  # it ended without a word
            child.join()
            unit.failure = Failure(stage, "crashed", f"exit code {child.exitcode}")
            break
        if kind == "text":
            setattr(unit, stage, text)
        else:
            unit.failure = Failure(stage, kind, text)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid or 0, signal.SIGKILL)  # triton-adapter-opt too
    child.join()


def _child(
    sender: connection.Connection,
    specialised: Specialisation,
    kernel: Any,
    architecture: chips.Architecture,
) -> None:
    os.setsid()
    # MLIR writes its errors past Python, to file 2.
    with tempfile.TemporaryFile() as diagnostics:
        os.dup2(diagnostics.fileno(), 2)
        _lower(sender, specialised, kernel, architecture, diagnostics)


def _lower(
    sender: connection.Connection,
    specialised: Specialisation,
    kernel: Any,
    architecture: chips.Architecture,
    diagnostics: IO[bytes],
) -> None:
    os.environ["TRITON_DISABLE_LINE_INFO"] = "false"  # diagnoses name lines of the kernel
    try:
        target = GPUTarget("npu", next(iter(architecture.chips)), 0)
        options = _options(specialised, architecture)
        implementation = ascend.AscendBackend(target)
        module = _ttir(specialised, kernel, options, implementation)
        metadata = {**vars(options), "target": target}
        module = ascend.make_ttir(module, metadata, options)
    except Exception as error:  # Triton raises many kinds; each is the kernel's verdict
        diagnostics.seek(0)
        printed = diagnostics.read().decode(errors="replace")
        sender.send(("ttir", "failed", f"{_triton_message(error)}\n{_relative(printed)}".strip()))
        return
    sender.send(("ttir", "text", _relative(str(module))))
    try:
        linalg = ascend.ttir_to_linalg(module, metadata, options, named_ops=True)
    except subprocess.CalledProcessError as error:
        crashed = error.returncode < 0 or error.returncode >= 128
        text = _relative(error.stderr.decode(errors="replace"))
        sender.send(("linalg", "crashed" if crashed else "failed", text))
        return
    # The attribute is for triton-ascend's launcher; the next stage's parser does not know it.
    linalg = re.sub(r', mix_mode\s*=\s*"[^"]*"', "", linalg)
    sender.send(("linalg", "text", _relative(linalg)))


def _options(specialised: Specialisation, architecture: chips.Architecture) -> Any:
    arch35 = architecture.name == "arch35"
    defaults = {
        # What triton-ascend's own defaults are on a machine with such a chip.
        "compile_on_910_95": arch35,
        "multibuffer": not arch35,
        "enable_auto_bind_sub_block": not arch35,
        "enable_select_analysis": arch35,
    }
    unknown = [
        name for name in specialised.options if name not in ascend.NPUOptions.__annotations__
    ]
    if unknown:
        raise ValueError(f"options: triton-ascend knows no {', '.join(unknown)}")
    return ascend.NPUOptions(**{**defaults, **specialised.options})


def _ttir(specialised: Specialisation, kernel: Any, options: Any, implementation: Any) -> Any:
    names = kernel.arg_names
    attributes = ascend.AscendAttrsDescriptor()
    attributes.arg_properties["tt.divisibility"] = [
        names.index(name) for name in specialised.aligned
    ]
    attributes.arg_properties["tt.equal_to"] = [
        names.index(name)
        for name, value in specialised.constants.items()
        if name in specialised.signature and value == 1 and not isinstance(value, bool)
    ]
    attributes._init_slots()
    source = ASTSource(kernel, dict(specialised.signature), dict(specialised.constants), attributes)
    context = triton_ir.context()
    triton_ir.load_dialects(context)
    implementation.load_dialects(context)
    return source.make_ir(
        options,
        implementation.get_codegen_implementation(),
        implementation.get_module_map(),
        context,
    )


def _triton_message(error: BaseException) -> str:
    """The error and its causes, as Triton nests them: the innermost is what went wrong."""
    lines = []
    current: BaseException | None = error
    while current is not None:
        lines.append(f"{type(current).__name__}: {current}")
        current = current.__cause__ or current.__context__
    return _relative("\n".join(lines))


def _relative(text: str) -> str:
    """Source paths relative to their folder on sys.path: the same text on every machine."""
    for folder in sorted(filter(os.path.isabs, sys.path), key=len, reverse=True):
        text = text.replace(f"{folder}/", "")
    return text
