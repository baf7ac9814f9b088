"""The variants as the rule npu_compile takes them."""

from testing.npu_compile import planning
from testing.npu_sim.examples.variants import VARIANTS

KERNELS = tuple(
    planning.Kernel(
        variant.function,
        variant.signature,
        variant.constants,
        architectures=variant.architectures,
    )
    for variant in VARIANTS.values()
)
