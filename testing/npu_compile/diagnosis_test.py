"""What a diagnosis reads from modules and messages; compile_test has the kernels."""

import os

from absl.testing import absltest

from testing import main
from testing.npu_compile import diagnosis, ir

_UB = "memref<{}xf32, #hivm.address_space<ub>>"
_T = "tensor<64x64xf32>"


def _alloc(name: str, count: int) -> str:
    return f'{name} = "memref.alloc"() : () -> {_UB.format(count)} loc("k.py":{count}:1)'


def _use(*values: tuple[str, int]) -> str:
    names = ", ".join(name for name, _ in values)
    return f'"test.use"({names}) : ({", ".join(_UB.format(count) for _, count in values)}) -> ()'


def _live(body: str) -> list[int]:
    text = f'"builtin.module"() ({{"func.func"() <{{sym_name = "k"}}> ({{{body}}}) : () -> ()}})'
    return sorted(buffer.bytes for buffer in diagnosis.live_buffers(ir.parse(text + " : () -> ()")))


class LiveBuffersTest(absltest.TestCase):
    def test_buffers_that_never_meet_do_not_add_up(self):
        first = [_alloc("%a", 8), _alloc("%b", 16), _use(("%a", 8), ("%b", 16))]
        second = [_alloc("%c", 64), _use(("%c", 64))]
        self.assertEqual(_live("\n".join(first + second)), [256])
        self.assertEqual(_live("\n".join([*first, *second, _use(("%a", 8))])), [32, 256])

    def test_a_loop_keeps_what_came_before_it_alive_to_its_end(self):
        inside = [_use(("%a", 8)), _alloc("%b", 16), _use(("%b", 16)), '"scf.yield"() : () -> ()']
        loop = '"scf.for"(%0, %1, %2) ({\n' + "\n".join(inside) + "\n}) : (i32, i32, i32) -> ()"
        self.assertEqual(_live(_alloc("%a", 8) + "\n" + loop), [32, 64])

    def test_a_view_is_its_buffer(self):
        view = f'%v = "memref.subview"(%a) : ({_UB.format(8)}) -> {_UB.format(4)}'
        lines = [_alloc("%a", 8), view, _alloc("%b", 16), _use(("%v", 4), ("%b", 16))]
        self.assertEqual(_live("\n".join(lines)), [32, 64])

    def test_other_memories_do_not_count(self):
        other = '%g = "memref.alloc"() : () -> memref<999xf32, #hivm.address_space<cbuf>>'
        self.assertEqual(_live(other + "\n" + _alloc("%a", 1)), [32])


class FirstErrorTest(absltest.TestCase):
    def test_what_cannot_be_reached_says_why(self):
        log = "%9 = …\nencountered an odd thing\nUNREACHABLE executed at /b.cpp:4!\n #0 0x00f1 (x)"
        self.assertEqual(diagnosis.first_error(log), "encountered an odd thing")

    def test_a_backtrace_is_no_message(self):
        crash = "\n".join(
            (
                "PLEASE submit a bug report to https://…",
                "Stack dump:",
                "0.\tProgram arguments: bishengir-compile kernel.mlir",
                "Stack dump without symbol names (…):",
                "0  bishengir-compile 0x000055ededad2615",
                " #1 0x00007f7923e45305 __libc_start_main + 133",
            )
        )
        self.assertEqual(diagnosis.first_error(crash), "no output")
        self.assertEqual(diagnosis.first_error("lost\n" + crash), "lost")


class RulesTest(absltest.TestCase):
    def _rules(self, body: str) -> list[str]:
        folder = self.create_tempdir().full_path
        text = f"""
        func.func @k(%x: {_T}, %y: {_T}, %i: index, %n: index) -> {_T} {{
          {body}
        }}
        """
        with open(os.path.join(folder, "kernel.linalg.mlir"), "w", encoding="utf-8") as file:
            file.write(text)
        return diagnosis.matching("", folder)

    def _loop(self, result: str, start: str, argument: str, body: str, value: str) -> str:
        return f"""{result} = scf.for %i{result[1:]} = %i to %n step %n
            iter_args({argument} = {start}) -> ({_T}) {{
          {body}
          scf.yield {value} : {_T}
        }}"""

    def _product(self, result: str, total: str, x: str = "%x", y: str = "%y") -> str:
        return f"{result} = linalg.matmul ins({x}, {y} : {_T}, {_T}) outs({total} : {_T}) -> {_T}"

    def test_an_accumulator_of_one_loop_is_fine(self):
        loop = self._loop("%r", "%x", "%t", self._product("%p", "%t"), "%p")
        self.assertEmpty(self._rules(f"{loop}\nreturn %r : {_T}"))
        outer = self._loop("%o", "%y", "%u", loop, "%r")  # the inner loop starts anew
        self.assertEmpty(self._rules(f"{outer}\nreturn %o : {_T}"))

    def test_an_accumulator_of_two_loops(self):
        inner = self._loop("%r", "%u", "%t", self._product("%p", "%t"), "%p")
        outer = self._loop("%o", "%y", "%u", inner, "%r")
        self.assertEqual(self._rules(f"{outer}\nreturn %o : {_T}"), ["accumulator"])
        first = self._product("%f", "%u")  # the outer loop adds to it as well
        inner = self._loop("%r", "%f", "%t", self._product("%p", "%t"), "%p")
        outer = self._loop("%o", "%y", "%u", f"{first}\n{inner}", "%r")
        self.assertEqual(self._rules(f"{outer}\nreturn %o : {_T}"), ["accumulator"])

    def test_one_tensor_as_both_operands(self):
        body = self._product("%p", "%y", "%x", "%x")
        self.assertEqual(self._rules(f"{body}\nreturn %p : {_T}"), ["operand"])

    def test_text_that_the_compiler_cannot_read_names_no_rule(self):
        self.assertEmpty(self._rules("nonsense"))


class MessageTest(absltest.TestCase):
    def test_overflow(self):
        log = (
            "error: ub overflow, requires 16 bits while 8 bits available!\n"
            "error: ub overflow, requires 4194304 bits while 1572864 bits available!"
        )
        found = diagnosis.find_overflow(log)
        self.assertEqual(found, diagnosis.Overflow("UB", 524288, 196608))
        self.assertIsNone(diagnosis.find_overflow("all is well"))

    def test_first_error(self):
        self.assertEqual(diagnosis.first_error("a\nb\n\n"), "b")
        self.assertEqual(diagnosis.first_error(""), "no output")
        log = 'loc("k.py":1:2): error: Failed to run X\nx: Assertion `y\' failed.'
        self.assertEqual(diagnosis.first_error(log), "x: Assertion `y' failed.")

    def test_place_leaves_out_triton_s_own_library(self):
        module = ir.parse('"builtin.module"() ({}) : () -> ()')
        location = 'callsite("triton/language/standard.py":9:1 at "k.py":3:1)'
        self.assertEqual(diagnosis.place(module, location), "k.py:3")
        location = 'callsite("k.py":9:1 at "k.py":3:1)'
        self.assertEqual(diagnosis.place(module, location), "k.py:9, called at k.py:3")
        self.assertEqual(diagnosis.place(module, "unknown"), "unknown line")


if __name__ == "__main__":
    main.main()
