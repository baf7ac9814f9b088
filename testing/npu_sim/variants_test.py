import torch
import triton
import triton.language as tl
from absl.testing import absltest, parameterized

from ops.common import launch
from testing import main
from testing.npu_compile import example_kernels
from testing.npu_sim import variants

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

    @parameterized.parameters(
        ("x", "got 'x'; valid is name=type.shape. or name=integer"),
        ("x=float8[4]", "x: got 'float8.4.'; valid is .*float16, bfloat16, float32, int32, int64"),
        ("x=float32[a]", "x: got 'float32.a.'"),
        ("x=float32[]", "x: got 'float32..'"),
        ("x=1.5", "x: got '1.5'; valid is an integer"),
        ("no.such:function", "no.such:function: No module named 'no'"),
    )
    def test_bad_arguments(self, text, message):
        with self.assertRaisesRegex(variants.VariantError, message):
            variants.arguments(text)

    def test_grid(self):
        self.assertEqual(variants.grid(24), (24,))
        self.assertEqual(variants.grid("4x3x2"), (4, 3, 2))
        for bad in ("4x", "1x2x3x4", "a", None, -1):
            with self.assertRaisesRegex(variants.VariantError, "valid is 24, 4x6 or 4x3x2"):
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
        with self.assertRaisesRegex(variants.VariantError, "kernel: no launch .* same arguments"):
            change.check_used()

    def test_what_nothing_knows(self):
        change = variants._Change({"BLOK": 32})
        change(self._launch())
        message = "BLOK: neither arch, case, grid, kernel, a constant of the kernel .BLOCK, N., nor"
        with self.assertRaisesRegex(variants.VariantError, message):
            change.check_used()

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
        ({"BLOK": 3}, "missing .., unknown .'BLOK'.; they are x_ptr, y_ptr, out_ptr, size, BLOCK"),
        ({"kernel": "no.such:kernel"}, "no.such:kernel: No module named 'no'"),
        ({"grid": "x"}, "grid: got 'x'"),
    )
    def test_bad_variants(self, changes, message):
        with self.assertRaisesRegex(variants.VariantError, message):
            self._run(**changes)


if __name__ == "__main__":
    main.main()
