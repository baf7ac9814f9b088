"""The test that npu_compile_test declares, run on results that were written by hand."""

import dataclasses
import os
import subprocess
import sys

from absl.testing import absltest

from testing import main
from testing.npu_compile import budgets_example, specialisation
from testing.npu_compile.specialisation import Call, Failure


class JudgeTest(absltest.TestCase):
    def _run(self, results, calls, *flags):
        folder = self.create_tempdir().full_path
        specialisation.dump(
            os.path.join(folder, "plan.json"), [dataclasses.asdict(call) for call in calls]
        )
        for index, result in enumerate(results):
            specialisation.dump(os.path.join(folder, f"result_{index}.json"), [result.to_json()])
        self.outputs = self.create_tempdir().full_path
        variables = {
            "PYTHONPATH": os.pathsep.join(sys.path),
            "TEST_UNDECLARED_OUTPUTS_DIR": self.outputs,
        }
        done = subprocess.run(
            [sys.executable, "-m", "testing.npu_compile.judge_main", f"--results={folder}", *flags],
            env=variables,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    def setUp(self):
        super().setUp()
        self.good = budgets_example.RESULT
        self.key = self.good.specialisation.key
        self.call = Call("small", self.good.chip, [self.key])

    def test_good_results_pass_and_leave_their_report(self):
        code, output = self._run([self.good], [self.call])
        self.assertEqual(code, 0, output)
        self.assertIn(f"test_small_{self.key}_Ascend910B1", output)
        self.assertIn("1 of 1 compile", output)
        self.assertCountEqual(os.listdir(self.outputs), ["npu_compile.json", "npu_compile.txt"])

    def test_each_verdict_but_ok_fails_with_its_diagnosis(self):
        for verdict in ("failed", "crashed", "timeout"):
            bad = dataclasses.replace(
                self.good, verdict=verdict, measurement=None, diagnosis=f"hivm: {verdict}: why"
            )
            code, output = self._run([bad], [self.call])
            self.assertEqual(code, 1)
            self.assertIn(f"hivm: {verdict}: why", output)

    def test_a_case_that_cannot_be_planned_fails(self):
        bad = Call("odd", self.good.chip, [], Failure("plan", "failed", "ValueError: no"))
        code, output = self._run([self.good], [self.call, bad])
        self.assertEqual(code, 1)
        self.assertIn("odd on Ascend910B1:", output)
        self.assertIn("ValueError: no", output)

    def test_no_results_fail(self):
        code, output = self._run([], [])
        self.assertEqual(code, 1)
        self.assertIn("nothing was compiled", output)

    def test_budgets_are_checked(self):
        flag = "--budgets=testing.npu_compile.budgets_example"
        code, output = self._run([self.good], [self.call], flag)
        self.assertEqual(code, 1)
        self.assertIn("scalar loads are 5, its budget 4", output)


if __name__ == "__main__":
    main.main()
