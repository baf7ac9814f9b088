"""What needs no compiler and no package: choosing, recording, and what is said when parts miss."""

import dataclasses
import os
import textwrap

import torch
import triton
import triton.language as tl
from absl.testing import absltest, flagsaver

from ops.chunk_kda import bwd_spec, peer_comparison
from ops.common import backend, launch
from testing import host_operations, main
from testing.baselines import fla_elsewhere
from testing.npu_compile import chips

_ARCH32 = chips.ARCHITECTURES["arch32"]
_CASE = next(case for case in bwd_spec.SPEC.cases if case.name == "example")

# A host function with the interface of fla's.
_PEER = """
    import triton
    from ops.chunk_kda.peer_comparison_test import doubled

    def chunk_kda_bwd(q, k, **arguments):
        target = triton.runtime.driver.active.get_current_target().backend
        rows = q.transpose(1, 2).contiguous()
        doubled[(4,)](rows, q.shape[1], BLOCK={"cuda": 32, "npu": 64}[target])
        return rows.sum(0)
"""


@triton.jit
def doubled(x_ptr, size, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    mask = offsets < size
    tl.store(x_ptr + offsets, tl.load(x_ptr + offsets, mask=mask) * 2, mask=mask)


def ours(q, k, **_):
    out = torch.zeros_like(q)
    launch.Launch(doubled, backend.backend_of(q), (1,), {"x_ptr": out, "size": 3}, {}, {}).run()
    return out


def not_ours(**_):
    raise NotImplementedError("no kernels for 'npu-arch32'")


def _op(function: str):
    return dataclasses.replace(bwd_spec.SPEC, function=f"{__name__}:{function}")


class PeerComparisonTest(absltest.TestCase):
    def test_this_op(self):
        call = peer_comparison.record_ours(_op("ours"), _CASE, _ARCH32, 24)
        self.assertEqual([choice.name for choice in call.choices], ["doubled"])
        self.assertEqual([operation.kind for operation in call.operations], [host_operations.FILL])
        self.assertEqual(call.failure, "")

    def test_this_op_without_kernels(self):
        call = peer_comparison.record_ours(_op("not_ours"), _CASE, _ARCH32, 24)
        self.assertEqual(
            call.failure, "not available for this architecture: no kernels for 'npu-arch32'"
        )
        self.assertEmpty(call.choices)

    def test_a_peer_decides_by_the_device(self):
        site = self.create_tempdir().full_path
        folder = os.path.join(site, "fla", "ops", "kda")
        os.makedirs(folder)
        text = textwrap.dedent(_PEER).replace("ops.chunk_kda.peer_comparison_test", __name__)
        with open(os.path.join(folder, "chunk_bwd.py"), "w", encoding="utf-8") as file:
            file.write(text)
        devices = (fla_elsewhere.H200, 32), (fla_elsewhere.ascend("Ascend9", 24, 100), 64)
        for device, block in devices:
            call = peer_comparison.record_peer(site, device, bwd_spec.SPEC, _CASE, _ARCH32)
            (choice,) = call.choices
            self.assertEqual(choice.candidates[0].constants, {"BLOCK": block})
            self.assertEqual(choice.candidates[0].backend, backend.NPU_ARCH32)
            kinds = [operation.kind for operation in call.operations]
            self.assertEqual(kinds, [host_operations.TRANSPOSE, host_operations.OTHER])

    def test_cases(self):
        names = [case.name for case in peer_comparison._chosen_cases()]
        self.assertEqual(names, ["perf_b1_t8192_h32", "example"])
        with flagsaver.flagsaver(case=["nothing"]), self.assertRaisesRegex(Exception, "valid are"):
            peer_comparison._chosen_cases()

    def test_a_missing_package_is_told(self):
        self.assertEqual(
            peer_comparison._site(fla_elsewhere.check_version, "/"),
            (None, "--public is not given"),
        )
        with flagsaver.flagsaver(public=self.create_tempdir().full_path):
            site, why = peer_comparison._site(fla_elsewhere.check_version, "/")
        self.assertIsNone(site)
        self.assertRegex(why, "got none, expected 0.6.0")


if __name__ == "__main__":
    main.main()
