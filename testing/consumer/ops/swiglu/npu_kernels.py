"""The kernels of this package that are compiled for Ascend, without an op's case table."""

from testing.npu_compile import planning

KERNELS = (
    planning.Kernel(
        "ops.swiglu.kernel:_swiglu",
        {"gate": "*fp16", "up": "*fp16", "out": "*fp16", "size": "i32"},
        {"BLOCK": 1024, "NUM_PROGRAMS": 24},
    ),
)
