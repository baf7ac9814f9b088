"""Transfers between memories: values, and what changes beside them."""

import math

import numpy as np
from absl.testing import absltest, parameterized

from testing.npu_sim import memory, operations
from testing.npu_sim.findings import UnsupportedOperationError
from testing.npu_sim.sample_views import POISON, attribute, run, space, view

_STALE = float(np.array([0xA5A5], np.uint16).view(np.float16)[0])


def lying(space_name, sizes, strides, offset=0, element="f16") -> memory.View:
    return memory.View(space(space_name), offset, sizes, strides, element)


class LoadTest(parameterized.TestCase):
    def test_rows(self):
        source = lying("gm", (3, 16), (20, 1), offset=10)
        values = np.arange(48).reshape(3, 16).astype(np.float16)
        source.write(values)
        target = lying("ub", (3, 16), (32, 1), offset=64)
        self.assertEqual(run("load", [source], target).tolist(), values.tolist())
        # 16 elements are a block: nothing beside them changes.
        after = memory.View(target.memory, 64, (3, 32), (32, 1), "f16").read()
        self.assertEqual(set(after[:, 16:].ravel().tolist()), {_STALE})

    @parameterized.parameters((None, 0.0), (np.float16(7), 7.0))
    def test_tail_of_a_block_is_padded(self, pad, wanted):
        source, target = (
            view(np.arange(10).reshape(2, 5), "f16", where="gm"),
            lying("ub", (2, 5), (32, 1)),
        )
        attributes = {}
        inputs = [source]
        if pad is not None:
            attributes = {
                "pad_mode": attribute("padmode", "PadValue"),
                "operandSegmentSizes": (1, 1, 1, 0, 0, 0),
            }
            inputs.append(pad)
        run("load", inputs, target, **attributes)
        after = memory.View(target.memory, 0, (2, 32), (32, 1), "f16").read()
        for row in range(2):
            self.assertEqual(after[row, :5].tolist(), [5 * row + i for i in range(5)])
            self.assertEqual(after[row, 5:16].tolist(), [wanted] * 11)
            self.assertEqual(after[row, 16:].tolist(), [_STALE] * 16)

    def test_left_padding(self):
        target = lying("ub", (6,), (1,), offset=32 + 2 * 4)
        run(
            "load",
            [view(np.arange(6), "f16", where="gm"), np.float16(9), 4],
            target,
            pad_mode=attribute("padmode", "PadValue"),
            operandSegmentSizes=(1, 1, 1, 1, 0, 0),
        )
        after = memory.View(target.memory, 0, (64,), (1,), "f16").read().tolist()
        self.assertEqual(after[16:32], [9] * 4 + [0, 1, 2, 3, 4, 5] + [9] * 6)
        self.assertEqual(set(after[:16] + after[32:]), {_STALE})

    def test_elements_that_lie_apart(self):
        source = lying("gm", (4,), (3,), element="f32")
        source.write(np.array([1, 2, 3, 4], np.float32))
        target = lying("ub", (4,), (8,), element="f32")
        run("load", [source], target)
        after = memory.View(target.memory, 0, (4, 8), (8, 1), "f32").read()
        self.assertEqual(after.tolist(), [[value] + [0] * 7 for value in (1, 2, 3, 4)])

    def test_implicit_transposition(self):
        values = np.arange(6).reshape(3, 2)
        source = lying("gm", (3, 2), (1, 3))
        source.write(values.astype(np.float16))
        # Steps of whole blocks: each element is a burst of its own, padded.
        target = lying("ub", (3, 2), (64, 16))
        self.assertEqual(run("load", [source], target).tolist(), values.tolist())
        after = memory.View(target.memory, 0, (3, 2, 16), (64, 16, 1), "f16").read()
        self.assertEqual(set(after[:, :, 1:].ravel().tolist()), {0})
        # Other steps: the scalar unit moves the elements and nothing else.
        target = lying("ub", (3, 2), (2, 1))
        self.assertEqual(run("load", [source], target).tolist(), values.tolist())
        self.assertEqual(set(target.memory.data[12:].tolist()), {POISON})

    def test_arch35_does_not_pad_on_the_right(self):
        target = lying("ub", (2, 5), (5, 1))
        source = view(np.arange(10).reshape(2, 5), "f16", where="gm")
        operations.semantics("load", arch35=True).run({}, [source], [target])
        self.assertEqual(target.read().tolist(), [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]])
        self.assertEqual(set(target.memory.data[20:].tolist()), {POISON})
        target = lying("ub", (5,), (1,), offset=32 + 2 * 4)
        operations.semantics("load", arch35=True).run(
            {"operandSegmentSizes": (1, 1, 0, 1, 0, 0)},
            [view(np.arange(5), "f16", where="gm"), 4],
            [target],
        )
        after = memory.View(target.memory, 32, (16,), (1,), "f16").read().tolist()
        self.assertEqual(after, [0] * 4 + [0, 1, 2, 3, 4] + [0] * 7)

    def test_into_l1(self):
        target = lying("cbuf", (5,), (1,))
        run("load", [view(np.arange(5), "f16", where="gm")], target)
        self.assertEqual(set(target.memory.data[10:].tolist()), {POISON})

    def test_nothing(self):
        target = lying("ub", (0, 5), (5, 1))
        run("load", [lying("gm", (0, 5), (5, 1))], target)
        self.assertEqual(set(target.memory.data.tolist()), {POISON})

    def test_outside(self):
        source = lying("gm", (3, 16), (1 << 13, 1))
        with self.assertRaises(memory.OutOfBoundsError):
            run("load", [source], lying("ub", (3, 16), (16, 1)))

    @parameterized.parameters(
        ({"pad_mode": attribute("padmode", "PadFirstElem")}, (1, 1, 1, 0, 0, 0), [1.0], "PadFirst"),
        ({"pad_mode": attribute("padmode", "PadValue")}, (1, 1, 0, 0, 0, 0), [], "pad value None"),
        ({}, (1, 1, 0, 0, 1, 0), [3], "right padding"),
        ({}, (1, 1, 0, 0, 0, 1), [1], "init_condition"),
        ({"init_out_buffer": True}, (1, 1, 0, 0, 0, 0), [], "init_out_buffer"),
    )
    def test_attributes_that_are_not_understood(self, attributes, segments, more, message):
        with self.assertRaisesRegex(UnsupportedOperationError, message):
            run(
                "load",
                [view(np.arange(4), "f16", where="gm"), *more],
                view(sizes=(4,), element="f16"),
                operandSegmentSizes=segments,
                **attributes,
            )

    @parameterized.parameters(
        ((2, 4), (5, 1), 0, "multiples of 32"),
        ((4,), (1,), 2, "does not start"),
        ((3,), (1,), 0, ""),
    )
    def test_places_that_the_engine_cannot_write(self, sizes, strides, offset, message):
        source = view(np.zeros((2, 4) if len(sizes) == 2 else 4), "f16", where="gm")
        with self.assertRaisesRegex(UnsupportedOperationError, message):
            run("load", [source], lying("ub", sizes, strides, offset))


class StoreTest(parameterized.TestCase):
    def test_rows(self):
        target = lying("gm", (2, 3), (5, 1), offset=2)
        found = run("store", [view([[1, 2, 3], [4, 5, 6]], "f16")], target)
        self.assertEqual(found.tolist(), [[1, 2, 3], [4, 5, 6]])
        self.assertEqual(set(target.memory.data[8:12].tolist()), {POISON})

    @parameterized.parameters(
        ("add", "f32", [11, 22, 33]),
        ("max", "f32", [10, 20, 30]),
        ("min", "f32", [1, 2, 3]),
        ("add", "i32", [11, 22, 33]),
        ("none", "f32", [1, 2, 3]),
    )
    def test_atomic(self, kind, element, wanted):
        target = view([10, 20, 30], element, where="gm")
        kind = attribute("atomic_kind", kind)
        found = run("store", [view([1, 2, 3], element)], target, atomic_kind=kind)
        self.assertEqual(found.tolist(), wanted)

    def test_what_is_not_understood(self):
        with self.assertRaisesRegex(UnsupportedOperationError, "atomic_kind cas"):
            target = view([1], where="gm")
            run("store", [view([1])], target, atomic_kind=attribute("atomic_kind", "cas"))
        with self.assertRaises(UnsupportedOperationError):
            run("store", [view([1, 2])], view([1, 2, 3], where="gm"))


class FractalTest(parameterized.TestCase):
    @parameterized.parameters(("f16", 16), ("f32", 8), ("i8", 32))
    def test_nd2nz(self, element, c0):
        rows, columns = 19, c0 + 5
        source = view(np.arange(rows * columns).reshape(rows, columns) % 100, element, where="gm")
        target = view(sizes=(2, 2, 16, c0), element=element, where="cbuf")
        found = run("nd2nz", [source], target)
        values = source.read()
        poison = np.frombuffer(bytes([POISON] * 4), found.dtype)[0]
        for n1, m1, m0, n0 in np.ndindex(*target.sizes):
            row, column = 16 * m1 + m0, c0 * n1 + n0
            wanted = poison if row >= rows else values[row, column] if column < columns else 0
            self.assertEqual(found[n1, m1, m0, n0], wanted, (row, column))

    def test_nd2nz_into_a_taller_tile(self):
        # Two row blocks of a destination with four: columns are as far apart as its four blocks.
        whole = view(sizes=(2, 4, 16, 16), element="f16", where="cbuf")
        part = whole.subview((0, 2, 0, 0), (2, 2, 16, 16), (1, 1, 1, 1))
        source = view(np.arange(32 * 32).reshape(32, 32), "f16", where="gm")
        run("nd2nz", [source], part)
        found = whole.read()
        self.assertEqual(found[1, 3, 5, 7], source.read()[16 + 5, 16 + 7])
        self.assertEqual(set(found[:, :2].ravel().tolist()), {_STALE})

    def test_there_and_back(self):
        values = np.arange(20 * 20).reshape(20, 20)
        nz = view(sizes=(2, 2, 16, 16), element="f16", where="cbuf")
        run("nd2nz", [view(values, "f16", where="gm")], nz)
        found = run("nz2nd", [nz], view(sizes=(20, 20), element="f16", where="gm"))
        self.assertEqual(found.tolist(), values.tolist())

    @parameterized.parameters(
        {"sizes": (4, 4), "strides": (8, 2)},
        {"target": (2, 1, 16, 8)},
        {"target": (4, 4)},
        {"init_out_buffer": True},
    )
    def test_nd2nz_that_is_not_understood(
        self, sizes=(4, 4), strides=(4, 1), target=(1, 1, 16, 16), init_out_buffer=False
    ):
        with self.assertRaises(UnsupportedOperationError):
            out = view(sizes=target, element="f16", where="cbuf")
            run("nd2nz", [lying("gm", sizes, strides)], out, init_out_buffer=init_out_buffer)


class FixpipeTest(parameterized.TestCase):
    _NZ2ND = attribute("dma_mode", "nz2nd")

    def source(self, rows=20, columns=20, element="f32"):
        """[columns/16, rows/16, 16, 16] with element (r, c) = 100 r + c - 500."""
        n1, m1 = -(-columns // 16), -(-rows // 16)
        made = view(sizes=(n1, m1, 16, 16), element=element, where="cc")
        for block, row_block, row, column in np.ndindex(*made.sizes):
            value = 100 * (16 * row_block + row) + 16 * block + column - 500
            made.read()[block, row_block, row, column] = value
        return made

    def test_rows_are_clipped(self):
        target = view(sizes=(18, 19), strides=(24, 1), where="gm")
        found = run("fixpipe", [self.source()], target, dma_mode=self._NZ2ND)
        for row, column in np.ndindex(18, 19):
            self.assertEqual(found[row, column], 100 * row + column - 500)
        self.assertEqual(set(target.memory.data[19 * 4 : 24 * 4].tolist()), {POISON})

    @parameterized.parameters(("F322F16", "f16"), ("F322BF16", "bf16"))
    def test_rounds(self, quant, element):
        target = view(sizes=(20, 20), element=element, where="gm")
        quant = attribute("fixpipe_pre_quant_mode", quant)
        found = run("fixpipe", [self.source()], target, dma_mode=self._NZ2ND, pre_quant=quant)
        dtype = memory.DTYPES[element]
        for row, column in np.ndindex(20, 20):
            wanted = np.float32(100 * row + column - 500).astype(dtype)
            self.assertEqual(found[row, column], wanted)

    def test_overflow_becomes_infinite(self):
        source = self.source()
        source.read()[0, 0, 0, 0] = 1e6
        target = view(sizes=(1, 1), element="f16", where="gm")
        quant = attribute("fixpipe_pre_quant_mode", "F322F16")
        found = run("fixpipe", [source], target, dma_mode=self._NZ2ND, pre_quant=quant)
        self.assertEqual(found.tolist(), [[math.inf]])

    def test_relu(self):
        target = view(sizes=(20, 20), where="gm")
        relu = attribute("fixpipe_pre_relu_mode", "NORMAL_RELU")
        found = run("fixpipe", [self.source()], target, dma_mode=self._NZ2ND, pre_relu=relu)
        self.assertEqual(found[4].tolist(), [0] * 20)
        self.assertEqual(found[5].tolist(), [*range(20)])

    def test_fractals_as_they_are(self):
        source = self.source()
        target = view(sizes=source.sizes, where="gm")
        found = run("fixpipe", [source], target, dma_mode=attribute("dma_mode", "normal"))
        self.assertEqual(found.tolist(), source.read().tolist())

    def test_integers(self):
        target = view(sizes=(2, 2), element="i32", where="gm")
        found = run("fixpipe", [self.source(element="i32")], target, dma_mode=self._NZ2ND)
        self.assertEqual(found.tolist(), [[-500, -499], [-400, -399]])

    @parameterized.parameters(
        {"dma_mode": attribute("dma_mode", "nz2dn")},
        {"pre_quant": attribute("fixpipe_pre_quant_mode", "S322I8")},
        {"pre_quant": attribute("fixpipe_pre_quant_mode", "F322F16")},  # into f32
        {"pre_relu": attribute("fixpipe_pre_relu_mode", "LEAKY_RELU")},
        {"unit_flag_mode": attribute("unit_flag", "ENABLED_WITH_UPDATE")},
        {"dual_dst_mode": attribute("fixpipe_dual_dst_mode", "ROW_SPLIT")},
        {"channel_split": True},
    )
    def test_attributes_that_are_not_understood(self, **attributes):
        attributes = {"dma_mode": self._NZ2ND, **attributes}
        with self.assertRaises(UnsupportedOperationError):
            run("fixpipe", [self.source()], view(sizes=(4, 4), where="gm"), **attributes)


class CopyTest(parameterized.TestCase):
    def test_values(self):
        source = view(np.arange(6).reshape(2, 3))
        found = run("copy", [source], view(sizes=(2, 3), strides=(8, 1)))
        self.assertEqual(found.tolist(), [[0, 1, 2], [3, 4, 5]])
        bits = run("copy", [view([1, 0, 1], "i1")], view(sizes=(3,), element="i1", offset=3))
        self.assertEqual(bits.tolist(), [1, 0, 1])

    def test_within_one_memory(self):
        shared = space()
        source = view(np.arange(8), within=shared)
        target = view(sizes=(8,), offset=8, within=shared)
        self.assertEqual(run("copy", [source], target).tolist(), [*range(8)])

    def test_what_is_not_understood(self):
        x = view([1.0, 2.0])
        with self.assertRaises(UnsupportedOperationError):
            run("copy", [x], view(sizes=(2,)), pad_mode=attribute("padmode", "PadValue"))
        with self.assertRaises(UnsupportedOperationError):
            run("copy", [x], view(sizes=(3,)))
        with self.assertRaisesRegex(UnsupportedOperationError, "pad_mode = 7"):
            operations.TABLE["copy"].run({"pad_mode": 7}, [x], [view(sizes=(2,))])


if __name__ == "__main__":
    absltest.main()
