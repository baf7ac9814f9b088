"""What a foreign package's launches become."""

import types
from unittest import mock

import torch
import triton
import triton.language as tl
from absl.testing import absltest
from triton.runtime.jit import JITFunction

from ops.common import backend, launch
from testing import main
from testing.npu_compile import chips, foreign, planning
from testing.npu_compile.specialisation import Specialisation, Unit


@triton.jit
def scaled(x_ptr, out_ptr, size, BLOCK: tl.constexpr, SCALE: tl.constexpr = 2):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < size
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=mask) * SCALE, mask=mask)


def _tuned(configs: list[triton.Config], **options):
    """A kernel with an autotuner, which asks for a driver when it is made."""
    before = triton.runtime.driver.active
    triton.runtime.driver.set_active(types.SimpleNamespace(get_benchmarker=lambda: None))
    try:
        return triton.autotune(configs=configs, key=["size"], **options)(scaled)
    finally:
        triton.runtime.driver.set_active(before)


def _config(block: int, warps: int) -> triton.Config:
    return triton.Config({"BLOCK": block}, num_warps=warps, num_stages=3)


class RecordedTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        self.enter_context(backend.pretend(backend.NPU_ARCH32, 24))
        self.x = torch.empty(100, device="meta")

    def test_a_launch(self):
        with foreign.recorded() as choices:
            scaled[lambda given: (triton.cdiv(given["size"], given["BLOCK"]),)](
                self.x, self.x, size=100, BLOCK=32, num_warps=2, multibuffer=False, odd=1
            )
        (choice,) = choices
        (item,) = choice.candidates
        self.assertEqual(choice.dropped, ("odd",))
        self.assertIs(item.kernel, scaled)
        self.assertEqual((item.backend, item.grid), (backend.NPU_ARCH32, (4,)))
        self.assertEqual(item.constants, {"BLOCK": 32, "SCALE": 2})
        self.assertEqual(item.options, {"multibuffer": False})
        self.assertEqual(set(item.args), {"x_ptr", "out_ptr", "size"})

    def test_an_autotuner_chooses_from_what_differs_in_constants(self):
        kernel = _tuned([_config(32, 2), _config(32, 4), _config(64, 2)])
        with foreign.recorded() as choices:
            kernel[lambda given: (triton.cdiv(100, given["BLOCK"]),)](self.x, self.x, 100)
            scaled[(1,)](self.x, self.x, 100, BLOCK=128)
        found = [[(c.constants["BLOCK"], c.grid) for c in choice.candidates] for choice in choices]
        self.assertEqual(found, [[(32, (4,)), (64, (2,))], [(128, (1,))]])

    def test_pruned_configurations_are_no_choice(self):
        def prune(configs, named, **_):
            return [config for config in configs if config.kwargs["BLOCK"] <= named["size"]]

        configs = [_config(64, 2), _config(128, 2)]
        kernel = _tuned(configs, prune_configs_by={"early_config_prune": prune})
        with foreign.recorded() as choices:
            kernel[(1,)](self.x, self.x, 100)
        self.assertEqual([c.constants["BLOCK"] for c in choices[0].candidates], [64])

    def test_heuristics_are_asked(self):
        kernel = triton.heuristics({"SCALE": lambda given: given["size"] // 10})(scaled)
        with foreign.recorded() as choices:
            kernel[(1,)](self.x, self.x, 100, BLOCK=128)
        self.assertEqual(choices[0].candidates[0].constants["SCALE"], 10)

    def test_more_programs_than_can_be_launched_are_recorded(self):
        with foreign.recorded() as choices:
            scaled[(70000,)](self.x, self.x, 100, BLOCK=1)
        self.assertGreater(choices[0].candidates[0].programs, launch.MAX_PROGRAMS)

    def test_nothing_is_left_behind(self):
        before = JITFunction.run
        with self.assertRaisesRegex(ValueError, "host"), foreign.recorded():
            raise ValueError("host")
        self.assertIs(JITFunction.run, before)


class CompilePlannedTest(absltest.TestCase):
    def test_the_same_source_is_compiled_once(self):
        compiled = []

        def compile_unit(unit, *_):
            compiled.append(unit.specialisation.kernel)
            return unit.specialisation.key

        self.enter_context(mock.patch.object(foreign.frontend, "lower"))
        self.enter_context(mock.patch.object(foreign.compiling, "compile_unit", compile_unit))
        known: dict = {}
        found = []
        for source in ("a", "b", "a"):
            planner = planning.Planner(chips.ARCHITECTURES["arch32"])
            made_of = Specialisation("k", "m", {}, {}, (), {})
            planner.units[made_of.key] = Unit(made_of, [])
            planner.kernels[made_of.key] = types.SimpleNamespace(cache_key=source)
            result = foreign.compile_planned(planner, "chip", "/", 1.0, known=known)
            found.append(result == {made_of.key: made_of.key})
        self.assertEqual(compiled, ["k", "k"])
        self.assertEqual(found, [True, True, True])


if __name__ == "__main__":
    main.main()
