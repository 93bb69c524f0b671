"""One thing that a check found, and the exit status that follows from many."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from lakegate.errors import InvalidRequest, LakegateError, combined_exit_code

Level = Literal["ok", "note", "warning", "fault"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What was found, where, and what to do about it. Only a `fault` makes a command fail."""

    level: Level
    where: str
    """File and line, or what was looked at: `lakegate.yml:12`, `Java`, `table engagement`."""
    what: str
    advice: str = ""
    exit_code: int = 0
    """Of a fault: the status of the error that a run would end with."""

    def __str__(self) -> str:
        return f"{self.where}: {self.what}" + (f". {self.advice}" if self.advice else "")


def of_error(error: LakegateError, where: str) -> list[Finding]:
    """The findings of an error that a run would end with: one, or one per fault that it lists."""
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
    """0 without a fault, else the first by the order of exit codes."""
    return combined_exit_code([finding.exit_code for finding in findings if finding.level == "fault"])
