"""From an op's cases to specialisations: exactly what production would compile, each once."""

import dataclasses

import torch
from absl.testing import absltest, parameterized

from ops.common import backend, launch
from testing import cases, distributions, main, spec
from testing.npu_compile import chips, example_kernels, planning, rules

_ARCH32 = chips.architecture("arch32")
_BLOCK = 1024


def add(x, y, fail=False, one_each=False):
    """The op under test: plans by shape, dtype and core count; copies what is not contiguous."""
    if fail:
        raise ValueError("fail: got True, allowed: False")
    x = x.contiguous()
    out = torch.empty_like(x)
    name = backend.backend_of(x)
    programs = -(-x.numel() // _BLOCK)
    if not one_each:
        programs = min(programs, backend.core_count(name))
    for _ in range(2):
        launch.Launch(
            example_kernels.add,
            name,
            (programs,),
            {"x_ptr": x, "y_ptr": y, "out_ptr": out, "size": x.numel()},
            {"BLOCK": _BLOCK},
            {},
        ).run()
    return out


def _case(name, shape, dtype="float32", y_dtype=None, layout="contiguous", **attributes):
    values = distributions.Uniform(0, 1)
    tensors = {
        "x": cases.TensorSpec(shape, dtype, values, layout),
        "y": y_dtype and cases.TensorSpec(shape, y_dtype, values),
    }
    return cases.Case("add", name, tensors, attributes, frozenset({"full"}))


def _spec(*table):
    return spec.OpSpec(
        name="add",
        function=f"{__name__}:add",
        golden=f"{__name__}:add",
        same_precision=f"{__name__}:add",
        cases=table,
        outputs=(spec.Output("out", None, precision_of="x"),),
        launches=lambda case, device: 2,
        workspace_bytes=lambda case, device: 0,
        costs=lambda case: spec.Costs(0, 0, 0),
    )


def _plan(*table, chosen=("Ascend910B1",)):
    return planning.plan(_ARCH32, list(chosen), _spec(*table))


class CasesTest(absltest.TestCase):
    def test_equal_launches_are_one_specialisation(self):
        # 4 TB of each: nothing of it is allocated.
        planner = _plan(
            _case("small", (4, 64), y_dtype="float32"),
            _case("huge", (1 << 20, 1 << 20), y_dtype="float32"),
            _case("copied", (4, 64), y_dtype="float32", layout="strided"),
        )
        # "huge" has a 64-bit size.
        self.assertLen(planner.units, 2)
        small, huge, copied = (call.launches for call in planner.calls)
        self.assertEqual((len(small), len(set(small))), (2, 1))
        self.assertEqual(small, copied)
        self.assertNotEqual(small, huge)

    def test_what_makes_another_specialisation(self):
        base = _case("base", (4, 64), y_dtype="float32")
        for other in (
            _case("dtype", (4, 64), "float16", "float32"),
            _case("absent", (4, 64)),
            _case("ones", (1, 1), y_dtype="float32"),
            _case("size", (3, 7), y_dtype="float32"),  # 21 is no multiple of 16
        ):
            self.assertLen(_plan(base, other).units, 2, other.name)

    def test_triton_s_own_rules(self):
        (unit,) = _plan(_case("absent", (4, 64), "bfloat16")).units.values()
        found = unit.specialisation
        self.assertEqual(
            found.signature, {"x_ptr": "*bf16", "y_ptr": "*i8", "out_ptr": "*bf16", "size": "i32"}
        )
        self.assertEqual(found.constants, {"y_ptr": None, "BLOCK": 1024})
        self.assertEqual(found.aligned, ("x_ptr", "out_ptr", "size"))
        (unit,) = _plan(_case("one", (1, 1), y_dtype="float32")).units.values()
        self.assertEqual(unit.specialisation.constants, {"size": 1, "BLOCK": 1024})
        self.assertNotIn("size", unit.specialisation.aligned)

    def test_a_view_s_offset_decides_the_alignment(self):
        # float32: 64, 4 and 16 bytes from an allocation's start.
        x = torch.empty(64, device="meta")
        for view, aligned in ((x[16:], True), (x[1:], False), (x[4:], True)):
            with launch.record() as launches, backend.pretend(backend.NPU_ARCH32, 1):
                add(view, None)
            found = planning.of_launch(launches[0])
            self.assertEqual("x_ptr" in found.aligned, aligned)

    def test_an_error_of_the_op_is_the_verdict_of_the_case(self):
        planner = _plan(_case("bad", (4, 64), fail=True), _case("good", (4, 64)))
        bad, good = planner.calls
        self.assertEqual((bad.failure.stage, bad.failure.kind), ("plan", "failed"))
        self.assertIn("ValueError: fail: got True", bad.failure.message)
        self.assertIsNone(good.failure)

    def test_a_grid_that_is_too_large_names_its_rule(self):
        planner = _plan(_case("wide", (1 << 26,), y_dtype="float32", one_each=True))
        (call,) = planner.calls
        self.assertRegex(call.failure.message, r"ValueError: grid of add: got \(65536,\)")
        self.assertIn(rules.RULES["grid"], call.failure.message)
        self.assertEmpty(planner.units)

    def test_of_a_table_with_cases_for_ascend_only_those_are_planned(self):
        case = _case("a", (4, 64))
        tagged = dataclasses.replace(_case("b", (4, 32)), tags=frozenset({"full", "npu"}))
        self.assertEqual([call.case for call in _plan(case, tagged).calls], ["b"])
        named = planning.plan(_ARCH32, ["Ascend910B1"], _spec(case, tagged), ["a"])
        self.assertEqual([call.case for call in named.calls], ["a"])

    def test_chips_of_one_specialisation(self):
        planner = _plan(_case("a", (4, 64)), chosen=_ARCH32.chips)
        (unit,) = planner.units.values()
        self.assertEqual(unit.chips, list(_ARCH32.chips))
        self.assertLen(planner.calls, 2)

    def test_a_launch_with_other_arguments_than_its_kernel(self):
        item = launch.Launch(example_kernels.add, backend.NPU_ARCH32, (1,), {"x_ptr": None}, {}, {})
        with self.assertRaisesRegex(ValueError, r"launch of add: missing \['y_ptr', 'out_ptr'"):
            planning.of_launch(item)


class KernelTest(parameterized.TestCase):
    _FUNCTION = "testing.npu_compile.example_kernels:add"
    _SIGNATURE = {"x_ptr": "*fp16", "y_ptr": "*fp16", "out_ptr": "*fp32", "size": "i32:16"}  # noqa: RUF012

    def test_a_kernel_and_a_signature(self):
        kernel = planning.Kernel(self._FUNCTION, self._SIGNATURE, {"BLOCK": 64})
        found = planning.of_kernel(kernel)
        self.assertEqual(found.signature["size"], "i32")
        self.assertEqual(found.aligned, ("x_ptr", "y_ptr", "out_ptr", "size"))
        self.assertEqual(found.constants, {"BLOCK": 64})

    def test_a_kernel_of_one_architecture(self):
        kernel = planning.Kernel(
            self._FUNCTION, self._SIGNATURE, {"BLOCK": 64}, architectures=("arch35",)
        )
        for name, count in (("arch32", 0), ("arch35", 1)):
            architecture = chips.architecture(name)
            planned = planning.plan(architecture, list(architecture.chips), kernels=[kernel])
            self.assertLen(planned.units, count)
            self.assertLen(planned.calls, count * len(architecture.chips))

    @parameterized.parameters(
        ({"BLOCK": 64, "WARPS": 2}, r"missing \[\], unknown \['WARPS'\]; they are x_ptr"),
        ({}, r"missing \['BLOCK'\], unknown \[\]"),
    )
    def test_wrong_arguments_are_named(self, constants, message):
        kernel = planning.Kernel(self._FUNCTION, self._SIGNATURE, constants)
        with self.assertRaisesRegex(ValueError, message):
            planning.of_kernel(kernel)

    def test_a_function_that_is_no_kernel(self):
        kernel = planning.Kernel(f"{__name__}:add", {}, {})
        with self.assertRaisesRegex(ValueError, "not decorated with triton.jit"):
            planning.of_kernel(kernel)


if __name__ == "__main__":
    main.main()
