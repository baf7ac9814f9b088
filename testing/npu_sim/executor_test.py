import types

import torch
import triton
import triton.language as tl
from absl.testing import parameterized

from ops.common import backend, launch
from testing import guard, main
from testing.npu_compile import chips, planning
from testing.npu_sim import compiled, executor, findings, simulate

_ARCH32 = chips.architecture("arch32")


@triton.jit
def several(x_ptr, absent_ptr, size, one, out_ptr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets * one), mask=offsets < size)


@triton.jit
def place(out_ptr, BLOCK: tl.constexpr):
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    block = (x * tl.num_programs(1) + y) * tl.num_programs(2) + z
    values = tl.full([BLOCK], 100, tl.float32) * x + 10 * y + z
    tl.store(out_ptr + block * BLOCK + tl.arange(0, BLOCK), values)


@triton.jit
def add(x_ptr, y_ptr, out_ptr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.load(x_ptr + offsets) + tl.load(y_ptr + offsets)
    tl.store(out_ptr + offsets, total)


@triton.jit
def gather(x_ptr, out_ptr, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.atomic_add(out_ptr + offsets, tl.load(x_ptr + tl.program_id(0) * BLOCK + offsets))


@triton.jit
def scale(x_ptr, factor, out_ptr, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, (tl.load(x_ptr + offsets) * factor).to(out_ptr.dtype.element_ty))


def _launch(out, grid=(2,), x=None):
    return launch.Launch(
        kernel=several,
        backend=backend.NPU_ARCH32,
        grid=grid,
        # Not in the kernel's order.
        args={
            "out_ptr": out,
            "x_ptr": torch.ones(64) if x is None else x,
            "absent_ptr": None,
            "one": 1,
            "size": 64,
        },
        constants={"BLOCK": 32},
        options={},
    )


def _outcome(found=(), unwritten=()):
    return simulate.Outcome(tuple(found), tuple(unwritten), 10.0, {}, {}, (), 1)


class StandInTest(parameterized.TestCase):
    """With a stand-in for what compiles and one for what executes."""

    def setUp(self):
        super().setUp()
        self.runs = []
        self.outcomes = iter([])
        self.program = types.SimpleNamespace(
            target={"CUBE_CORE_COUNT": 24},
            entries={"AIV": None},
            module=types.SimpleNamespace(walk=lambda: ()),
        )
        self.modules = types.SimpleNamespace(
            architecture=_ARCH32,
            chip="Ascend910B1",
            program=lambda item: (planning.of_launch(item), self.program),
        )

    def _run(self, program, grid, arguments, settings, names):
        torch.empty(1000)
        self.runs.append(types.SimpleNamespace(**locals()))
        return next(self.outcomes, _outcome())

    def _executor(self, **changes):
        return executor.Executor(self.modules, run=self._run, **changes)

    def test_arguments_are_in_the_kernel_s_order_without_constants(self):
        out = torch.zeros(64)
        item = _launch(out)
        with self._executor().calling():
            item.run()
        (run,) = self.runs
        self.assertIs(run.program, self.program)
        self.assertEqual(run.names, ["x_ptr", "size", "out_ptr"])
        self.assertIs(run.arguments[0], item.args["x_ptr"])
        self.assertEqual(run.arguments[1], 64)
        self.assertIs(run.arguments[2], out)

    @parameterized.parameters(((5,),), ((2, 3),), ((2, 3, 4),))
    def test_grids_are_taken_as_they_are(self, grid):
        simulator = self._executor()
        with simulator.calling():
            _launch(torch.zeros(64), grid).run()
        self.assertEqual(self.runs[0].grid, grid)
        self.assertEqual(simulator.simulation().launches[0].programs, torch.Size(grid).numel())

    def test_the_chip_s_cores_are_planned_for(self):
        with self._executor().calling():
            self.assertEqual(backend.backend_of(torch.zeros(1)), "npu-arch32")
            self.assertEqual(backend.core_count("npu-arch32"), 24)

    def test_calls_differ_in_schedule_and_memory(self):
        simulator = self._executor(trace=True)
        for _ in range(3):
            with simulator.calling():
                _launch(torch.zeros(64)).run()
                _launch(torch.zeros(64)).run()
        settings = [run.settings for run in self.runs]
        self.assertEqual([s.seed for s in settings[:2]], [None, None])
        self.assertNotIn(None, [s.seed for s in settings[2:]])
        self.assertLen({s.seed for s in settings[2:]}, 4)
        self.assertEqual([s.fill for s in settings], [0xFF, 0xFF, 0x7B, 0x7B, 0xFF, 0xFF])
        self.assertEqual([s.trace for s in settings], [True, True, False, False, False, False])
        self.assertTrue(all(s.check_races for s in settings))
        self.assertFalse(self._executor()._trace)

    def test_what_was_found(self):
        race = findings.Finding(findings.RACE, "two", ("a.py:1",))
        note = findings.Finding(findings.DUPLICATED_WORK, "twice", ("a.py:2",))
        stop = findings.Finding(findings.DEADLOCK, "all wait")
        self.outcomes = iter(
            [
                _outcome([race, note, race, race], ["p", "q"]),
                _outcome([race, race], ["q"]),
                _outcome([stop]),
            ]
        )
        simulator = self._executor()
        self.assertEmpty(simulator.simulation().findings)
        for index in range(3):
            with simulator.calling():
                _launch(torch.zeros(64)).run()
            self.assertEqual(simulator.simulation().stopped, index == 2)
        found = simulator.simulation()
        self.assertEqual(
            [(f.message, f.count) for f in found.errors], [("two", 3), ("all wait", 1)]
        )
        self.assertLen(found.findings, 3)
        self.assertEqual(found.unwritten, ("p", "q"))
        self.assertEqual([item.call for item in found.launches], [0, 1, 2])
        self.assertEqual(found.first_call, found.launches[:1])
        self.assertEqual(found.launches[0].cores, 48)  # vector cores: there is no cube work
        self.assertEqual(found.launches[0].key, planning.of_launch(_launch(torch.zeros(64))).key)

    def test_what_the_simulator_allocates_is_not_the_op_s(self):
        with (
            self._executor().calling(),
            guard.GuardedAllocations() as guarded,
        ):
            _launch(torch.zeros(64)).run()
        allocated = guarded.allocations
        with guard.GuardedAllocations() as guarded:
            _launch(torch.zeros(64))
        self.assertEqual(allocated, guarded.allocations)

    def test_counts_are_of_one_call(self):
        note = findings.Finding(findings.DUPLICATED_WORK, "twice", ("a.py:2",), 3)
        self.outcomes = iter([_outcome([note])] * 6)
        simulator = self._executor()
        for _ in range(3):
            with simulator.calling():
                _launch(torch.zeros(64)).run()
                _launch(torch.zeros(64)).run()
        self.assertEqual([f.count for f in simulator.simulation().findings], [6])

    def test_progress_is_told_of_every_launch(self):
        told = []
        simulator = self._executor(progress=lambda *what: told.append(what))
        for _ in range(2):
            with simulator.calling():
                _launch(torch.zeros(64)).run()
        self.assertEqual([item for item, _ in told], list(simulator.simulation().launches))
        self.assertTrue(all(0 <= seconds < 60 for _, seconds in told))

    def test_a_launch_can_be_changed(self):
        def change(item):
            return launch.Launch(item.kernel, item.backend, (7,), item.args, item.constants, {})

        with self._executor(change=change).calling():
            _launch(torch.zeros(64)).run()
        self.assertEqual(self.runs[0].grid, (7,))


class EndToEndTest(parameterized.TestCase):
    """The real compiler and the real simulator."""

    def setUp(self):
        super().setUp()
        self.simulator = executor.Executor(compiled.Modules(_ARCH32))

    def _run(self, kernel, grid, constants, **args):
        launch.Launch(kernel, backend.NPU_ARCH32, grid, args, constants, {}).run()

    def test_an_op_of_two_launches_in_other_memory_and_order(self):
        torch.manual_seed(0)
        x, y = torch.randn(200), torch.randn(200)[:192]
        results = []
        for poison in (guard.NAN_POISON, guard.HUGE_POISON, guard.NAN_POISON):
            with self.simulator.calling(), guard.GuardedAllocations(poison) as guarded:
                once, twice = torch.empty(192), torch.empty(192)
                arguments = {"x_ptr": x[8:], "y_ptr": y, "out_ptr": once}
                self._run(add, (3,), {"BLOCK": 64}, **arguments)
                arguments = {"x_ptr": once, "y_ptr": y, "out_ptr": twice}
                self._run(add, (6,), {"BLOCK": 32}, **arguments)
            self.assertEqual(guarded.broken_bands(), 0)
            results.append(twice)
        for result in results:
            self.assertTrue(torch.equal(result, (x[8:] + y) + y))
        simulation = self.simulator.simulation()
        self.assertEmpty(simulation.findings)
        self.assertEqual([item.programs for item in simulation.launches], [3, 6] * 3)
        self.assertGreater(simulation.launches[0].outcome.makespan_cycles, 0)

    @parameterized.parameters(((4,),), ((2, 3),), ((2, 3, 2),))
    def test_programs_know_their_place(self, grid):
        out = torch.full((12 * 16,), -1.0)
        with self.simulator.calling():
            self._run(place, grid, {"BLOCK": 16}, out_ptr=out)
        x, y, z = (*grid, 1, 1)[:3]
        expected = [100 * i + 10 * j + k for i in range(x) for j in range(y) for k in range(z)]
        self.assertEqual(out[::16].tolist(), expected + [-1.0] * (12 - len(expected)))

    @parameterized.parameters((torch.float32, 1), (torch.int32, 0))
    def test_atomic_additions_of_floats_are_named(self, dtype, count):
        out = torch.zeros(32, dtype=dtype)
        with self.simulator.calling():
            self._run(gather, (2,), {"BLOCK": 32}, x_ptr=torch.ones(64).to(dtype), out_ptr=out)
        self.assertEqual(out.tolist(), [2] * 32)
        found = self.simulator.simulation().atomics
        self.assertLen(found, count)
        self.assertTrue(all("executor_test.py:" in place for place in found))

    @parameterized.parameters((0.5, torch.float32), (1.0, torch.float32), (3, torch.int8))
    def test_scalars_and_small_integers(self, factor, dtype):
        x = torch.arange(32).to(dtype)
        out = torch.zeros_like(x)
        with self.simulator.calling():
            self._run(scale, (1,), {"BLOCK": 32}, x_ptr=x, factor=factor, out_ptr=out)
        self.assertTrue(torch.equal(out, x * factor))

    def test_a_kernel_that_reads_too_far(self):
        x, out = torch.zeros(48), torch.zeros(64)
        with self.simulator.calling():
            self._run(add, (2,), {"BLOCK": 32}, x_ptr=x, y_ptr=out, out_ptr=out)
        (found,) = self.simulator.simulation().errors
        self.assertEqual(found.kind, findings.OUT_OF_BOUNDS)
        self.assertRegex(str(found), r"x_ptr .*executor_test.py:\d+")
        self.assertTrue(self.simulator.simulation().stopped)


if __name__ == "__main__":
    main.main()
