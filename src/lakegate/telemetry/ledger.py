"""The ledger: one JSON line per turn, `storage/ledger/<lock>/<run>.jsonl`; the source of history, timeline and report.

The lines are a file format: readers refuse a newer `format` and ignore keys that they do not know. `ledger_days` merges the
files of old runs into one file for each day.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from lakegate.errors import Corrupt, InvalidRequest, Unavailable
from lakegate.private_files import make_folder, open_file
from lakegate.stored_json import Damaged, checked, format_of, listed, parsed
from lakegate.telemetry.events import Event, LeftOut, PersonActed, TurnEnded

FORMAT = 1
LINE_BYTES_MAX = 1_000_000
"""The size of a row of a turn on a hundred tables is some thousand bytes."""
FILE_BYTES_MAX = 1_000_000
"""A run that has written that much goes on in a file `<run>.<number>.jsonl`, so that its old turns can be merged, too."""
ACTIONS = "actions"
"""The folder for the actions of persons, next to the turns of a lock: a file for each action."""

LEFT_OUT = "left_out"
"""The folder for parts of sources that streams did not read, next to the turns of a lock: a file for each job."""

CLOSED = "closed"
"""The folder for turns that others closed, next to the turns of a lock: a file for each turn. Its own run may still write, too."""

Row = TypeVar("Row")


def to_line(row: TurnEnded) -> str:
    """Returns the row as one line of JSON, keys in a fixed order."""
    data = {
        "format": FORMAT,
        "lock": row.lock,
        "job": row.job,
        "epoch": row.epoch,
        "query_id": row.query_id,
        "run": row.run,
        "batches": row.batches and list(row.batches),
        "predecessor": row.predecessor,
        "asked_at_ms": row.asked_at_ms,
        "granted_at_ms": row.granted_at_ms,
        "first_write_at_ms": row.first_write_at_ms,
        "commit_log_at_ms": row.commit_log_at_ms,
        "released_at_ms": row.released_at_ms,
        "versions": {table: list(versions) for table, versions in row.versions.items()},
        **({"unmet": dict(row.unmet)} if row.unmet else {}),
        "outcome": row.outcome,
        "reason": row.reason,
        "boot_id": row.boot_id,
        "granted_up_ms": row.granted_up_ms,
        "released_up_ms": row.released_up_ms,
        "closed_by": row.closed_by,
    }
    return json.dumps(data, separators=(",", ":"))


def from_line(line: str | bytes) -> TurnEnded:
    """Reads a row from its line.

    Raises:
        InvalidRequest: a newer format.
        ValueError: not a row of the ledger.
    """
    known = _fields(TurnEnded, line)
    versions = known.get("versions", {})
    if not isinstance(versions, dict):
        raise Damaged("the value of versions cannot be one")
    known["versions"] = {table: listed(numbers) for table, numbers in versions.items()}
    return _made(TurnEnded, {**known, "batches": known.get("batches") and listed(known["batches"])})


def action_line(act: PersonActed) -> str:
    """Returns an action of a person as one line of JSON."""
    return json.dumps({"format": FORMAT, **dataclasses.asdict(act)}, separators=(",", ":"))


def action_from(line: str | bytes) -> PersonActed:
    """Reads an action of a person from its line.

    Raises:
        InvalidRequest: a newer format.
        ValueError: not an action.
    """
    known = _fields(PersonActed, line)
    return _made(PersonActed, {**known, "token_ids": listed(known.get("token_ids"))})


def _fields(kind: type, line: str | bytes) -> dict[str, Any]:
    """Returns the values of a line for the fields of `kind`; keys of later versions are ignored."""
    data = parsed(line)
    if format_of(data) > FORMAT:
        raise InvalidRequest(
            f"the ledger is of format {format_of(data)}, this version reads up to {FORMAT}",
            advice="Install a newer lakegate",
        )
    return {one.name: data[one.name] for one in dataclasses.fields(kind) if one.name in data}


def _made(kind: type[Row], known: dict[str, Any]) -> Row:
    try:
        return checked(kind(**known))
    except TypeError as error:  # a field is missing
        raise Damaged(f"not a row of the ledger: {error}") from error


class LedgerSink:
    """Appends a line per ended turn, and per action of a person. The whole line is on disk when `emit` returns."""

    def __init__(self, storage: str | os.PathLike[str]) -> None:
        self._folder = Path(storage) / "ledger"
        self._parts: dict[str, int] = {}
        """Run → the number of the file in which it writes."""

    def emit(self, event: Event) -> None:
        match event:
            case TurnEnded(closed_by=None):
                self._append(self._file_of(event), to_line(event))
            case TurnEnded():
                folder = self._folder / quote(event.lock, safe="") / CLOSED
                self._append(folder / f"{event.run}.{event.epoch}.jsonl", to_line(event))
            case PersonActed():
                # In a separate folder: a version that does not know actions would read an action as a damaged turn.
                folder = self._folder / quote(event.lock, safe="") / ACTIONS
                self._append(folder / f"{event.action_id}.jsonl", action_line(event))

            case LeftOut():
                folder = self._folder / quote(event.lock, safe="") / LEFT_OUT
                line = json.dumps({"format": FORMAT, **dataclasses.asdict(event)}, separators=(",", ":"))
                self._append(folder / f"{quote(event.job, safe='')}.jsonl", line)

    def _file_of(self, event: TurnEnded) -> Path:
        folder = self._folder / quote(event.lock, safe="")
        while True:
            part = self._parts.setdefault(event.run, 0)
            path = folder / (f"{event.run}.{part}.jsonl" if part else f"{event.run}.jsonl")
            if not path.exists() or path.stat().st_size < FILE_BYTES_MAX:
                return path
            self._parts[event.run] += 1

    def _append(self, path: Path, line: str) -> None:
        try:
            make_folder(path.parent)
            fd = open_file(path, os.O_WRONLY | os.O_APPEND)
            try:
                _write_whole(fd, line.encode() + b"\n")
            finally:
                os.close(fd)
        except OSError as error:
            raise Unavailable(f"the ledger cannot be written: {error.strerror}", path=path) from error


def _write_whole(fd: int, data: bytes) -> None:
    """Appends all of the data, or nothing: the next line must not follow a partial line that a full disk left.

    The truncation would also remove concurrent appends, but a file has only one writer: a run, or a person's action.
    """
    end_bytes = os.fstat(fd).st_size
    try:
        while data:
            data = data[os.write(fd, data) :]
        os.fsync(fd)
    except BaseException:
        os.ftruncate(fd, end_bytes)
        raise


def read_runs(
    storage: str | os.PathLike[str], lock: str | None = None, *, on_damage: Callable[[Corrupt], None] | None = None
) -> list[TurnEnded]:
    """Returns the turns in the files of single runs, in no order: those that are not merged into days yet.

    Raises:
        Corrupt, InvalidRequest: As `ledger_days.read_ledger`.
    """
    return [row for path in run_files(storage, lock) for row in rows_in(path, from_line, on_damage)]


def run_files(storage: str | os.PathLike[str], lock: str | None = None) -> list[Path]:
    """Returns the files of single runs, and those of turns that others closed."""
    return [path for below in ("", CLOSED) for path in _files(storage, lock, below=below)]


def each_once(rows: Iterable[TurnEnded]) -> list[TurnEnded]:
    """Returns the rows by the time at which the turn ended, each turn once.

    What a run reports of its own turn comes before what others report of it: the run may have been stopped for a while, not killed.
    """
    found: dict[object, TurnEnded] = {}
    closed: dict[object, TurnEnded] = {}
    for row in rows:
        (closed if row.closed_by is not None else found)[identity(row)] = row
    own = {turn_of(row) for row in found.values()}
    once = {turn_of(row): row for row in closed.values() if turn_of(row) not in own}
    return sorted([*found.values(), *once.values()], key=ended)


def ended(row: TurnEnded) -> tuple[int, int]:
    """Returns the place of a row in the order of the ledger."""
    return row.released_at_ms, row.epoch or 0


def turn_of(row: TurnEnded) -> tuple[str, str, int | None]:
    """Names a turn: the lock, the run, and the epoch."""
    return row.lock, row.run, row.epoch


def identity(row: TurnEnded) -> tuple[object, ...]:
    """Names a row: two rows with one identity are the same line, read from two files."""
    return (*turn_of(row), row.job, row.asked_at_ms, row.released_at_ms, row.outcome, row.closed_by)


def trim_actions(storage: str | os.PathLike[str], *, before_ms: int) -> None:
    """Deletes what persons did and what streams left out, where it was last written before an instant (ms since 1970)."""
    for path in (file for below in (ACTIONS, LEFT_OUT) for file in _files(storage, below=below)):
        if path.stat().st_mtime * 1000 < before_ms:
            path.unlink(missing_ok=True)


def _files(storage: str | os.PathLike[str], lock: str | None = None, *, below: str = "") -> list[Path]:
    folder = quote(lock, safe="") if lock is not None else "*"
    return sorted((Path(storage) / "ledger").glob(f"{folder}/{below}/*.jsonl" if below else f"{folder}/*.jsonl"))


def read_actions(storage: str | os.PathLike[str], lock: str | None = None) -> list[PersonActed]:
    """Returns the actions of persons on one lock, or on all, each with its outcome, by time.

    Raises:
        Corrupt, InvalidRequest: As `ledger_days.read_ledger`.
    """
    acts = [list(rows_in(path, action_from)) for path in _files(storage, lock, below=ACTIONS)]
    return sorted((lines[-1] for lines in acts if lines), key=lambda act: (act.at_ms, act.action_id))


def read_left_out(storage: str | os.PathLike[str], job: str) -> list[LeftOut]:
    """Returns the parts of its source that a job did not read and that are gone; each text once, at its last time; by time.

    Raises:
        Corrupt, InvalidRequest: As `ledger_days.read_ledger`.
    """
    files = [path for path in _files(storage, below=LEFT_OUT) if path.stem == quote(job, safe="")]
    last = {row.text: row for path in files for row in rows_in(path, left_out_from)}
    return sorted(last.values(), key=lambda row: (row.at_ms, row.text))


def left_out_from(line: str | bytes) -> LeftOut:
    """Reads a `LeftOut` from its line.

    Raises:
        InvalidRequest: a newer format.
        ValueError: not such a line.
    """
    return _made(LeftOut, _fields(LeftOut, line))


def rows_in(
    path: Path, parse: Callable[[bytes], Row], on_damage: Callable[[Corrupt], None] | None = None, *, offset: int = 0
) -> Iterator[Row]:
    """Yields what `parse` makes of each line of a file; a line cut off at its end (a crash while it was written) is skipped.

    A file that is gone has no lines: its rows are in the file of a day by then, or were too old to be kept.

    Args:
        path: The file.
        parse: Raises ValueError for a line that is none.
        on_damage: Called for such a line; without it the line is an error.
        offset: Where the first line begins, in bytes.

    Raises:
        Corrupt, InvalidRequest, Unavailable: A line is none; it is of a newer format; the file cannot be read.
    """
    number = 0
    try:
        with path.open("rb") as file:
            file.seek(offset)
            while line := file.readline(LINE_BYTES_MAX):
                number += 1
                if not line.endswith(b"\n") and len(line) < LINE_BYTES_MAX:
                    return  # cut off by a crash during the write
                try:
                    yield parse(line)
                except ValueError as error:
                    damage = Corrupt(
                        f"a line of the ledger cannot be read: {error}",
                        advice="Move the file away to go on without its turns; a run goes on as it is",
                        path=path,
                        line=number,
                        offset=offset,
                    )
                    if on_damage is None:
                        raise damage from error
                    on_damage(damage)
                offset += len(line)
    except FileNotFoundError:
        return
    except OSError as error:
        raise Unavailable(f"the ledger cannot be read: {error.strerror}", path=path) from error
