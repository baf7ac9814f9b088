"""Runs the command as a user would, with good and bad flags."""

import json
import os
import subprocess
import sys

from absl.testing import parameterized

from testing import main
from testing.npu_compile import cli

_ADD = "--kernel=testing.npu_compile.example_kernels:add"
_SIGNATURE = "--signature=x_ptr=*fp32,y_ptr=*fp32,out_ptr=*fp32,size=i32:16"


class CliTest(parameterized.TestCase):
    def _run(self, *flags):
        self.here = self.create_tempdir().full_path
        variables = {
            "PYTHONPATH": os.pathsep.join(sys.path),
            "PATH": os.environ.get("PATH", ""),
            "HOME": self.here,
            "BUILD_WORKING_DIRECTORY": self.here,
        }
        return subprocess.run(
            [sys.executable, cli.__file__, *flags],
            env=variables,
            capture_output=True,
            text=True,
            check=False,
        )

    @parameterized.parameters(
        (["--op=mamba3"], "--op: got mamba3; valid are .*mamba3_siso_fwd"),
        (["--op=mamba3_siso_fwd", "--case=no"], "--case: got no; valid are .*example"),
        (["--arch=arch31"], "--arch: got arch31; valid are arch32, arch35"),
        (["--chip=Ascend310"], "--chip: got Ascend310; valid are Ascend910B1, Ascend910_9362"),
        ([_ADD, "--signature=x_ptr"], "--signature: got 'x_ptr'; valid is name=value,name=value"),
        ([_ADD, _SIGNATURE], r"--kernel: arguments of .*missing \['BLOCK'\]"),
        (["--kernel=testing.npu_compile.example_kernels:ad"], "--kernel: .*no attribute 'ad'"),
        (["extra"], "unexpected arguments"),
    )
    def test_bad_flags_say_what_is_valid(self, flags, message):
        done = self._run(*flags)
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(done.stderr + done.stdout, message)
        self.assertNotIn("Traceback", done.stderr)

    def test_a_kernel_of_one_s_own(self):
        done = self._run(_ADD, _SIGNATURE, "--constants=BLOCK=1024", "--arch=arch32", "--out=kept")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"add +\w{10} +add +Ascend910B1 +ok")
        with open(os.path.join(self.here, "kept", "npu_compile.json"), encoding="utf-8") as file:
            (result,) = json.load(file)
        self.assertIn("hivm.mlir", os.listdir(result["stages"]))
        self.assertStartsWith(result["stages"], self.here)

    def test_a_kernel_that_does_not_compile(self):
        wide = "--kernel=testing.npu_compile.example_kernels:wide_outer"
        done = self._run(
            wide, "--signature=x_ptr=*fp32,y_ptr=*fp32,out_ptr=*fp32", "--constants=N=512"
        )
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stdout.count("UB overflow"), 2)
        self.assertIn("0 of 2 compile", done.stdout)

    def test_an_op(self):
        done = self._run("--op=mamba3_siso_fwd", "--case=s1,no_tokens", "--chip=Ascend950PR_9589")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"mamba3_siso_fwd +\w{10} +s1 +Ascend950PR_9589 +ok")
        self.assertIn("2 cases launch 1 variants", done.stdout)

    @parameterized.parameters(
        ("64", 64), ("0.5", 0.5), ("True", True), ("None", None), ("fp16", "fp16"), ("[1]", "[1]")
    )
    def test_literals(self, text, value):
        self.assertEqual(cli.literal(text), value)


if __name__ == "__main__":
    main.main()
