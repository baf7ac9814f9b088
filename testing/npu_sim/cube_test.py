"""The expansion of mmadL1: products against float64, and its flags against a list by hand."""

import numpy as np
from absl.testing import absltest, parameterized

from testing.npu_sim import cube, memory
from testing.npu_sim.findings import UnsupportedOperationError
from testing.npu_sim.sample_views import POISON, space, view

_SEGMENTS = (1, 1, 1, 1, 1, 1, 1, 7, 0, 0)
_FREE = (-1,) * 7


def fractals(matrix: np.ndarray, element: str, name: str, beyond: float = 0) -> memory.View:
    """A matrix in L1, [columns/c0, rows/16, 16, c0]; what is beyond it is `beyond`."""
    c0 = 32 // memory.DTYPES[element].itemsize
    n1, m1 = -(-matrix.shape[1] // c0), -(-matrix.shape[0] // 16)
    padded = np.full((m1 * 16, n1 * c0), beyond, np.float64)
    padded[: matrix.shape[0], : matrix.shape[1]] = matrix
    blocks = padded.reshape(m1, 16, n1, c0).transpose(2, 0, 1, 3)
    with np.errstate(invalid="ignore"):
        return view(blocks, element, where="cbuf", within=space(name, 1 << 19))


def matrix_of(view_: memory.View, rows: int, columns: int) -> np.ndarray:
    n1, m1, m0, n0 = view_.sizes
    found = view_.read().transpose(1, 2, 0, 3).reshape(m1 * m0, n1 * n0)
    return found[:rows, :columns].astype(np.float64)


def accumulator(m: int, n: int, element: str = "f32") -> memory.View:
    sizes = (-(-n // 16), -(-m // 16), 16, 16)
    return view(sizes=sizes, element=element, within=space("cc", 1 << 17))


def l0() -> cube.L0:
    return cube.L0(space("ca", 1 << 16), space("cb", 1 << 16))


def attributes(**more):
    return {"operandSegmentSizes": _SEGMENTS, **more}


def perform(steps) -> list[cube.Step]:
    steps = list(steps)
    for step in steps:
        if isinstance(step, (cube.Load, cube.Multiply)):
            step.run()
    return steps


class ProductTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.random = np.random.default_rng(0)

    def values(self, rows, columns, element):
        drawn = self.random.integers(-8, 9, (rows, columns))
        return drawn if element == "i8" else drawn / 4  # exact in every type, and sums are too

    @parameterized.product(
        element=("f16", "bf16", "f32", "i8"),
        ta=(False, True),
        tb=(False, True),
        shape=((16, 16, 16), (48, 400, 80), (33, 70, 50), (128, 512, 128)),
    )
    def test_exact(self, element, ta, tb, shape):
        m, k, n = shape
        a, b = self.values(m, k, element), self.values(k, n, element)
        # What is beyond k must not be used, whatever it is.
        beyond = 99 if element == "i8" else np.nan
        left = fractals(a.T if ta else a, element, "a", beyond)
        right = fractals(b.T if tb else b, element, "b", beyond)
        out = accumulator(m, n, "i32" if element == "i8" else "f32")
        given = attributes(
            **{"a_transpose": True} if ta else {}, **{"b_transpose": True} if tb else {}
        )
        steps = perform(cube.expand(given, [left, right, 1, m, k, n, out, *_FREE], l0()))
        np.testing.assert_array_equal(matrix_of(out, m, n), a @ b)
        again = cube.expand(given, [left, right, 0, m, k, n, out, *_FREE], l0())
        perform(again)
        np.testing.assert_array_equal(matrix_of(out, m, n), 2 * (a @ b))
        for step in steps:
            if isinstance(step, (cube.Load, cube.Multiply)):
                for touched in (*step.reads, *step.writes):
                    touched.read()  # inside its memory

    def test_sums_are_of_float32(self):
        a, b = (self.random.standard_normal((16, 256)).astype(np.float32) for _ in "ab")
        out = accumulator(16, 16)
        operands = [fractals(a, "f32", "a"), fractals(b.T, "f32", "b"), 1, 16, 256, 16, out, *_FREE]
        perform(cube.expand(attributes(), operands, l0()))
        exact = a.astype(np.float64) @ b.T.astype(np.float64)
        found = matrix_of(out, 16, 16)
        np.testing.assert_allclose(found, exact, rtol=0, atol=1e-4)
        # Exact sums, rounded once, would be better than that.
        self.assertGreater((found != exact.astype(np.float32)).mean(), 0.3)

    def test_hf32(self):
        a, b = np.array([[1 + 2.0**-12, 1 + 2.0**-11]]), np.array([[1.0, 0], [0, 1.0]])
        out = accumulator(16, 16)
        operands = [fractals(a, "f32", "a"), fractals(b, "f32", "b"), 1, 1, 2, 2, out, *_FREE]
        perform(cube.expand(attributes(enable_HF32=True), operands, l0()))
        self.assertEqual(matrix_of(out, 1, 2).tolist(), [[1, 1 + 2.0**-11]])
        perform(cube.expand(attributes(), operands, l0()))
        self.assertEqual(matrix_of(out, 1, 2).tolist(), [[1 + 2.0**-12, 1 + 2.0**-11]])

    def test_bias(self):
        a, b = self.values(16, 500, "f16"), self.values(500, 20, "f16")
        bias = np.arange(20)
        out = accumulator(16, 20)
        operands = [fractals(a, "f16", "a"), fractals(b, "f16", "b"), 1, 16, 500, 20, out, *_FREE]
        operands.append(view(bias.reshape(1, 1, 1, 20), where="cbuf"))
        segments = (*_SEGMENTS[:-1], 1)
        perform(cube.expand({"operandSegmentSizes": segments}, operands, l0()))
        np.testing.assert_array_equal(matrix_of(out, 16, 20), a @ b + bias)
        operands[2] = 0  # adds to what is there, which has the bias
        perform(cube.expand({"operandSegmentSizes": segments}, operands, l0()))
        np.testing.assert_array_equal(matrix_of(out, 16, 20), 2 * (a @ b) + bias)

    def test_rows_that_a_lacks(self):
        # 33 rows of float32 that are transposed: five blocks of 8, where L0C has three of 16.
        a, b = self.values(33, 16, "f32"), self.values(16, 16, "f32")
        out = accumulator(33, 16)
        operands = [fractals(a.T, "f32", "a"), fractals(b, "f32", "b"), 1, 33, 16, 16, out, *_FREE]
        perform(cube.expand(attributes(a_transpose=True), operands, l0()))
        np.testing.assert_array_equal(matrix_of(out, 33, 16), a @ b)

    def test_other_columns_of_l0c_stay(self):
        out = accumulator(16, 48)
        a, b = np.ones((16, 16)), np.ones((16, 48))
        operands = [fractals(a, "f16", "a"), fractals(b, "f16", "b"), 1, 16, 16, 20, out, *_FREE]
        perform(cube.expand(attributes(), operands, l0()))
        self.assertEqual(set(matrix_of(out, 16, 32).ravel().tolist()), {16})
        self.assertEqual(set(out.memory.data[2 * 16 * 16 * 4 : 3 * 16 * 16 * 4].tolist()), {POISON})


class StepsTest(parameterized.TestCase):
    def steps(self, m=16, k=16, n=16, events=_FREE, element="f16", **more):
        a = fractals(np.ones((m, k)), element, "a")
        b = fractals(np.ones((k, n)), element, "b")
        operands = [a, b, 1, m, k, n, accumulator(m, n), *events]
        return list(cube.expand(attributes(**more), operands, l0()))

    @staticmethod
    def text(steps):
        written = []
        for step in steps:
            if isinstance(step, cube.Set):
                written.append(f"set {step.set_pipe}>{step.wait_pipe} {step.event}")
            elif isinstance(step, cube.Wait):
                written.append(f"wait {step.set_pipe}>{step.wait_pipe} {step.event}")
            elif isinstance(step, cube.Barrier):
                written.append(f"barrier {step.pipe}")
            else:
                written.append(f"{step.pipe} {step.writes[0].memory.space}")
        return written

    def test_one_part_without_events(self):
        self.assertEqual(
            self.text(self.steps()),
            [
                "set M>MTE1 0",
                "set M>MTE1 1",
                "wait M>MTE1 0",
                "MTE1 ca",
                "MTE1 cb",
                "set MTE1>M 0",
                "wait MTE1>M 0",
                "M cc",
                "barrier M",
                "set M>MTE1 0",
                "wait M>MTE1 0",
                "wait M>MTE1 1",
            ],
        )

    def test_two_parts_with_events(self):
        # 128 rows of 2 bytes: 32 KiB hold a k of 128. 64 fractals: no barrier.
        steps = self.steps(128, 200, 128, (4, 5, 6, 7, -1, 2, 3))
        self.assertEqual(
            self.text(steps),
            [
                "wait M>MTE1 2",
                "wait MTE2>MTE1 4",
                "MTE1 ca",
                "wait MTE2>MTE1 5",
                "MTE1 cb",
                "set MTE1>M 2",
                "wait MTE1>M 2",
                "M cc",
                "set M>MTE1 2",
                "wait M>MTE1 3",
                "MTE1 ca",
                "set MTE1>MTE2 6",
                "MTE1 cb",
                "set MTE1>MTE2 7",
                "set MTE1>M 3",
                "wait MTE1>M 3",
                "M cc",
                "set M>MTE1 3",
            ],
        )
        loads = [step for step in steps if isinstance(step, cube.Load)]
        self.assertEqual([load.writes[0].offset for load in loads], [0, 0, 1 << 15, 1 << 15])
        self.assertEqual([load.nbytes for load in loads], [128 * 128 * 2] * 2 + [128 * 80 * 2] * 2)
        products = [step for step in steps if isinstance(step, cube.Multiply)]
        self.assertEqual([(p.m, p.k, p.n, p.element) for p in products],
                         [(128, 128, 128, "f16"), (128, 72, 128, "f16")])  # fmt: skip
        # The first replaces what is in L0C, the second adds to it.
        self.assertEqual([len(p.reads) for p in products], [2, 3])

    @parameterized.parameters(
        (300, 0, [0, 1, 0]),
        (300, 1, [1, 0, 1]),
        (300, 2, [0, 1, 0]),
        (300, -1, [0, 1, 0]),
        (200, 1, [0, 1]),
        (100, 1, [1]),
    )
    def test_a_loop_around_it_goes_on_with_the_other_half(self, k, loop, halves):
        steps = self.steps(128, k, 128, (-1, -1, -1, -1, loop, 2, 3))
        loads = [step.writes[0].offset >> 15 for step in steps if isinstance(step, cube.Load)]
        self.assertEqual(loads[::2], halves)
        events = [
            step.event for step in steps if isinstance(step, cube.Set) and step.set_pipe == "M"
        ]
        self.assertEqual(events, [2 + half for half in halves])

    def test_a_tile_too_large_for_a_half(self):
        # 1024 rows of 4 bytes and a k of 8 (aligned: 16) do not fit 32 KiB, but 64 KiB.
        a = fractals(np.ones((1024, 32)), "f32", "a")
        b = fractals(np.ones((32, 16)), "f32", "b")
        out = accumulator(1024, 16)
        steps = list(cube.expand(attributes(), [a, b, 1, 1024, 32, 16, out, *_FREE], l0()))
        loads = [step for step in steps if isinstance(step, cube.Load)]
        self.assertEqual([load.writes[0].offset for load in loads], [0] * 4)
        self.assertEqual(loads[0].nbytes, 1 << 16)

    @parameterized.parameters((144, 16, 1), (160, 16, 0), (48, 48, 1), (64, 48, 0), (64, 40, 0))
    def test_small_products_end_with_a_barrier(self, m, n, barriers):
        # m/16 n / 16 below 10, where n = 40 counts as two and a half: 4 · 40 // 16 is 10.
        found = sum(isinstance(step, cube.Barrier) for step in self.steps(m, 16, n))
        self.assertEqual(found, barriers)

    def test_rows_are_those_of_l0c(self):
        a, b = fractals(np.ones((32, 16)), "f16", "a"), fractals(np.ones((16, 16)), "f16", "b")
        out = accumulator(32, 16)
        steps = perform(cube.expand(attributes(), [a, b, 1, 5, 16, 16, out, *_FREE], l0()))
        self.assertEqual([step.m for step in steps if isinstance(step, cube.Multiply)], [32])
        self.assertEqual(set(matrix_of(out, 32, 16).ravel().tolist()), {16})

    @parameterized.parameters(
        {"operandSegmentSizes": (1, 1, 1, 1, 1, 1, 1, 7, 1, 0)},
        {"operandSegmentSizes": (1, 1, 1, 1, 1, 1, 1, 3, 0, 0)},
        {"enable_I4": True},
        {"unit_flag_mode": ("#hivm.unit_flag<ENABLED_WITH_UPDATE>",)},
        {"enable_HF32": True},  # of f16
    )
    def test_attributes_that_are_not_understood(self, **more):
        with self.assertRaises(UnsupportedOperationError):
            self.steps(**more)

    def test_operands_that_are_not_understood(self):
        a, b = (fractals(np.ones((32, 32)), "f16", name) for name in "ab")
        out = accumulator(32, 32)
        part = a.subview((0, 1, 0, 0), (2, 1, 16, 16), (1, 1, 1, 1))
        for operands in (
            [part, b, 1, 16, 32, 32, out],  # not dense
            [a, b, 1, 32, 0, 32, out],  # the library stops
            [a, b, 1, 32, 32, 80, out],  # n beyond B and L0C
            [a, b, 1, 32, 48, 32, out],  # k beyond A and B
            [a, b, 1, 40, 32, 32, accumulator(64, 32)],  # rows beyond A
            [a, b, 1, 32, 32, 32, accumulator(32, 32, "i32")],
        ):
            with self.assertRaises(UnsupportedOperationError):
                list(cube.expand(attributes(), [*operands, *_FREE], l0()))


if __name__ == "__main__":
    absltest.main()
