"""Runs the command as a user would, with good and bad flags."""

import json
import os
import subprocess
import sys

from absl.testing import parameterized

from testing import main
from testing.npu_sim import trace_main

_KERNEL = "--kernel=testing.npu_compile.example_kernels:add"
_GRID = ("--grid=4", "--constants=BLOCK=64")
_ARGS = "--args=x_ptr=float32[256],y_ptr=float32[256],out_ptr=float32[256],size=256"


# The kernel's arguments by a function, other ones at each call.
_MINE = """
import torch

def arguments():
    x, y = torch.randn(2, 256)
    return {"x_ptr": x, "y_ptr": y, "out_ptr": torch.zeros(256), "size": 256}

def total(x_ptr, y_ptr, **rest):
    return {"out_ptr": x_ptr + y_ptr}

def wrong(x_ptr, y_ptr, **rest):
    return {"out_ptr": (x_ptr + y_ptr + 1).numpy()}
"""


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
        self.assertRegex(
            done.stdout,
            r"example_kernels:add on Ascend910B1, simulated: nothing wrong with the execution",
        )
        self.assertRegex(done.stdout, "with the execution; values are not judged")
        self.assertRegex(done.stderr, r"call 3 of 3: add, 8 programs: \d+\.\d s\n")
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
            "--compare=case=s66: case: got s66; valid are .*s65",
        ),
        (
            ["--op=mamba3_siso_fwd", "--case=example,s65"],
            "--case: got example, s65; valid is one case at a time",
        ),
        (
            ["--op=mamba3_siso_fwd", "--case=s65", "--compare=grid=0"],
            "--compare=grid=0: grid: got 0; valid is 24",
        ),
        (["--op=mamba3_siso_fwd", "--case=s65", _ARGS], "--args: valid with --kernel only"),
        (["--op=mamba3_siso_fwd", "--case=s65", "--rtol=1"], "--rtol: valid with --kernel only"),
        ([_KERNEL, _ARGS], "--grid: got nothing; --kernel needs it"),
        ([_KERNEL, _ARGS, "--grid="], "--grid: got ''; valid is 24"),
        ([_KERNEL, _ARGS, "--grid=4y"], "--grid: got '4y'; valid is 24"),
        (
            [_KERNEL, _ARGS, "--grid=100000"],
            "--grid: got '100000'; .* 1 to 65535 programs",
        ),
        ([_KERNEL, _ARGS, *_GRID, "--compare=grid=0"], "--compare=grid=0: grid: got 0; valid is"),
        (
            [_KERNEL, _ARGS, "--grid=4"],
            "--kernel: .*: missing .'BLOCK'., unknown ..; its arg",
        ),
        ([_KERNEL, "--args=x", "--grid=4"], "--args: got 'x'; valid is name=type"),
        ([_KERNEL, _ARGS + ",size=3", *_GRID], "--args: got size twice; valid is once"),
        ([_KERNEL, _ARGS, *_GRID, "--case=s65"], "--case: valid with --op only"),
        ([_KERNEL, _ARGS, *_GRID, "--atol=1"], "--atol: valid with --expect only"),
        (
            [_KERNEL, _ARGS, *_GRID, "--compare=case=s65"],
            "--compare=case=s65: case: valid with",
        ),
        (
            [_KERNEL, _ARGS, *_GRID, "--compare=multibufer=1"],
            "--compare=multibufer=1: multibufer: neither .* an option of the compiler; close are m",
        ),
        ([_KERNEL, _ARGS, "--grid=4", "--constants=BLOK=1"], "--constants: BLOK: neither arch,"),
        ([_KERNEL, _ARGS, "--constants=grid=4"], "--grid: got nothing"),
        (
            [_KERNEL, _ARGS, *_GRID, "--constants=arch=arch35"],
            "--constants: got arch; valid is",
        ),
        (
            [_KERNEL, _ARGS, "--grid=4", "--compare=arch=arch99"],
            "--compare=arch=arch99: arch: got 'arch99'; valid are arch32, arch35",
        ),
        ([_KERNEL, _ARGS, "--grid=4", "--compare="], "--compare: got nothing; valid is name=value"),
        (
            ["--kernel=no:kernel", _ARGS, "--grid=4"],
            "trace_main.py: --kernel: got 'no:kernel', valid is .*: No module named 'no'",
        ),
        (["extra"], "unexpected arguments"),
    )
    def test_bad_flags_say_what_is_valid(self, flags, message):
        done = self._run(*flags)
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(done.stderr + done.stdout, message)
        self.assertNotIn("Traceback", done.stderr)

    def test_a_mistake_is_two_lines(self):
        done = self._run(_KERNEL, _ARGS, "--grid=0")
        self.assertRegex(done.stderr, r"^trace_main.py: --grid: got '0'; .*\n--help lists .*\n$")
        self.assertEqual((done.stdout, done.returncode), ("", 1))

    def test_a_trace_that_cannot_be_written_is_said_before_the_run(self):
        folder = self.create_tempdir().full_path
        done = self._run(_KERNEL, _ARGS, *_GRID, f"--out={folder}/no/t.json")
        self.assertRegex(done.stderr, r"--out: got .*/no/t.json, which cannot be written: No such")
        os.mkdir(f"{folder}/t_1.json")
        done = self._run(_KERNEL, _ARGS, *_GRID, f"--out={folder}/t.json", "--compare=BLOCK=32")
        self.assertRegex(done.stderr, r"--out: got .*/t_1.json, .*: Is a directory")
        self.assertEqual((done.stdout, os.listdir(folder)), ("", ["t_1.json"]))

    def test_a_function_of_the_user_s_gives_every_variant_the_same(self):
        here = self.create_tempdir()
        here.create_file("mine.py", _MINE)
        flags = (_KERNEL, *_GRID, "--args=mine:arguments", "--compare=BLOCK=32,grid=8")
        done = self._run(*flags, "--expect=mine:total", BUILD_WORKING_DIRECTORY=here.full_path)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, "example_kernels:add .*simulated: pass\n")
        self.assertRegex(done.stdout, "x_ptr: same bits; y_ptr: same bits; out_ptr: same bits")
        done = self._run(*flags, "--expect=mine:wrong", BUILD_WORKING_DIRECTORY=here.full_path)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"simulated: FAIL\n  out_ptr: 256 of 256 elements are not")
        tolerant = ("--expect=mine:wrong", "--atol=1.01")
        done = self._run(*flags, *tolerant, BUILD_WORKING_DIRECTORY=here.full_path)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_the_interpreter_s_variable_is_refused(self):
        done = self._run(_KERNEL, _ARGS, "--grid=4", TRITON_INTERPRET="1")
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(done.stderr + done.stdout, "TRITON_INTERPRET=1 is set")
        self.assertNotIn("Traceback", done.stderr)


if __name__ == "__main__":
    main.main()
