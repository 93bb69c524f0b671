"""The command: `lakegate`."""

from __future__ import annotations


def main() -> None:
    """Runs the command; the exit status is that of the error raised (see `errors.py`)."""
    from lakegate.cli.app import run

    run()
