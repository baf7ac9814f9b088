"""Tests of the two argument contracts: each check with its message, strides, copies. No triton."""

import sys

import numpy as np
import torch
from absl.testing import absltest, parameterized

from ops.chunk_kda import contract
from ops.chunk_kda import problem as problem_lib

_B, _T, _H, _HV, _K, _V, _C, _NT = 2, 70, 2, 4, 16, 8, 32, 3
_HALF = torch.float16


def _half(*shape):
    return torch.zeros(*shape, dtype=_HALF)


def _bwd(**changes):
    """The arguments as FLA's autograd function passes them, with a given gate."""
    arguments = {
        "q": _half(_B, _T, _H, _K),
        "k": _half(_B, _T, _H, _K),
        "v": _half(_B, _T, _HV, _V),
        "beta": torch.zeros(_B, _T, _HV),
        "Aqk": _half(_B, _T, _HV, _C),
        "Akk": _half(_B, _T, _HV, _C),
        "scale": 0.25,
        "initial_state": torch.zeros(_B, _HV, _K, _V),
        "do": _half(_B, _T, _HV, _V),
        "dht": torch.zeros(_B, _HV, _K, _V),
        "g": torch.zeros(_B, _T, _HV, _K),
        "g_org": None,
        "state_v_first": False,
        "cu_seqlens": None,
        "chunk_indices": None,
        "chunk_size": _C,
        "safe_gate": False,
        "lower_bound": None,
        "use_gate_in_kernel": False,
        "A_log": None,
        "dt_bias": None,
        "disable_recompute": False,
        "cp_context": None,
        "w": None,
        "u": None,
        "qg": None,
        "kg": None,
        "v_new": None,
        "h": None,
        "use_graph": False,
        "chunk_offsets": None,
    }
    return arguments | changes


def _in_kernel(**changes):
    arguments = {
        "g": None,
        "g_org": _half(_B, _T, _HV, _K),
        "A_log": torch.zeros(_HV),
        "dt_bias": torch.zeros(_HV * _K),
        "use_gate_in_kernel": True,
    }
    return _bwd(**(arguments | changes))


def _kept(**changes):
    arguments = {
        "v_new": _half(_B, _T, _HV, _V),
        "h": _half(_B, _NT, _HV, _K, _V),
        "disable_recompute": True,
    }
    return _bwd(**(arguments | changes))


def _packed(cu_seqlens=(0, 0, 33, 60), dtype=torch.int64, **changes):
    """All of _bwd's tensors with B = 1."""
    arguments = _bwd()
    for name, value in arguments.items():
        if isinstance(value, torch.Tensor) and name not in ("initial_state", "dht"):
            arguments[name] = value[:1]
    n = len(cu_seqlens) - 1
    arguments |= {name: torch.zeros(n, _HV, _K, _V) for name in ("initial_state", "dht")}
    arguments["cu_seqlens"] = torch.tensor(cu_seqlens, dtype=dtype)
    return arguments | changes


def _wy(**changes):
    arguments = {
        "q": _half(_B, _T, _H, _K),
        "k": _half(_B, _T, _H, _K),
        "v": _half(_B, _T, _HV, _V),
        "v_new": _half(_B, _T, _HV, _V),
        "g": torch.zeros(_B, _T, _HV, _K),
        "beta": torch.zeros(_B, _T, _HV),
        "A": _half(_B, _T, _HV, _C),
        "h": _half(_B, _NT, _HV, _K, _V),
        "do": _half(_B, _T, _HV, _V),
        "dh": _half(_B, _NT, _HV, _K, _V),
        "dv": _half(_B, _T, _HV, _V),
        "scale": None,
        "cu_seqlens": None,
        "chunk_size": _C,
        "chunk_indices": None,
        "chunk_offsets": None,
        "state_v_first": False,
        "use_graph": False,
    }
    return arguments | changes


_TOKENS = {
    "v": "[B, T, HV, V] = [2, 70, 4, 8]",
    "k": "[B, T, H, K] = [2, 70, 2, 16]",
    "do": "[B, T, HV, V] = [2, 70, 4, 8]",
    "beta": "[B, T, HV] = [2, 70, 4]",
    "g": "[B, T, HV, K] = [2, 70, 4, 16]",
}
_BWD_SHAPES = _TOKENS | {
    "Aqk": "[B, T, HV, chunk_size] = [2, 70, 4, 32]",
    "Akk": "[B, T, HV, chunk_size] = [2, 70, 4, 32]",
    "initial_state": "[N, HV, K, V] = [2, 4, 16, 8]",
    "dht": "[N, HV, K, V] = [2, 4, 16, 8]",
}
_WY_SHAPES = _TOKENS | {
    "v_new": "[B, T, HV, V] = [2, 70, 4, 8]",
    "dv": "[B, T, HV, V] = [2, 70, 4, 8]",
    "A": "[B, T, HV, chunk_size] = [2, 70, 4, 32]",
    "h": "[B, NT, HV, K, V] = [2, 3, 4, 16, 8]",
    "dh": "[B, NT, HV, K, V] = [2, 3, 4, 16, 8]",
}
_OPTIONAL = ("initial_state", "dht")
_FUNCTIONS = {
    contract.BWD: (contract.check_bwd, _bwd, _BWD_SHAPES),
    contract.WY: (contract.check_wy, _wy, _WY_SHAPES),
}
_BWD_NAMES = ("q", *_BWD_SHAPES)
_WY_NAMES = ("q", *_WY_SHAPES)
_EACH = tuple((contract.BWD, name) for name in _BWD_NAMES) + tuple(
    (contract.WY, name) for name in _WY_NAMES
)

_NUMBERS = "finite float32 numbers, -3.4028235e+38 to 3.4028235e+38"


class _TestCase(parameterized.TestCase):
    def assert_refused(self, kind, message, arguments, check=contract.check_bwd):
        with self.assertRaises(kind) as caught:
            check(**arguments)
        self.assertEqual(str(caught.exception), message)


class SharedChecksTest(_TestCase):
    """What both functions check alike."""

    def test_needs_no_triton(self):
        self.assertNotIn("triton", sys.modules)

    def _refused(self, function, kind, message, **changes):
        check, arguments, _ = _FUNCTIONS[function]
        self.assert_refused(kind, message, arguments(**changes), check)

    @parameterized.parameters(*_FUNCTIONS)
    def test_good_arguments(self, function):
        check, arguments, _ = _FUNCTIONS[function]
        problem, inputs = check(**arguments())
        sizes = [getattr(problem, name) for name in ("B", "T", "H", "HV", "K", "V", "C", "N", "NT")]
        self.assertEqual(sizes, [_B, _T, _H, _HV, _K, _V, _C, _B, _NT])
        self.assertEqual((problem.dtype, problem.beta_dtype), ("float16", "float32"))
        self.assertEqual((problem.group, problem.chunks, problem.empty), (2, _B * _NT, False))
        self.assertEqual((problem.packed, problem.slack, problem.gate), (False, False, "given"))
        self.assertEqual(inputs.scale, 0.25)  # 16^-0.5 too
        self.assertIsNone(inputs.cu_seqlens)
        given = {n: t for n, t in arguments().items() if isinstance(t, torch.Tensor)}
        self.assertEqual(set(inputs.tensors()), set(given))

    @parameterized.product(
        function=tuple(_FUNCTIONS),
        value=(
            (40, ValueError, "got 40"),
            (128, ValueError, "got 128"),
            (64.0, TypeError, "got 64.0 of type float"),
            (True, TypeError, "got True of type bool"),
            (None, TypeError, "got None of type NoneType"),
        ),
    )
    def test_chunk_size(self, function, value):
        value, kind, got = value
        the = "the int " if kind is TypeError else ""
        message = f"chunk_size: {got}, allowed: {the}32 or 64"
        self._refused(function, kind, message, chunk_size=value)

    @parameterized.parameters(*_EACH)
    def test_not_a_tensor(self, function, name):
        message = f"{name}: got ndarray, allowed: torch.Tensor"
        self._refused(function, TypeError, message, **{name: np.zeros(3)})

    @parameterized.parameters(*((f, n) for f, n in _EACH if n not in (*_OPTIONAL, "g")))
    def test_missing(self, function, name):
        message = f"{name}: got NoneType, allowed: torch.Tensor"
        self._refused(function, TypeError, message, **{name: None})

    @parameterized.parameters(*_EACH)
    def test_sparse(self, function, name):
        value = _FUNCTIONS[function][1]()[name].to_sparse()
        message = f"{name}: got layout torch.sparse_coo, allowed: torch.strided"
        self._refused(function, TypeError, message, **{name: value})

    @parameterized.parameters(*((f, n) for f, n in _EACH if n != "q"))
    def test_shape(self, function, name):
        good, allowed = _FUNCTIONS[function][1]()[name], _FUNCTIONS[function][2][name]
        axes = range(good.dim())
        if name == "v":
            axes = (0, 1)  # HV and V are whatever v says
        for axis in axes:
            wrong = torch.cat((good, good.narrow(axis, 0, 1)), axis)
            message = f"{name}: got shape {list(wrong.shape)}, allowed: {allowed}"
            self._refused(function, ValueError, message, **{name: wrong})

    @parameterized.product(
        function=tuple(_FUNCTIONS), name=(("q", "[B, T, H, K]"), ("v", "[B, T, HV, V]"))
    )
    def test_number_of_axes(self, function, name):
        name, axes = name
        value = _FUNCTIONS[function][1]()[name][0]
        message = f"{name}: got 3 dimensions {list(value.shape)}, allowed: 4, {axes}"
        self._refused(function, ValueError, message, **{name: value})

    @parameterized.product(function=tuple(_FUNCTIONS), width=(0, 257))
    def test_widths(self, function, width):
        message = f"K (q.shape[3]): got {width}, allowed: 1 to 256"
        self._refused(function, ValueError, message, q=_half(_B, _T, _H, width))
        message = f"V (v.shape[3]): got {width}, allowed: 1 to 256"
        self._refused(function, ValueError, message, v=_half(_B, _T, _HV, width))

    @parameterized.parameters(*_FUNCTIONS)
    def test_heads(self, function):
        message = "H (q.shape[2]): got 0, allowed: 1 or more"
        self._refused(function, ValueError, message, q=_half(_B, _T, 0, _K))
        message = "HV (v.shape[2]): got 0, allowed: 1 or more"
        self._refused(function, ValueError, message, v=_half(_B, _T, 0, _V))
        message = "HV (v.shape[2]): got 5, allowed: multiples of H = 2 (q.shape[2])"
        self._refused(function, ValueError, message, v=_half(_B, _T, 5, _V))

    @parameterized.product(function=tuple(_FUNCTIONS), dtype=(torch.float64, torch.int16))
    def test_dtypes(self, function, dtype):
        any_of = "torch.float16, torch.bfloat16, torch.float32"
        for name in ("q", "beta", "g"):
            value = _FUNCTIONS[function][1]()[name].to(dtype)
            message = f"{name}: got dtype {dtype}, allowed: {any_of}"
            self._refused(function, TypeError, message, **{name: value})

    @parameterized.parameters(*((f, n) for f, n in _EACH if n in ("k", "v", "v_new", "do", "dv")))
    def test_dtypes_of_q(self, function, name):
        for dtype in (torch.bfloat16, torch.float32):
            value = _FUNCTIONS[function][1]()[name].to(dtype)
            message = f"{name}: got dtype {dtype}, allowed: torch.float16, the dtype of q"
            self._refused(function, TypeError, message, **{name: value})

    @parameterized.parameters(*((f, n) for f, n in _EACH if n in ("Aqk", "Akk", "A")))
    def test_dtypes_of_scores(self, function, name):
        check, arguments, _ = _FUNCTIONS[function]
        value = arguments()[name]
        self.assertIs(getattr(check(**arguments(**{name: value}))[1], name), value)
        single = check(**arguments(**{name: value.float()}))[0]
        self.assertEqual(
            getattr(single, "Akk_dtype" if name == "A" else f"{name}_dtype"), "float32"
        )
        message = (
            f"{name}: got dtype torch.bfloat16, allowed: torch.float16, the dtype of q "
            "or torch.float32"
        )
        self._refused(function, TypeError, message, **{name: value.bfloat16()})

    @parameterized.parameters(*((f, n) for f, n in _EACH if n != "q"))
    def test_mixed_devices(self, function, name):
        value = _FUNCTIONS[function][1]()[name].to("meta")
        message = f"{name}: got device meta, allowed: cpu, the device of q"
        self._refused(function, ValueError, message, **{name: value})

    @parameterized.product(
        function=tuple(_FUNCTIONS),
        option=(
            ("state_v_first", True, "True", "False"),
            ("transpose_state_layout", True, "True", "False"),
            ("use_graph", True, "True", "False"),
            ("cp_context", object(), "object", "None"),
            ("chunk_offsets", torch.zeros(2), "Tensor", "None"),
        ),
    )
    def test_options_that_are_missing(self, function, option):
        name, value, got, default = option
        message = f"{name}: got {got}, allowed: {default}; {function} has no other"
        self._refused(function, NotImplementedError, message, **{name: value})

    def test_unknown_arguments(self):
        options = "state_v_first, transpose_state_layout, cp_context, use_graph, chunk_offsets"
        message = f"{contract.WY}: got an argument 'gg', allowed beside its own: {options}"
        self._refused(contract.WY, TypeError, message, gg=None)
        message = (
            f"{contract.BWD}: got an argument 'gg', allowed beside its own: "
            f"w, u, qg, kg, v_new, h, {options}"
        )
        self._refused(contract.BWD, TypeError, message, gg=None)

    @parameterized.product(
        function=tuple(_FUNCTIONS),
        value=(
            ("1", TypeError, "got '1' of type str, allowed: an int or a float"),
            (True, TypeError, "got True of type bool, allowed: an int or a float"),
            (float("nan"), ValueError, f"got nan, allowed: {_NUMBERS}"),
            (float("inf"), ValueError, f"got inf, allowed: {_NUMBERS}"),
            (-1e39, ValueError, f"got -1e+39, allowed: {_NUMBERS}"),
        ),
    )
    def test_scale(self, function, value):
        value, kind, message = value
        self._refused(function, kind, f"scale: {message}", scale=value)

    @parameterized.parameters(*_FUNCTIONS)
    def test_good_scales(self, function):
        check, arguments, _ = _FUNCTIONS[function]
        for value, expected in ((0, 0.0), (-2.5, -2.5), (None, 0.25)):
            self.assertEqual(check(**arguments(scale=value))[1].scale, expected)


class GateTest(_TestCase):
    def test_given(self):
        problem, inputs = contract.check_bwd(**_bwd(lower_bound=-7, safe_gate=True))
        self.assertEqual((problem.gate, problem.g_org_dtype), ("given", ""))
        self.assertFalse(problem.computes_gate)
        self.assertIsNone(inputs.lower_bound)
        message = "g: got None, allowed: a tensor with use_gate_in_kernel=False"
        self.assert_refused(ValueError, message, _bwd(g=None))
        for name in ("g_org", "A_log", "dt_bias"):
            message = f"{name}: got Tensor, allowed: None with use_gate_in_kernel=False"
            self.assert_refused(ValueError, message, _bwd(**{name: _in_kernel()[name]}))

    def test_softplus(self):
        for dtype in (torch.float16, torch.bfloat16, torch.float32):
            g_org = _in_kernel()["g_org"].to(dtype)
            problem, inputs = contract.check_bwd(**_in_kernel(g_org=g_org))
            self.assertEqual(problem.gate, "softplus")
            self.assertEqual(problem.g_org_dtype, str(dtype).removeprefix("torch."))
            self.assertTrue(problem.computes_gate and problem.has_A_log and problem.has_dt_bias)
            self.assertIs(inputs.g_org, g_org)
            self.assertIsNone(inputs.g)
        self.assertFalse(contract.check_bwd(**_in_kernel(dt_bias=None))[0].has_dt_bias)

    def test_bounded(self):
        problem, inputs = contract.check_bwd(**_in_kernel(lower_bound=-5, safe_gate=True))
        self.assertEqual((problem.gate, inputs.lower_bound), ("bounded", -5.0))
        problem, _ = contract.check_bwd(**_in_kernel(lower_bound=-0.5, A_log=None))
        self.assertFalse(problem.has_A_log)
        for value in (-5.1, 0, 1.0):
            message = f"lower_bound: got {float(value)}, allowed: a number in [-5, 0)"
            self.assert_refused(ValueError, message, _in_kernel(lower_bound=value))
        message = "lower_bound: got '-5' of type str, allowed: an int or a float"
        self.assert_refused(TypeError, message, _in_kernel(lower_bound="-5"))

    def test_what_belongs_together(self):
        message = "g_org: got None, allowed: a tensor with use_gate_in_kernel=True"
        self.assert_refused(ValueError, message, _in_kernel(g_org=None))
        message = (
            "A_log: got None, allowed: a tensor with use_gate_in_kernel=True and no lower_bound"
        )
        self.assert_refused(ValueError, message, _in_kernel(A_log=None))
        message = (
            "lower_bound: got None, allowed: a number in [-5, 0) with safe_gate=True and "
            "use_gate_in_kernel=True"
        )
        self.assert_refused(ValueError, message, _in_kernel(safe_gate=True))
        message = "g: got None, allowed: a tensor with disable_recompute=True"
        kept = {name: _kept()[name] for name in ("v_new", "h", "disable_recompute")}
        self.assert_refused(ValueError, message, _in_kernel(**kept))

    def test_a_given_g_is_computed_anew(self):
        self.assertIsNone(contract.check_bwd(**_in_kernel(g=_bwd()["g"]))[1].g)

    @parameterized.parameters("safe_gate", "use_gate_in_kernel", "disable_recompute")
    def test_flags(self, name):
        message = f"{name}: got 1 of type int, allowed: a bool"
        self.assert_refused(TypeError, message, _bwd(**{name: 1}))

    @parameterized.parameters(
        ("A_log", (_HV + 1,), "[HV] = [4]"),
        ("A_log", (1, _HV), "[HV] = [4]"),
        ("dt_bias", (_HV, _K), "[HV * K] = [64]"),
        ("g_org", (_B, _T, _H, _K), "[B, T, HV, K] = [2, 70, 4, 16]"),
    )
    def test_shapes(self, name, shape, allowed):
        message = f"{name}: got shape {list(shape)}, allowed: {allowed}"
        self.assert_refused(ValueError, message, _in_kernel(**{name: torch.zeros(shape)}))

    @parameterized.parameters("A_log", "dt_bias", "initial_state", "dht")
    def test_fp32_arguments(self, name):
        for dtype in (torch.float16, torch.float64):
            message = f"{name}: got dtype {dtype}, allowed: torch.float32"
            value = _in_kernel()[name].to(dtype)
            self.assert_refused(TypeError, message, _in_kernel(**{name: value}))

    def test_dtype_of_g_org(self):
        message = (
            "g_org: got dtype torch.float64, allowed: torch.float16, torch.bfloat16, torch.float32"
        )
        g_org = _in_kernel()["g_org"].double()
        self.assert_refused(TypeError, message, _in_kernel(g_org=g_org))


class SavedTest(_TestCase):
    def test_used_only_without_recomputation(self):
        problem, inputs = contract.check_bwd(**_kept(w=_half(3), qg="anything"))
        self.assertFalse(problem.recompute)
        self.assertEqual(inputs.h.shape, (_B, _NT, _HV, _K, _V))
        problem, inputs = contract.check_bwd(**_kept(disable_recompute=False, h=_half(3)))
        self.assertTrue(problem.recompute)
        self.assertIsNone(inputs.h)
        self.assertIsNone(inputs.v_new)

    @parameterized.parameters("v_new", "h")
    def test_needed_then(self, name):
        message = f"{name}: got None, allowed: a tensor with disable_recompute=True"
        self.assert_refused(ValueError, message, _kept(**{name: None}))
        message = f"{name}: got dtype torch.float32, allowed: torch.float16, the dtype of q"
        self.assert_refused(TypeError, message, _kept(**{name: _kept()[name].float()}))

    def test_shape_of_h(self):
        message = "h: got shape [2, 2, 4, 16, 8], allowed: [B, NT, HV, K, V] = [2, 3, 4, 16, 8]"
        self.assert_refused(ValueError, message, _kept(h=_half(_B, 2, _HV, _K, _V)))

    def test_gate_in_the_kernel(self):
        kept = {name: _kept()[name] for name in ("v_new", "h", "g", "disable_recompute")}
        problem, inputs = contract.check_bwd(**_in_kernel(**kept))
        self.assertFalse(problem.computes_gate)
        self.assertIsNotNone(inputs.g)


class PackedTest(_TestCase):
    @parameterized.product(
        dtype=(torch.int32, torch.int64),
        values=(((0, 0, 33, 60), 3, True), ((0, 70), 3, False), ((0, 0), 0, True)),
    )
    def test_good(self, dtype, values):
        bounds, num_chunks, slack = values
        problem, inputs = contract.check_bwd(**_packed(bounds, dtype))
        self.assertEqual((problem.B, problem.N, problem.NT), (1, len(bounds) - 1, num_chunks))
        self.assertEqual((problem.packed, problem.slack), (True, slack))
        self.assertEqual(problem.empty, not num_chunks)
        self.assertEqual(inputs.cu_seqlens, bounds)

    def test_chunk_indices(self):
        for dtype in (torch.int32, torch.int64):
            indices = torch.zeros(3, 2, dtype=dtype)
            contract.check_bwd(**_packed(chunk_indices=indices))
        message = "chunk_indices: got shape [4, 2], allowed: [chunks of cu_seqlens, 2] = [3, 2]"
        indices = torch.zeros(4, 2, dtype=torch.int32)
        self.assert_refused(ValueError, message, _packed(chunk_indices=indices))
        message = "chunk_indices: got dtype torch.float32, allowed: torch.int32, torch.int64"
        self.assert_refused(TypeError, message, _packed(chunk_indices=torch.zeros(3, 2)))
        message = "chunk_indices: got list, allowed: torch.Tensor"
        self.assert_refused(TypeError, message, _packed(chunk_indices=[[0, 0]]))
        message = "chunk_indices: got a tensor, allowed: None without cu_seqlens"
        self.assert_refused(ValueError, message, _bwd(chunk_indices=indices))

    @parameterized.parameters(
        ((1, 60), "cu_seqlens[0]: got 1, allowed: 0"),
        ((0, 40, 33), "cu_seqlens[2]: got 33, allowed: 40 (the one before) or more"),
        ((0, 71), "cu_seqlens[-1]: got 71, allowed: 0 to T = 70"),
        ((0,), "cu_seqlens: got 1 entries, allowed: 2 or more, [N + 1]"),
    )
    def test_values(self, values, message):
        self.assert_refused(ValueError, message, _packed(values))

    def test_what_cu_seqlens_is(self):
        message = "cu_seqlens: got tuple, allowed: torch.Tensor"
        self.assert_refused(TypeError, message, _packed() | {"cu_seqlens": (0, 60)})
        message = "cu_seqlens: got dtype torch.float32, allowed: torch.int32, torch.int64"
        self.assert_refused(TypeError, message, _packed(dtype=torch.float32))
        message = "cu_seqlens: got 2 dimensions [1, 2], allowed: 1, [N + 1]"
        cu_seqlens = torch.tensor([[0, 60]])
        self.assert_refused(ValueError, message, _packed() | {"cu_seqlens": cu_seqlens})
        message = "cu_seqlens: got device meta, allowed: cpu, with values"
        cu_seqlens = torch.zeros(3, dtype=torch.int32, device="meta")
        self.assert_refused(ValueError, message, _packed() | {"cu_seqlens": cu_seqlens})

    def test_one_batch_row(self):
        message = "B (q.shape[0]): got 2, allowed: 1 with cu_seqlens"
        self.assert_refused(ValueError, message, _bwd(cu_seqlens=torch.tensor([0, 60])))

    def test_states_of_sequences(self):
        message = "dht: got shape [2, 4, 16, 8], allowed: [N, HV, K, V] = [3, 4, 16, 8]"
        self.assert_refused(ValueError, message, _packed(dht=_bwd()["dht"]))

    def test_meta_tensors_with_boundaries_on_the_cpu(self):
        arguments = {
            name: value.to("meta") if isinstance(value, torch.Tensor) else value
            for name, value in _packed().items()
        }
        arguments["cu_seqlens"] = torch.tensor([0, 0, 33, 60])
        self.assertEqual(contract.check_bwd(**arguments)[0].NT, 3)


class LayoutTest(_TestCase):
    @parameterized.parameters("q", "k", "v", "do", "g", "Aqk", "Akk")
    def test_views_with_rows_are_used_in_place(self, name):
        good = _bwd()[name]
        b, t, heads, columns = good.shape
        wide = torch.zeros(b, t + 1, heads + 2, columns + 3, dtype=good.dtype)
        swapped = torch.zeros(b, heads, t, columns, dtype=good.dtype).transpose(1, 2)
        for view in (wide[:, 1:, 1:-1, 2:-1], swapped):
            problem, inputs = contract.check_bwd(**_bwd(**{name: view}))
            self.assertIs(getattr(inputs, name), view)
            self.assertEqual(getattr(problem.strides, name), view.stride()[:3])

    def test_beta_is_used_in_place_however_it_lies(self):
        for beta in (
            torch.zeros(_B, _T, 1).expand(_B, _T, _HV),
            torch.zeros(1).expand(_B, _T, _HV),
            torch.zeros(_B, _HV, _T).transpose(1, 2),
            torch.zeros(_B, _T, 2 * _HV, dtype=torch.bfloat16)[..., ::2],
        ):
            problem, inputs = contract.check_bwd(**_bwd(beta=beta))
            self.assertIs(inputs.beta, beta)
            self.assertEqual(problem.strides.beta, beta.stride())
            self.assertEqual(problem.beta_dtype, str(beta.dtype).removeprefix("torch."))

    @parameterized.parameters("q", "k", "v", "do", "g", "Aqk", "Akk", "initial_state", "dht")
    def test_rows_with_gaps_are_copied(self, name):
        good = _bwd()[name]
        view = torch.zeros(*good.shape[:-1], 2 * good.shape[-1], dtype=good.dtype)[..., ::2]
        expanded = good[..., :1].expand(good.shape)
        for tensor in (view, expanded):
            problem, inputs = contract.check_bwd(**_bwd(**{name: tensor}))
            self.assertTrue(getattr(inputs, name).is_contiguous())
            self.assertEqual(problem, contract.check_bwd(**_bwd())[0])

    def test_states_are_dense(self):
        for check, arguments, names in (
            (contract.check_bwd, _bwd(), ("initial_state", "dht")),
            (contract.check_bwd, _kept(), ("h",)),
            (contract.check_wy, _wy(), ("h", "dh")),
        ):
            for name in names:
                view = torch.cat((arguments[name],) * 2, dim=-1)[..., :_V]
                dense = getattr(check(**(arguments | {name: view}))[1], name)
                self.assertTrue(dense.is_contiguous())

    def test_16_bit_gates_and_upstream_gradients_are_widened(self):
        for dtype in (torch.float16, torch.bfloat16):
            g = torch.ones_like(_bwd()["g"]).to(dtype)
            self.assertEqual(contract.check_bwd(**_bwd(g=g))[1].g.dtype, torch.float32)
            self.assertEqual(contract.check_wy(**_wy(g=g))[1].g.dtype, torch.float32)
            single = {name: _bwd()[name].float() for name in ("q", "k", "v", "Aqk", "Akk")}
            inputs = contract.check_bwd(**_bwd(**single, do=_bwd()["do"].to(dtype)))[1]
            self.assertEqual(inputs.do.dtype, torch.float32)

    @parameterized.parameters("q", "beta", "g", "dht", "Akk")
    def test_lazily_negated_views_are_materialised(self, name):
        good = torch.ones_like(_bwd()[name])
        checked = getattr(contract.check_bwd(**_bwd(**{name: torch._neg_view(good)}))[1], name)
        self.assertFalse(checked.is_neg())
        self.assertTrue(torch.equal(checked, -good))

    def test_odd_strides_of_axes_of_size_1_do_not_show(self):
        plain = {
            name: value[:1, :1, :1].contiguous() if name not in ("initial_state", "dht") else value
            for name, value in _bwd().items()
            if isinstance(value, torch.Tensor)
        } | {name: torch.zeros(1, 1, _K, _V) for name in ("initial_state", "dht")}
        odd = {
            name: value.as_strided(value.shape, (7, 7, 7, 1)[: value.dim()])
            if name not in ("initial_state", "dht")
            else value
            for name, value in plain.items()
        }
        problem, inputs = contract.check_bwd(**_bwd(**odd))
        self.assertEqual(problem, contract.check_bwd(**_bwd(**plain))[0])
        self.assertIs(inputs.q, odd["q"])
        self.assertEqual(problem.strides.q, (0, _K, _K))
        self.assertEqual(problem.strides.beta, (0, 1, 1))

    def test_no_tokens(self):
        empty = {
            name: value[:, :0]
            for name, value in _bwd().items()
            if isinstance(value, torch.Tensor) and name not in ("initial_state", "dht")
        }
        problem, _ = contract.check_bwd(**_bwd(**empty))
        self.assertEqual((problem.empty, problem.NT), (True, 0))

    def test_too_many_tokens(self):
        long = _half(1, 1, _H, _K).expand(1, contract.MAX_TOKENS + 1, _H, _K)
        message = "T (q.shape[1]): got 2147483585, allowed: 0 to 2147483584"
        self.assert_refused(ValueError, message, _bwd(q=long))
        self.assert_refused(ValueError, message, _wy(q=long), contract.check_wy)

    @parameterized.parameters("q", "v", "do", "Akk", "beta")
    def test_rows_that_lie_far_apart(self, name):
        # A chunk's rows are addressed in 32 bits.
        x = {n: v.to("meta") if isinstance(v, torch.Tensor) else v for n, v in _bwd().items()}
        shape = x[name].shape
        for row, copied in ((contract.MAX_ROW_STRIDE, False), (contract.MAX_ROW_STRIDE + 1, True)):
            self.assertLess((64 - 1) * contract.MAX_ROW_STRIDE + 2 * 256, 2**31)
            strides = (_T * row, row, *torch.empty(shape[2:], device="meta").stride())
            x[name] = torch.empty_strided(shape, strides, dtype=x[name].dtype, device="meta")
            problem, inputs = contract.check_bwd(**x)
            self.assertEqual(getattr(inputs, name) is not x[name], copied)
            self.assertEqual(getattr(problem.strides, name), getattr(inputs, name).stride()[:3])

    def test_boundaries_that_were_read(self):
        x = _packed()
        bounds = contract.sequences(x["cu_seqlens"], None, x["q"], _C)
        self.assertEqual(bounds, (0, 0, 33, 60))
        problem, inputs = contract.check_bwd(**(x | {"cu_seqlens": bounds}))
        self.assertEqual(problem, contract.check_bwd(**x)[0])
        self.assertEqual(inputs.cu_seqlens, (0, 0, 33, 60))
        self.assertIsNone(contract.sequences(None, None, x["q"], _C))
        message = "cu_seqlens[-1]: got 80, allowed: 0 to T = 70"
        far = x | {"cu_seqlens": contract.Boundaries((0, 0, 33, 80))}
        self.assert_refused(ValueError, message, far)

    def test_strides_of_wy(self):
        problem, inputs = contract.check_wy(**_wy())
        self.assertEqual(problem.strides.Akk, inputs.A.stride()[:3])
        self.assertEqual(problem.strides.dv, inputs.dv.stride()[:3])
        self.assertEqual(problem.strides.Aqk, (0, 0, 0))

    def test_problems_are_keys(self):
        first, second = (contract.check_bwd(**_bwd())[0] for _ in range(2))
        self.assertEqual(hash(first), hash(second))
        self.assertIsInstance(first, problem_lib.Problem)


if __name__ == "__main__":
    absltest.main()
