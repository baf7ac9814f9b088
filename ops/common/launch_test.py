"""Tests of ops.common.launch in Triton's interpreter; TRITON_INTERPRET=1 must be set."""

import dataclasses
import threading
import time
import weakref
from unittest import mock

import torch
import triton
import triton.language as tl
from absl.testing import absltest, parameterized
from triton.runtime import jit

from ops.common import backend, launch


@triton.jit
def add_to_each(x_ptr, y_ptr, other_ptr, value, STEP: tl.constexpr):
    index = tl.program_id(0)
    tl.store(y_ptr + index, tl.load(x_ptr + index * STEP) + value)


def _launch(grid=(4,), x=None, y=None, value=2):
    return launch.Launch(
        kernel=add_to_each,
        backend=backend.CPU_REFERENCE,
        grid=grid,
        args={
            "x_ptr": torch.arange(4.0) if x is None else x,
            "y_ptr": torch.zeros(4) if y is None else y,
            "other_ptr": None,
            "value": value,
        },
        constants={"STEP": 1},
        options={},
    )


class LaunchTest(parameterized.TestCase):
    def test_runs_the_kernel(self):
        y = torch.zeros(4)
        _launch(y=y).run()
        self.assertEqual(y.tolist(), [2.0, 3.0, 4.0, 5.0])

    def test_takes_views_as_they_are(self):
        # Triton's interpreter alone raises for an expanded tensor.
        y = torch.zeros(4)
        x = torch.full((1,), 5.0).expand(4)
        launch.Launch(
            add_to_each,
            backend.CPU_REFERENCE,
            (4,),
            {"x_ptr": x, "y_ptr": y, "other_ptr": None, "value": 1},
            {"STEP": 0},
            {},
        ).run()
        self.assertEqual(y.tolist(), [6.0] * 4)
        base = torch.arange(8.0)
        _launch(x=base[4:], y=y).run()
        self.assertEqual(y.tolist(), [6.0, 7.0, 8.0, 9.0])

    @parameterized.parameters(((0,),), ((65536,),), ((256, 256),), ((2, 0),), ((),), ((1,) * 4,))
    def test_refuses_grids_that_no_device_takes(self, grid):
        y = torch.zeros(4)
        with self.assertRaisesRegex(ValueError, "grid of add_to_each: got .*1 to 65535 programs"):
            _launch(grid=grid, y=y).run()
        self.assertEqual(y.tolist(), [0.0] * 4)

    def test_signature(self):
        planned = _launch(x=torch.zeros(1, dtype=torch.bfloat16), value=2**31)
        self.assertEqual(planned.signature(), {"x_ptr": "*bf16", "y_ptr": "*fp32", "value": "i64"})
        self.assertEqual(_launch(value=2**31 - 1).signature()["value"], "i32")
        self.assertEqual(_launch(value=-(2**31)).signature()["value"], "i32")

    @parameterized.parameters(
        (0.001, "fp32"),
        (1.0, "fp32"),
        (True, "i1"),
        (2**63, "u64"),
        (-(2**63), "i64"),
        (torch.zeros(1, dtype=torch.int8), "*i8"),
        (torch.zeros(1, dtype=torch.uint8), "*u8"),
        (torch.zeros(1, dtype=torch.int16), "*i16"),
        (torch.zeros(1, dtype=torch.bool), "*i1"),
    )
    def test_types_are_triton_s_own(self, value, expected):
        self.assertEqual(_launch(value=value).signature()["value"], expected)
        self.assertEqual(jit.mangle_type(value), expected)

    @parameterized.parameters(
        (torch.zeros(1, dtype=torch.complex64), "got dtype torch.complex64, allowed: torch.float"),
        (torch.zeros(1, dtype=torch.float64), "got dtype torch.float64, allowed: torch.float"),
        (2**64, "got 18446744073709551616, allowed: -2.63 to 2.64-1"),
        (-(2**63) - 1, "got -9223372036854775809, allowed"),
        ([1], "got a list, allowed: a tensor, int, float, bool or None"),
    )
    def test_refuses_what_has_no_type(self, value, message):
        with self.assertRaisesRegex(ValueError, f"value: {message}"):
            _launch(value=value).signature()

    def test_planning_launches_nothing(self):
        y = torch.zeros(4)
        with launch.record() as launches:
            planned = _launch(y=y)
        self.assertEqual(planned.name, "add_to_each")
        self.assertEqual(planned.programs, 4)
        self.assertEmpty(launches)
        self.assertEqual(y.tolist(), [0.0] * 4)


class ThreadsTest(absltest.TestCase):
    def test_one_launch_at_a_time_in_the_interpreter(self):
        inside, most = [], []

        class Kernel:
            arg_names = add_to_each.arg_names
            __name__ = "add_to_each"

            def __getitem__(self, grid):
                def start(**arguments):
                    inside.append(arguments)
                    most.append(len(inside))
                    time.sleep(0.005)  # the other threads' turn
                    inside.pop()

                return start

        def calls():
            x, y = torch.arange(4.0), torch.zeros(4)
            first = dataclasses.replace(_launch(x=x, y=y), kernel=Kernel())
            repeated = launch.Repeated(first, first.run(), ["x_ptr", "y_ptr"])
            repeated.run([x.data_ptr(), y.data_ptr()], [0, 1])

        threads = [threading.Thread(target=calls) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(most, [1] * 8)


class NegativeBitTest(absltest.TestCase):
    def test_lazily_negated_views_are_refused(self):
        y = torch.zeros(4)
        lazily_negated = torch.ones(4, dtype=torch.complex64).conj().imag
        with self.assertRaisesRegex(ValueError, "x_ptr of add_to_each: got .* negative bit"):
            _launch(x=lazily_negated, y=y).run()
        self.assertEqual(y.tolist(), [0.0] * 4)


class PretendTest(absltest.TestCase):
    def test_a_launch_is_checked_and_recorded_but_not_made(self):
        y = torch.zeros(4)
        with launch.record() as launches, backend.pretend(backend.NPU_ARCH32, 24):
            _launch(y=y).run()
            _launch(x=torch.empty(4, device="meta")).run()
            with self.assertRaisesRegex(ValueError, "grid of add_to_each: got .65536"):
                _launch(grid=(65536,)).run()
        self.assertLen(launches, 2)
        self.assertEqual(y.tolist(), [0.0] * 4)
        _launch(y=y).run()
        self.assertEqual(y.tolist(), [2.0, 3.0, 4.0, 5.0])

    def test_a_launch_goes_to_the_simulator_after_its_checks(self):
        def simulate(item):
            item.args["y_ptr"].fill_(item.args["value"])

        y = torch.zeros(4)
        with launch.record() as launches, backend.pretend(backend.NPU_ARCH32, 24, simulate):
            _launch(y=y, value=7).run()
            with self.assertRaisesRegex(ValueError, "grid of add_to_each: got .65536"):
                _launch(grid=(65536,), y=y, value=8).run()
        self.assertEqual(y.tolist(), [7.0] * 4)
        self.assertLen(launches, 1)


class RepeatedTest(parameterized.TestCase):
    def test_replaces_the_named_arguments_only(self):
        calls = []

        class Compiled:  # what Triton returns on a device
            def __getitem__(self, grid):
                return lambda *values: calls.append((grid, values))

        planned = _launch(value=7)
        repeated = launch.Repeated(planned, Compiled(), ["y_ptr", "x_ptr"])
        repeated.run([100, 200, 250, 300], [3, 0])
        repeated.run([1, 2], [0, 1])
        # In the kernel's own order.
        self.assertEqual(
            calls,
            [((4, 1, 1), (100, 300, None, 7, 1)), ((4, 1, 1), (2, 1, None, 7, 1))],
        )

    def test_keeps_no_tensor_of_the_first_launch(self):
        x, y = torch.arange(4.0), torch.zeros(4)
        planned = _launch(x=x, y=y)
        repeated = launch.Repeated(planned, planned.run(), ["x_ptr", "y_ptr"])
        gone = [weakref.ref(x), weakref.ref(y)]
        del planned, x, y
        self.assertEqual([ref() for ref in gone], [None, None])
        x, y = torch.full((4,), 8.0), torch.zeros(4)
        repeated.run([x.data_ptr(), y.data_ptr()], [0, 1])
        self.assertEqual(y.tolist(), [10.0] * 4)

    @parameterized.parameters("cpu", "cuda")
    def test_not_while_somebody_looks(self, kind):
        tensor = mock.Mock(device=torch.device(kind))
        with mock.patch.object(triton, "__version__", "3.6.0"):
            self.assertTrue(launch.repeatable(tensor))
            with launch.record():
                self.assertTrue(launch.watched())
                self.assertFalse(launch.repeatable(tensor))
            with backend.limit_programs(3):
                self.assertFalse(launch.repeatable(tensor))
            with backend.pretend(backend.CUDA, 8):
                self.assertFalse(launch.repeatable(tensor))
        self.assertFalse(launch.watched())

    def test_only_for_devices_and_versions_that_were_tried(self):
        with mock.patch.object(triton, "__version__", "9.9.9"):
            self.assertFalse(launch.repeatable(mock.Mock(device=torch.device("cuda"))))
        for kind in ("meta", "privateuseone"):
            self.assertFalse(launch.repeatable(mock.Mock(device=torch.device(kind))))
        self.assertFalse(launch.repeatable(None))


class RecordTest(absltest.TestCase):
    def test_sees_the_launches_of_its_block(self):
        _launch().run()
        with launch.record() as outer:
            _launch(grid=(1,)).run()
            with launch.record() as inner:
                _launch(grid=(2,)).run()
            _launch(grid=(3,)).run()
        _launch().run()
        self.assertEqual([each.grid for each in outer], [(1,), (2,), (3,)])
        self.assertEqual([each.grid for each in inner], [(2,)])

    def test_stops_after_an_error(self):
        with self.assertRaises(KeyError), launch.record() as launches:
            raise KeyError
        _launch().run()
        self.assertEmpty(launches)


if __name__ == "__main__":
    absltest.main()
