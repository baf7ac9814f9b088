"""Runs bazelw with a PATH of stand-ins, one test per way it can go."""

import os
import pathlib
import shutil
import subprocess

from absl.testing import absltest, parameterized

BAZELW = pathlib.Path(__file__).parent.parent / "bazelw"

BAZEL = 'echo "$0 LC_ALL=$LC_ALL USER=$USER PWD=$PWD"; for arg; do echo "[$arg]"; done'
# Writes down how it was called; `install` leaves a bazel in its own folder.
APT = """echo "apt-get $*" >> "$LOG"
case "$*" in *install*) printf '#!/bin/sh\\necho installed "$@"\\n' > "${0%/*}/bazel"
chmod +x "${0%/*}/bazel";; esac"""


class BazelwTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(self.create_tempdir().full_path)
        self.bin = self.folder / "bin"
        self.bin.mkdir()
        self.log = self.folder / "log"
        self.log.write_text("")
        for tool in ("cat", "chmod", "env", "true"):
            (self.bin / tool).symlink_to(shutil.which(tool))
        self.program("id", 'case "$1" in -un) echo someone;; *) echo 1000;; esac')

    def program(self, name, script):
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def bazelw(self, *arguments, **environment):
        variables = {"PATH": self.bin, "HOME": self.folder, "LOG": self.log, **environment}
        return subprocess.run(
            [BAZELW, *arguments],
            env={name: str(value) for name, value in variables.items() if value is not None},
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )

    def become_root(self):
        self.program("id", 'case "$1" in -un) echo root;; *) echo 0;; esac')

    def test_bazel_gets_every_argument_unchanged_in_the_same_folder(self):
        self.program("bazel", BAZEL)
        self.program("bazelisk", "echo wrong")
        result = self.bazelw("test", "//...", "a b", "")
        expected = (
            f"{self.bin}/bazel LC_ALL=C.UTF-8 USER=someone PWD={os.path.realpath(self.folder)}"
        )
        self.assertEqual(
            result.stdout.splitlines(),
            [expected, "[test]", "[//...]", "[a b]", "[]"],
            result.stderr,
        )

    def test_a_user_that_is_set_stays(self):
        self.program("bazel", BAZEL)
        self.assertIn("USER=me", self.bazelw(USER="me").stdout)

    def test_bazelisk_where_there_is_no_bazel(self):
        self.program("bazelisk", BAZEL)
        self.assertStartsWith(self.bazelw().stdout, f"{self.bin}/bazelisk ")

    def test_the_variable_comes_first(self):
        self.program("bazel", "echo wrong")
        self.program("mine", BAZEL)
        self.assertStartsWith(self.bazelw(BAZEL=self.bin / "mine").stdout, f"{self.bin}/mine ")

    def test_a_variable_that_names_no_program_is_an_error(self):
        self.program("bazel", "echo wrong")
        result = self.bazelw(BAZEL="/nonexistent/bazel")
        self.assertEqual(result.returncode, 1)
        self.assertIn("BAZEL=/nonexistent/bazel is not a program", result.stderr)

    def test_the_exit_status_is_bazels(self):
        self.program("bazel", "exit 3")
        self.assertEqual(self.bazelw("test").returncode, 3)

    def test_root_installs(self):
        self.program("apt-get", APT)
        self.become_root()
        result = self.bazelw("build")
        self.assertEqual(result.stdout, "installed build\n", result.stderr)
        self.assertRegex(self.log.read_text(), r"apt-get update.*\n.* install .*bazel-bootstrap")

    def test_a_sudo_that_works_installs(self):
        self.program("apt-get", APT)
        self.program("sudo", '[ "$1" = -n ] && shift; exec "$@"')
        self.assertEqual(self.bazelw("build").stdout, "installed build\n")

    def test_a_sudo_that_asks_for_a_password_is_not_used(self):
        self.program("apt-get", APT)
        self.program("sudo", "exit 1")
        result = self.bazelw("build")
        self.assertEqual((result.returncode, self.log.read_text()), (1, ""))
        self.assertIn("ask root to run, once", result.stderr)

    @parameterized.parameters(True, False)
    def test_without_root_or_apt_it_says_how_to_get_one(self, apt):
        if apt:
            self.program("apt-get", APT)
        else:
            self.become_root()
        result = self.bazelw("build")
        self.assertEqual((result.returncode, result.stdout), (1, ""))
        self.assertIn("install -y --no-install-recommends bazel-bootstrap", result.stderr)
        self.assertIn("bazelisk", result.stderr)

    def test_a_failed_installation_says_how_to_get_one(self):
        self.program("apt-get", "exit 100")
        self.become_root()
        self.assertEqual(self.bazelw("build").returncode, 1)

    @parameterized.parameters(None, "/nonexistent")
    def test_outputs_go_elsewhere_where_home_cannot_be_written(self, home):
        self.program("bazel", BAZEL)
        result = self.bazelw("info", HOME=home, TMPDIR="/some/tmp", USER="me")
        self.assertEqual(
            result.stdout.splitlines()[1:], ["[--output_user_root=/some/tmp/bazel-me]", "[info]"]
        )


if __name__ == "__main__":
    absltest.main()
