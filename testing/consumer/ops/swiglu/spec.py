"""What swiglu tells the test kit about itself: cases, functions, costs."""

import math

from testing import cases, distributions, spec

OP = "swiglu"


def _case(name: str, shape: tuple[int, ...], tag: str) -> cases.Case:
    tensor = cases.TensorSpec(shape, "float16", distributions.Uniform(-4, 4))
    return cases.Case(
        op=OP,
        name=name,
        tensors={"gate": tensor, "up": tensor},
        attributes={},
        tags=frozenset({tag}),
    )


def _elements(case: cases.Case) -> int:
    return math.prod(case.shape("gate"))


SPEC = spec.OpSpec(
    name=OP,
    function="ops.swiglu.kernel:swiglu",
    golden="ops.swiglu.reference:golden",
    same_precision="ops.swiglu.reference:same_precision",
    cases=(
        _case("one_block", (1, 64, 2, 8), "ci"),
        _case("tail", (2, 33, 3, 17), "ci"),
        _case("large", (1, 4096, 16, 128), "full"),
    ),
    outputs=(spec.Output("out", rows_axis=1, precision_of="gate"),),
    launches=lambda case, device: 1,
    workspace_bytes=lambda case, device: 0,
    costs=lambda case: spec.Costs(0.0, 14.0 * _elements(case), 6.0 * _elements(case)),
    kind="vector",
)
