"""Tests of ops.common.checks: what passes, and the whole message of what does not."""

import numpy as np
import torch
from absl.testing import absltest, parameterized
from torch.autograd import forward_ad

from ops.common import checks


class ChecksTest(parameterized.TestCase):
    def _assert_raises(self, kind, message, check, *args):
        with self.assertRaises(kind) as caught:
            check(*args)
        self.assertEqual(str(caught.exception), message)

    def test_tensor(self):
        x = torch.zeros(2)
        self.assertIs(checks.check_tensor("x", x), x)
        message = "x: got ndarray, allowed: torch.Tensor"
        self._assert_raises(TypeError, message, checks.check_tensor, "x", np.zeros(2))
        message = "x: got NoneType, allowed: torch.Tensor"
        self._assert_raises(TypeError, message, checks.check_tensor, "x", None)

    def test_dtype(self):
        x = torch.zeros(2)
        checks.check_dtype("x", x, (torch.float16, torch.float32))
        self._assert_raises(
            TypeError,
            "x: got dtype torch.float32, allowed: torch.float16, torch.bfloat16",
            checks.check_dtype,
            "x",
            x,
            (torch.float16, torch.bfloat16),
        )

    def test_floating(self):
        for dtype in (torch.float16, torch.float64, torch.float8_e4m3fn):
            checks.check_floating("x", torch.zeros(2).to(dtype))
        message = "x: got dtype torch.int32, allowed: any floating-point dtype"
        x = torch.zeros(2, dtype=torch.int32)
        self._assert_raises(TypeError, message, checks.check_floating, "x", x)

    def test_dims(self):
        checks.check_dims("x", torch.zeros(2, 3), "[B, S]")
        message = "x: got 2 dimensions [2, 3], allowed: 3, [B, S, H]"
        x = torch.zeros(2, 3)
        self._assert_raises(ValueError, message, checks.check_dims, "x", x, "[B, S, H]")

    def test_shape(self):
        x = torch.zeros(2, 3)
        checks.check_shape("x", x, (2, 3), "[B, S]")
        message = "x: got shape [2, 3], allowed: [B, S] = [2, 4]"
        self._assert_raises(ValueError, message, checks.check_shape, "x", x, (2, 4), "[B, S]")

    def test_same_device(self):
        x = torch.zeros(1, device="meta")
        checks.check_same_device("x", x, torch.device("meta"), "q")
        message = "x: got device meta, allowed: cpu, the device of q"
        cpu = torch.device("cpu")
        self._assert_raises(ValueError, message, checks.check_same_device, "x", x, cpu, "q")

    def test_strided(self):
        checks.check_strided("x", torch.zeros(2, 2).t())
        message = "x: got layout torch.sparse_coo, allowed: torch.strided"
        x = torch.zeros(2, 2).to_sparse()
        self._assert_raises(TypeError, message, checks.check_strided, "x", x)

    def test_written(self):
        x = torch.ones(2, dtype=torch.complex64)
        checks.check_written("x", x)
        for bit, view in (("conjugate", x.conj()), ("negative", x.conj().imag)):
            message = (
                f"x: got a view with PyTorch's {bit} bit, which cannot be written in place; "
                "allowed: views without it"
            )
            self._assert_raises(ValueError, message, checks.check_written, "x", view)

    def test_range(self):
        for value in (1, 4, 9):
            checks.check_range("n", value, 1, 9)
        checks.check_range("n", 10**12, 1)
        message = "n: got 0, allowed: 1 to 9"
        self._assert_raises(ValueError, message, checks.check_range, "n", 0, 1, 9)
        message = "n: got 10, allowed: 1 to 9"
        self._assert_raises(ValueError, message, checks.check_range, "n", 10, 1, 9)
        message = "n: got 0, allowed: 1 or more"
        self._assert_raises(ValueError, message, checks.check_range, "n", 0, 1)

    def test_choice(self):
        checks.check_choice("n", 32, (32, 64))
        message = "n: got 40, allowed: 32 or 64"
        self._assert_raises(ValueError, message, checks.check_choice, "n", 40, (32, 64))
        message = "n: got an int of 16610 bits, allowed: 32 or 64"
        self._assert_raises(ValueError, message, checks.check_choice, "n", 10**5000, (32, 64))

    @parameterized.parameters(
        (64.0, "64.0 of type float"),
        (True, "True of type bool"),
        ("64", "'64' of type str"),
        (None, "None of type NoneType"),
    )
    def test_choice_takes_ints_only(self, value, got):
        message = f"n: got {got}, allowed: the int 32 or 64"
        self._assert_raises(TypeError, message, checks.check_choice, "n", value, (32, 64))

    def test_bool(self):
        for value in (True, False):
            checks.check_bool("b", value)
        for value, got in ((1, "1 of type int"), (None, "None of type NoneType")):
            message = f"b: got {got}, allowed: a bool"
            self._assert_raises(TypeError, message, checks.check_bool, "b", value)

    def test_number(self):
        for value in (0, -3, 0.5, np.float64(2)):
            self.assertEqual(checks.check_number("x", value), value)
            self.assertIs(type(checks.check_number("x", 3)), float)
        for value, got in ((True, "True of type bool"), ("1", "'1' of type str")):
            message = f"x: got {got}, allowed: an int or a float"
            self._assert_raises(TypeError, message, checks.check_number, "x", value)
        largest = 2.0**128 - 2.0**104
        self.assertEqual(checks.check_number("x", -largest), -largest)
        for value, got in (
            (float("nan"), "nan"),
            (-float("inf"), "-inf"),
            (1e39, "1e+39"),
            (np.nextafter(largest, 1e39), str(np.nextafter(largest, 1e39))),
            (-(2**128), str(-(2**128))),
            (10**400, "an int of 1329 bits"),
            (-(10**5000), "an int of 16610 bits"),
        ):
            message = (
                f"x: got {got}, allowed: finite float32 numbers, -3.4028235e+38 to 3.4028235e+38"
            )
            self._assert_raises(ValueError, message, checks.check_number, "x", value)

    def test_dtype_of(self):
        x = torch.zeros(2)
        half = torch.float16
        checks.check_dtype_of("x", x, "q", torch.float32)
        checks.check_dtype_of("x", x, "q", half, (torch.float32,))
        message = "x: got dtype torch.float32, allowed: torch.float16, the dtype of q"
        self._assert_raises(TypeError, message, checks.check_dtype_of, "x", x, "q", half)
        also = (half, torch.bfloat16)
        message += " or torch.bfloat16"
        self._assert_raises(TypeError, message, checks.check_dtype_of, "x", x, "q", half, also)

    def test_options(self):
        only = {"graph": False, "context": None}
        checks.check_options("f", {}, only)
        checks.check_options("f", {"graph": False, "context": None}, only)
        message = "f: got an argument 'grph', allowed beside its own: graph, context"
        self._assert_raises(TypeError, message, checks.check_options, "f", {"grph": False}, only)
        message = "f: got an argument 'w', allowed beside its own: kept, graph, context"
        options = ("f", {"w": 1}, only, ("kept",))
        self._assert_raises(TypeError, message, checks.check_options, *options)
        for name, value, got, default in (
            ("graph", True, "True", "False"),
            ("graph", 0, "0", "False"),
            ("context", torch.zeros(2), "Tensor", "None"),
        ):
            message = f"{name}: got {got}, allowed: {default}; f has no other"
            self._assert_raises(
                NotImplementedError, message, checks.check_options, "f", {name: value}, only
            )

    def test_no_gradients(self):
        x = torch.zeros(2)
        wanted = torch.zeros(2, requires_grad=True)
        checks.check_no_gradients("f", [("x", x), ("y", None)])
        with torch.no_grad():
            checks.check_no_gradients("f", [("x", wanted)])
        message = (
            "y: got a tensor that requires a gradient, but f has no backward; "
            "allowed: tensors after detach(), or a call under torch.no_grad()"
        )
        tensors = [("x", x), ("y", wanted)]
        self._assert_raises(NotImplementedError, message, checks.check_no_gradients, "f", tensors)

    def test_no_tangents(self):
        x = torch.ones(2)
        checks.check_no_tangents("f", {"x": x, "n": None, "s": 1.0})
        with forward_ad.dual_level():
            arguments = {"x": x, "s": 1.0, "y": forward_ad.make_dual(x, x)}
            message = (
                "y: got a tensor with a tangent, but f has no forward-mode derivative; "
                "allowed: tensors without one"
            )
            self._assert_raises(
                NotImplementedError, message, checks.check_no_tangents, "f", arguments
            )


if __name__ == "__main__":
    absltest.main()
