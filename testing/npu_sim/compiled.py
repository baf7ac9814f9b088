"""From a kernel launch to the program that the Ascend compiler makes of it.

A compile target (testing/npu_compile) leaves the final module of every variant that an op's cases
launch in zip files; they are looked up by the variant's key. A variant that is not there, such as
one whose constants depend on another launch grid, is compiled on the spot. Imports Triton.
"""

import glob
import os
import tempfile
import zipfile
from collections.abc import Sequence

from ops.common import launch
from testing.npu_compile import chain, chips, compiling, frontend, planning
from testing.npu_compile.specialisation import Specialisation, Unit
from testing.npu_sim.program import Program

# What a message says instead of a folder that will be deleted.
_STAGES = "not kept here; `./bazelw run //testing:npu_compile -- --out=<folder>` keeps them"


class NotCompiledError(RuntimeError):
    """A launch has no compiled module: the message says of which variant, why, and what to do."""


class Modules:
    """Programs for one chip, each parsed once.

    architecture: its first chip is the one simulated. folders: what the rule npu_compile left, with
    stages_<n>.zip.
    """

    def __init__(self, architecture: chips.Architecture, folders: Sequence[str] = ()):
        self.architecture = architecture
        self.chip = next(iter(architecture.chips))
        self._folders: list[str] = []
        self._zips: dict[str, str] = {}  # name in the zip file -> path of the file
        self._programs: dict[str, Program] = {}
        for folder in folders:
            self.add(folder)

    def add(self, folder: str) -> None:
        """Looks into a compile target's folder from now on.

        Raises:
            NotCompiledError: it has no stages.
        """
        paths = sorted(glob.glob(os.path.join(folder, "stages_*.zip")))
        if not paths:
            raise NotCompiledError(
                f"{folder}: has no stages_*.zip; expected the folder of a target npu_compile"
            )
        self._folders.append(folder)
        for path in paths:
            with zipfile.ZipFile(path) as archive:
                self._zips.update(dict.fromkeys(archive.namelist(), path))

    def program(self, item: launch.Launch) -> tuple[Specialisation, Program]:
        """The variant that a launch needs, and its program.

        Raises:
            NotCompiledError: there is none.
            UnsupportedOperationError: the simulator does not know what the program does.
        """
        specialised = planning.of_launch(item)
        if specialised.key not in self._programs:
            text = self._found(specialised) or self._compile(specialised, item)
            self._programs[specialised.key] = Program.parse(text)
        return specialised, self._programs[specialised.key]

    def _found(self, specialised: Specialisation) -> str | None:
        name = f"{specialised.key}/{self.chip}/{chain.HIVM}"
        if name not in self._zips:
            return None
        with zipfile.ZipFile(self._zips[name]) as archive:
            return archive.read(name).decode()

    def _compile(self, specialised: Specialisation, item: launch.Launch) -> str:
        label = f"{specialised.kernel} {specialised.key} for {self.chip}"
        where = ", ".join(self._folders) or "no compile target's folder was given"
        try:
            chain.compiler_folder()
        except RuntimeError as error:
            raise NotCompiledError(
                f"no compiled module of {label} ({where}), and none can be made here: {error}"
            ) from error
        unit = Unit(specialised, [self.chip])
        frontend.lower(unit, item.kernel, self.architecture, frontend.DEFAULT_LIMIT_S)
        with tempfile.TemporaryDirectory() as folder:
            result = compiling.compile_unit(
                unit, self.architecture, self.chip, folder, stages=_STAGES
            )
            if result.verdict != "ok":
                raise NotCompiledError(f"{label} does not compile: {result.diagnosis}")
            with open(os.path.join(folder, chain.HIVM), encoding="utf-8") as file:
                return file.read()
