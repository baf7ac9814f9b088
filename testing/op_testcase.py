"""The flags that every generated test target takes, and the base class that turns an op's cases
into test methods."""

import sys
import unittest
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from absl import app, flags
from absl.testing import absltest

from testing import cases, devices, golden, main, selection, spec

_SPEC = flags.DEFINE_string(
    "spec",
    None,
    "Module that holds the op's SPEC, such as ops.mamba3_siso_fwd.spec.",
)
_DEVICE = flags.DEFINE_enum("device", None, devices.NAMES, "The device to run on.")
_TAGS = flags.DEFINE_list(
    "tags",
    None,
    f"Run cases with any of these tags ({', '.join(cases.TAGS)}), not the target's own choice.",
)
_CASES = flags.DEFINE_list("case", None, "Run the cases of these names, whatever their tags are.")
_GOLDENS = flags.DEFINE_string(
    "goldens",
    None,
    "Golden folder for the ci cases. Without it their references are computed during the test.",
)
_COMPILED = flags.DEFINE_string(
    "compiled",
    None,
    "Folder of the op's compile target, for a simulator. Without it, it compiles every kernel.",
)


class OpTestCase(absltest.TestCase):
    """One test method per case of an op. Subclasses define `judge(case)` and may define `finish()`.

    The device is looked for once, before Triton is imported; its absence is an error, not a skip.
    """

    op: spec.OpSpec
    device: devices.Device
    goldens: golden.Folder | None = None
    chosen: Sequence[cases.Case] = ()
    # Cases that the device would have taken by their tags: why it does not.
    left_out: Mapping[str, str] = {}

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.device = devices.require(cls.device.name)
        if _COMPILED.value and isinstance(cls.device, devices.Simulator):
            cls.device.use_compiled(_COMPILED.value)
        if _GOLDENS.value:
            cls.goldens = golden.Folder(_GOLDENS.value, cls.op)

    @classmethod
    def tearDownClass(cls):
        cls.finish()
        super().tearDownClass()

    def judge(self, case: cases.Case) -> None:
        raise NotImplementedError

    @classmethod
    def finish(cls) -> None:
        """Called once after all cases."""


def loader(base: type[OpTestCase], tags: Callable[[devices.Device], Sequence[str]]) -> Any:
    """The `load_tests` function of a test module: gives `base` one method per case that has one of
    the device's tags."""

    def load_tests(
        unittest_loader: unittest.TestLoader, tests: Any, pattern: Any
    ) -> unittest.TestSuite:
        del tests, pattern
        base.device = devices.get(str(_DEVICE.value))
        base.device.prepare()  # an op's package may import Triton
        base.op = _loaded(str(_SPEC.value))
        chosen_tags = _chosen(_TAGS, cases.TAGS) if _TAGS.value is not None else tags(base.device)
        selected = cases.select(base.op.cases, chosen_tags)
        if _CASES.value is not None:
            names = _chosen(_CASES, [case.name for case in base.op.cases])
            selected = [case for case in base.op.cases if case.name in names]
        reasons = {case.name: base.device.leaves_out(base.op, case) for case in selected}
        base.left_out = {name: reason for name, reason in reasons.items() if reason}
        base.chosen = [case for case in selected if case.name not in base.left_out]
        for case in base.chosen:
            setattr(base, f"test_{case.name}", lambda self, case=case: self.judge(case))
        return unittest_loader.loadTestsFromTestCase(base)

    return load_tests


def _chosen(flag: flags.FlagHolder, valid: Sequence[str]) -> list[str]:
    try:
        return selection.chosen(flag, valid)
    except app.UsageError as error:
        sys.exit(str(error))  # no failure of a test


def _loaded(module: str) -> spec.OpSpec:
    try:
        return spec.load(module)
    except (ImportError, AttributeError, TypeError) as error:
        if isinstance(error, ImportError) and not f"{module}.".startswith(f"{error.name}."):
            raise  # what the spec imports
        valid = ", ".join(selection.spec_modules())
        sys.exit(f"--spec: got {module} ({error}); modules with a SPEC are {valid}")


def run() -> None:
    """The main function of a test module that has a `loader`."""
    # Not where they are defined: tests of these modules import them without such flags.
    flags.mark_flags_as_required([_SPEC.name, _DEVICE.name])
    for flag in (_SPEC, _DEVICE, _TAGS, _CASES, _GOLDENS, _COMPILED):  # so that --help lists them
        flags.FLAGS.register_key_flag_for_module(sys.argv[0], flags.FLAGS[flag.name])
    main.main()
