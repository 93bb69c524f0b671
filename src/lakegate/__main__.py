"""`python -m lakegate` is the command `lakegate`."""

from __future__ import annotations

from lakegate.cli import main

if __name__ == "__main__":
    main()
