"""Tests of ops.common.chunks."""

import gc
from unittest import mock

import torch
from absl.testing import absltest, parameterized

from ops.common import chunks


class BoundariesTest(parameterized.TestCase):
    def test_values(self):
        for dtype in (torch.int32, torch.int64):
            self.assertEqual(chunks.boundaries(torch.tensor([0, 3, 9], dtype=dtype)), (0, 3, 9))

    def test_a_cpu_tensor_is_read_each_time(self):
        cu_seqlens = torch.tensor([0, 3])
        self.assertEqual(chunks.boundaries(cu_seqlens), (0, 3))
        cu_seqlens.data[1] = 5  # torch counts no change
        self.assertEqual(chunks.boundaries(cu_seqlens), (0, 5))

    def test_a_device_tensor_is_read_once_until_it_changes(self):
        with _as_on_a_device() as reads:
            cu_seqlens = torch.tensor([0, 3])
            for _ in range(3):
                self.assertEqual(chunks.boundaries(cu_seqlens), (0, 3))
            self.assertEqual(reads.count, 1)
            cu_seqlens[1] = 4
            self.assertEqual(chunks.boundaries(cu_seqlens), (0, 4))
            self.assertEqual(reads.count, 2)
            self.assertEqual(chunks.boundaries(cu_seqlens.clone()), (0, 4))
            self.assertEqual(reads.count, 3)

    def test_an_inference_tensor_is_read_each_time(self):
        with _as_on_a_device() as reads, torch.inference_mode():
            cu_seqlens = torch.tensor([0, 3])
            for _ in range(2):
                self.assertEqual(chunks.boundaries(cu_seqlens), (0, 3))
            self.assertEqual(reads.count, 2)

    def test_values_do_not_outlive_their_tensor(self):
        with _as_on_a_device():
            before = len(chunks._read)
            cu_seqlens = torch.tensor([0, 3])
            chunks.boundaries(cu_seqlens)
            self.assertLen(chunks._read, before + 1)
            del cu_seqlens
            gc.collect()
            self.assertLen(chunks._read, before)

    @parameterized.parameters(
        ((1, 3), "cu_seqlens[0]: got 1, allowed: 0"),
        ((-1, 3), "cu_seqlens[0]: got -1, allowed: 0"),
        ((0, 4, 3), "cu_seqlens[2]: got 3, allowed: 4 (the one before) or more"),
        ((0, -2, 3), "cu_seqlens[1]: got -2, allowed: 0 (the one before) or more"),
        ((0, 4, 11), "cu_seqlens[-1]: got 11, allowed: 0 to T = 10"),
    )
    def test_refused(self, values, message):
        with self.assertRaises(ValueError) as caught:
            chunks.check_boundaries(values, 10)
        self.assertEqual(str(caught.exception), message)

    @parameterized.parameters((0,), ((0, 0, 0),), ((0, 10),), ((0, 3, 3, 9),))
    def test_accepted(self, values):
        chunks.check_boundaries(values if isinstance(values, tuple) else (values,), 10)


class ChunksTest(parameterized.TestCase):
    @parameterized.parameters(
        ((0, 64), 64, [0, 1], [[0, 0]]),
        ((0, 65), 64, [0, 2], [[0, 0], [0, 1]]),
        ((0, 0, 63, 128, 130), 32, [0, 0, 2, 5, 6], None),
        ((0, 3, 3, 70), 32, [0, 1, 1, 4], [[0, 0], [2, 0], [2, 1], [2, 2]]),
        ((0, 0), 32, [0, 0], []),
        ((0,), 32, [0], []),
    )
    def test_offsets_and_indices(self, values, size, offsets, indices):
        self.assertEqual(chunks.chunk_offsets(values, size).tolist(), offsets)
        found = chunks.chunk_indices(values, size)
        self.assertEqual(found.shape, (offsets[-1], 2))
        if indices is not None:
            self.assertEqual(found.tolist(), indices)
        for number, (sequence, chunk) in enumerate(found.tolist()):
            self.assertEqual(offsets[sequence] + chunk, number)
            self.assertLess(chunk * size, values[sequence + 1] - values[sequence])

    def test_dtype(self):
        for dtype in (torch.int32, torch.int64):
            for function in (chunks.chunk_offsets, chunks.chunk_indices):
                self.assertEqual(function((0, 3), 64, dtype).dtype, dtype)
                self.assertEqual(function((0, 3), 64, dtype, "meta").device.type, "meta")


class _as_on_a_device:
    """CPU tensors pass for those of a device; counts how often one's values are asked for."""

    def __enter__(self):
        self.count = 0
        tolist = torch.Tensor.tolist

        def counted(tensor):
            self.count += 1
            return tolist(tensor)

        self._patches = [
            mock.patch.object(torch.Tensor, "tolist", counted),
            mock.patch.object(torch.Tensor, "device", mock.Mock(type="cuda")),
        ]
        for patch in self._patches:
            patch.start()
        return self

    def __exit__(self, *_):
        for patch in self._patches:
            patch.stop()


if __name__ == "__main__":
    absltest.main()
