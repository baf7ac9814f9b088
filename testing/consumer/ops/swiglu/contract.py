"""The argument contract of swiglu."""

import torch

from ops.common import checks


def check(gate: torch.Tensor, up: torch.Tensor) -> None:
    """Checks the arguments of a call; reads no values.

    Raises:
        TypeError: an argument is no tensor, or has another layout or dtype.
        ValueError: the shapes or devices differ.
        NotImplementedError: an argument requires a gradient while gradients are enabled.
    """
    tensors = {"gate": gate, "up": up}
    for name, tensor in tensors.items():
        checks.check_tensor(name, tensor)
        checks.check_strided(name, tensor)
        checks.check_dtype(name, tensor, (torch.float16,))
    checks.check_shape("up", up, gate.shape, "that of gate")
    checks.check_same_device("up", up, gate.device, "gate")
    checks.check_no_gradients("swiglu", tensors.items())
