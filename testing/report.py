"""Writes what a run found: JSON for programs, a text table and one self-contained HTML page for
people."""

import dataclasses
import datetime
import importlib.metadata
import json
import math
import os
import platform
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2

from testing import accuracy, comparator
from testing.npu_sim import summary
from testing.tables import folder, table

_GATES = (
    accuracy.SIMULATOR_GATE,
    "G0 contract",
    "G0 non-finite",
    "G1 norm",
    "G2 worst block",
    "G3 scaled max",
    "G4 bias",
    "G5 exact",
    "G6 determinism",
)
_NUMERIC = ("G1 norm", "G2 worst block", "G3 scaled max", "G4 bias")


def environment() -> dict[str, str]:
    """Versions of what decides the results, the machine and the date."""
    versions = {
        "date": datetime.date.today().isoformat(),
        "python": platform.python_version(),
        "machine": platform.machine(),
    }
    for name in ("torch", "torch-npu", "triton-ascend", "triton", "numpy"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def rows(verdicts: Sequence[accuracy.Verdict]) -> list[list[str]]:
    """One row per case and output: the used share of every gate's limit (1.00 is the limit),
    verdicts of other standards."""
    gates = [
        name
        for name in _GATES
        if any(gate.name == name for verdict in verdicts for gate in verdict.gates)
    ]
    standards = sorted(
        {name for verdict in verdicts for output in verdict.opinions.values() for name in output}
    )
    result = [["case", "output", "device", *gates, "G7 caught", "verdict", *standards]]
    for verdict in verdicts:
        for output in dict.fromkeys(gate.output for gate in verdict.gates):
            by_name = {gate.name: gate for gate in verdict.gates if gate.output == output}
            injected = verdict.faults.get(output, {})
            caught = sum(bool(found) for found in injected.values())
            opinions = verdict.opinions.get(output, {})
            passed = all(gate.passed for gate in by_name.values()) and caught == len(injected)
            result.append(
                [
                    verdict.case,
                    output,
                    verdict.device,
                    *(_used(by_name.get(name)) for name in gates),
                    f"{caught}/{len(injected)}",
                    "pass" if passed else "FAIL",
                    *(opinions[name].verdict if name in opinions else "-" for name in standards),
                ]
            )
    return result


def _used(gate: comparator.Gate | None) -> str:
    if gate is None:
        return "-"
    if gate.limit == 0:
        return "ok" if gate.passed else f"{gate.value:g}"
    return f"{gate.used:.2f}" + ("w" if gate.waiver else "")


def fault_rows(verdicts: Sequence[accuracy.Verdict]) -> list[list[str]]:
    """G7: for each injected fault the cases it applies to, those that caught it, and the gates that
    did."""
    faults: dict[str, list[Sequence[str]]] = {}
    for verdict in verdicts:
        for injected in verdict.faults.values():
            for fault, caught in injected.items():
                faults.setdefault(fault, []).append(caught)
    result = [["fault", "cases", "caught", "by"]]
    for fault, catches in faults.items():
        by = {
            gate: sum(gate in gates for gates in catches)
            for gate in sorted({g for gates in catches for g in gates})
        }
        text = ", ".join(f"{gate}: {count}" for gate, count in by.items())
        result.append([fault, str(len(catches)), str(sum(bool(gates) for gates in catches)), text])
    return result


def reference_rows(verdicts: Sequence[accuracy.Verdict]) -> list[list[str]]:
    """What the same-precision reference r itself reaches, as a share of each gate's limit."""
    gates = [
        name
        for name in _NUMERIC
        if any(gate.name == name for verdict in verdicts for gate in verdict.gates)
    ]
    result = [["case", "output", *(f"{name}: r / limit" for name in gates)]]
    for verdict in verdicts:
        for output in dict.fromkeys(gate.output for gate in verdict.gates):
            by_name = {gate.name: gate for gate in verdict.gates if gate.output == output}
            result.append(
                [verdict.case, output, *(_same_share(by_name.get(name)) for name in gates)]
            )
    return result


def _same_share(gate: comparator.Gate | None) -> str:
    if gate is None or not gate.limit or math.isnan(gate.same):
        return "-"
    return f"{gate.same / gate.limit:.2f}"


def _summaries(verdict: accuracy.Verdict) -> list[summary.Summary]:
    """Estimates of the launches of the first call; none from a device that is not simulated."""
    launches = verdict.simulation.first_call if verdict.simulation else ()
    return [summary.of_launch(item) for item in launches]


def _simulated_tables(
    verdicts: Sequence[accuracy.Verdict], left_out: Mapping[str, str]
) -> list[tuple[str, list[list[str]]]]:
    """(title, rows) of what only simulators say, and of the cases that were too large for one."""
    tables = []
    found = [(verdict.case, _summaries(verdict)) for verdict in verdicts]
    if any(summaries for _, summaries in found):
        title = f"Simulated launches of one call ({summary.ESTIMATE}; {summary.ASSUMPTIONS})"
        tables.append((title, summary.case_rows(found)))
    notes = summary.note_rows(
        [(verdict.case, verdict.simulation.findings) for verdict in verdicts if verdict.simulation]
    )
    if notes:
        tables.append(("What the simulator noticed and does not count as an error", notes))
    if left_out:
        rows = [["case", "too much for this device"], *map(list, left_out.items())]
        tables.append(("Cases that were left out", rows))
    return tables


def to_json(verdicts: Sequence[accuracy.Verdict]) -> list[dict[str, Any]]:
    """The verdicts as plain data."""
    return [
        {
            "op": verdict.op,
            "case": verdict.case,
            "device": verdict.device,
            "passed": verdict.passed,
            "launches": verdict.launches,
            "gates": [
                dataclasses.asdict(gate)
                | {"passed": gate.passed, "same": None if math.isnan(gate.same) else gate.same}
                for gate in verdict.gates
            ],
            "faults": verdict.faults,
            "opinions": {
                output: {name: dataclasses.asdict(opinion) for name, opinion in found.items()}
                for output, found in verdict.opinions.items()
            },
            "errors": verdict.errors,
            "simulated": [dataclasses.asdict(found) for found in _summaries(verdict)],
        }
        for verdict in verdicts
    ]


def write(name: str, data: Any, text: str, device: str) -> None:
    """Writes `name`.json and `name`.txt into this test's output folder; nothing when there is
    none."""
    path = folder()
    if path is None:
        return
    os.makedirs(path, exist_ok=True)
    record: Mapping[str, Any] = {"device": device, "environment": environment(), "results": data}
    with open(os.path.join(path, f"{name}.json"), "w", encoding="utf-8") as file:
        json.dump(record, file, indent=1)
    with open(os.path.join(path, f"{name}.txt"), "w", encoding="utf-8") as file:
        file.write(f"{device}\n{environment()}\n\n{text}\n")


def accuracy_text(
    verdicts: Sequence[accuracy.Verdict], left_out: Mapping[str, str] | None = None
) -> str:
    """All tables of an accuracy run. left_out: case -> why the device did not run it."""
    tables = [table(part(verdicts)) for part in (rows, fault_rows, reference_rows)]
    tables += [
        f"{title}\n{table(part)}" for title, part in _simulated_tables(verdicts, left_out or {})
    ]
    return "\n\n".join(tables)


def write_accuracy(
    verdicts: Sequence[accuracy.Verdict], device: str, left_out: Mapping[str, str] | None = None
) -> None:
    """Prints an accuracy run and writes it as JSON, text and HTML."""
    text = accuracy_text(verdicts, left_out)
    print(f"{device}\n{text}")
    write("accuracy", to_json(verdicts), text, device)
    if path := folder():
        with open(os.path.join(path, "accuracy.html"), "w", encoding="utf-8") as file:
            file.write(html(verdicts, device, left_out))


def html(
    verdicts: Sequence[accuracy.Verdict],
    device: str,
    left_out: Mapping[str, str] | None = None,
    more_tables: Sequence[tuple[str, Sequence[Sequence[str]]]] = (),
    more_failures: Sequence[str] = (),
) -> str:
    """One self-contained page: the table, the negative controls, and an error histogram per case.

    left_out: case -> why the device did not run it. more_tables: (title, rows) to show beside them;
    more_failures: lines to list with the failures.
    """
    template = os.path.join(os.path.dirname(__file__), "report.html.jinja")
    with open(template, encoding="utf-8") as file:
        page = jinja2.Environment(
            autoescape=True, trim_blocks=True, lstrip_blocks=True
        ).from_string(file.read())
    charts = [
        {
            "case": verdict.case,
            "output": output,
            "bars": [
                {
                    "exponent": exponent,
                    "count": count,
                    "height": round(60 * count / max(1, max(counts)), 1),
                }
                for exponent, count in zip(exponents, counts, strict=True)
            ],
        }
        for verdict in verdicts
        for output, (exponents, counts) in verdict.errors.items()
    ]
    waivers = [gate for verdict in verdicts for gate in verdict.gates if gate.waiver]
    return page.render(
        device=device,
        environment=environment(),
        passed=sum(verdict.passed for verdict in verdicts),
        total=len(verdicts),
        tables=[
            (
                "Cases: used share of each gate's limit (1.00 is the limit); right of the verdict, "
                "what other standards say, which gates nothing",
                rows(verdicts),
            ),
            ("Negative controls (gate G7)", fault_rows(verdicts)),
            ("The same-precision reference itself", reference_rows(verdicts)),
            *_simulated_tables(verdicts, left_out or {}),
            *more_tables,
        ],
        waivers=waivers,
        charts=charts,
        failures=[*(line for verdict in verdicts for line in verdict.failures()), *more_failures],
    )
