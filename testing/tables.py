"""Tables as text, and where a test may leave them. The standard library only."""

import os
from collections.abc import Sequence


def folder() -> str | None:
    """Where this test may leave files: Bazel's undeclared outputs, or OPS_REPORT_DIR without Bazel,
    or nowhere."""
    return os.environ.get("TEST_UNDECLARED_OUTPUTS_DIR") or os.environ.get("OPS_REPORT_DIR")


def table(rows: Sequence[Sequence[str]]) -> str:
    """Text columns, the first row being the header."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """The same as a Markdown table."""
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])
