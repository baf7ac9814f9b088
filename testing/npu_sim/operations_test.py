"""The pipe operations, against NumPy's float64, ml_dtypes and values worked out by hand."""

import fractions
import math

import numpy as np
from absl.testing import absltest, parameterized

from testing.npu_compile import ir
from testing.npu_sim import memory, operations
from testing.npu_sim.findings import UnsupportedOperationError
from testing.npu_sim.sample_views import POISON, attribute, run, space, view


def parsed(name: str, operands: int, text: str) -> ir.Operation:
    names = ", ".join(f"%{index}" for index in range(operands))
    kinds = ", ".join(["index"] * operands)
    line = f'"hivm.hir.{name}"({names}) <{{{text}}}> : ({kinds}) -> ()\n'
    module = ir.parse(f'"builtin.module"() ({{\n{line}}}) : () -> ()\n')
    return module.operation.regions[0][0].operations[0]


def _away(x: fractions.Fraction) -> int:
    """To the nearest, ties away from zero."""
    return (1 if x > 0 else -1) * math.floor(abs(x) + fractions.Fraction(1, 2))


class TableTest(parameterized.TestCase):
    def test_every_entry_has_a_source(self):
        for name, semantics in operations.TABLE.items():
            self.assertRegex(semantics.source, r"\.td|\.cpp|guess: \w+", name)
            self.assertIn(semantics.pipe, ("V", "MTE2", "MTE3", "FIX"), name)

    @parameterized.parameters(
        ("vadd", 3, "operandSegmentSizes = array<i32: 2, 1, 0>", (0, 1), (2,), ()),
        ("vsel", 5, "operandSegmentSizes = array<i32: 3, 1, 1>", (0, 1, 2), (3,), (4,)),
        ("vreduce", 4, "operandSegmentSizes = array<i32: 1, 2, 1, 0>", (0,), (1, 2), (3,)),
        ("vreduce", 2, "operandSegmentSizes = array<i32: 1, 1, 0, 0>", (0,), (1,), ()),
        ("varange", 3, "operandSegmentSizes = array<i32: 1, 1, 1>", (1, 2), (0,), ()),
        ("varange", 3, "operandSegmentSizes = array<i32: 1, 0, 2>", (1, 2), (0,), ()),
        ("load", 4, "operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0>", (0, 2, 3), (1,), ()),
        ("vinterleave", 4, "operandSegmentSizes = array<i32: 2, 1, 1>", (0, 1), (2,), (3,)),
        ("vbrc", 3, "broadcast_dims = array<i64: 1>", (0,), (1,), (2,)),
        ("vbrc", 2, "broadcast_dims = array<i64>", (0,), (1,), ()),
        ("vgather", 4, "x", (0, 1), (2,), (3,)),
        ("vdeinterleave", 3, "channel_num = 2 : i64", (0,), (1, 2), ()),
        ("store", 2, "x", (0,), (1,), ()),
    )
    def test_layout(self, name, count, text, inputs, outputs, temporaries):
        self.assertEqual(
            operations.layout(parsed(name, count, text)),
            operations.Layout(inputs, outputs, temporaries),
        )

    @parameterized.parameters(
        ("vunheard", 2, "x", "not in the table"),
        ("store", 3, "x", "3 operands"),
        ("vcmp", 4, "operandSegmentSizes = array<i32: 2, 1, 0, 1>", "4 operands in groups"),
        ("vadd", 2, "operandSegmentSizes = array<i32: 2, 0, 0>", "none of them an output"),
    )
    def test_layout_that_is_not_understood(self, name, count, text, message):
        with self.assertRaisesRegex(UnsupportedOperationError, message):
            operations.layout(parsed(name, count, text))

    def test_into_l1_transfer_engines_do_it(self):
        l1, ub = view(sizes=(4,), where="cbuf"), view(sizes=(4,))
        self.assertEqual(operations.pipe_of("vbrc", [l1]), "MTE2")
        self.assertEqual(operations.pipe_of("copy", [l1]), "MTE3")
        self.assertEqual(operations.pipe_of("vbrc", [ub]), "V")
        self.assertEqual(operations.pipe_of("load", [l1]), "MTE2")

    def test_atomic(self):
        atomic = "atomic_kind = #hivm.atomic_kind<add>"
        self.assertTrue(operations.is_atomic(parsed("store", 2, atomic)))
        self.assertFalse(operations.is_atomic(parsed("store", 2, "x")))
        none = "atomic_kind = #hivm.atomic_kind<none>"
        self.assertFalse(operations.is_atomic(parsed("store", 2, none)))


class ElementwiseTest(parameterized.TestCase):
    @parameterized.parameters(
        ("vadd", [5, -3, 127], [3, -3, 1], [8, -6, -128]),
        ("vsub", [5, -3, -128], [3, -3, 1], [2, 0, 127]),
        ("vmul", [5, -3, 64], [3, -3, 4], [15, 9, 0]),
        ("vdiv", [7, -7, 7], [2, 2, -2], [3, -3, -3]),
        ("vmod", [7, -7, 7], [2, 4, -4], [1, -3, 3]),
        ("vmax", [5, -3, 1], [3, -2, 1], [5, -2, 1]),
        ("vmin", [5, -3, 1], [3, -2, 1], [3, -3, 1]),
        ("vand", [6, -1, 5], [3, 9, 2], [2, 9, 0]),
        ("vor", [6, -1, 5], [3, 9, 2], [7, -1, 7]),
        ("vxor", [6, -1, 5], [3, 9, 2], [5, -10, 7]),
        ("vshl", [1, -3, 64], [2, 2, 2], [4, -12, 0]),
        ("vpow", [2, -3, 7], [5, 3, 0], [32, -27, 1]),
    )
    def test_integers(self, name, a, b, wanted):
        out = view(sizes=(3,), element="i8")
        found = run(name, [view(a, "i8"), view(b, "i8")], out)
        self.assertEqual(found.tolist(), wanted)

    def test_unary(self):
        out = view(sizes=(4,))
        x = view([-2.25, 0.0, 4.0, 9.0])
        self.assertEqual(run("vabs", [x], out).tolist(), [2.25, 0, 4, 9])
        self.assertEqual(run("vrelu", [x], out).tolist(), [0, 0, 4, 9])
        x = view([1.0, 4.0, 16.0, 64.0])
        self.assertEqual(run("vsqrt", [x], out).tolist(), [1, 2, 4, 8])
        self.assertEqual(run("vrsqrt", [x], out).tolist(), [1, 0.5, 0.25, 0.125])
        self.assertEqual(run("vrec", [x], out).tolist(), [1, 0.25, 1 / 16, 1 / 64])
        for name, function in (("vexp", math.exp), ("vln", math.log)):
            wanted = [function(value) for value in (1.0, 4.0, 16.0, 64.0)]
            np.testing.assert_allclose(run(name, [x], out), wanted, rtol=2e-7)

    def test_float16_is_rounded_once(self):
        # 2049 is halfway between float16's neighbours 2048 and 2050; the sum in float32 is exact.
        a, b = view([2048, 2048, 65504], "f16"), view([1, 3, 65504], "f16")
        found = run("vadd", [a, b], view(sizes=(3,), element="f16"))
        self.assertEqual(found.tolist(), [2048, 2052, math.inf])

    def test_a_scalar_takes_the_elements_type(self):
        x = view([1.0, 2.0], "f16")
        out = view(sizes=(2,), element="f16")
        # 0.1 in float16 is 0.0999756.
        found = run("vmul", [x, np.float32(0.1)], out)
        self.assertEqual(found.tolist(), [np.float16(0.1), np.float16(2 * np.float16(0.1))])
        found = run("vsub", [np.float16(1), x], out)
        self.assertEqual(found.tolist(), [0, -1])
        found = run("vadd", [view([1, -1], "i32"), (1 << 31) - 1], view(sizes=(2,), element="i32"))
        self.assertEqual(found.tolist(), [-(1 << 31), (1 << 31) - 2])

    def test_remainder_has_the_sign_of_the_dividend(self):
        found = run("vmod", [view([7.5, -7.5, 7.5]), view([2.0, 2.0, -2.0])], view(sizes=(3,)))
        self.assertEqual(found.tolist(), [1.5, -1.5, 1.5])

    def test_broadcast(self):
        a, b = view([[1], [2]]), view([[10, 20, 30]])
        out = view(sizes=(2, 3), strides=(8, 1))
        found = run("vadd", [a, b], out, broadcast=(0, 1))
        self.assertEqual(found.tolist(), [[11, 21, 31], [12, 22, 32]])
        # What lies between the rows has not changed.
        self.assertEqual(set(out.memory.data[12:32].tolist()), {POISON})

    @parameterized.parameters((), ((1,),), ((0,),))
    def test_broadcast_that_is_not_declared(self, broadcast=()):
        with self.assertRaisesRegex(UnsupportedOperationError, "broadcast"):
            a, b = view([[1], [2]]), view([[10, 20, 30]])
            run("vadd", [a, b], view(sizes=(2, 3)), broadcast=broadcast)

    def test_transpose(self):
        a = view(np.arange(24).reshape(2, 3, 4))
        found = run("vadd", [a, np.float32(1)], view(sizes=(4, 2, 3)), transpose=(2, 0, 1))
        for i, j, k in np.ndindex(2, 3, 4):
            self.assertEqual(found[k, i, j], 12 * i + 4 * j + k + 1)

    def test_no_elements(self):
        out = view(sizes=(0, 4))
        run("vadd", [view(sizes=(0, 4)), np.float32(1)], out)
        self.assertEqual(set(out.memory.data.tolist()), {POISON})

    def test_in_place(self):
        x = view([1.0, 2.0, 3.0])
        self.assertEqual(run("vmul", [x, x], x).tolist(), [1, 4, 9])

    def test_strided_operands(self):
        shared = space()
        whole = view(np.arange(16), within=shared)
        every_second = view(sizes=(8,), strides=(2,), within=shared)
        out = view(sizes=(8,), strides=(3,), offset=256, within=shared)
        self.assertEqual(
            run("vadd", [every_second, np.float32(1)], out).tolist(), [*range(1, 17, 2)]
        )
        self.assertEqual(whole.read().tolist(), [*range(16)])

    def test_nan(self):
        a, b = view([math.nan, 1.0, 2.0]), view([1.0, math.nan, 3.0])
        out = view(sizes=(3,))
        np.testing.assert_array_equal(run("vmax", [a, b], out), [math.nan, math.nan, 3])
        np.testing.assert_array_equal(run("vmin", [a, b], out), [math.nan, math.nan, 2])

    def test_bits_of_floats(self):
        found = run("vnot", [view([1.0])], view(sizes=(1,)))
        self.assertEqual(found.view(np.uint32).tolist(), [0xFFFFFFFF ^ 0x3F800000])

    def test_shift_right(self):
        x = view([-8, 7, -1], "i32")
        out = view(sizes=(3,), element="i32")
        # Without rounding, although the compiler writes round = true.
        self.assertEqual(run("vshr", [x, 1], out, round=True).tolist(), [-4, 3, -1])
        unsigned = run("vshr", [x, 1], out, cast=attribute("cast", "cast_unsigned"))
        self.assertEqual(unsigned.tolist(), [(1 << 31) - 4, 3, (1 << 31) - 1])

    def test_high_halves(self):
        a, b = [1 << 30, -(1 << 30), 12345, -1], [8, 8, 678, 1]
        out = view(sizes=(4,), element="i32")
        found = run("vmulext", [view(a, "i32"), view(b, "i32")], out)
        self.assertEqual(found.tolist(), [(x * y) >> 32 for x, y in zip(a, b, strict=True)])
        high, low = view(sizes=(2,), element="i16"), view(sizes=(2,), element="i16")
        run("vmulextended", [view([30000, -7], "i16"), view([30000, 3], "i16")], [high, low])
        self.assertEqual(high.read().tolist(), [30000 * 30000 >> 16, -1])
        self.assertEqual(low.read().tolist(), [(30000 * 30000 + 32768) % 65536 - 32768, -21])

    @parameterized.parameters(("vexp", "i32"), ("vadd", "i1"), ("vpow", "f32"))
    def test_elements_that_are_not_understood(self, name, element):
        x = view([1, 0], element)
        with self.assertRaisesRegex(UnsupportedOperationError, "elements of"):
            run(name, [x] if name == "vexp" else [x, x], view(sizes=(2,), element=element))


class BitsTest(parameterized.TestCase):
    @parameterized.parameters(0, 3, 13)
    def test_logic_on_packed_bits(self, offset):
        a = view([1, 1, 0, 0, 1, 0, 1, 1, 0, 1], "i1", offset=offset)
        b = view([1, 0, 1, 0, 1, 1, 1, 0, 0, 0], "i1", offset=40)
        out = view(sizes=(10,), element="i1", offset=offset + 5)
        before = np.unpackbits(out.memory.data[:8], bitorder="little")
        self.assertEqual(run("vand", [a, b], out).tolist(), [1, 0, 0, 0, 1, 0, 1, 0, 0, 0])
        self.assertEqual(run("vor", [a, b], out).tolist(), [1, 1, 1, 0, 1, 1, 1, 1, 0, 1])
        self.assertEqual(run("vxor", [a, b], out).tolist(), [0, 1, 1, 0, 0, 1, 0, 1, 0, 1])
        self.assertEqual(run("vnot", [a], out).tolist(), [0, 0, 1, 1, 0, 1, 0, 0, 1, 0])
        after = np.unpackbits(out.memory.data[:8], bitorder="little")
        inside = slice(offset + 5, offset + 15)
        after[inside] = before[inside]
        np.testing.assert_array_equal(after, before)

    @parameterized.parameters(
        ("eq", [0, 1, 0, 0]),
        ("ne", [1, 0, 1, 1]),
        ("lt", [1, 0, 0, 0]),
        ("le", [1, 1, 0, 0]),
        ("gt", [0, 0, 1, 0]),
        ("ge", [0, 1, 1, 0]),
    )
    def test_compare(self, mode, wanted):
        a, b = view([1.0, 2.0, 3.0, math.nan]), view([2.0, 2.0, 2.0, math.nan])
        out = view(sizes=(4,), element="i1", offset=3)
        self.assertEqual(
            run("vcmp", [a, b], out, compare_mode=attribute("compare_mode", mode)).tolist(), wanted
        )
        self.assertEqual(out.memory.data[0] & 7, POISON & 7)
        packed = sum(bit << index for index, bit in enumerate(wanted))
        self.assertEqual(out.memory.data[0] >> 3 & 15, packed)
        bytes_ = view(sizes=(4,), element="i8")
        found = run("vcmp", [a, b], bytes_, compare_mode=attribute("compare_mode", mode))
        self.assertEqual(found.tolist(), wanted)

    def test_select(self):
        condition = view([1, 0, 1], "i1", offset=6)
        a, b, out = view([1, 2, 3]), view([10, 20, 30]), view(sizes=(3,))
        self.assertEqual(run("vsel", [condition, a, b], out).tolist(), [1, 20, 3])
        self.assertEqual(run("vsel", [condition, np.float32(7), b], out).tolist(), [7, 20, 7])
        scalars = [condition, np.float32(7), np.float32(8)]
        self.assertEqual(run("vsel", scalars, out).tolist(), [7, 8, 7])
        self.assertEqual(run("vsel", [view([1, 0, -1], "i8"), a, b], out).tolist(), [1, 20, 3])
        self.assertEqual(run("vsel", [1, a, b], out).tolist(), [1, 2, 3])
        self.assertEqual(run("vsel", [0, a, b], out).tolist(), [10, 20, 30])

    def test_select_of_bits(self):
        a, b = view([1, 1, 0], "i1"), view([0, 0, 1], "i1")
        out = view(sizes=(3,), element="i1")
        self.assertEqual(run("vsel", [view([1, 0, 1], "i1"), a, b], out).tolist(), [1, 0, 0])


class CastTest(parameterized.TestCase):
    def cast(self, values, source, target, mode="rint", signs="cast_signed"):
        x = view(values, source)
        return run(
            "vcast",
            [x],
            view(sizes=x.sizes, element=target),
            round_mode=attribute("round_mode", mode),
            cast=attribute("cast", signs),
        )

    @parameterized.product(source=("f16", "bf16"), mode=("rint", "round", "floor", "ceil", "trunc"))
    def test_every_float_to_int32(self, source, mode):
        patterns = np.arange(1 << 16, dtype=np.uint16).view(memory.DTYPES[source])
        shared = space(size=1 << 19)
        x = view(sizes=(1 << 16,), element=source, within=shared)
        x.write(patterns)
        out = view(sizes=(1 << 16,), element="i32", offset=1 << 18, within=shared)
        found = run("vcast", [x], out, round_mode=attribute("round_mode", mode))
        for value, result in zip(patterns.astype(np.float32)[::23], found[::23], strict=True):
            number = float(value)
            if math.isnan(number):
                wanted = 0
            elif abs(number) >= 2**31:
                wanted = 2**31 - 1 if number > 0 else -(2**31)
            else:
                exact = fractions.Fraction(number)
                whole = {
                    "rint": round,
                    "floor": math.floor,
                    "ceil": math.ceil,
                    "trunc": math.trunc,
                    "round": _away,
                }[mode]
                wanted = whole(exact)
            self.assertEqual(result, wanted, (number, mode))

    @parameterized.parameters(
        ("f32", "i16", "rint", [2, 2, -2, 32767, -32768]),
        ("f32", "i16", "round", [2, 3, -3, 32767, -32768]),
        ("f32", "i64", "floor", [1, 2, -3, 100000, -100000]),
        ("f32", "i32", "ceil", [2, 3, -2, 100000, -100000]),
        ("f32", "f32", "trunc", [1, 2, -2, 100000, -100000]),
        ("f32", "f32", "round", [2, 3, -3, 100000, -100000]),
        ("f16", "i8", "trunc", [1, 2, -2, 127, -128]),
        ("f16", "ui8", "trunc", [1, 2, 0, 255, 0]),
    )
    def test_floats_to_integers(self, source, target, mode, wanted):
        values = [1.5, 2.5, -2.5, 1e5, -1e5]
        self.assertEqual(self.cast(values, source, target, mode).tolist(), wanted)

    def test_float_to_float(self):
        halfway = [1 + 2**-11, 1 + 3 * 2**-11, 1 + 2**-12, 70000]
        nearest = self.cast(halfway, "f32", "f16").astype(np.float64)
        self.assertEqual(nearest.tolist(), [1, 1 + 2**-9, 1, math.inf])
        odd = self.cast(halfway, "f32", "f16", "odd").astype(np.float64)
        self.assertEqual(odd.tolist(), [1 + 2**-10, 1 + 2**-10, 1 + 2**-10, 65504])
        up = self.cast(halfway[:3], "f32", "bf16", "ceil").astype(np.float64)
        self.assertEqual(up.tolist(), [1 + 2**-7] * 3)
        self.assertEqual(self.cast([0.5, 3.0], "bf16", "f32").tolist(), [0.5, 3])

    def test_integers(self):
        values = [300, -300, 127, 70000, -70000]
        wraps = self.cast(values, "i32", "i8", "truncwithoverflow")
        self.assertEqual(wraps.tolist(), [(v + 128) % 256 - 128 for v in values])
        wraps = self.cast(values, "i32", "i16", "truncwithoverflow")
        self.assertEqual(wraps.tolist(), [(v + 32768) % 65536 - 32768 for v in values])
        saturates = self.cast(values, "i32", "i16")
        self.assertEqual(saturates.tolist(), [300, -300, 127, 32767, -32768])
        self.assertEqual(self.cast(values, "i32", "i64").tolist(), values)
        self.assertEqual(self.cast([2**24 + 1], "i32", "f32", "ceil").tolist(), [2**24 + 2])
        self.assertEqual(self.cast([2**24 + 1], "i32", "f32", "floor").tolist(), [2**24])
        self.assertEqual(self.cast([-5, 5], "i8", "f16").tolist(), [-5, 5])

    @parameterized.parameters("f16", "f32", "bf16", "i16", "i32")
    def test_bits(self, target):
        self.assertEqual(self.cast([1, 0, 1], "i1", target).tolist(), [1, 0, 1])
        unsigned = self.cast([1, 0, 1], "i1", target, signs="cast_unsigned")
        self.assertEqual(unsigned.tolist(), [1, 0, 1])

    @parameterized.parameters(
        ("f32", "i32", "sideways", "cast_signed"),
        ("f32", "i32", "odd", "cast_signed"),
        ("f32", "i32", "truncwithoverflow", "cast_signed"),
        ("f32", "i8", "rint", "cast_signed"),
        ("i32", "i8", "rint", "cast_signed"),
        ("i32", "f16", "rint", "cast_signed"),
        ("i32", "f32", "rint", "cast_unsigned"),
        ("f32", "f16", "rint", "bitcast"),
        ("bf16", "f16", "rint", "cast_signed"),
    )
    def test_what_is_not_understood(self, source, target, mode, signs):
        with self.assertRaisesRegex(UnsupportedOperationError, f"from {source} to {target}"):
            self.cast([1], source, target, mode, signs)


class CombineTest(parameterized.TestCase):
    def reduce(self, values, kind, axis, element="f32", outputs=None, **more):
        x = view(values, element)
        sizes = [1 if index == axis else size for index, size in enumerate(x.sizes)]
        outputs = outputs or [view(sizes=sizes, element=element)]
        return run(
            "vreduce",
            [x],
            outputs,
            arith=attribute("reduce_op", kind),
            reduce_dims=(axis,),
            **more,
        )

    @parameterized.parameters(0, 1)
    def test_integers(self, axis):
        values = np.array([[3, -7, 5, 1], [2, 9, -4, 8], [6, 6, 0, -1]])
        for kind, function in (
            ("sum", np.sum),
            ("prod", np.prod),
            ("max", np.max),
            ("min", np.min),
            ("xori", np.bitwise_xor.reduce),
            ("ori", np.bitwise_or.reduce),
            ("andi", np.bitwise_and.reduce),
        ):
            found = self.reduce(values, kind, axis, "i32")
            wanted = function(values, axis=axis, keepdims=True)
            self.assertEqual(found.tolist(), wanted.tolist(), kind)

    def test_a_sum_wraps(self):
        self.assertEqual(self.reduce([30000, 30000], "sum", 0, "i16").tolist(), [60000 - 65536])

    def test_bits(self):
        values = [[0, 0], [0, 1], [1, 1]]
        self.assertEqual(self.reduce(values, "any", 1, "i1").tolist(), [[0], [1], [1]])
        self.assertEqual(self.reduce(values, "all", 1, "i1").tolist(), [[0], [0], [1]])

    def test_order_of_a_sum(self):
        # In float16 2048 + 1 is 2048, but (1 + 1) + 2048 is 2050.
        self.assertEqual(self.reduce([[1, 1, 2048, 0]], "sum", 1, "f16").tolist(), [[2050]])
        pairs = np.array([[2048, 1, 1, 0]])
        self.assertEqual(self.reduce(pairs, "sum", 1, "f16").tolist(), [[2048]])  # (a+b)+(c+d)
        halves = pairs.reshape(4, 1)
        self.assertEqual(self.reduce(halves, "sum", 0, "f16").tolist(), [[2048]])  # (a+c)+(b+d)
        halves = np.array([[2048], [1], [0], [1]])
        self.assertEqual(self.reduce(halves, "sum", 0, "f16").tolist(), [[2050]])

    def test_long_rows(self):
        values = np.random.default_rng(0).standard_normal((3, 1000)).astype(np.float32)
        found = self.reduce(values, "sum", 1)
        np.testing.assert_allclose(found[:, 0], values.astype(np.float64).sum(1), rtol=0, atol=2e-5)
        self.assertEqual(self.reduce(values, "max", 1)[:, 0].tolist(), values.max(1).tolist())

    def test_nan_stays(self):
        np.testing.assert_array_equal(self.reduce([1, math.nan, 3], "max", 0), [math.nan])

    @parameterized.parameters(
        ("max_with_index_left", {}, [3, 5], [1, 0]),
        ("max_with_index_right", {}, [3, 5], [2, 3]),
        ("min_with_index_left", {}, [1, 5], [0, 0]),
        ("min_with_index_right", {}, [1, 5], [3, 3]),
        ("max_with_index", {"tie_break_left": False}, [3, 5], [2, 3]),
        ("max_with_index", {}, [3, 5], [1, 0]),
    )
    def test_with_index(self, kind, more, values, positions):
        index = view(sizes=(2, 1), element="i32")
        out = view(sizes=(2, 1))
        self.reduce([[1, 3, 3, 1], [5, 5, 5, 5]], kind, 1, outputs=[out, index], **more)
        self.assertEqual(out.read()[:, 0].tolist(), values)
        self.assertEqual(index.read()[:, 0].tolist(), positions)

    @parameterized.parameters(
        ("median", 0, "f32"), ("any", 0, "f32"), ("sum", 0, "i1"), ("sum_with_index", 0, "f32")
    )
    def test_reductions_that_are_not_understood(self, kind, axis, element):
        with self.assertRaises(UnsupportedOperationError):
            self.reduce([1, 0], kind, axis, element)

    def test_broadcast(self):
        found = run("vbrc", [view([[1], [2]])], view(sizes=(2, 3)), broadcast_dims=(1,))
        self.assertEqual(found.tolist(), [[1, 1, 1], [2, 2, 2]])
        out = view(sizes=(2, 3), strides=(8, 1), element="f16")
        self.assertEqual(run("vbrc", [np.float32(1.5)], out).tolist(), [[1.5] * 3] * 2)
        self.assertEqual(set(out.memory.data[6:16].tolist()), {POISON})
        bits = view(sizes=(5,), element="i1", offset=2)
        self.assertEqual(run("vbrc", [1], bits).tolist(), [True] * 5)
        self.assertEqual(bits.memory.data[0], 0b11111101 & (POISON | 0b01111100))
        with self.assertRaises(UnsupportedOperationError):
            run("vbrc", [view([[1], [2]])], view(sizes=(2, 3)), broadcast_dims=(0,))

    def test_l1_is_set_in_blocks(self):
        l1 = view(sizes=(17,), element="f16", where="cbuf")
        run("vbrc", [np.float16(0)], l1)
        self.assertEqual(set(l1.memory.data[:64].tolist()), {0})
        self.assertEqual(set(l1.memory.data[64:].tolist()), {POISON})

    def test_running_sums(self):
        values = np.array([[1, 2, 3], [4, 5, 6]])
        for reverse in (False, True):
            for axis in (0, 1):
                order = (lambda x, axis=axis: np.flip(x, axis)) if reverse else (lambda x: x)
                for name, function in (("vcumsum", np.cumsum), ("vcumprod", np.cumprod)):
                    found = run(
                        name, [view(values)], view(sizes=(2, 3)), cum_dims=(axis,), reverse=reverse
                    )
                    wanted = order(function(order(values), axis))
                    self.assertEqual(found.tolist(), wanted.tolist())

    def test_running_sums_round_each_step(self):
        found = run("vcumsum", [view([2048, 1, 1], "f16")], view(sizes=(3,), element="f16"),
                    cum_dims=(0,), reverse=False)  # fmt: skip
        self.assertEqual(found.tolist(), [2048, 2048, 2048])


class MoveTest(parameterized.TestCase):
    def test_deinterleave(self):
        x = view([[0, 1, 2, 3], [4, 5, 6, 7]])
        for mode, wanted in (("CHANNEL_0", [[0, 2], [4, 6]]), ("CHANNEL_1", [[1, 3], [5, 7]])):
            found = run(
                "vdeinterleave",
                [x],
                view(sizes=(2, 2)),
                channel_num=2,
                index_mode=attribute("deinterleave_mode", mode),
            )
            self.assertEqual(found.tolist(), wanted)
        both = [view(sizes=(2, 2)), view(sizes=(2, 2))]
        run("vdeinterleave", [x], both)
        self.assertEqual(
            [out.read().tolist() for out in both], [[[0, 2], [4, 6]], [[1, 3], [5, 7]]]
        )

    def test_deinterleave_of_elements_that_lie_apart(self):
        shared = space()
        view(np.arange(32), within=shared)
        x = view(sizes=(4,), strides=(8,), within=shared)
        out = view(sizes=(4,), offset=512, within=shared)
        channel = attribute("deinterleave_mode", "CHANNEL_0")
        found = run("vdeinterleave", [x], out, channel_num=8, index_mode=channel)
        self.assertEqual(found.tolist(), [0, 8, 16, 24])

    @parameterized.parameters("CHANNEL_2", "ALL_CHANNELS")
    def test_deinterleave_that_is_not_understood(self, mode):
        with self.assertRaises(UnsupportedOperationError):
            mode = attribute("deinterleave_mode", mode)
            run("vdeinterleave", [view([1, 2])], view(sizes=(1,)), channel_num=2, index_mode=mode)

    def test_interleave(self):
        out = view(sizes=(2, 4))
        found = run("vinterleave", [view([[1, 2], [3, 4]]), view([[5, 6], [7, 8]])], out)
        self.assertEqual(found.tolist(), [[1, 5, 2, 6], [3, 7, 4, 8]])

    def test_transpose(self):
        x = view(np.arange(24).reshape(2, 3, 4))
        found = run("vtranspose", [x], view(sizes=(3, 4, 2)), permutation=(1, 2, 0))
        for i, j, k in np.ndindex(2, 3, 4):
            self.assertEqual(found[j, k, i], 12 * i + 4 * j + k)
        with self.assertRaises(UnsupportedOperationError):
            run("vtranspose", [x], view(sizes=(2, 3, 4)), permutation=(1, 2, 0))

    def test_arange(self):
        out = view(sizes=(2, 4), element="i32")
        # The example of the operation's definition.
        found = run("varange", [1, 1, 2], out, operandSegmentSizes=(1, 1, 2))
        self.assertEqual(found.tolist(), [[1, 3, 5, 7], [2, 4, 6, 8]])
        found = run("varange", [3], view(sizes=(3,), element="f16"), operandSegmentSizes=(1, 0, 1))
        self.assertEqual(found.tolist(), [0, 3, 6])

    def test_gather(self):
        x = view([10, 11, 12, 13])
        out = view(sizes=(5,))
        found = run("vgather", [x, view([3, 0, 0, 2, 1], "i32")], out)
        self.assertEqual(found.tolist(), [13, 10, 10, 12, 11])
        for index in (-1, 4):
            with self.assertRaisesRegex(memory.OutOfBoundsError, f"index {index}"):
                run("vgather", [x, view([0, index], "i32")], view(sizes=(2,)))

    def test_flip(self):
        found = run("vflip", [view([[1, 2, 3], [4, 5, 6]])], view(sizes=(2, 3)), flip_axis=1)
        self.assertEqual(found.tolist(), [[3, 2, 1], [6, 5, 4]])

    @parameterized.parameters(
        (False, [1, 2, 2, 3], [1, 0, 3, 2]), (True, [3, 2, 2, 1], [2, 0, 3, 1])
    )
    def test_sort(self, descending, wanted, positions):
        out, index = view(sizes=(1, 4)), view(sizes=(1, 4), element="i32")
        run("vsort", [view([[2, 1, 3, 2]])], [out, index], descending=descending, sort_axis=1)
        self.assertEqual(out.read()[0].tolist(), wanted)
        self.assertEqual(index.read()[0].tolist(), positions)


if __name__ == "__main__":
    absltest.main()
