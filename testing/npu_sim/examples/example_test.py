"""Tests of the table of examples and of how values are compared."""

import ml_dtypes
import numpy as np
from absl.testing import absltest, parameterized

from testing import main
from testing.npu_sim.examples import example, table, values
from testing.npu_sim.examples.variants import VARIANTS


class TableTest(absltest.TestCase):
    def test_every_variant_has_an_example(self):
        self.assertCountEqual({each.variant for each in table.EXAMPLES}, VARIANTS)

    def test_names_are_unique(self):
        names = [each.name for each in table.EXAMPLES]
        self.assertLen(set(names), len(names))

    def test_every_example_changes_an_output(self):
        for each in table.EXAMPLES:
            if each.label == "inverted":  # whose point is that nothing is to be done
                continue
            changes = [
                any(
                    example.difference(launch.arguments[name], expected, None)
                    for name, expected in each.expect(launch).items()
                )
                for launch in each.launches()
            ]
            self.assertTrue(any(changes), each.name)

    def test_inputs_are_the_same_every_time(self):
        each = table.EXAMPLES[0]
        for first, second in zip(each.launches(), each.launches(), strict=True):
            for name, value in first.arguments.items():
                np.testing.assert_array_equal(value, second.arguments[name])

    def test_arguments_that_the_variant_has_not(self):
        wrong = example.Example("add_fp32", lambda draw, n: ((1,), {"x": draw}), ((1,),), print)
        with self.assertRaisesRegex(ValueError, r"add_fp32: got arguments \['x_ptr'\], the varia"):
            list(wrong.launches())


class DifferenceTest(parameterized.TestCase):
    def test_bits(self):
        one = np.array([1.0, np.nan, 0.0], np.float32)
        self.assertEqual(example.difference(one, one, None), "")
        other = np.array([1.0, -np.nan, -0.0], np.float32)
        self.assertEqual(
            example.difference(other, one, None), "1 of 3 differ: [2] got -0.0, expected 0.0"
        )

    @parameterized.parameters(np.float32, np.float16, ml_dtypes.bfloat16)
    def test_tolerance(self, dtype):
        eps = float(ml_dtypes.finfo(dtype).eps)
        expected = np.array([4.0, 0.001], dtype)
        tolerance = example.Tolerance(2, "", 0.5)
        near = (expected.astype(np.float64) + [8 * eps, 0.9 * eps]).astype(dtype)
        self.assertEqual(example.difference(near, expected, tolerance), "")
        far = (expected.astype(np.float64) + [12 * eps, 1.1 * eps]).astype(dtype)
        self.assertStartsWith(example.difference(far, expected, tolerance), "2 of 2 differ")
        nan = np.full(2, np.nan, dtype)
        self.assertStartsWith(example.difference(nan, expected, tolerance), "2 of 2 differ")
        self.assertStartsWith(example.difference(expected, nan, tolerance), "2 of 2 differ")

    def test_integers_have_no_tolerance(self):
        got, expected = np.array([2, 3], np.int32), np.array([2, 4], np.int32)
        tolerance = example.Tolerance(1e9, "")
        self.assertStartsWith(example.difference(got, expected, tolerance), "1 of 2 differ: [1]")


class ValuesTest(parameterized.TestCase):
    @parameterized.parameters(np.float16, ml_dtypes.bfloat16)
    def test_ties_are_ties(self, dtype):
        middle, lower, higher = np.split(values.around_ties(dtype), 6)[:3]
        with np.errstate(over="ignore"):
            down, up = lower.astype(dtype), higher.astype(dtype)
            chosen = middle.astype(dtype)
        # One bit apart, and the middle goes to the even one.
        np.testing.assert_array_equal(down.view(np.uint16) + 1, up.view(np.uint16))
        np.testing.assert_array_equal(chosen.view(np.uint16) % 2, 0)


if __name__ == "__main__":
    main.main()
