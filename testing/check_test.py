"""Runs the main job as a user would, with good and bad flags."""

import os
import subprocess
import sys
from unittest import mock

from absl import app
from absl.testing import flagsaver, parameterized

from testing import check, devices, main, selection


class CheckTest(parameterized.TestCase):
    def _run(self, *flags):
        variables = {
            "PYTHONPATH": os.pathsep.join(sys.path),
            "PATH": os.environ.get("PATH", ""),
            "HOME": self.create_tempdir().full_path,
        }
        return subprocess.run(
            [sys.executable, check.__file__, *flags],
            env=variables,
            capture_output=True,
            text=True,
            check=False,
        )

    def test_ops_are_found(self):
        self.assertIn("mamba3_siso_fwd", selection.available_ops())
        self.assertNotIn("common", selection.available_ops())

    def test_ops_on_two_paths_are_one(self):
        twice = list(selection.ops.__path__) * 2
        with mock.patch.object(selection.ops, "__path__", twice):
            self.assertEqual(selection.available_ops().count("mamba3_siso_fwd"), 1)

    def test_a_folder_may_hold_several_ops(self):
        root = self.create_tempdir()
        for file in ("scan/bwd_spec.py", "scan/fwd_all_spec.py", "sum/spec.py", "sum/aspec.py"):
            root.create_file(file)
        with mock.patch.object(selection.ops, "__path__", [root.full_path]):
            self.assertEqual(selection.available_ops(), ["scan_bwd", "scan_fwd_all", "sum"])
            self.assertEqual(selection.spec_module("scan_fwd_all"), "ops.scan.fwd_all_spec")
            self.assertEqual(selection.spec_module("sum"), "ops.sum.spec")
            for value, expected in (
                (None, ["scan_bwd", "scan_fwd_all", "sum"]),
                (["scan"], ["scan_bwd", "scan_fwd_all"]),
                (["scan_fwd_all", "scan"], ["scan_fwd_all", "scan_bwd"]),
                (["sum"], ["sum"]),
            ):
                flag = mock.Mock(value=value)
                self.assertEqual(selection.chosen_ops(flag), expected)
            flag = mock.Mock(value=["scan_fwd"])
            flag.name = "op"
            message = "--op: got scan_fwd; valid are scan, scan_bwd, scan_fwd_all, sum$"
            with self.assertRaisesRegex(app.UsageError, message):
                selection.chosen_ops(flag)

    @parameterized.parameters(
        (["--op=mamba3"], "--op: got mamba3; valid are .*mamba3_siso_fwd"),
        (
            ["--device=gpu"],
            "--device: got gpu; valid are cpu-reference, npu-arch32-sim, .*npu-arch35, cuda",
        ),
        (
            ["--case=nothing", "--device=cpu-reference"],
            "--case: got nothing; valid are .*example",
        ),
        (["--device=npu-arch32"], "ASCEND_HOME_PATH is not set"),
        (["--op="], "--op: got nothing; valid are .*mamba3_siso_fwd"),
        (
            ["--op=chunk_kda,kda_step", "--device=npu-arch32-sim"],
            "--device: got npu-arch32-sim, but what .* makes of chunk_kda_bwd, .*_train is not",
        ),
        (
            ["--device=cpu-reference", "--out=/nonexistent/x.html"],
            "--out: got '/nonexistent/x.html', which",
        ),
        (["extra"], "unexpected arguments"),
    )
    def test_bad_flags_say_what_is_valid(self, flags, message):
        done = self._run(*flags)
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(done.stderr + done.stdout, message)
        self.assertNotIn("Traceback", done.stderr)

    def test_one_case(self):
        out = os.path.join(self.create_tempdir().full_path, "report.html")
        done = self._run(
            "--op=mamba3_siso_fwd",
            "--device=cpu-reference",
            "--case=example",
            f"--out={out}",
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("1 of 1 cases pass on cpu-reference", done.stdout)
        with open(out, encoding="utf-8") as file:
            page = file.read()
        self.assertIn("example", page)
        for text in (done.stdout, page):
            self.assertRegex(text, r"Ascend910B1, Ascend910_9362.*\n?.*ok")
            self.assertIn("Ascend950PR_9589", text)
            self.assertNotIn("k128_chunk32", text)  # another case's kernel

    def test_a_simulated_device(self):
        out = os.path.join(self.create_tempdir().full_path, "report.html")
        flags = ("--op=mamba3_siso_fwd", "--device=npu-arch32-sim", "--case=v16", f"--out={out}")
        done = self._run(*flags)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("1 of 1 cases pass on npu-arch32-sim", done.stdout)
        with open(out, encoding="utf-8") as file:
            page = file.read()
        for text in (done.stdout, page):
            self.assertRegex(text, "Simulated launches of one call .estimate, no measurement")
            self.assertIn("kcycles (estimate)", text)

    def test_a_simulator_leaves_out_what_is_not_compiled(self):
        device = mock.Mock(spec=devices.Simulator, architecture="arch32")
        device.name = "npu-arch32-sim"
        folders = {"sum": ["there"], "scan": []}
        self.enter_context(
            mock.patch.object(selection, "compile_folders", lambda names, _: folders[names[0]])
        )
        self.assertEqual(check._compiled_for(device, ["scan", "sum"]), ["sum"])
        device.use_compiled.assert_called_once_with("there")
        for op, names in ((None, ["scan"]), (["scan", "sum"], ["scan", "sum"])):
            with (
                flagsaver.flagsaver(op=op),
                self.assertRaisesRegex(app.UsageError, "of scan is not here; .* //ops/"),
            ):
                check._compiled_for(device, names)

    def test_cases_that_are_too_large_are_left_out_unless_asked_for(self):
        device = devices.get("npu-arch32-sim")
        self.enter_context(mock.patch.object(devices.Simulator, "MAX_FLOPS", 2e7))
        work, left_out = check._work(["mamba3_siso_fwd"], device)
        names = [case.name for _, case in work]
        self.assertIn("s65", names)
        self.assertNotIn("example", names)
        self.assertIn("floating-point operations", left_out["mamba3_siso_fwd example"])
        with flagsaver.flagsaver(case=["example"]):
            work, left_out = check._work(["mamba3_siso_fwd"], device)
        self.assertEqual([case.name for _, case in work], ["example"])
        self.assertEmpty(left_out)


if __name__ == "__main__":
    main.main()
