"""Tests of the forward's case tables and of what its specs declare; NumPy only."""

import sys

from absl.testing import absltest, parameterized

from ops.chunk_kda import cases as common
from ops.chunk_kda import fwd_intra_spec, fwd_spec, train_spec
from testing import cases

_SPECS = (fwd_spec, fwd_intra_spec, train_spec)
_FWD = {case.name: case for case in fwd_spec.SPEC.cases}
_INTRA = {case.name: case for case in fwd_intra_spec.SPEC.cases}
_TRAIN = {case.name: case for case in train_spec.SPEC.cases}


def _sizes(case):
    """(B, T, H, HV, K, V)"""
    return (*case.shape("q")[:3], case.shape("v")[2], case.shape("q")[3], case.shape("v")[3])


class CasesTest(parameterized.TestCase):
    def test_needs_neither_torch_nor_triton(self):
        self.assertNotIn("torch", sys.modules)
        self.assertNotIn("triton", sys.modules)

    @parameterized.parameters(*_SPECS)
    def test_numbers(self, spec):
        table = list(spec.SPEC.cases)
        for tag, least in (("ci", 20), ("full", 40), ("perf", 5)):
            self.assertGreaterEqual(len(cases.select(table, [tag])), least)
        for case in cases.select(table, ["ci"]):
            _, t, _, value_heads, k_dim, v_dim = _sizes(case)
            self.assertLessEqual(t * value_heads * k_dim * v_dim, 129 * 4 * 128 * 128, case.name)

    def test_gradients_have_the_cases_of_results(self):
        self.assertEqual(list(_TRAIN), list(_FWD))
        for name, case in _TRAIN.items():
            self.assertEqual(case.attributes, _FWD[name].attributes)
            self.assertEqual(set(case.tensors) - set(_FWD[name].tensors), {"do", "dht"})

    @parameterized.parameters("ci", "full")
    def test_the_contract_is_covered(self, tag):
        chosen = cases.select(list(_FWD.values()), [tag])
        axes = [set(axis) for axis in zip(*map(_sizes, chosen), strict=True)]
        lengths = {1, 15, 16, 17, 63, 64, 65, 129} | ({0} if tag == "ci" else {2049})
        self.assertContainsSubset(lengths, axes[1])
        self.assertContainsSubset({60, 64, 96, 100, 128, 256}, axes[4])
        self.assertContainsSubset({60, 64, 96, 100, 128, 256}, axes[5])
        self.assertEqual({c.attributes["chunk_size"] for c in chosen}, {32, 64})
        dtypes = {c.tensors["q"].dtype for c in chosen}
        self.assertEqual(dtypes, {"float16", "bfloat16", "float32"})
        packings = {c.attributes["cu_seqlens"] for c in chosen}
        self.assertContainsSubset(
            {(0, 1, 64, 65, 129), (0, 17, 80, 145), (0, 0, 63, 128, 130), (0, 31, 96, 160)},
            packings,
        )
        self.assertIn(tuple(range(33)), packings)
        self.assertTrue(any(fwd_spec.problem_of(case).slack for case in chosen))
        gates = {fwd_spec.problem_of(case).gate for case in chosen}
        self.assertEqual(gates, {"given", "softplus", "bounded"})
        for flag in ("use_qk_l2norm_in_kernel", "use_beta_sigmoid_in_kernel"):
            self.assertEqual({c.attributes[flag] for c in chosen}, {True, False})
        self.assertTrue(any(c.attributes["scale"] == 0 for c in chosen))
        self.assertTrue(any((c.attributes["scale"] or 0) < 0 for c in chosen))
        layouts = {c.tensors["q"].layout for c in chosen}
        self.assertContainsSubset({"slice", "permuted"}, layouts)
        self.assertTrue(any(h < hv for _, _, h, hv, *_ in map(_sizes, chosen)))

    @parameterized.parameters((fwd_spec, 12), (fwd_intra_spec, 6), (train_spec, 2))
    def test_on_npus(self, spec, count):
        chosen = cases.select(list(spec.SPEC.cases), ["npu"])
        self.assertLen(chosen, count)
        for case in chosen:
            self.assertIn("ci", case.tags)

    def test_what_is_covered_on_npus(self):
        chosen = cases.select(list(_FWD.values()), ["npu"])
        _, t, heads, value_heads, k_dim, v_dim = zip(*map(_sizes, chosen), strict=True)
        self.assertContainsSubset({1, 65, 128}, t)
        self.assertContainsSubset({64, 100, 128, 256}, k_dim)
        self.assertContainsSubset({60, 64, 128}, v_dim)
        self.assertNotEqual(heads, value_heads)
        self.assertEqual({c.attributes["chunk_size"] for c in chosen}, {32, 64})
        self.assertLen({c.tensors["q"].dtype for c in chosen}, 3)
        problems = [fwd_spec.problem_of(case) for case in chosen]
        self.assertEqual({p.gate for p in problems}, {"given", "softplus", "bounded"})
        self.assertEqual({p.has_initial_state for p in problems}, {True, False})
        self.assertIn(common.PACKINGS[2], {c.attributes["cu_seqlens"] for c in chosen})

    def test_performance_shapes(self):
        for table in (_FWD, _INTRA, _TRAIN):
            perf = cases.select(list(table.values()), ["perf"])
            self.assertEqual(
                [_sizes(case) for case in perf],
                [
                    (1, 8192, 32, 32, 128, 128),
                    (4, 4096, 16, 16, 128, 128),
                    (1, 32768, 16, 16, 128, 128),
                    (1, 16384, 32, 32, 128, 128),
                    (1, 8192, 16, 32, 128, 128),
                ],
            )


class SpecTest(absltest.TestCase):
    def test_bytes_by_hand(self):
        rows = 128 * 4
        read = 128 * 2 * 64 * 2 * 2 + rows * (64 * 2 + 64 * 4 + 4)
        state = 4 * 64 * 64 * 4
        self.assertEqual(fwd_spec.costs(_FWD["example"]).bytes, read + 2 * state + rows * 64 * 2)
        written = rows * (4 * 64 + 2 * 64) * 2
        self.assertEqual(fwd_intra_spec.costs(_INTRA["example"]).bytes, read + written)
        # Each argument and its gradient; do and dht.
        moved = 2 * (read + state) + rows * 64 * 2 + state
        self.assertEqual(train_spec.costs(_TRAIN["example"]).bytes, moved)

    def test_matrix_work_by_hand(self):
        inverse = 2 * 64 * 64 * 5
        per_row = 8 * 64 * 64 + inverse
        self.assertEqual(fwd_spec.costs(_FWD["example"]).matrix_flops, 2 * 128 * 4 * per_row)
        per_row = 4 * 64 * 64 + inverse
        self.assertEqual(fwd_intra_spec.costs(_INTRA["example"]).matrix_flops, 1024 * per_row)
        per_row = 25 * 64 * 64 + inverse
        self.assertEqual(train_spec.costs(_TRAIN["example"]).matrix_flops, 1024 * per_row)

    def test_launches(self):
        def count(spec, table, name):
            return spec.launches(table[name], "cpu-reference", 4)

        self.assertEqual(count(fwd_spec, _FWD, "example"), 4)
        self.assertEqual(count(fwd_spec, _FWD, "l2norm"), 5)
        self.assertEqual(count(fwd_spec, _FWD, "no_tokens"), 0)
        self.assertEqual(count(train_spec, _TRAIN, "example"), 10)
        self.assertEqual(count(train_spec, _TRAIN, "everything"), 13)
        self.assertEqual(count(train_spec, _TRAIN, "packed_nothing"), 0)
        self.assertEqual(count(fwd_intra_spec, _INTRA, "example"), 2)
        self.assertEqual(count(fwd_intra_spec, _INTRA, "no_tokens"), 0)
        self.assertEqual(fwd_intra_spec.launches(_INTRA["example"], "npu-arch32", 24), 3)

    def test_workspace(self):
        rows = 128 * 4
        kept = rows * (4 * 64 + 2 * 64 * 2)
        peak = rows * 3 * 64 * 2
        example = _FWD["example"]
        self.assertEqual(fwd_spec.workspace_bytes(example, "cuda", 4), kept + peak)
        case = _FWD["l2norm"]
        norms = 2 * 70 * (32 * 2 + 4)
        self.assertEqual(fwd_spec.prepared_bytes(case, "cuda"), norms)
        copied = 40 * (2 * 32 + 2 * 2 * 32)
        self.assertEqual(fwd_spec.copied_bytes(_FWD["strided"]), 2 * copied - 40 * 2 * 32 * 2)
        self.assertEqual(fwd_intra_spec.workspace_bytes(_INTRA["example"], "cuda"), rows * 64 * 4)


if __name__ == "__main__":
    absltest.main()
