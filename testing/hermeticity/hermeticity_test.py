"""A Python target sees what its BUILD file declares and the standard library, nothing else."""

import importlib
import os
import pathlib
import subprocess
import sys
import sysconfig

from absl.testing import absltest, parameterized


class HermeticityTest(parameterized.TestCase):
    @parameterized.parameters("numpy", "absl.flags", "testing.hermeticity.declared_sibling")
    def test_declared_modules_are_there(self, module):
        importlib.import_module(module)

    # All of these are in the lock and installed beside numpy; two are torch's own dependencies.
    @parameterized.parameters("torch", "safetensors", "yaml", "sympy", "jinja2")
    def test_undeclared_distributions_are_not_found(self, module):
        with self.assertRaises(ModuleNotFoundError):
            importlib.import_module(module)

    # As a top-level module it is what sys.path[0], the real folder of this file, would offer.
    @parameterized.parameters("undeclared_sibling", "testing.hermeticity.undeclared_sibling")
    def test_undeclared_siblings_are_not_found(self, module):
        with self.assertRaises(ModuleNotFoundError):
            importlib.import_module(module)

    def test_modules_come_from_the_runfiles_or_the_standard_library(self):
        runfiles = pathlib.Path(os.environ["TEST_SRCDIR"])
        standard = pathlib.Path(sysconfig.get_path("stdlib"))
        zipped = standard.with_name(f"python{sys.version_info.major}{sys.version_info.minor}.zip")
        for entry in map(pathlib.Path, sys.path):
            if entry not in (standard, standard / "lib-dynload", zipped):
                self.assertTrue(entry.is_relative_to(runfiles), entry)

    def test_user_packages_are_not_found_by_child_processes_either(self):
        base = pathlib.Path(self.create_tempdir().full_path)
        user_site = base / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
        user_site.mkdir(parents=True)
        (user_site / "planted.py").write_text("")
        environment = {**os.environ, "PYTHONUSERBASE": str(base)}
        child = [sys.executable, "-c", "import sys, planted"]
        result = subprocess.run(child, env=environment, capture_output=True, text=True, check=False)
        self.assertIn("ModuleNotFoundError: No module named 'planted'", result.stderr)


if __name__ == "__main__":
    absltest.main()
