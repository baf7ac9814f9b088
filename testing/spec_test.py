from absl.testing import absltest

from testing import cases, distributions, main, spec


def _spec(**changes):
    case = cases.Case(
        "scan",
        "one",
        {"x": cases.TensorSpec((2,), "float16", distributions.Normal())},
        {},
        frozenset({"ci"}),
    )
    fields = {
        "name": "scan",
        "function": "math:sqrt",
        "golden": "math:sqrt",
        "same_precision": "math:sqrt",
        "cases": (case,),
        "outputs": (
            spec.Output("out", None, precision_of="x"),
            spec.Output("state", None, precision="float32"),
        ),
        "launches": lambda case, device: 1,
        "workspace_bytes": lambda case, device: 0,
        "costs": lambda case: spec.Costs(0, 0, 0),
    }
    return spec.OpSpec(**(fields | changes))


class SpecTest(absltest.TestCase):
    def test_resolve(self):
        self.assertEqual(spec.resolve("math:sqrt")(4), 2)
        with self.assertRaisesRegex(ValueError, "module:attribute"):
            spec.resolve("math.sqrt")

    def test_results_are_named_in_order(self):
        self.assertEqual(spec.results(("a", "b"), _spec()), {"out": "a", "state": "b"})
        with self.assertRaisesRegex(ValueError, "returned 1 values, its spec declares 2"):
            spec.results("a", _spec())

    def test_precision_is_an_inputs_or_its_own(self):
        op = _spec()
        self.assertEqual(
            [output.precision_in(op.cases[0]) for output in op.outputs], ["float16", "float32"]
        )

    def test_cases_of_another_op(self):
        with self.assertRaisesRegex(ValueError, "belongs to op 'scan', not to 'other'"):
            _spec(name="other")

    def test_kind(self):
        with self.assertRaisesRegex(ValueError, "cube"):
            _spec(kind="scalar")

    def test_load_needs_an_op_spec(self):
        with self.assertRaisesRegex(AttributeError, "SPEC"):
            spec.load("math")


if __name__ == "__main__":
    main.main()
