"""What Ascend's compilers make of the kernels of chunk_kda_bwd and of its public peers.

    ./bazelw run //ops/chunk_kda:peer_comparison -- --public=/path/to/site
Without Bazel, at the repository's root: python3 -m ops.chunk_kda.peer_comparison.
Side by side: fla-core's kernels for GPUs, fla-core's own port to Ascend (its backend triton_ascend)
and this op. No NPU, no CANN, no driver: the package's host code runs on `meta` tensors and decides
what it launches, with which tiles, and what it lets PyTorch do in between. Prints Markdown;
progress goes to stderr. --public is the folder that holds the package fla-core
(third_party/baselines_x86_64.txt); without it that part is left out, loudly.
"""

import os
import platform
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from typing import TYPE_CHECKING, Any

from absl import app, flags

from ops.chunk_kda import bwd_spec
from testing import cases, devices, selection, spec, tables
from testing.npu_compile import chips, side_by_side

if TYPE_CHECKING:
    from testing.npu_compile.result import Result

_CASES = flags.DEFINE_list(
    "case", ["perf_b1_t8192_h32", "example"], "Cases of the op's table: shapes, dtype, gate."
)
_ARCHS = flags.DEFINE_list("arch", None, "Architectures. Default: all.")
_PUBLIC = flags.DEFINE_string(
    "public", None, "Folder with the package fla-core, as `pip install --target` fills it."
)
_OUT = flags.DEFINE_string("out", None, "Folder for the stages. Default: a temporary one.")
_LIMIT = flags.DEFINE_float("limit_s", 120.0, "Seconds for one compilation.")

_INSTALL = """the peers were NOT compiled: {}. To get them (of the file, fla-core is enough):
    pip install --no-deps --require-hashes --target=/tmp/public \\
        -r third_party/baselines_x86_64.txt
    pip install --target=/tmp/public packaging
then --public=/tmp/public"""

# Changes of no meaning where the frontend stops, so that the table says more than that the package
# asks for a newer Triton: (file, text, replacement, how often).
_STATES = "fla/ops/common/chunk_delta_h.py"
_EDITS = (
    # triton-ascend 3.2.0: 'NotImplementedType' object has no attribute 'type'.
    ("fla/ops/kda/chunk_intra.py", "(tl.cdiv(K, BK) * NC)", "(((K + BK - 1) // BK) * NC)", 1),
    # A name that is set again inside a loop, to the same value, is carried through it, and an
    # address that depends on a carried tensor crashes triton-adapter-opt.
    (_STATES, "if USE_GK:\n            o_k1 = tl.arange(0, 64)\n", "if USE_GK:\n", 2),
    *((_STATES, f"{' ' * 16}o_k{1 + n} = {64 * n} + o_k1\n", "", 1) for n in (1, 2, 3)),
)

GPU = "fla, GPU kernels"
EDITED = "fla, GPU kernels, edited"
ASCEND = "fla, triton_ascend"
OURS = "this op"

# Of one vector core, which is what CANN would answer; measure reads the same from every module.
_UB_BYTES = {"arch32": 192 << 10, "arch35": 248 << 10}

NOT_AVAILABLE = "not available for this architecture"

NOTES = f"""One call of chunk_kda_bwd. Columns: testing/npu_compile/README.md; `-`: not compiled.

- `{GPU}` runs fla's host code as on an H200, `{ASCEND}` as on the chip compiled for: the device
  answers what its driver would, the code decides. Nothing is launched, the autotuner times nothing:
  where it would choose, each set of constants is compiled, and the first that compiles counts. The
  others stand in brackets. `{EDITED}` is the same after changes of no meaning where the frontend of
  triton-ascend 3.2.0 gives up; the package asks for Triton 3.3, on NPUs for triton-ascend 3.6.0.
- Operations of PyTorch are those that the host code makes between its kernels, by their kind:
  a transpose is a copy with another order of elements.
- MB are an estimate, also of what does not compile: each tensor that a launch or an operation gets
  counts once and whole, whether it is read, written or both. Not in it: caches, loads that several
  programs repeat, the compiler's workspaces.
- *: of the kernels that compile, each counted once per call; static counts.
- A kernel of more than {side_by_side.MAX_PROGRAMS} programs compiles, but Ascend's runtime refuses
  to launch it.
- Options that triton-ascend here does not know are left out: it would refuse the launch."""


def record_ours(
    op: spec.OpSpec, case: cases.Case, architecture: chips.Architecture, cores: int
) -> side_by_side.Call:
    """What this op would do; a Call with a failure where it has no kernels for the architecture."""
    from ops.common import backend, launch
    from testing import host_operations, inputs
    from testing.npu_compile import foreign

    arguments = inputs.meta(case, op.preparation)
    try:
        with (
            backend.pretend(architecture.backend, cores),
            launch.record() as launches,
            host_operations.counted() as operations,
        ):
            spec.resolve(op.function)(**arguments)
    except NotImplementedError as error:
        return side_by_side.Call(failure=f"{NOT_AVAILABLE}: {error}")
    return side_by_side.Call([foreign.Choice((item,)) for item in launches], operations)


def record_peer(
    site: str, device: Any, op: spec.OpSpec, case: cases.Case, architecture: chips.Architecture
) -> side_by_side.Call:
    """What fla-core's chunk_kda_bwd would do on `device`; its kernels are to be compiled for the
    architecture."""
    from ops.common import backend
    from testing import host_operations, inputs
    from testing.baselines import fla_elsewhere
    from testing.npu_compile import foreign

    arguments = inputs.meta(case, op.preparation)
    cores = next(iter(architecture.chips.values()))
    with (
        fla_elsewhere.loaded(site, device) as module,
        backend.pretend(architecture.backend, cores),
        foreign.recorded() as choices,
        host_operations.counted() as operations,
    ):
        module.chunk_kda_bwd(**arguments)
    return side_by_side.Call(choices, operations)


def _calls(
    sites: Mapping[str, str], case: cases.Case, architecture: chips.Architecture
) -> dict[str, side_by_side.Call]:
    from testing.baselines import fla_elsewhere

    op = bwd_spec.SPEC
    chip, cores = next(iter(architecture.chips.items()))
    ascend = fla_elsewhere.ascend(chip, cores, _UB_BYTES[architecture.name])
    calls = {}
    for label, site in sites.items():
        device = ascend if label == ASCEND else fla_elsewhere.H200
        calls[label] = record_peer(site, device, op, case, architecture)
    calls[OURS] = record_ours(op, case, architecture, cores)
    return calls


def _compile(
    calls: dict[str, side_by_side.Call], architecture: chips.Architecture, out: str
) -> dict[str, tuple[side_by_side.Call, list[side_by_side.Row]]]:
    from testing.npu_compile import foreign, planning

    chip = next(iter(architecture.chips))

    def tell(result: "Result") -> None:
        print(f"{architecture.name}, {result.label}: {result.verdict}", file=sys.stderr, flush=True)

    columns = {}
    known: dict[tuple[str, str], Result] = {}
    for label, call in calls.items():
        # One's own planner: edited kernels have the names of those that are not.
        planner = planning.Planner(architecture)
        keys = [
            [planner.add_launch(item, chip) for item in choice.candidates]
            for choice in call.choices
        ]
        folder = os.path.join(out, label.replace(",", "").replace(" ", "_"))
        results = foreign.compile_planned(planner, chip, folder, _LIMIT.value, tell, known)
        columns[label] = call, side_by_side.rows(call, keys, results)
    return columns


def _print(columns: dict[str, tuple[side_by_side.Call, list[side_by_side.Row]]]) -> None:
    print(tables.markdown(side_by_side.summary(columns)))
    for label, (call, rows) in columns.items():
        print(f"\n### {label}\n")
        if call.failure:
            print(call.failure)
            continue
        print(tables.markdown(side_by_side.kernel_table(rows)), "", sep="\n")
        for line in side_by_side.failures(rows):
            print(f"- {line}")
        for choice in call.choices:
            if choice.dropped:
                print(f"- {choice.name}: left out the options {', '.join(choice.dropped)}")
        if call.operations:
            print(f"\n{tables.markdown(_operations(call))}")


def _operations(call: side_by_side.Call) -> list[list[str]]:
    lines = [["PyTorch", "kind", "result", "MB"]]
    for operation in call.operations:
        shape = " x ".join(map(str, operation.shape)) or "1"
        lines.append([operation.name, operation.kind, shape, f"{operation.bytes / 1e6:.1f}"])
    return lines


def versions() -> str:
    """Of what decides the figures."""
    found = [f"{name} {metadata.version(name)}" for name in ("triton-ascend", "ascendnpu-ir")]
    return ", ".join([*found, f"torch {metadata.version('torch')}", platform.machine()])


def _chosen_cases() -> list[cases.Case]:
    valid = {case.name: case for case in bwd_spec.SPEC.cases}
    return [valid[name] for name in selection.chosen(_CASES, list(valid))]


def _site(check: Callable[[str], None], here: str) -> tuple[str | None, str]:
    """(the folder with the peers or None, why there is none)."""
    if not _PUBLIC.value:
        return None, "--public is not given"
    site = os.path.join(here, _PUBLIC.value)
    try:
        check(site)
    except ImportError as error:
        return None, str(error)
    return site, ""


def main(argv: Sequence[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments: {argv[1:]}")
    chosen = _chosen_cases()
    here = os.environ.get("BUILD_WORKING_DIRECTORY", os.getcwd())
    archs = selection.chosen(_ARCHS, list(chips.ARCHITECTURES))
    for arch in archs:  # before Triton is imported
        devices.get(f"npu-{arch}-sim").prepare()
    from testing.baselines import fla_core, fla_elsewhere

    site, why = _site(fla_elsewhere.check_version, here)
    out = os.path.join(here, _OUT.value) if _OUT.value else tempfile.mkdtemp(prefix="peers_")
    peers = f"{fla_core.DISTRIBUTION} {fla_core.VERSION}" if site else "no peers"
    print(f"{NOTES}\n\n{peers}, {versions()}")
    with tempfile.TemporaryDirectory() as copy:
        sites = {}
        if site:
            sys.path.append(site)  # what the package itself imports
            edits = [fla_elsewhere.Edit(*edit) for edit in _EDITS]
            sites = {GPU: site, EDITED: fla_elsewhere.edited(site, copy, edits), ASCEND: site}
        for case in chosen:
            for arch in archs:
                architecture = chips.ARCHITECTURES[arch]
                folder = os.path.join(out, case.name, arch)
                columns = _compile(_calls(sites, case, architecture), architecture, folder)
                print(f"\n## {case.name}, {arch}\n", flush=True)
                _print(columns)
    print(f"stages: {out}", file=sys.stderr)
    if not site:
        print(_INSTALL.format(why), file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    app.run(main)
