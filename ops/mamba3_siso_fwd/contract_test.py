"""Tests of the argument contract: each check with its message, strides, copies. No triton."""

import sys

import numpy as np
import torch
from absl.testing import absltest, parameterized

from ops.mamba3_siso_fwd import contract

_B, _S, _HQ, _H, _K, _V, _A = 2, 5, 2, 4, 16, 8, 6


def _arguments(**changes):
    half = torch.float16
    arguments = {
        "q": torch.zeros(_B, _S, _HQ, _K, dtype=half),
        "k": torch.zeros(_B, _S, _HQ, _K, dtype=half),
        "v": torch.zeros(_B, _S, _H, _V, dtype=half),
        "adt": torch.zeros(_B, _H, _S),
        "dt": torch.zeros(_B, _H, _S),
        "trap": torch.zeros(_B, _H, _S),
        "q_bias": torch.zeros(_H, _K),
        "k_bias": torch.zeros(_H, _K),
        "angles": torch.zeros(_B, _S, _H, _A),
        "d": torch.zeros(_H),
        "z": torch.zeros(_B, _S, _H, _V, dtype=half),
        "chunk_size": 64,
    }
    return arguments | changes


def _bf16(*shape):
    return torch.zeros(*shape, dtype=torch.bfloat16)


def _fp16(*shape):
    return torch.zeros(*shape, dtype=torch.float16)


_TENSORS = [name for name in _arguments() if name != "chunk_size"]
_FP32 = ("adt", "dt", "trap", "angles", "d")
_SHAPES = {
    "k": "[B, S, Hq, K] = [2, 5, 2, 16]",
    "adt": "[B, H, S] = [2, 4, 5]",
    "dt": "[B, H, S] = [2, 4, 5]",
    "trap": "[B, H, S] = [2, 4, 5]",
    "q_bias": "[H, K] = [4, 16]",
    "k_bias": "[H, K] = [4, 16]",
    "d": "[H] = [4]",
    "z": "[B, S, H, V] = [2, 5, 4, 8]",
}


class ChecksTest(parameterized.TestCase):
    def _assert_refused(self, kind, message, **changes):
        with self.assertRaises(kind) as caught:
            contract.check(**_arguments(**changes))
        self.assertEqual(str(caught.exception), message)

    def test_needs_no_triton(self):
        self.assertNotIn("triton", sys.modules)

    def test_good_arguments(self):
        problem, _ = contract.check(**_arguments())
        sizes = (problem.B, problem.S, problem.HQ, problem.H, problem.K, problem.V, problem.A)
        self.assertEqual(sizes, (_B, _S, _HQ, _H, _K, _V, _A))
        self.assertEqual((problem.dtype, problem.chunk_size), ("float16", 64))
        self.assertTrue(problem.has_d and problem.has_z)
        problem, inputs = contract.check(**_arguments(d=None, z=None, chunk_size=32))
        self.assertEqual((problem.has_d, problem.has_z, problem.chunk_size), (False, False, 32))
        self.assertIsNone(inputs.d)
        self.assertIsNone(inputs.z)

    @parameterized.parameters(
        (40, ValueError, "got 40, allowed: 32 or 64"),
        (128, ValueError, "got 128, allowed: 32 or 64"),
        (0, ValueError, "got 0, allowed: 32 or 64"),
        (64.0, TypeError, "got 64.0 of type float, allowed: the int 32 or 64"),
        (True, TypeError, "got True of type bool, allowed: the int 32 or 64"),
        ("64", TypeError, "got '64' of type str, allowed: the int 32 or 64"),
        (None, TypeError, "got None of type NoneType, allowed: the int 32 or 64"),
    )
    def test_chunk_size(self, value, kind, message):
        self._assert_refused(kind, f"chunk_size: {message}", chunk_size=value)

    @parameterized.parameters(*_TENSORS)
    def test_not_a_tensor(self, name):
        message = f"{name}: got ndarray, allowed: torch.Tensor"
        self._assert_refused(TypeError, message, **{name: np.zeros(3)})

    @parameterized.parameters(*(name for name in _TENSORS if name not in ("d", "z")))
    def test_only_d_and_z_are_optional(self, name):
        message = f"{name}: got NoneType, allowed: torch.Tensor"
        self._assert_refused(TypeError, message, **{name: None})

    @parameterized.parameters(*_TENSORS)
    def test_sparse(self, name):
        message = f"{name}: got layout torch.sparse_coo, allowed: torch.strided"
        self._assert_refused(TypeError, message, **{name: _arguments()[name].to_sparse()})

    @parameterized.parameters(torch.float32, torch.float64, torch.int16)
    def test_dtype_of_q(self, dtype):
        q = _arguments()["q"].to(dtype)
        message = f"q: got dtype {dtype}, allowed: torch.float16, torch.bfloat16"
        self._assert_refused(TypeError, message, q=q)

    @parameterized.parameters("k", "v", "z")
    def test_mixed_dtypes(self, name):
        for dtype in (torch.bfloat16, torch.float32):
            value = _arguments()[name].to(dtype)
            message = f"{name}: got dtype {dtype}, allowed: torch.float16, the dtype of q"
            self._assert_refused(TypeError, message, **{name: value})

    @parameterized.product(name=_FP32, dtype=(torch.float16, torch.float64, torch.int32))
    def test_fp32_arguments(self, name, dtype):
        value = _arguments()[name].to(dtype)
        message = f"{name}: got dtype {dtype}, allowed: torch.float32"
        self._assert_refused(TypeError, message, **{name: value})

    @parameterized.parameters("q_bias", "k_bias")
    def test_dtype_of_biases(self, name):
        for dtype in (torch.float16, torch.bfloat16, torch.float32):
            value = _arguments()[name].to(dtype)
            _, inputs = contract.check(**_arguments(**{name: value}))
            self.assertIs(getattr(inputs, name), value)
        for dtype in (torch.float64, torch.float8_e5m2):
            _, inputs = contract.check(**_arguments(**{name: _arguments()[name].to(dtype)}))
            self.assertEqual(getattr(inputs, name).dtype, torch.float32)
        for dtype in (torch.int32, torch.bool, torch.complex64):
            message = f"{name}: got dtype {dtype}, allowed: any floating-point dtype"
            value = _arguments()[name].to(dtype)
            self._assert_refused(TypeError, message, **{name: value})

    @parameterized.parameters(
        ("q", "[B, S, Hq, K]"), ("v", "[B, S, H, V]"), ("angles", "[B, S, H, A]")
    )
    def test_number_of_axes(self, name, axes):
        value = _arguments()[name][0]
        message = f"{name}: got 3 dimensions {list(value.shape)}, allowed: 4, {axes}"
        self._assert_refused(ValueError, message, **{name: value})

    @parameterized.parameters(*_SHAPES.items())
    def test_shape(self, name, allowed):
        good = _arguments()[name]
        for axis in range(good.dim()):
            wrong = torch.cat((good, good.narrow(axis, 0, 1)), axis)
            message = f"{name}: got shape {list(wrong.shape)}, allowed: {allowed}"
            self._assert_refused(ValueError, message, **{name: wrong})
        message = f"{name}: got shape {list(good[0].shape)}, allowed: {allowed}"
        self._assert_refused(ValueError, message, **{name: good[0]})

    def test_shapes_of_v_and_angles(self):
        message = "v: got shape [3, 5, 4, 8], allowed: [B, S, H, V] = [2, 5, 4, 8]"
        self._assert_refused(ValueError, message, v=_fp16(3, _S, _H, _V))
        message = "v: got shape [2, 6, 4, 8], allowed: [B, S, H, V] = [2, 5, 4, 8]"
        self._assert_refused(ValueError, message, v=_fp16(_B, 6, _H, _V))
        for shape in ((3, 5, 4, 6), (2, 6, 4, 6), (2, 5, 3, 6)):
            message = f"angles: got shape {list(shape)}, allowed: [B, S, H, A] = [2, 5, 4, 6]"
            self._assert_refused(ValueError, message, angles=torch.zeros(shape))

    def test_heads_are_a_multiple_of_groups(self):
        message = "H (v.shape[2]): got 5, allowed: multiples of Hq = 2 (q.shape[2])"
        self._assert_refused(ValueError, message, v=_fp16(_B, _S, 5, _V))

    @parameterized.parameters(0, 1, 3, 257)
    def test_range_of_k(self, k_dim):
        q = _fp16(_B, _S, _HQ, k_dim)
        message = f"K (q.shape[3]): got {k_dim}, allowed: 4 to 256"
        self._assert_refused(ValueError, message, q=q)

    @parameterized.parameters(4, 17, 256)
    def test_good_k(self, k_dim):
        q = _fp16(_B, _S, _HQ, k_dim)
        bias = torch.zeros(_H, k_dim)
        angles = torch.zeros(_B, _S, _H, k_dim // 4 * 2)
        arguments = _arguments(q=q, k=q, q_bias=bias, k_bias=bias, angles=angles)
        self.assertEqual(contract.check(**arguments)[0].A, k_dim // 4 * 2)

    @parameterized.parameters(1, 3, 10, 16)
    def test_range_of_a(self, pairs):
        message = (
            f"A (angles.shape[3]): got {pairs}, allowed: even numbers from 0 to K // 2 = {_K // 2}"
        )
        self._assert_refused(ValueError, message, angles=torch.zeros(_B, _S, _H, pairs))

    def test_sizes_that_must_not_be_zero(self):
        message = "Hq (q.shape[2]): got 0, allowed: 1 or more"
        self._assert_refused(ValueError, message, q=_fp16(_B, _S, 0, _K))
        message = "H (v.shape[2]): got 0, allowed: 1 or more"
        self._assert_refused(ValueError, message, v=_fp16(_B, _S, 0, _V))
        message = "V (v.shape[3]): got 0, allowed: 1 or more"
        self._assert_refused(ValueError, message, v=_fp16(_B, _S, _H, 0))

    @parameterized.parameters(*(name for name in _TENSORS if name != "q"))
    def test_mixed_devices(self, name):
        message = f"{name}: got device meta, allowed: cpu, the device of q"
        self._assert_refused(ValueError, message, **{name: _arguments()[name].to("meta")})

    def test_bf16(self):
        arguments = _arguments(
            q=_bf16(_B, _S, _HQ, _K),
            k=_bf16(_B, _S, _HQ, _K),
            v=_bf16(_B, _S, _H, _V),
            z=_bf16(_B, _S, _H, _V),
        )
        self.assertEqual(contract.check(**arguments)[0].dtype, "bfloat16")


class LayoutTest(parameterized.TestCase):
    @parameterized.parameters("q", "k", "v", "z", "angles")
    def test_views_with_rows_are_used_in_place(self, name):
        good = _arguments()[name]
        b, s, heads, columns = good.shape
        wide = torch.zeros(b, s + 1, heads + 2, columns + 3, dtype=good.dtype)
        view = wide[:, 1:, 1:-1, 2:-1]
        problem, inputs = contract.check(**_arguments(**{name: view}))
        self.assertIs(getattr(inputs, name), view)
        self.assertEqual(getattr(problem.strides, name), view.stride()[:3])
        swapped = torch.zeros(b, heads, s, columns, dtype=good.dtype).transpose(1, 2)
        problem, inputs = contract.check(**_arguments(**{name: swapped}))
        self.assertIs(getattr(inputs, name), swapped)
        self.assertEqual(getattr(problem.strides, name), swapped.stride()[:3])

    @parameterized.parameters("adt", "dt", "trap")
    def test_gates_are_used_in_place(self, name):
        view = torch.zeros(_B, _H + 1, _S + 2)[:, 1:, 1:-1]
        problem, inputs = contract.check(**_arguments(**{name: view}))
        self.assertIs(getattr(inputs, name), view)
        self.assertEqual(getattr(problem.strides, name), view.stride()[:2])

    @parameterized.parameters(*(name for name in _TENSORS if name != "d"))
    def test_rows_with_gaps_are_copied(self, name):
        good = _arguments()[name]
        view = torch.zeros(*good.shape[:-1], 2 * good.shape[-1], dtype=good.dtype)[..., ::2]
        problem, inputs = contract.check(**_arguments(**{name: view}))
        self.assertTrue(getattr(inputs, name).is_contiguous())
        self.assertEqual(problem, contract.check(**_arguments())[0])

    @parameterized.parameters(_TENSORS)
    def test_lazily_negated_views_are_materialised(self, name):
        # What .imag of a conjugate is: torch negates when it reads, a kernel would not.
        good = _arguments()[name]
        good = torch.arange(1, good.numel() + 1, dtype=good.dtype).reshape(good.shape)
        _, inputs = contract.check(**_arguments(**{name: torch._neg_view(good)}))
        checked = getattr(inputs, name)
        self.assertFalse(checked.is_neg())
        self.assertTrue(torch.equal(checked, -good))

    def test_strides_of_d_and_biases(self):
        d = torch.zeros(3 * _H)[::3]
        bias = torch.zeros(_H, _K + 1)[:, 1:]
        problem, inputs = contract.check(**_arguments(d=d, q_bias=bias))
        self.assertIs(inputs.d, d)
        self.assertIs(inputs.q_bias, bias)
        strides = problem.strides
        self.assertEqual((strides.d, strides.q_bias, strides.k_bias), (3, _K + 1, _K))

    def test_odd_strides_of_axes_of_size_1_do_not_show(self):
        def odd(*shape, dtype=torch.float32):
            strides = [
                7 if size == 1 else stride
                for size, stride in zip(shape, _dense(shape), strict=True)
            ]
            return torch.zeros(1000, dtype=dtype).as_strided(shape, strides)

        half = torch.float16
        shapes = {
            "q": ((1, 1, 1, 16), half),
            "k": ((1, 1, 1, 16), half),
            "v": ((1, 1, 1, 8), half),
            "adt": ((1, 1, 1), torch.float32),
            "dt": ((1, 1, 1), torch.float32),
            "trap": ((1, 1, 1), torch.float32),
            "q_bias": ((1, 16), torch.float32),
            "k_bias": ((1, 16), torch.float32),
            "angles": ((1, 1, 1, 8), torch.float32),
            "d": ((1,), torch.float32),
            "z": ((1, 1, 1, 8), half),
        }
        plain = {name: torch.zeros(shape, dtype=dtype) for name, (shape, dtype) in shapes.items()}
        view = {name: odd(*shape, dtype=dtype) for name, (shape, dtype) in shapes.items()}
        problem, inputs = contract.check(**view, chunk_size=64)
        self.assertEqual(problem, contract.check(**plain, chunk_size=64)[0])
        for name, tensor in view.items():
            self.assertIs(getattr(inputs, name), tensor)
        self.assertEqual(problem.strides.q, (0, 16, 16))

    def test_no_rotation_and_no_tokens(self):
        problem, _ = contract.check(**_arguments(angles=torch.zeros(_B, _S, _H, 0)))
        self.assertEqual((problem.A, problem.strides.angles), (0, (0, 0, 0)))
        empty = {
            name: value[:, :0] if name in ("q", "k", "v", "z", "angles") else value[..., :0]
            for name, value in _arguments().items()
            if name in ("q", "k", "v", "z", "angles", "adt", "dt", "trap")
        }
        self.assertTrue(contract.check(**_arguments(**empty))[0].empty)


def _dense(shape):
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return strides


if __name__ == "__main__":
    absltest.main()
