"""Writes an op's golden folder: what the Bazel rule `op_golden` runs.

Without Bazel, at the repository's root:
    python3 -m testing.golden_main --spec=ops.mamba3_siso_fwd.spec --out=FOLDER
"""

import torch
from absl import app, flags

from testing import cases, golden, spec

_SPEC = flags.DEFINE_string("spec", None, "Module that holds the op's SPEC.", required=True)
_OUT = flags.DEFINE_string("out", None, "The folder to write.", required=True)


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments: {argv[1:]}")
    # One thread: the order of additions, and so the bytes, must not depend on the machine.
    torch.set_num_threads(1)
    op = spec.load(_SPEC.value)
    golden.write(op, cases.select(op.cases, ["ci"]), _OUT.value)


if __name__ == "__main__":
    app.run(main)
