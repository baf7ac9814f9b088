"""Tests of ops.common.replay in Triton's interpreter; TRITON_INTERPRET=1 must be set."""

import weakref

import torch
import triton
import triton.language as tl
from absl.testing import absltest

from ops.common import backend, launch, replay


@triton.jit
def add_scaled(x_ptr, y_ptr, out_ptr, factor, SIZE: tl.constexpr):
    lane = tl.arange(0, SIZE)
    y = 0.0 if y_ptr is None else tl.load(y_ptr + lane)
    tl.store(out_ptr + lane, factor * tl.load(x_ptr + lane) + y)


def _run(x, y, out, factor=2.0):
    made = launch.Launch(
        kernel=add_scaled,
        backend=backend.CPU_REFERENCE,
        grid=(1,),
        args={"x_ptr": x, "y_ptr": y, "out_ptr": out, "factor": factor},
        constants={"SIZE": 4},
        options={},
    )
    return made, made.run()


class ReplayTest(absltest.TestCase):
    def test_one_launch(self):
        x, y, out = torch.arange(4.0), torch.ones(4), torch.empty(4)
        made = replay.Replay.of_one(*_run(x, y, out), {"x": x, "y": y}, {"out": out})
        x, y = torch.full((4,), 5.0), torch.arange(4.0)
        results = made.run([x.data_ptr(), y.data_ptr()])
        self.assertEqual(list(results), ["out"])
        self.assertEqual(results["out"].tolist(), [10.0, 11.0, 12.0, 13.0])
        again = made.run([x.data_ptr(), y.data_ptr()])
        self.assertNotEqual(results["out"].data_ptr(), again["out"].data_ptr())

    def test_a_result_in_place_and_an_absent_tensor(self):
        x = torch.arange(4.0)
        made = replay.Replay.of_one(*_run(x, None, x), {"x": x}, {}, out="x")
        x = torch.ones(4)
        self.assertEqual(made.run([x.data_ptr()]), {})
        self.assertEqual(x.tolist(), [2.0] * 4)

    def test_two_launches_with_a_part_of_a_tensor_between_them(self):
        # out = 2 (second half of pair) + x, where pair's halves are 2 x and 2 x + y.
        x, y = torch.arange(4.0), torch.ones(4)
        pair, out = torch.empty(2, 4), torch.empty(4)
        written = replay.Replay(["x", "y"], x.device)
        values = {"x": x, "y": y, "pair": pair}
        sources = {"x_ptr": "x", "y_ptr": "y", "out_ptr": "pair"}
        begun = [("pair", (2, 4), torch.float32)]
        written.add(*_run(x, y, pair[1:]), values, sources, [], begun)
        values |= {"out": out}
        sources = {"x_ptr": "pair", "y_ptr": "x", "out_ptr": "out"}
        begun = [("out", (4,), torch.float32)]
        written.add(*_run(pair[1:], x, out), values, sources, [], begun)
        written.add(*_run(out, None, out), values, {"x_ptr": "out", "out_ptr": "out"}, ["pair"], [])
        x, y = torch.full((4,), 3.0), torch.arange(4.0)
        results = written.run([x.data_ptr(), y.data_ptr()])
        self.assertEqual(list(results), ["out"])
        self.assertEqual(results["out"].tolist(), (2 * (2 * (2 * x + y) + x)).tolist())

    def test_no_tensor_of_the_first_call_is_kept(self):
        x, out = torch.arange(4.0), torch.empty(4)
        made = replay.Replay.of_one(*_run(x, None, out), {"x": x}, {"out": out})
        gone = [weakref.ref(tensor) for tensor in (x, out)]
        del x, out
        self.assertEqual([ref() for ref in gone], [None, None])
        x = torch.ones(4)
        self.assertEqual(made.run([x.data_ptr()])["out"].tolist(), [2.0] * 4)


if __name__ == "__main__":
    absltest.main()
