"""Kinds and sizes of what PyTorch is asked to do."""

import torch
from absl.testing import absltest

from testing import host_operations


def _meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


class CountedTest(absltest.TestCase):
    def _of(self, function, *arguments):
        with host_operations.counted() as found:
            function(*arguments)
        return [(operation.kind, operation.bytes) for operation in found]

    def test_views_and_empty_memory_are_no_work(self):
        def views(x):
            x.transpose(0, 1)[1:].unsqueeze(0).view(1, 2, 2, 1).permute(3, 2, 1, 0).detach()
            x.new_empty(5)
            torch.empty_like(x)
            return x.contiguous(), x.to(x.dtype)

        self.assertEqual(self._of(views, _meta(2, 3)), [])

    def test_a_transpose_is_read_and_written(self):
        found = self._of(lambda x: x.transpose(0, 1).contiguous(), _meta(2, 3))
        self.assertEqual(found, [(host_operations.TRANSPOSE, 48)])
        found = self._of(lambda x, y: y.copy_(x.transpose(0, 1)), _meta(2, 3), _meta(3, 2))
        self.assertEqual(found, [(host_operations.TRANSPOSE, 48)])

    def test_gaps_and_axes_of_one_are_no_transpose(self):
        found = self._of(lambda x: x[:, ::2].contiguous(), _meta(2, 4))
        self.assertEqual(found, [(host_operations.COPY, 32)])
        found = self._of(lambda x: x.transpose(0, 1)[:, ::2].contiguous(), _meta(4, 1, 3))
        self.assertEqual(found, [(host_operations.COPY, 48)])

    def test_a_copy_and_a_cast(self):
        self.assertEqual(
            self._of(lambda x: (x.clone(), x.half()), _meta(4)),
            [(host_operations.COPY, 32), (host_operations.CAST, 24)],
        )

    def test_a_fill_is_written_only(self):
        self.assertEqual(
            self._of(lambda x: (x.zero_(), torch.zeros_like(x), x.new_zeros(2)), _meta(4)),
            [(host_operations.FILL, 16), (host_operations.FILL, 16), (host_operations.FILL, 8)],
        )

    def test_other_work_counts_each_tensor_once(self):
        self.assertEqual(
            self._of(lambda x, y: (x.sum(0), x.add_(y), x * x), _meta(4), _meta(4)),
            [
                (host_operations.OTHER, 20),
                (host_operations.OTHER, 32),
                (host_operations.OTHER, 32),
            ],
        )


if __name__ == "__main__":
    absltest.main()
