"""Tests of ops.common.backend that need no device; TRITON_INTERPRET=1 must be set."""

import os
import subprocess
import sys
from unittest import mock

import torch
from absl.testing import absltest, parameterized

from ops.common import backend


class ArchitectureTest(parameterized.TestCase):
    @parameterized.parameters("Ascend910B1", "Ascend910B2C", "Ascend910B4-1", "Ascend910_9391")
    def test_arch32(self, chip):
        self.assertEqual(backend.architecture(chip), backend.NPU_ARCH32)

    @parameterized.parameters("Ascend950PR_9589", "Ascend950DT_95A1", "Ascend910_9589")
    def test_arch35(self, chip):
        self.assertEqual(backend.architecture(chip), backend.NPU_ARCH35)

    @parameterized.parameters("Ascend310P3", "Ascend910A", "Ascend910PremiumA", "Ascend1000", "")
    def test_others_are_refused_by_name(self, chip):
        with self.assertRaisesRegex(NotImplementedError, f"the NPU '{chip}'.*npu-arch32"):
            backend.architecture(chip)


class DeviceGuardTest(absltest.TestCase):
    def test_the_current_device_is_left_alone(self):
        tensor = mock.Mock(device=torch.device("cuda:1"))
        with mock.patch.object(torch, "cuda") as cuda:
            cuda.current_device.return_value = 1
            with backend.device_guard(tensor):
                cuda.device.assert_not_called()
            cuda.current_device.return_value = 0
            self.assertIs(backend.device_guard(tensor), cuda.device.return_value)
            cuda.device.assert_called_once_with(torch.device("cuda:1"))


class BackendOfTest(absltest.TestCase):
    def test_cpu_tensor_in_the_interpreter(self):
        self.assertEqual(backend.backend_of(torch.zeros(1)), backend.CPU_REFERENCE)

    def test_other_device(self):
        with self.assertRaisesRegex(NotImplementedError, "meta; allowed: cpu, npu, cuda"):
            backend.backend_of(torch.zeros(1, device="meta"))

    def test_cpu_tensor_without_the_interpreter(self):
        script = (
            "import torch\n"
            "from ops.common import backend\n"
            "import os; os.environ['TRITON_INTERPRET'] = '1'\n"  # too late: triton is imported
            "try: backend.backend_of(torch.zeros(1))\n"
            "except RuntimeError as error: print(error)\n"
        )
        environment = os.environ | {
            "TRITON_INTERPRET": "0",
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        output = subprocess.run(
            [sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, check=True
        )
        self.assertIn("set TRITON_INTERPRET=1 before triton is imported", output.stdout.decode())

    def test_device_tensor_in_the_interpreter(self):
        with self.assertRaisesRegex(RuntimeError, "TRITON_INTERPRET=1 was set.*cuda:1: unset it"):
            backend.backend_of(OnDevice())


class CoreCountTest(absltest.TestCase):
    def test_limit_holds_inside_the_block_only(self):
        cores = backend.core_count(backend.CPU_REFERENCE)
        with backend.limit_programs(3):
            self.assertEqual(backend.core_count(backend.CPU_REFERENCE), 3)
            with backend.limit_programs(1):
                self.assertEqual(backend.core_count(backend.CPU_REFERENCE), 1)
            self.assertEqual(backend.core_count(backend.CPU_REFERENCE), 3)
            self.assertEqual(backend.device_cores(backend.CPU_REFERENCE), cores)
            self.assertEqual(backend.program_limit(), 3)
        self.assertEqual(backend.core_count(backend.CPU_REFERENCE), cores)
        self.assertIsNone(backend.program_limit())

    def test_limit_is_lifted_after_an_error(self):
        cores = backend.core_count(backend.CPU_REFERENCE)
        with self.assertRaises(KeyError), backend.limit_programs(1):
            raise KeyError
        self.assertEqual(backend.core_count(backend.CPU_REFERENCE), cores)

    def test_limit_does_not_raise_the_count(self):
        cores = backend.core_count(backend.CPU_REFERENCE)
        with backend.limit_programs(cores + 1):
            self.assertEqual(backend.core_count(backend.CPU_REFERENCE), cores)

    def test_bad_values(self):
        message = "count: got 0, allowed: 1 or more"
        with self.assertRaisesRegex(ValueError, message), backend.limit_programs(0):
            pass
        with self.assertRaisesRegex(ValueError, "got 'tpu', allowed: cpu-reference, npu-arch32"):
            backend.core_count("tpu")


class OnDevice:
    """What backend_of looks at of a tensor on a GPU."""

    device = torch.device("cuda", 1)


class PretendTest(parameterized.TestCase):
    @parameterized.parameters(backend.NPU_ARCH32, backend.NPU_ARCH35, backend.CUDA)
    def test_meta_and_cpu_tensors_are_on_the_backend(self, name):
        with backend.pretend(name, 24):
            for kind in ("meta", "cpu"):
                tensor = torch.empty(1, device=kind)
                self.assertEqual(backend.backend_of(tensor), name)
                with backend.device_guard(tensor):
                    self.assertEqual(backend.core_count(name), 24)
            self.assertEqual(backend.core_count(backend.CPU_REFERENCE), 4)
            with backend.limit_programs(3):
                self.assertEqual(backend.core_count(name), 3)

    def test_real_devices_are_refused(self):
        message = "cuda:1, but inside backend.pretend .* launched there; allowed: cpu, meta"
        with backend.pretend(backend.NPU_ARCH32, 24), self.assertRaisesRegex(RuntimeError, message):
            backend.backend_of(OnDevice())

    def test_it_ends_with_its_block(self):
        with self.assertRaises(KeyError), backend.pretend(backend.NPU_ARCH32, 24):
            with backend.pretend(backend.NPU_ARCH35, 32):
                self.assertEqual(backend.backend_of(torch.zeros(1)), backend.NPU_ARCH35)
            self.assertEqual(backend.backend_of(torch.zeros(1)), backend.NPU_ARCH32)
            self.assertTrue(backend.pretending())
            raise KeyError
        self.assertFalse(backend.pretending())
        self.assertEqual(backend.backend_of(torch.zeros(1)), backend.CPU_REFERENCE)

    def test_launches_go_to_the_innermost_block(self):
        outer, inner = [], []
        self.assertFalse(backend.run_pretended("before"))
        with backend.pretend(backend.NPU_ARCH32, 24, outer.append):
            self.assertTrue(backend.run_pretended("first"))
            with backend.pretend(backend.NPU_ARCH32, 24):
                self.assertTrue(backend.run_pretended("nobody's"))
            with backend.pretend(backend.NPU_ARCH35, 32, inner.append):
                self.assertTrue(backend.run_pretended("second"))
            backend.run_pretended("third")
        self.assertFalse(backend.run_pretended("after"))
        self.assertEqual((outer, inner), (["first", "third"], ["second"]))

    def test_bad_values(self):
        message = "backend: got 'npu', allowed: cpu-reference, npu"
        with self.assertRaisesRegex(ValueError, message), backend.pretend("npu", 24):
            pass
        message = "cores: got 0, allowed: 1 or more"
        with self.assertRaisesRegex(ValueError, message), backend.pretend(backend.CUDA, 0):
            pass


if __name__ == "__main__":
    absltest.main()
