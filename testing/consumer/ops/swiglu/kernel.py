"""swiglu: one elementwise kernel."""

import torch
import triton
import triton.language as tl

from ops.common import backend as backend_lib
from ops.common import launch
from ops.swiglu import contract

BLOCK = 1024


@triton.jit
def _swiglu(gate, up, out, size, BLOCK: tl.constexpr, NUM_PROGRAMS: tl.constexpr):
    for block in range(tl.program_id(0), tl.cdiv(size, BLOCK), NUM_PROGRAMS):
        offsets = block * BLOCK + tl.arange(0, BLOCK)  # [BLOCK]
        mask = offsets < size
        g = tl.load(gate + offsets, mask=mask, other=0.0).to(tl.float32)
        u = tl.load(up + offsets, mask=mask, other=0.0).to(tl.float32)
        result = g * tl.sigmoid(g) * u
        tl.store(out + offsets, result.to(out.dtype.element_ty), mask=mask)


def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Returns gate * sigmoid(gate) * up, computed in float32.

    Args:
        gate, up: float16, the same shape.

    Raises:
        TypeError, ValueError, NotImplementedError: see contract.check.
    """
    contract.check(gate, up)
    gate, up = gate.contiguous(), up.contiguous()
    out = torch.empty_like(gate)
    if gate.numel():
        backend = backend_lib.backend_of(gate)
        programs = min(triton.cdiv(gate.numel(), BLOCK), backend_lib.core_count(backend))
        launch.Launch(
            kernel=_swiglu,
            backend=backend,
            grid=(programs,),
            args={"gate": gate, "up": up, "out": out, "size": gate.numel()},
            constants={"BLOCK": BLOCK, "NUM_PROGRAMS": programs},
            options={},
        ).run()
    return out
