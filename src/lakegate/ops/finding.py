"""A finding of a check, and the exit status that follows from many."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from lakegate.errors import InvalidRequest, LakegateError, combined_exit_code

Level = Literal["ok", "note", "warning", "fault"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A finding: its place, its text, and advice. Only a `fault` makes a command fail."""

    level: Level
    where: str
    """File and line, or the checked object: `lakegate.yml:12`, `Java`, `table engagement`."""
    what: str
    advice: str = ""
    exit_code: int = 0
    """For a fault: the exit status of the error that a run would end with."""

    def __str__(self) -> str:
        return f"{self.where}: {self.what}" + (f". {self.advice}" if self.advice else "")


def of_error(error: LakegateError, where: str) -> list[Finding]:
    """Returns the findings of an error that a run would end with: one, or one per fault in it."""
    if isinstance(error, InvalidRequest) and error.faults:
        return [
            Finding(
                level="fault",
                where=where,
                what=f"{fault.where}: {fault.what}" + (f"; expected {fault.expected}" if fault.expected else ""),
                advice=error.advice,
                exit_code=error.exit_code,
            )
            for fault in error.faults
        ]
    return [Finding(level="fault", where=where, what=error.message, advice=error.advice, exit_code=error.exit_code)]


def exit_code(findings: Iterable[Finding]) -> int:
    """Returns 0 without a fault, otherwise the first status by the order of exit codes."""
    return combined_exit_code([finding.exit_code for finding in findings if finding.level == "fault"])
