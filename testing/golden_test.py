import json
import os

import numpy as np
from absl.testing import absltest

from testing import cases, distributions, golden, inputs, main, spec


def double_of(x):
    """Golden and same-precision reference of the op under test."""
    return 2 * x


def prepared(x, y, power):
    """Arguments of `raised` from a case's."""
    return {"x": x, "z": x.double().pow(power).to(x.dtype), "y": y}


def raised(x, z, y):
    return z + x, y


def _prepared_op():
    x = cases.TensorSpec((2, 17, 1, 4), "float16", distributions.Normal())
    return spec.OpSpec(
        name="raised",
        function=f"{__name__}:raised",
        golden=f"{__name__}:raised",
        same_precision=f"{__name__}:raised",
        cases=tuple(
            cases.Case("raised", name, {"x": x, "y": y}, {"power": 2}, frozenset({"ci"}))
            for name, y in (("with_y", x), ("without_y", None))
        ),
        outputs=(
            spec.Output("out", 1, precision_of="x"),
            spec.Output("second", 1, precision_of="x", when="y"),
        ),
        launches=lambda case, device: 1,
        workspace_bytes=lambda case, device: 0,
        costs=lambda case: spec.Costs(0, 0, 0),
        prepare=f"{__name__}:prepared",
    )


def _op(std=1.0, name="double"):
    table = tuple(
        cases.Case(
            name,
            dtype,
            {"x": cases.TensorSpec((2, 17, 1, 4), dtype, distributions.Normal(std=std))},
            {},
            frozenset({"ci"}),
        )
        for dtype in ("float16", "bfloat16")
    )
    return spec.OpSpec(
        name=name,
        function=f"{__name__}:double_of",
        golden=f"{__name__}:double_of",
        same_precision=f"{__name__}:double_of",
        cases=table,
        outputs=(spec.Output("out", 1, precision_of="x"),),
        launches=lambda case, device: 1,
        workspace_bytes=lambda case, device: 0,
        costs=lambda case: spec.Costs(0, 0, 0),
    )


class GoldenTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        self.op = _op()
        self.path = self.create_tempdir().full_path
        golden.write(self.op, self.op.cases, self.path)

    def _load(self, op=None, case=1):
        op = op or self.op
        case = op.cases[case]
        return golden.Folder(self.path, op).load(case, inputs.Inputs(case, "cpu").digest)

    def _edit_manifest(self, edit):
        path = os.path.join(self.path, "manifest.json")
        with open(path, encoding="utf-8") as file:
            manifest = json.load(file)
        edit(manifest["cases"]["bfloat16"])
        with open(path, "w", encoding="utf-8") as file:
            json.dump(manifest, file)

    def test_round_trip_keeps_float64_and_the_16_bit_reference(self):
        out = self._load()["out"]
        x = cases.widen(self.op.cases[1].sample("x"), "bfloat16")
        np.testing.assert_array_equal(out.golden, 2 * x)
        self.assertEqual((out.golden.dtype, out.dtype), (np.float64, "bfloat16"))
        np.testing.assert_array_equal(cases.widen(out.same, "bfloat16"), 2 * x)

    def test_the_same_bytes_twice(self):
        again = self.create_tempdir().full_path
        golden.write(self.op, self.op.cases, again)
        for name in ("goldens.safetensors", "manifest.json"):
            with (
                open(os.path.join(self.path, name), "rb") as one,
                open(os.path.join(again, name), "rb") as two,
            ):
                self.assertEqual(one.read(), two.read())

    def test_prepared_inputs_and_outputs_that_are_not_there(self):
        op = _prepared_op()
        path = self.create_tempdir().full_path
        golden.write(op, op.cases, path)
        for case in op.cases:
            digest = inputs.Inputs(case, "cpu", op.preparation).digest
            found = golden.Folder(path, op).load(case, digest)
            self.assertEqual(list(found), ["out", "second"] if case.tensors["y"] else ["out"])
            x = case.sample("x").astype(np.float64)
            squares = (x * x).astype(np.float16).astype(np.float64)
            np.testing.assert_array_equal(found["out"].golden, x + squares)

    def test_manifest_states_shapes_dtypes_and_hashes(self):
        with open(os.path.join(self.path, "manifest.json"), encoding="utf-8") as file:
            entry = json.load(file)["cases"]["float16"]
        self.assertEqual(entry["fingerprint"], self.op.cases[0].fingerprint())
        described = entry["outputs"]["out"]["golden"]
        self.assertEqual((described["shape"], described["carrier"]), ([2, 17, 1, 4], "float64"))
        self.assertLen(described["sha256"], 64)

    def test_a_changed_case_makes_it_stale(self):
        with self.assertRaisesRegex(golden.GoldenError, "bfloat16: stale"):
            self._load(_op(std=2.0))

    def test_other_inputs_are_refused(self):
        with self.assertRaisesRegex(golden.GoldenError, "other inputs"):
            golden.Folder(self.path, self.op).load(self.op.cases[0], "0" * 64)

    def test_another_op_is_refused(self):
        with self.assertRaisesRegex(golden.GoldenError, "of op 'double', not 'triple'"):
            self._load(_op(name="triple"))

    def test_a_missing_case_or_folder_is_refused(self):
        golden.write(self.op, self.op.cases[:1], self.path)
        with self.assertRaisesRegex(golden.GoldenError, "missing"):
            self._load()
        with self.assertRaisesRegex(golden.GoldenError, "manifest.json"):
            golden.Folder(os.path.join(self.path, "nowhere"), self.op)

    def test_a_flipped_bit_is_damage(self):
        path = os.path.join(self.path, "goldens.safetensors")
        with open(path, "r+b") as file:
            header = int.from_bytes(file.read(8), "little")
            data = bytearray(file.read())
            # Any byte of the tensors: the first one belongs to the first tensor in the file,
            # whichever that is.
            for position in range(header, len(data), 8):
                data[position] ^= 1
            file.seek(8)
            file.write(data)
        with self.assertRaisesRegex(golden.GoldenError, "damaged"):
            self._load()

    def test_a_manifest_that_states_something_else_is_damage(self):
        self._edit_manifest(lambda entry: entry["outputs"]["out"]["golden"].update(shape=[1]))
        with self.assertRaisesRegex(golden.GoldenError, "damaged"):
            self._load()

    def test_a_manifest_without_cases_is_refused(self):
        with open(os.path.join(self.path, "manifest.json"), "w", encoding="utf-8") as file:
            json.dump({"op": "double"}, file)
        with self.assertRaisesRegex(golden.GoldenError, "missing"):
            self._load()

    def test_missing_outputs_are_refused(self):
        self._edit_manifest(lambda entry: entry.update(outputs={}))
        with self.assertRaisesRegex(golden.GoldenError, r"outputs \[\]"):
            self._load()


if __name__ == "__main__":
    main.main()
