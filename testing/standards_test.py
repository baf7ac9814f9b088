import math

import numpy as np
from absl.testing import absltest

from testing import main, standards


class StandardsByHandTest(absltest.TestCase):
    """Two elements each, so that every verdict can be followed on paper."""

    def test_single_benchmark_uses_one_for_small_goldens(self):
        g = np.array([0.001, 8.0])
        # 2^-12 absolute at 0.001 and 2^-12 relative at 8 are both half of the threshold 2^-11.
        self.assertEqual(
            standards.single_benchmark(g + [2**-12, -(2**-9)], g, "float16").verdict, "pass"
        )
        self.assertEqual(standards.single_benchmark(g + [2**-10, 0], g, "float16").verdict, "fail")

    def test_single_benchmark_balance(self):
        g = np.ones(4)
        # Within the bfloat16 threshold of 2^-8 the mean cannot reach the balance limit of 2^-7;
        # above it both fail.
        self.assertEqual(standards.single_benchmark(g + 2**-8, g, "bfloat16").verdict, "pass")
        self.assertEqual(standards.single_benchmark(g + 2**-6, g, "bfloat16").verdict, "fail")

    def test_dual_benchmark_levels(self):
        g = np.ones(2)
        r = g + 2.0**-10  # RE of 2^-10 in maximum, mean and root mean square
        for factor, level in ((1.1, "L2"), (1.4, "L1"), (1.9, "L0"), (2.5, "fail")):
            self.assertEqual(
                standards.dual_benchmark(g + factor * 2.0**-10, g, r, "float16").verdict, level
            )

    def test_dual_benchmark_floor(self):
        g = np.ones(2)
        # r is exact: errors are compared with the floor 2^-11 instead.
        self.assertEqual(standards.dual_benchmark(g + 2.0**-11, g, g, "float16").verdict, "L2")
        self.assertEqual(standards.dual_benchmark(g + 2.0**-8, g, g, "float16").verdict, "fail")

    def test_mere_mare(self):
        g = np.ones(10)
        self.assertEqual(standards.mere_mare(g + 2.0**-11, g, "float16").verdict, "pass")
        self.assertEqual(standards.mere_mare(g + 2.0**-9, g, "float16").verdict, "fail")
        one = np.zeros(10)
        one[0] = 11 * 2.0**-10  # the mean of 1.1 * 2^-10 is over, the largest is over 10 T too
        self.assertEqual(standards.mere_mare(g + one, g, "float16").verdict, "fail")

    def test_mixed_tolerance_lets_one_percent_through(self):
        g = np.ones(200)
        a = g.copy()
        a[:2] += 0.05
        self.assertEqual(standards.mixed_tolerance(a, g, "float16").verdict, "pass")
        a[2] += 0.05
        self.assertEqual(standards.mixed_tolerance(a, g, "float16").verdict, "fail")
        a = g.copy()
        a[0] += 0.2
        self.assertEqual(standards.mixed_tolerance(a, g, "float16").verdict, "fail")

    def test_norm_ratio(self):
        g = np.array([3.0, 4.0])
        self.assertEqual(standards.norm_ratio(g + [0.02, 0], g).verdict, "pass")  # 0.02 / 5 = 0.004
        self.assertEqual(standards.norm_ratio(g + [0.03, 0], g).verdict, "fail")  # 0.006

    def test_only_finite_elements_count(self):
        g = np.array([math.inf, 1.0])
        verdicts = standards.opinions(g, g, g, "float16")
        self.assertEqual({opinion.verdict for opinion in verdicts.values()}, {"pass", "L2"})
        self.assertEmpty(standards.opinions(g[:1], g[:1], g[:1], "float16"))


if __name__ == "__main__":
    main.main()
