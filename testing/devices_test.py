import os
import sys
import types
from unittest import mock

from absl.testing import absltest, parameterized

from testing import devices, main


class RequireTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.enter_context(mock.patch.dict(os.environ))
        os.environ.pop("TRITON_INTERPRET", None)
        os.environ.pop("ASCEND_HOME_PATH", None)

    def _torch_npu(self, available: bool, chip: str = "Ascend910B2"):
        """A stand-in for torch_npu, which needs an NPU's libraries to import."""
        import torch

        npu = types.SimpleNamespace(
            is_available=lambda: available, get_device_name=lambda index: chip
        )
        self.enter_context(
            mock.patch.dict(sys.modules, {"torch_npu": types.ModuleType("torch_npu")})
        )
        self.enter_context(mock.patch.object(torch, "npu", npu, create=True))
        os.environ["ASCEND_HOME_PATH"] = "/nowhere"

    def test_unknown_names_list_the_valid_ones(self):
        with self.assertRaisesRegex(
            ValueError, "'gpu', allowed are cpu-reference, npu-arch32-sim, .*, npu-arch35, cuda"
        ):
            devices.get("gpu")

    def test_npu_without_cann(self):
        with self.assertRaisesRegex(
            devices.DeviceNotFoundError, "npu-arch32: ASCEND_HOME_PATH is not set"
        ):
            devices.require("npu-arch32")

    def test_npu_without_torch_npu(self):
        os.environ["ASCEND_HOME_PATH"] = "/nowhere"
        with (
            mock.patch.dict(sys.modules, {"torch_npu": None}),
            self.assertRaisesRegex(devices.DeviceNotFoundError, "torch_npu does not import"),
        ):
            devices.require("npu-arch32")

    def test_npu_without_a_chip(self):
        self._torch_npu(available=False)
        with self.assertRaisesRegex(devices.DeviceNotFoundError, "is_available"):
            devices.require("npu-arch35")

    def test_npu_of_the_other_architecture(self):
        self._torch_npu(available=True)
        with self.assertRaisesRegex(
            devices.DeviceNotFoundError, "npu-arch35: this machine's Ascend910B2 is npu-arch32"
        ):
            devices.require("npu-arch35")

    @parameterized.parameters(
        ("npu-arch32", "Ascend910B2"),
        ("npu-arch32", "Ascend910_9382"),
        ("npu-arch35", "Ascend950PR_9589"),
    )
    def test_npu_of_the_right_architecture(self, name, chip):
        self._torch_npu(available=True, chip=chip)
        self.assertEqual(devices.require(name).describe(), chip)

    def test_npu_of_no_known_architecture(self):
        self._torch_npu(available=True, chip="Ascend310P")
        with self.assertRaisesRegex(NotImplementedError, "Ascend310P"):
            devices.require("npu-arch32")

    def test_cuda_without_a_gpu(self):
        with (
            mock.patch("torch.cuda.is_available", lambda: False),
            self.assertRaisesRegex(
                devices.DeviceNotFoundError, "cuda: Torch .* sees no NVIDIA GPU"
            ),
        ):
            devices.require("cuda")

    @parameterized.parameters("npu-arch32", "npu-arch35", "cuda", "npu-arch32-sim")
    def test_compilers_refuse_the_interpreter(self, name):
        os.environ["TRITON_INTERPRET"] = "1"
        with self.assertRaisesRegex(devices.DeviceNotFoundError, "TRITON_INTERPRET=1 is set"):
            devices.require(name)

    def test_the_interpreter_comes_too_late_after_triton(self):
        with (
            mock.patch.dict(sys.modules, {"triton": types.ModuleType("triton")}),
            self.assertRaisesRegex(
                devices.DeviceNotFoundError, "before TRITON_INTERPRET=1 was set"
            ),
        ):
            devices.require("cpu-reference")

    def test_best_is_the_interpreter_where_nothing_else_is(self):
        with mock.patch("torch.cuda.is_available", lambda: False):
            self.assertEqual(devices.best(), "cpu-reference")

    def test_best_prefers_an_npu(self):
        self._torch_npu(available=True)
        self.assertEqual(devices.best(), "npu-arch32")

    def test_simulator_without_its_packages(self):
        with (
            mock.patch.dict(sys.modules, {"testing.npu_sim.compiled": None}),
            self.assertRaisesRegex(
                devices.DeviceNotFoundError, "arch35-sim: looked for .*ml_dtypes"
            ),
        ):
            devices.require("npu-arch35-sim")


class SimulatorTest(absltest.TestCase):
    def test_large_cases_are_left_out_with_the_reason(self):
        device = devices.get("npu-arch32-sim")
        for flops, reason in (
            (1.0, ""),
            (1e15, "1.2e.15 floating-point op.*; npu-arch32-sim takes "),
        ):
            case = types.SimpleNamespace(tags={"ci"})
            op = types.SimpleNamespace(
                cases=[case],
                costs=lambda case, flops=flops: types.SimpleNamespace(
                    matrix_flops=flops, vector_flops=flops / 4
                ),
            )
            self.assertRegex(device.leaves_out(op, case), f"^{reason}")
            self.assertEqual(bool(reason), bool(device.leaves_out(op, case)))
            self.assertEmpty(devices.get("cuda").leaves_out(op, case))

    def test_of_a_table_with_cases_for_ascend_only_those_are_taken(self):
        device = devices.get("npu-arch35-sim")
        chosen, other = (types.SimpleNamespace(tags=tags) for tags in ({"ci", "npu"}, {"ci"}))
        op = types.SimpleNamespace(
            cases=[chosen, other],
            costs=lambda case: types.SimpleNamespace(matrix_flops=1.0, vector_flops=1.0),
        )
        self.assertEmpty(device.leaves_out(op, chosen))
        self.assertEqual(device.leaves_out(op, other), "not tagged npu")
        self.assertEmpty(devices.get("cpu-reference").leaves_out(op, other))

    def test_other_devices_run_calls_themselves(self):
        session = devices.get("cpu-reference").session()
        with session.calling():
            pass
        self.assertIsNone(session.simulation())


if __name__ == "__main__":
    main.main()
