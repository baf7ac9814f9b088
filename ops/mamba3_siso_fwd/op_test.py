"""Tests of the public function and its kernel on the device that the target is for."""

import dataclasses
import inspect
import math

import torch
from absl.testing import absltest, parameterized
from torch._subclasses import fake_tensor
from torch.autograd import forward_ad

from ops import mamba3_siso_fwd
from ops.common import backend, launch
from ops.mamba3_siso_fwd import contract, dispatch, reference
from ops.mamba3_siso_fwd import plan as plan_lib
from testing import guard, repeats, unit

_DEVICE = unit.DEVICE.torch_device
_UNIT_ROUNDOFF = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
_op = mamba3_siso_fwd.mamba3_siso_fwd_kernel


def _inputs(b=1, s=70, hq=1, heads=2, k_dim=64, v_dim=32, pairs=16, dtype=torch.float16, seed=0):
    """Arguments on the CPU: normal q, k, v and z; decays from 0.7 to 1; every step adds."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    return {
        "q": normal(b, s, hq, k_dim).to(dtype),
        "k": normal(b, s, hq, k_dim).to(dtype),
        "v": normal(b, s, heads, v_dim).to(dtype),
        "adt": -0.1 * normal(b, heads, s).abs(),
        "dt": 0.1 * normal(b, heads, s),
        "trap": 2 * normal(b, heads, s),
        "q_bias": normal(heads, k_dim),
        "k_bias": normal(heads, k_dim),
        "angles": 10 * normal(b, s, heads, pairs),
        "d": normal(heads),
        "z": normal(b, s, heads, v_dim).to(dtype),
    }


def _on_device(arguments):
    return {
        name: value.to(_DEVICE) if isinstance(value, torch.Tensor) else value
        for name, value in arguments.items()
    }


def _distance(actual, expected):
    actual = actual.double().cpu()
    return ((actual - expected).norm() / expected.norm()).item()


# The interpreter computes both arrangements of the kernels, an NPU's and a GPU's; a device its own.
_ARRANGEMENTS = (
    (unit.DEVICE.name,) if unit.DEVICE.is_accelerator else (backend.CPU_REFERENCE, backend.CUDA)
)


def _in_fp32(arguments, chunk_size=64, arrangement=_ARRANGEMENTS[0], path=None):
    """Runs the production kernels with fp32 operands and output: the algorithm without 16 bits.

    arrangement: the backend to plan for. path: what the plan is expected to choose.
    """
    problem, inputs = contract.check(
        **({"d": None, "z": None} | _on_device(arguments)), chunk_size=chunk_size
    )
    plan = plan_lib.make_plan(problem, arrangement, 24 if arrangement != backend.CUDA else 1056, 5)
    if path is not None:
        assert plan.path == path, plan.explain()
    kernels = []
    for each in plan.kernels:
        constants = dict(each.constants)
        if "FP32_DOTS" in constants:
            constants["FP32_DOTS"] = True
        options = each.options if unit.DEVICE.is_accelerator else {}
        kernels.append(dataclasses.replace(each, constants=constants, options=options))
    plan = dataclasses.replace(plan, kernels=tuple(kernels))
    out = torch.full(inputs.v.shape, math.nan, device=_DEVICE)
    for each in dispatch.make_launches(problem, inputs, out, unit.DEVICE.name, plan):
        each.run()
    return out


class ValuesTest(parameterized.TestCase):
    @parameterized.product(
        dtype=(torch.float16, torch.bfloat16),
        sizes=(
            {"b": 2, "s": 1},
            {"s": 33, "hq": 2, "v_dim": 33},
            {"s": 65, "hq": 2, "heads": 6, "v_dim": 16, "pairs": 2},
            {"s": 70, "k_dim": 128, "v_dim": 64},
            {"s": 100, "k_dim": 17, "v_dim": 1, "pairs": 8},
            {"s": 20, "k_dim": 256, "v_dim": 40, "pairs": 0},
        ),
        chunk_size=(32, 64),
    )
    def test_golden(self, dtype, sizes, chunk_size):
        x = _inputs(**sizes, dtype=dtype)
        out = _op(**_on_device(x), chunk_size=chunk_size)
        self.assertEqual((out.shape, out.dtype), (x["v"].shape, dtype))
        self.assertTrue(out.is_contiguous())
        golden = reference.golden(**x)
        r = _distance(reference.same_precision(**x, chunk_size=chunk_size), golden)
        limit = max(1.2 * r, 0.6 * _UNIT_ROUNDOFF[dtype])  # gate G1 of the accuracy policy
        self.assertLessEqual(_distance(out, golden), limit)

    @parameterized.product(has_d=(False, True), has_z=(False, True))
    def test_optional_arguments(self, has_d, has_z):
        x = _inputs()
        if not has_d:
            del x["d"]
        if not has_z:
            del x["z"]
        self.assertLess(_distance(_op(**_on_device(x)), reference.golden(**x)), 2.0**-11)

    # In fp32 nothing hides behind 16-bit rounding: one wrong gate, angle, bias or mask in a
    # hundred thousand shows. 2^-19 leaves room for sums in other orders; measured is 2^-21.
    @parameterized.parameters(
        {"b": 2, "s": 1, "heads": 3},
        {"s": 2},
        {"s": 31, "hq": 2},
        {"s": 32},
        {"s": 33, "hq": 2, "heads": 6},
        {"s": 63, "k_dim": 128, "v_dim": 64, "pairs": 64},
        {"s": 64, "v_dim": 33},
        {"s": 65, "v_dim": 96, "pairs": 32},
        {"s": 100, "k_dim": 128, "v_dim": 16, "pairs": 32},
        {"s": 130, "k_dim": 30, "v_dim": 5, "pairs": 14},
        {"s": 70, "k_dim": 17, "v_dim": 1, "pairs": 8},
        {"s": 40, "k_dim": 256, "v_dim": 64, "pairs": 2},
        {"b": 2, "s": 50, "hq": 1, "heads": 10, "pairs": 0},
    )
    def test_algorithm(self, **sizes):
        for dtype, chunk_size in ((torch.float16, 64), (torch.bfloat16, 32)):
            x = _inputs(**sizes, dtype=dtype)
            golden = reference.golden(**x)
            for arrangement in _ARRANGEMENTS:
                out = _in_fp32(x, chunk_size, arrangement)
                self.assertLess(_distance(out, golden), 2.0**-19)

    @parameterized.parameters(
        {"s": 1030, "k_dim": 32, "v_dim": 16, "pairs": 4},  # the last segment's last tile is short
        {"s": 1200, "b": 2, "hq": 1, "v_dim": 33, "pairs": 32},
        {"s": 600, "k_dim": 128, "v_dim": 65, "pairs": 64, "chunk_size": 32},
    )
    def test_split_sequences(self, chunk_size=64, **sizes):
        x = _inputs(heads=1, **sizes)
        golden = reference.golden(**x)
        for arrangement in _ARRANGEMENTS:
            out = _in_fp32(x, chunk_size, arrangement, plan_lib.SPLIT)
            self.assertLess(_distance(out, golden), 2.0**-19)

    @parameterized.parameters(
        {"adt": (-math.inf, *[-0.01] * 98)},  # nothing, or one reset, in a segment
        {"adt": (0.2,)},  # a segment's decay overflows: e^108
        {"adt": (-130.3, -0.01)},
        {"dt": (0.0,) * 520 + (0.1,) * 520},  # nothing is carried at first
        {"dt": (1e-6,) * 520 + (0.1,) * 520},  # the unit changes between segments
    )
    def test_special_values_across_segments(self, **values):
        x = _inputs(heads=1, s=1040, k_dim=32, v_dim=16, pairs=4)
        for name, cycle in values.items():
            x[name].copy_(torch.tensor(cycle).repeat(1040)[:1040])
        limit = 2.0**-18
        if "adt" in values and max(values["adt"]) > 0:
            # Fractions of one sign add up to 18: a sum of 64 of them is off by up to 1.5e-5.
            limit = 2.0**-16
            x["dt"][:, :, :-100] = 0  # else the outputs themselves overflow
        x = {name: value for name, value in x.items() if name not in ("d", "z")}
        golden = reference.golden(**x)
        for arrangement in _ARRANGEMENTS:
            out = _in_fp32(x, 64, arrangement, plan_lib.SPLIT)
            self.assertTrue(out.isfinite().all())
            self.assertLess(_distance(out, golden), limit)

    @parameterized.parameters(
        {"adt": (-88.0,)},
        {"adt": (-1e4, -0.01)},
        {"adt": (-130.3, -0.01)},  # one fp32 sum of these is off by 2^-11
        {"adt": (-1e9, -0.3, 0.0)},
        {"adt": (-math.inf, -0.1, -0.1, 0.05)},
        {"adt": (-math.inf, 60.0, -60.0, 0.1)},  # what a reset forgot stays forgotten
        {"adt": (0.0,)},
        {"adt": (0.2, -0.1)},
        {"dt": (0.0, 0.1)},
        {"dt": (1e-4, -1e-4)},
        {"dt": (1e-30, 1e-25)},
        {"dt": (100.0, 1e-3)},
        {"trap": (-200.0, 200.0)},
        {"trap": (-20.0,)},
        {"angles": (3e-4, -3e-4)},
        {"angles": tuple(n * math.pi / 2 for n in range(-16, 17))},
    )
    def test_special_values(self, **values):
        x = _inputs(s=100)
        for name, cycle in values.items():
            axis = 1 if name == "angles" else 2
            line = torch.tensor(cycle).repeat(100)[:100]
            x[name].copy_(line.view([-1 if i == axis else 1 for i in range(x[name].dim())]))
        # Without d: it would hide what small steps contribute.
        x = {name: value for name, value in x.items() if name not in ("d", "z")}
        golden = reference.golden(**x)
        for arrangement in _ARRANGEMENTS:
            out = _in_fp32(x, 64, arrangement)
            self.assertTrue(out.isfinite().all())
            self.assertLess(_distance(out, golden), 2.0**-18)

    def test_steps_of_zero_leave_the_skip_connection(self):
        x = _inputs()
        x["dt"].zero_()
        z = x["z"].float()
        expected = (x["d"][:, None] * x["v"].float() * z * z.sigmoid()).double()
        self.assertLess(_distance(_in_fp32(x), expected), 2.0**-22)

    def test_decay_of_the_first_token_has_nothing_to_scale(self):
        x = _inputs()
        expected = _op(**_on_device(x))
        for value in (-math.inf, 1e3, 1e38):
            x["adt"][:, :, 0] = value
            self.assertTrue(torch.equal(_op(**_on_device(x)), expected))

    def test_small_steps_keep_full_precision_in_fp16(self):
        x = _inputs()
        x = {name: value for name, value in x.items() if name not in ("d", "z")}
        x["dt"] *= 1e-5
        x["v"] *= 100
        self.assertLess(_distance(_op(**_on_device(x)), reference.golden(**x)), 2.0**-11)

    def test_large_steps_do_not_overflow_in_fp16(self):
        # The weights q.k s exceed fp16's 65504; a small v brings the output back into its range.
        x = _inputs(s=40)
        x = {name: value for name, value in x.items() if name not in ("d", "z")}
        x["dt"] *= 1e5
        x["v"] *= 3e-3
        out, golden = _op(**_on_device(x)), reference.golden(**x)
        self.assertLess(golden.abs().max().item(), 65504)
        self.assertTrue(out.isfinite().all())
        self.assertLess(_distance(out, golden), 2.0**-11)

    def test_bias_dtypes(self):
        x = _inputs()
        for name in ("q_bias", "k_bias"):
            x[name] = x[name].half().float()  # exact in all of them
        expected = _op(**_on_device(x))
        for dtype in (torch.float16, torch.float64):
            y = x | {name: x[name].to(dtype) for name in ("q_bias", "k_bias")}
            self.assertTrue(torch.equal(_op(**_on_device(y)), expected))
        x["q_bias"] = x["q_bias"].bfloat16()
        x["k_bias"] = x["k_bias"].bfloat16()
        self.assertLess(_distance(_op(**_on_device(x)), reference.golden(**x)), 2.0**-11)


class LayoutTest(parameterized.TestCase):
    def _check(self, x, views):
        expected = _op(**_on_device(x))
        for name, view in views.items():
            self.assertTrue(torch.equal(view.cpu(), x[name]))
        before = {name: view.clone() for name, view in views.items()}
        out = _op(**(_on_device(x) | views))
        self.assertTrue(torch.equal(out, expected))
        for name, view in views.items():
            self.assertTrue(torch.equal(view, before[name]))

    def test_slices_of_wider_tensors(self):
        # NaN all around: an access outside the slice shows, whichever axis it leaves.
        x = _inputs(b=2, s=37, hq=2, heads=4, k_dim=40, v_dim=33, pairs=6)
        views = {}
        for name, value in x.items():
            wide = torch.full([n + 4 for n in value.shape], math.nan, dtype=value.dtype)
            inner = tuple(slice(2, -2) for _ in value.shape)
            wide[inner] = value
            views[name] = wide.to(_DEVICE)[inner]
        self._check(x, views)

    def test_head_major_memory(self):
        x = _inputs(b=2, s=37, hq=2, heads=4)
        views = {
            name: x[name].to(_DEVICE).transpose(1, 2).contiguous().transpose(1, 2)
            for name in ("q", "k", "v", "z", "angles", "adt", "dt", "trap")
        }
        self._check(x, views)

    def test_expanded(self):
        x = _inputs(b=3, heads=4)
        for name in ("q", "v", "angles", "z"):
            x[name] = x[name][:1].expand_as(x[name])
        x["v"] = x["v"][:, :, :1].expand_as(x["v"])
        x["d"] = x["d"][:1].expand(4)
        x["k_bias"] = x["k_bias"][:1].expand_as(x["k_bias"])
        views = {name: x[name].to(_DEVICE) for name in ("q", "v", "angles", "z", "d", "k_bias")}
        views["q"] = views["q"][:1].expand_as(x["q"])
        views["v"] = views["v"][:1, :, :1].expand_as(x["v"])
        views["d"] = views["d"][:1].expand(4)
        self._check({name: value.contiguous() for name, value in x.items()}, views)

    def test_rows_with_gaps(self):
        x = _inputs(b=2, s=37, hq=2, heads=4)
        views = {}
        for name, value in x.items():
            wide = torch.full((*value.shape, 2), math.nan, dtype=value.dtype)
            wide[..., 0] = value
            views[name] = wide.to(_DEVICE)[..., 0]
        self._check(x, views)

    # A stride below 2^31 reaches the kernel as int32, one above as int64.
    @parameterized.parameters(
        (0, 2**30 + 16), (0, 2**31 + 16), (1, 2**26 + 16), (2, 2**30 + 16), (2, 2**31 + 16)
    )
    def test_offsets_beyond_32_bits(self, axis, stride):
        # A sparse allocation: the pages between the rows are never touched on the CPU. Tiles of 32
        # tokens put both a tile's start and rows within a tile beyond 2^31.
        x = _inputs(b=3, s=66, heads=3) | {"chunk_size": 32}
        v = x["v"]
        strides = [0, 0, 0, 1]
        dense = iter((v.shape[3], 128 * v.shape[3], 8192 * v.shape[3]))
        for i in (2, 1, 0):
            strides[i] = stride if i == axis else next(dense)
        extent = 1 + sum((n - 1) * step for n, step in zip(v.shape, strides, strict=True))
        self.assertGreater(extent, 2**31)
        far = torch.empty(extent, dtype=v.dtype, device=_DEVICE).as_strided(v.shape, strides)
        far.copy_(v)
        self._check(x, {"v": far})


class ContractTest(parameterized.TestCase):
    def test_signature(self):
        parameters = inspect.signature(_op).parameters
        names = [*_inputs(), "chunk_size"]
        self.assertEqual(list(parameters), names)
        defaults = {name: p.default for name, p in parameters.items() if p.default is not p.empty}
        self.assertEqual(defaults, {"d": None, "z": None, "chunk_size": 64})

    def test_arguments_are_checked(self):
        # contract_test has every check; this is that the public function makes them.
        for chunk_size in (40, 64.0, True, "64"):
            with self.assertRaisesRegex((TypeError, ValueError), "^chunk_size: got .*32 or 64$"):
                _op(**_on_device(_inputs()), chunk_size=chunk_size)
        with self.assertRaisesRegex(TypeError, "^k: got dtype torch.bfloat16, allowed: torch.floa"):
            _op(**(_on_device(_inputs()) | {"k": _inputs()["k"].bfloat16().to(_DEVICE)}))
        with self.assertRaisesRegex(ValueError, "^v: got device meta, allowed"):
            _op(**(_on_device(_inputs()) | {"v": _inputs()["v"].to("meta")}))

    def test_sparse_tensors_are_refused(self):
        x = _on_device(_inputs())
        with self.assertRaisesRegex(TypeError, "^d: got layout torch.sparse_coo, allowed"):
            _op(**(x | {"d": x["d"].to_sparse()}))

    @parameterized.parameters({"s": 0}, {"b": 0}, {"b": 0, "s": 0})
    def test_empty(self, **sizes):
        x = _inputs(**sizes)
        with launch.record() as launches:
            out = _op(**_on_device(x))
        self.assertEqual((out.shape, out.dtype), (x["v"].shape, torch.float16))
        self.assertEqual(out.device.type, _DEVICE)
        self.assertEmpty(launches)

    def test_gradients_are_refused(self):
        x = _on_device(_inputs(s=5))
        expected = _op(**x)
        x["dt"].requires_grad_()
        for call in (_op, torch.ops.ascend_ops.mamba3_siso_fwd.default):
            with self.assertRaisesRegex(NotImplementedError, "^dt: got a tensor that requires a g"):
                call(**x)
            with torch.no_grad():
                self.assertTrue(torch.equal(call(**x), expected))

    def test_tangents_are_refused(self):
        x = _on_device(_inputs(s=5))
        _op(**x)  # a call like an earlier one is no way around
        message = "^dt: got a tensor with a tangent, but mamba3_siso_fwd_kernel has no forward-mode"
        with forward_ad.dual_level():
            y = x | {"dt": forward_ad.make_dual(x["dt"], x["dt"])}
            with self.assertRaisesRegex(NotImplementedError, message):
                _op(**y)
        with self.assertRaisesRegex(NotImplementedError, message):
            torch.func.jvp(lambda dt: _op(**(x | {"dt": dt})), (x["dt"],), (x["dt"],))


class TorchLibraryTest(absltest.TestCase):
    def test_opcheck(self):
        for dtype in (torch.float16, torch.bfloat16):
            x = _on_device(_inputs(s=5, dtype=dtype))
            torch.library.opcheck(torch.ops.ascend_ops.mamba3_siso_fwd.default, tuple(x.values()))
            del x["d"], x["z"]
            torch.library.opcheck(
                torch.ops.ascend_ops.mamba3_siso_fwd.default,
                tuple(x.values()),
                {"chunk_size": 32},
            )

    def test_compile(self):
        # aot_eager: what is tested is the tracing, and inductor needs a C++ compiler.
        compiled = torch.compile(
            lambda x: 2 * _op(**x, chunk_size=32), backend="aot_eager", fullgraph=True
        )
        for s in (5, 6):
            x = _on_device(_inputs(s=s))
            self.assertTrue(torch.equal(compiled(x), 2 * _op(**x, chunk_size=32)))

    def test_fake_tensors(self):
        x = _inputs(s=5)
        with fake_tensor.FakeTensorMode():
            y = {
                name: torch.empty(value.shape, dtype=value.dtype, device=_DEVICE)
                for name, value in x.items()
            }
            out = _op(**y)
            self.assertEqual((out.shape, out.dtype), (x["v"].shape, torch.float16))
            self.assertEqual(out.device.type, _DEVICE)
            with self.assertRaisesRegex(ValueError, "^z: got shape"):
                _op(**(y | {"z": y["q"]}))

    def test_meta_tensors(self):
        x = {name: value.to("meta") for name, value in _inputs(s=5).items()}
        out = _op(**x)
        self.assertEqual((out.shape, out.device.type), (x["v"].shape, "meta"))
        with self.assertRaisesRegex(TypeError, "^k: got dtype torch.bfloat16"):
            _op(**(x | {"k": x["k"].bfloat16()}))


def _own_plan(x):
    problem, _ = contract.check(**x, chunk_size=64)
    return plan_lib.make_plan(problem, unit.DEVICE.name, backend.device_cores(unit.DEVICE.name))


_ON_GPU = unit.DEVICE.name == backend.CUDA


class LaunchTest(parameterized.TestCase):
    @parameterized.product(
        dtype=(torch.float16, torch.bfloat16),
        sizes=({"s": 1}, {"s": 64}, {"s": 300, "k_dim": 128}, {"b": 3, "heads": 5, "v_dim": 130}),
    )
    def test_no_state_in_memory(self, dtype, sizes):
        x = _on_device(_inputs(**sizes, dtype=dtype))
        with launch.record() as launches, guard.GuardedAllocations() as guarded:
            out = _op(**x)
            unit.DEVICE.synchronize()
        fused = _ON_GPU or sizes.get("s", 70) <= 64
        names = ["mamba3_siso_fwd"] if fused else ["gates", "gated_tiles"]
        self.assertEqual([each.name for each in launches], names)
        self.assertLessEqual(launches[-1].programs, backend.core_count(unit.DEVICE.name))
        b, s, heads, _ = out.shape
        tokens = 32 if x["q"].shape[3] > 64 else 64
        gates = 0 if fused else 4 * b * heads * -(-s // tokens) * (6 * tokens + 8)
        staging = 4 * out.numel() if (unit.DEVICE.name, dtype) == _STAGED else 0
        self.assertEqual(guarded.allocated_bytes, out.nbytes + staging + gates)
        self.assertEqual(guarded.broken_bands(), 0)

    @parameterized.parameters(torch.float16, torch.bfloat16)
    def test_split_sequences(self, dtype):
        x = _on_device(_inputs(s=2100, heads=1, k_dim=32, v_dim=33, pairs=2, dtype=dtype))
        with launch.record() as launches, guard.GuardedAllocations(guard.HUGE_POISON) as guarded:
            out = _op(**x)
            unit.DEVICE.synchronize()
        self.assertEqual(
            [each.name for each in launches],
            ["segment_states", "segment_scan", "mamba3_siso_fwd"]
            if _ON_GPU
            else ["gates", "gated_states", "segment_scan", "gated_tiles"],
        )
        self.assertRegex(dispatch.explain(**x), r"^split: \d .*\n(.*\n)?.*(segment|gated)_states")
        workspace = _own_plan(x).workspace_bytes
        staging = 4 * out.numel() if (unit.DEVICE.name, dtype) == _STAGED else 0
        self.assertEqual(guarded.allocated_bytes, out.nbytes + staging + workspace)
        self.assertEqual(guarded.broken_bands(), 0)
        for _ in range(20 if unit.DEVICE.is_accelerator else 1):
            self.assertTrue(torch.equal(_op(**x), out))
        with backend.limit_programs(2), launch.record() as launches:
            self.assertTrue(torch.equal(_op(**x), out))
        self.assertEqual({each.grid for each in launches[1:]}, {(2,)})
        golden = reference.golden(**{name: value.cpu() for name, value in x.items()})
        self.assertLess(_distance(out, golden), _UNIT_ROUNDOFF[dtype])

    def test_repeated_calls_see_new_values_and_addresses(self):
        # The second call of a shape skips checks, plan and Triton's search, where that is possible.
        def call(arguments):
            return _op(**arguments)

        for sizes in ({"s": 40}, {"s": 2100, "heads": 1}):
            x = _on_device(_inputs(**sizes))
            _op(**x)
            y = _on_device(_inputs(**sizes, seed=1))
            expected = repeats.planned(call, y)
            repeated = repeats.repeated(call, y) if repeats.supported(_DEVICE) else call(y)
            self.assertTrue(torch.equal(repeated, expected))
            # The same facts, but not the same alignment.
            odd = torch.empty(y["v"].numel() + 1, dtype=y["v"].dtype, device=_DEVICE)[1:]
            y["v"] = odd.view(y["v"].shape).copy_(y["v"])
            self.assertTrue(torch.equal(_op(**y), expected))
            self.assertTrue(torch.equal(_op(**y), expected))
            with self.assertRaisesRegex(ValueError, "^d: got shape"):
                _op(**(y | {"d": y["d"][:0]}))

    @parameterized.parameters(guard.NAN_POISON, guard.HUGE_POISON)
    def test_every_element_is_written_and_none_beside(self, poison):
        for dtype in (torch.float16, torch.bfloat16):
            x = _on_device(_inputs(s=37, heads=3, v_dim=33, dtype=dtype))
            expected = _op(**x)
            with launch.record(), guard.GuardedAllocations(poison) as guarded:
                out = _op(**x)
                unit.DEVICE.synchronize()
            self.assertEqual(guarded.broken_bands(), 0)
            self.assertTrue(torch.equal(out, expected))

    def test_repeats_and_grids_give_the_same_bits(self):
        for dtype in (torch.float16, torch.bfloat16):
            x = _on_device(_inputs(b=2, s=40, heads=3, dtype=dtype))
            expected = _op(**x)
            for _ in range(20):
                self.assertTrue(torch.equal(_op(**x), expected))
            for programs in (1, 2, 3, 5):
                with backend.limit_programs(programs), launch.record() as launches:
                    self.assertTrue(torch.equal(_op(**x), expected))
                expected_programs = min(programs, backend.core_count(unit.DEVICE.name), 6)
                self.assertEqual(launches[0].grid, (expected_programs,))

    def test_plans_for_absent_devices(self):
        # What a compiler needs: the launch of an NPU, with tensors that exist nowhere.
        x = {name: value.to("meta") for name, value in _inputs(s=128, pairs=0).items()}
        problem, inputs = contract.check(**x, chunk_size=64)
        plan = plan_lib.make_plan(problem, backend.NPU_ARCH32, 24)
        with launch.record() as launches:
            gates, planned = dispatch.make_launches(
                problem, inputs, torch.empty_like(x["v"]), backend.NPU_ARCH32, plan
            )
        self.assertEmpty(launches)
        self.assertEqual((gates.grid, planned.grid), ((4,), (2,)))
        signature = planned.signature()
        self.assertEqual(signature["q_ptr"], "*fp16")
        self.assertEqual(signature["angles_stride_b"], "i32")
        self.assertNotIn("angles_ptr", signature)  # A == 0: the argument is absent
        for each in (gates, planned):
            parameters = set(each.kernel.arg_names)
            self.assertEqual(set(each.args) | set(each.constants), parameters)


# 2^31 outputs take an interpreter hours. There the test does not exist, rather than looking green.
if unit.DEVICE.is_accelerator:

    class LargeOutputTest(absltest.TestCase):
        def test_output_beyond_32_bits(self):
            # One token repeated: with this decay the state is steady after 200 tokens.
            heads, v_dim, s = 32, 64, 2**20 + 100
            x = _on_device(_inputs(s=1, heads=heads, v_dim=v_dim, k_dim=16, pairs=4))
            for name, value in x.items():
                if name in ("q", "k", "v", "z", "angles"):
                    x[name] = value.expand(1, s, *value.shape[2:])
            for name in ("adt", "dt", "trap"):
                x[name] = torch.full((1, heads, s), -0.2 if name == "adt" else 0.1, device=_DEVICE)
            out = _op(**x)
            self.assertGreater(out.numel(), 2**31)
            start = {
                name: value[:, :300]
                if name in ("q", "k", "v", "z", "angles")
                else value[..., :300]
                if name in ("adt", "dt", "trap")
                else value
                for name, value in x.items()
            }
            golden = reference.golden(**start).cpu()
            self.assertLess(_distance(out[:, :300], golden), 2.0**-10)
            steady = golden[:, 250:251].expand(1, 99, heads, v_dim)
            self.assertLess(_distance(out[:, -100:-1], steady), 2.0**-10)


_STAGED = (backend.CPU_REFERENCE, torch.bfloat16)


if __name__ == "__main__":
    absltest.main()
