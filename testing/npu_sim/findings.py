"""What a simulation can find wrong with a program, and what stops it."""

import dataclasses
from collections.abc import Sequence

OUT_OF_BOUNDS = "out of bounds"
RACE = "race"
BLOCK_RACE = "race between blocks"
DEADLOCK = "deadlock"
FLAG_SET_TWICE = "flag set twice"
LEFTOVER_FLAG = "leftover flag"
COUNTER_OVERFLOW = "counter overflow"
UNWRITTEN = "never-written memory reaches an output"
SCHEDULE = "the schedule changes the result"
ADDED_TWICE = "added twice"
DUPLICATED_WORK = "duplicated work"

# What costs time but leaves the result right.
_NOTES = frozenset({DUPLICATED_WORK})


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing found.

    kind: one of the constants above. message: what happened, with its operations and memory.
    places: `file:line` of the kernel's source, or `hivm line n` where that is not known. count: how
    often it happened.
    """

    kind: str
    message: str
    places: tuple[str, ...] = ()
    count: int = 1

    @property
    def is_error(self) -> bool:
        return self.kind not in _NOTES

    def __str__(self) -> str:
        times = f" ({self.count} times)" if self.count > 1 else ""
        places = f" at {', '.join(self.places)}" if self.places else ""
        return f"{self.kind}: {self.message}{places}{times}"


class StoppedError(Exception):
    """The program cannot go on: an access out of bounds, or a deadlock. `finding` says what."""

    def __init__(self, finding: Finding):
        super().__init__(str(finding))
        self.finding = finding


class UnsupportedOperationError(Exception):
    """The simulator does not know an operation, or a form of it, or nobody could execute it.

    It is never skipped or approximated: nothing can be said about a program that has it.
    """

    def __init__(self, name: str, detail: str, places: Sequence[str] = ()):
        super().__init__(name, detail, tuple(places))
        self.name = name
        self.detail = detail
        self.places = tuple(places)

    def __str__(self) -> str:
        places = f" at {', '.join(self.places)}" if self.places else ""
        return f"the simulator cannot execute {self.name}{places}: {self.detail}"

    def at(self, places: Sequence[str]) -> "UnsupportedOperationError":
        """The same with the operation's places."""
        return UnsupportedOperationError(self.name, self.detail, places)
