"""Downloads and installs a hash lock into one folder per distribution, the same bytes everywhere.

Run by pip_repository.bzl with the interpreter of @ops_python; the standard library only. In the
current folder it leaves `site-HASH/DISTRIBUTION/` for each locked distribution and a BUILD.bazel
with one py_library for each. Bytes depend on the lock and on nothing of the machine: scripts with
absolute paths and pip's own records are removed, and .pyc files carry neither times nor absolute
paths.

HASH covers the lock and this file. It has to: the folders are labels of directories, whose contents
Bazel does not look at, so a change of contents must be a change of the path.
"""

import argparse
import compileall
import concurrent.futures
import hashlib
import importlib.metadata
import json
import os
import pathlib
import py_compile
import re
import shutil
import subprocess
import sys
import zipfile

BUILD_HEADER = """load("{python_bzl}", "py_library")

package(default_visibility = ["//visibility:public"])
"""

# A folder label, not a glob: a glob gives torch 15.8k runfiles and minutes per test, this 1 second.
BUILD_LIBRARY = """
py_library(
    name = "{name}",
    data = ["{folder}"],
    imports = ["{folder}"],
    deps = {deps},
)
"""

NO_PIP = """ascend_ops needs pip once, to download its Python packages, and {python} has neither
pip nor venv with ensurepip. Debian and Ubuntu: apt-get install python3-venv
pip:  {pip_error}
venv: {venv_error}"""

NOT_OFFERED = """The locked CPU build of {name} is not offered by pip's indexes and links; the
index's own build and everything it needs is used instead ({lock})."""


class InstallError(Exception):
    """An error that the user should read without a stack trace."""


def normalise(name: str) -> str:
    """A distribution's name as locks write it, e.g. `typing_extensions` -> `typing-extensions`."""
    return re.sub(r"[-_.]+", "-", name).lower()


def parse_lock(text: str) -> dict[str, str]:
    """Returns name -> requirement with its hashes, as a pip requirements file writes it."""
    text = re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    requirements = [line.strip() for line in text.splitlines() if line.strip()]
    return {normalise(line.partition("==")[0]): line for line in requirements}


def run(command: list[str | pathlib.Path]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command],
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def checked(command: list[str | pathlib.Path]) -> None:
    result = run(command)
    if result.returncode:
        raise InstallError(f"{' '.join(map(str, command))} failed:\n{result.stdout}")


def machine_pip(base_python: str, work: pathlib.Path) -> list[str | pathlib.Path]:
    """Any pip of this machine: the interpreter's own, else that of a new venv."""
    own = run([base_python, "-m", "pip", "--version"])
    if own.returncode == 0:
        return [base_python, "-m", "pip"]
    venv = run([base_python, "-m", "venv", work / "venv"])
    if venv.returncode == 0:
        return [work / "venv" / "bin" / "python", "-m", "pip"]
    raise InstallError(
        NO_PIP.format(
            python=base_python, pip_error=own.stdout.strip(), venv_error=venv.stdout.strip()
        )
    )


def download(
    pip: list[str | pathlib.Path], requirements: list[str], work: pathlib.Path
) -> subprocess.CompletedProcess[str]:
    listing = work / "requirements.txt"
    listing.write_text("".join(f"{line}\n" for line in requirements))
    command = [*pip, "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--require-hashes", "--only-binary", ":all:"]
    return run([*command, "--dest", work / "wheels", "--requirement", listing])


def locked_pip(lock: dict[str, str], base_python: str, work: pathlib.Path) -> pathlib.Path:
    """The folder of the lock's own pip, so that every machine installs with the same one."""
    result = download(machine_pip(base_python, work), [lock["pip"]], work)
    if result.returncode:
        raise InstallError(f"pip could not download itself ({lock['pip']}):\n{result.stdout}")
    (wheel,) = (work / "wheels").glob("pip-*.whl")
    # Unpacked and compiled it starts in 0.4 s; out of the wheel in 2 s, once per distribution.
    folder = work / "pip"
    zipfile.ZipFile(wheel).extractall(folder)
    compileall.compile_dir(folder, quiet=2, workers=0)
    return folder


def is_offered(
    pip: list[str | pathlib.Path], name: str, requirement: str, work: pathlib.Path
) -> bool:
    """Downloads one requirement; False where no index or link has that version with that hash."""
    result = download(pip, [requirement], work)
    if result.returncode == 0:
        return True
    if re.search(r"No matching distribution|DO NOT MATCH THE HASHES", result.stdout):
        return False
    raise InstallError(f"pip could not download {name}:\n{result.stdout}")


def install(pip: list[str | pathlib.Path], wheel: pathlib.Path, site: pathlib.Path) -> str:
    """Installs one wheel into a folder of its own and removes what differs between machines."""
    name = normalise(wheel.name.partition("-")[0]).replace("-", "_")
    target = site / name
    command = [*pip, "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-index"]
    checked([*command, "--no-compile", "--target", target, wheel])
    for record in ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json"):
        for path in target.glob(f"*.dist-info/{record}"):
            path.unlink()
    # Console scripts name the interpreter by absolute path; programs (ruff, uv) stay.
    for path in target.glob("bin/*"):
        if path.is_file() and path.read_bytes()[:2] == b"#!":
            path.unlink()
    return name


def dependencies(
    site: pathlib.Path, names: list[str], omitted: set[str], extra: dict[str, list[str]]
) -> dict[str, list[str]]:
    """Each distribution's direct dependencies, from its metadata and from `extra`."""
    from pip._vendor.packaging.requirements import Requirement  # the locked pip's, on sys.path

    requires = {}
    for name in names:
        (info,) = (site / name).glob("*.dist-info")
        lines = importlib.metadata.Distribution.at(info).requires or []
        requires[name] = [Requirement(line) for line in lines]

    extras: dict[str, set[str]] = {name: {""} for name in names}
    result: dict[str, set[str]] = {name: set(extra.get(name, [])) for name in names}
    pending = list(names)
    while pending:  # until no distribution is asked for with a new extra
        name = pending.pop()
        for need in requires[name]:
            needed = normalise(need.name).replace("-", "_")
            if needed in omitted or needed == name:
                continue
            if need.marker and not any(need.marker.evaluate({"extra": e}) for e in extras[name]):
                continue
            if needed not in extras:
                raise InstallError(f"{name} needs {needed}, which the lock does not have")
            result[name].add(needed)
            if not need.extras <= extras[needed]:
                extras[needed] |= need.extras
                pending.append(needed)
    return {name: sorted(needs) for name, needs in result.items()}


def build_file(site: pathlib.Path, needs: dict[str, list[str]], python_bzl: str) -> str:
    text = BUILD_HEADER.format(python_bzl=python_bzl)
    for name in sorted(needs):
        deps = json.dumps([f":{need}" for need in needs[name]])
        text += BUILD_LIBRARY.format(name=name, folder=f"{site.name}/{name}", deps=deps)
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lock", type=pathlib.Path, required=True)
    parser.add_argument("--fallback_lock", type=pathlib.Path)
    parser.add_argument("--fallback_when_missing", default="torch")
    parser.add_argument("--omit", action="append", default=[])
    parser.add_argument("--extra_deps", type=json.loads, default={})
    parser.add_argument("--python_bzl", required=True)
    args = parser.parse_args()

    work = pathlib.Path("work").absolute()
    work.mkdir()
    lock_path = args.lock
    lock = parse_lock(lock_path.read_text())
    pip_folder = locked_pip(lock, os.path.realpath(sys.executable), work)
    sys.path.insert(0, str(pip_folder))
    pip: list[str | pathlib.Path] = [sys.executable, pip_folder / "pip"]

    key = args.fallback_when_missing
    if args.fallback_lock and not is_offered(pip, key, lock[key], work):
        print(NOT_OFFERED.format(name=key, lock=args.fallback_lock.name))
        lock_path = args.fallback_lock
        lock = parse_lock(lock_path.read_text())

    result = download(pip, [lock[name] for name in lock if name not in args.omit], work)
    if result.returncode:
        raise InstallError(f"pip could not download {lock_path.name}:\n{result.stdout}")

    digest = hashlib.sha256()
    for part in (
        lock_path.read_bytes(),
        pathlib.Path(__file__).read_bytes(),
        repr(args.omit).encode(),
    ):
        digest.update(hashlib.sha256(part).digest())
    site = pathlib.Path(f"site-{digest.hexdigest()[:16]}").absolute()
    site.mkdir()
    wheels = sorted((work / "wheels").iterdir())
    with concurrent.futures.ThreadPoolExecutor() as pool:
        names = sorted(pool.map(lambda wheel: install(pip, wheel, site), wheels))
    # Some packages ship templates that are not Python; they are left without a .pyc.
    compileall.compile_dir(
        site,
        quiet=2,
        workers=0,
        stripdir=str(site),
        prependdir="site",
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )
    omitted = {name.replace("-", "_") for name in args.omit}
    needs = dependencies(site, names, omitted, args.extra_deps)
    pathlib.Path("BUILD.bazel").write_text(build_file(site, needs, args.python_bzl))
    shutil.rmtree(work)


if __name__ == "__main__":
    try:
        main()
    except InstallError as error:
        sys.exit(f"\n{error}")
