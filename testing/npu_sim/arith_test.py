"""Scalar arithmetic, on values computed by hand."""

import math

import numpy as np
from absl.testing import absltest, parameterized

from testing.npu_compile import ir
from testing.npu_sim import arith, findings


def operation(name: str, operands: str, result: str, attributes: str = "") -> ir.Operation:
    kinds = [kind for kind in operands.split(",") if kind]
    names = ", ".join(f"%{index}" for index in range(len(kinds)))
    text = (
        f'"builtin.module"() ({{\n  %r = "{name}"({names}) <{{{attributes}}}> : '
        f"({', '.join(kinds)}) -> {result}\n}}) : () -> ()\n"
    )
    return ir.parse(text).operation.regions[0][0].operations[0]


def compute(name: str, operands: str, result: str, *values, attributes: str = ""):
    function = arith.function(operation(name, operands, result, attributes))
    assert function is not None
    return function(*values)


class IntegerTest(parameterized.TestCase):
    @parameterized.parameters(
        ("addi", 2**31 - 1, 1, -(2**31)),
        ("subi", -(2**31), 1, 2**31 - 1),
        ("muli", 65536, 65536, 0),
        ("muli", -3, 7, -21),
        ("divsi", -7, 2, -3),
        ("divsi", 7, -2, -3),
        ("divsi", -(2**31), 3, -715827882),
        ("remsi", -(2**31), 3, -2),
        ("remsi", -7, 2, -1),
        ("remsi", 7, -2, 1),
        ("floordivsi", -7, 2, -4),
        ("ceildivsi", -7, 2, -3),
        ("ceildivsi", 7, 2, 4),
        ("divui", -1, 2, 2**31 - 1),
        ("remui", -1, 10, 5),
        ("andi", -1, 255, 255),
        ("ori", 5, 10, 15),
        ("xori", -1, 1, -2),
        ("shli", 1, 31, -(2**31)),
        ("shrsi", -8, 1, -4),
        ("shrui", -8, 1, 2**31 - 4),
        ("minsi", -1, 1, -1),
        ("minui", -1, 1, 1),
        ("maxsi", -1, 1, 1),
        ("maxui", -1, 1, -1),
    )
    def test_i32(self, name, a, b, expected):
        self.assertEqual(compute(f"arith.{name}", "i32,i32", "i32", a, b), expected)
        vector = compute(
            f"arith.{name}",
            "vector<2xi32>,vector<2xi32>",
            "vector<2xi32>",
            np.array([a, 1], np.int32),
            np.array([b, 1], np.int32),
        )
        self.assertEqual(vector.dtype, np.int32)
        self.assertEqual(vector[0], expected)

    def test_index_has_64_bits(self):
        self.assertEqual(compute("arith.addi", "index,index", "index", 2**63 - 1, 1), -(2**63))

    @parameterized.parameters(
        ("trunci", "i64", "i32", 2**32 + 5, 5),
        ("trunci", "i32", "i8", 200, -56),
        ("trunci", "i32", "i1", 3, 1),
        ("extsi", "i32", "i64", -2, -2),
        ("extui", "i32", "i64", -2, 2**32 - 2),
        ("extui", "i1", "i32", 1, 1),
        ("extsi", "i1", "i32", 1, -1),
        ("index_cast", "index", "i32", 2**31, -(2**31)),
    )
    def test_conversions(self, name, source, target, value, expected):
        self.assertEqual(compute(f"arith.{name}", source, target, value), expected)

    @parameterized.parameters(*range(10))
    def test_comparisons(self, predicate):
        expected = [False, True, True, True, False, False, False, False, True, True][predicate]
        attributes = f"predicate = {predicate} : i64"
        self.assertEqual(
            bool(compute("arith.cmpi", "i32,i32", "i1", -1, 1, attributes=attributes)), expected
        )
        vector = compute(
            "arith.cmpi",
            "vector<1xi32>,vector<1xi32>",
            "vector<1xi1>",
            np.array([-1], np.int32),
            np.array([1], np.int32),
            attributes=attributes,
        )
        self.assertEqual(vector.tolist(), [expected])


class FloatTest(parameterized.TestCase):
    def test_f32_is_rounded_at_each_step(self):
        one, small = np.float32(1), np.float32(2**-25)
        self.assertEqual(compute("arith.addf", "f32,f32", "f32", one, small), 1)

    def test_f16_is_rounded_once(self):
        # 2049 is between two f16 values, and rounds to the even one.
        total = compute("arith.addf", "f16,f16", "f16", np.float16(2048), np.float16(1))
        self.assertEqual(total.dtype, np.float16)
        self.assertEqual(total, 2048)

    def test_minimum_and_minnum_differ_on_nan(self):
        nan, one = np.float32("nan"), np.float32(1)
        self.assertTrue(math.isnan(compute("arith.minimumf", "f32,f32", "f32", nan, one)))
        self.assertEqual(compute("arith.minnumf", "f32,f32", "f32", nan, one), 1)

    @parameterized.parameters(
        (1, 1.0, 1.0, True),
        (1, math.nan, 1.0, False),
        (4, 1.0, 2.0, True),
        (8, math.nan, 1.0, True),
        (13, math.nan, math.nan, True),
        (13, 1.0, 1.0, False),
        (6, math.nan, 1.0, False),
        (7, 1.0, math.nan, False),
        (14, 1.0, math.nan, True),
        (0, 1.0, 1.0, False),
        (15, math.nan, 1.0, True),
    )
    def test_comparisons(self, predicate, a, b, expected):
        found = compute(
            "arith.cmpf",
            "f32,f32",
            "i1",
            np.float32(a),
            np.float32(b),
            attributes=f"predicate = {predicate} : i64",
        )
        self.assertEqual(bool(found), expected)

    def test_conversions(self):
        self.assertEqual(compute("arith.fptosi", "f32", "i32", np.float32(-2.7)), -2)
        self.assertEqual(compute("arith.sitofp", "i32", "f32", 2**24 + 1), np.float32(2**24))
        self.assertEqual(compute("arith.uitofp", "i32", "f32", -1), np.float32(2**32))
        half = compute("arith.truncf", "f32", "f16", np.float32(1 + 2**-11))
        self.assertEqual(half, 1)
        self.assertEqual(compute("arith.bitcast", "f32", "i32", np.float32(1)), 0x3F800000)
        self.assertEqual(compute("arith.bitcast", "i32", "f32", 0x40000000), np.float32(2))

    @parameterized.parameters(
        ("1.500000e+00 : f32", "f32", 1.5),
        ("0x7F800000 : f32", "f32", math.inf),
        ("0xFC00 : f16", "f16", -math.inf),
        ("0xFF80 : bf16", "bf16", -math.inf),
        ("true", "i1", 1),
        ("-7 : i32", "i32", -7),
    )
    def test_constants(self, text, kind, expected):
        made = operation("arith.constant", "", kind, f"value = {text}")
        self.assertEqual(arith.constant(made), expected)

    def test_a_constant_vector(self):
        made = operation(
            "arith.constant", "", "vector<4xf32>", "value = dense<2.500000e+00> : vector<4xf32>"
        )
        self.assertEqual(arith.constant(made).tolist(), [[2.5] * 4])

    def test_a_constant_vector_of_different_elements(self):
        made = operation(
            "arith.constant",
            "",
            "vector<2x2xi32>",
            "value = dense<[[1, 2], [-3, 4]]> : vector<2x2xi32>",
        )
        self.assertEqual(arith.constant(made).tolist(), [[[1, 2], [-3, 4]]])

    def test_a_constant_vector_written_as_its_bytes(self):
        text = 'value = dense<"0x01000002FFFF"> : vector<3xi16>'
        made = operation("arith.constant", "", "vector<3xi16>", text)
        self.assertEqual(arith.constant(made).tolist(), [[1, 512, -1]])


class AffineTest(parameterized.TestCase):
    @parameterized.parameters(
        ("affine_map<(d0)[s0] -> (d0 * 3 + s0 - 1)>", (5, 7), (21,)),
        ("affine_map<()[s0, s1] -> (s1 + 32, -s0)>", (1, 2), (34, -1)),
        ("affine_map<(d0) -> (d0 floordiv 4)>", (-5,), (-2,)),
        ("affine_map<(d0) -> (d0 ceildiv 4)>", (5,), (2,)),
        ("affine_map<(d0) -> (d0 mod 4)>", (-5,), (3,)),
        ("affine_map<()[s0, s1] -> ((s0 floordiv s1 + s1) mod 7)>", (20, 6), (2,)),
        ("affine_map<(d0) -> (d0 - (d0 - 2) * 2)>", (9,), (-5,)),
        ("affine_map<(d0) -> (d0 * 2 floordiv 3)>", (4,), (2,)),
    )
    def test_maps(self, text, operands, expected):
        self.assertEqual(arith.affine_map(text)(*operands), expected)

    @parameterized.parameters("affine_map<(d0) -> (d0 @ 2)>", "affine_set<(d0) : (d0 == 0)>")
    def test_others_are_refused(self, text):
        with self.assertRaisesRegex(findings.UnsupportedOperationError, "affine"):
            arith.affine_map(text)


class UnknownTest(absltest.TestCase):
    def test_an_unknown_operation_is_refused(self):
        with self.assertRaisesRegex(
            findings.UnsupportedOperationError, "cannot execute math.atan2"
        ):
            compute("math.atan2", "f32,f32", "f32", np.float32(1), np.float32(1))

    def test_other_dialects_are_not_ours(self):
        self.assertIsNone(arith.function(operation("memref.dim", "index", "index")))


if __name__ == "__main__":
    absltest.main()
