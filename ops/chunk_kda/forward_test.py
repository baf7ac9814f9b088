"""Tests of chunk_kda's results and of chunk_kda_fwd_intra on the device that the target is for."""

import inspect
import itertools

import torch
from absl.testing import absltest, parameterized
from torch._subclasses import fake_tensor

from ops import chunk_kda
from ops.chunk_kda import contract, forward, fwd_contract, fwd_plan
from ops.chunk_kda import test_calls as calls
from ops.common import backend, launch
from ops.kda_step import kda_step
from testing import guard, unit

_HALF = torch.float16
# In fp32 nothing hides behind 16-bit rounding: the worst measured here is 2^-20.9.
_LIMIT = 2.0**-19
_REPEATS = 50 if unit.DEVICE.is_accelerator else 3  # the interpreter has one schedule anyway


class _TestCase(parameterized.TestCase):
    def assert_close(self, actual, expected, limit=_LIMIT):
        self.assertEqual(set(actual), set(expected))
        for name, result in actual.items():
            self.assertTrue(result.isfinite().all(), name)
            self.assertEqual(result.shape, expected[name].shape, name)
            self.assertLess(calls.distance(result, expected[name]), limit, name)

    def assert_same(self, actual, expected):
        self.assertEqual(set(actual), set(expected))
        for name, result in actual.items():
            self.assertTrue(torch.equal(result, expected[name]), name)


class ValuesTest(_TestCase):
    @parameterized.parameters(
        {"b": 2, "t": 1, "value_heads": 3},
        {"t": 2},
        {"b": 2, "t": 33, "heads": 2, "value_heads": 6, "v_dim": 5},
        {"t": 130, "value_heads": 1, "k_dim": 20, "v_dim": 70},
        {"t": 40, "value_heads": 1, "k_dim": 100, "v_dim": 33},
        {"t": 40, "value_heads": 1, "k_dim": 200, "v_dim": 33},
    )
    def test_chunks_are_the_recurrence(self, **sizes):
        for chunk_size in (32, 64):
            x = calls.fwd(**sizes, chunk_size=chunk_size)
            self.assert_close(calls.call_fwd(x), calls.golden_fwd(x))
            x = calls.intra(**sizes, chunk_size=chunk_size)
            self.assert_close(calls.call_intra(x), calls.golden_intra(x))

    @parameterized.parameters("given", "softplus", "bounded")
    def test_decoding_goes_on_where_chunks_end(self, gate):
        # All tokens in chunks; the first 67 in chunks and the rest one by one; all one by one.
        x = calls.fwd(b=2, t=70, heads=1, value_heads=2, gate=gate)
        flags = {"use_qk_l2norm_in_kernel": True}
        flags |= {"use_beta_sigmoid_in_kernel": True, "allow_neg_eigval": True}
        expected = calls.call_fwd(x | flags)
        y = calls.on_device(x | flags)
        y.pop("output_final_state")
        tokens = {name: y.pop(name) for name in ("q", "k", "v", "g", "beta")}
        for first in (67, 0):
            state, outputs = y["initial_state"], []
            if first:
                start = {name: value[:, :first] for name, value in tokens.items()}
                o, state = chunk_kda.chunk_kda(**start, **y, output_final_state=True)
                outputs.append(o)
            options = {name: value for name, value in y.items() if name != "initial_state"}
            for t in range(first, 70):
                token = {name: value[:, t] for name, value in tokens.items()}
                o, state = kda_step(**token, state=state, **options)
                outputs.append(o[:, None])
            found = {"o": torch.cat(outputs, 1), "final_state": state}
            self.assert_close(found, expected)

    @parameterized.product(gate=("given", "softplus", "bounded"), states=(False, True))
    def test_optional_arguments(self, gate, states):
        x = calls.fwd(gate=gate, states=states)
        self.assert_close(calls.call_fwd(x), calls.golden_fwd(x))
        x["output_final_state"] = False
        self.assertEqual(list(calls.call_fwd(x)), ["o"])
        self.assert_close(calls.call_fwd(x), calls.golden_fwd(x))

    def test_only_a_rate_or_only_a_bias(self):
        for gate, without in (
            ("softplus", "dt_bias"),
            ("bounded", "A_log"),
            ("bounded", "dt_bias"),
        ):
            x = calls.fwd(t=20, gate=gate, **{without: None})
            self.assert_close(calls.call_fwd(x), calls.golden_fwd(x))

    @parameterized.parameters(
        {"use_qk_l2norm_in_kernel": True},
        {"use_beta_sigmoid_in_kernel": True},
        {"use_beta_sigmoid_in_kernel": True, "allow_neg_eigval": True},
        {"scale": 0.0},
        {"scale": -0.3},
    )
    def test_options(self, **options):
        x = calls.fwd(**options)
        x["q"] = 3 * x["q"]
        self.assert_close(calls.call_fwd(x), calls.golden_fwd(x))

    def test_norms_of_small_vectors(self):
        # 1e-6 is under the root, beside the sum of squares.
        x = calls.fwd(use_qk_l2norm_in_kernel=True)
        for name in ("q", "k"):
            x[name] = 1e-3 * x[name]
            x[name][:, ::3] = 0
        self.assert_close(calls.call_fwd(x), calls.golden_fwd(x))

    @parameterized.parameters(-1000.0, -5.0, 0.0)
    def test_gates(self, value):
        # Everywhere; and in every third token, which begins another document, and one channel.
        everywhere = torch.full((1, 70, 2, 32), value)
        some = torch.full((1, 70, 2, 32), -0.1)
        some[:, ::3] = value
        some[:, 1::3, :, 5] = value
        # Sums of 23 gates of -40 leave 2^-15 of a later decay.
        limit = 2.0**-14 if value == -1000 else _LIMIT
        for gates in (everywhere, some):
            x = calls.fwd(g=gates)
            self.assert_close(calls.call_fwd(x), calls.golden_fwd(x), limit)

    def test_steep_gates_cost_no_digits_of_later_ones(self):
        # Without a floor the chunk's sum would be 3e4, of which fp32 has 2e-3; so it is 3e-4.
        gates = torch.full((1, 64, 2, 32), -0.01)
        gates[:, :21] = -1000
        x = calls.fwd(t=64, g=gates)
        self.assert_close(calls.call_fwd(x), calls.golden_fwd(x), 2.0**-11)
        infinite = x | {"g": torch.where(gates == -1000, -torch.inf, gates)}
        self.assert_same(calls.call_fwd(infinite), calls.call_fwd(x))

    @parameterized.parameters(100.0, 88.0, -200.0)
    def test_steep_rates_with_a_lower_bound(self, a_log):
        # exp(100) is inf in fp32, while a sigmoid is 0 or 1 there.
        x = calls.fwd(gate="bounded", A_log=torch.tensor([a_log, 0.5]))
        self.assert_close(calls.call_fwd(x), calls.golden_fwd(x))

    @parameterized.parameters(0.0, 1.0)
    def test_strengths(self, beta):
        x = calls.fwd(beta=torch.full((1, 70, 2), beta))
        self.assert_close(calls.call_fwd(x), calls.golden_fwd(x))

    def test_half_precision(self):
        for dtype, limit in ((_HALF, 2.0**-10), (torch.bfloat16, 2.0**-7)):
            x = calls.fwd(heads=2, value_heads=4, dtype=dtype, use_qk_l2norm_in_kernel=True)
            found = calls.call_fwd(x)
            self.assertEqual((found["o"].dtype, found["final_state"].dtype), (dtype, torch.float32))
            self.assert_close(found, calls.golden_fwd(x), limit)
            x = calls.intra(dtype=dtype)
            found = calls.call_intra(x)
            self.assertEqual({result.dtype for result in found.values()}, {dtype})
            self.assert_close(found, calls.golden_intra(x), limit)

    def test_scores_are_lower_triangular(self):
        for chunk_size in (32, 64):
            found = calls.call_intra(calls.intra(chunk_size=chunk_size, dtype=_HALF))
            row = torch.arange(70, device=calls.DEVICE)[:, None] % chunk_size
            column = torch.arange(chunk_size, device=calls.DEVICE)
            for name in ("Aqk", "Akk"):
                above = (row < column)[None, :, None].expand_as(found[name])
                self.assertFalse(found[name][above].any())
                self.assertTrue(found[name][~above].any())
            diagonal = (row == column)[None, :, None].expand_as(found["Akk"])
            self.assertTrue((found["Akk"][diagonal] == 1).all())

    def test_the_backward_gets_what_its_contract_says(self):
        x = calls.on_device(calls.fwd(gate="softplus"))
        results = forward._fwd_results(**x)
        kept = calls.bwd(
            gate="softplus",
            g_org=x["g"],
            **{n: x[n] for n in ("q", "k", "v", "beta", "A_log")},
            dt_bias=x["dt_bias"],
            keep=True,
        )
        for mine, theirs in (("G", "g"), ("Aqk", "Aqk"), ("Akk", "Akk")):
            self.assertLess(calls.distance(results[mine], kept[theirs]), _LIMIT, mine)


def _is(value):
    return isinstance(value, torch.Tensor)


class ProbesTest(_TestCase):
    """What must be equal to the last bit, and what must be exactly zero."""

    @parameterized.product(
        last=(0, 5, 20, 47, 63, 64, 71), dtype=(torch.float32, _HALF), chunk_size=(32, 64)
    )
    def test_the_past_does_not_depend_on_the_future(self, last, dtype, chunk_size):
        x = calls.fwd(t=75, dtype=dtype, chunk_size=chunk_size)
        y = dict(x)
        future = slice(last + 1, None)
        for name in ("q", "k", "v", "g", "beta"):
            y[name] = x[name].clone()
            y[name][:, future] *= 3 if name == "g" else -0.5
        x, y = calls.call_fwd(x), calls.call_fwd(y)
        self.assertTrue(torch.equal(x["o"][:, : last + 1], y["o"][:, : last + 1]))
        self.assertFalse(torch.equal(x["o"][:, future], y["o"][:, future]))

    def test_nor_on_how_long_it_is(self):
        x = calls.fwd(t=75, dtype=_HALF)
        whole = calls.call_fwd(x)["o"]
        for t in (1, 15, 16, 17, 33, 63, 64, 65, 74):
            short = {n: v[:, :t] if n in ("q", "k", "v", "g", "beta") else v for n, v in x.items()}
            self.assertTrue(torch.equal(calls.call_fwd(short)["o"], whole[:, :t]), t)

    @parameterized.parameters("given", "softplus")
    def test_packed_sequences_are_independent(self, gate):
        bounds = (0, 17, 17, 100, 145)  # one chunk, none, two, one
        x = calls.fwd(t=145, dtype=_HALF, gate=gate, cu_seqlens=bounds)
        packed = calls.call_fwd(x)
        for n, (start, end) in enumerate(itertools.pairwise(bounds)):
            alone = {m: v[:, start:end] if _of_tokens(m) else v for m, v in x.items()}
            alone |= {"cu_seqlens": None, "initial_state": x["initial_state"][n : n + 1]}
            found = calls.call_fwd(alone)
            self.assertTrue(torch.equal(packed["o"][:, start:end], found["o"]))
            self.assertTrue(torch.equal(packed["final_state"][n : n + 1], found["final_state"]))

    def test_packed_rows_of_a_batch(self):
        x = calls.fwd(b=3, dtype=_HALF)
        flat = {n: v.flatten(0, 1)[None] if _of_tokens(n) else v for n, v in x.items()}
        found = calls.call_fwd(flat | {"cu_seqlens": torch.tensor([0, 70, 140, 210])})
        expected = calls.call_fwd(x)
        self.assertTrue(torch.equal(found["o"].view(expected["o"].shape), expected["o"]))
        self.assertTrue(torch.equal(found["final_state"], expected["final_state"]))
        x = calls.intra(b=2, dtype=_HALF)
        flat = {n: v.flatten(0, 1)[None] for n, v in x.items() if _is(v)}
        found = calls.call_intra(x | flat | {"cu_seqlens": torch.tensor([0, 70, 140])})
        for name, result in calls.call_intra(x).items():
            self.assertTrue(torch.equal(found[name].view(result.shape), result), name)

    def test_a_sequence_in_two_halves(self):
        x = calls.fwd(t=128)
        whole = calls.call_fwd(x)
        halves = [
            {n: v[:, part] if _of_tokens(n) else v for n, v in x.items()}
            for part in (slice(0, 64), slice(64, None))
        ]
        first = calls.call_fwd(halves[0])
        second = calls.call_fwd(halves[1] | {"initial_state": first["final_state"]})
        self.assertTrue(torch.equal(torch.cat((first["o"], second["o"]), 1), whole["o"]))
        self.assertTrue(torch.equal(second["final_state"], whole["final_state"]))

    def test_grouped_heads_are_repeated_heads(self):
        x = calls.fwd(t=40, heads=2, value_heads=6, dtype=_HALF)
        y = x | {name: x[name].repeat_interleave(3, dim=2) for name in ("q", "k")}
        self.assert_same(calls.call_fwd(x), calls.call_fwd(y))

    @parameterized.parameters(torch.float32, _HALF)
    def test_rows_of_no_sequence(self, dtype):
        bounds = (0, 17, 17, 81)
        for make, call in ((calls.fwd, calls.call_fwd), (calls.intra, calls.call_intra)):
            x = make(t=100, dtype=dtype, cu_seqlens=bounds)
            expected = call({k: v[:, :81] if _of_tokens(k) else v for k, v in x.items()})
            for name, value in x.items():
                if _of_tokens(name):
                    value[:, 81:] = torch.nan
            with guard.GuardedAllocations():
                found = call(x)
            for name, result in found.items():
                if name != "final_state":
                    self.assertFalse(result[:, 81:].any(), name)
                    result = result[:, :81]
                self.assertTrue(torch.equal(result, expected[name]), name)

    def test_chunk_sizes_agree(self):
        x, y = (calls.call_fwd(calls.fwd(t=100, gate="bounded", chunk_size=c)) for c in (32, 64))
        self.assert_close(x, y)

    @parameterized.parameters({"t": 0}, {"b": 0}, {"t": 20, "cu_seqlens": (0, 0, 0)})
    def test_empty(self, **sizes):
        x = calls.fwd(**sizes, dtype=_HALF)
        for norms in (False, True):
            with guard.GuardedAllocations():
                found = calls.call_fwd(x | {"use_qk_l2norm_in_kernel": norms})
            self.assertEqual((found["o"].shape, found["o"].dtype), (x["v"].shape, _HALF))
            self.assertFalse(found["o"].any())
            # Nothing lies between the first and the last state.
            self.assertTrue(torch.equal(found["final_state"].cpu(), x["initial_state"]))
        found = calls.call_fwd(x | {"initial_state": None})
        self.assertEqual(found["final_state"].shape, x["initial_state"].shape)
        self.assertFalse(found["final_state"].any())
        x = calls.intra(**sizes)
        for name, result in calls.call_intra(x).items():
            self.assertEqual(result.shape[:3], x["v"].shape[:3], name)
            self.assertFalse(result.any(), name)


def _of_tokens(name):
    return name in ("q", "k", "v", "g", "gk", "beta")


class LayoutTest(_TestCase):
    def _check(self, change):
        x = calls.fwd(b=2, t=37, heads=2, value_heads=4, v_dim=24, dtype=_HALF, chunk_size=32)
        for norms in (False, True):
            x["use_qk_l2norm_in_kernel"] = norms
            expected = calls.call_fwd(x)
            views = {n: change(v.to(calls.DEVICE)) for n, v in x.items() if _is(v)}
            before = {name: view.clone() for name, view in views.items()}
            self.assert_same(calls.call_fwd(x | views), expected)
            for name, view in views.items():
                self.assertTrue(torch.equal(view, before[name]), f"{name} was written")

    def test_slices_of_wider_tensors(self):
        # NaN all around: an access outside the slice shows, whichever axis it leaves.
        def change(value):
            wide = value.new_full([n + 4 for n in value.shape], torch.nan)
            inner = tuple(slice(2, -2) for _ in value.shape)
            wide[inner] = value
            return wide[inner]

        self._check(change)

    def test_head_major_memory(self):
        self._check(lambda value: value.transpose(1, 2).contiguous().transpose(1, 2))

    def test_rows_with_gaps(self):
        def change(value):
            wide = value.new_full((*value.shape, 2), torch.nan)
            wide[..., 0] = value
            return wide[..., 0]

        self._check(change)

    def test_expanded(self):
        x = calls.on_device(calls.fwd(b=2, t=37, value_heads=4, dtype=_HALF))
        x["q"] = x["q"][:1].expand_as(x["q"])
        x["beta"] = x["beta"][:1, :, :1].expand_as(x["beta"])
        x["g"] = x["g"][:, :1].expand_as(x["g"])
        dense = {n: v.contiguous() if _is(v) else v for n, v in x.items()}
        self.assert_same(calls.call_fwd(x), calls.call_fwd(dense))

    @parameterized.parameters(_HALF, torch.bfloat16)
    def test_converted_arguments(self, dtype):
        # A 16-bit gate or beta means the same as an fp32 one with its values.
        x = calls.fwd(t=37, dtype=dtype)
        narrow = {name: x[name].to(dtype) for name in ("beta", "g")}
        wide = {name: value.float() for name, value in narrow.items()}
        found = calls.call_fwd(x | narrow)
        self.assert_same(found, calls.call_fwd(x | narrow | {"beta": wide["beta"]}))
        # A gate of another dtype is loaded, hence added up, in another order on a GPU.
        for name, result in calls.call_fwd(x | wide).items():
            self.assertLess(calls.distance(found[name], result), torch.finfo(dtype).eps / 4, name)

    # A stride below 2^31 reaches a kernel as int32, one above as int64.
    @parameterized.parameters((0, 2**30 + 16), (0, 2**31 + 16), (2, 2**31 + 16))
    def test_offsets_beyond_32_bits(self, axis, stride):
        # A sparse allocation: the pages between the rows are never touched on the CPU.
        x = calls.fwd(b=3, t=34, value_heads=3, dtype=_HALF)
        expected = calls.call_fwd(x)
        v = x["v"]
        strides = [1024 * v.shape[3], 16 * v.shape[3], v.shape[3], 1]
        strides[axis] = stride
        extent = 1 + sum((n - 1) * step for n, step in zip(v.shape, strides, strict=True))
        self.assertGreater(extent, 2**31)
        far = torch.empty(extent, dtype=v.dtype, device=calls.DEVICE).as_strided(v.shape, strides)
        far.copy_(v)
        self.assert_same(calls.call_fwd(x | {"v": far}), expected)


class LaunchTest(_TestCase):
    @parameterized.product(
        dtype=(_HALF, torch.bfloat16, torch.float32), poison=(guard.NAN_POISON, guard.HUGE_POISON)
    )
    def test_memory(self, dtype, poison):
        # Everything is written before it is read, nothing beside; and what is allocated is planned.
        x = calls.fwd(k_dim=36, v_dim=24, dtype=dtype, gate="bounded")
        expected = calls.call_fwd(x)
        x = calls.on_device(x)
        with launch.record() as launches, guard.GuardedAllocations(poison) as guarded:
            found = calls.call_fwd(x)
            unit.DEVICE.synchronize()
        self.assertEqual(guarded.broken_bands(), 0)
        self.assert_same(found, expected)
        problem, _ = fwd_contract.check_fwd(**x)
        cores = backend.device_cores(unit.DEVICE.name)
        plan = fwd_plan.make_plan(problem, unit.DEVICE.name, cores)
        self.assertEqual([each.name for each in launches], [each.kernel for each in plan.kernels])
        self.assertEqual([each.grid for each in launches], [(k.programs,) for k in plan.kernels])
        results = sum(result.nbytes for result in found.values())
        rows = x["v"].shape[0] * x["v"].shape[1] * x["v"].shape[2]
        kept = rows * (4 * 36 + 2 * 64 * x["q"].itemsize)  # G, Aqk, Akk
        planned = results + kept + plan.workspace_bytes(peak=False)
        self.assertEqual(guarded.allocated_bytes, planned)

    @parameterized.parameters(_HALF, torch.bfloat16)
    def test_memory_of_norms(self, dtype):
        x = calls.fwd(k_dim=36, dtype=dtype, use_qk_l2norm_in_kernel=True)
        expected = calls.call_fwd(x)
        with launch.record() as launches, guard.GuardedAllocations() as guarded:
            found = calls.call_fwd(x)
            unit.DEVICE.synchronize()
        self.assertEqual(guarded.broken_bands(), 0)
        self.assert_same(found, expected)
        self.assertEqual(launches[0].name, "l2norm")
        self.assertLen(launches, 5)

    @parameterized.product(dtype=(_HALF, torch.float32), programs=(1, 3))
    def test_grids_change_no_bit(self, dtype, programs):
        x = calls.fwd(b=2, t=100, dtype=dtype, gate="softplus", use_qk_l2norm_in_kernel=True)
        expected = calls.call_fwd(x)
        with backend.limit_programs(programs), launch.record() as launches:
            self.assert_same(calls.call_fwd(x), expected)
        self.assertLessEqual({each.programs for each in launches}, {programs, 2, 1})

    def test_repeats_are_the_same_bits(self):
        x = calls.on_device(calls.fwd(b=2, t=130, dtype=_HALF, use_qk_l2norm_in_kernel=True))
        expected = calls.call_fwd(x)
        for _ in range(_REPEATS):
            self.assert_same(calls.call_fwd(x), expected)

    def test_explain(self):
        x = calls.on_device(calls.fwd(gate="softplus"))
        with launch.record() as launches:
            text = forward.explain(**x)
            self.assertEmpty(launches)
            calls.call_fwd(x)
        for line, each in zip(text.splitlines(), launches, strict=False):
            self.assertStartsWith(line, f"{each.name}: ")


class ArgumentsTest(_TestCase):
    def test_signatures(self):
        parameters = inspect.signature(chunk_kda.chunk_kda).parameters
        positional = [n for n, p in parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
        self.assertEqual(
            " ".join(positional),
            "q k v g beta scale initial_state output_final_state use_qk_l2norm_in_kernel "
            "use_gate_in_kernel",
        )
        self.assertEqual(
            " ".join(inspect.signature(chunk_kda.chunk_kda_fwd_intra).parameters),
            "q k v gk beta scale cu_seqlens chunk_size chunk_indices safe_gate lower_bound "
            "disable_recompute options",
        )

    def test_what_is_no_tensor_is_named_while_launches_are_watched(self):
        x = calls.on_device(calls.fwd(t=20))
        for name in ("initial_state", "A_log", "dt_bias"):
            with launch.record(), self.assertRaisesRegex((TypeError, ValueError), f"^{name}: got "):
                chunk_kda.chunk_kda(**{**x, name: 1})

    def test_results(self):
        x = calls.on_device(
            calls.fwd(b=2, t=37, heads=2, value_heads=4, v_dim=24, dtype=_HALF, gate="softplus")
        )
        given = {name: value.clone() for name, value in x.items() if _is(value)}
        found = calls.call_fwd(x)
        self.assertEqual(found["o"].shape, (2, 37, 4, 24))
        self.assertEqual(found["final_state"].shape, (2, 4, 32, 24))
        inputs = {value.untyped_storage().data_ptr() for value in x.values() if _is(value)}
        for result in found.values():
            self.assertTrue(result.is_contiguous())
            self.assertNotIn(result.untyped_storage().data_ptr(), inputs)
        self.assert_same({name: x[name] for name in given}, given)

    def test_arguments_are_checked(self):
        # fwd_contract_test has every check; this is that the public functions make them.
        x = calls.on_device(calls.fwd(t=5, dtype=_HALF))
        for changes, kind, message in (
            ({"chunk_size": 40}, ValueError, "^chunk_size: got 40, allowed: 32 or 64$"),
            ({"scale": "1"}, TypeError, "^scale: got '1' of type str, allowed: an int or a f"),
            ({"q": None}, TypeError, "^q: got NoneType, allowed: torch.Tensor"),
            ({"g": [1.0]}, TypeError, "^g: got list, allowed: torch.Tensor"),
            ({"k": x["k"].bfloat16()}, TypeError, "^k: got dtype torch.bfloat16, allowed: torch.f"),
            ({"v": x["v"].to("meta")}, ValueError, "^v: got device meta, allowed: "),
            ({"beta": x["beta"][:, :4]}, ValueError, r"^beta: got shape \[1, 4, 2\], allowed: "),
            ({"use_gate_in_kernel": True}, ValueError, "^A_log: got None, allowed: a tensor with"),
            ({"dt_bias": x["v"]}, ValueError, "^dt_bias: got Tensor, allowed: None with use_gate"),
            ({"cu_seqlens": [0, 5]}, TypeError, "^cu_seqlens: got list, allowed: torch.Tensor"),
            (
                {"cu_seqlens": torch.tensor([0, 6])},
                ValueError,
                r"^cu_seqlens\[-1\]: got 6, allowed: 0 to T = 5",
            ),
            (
                {"cu_seqlens_cpu": torch.tensor([0, 5])},
                ValueError,
                "^cu_seqlens_cpu: got a tensor, allowed: None without cu_seqlens",
            ),
            (
                {"chunk_indices": torch.tensor([[0, 0]])},
                ValueError,
                "^chunk_indices: got a tensor, allowed: None without cu_seqlens",
            ),
            ({"state_v_first": True}, NotImplementedError, "^state_v_first: got True, allowed: F"),
            ({"disable_recompute": True}, NotImplementedError, "^disable_recompute: got True"),
            ({"cp_context": 1}, NotImplementedError, "^cp_context: got 1, allowed: None"),
            ({"other": 1}, TypeError, "^chunk_kda: got an argument 'other', allowed"),
            ({"allow_neg_eigval": True}, ValueError, "^allow_neg_eigval: got True, allowed: False"),
            ({"use_qk_l2norm_in_kernel": 1}, TypeError, "^use_qk_l2norm_in_kernel: got 1 of type"),
        ):
            with self.subTest(message), self.assertRaisesRegex(kind, message):
                chunk_kda.chunk_kda(**(x | changes))
            with self.subTest(f"{message} watched"), launch.record() as launches:
                with self.assertRaisesRegex(kind, message):
                    chunk_kda.chunk_kda(**(x | changes))
                self.assertEmpty(launches)
        with self.assertRaisesRegex(
            TypeError, "^k: got dtype torch.bfloat16, allowed: torch.float"
        ):
            chunk_kda.chunk_kda(**(x | {"k": x["k"].bfloat16()}), use_qk_l2norm_in_kernel=True)
        x = calls.on_device(calls.intra(t=5, dtype=_HALF))
        for changes, kind, message in (
            ({"gk": x["gk"][:, :4]}, ValueError, r"^gk: got shape \[1, 4, 2, 32\], allowed: "),
            ({"beta": None}, TypeError, "^beta: got NoneType, allowed: torch.Tensor"),
            ({"safe_gate": 1}, TypeError, "^safe_gate: got 1 of type int, allowed: a bool"),
            ({"disable_recompute": 1}, TypeError, "^disable_recompute: got 1 of type int"),
            ({"use_graph": True}, NotImplementedError, "^use_graph: got True, allowed: False"),
            (
                {"q": x["q"].clone().requires_grad_()},
                NotImplementedError,
                "^q: got a tensor that requires a gradient, but chunk_kda_fwd_intra has no backw",
            ),
        ):
            with self.subTest(message), self.assertRaisesRegex(kind, message):
                chunk_kda.chunk_kda_fwd_intra(**(x | changes))

    def test_options_of_fla(self):
        x = calls.fwd(t=5)
        options = {
            "disable_recompute": False,
            "return_intermediate_states": False,
            "state_v_first": False,
            "cp_context": None,
            "use_graph": False,
            "max_num_seqs": None,
            "cu_seqlens": None,
            "cu_seqlens_cpu": None,
        }
        self.assert_same(calls.call_fwd(x | options), calls.call_fwd(x))
        order = ("q", "k", "v", "g", "beta")
        y = calls.on_device(x)
        o, none = chunk_kda.chunk_kda(*(y[name] for name in order))
        self.assertIsNone(none)
        expected = calls.call_fwd({name: x[name] for name in order})
        self.assertTrue(torch.equal(o, expected["o"]))

    def test_qg_is_optional(self):
        x = calls.intra(t=5, dtype=_HALF)
        expected = calls.call_intra(x)
        x["disable_recompute"] = False
        for watched in (False, True):
            with launch.record() if watched else torch.no_grad():
                found = calls.call_intra(x)
            self.assertIsNone(found["qg"])
            for name in ("w", "u", "kg", "Aqk", "Akk"):
                self.assertTrue(torch.equal(found[name], expected[name]), name)

    @parameterized.product(dtype=(torch.int32, torch.int64), device=tuple({"cpu", calls.DEVICE}))
    def test_kinds_of_cu_seqlens(self, dtype, device):
        bounds = (0, 17, 17, 81)
        x = calls.fwd(t=90, cu_seqlens=bounds)
        expected = calls.call_fwd(x)
        x["cu_seqlens"] = torch.tensor(bounds, dtype=dtype, device=device)
        self.assert_same(calls.call_fwd(x), expected)
        # The copy on the host is read; the other one is not.
        host = torch.tensor(bounds, dtype=dtype)
        found = chunk_kda.chunk_kda(
            **calls.on_device(x | {"cu_seqlens": torch.zeros(4, dtype=dtype)}), cu_seqlens_cpu=host
        )
        self.assertTrue(torch.equal(found[0], expected["o"]))


class TorchLibraryTest(_TestCase):
    def test_opcheck_of_intra(self):
        for bounds in (None, (0, 3, 17)):
            x = calls.on_device(calls.intra(t=20, dtype=_HALF, cu_seqlens=bounds))
            x["cu_seqlens"] = None if bounds is None else list(bounds)
            torch.library.opcheck(torch.ops.ascend_ops.chunk_kda_fwd_intra.default, (), x)

    @parameterized.parameters(False, True)
    def test_fake_and_meta_tensors(self, norms):
        x = calls.fwd(b=2, t=37, heads=2, value_heads=4, dtype=_HALF, gate="softplus")
        x["use_qk_l2norm_in_kernel"] = norms
        expected = calls.call_fwd(x)
        meta = {n: v.to("meta") if _is(v) else v for n, v in x.items()}
        there = calls.on_device(x)
        with fake_tensor.FakeTensorMode() as mode:
            fake = {n: mode.from_tensor(v) if _is(v) else v for n, v in there.items()}
            found_fake = chunk_kda.chunk_kda(**fake)
        for found, kind in ((chunk_kda.chunk_kda(**meta), "meta"), (found_fake, calls.DEVICE)):
            for result, other in zip(found, expected.values(), strict=True):
                self.assertEqual(
                    (result.shape, result.stride(), result.dtype, result.device.type),
                    (other.shape, other.stride(), other.dtype, kind),
                )
        with self.assertRaisesRegex(TypeError, "^v: got dtype torch.bfloat16"):
            chunk_kda.chunk_kda(**(meta | {"v": meta["v"].bfloat16()}))

    def test_pretending(self):
        # What a tool compiles for a device that is not there, from tensors without memory.
        x = calls.fwd(t=90, dtype=_HALF, cu_seqlens=(0, 17, 17, 81), use_qk_l2norm_in_kernel=True)
        meta = {n: v.to("meta") if _is(v) and n != "cu_seqlens" else v for n, v in x.items()}
        launches = []
        with backend.pretend(backend.CUDA, 1056, run=launches.append):
            o, final_state = chunk_kda.chunk_kda(**meta)
        self.assertEqual((o.shape, final_state.shape), (x["v"].shape, (3, 2, 32, 32)))
        self.assertLen(launches, 5)
        for each in launches:
            self.assertEqual(set(each.args) | set(each.constants), set(each.kernel.arg_names))
            each.signature()

    def test_dtypes_are_those_of_the_contract(self):
        self.assertEqual(set(contract.DTYPES), {_HALF, torch.bfloat16, torch.float32})


if __name__ == "__main__":
    absltest.main()
