"""Unit -> Result: compiles one specialisation for one chip, measures it, or says why not."""

import os

from testing.npu_compile import chain, chips, diagnosis, ir, measure
from testing.npu_compile.result import Result
from testing.npu_compile.specialisation import Failure, Unit

TTIR = "kernel.ttir.mlir"
DROPPED_PRODUCT = (
    "wrong code: the kernel has a matrix product (tl.dot), the compiled module has none, and the "
    "compiler reported no error"
)


def compile_unit(
    unit: Unit,
    architecture: chips.Architecture,
    chip: str,
    folder: str,
    limit_s: float = chain.DEFAULT_LIMIT_S,
    programs: str | None = None,
    stages: str | None = None,
) -> Result:
    """Compiles for one chip and leaves every stage in `folder`.

    stages: where a reader finds them later, when that is another place.
    """
    os.makedirs(folder, exist_ok=True)
    for name, text in ((TTIR, unit.ttir), (chain.LINALG, unit.linalg)):
        if text:
            with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                file.write(text)
    failure, log, seconds, stopped_in = unit.failure, "", 0.0, ""
    retries: list[str] = []
    measurement = None
    if failure is None:
        outcome = chain.compile_linalg(
            unit.linalg,
            architecture,
            chip,
            unit.specialisation.options,
            folder,
            limit_s,
            programs,
        )
        failure, log, seconds = outcome.failure, outcome.log, outcome.seconds
        retries, stopped_in = outcome.retries, outcome.stopped_in
    if failure is None:
        try:
            with open(os.path.join(folder, chain.HIVM), encoding="utf-8") as file:
                measurement = measure.measure(ir.parse(file.read()))
        except (ir.ParseError, ValueError) as error:
            failure = Failure("hivm", "failed", f"{chain.HIVM} is not understood: {error}")
    # Seen on arch32 with an accumulator through two loops: exit code 0, and a kernel that stores
    # memory which nothing wrote.
    if measurement and "linalg.matmul" in unit.linalg and not measurement.operations["cube"]:
        failure, measurement, log = Failure("hivm", "failed", DROPPED_PRODUCT), None, ""
    message = ""
    if failure:
        message = diagnosis.diagnose(failure, log, folder, unit.ttir, stages or folder, stopped_in)
    asked = unit.specialisation.options.get("multibuffer", architecture.double_buffers)
    return Result(
        specialisation=unit.specialisation,
        architecture=architecture.name,
        chip=chip,
        verdict=failure.kind if failure else "ok",
        seconds=round(seconds, 2),
        retries=tuple(retries),
        double_buffered=bool(asked) and "auto-multi-buffer" not in retries,
        measurement=measurement,
        diagnosis=message,
        stages=stages or folder,
    )
