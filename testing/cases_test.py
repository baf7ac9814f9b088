import dataclasses
import json

import numpy as np
from absl.testing import absltest, parameterized

from testing import cases, distributions, main

_NORMAL = distributions.Normal()


def _case(name="one", **changes):
    fields = {
        "op": "scan",
        "name": name,
        "tensors": {"x": cases.TensorSpec((2, 3), "float16", _NORMAL), "z": None},
        "attributes": {"chunk_size": 64},
        "tags": frozenset({"ci"}),
    }
    return cases.Case(**(fields | changes))


class QuantiseTest(parameterized.TestCase):
    @parameterized.parameters(
        (1.0, 0x3F80),
        (-2.0, 0xC000),
        (1.0 + 2.0**-8, 0x3F80),  # a tie goes to the even neighbour below
        (1.0 + 3 * 2.0**-8, 0x3F82),  # and above
        (1.0 + 2.0**-8 + 2.0**-20, 0x3F81),
        (3.4e38, 0x7F80),  # beyond bfloat16's largest: infinity
        (-np.inf, 0xFF80),
        (np.nan, 0x7FC0),
        (2.0**-133, 0x0001),  # its smallest subnormal
    )
    def test_bfloat16(self, value, bits):
        self.assertEqual(cases.quantise(np.array([value]), "bfloat16")[0], bits)

    @parameterized.parameters("float16", "bfloat16", "float32")
    def test_widen_undoes_quantise(self, dtype):
        x = cases.quantise(np.linspace(-3, 3, 101), dtype)
        np.testing.assert_array_equal(cases.quantise(cases.widen(x, dtype), dtype), x)


class CaseTest(parameterized.TestCase):
    def test_sample_is_keyed_by_op_case_tensor_and_seed(self):
        base = _case()
        for other in (_case("two"), _case(seed=1), dataclasses.replace(base, op="other")):
            self.assertFalse(np.array_equal(base.sample("x"), other.sample("x")))
        np.testing.assert_array_equal(base.sample("x"), _case(attributes={}).sample("x"))

    def test_sample_has_shape_and_dtype(self):
        x = _case().sample("x")
        self.assertEqual((x.shape, x.dtype), ((2, 3), np.float16))

    def test_absent_tensors(self):
        self.assertEqual(_case().shape("x"), (2, 3))
        for read in (_case().sample, _case().shape):
            with self.assertRaisesRegex(ValueError, "'z' is not given"):
                read("z")

    def test_fingerprint_follows_what_decides_the_inputs(self):
        base = _case()
        self.assertEqual(base.fingerprint(), _case(tags=frozenset({"full"})).fingerprint())
        strided = {"x": cases.TensorSpec((2, 3), "float16", _NORMAL, "strided"), "z": None}
        for changes in ({"seed": 1}, {"attributes": {"chunk_size": 32}}, {"tensors": strided}):
            self.assertNotEqual(base.fingerprint(), _case(**changes).fingerprint())

    @parameterized.parameters(
        ({"name": "Upper"}, "lower-case"),
        ({"tags": frozenset()}, "at least one"),
        ({"tags": frozenset({"nightly"})}, "nightly"),
    )
    def test_illegal_cases(self, changes, message):
        with self.assertRaisesRegex(ValueError, message):
            _case(**changes)

    @parameterized.parameters(
        (((2,), "float8", _NORMAL), "float8"),
        (((2,), "float16", _NORMAL, "sparse"), "sparse"),
        (((2, 3), "float16", _NORMAL, "permuted"), "3 axes"),
    )
    def test_illegal_tensor_specs(self, arguments, message):
        with self.assertRaisesRegex(ValueError, message):
            cases.TensorSpec(*arguments)


class TableTest(absltest.TestCase):
    def test_select_keeps_the_order(self):
        table = [_case("b"), _case("a", tags=frozenset({"full", "perf"})), _case("c")]
        self.assertEqual([case.name for case in cases.select(table, ["ci"])], ["b", "c"])
        self.assertEqual(
            [case.name for case in cases.select(table, ["ci", "perf"])], ["b", "a", "c"]
        )
        with self.assertRaisesRegex(ValueError, "nightly"):
            cases.select(table, ["nightly"])

    def test_names_are_unique(self):
        with self.assertRaisesRegex(ValueError, "'one' stands twice"):
            cases.check_table([_case(), _case()])

    def test_waivers_need_a_date_and_a_reason(self):
        waiver = cases.Waiver("out", "G1 norm", 2e-3, 1.5e-3, "2026-11-30", "rounding of the state")
        cases.check_table([_case(waivers=(waiver,))])
        for changes in ({"date": "yesterday"}, {"reason": ""}):
            with self.assertRaisesRegex(ValueError, "reason and a date"):
                cases.check_table([_case(waivers=(dataclasses.replace(waiver, **changes),))])

    def test_export_is_json_with_every_input(self):
        (row,) = json.loads(cases.export([_case()]))
        self.assertEqual(
            row["tensors"]["x"]["values"], {"distribution": "Normal", "mean": 0.0, "std": 1.0}
        )
        self.assertIsNone(row["tensors"]["z"])
        self.assertEqual(row["fingerprint"], _case().fingerprint())


if __name__ == "__main__":
    main.main()
