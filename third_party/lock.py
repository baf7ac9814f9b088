"""Writes the hash locks from the .in files: `./bazelw run //third_party:lock`.

  requirements_x86_64.txt        torch's CPU build, where pip's links or extra indexes have it
  requirements_x86_64_index.txt  the index's own torch with all it needs: the fallback of the first,
                                 and what --config=cuda uses
  requirements_aarch64.txt       the same for aarch64
  ascendnpu_ir_*.txt             the NPU compiler, from ascendnpu_ir.in: a repository of its own

A pin that still satisfies requirements.in stays, so a second run changes nothing unless the index
changed; --upgrade takes the newest versions. Indexes and links are pip's own settings on the
machine this runs on.
"""

import ast
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import uv
from absl import app, flags, logging

from third_party import pip_install

_UPGRADE = flags.DEFINE_bool("upgrade", False, "Take the newest versions instead of keeping pins.")
_CHECK = flags.DEFINE_bool("check", False, "Write nothing; exit 1 where a lock would change.")

CPU_LOCK = "requirements_x86_64.txt"
# name -> (requirements, platform); manylinux_2_28 is what torch's wheels ask for.
LOCKS = {
    "requirements_x86_64_index.txt": ("requirements.in", "x86_64-manylinux_2_28"),
    "requirements_aarch64.txt": ("requirements.in", "aarch64-manylinux_2_28"),
    CPU_LOCK: ("requirements.in", "x86_64-manylinux_2_28"),
    "ascendnpu_ir_x86_64.txt": ("ascendnpu_ir.in", "x86_64-manylinux_2_28"),
    "ascendnpu_ir_aarch64.txt": ("ascendnpu_ir.in", "aarch64-manylinux_2_28"),
}


def header(name: str) -> str:
    """The first line of the lock `name`."""
    return f"# Written by `./bazelw run //third_party:lock` from {LOCKS[name][0]}; do not edit.\n"


def pip_settings() -> dict[str, list[str]]:
    """pip's configured `index-url`, `extra-index-url` and `find-links` on this machine."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    listing = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    settings: dict[str, list[str]] = {}
    for line in listing.splitlines():
        match = re.fullmatch(r"[^=]*\.(index-url|extra-index-url|find-links)=(.*)", line)
        if match:
            settings.setdefault(match[1], []).extend(ast.literal_eval(match[2]).split())
    return {name: list(dict.fromkeys(values)) for name, values in settings.items()}


def index_flags(settings: dict[str, list[str]], with_links: bool) -> list[str]:
    """uv's flags for pip's settings; `with_links` adds what may offer builds the index has not."""
    result = [f"--default-index={url}" for url in settings.get("index-url", [])[-1:]]
    if with_links:
        result += [f"--find-links={link}" for link in settings.get("find-links", [])]
        result += [f"--index={url}" for url in settings.get("extra-index-url", [])]
        # pip takes the best version of all indexes, uv by default that of the first with the name.
        result += ["--index-strategy=unsafe-best-match"]
    return result


def resolve(folder: pathlib.Path, name: str, extra_flags: list[str], upgrade: bool) -> str:
    """Returns the text of the lock `name` as it should be now."""
    with tempfile.TemporaryDirectory() as temporary:
        output = pathlib.Path(temporary) / name
        if (folder / name).exists():
            shutil.copy(folder / name, output)
        requirements, platform = LOCKS[name]
        command = [uv.find_uv_bin(), "pip", "compile", requirements, "--quiet"]
        command += ["--python-version=3.11", f"--python-platform={platform}"]
        command += ["--generate-hashes", "--only-binary=:all:", "--no-header", "--no-config"]
        command += [f"--output-file={output}", f"--python={sys.executable}", *extra_flags]
        if upgrade:
            command.append("--upgrade")
        subprocess.run(command, check=True, cwd=folder)
        return header(name) + output.read_text().replace(header(name), "")


def versions(text: str) -> dict[str, str]:
    """Distribution name -> version, without a local part such as `+cpu`."""
    return {
        name: re.split(r"[ +]", line.partition("==")[2])[0]
        for name, line in pip_install.parse_lock(text).items()
    }


def disagreements(texts: dict[str, str]) -> list[str]:
    """Distributions that two locks have in different versions."""
    seen: dict[str, dict[str, str]] = {}
    for lock, text in texts.items():
        for name, version in versions(text).items():
            seen.setdefault(name, {})[lock] = version
    return [f"{name}: {pins}" for name, pins in sorted(seen.items()) if len(set(pins.values())) > 1]


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments: {argv[1:]}")
    folder = pathlib.Path(os.environ["BUILD_WORKSPACE_DIRECTORY"]) / "third_party"
    settings = pip_settings()
    texts = {}
    for name in LOCKS:
        flags_of_lock = index_flags(settings, with_links=name == CPU_LOCK)
        texts[name] = resolve(folder, name, flags_of_lock, _UPGRADE.value)
    if "+cpu " not in pip_install.parse_lock(texts[CPU_LOCK])["torch"]:
        logging.warning("pip's links offer no CPU build of torch: %s stays as it is", CPU_LOCK)
        texts[CPU_LOCK] = (folder / CPU_LOCK).read_text()
    problems = disagreements(texts)
    if problems:
        sys.exit("the locks disagree; their .in files have to decide:\n" + "\n".join(problems))

    changed = [name for name, text in texts.items() if text != _read(folder / name)]
    for name in changed if not _CHECK.value else []:
        (folder / name).write_text(texts[name])
    print("changed: " + (", ".join(changed) or "nothing"))
    if changed and _CHECK.value:
        sys.exit(1)


def _read(path: pathlib.Path) -> str:
    return path.read_text() if path.exists() else ""


if __name__ == "__main__":
    app.run(main)
