"""Compiles one shard of lower_main's work: what the other actions of the rule npu_compile run.

Writes the results as JSON and every stage into a zip file. A kernel that does not compile is a
result like any other: the test that reads it fails, not the build.
"""

import os
import tempfile
import zipfile
from collections.abc import Sequence

from absl import app, flags

from testing.npu_compile import chain, chips, compiling, specialisation

_SHARD = flags.DEFINE_string("shard", None, "A shard_<n>.json of lower_main.", required=True)
_ARCH = flags.DEFINE_enum("arch", None, list(chips.ARCHITECTURES), "Architecture.", required=True)
_LIMIT = flags.DEFINE_float("limit_s", chain.DEFAULT_LIMIT_S, "Seconds for one compilation.")
_OUT = flags.DEFINE_string("out", None, "The JSON file to write.", required=True)
_STAGES = flags.DEFINE_string("stages", None, "The zip file to write.", required=True)


def main(argv: Sequence[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments: {argv[1:]}")
    architecture = chips.architecture(_ARCH.value)
    results = []
    with (
        tempfile.TemporaryDirectory() as work,
        zipfile.ZipFile(_STAGES.value, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        for data in specialisation.load(_SHARD.value):
            unit = specialisation.Unit.from_json(data)
            for chip in unit.chips:
                name = f"{unit.specialisation.key}/{chip}"
                folder = os.path.join(work, name)
                where = f"{name}/ in {_STAGES.value}"
                result = compiling.compile_unit(
                    unit, architecture, chip, folder, _LIMIT.value, stages=where
                )
                results.append(result.to_json())
                for file in sorted(os.listdir(folder)):
                    _add(archive, os.path.join(folder, file), f"{name}/{file}")
    specialisation.dump(_OUT.value, results)


def _add(archive: zipfile.ZipFile, path: str, name: str) -> None:
    """Adds a file without its time, so that equal stages are equal bytes."""
    with open(path, "rb") as file:
        archive.writestr(zipfile.ZipInfo(name), file.read(), zipfile.ZIP_DEFLATED)


if __name__ == "__main__":
    app.run(main)
