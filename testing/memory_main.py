"""Memory target of an op on a device: bytes beside inputs and outputs, and kernel launches, against
the op's declarations.

On an accelerator the allocator's peak during one call counts. On the interpreter every allocation
of the call counts, freed or not: an upper bound of the peak.
"""

from typing import Any, ClassVar

from testing import cases, devices, op_testcase, spec

# Torch's allocators round a block up to a multiple of this many bytes.
_GRANULE = 512
# The performance policy's margin over the declared workspace.
_MARGIN = 1.1


class MemoryTest(op_testcase.OpTestCase):
    rows: ClassVar[list[dict[str, Any]]] = []

    def judge(self, case: cases.Case) -> None:
        from ops.common import launch  # imports Triton
        from testing import guard, inputs

        prepare = self.op.preparation
        arguments = inputs.Inputs(case, self.device.torch_device, prepare).arguments
        function = spec.resolve(self.op.function)
        with guard.GuardedAllocations() as guarded, launch.record() as launches:
            outputs = spec.results(function(**arguments), self.op, case)
            self.device.synchronize()
        result_bytes = sum(-(-tensor.nbytes // _GRANULE) * _GRANULE for tensor in outputs.values())
        if isinstance(self.device, devices.Accelerator):
            # Each temporary is rounded up too, which the declaration does not know.
            rounding = (_GRANULE - 1) * (guarded.allocations - len(outputs))
            del outputs
            used = self.device.peak_bytes(lambda: function(**arguments)) - result_bytes
        else:
            rounding = 0
            used = guarded.allocated_bytes - sum(tensor.nbytes for tensor in outputs.values())
        declared = self.op.workspace_bytes(case, self.device.name)
        row = {
            "case": case.name,
            "workspace bytes": max(used, 0),
            "declared bytes": declared,
            "output bytes": result_bytes,
            "launches": len(launches),
            "declared launches": self.op.launches(case, self.device.name),
        }
        self.rows.append(row)
        self.assertLessEqual(
            used,
            declared * _MARGIN + rounding,
            f"{case.name}: workspace of {used} bytes, declared are {declared}",
        )
        self.assertLen(
            launches, row["declared launches"], f"{case.name}: kernel launches of one call"
        )

    @classmethod
    def finish(cls) -> None:
        if not cls.rows:
            return
        from testing import report

        text = report.table(
            [list(cls.rows[0]), *([str(value) for value in row.values()] for row in cls.rows)]
        )
        print(f"{cls.device.describe()}\n{text}")
        report.write("memory", cls.rows, text, cls.device.describe())


load_tests = op_testcase.loader(MemoryTest, lambda device: device.case_tags)

if __name__ == "__main__":
    op_testcase.run()
