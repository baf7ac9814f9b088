"""Runs mamba3_siso_fwd once, on the best device present, and compares it with the float64 golden.

    ./bazelw run //ops/mamba3_siso_fwd:example
Without Bazel, at the repository's root:
    python3 -m ops.mamba3_siso_fwd.example
"""

from collections.abc import Sequence

import torch
from absl import app, flags

from ops import mamba3_siso_fwd
from ops.mamba3_siso_fwd import reference
from testing import devices

_DEVICE = flags.DEFINE_enum("device", None, devices.NAMES, "Device. Default: the best one present.")


def main(argv: Sequence[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments: {' '.join(argv[1:])}")
    # Before the op is first used: without an accelerator this switches Triton's interpreter on.
    device = devices.require(_DEVICE.value or devices.best())
    if not device.is_accelerator:
        print(
            "No NPU or GPU is used: the kernel runs in Triton's interpreter (TRITON_INTERPRET=1)."
        )

    b, s, hq, heads, k_dim, v_dim, pairs = 1, 128, 2, 4, 64, 96, 32
    torch.manual_seed(0)
    arguments = {
        "q": torch.nn.functional.normalize(torch.randn(b, s, hq, k_dim), dim=-1).half(),
        "k": torch.nn.functional.normalize(torch.randn(b, s, hq, k_dim), dim=-1).half(),
        "v": torch.randn(b, s, heads, v_dim).half(),
        "adt": -0.1 * torch.rand(b, heads, s),
        "dt": 0.1 * torch.rand(b, heads, s),
        "trap": torch.randn(b, heads, s),
        "q_bias": 0.3 * torch.randn(heads, k_dim),
        "k_bias": 0.3 * torch.randn(heads, k_dim),
        "angles": torch.randn(b, s, heads, pairs).cumsum(1),
        "d": torch.randn(heads),
        "z": torch.randn(b, s, heads, v_dim).half(),
    }
    arguments = {name: value.to(device.torch_device) for name, value in arguments.items()}

    out = mamba3_siso_fwd.mamba3_siso_fwd_kernel(**arguments, chunk_size=64)

    golden = reference.golden(**arguments)
    error = (out.double() - golden).norm() / golden.norm()
    largest = (out.double() - golden).abs().max()
    print(f"output: {list(out.shape)} {str(out.dtype).removeprefix('torch.')}")
    print(f"error against the float64 golden: {error:.2e} in norm, {largest:.2e} at most")
    print(f"device: {device.name}, {device.describe()}")


if __name__ == "__main__":
    app.run(main)
