from absl.testing import absltest

from testing import main
from testing.npu_compile import ir, measure

_TARGET = (
    'dlti.target_system_spec = #dlti.target_system_spec<"NPU" : #hacc.target_device_spec<'
    + ", ".join(
        f'#dlti.dl_entry<"{name}", {bits} : i32>'
        for name, bits in {
            "UB_SIZE": 8192,
            "L1_SIZE": 16384,
            "L0A_SIZE": 4096,
            "L0B_SIZE": 4096,
            "L0C_SIZE": 65536,
            "UB_ALIGN_SIZE": 256,
            "L1_ALIGN_SIZE": 256,
            "L0C_ALIGN_SIZE": 4096,
        }.items()
    )
    + ">>, hivm.module_core_type = #hivm.module_core_type<MIX>"
)
_UB = "memref<10xf32, #hivm.address_space<ub>>"
_CC = "memref<4xf32, #hivm.address_space<cc>>"
_L1 = "memref<4xf32, #hivm.address_space<cbuf>>"
_GM = "memref<10xf32>"
_V = "vector<64xf32>"
_SIZES = "operandSegmentSizes = array<i32: {}, 0>"


def _measure(body: str) -> measure.Measurement:
    text = f"""
    "builtin.module"() ({{
      "func.func"() <{{sym_name = "k_infer_workspace_shape_function"}}> ({{
        %w = "arith.constant"() <{{value = 4096 : index}}> : () -> index
        "func.return"(%w) : (index) -> ()
      }}) : () -> ()
      "func.func"() <{{sym_name = "k"}}> ({{
        %c0 = "arith.constant"() <{{value = 0 : i64}}> : () -> i64
        %c1 = "arith.constant"() <{{value = 1 : i64}}> : () -> i64
        %c64 = "arith.constant"() <{{value = 64 : i64}}> : () -> i64
        %c256 = "arith.constant"() <{{value = 256 : i64}}> : () -> i64
        {body}
        "func.return"() : () -> ()
      }}) : () -> ()
    }}) {{{_TARGET}}} : () -> ()
    """
    return measure.measure(ir.parse(text))


def _loop(low: str, high: str, body: str) -> str:
    return f"""
    "scf.for"({low}, {high}, %c1) ({{
    ^bb0(%i{abs(hash(body))}: i64):
      {body}
      "scf.yield"() : () -> ()
    }}) : (i64, i64, i64) -> ()
    """


_LOAD = f'%x = "memref.load"(%g) : ({_GM}) -> f32'
_STORE = f'"memref.store"(%x, %g) : (f32, {_GM}) -> ()'
_VADD = f'"hivm.hir.vadd"(%a, %a, %a) : ({_UB}, {_UB}, {_UB}) -> ()'


class MemoryTest(absltest.TestCase):
    def test_the_highest_end_counts_in_whole_units(self):
        m = _measure(f"""
        %a = "hivm.hir.pointer_cast"(%c0) <{{{_SIZES.format(1)}}}> : (i64) -> {_UB}
        %b = "hivm.hir.pointer_cast"(%c0, %c256) <{{{_SIZES.format(2)}}}> : (i64, i64) -> {_UB}
        %d = "hivm.hir.pointer_cast"(%c64) <{{{_SIZES.format(1)}}}> : (i64) -> {_UB}
        %e = "hivm.hir.pointer_cast"(%c0) <{{{_SIZES.format(1)}}}> : (i64) -> {_CC}
        """)
        self.assertEqual(m.memory["UB"], (256 + 64, 1024))  # 40 bytes are two units of 32
        self.assertEqual(m.memory["L0C"], (512, 8192))
        self.assertEqual(m.memory["L1"], (None, 2048))
        self.assertEqual(m.ub_share, 320 / 1024)
        self.assertEqual(m.workspace_bytes, 4096)
        self.assertEqual(m.core_type, "MIX")


class OperationsTest(absltest.TestCase):
    def test_pipes(self):
        m = _measure(f"""
        "hivm.hir.load"(%g, %a) : ({_GM}, {_UB}) -> ()
        "hivm.hir.nd2nz"(%g, %l) : ({_GM}, {_L1}) -> ()
        "hivm.hir.vbrc"(%c0, %l) : (i64, {_L1}) -> ()
        {_VADD}
        "hivm.hir.copy"(%a, %a) : ({_UB}, {_UB}) -> ()
        "hivm.hir.copy"(%a, %l) : ({_UB}, {_L1}) -> ()
        "hivm.hir.mmadL1"(%l, %l, %c) : ({_L1}, {_L1}, {_CC}) -> ()
        "hivm.hir.fixpipe"(%c, %g) : ({_CC}, {_GM}) -> ()
        "hivm.hir.store"(%a, %g) : ({_UB}, {_GM}) -> ()
        %v = "arith.addf"(%u, %u) : ({_V}, {_V}) -> {_V}
        %s = "arith.addf"(%t, %t) : (f32, f32) -> f32
        "hivm.hir.sync_block_set"() : () -> ()
        "hivm.hir.sync_block_wait"() : () -> ()
        """)
        self.assertEqual(
            m.operations, {"vector": 3, "cube": 1, "load": 3, "store": 2, "fixpipe": 1}
        )
        self.assertEqual(m.cross_core_syncs, 1)

    def test_scalar_accesses_are_weighted_with_constant_trip_counts(self):
        inner = _loop("%c0", "%c64", _LOAD + "\n" + _STORE)
        m = _measure(_LOAD + _loop("%c0", "%n", inner))
        self.assertEqual((m.scalar_loads, m.scalar_stores), (65, 64))
        self.assertEqual(m.scalar_loops, 1)  # the innermost one only

    def test_a_loop_with_vector_work_is_no_scalar_loop(self):
        self.assertEqual(_measure(_loop("%c0", "%c64", _LOAD + "\n" + _VADD)).scalar_loops, 0)
        self.assertEqual(_measure(_loop("%c0", "%c64", _VADD)).scalar_loops, 0)

    def test_stores_of_each_vector_core(self):
        same = f'"hivm.hir.store"(%a, %g) : ({_UB}, {_GM}) -> ()\n'
        limited = f"""
        "scf.if"(%c) ({{
          {same}
          {_VADD}
        }}, {{
        }}) {{limit_sub_block_id0}} : (i1) -> ()
        """
        own = f"""
        %x = "hivm.hir.get_sub_block_idx"() : () -> i64
        %row = "arith.muli"(%x, %x) : (i64, i64) -> i64
        %rows = "memref.subview"(%g, %row) : ({_GM}, i64) -> {_GM}
        "hivm.hir.store"(%a, %rows) : ({_UB}, {_GM}) -> ()
        """
        m = _measure(own + same)
        self.assertEqual((m.split_stores, m.limited_stores), (1, 0))
        self.assertFalse(m.idle_vector_core)
        m = _measure(own + same + same)  # most of it is the same on both
        self.assertTrue(m.idle_vector_core)
        m = _measure(own + limited + limited)
        self.assertEqual((m.split_stores, m.limited_stores), (1, 2))
        self.assertTrue(m.idle_vector_core)
        self.assertTrue(_measure(same).idle_vector_core)

    def test_stores_of_the_first_core_under_a_condition(self):
        guarded = f"""
        %x = "hivm.hir.get_sub_block_idx"() : () -> i64
        %first = "arith.cmpi"(%x, %x) : (i64, i64) -> i1
        "scf.if"(%first) ({{
          "hivm.hir.store"(%a, %g) : ({_UB}, {_GM}) -> ()
        }}, {{
        }}) : (i1) -> ()
        """
        m = _measure(guarded)
        self.assertEqual((m.split_stores, m.limited_stores), (0, 1))
        self.assertTrue(m.idle_vector_core)

    def test_a_name_with_two_values_is_refused(self):
        again = '%c1 = "arith.constant"() <{value = 2 : i64}> : () -> i64'
        with self.assertRaisesRegex(ValueError, "%c1 is 1 and 2"):
            _measure(again)


if __name__ == "__main__":
    main.main()
