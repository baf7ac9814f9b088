import dataclasses
import math

import numpy as np
from absl.testing import absltest, parameterized

from testing import cases, comparator, golden, main, spec

_ROWS = spec.Output("out", rows_axis=1, precision="float16")


def _reference(shape=(2, 40, 3, 8), dtype="float16", seed=0):
    g = np.random.default_rng(seed).standard_normal(shape)
    return golden.Reference(g, cases.quantise(g, dtype), dtype)


class MetricsByHandTest(absltest.TestCase):
    """One head, two rows of two features: every figure follows from a line of arithmetic."""

    def setUp(self):
        super().setUp()
        self.g = np.array([[[3.0, 4.0], [0.0, 0.0]]])  # [heads=1, rows=2, features=2]
        self.output = spec.Output("out", rows_axis=1, precision="float32")

    def test_norm_is_relative_to_the_golden(self):
        m = comparator.measure(self.g + [[[0.3, 0.4], [0, 0]]], self.g, self.output)
        self.assertAlmostEqual(m.norm, 0.5 / 5)
        self.assertAlmostEqual(m.worst_block, 0.1)

    def test_scaled_max_uses_the_rms_of_the_row(self):
        m = comparator.measure(self.g + [[[0.0, 0.4], [0, 0]]], self.g, self.output)
        s = math.sqrt((9 + 16) / 2)
        self.assertAlmostEqual(m.scaled_max, 0.4 / (4 + s))
        self.assertAlmostEqual(m.bias, 0.4 / (4 + s) / 4)

    def test_a_zero_row_demands_zero(self):
        m = comparator.measure(self.g + [[[0, 0], [1e-30, 0]]], self.g, self.output)
        self.assertEqual(m.scaled_max, math.inf)

    def test_rows_that_are_sums_share_a_scale(self):
        g = np.zeros((1, 5, 2))
        g[0, :2] = [[3.0, 4.0], [0.0, 0.0]]
        g[0, 4] = 1.0
        output = dataclasses.replace(self.output, summed_rows=2)  # rows 0 and 1, 2 and 3, 4
        error = np.zeros_like(g)
        error[0, 1, 0] = 0.4
        m = comparator.measure(g + error, g, output)
        self.assertAlmostEqual(m.scaled_max, 0.4 / math.sqrt((9 + 16) / 4))
        self.assertEqual(m.elements, 5)
        error = np.zeros_like(g)
        error[0, 4, 1] = 0.5
        self.assertAlmostEqual(comparator.measure(g + error, g, output).scaled_max, 0.25)
        error[0, 3, 0] = 1e-30  # its whole group is zero
        self.assertEqual(comparator.measure(g + error, g, output).scaled_max, math.inf)

    def test_rows_without_a_feature_axis_share_a_scale(self):
        g = np.array([[[3.0], [1e-3], [4.0], [1.0]]])
        error = np.zeros_like(g)
        error[0, 1] = 0.1
        alone = comparator.measure(g + error, g, self.output)
        self.assertAlmostEqual(alone.scaled_max, 0.1 / 2e-3)
        output = dataclasses.replace(self.output, pooled_rows=3)
        pooled = comparator.measure(g + error, g, output)
        self.assertAlmostEqual(pooled.scaled_max, 0.1 / (1e-3 + math.sqrt((25 + 1e-6) / 3)))
        self.assertEqual(pooled.elements, 4)
        error = np.zeros_like(g)
        error[0, 3] = 0.5  # a group of its own
        self.assertAlmostEqual(comparator.measure(g + error, g, output).scaled_max, 0.25)

    def test_a_zero_golden_demands_zero(self):
        zero = np.zeros_like(self.g)
        self.assertEqual(comparator.measure(zero, zero, self.output).norm, 0)
        self.assertEqual(comparator.measure(zero + 1e-30, zero, self.output).norm, math.inf)

    def test_worst_block_sees_one_head_and_16_rows(self):
        g = np.ones((1, 33, 2, 4))  # rows 33: blocks of 16, 16 and 1
        a = g.copy()
        a[0, 32, 1, :] += 0.5
        output = spec.Output("out", rows_axis=1, precision="float32")
        m = comparator.measure(a, g, output)
        self.assertAlmostEqual(m.worst_block, 0.5)  # the last block has one row of four elements
        self.assertAlmostEqual(m.norm, math.sqrt(4 * 0.25 / g.size))

    def test_signed_errors_cancel_in_the_bias_only(self):
        g = np.ones((1, 2, 2))
        m = comparator.measure(g + [[[0.1, -0.1], [0.1, -0.1]]], g, self.output)
        self.assertAlmostEqual(m.bias, 0)
        self.assertAlmostEqual(m.mean_abs, 0.05)

    def test_empty_outputs_have_no_error(self):
        empty = np.zeros((1, 0, 2, 4))
        self.assertEqual(comparator.measure(empty, empty, self.output).norm, 0)


class BlockedTest(absltest.TestCase):
    def test_each_block_holds_its_rows_of_its_head(self):
        x = np.arange(2 * 20 * 3 * 4.0).reshape(2, 20, 3, 4)
        blocks = comparator.blocked(x, _ROWS)
        self.assertEqual(blocks.shape, (6, 2, 64))
        np.testing.assert_array_equal(blocks[3 * 1 + 2, 0].reshape(16, 4), x[1, :16, 2])
        np.testing.assert_array_equal(blocks[3 * 1 + 2, 1].reshape(16, 4)[:4], x[1, 16:, 2])
        self.assertFalse(blocks[:, 1, 16:].any())

    def test_without_rows_each_leading_index_is_a_block(self):
        state = np.ones((2, 3, 5, 7))
        self.assertEqual(
            comparator.blocked(state, spec.Output("state", None, precision="float32")).shape,
            (30, 1, 7),
        )


class CompareTest(parameterized.TestCase):
    def _verdict(self, actual, reference, precision="float16", **kwargs):
        gates = comparator.compare(
            cases.quantise(actual, reference.dtype), reference, _ROWS, precision, **kwargs
        )
        return {gate.name: gate for gate in gates}

    @parameterized.parameters("float16", "bfloat16")
    def test_correct_rounding_passes_below_the_floors(self, dtype):
        reference = _reference((2, 64, 3, 32), dtype)
        gates = self._verdict(reference.golden, reference, dtype)
        self.assertTrue(all(gate.passed for gate in gates.values()), gates)
        # The policy states 0.42 u for rounding alone; its floor for G1 is 0.6 u.
        self.assertAlmostEqual(
            gates["G1 norm"].value / comparator.ROUNDOFF[dtype], 0.42, delta=0.02
        )
        self.assertIn("G4 bias", gates)

    def test_limits_are_floor_or_multiple_of_r(self):
        reference = _reference()
        exact = dataclasses.replace(reference, golden=cases.widen(reference.same, "float16"))
        gates = self._verdict(exact.golden, exact)
        self.assertEqual(
            [gates[name].limit * 2**11 for name in ("G1 norm", "G2 worst block", "G3 scaled max")],
            [0.6, 0.6, 1],
        )
        loose = dataclasses.replace(
            reference, same=cases.quantise(reference.golden * (1 + 2**-9), "float16")
        )
        gates = self._verdict(reference.golden, loose)
        self.assertAlmostEqual(gates["G1 norm"].limit, 1.2 * gates["G1 norm"].same)
        self.assertAlmostEqual(gates["G2 worst block"].limit, 1.5 * gates["G2 worst block"].same)
        self.assertAlmostEqual(gates["G3 scaled max"].limit, 2 * gates["G3 scaled max"].same)

    def test_small_samples_have_no_bias_gate(self):
        reference = _reference((1, 4, 1, 8))
        self.assertNotIn("G4 bias", self._verdict(reference.golden, reference))

    def test_a_gain_below_the_norm_gate_is_a_bias(self):
        reference = _reference((2, 64, 3, 32))
        # 2^-12.5 in the norm is under the floor of 0.6 * 2^-11 even with rounding, but shifts every
        # element one way.
        g = np.abs(reference.golden)
        reference = golden.Reference(g, cases.quantise(g, "float16"), "float16")
        gates = self._verdict(g * (1 - 2**-13), reference)
        self.assertTrue(gates["G1 norm"].passed)
        self.assertFalse(gates["G4 bias"].passed)

    @parameterized.parameters(np.nan, np.inf, -np.inf)
    def test_non_finite_values_must_stand_where_the_golden_has_them(self, value):
        reference = _reference()
        spoiled = reference.golden.copy()
        spoiled[0, 3, 1, 2] = value
        self.assertEqual(self._verdict(spoiled, reference)["G0 non-finite"].value, 1)
        honest = golden.Reference(spoiled, cases.quantise(spoiled, "float16"), "float16")
        self.assertTrue(all(gate.passed for gate in self._verdict(spoiled, honest).values()))
        self.assertEqual(self._verdict(reference.golden, honest)["G0 non-finite"].value, 1)

    def test_values_beyond_the_dtype_must_be_infinite(self):
        g = np.full((1, 1, 1, 2), 1e5)
        reference = golden.Reference(g, cases.quantise(g, "float16"), "float16")
        self.assertTrue(self._verdict(g, reference)["G0 non-finite"].passed)
        self.assertFalse(self._verdict(np.full_like(g, 65504.0), reference)["G0 non-finite"].passed)

    def test_waivers_replace_a_limit_and_stay_visible(self):
        reference = _reference()
        waiver = cases.Waiver("out", "G1 norm", 0.5, 0.1, "2026-11-30", "test")
        gates = self._verdict(reference.golden * 1.1, reference, waivers=[waiver])
        self.assertTrue(gates["G1 norm"].passed)
        self.assertEqual(gates["G1 norm"].waiver, waiver)
        self.assertFalse(gates["G3 scaled max"].passed)

    def test_exact_outputs_are_compared_bit_by_bit(self):
        output = spec.Output("index", None, exact=True)
        reference = golden.Reference(np.array([[1.0, 2.0]]), np.array([[1, 2]], np.int32), "int32")
        for actual, wrong in (([[1, 2]], 0), ([[1, 3]], 1)):
            (gate,) = comparator.compare(np.array(actual, np.int32), reference, output, "float32")
            self.assertEqual((gate.name, gate.value, gate.passed), ("G5 exact", wrong, not wrong))

    def test_a_nan_metric_fails(self):
        self.assertFalse(comparator.Gate("out", "G1 norm", math.nan, 1.0).passed)


class FaultsTest(parameterized.TestCase):
    @parameterized.product(dtype=["float16", "bfloat16"], fault=comparator.FAULTS)
    def test_every_fault_is_caught(self, dtype, fault):
        reference = _reference(dtype=dtype)
        faulty = comparator.faults(reference.same, _ROWS, dtype)[fault]
        gates = comparator.compare(faulty, reference, _ROWS, dtype)
        self.assertFalse(all(gate.passed for gate in gates))

    @parameterized.parameters(
        (
            "one element off by 5 %",
            lambda x: x.__setitem__((0, 7, 1, 3), x[0, 7, 1, 3] * 1.05 + 0.01),
        ),
        ("one key dropped in one row", lambda x: x.__setitem__((1, 20, 2), x[1, 20, 2] - 0.02)),
        (
            "two heads swapped",
            lambda x: x.__setitem__((slice(None), slice(None), [0, 1]), x[:, :, [1, 0]]),
        ),
        ("features shifted by one", lambda x: x.__setitem__(slice(None), np.roll(x, 1, axis=-1))),
        ("truncated rounding", lambda x: x.__setitem__(slice(None), x * (1 - 2.0**-11))),
    )
    def test_subtler_faults_are_caught(self, _, inject):
        reference = _reference((2, 64, 3, 32))
        faulty = cases.widen(reference.same, "float16")
        inject(faulty)
        gates = comparator.compare(cases.quantise(faulty, "float16"), reference, _ROWS, "float16")
        self.assertFalse(all(gate.passed for gate in gates))

    def test_the_gain_can_be_larger(self):
        ones = np.ones((1, 4, 1, 2), np.float32)
        gain = comparator.faults(ones, _ROWS, "float32", 1.5)["gain 1.01"]
        np.testing.assert_array_equal(gain, 1.5 * ones)

    def test_a_replaced_row_is_the_largest(self):
        fading = np.full((1, 6, 1, 8), 1e-6, np.float32)
        fading[0, 4] = 3.0
        for fault, row in (("sign flip", -3.0), ("stale row", 1e-6)):
            faulty = comparator.faults(fading, _ROWS, "float32")[fault]
            np.testing.assert_array_equal(faulty[0, 4], np.full((1, 8), row, np.float32))
            np.testing.assert_array_equal(np.delete(faulty, 4, 1), np.delete(fading, 4, 1))

    def test_a_sum_that_cancels_has_no_faults_of_a_part(self):
        output = dataclasses.replace(_ROWS, cancels=True)
        faults = comparator.faults(np.ones((1, 20, 1, 8), np.float32), output, "float32")
        self.assertSameElements(faults, ("all zeros", "gain 1.01"))

    def test_a_tail_of_subnormal_numbers_is_not_dropped(self):
        for dtype, kind, normal in (
            ("float16", np.float16, 2.0**-14),
            ("float32", np.float32, 2.0**-126),
        ):
            fading = np.ones((1, 20, 1, 8), kind)
            fading[:, 16:] = normal
            self.assertIn("dropped tail", comparator.faults(fading, _ROWS, dtype))
            fading[:, 16:] = normal / 2
            self.assertNotIn("dropped tail", comparator.faults(fading, _ROWS, dtype))

    def test_faults_that_change_nothing_are_left_out(self):
        zeros = np.zeros((1, 4, 1, 8), np.float16)
        self.assertEmpty(comparator.faults(zeros, _ROWS, "float16"))
        self.assertEmpty(comparator.faults(np.zeros((1, 0, 1, 8), np.float16), _ROWS, "float16"))
        self.assertNotIn(
            "stale row", comparator.faults(np.ones((1, 1, 1, 8), np.float16), _ROWS, "float16")
        )

    def test_the_dropped_tail_is_the_last_partial_block(self):
        ones = np.ones((1, 37, 1, 2), np.float16)
        dropped = comparator.faults(ones, _ROWS, "float16")["dropped tail"]
        self.assertEqual(np.count_nonzero(dropped[0, :, 0, 0] == 0), 5)


if __name__ == "__main__":
    main.main()
