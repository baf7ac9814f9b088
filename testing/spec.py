"""What an op tells the test kit about itself.

An op's `spec.py` holds one module-level `SPEC = OpSpec(...)`. Functions that need Torch or Triton
are named as "module:function" and imported when they are called, so that reading a case table costs
no import of either, and so that TRITON_INTERPRET can be set before Triton is imported.
"""

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from typing import Any

from testing import cases as case_tables


def resolve(path: str) -> Any:
    """The object named "module:attribute"."""
    module, _, attribute = path.partition(":")
    if not module or not attribute:
        raise ValueError(f"path: got {path!r}, expected 'module:attribute'")
    return getattr(importlib.import_module(module), attribute)


@dataclasses.dataclass(frozen=True)
class Output:
    """One result of the op, in the order the function returns them.

    rows_axis: the axis of tokens; 16 consecutive ones of one head are a block of gate G2. None:
    each index of the leading axes is a block of its own. The last axis is the feature axis over
    which s (accuracy policy) is taken. precision: "float16", "bfloat16", "float32" or "hf32", which
    decides u and the floors of the gates; None takes the dtype of the input named by
    `precision_of`. exact: the output is compared bit by bit (gate G5) and by nothing else. when:
    name of the input without which the op returns None in this place; empty means always a tensor.
    pooled_rows: s is taken over so many rows together (along rows_axis), for an output without a
    feature axis: else s would be little more than the element itself, and one that happens to be
    near zero would decide. summed_rows: each row is a running sum over up to so many rows (along
    rows_axis), so its error has the size of what cancels in the sum, and neighbours share it: s is
    taken over groups of so many rows, and G4 counts groups. cancels: a sum over all rows, most of
    which cancels: r itself may be off by more than the gain that G7 injects, which then is twice
    the limit of G1 (for running sums too), and by more than a part of the sum, so that no part is
    falsified.
    """

    name: str
    rows_axis: int | None
    precision_of: str = ""
    precision: str | None = None
    exact: bool = False
    when: str = ""
    pooled_rows: int = 1
    summed_rows: int = 1
    cancels: bool = False

    def given_in(self, case: case_tables.Case) -> bool:
        """Whether the op returns a tensor, not None."""
        return not self.when or case.tensors[self.when] is not None

    def precision_in(self, case: case_tables.Case) -> str:
        if self.precision is not None:
            return self.precision
        tensor = case.tensors[self.precision_of]
        if tensor is None:
            raise ValueError(
                f"precision_of: {self.precision_of!r} is not given in case {case.name}"
            )
        return tensor.dtype


@dataclasses.dataclass(frozen=True)
class Costs:
    """What a case needs at least: FLOPs of matrix products, other FLOPs, bytes read and written if
    each is touched once."""

    matrix_flops: float
    vector_flops: float
    bytes: float


@dataclasses.dataclass(frozen=True)
class Baseline:
    """A rival that the performance target times beside the op, on the same inputs and in the same
    process.

    function: "module:function" with the op's own keyword arguments. distribution: the pinned PyPI
    name whose version is printed. devices: where it can run. minimum: the least allowed geometric
    mean of baseline time / op time, or None when it is only reported. minimum_per_case: the least
    allowed ratio of each case, by name or "*". tune: "module:function", called with a case's
    arguments before that case is timed, to let the rival choose its best configuration for it; what
    it returns is printed.
    """

    name: str
    function: str
    distribution: str
    devices: tuple[str, ...]
    minimum: float | None = None
    minimum_per_case: Mapping[str, float] = dataclasses.field(default_factory=dict)
    tune: str | None = None


@dataclasses.dataclass(frozen=True)
class OpSpec:
    """One op, as the kit sees it.

    function: the public function; it is called with a case's tensors and attributes as keywords, or
    with what `prepare` makes of them, and returns one tensor or a tuple in the order of `outputs`.
    golden: the same keywords (float64
    tensors) -> float64 results, by an independent algorithm, on whatever Torch device the tensors
    are. same_precision: the same keywords (tensors in the op's dtypes) -> results in the contract's
    dtypes; the reference r of the accuracy policy, with the op's documented roundings only.
    launches / workspace_bytes: (case, device name) -> kernel launches of one call / bytes allocated
    beside the outputs. kind: "cube+vector" or "vector", for the cross-device acceptance factor.
    prepare: a case's tensors and attributes as keywords -> the keyword arguments of one call, for
    an op some of whose inputs follow from others; see testing/inputs.py.
    """

    name: str
    function: str
    golden: str
    same_precision: str
    cases: tuple[case_tables.Case, ...]
    outputs: tuple[Output, ...]
    launches: Callable[[case_tables.Case, str], int]
    workspace_bytes: Callable[[case_tables.Case, str], int]
    costs: Callable[[case_tables.Case], Costs]
    kind: str = "cube+vector"
    baselines: tuple[Baseline, ...] = ()
    prepare: str | None = None

    def __post_init__(self):
        case_tables.check_table(self.cases)
        if self.kind not in ("cube+vector", "vector"):
            raise ValueError(f"kind: got {self.kind!r}, allowed are 'cube+vector' and 'vector'")
        names = {output.name for output in self.outputs}
        for case in self.cases:
            if case.op != self.name:
                raise ValueError(
                    f"cases: {case.name} belongs to op {case.op!r}, not to {self.name!r}"
                )
            for output in self.outputs:
                if output.when and output.when not in case.tensors:
                    raise ValueError(
                        f"output {output.name}: when: got {output.when!r}, allowed are the tensors "
                        f"of case {case.name}: {sorted(case.tensors)}"
                    )
            for waiver in case.waivers:
                if waiver.output not in names:
                    raise ValueError(
                        f"waiver of case {case.name}: output {waiver.output!r}, "
                        f"allowed are {sorted(names)}"
                    )

    @property
    def preparation(self) -> Callable[..., dict[str, Any]] | None:
        """The function that `prepare` names."""
        return None if self.prepare is None else resolve(self.prepare)

    def outputs_in(self, case: case_tables.Case) -> list[Output]:
        """Those that are tensors in this case."""
        return [output for output in self.outputs if output.given_in(case)]


def load(module: str) -> OpSpec:
    """The SPEC of a module such as "ops.mamba3_siso_fwd.spec"."""
    spec = importlib.import_module(module).SPEC
    if not isinstance(spec, OpSpec):
        raise TypeError(f"{module}.SPEC: got {type(spec).__name__}, expected testing.spec.OpSpec")
    return spec


def results(value: Any, spec: OpSpec, case: case_tables.Case) -> Mapping[str, Any]:
    """The op's return value as {output name: tensor}, without what is None in this case."""
    values = value if isinstance(value, tuple) else (value,)
    if len(values) != len(spec.outputs):
        raise ValueError(
            f"{spec.name} returned {len(values)} values, its spec declares {len(spec.outputs)}"
        )
    named = {output.name: tensor for output, tensor in zip(spec.outputs, values, strict=True)}
    for output in spec.outputs:
        if (named[output.name] is None) == output.given_in(case):
            got = type(named[output.name]).__name__
            expected = "a tensor" if output.given_in(case) else "None"
            raise ValueError(
                f"{spec.name} returned {got} for {output.name} in case {case.name}, "
                f"expected {expected}"
            )
    return {name: tensor for name, tensor in named.items() if tensor is not None}
