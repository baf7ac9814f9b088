"""What Ascend's compilers make of the public kernel, of a straight port, and of this op's kernel.

    ./bazelw run //ops/mamba3_siso_fwd:port_comparison -- --public=/path/to/site
Without Bazel, at the repository's root: python3 -m ops.mamba3_siso_fwd.port_comparison.
Prints one table per architecture; no NPU, no CANN, no driver. --simulate also executes what
compiles, at a shorter sequence, and adds verdicts and estimates. --public is the folder that holds
the package mamba-ssm (third_party/baselines_x86_64.txt); without it that part is left out, loudly.
"""

import contextlib
import dataclasses
import importlib
import importlib.util
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from absl import app, flags

from ops.mamba3_siso_fwd import spec as spec_lib
from testing import cases, devices, selection, spec, tables
from testing.npu_compile import chips, side_by_side

if TYPE_CHECKING:
    from testing.npu_compile.result import Result

_CASE = flags.DEFINE_string("case", "perf_b4_s2048", "Case of the op's table: K, V, A, chunk size.")
_ARCHS = flags.DEFINE_list("arch", None, "Architectures. Default: all.")
_PUBLIC = flags.DEFINE_string(
    "public", None, "Folder with the packages mamba-ssm and einops, as `pip install --target` fills"
)
_SIMULATE = flags.DEFINE_bool("simulate", False, "Also execute what compiles, for 256 tokens.")
_OUT = flags.DEFINE_string("out", None, "Folder for the stages. Default: a temporary one.")
_LIMIT = flags.DEFINE_float("limit_s", 180.0, "Seconds for one compilation.")

_INSTALL = """the public kernel was NOT compiled: --public names no folder with it. To make one:
    MAMBA_FORCE_BUILD=TRUE MAMBA_SKIP_CUDA_BUILD=TRUE pip install --no-deps \\
        --no-build-isolation --require-hashes --target=/tmp/public \\
        -r third_party/baselines_x86_64.txt
(needs setuptools, wheel, packaging and torch where pip runs), then --public=/tmp/public"""

# Edits of the public kernel's text, each a step further into the compiler: what it was stopped by
# before -> (text, replacement) pairs.
_STEPS = (
    ("public, as published", ()),
    (
        "public, edit 1: constexpr condition alone",
        (("if chunk_idx == num_chunks - 1 and RETURN_FINAL_STATES:", "if RETURN_FINAL_STATES:"),),
    ),
    (
        "public, edit 2: cast before descriptor stores",
        tuple(
            (
                f"{name}.store([chunk_start, 0], {value})",
                f"{name}.store([chunk_start, 0], {value}.to({name}.dtype))",
            )
            for name, value in (
                ("k_store_desc", "k_pre_block"),
                ("q_store_desc", "q_pre_block"),
                ("o_desc", "acc_o"),
            )
        ),
    ),
    (
        "public, edit 3: tl.sin, tl.cos for PTX",
        (
            ("cos_approx(angle_block", "tl.cos(angle_block"),
            ("sin_approx(angle_block", "tl.sin(angle_block"),
        ),
    ),
)
_COLUMNS = ["verdict", "UB", "L1", "L0C", "retries", "buffers", "vector cores", "vector", "cube"]
_COLUMNS += ["scalar ld/st/loops", "syncs", "workspace"]

# The public function with this op's arguments, one for each step; filled by _public_steps.
PUBLIC: list[Any] = []


def public_0(*args: Any, **kwargs: Any) -> Any:
    return PUBLIC[0](*args, **kwargs)


def public_1(*args: Any, **kwargs: Any) -> Any:
    return PUBLIC[1](*args, **kwargs)


def public_2(*args: Any, **kwargs: Any) -> Any:
    return PUBLIC[2](*args, **kwargs)


def public_3(*args: Any, **kwargs: Any) -> Any:
    return PUBLIC[3](*args, **kwargs)


class _Recorded:
    """Stands for the public kernel in its own wrapper: a launch becomes one of ops.common."""

    def __init__(self, kernel: Any):
        self._kernel = kernel

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        from testing.npu_compile import foreign

        def run(*args: Any, **kwargs: Any) -> None:
            foreign.launch_of(self._kernel, grid, args, kwargs).run()

        return run


def _public_steps(site: str, folder: str) -> None:
    """Loads the public kernel as published and after each edit, without touching the package."""
    import triton

    sys.path.append(site)
    # Both fail where triton-ascend has no device; neither is part of what is compiled.
    triton.autotune = lambda **_: lambda function: function
    triton.set_allocator = lambda _: None
    from testing.baselines import mamba_ssm

    # One's own module for each step: Triton reads a kernel's text from its file.
    path = mamba_ssm._module().__file__
    with open(path, encoding="utf-8") as file:
        text = file.read()
    for index, (label, edits) in enumerate(_STEPS):
        for old, new in edits:
            if text.count(old) != 1:
                raise ValueError(f"{label}: {path} has {text.count(old)} times {old!r}, expected 1")
            text = text.replace(old, new)
        name = f"public_kernel_{index}"
        with open(os.path.join(folder, f"{name}.py"), "w", encoding="utf-8") as file:
            file.write(text)
        found = importlib.util.spec_from_file_location(name, file.name)
        assert found and found.loader
        module: Any = importlib.util.module_from_spec(found)
        sys.modules[name] = module
        found.loader.exec_module(module)
        module.mamba3_siso_fwd_kernel = _Recorded(module.mamba3_siso_fwd_kernel)
        PUBLIC.append(_with_our_arguments(module))


def _with_our_arguments(module: Any) -> Any:
    def forward(q, k, v, adt, dt, trap, q_bias, k_bias, angles, d=None, z=None, chunk_size=64):
        return module.mamba3_siso_fwd(
            q, k, v, adt, dt, trap, q_bias, k_bias, angles, D=d, Z=z, chunk_size=chunk_size
        )[0]

    return forward


def _candidates(case: cases.Case) -> Iterator[tuple[str, spec.OpSpec, cases.Case]]:
    here = __spec__.name if __spec__ else __name__
    sys.modules.setdefault(here, sys.modules[__name__])  # run as a script: one PUBLIC
    for index, (label, _) in enumerate(_STEPS[: len(PUBLIC)]):
        yield label, dataclasses.replace(spec_lib.SPEC, function=f"{here}:public_{index}"), case
    port = dataclasses.replace(spec_lib.SPEC, function="ops.mamba3_siso_fwd.straight_port:forward")
    for chunk in dict.fromkeys((case.attributes["chunk_size"], 32)):
        attributes = {**case.attributes, "chunk_size": chunk}
        yield (
            f"straight port, chunk {chunk}",
            port,
            dataclasses.replace(case, attributes=attributes),
        )
    yield "this op", spec_lib.SPEC, case


def _compile(
    label: str, op: spec.OpSpec, case: cases.Case, architecture: chips.Architecture, out: str
) -> "list[tuple[str, Result | None, str, int]]":
    from testing.npu_compile import foreign, planning

    chip = next(iter(architecture.chips))
    planner = planning.Planner(architecture)
    planner.add_case(op, case, chip)
    if planner.calls[0].failure:
        return [(label, None, planner.calls[0].failure.message, 0)]

    def name(result: "Result") -> str:
        several = len(planner.units) > 1
        return f"{label}, {result.specialisation.kernel}" if several else label

    def tell(result: "Result") -> None:
        what = f"{architecture.name}, {name(result)}"
        print(f"{what}: {result.verdict} ({result.seconds:.1f} s)", flush=True)

    folder = os.path.join(out, architecture.name, label.replace(" ", "_"))
    results = foreign.compile_planned(planner, chip, folder, _LIMIT.value, tell)
    launches = len(planner.calls[0].launches)
    return [(name(result), result, result.diagnosis, launches) for result in results.values()]


def _row(label: str, result: "Result | None", launches: int) -> list[str]:
    return [label, *side_by_side.cells(result, _COLUMNS), str(launches) if result else "-"]


def _short(case: cases.Case, tokens: int = 256, heads: int = 2) -> cases.Case:
    """The case with one batch, one q/k head, and fewer heads and tokens."""
    batch, long, many = case.shape("v")[:3]
    groups = case.shape("q")[2]
    axes = {"q": (1, tokens, 1), "v": (1, tokens, heads), "adt": (1, heads, tokens)}
    axes |= {"k": axes["q"], "z": axes["v"], "angles": axes["v"]}
    axes |= {"dt": axes["adt"], "trap": axes["adt"]}
    assert (batch, long, groups) <= case.shape("q")[:3] and many
    small = {}
    for name, tensor in case.tensors.items():
        if tensor is not None:
            first = axes.get(name, (heads,))
            shape = (*first, *tensor.shape[len(first) :])
            tensor = dataclasses.replace(tensor, shape=shape)
        small[name] = tensor
    return dataclasses.replace(case, tensors=small)


def _simulate(compiled: Sequence[tuple[str, spec.OpSpec, cases.Case]], arch: str) -> None:
    from testing.npu_sim import summary, variants

    columns = []
    for label, op, case in compiled:
        small = _short(case)
        op = dataclasses.replace(op, cases=(small,))
        run = variants.run_case(label, op, (), {"arch": arch, "case": small.name})
        print(f"{arch}, {label}, simulated: {'FAIL' if run.failures else 'pass'}")
        for line in run.failures:
            print(f"  {line}")
        for finding in dict.fromkeys(str(f) for f in run.found if not f.is_error):
            print(f"  note: {finding}")
        sys.stdout.flush()
        if run.launches:
            columns.append((label, run.summaries))
    if columns:
        print(f"\n{arch}, 256 tokens, 2 heads; {summary.ESTIMATE}; {summary.ASSUMPTIONS}")
        print(tables.table(summary.side_by_side(columns)))


def main(argv: Sequence[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments: {argv[1:]}")
    valid = [case.name for case in spec_lib.SPEC.cases]
    if _CASE.value not in valid:
        raise app.UsageError(f"--case: got {_CASE.value}; valid are {', '.join(valid)}")
    case = next(case for case in spec_lib.SPEC.cases if case.name == _CASE.value)
    here = os.environ.get("BUILD_WORKING_DIRECTORY", os.getcwd())
    archs = selection.chosen(_ARCHS, list(chips.ARCHITECTURES))
    for arch in archs:  # before Triton is imported
        devices.get(f"npu-{arch}-sim").prepare()
    with contextlib.ExitStack() as stack:
        edited = stack.enter_context(tempfile.TemporaryDirectory())
        site = os.path.join(here, _PUBLIC.value or "")
        missing = not _PUBLIC.value or not os.path.isdir(os.path.join(site, "mamba_ssm"))
        if not missing:
            _public_steps(site, edited)
        out = os.path.join(here, _OUT.value) if _OUT.value else tempfile.mkdtemp(prefix="ports_")
        for arch in archs:
            rows, failures, compiled = [], [], []
            for candidate in _candidates(case):
                found = _compile(*candidate, chips.ARCHITECTURES[arch], out)
                for label, result, diagnosis, launches in found:
                    rows.append(_row(label, result, launches))
                    failures += [f"{label}: {diagnosis}"] if diagnosis else []
                if all(result and result.verdict == "ok" for _, result, _, _ in found):
                    compiled.append(candidate)
            print(f"\n{arch}, case {case.name}")
            print(tables.table([["", *_COLUMNS, "launches"], *rows]), *failures, "", sep="\n")
            if _SIMULATE.value:
                _simulate(compiled, arch)
        print(f"stages: {out}")
        if missing:
            print(_INSTALL, file=sys.stderr)
            sys.exit(1)


if __name__ == "__main__":
    app.run(main)
