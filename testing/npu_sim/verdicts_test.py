"""Every verdict of the simulator on the smallest program that deserves it, and on one that does
not."""

from collections.abc import Callable

import torch
from absl.testing import absltest, parameterized

from testing.npu_sim import findings, hand_written, program, simulate

COUNT = 64


def run(
    *kernels: hand_written.Kernel,
    grid: int = 1,
    settings: simulate.Settings | None = None,
    workspace_bytes: int = 0,
) -> tuple[simulate.Outcome, list[torch.Tensor]]:
    """Runs a module on tensors of 2 COUNT elements, the first 0, 1, 2, ..., the others zero."""
    compiled = program.Program.parse(hand_written.module(*kernels, workspace_bytes=workspace_bytes))
    tensors = [torch.zeros(2 * COUNT) for _ in range(kernels[0].arguments)]
    tensors[0][:] = torch.arange(2 * COUNT)
    return simulate.run(compiled, (grid,), tensors, settings), tensors


def examine(
    *kernels: hand_written.Kernel, check_races: bool = True, **options: int
) -> tuple[findings.Finding, ...]:
    _, found = simulate.examine(
        lambda settings: run(*kernels, settings=settings, **options), check_races=check_races
    )
    return found


def kinds(found: tuple[findings.Finding, ...]) -> list[str]:
    return [finding.kind for finding in found]


def doubling(leave_out: str = "", event: int = 0) -> hand_written.Kernel:
    """out[:COUNT] = 2 x[:COUNT], then out[COUNT:] = 2 x[COUNT:] through the same buffers."""
    kernel = hand_written.Kernel("AIV", arguments=2)
    x, y = kernel.buffer("ub", 0, COUNT), kernel.buffer("ub", 1024, COUNT)
    for half in range(2):
        offset = half * COUNT
        if half and leave_out != "V->MTE2":
            kernel.order("V", "MTE2", event)
        kernel.load(kernel.tensor(0, COUNT, offset), x)
        if leave_out != "MTE2->V":
            kernel.order("MTE2", "V", event)
        if half and leave_out != "MTE3->V":
            kernel.order("MTE3", "V", event)
        kernel.add(x, x, y)
        if leave_out != "V->MTE3":
            kernel.order("V", "MTE3", event)
        kernel.store(y, kernel.tensor(1, COUNT, offset))
    return kernel


class RaceTest(parameterized.TestCase):
    def test_a_synchronised_program_is_clean(self):
        outcome, (x, out) = run(doubling())
        self.assertEmpty(outcome.findings)
        torch.testing.assert_close(out, 2 * x, rtol=0, atol=0)
        self.assertEmpty(examine(doubling()))

    @parameterized.parameters(
        ("MTE2->V", "AIV0.MTE2 load", "AIV0.V vadd"),
        ("V->MTE3", "AIV0.V vadd", "AIV0.MTE3 store"),
        ("V->MTE2", "AIV0.V vadd", "AIV0.MTE2 load"),
        ("MTE3->V", "AIV0.MTE3 store", "AIV0.V vadd"),
    )
    def test_a_missing_flag_is_a_race(self, flag, *pair):
        found = examine(doubling(leave_out=flag))
        self.assertEqual(set(kinds(found)) - {findings.SCHEDULE}, {findings.RACE})
        # Which of the two came first in this run decides which hazard it is called.
        self.assertTrue(
            any(all(name in finding.message for name in pair) for finding in found), found
        )

    def test_a_race_names_both_operations(self):
        found = examine(doubling(leave_out="MTE2->V"))
        self.assertLen(found[0].places, 2)
        self.assertTrue(found[0].is_error)

    @parameterized.parameters("V", "MTE2")
    def test_operations_of_one_pipe_are_unordered_without_a_barrier(self, pipe):
        def kernel(barrier: bool) -> hand_written.Kernel:
            made = hand_written.Kernel("AIV", arguments=2)
            x, y = made.buffer("ub", 0, COUNT), made.buffer("ub", 1024, COUNT)
            made.load(made.tensor(0, COUNT), x)
            if pipe == "MTE2":
                if barrier:
                    made.barrier("MTE2")
                made.load(made.tensor(0, COUNT, COUNT), x)
            made.order("MTE2", "V", 0)
            made.add(x, x, y)
            if pipe == "V":
                if barrier:
                    made.barrier("V")
                made.add(y, y, y)
            made.order("V", "MTE3", 0)
            made.store(y, made.tensor(1, COUNT))
            return made

        self.assertEmpty(examine(kernel(barrier=True)))
        self.assertIn(findings.RACE, kinds(examine(kernel(barrier=False))))

    def test_a_scalar_store_before_a_transfer_needs_a_flag(self):
        def kernel(flag: bool) -> hand_written.Kernel:
            made = hand_written.Kernel("AIV", arguments=2)
            x, other = made.buffer("ub", 0, COUNT), made.buffer("ub", 1024, COUNT)
            made.fill(made.real(1), x)
            made.order("V", "S", 0)
            made.order("V", "MTE3", 1)
            made.scalar_store(made.real(2), x, 3)
            made.scalar_store(made.real(3), other, 3)  # later, and elsewhere
            if flag:
                made.order("S", "MTE3", 0)
            made.store(x, made.tensor(1, COUNT))
            return made

        self.assertEmpty(examine(kernel(flag=True)))
        found = examine(kernel(flag=False))
        self.assertIn(findings.RACE, kinds(found))
        self.assertIn("memref.store", str(found[0]))

    def test_a_scalar_unit_keeps_its_own_order(self):
        kernel = hand_written.Kernel("AIV", arguments=2)
        x = kernel.buffer("ub", 0, COUNT)
        kernel.fill(kernel.real(1), x)
        kernel.order("V", "S", 0)
        kernel.scalar_store(kernel.real(2), x, 3)
        loaded = kernel.scalar_load(x, 3)
        kernel.scalar_store(loaded, x, 4)
        kernel.scalar_store(loaded, x, 3)
        kernel.order("S", "MTE3", 0)
        kernel.store(x, kernel.tensor(1, COUNT))
        self.assertEmpty(examine(kernel))


class BlocksTest(parameterized.TestCase):
    """Programs of a grid are not ordered, and which one runs first must not change the verdict."""

    def test_blocks_that_write_the_same_place(self):
        outcome, _ = run(doubling(), grid=2)
        self.assertEqual(set(kinds(outcome.findings)), {findings.BLOCK_RACE})
        self.assertIn("writes argument 1 where store of another block", str(outcome.findings[0]))
        self.assertLen(outcome.findings[0].places, 2)

    def _kernel(self, first: str, others: str) -> hand_written.Kernel:
        """Block 0 does `first` to one place of an argument, the other blocks `others`."""
        kernel = hand_written.Kernel("AIV", arguments=2)
        x = kernel.buffer("ub", 0, COUNT)
        kernel.fill(kernel.real(1), x)
        kernel.order("V", "MTE3", 0)
        kernel.order("V", "MTE2", 1)
        place = kernel.tensor(1, COUNT)
        uses = {
            "write": lambda: kernel.store(x, place),
            "add": lambda: kernel.atomic_add(x, place),
            "read": lambda: kernel.load(place, kernel.buffer("ub", 4096, COUNT)),
            "write, add": lambda: (uses["write"](), kernel.barrier("MTE3"), uses["add"]()),
            "add, write": lambda: (uses["add"](), kernel.barrier("MTE3"), uses["write"]()),
            "": lambda: None,
        }
        zero = kernel.block_is(0)
        kernel.when(zero, uses[first])
        one = kernel.block_is(1)
        kernel.when(one, uses[others])
        return kernel

    @parameterized.product(
        pair=(
            ("add", "add", True),
            ("read", "read", True),
            ("write, add", "", True),
            ("add, write", "", True),
            ("write", "add", False),
            ("write, add", "add", False),
            ("add", "read", False),
            ("write", "read", False),
            ("write", "write", False),
        ),
        seed=(None, 1, 2, 3, 4),
        swapped=(False, True),
    )
    def test_uses_that_may_and_may_not_meet(self, pair, seed, swapped):
        first, second, clean = pair
        uses = (second, first) if swapped else (first, second)
        outcome, _ = run(self._kernel(*uses), grid=2, settings=simulate.Settings(seed=seed))
        expected = set() if clean else {findings.BLOCK_RACE}
        self.assertEqual(set(kinds(outcome.findings)), expected)


def exchange(
    flag: bool = True, sets: int = 1, cube_waits: int = 1, vector_waits: int = 1
) -> tuple[hand_written.Kernel, hand_written.Kernel]:
    """Both vector cores write the workspace; the cube core waits for them and reads it; then they
    wait for it."""
    vector = hand_written.Kernel("AIV")
    x = vector.buffer("ub", 0, COUNT)
    index = vector.sub_block_index()
    vector.fill(vector.real(1), x)
    vector.order("V", "MTE3", 0)
    vector.store(x, vector.workspace(COUNT, index))
    if flag:
        for _ in range(sets):
            vector.set_block_flag("MTE3", 3)
    for _ in range(vector_waits):
        vector.wait_block_flag(4)
    cube = hand_written.Kernel("AIC")
    if flag:
        for _ in range(cube_waits):
            cube.wait_block_flag(3)
    y = cube.buffer("cbuf", 0, 2 * COUNT)
    cube.load(cube.workspace(2 * COUNT), y)
    cube.set_block_flag("MTE2", 4)
    return cube, vector


class CrossCoreTest(parameterized.TestCase):
    BYTES = 2 * COUNT * 4

    def test_a_synchronised_exchange_is_clean(self):
        self.assertEmpty(examine(*exchange(), workspace_bytes=self.BYTES))

    def test_blocks_have_a_workspace_each(self):
        self.assertEmpty(run(*exchange(), grid=3, workspace_bytes=self.BYTES)[0].findings)

    def test_a_missing_block_flag_is_a_race(self):
        found = examine(*exchange(flag=False), workspace_bytes=self.BYTES)
        texts = [str(finding) for finding in found]
        self.assertIn(findings.RACE, kinds(found))
        for core in ("AIV0", "AIV1"):
            self.assertTrue(any("AIC.MTE2" in text and core in text for text in texts), texts)

    def test_a_wait_for_a_flag_that_is_set_once_deadlocks(self):
        found = examine(*exchange(cube_waits=2), workspace_bytes=self.BYTES)
        self.assertEqual(found[-1].kind, findings.DEADLOCK)
        self.assertIn("AIC.S at sync_block_wait 3", found[-1].message)
        self.assertIn("AIV1.S at sync_block_wait 4", found[-1].message)

    def test_a_block_flag_left_at_the_end(self):
        found = examine(*exchange(sets=2), workspace_bytes=self.BYTES)
        self.assertEqual(kinds(found), [findings.LEFTOVER_FLAG] * 2)
        self.assertIn("block flag 3 AIV0->AIC is still set at the end (1)", found[0].message)

    def test_a_counter_holds_15(self):
        clean = exchange(sets=15, cube_waits=15)
        self.assertEmpty(run(*clean, workspace_bytes=self.BYTES)[0].findings)
        outcome, _ = run(*exchange(sets=16, cube_waits=16), workspace_bytes=self.BYTES)
        self.assertEqual(set(kinds(outcome.findings)), {findings.COUNTER_OVERFLOW})

    def test_the_same_work_on_both_vector_cores_is_a_note(self):
        outcome, tensors = run(*self._both_store(same=True))
        self.assertEqual(kinds(outcome.findings), [findings.DUPLICATED_WORK])
        self.assertFalse(outcome.findings[0].is_error)
        self.assertEqual(tensors[1][0], 5)

    @parameterized.parameters((True, [findings.ADDED_TWICE]), (False, []))
    def test_atomic_additions_of_both_vector_cores(self, same, expected):
        vector = hand_written.Kernel("AIV", arguments=2)
        x = vector.buffer("ub", 0, COUNT)
        value = vector.real(5) if same else vector.as_real(vector.sub_block_index())
        vector.fill(value, x)
        vector.order("V", "MTE3", 0)
        vector.atomic_add(x, vector.tensor(1, COUNT))
        outcome, tensors = run(hand_written.Kernel("AIC", arguments=2), vector)
        self.assertEqual(kinds(outcome.findings), expected)
        self.assertEqual(tensors[1][0], 10 if same else 1)

    def test_different_work_on_one_place_is_a_race(self):
        outcome, _ = run(*self._both_store(same=False))
        self.assertEqual(kinds(outcome.findings), [findings.RACE])
        self.assertIn("write after write", outcome.findings[0].message)

    def _both_store(self, same: bool) -> tuple[hand_written.Kernel, hand_written.Kernel]:
        vector = hand_written.Kernel("AIV", arguments=2)
        x = vector.buffer("ub", 0, COUNT)
        vector.fill(vector.real(5), x)
        if not same:
            index = vector.sub_block_index()
            vector.barrier("V")
            vector.fill(vector.as_real(index), x)
        vector.order("V", "MTE3", 0)
        vector.store(x, vector.tensor(1, COUNT))
        return hand_written.Kernel("AIC", arguments=2), vector


class FlagTest(absltest.TestCase):
    def test_a_wait_without_a_set_deadlocks(self):
        kernel = doubling()
        kernel.wait_flag("MTE2", "V", 5)
        found = examine(kernel)
        self.assertEqual(kinds(found), [findings.DEADLOCK])
        self.assertIn("AIV0.V at wait_flag MTE2->V 5", found[0].message)

    def test_the_scalar_unit_can_deadlock_too(self):
        kernel = doubling()
        kernel.wait_flag("V", "S", 2)
        self.assertIn("AIV0.S at wait_flag V->S 2", examine(kernel)[0].message)

    def test_a_flag_set_twice(self):
        kernel = doubling()
        for _ in range(2):
            kernel.set_flag("V", "MTE2", 7)
        for _ in range(2):
            kernel.wait_flag("V", "MTE2", 7)
        found = examine(kernel)
        self.assertEqual(kinds(found), [findings.FLAG_SET_TWICE])
        self.assertIn("V->MTE2 7", found[0].message)

    def test_a_pipe_that_sets_a_flag_again_before_the_other_took_it(self):
        # Issued in pairs: the compiler's ordinary code, whichever pipe is ahead.
        kernel = doubling()
        for _ in range(2):
            kernel.set_flag("V", "MTE2", 7)
            kernel.wait_flag("V", "MTE2", 7)
        self.assertEqual(kinds(examine(kernel)), [])

    def test_a_flag_left_at_the_end(self):
        kernel = doubling()
        kernel.set_flag("V", "MTE2", 7)
        found = examine(kernel)
        self.assertEqual(kinds(found), [findings.LEFTOVER_FLAG])
        self.assertIn("AIV0 ends with flag V->MTE2 7 set", found[0].message)

    def test_events_are_told_apart(self):
        kernel = hand_written.Kernel("AIV", arguments=2)
        kernel.set_flag("MTE2", "V", 0)
        kernel.wait_flag("MTE2", "V", 1)
        self.assertEqual(kinds(examine(kernel)), [findings.DEADLOCK])


class BoundsTest(parameterized.TestCase):
    @parameterized.named_parameters(
        ("beyond_the_tensor", lambda kernel: kernel.tensor(0, COUNT, COUNT + 1)),
        ("before_the_tensor", lambda kernel: kernel.tensor(0, COUNT, -1)),
    )
    def test_global_memory(self, place: Callable[[hand_written.Kernel], str]):
        kernel = hand_written.Kernel("AIV")
        kernel.load(place(kernel), kernel.buffer("ub", 0, COUNT))
        found = examine(kernel)
        self.assertEqual(kinds(found), [findings.OUT_OF_BOUNDS])
        self.assertIn("AIV0 load: gm argument 0", found[0].message)
        self.assertNotEmpty(found[0].places)

    def test_the_last_element_is_inside(self):
        kernel = hand_written.Kernel("AIV")
        kernel.load(kernel.tensor(0, COUNT, COUNT), kernel.buffer("ub", 0, COUNT))
        self.assertEmpty(examine(kernel))

    def test_on_chip_memory(self):
        size = 192 << 10
        for address, expected in ((size - 4 * COUNT, []), (size - 128, [findings.OUT_OF_BOUNDS])):
            kernel = hand_written.Kernel("AIV")
            kernel.load(kernel.tensor(0, COUNT), kernel.buffer("ub", address, COUNT))
            self.assertEqual(kinds(examine(kernel)), expected)

    def test_a_temporary_outside(self):
        kernel = hand_written.Kernel("AIV")
        x, y = kernel.buffer("ub", 0, COUNT), kernel.buffer("ub", 1024, COUNT)
        kernel.fill(kernel.real(1), x)
        kernel.barrier("V")
        kernel.add(x, x, y, kernel.buffer("ub", (192 << 10) - 4, COUNT))
        self.assertEqual(kinds(examine(kernel)), [findings.OUT_OF_BOUNDS])

    def test_only_the_tensor_itself_may_be_touched(self):
        kernel = hand_written.Kernel("AIV")
        kernel.load(kernel.tensor(0, COUNT), kernel.buffer("ub", 0, COUNT))
        compiled = program.Program.parse(hand_written.module(kernel))
        inside = torch.zeros(4 * COUNT)[COUNT : 2 * COUNT]
        self.assertEmpty(simulate.run(compiled, (1,), [inside]).findings)
        outcome = simulate.run(compiled, (1,), [inside[:-1]])
        self.assertEqual(kinds(outcome.findings), [findings.OUT_OF_BOUNDS])


class UnwrittenTest(absltest.TestCase):
    def _kernel(self, stored: bool) -> hand_written.Kernel:
        kernel = hand_written.Kernel("AIV", arguments=2)
        x, y = kernel.buffer("ub", 0, COUNT), kernel.buffer("ub", 1024, COUNT)
        kernel.load(kernel.tensor(0, COUNT), x)
        kernel.add(y, y, y)  # nothing has written y
        kernel.order("MTE2", "MTE3", 0)
        kernel.order("V", "MTE3", 0)
        kernel.store(y if stored else x, kernel.tensor(1, COUNT))
        return kernel

    def test_memory_that_nothing_wrote_reaches_an_output(self):
        found = examine(self._kernel(stored=True))
        self.assertEqual(kinds(found), [findings.UNWRITTEN])
        self.assertIn("vadd at hivm line", found[0].message)

    def test_it_may_be_read_when_it_reaches_none(self):
        self.assertEmpty(examine(self._kernel(stored=False)))
        self.assertNotEmpty(run(self._kernel(stored=False))[0].unwritten)

    def test_a_temporary_holds_nothing_afterwards(self):
        kernel = hand_written.Kernel("AIV", arguments=2)
        x, y = kernel.buffer("ub", 0, COUNT), kernel.buffer("ub", 1024, COUNT)
        scratch = kernel.buffer("ub", 2048, COUNT)
        kernel.fill(kernel.real(1), x)
        kernel.fill(kernel.real(2), scratch)
        kernel.barrier("V")
        kernel.add(x, x, y, scratch)
        kernel.order("V", "MTE3", 0)
        kernel.store(scratch, kernel.tensor(1, COUNT))
        self.assertEqual(kinds(examine(kernel)), [findings.UNWRITTEN])


class ScheduleTest(absltest.TestCase):
    def test_an_unsynchronised_result_depends_on_the_schedule(self):
        found = examine(doubling(leave_out="MTE2->V"), check_races=False)
        self.assertIn(findings.SCHEDULE, kinds(found))

    def test_a_synchronised_one_does_not(self):
        self.assertEmpty(examine(doubling(), check_races=False))

    def test_a_seed_repeats_its_schedule(self):
        def order(seed: int) -> list[tuple[str, str]]:
            settings = simulate.Settings(seed=seed, trace=True)
            outcome, _ = run(*exchange(), settings=settings, workspace_bytes=2 * COUNT * 4)
            return [(event.core, event.name) for event in outcome.events]

        orders = [order(seed) for seed in range(8)]
        self.assertEqual(order(3), orders[3])
        self.assertGreater(len(set(map(tuple, orders))), 1)


if __name__ == "__main__":
    absltest.main()
