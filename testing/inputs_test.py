from unittest import mock

import numpy as np
import torch
from absl.testing import parameterized

from testing import cases, distributions, inputs, main


def _inputs(layout="contiguous", dtype="bfloat16", shape=(2, 3, 1, 8)):
    tensors = {"x": cases.TensorSpec(shape, dtype, distributions.Normal(), layout), "z": None}
    case = cases.Case("op", "case", tensors, {"chunk_size": 64}, frozenset({"ci"}))
    return case, inputs.Inputs(case, "cpu")


class InputsTest(parameterized.TestCase):
    @parameterized.product(layout=cases.LAYOUTS, dtype=["float16", "bfloat16", "float32", "int32"])
    def test_every_layout_holds_the_same_values(self, layout, dtype):
        case, made = _inputs(layout, dtype)
        x = made.arguments["x"]
        self.assertEqual((tuple(x.shape), x.dtype), ((2, 3, 1, 8), getattr(torch, dtype)))
        np.testing.assert_array_equal(inputs.to_numpy(x)[0], case.sample("x"))
        self.assertIsNone(made.arguments["z"])
        self.assertEqual(made.arguments["chunk_size"], 64)

    @parameterized.parameters(
        ("contiguous", (24, 8, 8, 1)),
        ("slice", (120, 40, 40, 1)),
        ("permuted", (24, 8, 24, 1)),
        ("strided", (48, 16, 16, 2)),
        ("odd", (24, 8, 7, 1)),
    )
    def test_strides(self, layout, strides):
        self.assertEqual(_inputs(layout)[1].arguments["x"].stride(), strides)

    @parameterized.product(layout=cases.LAYOUTS, dtype=["bfloat16", "float32"])
    def test_meta_tensors_lie_as_the_real_ones_do(self, layout, dtype):
        case, made = _inputs(layout, dtype)
        meta = inputs.meta(case)
        self.assertCountEqual(meta, made.arguments)
        x, y = meta["x"], made.arguments["x"]
        self.assertEqual(
            (x.device.type, x.shape, x.stride(), x.dtype), ("meta", y.shape, y.stride(), y.dtype)
        )
        in_front = (y.storage_offset() - x.storage_offset()) * y.itemsize
        self.assertEqual(in_front, inputs.BAND)
        self.assertIsNone(meta["z"])
        self.assertEqual(meta["chunk_size"], 64)

    def test_neighbouring_memory_is_nan(self):
        x = _inputs("slice")[1].arguments["x"]
        wide = x.as_strided((2, 3, 40), (120, 40, 1), x.storage_offset() - 16)
        self.assertEqual(int(torch.isnan(wide).sum()), 2 * 3 * 32)
        before = x.as_strided((1,), (1,), x.storage_offset() - 17)
        self.assertTrue(torch.isnan(before).all())

    def test_changed_names_the_tensor(self):
        made = _inputs()[1]
        self.assertEmpty(made.changed())
        x = made.arguments["x"]
        x.as_strided((1,), (1,), x.storage_offset() - 1).fill_(1.0)
        self.assertEqual(made.changed(), ["x"])

    def test_writing_the_same_values_is_no_change(self):
        made = _inputs()[1]
        made.arguments["x"].copy_(made.arguments["x"].clone())
        self.assertEmpty(made.changed())

    def test_digest_follows_the_values_not_the_layout(self):
        self.assertEqual(_inputs("slice")[1].digest, _inputs("permuted")[1].digest)
        self.assertNotEqual(_inputs(dtype="float16")[1].digest, _inputs(dtype="float32")[1].digest)

    def _prepared(self, prepare, tags=("ci",), layout="slice"):
        tensors = {
            "x": cases.TensorSpec((2, 3, 1, 8), "float16", distributions.Normal(), layout),
            "w": cases.TensorSpec((2, 3, 1), "float32", distributions.Normal()),
            "z": None,
        }
        case = cases.Case("op", "case", tensors, {"n": 3}, frozenset(tags))
        return case, inputs.Inputs(case, "cpu", prepare)

    def test_a_preparation_makes_the_arguments(self):
        given = {}

        def prepare(x, w, z, n):
            given.update(x=x, w=w, z=z, n=n)
            sums = x.double().cumsum(-1).to(x.dtype)
            return {"x": x, "wide": w.expand(2, 3, n), "sums": sums, "z": z, "empty": sums[:0]}

        case, made = self._prepared(prepare)
        self.assertEqual((given["z"], given["n"]), (None, 3))
        arguments = made.arguments
        self.assertEqual(list(arguments), ["x", "wide", "sums", "z", "empty"])
        # What was drawn lies as the case says, a view of it as it is one.
        self.assertEqual(arguments["x"].stride(), (120, 40, 40, 1))
        self.assertEqual(arguments["wide"].stride(), (3, 1, 0))
        np.testing.assert_array_equal(arguments["wide"][..., :1], case.sample("w"))
        sums = case.sample("x").astype(np.float64).cumsum(-1).astype(np.float16)
        np.testing.assert_array_equal(inputs.to_numpy(arguments["sums"])[0], sums)
        self.assertEqual(arguments["empty"].shape, (0, 3, 1, 8))
        self.assertEqual(made.digest, self._prepared(None)[1].digest)
        self.assertEqual(made.widened()["sums"].dtype, torch.float64)

    def test_what_was_prepared_is_guarded(self):
        def prepare(x, w, **_):
            return {
                "x": x,
                "wide": w.expand(2, 3, 4),
                "twice": (2 * x).contiguous(),
                "three": 3 * x,
            }

        for name in ("x", "wide", "twice", "three"):
            for where in (-1, 0):
                made = self._prepared(prepare)[1]
                self.assertEmpty(made.changed())
                tensor = made.arguments[name]
                self.assertEqual(tensor.data_ptr() % 2, 0)
                offset = tensor.storage_offset() + where
                tensor.as_strided((1,), (1,), offset).fill_(7.0)
                self.assertEqual(made.changed(), [name], where)

    def test_a_preparation_may_pass_a_tensor_twice(self):
        made = self._prepared(lambda x, **_: {"x": x, "again": x, "copy": x.clone()})[1]
        self.assertEqual(made.arguments["x"].data_ptr(), made.arguments["again"].data_ptr())
        self.assertNotEqual(made.arguments["x"].data_ptr(), made.arguments["copy"].data_ptr())
        made.arguments["again"].fill_(7.0)
        self.assertEqual(made.changed(), ["x"])

    def test_ci_cases_are_prepared_on_the_cpu_others_on_the_device(self):
        for tags, expected in ((("ci", "full"), "cpu"), (("full",), "meta")):
            devices = []

            def prepare(x, devices=devices, **_):
                devices.append(x.device.type)
                return {"x": x}

            case = self._prepared(None, tags)[0]
            with mock.patch.object(torch, "equal"), mock.patch.object(torch.Tensor, "clone"):
                made = inputs.Inputs(case, "meta", prepare)
            self.assertEqual(devices, [expected])
            self.assertEqual(made.arguments["x"].device.type, "meta")

    def test_meta_tensors_are_prepared(self):
        case = self._prepared(None)[0]
        meta = inputs.meta(case, lambda x, n, **_: {"y": x.cumsum(-1), "m": n})
        self.assertEqual((meta["y"].device.type, meta["y"].shape), ("meta", (2, 3, 1, 8)))
        self.assertEqual(meta["m"], 3)

    def test_widened_is_exact_float64(self):
        made = _inputs("strided")[1]
        wide = made.widened()["x"]
        self.assertEqual(wide.dtype, torch.float64)
        self.assertTrue(torch.equal(wide.to(torch.bfloat16), made.arguments["x"]))


if __name__ == "__main__":
    main.main()
