import torch
from absl.testing import parameterized

from testing import guard, inputs, main


class GuardedAllocationsTest(parameterized.TestCase):
    @parameterized.parameters(
        (lambda: torch.empty(3, 5, dtype=torch.float16),),
        (lambda: torch.empty_like(torch.zeros(3, 5)),),
        (lambda: torch.zeros(2, dtype=torch.bfloat16).new_empty((3, 5)),),
        (lambda: torch.empty_strided((3, 5), (1, 3)),),
        (lambda: torch.empty(3, 5, dtype=torch.float64),),
    )
    def test_uninitialised_tensors_are_nan(self, allocate):
        with guard.GuardedAllocations():
            x = allocate()
        self.assertEqual(tuple(x.shape), (3, 5))
        self.assertTrue(torch.isnan(x).all())

    def test_integers_are_minus_one(self):
        with guard.GuardedAllocations():
            x = torch.empty(4, dtype=torch.int32)
        self.assertEqual(x.tolist(), [-1] * 4)

    def test_poisons_differ(self):
        with guard.GuardedAllocations(guard.HUGE_POISON):
            x = torch.empty(4, dtype=torch.bfloat16)
            y = torch.empty(4, dtype=torch.float16)
        self.assertGreater(x.min(), 1e36)
        self.assertGreater(y.min(), 6e4)

    def test_strides_and_contiguity_are_as_asked(self):
        with guard.GuardedAllocations():
            self.assertTrue(torch.empty(3, 5).is_contiguous())
            self.assertEqual(torch.empty_strided((3, 5), (1, 3)).stride(), (1, 3))
            self.assertEqual(torch.empty(0, 5).shape, (0, 5))

    @parameterized.parameters(-1, 15, 15 + inputs.BAND // 2 - 1)
    def test_a_write_outside_breaks_a_band(self, position):
        with guard.GuardedAllocations() as guarded:
            x = torch.empty(15, dtype=torch.float16)
            torch.empty(15, dtype=torch.float16)
        x.fill_(1.0)
        self.assertEqual(guarded.broken_bands(), 0)
        x.as_strided((1,), (1,), x.storage_offset() + position).fill_(1.0)
        self.assertEqual(guarded.broken_bands(), 1)

    def test_bytes_count_results_copies_and_temporaries_once(self):
        x = torch.zeros(4, 6)
        with guard.GuardedAllocations() as guarded:
            y = torch.empty(10, dtype=torch.float16)  # 20
            y[2:].zero_()  # a view
            x.t().contiguous()  # 96, dropped at once
            x.double()  # 192
            torch.cat([x, x])  # 192
            x.contiguous()  # nothing to do
        self.assertEqual(guarded.allocated_bytes, 20 + 96 + 192 + 192)
        self.assertEqual(guarded.allocations, 4)


if __name__ == "__main__":
    main.main()
