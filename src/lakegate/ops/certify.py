"""Certifies that a person's values are gone from a table's bytes and a pipeline's storage; checks such certificates."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import lakegate
from lakegate.config import Erase, Pipeline
from lakegate.delta.local_files import LocalLog
from lakegate.erasure.certificate import Certificate, LookedAt, broken_link, from_json
from lakegate.erasure.folder import BLOCK, FolderSearch, Progress, TableSearch
from lakegate.erasure.persons import Person, as_text
from lakegate.erasure.storage import Place
from lakegate.errors import Corrupt, InvalidRequest, LakegateError, Unavailable
from lakegate.ops.stored_requests import hidden_rows
from lakegate.private_files import make_folder, write_file
from lakegate.stored_json import Damaged
from lakegate.streams.requests.column_names import column_name

IN_FORCE = ("applied", "waiting")
"""States of an erasure that holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The persons to look for, and the places."""

    table: str
    persons: tuple[Person, ...]
    storage: str | None = None
    """The pipeline's storage, which is searched, too."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings of Spark: those of S3 are used."""
    is_anywhere: bool = False


def person(text: str) -> Person:
    """Reads `COLUMN=VALUE`.

    Raises:
        InvalidRequest: It is not of that form, or the value is empty.
    """
    column, equals, value = text.partition("=")
    if not column or not equals or not value:
        raise InvalidRequest("--person must be COLUMN=VALUE, with a value; nothing was certified")
    return Person(((column, value),))


def persons_of(pipeline: Pipeline, name: str) -> tuple[Person, ...]:
    """Returns the persons whose erasures by a stream are in force.

    Raises:
        InvalidRequest: The stream is not an erase stream, it has no such request, or a key is NULL.
        Unavailable: Its request table cannot be read.
    """
    import pyarrow.parquet

    stream = pipeline.streams_by_name.get(name)
    if stream is None or not isinstance(stream.kind, Erase):
        raise InvalidRequest("--requests must name an erase stream of the file; nothing was certified", stream=name)
    log = LocalLog(Path(pipeline.storage) / "requests" / name)
    found: set[Person] = set()
    for file in log.live_files().values() if log.exists else ():
        if file.partition.get("state") not in IN_FORCE:
            continue
        try:
            rows = pyarrow.parquet.read_table(log.table / file.path, columns=["key", "op"], partitioning=None)
            hidden = hidden_rows(log, file)
        except (OSError, ValueError) as error:
            raise Unavailable("a file of the requests cannot be read; nothing was certified", path=file.path) from error
        for index, row in enumerate(rows.to_pylist()):
            if index in hidden or row["op"] != "erase":
                continue
            if any(value is None for value in row["key"].values()):
                raise InvalidRequest("a request's key is NULL: it names nobody; nothing was certified", stream=name)
            found.add(Person(tuple((column_name(one), as_text(value)) for one, value in row["key"].items())))
    if not found:
        raise InvalidRequest("no erasure of the stream is in force; nothing was certified", stream=name)
    return tuple(sorted(found, key=lambda one: one.values))


def certify(
    question: Question,
    *,
    number: int = 1,
    previous: str | None = None,
    progress: Progress = lambda done, total: None,
) -> Certificate:
    """Looks through every byte, and returns what was found.

    Raises:
        InvalidRequest: There is no table, no version of it has a column, or a value is none of a column's type.
        Unavailable: A folder cannot be listed.
    """
    table, *others = searched(question, progress)
    return _certificate(table, [table, *others], number, previous)


def searched(question: Question, progress: Progress) -> tuple[TableSearch, *tuple[FolderSearch, ...]]:
    """Looks through the table, and the pipeline's storage.

    Raises:
        InvalidRequest, Unavailable: As of `certify`.
    """
    table = TableSearch(
        Place(question.table, question.settings),
        question.persons,
        secrets.token_hex(16),
        anywhere=question.is_anywhere,
    )
    table.run(progress)
    if question.storage is None:
        return (table,)
    storage = FolderSearch(Place(question.storage, {}), table.persons)
    if table.place.root.startswith(f"{storage.place.root}/"):  # it is searched as a table
        storage.left_out = f"{table.place.root}/"
    storage.run(progress)
    return table, storage


def _certificate(
    table: TableSearch, searches: Sequence[FolderSearch], number: int, previous: str | None
) -> Certificate:
    persons, history = table.persons, table.history
    return Certificate(
        number=number,
        table=table.place.location,
        version=history.head,
        earliest_version=history.earliest_version(table.looked_at),
        made_at_ms=table.now_ms,
        lakegate=lakegate.__version__,
        salt=persons.salt,
        persons=tuple(persons.hashes(range(len(persons.all)))),
        columns={name: tuple(sorted(".".join(path) for path in one.paths)) for name, one in persons.columns.items()},
        is_anywhere=table.anywhere,
        deleted_files_kept_ms=table.kept_ms("deletedFileRetentionDuration"),
        log_kept_ms=table.kept_ms("logRetentionDuration"),
        looked_at=tuple(one for search in searches for _, one in sorted(search.looked_at.items())),
        found=tuple(one for search in searches for _, found in sorted(search.found.items()) for one in found),
        not_looked_at=tuple(one for search in searches for _, one in sorted(search.not_looked_at.items())),
        previous=previous,
    )


NAME = "certificate-{:05d}.json"


def write(
    folder: Path, question: Question, page: Callable[[Certificate], str], progress: Progress
) -> tuple[Path, Certificate]:
    """Certifies, as the next certificate of a folder, chained to its newest one; writes it as JSON and HTML.

    Raises:
        InvalidRequest: The folder has certificates of another table; or as of `certify`.
        Corrupt: The newest certificate of the folder is damaged.
        Unavailable: The folder cannot be written.
    """
    try:
        make_folder(folder)
        numbers = sorted(int(one.stem.rpartition("-")[2]) for one in folder.glob("certificate-*.json"))
        before = read(folder / NAME.format(numbers[-1])) if numbers else None
        if before is not None and before.table != Place(question.table, question.settings).location:
            raise InvalidRequest("the folder has certificates of another table; nothing was certified", folder=folder)
        number, previous = (1, None) if before is None else (before.number + 1, before.sha256)
        made = certify(question, number=number, previous=previous, progress=progress)
        file = folder / NAME.format(made.number)
        with file.open("x"):  # another process took the number: its certificate stays
            pass
        write_file(file, made.to_json())
        write_file(file.with_suffix(".html"), page(made))
    except OSError as error:
        raise Unavailable(f"the certificate cannot be written: {error.strerror}", path=folder) from error
    return file, made


def read(file: Path) -> Certificate:
    """Reads a certificate.

    Raises:
        InvalidRequest: There is no such file.
        Corrupt: It is damaged, or was changed.
    """
    try:
        return from_json(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidRequest(f"the certificate cannot be read: {error.strerror}", path=file) from error
    except (Damaged, UnicodeDecodeError) as error:
        raise Corrupt(f"the certificate does not hold: {error}", path=file) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The outcome of a check of a certificate."""

    file: str
    faults: tuple[str, ...]
    gone: int
    """Files that no longer exist."""
    same: int
    not_compared: int
    """Files whose path holds a person: it is a hash, and leads nowhere."""
    verdict: str | None


def check(file: Path, settings: Mapping[str, str], *, with_files: bool) -> Checked:
    """Checks a certificate: its hash, its link to the previous one in its folder, and the files that it looked at."""
    faults, gone, same, masked, verdict = [], 0, 0, 0, None
    try:
        certificate = read(file)
    except Corrupt as error:
        faults.append(error.message)
    else:
        verdict = certificate.verdict
        others = []
        if certificate.number > 1:
            try:
                others.append(read(file.parent / NAME.format(certificate.number - 1)))
            except LakegateError:
                others = []
        if (broken := broken_link(certificate, others)) is not None:
            faults.append(broken)
        for one in certificate.looked_at if with_files else ():
            if "#" in one.path:
                masked += 1
                continue
            state = _compare(one, settings)
            gone, same = gone + (state == "gone"), same + (state == "same")
            if state == "other":
                faults.append(f"another content than looked at: {one.path}")
    return Checked(file=str(file), faults=tuple(faults), gone=gone, same=same, not_compared=masked, verdict=verdict)


def _compare(one: LookedAt, settings: Mapping[str, str]) -> str:
    place = Place(one.path, settings)
    digest = hashlib.sha256()
    try:
        with place.files.open_input_file(place.root) as file:
            while block := file.read(BLOCK):
                digest.update(block)
    except FileNotFoundError:
        return "gone"
    except OSError:
        return "other"
    return "same" if digest.hexdigest() == one.sha256 else "other"
