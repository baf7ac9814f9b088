"""Real kernels through the real chain: good ones give their counts, bad ones their diagnosis.

UB sizes are those of Ascend910B1 (196608 bytes) and Ascend910_9589 (253952).
"""

import os
import re

from absl.testing import parameterized

from testing import main
from testing.npu_compile import (
    chips,
    compiling,
    diagnosis,
    example_kernels,
    frontend,
    planning,
    rules,
)
from testing.npu_compile import ir as ir_lib

_X_OUT = {"x_ptr": "*fp32", "out_ptr": "*fp32"}
_HALF = {"x_ptr": "*fp16", "out_ptr": "*fp32"}
_SOURCE = "testing/npu_compile/example_kernels.py"


class _CompileTest(parameterized.TestCase):
    def compile(self, name, signature, arch="arch32", options=None, limit_s=60, **constants):
        architecture = chips.architecture(arch)
        function = f"testing.npu_compile.example_kernels:{name}"
        kernel = planning.Kernel(function, signature, constants, options or {})
        chip = next(iter(architecture.chips))
        planner = planning.plan(architecture, [chip], kernels=[kernel])
        (key,) = planner.units
        unit = planner.units[key]
        frontend.lower(unit, planner.kernels[key], architecture, limit_s)
        self.folder = self.create_tempdir().full_path
        return compiling.compile_unit(unit, architecture, chip, self.folder)

    def line_of(self, text):
        """The line of example_kernels.py that has the text."""
        with open(example_kernels.__file__, encoding="utf-8") as file:
            (line,) = [i for i, found in enumerate(file, 1) if text in found]
        return line


class GoodKernelTest(_CompileTest):
    @parameterized.parameters(("arch32", 196608), ("arch35", 253952))
    def test_add(self, arch, available):
        signature = {"x_ptr": "*fp32", "y_ptr": "*fp32", "out_ptr": "*fp32", "size": "i32"}
        result = self.compile("add", signature, arch, BLOCK=1024)
        self.assertEqual(result.verdict, "ok", result.diagnosis)
        m = result.measurement
        self.assertEqual((m.core_type, m.workspace_bytes, m.cross_core_syncs), ("AIV", 0, 0))
        self.assertEqual(m.memory["UB"], (8192, available))  # the sum lands on one of two operands
        self.assertEqual({n: m.operations[n] for n in ("load", "store")}, {"load": 2, "store": 1})
        self.assertEqual((m.scalar_loads, m.scalar_stores, m.scalar_loops), (0, 0, 0))
        self.assertEqual(result.double_buffered, arch == "arch32")
        self.assertFalse(m.idle_vector_core)
        self.assertContainsSubset(
            ["kernel.ttir.mlir", "kernel.linalg.mlir", "hivm.mlir", "module.hivm.opt.mlir"],
            os.listdir(self.folder),
        )

    @parameterized.parameters(("arch32", 16384, False), ("arch35", 0, True))
    def test_product(self, arch, workspace, idle):
        signature = {"x_ptr": "*fp16", "y_ptr": "*fp16", "out_ptr": "*fp32"}
        m = self.compile("product", signature, arch, M=64, N=64, K=64).measurement
        self.assertEqual(
            (m.core_type, m.operations["cube"], m.operations["fixpipe"]), ("MIX", 1, 1)
        )
        # The product reaches the vector core through global memory on arch32, through UB on arch35.
        self.assertEqual(m.workspace_bytes, workspace)
        self.assertEqual(m.memory["L1"][0], 2 * 64 * 64 * 2)
        self.assertEqual(m.memory["L0C"][0], 64 * 64 * 4)
        self.assertGreater(m.cross_core_syncs, 0)
        self.assertEqual(m.idle_vector_core, idle)

    def test_binding_sub_blocks_is_what_keeps_both_vector_cores_busy(self):
        signature = {"x_ptr": "*fp16", "y_ptr": "*fp16", "out_ptr": "*fp32"}
        options = {"enable_auto_bind_sub_block": False}
        result = self.compile("product", signature, options=options, M=64, N=64, K=64)
        self.assertTrue(result.measurement.idle_vector_core)

    def test_a_scan_is_a_scalar_loop_on_arch32(self):
        m = self.compile("running_sum", _X_OUT, BLOCK=64).measurement
        self.assertEqual((m.scalar_loads, m.scalar_stores, m.scalar_loops), (127, 64, 1))

    def test_the_same_text_wherever_the_sources_are(self):
        self.compile("running_sum", _X_OUT, BLOCK=64)
        with open(os.path.join(self.folder, "kernel.linalg.mlir"), encoding="utf-8") as file:
            text = file.read()
        self.assertIn(f'"{_SOURCE}":', text)
        self.assertNotRegex(text, r'"/')


class DiagnosisTest(_CompileTest):
    @parameterized.parameters(("arch32", 196_608), ("arch35", 253_952))
    def test_ub_overflow(self, arch, available):
        signature = {"x_ptr": "*fp32", "y_ptr": "*fp32", "out_ptr": "*fp32"}
        result = self.compile("wide_outer", signature, arch, N=512)
        self.assertEqual(result.verdict, "failed")
        self.assertRegex(
            result.diagnosis,
            r"^hivm: failed: UB overflow: 1,0\d\d,\d\d\d bytes are needed, "
            rf"{available:,} are there",
        )
        line = self.line_of("tl.exp(x[:, None] + y[None, :])")
        self.assertRegex(
            result.diagnosis, rf"1,048,576  \[512, 512\] f32 +{re.escape(_SOURCE)}:{line}\n"
        )
        self.assertIn(rules.RULES["overflow"], result.diagnosis)
        self.assertEndsWith(result.diagnosis, f"stages: {self.folder}")

    def test_a_split_with_a_second_user(self):
        result = self.compile("split_with_second_user", _X_OUT, N=64)
        self.assertIn("UB overflow", result.diagnosis)
        self.assertIn(rules.RULES["split"], result.diagnosis)
        self.assertNotIn(rules.RULES["overflow"], result.diagnosis)
        self.assertEqual(self.compile("split_alone", _X_OUT, N=64).verdict, "ok")

    def test_the_estimate_of_live_buffers_is_close_to_the_compiler_s_need(self):
        self.compile("split_with_second_user", _X_OUT, N=64)
        with open(os.path.join(self.folder, "before_planning.mlir"), encoding="utf-8") as file:
            alive = diagnosis.live_buffers(ir_lib.parse(file.read()))
        with open(os.path.join(self.folder, "compile.log"), encoding="utf-8") as file:
            needed = diagnosis.find_overflow(file.read()).needed
        self.assertBetween(sum(buffer.bytes for buffer in alive), 0.9 * needed, 1.1 * needed)

    _MATRICES = {"x_ptr": "*fp16", "y_ptr": "*fp16", "out_ptr": "*fp32", "count": "i32"}  # noqa: RUF012

    def test_an_accumulator_through_two_loops(self):
        result = self.compile("accumulator_through_two_loops", self._MATRICES, N=64, HALVE=True)
        self.assertEqual(result.verdict, "failed")
        line = self.line_of("def accumulator_through_two_loops")
        self.assertRegex(result.diagnosis, r"example_kernels.py:\d+: error: .*Unsupported copy")
        self.assertIn(rules.RULES["accumulator"], result.diagnosis)
        self.assertGreater(int(re.search(r"kernels.py:(\d+)", result.diagnosis)[1]), line)
        result = self.compile("accumulator_per_loop", self._MATRICES, N=64)
        self.assertEqual(result.verdict, "ok", result.diagnosis)

    def test_a_product_that_the_compiler_leaves_out_is_no_success(self):
        result = self.compile("accumulator_through_two_loops", self._MATRICES, N=64, HALVE=False)
        self.assertEqual((result.verdict, result.measurement), ("failed", None))
        self.assertStartsWith(result.diagnosis, f"hivm: failed: {compiling.DROPPED_PRODUCT}")
        self.assertIn(rules.RULES["accumulator"], result.diagnosis)

    def test_a_silent_failure_names_the_pass(self):
        result = self.compile("square_of_a_matrix", {**_HALF, "count": "i32"}, "arch35", N=64)
        self.assertEqual(result.verdict, "failed")
        self.assertIn("(in the pass hivm-normalize-matmul)", result.diagnosis)
        self.assertIn(rules.RULES["operand"], result.diagnosis)
        self.assertIn("reproducer.mlir", os.listdir(self.folder))

    def test_inline_assembly_crashes_the_frontend(self):
        result = self.compile("inline_assembly", _X_OUT, N=32)
        self.assertEqual(result.verdict, "crashed")
        self.assertStartsWith(result.diagnosis, "linalg: crashed: ")
        self.assertIn(rules.RULES["assembly"], result.diagnosis)
        self.assertLess(len(result.diagnosis), 1000)  # no stack of addresses

    @parameterized.parameters(
        ("double_precision", {"x_ptr": "*fp64", "out_ptr": "*fp64"}, "fp64"),
        ("tf32_product", _X_OUT, "tf32"),
        ("descriptor_store", {"x_ptr": "*fp32", "out_ptr": "*fp16"}, "store"),
    )
    def test_what_the_frontend_refuses(self, name, signature, rule):
        result = self.compile(name, signature, N=64)
        self.assertEqual(result.verdict, "failed")
        self.assertStartsWith(result.diagnosis, "ttir: failed: ")
        self.assertIn(rules.RULES[rule], result.diagnosis)

    def test_an_unknown_error_is_triton_s_own_and_names_no_rule(self):
        result = self.compile("misspelt", _X_OUT, N=64)
        self.assertIn("NameError: indices is not defined", result.diagnosis)
        self.assertNotIn("rule:", result.diagnosis)

    def test_options_that_the_frontend_does_not_know(self):
        result = self.compile("double_precision", _X_OUT, options={"warps": 4}, N=64)
        self.assertIn("ValueError: options: triton-ascend knows no warps", result.diagnosis)

    def test_a_frontend_that_does_not_end(self):
        result = self.compile("running_sum", _X_OUT, limit_s=0.001, BLOCK=64)
        self.assertEqual(result.verdict, "timeout")
        self.assertStartsWith(result.diagnosis, "ttir: timeout: no result after 0.001 s")


if __name__ == "__main__":
    main.main()
