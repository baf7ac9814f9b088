"""The kit on toy ops, each wrong in one way: the gate that is meant to notice must be the one that
does."""

import dataclasses
import os
from unittest import mock

import torch
from absl.testing import absltest, parameterized

from ops.common import launch
from testing import accuracy, cases, distributions, golden, main, report, spec, unit

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
