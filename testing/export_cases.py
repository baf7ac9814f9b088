"""Prints an op's case table as JSON: `python3 -m testing.export_cases
--spec=ops.mamba3_siso_fwd.spec`."""

from absl import app, flags

from testing import cases, spec

_SPEC = flags.DEFINE_string("spec", None, "Module that holds the op's SPEC.", required=True)


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments: {argv[1:]}")
    print(cases.export(spec.load(_SPEC.value).cases))


if __name__ == "__main__":
    app.run(main)
