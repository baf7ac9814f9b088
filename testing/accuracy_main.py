"""Accuracy target of an op on a device: every gate of the policy on every case, with negative
controls.

Without Bazel, at the repository's root:
    python3 -m testing.accuracy_main --spec=ops.mamba3_siso_fwd.spec --device=cuda
"""

from typing import Any, ClassVar

from testing import cases, comparator, op_testcase


class AccuracyTest(op_testcase.OpTestCase):
    verdicts: ClassVar[list[Any]] = []

    def judge(self, case: cases.Case) -> None:
        from testing import accuracy  # imports Triton

        verdict = accuracy.judge(self.op, case, self.device, self.goldens)
        self.verdicts.append(verdict)
        if not verdict.passed:
            self.fail("\n".join(verdict.failures()))

    @classmethod
    def finish(cls) -> None:
        if not cls.verdicts:
            return
        from testing import report

        report.write_accuracy(cls.verdicts, cls.device.describe(), cls.left_out)
        applied = {
            fault
            for verdict in cls.verdicts
            for output in verdict.faults.values()
            for fault in output
        }
        missing = [fault for fault in comparator.FAULTS if fault not in applied]
        if missing and len(cls.verdicts) == len(cls.op.cases):
            raise AssertionError(
                f"G7: the faults {missing} change the result of no case; add one to {cls.op.name}"
            )


load_tests = op_testcase.loader(AccuracyTest, lambda device: device.case_tags)

if __name__ == "__main__":
    op_testcase.run()
