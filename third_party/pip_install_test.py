import pathlib
import subprocess
import sys
from unittest import mock

from absl.testing import absltest

from third_party import pip_install

LOCK = """# Written by a tool.
ruff==1.0 \\
    --hash=sha256:aa \\
    --hash=sha256:bb
    # via -r requirements.in
Typing_Extensions==2.0 \\
    --hash=sha256:cc
    # via
    #   ruff
"""


class PipInstallTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        self.site = pathlib.Path(self.create_tempdir().full_path)

    def add(self, name, *requires):
        info = self.site / name / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        lines = "".join(f"Requires-Dist: {line}\n" for line in requires)
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{lines}"
        )

    def test_parse_lock(self):
        self.assertEqual(
            {name: line.split() for name, line in pip_install.parse_lock(LOCK).items()},
            {
                "ruff": ["ruff==1.0", "--hash=sha256:aa", "--hash=sha256:bb"],
                "typing-extensions": ["Typing_Extensions==2.0", "--hash=sha256:cc"],
            },
        )

    def test_dependencies_follow_markers_and_requested_extras(self):
        self.add("app", "toolkit[solver]>=1", "windows_only; sys_platform == 'win32'")
        self.add("toolkit", "solver; extra == 'solver'", "plotter; extra == 'plot'", "My.Base")
        for name in ("solver", "plotter", "my_base"):
            self.add(name)
        names = ["app", "my_base", "plotter", "solver", "toolkit"]
        needs = pip_install.dependencies(self.site, names, omitted=set(), extra={})
        self.assertEqual(needs["app"], ["toolkit"])
        self.assertEqual(needs["toolkit"], ["my_base", "solver"])

    def test_omitted_distributions_are_nobodys_dependency(self):
        self.add("torch", "triton==3")
        needs = pip_install.dependencies(self.site, ["torch"], omitted={"triton"}, extra={})
        self.assertEqual(needs, {"torch": []})

    def test_extra_dependencies_are_added(self):
        self.add("triton_ascend")
        self.add("numpy")
        needs = pip_install.dependencies(
            self.site, ["numpy", "triton_ascend"], set(), {"triton_ascend": ["numpy"]}
        )
        self.assertEqual(needs["triton_ascend"], ["numpy"])

    def test_a_dependency_outside_the_lock_is_an_error(self):
        self.add("app", "stranger")
        with self.assertRaisesRegex(pip_install.InstallError, "app needs stranger"):
            pip_install.dependencies(self.site, ["app"], omitted=set(), extra={})

    def test_is_offered_tells_absence_from_other_failures(self):
        def answer(code, output):
            return subprocess.CompletedProcess([], code, stdout=output)

        for output in ("No matching distribution found", "THESE PACKAGES DO NOT MATCH THE HASHES"):
            with mock.patch.object(pip_install, "run", return_value=answer(1, output)):
                self.assertFalse(pip_install.is_offered([], "torch", "torch==1", self.site))
        with mock.patch.object(pip_install, "run", return_value=answer(0, "")):
            self.assertTrue(pip_install.is_offered([], "torch", "torch==1", self.site))
        with (
            mock.patch.object(pip_install, "run", return_value=answer(1, "disk full")),
            self.assertRaisesRegex(pip_install.InstallError, "disk full"),
        ):
            pip_install.is_offered([], "torch", "torch==1", self.site)

    def test_neither_pip_nor_venv_names_the_package_to_install(self):
        failed = subprocess.CompletedProcess([], 1, stdout="No module named x")
        with (
            mock.patch.object(pip_install, "run", return_value=failed),
            self.assertRaisesRegex(pip_install.InstallError, "apt-get install python3-venv"),
        ):
            pip_install.machine_pip(sys.executable, self.site)


if __name__ == "__main__":
    absltest.main()
