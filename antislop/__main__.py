"""The command line: `python -m antislop` does the same as the command `antislop`."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from antislop import __version__

_STREAMS = (("stdin", os.O_WRONLY, "r"), ("stdout", os.O_RDONLY, "w"), ("stderr", os.O_WRONLY, "w"))


def main() -> None:
    """Run the command line. For `--version`, the commands are not imported."""
    for name, flag, mode in _STREAMS:
        if getattr(sys, name) is None:  # closed: a file opened next would receive what is printed
            setattr(sys, name, os.fdopen(os.open(os.devnull, flag), mode))  # data can't be read or written, remarks can
    if sys.argv[1:] in (["--version"], ["-V"]):
        with suppress(OSError):  # which the command line explains
            os.write(sys.stdout.fileno(), f"antislop {__version__}{os.linesep}".encode())
            return
    from antislop.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
