"""Tests of ops.common.calls in Triton's interpreter; TRITON_INTERPRET=1 must be set."""

import torch
from absl.testing import absltest, parameterized

from ops.common import backend, calls, launch


def _tensors():
    return [torch.zeros(2, 3, 4), torch.zeros(2, 3), None]


def _unaligned(tensor):
    return torch.zeros(tensor.numel() + 1, dtype=tensor.dtype)[1:].view(tensor.shape)


class FindTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.calls = calls.Calls()
        self.kept = _tensors()
        self.calls.remember("key", self.kept, "made")

    def test_values_and_addresses_may_differ(self):
        tensors = _tensors()
        tensors[0].fill_(7)
        found = self.calls.find("key", tensors)
        self.assertEqual(found, ("made", [x.data_ptr() for x in tensors[:2]]))

    def test_keys_tell_calls_apart(self):
        self.assertIsNone(self.calls.find("other", _tensors()))
        self.calls.remember("other", _tensors(), "second")
        self.assertEqual(self.calls.find("other", _tensors())[0], "second")
        self.assertEqual(self.calls.find("key", _tensors())[0], "made")

    @parameterized.named_parameters(
        ("dtype", lambda x: x.half()),
        ("type", lambda x: torch.nn.Parameter(x, requires_grad=False)),
        ("size", lambda x: torch.zeros(2, 3, 5)),
        ("axes", lambda x: torch.zeros(1, 2, 3, 4)),
        ("stride", lambda x: torch.zeros(2, 4, 3).mT),
        ("stride_of_axis_of_size_1", lambda x: torch.zeros(2, 3, 8)[..., :4]),
        ("alignment", _unaligned),
        ("gradient", lambda x: x.requires_grad_()),
        ("negation", lambda x: torch.complex(x, x).conj().imag),
        ("device", lambda x: x.to("meta")),
        ("absence", lambda x: None),
        ("no_tensor", lambda x: [1, 2]),
        ("array", lambda x: x.numpy()),
    )
    def test_tensors_tell_calls_apart(self, changed):
        for i in (0, 1):
            tensors = [torch.zeros(2, 3, 4), torch.zeros(2, 3, 4)]
            self.calls.remember(i, tensors, "made")
            self.assertIsNotNone(self.calls.find(i, tensors))
            tensors[1] = changed(tensors[1])
            self.assertIsNone(self.calls.find(i, tensors))

    def test_one_more_tensor_is_another_call(self):
        tensors = _tensors()
        tensors[2] = torch.zeros(2)
        self.assertIsNone(self.calls.find("key", tensors))

    def test_the_grad_mode_tells_calls_apart(self):
        with torch.no_grad():
            self.assertIsNone(self.calls.find("key", _tensors()))

    def test_transforms_tell_calls_apart(self):
        found = []

        def look(x):
            found.append(self.calls.find("key", [x, self.kept[1], None]))
            return x

        torch.func.vmap(look)(torch.zeros(5, 2, 3, 4))
        self.assertEqual(found, [None])

    def test_not_while_launches_are_watched_pretended_or_limited(self):
        with launch.record():
            self.assertIsNone(self.calls.find("key", _tensors()))
        with backend.pretend(backend.CUDA, 8):
            self.assertIsNone(self.calls.find("key", _tensors()))
        with backend.limit_programs(2):
            self.assertIsNone(self.calls.find("key", _tensors()))
        self.assertIsNotNone(self.calls.find("key", _tensors()))


class RememberTest(absltest.TestCase):
    def test_only_what_reads_the_arguments_themselves(self):
        tensors, remembered = _tensors(), calls.Calls()
        self.assertTrue(remembered.may_remember(tensors, list(tensors)))
        copied = [tensors[0], tensors[1].clone(), None]
        self.assertFalse(remembered.may_remember(tensors, copied))
        with launch.record():
            self.assertFalse(remembered.may_remember(tensors, list(tensors)))

    def test_a_tensor_in_two_places_is_never_found_and_not_kept(self):
        remembered = calls.Calls(most=1)
        remembered.remember("key", _tensors(), "made")
        x = torch.zeros(2)
        remembered.remember("twice", [x, x], "second")
        self.assertIsNone(remembered.find("twice", [x, x]))
        self.assertIsNotNone(remembered.find("key", _tensors()))

    def test_no_more_than_so_many(self):
        remembered = calls.Calls(most=2)
        for key in range(3):
            remembered.remember(key, _tensors(), key)
        found = [remembered.find(key, _tensors()) is not None for key in range(3)]
        self.assertEqual(found, [False, False, True])


class KeyTest(absltest.TestCase):
    def test_equal_values_that_are_not_the_same(self):
        for a, b in ((True, 1), (0.0, -0.0), (1, 1.0), (None, 0.0), ((1, 2), (1, 3)), ((), None)):
            self.assertNotEqual(calls.key([a]), calls.key([b]))
            self.assertEqual(hash(calls.key([a])), hash(calls.key([a])))


if __name__ == "__main__":
    absltest.main()
