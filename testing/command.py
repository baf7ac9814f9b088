"""How the kit's commands tell their user of a mistake."""

import functools
import os
import sys
from collections.abc import Callable, Sequence

from absl import app


def run(main: Callable[[Sequence[str]], None]) -> None:
    """absl's app.run; a UsageError is two lines at the end instead of one below all flags."""

    @functools.wraps(main)
    def wrapped(argv: Sequence[str]) -> None:
        try:
            main(argv)
        except app.UsageError as error:
            name = os.path.basename(argv[0])
            print(f"{name}: {error}\n--help lists the flags", file=sys.stderr)
            sys.exit(error.exitcode or 1)

    app.run(wrapped)
