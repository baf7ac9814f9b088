"""Where a launch's program comes from. The compiler itself is tested in testing/npu_compile."""

import os
import tempfile
import zipfile
from unittest import mock

import torch
from absl.testing import absltest, parameterized

from ops.common import backend, launch
from testing import guard, inputs, main, spec
from testing.npu_compile import chain, chips, example_kernels, frontend, planning
from testing.npu_sim import compiled

_ARCH32 = chips.architecture("arch32")
_CHIP = "Ascend910B1"


def _launch(kernel=example_kernels.add, **constants):
    x = torch.zeros(64)
    return launch.Launch(
        kernel=kernel,
        backend=backend.NPU_ARCH32,
        grid=(1,),
        args={"x_ptr": x, "y_ptr": x, "out_ptr": x, "size": 64},
        constants=constants or {"BLOCK": 64},
        options={},
    )


class ModulesTest(absltest.TestCase):
    def _folder(self, files):
        folder = self.create_tempdir().full_path
        for name, texts in files.items():
            with zipfile.ZipFile(os.path.join(folder, name), "w") as archive:
                for path, text in texts.items():
                    archive.writestr(path, text)
        return folder

    def _key(self):
        return planning.of_launch(_launch()).key

    def test_a_target_s_module_is_found_by_key_and_chip_and_parsed_once(self):
        folder = self._folder(
            {
                "stages_0.zip": {"0000000000/Ascend910B1/hivm.mlir": "another variant"},
                "stages_1.zip": {
                    f"{self._key()}/Ascend910_9362/hivm.mlir": "another chip",
                    f"{self._key()}/{_CHIP}/kernel.ttir.mlir": "another stage",
                    f"{self._key()}/{_CHIP}/hivm.mlir": "this",
                },
            }
        )
        parse = self.enter_context(
            mock.patch.object(compiled.Program, "parse", side_effect=lambda text: [text])
        )
        modules = compiled.Modules(_ARCH32, [folder])
        specialised, program = modules.program(_launch())
        self.assertEqual((specialised.kernel, program), ("add", ["this"]))
        self.assertIs(modules.program(_launch())[1], program)
        parse.assert_called_once()

    def test_what_no_target_has_is_compiled_once(self):
        folder = self._folder({"stages_0.zip": {f"{self._key()}/Ascend910_9362/hivm.mlir": "no"}})
        lower = self.enter_context(mock.patch.object(frontend, "lower", side_effect=frontend.lower))
        modules = compiled.Modules(_ARCH32, [folder])
        program = modules.program(_launch())[1]
        self.assertEqual(list(program.entries), ["AIV"])
        self.assertIs(modules.program(_launch())[1], program)
        lower.assert_called_once()

    def test_a_kernel_that_does_not_compile(self):
        item = launch.Launch(
            example_kernels.misspelt,
            backend.NPU_ARCH32,
            (1,),
            {"x_ptr": torch.zeros(4), "out_ptr": torch.zeros(4)},
            {"N": 4},
            {},
        )
        message = r"(?s)misspelt [0-9a-f]{10} for Ascend910B1 does not compile: .*indices"
        with self.assertRaisesRegex(compiled.NotCompiledError, message) as caught:
            compiled.Modules(_ARCH32).program(item)
        # The stages' folder is gone when somebody reads this.
        self.assertRegex(str(caught.exception), "stages: not kept here; .*npu_compile")
        self.assertNotIn(tempfile.gettempdir(), str(caught.exception))

    def test_without_the_compiler(self):
        missing = RuntimeError("looked for the package ascendnpu-ir: pip install it")
        message = (
            f"add {self._key()} for {_CHIP} .no compile target's folder was given., and none can "
            "be made here: looked for the package ascendnpu-ir: pip install it"
        )
        with (
            mock.patch.object(chain, "compiler_folder", side_effect=missing),
            self.assertRaisesRegex(compiled.NotCompiledError, message),
        ):
            compiled.Modules(_ARCH32).program(_launch())

    def test_a_folder_of_something_else(self):
        folder = self._folder({})
        with self.assertRaisesRegex(compiled.NotCompiledError, f"{folder}: has no stages"):
            compiled.Modules(_ARCH32, [folder])


class SameVariantTest(parameterized.TestCase):
    """A compile target plans on tensors without memory, a simulated call on guarded ones; both have
    to arrive at the same variant."""

    @parameterized.parameters(*chips.ARCHITECTURES)
    def test_keys(self, name):
        architecture = chips.architecture(name)
        chip, cores = next(iter(architecture.chips.items()))
        op = spec.load("ops.mamba3_siso_fwd.spec")
        small = [case for case in op.cases if "ci" in case.tags]
        layouts = {t.layout for case in small for t in case.tensors.values() if t}
        self.assertContainsSubset({"slice", "permuted", "strided", "odd"}, layouts)
        for case in small:
            planned = planning.plan(architecture, [chip], op, [case.name]).calls[0]
            keys = []
            given = inputs.Inputs(case, "cpu", op.preparation).arguments

            def note(item, keys=keys):
                keys.append(planning.of_launch(item).key)

            with (
                guard.GuardedAllocations(),
                backend.limit_programs(3),
                backend.pretend(architecture.backend, cores, note),
            ):
                spec.resolve(op.function)(**given)
            self.assertEqual(keys, planned.launches, case.name)


if __name__ == "__main__":
    main.main()
