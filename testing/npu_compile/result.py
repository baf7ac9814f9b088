"""What compiling one specialisation for one chip found.

Apart from report.py, so that an edit of a table compiles nothing again.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from testing.npu_compile.measure import Measurement
from testing.npu_compile.specialisation import Specialisation


@dataclasses.dataclass(frozen=True)
class Result:
    """One specialisation compiled for one chip.

    verdict: ok, failed, crashed or timeout. seconds: of the compiler. retries: what it gave up by
    itself. double_buffered: whether it overlaps transfers with work through second buffers, which
    arch35 does not. diagnosis: why not ok. stages: where every stage was left.
    """

    specialisation: Specialisation
    architecture: str
    chip: str
    verdict: str
    seconds: float
    retries: tuple[str, ...]
    double_buffered: bool
    measurement: Measurement | None
    diagnosis: str
    stages: str

    @property
    def label(self) -> str:
        return f"{self.specialisation.kernel} {self.specialisation.key} on {self.chip}"

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> "Result":
        measurement = data["measurement"]
        if measurement is not None:
            memory = {name: tuple(sizes) for name, sizes in measurement["memory"].items()}
            measurement = Measurement(**{**measurement, "memory": memory})
        return Result(
            **{
                **data,
                "specialisation": Specialisation.from_json(data["specialisation"]),
                "retries": tuple(data["retries"]),
                "measurement": measurement,
            }
        )
