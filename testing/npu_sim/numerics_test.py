"""Tests of numerics: against ml_dtypes, NumPy's float64 and values worked out by hand."""

import fractions
import itertools

import ml_dtypes
import numpy as np
from absl.testing import absltest, parameterized

from testing.npu_sim import numerics

_BF16 = np.dtype(ml_dtypes.bfloat16)
_F16 = np.dtype(np.float16)


def _all(dtype: np.dtype) -> np.ndarray:
    return np.arange(1 << 16, dtype=np.uint16).view(dtype)


def _exact(values: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return values.astype(np.float64)


def _finite(dtype: np.dtype) -> np.ndarray:
    return _all(dtype)[np.isfinite(_exact(_all(dtype)))]


def _same(found: np.ndarray, wanted: np.ndarray) -> bool:
    """Bit for bit, except that one NaN is as good as another."""
    nan = np.isnan(_exact(wanted))
    bits = f"u{found.dtype.itemsize}"
    return bool(
        found.dtype == wanted.dtype
        and (np.isnan(_exact(found)) == nan).all()
        and (found.view(bits) == wanted.view(bits))[~nan].all()
    )


class RoundToIntegerTest(parameterized.TestCase):
    @parameterized.parameters(
        ("rint", (-2, -2, -0.0, 0, 2, 2, 2, 3)),
        ("round", (-3, -2, -1, 1, 2, 3, 2, 3)),
        ("floor", (-3, -2, -1, 0, 1, 2, 2, 2)),
        ("ceil", (-2, -1, -0.0, 1, 2, 3, 3, 3)),
        ("trunc", (-2, -1, -0.0, 0, 1, 2, 2, 2)),
        ("truncwithoverflow", (-2, -1, -0.0, 0, 1, 2, 2, 2)),
        ("odd", (-3, -1, -1, 1, 1, 3, 3, 3)),
    )
    def test_modes(self, mode, wanted):
        values = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 2.25, 2.75], np.float32)
        found = numerics.round_to_integer(values, mode)
        self.assertEqual(found.dtype, np.float32)
        np.testing.assert_array_equal(found, np.array(wanted, np.float32))

    @parameterized.parameters(*numerics.ROUND_MODES)
    def test_whole_and_special_values_stay(self, mode):
        values = np.array([-np.inf, -4.0, -0.0, 0.0, 3.0, 2.0**40, np.inf, np.nan])
        found = numerics.round_to_integer(values, mode)
        np.testing.assert_array_equal(found, values)
        np.testing.assert_array_equal(np.signbit(found), np.signbit(values))

    def test_the_largest_float_below_one_half_is_zero(self):
        below = np.nextafter(np.float32(0.5), np.float32(0))
        self.assertEqual(numerics.round_to_integer(np.array([below]), "round")[0], 0)

    def test_an_unknown_mode(self):
        with self.assertRaisesRegex(ValueError, "'up' is none of"):
            numerics.round_to_integer(np.zeros(1), "up")


class ToFloatTest(parameterized.TestCase):
    def test_every_bfloat16_and_what_lies_between(self):
        # Each pattern, its midpoint to the next and the floats beside that.
        lows = np.arange(1 << 16, dtype=np.uint32) << 16
        for rest in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF):
            values = (lows | np.uint32(rest)).view(np.float32)
            found = numerics.to_float(values, _BF16)
            with np.errstate(invalid="ignore"):
                wanted = values.astype(_BF16)
            self.assertTrue(_same(found, wanted), hex(rest))

    @parameterized.parameters(_BF16, _F16)
    def test_nearest_by_another_route(self, dtype):
        # The general route must agree with NumPy's (ml_dtypes') own conversion everywhere.
        exact = np.sort(_exact(_finite(dtype)))
        middle = exact[:-1] / 2 + exact[1:] / 2
        values = np.concatenate([exact, middle, np.nextafter(middle, np.inf), [np.inf, -np.inf]])
        values = values[values == values.astype(np.float32)]
        found = numerics._round_to_format(values, dtype, "rint")
        self.assertTrue(_same(found, values.astype(np.float32).astype(dtype)))

    @parameterized.product(dtype=(_BF16, _F16), mode=("floor", "ceil", "trunc", "round", "odd"))
    def test_directed_modes_between_neighbours(self, dtype, mode):
        numbers = np.sort(_exact(_finite(dtype)))
        numbers = numbers[numbers != 0]
        keep = np.sign(numbers[:-1]) == np.sign(numbers[1:])
        low, high = numbers[:-1][keep], numbers[1:][keep]
        inner, outer = np.where(low > 0, (low, high), (high, low))
        even = low.astype(dtype).view(np.uint16) % 2 == 0
        for share, name in ((0.25, "near low"), (0.5, "middle"), (0.75, "near high")):
            between = (low + (high - low) * share).astype(np.float32)
            self.assertTrue(((between > low) & (between < high)).all())
            wanted = {
                "floor": low,
                "ceil": high,
                "trunc": inner,
                "round": low if share < 0.5 else high if share > 0.5 else outer,
                "odd": np.where(even, high, low),
            }[mode]
            found = numerics.to_float(between, dtype, mode).astype(np.float64)
            np.testing.assert_array_equal(found, wanted, name)

    def test_overflow(self):
        beyond = np.array([65520, -65520, 1e30, -1e30], np.float32)
        for mode, wanted in (
            ("rint", (np.inf, -np.inf, np.inf, -np.inf)),
            ("trunc", (65504, -65504, 65504, -65504)),
            ("floor", (65504, -np.inf, 65504, -np.inf)),
            ("ceil", (np.inf, -65504, np.inf, -65504)),
        ):
            found = numerics.to_float(beyond, _F16, mode)
            np.testing.assert_array_equal(found, np.array(wanted, np.float16), mode)

    @parameterized.parameters("rint", "floor", "ceil", "trunc", "round")
    def test_int64_is_rounded_once(self, mode):
        values = [2**53 + 1, 2**54 + 2**30, 2**54 + 2**30 + 1, 2**62 + 2**38 + 1, -(2**62) - 1, 7]
        found = numerics.to_float(np.array(values, np.int64), np.dtype(np.float32), mode)
        for value, result in zip(values, found, strict=True):
            lower = np.float32(value)
            while int(lower) > value:
                lower = np.nextafter(lower, np.float32(-np.inf))
            upper = lower if int(lower) == value else np.nextafter(lower, np.float32(np.inf))
            below, above = value - int(lower), int(upper) - value
            wanted = {
                "floor": lower,
                "ceil": upper,
                "trunc": lower if value > 0 else upper,
            }.get(mode)
            if wanted is None:
                wanted = lower if below < above else upper
                if below == above and mode == "rint":
                    wanted = lower if lower.view(np.uint32) % 2 == 0 else upper
            self.assertEqual(result, wanted, (mode, value))

    def test_float64_to_bfloat16_is_rounded_once(self):
        # Halfway between two bfloat16 in float32, but above it in float64.
        value = np.array([1 + 2.0**-8 + 2.0**-40])
        self.assertEqual(float(numerics.to_float(value, _BF16)[0]), 1 + 2.0**-7)


class IntegerTest(parameterized.TestCase):
    @parameterized.parameters(np.int8, np.int16, np.int32, np.int64, np.uint8)
    def test_saturation(self, dtype):
        info = np.iinfo(dtype)
        values = np.array([-np.inf, -1e30, -1, 0, 3, 100, 1e30, np.inf, np.nan])
        wanted = [info.min, info.min, max(-1, info.min), 0, 3, 100, info.max, info.max, 0]
        found = numerics.saturate(values, np.dtype(dtype))
        self.assertEqual(found.dtype, dtype)
        np.testing.assert_array_equal(found, np.array(wanted, dtype))

    def test_saturation_at_the_ends(self):
        found = numerics.saturate(np.array([2.0**31 - 1, 2.0**31, -(2.0**31) - 1]), np.dtype("i4"))
        np.testing.assert_array_equal(found, [2**31 - 1, 2**31 - 1, -(2**31)])
        found = numerics.saturate(np.array([2.0**63, -(2.0**63)]), np.dtype("i8"))
        np.testing.assert_array_equal(found, [2**63 - 1, -(2**63)])

    def test_integers_saturate_and_wrap(self):
        values = np.array([-40000, -129, -128, 127, 128, 300, 70000], np.int32)
        np.testing.assert_array_equal(
            numerics.saturate(values, np.dtype(np.int8)), [-128, -128, -128, 127, 127, 127, 127]
        )
        np.testing.assert_array_equal(
            numerics.wrap(values, np.dtype(np.int8)),
            [(value + 128) % 256 - 128 for value in values.tolist()],
        )

    def test_division_goes_to_zero(self):
        pairs = list(itertools.product((-7, -6, 0, 6, 7), (-3, -1, 0, 2, 3)))
        a, b = (np.array(side, np.int32) for side in zip(*pairs, strict=True))
        wanted = [int(fractions.Fraction(x, y)) if y else 0 for x, y in pairs]
        np.testing.assert_array_equal(numerics.divide_integers(a, b), wanted)


class OnceRoundedTest(parameterized.TestCase):
    @parameterized.product(
        dtype=(_BF16, _F16), function=(np.add, np.subtract, np.multiply, np.divide)
    )
    def test_sixteen_bits_are_rounded_once(self, dtype, function):
        values = _finite(dtype)[::97]
        a, b = np.meshgrid(values, values[::3])
        found = numerics.once_rounded(function, a, b)
        with np.errstate(all="ignore"):
            exact = function(a.astype(np.float64), b.astype(np.float64))
            wanted = numerics._round_to_format(exact, dtype, "rint")
        self.assertTrue(_same(found, wanted))

    def test_float32_stays(self):
        found = numerics.once_rounded(np.add, np.array([1], np.float32), np.float32(2.0**-24))
        self.assertEqual(found.dtype, np.float32)


class Hf32Test(absltest.TestCase):
    def test_eleven_bits_ties_to_even(self):
        step = 2.0**-11
        values = np.array(
            [1, 1 + step, 1 + step / 2, 1 + 3 * step / 2, 1 + 0.51 * step, -1 - step / 2, np.inf],
            np.float32,
        )
        wanted = [1, 1 + step, 1, 1 + 2 * step, 1 + step, -1, np.inf]
        np.testing.assert_array_equal(numerics.to_hf32(values), np.array(wanted, np.float32))


class OrderTest(parameterized.TestCase):
    @parameterized.parameters(
        (1, 4, "a"),
        (3, 4, "(a+b)+c"),
        (4, 4, "(a+b)+(c+d)"),
        (4, 1, "(a+c)+(b+d)"),
        (6, 1, "((a+c)+e)+((b+d)+f)"),
        (7, 1, "(((a+c)+e)+g)+((b+d)+f)"),
        (5, 2, "((a+c)+e)+(b+d)"),
        (5, 4, "((a+e)+b)+(c+d)"),
    )
    def test_tree(self, count, lanes, wanted):
        def combine(a, b):
            return np.array([f"({x}+{y})" for x, y in zip(a, b, strict=True)], object)

        letters = np.array(list("abcdefgh"[:count]), object)
        found = str(np.asarray(numerics.tree_reduce(combine, letters, lanes)).item())
        self.assertEqual(found if count == 1 else found[1:-1], wanted)

    def test_running(self):
        values = np.array([[1, 2, 3], [10, 20, 30]])
        np.testing.assert_array_equal(
            numerics.running(np.add, values, 1), [[1, 3, 6], [10, 30, 60]]
        )
        np.testing.assert_array_equal(
            numerics.running(np.add, values, 0), [[1, 2, 3], [11, 22, 33]]
        )


if __name__ == "__main__":
    absltest.main()
