"""The performance target on a stand-in for an accelerator, whose times are given."""

import dataclasses
import json

from absl.testing import absltest, flagsaver

from testing import cases, devices, distributions, main, performance_main, spec


def double(x):
    return 2 * x


def nearly_double(x):
    return 2.002 * x


def twice(x):
    return double(x), double(x)


def one_of_two_is_off(x):
    return double(x), nearly_double(x)


def tuned_for(x):
    return f"tuned for {tuple(x.shape)}"


def wrong(x):
    return 2.5 * x


class _Stand(devices.Accelerator):
    """Runs on the CPU, in plain Torch; `milliseconds` are the times it claims."""

    torch_device = "cpu"

    def __init__(self, milliseconds, name="npu-arch32", chip="Ascend910B2"):
        super().__init__(name)
        self.milliseconds = milliseconds
        self.chip = chip

    def _module(self):
        raise AssertionError("not reached")

    def require(self):
        pass

    def synchronize(self):
        pass

    def describe(self):
        return self.chip

    def time_ms(self, candidates, repeats):
        return {name: [self.milliseconds[name]] * repeats for name in candidates}


_CASE = cases.Case(
    "double",
    "one",
    {"x": cases.TensorSpec((1, 32, 2, 16), "float16", distributions.Normal())},
    {},
    frozenset({"ci", "perf"}),
)
_SPEC = spec.OpSpec(
    name="double",
    function=f"{__name__}:double",
    golden=f"{__name__}:double",
    same_precision=f"{__name__}:double",
    cases=(_CASE,),
    outputs=(spec.Output("out", 1, precision_of="x"),),
    launches=lambda case, device: 0,
    workspace_bytes=lambda case, device: 0,
    costs=lambda case: spec.Costs(0, 0, 1.6e9),  # 1 ms of an Ascend 910B's memory
    baselines=(
        spec.Baseline("plain", f"{__name__}:double", "torch", ("npu-arch32",), minimum=1.2),
        spec.Baseline("elsewhere", f"{__name__}:double", "torch", ("cuda",)),
    ),
)


class PerformanceMainTest(absltest.TestCase):
    def _run(self, op=_SPEC, own=2.0, plain=3.0, **device):
        test = performance_main.PerformanceTest("judge")
        cls = type(test)
        cls.op, cls.device, cls.goldens = op, _Stand({op.name: own, "plain": plain}, **device), None
        cls.rows.clear()
        test.judge(op.cases[0])
        cls.finish()
        return cls.rows[0]

    def test_ratios_and_roofline(self):
        row = self._run()
        self.assertEqual(row["ratios"], {"plain": 1.5})
        self.assertEqual((row["binding"], row["floor_ms"]), ("memory", 1.0))
        self.assertEqual(row["timings"]["double"]["median"], 2.0)

    def test_unknown_chips_have_no_roofline(self):
        self.assertNotIn("floor_ms", self._run(chip="Ascend950PR_9589"))

    def test_too_slow_against_a_baseline(self):
        with self.assertRaisesRegex(
            AssertionError, "1.10 times as fast as plain, the least is 1.2"
        ):
            self._run(plain=2.2)

    def _with(self, **changes):
        rival = dataclasses.replace(_SPEC.baselines[0], **changes)
        return dataclasses.replace(_SPEC, baselines=(rival,))

    def test_too_slow_in_one_case(self):
        self._run(self._with(minimum_per_case={"*": 1.5, "two": 9.0}))
        for limits in ({"*": 1.6}, {"one": 1.6, "*": 1.0}):
            with self.assertRaisesRegex(
                AssertionError, "one: 1.50 times as fast as plain, the leas"
            ):
                self._run(self._with(minimum_per_case=limits))

    def test_a_rival_is_tuned_for_each_case(self):
        row = self._run(self._with(tune=f"{__name__}:tuned_for"))
        self.assertEqual(row["tuned"], {"plain": "tuned for (1, 32, 2, 16)"})
        self.assertIn(
            "  one: tuned for (1, 32, 2, 16)",
            performance_main.PerformanceTest._table().splitlines(),
        )
        self.assertEqual(self._run()["tuned"], {})

    def test_distance_from_the_rival(self):
        self.assertEqual(self._run()["errors"], {"plain": {"out": 0.0}})
        row = self._run(self._with(function=f"{__name__}:nearly_double"))
        self.assertAlmostEqual(row["errors"]["plain"]["out"], 0.001, delta=3e-4)  # fp16 rounds

    def test_the_output_that_is_farthest_is_named(self):
        op = dataclasses.replace(
            self._with(function=f"{__name__}:one_of_two_is_off"),
            function=f"{__name__}:twice",
            golden=f"{__name__}:twice",
            same_precision=f"{__name__}:twice",
            outputs=(_SPEC.outputs[0], spec.Output("again", 1, precision_of="x")),
        )
        row = self._run(op)
        self.assertEqual(row["errors"]["plain"]["out"], 0.0)
        self.assertRegex(performance_main.PerformanceTest._table(), r"  0\.\d\d\d% again")

    def test_no_time_without_accuracy(self):
        op = dataclasses.replace(_SPEC, function=f"{__name__}:wrong")
        with self.assertRaisesRegex(AssertionError, "no time without a green accuracy verdict"):
            self._run(op)
        self.assertEmpty(performance_main.PerformanceTest.rows)

    def test_the_number_of_launches_is_asserted(self):
        op = dataclasses.replace(_SPEC, launches=lambda case, device: 2)
        with self.assertRaisesRegex(AssertionError, "kernel launches"):
            self._run(op)

    def test_normalised_a100(self):
        # Bound by memory: 1 / (0.785 * 0.7) = 1.82 times the A100's time is allowed.
        path = self.create_tempfile("a100.json", json.dumps({"one": 1.2})).full_path
        with flagsaver.flagsaver(a100_times=path):
            self.assertAlmostEqual(self._run()["a100_limit_ms"], 1.2 / (0.785 * 0.7))
            with self.assertRaisesRegex(AssertionError, "slower than the normalised A100 allows"):
                self._run(own=2.3, plain=9.0)

    def test_an_a100_time_that_cannot_be_used_fails(self):
        path = self.create_tempfile("a100.json", json.dumps({"two": 1.2})).full_path
        with flagsaver.flagsaver(a100_times=path):
            with self.assertRaisesRegex(AssertionError, "has no time of this case"):
                self._run()
            with self.assertRaisesRegex(AssertionError, "no limits known of Ascend910B4"):
                self._run(chip="Ascend910B4")

    def test_the_interpreter_is_refused(self):
        with self.assertRaisesRegex(ValueError, "cpu-reference is no accelerator"):
            performance_main._timed(devices.get("cpu-reference"))


if __name__ == "__main__":
    main.main()
