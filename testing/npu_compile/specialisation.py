"""What decides a kernel's compiled code, and the work list of a compile target, as plain data."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

# A constant as JSON carries it: numbers, booleans, text, and None for an absent tensor.
Constant = int | float | bool | str | None


@dataclasses.dataclass(frozen=True)
class Specialisation:
    """One variant of a kernel: launches that agree in all of this share compiled code.

    kernel: its name. module: where it is defined. signature: Triton's type of each run-time
    argument. constants: tl.constexpr arguments, absent tensors, and integers that are 1. aligned:
    arguments that are multiples of 16. options: compiler options.
    """

    kernel: str
    module: str
    signature: Mapping[str, str]
    constants: Mapping[str, Constant]
    aligned: tuple[str, ...]
    options: Mapping[str, Constant]

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> "Specialisation":
        return Specialisation(**{**data, "aligned": tuple(data["aligned"])})

    @property
    def key(self) -> str:
        """Ten hexadecimal digits that stand for all of it."""
        text = json.dumps(self.to_json(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:10]


@dataclasses.dataclass(frozen=True)
class Failure:
    """Why something has no compiled code.

    stage: plan, ttir, linalg or hivm. kind: failed, crashed or timeout. message: for people.
    """

    stage: str
    kind: str
    message: str


@dataclasses.dataclass
class Unit:
    """A specialisation to compile: for which chips, and how far it came.

    ttir, linalg: the texts of the first two stages where they exist.
    """

    specialisation: Specialisation
    chips: list[str]
    ttir: str = ""
    linalg: str = ""
    failure: Failure | None = None

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> "Unit":
        failure = data["failure"]
        return Unit(
            Specialisation.from_json(data["specialisation"]),
            list(data["chips"]),
            data["ttir"],
            data["linalg"],
            failure and Failure(**failure),
        )


@dataclasses.dataclass
class Call:
    """One call of the op: a case on a chip. launches: keys of specialisations, in launch order."""

    case: str
    chip: str
    launches: list[str]
    failure: Failure | None = None

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> "Call":
        failure = data["failure"]
        return Call(**{**data, "failure": failure and Failure(**failure)})


def shard_of(specialisation: Specialisation, shards: int) -> int:
    """Which of the shards compiles it; a new neighbour does not move it."""
    return int(specialisation.key, 16) % shards


def dump(path: str, data: Any) -> None:
    """Writes JSON, the same bytes for the same data."""
    with open(path, "w", encoding="utf-8") as file:
        json.dump(data, file, indent=1, sort_keys=True)
        file.write("\n")


def load(path: str) -> Any:
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def write_plan(folder: str, calls: Sequence[Call], units: Sequence[Unit], shards: int) -> None:
    """plan.json (who launches what) and shard_<n>.json (what to compile) in `folder`.

    They are apart so that another case of a known specialisation compiles nothing again.
    """
    dump(f"{folder}/plan.json", [dataclasses.asdict(call) for call in calls])
    for index in range(shards):
        mine = [unit for unit in units if shard_of(unit.specialisation, shards) == index]
        mine.sort(key=lambda unit: unit.specialisation.key)
        dump(f"{folder}/shard_{index}.json", [unit.to_json() for unit in mine])
