"""The cost model: relations that must hold, and sums worked out by hand from the constants."""

import dataclasses

from absl.testing import absltest, parameterized

from testing.npu_sim import calibration, cube, memory, operations, timing
from testing.npu_sim.sample_views import space, view

_CHIP = calibration.ASCEND_910B1
_MODEL = timing.Model(_CHIP)


def gm(sizes, strides=None, element="f32", offset=0) -> memory.View:
    return view(sizes=sizes, strides=strides, element=element, offset=offset, where="gm")


def load(source: memory.View) -> timing.Cost:
    target = view(sizes=source.sizes, element=source.element)
    return _MODEL.operation("dma", "MTE2", [source], [target])


class ChipTest(absltest.TestCase):
    def test_the_compilers_description_names_it(self):
        self.assertIs(timing.Model.of({"CUBE_CORE_COUNT": 20}).chip, calibration.ASCEND_910_9362)
        self.assertIs(timing.Model.of({}).chip, _CHIP)
        unknown = timing.Model.of({"CUBE_CORE_COUNT": 25}).chip
        self.assertEqual(unknown, dataclasses.replace(_CHIP, name="", cores=25))

    def test_blocks_at_the_same_time(self):
        self.assertEqual(_MODEL.cores(mixed=True), 24)
        self.assertEqual(_MODEL.cores(mixed=False), 48)

    def test_peak_of_the_cube(self):
        # The published 354 TFLOP/s.
        step = cube.Multiply("", (), (), lambda: None, 1024, 1024, 1024, "f16")
        cycles = _MODEL.cube_step(step).occupancy - _CHIP.cube_issue
        flops = 2 * 1024**3 / cycles * _CHIP.clock_hz * _CHIP.cores
        self.assertAlmostEqual(flops / 1e12, 354, delta=0.5)


class TransferTest(parameterized.TestCase):
    def test_bandwidth(self):
        # 8 KiB: a 48th of 1.6 TB/s at 1.8 GHz is 18.5185 bytes a cycle, a cube core has a 24th.
        cost = load(gm((2048,)))
        self.assertAlmostEqual(cost.occupancy - _CHIP.dma_issue, 8192 / 18.5185, delta=0.01)
        l1 = view(sizes=(2048,), where="cbuf")
        cube_core = _MODEL.operation("dma", "MTE2", [gm((2048,))], [l1])
        self.assertAlmostEqual(cube_core.occupancy - _CHIP.dma_issue, 8192 / 37.037, delta=0.01)
        self.assertEqual(cost.latency, _CHIP.dma_latency)

    def test_rows_are_rounded_to_bursts(self):
        # 64 rows of 4 bytes cost bursts of 128; 64 rows of 128 bytes cost the same.
        share = _CHIP.gm_unaligned_share
        wanted = 64 * 128 / _MODEL.gm_bytes_per_cycle(True) / share
        for columns in (2, 20, 32):
            cost = load(gm((64, columns), (33, 1)))
            self.assertAlmostEqual(cost.occupancy - _CHIP.dma_issue, wanted)
        cost = load(gm((64, 33), (34, 1)))
        self.assertAlmostEqual(cost.occupancy - _CHIP.dma_issue, 2 * wanted)

    def test_alignment(self):
        aligned, shifted = load(gm((16, 128), (256, 1))), load(gm((16, 128), (256, 1), offset=32))
        ratio = (aligned.occupancy - _CHIP.dma_issue) / (shifted.occupancy - _CHIP.dma_issue)
        self.assertAlmostEqual(ratio, _CHIP.gm_unaligned_share)

    def test_single_elements(self):
        apart = load(gm((1024,), (3,)))
        self.assertGreaterEqual(apart.occupancy, 1023 * _CHIP.dma_element)
        self.assertGreater(apart.occupancy, 10 * load(gm((1024,))).occupancy)

    def test_nothing(self):
        self.assertEqual(load(gm((0, 8))), timing.Cost(_CHIP.dma_issue))

    def test_fixpipe(self):
        source = view(sizes=(4, 4, 16, 16), where="cc")
        onto_gm = _MODEL.operation("fixpipe", "FIX", [source], [gm((64, 64))])
        l1 = view(sizes=(4, 4, 16, 16), where="cbuf")
        onto_l1 = _MODEL.operation("fixpipe", "FIX", [source], [l1])
        own = 16384 / _CHIP.fixpipe_bytes_per_cycle
        self.assertEqual(onto_l1.occupancy, _CHIP.fixpipe_issue + own)
        # Global memory is slower than the pipe.
        self.assertAlmostEqual(
            onto_gm.occupancy, _CHIP.fixpipe_issue + 16384 / _MODEL.gm_bytes_per_cycle(False)
        )


class VectorTest(parameterized.TestCase):
    def vector(self, cost, *views):
        return _MODEL.operation(cost, "V", views[:-1], views[-1:]).occupancy - _CHIP.vector_issue

    def test_repeats(self):
        # 100 floats are two repeats of 256 bytes, 3 rows of 65 are six.
        self.assertEqual(self.vector("vector", view(sizes=(100,))), 2 * _CHIP.vector_repeat)
        rows = view(sizes=(3, 65), strides=(72, 1))
        self.assertEqual(self.vector("vector", rows), 6 * _CHIP.vector_repeat)
        self.assertEqual(self.vector("vector_slow", rows), 6 * _CHIP.slow_repeat)
        bits = view(sizes=(100,), element="i1")
        self.assertEqual(self.vector("vector", view(sizes=(100,)), bits), 2 * _CHIP.vector_repeat)

    def test_the_largest_operand_counts(self):
        found = self.vector("vector_reduce", view(sizes=(64, 64)), view(sizes=(64, 1)))
        self.assertEqual(found, 64 * _CHIP.reduce_repeat)

    def test_scalar_loops(self):
        self.assertEqual(self.vector("vector_scalar", view(sizes=(10,))), 10 * _CHIP.scalar_element)

    def test_every_class_of_the_table(self):
        x, out = view(sizes=(8, 16)), view(sizes=(8, 16))
        for name, semantics in operations.TABLE.items():
            cost = _MODEL.operation(semantics.cost, semantics.pipe, [x, 1.0], [out])
            self.assertGreater(cost.occupancy, 0, name)
        with self.assertRaisesRegex(ValueError, "'free'"):
            _MODEL.operation("free", "V", [x], [out])


class CubeTest(parameterized.TestCase):
    @parameterized.parameters(("f16", 8), ("bf16", 8), ("i8", 4), ("f32", 32), ("hf32", 16))
    def test_rates(self, element, cycles):
        step = cube.Multiply("", (), (), lambda: None, 20, 32, 32, element)
        self.assertEqual(_MODEL.cube_step(step).occupancy, _CHIP.cube_issue + cycles)

    def test_loads(self):
        step = cube.Load("", (), (), lambda: None, 1024)
        wanted = _CHIP.l1_issue + 1024 / _CHIP.l1_bytes_per_cycle
        self.assertEqual(_MODEL.cube_step(step), timing.Cost(wanted, _CHIP.l1_latency))


class ScalarTest(absltest.TestCase):
    def test_global_memory_is_slower(self):
        on_chip = memory.View(space("ub"), 0, (1,), (1,), "f32")
        self.assertGreater(_MODEL.scalar_access(gm((1,))), _MODEL.scalar_access(on_chip))


if __name__ == "__main__":
    absltest.main()
