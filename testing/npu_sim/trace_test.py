import dataclasses
import json
import types

from absl.testing import absltest

from testing import main
from testing.npu_sim import trace


@dataclasses.dataclass
class _Event:
    block: int
    core: str
    pipe: str
    name: str
    places: tuple[str, ...]
    start: float
    cycles: float
    nbytes: int


_EVENTS = (
    _Event(3, "AIV0", "V", "vadd", ("ops/x/kernel.py:12", "ops/x/kernel.py:40"), 1000.0, 64.0, 256),
    _Event(3, "AIV0", "MTE2", "load", ("ops/x/kernel.py:9",), 0.0, 900.0, 512),
    _Event(0, "AIV0", "V", "vmul", (), 10.0, 5.0, 0),
)


def _launch(kernel, programs, cycles, events):
    outcome = types.SimpleNamespace(makespan_cycles=cycles, events=events)
    return types.SimpleNamespace(kernel=kernel, programs=programs, outcome=outcome)


class ChromeTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        path = self.create_tempfile().full_path
        launches = [_launch("scan", 4, 5000.0, _EVENTS), _launch("gate", 1, 100.0, _EVENTS[2:])]
        trace.write(path, launches, "about this")
        with open(path, encoding="utf-8") as file:
            self.data = json.load(file)
        self.rows = [row for row in self.data["traceEvents"] if row["ph"] == "X"]

    def _metadata(self, kind, argument):
        return {
            (row["pid"], row["tid"]): row["args"][argument]
            for row in self.data["traceEvents"]
            if row["name"] == kind
        }

    def test_an_event_has_its_place_time_and_bytes(self):
        self.assertEqual(self.rows[0]["name"], "vadd kernel.py:12")
        self.assertEqual((self.rows[0]["ts"], self.rows[0]["dur"]), (1.0, 0.064))
        self.assertEqual(
            self.rows[0]["args"],
            {"at": ["ops/x/kernel.py:12", "ops/x/kernel.py:40"], "bytes": 256},
        )
        self.assertEqual(self.rows[2]["name"], "vmul unknown")

    def test_launches_follow_each_other(self):
        self.assertEqual(self.rows[3]["ts"], 5.01)
        self.assertEqual([row["pid"] for row in self.rows], [3, 3, 0, 4])

    def test_blocks_are_processes_and_pipes_are_threads(self):
        self.assertEqual(
            self._metadata("process_name", "name"),
            {(0, 0): "scan block 0", (3, 0): "scan block 3", (4, 0): "gate block 0"},
        )
        threads = self._metadata("thread_name", "name")
        found = [(row["pid"], threads[row["pid"], row["tid"]]) for row in self.rows]
        self.assertEqual(found, [(3, "AIV0.V"), (3, "AIV0.MTE2"), (0, "AIV0.V"), (4, "AIV0.V")])
        ranks = self._metadata("thread_sort_index", "sort_index")
        self.assertLess(ranks[3, 2], ranks[3, 1])  # MTE2 before V
        self.assertNotIn(0, [row["tid"] for row in self.rows])

    def test_it_says_what_a_time_is(self):
        self.assertEqual(self.data["displayTimeUnit"], "ns")
        self.assertIn("estimate", self.data["otherData"]["unit"])
        self.assertEqual(self.data["otherData"]["about"], "about this")


if __name__ == "__main__":
    main.main()
