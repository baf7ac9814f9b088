"""The mutation test of an op on the simulated NPU: how many deleted synchronisations are noticed.

Deletes every flag, wait and barrier of the kernels that a case launches, one at a time, runs the op
and judges. Prints and writes a table; fails if one of those that carry data goes unnoticed.
"""

import collections
import os
from typing import Any

import torch
from absl import flags
from absl.testing import absltest

from ops.common import backend, launch
from testing import accuracy, devices, inputs, spec, tables
from testing.npu_compile import ir
from testing.npu_compile.specialisation import Specialisation
from testing.npu_sim import findings, mutations, program

_SPEC = flags.DEFINE_string("spec", None, "Module that holds the op's SPEC.", required=True)
_DEVICE = flags.DEFINE_enum(
    "device",
    None,
    [name for name in devices.NAMES if name.endswith("-sim")],
    "The simulated device.",
    required=True,
)
_CASE = flags.DEFINE_string("case", None, "The case to run, by name.", required=True)
_COMPILED = flags.DEFINE_string("compiled", None, "Folder of the compile target.", required=True)

# How many of each kind must be noticed. A barrier between two operations that do not meet is
# superfluous, and nothing can notice that it is gone.
_SHARES = {
    "wait_flag": 1.0,
    "set_flag": 1.0,
    "sync_block_wait": 1.0,
    "sync_block_set": 1.0,
    "mmadL1 wait for A": 1.0,
    "mmadL1 wait for B": 1.0,
    "mmadL1 release of A": 1.0,
    "mmadL1 release of B": 1.0,
    "pipe_barrier V": 0.9,
}
# Time order, then two random schedules with other fills.
_CALLS = 3


class _OneReplaced:
    """A stand-in for compiled.Modules with another program for one variant."""

    def __init__(self, modules: Any, specialised: Specialisation, module: ir.Module):
        self.architecture, self.chip = modules.architecture, modules.chip
        self._modules = modules
        self._replaced = specialised, program.Program(module)

    def program(self, item: launch.Launch) -> tuple[Specialisation, program.Program]:
        specialised, original = self._modules.program(item)
        if specialised.key == self._replaced[0].key:
            return self._replaced
        return specialised, original


class MutationTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        from testing.npu_sim import executor  # imports Triton

        device = devices.get(_DEVICE.value)
        assert isinstance(device, devices.Simulator)
        device.use_compiled(_COMPILED.value)
        device.prepare()
        device.require()
        self._executor = executor.Executor
        self._modules = device.modules
        op = spec.load(_SPEC.value)
        case = next(case for case in op.cases if case.name == _CASE.value)
        self._op, self._case, self._function = op, case, spec.resolve(op.function)
        self._arguments = inputs.Inputs(case, device.torch_device, op.preparation).arguments
        with launch.record() as launches:
            self._expected = self._call(self._executor(self._modules))
        self.assertNotEmpty(launches)
        self._programs = [self._modules.program(item) for item in launches]

    def _call(self, executor: Any) -> list[torch.Tensor]:
        # One program does all tasks, so that what one leaves behind meets the next.
        with executor.calling(), backend.limit_programs(1):
            results = self._function(**self._arguments)
            return list(spec.results(results, self._op, self._case).values())

    def _noticed(self, specialised: Specialisation, module: ir.Module) -> set[str]:
        """By what the module is noticed to be wrong."""
        modules: Any = _OneReplaced(self._modules, specialised, module)
        executor = self._executor(modules)
        for _ in range(_CALLS):
            outputs = self._call(executor)
            errors = executor.simulation().errors
            if errors:
                return {finding.kind for finding in errors}
            if not all(map(accuracy.same_bits, outputs, self._expected)):
                return {"other bits"}
        return set()

    def test_deleted_synchronisation_is_noticed(self):
        found: dict[str, list[set[str]]] = collections.defaultdict(list)
        missed: dict[str, list[str]] = collections.defaultdict(list)
        for specialised, original in self._programs:
            module = original.module
            self.assertEmpty(self._noticed(specialised, module), "the compiled program itself")
            for mutation in mutations.mutations(module):
                noticed = self._noticed(specialised, mutation.mutated())
                found[mutation.kind].append(noticed)
                if not noticed:
                    missed[mutation.kind].append(f"{specialised.kernel}: {mutation}")
        rows = [["deleted", "number", "noticed", "as a race", "required"]]
        for kind, verdicts in sorted(found.items()):
            races = sum(findings.RACE in kinds for kinds in verdicts)
            numbers = [str(number) for number in (len(verdicts), sum(map(bool, verdicts)), races)]
            rows.append([kind, *numbers, f"{_SHARES[kind]:.0%}" if kind in _SHARES else "-"])
        title = f"{self._op.name}, case {_CASE.value}, {_DEVICE.value}"
        text = f"{title}\n\n{tables.table(rows)}\n"
        print(f"\n{text}")
        if folder := tables.folder():
            with open(os.path.join(folder, "mutations.txt"), "w", encoding="utf-8") as file:
                file.write(text)
        self.assertTrue(
            any("wait" in kind or "barrier" in kind for kind in found),
            f"no wait and no barrier was deleted, only {sorted(found)}",
        )
        for kind, share in _SHARES.items():
            verdicts = found.get(kind, [])
            self.assertGreaterEqual(
                sum(map(bool, verdicts)), share * len(verdicts), f"not noticed: {missed[kind]}"
            )


if __name__ == "__main__":
    absltest.main()
