"""Writes the events of simulated launches as a Chrome trace, for chrome://tracing or Perfetto.

One process per block, one thread per core and pipe; launches follow each other. A viewer shows
times as nanoseconds: one of them is one cycle, by the estimate of `timing`.
"""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from testing.npu_sim import executor


def chrome(launches: "Sequence[executor.Launch]", about: str) -> dict[str, Any]:
    """The trace of launches as JSON data.

    about: what was run, and the assumptions behind the times; viewers show it as metadata.
    """
    rows: list[dict[str, Any]] = []
    begin, process = 0.0, 0
    for item in launches:
        threads: dict[tuple[int, str], int] = {}
        for event in item.outcome.events:
            # From 1 on: Perfetto does not show the name of a thread 0.
            pipe = event.block, f"{event.core}.{event.pipe}"
            thread = threads.setdefault(pipe, 1 + len(threads))
            line = event.places[0].rpartition("/")[2] if event.places else "unknown"
            rows.append(
                {
                    "ph": "X",
                    "pid": process + event.block,
                    "tid": thread,
                    "name": f"{event.name} {line}",
                    "ts": (begin + event.start) / 1e3,
                    "dur": event.cycles / 1e3,
                    "args": {"at": list(event.places), "bytes": event.nbytes},
                }
            )
        for block in sorted({block for block, _ in threads}):
            rows += _label("process", process + block, 0, f"{item.kernel} block {block}", block)
        # By name, not in the order in which the pipes began.
        for order, ((block, name), thread) in enumerate(sorted(threads.items())):
            rows += _label("thread", process + block, thread, name, order)
        begin += item.outcome.makespan_cycles
        process += item.programs
    return {
        "traceEvents": rows,
        "displayTimeUnit": "ns",
        "otherData": {"unit": "1 ns shown is 1 cycle, an estimate", "about": about},
    }


def write(path: str, launches: "Sequence[executor.Launch]", about: str) -> None:
    """Writes the trace to a file."""
    with open(path, "w", encoding="utf-8") as file:
        json.dump(chrome(launches, about), file)


def _label(what: str, process: int, thread: int, name: str, order: int) -> list[dict[str, Any]]:
    """The name and the rank of a process or a thread."""
    row = {"ph": "M", "pid": process, "tid": thread}
    return [
        {**row, "name": f"{what}_name", "args": {"name": name}},
        {**row, "name": f"{what}_sort_index", "args": {"sort_index": process + order}},
    ]
