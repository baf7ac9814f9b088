"""The kit on toy ops, each wrong in one way: the gate that is meant to notice must be the one that
does."""

import contextlib
import dataclasses
import os
import types
from unittest import mock

import torch
from absl.testing import absltest, parameterized

from ops.common import launch
from testing import accuracy, cases, distributions, golden, main, report, spec, unit
from testing.npu_sim import findings

# What the op under test does to its result; set by each test.
_behaviour = {}


def scale(x, factor):
    """out = factor * x, computed in float32; a correct op unless a test breaks it."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    out.copy_(x.float() * factor)
    return _behaviour.get("break", lambda x, out: out)(x, out)


def reference(x, factor):
    return (x * factor).to(x.dtype)


_CASE = cases.Case(
    "scale",
    "normal",
    {"x": cases.TensorSpec((2, 70, 3, 16), "float16", distributions.Normal(), "slice")},
    {"factor": 3.0},
    frozenset({"ci"}),
)

_SPEC = spec.OpSpec(
    name="scale",
    function=f"{__name__}:scale",
    golden=f"{__name__}:reference",
    same_precision=f"{__name__}:reference",
    cases=(_CASE,),
    outputs=(spec.Output("out", 1, precision_of="x"),),
    launches=lambda case, device: 0,
    workspace_bytes=lambda case, device: 0,
    costs=lambda case: spec.Costs(0, 0, 0),
)


def prepared(x, bias, factor):
    """The arguments of `shifted`: a sum that belongs to x."""
    return {"x": x, "total": x.double().sum(-1).float(), "bias": bias, "factor": factor}


def shifted(x, total, bias, factor):
    out = scale(x, factor)
    return out, (None if bias is None else (total * factor)[..., None].contiguous())


def off_by_2_percent(x, factor):
    return reference(x, 1.02 * factor)


def without_sums(**arguments):
    return shifted(**arguments)[0], None


def shifted_reference(x, total, bias, factor):
    return x * factor, (None if bias is None else (total * factor)[..., None])


def _shifted(bias):
    tensors = {**_CASE.tensors, "bias": bias and cases.TensorSpec((3,), "float32", bias)}
    return dataclasses.replace(
        _SPEC,
        function=f"{__name__}:shifted",
        golden=f"{__name__}:shifted_reference",
        same_precision=f"{__name__}:shifted_reference",
        cases=(dataclasses.replace(_CASE, tensors=tensors),),
        outputs=(
            _SPEC.outputs[0],
            spec.Output("sums", 1, precision="float32", when="bias"),
        ),
        prepare=f"{__name__}:prepared",
    )


def _judge(behaviour=None, op=_SPEC, goldens=None) -> accuracy.Verdict:
    _behaviour.clear()
    if behaviour:
        _behaviour["break"] = behaviour
    return accuracy.judge(op, op.cases[0], unit.DEVICE, goldens)


def _write_before(x, out):
    out.as_strided((1,), (1,), out.storage_offset() - 1).fill_(0)
    return out


def _change_input(x, out):
    x[0, 0, 0, 0] += 1
    return out


def _forget_a_row(x, out):
    fresh = torch.empty_like(out)
    fresh[:, :-1] = out[:, :-1]
    return fresh


def _depend_on_garbage(x, out):
    out[0, 5, 1, :] += torch.empty_like(out)[0, 5, 1, :].nan_to_num(0.0).clamp(0, 0.1)
    return out


class JudgeTest(parameterized.TestCase):
    def _failed(self, verdict):
        return {gate.name for gate in verdict.gates if not gate.passed}

    def test_a_correct_op_passes_and_every_fault_is_caught(self):
        verdict = _judge()
        self.assertTrue(verdict.passed, verdict.failures())
        self.assertEmpty(verdict.failures())
        self.assertLen(verdict.faults["out"], 5)
        self.assertEqual(verdict.opinions["out"]["single benchmark"].verdict, "pass")
        self.assertEqual(sum(verdict.errors["out"][1]), 2 * 70 * 3 * 16)

    @parameterized.named_parameters(
        ("dtype", lambda x, out: out.float(), {"G0 contract"}, "dtype float32, expected float16"),
        ("shape", lambda x, out: out[:, :-1].contiguous(), {"G0 contract"}, "shape .2, 69, 3, 16."),
        (
            "layout",
            lambda x, out: out.transpose(1, 2).contiguous().transpose(1, 2),
            {"G0 contract"},
            "expected contiguous",
        ),
        ("out_of_bounds", _write_before, {"G0 contract"}, "guard bands of 1 allocations"),
        ("changed_input", _change_input, {"G0 contract"}, "input x or its guard bands"),
        ("unwritten_row", _forget_a_row, {"G0 non-finite", "G6 determinism"}),
        ("garbage", _depend_on_garbage, {"G6 determinism"}),
        ("gain", lambda x, out: out * 1.01, {"G1 norm", "G2 worst block", "G3 scaled max"}),
    )
    def test_a_broken_op_fails(self, behaviour, gates, message=" exceeds "):
        verdict = _judge(behaviour)
        self.assertFalse(verdict.passed)
        # A fault may trip more gates than the ones that are about it.
        self.assertContainsSubset(gates, self._failed(verdict))
        self.assertLen(verdict.failures(), len(self._failed(verdict)))
        self.assertRegex("\n".join(verdict.failures()), message)

    def test_prepared_inputs_and_an_output_that_is_not_there(self):
        for bias, outputs in ((distributions.Normal(), {"out", "sums"}), (None, {"out"})):
            verdict = _judge(op=_shifted(bias))
            self.assertTrue(verdict.passed, verdict.failures())
            self.assertEqual({gate.output for gate in verdict.gates}, outputs)
            self.assertEqual(set(verdict.faults), outputs)
        self.assertIn("G0 contract", self._failed(_judge(_change_input, _shifted(None))))
        with self.assertRaisesRegex(ValueError, "returned NoneType for sums"):
            function = f"{__name__}:without_sums"
            _judge(op=dataclasses.replace(_shifted(distributions.Normal()), function=function))

    def test_a_sum_that_cancels_gets_a_gain_that_can_be_seen(self):
        # r itself is off by 2 %, so 1 % cannot be noticed.
        function = f"{__name__}:off_by_2_percent"
        op = dataclasses.replace(_SPEC, same_precision=function)
        self.assertEmpty(_judge(op=op).faults["out"]["gain 1.01"])
        output = dataclasses.replace(_SPEC.outputs[0], cancels=True)
        self.assertNotEmpty(
            _judge(op=dataclasses.replace(op, outputs=(output,))).faults["out"]["gain 1.01"]
        )

    def test_different_results_on_another_grid_fail(self):
        runs = []

        def drift(x, out):
            runs.append(1)
            return out + 1e-3 * (len(runs) == 3)

        self.assertEqual(self._failed(_judge(drift)), {"G6 determinism"})

    def test_goldens_from_a_folder_are_used_and_checked(self):
        path = self.create_tempdir().full_path
        golden.write(_SPEC, _SPEC.cases, path)
        self.assertTrue(_judge(goldens=golden.Folder(path, _SPEC)).passed)
        other = dataclasses.replace(
            _SPEC, cases=(dataclasses.replace(_CASE, attributes={"factor": 2.0}),)
        )
        with self.assertRaisesRegex(golden.GoldenError, "stale"):
            _judge(op=other, goldens=golden.Folder(path, other))

    def test_waivers_hold_on_their_devices_only(self):
        def judged(devices):
            waivers = tuple(
                cases.Waiver("out", gate, 1.0, 0.01, "2026-11-30", "test", devices)
                for gate in ("G1 norm", "G2 worst block", "G3 scaled max", "G4 bias")
            )
            op = dataclasses.replace(_SPEC, cases=(dataclasses.replace(_CASE, waivers=waivers),))
            return _judge(lambda x, out: out * 1.01, op=op)

        self.assertEmpty(self._failed(judged(())))
        self.assertNotEmpty(
            self._failed(judged(("cuda",) if unit.DEVICE.name != "cuda" else ("npu-arch32",)))
        )
        # With limits as wide as these the negative controls pass too, and G7 says so.
        self.assertIn("G7", "\n".join(judged(()).failures()))

    def test_launches_are_recorded(self):
        self.assertEqual(_judge().launches, 0)
        with launch.record() as launches:
            self.assertEmpty(launches)


class SameBitsTest(parameterized.TestCase):
    @parameterized.parameters(((),), ((0,),), ((0, 3),), ((2, 3),))
    def test_shapes(self, shape):
        zeros = torch.zeros(shape)
        self.assertTrue(accuracy.same_bits(zeros, torch.zeros(shape)))
        self.assertEqual(accuracy.same_bits(zeros, -zeros), not zeros.numel())
        self.assertFalse(accuracy.same_bits(zeros, torch.zeros((*shape, 1))))

    def test_strides_do_not_matter(self):
        x = torch.arange(6.0).reshape(2, 3)
        self.assertTrue(accuracy.same_bits(x, x.t().contiguous().t()))


class SimulatedTest(absltest.TestCase):
    """What a simulator found is judged, whatever the values are."""

    def _judge(self, errors=(), notes=(), unwritten=(), behaviour=None, stopped=False, atomics=()):
        launches = (_SIMULATED,)
        calls = []

        class Session:
            def calling(self):
                calls.append(1)
                return contextlib.nullcontext()

            def simulation(self):
                return types.SimpleNamespace(
                    errors=errors,
                    findings=(*errors, *notes),
                    unwritten=unwritten,
                    atomics=atomics,
                    stopped=stopped,
                    first_call=launches,
                )

        with mock.patch.object(unit.DEVICE, "session", Session):
            verdict = _judge(behaviour)
        self.assertLen(calls, 3)
        return verdict

    def test_errors_fail_a_gate_of_their_own(self):
        race = findings.Finding(findings.RACE, "V and MTE2 both use ub", ("kernel.py:7",))
        verdict = self._judge(errors=(race,))
        self.assertEqual(
            [gate.name for gate in verdict.gates if not gate.passed], [accuracy.SIMULATOR_GATE]
        )
        self.assertEqual(
            verdict.failures(),
            ["normal: out: simulator: race: V and MTE2 both use ub at kernel.py:7"],
        )
        self.assertTrue(self._judge().passed)

    def test_g6_names_the_reads_of_unwritten_memory(self):
        places = tuple(f"vadd at kernel.py:{line}" for line in range(7))
        verdict = self._judge(unwritten=places, behaviour=_depend_on_garbage)
        self.assertRegex(
            "\n".join(verdict.failures()),
            "G6 determinism: .*memory held before; .* is read: vadd at .*:0; .*:4 and 2 more",
        )
        verdict = self._judge(behaviour=_depend_on_garbage, atomics=("store at kernel.py:8",))
        said = "\n".join(verdict.failures())
        self.assertRegex(said, "G6 determinism: .*what memory held before; no read of memory")
        self.assertNotIn("kernel.py:8", said)
        verdict = self._judge(behaviour=_depend_on_garbage, unwritten=places, stopped=True)
        self.assertRegex("\n".join(verdict.failures()), "G6 determinism: .*execution stopped")

    def test_g6_names_the_schedule_and_atomic_additions(self):
        runs = []

        def in_turn(x, out):
            runs.append(1)
            return out * 1.01 if len(runs) == 3 else out

        verdict = self._judge(behaviour=in_turn)
        message = "G6 determinism: .* differ with the schedule or the launch grid; no read"
        self.assertRegex("\n".join(verdict.failures()), message)
        runs.clear()
        verdict = self._judge(behaviour=in_turn, atomics=("store at kernel.py:8",))
        message = "the launch grid, as a sum .* added atomically: store at kernel.py:8; no read"
        self.assertRegex("\n".join(verdict.failures()), message)

    def test_the_report_has_estimates_notes_and_what_was_left_out(self):
        note = findings.Finding(findings.DUPLICATED_WORK, "both execute store", ("kernel.py:9",), 3)
        verdict = self._judge(notes=(note,))
        self.assertTrue(verdict.passed)
        left_out = {"large": "4e+09 floating-point operations"}
        text = report.accuracy_text([verdict], left_out)
        page = report.html([verdict], "device", left_out)
        for where in (text, page):
            self.assertRegex(where, r"estimate, no measurement.*calibration\.py")
            self.assertRegex(where, r"(?s)kcycles \(estimate\).*12\.0.*AIV\.V 50%")
            self.assertRegex(
                where, "(?s)duplicated work.*both execute store.*normal.*kernel.py:9.*3"
            )
            self.assertRegex(where, "(?s)left out.*large.*4e.09 floating-point operations")
        self.assertEqual(report.to_json([verdict])[0]["simulated"][0]["cycles"], 12000.0)

    def test_other_devices_have_none_of_it(self):
        verdict = _judge()
        self.assertNotIn(accuracy.SIMULATOR_GATE, {gate.name for gate in verdict.gates})
        self.assertNotIn("estimate", report.accuracy_text([verdict]))


_SIMULATED = types.SimpleNamespace(
    kernel="scale",
    key="0123456789",
    programs=1,
    cores=24,
    call=0,
    stopped=False,
    outcome=types.SimpleNamespace(
        makespan_cycles=12000.0, busy={"AIV0.V": 6000.0}, moved={"gm->ub": 64}
    ),
)


class ReportTest(absltest.TestCase):
    def test_table_and_page_show_the_same_verdicts(self):
        verdicts = [_judge(), _judge(lambda x, out: out * 1.01)]
        header, good, bad = report.rows(verdicts)
        self.assertEqual(good[header.index("verdict")], "pass")
        self.assertEqual(bad[header.index("verdict")], "FAIL")
        self.assertEqual(good[header.index("G7 caught")], "5/5")
        self.assertGreater(float(bad[header.index("G1 norm")]), 1)
        page = report.html(verdicts, "a <device>")
        self.assertIn("1 of 2 cases pass", page)
        self.assertIn("a &lt;device&gt;", page)
        self.assertIn("G1 norm: 0.00999 exceeds", page)
        self.assertEqual(page.count("<svg"), 2)
        self.assertNotIn("http", page)

    def test_faults_are_counted(self):
        rows = {row[0]: row[1:3] for row in report.fault_rows([_judge(), _judge()])[1:]}
        self.assertEqual(rows["sign flip"], ["2", "2"])

    def test_files(self):
        path = self.create_tempdir()
        self.enter_context(
            mock.patch.dict("os.environ", {"TEST_UNDECLARED_OUTPUTS_DIR": path.full_path})
        )
        report.write_accuracy([_judge()], "device")
        self.assertCountEqual(
            os.listdir(path.full_path),
            ["accuracy.json", "accuracy.txt", "accuracy.html"],
        )


if __name__ == "__main__":
    main.main()
