"""Goldens: what each case's outputs should be, made once and handed to the tests as data.

A golden folder holds `goldens.safetensors` and `manifest.json`. For every case and output it has
the float64 result of the independent algorithm ("golden") and the result of the same-precision
reference r ("same"). The manifest states for each case the fingerprint of its row in the table and
the digest of its inputs, and for each tensor shape, dtype and sha256. A test that finds anything
else than it states raises GoldenError. Reading needs NumPy only.
"""

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from testing import cases, spec

_TENSORS = "goldens.safetensors"
_MANIFEST = "manifest.json"


class GoldenError(RuntimeError):
    """A golden is missing, does not belong to its case, or is damaged."""


@dataclasses.dataclass(frozen=True)
class Reference:
    """What one output should be: float64 `golden`; `same`, the carrier of the same-precision result
    in `dtype`."""

    golden: np.ndarray
    same: np.ndarray
    dtype: str


def compute(op: spec.OpSpec, arguments: Any) -> dict[str, Reference]:
    """The references of every output, by the op's two reference functions, for
    `testing.inputs.Inputs`."""
    from testing import inputs

    case = arguments.case
    golden = spec.results(spec.resolve(op.golden)(**arguments.widened()), op, case)
    same = spec.results(spec.resolve(op.same_precision)(**arguments.arguments), op, case)
    references = {}
    for output in op.outputs_in(case):
        carrier, dtype = inputs.to_numpy(same[output.name])
        references[output.name] = Reference(inputs.to_numpy(golden[output.name])[0], carrier, dtype)
    return references


def write(op: spec.OpSpec, chosen: Sequence[cases.Case], folder: str) -> None:
    """Computes the references of the chosen cases on the CPU and writes them with their
    manifest."""
    from testing import inputs

    tensors: dict[str, np.ndarray] = {}
    manifest: dict[str, Any] = {"op": op.name, "cases": {}}
    for case in chosen:
        arguments = inputs.Inputs(case, "cpu", op.preparation)
        entry: dict[str, Any] = {
            "fingerprint": case.fingerprint(),
            "inputs": arguments.digest,
            "outputs": {},
        }
        for name, reference in compute(op, arguments).items():
            entry["outputs"][name] = {"dtype": reference.dtype}
            for role in ("golden", "same"):
                array = np.ascontiguousarray(getattr(reference, role))
                tensors[f"{case.name}/{name}/{role}"] = array
                entry["outputs"][name][role] = _describe(array)
        manifest["cases"][case.name] = entry
    os.makedirs(folder, exist_ok=True)
    safetensors.numpy.save_file(tensors, os.path.join(folder, _TENSORS))
    with open(os.path.join(folder, _MANIFEST), "w", encoding="utf-8") as file:
        json.dump(manifest, file, indent=1, sort_keys=True)
        file.write("\n")


def _describe(array: np.ndarray) -> dict[str, Any]:
    return {
        "shape": list(array.shape),
        "carrier": str(array.dtype),
        "sha256": hashlib.sha256(np.ascontiguousarray(array).data).hexdigest(),
    }


class Folder:
    """A golden folder that was written for `op`."""

    def __init__(self, path: str, op: spec.OpSpec):
        self._path = path
        self._op = op
        try:
            with open(os.path.join(path, _MANIFEST), encoding="utf-8") as file:
                self._manifest: dict[str, Any] = json.load(file)
            self._file = safetensors.safe_open(os.path.join(path, _TENSORS), framework="numpy")
        except (OSError, ValueError, safetensors.SafetensorError) as error:
            raise GoldenError(f"golden folder {path}: {error}") from error
        if self._manifest.get("op") != op.name:
            raise GoldenError(
                f"golden folder {path}: it is of op {self._manifest.get('op')!r}, not {op.name!r}"
            )

    def load(self, case: cases.Case, inputs_digest: str) -> Mapping[str, Reference]:
        """The references of one case; GoldenError unless they belong to it and are whole."""
        entry = self._manifest.get("cases", {}).get(case.name)
        if entry is None:
            raise GoldenError(f"golden of case {case.name}: missing in {self._path}")
        if entry["fingerprint"] != case.fingerprint():
            raise GoldenError(
                f"golden of case {case.name}: stale, it was made for another version of the case"
            )
        if entry["inputs"] != inputs_digest:
            raise GoldenError(
                f"golden of case {case.name}: made from other inputs than this machine generates"
            )
        names = [output.name for output in self._op.outputs_in(case)]
        if sorted(entry["outputs"]) != sorted(names):
            raise GoldenError(
                f"golden of case {case.name}: outputs {sorted(entry['outputs'])}, expected {names}"
            )
        return {name: self._reference(case, name, entry["outputs"][name]) for name in names}

    def _reference(self, case: cases.Case, name: str, entry: Mapping[str, Any]) -> Reference:
        arrays = {}
        for role in ("golden", "same"):
            key = f"{case.name}/{name}/{role}"
            try:
                arrays[role] = self._file.get_tensor(key)
            except safetensors.SafetensorError as error:
                raise GoldenError(f"golden tensor {key}: {error}") from error
            if _describe(arrays[role]) != entry[role]:
                raise GoldenError(
                    f"golden tensor {key}: damaged, it is not what its manifest states"
                )
        return Reference(arrays["golden"], arrays["same"], entry["dtype"])
