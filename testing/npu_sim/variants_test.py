import functools
import re
import sys
from unittest import mock

import numpy as np
import torch
import triton
import triton.language as tl
from absl.testing import absltest, parameterized

from ops.common import launch
from testing import main
from testing.npu_compile import example_kernels
from testing.npu_sim import executor, simulate, variants

_ADD = "testing.npu_compile.example_kernels:add"
_ARGS = "x_ptr=float32[256],y_ptr=float32[256],out_ptr=float32[256],size=256"
_HERE = "testing.npu_sim.variants_test"


@triton.jit
def subtract(x_ptr, y_ptr, out_ptr, size, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < size
    total = tl.load(x_ptr + offsets, mask=mask, other=0.0)
    total -= tl.load(y_ptr + offsets, mask=mask, other=0.0)
    tl.store(out_ptr + offsets, total, mask=mask)


@triton.jit
def accumulate(x_ptr, out_ptr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, tl.load(out_ptr + offsets) + tl.load(x_ptr + offsets))


@triton.jit
def strided(x_ptr, out_ptr, row, column, R: tl.constexpr, C: tl.constexpr):
    rows, columns = tl.arange(0, R)[:, None], tl.arange(0, C)[None, :]
    tl.store(out_ptr + rows * C + columns, tl.load(x_ptr + rows * row + columns * column))


def listed():
    return [1, 2]


def raising():
    raise KeyError("nope")


def sum_of(x_ptr, y_ptr, out_ptr, size):
    del size
    out_ptr.fill_(7)  # of a copy
    return {"out_ptr": (x_ptr + y_ptr).numpy()}


def nothing_of(**given):
    del given


def scalar_of(size, **given):
    return {"size": size}


def half_of(out_ptr, **given):
    return {"out_ptr": out_ptr[:128]}


def text_of(**given):
    return {"out_ptr": "text"}


def made_arguments():
    return {"x_ptr": torch.ones(256), "y_ptr": torch.ones(256), "out_ptr": torch.zeros(256)}


class TextTest(parameterized.TestCase):
    def test_changes(self):
        text = "BLOCK=512,kernel=m:f, grid=4x2,multibuffer=False,x=1.5"
        expected = {"BLOCK": 512, "kernel": "m:f", "grid": "4x2", "multibuffer": False, "x": 1.5}
        self.assertEqual(variants.changes(text), expected)
        self.assertEqual(variants.changes(""), {})

    @parameterized.parameters("BLOCK", "=3", "BLOCK=", "a=1,b")
    def test_bad_changes(self, text):
        with self.assertRaisesRegex(variants.VariantError, "valid is name=value,name=value"):
            variants.changes(text)

    def test_a_change_given_twice(self):
        with self.assertRaisesRegex(variants.VariantError, "got BLOCK twice"):
            variants.changes("BLOCK=1,grid=4,BLOCK=2")

    def test_arguments(self):
        found = variants.arguments("x=bfloat16[4,64],i=int64[2,3],n=-7,absent=None")
        self.assertEqual((found["x"].shape, found["x"].dtype), ((4, 64), torch.bfloat16))
        self.assertEqual(found["i"].tolist(), [[0, 1, 2], [3, 4, 5]])
        self.assertEqual((found["n"], found["absent"]), (-7, None))
        self.assertAlmostEqual(float(found["x"].float().std()), 1.0, delta=0.2)
        again = variants.arguments("x=bfloat16[4,64],y=bfloat16[4,64]")
        self.assertTrue(torch.equal(again["x"], found["x"]))
        self.assertFalse(torch.equal(again["x"], again["y"]))

    def test_arguments_of_a_function(self):
        found = variants.arguments(f"{_HERE}:made_arguments")
        self.assertEqual(list(found), ["x_ptr", "y_ptr", "out_ptr"])

    def test_other_types(self):
        found = variants.arguments("a=0.001,b=True,c=-1e3,i=int8[300],u=uint8[4],m=bool[2,2],z=1.0")
        self.assertEqual((found["a"], found["b"], found["c"]), (0.001, True, -1000.0))
        self.assertIsInstance(found["z"], float)
        self.assertEqual(found["i"][[0, 127, 128]].tolist(), [0, 127, -128])
        self.assertEqual(found["u"].dtype, torch.uint8)
        self.assertEqual(found["m"].tolist(), [[False, True], [False, True]])

    @parameterized.parameters(
        ("x", "got 'x'; valid is name=type.shape., name=number or module:function"),
        ("x=float8[4]", "x: got 'float8.4.'; valid is .*float16, bfloat16, float32, bool, int8"),
        ("x=float64[4]", "x: got 'float64.4.'; valid is"),
        ("x=float32[a]", "x: got 'float32.a.'"),
        ("x=float32[]", "x: got 'float32..'"),
        ("x=word", "x: got 'word'; valid is a number"),
        ("x=1,x=2", "got x twice"),
        ("x=float32[1000000000000,1000000]", "x: got .*; valid are up to .* elements on this"),
        ("no.such:function", "got 'no.such:function', valid is .*: No module named 'no'$"),
        (f"{_HERE}:absent", "got '.*:absent', valid is .* no attribute 'absent'"),
        (f"{_HERE}:listed", "listed returned a list; valid is a dict of values by name"),
        (f"{_HERE}:raising", r"raising raised KeyError: 'nope' at variants_test.py:\d+$"),
    )
    def test_bad_arguments(self, text, message):
        with self.assertRaisesRegex(variants.VariantError, message) as caught:
            variants.arguments(text)
        self.assertEqual(caught.exception.setting, "args")

    @parameterized.parameters(
        ("raise RuntimeError('boom')", r"RuntimeError: boom at broken_0.py:2$"),
        ("def x(:", r"SyntaxError: .*broken_1.py, line 2"),
        ("raise SystemExit(3)", r"SystemExit: 3 at broken_2.py:2$"),
    )
    def test_a_module_that_cannot_be_imported(self, line, message):
        folder = self.create_tempdir()
        name = re.search(r"broken_\d", message)[0]
        folder.create_file(f"{name}.py", f"import os\n{line}\n")
        with (
            mock.patch.object(sys, "path", [*sys.path, folder.full_path]),
            self.assertRaisesRegex(variants.VariantError, f"got '{name}:kernel', .*{message}"),
        ):
            variants._kernel(f"{name}:kernel")

    def test_grid(self):
        self.assertEqual(variants.grid(24), (24,))
        self.assertEqual(variants.grid("4x3x2"), (4, 3, 2))
        for bad in ("4x", "1x2x3x4", "a", None, -1, 0, "4x0", 65536, "256x256"):
            message = f"got {bad!r}; valid is 24, 4x6 or 4x3x2, with 1 to 65535 programs in all"
            with self.assertRaisesRegex(variants.VariantError, message):
                variants.grid(bad)


class ChangeTest(absltest.TestCase):
    def _launch(self, kernel=example_kernels.add):
        return launch.Launch(kernel, "npu-arch32", (4,), {}, {"BLOCK": 64, "N": 1}, {"x": 1})

    def test_a_launch_gets_what_fits_it(self):
        change = variants._Change(
            {"kernel": f"{_HERE}:subtract", "BLOCK": 32, "grid": "2x3", "multibuffer": False}
        )
        item = change(self._launch())
        change.check_used()
        self.assertEqual(item.kernel.__name__, "subtract")
        self.assertEqual(item.constants, {"BLOCK": 32, "N": 1})
        self.assertEqual((item.grid, item.options), ((2, 3), {"x": 1, "multibuffer": False}))

    def test_another_kernel_s_launch_keeps_its_own(self):
        change = variants._Change({"kernel": f"{_HERE}:subtract"})
        self.assertIs(change(self._launch(example_kernels.product)).kernel, example_kernels.product)
        with self.assertRaisesRegex(variants.VariantError, "no launch .* same arguments") as caught:
            change.check_used()
        self.assertEqual(caught.exception.setting, "kernel")

    def test_what_nothing_knows(self):
        change = variants._Change({"BLOK": 32})
        change(self._launch())
        message = "neither arch, case, grid, kernel, an argument .* .BLOCK, N., nor .* BLOCK"
        with self.assertRaisesRegex(variants.VariantError, message) as caught:
            change.check_used()
        self.assertEqual(caught.exception.setting, "BLOK")

    def test_a_function_that_is_no_kernel(self):
        with self.assertRaisesRegex(variants.VariantError, "is not decorated with triton.jit"):
            variants._Change({"kernel": f"{_HERE}:made_arguments"})


class RunTest(parameterized.TestCase):
    """The real compiler and the real simulator."""

    def _run(self, kernel=_ADD, args=_ARGS, **changes):
        wanted = {"kernel": kernel, "arch": "arch32", "grid": 4, "BLOCK": 64} | changes
        return variants.run_kernel("label", variants.arguments(args), wanted)

    def test_a_kernel_and_its_rivals(self):
        run = self._run()
        self.assertEmpty(run.failures)
        given = variants.arguments(_ARGS)
        self.assertTrue(torch.equal(run.outputs["out_ptr"], given["x_ptr"] + given["y_ptr"]))
        self.assertGreater(run.summaries[0].cycles, 0)
        self.assertNotEmpty(run.launches[0].outcome.events)
        same = "x_ptr: same bits; y_ptr: same bits; out_ptr: "
        halved = self._run(BLOCK=32, grid=8)
        self.assertEqual(halved.summaries[0].programs, 8)
        self.assertEqual(variants.difference(run, halved), same + "same bits")
        other = self._run(f"{_HERE}:subtract")
        self.assertRegex(variants.difference(run, other), same + r"at most [\d.]+ apart")

    def test_every_run_starts_from_the_same_arguments(self):
        text = "x_ptr=float32[256],out_ptr=float32[256]"
        run, given = self._run(f"{_HERE}:accumulate", text), variants.arguments(text)
        self.assertEmpty(run.failures)
        self.assertTrue(torch.equal(run.outputs["out_ptr"], given["out_ptr"] + given["x_ptr"]))

    def test_options_reach_the_compiler(self):
        keys = {self._run(**more).summaries[0].key for more in ({}, {"multibuffer": False})}
        self.assertLen(keys, 2)

    def test_a_wrong_kernel_fails(self):
        run = self._run(grid=5, args=_ARGS.replace("size=256", "size=320"))
        self.assertRegex(run.failures[0], "out of bounds: .*example_kernels.py:")
        self.assertTrue(run.summaries[0].stopped)

    def test_a_kernel_that_does_not_compile(self):
        run = variants.run_kernel(
            "label",
            variants.arguments("x_ptr=float32[64],out_ptr=float32[64]"),
            {
                "kernel": "testing.npu_compile.example_kernels:misspelt",
                "arch": "arch32",
                "grid": 1,
                "N": 64,
            },
        )
        self.assertRegex(run.failures[0], "(?s)misspelt .* does not compile: .*indices")
        self.assertEmpty(run.summaries)

    @parameterized.parameters(
        ({"BLOK": 3}, "neither arch, grid, kernel, an argument .*size, BLOCK.*; close are BLOCK"),
        ({"multibufer": 3}, "nor an option of the compiler; close are multibuffer"),
        ({"nothing_near": 3}, "nor an option of the compiler .*multibuffer"),
        ({"kernel": "no.such:kernel"}, "got 'no.such:kernel', valid .*: No module named 'no'"),
        ({"kernel": f"{_HERE}:accumulate"}, "accumulate: missing .., unknown .'size', 'y_ptr'.;"),
        ({"grid": "x"}, "got 'x'"),
        ({"size": "text"}, "size: got a str, allowed: a tensor, int, float, bool or None"),
        ({"size": 2**64}, "size: got 18446744073709551616, allowed: -2.63 to"),
    )
    def test_bad_variants(self, changes, message):
        with self.assertRaisesRegex(variants.VariantError, message):
            self._run(**changes)

    @parameterized.parameters(
        ([1, 2], "x_ptr: got a list, allowed: a tensor"),
        (np.zeros(256, np.float32), "x_ptr: got a ndarray, allowed: a tensor"),
        (torch.zeros(256).double(), "x_ptr: got dtype torch.float64, allowed: .*torch.int8"),
        (torch.zeros(256).to(torch.float8_e5m2), "x_ptr: got dtype torch.float8_e5m2, allowed"),
        (torch.zeros(256, device="meta"), "x_ptr: got a torch.strided tensor on meta; valid are"),
        (torch.zeros(256).to_sparse(), "x_ptr: got a torch.sparse_coo tensor on cpu; valid are"),
    )
    def test_bad_values(self, value, message):
        given = made_arguments() | {"x_ptr": value, "size": 256}
        changes = {"kernel": _ADD, "arch": "arch32", "grid": 4, "BLOCK": 64}
        with self.assertRaisesRegex(variants.VariantError, message) as caught:
            variants.kernel_launch(given, changes)
        self.assertEqual(caught.exception.setting, "args")
        given = made_arguments() | {"size": 256, "BLOCK": torch.zeros(3)}
        with self.assertRaisesRegex(variants.VariantError, "BLOCK: got a Tensor, valid for a c"):
            variants.kernel_launch(given, {"kernel": _ADD, "arch": "arch32", "grid": 4})

    def test_a_run_time_argument_can_be_changed(self):
        run = self._run(size=100)
        self.assertEmpty(run.failures)
        self.assertFalse(run.outputs["out_ptr"][100:].equal(run.outputs["x_ptr"][100:]))
        item = variants.kernel_launch(
            variants.arguments(_ARGS), {"kernel": _ADD, "arch": "arch32", "grid": 4, "BLOCK": 64}
        )
        self.assertEqual((list(item.constants), item.args["size"]), (["BLOCK"], 256))

    def test_what_shares_memory_still_does(self):
        # x is out: the kernel works in place, and each of its runs starts from the same memory.
        x = torch.arange(64.0)
        run = variants.run_kernel(
            "label",
            {"x_ptr": x, "out_ptr": x},
            {"kernel": f"{_HERE}:accumulate", "arch": "arch32", "grid": 1, "BLOCK": 64},
        )
        self.assertEmpty(run.failures)
        self.assertEqual(run.outputs["x_ptr"].tolist(), (2 * x).tolist())
        self.assertEqual(run.outputs["x_ptr"].data_ptr(), run.outputs["out_ptr"].data_ptr())
        self.assertEqual(x.tolist(), list(range(64)))

    def test_strides_stay(self):
        x = torch.arange(8 * 70.0).reshape(8, 70)[:, 3::7]
        run = variants.run_kernel(
            "label",
            {"x_ptr": x, "out_ptr": torch.zeros(8, 8), "row": x.stride(0), "column": x.stride(1)},
            {"kernel": f"{_HERE}:strided", "arch": "arch32", "grid": 1, "R": 8, "C": 8},
        )
        self.assertEmpty(run.failures)
        self.assertEqual(run.outputs["out_ptr"].tolist(), x[:, :8].tolist())

    def test_tensors_without_dimensions(self):
        run = variants.run_kernel(
            "label",
            {"x_ptr": torch.tensor(3.0), "out_ptr": torch.tensor(0.0)},
            {"kernel": f"{_HERE}:accumulate", "arch": "arch32", "grid": 1, "BLOCK": 1},
        )
        self.assertEmpty(run.failures)
        self.assertEqual(run.outputs["out_ptr"].item(), 3.0)

    def test_values_are_judged_by_what_is_expected(self):
        given = variants.arguments(_ARGS)
        self.assertEqual(self._run().verdict, variants.UNJUDGED)
        wanted = {"kernel": _ADD, "arch": "arch32", "grid": 4, "BLOCK": 64}
        right = variants.expected(f"{_HERE}:sum_of", given)
        run = variants.run_kernel("label", given, wanted, variants.Tolerated(right))
        self.assertEqual(run.verdict, "pass")
        right["out_ptr"][7] += 1
        run = variants.run_kernel("label", given, wanted, variants.Tolerated(right))
        self.assertEqual(run.verdict, "FAIL")
        self.assertRegex(run.failures[0], r"out_ptr: 1 of 256 elements .* at \[7\], is .* instead")
        tolerated = variants.Tolerated(right, atol=1.001)
        self.assertEqual(variants.run_kernel("label", given, wanted, tolerated).verdict, "pass")

    @parameterized.parameters(
        ("made_arguments", "made_arguments raised TypeError: .*unexpected keyword argument"),
        ("nothing_of", "nothing_of returned a NoneType; valid is a dict"),
        ("scalar_of", "scalar_of returned size; valid are x_ptr, y_ptr, out_ptr"),
        ("half_of", r"half_of returned out_ptr of shape \[128\]; valid is \[256\]"),
        ("text_of", "text_of returned out_ptr as str; valid is a tensor or an array"),
    )
    def test_bad_expectations(self, name, message):
        with self.assertRaisesRegex(variants.VariantError, message) as caught:
            variants.expected(f"{_HERE}:{name}", variants.arguments(_ARGS))
        self.assertEqual(caught.exception.setting, "expect")

    @parameterized.parameters(
        # In the third run other memory again, the schedule alone differs.
        ((1.0, 2.0, 1.0), "differ with what memory held before"),
        ((1.0, 1.0, 2.0), "differ with the schedule"),
        ((1.0, 2.0, 3.0), "differ with the schedule"),
    )
    def test_why_results_differ(self, values, message):
        numbers = iter(values)

        def run(program, grid, arguments, settings, names):
            arguments[names.index("out_ptr")].fill_(next(numbers))
            return simulate.Outcome((), (), 10.0, {}, {}, (), 1)

        make = functools.partial(executor.Executor, run=run)
        with mock.patch.object(executor, "Executor", make):
            found = self._run()
        self.assertLen(found.failures, 1)
        self.assertRegex(found.failures[0], f"out_ptr: .*{message}; no read")


if __name__ == "__main__":
    main.main()
