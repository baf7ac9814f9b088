import dataclasses
import math

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
        op = _spec()
        case = op.cases[0]
        self.assertEqual(spec.results(("a", "b"), op, case), {"out": "a", "state": "b"})
        with self.assertRaisesRegex(ValueError, "returned 1 values, its spec declares 2"):
            spec.results("a", op, case)

    def test_an_output_may_hang_on_an_input(self):
        outputs = (
            spec.Output("out", None, precision_of="x"),
            spec.Output("dx", None, precision="float32", when="y"),
        )
        case = _spec().cases[0]
        without, given = (
            dataclasses.replace(case, tensors={**case.tensors, "y": y})
            for y in (None, case.tensors["x"])
        )
        op = _spec(outputs=outputs, cases=(without,))
        self.assertEqual([output.name for output in op.outputs_in(without)], ["out"])
        self.assertEqual([output.name for output in op.outputs_in(given)], ["out", "dx"])
        self.assertEqual(spec.results(("a", None), op, without), {"out": "a"})
        self.assertEqual(spec.results(("a", "b"), op, given), {"out": "a", "dx": "b"})
        with self.assertRaisesRegex(ValueError, "returned str for dx in case one, expected None"):
            spec.results(("a", "b"), op, without)
        with self.assertRaisesRegex(ValueError, "returned NoneType for dx .*, expected a tensor"):
            spec.results(("a", None), op, given)
        with self.assertRaisesRegex(ValueError, "when: got 'y', allowed are the tensors of case"):
            _spec(outputs=outputs)

    def test_preparation(self):
        self.assertIsNone(_spec().preparation)
        self.assertIs(_spec(prepare="math:sqrt").preparation, math.sqrt)

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
