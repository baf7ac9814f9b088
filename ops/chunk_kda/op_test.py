"""Tests of the two functions' results on the device that the target is for."""

import itertools

import torch
from absl.testing import absltest, parameterized

from ops.chunk_kda import test_calls as calls
from ops.common import launch
from testing import guard, unit

_HALF = torch.float16
# In fp32 nothing hides behind 16-bit rounding: one wrong gate, mask or factor shows. Sums in other
# orders and sums of 64 gates account for the rest; the worst measured here is 2^-18.6 (dg).
_LIMIT = 2.0**-17


class _TestCase(parameterized.TestCase):
    def assert_close(self, actual, expected, limit=_LIMIT):
        self.assertEqual(set(actual), set(expected))
        for name, result in actual.items():
            self.assertTrue(result.isfinite().all(), name)
            self.assertEqual(result.shape, expected[name].shape, name)
            # Sums over all tokens, most of which cancels.
            share = 8 if name in ("dA_log", "ddt_bias") else 1
            self.assertLess(calls.distance(result, expected[name]), share * limit, name)

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
    )
    def test_algorithm(self, **sizes):
        for chunk_size in (32, 64):
            x = calls.bwd(**sizes, chunk_size=chunk_size)
            self.assert_close(calls.call_bwd(x), calls.golden_bwd(x))
            x = calls.wy(**sizes, chunk_size=chunk_size)
            self.assert_close(calls.call_wy(x), calls.golden_wy(x))

    @parameterized.product(gate=("given", "softplus", "bounded"), states=(False, True))
    def test_optional_arguments(self, gate, states):
        x = calls.bwd(gate=gate, states=states)
        self.assert_close(calls.call_bwd(x), calls.golden_bwd(x))
        # One of the two states: no other argument depends on them here.
        x |= {"dht": None} if states else {"dht": torch.ones(1, 2, 32, 32)}
        self.assert_close(calls.call_bwd(x), calls.golden_bwd(x))

    def test_only_a_rate_or_only_a_bias(self):
        for gate, without in (
            ("softplus", "dt_bias"),
            ("bounded", "A_log"),
            ("bounded", "dt_bias"),
        ):
            x = calls.bwd(t=20, gate=gate, **{without: None})
            self.assert_close(calls.call_bwd(x), calls.golden_bwd(x))

    @parameterized.parameters(-1000.0, -5.0, 0.0)
    def test_gates(self, value):
        # Everywhere; and in every third token, which begins another document, and one channel.
        everywhere = torch.full((1, 70, 2, 32), value)
        some = calls.bwd()["g"].new_full((1, 70, 2, 32), -0.1)
        some[:, ::3] = value
        some[:, 1::3, :, 5] = value
        for gates in (everywhere, some):
            x = calls.bwd(log_gate=gates)
            self.assert_close(calls.call_bwd(x), calls.golden_bwd(x))
            x = calls.wy(log_gate=gates)
            self.assert_close(calls.call_wy(x), calls.golden_wy(x))

    @parameterized.parameters(
        {"beta": 0.0}, {"beta": 1.0}, {"scale": 0.0}, {"scale": -0.3}, {"do": 0.0}
    )
    def test_other_values(self, **values):
        for make, call, golden in (
            (calls.bwd, calls.call_bwd, calls.golden_bwd),
            (calls.wy, calls.call_wy, calls.golden_wy),
        ):
            given = {
                name: value if name == "scale" else torch.full_like(make()[name], value)
                for name, value in values.items()
            }
            x = make(**given)
            self.assert_close(call(x), golden(x))

    @parameterized.parameters(100.0, 88.0, -200.0)
    def test_steep_rates_with_a_lower_bound(self, a_log):
        # exp(100) is inf in fp32, while a sigmoid's slope there is 0.
        x = calls.bwd(gate="bounded", A_log=torch.tensor([a_log, 0.5]))
        self.assert_close(calls.call_bwd(x), calls.golden_bwd(x))

    def test_half_precision(self):
        for dtype, limit in ((_HALF, 2.0**-10), (torch.bfloat16, 2.0**-7)):
            x = calls.bwd(heads=2, value_heads=4, dtype=dtype)
            found = calls.call_bwd(x)
            self.assertEqual({found[name].dtype for name in ("dq", "dk", "dv")}, {dtype})
            self.assert_close(found, calls.golden_bwd(x), limit)
            x = calls.wy(dtype=dtype)
            found = calls.call_wy(x)
            self.assertEqual(found["dv"].dtype, dtype)
            self.assert_close(found, calls.golden_wy(x), limit)

    def test_gradient_of_a_half_precision_gate(self):
        x = calls.bwd(gate="softplus", dtype=_HALF)
        found = calls.call_bwd(x)
        self.assertEqual((found["dg"].dtype, found["dA_log"].dtype), (_HALF, torch.float32))
        self.assert_close(found, calls.golden_bwd(x), 2.0**-9)

    def test_gradients_of_scores_are_strictly_lower(self):
        for chunk_size in (32, 64):
            found = calls.call_wy(calls.wy(t=70, chunk_size=chunk_size, dtype=_HALF))["dA"]
            self.assertEqual(found.dtype, torch.float32)
            row = torch.arange(70, device=found.device)[:, None] % chunk_size
            above = row <= torch.arange(chunk_size, device=found.device)
            self.assertFalse(found[above[None, :, None].expand_as(found)].any())
            self.assertTrue(found[~above[None, :, None].expand_as(found)].all())


class ProbesTest(_TestCase):
    """What must be equal to the last bit, and what must be exactly zero."""

    @parameterized.product(last=(0, 20, 63, 64, 71), dtype=(torch.float32, _HALF))
    def test_the_past_does_not_depend_on_later_gates(self, last, dtype):
        x = calls.bwd(t=75, dtype=dtype)
        natural = -torch.rand(1, 75, 2, 32, generator=torch.Generator().manual_seed(5))
        later = natural.clone()
        later[:, last + 1 :] *= 3
        x, y = (calls.bwd(t=75, dtype=dtype, log_gate=each) for each in (natural, later))
        past = slice(0, last + 1)
        for name in ("g", "Aqk", "Akk"):
            self.assertTrue(torch.equal(x[name][:, past], y[name][:, past]), name)
        x, y = calls.call_bwd(x), calls.call_bwd(y)
        self.assertTrue(torch.equal(x["dq"][:, past], y["dq"][:, past]))
        self.assertFalse(torch.equal(x["dk"][:, past], y["dk"][:, past]))

    @parameterized.product(first=(1, 20, 63, 64, 71), dtype=(torch.float32, _HALF))
    def test_the_future_does_not_depend_on_earlier_gradients(self, first, dtype):
        x = calls.bwd(t=75, dtype=dtype)
        y = x | {"do": x["do"].clone()}
        y["do"][:, :first] *= 3
        x, y = calls.call_bwd(x), calls.call_bwd(y)
        future = slice(first, None)
        # What those tokens wrote and read; their gates' gradients come from later tokens too.
        for name in ("dq", "dv"):
            self.assertTrue(torch.equal(x[name][:, future], y[name][:, future]), name)
        self.assertFalse(torch.equal(x["dv"][:, :first], y["dv"][:, :first]))

    @parameterized.parameters(torch.float32, _HALF)
    def test_gates_get_nothing_from_the_diagonal(self, dtype):
        # Each sequence's first token reads what it wrote itself, without any decay.
        bounds = (0, 17, 81, 85, 150)
        x = calls.bwd(t=150, dtype=dtype, states=False, cu_seqlens=bounds)
        do = torch.zeros_like(x["do"])
        do[:, bounds[:-1]] = x["do"][:, bounds[:-1]]
        found = calls.call_bwd(x | {"do": do})
        self.assertFalse(found["dg"].any())
        self.assertTrue(found["dv"][:, bounds[:-1]].all())
        self.assertTrue(found["dq"][:, bounds[:-1]].all())

    @parameterized.parameters("given", "softplus")
    def test_packed_sequences_are_independent(self, gate):
        bounds = (0, 17, 17, 100, 145)  # one chunk, none, two, one
        x = calls.bwd(t=145, value_heads=2, dtype=_HALF, gate=gate, cu_seqlens=bounds)
        packed = calls.call_bwd(x)
        for n, (start, end) in enumerate(itertools.pairwise(bounds)):
            of_states = {name: x[name][n : n + 1] for name in ("initial_state", "dht")}
            alone = {
                name: value[:, start:end]
                for name, value in x.items()
                if isinstance(value, torch.Tensor) and value.dim() > 2 and name not in of_states
            }
            alone = x | alone | of_states | {"cu_seqlens": None, "chunk_indices": None}
            for name, result in calls.call_bwd(alone).items():
                if name in ("dA_log", "ddt_bias"):  # sums over all sequences
                    continue
                part = packed[name][n : n + 1] if name == "dh0" else packed[name][:, start:end]
                self.assertTrue(torch.equal(part, result), name)

    def test_packed_rows_of_a_batch(self):
        x = calls.bwd(b=3, t=70, dtype=_HALF)
        flat = {
            name: value.flatten(0, 1)[None]
            for name, value in x.items()
            if isinstance(value, torch.Tensor) and name not in ("initial_state", "dht")
        }
        found = calls.call_bwd(x | flat | {"cu_seqlens": torch.tensor([0, 70, 140, 210])})
        for name, result in calls.call_bwd(x).items():
            self.assertTrue(torch.equal(found[name].view(result.shape), result), name)
        x = calls.wy(b=2, t=70, dtype=_HALF)
        flat = {n: v.flatten(0, 1)[None] for n, v in x.items() if isinstance(v, torch.Tensor)}
        found = calls.call_wy(x | flat | {"cu_seqlens": torch.tensor([0, 70, 140])})
        for name, result in calls.call_wy(x).items():
            self.assertTrue(torch.equal(found[name].view(result.shape), result), name)

    def test_grouped_heads_are_repeated_heads(self):
        for make, call in ((calls.bwd, calls.call_bwd), (calls.wy, calls.call_wy)):
            x = make(t=40, heads=2, value_heads=6)
            y = x | {name: x[name].repeat_interleave(3, dim=2) for name in ("q", "k")}
            x, y = call(x), call(y)
            if make is calls.bwd:
                y |= {name: y[name].unflatten(2, (2, 3)).sum(3) for name in ("dq", "dk")}
            self.assert_close(x, y, 2.0**-20)

    @parameterized.parameters(torch.float32, _HALF)
    def test_rows_of_no_sequence(self, dtype):
        bounds = (0, 17, 17, 81)
        for make, call in ((calls.bwd, calls.call_bwd), (calls.wy, calls.call_wy)):
            x = make(t=100, dtype=dtype, cu_seqlens=bounds)
            expected = call({k: v[:, :81] if _of_tokens(k, v) else v for k, v in x.items()})
            for name, value in x.items():
                if _of_tokens(name, value):
                    value[:, 81:] = torch.nan
            with guard.GuardedAllocations():
                found = call(x)
            for name, result in found.items():
                if name != "dh0":
                    self.assertFalse(result[:, 81:].any(), name)
                    result = result[:, :81]
                self.assertTrue(torch.equal(result, expected[name]), name)

    def test_chunk_sizes_agree(self):
        for gate in ("given", "bounded"):
            x, y = (calls.call_bwd(calls.bwd(t=100, gate=gate, chunk_size=c)) for c in (32, 64))
            self.assert_close(x, y)

    @parameterized.product(gate=("given", "softplus"), dtype=(torch.float32, _HALF))
    def test_what_was_kept_is_what_is_computed(self, gate, dtype):
        x = calls.bwd(t=100, gate=gate, dtype=dtype)
        with launch.record() as launches:
            expected = calls.call_bwd(x)
        seen = {name: value for each in launches for name, value in each.args.items()}
        kept = {name: seen[f"{name}_ptr"].clone() for name in ("g", "v_new", "h")}
        kept["h"] = kept["h"].view(1, -1, *kept["h"].shape[1:])
        self.assert_same(calls.call_bwd(x | kept | {"disable_recompute": True}), expected)

    def test_kept_by_the_forward(self):
        x = calls.bwd(t=100, keep=True)
        self.assert_close(calls.call_bwd(x), calls.golden_bwd(x))
        self.assert_close(calls.call_bwd(x), calls.call_bwd(x | {"disable_recompute": False}))


def _of_tokens(name, value):
    states = ("initial_state", "dht", "h", "dh", "A_log", "dt_bias", "cu_seqlens", "chunk_indices")
    return isinstance(value, torch.Tensor) and name not in states


class LayoutTest(_TestCase):
    def _check(self, make, call, change):
        x = make(b=2, t=37, heads=2, value_heads=4, v_dim=24, dtype=_HALF, chunk_size=32)
        expected = call(x)
        views = {
            name: change(name, value.to(calls.DEVICE))
            for name, value in x.items()
            if isinstance(value, torch.Tensor)
        }
        for name, view in views.items():
            self.assertTrue(torch.equal(view.cpu(), x[name]))
        before = {name: view.clone() for name, view in views.items()}
        self.assert_same(call(x | views), expected)
        for name, view in views.items():
            self.assertTrue(torch.equal(view, before[name]), f"{name} was written")

    def _check_both(self, change):
        self._check(calls.bwd, calls.call_bwd, change)
        self._check(calls.wy, calls.call_wy, change)

    def test_slices_of_wider_tensors(self):
        # NaN all around: an access outside the slice shows, whichever axis it leaves.
        def change(name, value):
            del name
            wide = value.new_full([n + 4 for n in value.shape], torch.nan)
            inner = tuple(slice(2, -2) for _ in value.shape)
            wide[inner] = value
            return wide[inner]

        self._check_both(change)

    def test_head_major_memory(self):
        def change(name, value):
            return value.transpose(1, 2).contiguous().transpose(1, 2) if value.dim() > 2 else value

        self._check_both(change)

    def test_rows_with_gaps(self):
        def change(name, value):
            wide = value.new_full((*value.shape, 2), torch.nan)
            wide[..., 0] = value
            return wide[..., 0]

        self._check_both(change)

    def test_expanded(self):
        for make, call in ((calls.bwd, calls.call_bwd), (calls.wy, calls.call_wy)):
            x = make(b=2, t=37, value_heads=4, dtype=_HALF)
            views = calls.on_device(x)
            views["q"] = views["q"][:1].expand_as(x["q"])
            views["beta"] = views["beta"][:1, :, :1].expand_as(x["beta"])
            views["do"] = views["do"][:, :1, :1].expand_as(x["do"])
            dense = {n: v.contiguous() if _of_tokens(n, v) else v for n, v in views.items()}
            self.assert_same(call(views), call(dense))

    @parameterized.product(dtype=(_HALF, torch.bfloat16), half_do=(False, True))
    def test_converted_arguments(self, dtype, half_do):
        # 16-bit beta and G mean the same as fp32 ones with their values; so does do beside fp32 q.
        x = calls.bwd(t=37, dtype=torch.float32 if half_do else dtype)
        narrow = {name: x[name].to(dtype) for name in ("beta", "g", *(["do"] if half_do else []))}
        wide = {name: value.float() for name, value in narrow.items()}
        self.assert_same(calls.call_bwd(x | narrow), calls.call_bwd(x | wide))

    def test_scores_in_fp32(self):
        x = calls.bwd(t=37, dtype=_HALF)
        wide = {name: x[name].float() for name in ("Aqk", "Akk")}
        self.assert_same(calls.call_bwd(x | wide), calls.call_bwd(x))
        x = calls.wy(t=37, dtype=_HALF)
        self.assert_same(calls.call_wy(x | {"A": x["A"].float()}), calls.call_wy(x))

    def test_above_the_diagonal_is_not_read(self):
        x = calls.bwd(dtype=_HALF)
        expected = calls.call_bwd(x)
        above = torch.arange(70)[:, None] % 64 < torch.arange(64)
        for name in ("Aqk", "Akk"):
            x[name] = x[name].masked_fill(above[None, :, None], torch.nan)
        self.assert_same(calls.call_bwd(x), expected)
        x = calls.wy(dtype=_HALF)
        expected = calls.call_wy(x)
        x["A"] = x["A"].masked_fill(above[None, :, None], torch.nan)
        self.assert_same(calls.call_wy(x), expected)

    # A stride below 2^31 reaches a kernel as int32, one above as int64; rows that lie so far apart
    # that a chunk's would not fit into 32 bits are copied.
    @parameterized.parameters(
        (0, 2**30 + 16), (0, 2**31 + 16), (1, 2**25 - 512), (1, 2**26 + 16), (2, 2**31 + 16)
    )
    def test_offsets_beyond_32_bits(self, axis, stride):
        # A sparse allocation: the pages between the rows are never touched on the CPU.
        b, t, value_heads = (3, 34, 3) if axis != 1 else (1, 66, 1)
        x = calls.bwd(b=b, t=t, value_heads=value_heads, dtype=_HALF)
        expected = calls.call_bwd(x)
        v = x["v"]
        strides = [0, 0, 0, 1]
        dense = iter((v.shape[3], 128 * v.shape[3], 16384 * v.shape[3]))
        for i in (2, 1, 0):
            strides[i] = stride if i == axis else next(dense)
        extent = 1 + sum((n - 1) * step for n, step in zip(v.shape, strides, strict=True))
        self.assertGreater(extent, 2**31)
        far = torch.empty(extent, dtype=v.dtype, device=calls.DEVICE).as_strided(v.shape, strides)
        far.copy_(v)
        self.assert_same(calls.call_bwd(x | {"v": far}), expected)


# 2^31 elements take an interpreter hours. There the test does not exist, rather than looking green.
if unit.DEVICE.is_accelerator:

    class LargeTest(_TestCase):
        def test_offsets_of_results_beyond_32_bits(self):
            # One token repeated, and a gate of -1 a step: every chunk has the same neighbours.
            chunk, heads, k_dim = 32, 32, 256
            short = calls.on_device(
                calls.bwd(
                    t=4 * chunk,
                    heads=heads,
                    value_heads=heads,
                    k_dim=k_dim,
                    v_dim=16,
                    dtype=_HALF,
                    states=False,
                    chunk_size=chunk,
                    gate="softplus",
                    **_constant(4 * chunk, heads, k_dim),
                )
            )
            chunks = 2**31 // (chunk * heads * k_dim) + 3
            long = dict(short)
            for name, value in short.items():
                if not _of_tokens(name, value):
                    continue
                if name in ("Aqk", "Akk"):
                    long[name] = value[:, chunk : 2 * chunk].repeat(1, chunks, 1, 1)
                else:
                    long[name] = value[:, :1].expand(-1, chunks * chunk, *value.shape[2:])
            found, expected = calls.call_bwd(long), calls.call_bwd(short)
            self.assertGreater(found["dq"].numel(), 2**31)
            for name in ("dq", "dk", "dv", "db", "dg"):
                want = expected[name]
                for part in (slice(0, chunk), slice(-chunk, None)):
                    self.assertLess(
                        calls.distance(found[name][:, part], want[:, part]), 2.0**-9, name
                    )
                self.assertTrue(found[name].isfinite().all(), name)


def _constant(t, heads, k_dim):
    x = calls.bwd(t=1, heads=heads, value_heads=heads, k_dim=k_dim, v_dim=16, dtype=_HALF)
    values = {name: x[name].repeat(1, t, 1, 1) for name in ("q", "k", "v", "do")}
    gates = torch.full((1, t, heads, k_dim), 0.5413, dtype=_HALF)  # softplus of it is 1
    return values | {
        "beta": x["beta"].repeat(1, t, 1),
        "g_org": gates,
        "A_log": torch.zeros(heads),
        "dt_bias": None,
    }


if __name__ == "__main__":
    absltest.main()
