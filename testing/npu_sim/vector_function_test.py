"""Vector functions of arch35, against NumPy; loops that may and may not run at once."""

import numpy as np
from absl.testing import absltest, parameterized

from testing.npu_compile import ir
from testing.npu_sim import findings, memory, program, vector_function

_UB = "#hivm.address_space<ub>"
_CORE = "hivm.func_core_type = #hivm.func_core_type<AIV>"
_MEMREF = f"memref<8x16xf32, {_UB}>"
ROWS, LANES = 8, 16


def function(body: str, arguments: int = 2) -> program.Function:
    """A vector function of memrefs [ROWS, LANES] of f32 with this body."""
    names = ", ".join(f"%m{index}: {_MEMREF}" for index in range(arguments))
    text = (
        f"#row = affine_map<(d0) -> (d0)>\n#spread = affine_map<(d0) -> (0, d0)>\n"
        f'"builtin.module"() ({{\n'
        f'  "func.func"() <{{function_type = () -> (), sym_name = "vf"}}> ({{\n'
        f"  ^bb0({names}):\n"
        f'    %zero = "arith.constant"() <{{value = 0 : index}}> : () -> index\n'
        f'    %one = "arith.constant"() <{{value = 1 : index}}> : () -> index\n'
        f'    %rows = "arith.constant"() <{{value = {ROWS} : index}}> : () -> index\n'
        f'    %pad = "arith.constant"() <{{value = -1.000000e+00 : f32}}> : () -> f32\n'
        f'{body}\n    "func.return"() : () -> ()\n'
        f"  }}) {{{_CORE}, hivm.vector_function}} : () -> ()\n"
        f'  "func.func"() <{{arg_attrs = [], function_type = () -> (), sym_name = "entry"}}> ({{\n'
        f'  ^bb0():\n    "func.return"() : () -> ()\n'
        f"  }}) {{hacc.entry, {_CORE}}} : () -> ()\n"
        f"}}) : () -> ()\n"
    )
    return program.Program(ir.parse(text)).function("vf")


def read(result: str, source: str, row: str, mask: str = "", in_bounds: bool = True) -> str:
    """Reads a row of a memref."""
    masked = f", {mask}" if mask else ""
    kinds = f", vector<{LANES}xi1>" if mask else ""
    return (
        f'    {result} = "vector.transfer_read"({source}, {row}, %zero, %pad{masked}) '
        f"<{{in_bounds = [{str(in_bounds).lower()}], operandSegmentSizes = array<i32: 1, 2, 1, "
        f"{int(bool(mask))}>, permutation_map = affine_map<(d0, d1) -> (d1)>}}> : "
        f"({_MEMREF}, index, index, f32{kinds}) -> vector<{LANES}xf32>\n"
    )


def write(value: str, target: str, row: str, mask: str = "") -> str:
    masked = f", {mask}" if mask else ""
    kinds = f", vector<{LANES}xi1>" if mask else ""
    return (
        f'    "vector.transfer_write"({value}, {target}, {row}, %zero{masked}) '
        f"<{{in_bounds = [true], operandSegmentSizes = array<i32: 1, 1, 2, {int(bool(mask))}>, "
        f"permutation_map = affine_map<(d0, d1) -> (d1)>}}> : "
        f"(vector<{LANES}xf32>, {_MEMREF}, index, index{kinds}) -> ()\n"
    )


def add(result: str, first: str, second: str) -> str:
    kind = f"vector<{LANES}xf32>"
    return f'    {result} = "arith.addf"({first}, {second}) : ({kind}, {kind}) -> {kind}\n'


def plus(result: str, first: str, second: str) -> str:
    return f'    {result} = "arith.addi"({first}, {second}) : (index, index) -> index\n'


def loop(body: str, low: str = "%zero", high: str = "%rows") -> str:
    return (
        f'    "scf.for"({low}, {high}, %one) ({{\n    ^bb0(%i: index):\n{body}'
        '      "scf.yield"() : () -> ()\n    }) : (index, index, index) -> ()\n'
    )


class VectorFunctionTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        rng = np.random.default_rng(0)
        self.x, self.y = rng.standard_normal((2, ROWS, LANES)).astype(np.float32)
        data = np.concatenate([self.x.ravel(), self.y.ravel()]).view(np.uint8).copy()
        self.memory = memory.Memory("ub", "AIV0", data)
        sizes, strides = (ROWS, LANES), (LANES, 1)
        self.views = [
            memory.View(self.memory, 0, sizes, strides, "f32"),
            memory.View(self.memory, 4 * ROWS * LANES, sizes, strides, "f32"),
        ]

    def run_it(self, body: str) -> vector_function.VectorUnit:
        unit = vector_function.VectorUnit()
        unit.run(function(body), self.views)
        return unit

    def result(self) -> np.ndarray:
        return self.views[1].read()

    def test_independent_rows(self):
        unit = self.run_it(
            loop(
                read("%a", "%m0", "%i")
                + read("%b", "%m1", "%i")
                + add("%c", "%a", "%b")
                + write("%c", "%m1", "%i")
            )
        )
        np.testing.assert_array_equal(self.result(), self.x + self.y)
        self.assertEqual(unit.transfers, 3 * ROWS)
        self.assertEqual([touched.nbytes for touched in unit.reads()], [2 * self.x.nbytes])
        self.assertEqual([touched.nbytes for touched in unit.writes()], [self.x.nbytes])

    def test_a_row_that_needs_the_one_before(self):
        body = (
            plus("%next", "%i", "%one")
            + read("%a", "%m1", "%i")
            + read("%b", "%m1", "%next")
            + add("%c", "%a", "%b")
            + write("%c", "%m1", "%next")
        )
        last = f'    %last = "arith.constant"() <{{value = {ROWS - 1} : index}}> : () -> index\n'
        self.run_it(last + loop(body, high="%last"))
        np.testing.assert_array_equal(self.result(), np.cumsum(self.y, axis=0, dtype=np.float32))

    def test_rows_that_all_add_to_one(self):
        body = (
            read("%a", "%m0", "%i")
            + read("%b", "%m1", "%zero")
            + add("%c", "%a", "%b")
            + write("%c", "%m1", "%zero")
        )
        self.run_it(loop(body))
        expected = self.y[0]
        for row in self.x:
            expected = expected + row
        np.testing.assert_array_equal(self.result()[0], expected)
        np.testing.assert_array_equal(self.result()[1:], self.y[1:])

    def test_rows_that_all_write_one_place(self):
        self.run_it(loop(read("%a", "%m0", "%i") + write("%a", "%m1", "%zero")))
        np.testing.assert_array_equal(self.result()[0], self.x[-1])

    def test_a_row_that_is_read_before_it_is_replaced(self):
        # In order, row i becomes row i + 1 of before; nothing here needs the order.
        last = f'    %last = "arith.constant"() <{{value = {ROWS - 1} : index}}> : () -> index\n'
        body = plus("%next", "%i", "%one") + read("%a", "%m1", "%next") + write("%a", "%m1", "%i")
        self.run_it(last + loop(body, high="%last"))
        np.testing.assert_array_equal(self.result()[:-1], self.y[1:])

    def test_masks(self):
        mask = (
            f'    %mask = "vector.constant_mask"() <{{mask_dim_sizes = [5]}}> : () -> '
            f"vector<{LANES}xi1>\n"
        )
        self.run_it(
            mask
            + loop(
                read("%a", "%m0", "%i", "%mask")
                + read("%b", "%m1", "%i")
                + add("%c", "%a", "%b")
                + write("%c", "%m1", "%i")
            )
        )
        padded = np.where(np.arange(LANES) < 5, self.x, np.float32(-1))
        np.testing.assert_array_equal(self.result(), padded + self.y)

    def test_a_masked_store_leaves_the_rest(self):
        mask = (
            f'    %mask = "vector.constant_mask"() <{{mask_dim_sizes = [3]}}> : () -> '
            f"vector<{LANES}xi1>\n"
        )
        unit = self.run_it(mask + loop(read("%a", "%m0", "%i") + write("%a", "%m1", "%i", "%mask")))
        np.testing.assert_array_equal(self.result()[:, :3], self.x[:, :3])
        np.testing.assert_array_equal(self.result()[:, 3:], self.y[:, 3:])
        # Three elements lie in one block of 32 bytes.
        self.assertEqual([touched.nbytes for touched in unit.writes()], [32 * ROWS])

    def test_what_it_wrote_itself_is_not_read(self):
        unit = self.run_it(
            read("%a", "%m0", "%zero")
            + write("%a", "%m1", "%one")
            + read("%b", "%m1", "%one")
            + write("%b", "%m1", "%zero")
        )
        self.assertEqual([touched.nbytes for touched in unit.reads()], [4 * LANES])

    def test_a_lane_outside_of_memory(self):
        far = f'    %far = "arith.constant"() <{{value = {ROWS} : index}}> : () -> index\n'
        with self.assertRaisesRegex(memory.OutOfBoundsError, "a lane of"):
            self.run_it(far + read("%a", "%m1", "%far"))

    def test_beyond_the_memref_is_padding_where_that_is_asked_for(self):
        shift = '    %shift = "arith.constant"() <{value = 10 : index}> : () -> index\n'
        text = (
            '    %a = "vector.transfer_read"(%m0, %one, %shift, %pad) <{in_bounds = [false], '
            "operandSegmentSizes = array<i32: 1, 2, 1, 0>, permutation_map = "
            f"affine_map<(d0, d1) -> (d1)>}}> : (memref<{ROWS}x{LANES}xf32, {_UB}>, index, index, "
            f"f32) -> vector<{LANES}xf32>\n"
        )
        self.run_it(shift + text + write("%a", "%m1", "%zero"))
        expected = np.full(LANES, np.float32(-1))
        expected[: LANES - 10] = self.x[1, 10:]
        np.testing.assert_array_equal(self.result()[0], expected)

    @parameterized.parameters("add", "maximumf")
    def test_reductions_under_a_mask(self, kind):
        body = (
            f'    %mask = "vector.constant_mask"() <{{mask_dim_sizes = [7]}}> : () -> '
            f"vector<{LANES}xi1>\n"
            + read("%a", "%m0", "%one")
            + f'    %r = "vector.mask"(%mask) ({{\n      %s = "vector.reduction"(%a) <{{kind = '
            f"#vector.kind<{kind}>}}> : (vector<{LANES}xf32>) -> f32\n"
            f'      "vector.yield"(%s) : (f32) -> ()\n    }}) : (vector<{LANES}xi1>) -> f32\n'
            f'    %v = "vector.broadcast"(%r) : (f32) -> vector<{LANES}xf32>\n'
            + write("%v", "%m1", "%zero")
        )
        self.run_it(body)
        reduce = {"add": np.sum, "maximumf": np.max}[kind]
        np.testing.assert_allclose(self.result()[0], reduce(self.x[1, :7]), rtol=1e-6)

    @parameterized.parameters(("maxui", 0xFFFFFFFF), ("minui", 1))
    def test_unsigned_reductions_with_an_initial_value(self, kind, expected):
        values = np.array([1, 0xFFFFFFFF, 7], np.uint32).view(np.int32)
        self.views[0].reinterpret("i32", 0, (3,), (1,)).write(values)
        ints = f"memref<3xi32, {_UB}>"
        body = (
            '    %w = "memref.reinterpret_cast"(%m0) <{operandSegmentSizes = array<i32: 1, 0, 0, '
            "0>, static_offsets = array<i64: 0>, static_sizes = array<i64: 3>, static_strides = "
            f"array<i64: 1>}}> : ({_MEMREF}) -> {ints}\n"
            '    %p = "arith.constant"() <{value = 0 : i32}> : () -> i32\n'
            f'    %first = "arith.constant"() <{{value = {2 if kind == "minui" else 0} : i32}}> : '
            "() -> i32\n"
            '    %a = "vector.transfer_read"(%w, %zero, %p) <{in_bounds = [true], '
            "operandSegmentSizes = array<i32: 1, 1, 1, 0>, permutation_map = "
            f"affine_map<(d0) -> (d0)>}}> : ({ints}, index, i32) -> vector<3xi32>\n"
            f'    %r = "vector.reduction"(%a, %first) <{{kind = #vector.kind<{kind}>}}> : '
            "(vector<3xi32>, i32) -> i32\n"
            '    "memref.store"(%r, %w, %one) <{nontemporal = false}> : '
            f"(i32, {ints}, index) -> ()\n"
        )
        self.run_it(body)
        found = self.views[0].reinterpret("i32", 0, (3,), (1,)).read().view(np.uint32)
        self.assertEqual(found[1], expected)

    def test_a_condition_of_each_row_is_executed_in_order(self):
        body = (
            '      %even = "arith.andi"(%i, %one) : (index, index) -> index\n'
            '      %is = "arith.cmpi"(%even, %zero) <{predicate = 0 : i64}> : '
            "(index, index) -> i1\n"
            '      "scf.if"(%is) ({\n'
            + read("%a", "%m0", "%i")
            + write("%a", "%m1", "%i")
            + '        "scf.yield"() : () -> ()\n      }, {\n      }) : (i1) -> ()\n'
        )
        self.run_it(loop(body))
        expected = np.where((np.arange(ROWS) % 2 == 0)[:, None], self.x, self.y)
        np.testing.assert_array_equal(self.result(), expected)

    def test_an_unknown_operation_is_refused(self):
        with self.assertRaisesRegex(findings.UnsupportedOperationError, "vector.scan"):
            self.run_it('    "vector.scan"() : () -> ()\n')


if __name__ == "__main__":
    absltest.main()
