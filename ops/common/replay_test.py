"""Tests of ops.common.replay in Triton's interpreter; TRITON_INTERPRET=1 must be set."""

import weakref

import torch
import triton
import triton.language as tl
from absl.testing import absltest

from ops.common import backend, launch, replay, tables


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
    def test_launches_with_a_part_of_a_tensor_between_them(self):
        # pair = [2 x, 2 x + y], out = 2 pair[0] + pair[1], doubled in place.
        x, y = torch.arange(4.0), torch.ones(4)
        pair, out = torch.empty(2, 4), torch.empty(4)
        values = {"x": x, "y": y, "pair": pair, "out": out}
        written = replay.Replay(["x", "y"], x.device)

        def add(x, y, out, sources, ended=(), begun=()):
            written.add(*_run(x, y, out), values, sources, ended, begun)

        begun = [("pair", (2, 4), torch.float32)]
        add(x, None, pair, {"x_ptr": "x", "out_ptr": "pair"}, begun=begun)
        add(x, y, pair[1:], {"x_ptr": "x", "y_ptr": "y", "out_ptr": "pair"})
        begun = [("out", (4,), torch.float32)]
        sources = {"x_ptr": "pair", "y_ptr": "pair", "out_ptr": "out"}
        add(pair, pair[1:], out, sources, begun=begun)
        add(out, None, out, {"x_ptr": "out", "out_ptr": "out"}, ended=["pair"])
        x, y = torch.full((4,), 3.0), torch.arange(4.0)
        results = written.run([x.data_ptr(), y.data_ptr()])
        self.assertEqual(list(results), ["out"])
        self.assertEqual(results["out"].tolist(), (2 * (2 * (2 * x) + 2 * x + y)).tolist())

    def test_a_tensor_that_is_no_part_of_its_source(self):
        x, out = torch.arange(4.0), torch.empty(4)
        written = replay.Replay(["x", "out"], x.device)
        values, sources = {"x": x.clone(), "out": out}, {"x_ptr": "x", "out_ptr": "out"}
        with self.assertRaisesRegex(ValueError, "^x_ptr: got a tensor elsewhere, allowed: a part"):
            written.add(*_run(x, None, out), values, sources, [], [])


class OneLaunchTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        self.launches = replay.OneLaunch(("x", "y"))

    def _remember(self, x, y, factor=2.0, read=None):
        out = torch.empty(4)
        arguments = {"x": x, "y": y, "factor": factor}
        made = _run(x, y, out, factor)
        self.launches.remember(arguments, read or arguments, *made, {"out": out})

    def _again(self, x, y, factor=2.0):
        found = self.launches.again({"x": x, "y": y, "factor": factor})
        return None if found is None else found["out"]

    def test_a_call_like_an_earlier_one(self):
        self._remember(torch.arange(4.0), torch.ones(4))
        x, y = torch.full((4,), 5.0), torch.arange(4.0)
        out = self._again(x, y)
        self.assertEqual(out.tolist(), [10.0, 11.0, 12.0, 13.0])
        self.assertNotEqual(out.data_ptr(), self._again(x, y).data_ptr())

    def test_other_calls(self):
        self._remember(torch.arange(4.0), torch.ones(4))
        self.assertIsNone(self._again(torch.arange(4.0), torch.ones(4), 3.0))
        self.assertIsNone(self._again(torch.arange(4.0), None))
        self._remember(torch.arange(4.0), None)
        self.assertEqual(self._again(torch.ones(4), None).tolist(), [2.0] * 4)

    def test_what_was_copied(self):
        x = torch.arange(4.0)
        y = torch.ones(4)
        self._remember(x, y, read={"x": x.clone(), "y": y})
        self.assertIsNone(self._again(x, torch.ones(4)))

    def test_a_result_in_place(self):
        x = torch.arange(4.0)
        arguments = {"x": x, "y": None}
        self.launches.remember(arguments, arguments, *_run(x, None, x), {}, sources={"out": "x"})
        x = torch.ones(4)
        self.assertEqual(self.launches.again({"x": x, "y": None}), {})
        self.assertEqual(x.tolist(), [2.0] * 4)

    def test_values_are_checked_before_the_launch(self):
        x = torch.arange(4.0)
        arguments = {"x": x, "y": None}
        self.launches.remember(arguments, arguments, *_run(x, None, x), {}, sources={"out": "x"})
        x = torch.ones(4)
        with self.assertRaises(KeyError):
            self.launches.again({"x": x, "y": None}, {}.popitem)
        self.assertEqual(x.tolist(), [1.0] * 4)

    def test_tables_of_packed_sequences(self):
        # The kernel reads chunk_offsets, as whole numbers, beside x.
        launches = replay.OneLaunch(("x",))
        x, out, offsets = torch.ones(4), torch.empty(4), tables.make((0, 1, 3, 5), 2, "cpu")
        arguments = {"x": x, "cu_seqlens": (0, 1, 3, 5), "chunk_size": 2}
        made = _run(x, offsets["chunk_offsets"], out)
        launches.remember(
            arguments, arguments, *made, {"out": out}, offsets, {"y": "chunk_offsets"}
        )
        self.assertEqual(out.tolist(), [2.0, 3.0, 4.0, 5.0])
        found = launches.again({"x": x + 1, "cu_seqlens": (0, 1, 3, 5), "chunk_size": 2})
        self.assertEqual(found["out"].tolist(), [4.0, 5.0, 6.0, 7.0])
        self.assertIsNone(launches.again(arguments | {"cu_seqlens": (0, 2, 3, 5)}))

    def test_no_tensor_of_the_first_call_is_kept(self):
        x, y = torch.arange(4.0), torch.ones(4)
        self._remember(x, y)
        gone = [weakref.ref(x), weakref.ref(y)]
        del x, y
        self.assertEqual([ref() for ref in gone], [None, None])
        self.assertEqual(self._again(torch.ones(4), torch.ones(4)).tolist(), [3.0] * 4)


if __name__ == "__main__":
    absltest.main()
