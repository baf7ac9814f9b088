"""The arrangement for Ascend NPUs, in Triton's interpreter: the same kernels, planned for an NPU.

What their compilers make of it is judged by the accuracy targets of the simulated devices.
"""

import dataclasses
from unittest import mock

import torch
from absl.testing import absltest, parameterized

from ops.chunk_kda import contract, dispatch, fwd_contract, fwd_plan, npu_plan
from ops.chunk_kda import test_calls as calls
from ops.common import backend as backend_lib

# As in op_test.py.
_LIMIT = 2.0**-17
# The names that results have in kernels.
_BWD = {"dq": "dq", "dk": "dk", "dv": "dv_out", "db": "dbeta", "dg": "dg", "dh0": "dh0"}
_BWD |= {name: name for name in ("dA_log", "ddt_bias")}
_FWD = {"o": "o", "final_state": "final_state"}
_INTRA = {name: name for name in calls.INTRA_RESULTS}
_WY = {"dq": "dq", "dk": "dk", "dv": "dv_out", "db": "dbeta", "dg": "dg", "dA": "dakk"}


def _run(check, maker, arguments, architecture, names):
    """Results by name, of launches that are planned for an NPU of two cores."""
    problem, inputs = check(**arguments)
    plan = maker(problem, architecture, 2)
    kernels = tuple(dataclasses.replace(kernel, options={}) for kernel in plan.kernels)
    plan = dataclasses.replace(plan, kernels=kernels)
    given = inputs.tensors() | {"scale": inputs.scale}
    given["lower_bound"] = getattr(inputs, "lower_bound", None) or 0.0
    for name, other in (("initial_state", "h0"), ("A", "Akk")):
        if name in given:
            given[other] = given.pop(name)
    given |= dispatch.tables_for(problem, inputs.cu_seqlens, architecture, inputs.q)
    found = dispatch.launch_plan(problem, plan, backend_lib.CPU_REFERENCE, given)
    for name in ("dbeta", "dA_log", "ddt_bias"):
        if name in found:
            found[name] = found[name].sum(0)
    return {name: found[other] for name, other in names.items() if other in found}, plan


class NpuTest(parameterized.TestCase):
    def assert_close(self, actual, expected, limit=_LIMIT):
        self.assertEqual(set(actual), set(expected))
        for name, result in actual.items():
            share = 8 if name in ("dA_log", "ddt_bias") else 1
            self.assertLess(calls.distance(result, expected[name]), share * limit, name)

    @parameterized.product(
        architecture=npu_plan.BACKENDS,
        sizes=(
            {"t": 70},
            {"t": 33, "chunk_size": 32, "v_dim": 5, "k_dim": 20, "gate": "softplus"},
            {"t": 100, "cu_seqlens": (0, 33, 33, 100), "value_heads": 1, "gate": "bounded"},
        ),
    )
    def test_bwd(self, architecture, sizes):
        x = calls.bwd(**sizes)
        found, _ = _run(contract.check_bwd, npu_plan.make_plan, x, architecture, _BWD)
        self.assert_close(found, calls.golden_bwd(x))

    @parameterized.parameters(*npu_plan.BACKENDS)
    def test_what_the_forward_kept(self, architecture):
        x = calls.bwd(keep=True, dtype=torch.float16, states=False)
        found, plan = _run(contract.check_bwd, npu_plan.make_plan, x, architecture, _BWD)
        self.assertNotIn("forward_states", [kernel.kernel for kernel in plan.kernels])
        self.assert_close(found, calls.golden_bwd(x), 2.0**-9)

    def test_ranges_of_chunks(self):
        x = calls.bwd(b=2, t=200, chunk_size=32)
        whole, plan = _run(contract.check_bwd, npu_plan.make_plan, x, npu_plan.NPU_ARCH32, _BWD)
        # 80 KiB for each of 14 chunks: ranges of 5.
        with mock.patch.object(npu_plan, "_MAX_MASKED_BYTES", 400 << 10):
            parts, other = _run(
                contract.check_bwd, npu_plan.make_plan, x, npu_plan.NPU_ARCH32, _BWD
            )
        self.assertEqual(len(other.kernels), len(plan.kernels) + 4)
        for name, result in parts.items():
            self.assertTrue(torch.equal(result, whole[name]), name)

    @parameterized.product(
        architecture=npu_plan.BACKENDS,
        sizes=(
            {"t": 70},
            {"t": 33, "chunk_size": 32, "v_dim": 5, "k_dim": 20},
            {"t": 100, "cu_seqlens": (0, 33, 33, 100), "value_heads": 1},
        ),
    )
    def test_wy(self, architecture, sizes):
        x = calls.wy(**sizes)
        found, _ = _run(contract.check_wy, npu_plan.make_wy_plan, x, architecture, _WY)
        self.assert_close(found, calls.golden_wy(x))

    @parameterized.product(
        architecture=npu_plan.BACKENDS,
        sizes=(
            {"t": 70},
            {"t": 33, "chunk_size": 32, "v_dim": 5, "k_dim": 20, "gate": "softplus"},
            {"t": 100, "cu_seqlens": (0, 33, 33, 100), "value_heads": 1, "gate": "bounded"},
            {"t": 40, "k_dim": 140, "v_dim": 70, "states": False},
            {"t": 130, "dtype": torch.float16, "output_final_state": False},
        ),
    )
    def test_fwd(self, architecture, sizes):
        x = calls.fwd(**sizes)
        found, plan = _run(fwd_contract.check_fwd, fwd_plan.make_plan, x, architecture, _FWD)
        half = sizes.get("dtype") == torch.float16
        self.assert_close(found, calls.golden_fwd(x), 2.0**-9 if half else _LIMIT)
        for kernel in plan.kernels[1:3]:
            self.assertEqual(kernel.num_tasks, plan.workspace["ke"].shape[0] * x["v"].shape[2])

    @parameterized.parameters(*npu_plan.BACKENDS)
    def test_a_bad_query_is_one_token_s(self, architecture):
        x = calls.fwd()
        expected, _ = _run(fwd_contract.check_fwd, fwd_plan.make_plan, x, architecture, _FWD)
        x["q"][:, 9] = torch.nan
        found, _ = _run(fwd_contract.check_fwd, fwd_plan.make_plan, x, architecture, _FWD)
        self.assertTrue(found["o"][:, 9].isnan().all())
        found["o"][:, 9] = expected["o"][:, 9]
        for name, result in found.items():
            self.assertTrue(torch.equal(result, expected[name]), name)

    @parameterized.product(
        architecture=npu_plan.BACKENDS,
        sizes=(
            {"t": 70},
            {"t": 33, "chunk_size": 32, "v_dim": 5, "k_dim": 20},
            {"t": 100, "cu_seqlens": (0, 33, 33, 100), "value_heads": 1},
            {"t": 40, "k_dim": 140, "v_dim": 70},
        ),
    )
    def test_intra(self, architecture, sizes):
        x = calls.intra(**sizes)
        found, _ = _run(fwd_contract.check_intra, fwd_plan.make_intra_plan, x, architecture, _INTRA)
        self.assert_close(found, calls.golden_intra(x))


if __name__ == "__main__":
    absltest.main()
