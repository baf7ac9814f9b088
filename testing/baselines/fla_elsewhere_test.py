"""Tests with a package that was made up: what it sees of the device, and what is left behind."""

import os
import sys
import textwrap

import torch
import triton
from absl.testing import absltest

from testing.baselines import fla_core, fla_elsewhere

# What the real package does when it is imported.
_MODULE = """
    import os
    import torch
    import triton
    from fla import __version__
    from fla.ops.kda.near import NEAR

    target = triton.runtime.driver.active.get_current_target().backend
    device = getattr(torch, target)
    properties = triton.runtime.driver.active.utils.get_device_properties(device.current_device())
    name = device.get_device_name(0)
    capability = torch.cuda.get_device_capability(0) if target == "cuda" else None
    ub_bits = os.environ.get("ASCEND_UB_CAPACITY_BITS")

    def time_it():
        return triton.runtime.driver.active.get_benchmarker()(None, quantiles=())
"""
_BROKEN = "raise ImportError('an op that nobody asked for')"


class FlaElsewhereTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        self.site = self.create_tempdir().full_path
        self._write("fla/__init__.py", _BROKEN)
        self._write("fla/ops/__init__.py", _BROKEN)
        self._write("fla/ops/kda/__init__.py", _BROKEN)
        self._write("fla/ops/kda/near.py", "NEAR = 1")
        self._write("fla/ops/kda/chunk_bwd.py", textwrap.dedent(_MODULE))

    def _write(self, path: str, text: str) -> None:
        path = os.path.join(self.site, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

    def test_a_gpu(self):
        with fla_elsewhere.loaded(self.site, fla_elsewhere.H200) as module:
            self.assertEqual(module.target, "cuda")
            self.assertEqual(module.properties["max_shared_mem"], 232448)
            self.assertEqual((module.name, module.capability), ("NVIDIA H200", (9, 0)))
            self.assertEqual(module.__version__, fla_core.VERSION)
            with self.assertRaisesRegex(RuntimeError, "H200 is not here: nothing can be timed"):
                module.time_it()

    def test_an_npu(self):
        with fla_elsewhere.loaded(self.site, fla_elsewhere.ascend("Ascend9", 3, 100)) as module:
            self.assertEqual((module.target, module.name), ("npu", "Ascend9"))
            self.assertEqual(module.properties, {"num_aicore": 3, "num_vectorcore": 6})
            self.assertEqual(module.ub_bits, "800")

    def test_each_device_has_modules_of_its_own_and_none_is_left(self):
        before = triton.runtime.driver.active, dict(os.environ), torch.cuda.get_device_name
        with fla_elsewhere.loaded(self.site, fla_elsewhere.H200) as first:
            pass
        with fla_elsewhere.loaded(self.site, fla_elsewhere.ascend("Ascend9", 3, 100)) as second:
            self.assertIsNot(first, second)
            self.assertEqual(first.target, "cuda")
        after = triton.runtime.driver.active, dict(os.environ), torch.cuda.get_device_name
        self.assertEqual(before, after)
        self.assertEqual([name for name in sys.modules if name.split(".")[0] == "fla"], [])
        self.assertFalse(hasattr(torch, "npu"))

    def test_what_was_imported_before_comes_back(self):
        sys.modules["fla"] = mine = type(sys)("fla")
        self.addCleanup(sys.modules.pop, "fla")
        with fla_elsewhere.loaded(self.site, fla_elsewhere.H200):
            self.assertIsNot(sys.modules["fla"], mine)
        self.assertIs(sys.modules["fla"], mine)

    def test_edits_go_into_a_copy(self):
        folder = self.create_tempdir().full_path
        edit = fla_elsewhere.Edit("fla/ops/kda/near.py", "NEAR = 1", "NEAR = 2")
        fla_elsewhere.edited(self.site, folder, [edit])
        for site, expected in ((self.site, 1), (folder, 2)):
            with fla_elsewhere.loaded(site, fla_elsewhere.H200) as module:
                self.assertEqual(module.NEAR, expected)
        edit = fla_elsewhere.Edit("fla/ops/kda/near.py", "NEAR", "FAR", count=2)
        with self.assertRaisesRegex(ValueError, "near.py has 1 times 'NEAR', expected 2"):
            fla_elsewhere.edited(self.site, self.create_tempdir().full_path, [edit])

    def test_another_version_is_refused(self):
        for found in ("0.5.0", None):
            if found:
                info = f"Metadata-Version: 2.1\nName: fla-core\nVersion: {found}\n"
                self._write(f"fla_core-{found}.dist-info/METADATA", info)
            else:
                os.remove(os.path.join(self.site, "fla_core-0.5.0.dist-info/METADATA"))
            expected = f"got {found or 'none'}, expected {fla_core.VERSION}"
            with self.assertRaisesRegex(ImportError, expected):
                fla_elsewhere.check_version(self.site)
        info = f"Metadata-Version: 2.1\nName: fla-core\nVersion: {fla_core.VERSION}\n"
        self._write(f"fla_core-{fla_core.VERSION}.dist-info/METADATA", info)
        fla_elsewhere.check_version(self.site)


if __name__ == "__main__":
    absltest.main()
