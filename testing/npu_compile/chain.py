"""linalg -> the memory-planned, synchronised HIVM module, with the compiler of ascendnpu-ir.

Needs no device, no CANN and no driver. The compiler ends by calling hivmc, which only CANN has; a
stand-in that does nothing takes its place, so that the compiler's own exit status tells whether
everything before it succeeded.
"""

import dataclasses
import glob
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping

from testing.npu_compile import chips
from testing.npu_compile.specialisation import Constant, Failure

DEFAULT_LIMIT_S = 180.0
PLANNING_PASS = "hivm-plan-memory"

# Files that one compilation leaves in its folder.
LINALG = "kernel.linalg.mlir"
HIVM = "hivm.mlir"  # the final module, generic form, with source lines
HIVMC_INPUT = "module.hivm.opt.mlir"  # what hivmc would get
BEFORE_PLANNING = "before_planning.mlir"  # only after a failure
REPRODUCER = "reproducer.mlir"  # only after a silent failure: the pass that failed and its input
LOG = "compile.log"

_STAND_IN = "#!/bin/sh\nexit 0\n"

# triton-ascend's option -> the compiler's flag, where they differ by more than the spelling.
_FLAGS = {
    "multibuffer": "enable-auto-multi-buffer",
    "enable_auto_bind_sub_block": "enable-auto-bind-sub-block",
    "enable_hivm_auto_cv_balance": "enable-hivm-auto-cv-balance",
    "sync_solver": "enable-hivm-graph-sync-solver",
    "unit_flag": "enable-hivm-unit-flag-sync",
    "inject_barrier_all": "enable-hivm-inject-barrier-all-sync",
    "inject_block_all": "enable-hivm-inject-block-all-sync",
    "limit_auto_multi_buffer_only_for_local_buffer": (
        "limit-auto-multi-buffer-only-for-local-buffer"
    ),
    "limit_auto_multi_buffer_of_local_buffer": "limit-auto-multi-buffer-of-local-buffer",
    "set_workspace_multibuffer": "set-workspace-multibuffer",
    "tile_mix_vector_loop": "tile-mix-vector-loop",
    "tile_mix_cube_loop": "tile-mix-cube-loop",
    "disable_auto_inject_block_sync": "disable-auto-inject-block-sync",
}


@dataclasses.dataclass(frozen=True)
class Outcome:
    """One compilation.

    log: what the compiler printed. failure: None when it succeeded. stopped_in: the pass that
    failed without a word of its own.
    """

    folder: str
    seconds: float
    log: str
    failure: Failure | None
    stopped_in: str = ""

    @property
    def retries(self) -> list[str]:
        """What the compiler gave up by itself to make the kernel fit, e.g. 'auto-multi-buffer'.

        arch35's tries other ways without saying which: 'unnamed', once for each overflow.
        """
        found = re.findall(
            r"^\[NOTE\] .*automatically set enable-(\S+) to false and retrying", self.log, re.M
        )
        named = list(dict.fromkeys(found))
        return named or ["unnamed"] * len(re.findall(r"error: \w+ overflow", self.log))


def compiler_folder() -> str:
    """The folder of the compiler's programs.

    Raises:
        RuntimeError: the package ascendnpu-ir is not there.
    """
    found = importlib.util.find_spec("ascendnpuir")
    if found is None or not found.submodule_search_locations:
        raise RuntimeError("looked for the package ascendnpu-ir: pip install ascendnpu-ir==1.2.0")
    return os.path.join(found.submodule_search_locations[0], "bin")


def command(
    architecture: chips.Architecture, chip: str, options: Mapping[str, Constant]
) -> list[str]:
    """The compiler's arguments as triton-ascend 3.2.0 gives them, without the dumps."""
    chosen: dict[str, Constant] = {
        "multibuffer": architecture.double_buffers,
        "enable_auto_bind_sub_block": architecture.double_buffers,
        **options,
    }
    arguments = [f"--target={chip}"]
    arguments += [
        f"--{_FLAGS[name]}={value}"
        for name, value in chosen.items()
        if name in _FLAGS and value is not None
    ]
    arguments += [f"--enable-{part}-compile=true" for part in ("hfusion", "hivm", "triton-kernel")]
    return arguments


def compile_linalg(
    linalg: str,
    architecture: chips.Architecture,
    chip: str,
    options: Mapping[str, Constant],
    folder: str,
    limit_s: float = DEFAULT_LIMIT_S,
    programs: str | None = None,
) -> Outcome:
    """Compiles for one chip and leaves every stage in `folder`, which must be empty.

    programs: the folder of the compiler; by default that of the installed package.
    """
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, LINALG), "w", encoding="utf-8") as file:
        file.write(linalg)
    stand_ins = os.path.join(folder, "stand_ins")
    os.makedirs(stand_ins)
    for name in ("hivmc", "hivmc-a5"):
        path = os.path.join(stand_ins, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(_STAND_IN)
        os.chmod(path, 0o755)

    arguments = [
        os.path.join(programs or compiler_folder(), architecture.program),
        LINALG,
        *command(architecture, chip, options),
        # Both dumps, with source lines, module by module, into files.
        f"--mlir-print-ir-before={PLANNING_PASS}",
        f"--mlir-print-ir-before={architecture.final_pass}",
        "--mlir-print-ir-tree-dir=dumps",
        "--mlir-print-ir-module-scope",
        "--mlir-print-op-generic",
        "--mlir-print-debuginfo",
        "--mlir-disable-threading",
        "--save-temps=temps",
        "-o",
        "object",
    ]
    environment = {"PATH": stand_ins}
    start = time.monotonic()
    code, log = _run(arguments, folder, environment, limit_s)
    seconds = time.monotonic() - start
    stopped_in = ""
    if code and code > 0 and not telling_errors(log):
        stopped_in = _failing_pass(arguments, folder, environment, limit_s)
    _keep(folder, architecture, failed=code != 0)
    with open(os.path.join(folder, LOG), "w", encoding="utf-8") as file:
        file.write(f"{architecture.program} {' '.join(arguments[1:])}\n{log}")
    failure = None
    if code is None:
        failure = Failure("hivm", "timeout", f"no result after {limit_s:g} s")
    elif code < 0 or code >= 128:
        number = -code if code < 0 else code - 128
        failure = Failure("hivm", "crashed", f"signal {number} ({_signal_name(number)})")
    elif code:
        failure = Failure("hivm", "failed", f"exit code {code}")
    elif not os.path.exists(os.path.join(folder, HIVM)):
        failure = Failure("hivm", "failed", f"the compiler left no {HIVM}")
    return Outcome(folder, seconds, log, failure, stopped_in)


def telling_errors(log: str) -> list[str]:
    """Lines with an error that say more than that something failed."""
    errors = re.findall(r"^.*\berror: .*$", log, re.M)
    return [line for line in errors if "error: Failed to run" not in line]


def _failing_pass(
    arguments: list[str], folder: str, environment: Mapping[str, str], limit_s: float
) -> str:
    """Compiles once more, slower, with MLIR's reproducer, which names the pass that failed."""
    reproducer = [
        f"--mlir-pass-pipeline-crash-reproducer={REPRODUCER}",
        "--mlir-pass-pipeline-local-reproducer",
    ]
    quiet = [argument for argument in arguments if "print-ir" not in argument]
    _run([*quiet, *reproducer], folder, environment, limit_s)
    path = os.path.join(folder, REPRODUCER)
    if not os.path.exists(path):
        return ""
    with open(path, encoding="utf-8", errors="replace") as file:
        match = re.search(r'pipeline: "(?:[\w.]+\()*([\w-]+)', file.read())
    return match[1] if match else ""


def _run(
    arguments: list[str], folder: str, environment: Mapping[str, str], limit_s: float
) -> tuple[int | None, str]:
    """(exit code or None after the limit, output). The whole process group ends with the limit."""
    with subprocess.Popen(
        arguments,
        cwd=folder,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            log, _ = process.communicate(timeout=limit_s)
            return process.returncode, log
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            log, _ = process.communicate()
            return None, log


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


def _keep(folder: str, architecture: chips.Architecture, failed: bool) -> None:
    """Gives the stages their names and removes what repeats them."""
    _move_last(folder, f"*_{architecture.final_pass}.mlir", HIVM)
    # The vector side is what overflows, and its function has a dump of its own in a mixed kernel.
    vector_side = f"func_func_*_mix_aiv/*_{PLANNING_PASS}.mlir"
    if failed and not _move_last(folder, vector_side, BEFORE_PLANNING):
        _move_last(folder, f"**/*_{PLANNING_PASS}.mlir", BEFORE_PLANNING)
    temps = os.path.join(folder, "temps", HIVMC_INPUT)
    if os.path.exists(temps):
        shutil.move(temps, os.path.join(folder, HIVMC_INPUT))
    for name in ("dumps", "temps", "stand_ins"):
        shutil.rmtree(os.path.join(folder, name), ignore_errors=True)


def _move_last(folder: str, pattern: str, name: str) -> bool:
    paths = glob.glob(os.path.join(folder, "dumps", "*", pattern), recursive=True)
    if not paths:
        return False
    shutil.move(max(paths, key=os.path.getmtime), os.path.join(folder, name))
    return True
