import dataclasses

from absl.testing import absltest, parameterized

from testing import main
from testing.npu_compile import budgets, budgets_example, report
from testing.npu_compile.result import Result
from testing.npu_compile.specialisation import Call, Failure

_MEASURED, _RESULT = budgets_example.MEASUREMENT, budgets_example.RESULT
_KEY = _RESULT.specialisation
_FAILED = dataclasses.replace(
    _RESULT,
    specialisation=dataclasses.replace(_KEY, constants={"BLOCK": 128}),
    verdict="timeout",
    measurement=None,
    diagnosis="hivm: timeout: no result",
)
_CALLS = [
    Call("small", "Ascend910B1", [_KEY.key, _KEY.key]),
    Call("tiny", "Ascend910B1", [_KEY.key]),
    Call("large", "Ascend910B1", [_FAILED.specialisation.key]),
    Call("wrong", "Ascend910B1", [], Failure("plan", "failed", "ValueError: no")),
]


def _check(results=(_RESULT,), **limits):
    given = budgets.Budget("scan", "arch32", **limits)
    return budgets.check([given], list(results), _CALLS)


class BudgetTest(parameterized.TestCase):
    @parameterized.parameters(
        ({"max_ub_share": 0.89}, "UB share is 0.900, its budget 0.890"),
        ({"double_buffered": True}, "buffers are single, .*retries: code-motion"),
        ({"both_vector_cores": True}, "vector cores in use are 1, its budget 2"),
        (
            {"max_unsplit_stores": 2},
            "stores that both vector cores do not share are 3, its budget 2",
        ),
        ({"max_scalar_loads": 4}, "scalar loads are 5, its budget 4"),
        ({"max_scalar_stores": 5}, "scalar stores are 6, its budget 5"),
        ({"max_cross_core_syncs": 6}, "cross-core synchronisations are 7, its budget 6"),
        ({"max_launches": 1}, "launches per call are 2, its budget 1"),
    )
    def test_an_exceeded_limit_names_both_numbers(self, limits, message):
        (line,) = _check(**limits)
        self.assertRegex(line, rf"scan {_KEY.key} \(small, tiny\) on Ascend910B1: {message}")

    def test_chips_that_agree_share_a_line(self):
        other = dataclasses.replace(_RESULT, chip="Ascend910_9362")
        (line,) = _check(results=[_RESULT, other], max_scalar_loads=4)
        self.assertIn("on Ascend910B1, Ascend910_9362: scalar loads are 5", line)

    @parameterized.parameters(
        {"max_ub_share": 0.9},
        {"max_unsplit_stores": 3},
        {"max_scalar_loads": 5},
        {"max_scalar_stores": 6},
        {"max_cross_core_syncs": 7},
        {"max_launches": 2},
    )
    def test_a_limit_that_is_just_met_passes(self, **limits):
        self.assertEmpty(_check(**limits))

    def test_a_budget_that_is_never_checked_is_an_error(self):
        limits = {"max_launches": 9}
        every = budgets.Budget("scan", "arch32", **limits)
        for other in (
            budgets.Budget("scam", "arch32", **limits),
            budgets.Budget("scan", "arch32", where={"BLOCK": 32}, **limits),
            budgets.Budget("scan", "arch32", where={"BLOCK": 128}, **limits),  # did not compile
        ):
            (line,) = budgets.check([every, other], [_RESULT, _FAILED], _CALLS)
            self.assertIn("is never checked", line)

    def test_another_architectures_budgets_wait_for_its_target(self):
        every = budgets.Budget("scan", "arch32", max_launches=9)
        other = budgets.Budget("scan", "arch35", max_launches=9)
        self.assertEmpty(budgets.check([every, other], [_RESULT], _CALLS))

    def test_a_budget_without_limits_is_an_error(self):
        (line,) = _check(where={"BLOCK": 64})
        self.assertIn("limits nothing", line)

    def test_a_variant_without_a_budget_is_an_error(self):
        lines = _check(where={"BLOCK": 64}, max_launches=9, results=[_RESULT, _FAILED])
        self.assertRegex(
            "\n".join(lines), f"scan {_FAILED.specialisation.key} .*no budget covers it"
        )


class ReportTest(absltest.TestCase):
    def test_results_survive_json(self):
        for result in (_RESULT, _FAILED):
            self.assertEqual(Result.from_json(result.to_json()), result)

    def test_rows(self):
        header, good, bad = report.rows([_RESULT, _FAILED], _CALLS)
        row = dict(zip(header, good, strict=True))
        self.assertEqual(row["cases"], "small +1")
        self.assertEqual(row["UB"], "90 (90%)")
        self.assertEqual(row["L0C"], "-")
        self.assertEqual(row["buffers"], "single")
        self.assertEqual(row["vector cores"], "1 of 2")
        self.assertEqual(row["scalar ld/st/loops"], "5/6/1")
        self.assertEqual((row["in"], row["out"]), ("3", "4"))
        self.assertEqual(row["launches"], "2")
        row = dict(zip(header, bad, strict=True))
        self.assertEqual((row["verdict"], row["UB"], row["launches"]), ("timeout", "-", "1"))

    def test_kernels_of_one_kind_of_core_have_no_second_vector_core_to_idle(self):
        result = dataclasses.replace(
            _RESULT, measurement=dataclasses.replace(_MEASURED, core_type="AIV")
        )
        header, row = report.rows([result], _CALLS)
        self.assertEqual(row[header.index("vector cores")], "-")

    def test_chips_that_agree_share_a_row(self):
        same = dataclasses.replace(_RESULT, chip="Ascend910_9362", seconds=2.5, stages="there")
        other = dataclasses.replace(same, chip="Ascend910_9392", retries=())
        rows = report.rows([_RESULT, same, other], _CALLS)[1:]
        self.assertEqual([row[3] for row in rows], ["Ascend910B1, Ascend910_9362", other.chip])
        self.assertEqual(rows[0][5], "2.5")

    def test_text_tells_every_failure_once(self):
        other = dataclasses.replace(_FAILED, chip="Ascend910_9362")
        text = report.text([_RESULT, _FAILED, other], _CALLS)
        self.assertEqual(text.count("hivm: timeout: no result"), 1)
        self.assertIn("on Ascend910B1 (large); scan", text)
        self.assertIn("wrong on Ascend910B1:\nplan: failed: ValueError: no", text)
        self.assertIn("1 of 3 compile", text)


if __name__ == "__main__":
    main.main()
