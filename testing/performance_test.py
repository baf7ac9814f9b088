from absl.testing import parameterized

from testing import main, performance, spec


class PerformanceTest(parameterized.TestCase):
    def test_summary(self):
        timing = performance.summarise([float(x) for x in range(21)])
        self.assertEqual((timing.median, timing.p10, timing.p90, timing.samples), (10, 2, 18, 21))

    def test_too_few_samples(self):
        with self.assertRaisesRegex(ValueError, "got 19"):
            performance.summarise([1.0] * 19)

    def test_geometric_mean(self):
        self.assertAlmostEqual(performance.geometric_mean([0.5, 2.0]), 1.0)
        for ratios in ([], [1.0, 0.0]):
            with self.assertRaisesRegex(ValueError, "positive"):
                performance.geometric_mean(ratios)

    @parameterized.parameters(
        (spec.Costs(989e9, 0, 0), "matrix", 1.0),
        (spec.Costs(0, 67e9, 0), "vector", 1.0),
        (spec.Costs(989e9, 67e9, 9.6e9), "memory", 2.0),
    )
    def test_roofline(self, costs, binding, milliseconds):
        chip = performance.limits("NVIDIA H200")
        self.assertEqual(performance.roofline(costs, chip), (binding, milliseconds))

    def test_limits_of_unknown_chips_are_not_invented(self):
        for chip in ("Ascend950PR_9589", "Ascend910B4", "Ascend910_9382"):
            self.assertIsNone(performance.limits(chip))
        self.assertIsNotNone(performance.limits("Ascend910B2"))

    def test_normalised_a100(self):
        # The policy's example: a cube-bound cube+vector op has 1 / (1.13 * 0.7) = 1.26 of the
        # A100's time.
        self.assertAlmostEqual(performance.a100_limit_ms(0.791, "matrix", "cube+vector"), 1.0)
        self.assertAlmostEqual(performance.a100_limit_ms(0.57 * 0.9, "vector", "vector"), 1.0)


if __name__ == "__main__":
    main.main()
