"""Runs the command as a user would, with good and bad flags."""

import json
import os
import subprocess
import sys

from absl.testing import parameterized

from testing import main
from testing.npu_sim import trace_main

_KERNEL = "--kernel=testing.npu_compile.example_kernels:add"
_ARGS = "--args=x_ptr=float32[256],y_ptr=float32[256],out_ptr=float32[256],size=256"


class TraceTest(parameterized.TestCase):
    def _run(self, *flags, **variables):
        environment = {
            "PYTHONPATH": os.pathsep.join(sys.path),
            "PATH": os.environ.get("PATH", ""),
            "HOME": self.create_tempdir().full_path,
        }
        return subprocess.run(
            [sys.executable, trace_main.__file__, *flags],
            env=environment | variables,
            capture_output=True,
            text=True,
            check=False,
        )

    def test_two_variants_of_a_kernel(self):
        out = os.path.join(self.create_tempdir().full_path, "trace.json")
        flags = (_ARGS, "--grid=4", "--constants=BLOCK=64", "--compare=BLOCK=32,grid=8")
        done = self._run(_KERNEL, *flags, f"--out={out}")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"example_kernels:add on Ascend910B1, simulated: pass")
        self.assertRegex(done.stdout, r"against the first: .*out_ptr: same bits")
        self.assertRegex(done.stdout, r"estimate, no measurement.*calibration\.py")
        self.assertRegex(done.stdout, r"programs +4 +8\n")
        self.assertRegex(done.stdout, r"limiting pipe +waits \(AIV\.\w+ \d+%\) +waits")
        self.assertRegex(done.stdout, r"gm->ub KB +2\.0 +2\.0")
        for path, blocks in ((out, 4), (out.replace(".json", "_1.json"), 8)):
            with open(path, encoding="utf-8") as file:
                events = json.load(file)["traceEvents"]
            self.assertLen({row["pid"] for row in events}, blocks)
            loads = [row for row in events if row["name"].startswith("load example_kernels.py:")]
            self.assertLen(loads, 2 * blocks)

    def test_a_wrong_kernel_fails(self):
        done = self._run(_KERNEL, _ARGS.replace("=256", "=512"), "--grid=8", "--constants=BLOCK=64")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertRegex(done.stdout, r"simulated: FAIL\n  out of bounds: .*example_kernels.py:\d+")
        self.assertRegex(done.stdout, r"kcycles \(estimate\) +stopped")

    @parameterized.parameters(
        ([], "one of --op .*mamba3_siso_fwd.* and --kernel is needed"),
        (["--op=mamba3_siso_fwd", _KERNEL], "one of --op .* and --kernel is needed"),
        (["--op=mamba3"], "--op: got mamba3; valid are .*mamba3_siso_fwd"),
        (["--op=mamba3_siso_fwd"], "--case: got nothing; valid are .*example"),
        (["--op=mamba3_siso_fwd", "--case=nothing"], "--case: got nothing; valid are .*example"),
        (
            ["--op=mamba3_siso_fwd", "--case=s65", "--compare=case=s66"],
            "--compare: case: got s66; valid are .*s65",
        ),
        ([_KERNEL, _ARGS], "--kernel: needs --grid"),
        ([_KERNEL, _ARGS, "--grid=4y"], "--grid: grid: got '4y'; valid is 24"),
        ([_KERNEL, _ARGS, "--grid=4"], "missing .'BLOCK'., unknown ..; they are x_ptr"),
        ([_KERNEL, "--args=x", "--grid=4"], "--args: got 'x'; valid is name=type"),
        (
            [_KERNEL, _ARGS, "--grid=4", "--compare=arch=arch99"],
            "--compare: arch: got 'arch99', valid are arch32, arch35",
        ),
        ([_KERNEL, _ARGS, "--grid=4", "--compare="], "--compare: got nothing; valid is name=value"),
        (["--kernel=no:kernel", _ARGS, "--grid=4"], "no:kernel: No module named 'no'"),
        (["extra"], "unexpected arguments"),
    )
    def test_bad_flags_say_what_is_valid(self, flags, message):
        done = self._run(*flags)
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(done.stderr + done.stdout, message)
        self.assertNotIn("Traceback", done.stderr)

    def test_the_interpreter_s_variable_is_refused(self):
        done = self._run(_KERNEL, _ARGS, "--grid=4", TRITON_INTERPRET="1")
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(done.stderr + done.stdout, "TRITON_INTERPRET=1 is set")
        self.assertNotIn("Traceback", done.stderr)


if __name__ == "__main__":
    main.main()
