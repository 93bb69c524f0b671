"""`python -m headgate` is the command `headgate`."""

from __future__ import annotations

from headgate.cli import main

if __name__ == "__main__":
    main()
