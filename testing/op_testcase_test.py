import unittest
from unittest import mock

from absl.testing import absltest, flagsaver

from testing import devices, main, op_testcase
from testing.npu_sim import compiled


class LoaderTest(absltest.TestCase):
    def _load(self, device, **flags):
        """A fresh class as a main module has one, with the tests that it was given."""

        class Cases(op_testcase.OpTestCase):
            def judge(self, case):
                pass

        load_tests = op_testcase.loader(Cases, lambda device: device.case_tags)
        chosen = {"spec": "ops.mamba3_siso_fwd.spec", "device": device, **flags}
        self.enter_context(flagsaver.flagsaver(**chosen))
        suite = load_tests(unittest.TestLoader(), None, None)
        return Cases, {test.id().rpartition(".")[2] for test in suite}

    def test_a_simulator_leaves_out_what_is_too_large_and_says_so(self):
        op_case, names = self._load("npu-arch32-sim")
        self.assertIn("test_example", names)
        self.assertEmpty(op_case.left_out)
        self.enter_context(mock.patch.object(devices.Simulator, "MAX_FLOPS", 2e7))
        op_case, names = self._load("npu-arch32-sim")
        self.assertNotIn("test_example", names)
        self.assertIn("test_s65", names)
        self.assertRegex(op_case.left_out["example"], "2.6e.07 floating-point op.* takes 2e.07")
        self.assertLen(names, len(op_case.chosen))

    def test_other_devices_take_all_of_their_tags(self):
        self.enter_context(mock.patch.object(devices.Simulator, "MAX_FLOPS", 1.0))
        op_case, names = self._load("cuda")
        self.assertEmpty(op_case.left_out)
        self.assertContainsSubset({"test_example", "test_perf_b8_s4096"}, names)

    def test_cases_by_name(self):
        _, names = self._load("cuda", case=["perf_b8_s4096", "s65"])
        self.assertEqual(names, {"test_perf_b8_s4096", "test_s65"})

    def test_flags_that_name_nothing_end_the_program(self):
        for flags, message in (
            ({"case": ["s65", "s66"]}, "^--case: got s66; valid are .*s65"),
            ({"tags": ["cy"]}, "^--tags: got cy; valid are ci, full, perf, npu$"),
            ({"spec": "ops.mamba3_siso_fwd.spek"}, "^--spec: got ops.mamba3_siso_fwd.spek .No mod"),
            ({"spec": "ops.mamba3_siso_fwd"}, "^--spec: got .* has no .*; modules .*_fwd.spec"),
        ):
            with self.assertRaisesRegex(SystemExit, message):
                self._load("cuda", **flags)

    def test_a_simulator_takes_the_compile_target_s_modules(self):
        op_case, _ = self._load("npu-arch32-sim", compiled="/nonexistent")
        with self.assertRaisesRegex(compiled.NotCompiledError, "/nonexistent: has no stages"):
            op_case.setUpClass()


if __name__ == "__main__":
    main.main()
