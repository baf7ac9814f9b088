import types

from absl.testing import absltest

from testing import main
from testing.npu_sim import findings, summary


def _launch(**changes):
    outcome = types.SimpleNamespace(
        makespan_cycles=1000.0,
        # Two blocks of 1000 cycles each, on two cores.
        busy={"AIC.M": 200.0, "AIV0.V": 1400.0, "AIV1.V": 1400.0, "AIV0.MTE3": 500.0},
        moved={"ub->gm": 4096, "gm->ub": 12288},
    )
    values: dict = {"kernel": "scan", "key": "0123456789", "programs": 2, "cores": 24}
    values["stopped"] = False
    return types.SimpleNamespace(**({**values, "outcome": outcome} | changes))


class SummaryTest(absltest.TestCase):
    def test_shares_are_of_the_cores_in_use(self):
        found = summary.of_launch(_launch())
        self.assertEqual(found.shares["AIC.M"], (0.1,))
        self.assertEqual(found.shares["AIV.V"], (0.7, 0.7))
        self.assertEqual(found.shares["AIV.MTE3"], (0.25, 0.0))
        self.assertEqual(found.limiting, "AIV.V 70%")

    def test_more_programs_than_cores(self):
        self.assertEqual(summary.of_launch(_launch(cores=1)).shares["AIC.M"], (0.2,))

    def test_what_works_less_than_half_of_the_time_does_not_limit(self):
        found = summary.of_launch(_launch(programs=4))
        self.assertEqual(found.limiting, "waits (AIV.V 35%)")

    def test_a_launch_in_which_nothing_works(self):
        empty = types.SimpleNamespace(makespan_cycles=0.0, busy={}, moved={})
        self.assertEqual(summary.of_launch(_launch(outcome=empty)).limiting, "")

    def test_rows_of_cases(self):
        found = summary.of_launch(_launch())
        header, row, other = summary.case_rows([("example", [found]), ("s65", [found])])
        cells = dict(zip(header, row, strict=True))
        self.assertEqual(cells["case"], "example")
        self.assertEqual(cells["kcycles (estimate)"], "1.0")
        self.assertEqual(cells["limiting pipe"], "AIV.V 70%")
        self.assertEqual(cells["AIV.MTE3"], "25/0%")
        self.assertEqual(cells["gm->ub KB"], "12.3")
        self.assertEqual(other[0], "s65")

    def test_variants_stand_side_by_side(self):
        found = summary.of_launch(_launch())
        outcome = types.SimpleNamespace(makespan_cycles=500.0, busy={"AIV0.S": 9.0}, moved={})
        other = summary.of_launch(_launch(key="abc", outcome=outcome))
        rows = summary.side_by_side([("BLOCK=512", [found]), ("BLOCK=1024", [other])])
        self.assertEqual(rows[0], ["", "BLOCK=512", "BLOCK=1024"])
        by_name = {name: rest for name, *rest in rows[1:]}
        self.assertEqual(by_name["variant"], ["0123456789", "abc"])
        self.assertEqual(by_name["kcycles (estimate)"], ["1.0", "0.5"])
        self.assertEqual(by_name["AIC.M"], ["10%", "-"])

    def test_a_variant_with_fewer_launches(self):
        found = summary.of_launch(_launch())
        rows = summary.side_by_side([("two", [found, found]), ("one", [found])])
        self.assertEqual([row for row in rows if row[0] == "kernel"][1], ["kernel", "scan", "-"])

    def test_a_launch_that_stopped_has_no_time(self):
        header, row = summary.case_rows([("s65", [summary.of_launch(_launch(stopped=True))])])
        self.assertEqual(row[header.index("kcycles (estimate)")], "stopped")

    def test_notes_of_all_cases_and_places_share_a_row(self):
        def note(line, count, kind=findings.DUPLICATED_WORK):
            return findings.Finding(kind, "both store", (f"kernel.py:{line}",), count)

        rows = summary.note_rows(
            [
                ("a", [note(1, 2), note(2, 3), note(9, 1, findings.RACE)]),
                ("b", [note(1, 4), note(3, 1), note(4, 1)]),
            ]
        )
        where = "kernel.py:1, kernel.py:2, kernel.py:3 +1"
        self.assertEqual(rows[1:], [["duplicated work", "both store", "a +1", where, "11"]])
        self.assertEmpty(summary.note_rows([("a", [note(9, 1, findings.RACE)])]))


if __name__ == "__main__":
    main.main()
