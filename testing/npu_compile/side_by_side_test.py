"""Tables of calls that were made up."""

import dataclasses
import types

from absl.testing import absltest

from ops.common import launch
from testing import host_operations, main
from testing.npu_compile import side_by_side
from testing.npu_compile.measure import Measurement
from testing.npu_compile.result import Result
from testing.npu_compile.specialisation import Specialisation

_MIXED = Measurement(
    memory={"UB": (98304, 196608), "L1": (1, 10), "L0C": (1, 10)},
    operations={"vector": 1, "cube": 1, "load": 1, "store": 5, "fixpipe": 1},
    scalar_loads=3,
    scalar_stores=2,
    scalar_loops=1,
    cross_core_syncs=7,
    split_stores=1,
    limited_stores=3,
    workspace_bytes=0,
    core_type="MIX",
)
_VECTOR = dataclasses.replace(_MIXED, core_type="AIV", cross_core_syncs=0)


def _result(measurement: Measurement | None, diagnosis: str = "") -> Result:
    verdict = "ok" if measurement else "failed"
    made_of = Specialisation("k", "m", {}, {}, (), {})
    return Result(made_of, "arch32", "chip", verdict, 1.0, (), True, measurement, diagnosis, "")


def _tensor(count: int) -> types.SimpleNamespace:
    return types.SimpleNamespace(numel=lambda: count, itemsize=4)


def _choice(name: str, *blocks: int, grid: int = 1) -> types.SimpleNamespace:
    x = _tensor(250_000)
    items = [
        launch.Launch(
            kernel=types.SimpleNamespace(__name__=name),
            backend="npu-arch32",
            grid=(grid,),
            args={"x": x, "again": x, "y": _tensor(500_000), "none": None, "size": 3},
            constants={"BK": block, "BLOCK_V": 64, "BIG": 1, "H": 2},
            options={},
        )
        for block in blocks
    ]
    return types.SimpleNamespace(candidates=items, dropped=())


class SideBySideTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        choices = [_choice("a", 16), _choice("b", 32, 64, 128), _choice("a", 16), _choice("c", 8)]
        choices.append(_choice("d", 8, grid=65536))
        keys = [["a"], ["b32", "b64", "b128"], ["a"], ["c"], ["d"]]
        failed = _result(None, "hivm: failed: UB overflow\nlargest …\nstages: /x")
        results = {"a": _result(_MIXED), "b32": failed, "b64": _result(_VECTOR)}
        results |= {"b128": _result(_MIXED), "c": failed, "d": failed}
        fill = host_operations.Operation("zeros", host_operations.FILL, (3,), 2_000_000)
        self.call = side_by_side.Call(choices, [fill])
        self.rows = side_by_side.rows(self.call, keys, results)

    def test_rows(self):
        found = [(row.kernel, row.tiles, row.launches, row.chosen) for row in self.rows]
        self.assertEqual(
            found,
            [
                ("a", "BK 16, V 64", 2, True),
                ("b", "BK 32, V 64", 1, False),
                ("b", "BK 64, V 64", 1, True),
                ("b", "BK 128, V 64", 1, False),
                ("c", "BK 8, V 64", 1, True),
                ("d", "BK 8, V 64", 1, True),
            ],
        )
        self.assertEqual(self.rows[0].bytes, 4 * 750_000)

    def test_the_first_candidate_counts_when_none_compiles(self):
        keys = {"x": _result(None, "x"), "y": _result(None, "y")}
        call = side_by_side.Call([_choice("b", 1, 2)])
        rows = side_by_side.rows(call, [["x", "y"]], keys)
        self.assertEqual([row.chosen for row in rows], [True, False])

    def test_kernel_table(self):
        header, first, second, *_ = side_by_side.kernel_table(self.rows)
        cells = dict(zip(header, first, strict=True))
        self.assertEqual((cells["verdict"], cells["UB"], cells["MB"]), ("ok", "98304 (50%)", "3.0"))
        self.assertEqual(cells["stores split/limited/duplicated"], "1/3/1")
        self.assertEqual(cells["vector cores"], "1 of 2")
        cells = dict(zip(header, second, strict=True))
        self.assertEqual((cells["kernel"], cells["verdict"], cells["UB"]), ("(b)", "failed", "-"))

    def test_summary(self):
        nothing = side_by_side.Call(failure="not written"), []
        table = side_by_side.summary({"ours": nothing, "theirs": (self.call, self.rows)})
        self.assertEqual(table[0], ["", "ours", "theirs"])
        found = {line[0]: line[2] for line in table[1:]}
        self.assertEqual({line[1] for line in table[1:]}, {"-"})
        self.assertEqual(found["launches of any kind"], "6")
        self.assertEqual(found["kernel launches"], "5")
        self.assertEqual(found["of these that compile"], "3")
        self.assertEqual(found["of these with more than 65535 programs"], "1")
        self.assertEqual(found["of these fill"], "1")
        self.assertEqual(found["MB in kernels (estimate)"], "15")
        self.assertEqual(found["MB in all (estimate)"], "17")
        self.assertEqual(found["cross-core syncs *"], "7")
        self.assertEqual(found["kernels with an idle vector core *"], "1 of 1")
        self.assertEqual(found["scalar loads, stores, loops *"], "6/4/2")

    def test_failures_are_told_once(self):
        self.assertEqual(
            side_by_side.failures(self.rows),
            ["b (BK 32, V 64); c (BK 8, V 64); d (BK 8, V 64): hivm: failed: UB overflow"],
        )

    def test_nested_errors_of_triton(self):
        nested = (
            "ttir: failed: CompilationError: at 3:4:\n  x = f(y)\n      ^\nNameError: no y\nrule: …"
        )
        self.assertEqual(side_by_side.first_error(nested), "ttir: failed: NameError: no y")

    def test_limits_and_kinds_are_those_of_the_modules_that_import_torch(self):
        self.assertEqual(side_by_side.MAX_PROGRAMS, launch.MAX_PROGRAMS)
        self.assertEqual(side_by_side.KINDS, host_operations.KINDS)


if __name__ == "__main__":
    main.main()
