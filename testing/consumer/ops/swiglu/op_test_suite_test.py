"""op_folder was told that swiglu supports cpu-reference and npu-arch32-sim only."""

import json
import os

from absl.testing import absltest

from testing import main

_HARDWARE = {"exclusive", "external", "no-remote", "no-sandbox"}


class DeclaredTargetsTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        path = os.path.join(os.path.dirname(__file__), "declared_targets.json")
        with open(path, encoding="utf-8") as file:
            self.targets = json.load(file)

    def test_every_device_has_a_target_of_every_kind_it_can_run(self):
        tests = {name for name, (rule, *_) in self.targets.items() if rule == "py_test"}
        expected = {
            f"swiglu_{kind}_{device}_test"
            for device in ("cpu_reference", "npu_arch32", "npu_arch35", "cuda")
            for kind in ("accuracy", "memory", "performance")
        } - {"swiglu_performance_cpu_reference_test"}
        expected |= {f"swiglu_accuracy_npu_{arch}_sim_test" for arch in ("arch32", "arch35")}
        expected |= {f"swiglu_compile_{arch}_test" for arch in ("arch32", "arch35")}
        expected.add("contract_test")
        self.assertEqual(tests, expected)

    def test_files_are_targets_and_files_that_are_not_there_are_none(self):
        libraries = {name for name, (rule, *_) in self.targets.items() if rule == "py_library"}
        self.assertEqual(libraries, {"swiglu", "contract", "reference", "spec"})

    def test_targets_carry_kind_and_device(self):
        self.assertEqual(
            set(self.targets["swiglu_accuracy_cpu_reference_test"][1:]),
            {"cpu-reference", "accuracy"},
        )

    def test_devices_without_support_are_manual(self):
        for device in ("npu-arch32", "npu-arch35", "cuda"):
            tags = self.targets[f"swiglu_memory_{device.replace('-', '_')}_test"][1:]
            self.assertEqual(set(tags), {device, "memory", "manual"} | _HARDWARE)
        tags = self.targets["swiglu_compile_arch35_test"][1:]
        self.assertEqual(set(tags), {"npu-compile", "npu-compile-arch35", "manual"})

    def test_a_simulated_device_is_supported_with_what_it_executes(self):
        tags = self.targets["swiglu_accuracy_npu_arch32_sim_test"][1:]
        self.assertEqual(set(tags), {"npu-arch32-sim", "accuracy"})
        tags = self.targets["swiglu_compile_arch32_test"][1:]
        self.assertEqual(set(tags), {"npu-compile", "npu-compile-arch32"})
        self.assertEqual(self.targets["swiglu_compile_arch32_stages"][0], "filegroup")

    def test_there_are_a_golden_and_a_suite(self):
        self.assertEqual(self.targets["swiglu_golden"][0], "op_golden")
        self.assertEqual(self.targets["swiglu_test"][0], "test_suite")


if __name__ == "__main__":
    main.main()
