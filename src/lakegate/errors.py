"""The errors of Lakegate and the advice for each: one class for each different reaction of a caller.

Every message states what was not done; `advice` states what to do next. `exit_code` is the command's exit status
(see the table in docs/reference/exit-codes.md).
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Sequence
from dataclasses import dataclass

from lakegate import redaction


class LakegateError(Exception):
    """an operation failed"""

    exit_code = 1
    default_advice = ""

    def __init__(self, message: str | None = None, *, advice: str | None = None, **facts: object) -> None:
        self._text = message or (self.__doc__ or "").strip()
        self.advice = self.default_advice if advice is None else advice
        self.facts: dict[str, object] = {}
        super().__init__()
        self.tell(**facts)

    def tell(self, **facts: object) -> None:
        """Adds facts that the code that raised the error did not know."""
        self.facts.update(facts)
        told = (f"{name}={value}" for name, value in self.facts.items() if value is not None)
        self.message = redaction.message(" ".join([self._text, *told]))
        self.args = (self.message,)

    @property
    def summary(self) -> str:
        """The message without facts whose text comes from elsewhere (`FOREIGN`): it holds no value of a record."""
        told = (f"{name}={value}" for name, value in self.facts.items() if value is not None and name not in FOREIGN)
        return redaction.message(" ".join([self._text, *told]))

    def __str__(self) -> str:
        return f"{self.message}. {self.advice}" if self.advice else self.message


def summary(error: BaseException) -> str:
    """Returns the part of an error that the ledger, logs and reports may show: it contains no value of a record.

    For an error that is not Lakegate's: its type, Spark's error condition, and the line that raised it. For one of Lakegate's: its
    own words, and the condition of the error that caused it.
    """
    if isinstance(error, LakegateError):
        cause = error.__cause__
        condition = None if cause is None or isinstance(cause, LakegateError) else _condition(cause)
        return error.summary + (f" [{condition}]" if condition else "")
    condition = _condition(error)
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not re.search(r"[/\\](lakegate|pyspark|py4j|delta)[/\\]", frame.filename)]
    file = re.split(r"[/\\]", own[-1].filename)[-1] if own else ""
    place = f" in {own[-1].name}, {file} line {own[-1].lineno}" if own else ""
    return type(error).__name__ + (f" [{condition}]" if condition else "") + place


def _condition(error: BaseException) -> str | None:
    """Returns Spark's error condition; of several the last, which belongs to the innermost cause."""
    found = re.findall(r"(?:^|Exception: )\[([A-Z][A-Z0-9_.]+)\]", str(error).strip())
    return str(found[-1]) if found else None


FOREIGN = ("reason", "detail", "rows")
"""Facts with text of Spark, of a driver or of the user's code. They may contain values, and enter no ledger, log or report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault in the user's input: its location, its text, and what was expected."""

    where: str
    """File and line, or the path of the key: `lakegate.yml:12`, `streams.Mutation.match`."""
    what: str
    expected: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {self.what}" + (f"; expected {self.expected}" if self.expected else "")


class InvalidRequest(LakegateError):
    """the request cannot be carried out as written; nothing was changed"""

    exit_code = 2

    def __init__(
        self,
        message: str | None = None,
        *,
        faults: Sequence[Fault] = (),
        advice: str | None = None,
        **facts: object,
    ) -> None:
        self.faults = tuple(faults)
        text = message or (
            f"{len(faults)} fault{'s' if len(faults) != 1 else ''} found; nothing was changed" if faults else None
        )
        super().__init__(text, advice=advice, **facts)

    def __str__(self) -> str:
        return "\n".join([super().__str__(), *(f"  {redaction.message(str(fault))}" for fault in self.faults)])


class UnsupportedTable(LakegateError):
    """the table uses something that Lakegate does not handle; nothing was changed"""

    exit_code = 2


class CheckpointMismatch(LakegateError):
    """the checkpoint and the table disagree; nothing was skipped and nothing was written"""

    exit_code = 2
    default_advice = "Restore the checkpoint, or start a new one with --new-checkpoint JOB (its rows come again)"


class TurnNotGranted(LakegateError):
    """the turn was not granted within its time; nothing was written"""

    exit_code = 3
    default_advice = "See who holds the turn, and why the others wait, with: lakegate status"


class Corrupt(LakegateError):
    """the data read break a rule of their format or an invariant; nothing was written"""

    exit_code = 4


class LostTurn(LakegateError):
    """the turn ended before the work did; the batch will run again under a new turn"""

    exit_code = 5


class Fenced(LostTurn):
    """a later turn has begun on the table; this writer's commit was not made, and no row is lost or duplicated"""


class Unavailable(LakegateError):
    """a required service or file is unavailable; nothing was written"""

    exit_code = 6

    def __init__(
        self,
        message: str | None = None,
        *,
        advice: str | None = None,
        retry_after_s: float | None = None,
        **facts: object,
    ) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(message, advice=advice, **facts)


class NoFiles(Unavailable):
    """no file of changes exists"""


class StoreUnavailable(Unavailable):
    """the store of turns does not answer; nothing was written"""


class JvmEnded(Unavailable):
    """the driver's JVM ended; rows that were not written are processed again"""

    default_advice = (
        "If the machine ran out of memory, give the JVM less (spark.driver.memory) or the machine more, and start again"
    )


class StagedRowsLost(Unavailable):
    """the target lost staged rows of a batch, for example in a server crash; its position stays at the last batch"""

    default_advice = "Start it again: the batch is staged again"


class MissingExtra(LakegateError):
    """a part that is installed separately is missing; nothing was done"""

    exit_code = 7


class CommitInDoubt(LakegateError):
    """the outcome of a commit is unknown; the next run reads it from the table's log"""

    exit_code = 1


class ConstraintViolated(LakegateError):
    """the changes break a constraint of the target; its position stays at the last complete batch"""

    exit_code = 1
    default_advice = (
        "Correct the row at the source or in the target, or quarantine such rows with on_violation: quarantine"
    )
    is_foreign_key = False
    """A row refers to a missing row."""


INTERRUPTED_EXIT_CODE = 130

EXIT_CODE_PRECEDENCE: tuple[int, ...] = (4, 5, 1, 2, 7, 6, 3, 130)
"""When several streams end differently, the command ends with the first of these that occurred."""


def combined_exit_code(codes: Sequence[int]) -> int:
    """Returns the exit code of several streams together: the worst by `EXIT_CODE_PRECEDENCE`, or 0."""
    failed = [code for code in codes if code != 0]
    if not failed:
        return 0
    return min(failed, key=lambda code: EXIT_CODE_PRECEDENCE.index(code) if code in EXIT_CODE_PRECEDENCE else 2)
