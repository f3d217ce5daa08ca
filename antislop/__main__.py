"""`python -m antislop` is `antislop`."""

from __future__ import annotations

import sys

from antislop import __version__


def main() -> None:
    """Run the command line. `--version` is answered without importing it."""
    if sys.argv[1:] in (["--version"], ["-V"]):
        sys.stdout.write(f"antislop {__version__}\n")
        return
    from antislop.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
