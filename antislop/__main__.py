"""`python -m antislop` is `antislop`."""

from __future__ import annotations

from antislop.cli import main

if __name__ == "__main__":
    main()
