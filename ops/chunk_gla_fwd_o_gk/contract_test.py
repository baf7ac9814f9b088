"""Tests of chunk_gla_fwd_o_gk's argument contract: each check with its message. No triton."""

import sys

import numpy as np
import torch
from absl.testing import absltest, parameterized

from ops.chunk_gla_fwd_o_gk import contract

_B, _T, _H, _HV, _K, _V, _C, _NT = 2, 70, 2, 4, 16, 8, 32, 3
_HALF = torch.float16


def _arguments(**changes):
    return {
        "q": torch.zeros(_B, _T, _H, _K, dtype=_HALF),
        "v": torch.zeros(_B, _T, _HV, _V, dtype=_HALF),
        "g": torch.zeros(_B, _T, _HV, _K),
        "A": torch.zeros(_B, _T, _HV, _C, dtype=_HALF),
        "h": torch.zeros(_B, _NT, _HV, _K, _V, dtype=_HALF),
        "scale": 0.25,
        "cu_seqlens": None,
        "chunk_size": _C,
        "chunk_indices": None,
        "state_v_first": False,
        "use_graph": False,
    } | changes


def _packed(values=(0, 0, 33, 60), **changes):
    tensors = {
        name: value[:1] for name, value in _arguments().items() if isinstance(value, torch.Tensor)
    }
    return _arguments(**(tensors | {"cu_seqlens": torch.tensor(values)} | changes))


_SHAPES = {
    "v": "[B, T, HV, V] = [2, 70, 4, 8]",
    "g": "[B, T, HV, K] = [2, 70, 4, 16]",
    "A": "[B, T, HV, chunk_size] = [2, 70, 4, 32]",
    "h": "[B, NT, HV, K, V] = [2, 3, 4, 16, 8]",
}
_TENSORS = ("q", *_SHAPES)


class CheckTest(parameterized.TestCase):
    def test_needs_no_triton(self):
        self.assertNotIn("triton", sys.modules)

    def _refused(self, kind, message, make=_arguments, **changes):
        with self.assertRaises(kind) as caught:
            contract.check(**make(**changes))
        self.assertEqual(str(caught.exception), message)

    def test_good_arguments(self):
        problem, inputs = contract.check(**_arguments())
        sizes = [getattr(problem, name) for name in ("B", "T", "H", "HV", "K", "V", "C", "N", "NT")]
        self.assertEqual(sizes, [_B, _T, _H, _HV, _K, _V, _C, _B, _NT])
        self.assertEqual((problem.dtype, problem.packed, problem.empty), ("float16", False, False))
        self.assertEqual(
            problem.strides,
            {
                "q": (_T * _H * _K, _H * _K, _K),
                "v": (_T * _HV * _V, _HV * _V, _V),
                "g": (_T * _HV * _K, _HV * _K, _K),
                "A": (_T * _HV * _C, _HV * _C, _C),
            },
        )
        self.assertEqual((inputs.scale, inputs.cu_seqlens), (0.25, None))
        self.assertEqual(contract.check(**_arguments(scale=None))[1].scale, 0.25)

    def test_packed_arguments(self):
        problem, inputs = contract.check(**_packed())
        self.assertEqual((problem.N, problem.NT, problem.packed), (3, 3, True))
        self.assertEqual(inputs.cu_seqlens, (0, 0, 33, 60))
        self.assertTrue(contract.check(**_packed((0, 0), h=_packed()["h"][:, :0]))[0].empty)

    @parameterized.parameters(*_TENSORS)
    def test_no_tensor(self, name):
        message = f"{name}: got ndarray, allowed: torch.Tensor"
        self._refused(TypeError, message, **{name: np.zeros(3)})
        message = f"{name}: got NoneType, allowed: torch.Tensor"
        self._refused(TypeError, message, **{name: None})
        message = f"{name}: got layout torch.sparse_coo, allowed: torch.strided"
        self._refused(TypeError, message, **{name: _arguments()[name].to_sparse()})

    @parameterized.parameters(*_SHAPES)
    def test_shapes(self, name):
        good = _arguments()[name]
        for axis in (0, 1) if name == "v" else range(good.dim()):
            wrong = torch.cat((good, good.narrow(axis, 0, 1)), axis)
            message = f"{name}: got shape {list(wrong.shape)}, allowed: {_SHAPES[name]}"
            self._refused(ValueError, message, **{name: wrong})

    @parameterized.parameters(("q", "[B, T, H, K]"), ("v", "[B, T, HV, V]"))
    def test_dimensions(self, name, axes):
        value = _arguments()[name][0]
        message = f"{name}: got 3 dimensions {list(value.shape)}, allowed: 4, {axes}"
        self._refused(ValueError, message, **{name: value})

    @parameterized.parameters(
        ("q", (_B, _T, 0, _K), "H (q.shape[2]): got 0, allowed: 1 or more"),
        ("q", (_B, _T, _H, 257), "K (q.shape[3]): got 257, allowed: 1 to 256"),
        ("v", (_B, _T, _HV, 0), "V (v.shape[3]): got 0, allowed: 1 to 256"),
        ("v", (_B, _T, 0, _V), "HV (v.shape[2]): got 0, allowed: 1 or more"),
        ("v", (_B, _T, 3, _V), "HV (v.shape[2]): got 3, allowed: multiples of H = 2 (q.shape[2])"),
    )
    def test_sizes(self, name, shape, message):
        self._refused(ValueError, message, **{name: torch.zeros(shape, dtype=_HALF)})

    def test_dtypes(self):
        floats = "torch.float16, torch.bfloat16, torch.float32"
        for name in ("q", "g"):
            message = f"{name}: got dtype torch.float64, allowed: {floats}"
            self._refused(TypeError, message, **{name: _arguments()[name].double()})
        message = "v: got dtype torch.float32, allowed: torch.float16, the dtype of q"
        self._refused(TypeError, message, v=_arguments()["v"].float())
        for name in ("A", "h"):
            value = _arguments()[name]
            message = f"{name}: got dtype torch.bfloat16, allowed: torch.float16, the dtype of q"
            self._refused(TypeError, message + " or torch.float32", **{name: value.bfloat16()})
            contract.check(**_arguments(**{name: value.float()}))

    @parameterized.parameters(*_SHAPES)
    def test_devices(self, name):
        message = f"{name}: got device meta, allowed: cpu, the device of q"
        self._refused(ValueError, message, **{name: _arguments()[name].to("meta")})

    def test_numbers_and_options(self):
        self._refused(ValueError, "chunk_size: got 16, allowed: 32 or 64", chunk_size=16)
        message = "scale: got '1' of type str, allowed: an int or a float"
        self._refused(TypeError, message, scale="1")
        message = "state_v_first: got True, allowed: False; chunk_gla_fwd_o_gk has no other"
        self._refused(NotImplementedError, message, state_v_first=True)
        with self.assertRaisesRegex(TypeError, "^chunk_gla_fwd_o_gk: got an argument 'k', allowed"):
            contract.check(**_arguments(k=None))

    def test_packings(self):
        message = "B (q.shape[0]): got 2, allowed: 1 with cu_seqlens"
        self._refused(ValueError, message, cu_seqlens=torch.tensor([0, 70]))
        message = "cu_seqlens[-1]: got 71, allowed: 0 to T = 70"
        self._refused(ValueError, message, _packed, cu_seqlens=torch.tensor([0, 71]))
        message = "chunk_indices: got a tensor, allowed: None without cu_seqlens"
        self._refused(ValueError, message, chunk_indices=torch.zeros(3, 2, dtype=torch.int64))
        message = "chunk_indices: got shape [4, 2], allowed: [chunks of cu_seqlens, 2] = [3, 2]"
        indices = torch.zeros(4, 2, dtype=torch.int64)
        self._refused(ValueError, message, _packed, chunk_indices=indices)


class LayoutTest(absltest.TestCase):
    def test_what_is_read_in_place(self):
        x = _arguments()
        inputs = contract.check(**x)[1]
        for name in ("q", "v", "g", "A"):
            self.assertIs(getattr(inputs, name), x[name])

    def test_what_is_copied(self):
        gaps = torch.zeros(_B, _T, _H, _K, 2, dtype=_HALF)[..., 0]
        self.assertEqual(contract.check(**_arguments(q=gaps))[1].q.stride(-1), 1)
        states = _arguments()["h"].mT.contiguous().mT
        self.assertTrue(contract.check(**_arguments(h=states))[1].h.is_contiguous())
        self.assertEqual(
            contract.check(**_arguments(g=gaps.repeat(1, 1, 2, 1)))[1].g.dtype, torch.float32
        )


if __name__ == "__main__":
    absltest.main()
