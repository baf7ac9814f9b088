"""Tests of what can be tested without the package and a GPU."""

import importlib.metadata
import sys
import types
from unittest import mock

import torch
from absl.testing import absltest

from testing.baselines import fla_core


class _Tuner:
    """As Triton's autotuner: chooses once per key."""

    def __init__(self, fn):
        self.fn = fn
        self.configs = ["slow", "fast"]
        self.cache = {}

    def run(self, key):
        self.cache[key] = self.best_config = "fast"


class _Heuristics:
    def __init__(self, fn):
        self.fn = fn


class FlaCoreTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        fla_core._module.cache_clear()

    def test_a_missing_or_other_version_is_refused(self):
        for found in ("0.5.1", None):
            with mock.patch.object(importlib.metadata, "version") as version:
                version.return_value = found
                if found is None:
                    version.side_effect = importlib.metadata.PackageNotFoundError
                for function in (fla_core.chunk_kda_bwd, fla_core.tune_wy, fla_core.chunk_kda):
                    with self.assertRaisesRegex(ImportError, "expected 0.6.0; third_party/base"):
                        function()

    def test_tuning_forgets_what_other_arguments_chose(self):
        used, unused = _Tuner(lambda: None), _Tuner(lambda: None)
        kernels = types.ModuleType("fla.kernels")
        kernels.scan, kernels.other, kernels.number = _Heuristics(used), unused, 3
        module = types.ModuleType("fla.ops.kda.chunk_bwd")
        module.scan = kernels.scan  # imported from there

        def run(x):
            self.assertEmpty(used.cache)
            used.run(x)
            return (x,)

        module.chunk_kda_bwd = run
        used.run("before")
        unused.run("before")
        loaded = {"fla.kernels": kernels, module.__name__: module}
        with (
            mock.patch.dict(sys.modules, loaded),
            mock.patch.object(importlib.metadata, "version", return_value="0.6.0"),
        ):
            self.assertEqual(fla_core.tune_bwd(x=1), "scan: fast")
            self.assertEqual(fla_core.chunk_kda_bwd.__name__, "chunk_kda_bwd")

    def test_gradients(self):
        class Module:
            @staticmethod
            def chunk_kda(q, g, scale, output_final_state, beta=None):
                return scale * q * g, (q + g if output_final_state else None)

        q, g, one = (torch.tensor([x]) for x in (2.0, 3.0, 1.0))
        with mock.patch.object(fla_core, "_module", return_value=Module):
            found = fla_core.chunk_kda_gradients(do=one, dht=None, q=q, g=g, scale=5, beta=None)
            self.assertEqual(found[0], 15)
            self.assertEqual(found[4], 10)
            self.assertEqual(found[1:4] + found[5:], (None,) * 6)
            found = fla_core.chunk_kda_gradients(do=one, dht=one, q=q, g=g, scale=5)
            self.assertEqual((found[0], found[4]), (16, 11))

    def test_a_step_is_a_sequence_of_one_token(self):
        module = types.ModuleType(fla_core.RECURRENT)
        module.fused_recurrent_kda_fwd = mock.Mock(return_value=(torch.ones(2, 1, 3, 4), "new"))
        x = {name: torch.zeros(2, 3, 4) for name in ("q", "k", "v", "g", "beta")}
        with (
            mock.patch.dict(sys.modules, {module.__name__: module}),
            mock.patch.object(importlib.metadata, "version", return_value="0.6.0"),
        ):
            o, states = fla_core.kda_step(state="old", scale=2.0, **x)
        self.assertEqual((o.shape, states), ((2, 3, 4), "new"))
        given = module.fused_recurrent_kda_fwd.call_args.kwargs
        self.assertEqual({given[name].shape for name in x}, {(2, 1, 3, 4)})
        self.assertEqual((given["initial_state"], given["scale"]), ("old", 2.0))
        self.assertFalse(given["inplace_final_state"])

    def test_defaults_that_theirs_has_not(self):
        gla, gate = types.ModuleType(fla_core.GLA), types.ModuleType(fla_core.GATE)
        gla.chunk_gla_fwd_o_gk, gate.kda_gate_chunk_cumsum = mock.Mock(), mock.Mock()
        with (
            mock.patch.dict(sys.modules, {gla.__name__: gla, gate.__name__: gate}),
            mock.patch.object(importlib.metadata, "version", return_value="0.6.0"),
        ):
            fla_core.chunk_gla_fwd_o_gk(q=torch.zeros(1, 2, 3, 16), scale=None)
            fla_core.kda_gate_chunk_cumsum(g="g")
        self.assertEqual(gla.chunk_gla_fwd_o_gk.call_args.kwargs["scale"], 0.25)
        scale = gate.kda_gate_chunk_cumsum.call_args.kwargs["scale"]
        self.assertAlmostEqual(scale, 1.442695, places=6)


if __name__ == "__main__":
    absltest.main()
