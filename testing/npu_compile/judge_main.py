"""Judges compile results: the test that npu_compile_test declares. Compiles nothing.

One test per variant and chip, one that every case could be planned, and one for the budgets.
"""

import os
import unittest
from collections.abc import Sequence
from typing import Any, ClassVar

from absl import flags
from absl.testing import absltest

from testing import main, spec, tables
from testing.npu_compile import budgets, report, specialisation
from testing.npu_compile.result import Result

_RESULTS = flags.DEFINE_string(
    "results", None, "Folder with plan.json and result_<n>.json.", required=True
)
_BUDGETS = flags.DEFINE_string(
    "budgets", None, "Module that holds BUDGETS. Default: only that everything compiles."
)


class CompileTest(absltest.TestCase):
    results: ClassVar[Sequence[Result]]
    calls: ClassVar[Sequence[specialisation.Call]]

    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        text = report.text(cls.results, cls.calls)
        print(text)
        if folder := tables.folder():
            os.makedirs(folder, exist_ok=True)
            data = [result.to_json() for result in cls.results]
            specialisation.dump(os.path.join(folder, "npu_compile.json"), data)
            with open(os.path.join(folder, "npu_compile.txt"), "w", encoding="utf-8") as file:
                file.write(text + "\n")

    def test_every_case_can_be_planned(self):
        self.fail_with(report.failures([], self.calls))
        self.assertNotEmpty(self.results, "nothing is launched, so nothing was compiled")

    def test_budgets(self):
        if _BUDGETS.value:
            stated = spec.resolve(f"{_BUDGETS.value}:BUDGETS")
            self.fail_with(budgets.check(stated, self.results, self.calls))

    def fail_with(self, messages: Sequence[str]) -> None:
        if messages:
            self.fail("\n" + "\n".join(messages))

    def judge(self, result: Result) -> None:
        planned = [call for call in self.calls if not call.failure]
        self.fail_with(report.failures([result], planned))


def load_tests(loader: unittest.TestLoader, tests: Any, pattern: Any) -> unittest.TestSuite:
    del tests, pattern
    compiled = report.load(_RESULTS.value)
    CompileTest.calls, CompileTest.results = compiled.calls, compiled.results
    for result in CompileTest.results:
        case = (report.cases_of(result.specialisation.key, CompileTest.calls) or ["none"])[0]
        name = f"test_{case}_{result.specialisation.key}_{result.chip}"
        setattr(CompileTest, name, lambda self, result=result: self.judge(result))
    return loader.loadTestsFromTestCase(CompileTest)


if __name__ == "__main__":
    main.main()
