"""Tests of goldens and same-precision references: against autograd through the recurrence, against
each other, and against known cases."""

import itertools
import math
from unittest import mock

import torch
from absl.testing import absltest, parameterized

from ops.chunk_kda import preparation, reference, same_precision, sequences
from ops.chunk_kda.sequences import Sequences, gate

_GRADIENTS = ("dq", "dk", "dv", "dbeta", "dg", "dh0", "dA_log", "ddt_bias")
_WY = ("dq", "dk", "dv", "dbeta", "dg", "dA")


def _primaries(
    b=2,
    t=70,
    h=1,
    hv=2,
    k_dim=12,
    v_dim=5,
    *,
    chunk_size=32,
    cu_seqlens=None,
    in_kernel=False,
    lower_bound=None,
    disable_recompute=False,
    states=True,
    rate=True,
    bias=True,
    dtype=torch.float64,
    gates=None,
    scale=None,
    seed=0,
):
    """Drawn tensors: float64 throughout, or q, k, v, do in a 16-bit dtype and the rest fp32."""
    generator = torch.Generator().manual_seed(seed)
    wide = torch.float64 if dtype == torch.float64 else torch.float32

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    n = b if cu_seqlens is None else len(cu_seqlens) - 1
    log_gate = -0.5 * normal(b, t, hv, k_dim).abs()
    if gates is not None:
        log_gate = torch.tensor(gates, dtype=torch.float64).repeat(t)[:t]
        log_gate = log_gate[:, None, None].expand(b, t, hv, k_dim)
    return {
        "q": normal(b, t, h, k_dim).to(dtype),
        "k": (normal(b, t, h, k_dim) / math.sqrt(k_dim)).to(dtype),
        "v": normal(b, t, hv, v_dim).to(dtype),
        "beta": torch.rand(b, t, hv, generator=generator, dtype=torch.float64).to(wide),
        "do": normal(b, t, hv, v_dim).to(dtype),
        "log_gate": None if in_kernel else log_gate.to(wide),
        "g_org": normal(b, t, hv, k_dim).to(wide) if in_kernel else None,
        "A_log": (0.5 * normal(hv)).to(wide) if in_kernel and rate else None,
        "dt_bias": normal(hv * k_dim).to(wide) if in_kernel and bias else None,
        "initial_state": normal(n, hv, k_dim, v_dim).to(wide) if states else None,
        "dht": normal(n, hv, k_dim, v_dim).to(wide) if states else None,
        "scale": scale,
        "cu_seqlens": cu_seqlens,
        "index_dtype": "int64",
        "chunk_size": chunk_size,
        "score_dtype": None,
        "safe_gate": False,
        "lower_bound": lower_bound,
        "use_gate_in_kernel": in_kernel,
        "disable_recompute": disable_recompute,
    }


def _arguments(**options):
    x = _primaries(**options)
    exact = torch.float64 if x["q"].dtype == torch.float64 else torch.float32
    return preparation.bwd(**x, gate_dtype=exact)


def _autograd(x):
    """The gradients of chunk_kda_bwd by autograd through the recurrence, sequence by sequence."""
    leaves = {
        name: x[name].clone().requires_grad_()
        for name in ("q", "k", "v", "beta", "log_gate", "g_org", "A_log", "dt_bias")
        + ("initial_state",)
        if x[name] is not None
    }
    b, t, hv = x["beta"].shape
    group = hv // x["q"].shape[2]
    scale = x["q"].shape[3] ** -0.5 if x["scale"] is None else x["scale"]
    steps = leaves.get("log_gate")
    if steps is None:
        rate, bias = leaves.get("A_log"), leaves.get("dt_bias")
        steps = gate(leaves["g_org"], rate, bias, x["lower_bound"], torch.float64)
    bounds = x["cu_seqlens"]
    sequences = [(n, 0, t) for n in range(b)]
    if bounds is not None:
        sequences = [(0, start, end) for start, end in itertools.pairwise(bounds)]
    total = torch.zeros((), dtype=torch.float64)
    for n, (row, start, end) in enumerate(sequences):
        for head in range(hv):
            state = torch.zeros(x["q"].shape[3], x["v"].shape[3], dtype=torch.float64)
            if "initial_state" in leaves:
                state = leaves["initial_state"][n, head]
            for i in range(start, end):
                k_t = leaves["k"][row, i, head // group]
                state = steps[row, i, head].exp()[:, None] * state
                written = leaves["beta"][row, i, head] * (leaves["v"][row, i, head] - state.T @ k_t)
                state = state + torch.outer(k_t, written)
                o_t = scale * state.T @ leaves["q"][row, i, head // group]
                total = total + (o_t * x["do"][row, i, head]).sum()
            if x["dht"] is not None:
                total = total + (state * x["dht"][n, head]).sum()
    found = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    by_name = dict(zip(leaves, found, strict=True))
    by_name["log_gate"] = by_name.get("log_gate", by_name.get("g_org"))
    order = ("q", "k", "v", "beta", "log_gate", "initial_state", "A_log", "dt_bias")
    return [by_name.get(name) for name in order]


class _TestCase(parameterized.TestCase):
    def assert_close(self, actual, expected, limit, names=_GRADIENTS):
        for name, a, e in zip(names, actual, expected, strict=True):
            if e is None:
                self.assertIsNone(a, name)
                continue
            self.assertEqual(a.shape, e.shape, name)
            largest = e.abs().max().item() if e.numel() else 0.0
            error = (a.double() - e).abs().max().item() if e.numel() else 0.0
            self.assertLessEqual(error, limit * largest, name)


class GoldenBwdTest(_TestCase):
    @parameterized.parameters(
        {},
        {"t": 1},
        {"b": 1, "t": 37, "h": 2, "hv": 2, "k_dim": 4, "v_dim": 9, "chunk_size": 64},
        {"b": 1, "t": 20, "hv": 3, "states": False},
        {"b": 1, "t": 70, "cu_seqlens": (0, 0, 3, 36, 37, 64)},
        {"t": 40, "in_kernel": True},
        {"t": 40, "in_kernel": True, "bias": False},
        {"t": 40, "in_kernel": True, "lower_bound": -5.0},
        {"t": 40, "in_kernel": True, "lower_bound": -2.5, "rate": False},
        {"t": 40, "gates": (-1000.0, -0.1, 0.0, -5.0)},
        {"t": 9, "scale": -0.7},
    )
    def test_equals_autograd_through_the_recurrence(self, **options):
        options = {"t": 70, "k_dim": 6, "v_dim": 3} | options
        x = _primaries(**options)
        golden = reference.golden_bwd(**preparation.bwd(**x, gate_dtype=torch.float64))
        self.assert_close(golden, _autograd(x), 1e-12)

    def test_segments_do_not_show(self):
        x = _arguments(t=130)
        golden = reference.golden_bwd(**x)
        whole, reference._SEGMENT = reference._SEGMENT, 7
        try:
            again = reference.golden_bwd(**x)
        finally:
            reference._SEGMENT = whole
        self.assert_close(again, golden, 1e-15)

    def test_slack_rows_are_zero(self):
        golden = reference.golden_bwd(**_arguments(b=1, t=50, cu_seqlens=(0, 17, 40)))
        for name, gradient in zip(_GRADIENTS[:5], golden[:5], strict=True):
            self.assertEqual(gradient[:, 40:].abs().max(), 0, name)
            self.assertGreater(gradient[:, :40].abs().min(), 0, name)

    def test_gates_are_those_of_the_given_G(self):
        x = _arguments(dtype=torch.float16)
        moved = reference.golden_bwd(**(x | {"g": x["g"] * 1.001}))
        self.assertGreater((moved[4] - reference.golden_bwd(**x)[4]).abs().max(), 1e-4)

    def test_does_not_use_what_the_forward_saved(self):
        x = _arguments(disable_recompute=True)
        golden = reference.golden_bwd(**x)
        names = ("Aqk", "Akk", "v_new", "h", "w", "u", "qg", "kg")
        again = reference.golden_bwd(**(x | {name: x[name] * math.nan for name in names}))
        self.assert_close(again, golden, 0)

    def test_no_tokens(self):
        for x in (_arguments(t=0), _arguments(b=1, t=5, cu_seqlens=(0, 0, 0))):
            golden = reference.golden_bwd(**x)
            self.assertTrue(torch.equal(golden[5], x["dht"]))
            self.assertEqual(golden[0].abs().sum(), 0)

    def test_a_masked_step_passes_nothing_on(self):
        x = _arguments(t=40, states=False, gates=(*[-0.1] * 20, -1e4, *[-0.1] * 19))
        golden = reference.golden_bwd(**x)
        x["do"][:, :20] = 0
        for gradient in reference.golden_bwd(**x)[:5]:
            self.assertEqual(gradient[:, :20].abs().max(), 0)
        self.assertTrue(all(gradient.isfinite().all() for gradient in golden[:5]))

    def test_large_rates_stay_finite(self):
        x = _primaries(t=20, in_kernel=True, lower_bound=-5.0)
        x["A_log"][:] = 100.0
        golden = reference.golden_bwd(**preparation.bwd(**x))
        self.assertTrue(all(gradient.isfinite().all() for gradient in golden))


class ChunkedBwdTest(_TestCase):
    @parameterized.product(
        t=(1, 15, 31, 64, 65, 130),
        chunk_size=(32, 64),
        heads=((1, 1), (1, 2), (2, 6)),
        options=(
            {},
            {"disable_recompute": True},
            {"in_kernel": True},
            {"in_kernel": True, "lower_bound": -5.0},
        ),
    )
    def test_equals_the_recurrence_in_float64(self, t, chunk_size, heads, options):
        x = _arguments(t=t, chunk_size=chunk_size, h=heads[0], hv=heads[1], **options)
        self._assert_equal(x)

    @parameterized.product(
        cu_seqlens=(
            (0, 1, 64, 65, 129),
            (0, 17, 80, 145),
            (0, 0, 63, 128, 130),
            (0, 31, 96, 160),
            tuple(range(33)),
        ),
        options=({"chunk_size": 64}, {"in_kernel": True}, {"disable_recompute": True}),
    )
    def test_equals_it_for_packed_sequences(self, cu_seqlens, options):
        self._assert_equal(_arguments(b=1, t=cu_seqlens[-1] + 7, cu_seqlens=cu_seqlens, **options))

    @parameterized.parameters(
        {"gates": (-1000.0, -0.1, -0.2)},
        {"gates": (-5.0,)},
        {"gates": (0.0,)},
        {"gates": (0.2, -0.3)},  # not in normal use, but defined
        {"in_kernel": True, "rate": False, "lower_bound": -5.0},
        {"in_kernel": True, "bias": False},
        {"states": False},
        {"scale": 0.0},
        {"scale": -2.0},
        {"k_dim": 3, "v_dim": 20},
        {"k_dim": 1, "v_dim": 1},
    )
    def test_equals_it_for_special_cases(self, **options):
        self._assert_equal(_arguments(chunk_size=64, t=150, **options))

    def _assert_equal(self, x):
        chunked = same_precision.chunked_bwd(**x, compute_dtype=torch.float64, operand_dtype=None)
        self.assert_close(chunked, reference.golden_bwd(**x), 1e-12)

    def test_no_tokens(self):
        x = _arguments(t=0)
        chunked = same_precision.chunked_bwd(**x, compute_dtype=torch.float64, operand_dtype=None)
        self.assert_close(chunked, reference.golden_bwd(**x), 0)

    @parameterized.product(
        dtype_and_u=((torch.float16, 2.0**-11), (torch.bfloat16, 2.0**-8)),
        options=({"chunk_size": 32}, {"chunk_size": 64}, {"in_kernel": True}),
    )
    def test_same_precision_is_off_by_its_roundings(self, dtype_and_u, options):
        dtype, u = dtype_and_u
        x = _arguments(b=1, t=128, k_dim=64, v_dim=64, dtype=dtype, **options)
        r = same_precision.same_precision_bwd(**x)
        self.assertEqual(
            [gradient.dtype for gradient in r if gradient is not None],
            [dtype] * 3 + [torch.float32] * (5 if options.get("in_kernel") else 3),
        )
        for name, a, e in zip(_GRADIENTS, r, reference.golden_bwd(**x), strict=True):
            if e is not None:
                distance = ((a.double() - e).norm() / e.norm()).item()
                # Sums over all tokens that cancel: dA_log is off by 14 u here, ddt_bias by 3 u.
                limit = {"dA_log": 20, "ddt_bias": 4}.get(name, 2.5)
                self.assertBetween(distance, 0.1 * u, limit * u, name)

    def test_same_precision_in_fp32(self):
        x = _arguments(b=1, t=128, k_dim=64, v_dim=64, dtype=torch.float32)
        r = same_precision.same_precision_bwd(**x)
        for name, a, e in zip(_GRADIENTS, r, reference.golden_bwd(**x), strict=True):
            if e is not None:
                self.assertLess(((a.double() - e).norm() / e.norm()).item(), 2.0**-20, name)

    @parameterized.parameters(torch.float16, torch.bfloat16, torch.float32)
    def test_strong_gates_stay_finite(self, dtype):
        for options in ({"gates": (-1000.0, -0.1)}, {"gates": (-5.0,)}):
            r = same_precision.same_precision_bwd(**_arguments(t=130, dtype=dtype, **options))
            self.assertTrue(all(x.isfinite().all() for x in r if x is not None))
        x = _primaries(t=40, in_kernel=True, lower_bound=-5.0, dtype=dtype)
        x["A_log"][:] = 100.0
        r = same_precision.same_precision_bwd(**preparation.bwd(**x))
        self.assertTrue(all(gradient.isfinite().all() for gradient in r))

    def test_nothing_flows_back_in_time(self):
        for t, after in ((64, 33), (70, 37)):
            x = _arguments(t=t, dtype=torch.float16, states=False)
            r = same_precision.same_precision_bwd(**x)
            x["do"][:, after:] = 0
            again = same_precision.same_precision_bwd(**x)
            for gradient in again[:5]:
                self.assertEqual(gradient[:, after:].abs().max(), 0)
            self.assertGreater((r[0] - again[0]).abs().max(), 0)

    def test_the_diagonal_adds_nothing_to_dg(self):
        # One token per sequence, no state: all there is lies on the diagonal.
        x = _arguments(b=1, t=8, cu_seqlens=tuple(range(9)), states=False, dtype=torch.float16)
        for gradients in (same_precision.same_precision_bwd(**x), reference.golden_bwd(**x)):
            self.assertEqual(gradients[4].abs().max(), 0)
            self.assertGreater(gradients[1].abs().max(), 0)


class ByHeadsTest(_TestCase):
    def test_slices_of_heads_do_not_show(self):
        for options in ({"in_kernel": True}, {"disable_recompute": True}, {"states": False}):
            x = _arguments(h=3, hv=6, dtype=torch.float16, **options)
            for function in (reference.golden_bwd, same_precision.same_precision_bwd):
                self._assert_sliced(function, x, _GRADIENTS)
        x = _wy_arguments(h=3, hv=6, dtype=torch.float16)
        for function in (reference.golden_wy, same_precision.same_precision_wy):
            self._assert_sliced(function, x, _WY)

    def _assert_sliced(self, function, x, names):
        whole = function(**x)
        # For two of the three heads: 3 chunks of 2 sequences, 2 value heads each.
        with mock.patch.object(sequences, "MOST_STATES", 2 * 2 * 3 * 2 * 12 * 5):
            parts = function(**x)
        for name, a, e in zip(names, parts, whole, strict=True):
            if e is None:
                self.assertIsNone(a, name)
            else:
                self.assertEqual((a.shape, a.dtype), (e.shape, e.dtype), name)
                limit = 1e-13 if e.dtype == torch.float64 else 1e-2
                self.assertLess((a - e).abs().max(), limit * e.abs().max(), name)


class LevelsTest(_TestCase):
    @parameterized.product(size=(32, 64), strength=(0.1, 5.0, 1000.0))
    def test_equal_the_direct_formula(self, size, strength):
        generator = torch.Generator().manual_seed(1)

        def normal(*shape):
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        q, k = normal(2, size, 7), normal(2, size, 7)
        G = -(strength * normal(2, size, 7).abs()).cumsum(1)
        beta, dscores, dinner = (
            normal(2, size, 1),
            normal(2, size, size).tril(),
            normal(2, size, size).tril(-1),
        )
        lower = torch.ones(size, size, dtype=torch.bool).tril(-1)
        D = torch.where(lower[..., None], G[:, :, None] - G[:, None], -math.inf).exp2()
        dq = torch.einsum("bij,bjd,bijd->bid", dscores, k, D)
        r = torch.einsum("bij,bjd,bijd->bid", dinner, k, D)
        c = torch.einsum("bij,bid,bijd->bjd", dscores, q, D)
        c += torch.einsum("bij,bid,bijd->bjd", dinner, beta * k, D)
        found = same_precision.intra(q, k, G, beta, dscores, dinner)
        self.assert_close(found, (dq, r, c), 1e-13, ("dq", "r", "c"))


def _wy_arguments(dtype=torch.float64, **options):
    """Inconsistent on purpose: v_new, h, dh and dv belong to nothing."""
    x = _primaries(**options)
    b, t, hv, v_dim = x["v"].shape
    k_dim, chunk_size = x["q"].shape[3], x["chunk_size"]
    chunks = Sequences(x["q"], x["cu_seqlens"], chunk_size).num_chunks // b
    generator = torch.Generator().manual_seed(5)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    drawn = {name: x[name] for name in ("q", "k", "v", "do")}
    drawn |= {"v_new": normal(b, t, hv, v_dim), "dv": normal(b, t, hv, v_dim)}
    drawn |= {name: normal(b, chunks, hv, k_dim, v_dim) for name in ("h", "dh")}
    others = ("beta", "log_gate", "scale", "cu_seqlens", "index_dtype", "chunk_size")
    arguments = preparation.wy(
        **{name: tensor.to(dtype) for name, tensor in drawn.items()},
        **{name: x[name] for name in others},
    )
    return arguments


class WyTest(_TestCase):
    @parameterized.parameters(
        {},
        {"t": 1},
        {"t": 130, "chunk_size": 64, "h": 2, "hv": 6},
        {"b": 1, "t": 170, "cu_seqlens": (0, 0, 31, 96, 160)},
        {"b": 1, "t": 40, "cu_seqlens": tuple(range(33))},
        {"gates": (-1000.0, -0.1)},
        {"scale": -0.3},
    )
    def test_golden_equals_the_contracts_formula(self, **options):
        x = _wy_arguments(**options)
        formula = same_precision.chunked_wy(**x, compute_dtype=torch.float64, operand_dtype=None)
        self.assert_close(formula, reference.golden_wy(**x), 1e-12, _WY)

    def test_dA_by_finite_differences(self):
        # Of <dv, A (beta v) - A (beta kE) h> when A^-1 changes in one entry below the diagonal.
        x = _wy_arguments(b=1, t=5, hv=1, k_dim=3, v_dim=2)
        A = x["A"][0, :, 0, :5]
        E = x["g"][0, :, 0].double().exp2()
        right = x["beta"][0, :, :1] * (x["v"][0, :, 0] - (x["k"][0, :, 0] * E) @ x["h"][0, 0, 0])
        step = 1e-6
        for i, j in ((1, 0), (4, 2), (3, 0)):
            change = torch.zeros(5, 5, dtype=torch.float64)
            change[i, j] = step
            values = [
                (x["dv"][0, :, 0] * (torch.linalg.inv(A.inverse() + s * change) @ right)).sum()
                for s in (1, -1)
            ]
            numeric = ((values[0] - values[1]) / (2 * step)).item()
            self.assertAlmostEqual(reference.golden_wy(**x)[5][0, i, 0, j].item(), numeric, 6)

    def test_dA_of_the_forwards_v_new(self):
        # With v_new = A beta (v - kE h) it is -tril(y v_new^T, -1), y = A^T dv: what r relies on.
        x = _wy_arguments(b=1, t=32, hv=1)
        E = x["g"][:, :, 0].double().exp2()
        A = x["A"][0, :, 0]
        v_new = A @ (x["beta"][0] * (x["v"][0, :, 0] - (x["k"][0, :, 0] * E[0]) @ x["h"][0, 0, 0]))
        y = A.T @ x["dv"][0, :, 0]
        dA = reference.golden_wy(**(x | {"v_new": v_new[None, :, None]}))[5][0, :, 0]
        self.assert_close([dA], [-(y @ v_new.T).tril(-1)], 1e-12, ("dA",))

    @parameterized.parameters((torch.float16, 2.0**-11), (torch.bfloat16, 2.0**-8))
    def test_same_precision_is_off_by_its_roundings(self, dtype, u):
        x = _wy_arguments(dtype=dtype, b=1, t=128, k_dim=64, v_dim=64, chunk_size=64)
        r = same_precision.same_precision_wy(**x)
        self.assertEqual([y.dtype for y in r], [torch.float32] * 2 + [dtype] + [torch.float32] * 3)
        for name, a, e in zip(_WY, r, reference.golden_wy(**x), strict=True):
            self.assertLess(((a.double() - e).norm() / e.norm()).item(), 2 * u, name)

    def test_no_tokens(self):
        golden = reference.golden_wy(**_wy_arguments(t=0))
        self.assertEqual([tuple(x.shape) for x in golden[:2]], [(2, 0, 2, 12)] * 2)


class PreparationTest(_TestCase):
    def test_meta_tensors_get_the_shapes(self):
        for options in (
            {"disable_recompute": True, "in_kernel": True},
            {"b": 1, "t": 50, "cu_seqlens": (0, 17, 40)},
        ):
            x = _primaries(dtype=torch.float16, **options)
            real = preparation.bwd(**x)
            meta = preparation.bwd(
                **{n: v.to("meta") if isinstance(v, torch.Tensor) else v for n, v in x.items()}
            )
            self.assertEqual(list(real), list(meta))
            for name, value in real.items():
                if isinstance(value, torch.Tensor):
                    shape = (meta[name].shape, meta[name].dtype)
                    self.assertEqual(shape, (value.shape, value.dtype), name)
                else:
                    self.assertEqual(value, meta[name])

    def test_scores_by_hand(self):
        x = _arguments(b=1, t=3, hv=1)
        q, k, beta = x["q"][0, :, 0], x["k"][0, :, 0], x["beta"][0, :, 0]
        G = x["g"][0, :, 0]
        scale = x["q"].shape[3] ** -0.5
        for i in range(3):
            for j in range(i + 1):
                expected = scale * (q[i] * k[j] * (G[i] - G[j]).exp2()).sum()
                self.assertAlmostEqual(x["Aqk"][0, i, 0, j].item(), expected.item(), 12)
        raw = torch.eye(3, dtype=torch.float64)
        for i in range(3):
            for j in range(i):
                raw[i, j] = beta[i] * (k[i] * k[j] * (G[i] - G[j]).exp2()).sum()
        self.assert_close([x["Akk"][0, :, 0, :3]], [torch.linalg.inv(raw)], 1e-12, ["Akk"])
        self.assertEqual(x["Akk"][..., 3:].abs().max(), 0)
        self.assertEqual(x["Aqk"][..., 3:].abs().max(), 0)

    def test_chunk_indices(self):
        x = _arguments(b=1, t=50, cu_seqlens=(0, 0, 33, 40))
        self.assertEqual(x["chunk_indices"].tolist(), [[1, 0], [1, 1], [2, 0]])

    def test_expanded_beta(self):
        x = _primaries(hv=4)
        x["beta"] = x["beta"][..., :1]
        self.assertEqual(preparation.bwd(**x)["beta"].stride()[2], 0)


if __name__ == "__main__":
    absltest.main()
