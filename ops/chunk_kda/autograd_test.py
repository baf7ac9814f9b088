"""Tests of chunk_kda's derivative, and of its entries in torch's machinery, on the device that the
target is for."""

import torch
from absl.testing import absltest, parameterized
from torch._dynamo import utils
from torch.autograd import forward_ad, graph

from ops import chunk_kda
from ops.chunk_kda import fwd_reference, training
from ops.chunk_kda import test_calls as calls
from ops.common import backend, launch

_HALF = torch.float16
# In fp32 nothing hides behind 16-bit rounding.
_LIMIT = 2.0**-17
_NAMES = ("q", "k", "v", "g", "beta", "initial_state", "A_log", "dt_bias")


def _leaves(arguments):
    """The arguments, and those of them that are differentiable, as leaves."""
    leaves = {
        name: arguments[name].detach().requires_grad_()
        for name in _NAMES
        if arguments.get(name) is not None
    }
    return {**arguments, **leaves}, leaves


def _cotangents(arguments):
    """Gradients of o and of the last states."""
    generator = torch.Generator().manual_seed(7)
    v, sequences = arguments["v"], arguments["v"].shape[0]
    if arguments.get("cu_seqlens") is not None:
        sequences = len(arguments["cu_seqlens"]) - 1
    states = (sequences, v.shape[2], arguments["q"].shape[3], v.shape[3])
    return torch.randn(v.shape, generator=generator), torch.randn(states, generator=generator)


def _through(function, arguments, cotangents):
    """Gradients by name; a cotangent that is None belongs to a result that is not used."""
    x, leaves = _leaves(arguments)
    used = [
        (result, cotangent.to(result))
        for result, cotangent in zip(function(**x), cotangents, strict=True)
        if cotangent is not None
    ]
    results, given = zip(*used, strict=True)
    found = torch.autograd.grad(results, list(leaves.values()), given)
    return dict(zip(leaves, found, strict=True))


def _found(arguments, cotangents=None):
    cotangents = _cotangents(arguments) if cotangents is None else cotangents
    return _through(chunk_kda.chunk_kda, calls.on_device(arguments), cotangents)


def _expected(arguments, cotangents=None):
    """By autograd through the token recurrence in float64."""
    cotangents = _cotangents(arguments) if cotangents is None else cotangents
    wide = {
        name: value.double()
        if isinstance(value, torch.Tensor) and value.is_floating_point()
        else value
        for name, value in arguments.items()
    }
    return _through(fwd_reference.golden_fwd, wide, cotangents)


class _TestCase(parameterized.TestCase):
    def assert_close(self, actual, expected, limit=_LIMIT):
        self.assertEqual(set(actual), set(expected))
        for name, result in actual.items():
            self.assertTrue(result.isfinite().all(), name)
            self.assertEqual(result.shape, expected[name].shape, name)
            # Sums over all tokens, most of which cancels.
            share = 4 if name in ("A_log", "dt_bias") else 1
            self.assertLess(calls.distance(result, expected[name]), share * limit, name)

    def assert_same(self, actual, expected):
        self.assertEqual(set(actual), set(expected))
        for name, result in actual.items():
            self.assertTrue(torch.equal(result, expected[name]), name)


class GradientsTest(_TestCase):
    @parameterized.parameters(
        {},
        {"states": False},
        {"gate": "softplus"},
        {"gate": "bounded"},
        {"gate": "softplus", "dt_bias": None},
        {"gate": "bounded", "A_log": None},
        {"use_qk_l2norm_in_kernel": True},
        {"use_beta_sigmoid_in_kernel": True},
        {"use_beta_sigmoid_in_kernel": True, "allow_neg_eigval": True},
        {"scale": -0.3},
        {"b": 2, "t": 33, "heads": 2, "value_heads": 6, "k_dim": 20, "v_dim": 5},
        {"heads": 2, "value_heads": 4, "use_qk_l2norm_in_kernel": True, "chunk_size": 32},
        {"t": 1, "b": 2},
        {"t": 100, "cu_seqlens": (0, 33, 33, 90)},
        {
            "t": 100,
            "cu_seqlens": (0, 33, 33, 90),
            "gate": "softplus",
            "use_qk_l2norm_in_kernel": True,
            "use_beta_sigmoid_in_kernel": True,
        },
    )
    def test_those_of_the_recurrence(self, **options):
        x = calls.fwd(**options)
        if options.get("use_qk_l2norm_in_kernel"):
            x["k"] = 2 * x["k"]
        self.assert_close(_found(x), _expected(x))

    @parameterized.product(states=(False, True), l2norm=(False, True))
    def test_of_one_result(self, states, l2norm):
        x = calls.fwd(states=states, use_qk_l2norm_in_kernel=l2norm)
        do, dht = _cotangents(x)
        self.assert_close(_found(x, (do, None)), _expected(x, (do, None)))
        found = _found(x, (None, dht))
        self.assertFalse(found.pop("q").any())
        expected = _expected(x | {"q": x["q"] + 0}, (do * 0, dht))
        self.assertFalse(expected.pop("q").any())
        self.assert_close(found, expected)

    def test_of_one_normalised_tensor(self):
        x = calls.on_device(calls.fwd(t=5, dtype=_HALF))
        q, k = (x[name].clone().requires_grad_() for name in ("q", "k"))
        for i, (used, unused) in enumerate(((q, k), (k, q))):
            y = torch.ops.ascend_ops.chunk_kda_l2norm(q, k)[i]
            dy = torch.arange(y.numel(), device=calls.DEVICE).view(y.shape).to(y) / y.numel()
            found = dict(zip((q, k), torch.autograd.grad(y, (q, k), dy), strict=True))
            self.assertEqual(found[unused].dtype, _HALF)
            self.assertFalse(found[unused].any())
            wide = used.detach().double().requires_grad_()
            norm = (wide.square().sum(-1, keepdim=True) + 1e-6).sqrt()
            (expected,) = torch.autograd.grad(wide / norm, wide, dy.double())
            self.assertLess(calls.distance(found[used], expected), 2.0**-9)

    def test_without_the_last_states(self):
        x = calls.fwd() | {"output_final_state": False}
        do, _ = _cotangents(x)
        self.assert_close(_found(x, (do, None)), _expected(x, (do, None)))

    def test_of_some_arguments(self):
        x = calls.on_device(calls.fwd(gate="softplus"))
        do, dht = (d.to(calls.DEVICE) for d in _cotangents(x))
        expected = _found(x)
        for name in expected:
            leaf = x[name].clone().requires_grad_()
            results = chunk_kda.chunk_kda(**(x | {name: leaf}))
            (found,) = torch.autograd.grad(results, leaf, (do, dht))
            self.assertTrue(torch.equal(found, expected[name]), name)

    def test_dtypes(self):
        x = calls.fwd(dtype=_HALF, gate="softplus", use_qk_l2norm_in_kernel=True)
        x["beta"] = x["beta"].to(_HALF)
        found = _found(x)
        for name, gradient in found.items():
            self.assertEqual(gradient.dtype, x[name].dtype, name)
        self.assert_close(found, _expected(x), 2.0**-9)
        x = calls.fwd(dtype=torch.bfloat16)
        x["g"] = x["g"].bfloat16()
        self.assert_close(_found(x), _expected(x), 2.0**-7)

    def test_layouts(self):
        # Slices of one buffer, as a fused projection makes them; gradients that come in expanded.
        x = calls.on_device(calls.fwd(b=2, heads=2, value_heads=2, dtype=_HALF))
        names = ("q", "k", "v")
        expected = _found(x)
        wide = torch.cat([x[name] for name in names], dim=3).requires_grad_()
        parts = dict(zip(names, wide.split(32, dim=3), strict=True))
        results = chunk_kda.chunk_kda(**(x | parts), use_qk_l2norm_in_kernel=False)
        cotangents = [d.to(r) for d, r in zip(_cotangents(x), results, strict=True)]
        (found,) = torch.autograd.grad(results, wide, cotangents)
        self.assertTrue(torch.equal(found, torch.cat([expected[name] for name in names], dim=3)))
        o, _ = chunk_kda.chunk_kda(**(x | parts))
        (found,) = torch.autograd.grad(o.sum(), wide)
        self.assertTrue(found.isfinite().all())

    def test_the_function_for_tests_and_timings(self):
        x = calls.on_device(calls.fwd(gate="softplus"))
        do, dht = (d.to(calls.DEVICE) for d in _cotangents(x))
        del x["output_final_state"]
        expected = _found(x | {"output_final_state": True})
        names = ("q", "k", "v", "beta", "g", "initial_state", "A_log", "dt_bias")
        with launch.record() as launches:
            found = training.gradients(do, dht, **x)
        self.assert_same(dict(zip(names, found, strict=True)), expected)
        self.assertLen(launches, 4 + 7)
        expected = _found(x | {"output_final_state": True, "initial_state": None}, (do, None))
        found = training.gradients(do, None, **(x | {"initial_state": None}))
        self.assertIsNone(found[5])
        self.assertTrue(torch.equal(found[0], expected["q"]))

    def test_no_tokens(self):
        x = calls.fwd(t=0)
        do, dht = _cotangents(x)
        found = _found(x)
        self.assertTrue(torch.equal(found["initial_state"].cpu(), dht))
        self.assertEqual(found["q"].shape, x["q"].shape)
        self.assertEqual(found["beta"].shape, do.shape[:3])


class GraphTest(_TestCase):
    def test_rows_behind_the_last_sequence(self):
        bounds = (0, 3, 17)
        x = calls.fwd(t=20, gate="softplus", dtype=torch.float32, cu_seqlens=bounds)
        x |= {"use_qk_l2norm_in_kernel": True, "use_beta_sigmoid_in_kernel": True}
        cotangents = _cotangents(x)
        expected = _found(x, cotangents)
        for name in ("q", "k", "v", "g", "beta"):
            x[name][:, 17:] = float("nan")
        found = _found(x, (cotangents[0], cotangents[1]))
        self.assert_same(found, expected)
        for name in ("q", "k", "v", "g", "beta"):
            self.assertTrue((found[name][:, 17:] == 0).all(), name)

    def test_no_second_derivative(self):
        message = "^create_graph: got True, a second derivative, which {} has not; allowed: False$"
        for options in ({}, {"use_qk_l2norm_in_kernel": True}):
            x, leaves = _leaves(calls.on_device(calls.fwd(t=5, **options)))
            o, _ = chunk_kda.chunk_kda(**x)
            with self.assertRaisesRegex(NotImplementedError, message.format("chunk_kda")):
                torch.autograd.grad(o.sum(), leaves["q"], create_graph=True)
        q = x["q"].detach().requires_grad_()
        y, *_ = torch.ops.ascend_ops.chunk_kda_l2norm(q, x["k"])
        with self.assertRaisesRegex(NotImplementedError, message.format("chunk_kda_l2norm")):
            torch.autograd.grad(y.sum(), q, create_graph=True)

    def test_a_graph_serves_once(self):
        x, leaves = _leaves(calls.on_device(calls.fwd(t=5)))
        o, _ = chunk_kda.chunk_kda(**x)
        (first,) = torch.autograd.grad(o.sum(), leaves["v"], retain_graph=True)
        (second,) = torch.autograd.grad(o.sum(), leaves["v"])
        self.assertTrue(torch.equal(first, second))
        with self.assertRaisesRegex(RuntimeError, "backward through the graph a second time"):
            torch.autograd.grad(o.sum(), leaves["v"])

    def test_changes_in_between_are_noticed(self):
        x, leaves = _leaves(calls.on_device(calls.fwd(t=5)))
        v = leaves["v"] + 0
        o, _ = chunk_kda.chunk_kda(**(x | {"v": v}))
        v.mul_(2)
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            torch.autograd.grad(o.sum(), leaves["v"])

    @parameterized.parameters(
        ({}, {"G"}), ({"gate": "softplus"}, set()), ({"use_qk_l2norm_in_kernel": True}, {"G", "n"})
    )
    def test_what_is_kept(self, options, more):
        x, leaves = _leaves(calls.on_device(calls.fwd(dtype=_HALF, **options)))
        kept = {}

        def pack(tensor):
            kept[tensor.untyped_storage().data_ptr()] = tensor
            return tensor

        with graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            results = chunk_kda.chunk_kda(**x)
        own = {leaf.untyped_storage().data_ptr() for leaf in leaves.values()}
        new = [tensor for address, tensor in kept.items() if address not in own]
        b, t, heads, value_heads, k_dim, chunk = 1, 70, 1, 2, 32, 64
        expected = b * t * value_heads * 2 * chunk * 2
        if "G" in more:
            expected += b * t * value_heads * k_dim * 4
        if "n" in more:
            expected += 2 * b * t * heads * (k_dim * 2 + 4)
        self.assertEqual(sum(tensor.nbytes for tensor in new), expected)
        self.assertTrue(all(result.requires_grad for result in results))

    def test_nothing_is_kept_without_gradients(self):
        x, _ = _leaves(calls.on_device(calls.fwd(t=5)))
        with torch.no_grad():
            for result in chunk_kda.chunk_kda(**x):
                self.assertFalse(result.requires_grad)
        with torch.inference_mode():
            self.assertTrue(chunk_kda.chunk_kda(**x)[0].isfinite().all())

    def test_tangents_are_refused(self):
        x = calls.on_device(calls.fwd(t=5, gate="softplus"))
        chunk_kda.chunk_kda(**x)  # a call like an earlier one is no way around
        with forward_ad.dual_level():
            for name in _NAMES:
                y = x | {name: forward_ad.make_dual(x[name], x[name])}
                message = f"^{name}: got a tensor with a tangent, but chunk_kda has no forward-mode"
                with self.assertRaisesRegex(NotImplementedError, message):
                    chunk_kda.chunk_kda(**y)
            y = calls.on_device(calls.intra(t=5))
            y["gk"] = forward_ad.make_dual(y["gk"], y["gk"])
            with self.assertRaisesRegex(NotImplementedError, "^gk: .*, but chunk_kda_fwd_intra"):
                chunk_kda.chunk_kda_fwd_intra(**y)

    def test_watched_calls_have_gradients_too(self):
        x = calls.fwd(t=20, dtype=_HALF, use_qk_l2norm_in_kernel=True)
        expected = _found(x)
        with launch.record() as launches:
            self.assert_same(_found(x), expected)
        self.assertEqual(launches[0].name, "l2norm")
        self.assertEqual(launches[-1].name, "l2norm_backward")

    @parameterized.parameters(backend.NPU_ARCH32, backend.NPU_ARCH35)
    def test_planned_for_npus(self, name):
        x = calls.fwd(t=20, dtype=_HALF, use_qk_l2norm_in_kernel=True)
        meta = {n: v.to("meta") if isinstance(v, torch.Tensor) else v for n, v in x.items()}
        with backend.pretend(name, 24), launch.record() as launches:
            for gradient in _through(chunk_kda.chunk_kda, meta, _cotangents(x)).values():
                self.assertTrue(gradient.is_meta)
        forward = ["l2norm", "cumulative_gate", "score_chunk", "solve_chunk", "output_states"]
        backward = ["decayed", "forward_states", "reverse_states", "level_scores"]
        backward += ["level_gradients", "l2norm_backward"]
        self.assertEqual([each.name for each in launches], forward + backward)

    @parameterized.parameters(_HALF, torch.bfloat16)
    def test_autocast(self, dtype):
        kind = calls.DEVICE
        x = calls.fwd(use_qk_l2norm_in_kernel=True, gate="softplus")
        halves = x | {name: x[name].to(dtype) for name in ("q", "k", "v")}
        expected, gradients = calls.call_fwd(halves), _found(halves)
        with torch.autocast(kind, dtype):
            found = calls.call_fwd(x)
            through = _found(x)
            # What is refused outside is not converted.
            with self.assertRaisesRegex(TypeError, "^q: got dtype torch.float64"):
                calls.call_fwd(x | {"q": x["q"].double()})
        self.assertEqual((found["o"].dtype, found["final_state"].dtype), (dtype, torch.float32))
        self.assert_same(found, expected)
        # They come back in the arguments' own dtype.
        for name, gradient in through.items():
            self.assertEqual(gradient.dtype, torch.float32, name)
            self.assertTrue(torch.equal(gradient, gradients[name].float()), name)
        with torch.autocast(kind, dtype, enabled=False):
            self.assertEqual(calls.call_fwd(x)["o"].dtype, torch.float32)


class _Layer(torch.nn.Module):
    """A layer around the op, small: as many projections as it has arguments."""

    def __init__(self, width=24, heads=1, value_heads=2, k_dim=16, v_dim=16):
        super().__init__()
        self.heads, self.value_heads, self.k_dim, self.v_dim = heads, value_heads, k_dim, v_dim
        sizes = (
            heads * k_dim,
            heads * k_dim,
            value_heads * v_dim,
            value_heads * k_dim,
            value_heads,
        )
        self.into = torch.nn.ModuleList([torch.nn.Linear(width, size) for size in sizes])
        self.out = torch.nn.Linear(value_heads * v_dim, width)
        self.A_log = torch.nn.Parameter(torch.zeros(value_heads))
        self.dt_bias = torch.nn.Parameter(torch.zeros(value_heads * k_dim))

    def forward(self, x):
        q, k, v, g, beta = (projection(x) for projection in self.into)
        o, _ = chunk_kda.chunk_kda(
            q.unflatten(-1, (self.heads, self.k_dim)),
            k.unflatten(-1, (self.heads, self.k_dim)),
            v.unflatten(-1, (self.value_heads, self.v_dim)),
            g.unflatten(-1, (self.value_heads, self.k_dim)),
            beta,
            use_qk_l2norm_in_kernel=True,
            use_gate_in_kernel=True,
            use_beta_sigmoid_in_kernel=True,
            A_log=self.A_log,
            dt_bias=self.dt_bias,
        )
        return self.out(o.flatten(-2))


class CompileTest(_TestCase):
    def setUp(self):
        super().setUp()
        # It remembers which arguments other tests changed, and makes symbols of them.
        torch._dynamo.reset()

    def _gradients(self, layer, x):
        layer.zero_grad()
        y = layer(x)
        y.square().sum().backward()
        return {"y": y.detach(), **{n: p.grad.clone() for n, p in layer.named_parameters()}}

    def test_a_layer(self):
        # aot_eager: what is tested is the tracing, and inductor needs a C++ compiler.
        torch.manual_seed(0)
        layer = _Layer().to(calls.DEVICE)
        compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
        for t in (5, 70):
            x = torch.randn(2, t, 24, device=calls.DEVICE)
            expected = self._gradients(layer, x)
            layer.zero_grad()
            y = compiled(x)
            y.square().sum().backward()
            found = {"y": y.detach(), **{n: p.grad for n, p in layer.named_parameters()}}
            self.assert_close(found, expected, 2.0**-20)

    def test_a_layer_under_autocast(self):
        torch.manual_seed(0)
        layer = _Layer().to(calls.DEVICE)
        compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
        x = torch.randn(1, 20, 24, device=calls.DEVICE)
        with torch.autocast(calls.DEVICE, torch.bfloat16):
            self.assertTrue(torch.equal(compiled(x), layer(x)))

    def test_packed(self):
        # The graph breaks where cu_seqlens is read, and nowhere else.
        compiled = torch.compile(chunk_kda.chunk_kda, backend="aot_eager")
        utils.counters.clear()
        for bounds in ((0, 3, 17), (0, 9, 20)):
            x = calls.fwd(t=20, dtype=_HALF, cu_seqlens=bounds)
            cotangents = _cotangents(x)
            found = _through(compiled, calls.on_device(x), cotangents)
            self.assert_same(found, _found(x, cotangents))
        (reason,) = utils.counters["graph_break"]
        self.assertIn(" read_boundaries ", reason)

    def test_opcheck(self):
        op = torch.ops.ascend_ops.chunk_kda_fwd.default
        for options in (
            {},
            {"states": False, "cu_seqlens": (0, 3, 17)},
            {"gate": "softplus"},
            {"gate": "bounded", "output_final_state": False},
        ):
            x = calls.on_device(calls.fwd(t=20, **options))
            for gradients in (False, True):
                x, _ = _leaves(x) if gradients else (x, None)
                torch.library.opcheck(op, (), self._schema(x))
        q = torch.randn(1, 20, 2, 16, device=calls.DEVICE, requires_grad=True)
        torch.library.opcheck(torch.ops.ascend_ops.chunk_kda_l2norm.default, (q, q.detach() + 1))
        q = q.detach()
        norms = torch.ones(1, 20, 2, device=calls.DEVICE)
        op = torch.ops.ascend_ops.chunk_kda_l2norm_backward.default
        torch.library.opcheck(op, (q, q + 1, norms, norms + 1, q + 2, q + 3))

    def _schema(self, x):
        """What chunk_kda passes to the op."""
        names = [a.name for a in torch.ops.ascend_ops.chunk_kda_fwd.default._schema.arguments]
        x = dict.fromkeys(names) | {"chunk_size": 64, "safe_gate": False} | x
        x["use_gate_in_kernel"] = bool(x["use_gate_in_kernel"])
        if x["cu_seqlens"] is not None:
            x["cu_seqlens"] = x["cu_seqlens"].tolist()
        return x


if __name__ == "__main__":
    absltest.main()
