import hashlib

import numpy as np
from absl.testing import parameterized

from testing import distributions, main


class DistributionsTest(parameterized.TestCase):
    def _sample(self, distribution, shape=(64, 32)):
        return distribution.sample(distributions.Stream("key"), shape)

    @parameterized.parameters(
        (distributions.Uniform(-5, 5), -5, 5),
        (distributions.Normal(), -4.9, 4.9),
        (distributions.Octaves(-4, -1), 2.0**-4, 0.5),
        (distributions.Octaves(0, 2, sign=-1.0), -4, -1),
        (distributions.UnitVectors(3.0), -3, 3),
    )
    def test_range_and_spread(self, distribution, low, high):
        x = self._sample(distribution)
        self.assertGreaterEqual(x.min(), low)
        self.assertLessEqual(x.max(), high)
        self.assertGreater(len(np.unique(x)), 0.9 * x.size)

    def test_normal_moments(self):
        x = self._sample(distributions.Normal(mean=2.0, std=3.0), (1 << 16,))
        # The standard error of the mean is 3 / 2^8 = 0.012, that of the deviation about 0.008: four
        # of each.
        self.assertAlmostEqual(x.mean(), 2.0, delta=0.05)
        self.assertAlmostEqual(x.std(), 3.0, delta=0.035)

    def test_unit_vectors_have_their_length(self):
        x = self._sample(distributions.UnitVectors(3.0))
        np.testing.assert_allclose(np.linalg.norm(x, axis=-1), 3.0, rtol=1e-12)

    def test_cycle_runs_along_its_axis(self):
        x = self._sample(distributions.Cycle((1.0, 2.0, 3.0), axis=0), (4, 2))
        np.testing.assert_array_equal(x, [[1, 1], [2, 2], [3, 3], [1, 1]])

    def test_sprinkled_replaces_about_the_given_share(self):
        x = self._sample(
            distributions.Sprinkled(distributions.Uniform(0, 1), -np.inf, 0.25), (1 << 14,)
        )
        # Standard error of the share: sqrt(.25 * .75 / 2^14) = 0.0034; four of it.
        self.assertAlmostEqual(np.mean(np.isinf(x)), 0.25, delta=0.0135)

    def test_only_keeps_rows(self):
        x = self._sample(distributions.Only(distributions.Constant(2.0), (0, 3), axis=1), (2, 4, 1))
        np.testing.assert_array_equal(x[:, :, 0], [[2, 0, 0, 2]] * 2)
        x = self._sample(distributions.Only(distributions.Constant(2.0), (1,), axis=-1), (1, 2))
        np.testing.assert_array_equal(x, [[0, 2]])

    def test_accumulated_sums_and_wraps(self):
        x = self._sample(
            distributions.Accumulated(distributions.Constant(0.75), axis=0, modulus=2.0), (4, 1)
        )
        np.testing.assert_array_equal(x[:, 0], [0.75, 1.5, 0.25, 1.0])

    def test_keys_decide_the_values(self):
        def draw(key):
            return distributions.Stream(key).uniform((8,)).tolist()

        self.assertEqual(draw("a"), draw("a"))
        self.assertNotEqual(draw("a"), draw("b"))

    @parameterized.parameters(
        (distributions.Uniform(-5, 5), "9c6a182092ff6031"),
        (distributions.Normal(), "b52b7fa82d2fe24d"),
        (distributions.UnitVectors(), "4da1bf106f89e639"),
        (distributions.Octaves(-14, 0), "6739718ac012df1d"),
        (
            distributions.Accumulated(
                distributions.Uniform(-1, 1), axis=0, modulus=6.283185307179586
            ),
            "74c0b94bc9d016a6",
        ),
    )
    def test_bits_are_the_same_on_every_machine(self, distribution, digest):
        # Seen equal with NumPy 1.26 and 2.5 on two machines; a change here invalidates every
        # golden.
        x = self._sample(distribution)
        self.assertEqual(hashlib.sha256(np.ascontiguousarray(x).data).hexdigest()[:16], digest)

    def test_to_json_nests(self):
        self.assertEqual(
            distributions.to_json(distributions.Sprinkled(distributions.Constant(1.0), 0.0, 0.5)),
            {
                "distribution": "Sprinkled",
                "base": {"distribution": "Constant", "value": 1.0},
                "value": 0.0,
                "probability": 0.5,
            },
        )


if __name__ == "__main__":
    main.main()
