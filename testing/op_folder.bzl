"""op_folder: all targets of a folder that holds one op, from the files in it."""

load("//third_party:python.bzl", "py_library", "py_test")
load(":op_test_suite.bzl", "op_test_suite")
load(":readme_test.bzl", "readme_test")

def _ours(*targets):
    # Relative to this file's repository, so that the macro works from any workspace.
    return [str(Label("//" + target)) for target in targets]

def _there(*files):
    return native.glob(files, allow_empty = True)

def _libraries(*stems):
    return [":" + stem for stem in stems if _there(stem + ".py")]

def _library_and_test(stem, also, deps, test_deps):
    """<stem>.py, with the files `also` that are there, and <stem>_test.py."""
    if not _there(stem + ".py"):
        return
    py_library(
        name = stem,
        srcs = _there(stem + ".py", *also),
        deps = deps,
    )
    if _there(stem + "_test.py"):
        py_test(
            name = stem + "_test",
            size = "small",
            srcs = [stem + "_test.py"],
            deps = [":" + stem] + test_deps + _ours("third_party:absl"),
        )

def op_folder(
        name,
        srcs,
        deps = [],
        contract_deps = [],
        reference_deps = [],
        spec_deps = [],
        unit_srcs = None,
        unit_deps = [],
        **suite):
    """Declares the libraries of an op's folder, their tests, and what op_test_suite makes of them.

    A file that is there is a target:

      contract.py      :contract, the checks of a call's arguments.
      plan.py          :plan, with problem.py: what a call would launch. Plain Python.
      reference.py     :reference, the golden and the same-precision reference. No kernel, or every edit of one would compute
                       the goldens again.
      spec.py          :spec, with cases.py: what the op tells the test kit. NumPy only.
      npu_budgets.py   :npu_budgets, what the compiled kernels may cost on an NPU.
      README.zh-CN.md  :readme_test, that it says what README.md says.

    contract_test.py, plan_test.py, reference_test.py and spec_test.py are small tests of these libraries. Every other *_test.py
    launches kernels and is a target for each device. <name>_test is the suite of what op_test_suite declares.

    Args:
      name: the op's name, which is the folder's. Callers depend on it.
      srcs: the op's own files: __init__.py, its function and its kernels.
      deps: what they need beside :contract, :plan, the backend and launch of //ops/common, torch and Triton.
      contract_deps: what contract.py needs beside :plan, //ops/common:checks and torch.
      reference_deps: what reference.py needs beside torch.
      spec_deps: what spec.py and cases.py need beside the cases and spec of //testing.
      unit_srcs: the tests that launch kernels, if not every other *_test.py does.
      unit_deps: what they need beside the op, its libraries, the backend and launch of //ops/common, //testing:guard, absl, torch
        and Triton.
      **suite: op_test_suite's other arguments.
    """
    torch, triton = _ours("third_party:torch"), _ours("third_party:triton")
    py_library(
        name = name,
        srcs = srcs,
        deps = _libraries("contract", "plan") + deps + _ours("ops/common:backend", "ops/common:launch") + torch + triton,
    )
    _library_and_test(
        "contract",
        also = [],
        deps = _libraries("plan") + contract_deps + _ours("ops/common:checks") + torch,
        test_deps = _libraries("plan") + _ours("third_party:numpy") + torch,
    )
    _library_and_test("plan", also = ["problem.py"], deps = [], test_deps = [])
    _library_and_test("reference", also = [], deps = reference_deps + torch, test_deps = torch)
    _library_and_test(
        "spec",
        also = ["cases.py"],
        deps = spec_deps + _ours("testing:cases", "testing:spec"),
        test_deps = _libraries("plan") + _ours("testing:cases"),
    )
    _library_and_test("npu_budgets", also = [], deps = _ours("testing/npu_compile:budgets"), test_deps = [])
    if _there("README.zh-CN.md"):
        readme_test(
            name = "readme_test",
            original = "README.md",
            translation = "README.zh-CN.md",
        )
    if unit_srcs == None:
        unit_srcs = native.glob(
            ["*_test.py"],
            allow_empty = True,
            exclude = [stem + "_test.py" for stem in ("contract", "plan", "reference", "spec")],
        )
    op_test_suite(
        name = name + "_test",
        npu_budgets = ":npu_budgets" if _there("npu_budgets.py") else None,
        op = ":" + name,
        reference = ":reference",
        spec = ":spec",
        unit_deps = _libraries("contract", "plan") + unit_deps +
                    _ours("ops/common:backend", "ops/common:launch", "testing:guard", "third_party:absl") + torch + triton,
        unit_srcs = unit_srcs,
        **suite
    )
