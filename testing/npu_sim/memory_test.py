"""Memories and views, against NumPy indexing and bytes written by hand."""

import numpy as np
from absl.testing import absltest, parameterized

from testing.npu_sim import findings, memory


def view(offset=0, sizes=(4,), strides=(1,), element="f32", size=1024) -> memory.View:
    made = memory.Memory("ub", "AIV0", np.arange(size, dtype=np.uint32).astype(np.uint8))
    return memory.View(made, offset, sizes, strides, element)


class ValuesTest(parameterized.TestCase):
    @parameterized.parameters(*sorted(memory.DTYPES))
    def test_read_back(self, element):
        dtype = memory.DTYPES[element]
        made = view(64, (3, 2), (4, 1), element)
        values = np.arange(6).reshape(3, 2).astype(dtype)
        made.write(values)
        self.assertEqual(made.read().tolist(), values.tolist())
        # Between the rows nothing has changed.
        gap = 64 + 2 * dtype.itemsize
        self.assertEqual(made.memory.data[gap], gap % 256)

    def test_read_is_of_the_memory_itself(self):
        made = view(element="i8")
        self.assertEqual(made.read().tolist(), [0, 1, 2, 3])
        made.memory.data[1] = 9
        self.assertEqual(made.read().tolist(), [0, 9, 2, 3])

    def test_bits_are_packed_little_endian(self):
        made = view(8 * 32 + 3, (10,), (1,), "i1")
        made.memory.data[32:34] = [0b0000_0000, 0b0000_0000]
        made.write(np.array([1, 0, 1, 1, 0, 0, 1, 0, 0, 1], bool))
        self.assertEqual(made.memory.data[32:34].tolist(), [0b0110_1000, 0b0001_0010])
        self.assertEqual(made.read().tolist(), [1, 0, 1, 1, 0, 0, 1, 0, 0, 1])

    def test_bits_with_strides(self):
        made = view(0, (2, 3), (8, 2), "i1")
        made.memory.data[:2] = [0b0001_0001, 0b0000_0100]
        self.assertEqual(made.read().tolist(), [[True, False, True], [False, True, False]])

    def test_a_scalar_is_broadcast(self):
        made = view(0, (2, 2), (2, 1))
        made.write(np.float32(3))
        self.assertEqual(made.read().tolist(), [[3, 3], [3, 3]])

    def test_another_type_is_refused(self):
        with self.assertRaisesRegex(TypeError, "float64 is written"):
            view().write(np.zeros(4))

    @parameterized.parameters(
        (1020, (4,), (1,), "f32"),
        (-4, (4,), (1,), "f32"),
        (0, (2, 4), (255, 1), "f32"),
        (8 * 1024 - 1, (2,), (1,), "i1"),
    )
    def test_nothing_outside_is_touched(self, offset, sizes, strides, element):
        made = view(offset, sizes, strides, element)
        with self.assertRaisesRegex(memory.OutOfBoundsError, "does not lie in its 1024 bytes"):
            made.read()
        with self.assertRaises(memory.OutOfBoundsError):
            made.write(np.zeros(sizes, memory.DTYPES.get(element, bool)))

    @parameterized.parameters("f32", "i1")
    def test_no_elements_lie_anywhere(self, element):
        made = view(5000, (0, 4), (4, 1), element)
        self.assertEqual(made.read().shape, (0, 4))
        made.write(np.zeros((0, 4), memory.DTYPES.get(element, bool)))
        self.assertIsNone(made.granules())


class GranulesTest(parameterized.TestCase):
    @parameterized.parameters(
        (0, (8,), (1,), [0]),
        (28, (2,), (1,), [0, 1]),
        (0, (3, 2), (16, 1), [0, 2, 4]),
        (0, (2, 2, 8), (64, 16, 1), [0, 2, 8, 10]),
        (24, (2, 4), (16, 1), [0, 1, 2, 3]),
        (0, (4,), (8,), [0, 1, 2, 3]),
        (0, (2, 2), (8, 0), [0, 1]),
    )
    def test_blocks_of_32_bytes(self, offset, sizes, strides, expected):
        found = view(offset, sizes, strides).granules()
        indices = np.arange(32)[found]
        self.assertEqual(indices.tolist(), expected)

    def test_global_memory_is_told_apart_by_two_bytes(self):
        made = memory.Memory("gm", "x", np.zeros(64, np.uint8))
        self.assertEqual(memory.View(made, 6, (3,), (1,), "f16").granules(), slice(3, 6))


class ShapesTest(absltest.TestCase):
    """The memref dialect's views, against the same of NumPy."""

    def setUp(self):
        super().setUp()
        self.array = np.arange(256, dtype=np.int32).reshape(4, 8, 8)
        made = memory.Memory("ub", "AIV0", self.array.reshape(-1).view(np.uint8))
        self.view = memory.View(made, 0, (4, 8, 8), (64, 8, 1), "i32")

    def test_subview(self):
        part = self.view.subview((1, 2, 3), (2, 3, 2), (1, 2, 2))
        self.assertEqual(part.read().tolist(), self.array[1:3, 2:8:2, 3:7:2].tolist())

    def test_subviews_of_subviews(self):
        part = self.view.subview((1, 0, 0), (3, 8, 4), (1, 1, 2)).subview(
            (1, 4, 1), (1, 2, 2), (1, 1, 1)
        )
        self.assertEqual(part.read().tolist(), self.array[2:3, 4:6, 2:6:2].tolist())

    def test_drop_dimensions(self):
        part = self.view.subview((1, 0, 5), (1, 8, 1), (1, 1, 1)).drop_dimensions([1])
        self.assertEqual(part.read().tolist(), self.array[1, :, 5].tolist())

    def test_collapse_and_expand(self):
        flat = self.view.collapse([[0, 1], [2]])
        self.assertEqual(flat.read().tolist(), self.array.reshape(32, 8).tolist())
        again = flat.expand([[0, 1], [2, 3]], (4, 8, 2, 4))
        self.assertEqual(again.read().tolist(), self.array.reshape(4, 8, 2, 4).tolist())

    def test_collapse_of_a_strided_column(self):
        column = self.view.subview((0, 0, 2), (4, 8, 1), (1, 1, 1)).collapse([[0, 1, 2]])
        self.assertEqual(column.read().tolist(), self.array[:, :, 2].reshape(-1).tolist())

    def test_collapse_to_no_axes(self):
        one = self.view.subview((1, 1, 1), (1, 1, 1), (1, 1, 1)).collapse([])
        self.assertEqual(one.read().tolist(), self.array[1, 1, 1])

    def test_reinterpret_counts_from_the_base(self):
        part = self.view.subview((1, 0, 0), (1, 8, 8), (1, 1, 1))
        again = part.reinterpret("i32", 3, (2, 2), (10, 1))
        self.assertEqual(again.read().tolist(), [[3, 4], [13, 14]])

    def test_retype(self):
        bytes_of_it = memory.View(self.view.memory, 0, (1024,), (1,), "i8")
        part = bytes_of_it.retype("i32", 16, (2, 3))
        self.assertEqual(part.read().tolist(), [[4, 5, 6], [7, 8, 9]])

    def test_bitcast(self):
        part = self.view.subview((1, 0, 0), (2, 8, 4), (1, 1, 2)).bitcast("f32")
        same = self.array.view(np.float32)[1:3, :, ::2]
        self.assertEqual(part.read().tolist(), same.tolist())
        for element in ("f16", "i1"):
            with self.assertRaisesRegex(findings.UnsupportedOperationError, f"bitcast.* {element}"):
                self.view.bitcast(element)


if __name__ == "__main__":
    absltest.main()
