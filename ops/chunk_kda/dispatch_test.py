"""Tests of the two functions' arguments, launches, memory and entries in torch.library, on the
device that the target is for."""

import inspect

import torch
from absl.testing import absltest, parameterized
from torch._dynamo import utils
from torch._subclasses import fake_tensor
from torch.autograd import forward_ad

from ops import chunk_kda
from ops.chunk_kda import contract, dispatch
from ops.chunk_kda import plan as plan_lib
from ops.chunk_kda import test_calls as calls
from ops.common import backend, launch, tables
from testing import guard, unit

_HALF = torch.float16
_DTYPES = (_HALF, torch.bfloat16, torch.float32)
_REPEATS = 50 if unit.DEVICE.is_accelerator else 4  # the interpreter has one schedule anyway
_BWD, _WY = "chunk_kda_bwd", "chunk_kda_bwd_wy_dqkg_fused"
_FUNCTIONS = {
    _BWD: (calls.bwd, calls.call_bwd, chunk_kda.chunk_kda_bwd),
    _WY: (calls.wy, calls.call_wy, chunk_kda.chunk_kda_bwd_wy_dqkg_fused),
}
# Every optional argument and result.
_FULL = {"gate": "softplus"}
_BOUNDS = (0, 17, 17, 81)


def _each(**more):
    return parameterized.product(function=tuple(_FUNCTIONS), **more)


def _plan(function, arguments):
    checker, maker = {
        _BWD: (contract.check_bwd, plan_lib.make_plan),
        _WY: (contract.check_wy, plan_lib.make_wy_plan),
    }[function]
    problem, _ = checker(**calls.on_device(arguments))
    return maker(problem, unit.DEVICE.name, backend.device_cores(unit.DEVICE.name))


class _TestCase(parameterized.TestCase):
    def assert_same(self, actual, expected):
        self.assertEqual(set(actual), set(expected))
        for name, result in actual.items():
            self.assertTrue(torch.equal(result, expected[name]), name)

    def assert_like(self, actual, expected):
        """The same shapes, strides and dtypes."""
        for one, other in zip(actual, expected, strict=True):
            self.assertEqual(one is None, other is None)
            if other is not None:
                self.assertEqual(
                    (one.shape, one.stride(), one.dtype),
                    (other.shape, other.stride(), other.dtype),
                )


class ArgumentsTest(_TestCase):
    def test_signatures(self):
        parameters = inspect.signature(chunk_kda.chunk_kda_bwd).parameters
        self.assertEqual(
            " ".join(parameters),
            "q k v beta Aqk Akk scale initial_state do dht g g_org cu_seqlens chunk_indices "
            "chunk_size safe_gate lower_bound use_gate_in_kernel A_log dt_bias disable_recompute "
            "saved",
        )
        defaults = [p.default for p in parameters.values() if p.default is not p.empty]
        self.assertEqual(
            defaults, [None, None, None, None, 64, False, None, False, None, None, False]
        )
        parameters = inspect.signature(chunk_kda.chunk_kda_bwd_wy_dqkg_fused).parameters
        self.assertEqual(
            " ".join(parameters),
            "q k v v_new g beta A h do dh dv scale cu_seqlens chunk_size chunk_indices options",
        )
        defaults = [p.default for p in parameters.values() if p.default is not p.empty]
        self.assertEqual(defaults, [None, None, 64, None])

    def test_results(self):
        x = calls.bwd(b=2, t=37, heads=2, value_heads=4, v_dim=24, dtype=_HALF, **_FULL)
        shapes = {
            "dq": ((2, 37, 2, 32), _HALF),
            "dk": ((2, 37, 2, 32), _HALF),
            "dv": ((2, 37, 4, 24), _HALF),
            "db": ((2, 37, 4), torch.float32),
            "dg": ((2, 37, 4, 32), _HALF),
            "dh0": ((2, 4, 32, 24), torch.float32),
            "dA_log": ((4,), torch.float32),
            "ddt_bias": ((128,), torch.float32),
        }
        found = calls.call_bwd(x)
        self.assertEqual({n: (tuple(r.shape), r.dtype) for n, r in found.items()}, shapes)
        self._check_results(x, found)
        found = calls.call_bwd(calls.bwd(states=False, dtype=torch.bfloat16))
        self.assertEqual(list(found), ["dq", "dk", "dv", "db", "dg"])
        dtypes = {name: result.dtype for name, result in found.items()}
        half = dict.fromkeys(("dq", "dk", "dv"), torch.bfloat16)
        self.assertEqual(dtypes, half | dict.fromkeys(("db", "dg"), torch.float32))

    def test_results_of_wy(self):
        x = calls.wy(b=2, t=37, heads=2, value_heads=4, v_dim=24, dtype=_HALF)
        rows, fp32 = (2, 37, 4), torch.float32
        shapes = {
            "dq": ((*rows, 32), fp32),
            "dk": ((*rows, 32), fp32),
            "dv": ((*rows, 24), _HALF),
            "db": (rows, fp32),
            "dg": ((*rows, 32), fp32),
            "dA": ((*rows, 64), fp32),
        }
        found = calls.call_wy(x)
        self.assertEqual({n: (tuple(r.shape), r.dtype) for n, r in found.items()}, shapes)
        self._check_results(x, found)

    def _check_results(self, x, found):
        x = calls.on_device(x)
        addresses = [r.untyped_storage().data_ptr() for r in found.values()]
        self.assertLen(set(addresses), len(found))
        for name, result in found.items():
            self.assertTrue(result.is_contiguous(), name)
            self.assertEqual(result.device.type, calls.DEVICE)
            self.assertFalse(result.requires_grad)

    @_each()
    def test_arguments_are_not_changed_and_no_result(self, function):
        make, _, op = _FUNCTIONS[function]
        x = calls.on_device(make(dtype=torch.float32, **(_FULL if function == _BWD else {})))
        given = {name: value for name, value in x.items() if isinstance(value, torch.Tensor)}
        before = {name: value.clone() for name, value in given.items()}
        results = op(**x)
        self.assert_same(given, before)
        of_inputs = {value.untyped_storage().data_ptr() for value in given.values()}
        for result in results:
            self.assertNotIn(result.untyped_storage().data_ptr(), of_inputs)

    @_each()
    def test_arguments_are_checked(self, function):
        # contract_test has every check; this is that the public functions make them.
        make, _, op = _FUNCTIONS[function]
        x = calls.on_device(make(t=5, dtype=_HALF))
        for changes, kind, message in (
            ({"chunk_size": 40}, ValueError, "^chunk_size: got 40, allowed: 32 or 64$"),
            ({"scale": "1"}, TypeError, "^scale: got '1' of type str, allowed: an int or a f"),
            ({"q": None}, TypeError, "^q: got NoneType, allowed: torch.Tensor"),
            ({"g": [1.0]}, TypeError, "^g: got list, allowed: torch.Tensor"),
            ({"k": x["k"].bfloat16()}, TypeError, "^k: got dtype torch.bfloat16, allowed: torch.f"),
            ({"v": x["v"].to("meta")}, ValueError, "^v: got device meta, allowed: "),
            ({"do": x["do"].to_sparse()}, TypeError, "^do: got layout torch.sparse_coo, allowed"),
            ({"beta": x["beta"][:, :4]}, ValueError, r"^beta: got shape \[1, 4, 2\], allowed: "),
            ({"cu_seqlens": [0, 5]}, TypeError, "^cu_seqlens: got list, allowed: torch.Tensor"),
            (
                {"cu_seqlens": torch.tensor([0, 6])},
                ValueError,
                r"^cu_seqlens\[-1\]: got 6, allowed: 0 to T = 5",
            ),
            (
                {"chunk_indices": torch.tensor([[0, 0]])},
                ValueError,
                "^chunk_indices: got a tensor, allowed: None without cu_seqlens",
            ),
            (
                {"cu_seqlens": torch.tensor([0, 5]), "chunk_indices": torch.tensor([0, 0])},
                ValueError,
                r"^chunk_indices: got shape \[2\], allowed: ",
            ),
            ({"state_v_first": True}, NotImplementedError, "^state_v_first: got True, allowed: F"),
            ({"other": 1}, TypeError, f"^{function}: got an argument 'other', allowed"),
        ):
            with self.subTest(message), self.assertRaisesRegex(kind, message):
                op(**(x | changes))
            with self.subTest(f"{message} watched"), launch.record() as launches:
                with self.assertRaisesRegex(kind, message):
                    op(**(x | changes))
                self.assertEmpty(launches)

    def test_options_of_fla(self):
        x = calls.bwd(t=5)
        options = dict.fromkeys(("w", "u", "qg", "kg", "cp_context", "chunk_offsets"))
        options |= {"state_v_first": False, "use_graph": False}
        self.assert_same(calls.call_bwd(x | options), calls.call_bwd(x))
        # What is not read may be anything.
        rest = {"w": "not read", "v_new": "not read", "h": torch.ones(3)}
        self.assert_same(calls.call_bwd(x | rest), calls.call_bwd(x))
        y = calls.bwd(t=5, gate="softplus")
        self.assert_same(calls.call_bwd(y | {"g": "not read"}), calls.call_bwd(y))

    def test_positional_arguments(self):
        for name, required in ((_BWD, 11), (_WY, 11)):
            make, call, op = _FUNCTIONS[name]
            x = make(t=5)
            order = list(inspect.signature(op).parameters)[:required]
            results = op(*(calls.on_device(x)[argument] for argument in order))
            for result, expected in zip(results, call(x).values(), strict=False):
                self.assertTrue(torch.equal(result, expected))

    @_each(sizes=({"t": 0}, {"b": 0}, {"t": 20, "cu_seqlens": (0, 0, 0)}))
    def test_empty(self, function, sizes):
        make, call, _ = _FUNCTIONS[function]
        x = make(**sizes, **(_FULL if function == _BWD else {}))
        with launch.record() as launches, guard.GuardedAllocations():
            found = call(x)
        self.assertEmpty(launches)
        if function == _BWD:  # nothing lies between the first and the last state
            self.assertTrue(torch.equal(found["dh0"].cpu(), x["dht"]))
            dh0 = call(x | {"dht": None})["dh0"]
            self.assertFalse(dh0.any())
            self.assertEqual((dh0.shape, dh0.dtype), (x["dht"].shape, torch.float32))
            self.assertEqual(found.pop("dh0").dtype, torch.float32)
            self.assertEqual(found["dA_log"].shape, x["A_log"].shape)
        for name, result in found.items():
            self.assertFalse(result.any(), name)
        x = make(**(sizes | {"dtype": _HALF}))
        self.assertEqual((call(x)["dv"].shape, call(x)["dv"].dtype), (x["v"].shape, _HALF))

    def test_dh0_of_nothing_is_a_tensor_of_its_own(self):
        x = calls.on_device(calls.bwd(t=0))
        dh0 = chunk_kda.chunk_kda_bwd(**x)[5]
        self.assertNotEqual(dh0.data_ptr(), x["dht"].data_ptr())

    @_each(dtype=(torch.int32, torch.int64), device=tuple({"cpu", calls.DEVICE}))
    def test_kinds_of_cu_seqlens(self, function, dtype, device):
        make, _, op = _FUNCTIONS[function]
        x = calls.on_device(make(t=90, cu_seqlens=_BOUNDS))
        y = x | {name: x[name].to(device, dtype) for name in ("cu_seqlens", "chunk_indices")}
        expected = op(**x)
        for result, other in zip(op(**y), expected, strict=True):
            self.assertTrue(result is other is None or torch.equal(result, other))
        y["chunk_indices"] = None
        for result, other in zip(op(**y), expected, strict=True):
            self.assertTrue(result is other is None or torch.equal(result, other))

    @_each(name=("q", "beta", "do"))
    def test_gradients_are_refused(self, function, name):
        make, _, op = _FUNCTIONS[function]
        x = calls.on_device(make(t=5))
        expected = op(**x)
        x[name] = x[name].detach().requires_grad_()
        message = f"^{name}: got a tensor that requires a gradient, but {function} has no backward"
        with self.assertRaisesRegex(NotImplementedError, message):
            op(**x)
        with launch.record(), self.assertRaisesRegex(NotImplementedError, message):
            op(**x)
        with torch.no_grad():
            for result, other in zip(op(**x), expected, strict=True):
                self.assertTrue(torch.equal(result, other) if other is not None else True)

    @_each(name=("q", "beta", "do"))
    def test_tangents_are_refused(self, function, name):
        make, _, op = _FUNCTIONS[function]
        x = calls.on_device(make(t=5))
        op(**x)  # a call like an earlier one is no way around
        message = f"^{name}: got a tensor with a tangent, but {function} has no forward-mode"
        with forward_ad.dual_level():
            x[name] = forward_ad.make_dual(x[name], x[name])
            with self.assertRaisesRegex(NotImplementedError, message):
                op(**x)
            with launch.record(), self.assertRaisesRegex(NotImplementedError, message):
                op(**x)

    def test_explain(self):
        x = calls.on_device(calls.bwd(b=2, gate="softplus"))
        with launch.record() as launches:
            text = dispatch.explain_bwd(**x)
            self.assertEmpty(launches)
            chunk_kda.chunk_kda_bwd(**x)
        for line, each in zip(text.splitlines(), launches, strict=False):
            self.assertStartsWith(line, f"{each.name}: ")
            self.assertIn(f"on {each.programs} programs", line)
        self.assertIn("workspace in bytes: ", text)
        y = calls.on_device(calls.wy())
        with launch.record() as launches:
            text = dispatch.explain_wy_dqkg_fused(**y)
            chunk_kda.chunk_kda_bwd_wy_dqkg_fused(**y)
        names = [line.partition(":")[0] for line in text.splitlines()]
        self.assertEqual(names[: len(launches)], [each.name for each in launches])
        nothing = calls.on_device(calls.bwd(t=0))
        self.assertEqual(dispatch.explain_bwd(**nothing), "empty: nothing is launched")


class LaunchTest(_TestCase):
    @_each(dtype=_DTYPES, poison=(guard.NAN_POISON, guard.HUGE_POISON))
    def test_memory(self, function, dtype, poison):
        # Everything is written before it is read, nothing beside; and what is allocated is planned.
        make, call, _ = _FUNCTIONS[function]
        options = {"gate": "bounded"} if function == _BWD else {}
        x = make(t=70, heads=1, value_heads=2, k_dim=36, v_dim=24, dtype=dtype, **options)
        expected = call(x)
        x = calls.on_device(x)
        with launch.record() as launches, guard.GuardedAllocations(poison) as guarded:
            found = call(x)
            unit.DEVICE.synchronize()
        self.assertEqual(guarded.broken_bands(), 0)
        self.assert_same(found, expected)
        plan = _plan(function, x)
        self.assertEqual([each.name for each in launches], [each.kernel for each in plan.kernels])
        self.assertEqual([each.grid for each in launches], [(k.programs,) for k in plan.kernels])
        results = sum(result.nbytes for result in found.values())
        self.assertEqual(guarded.allocated_bytes, results + plan.workspace_bytes(peak=False))

    @_each()
    def test_packed_memory(self, function):
        make, call, _ = _FUNCTIONS[function]
        x = make(t=90, dtype=_HALF, cu_seqlens=_BOUNDS)
        expected = call(x)
        with guard.GuardedAllocations(guard.HUGE_POISON) as guarded:
            found = call(x)
            unit.DEVICE.synchronize()
        self.assertEqual(guarded.broken_bands(), 0)
        self.assert_same(found, expected)

    def test_what_is_launched(self):
        def names(**changes):
            x = calls.bwd(t=5, **changes)
            with launch.record() as launches:
                calls.call_bwd(x)
            return [each.name for each in launches]

        computed = names(gate="softplus")
        self.assertEqual(computed[0], plan_lib.GATE)
        self.assertEqual(names(), computed[1:])
        kept = [name for name in computed[1:] if name != plan_lib.FORWARD]
        self.assertEqual(names(keep=True), kept)
        self.assertEqual(names(keep=True, gate="bounded"), kept)

    @_each(dtype=(_HALF, torch.float32))
    def test_repeats_and_grids_give_the_same_bits(self, function, dtype):
        make, call, op = _FUNCTIONS[function]
        x = make(b=2, t=70, heads=2, value_heads=4, dtype=dtype)
        expected = call(x)
        y = calls.on_device(x)
        for _ in range(_REPEATS):
            for result, other in zip(op(**y), expected.values(), strict=False):
                self.assertTrue(torch.equal(result, other) if result is not None else True)
        for programs in (1, 2, 3, 5):
            with backend.limit_programs(programs), launch.record() as launches:
                self.assert_same(call(x), expected)
            limit = min(programs, backend.core_count(unit.DEVICE.name))
            for each in launches:
                self.assertEqual(each.programs, min(limit, each.args["num_tasks"]), each.name)

    def test_tables_of_packed_sequences(self):
        made = tables.of_sequences((0, 17, 17, 97), 32, torch.device(calls.DEVICE))
        self.assertEqual(
            {name: (table.tolist(), table.dtype) for name, table in made.items()},
            {
                "cu_seqlens": ([0, 17, 17, 97], torch.int32),
                "chunk_offsets": ([0, 1, 1, 4], torch.int32),
                "chunk_indices": ([0, 0, 2, 0, 2, 1, 2, 2], torch.int32),
            },
        )

    def test_repeated_packings_see_new_values(self):
        # The same tensor object with other values, the same values in another object.
        x = calls.bwd(t=90, dtype=_HALF, cu_seqlens=_BOUNDS)
        other = (0, 40, 50, 90)
        y = x | {"chunk_indices": None, "cu_seqlens": x["cu_seqlens"].clone().to(calls.DEVICE)}
        first = calls.call_bwd(x)
        self.assert_same(calls.call_bwd(y), first)
        y["cu_seqlens"].copy_(torch.tensor(other))
        second = calls.call_bwd(y)
        self.assertFalse(torch.equal(first["dq"], second["dq"]))
        fresh = {"cu_seqlens": torch.tensor(other), "chunk_indices": None}
        self.assert_same(second, calls.call_bwd(x | fresh))

    if unit.DEVICE.is_accelerator:

        def test_tables_are_copied_once(self):
            x = calls.on_device(calls.bwd(t=90, dtype=_HALF, cu_seqlens=_BOUNDS))
            chunk_kda.chunk_kda_bwd(**x)
            before = tables.kept.cache_info()
            for _ in range(3):
                chunk_kda.chunk_kda_bwd(**x)
            after = tables.kept.cache_info()
            self.assertEqual((after.misses, after.hits), (before.misses, before.hits + 3))

        def test_peak(self):
            x = calls.on_device(calls.bwd(t=4000, heads=4, value_heads=8, dtype=torch.bfloat16))
            results = calls.call_bwd(x)
            held = sum(result.nbytes for result in results.values())
            del results
            peak = unit.DEVICE.peak_bytes(lambda: chunk_kda.chunk_kda_bwd(**x)) - held
            planned = _plan(_BWD, x).workspace_bytes(peak=True)
            self.assertBetween(peak, 0.9 * planned, 1.01 * planned + 32 * 512)


class TorchLibraryTest(_TestCase):
    def setUp(self):
        super().setUp()
        # It remembers which arguments other tests changed, and makes symbols of them.
        torch._dynamo.reset()

    def _arguments(self, function, **changes):
        """What the public function passes to the op."""
        make, _, op = _FUNCTIONS[function]
        x = calls.on_device(make(t=20, dtype=_HALF, **changes))
        x = {name: x.get(name) for name in inspect.signature(op).parameters} | x
        for name in ("chunk_indices", "saved", "options", "w", "u", "qg", "kg"):
            x.pop(name, None)
        if x["cu_seqlens"] is not None:
            x["cu_seqlens"] = x["cu_seqlens"].tolist()
        return x

    def test_opcheck(self):
        for changes in (
            {},
            {"states": False, "cu_seqlens": (0, 3, 17)},
            _FULL,
            {"keep": True, "gate": "bounded"},
        ):
            op = torch.ops.ascend_ops.chunk_kda_bwd.default
            torch.library.opcheck(op, (), self._arguments(_BWD, **changes))
        for changes in ({}, {"cu_seqlens": (0, 3, 17)}):
            op = torch.ops.ascend_ops.chunk_kda_bwd_wy_dqkg_fused.default
            torch.library.opcheck(op, (), self._arguments(_WY, **changes))

    @_each()
    def test_compile(self, function):
        # aot_eager: what is tested is the tracing, and inductor needs a C++ compiler.
        make, _, op = _FUNCTIONS[function]

        def doubled(x):
            return [None if result is None else 2 * result for result in op(**x)]

        compiled = torch.compile(doubled, backend="aot_eager", fullgraph=True)
        changes = [{"t": 5}, {"t": 6}, {"t": 70}]
        if function == _BWD:
            changes += [{"t": 5, **_FULL}, {"t": 5, "states": False}]
        for each in changes:
            x = calls.on_device(make(dtype=_HALF, **each))
            for result, expected in zip(compiled(x), doubled(x), strict=True):
                self.assertTrue(result is expected is None or torch.equal(result, expected))
        # Another number becomes a symbol, which torch cannot check or print: then the graph breaks.
        compiled = torch.compile(doubled, backend="aot_eager")
        for scale in (0.5, 0.25):
            for result, expected in zip(
                compiled(x | {"scale": scale}), doubled(x | {"scale": scale}), strict=True
            ):
                self.assertTrue(result is expected is None or torch.equal(result, expected))
        with self.assertRaisesRegex(ValueError, "chunk_size: got 40"):
            compiled(x | {"chunk_size": 40})

    @_each()
    def test_compile_packed(self, function):
        # The graph breaks where cu_seqlens is read, and nowhere else.
        make, _, op = _FUNCTIONS[function]

        def doubled(x):
            return [None if result is None else 2 * result for result in op(**x)]

        compiled = torch.compile(doubled, backend="aot_eager")
        utils.counters.clear()
        for bounds in ((0, 3, 17), (0, 9, 20)):
            x = calls.on_device(make(t=20, dtype=_HALF, cu_seqlens=bounds))
            for result, expected in zip(compiled(x), doubled(x), strict=True):
                self.assertTrue(result is expected is None or torch.equal(result, expected))
        (reason,) = utils.counters["graph_break"]
        self.assertIn(" read_boundaries ", reason)

    @_each(states=(False, True))
    def test_fake_and_meta_tensors(self, function, states):
        make, _, op = _FUNCTIONS[function]
        options = {"states": states, **_FULL} if function == _BWD else {}
        x = make(b=2, t=37, heads=2, value_heads=4, dtype=_HALF, **options)
        x["cu_seqlens"] = x["chunk_indices"] = None
        expected = op(**calls.on_device(x))
        meta = {n: v.to("meta") if isinstance(v, torch.Tensor) else v for n, v in x.items()}
        found = op(**meta)
        self.assert_like(found, expected)
        self.assertEqual({r.device.type for r in found if r is not None}, {"meta"})
        with self.assertRaisesRegex(TypeError, "^k: got dtype torch.bfloat16"):
            op(**(meta | {"k": meta["k"].bfloat16()}))
        with fake_tensor.FakeTensorMode() as mode:
            fake = {
                name: mode.from_tensor(value) if isinstance(value, torch.Tensor) else value
                for name, value in calls.on_device(x).items()
            }
            found = op(**fake)
        self.assert_like(found, expected)
        self.assertEqual({r.device.type for r in found if r is not None}, {calls.DEVICE})

    @_each()
    def test_pretending(self, function):
        # What a tool compiles for a device that is not there, from tensors without memory.
        make, _, op = _FUNCTIONS[function]
        x = make(t=90, dtype=_HALF, cu_seqlens=_BOUNDS)
        meta = {
            name: value.to("meta")
            if isinstance(value, torch.Tensor) and name not in ("cu_seqlens", "chunk_indices")
            else value
            for name, value in x.items()
        }
        launches = []
        with backend.pretend(backend.CUDA, 1056, run=launches.append):
            self.assert_like(op(**meta), op(**meta))
        self.assertNotEmpty(launches)
        for each in launches:
            self.assertEqual(set(each.args) | set(each.constants), set(each.kernel.arg_names))
            each.signature()


if __name__ == "__main__":
    absltest.main()
