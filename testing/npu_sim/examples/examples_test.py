"""Every example, compiled by the Ascend compiler and run by the simulator.

Against NumPy, against Triton's interpreter, in several schedules and on several memory contents.
"""

import functools
import re
import unittest

import numpy as np
from absl import flags
from absl.testing import parameterized

from testing import main
from testing.npu_compile import chips
from testing.npu_sim.examples import checking, table
from testing.npu_sim.examples.variants import VARIANTS

_ARCH = flags.DEFINE_enum("arch", None, list(chips.ARCHITECTURES), "Architecture.", required=True)
_COMPILED = flags.DEFINE_string("compiled", None, "The compile target's folder.", required=True)
_INTERPRETED = flags.DEFINE_string("interpreted", None, "interpret_main's file.", required=True)

# On arch35 the operations that these change have other names.
_ARCH32_ONLY = ("test_wrong_values", "test_the_interpreter_alone_sees_it_too")


@functools.cache
def _compiled() -> checking.Compiled:
    return checking.Compiled(_COMPILED.value, chips.architecture(_ARCH.value))


@functools.cache
def _interpreted() -> dict[str, np.ndarray]:
    with np.load(_INTERPRETED.value) as file:
        return dict(file)


def _examples(*names):
    return [(each.name, each) for each in table.EXAMPLES if not names or each.name in names]


class ExamplesTest(parameterized.TestCase):
    @parameterized.named_parameters(*_examples())
    def test(self, example):
        variant = VARIANTS[example.variant]
        text = _compiled().text(variant)
        found = "\n".join(checking.problems(example, text, _interpreted()))
        if _ARCH.value in example.miscompiled:
            self.assertRegex(found, example.miscompiled[_ARCH.value])
        else:
            self.assertEqual(found, "")


class BrokenProgramTest(parameterized.TestCase):
    """A program that is wrong must not pass: the other tests would prove nothing."""

    def problems(self, name, pattern, replacement, interpreted=None):
        (_, example), *_ = _examples(name)
        text = _compiled().text(VARIANTS[example.variant])
        broken, count = re.subn(pattern, replacement, text)
        self.assertGreater(count, 0)
        return "\n".join(checking.problems(example, broken, interpreted))

    @parameterized.named_parameters(
        ("another operation", "arithmetic_fp32", r'"hivm\.hir\.vmul"', '"hivm.hir.vadd"'),
        ("another rounding", "cast_fp32_i32", "round_mode<trunc>", "round_mode<rint>"),
        ("another comparison", "choose_fp32", "compare_mode<gt>", "compare_mode<ge>"),
        ("another reduction", "reductions_fp32", "reduce_op<sum>", "reduce_op<max>"),
        ("another address", "product_fp16_fp32", "value = 12288 : i64", "value = 8192 : i64"),
    )
    def test_wrong_values(self, name, pattern, replacement):
        self.assertIn("against NumPy", self.problems(name, pattern, replacement))

    def test_the_interpreter_alone_sees_it_too(self):
        found = self.problems(
            "arithmetic_fp32", r'"hivm\.hir\.vmul"', '"hivm.hir.vadd"', _interpreted()
        )
        self.assertIn("product_ptr against Triton's interpreter", found)

    @parameterized.parameters(
        ("arithmetic_fp32", "(set|wait)_flag"),
        ("matmul_fp16", "(set|wait)_flag"),
        ("masked_attention_fp16", "sync_block_(set|wait)"),
    )
    def test_without_synchronisation(self, name, operations):
        found = self.problems(name, rf'\n.*"hivm\.hir\.{operations}".*', "")
        self.assertIn("race", found)

    @parameterized.parameters("softmax_tile_fp32", "scaled_operand_fp16")
    def test_each_flag_is_missed(self, name):
        (_, example), *_ = _examples(name)
        lines = _compiled().text(VARIANTS[example.variant]).split("\n")
        flags_at = [
            index
            for index, line in enumerate(lines)
            if re.search(r'"hivm\.hir\.((set|wait)_flag|sync_block_(set|wait))"', line)
        ]
        self.assertGreater(len(flags_at), 4)
        for index in flags_at:
            broken = "\n".join([*lines[:index], *lines[index + 1 :]])
            found = list(checking.problems(example, broken))
            self.assertNotEmpty(found, f"without {lines[index]}")


def _applies(test: unittest.TestCase) -> bool:
    """Whether a test says something about this architecture."""
    name = test.id().rpartition(".")[2]
    if name.startswith(_ARCH32_ONLY):
        return _ARCH.value == "arch32"
    example = dict(_examples()).get(name.removeprefix("test"))
    return example is None or _ARCH.value in VARIANTS[example.variant].architectures


def load_tests(loader, tests, pattern):
    """Leaves out what does not apply, so that nothing is skipped."""
    del loader, pattern
    chosen = unittest.TestSuite()
    for case in tests:
        chosen.addTests(test for test in case if _applies(test))
    return chosen


if __name__ == "__main__":
    main.main()
