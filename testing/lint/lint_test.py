import os
import pathlib

from absl.testing import absltest

from testing.lint import lint


class LintTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        self.root = pathlib.Path(self.create_tempdir().full_path)

    def write(self, name, text=""):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def run_tool(self, tool, fix=False):
        command = lint.commands(self.root, fix, "buildifier")[tool]
        return lint.outcome(command, self.root, dict(os.environ))

    def test_bazel_files_are_those_of_the_tree(self):
        for name in ("WORKSPACE", "ops/x/BUILD.bazel", "testing/a.bzl", "bazel-out/BUILD.bazel"):
            self.write(name)
        self.write("ops/x/kernel.py")
        self.write(".git/BUILD.bazel")
        self.assertCountEqual(
            map(str, lint.bazel_files(self.root)),
            ["WORKSPACE", "ops/x/BUILD.bazel", "testing/a.bzl"],
        )

    def test_a_finding_fails_and_a_fix_repairs_it(self):
        self.write("a.py", "x = [1,2]\n")
        self.assertEqual(self.run_tool("ruff format"), "failed")
        self.assertEqual(self.run_tool("ruff format", fix=True), "passed")
        self.assertEqual((self.root / "a.py").read_text(), "x = [1, 2]\n")
        self.assertEqual(self.run_tool("ruff format"), "passed")

    def test_a_rule_that_is_broken_fails(self):
        self.write("a.py", "import undefined\n")
        self.assertEqual(self.run_tool("ruff check"), "failed")

    def test_a_tool_that_is_not_there_is_neither_passed_nor_failed(self):
        command = ["/bin/sh", "-c", "echo npm is not on PATH; exit 127"]
        self.assertEqual(
            lint.outcome(command, self.root, dict(os.environ)), "NOT RUN: npm is not on PATH"
        )


if __name__ == "__main__":
    absltest.main()
