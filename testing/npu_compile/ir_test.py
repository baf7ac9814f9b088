from absl.testing import absltest, parameterized

from testing import main
from testing.npu_compile import ir

_MODULE = """// -----// IR Dump Before Pass (pass) //----- //
#loc = loc("kernel.py":7:0)
#map = affine_map<()[s0, s1] -> (s0 * s1 floordiv 4)>
"builtin.module"() ({
  "func.func"() <{function_type = (i32) -> (), sym_name = "f", note = "a { \\"b\\" -> c"}> ({
  ^bb0(%arg0: i32 loc("kernel.py":7:0), %arg1: memref<?xf32, #hivm.address_space<gm>> loc(#loc)):
    %0 = "arith.constant"() <{value = 16 : i32}> : () -> i32 loc(#loc)
    %1:2 = "scf.for"(%0, %arg0, %0, %0) ({
    ^bb0(%arg2: i32 loc(#loc1), %arg3: i32 loc(unknown)):
      %2 = "test.op"(%arg3, %1#1) {limit} : (i32, i32) -> i32 loc(#loc2)
      "scf.yield"(%2) : (i32) -> () loc(#loc2)
    }, {
    }) {order = [1, true, "x"], sizes = array<i64: 3, -4>} : (i32, i32, i32, i32) -> (i32, i32)
    "cf.br"(%0)[^bb1] : (i32) -> ()
  ^bb1:  // pred: ^bb0
    "func.return"() : () -> () loc(#loc)
  }) : () -> () loc(#loc)
}) {spec = #t.spec<"NPU" : #t.e<"UB", 8 : i32>>, hacc.version = 1.5 : f32} : () -> () loc(#loc)
#loc1 = loc("kernel.py":9:4)
#loc2 = loc(callsite(#loc3 at #loc1))
#loc3 = loc("sum"("triton/language/standard.py":20:1))
"""


class ParseTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        self.module = ir.parse(_MODULE)
        self.by_name = {operation.name: operation for operation, _ in self.module.walk()}

    def test_tree(self):
        names = [operation.name for operation, _ in self.module.walk()]
        self.assertEqual(
            names,
            ["builtin.module", "func.func", "arith.constant", "scf.for", "test.op", "scf.yield"]
            + ["cf.br", "func.return"],
        )
        depth = {operation.name: len(around) for operation, around in self.module.walk()}
        self.assertEqual(depth["test.op"], 3)
        self.assertLen(self.by_name["func.func"].regions[0], 2)  # two blocks
        self.assertLen(self.by_name["scf.for"].regions, 2)
        self.assertEqual(self.by_name["scf.for"].regions[1], ())

    def test_values_and_types(self):
        loop = self.by_name["scf.for"]
        self.assertEqual(loop.results, ("%1#0", "%1#1"))
        self.assertEqual(loop.operands, ("%0", "%arg0", "%0", "%0"))
        self.assertEqual(loop.result_types, ("i32", "i32"))
        self.assertEqual(loop.regions[0][0].arguments, (("%arg2", "i32"), ("%arg3", "i32")))
        self.assertEqual(self.by_name["test.op"].operands, ("%arg3", "%1#1"))
        memory = self.by_name["func.func"].regions[0][0].arguments[1][1]
        self.assertEqual(memory, ir.MemRef((None,), "f32", None, 0, "gm"))

    def test_attributes(self):
        self.assertEqual(self.by_name["arith.constant"].attributes, {"value": 16})
        loop = self.by_name["scf.for"].attributes
        self.assertEqual(loop, {"order": (1, True, "x"), "sizes": (3, -4)})
        self.assertEqual(self.by_name["test.op"].attributes, {"limit": True})
        top = self.module.operation.attributes
        self.assertEqual(top["spec"], '#t.spec<"NPU" : #t.e<"UB", 8 : i32>>')
        self.assertEqual(top["hacc.version"], 1.5)
        self.assertIn("{", self.by_name["func.func"].attributes["note"])

    def test_functions(self):
        self.assertEqual(list(self.module.functions()), ["f"])

    def test_lines_of_the_text(self):
        line = self.by_name["test.op"].line
        self.assertIn("test.op", _MODULE.splitlines()[line - 1])

    def test_locations(self):
        frames = self.module.frames(self.by_name["test.op"].location)
        self.assertEqual(
            frames,
            [ir.Frame("triton/language/standard.py", 20), ir.Frame("kernel.py", 9)],
        )
        self.assertEqual(self.module.frames("unknown"), [])
        self.assertEqual(self.module.frames("#loc99"), [])
        self.assertEqual(
            self.module.frames('fused<"x">[unknown, "a.py":3:1]'), [ir.Frame("a.py", 3)]
        )

    def test_aliases_before_and_after_the_module(self):
        self.assertContainsSubset({"#map", "#loc", "#loc1", "#loc3"}, self.module.aliases)


class ErrorTest(parameterized.TestCase):
    @parameterized.parameters(
        ('"a.b"() : () -> ()\n"a.c"() : () -> ()', "line 2: text after the module"),
        ("module {\n}", "line 1: expected an operation in the generic form: 'module {'"),
        ('"a.b"() ({\n  %0 = arith.constant 1\n}) : () -> ()', "line 2: expected an operation"),
        ('"a.b"() {x = [1 : () -> ()', "a bracket that nothing closes"),
        ('"a.b"()', "expected ':'"),
    )
    def test_what_is_not_the_generic_form(self, text, message):
        with self.assertRaisesRegex(ir.ParseError, message.replace("(", r"\(")):
            ir.parse(text)


class TypeTest(parameterized.TestCase):
    @parameterized.parameters(
        ("memref<64x32xf32, #hivm.address_space<ub>>", 64 * 32 * 32),
        ("memref<64x32xf16, strided<[48, 1]>, #hivm.address_space<ub>>", (63 * 48 + 32) * 16),
        ("memref<64x64xi1, strided<[256, 1], offset: 5>>", 63 * 256 + 64),
        ("memref<f32>", 32),
        ("memref<4xindex>", 256),
        ("memref<0x4xf32>", 0),
        ("memref<?x4xf32>", None),
        ("memref<2x4xf32, strided<[?, 1]>>", None),
        ("memref<1x4xf32, strided<[?, 1]>>", 128),
    )
    def test_bits(self, text, bits):
        self.assertEqual(ir.parse_type(text).bits, bits)

    def test_vectors_and_others(self):
        self.assertEqual(ir.parse_type("vector<2x64xindex>"), ir.Vector((2, 64), "index"))
        self.assertEqual(ir.parse_type("!hivm.thing<memref<4xf32>>"), "!hivm.thing<memref<4xf32>>")

    def test_split(self):
        self.assertEqual(
            ir.split('a, b<c, d>, "e, f", () -> (g, h)'),
            [
                "a",
                "b<c, d>",
                '"e, f"',
                "() -> (g, h)",
            ],
        )
        self.assertEqual(ir.split(" "), [])


if __name__ == "__main__":
    main.main()
