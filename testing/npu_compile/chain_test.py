"""The compiler's ways to end, played by stand-ins for it."""

import os
import stat
import time

from absl.testing import absltest, parameterized

from testing import main
from testing.npu_compile import chain, chips, compiling
from testing.npu_compile.specialisation import Failure, Specialisation, Unit

_ARCH32 = chips.architecture("arch32")
_DUMP = "dumps/builtin_module_no-symbol-name"
_ENTRIES = ", ".join(
    f'#dlti.dl_entry<"{name}_SIZE", 8 : i32>' for name in ("UB", "L1", "L0A", "L0B", "L0C")
)
_SUCCESS = f"""
mkdir -p {_DUMP} temps
cat > {_DUMP}/3_convert-hivm-to-std.mlir << 'END'
"builtin.module"() ({{
}}) {{dlti.target_system_spec = #d<{_ENTRIES}>}} : () -> ()
END
echo planned > {_DUMP}/2_hivm-plan-memory.mlir
echo "module {{}}" > temps/module.hivm.opt.mlir
"""


class ChainTest(parameterized.TestCase):
    def _compile(self, script: str, limit_s: float = 20, failure: Failure | None = None):
        root = self.create_tempdir().full_path
        path = os.path.join(root, _ARCH32.program)
        with open(path, "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\n# hivmc is the one thing on PATH.\nunset ENV\n")
            file.write(f"PATH=$PATH:/usr/bin:/bin\n{script}\n")
        os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)
        self.folder = os.path.join(root, "stages")
        unit = Unit(Specialisation("k", "m", {}, {}, (), {}), [], "ttir", "linalg", failure)
        return compiling.compile_unit(unit, _ARCH32, "Ascend910B1", self.folder, limit_s, root)

    def test_success_keeps_every_stage(self):
        result = self._compile(_SUCCESS)
        self.assertEqual((result.verdict, result.diagnosis, result.retries), ("ok", "", ()))
        self.assertTrue(result.double_buffered)
        self.assertCountEqual(
            os.listdir(self.folder),
            ["kernel.ttir.mlir", "kernel.linalg.mlir", "hivm.mlir", "module.hivm.opt.mlir"]
            + ["compile.log"],
        )

    def test_hivmc_is_a_stand_in_that_succeeds(self):
        self.assertEqual(
            self._compile("hivmc --version && hivmc-a5 x && " + _SUCCESS).verdict, "ok"
        )

    def test_retries_are_seen_and_cost_the_second_buffers(self):
        note = (
            "echo '[NOTE] Ub overflow detected; automatically set enable-{} to false and "
            "retrying compilation.'\n"
        )
        result = self._compile(note.format("code-motion") + _SUCCESS)
        self.assertEqual(result.retries, ("code-motion",))
        self.assertTrue(result.double_buffered)
        result = self._compile(
            note.format("code-motion") + note.format("auto-multi-buffer") + _SUCCESS
        )
        self.assertEqual(result.retries, ("code-motion", "auto-multi-buffer"))
        self.assertFalse(result.double_buffered)

    def test_a_retry_without_a_name(self):
        log = "echo 'error: ub overflow, requires 20 bits while 10 bits available!'\n"
        self.assertEqual(self._compile(log + _SUCCESS).retries, ("unnamed",))

    def test_a_time_out_ends_the_compiler_and_its_children(self):
        start = time.monotonic()
        result = self._compile("sleep 60 & echo $! > child; wait", limit_s=0.5)
        self.assertLess(time.monotonic() - start, 30)
        self.assertEqual(result.verdict, "timeout")
        self.assertStartsWith(result.diagnosis, "hivm: timeout: no result after 0.5 s")
        with open(os.path.join(self.folder, "child"), encoding="utf-8") as file:
            child = file.read().strip()
        status = f"/proc/{child}/status"
        if os.path.exists(status):  # dead, not yet buried
            with open(status, encoding="utf-8") as file:
                self.assertRegex(file.read(), r"State:\s+Z")

    @parameterized.parameters(("kill -SEGV $$", "SIGSEGV"), ("exit 134", "SIGABRT"))
    def test_a_crash_is_called_one(self, script, name):
        result = self._compile("echo 'LLVM ERROR: out of luck'; " + script)
        self.assertEqual(result.verdict, "crashed")
        self.assertRegex(result.diagnosis, rf"hivm: crashed: signal \d+ \({name}\): LLVM ERROR")
        self.assertIn(f"stages: {self.folder}", result.diagnosis)

    def test_an_unknown_failure_shows_the_first_telling_error(self):
        result = self._compile(
            "echo 'loc(\"k.py\":3:0): error: Failed to run pipeline'\n"
            "echo 'loc(\"k.py\":7:2): error: no such thing'\necho 'error: later'\nexit 1"
        )
        self.assertEqual(result.verdict, "failed")
        self.assertStartsWith(
            result.diagnosis, "hivm: failed: exit code 1: k.py:7: error: no such thing"
        )

    def test_exit_code_0_without_a_module_is_no_success(self):
        result = self._compile("exit 0")
        self.assertEqual(result.verdict, "failed")
        self.assertIn("left no hivm.mlir", result.diagnosis)

    def test_a_module_that_is_not_understood_is_no_success(self):
        result = self._compile(_SUCCESS + f"echo junk > {_DUMP}/9_convert-hivm-to-std.mlir")
        self.assertEqual(result.verdict, "failed")
        self.assertIn("hivm.mlir is not understood: line 1", result.diagnosis)

    def test_an_earlier_failure_is_passed_on(self):
        result = self._compile("exit 0", failure=Failure("ttir", "crashed", "exit code -11"))
        self.assertEqual(result.verdict, "crashed")
        self.assertStartsWith(result.diagnosis, "ttir: crashed: exit code -11")


class CommandTest(absltest.TestCase):
    def test_options_become_flags(self):
        flags = chain.command(_ARCH32, "Ascend910B1", {"multibuffer": False, "num_warps": 4})
        self.assertIn("--target=Ascend910B1", flags)
        self.assertIn("--enable-auto-multi-buffer=False", flags)
        self.assertIn("--enable-auto-bind-sub-block=True", flags)
        self.assertFalse([flag for flag in flags if "warps" in flag])
        flags = chain.command(chips.architecture("arch35"), "x", {"tile_mix_vector_loop": 2})
        self.assertIn("--enable-auto-bind-sub-block=False", flags)
        self.assertIn("--tile-mix-vector-loop=2", flags)


if __name__ == "__main__":
    main.main()
