"""Certifies that a person's values are gone from a table's bytes and a pipeline's storage; checks such certificates."""

from __future__ import annotations

import hashlib
import os
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lakegate
from lakegate.config import Erase, Pipeline
from lakegate.delta import deletion_vectors
from lakegate.delta.local_files import LOG, LocalLog
from lakegate.erasure.certificate import Certificate, Found, LookedAt, NotLookedAt, broken_link, from_json
from lakegate.erasure.columns import key_columns
from lakegate.erasure.history import CHECKPOINT, COMMIT, History, retention_ms
from lakegate.erasure.persons import Person, Persons, as_text, typed
from lakegate.erasure.storage import Entry, Place
from lakegate.errors import Corrupt, InvalidRequest, LakegateError, Unavailable
from lakegate.ops.inspection import requests_of
from lakegate.ops.stored_requests import hidden_rows
from lakegate.private_files import make_folder, write_file
from lakegate.stored_json import Damaged
from lakegate.streams.requests.column_names import column_name

BLOCK = 8 << 20
ROUNDS_MAX = 3
"""How often files that were written or changed meanwhile are looked at again."""
IN_FORCE = ("applied", "waiting")
"""States of an erasure that holds."""
VANISHED = "it vanished while it was looked at; its rows may be in a new file"
DATA = ("live", "old version", "change data", "orphan")


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
    log = LocalLog(Path(requests_of(pipeline, stream)))
    found: set[Person] = set()
    for file in log.live_files().values() if log.exists else ():
        if file.partition.get("state") not in IN_FORCE:
            continue
        try:
            rows = pyarrow.parquet.read_table(log.table / file.path, columns=["key", "op"], partitioning=None)
            hidden = hidden_rows(log, file)
        except OSError as error:
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
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Certificate:
    """Looks through every byte, and returns what was found.

    Raises:
        InvalidRequest: There is no table, no version of it has a column, or a value is none of a column's type.
        Unavailable: A folder cannot be listed.
    """
    table = Place(question.table, question.settings)
    search = _TableSearch(table, question, secrets.token_hex(16))
    search.run(progress)
    if question.storage is not None:
        storage = _StorageSearch(Place(question.storage, {}), search)
        storage.run(progress)
        search.take(storage)
    return search.certificate(number, previous)


class _FolderSearch:
    """Looks at every file of a folder, and again at those that were written meanwhile."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self.looked_at: dict[str, LookedAt] = {}
        self.found: dict[str, list[Found]] = {}
        self.not_looked_at: dict[str, NotLookedAt] = {}
        self.persons: Persons

    def entries(self) -> dict[str, Entry]:
        """Returns the files to look at."""
        return self._place.list()

    def run(self, progress: Callable[[int, int], None]) -> None:
        seen: dict[str, Entry] = {}
        done = 0
        for _ in range(ROUNDS_MAX):
            now = self.entries()
            news = {name: entry for name, entry in now.items() if seen.get(name) != entry}
            if not news:
                return
            total = done + sum(entry.size for entry in news.values())
            with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
                for size in pool.map(lambda one: self._look(*one), news.items()):
                    done += size
                    progress(done, total)
            seen = now
        for name, entry in self.entries().items():
            if seen.get(name) != entry:
                self._cannot(name, "it was written while the folder was looked at; certify while no job writes")

    def _look(self, name: str, entry: Entry) -> int:
        from lakegate.erasure.search import NotLookedAt as Unsearchable

        self.not_looked_at.pop(name, None)
        self.found.pop(name, None)
        try:
            with self._place.files.open_input_file(entry.path) as file:
                digest = hashlib.sha256()
                while block := file.read(BLOCK):
                    digest.update(block)
                file.seek(0)
                self._search(name, entry, file, digest.hexdigest())
        except FileNotFoundError:
            self._cannot(name, VANISHED)
        except Unsearchable as error:
            self._cannot(name, str(error))
        except (OSError, LakegateError) as error:
            self._cannot(name, f"it cannot be read ({type(error).__name__})")
        return entry.size

    def _cannot(self, name: str, reason: str) -> None:
        self.not_looked_at[name] = NotLookedAt(path=self.shown(name), reason=reason)

    def shown(self, name: str) -> str:
        """Returns the path of a file without values of persons."""
        return f"{self._place.location}/{self.persons.masked(name)}"

    def _search(self, name: str, entry: Entry, file: Any, sha256: str) -> None:
        raise NotImplementedError


class _TableSearch(_FolderSearch):
    """Searches the folder of a table. Its log is read first: for the columns' names, and for what is live."""

    def __init__(self, place: Place, question: Question, salt: str) -> None:
        super().__init__(place)
        self._question, self._now_ms = question, time.time_ns() // 1_000_000
        self._listed = place.list()
        if not any(name.startswith(f"{LOG}/") and COMMIT.fullmatch(name[len(LOG) + 1 :]) for name in self._listed):
            raise InvalidRequest("there is no Delta table; nothing was certified", table=question.table)
        self.history = History()
        unread = self._read_log()
        columns = key_columns({name for one in question.persons for name, _ in one.values}, self.history.schemas)
        for one in question.persons:
            for name, text in one.values:
                if not columns[name].paths:
                    raise InvalidRequest("no version of the table has the column; nothing was certified", column=name)
                if all(typed(text, kind) is None for kind in columns[name].kinds):
                    raise InvalidRequest("a value is none of its column's type; nothing was certified", column=name)
        self.persons = Persons(question.persons, columns, salt)
        for name in unread:
            self._cannot(name, "it is damaged, so which files are live is not certain")
        versions = place.versions()
        if versions is not None:
            self.not_looked_at[""] = NotLookedAt(path=place.location, reason=versions)

    def _read_log(self) -> list[str]:
        """Feeds the history; returns the files that cannot be read."""
        from lakegate.erasure.search import NotLookedAt as Unsearchable
        from lakegate.erasure.search import log_actions

        history, unread = self.history, []
        logs = {name[len(LOG) + 1 :]: entry for name, entry in self._listed.items() if name.startswith(f"{LOG}/")}
        history.commits = sorted(int(found[1]) for name in logs if (found := COMMIT.fullmatch(name)))
        checkpoints = {name: int(found[1]) for name in logs if (found := CHECKPOINT.fullmatch(name))}
        history.checkpoints = sorted(set(checkpoints.values()))
        # Checkpoints before commits, the newest last.
        order = sorted(checkpoints, key=lambda name: checkpoints[name])
        order += [f"{version:020d}.json" for version in history.commits]
        for name in order:
            try:
                with self._place.files.open_input_file(logs[name].path) as file:
                    self._feed(
                        list(log_actions(file, is_parquet=name.endswith(".parquet"))), name, checkpoints.get(name), logs
                    )
            except (FileNotFoundError, Unsearchable):
                unread.append(f"{LOG}/{name}")
        return unread

    def _feed(
        self, actions: Sequence[Mapping[str, Any]], name: str, checkpoint: int | None, logs: Mapping[str, Entry]
    ) -> None:
        from lakegate.erasure.search import log_actions

        version = None if checkpoint is not None else int(name[:20])
        is_base = checkpoint is not None and checkpoint == self.history.base
        for action in sorted(actions, key=lambda one: "remove" not in one):
            if "metaData" in action or is_base or (version is not None and version > (self.history.base or -1)):
                self.history.feed(action, version)
            if is_base and "sidecar" in action and (entry := logs.get(f"_sidecars/{action['sidecar']['path']}")):
                with self._place.files.open_input_file(entry.path) as file:
                    for inner in log_actions(file, is_parquet=True):
                        self.history.feed(inner, None)

    def entries(self) -> dict[str, Entry]:
        """Also returns files that the log names outside of the folder."""
        found = self._place.list()
        for path in self.history.files:
            if path.startswith("/") or ":" in path.partition("/")[0]:
                outside = Place(path, self._question.settings)
                for info in outside.files.get_file_info([outside.root]):
                    if info.size is not None:
                        found[path] = Entry(info.path, info.size, (info.mtime_ns or 0) // 1_000_000)
        return found

    def _kind(self, name: str) -> str:
        if name.startswith(f"{LOG}/"):
            file = name[len(LOG) + 1 :]
            if COMMIT.fullmatch(file):
                return "commit"
            return "checkpoint" if CHECKPOINT.fullmatch(file) or file.startswith("_sidecars/") else "log"
        if name.startswith("_change_data/") or name in self.history.change_files:
            return "change data"
        if name in self.history.files:
            return "live" if self.history.files[name].is_live else "old version"
        return "orphan" if name.endswith(".parquet") else "other file"

    def _search(self, name: str, entry: Entry, file: Any, sha256: str) -> None:
        from lakegate.erasure import search

        kind = self._kind(name)
        if kind in DATA:
            searched = search.data_file(file, self.persons, is_own=True, anywhere=self._question.is_anywhere)
        elif name.startswith(f"{LOG}/") and name.endswith((".parquet", ".json", ".crc", "/_last_checkpoint")):
            is_log = not name.rpartition("/")[2].startswith(".")  # Hadoop's checksums
            parquet = name.endswith(".parquet")
            log = search.log_file(file, self.persons, is_parquet=parquet, is_own=True) if is_log else None
            searched = log or search.text(file, self.persons)
        else:
            searched = search.text(file, self.persons)
        self.looked_at[name] = LookedAt(
            path=self.shown(name),
            place=kind,
            size_bytes=entry.size,
            sha256=sha256,
            columns=tuple(searched.columns),
            row_groups=searched.row_groups,
            row_groups_read=searched.row_groups_read,
        )
        found = self._found_in_rows(name, kind, searched, entry)
        for where, column, count, numbers in search.merged(searched.named):
            found.append(self._found(name, kind, where, column, count, numbers, entry))
        named = self.persons.in_path(name)
        for number in self.persons.whole(named):
            found.append(self._found(name, kind, "path", "", 0, {number}, entry))
        if found:
            self.found[name] = found

    def _found_in_rows(self, name: str, kind: str, searched: Any, entry: Entry) -> list[Found]:
        seen = self.history.files.get(name)
        hidden: frozenset[int] = frozenset()
        if searched.hits and seen is not None and seen.is_live and seen.vector is not None:
            hidden = self._hidden(seen.vector)
        found = []
        for hit in searched.hits:
            for place, rows in ((kind, hit.rows - hidden), ("hidden", hit.rows & hidden)):
                if rows:
                    found.append(self._found(name, place, "rows", hit.column, len(rows), hit.persons, entry))
        return found

    def _hidden(self, vector: Mapping[str, Any]) -> frozenset[int]:
        where = deletion_vectors.location(vector)
        if where is None:
            return frozenset(deletion_vectors.read(vector))
        with self._place.files.open_input_file(f"{self._place.root}/{where}") as file:
            return frozenset(deletion_vectors.read(vector, file.read()))

    def _found(
        self, name: str, place: str, where: str, column: str, rows: int, numbers: Iterable[int], entry: Entry
    ) -> Found:
        gone_at_ms, by = self._gone(name, place, entry)
        return Found(
            path=self.shown(name),
            place=place,
            where=where,
            column=column,
            rows=rows,
            persons=tuple(self.persons.hashes(numbers)),
            gone_at_ms=gone_at_ms,
            by=by,
        )

    def _gone(self, name: str, place: str, entry: Entry) -> tuple[int | None, str]:
        """Returns when the table's settings let a file be deleted, and by what."""
        files_ms = retention_ms(self.history.properties, "delta.deletedFileRetentionDuration")
        log_ms = retention_ms(self.history.properties, "delta.logRetentionDuration")
        seen = self.history.files.get(name)
        match place:
            case "live":
                return None, "the rows are in the newest version: DELETE, then REORG TABLE … APPLY (PURGE), then VACUUM"
            case "hidden":
                return self._now_ms + files_ms, "REORG TABLE … APPLY (PURGE) now, then VACUUM"
            case "old version":
                removed = entry.mtime_ms if seen is None else seen.removed_at_ms or entry.mtime_ms
                return removed + files_ms, "VACUUM"
            case "change data" | "orphan":
                return entry.mtime_ms + files_ms, "VACUUM"
            case "commit" | "checkpoint" | "log":
                return entry.mtime_ms + log_ms, "Delta's cleanup of the log, with the next checkpoint"
        return None, "nothing but you"

    def take(self, other: _FolderSearch) -> None:
        """Adds what a search of another folder found."""
        self.looked_at |= {f"/{name}": one for name, one in other.looked_at.items()}
        self.found |= {f"/{name}": one for name, one in other.found.items()}
        self.not_looked_at |= {f"/{name}": one for name, one in other.not_looked_at.items()}

    def certificate(self, number: int, previous: str | None) -> Certificate:
        """Returns the result."""
        existing = {name for name in self.looked_at if name in self.history.files}
        properties = self.history.properties
        return Certificate(
            number=number,
            table=self._place.location,
            version=self.history.head,
            earliest_version=self.history.earliest_version(existing),
            made_at_ms=self._now_ms,
            lakegate=lakegate.__version__,
            salt=self.persons.salt,
            persons=tuple(self.persons.hashes(range(len(self.persons.all)))),
            columns={
                name: tuple(sorted(".".join(path) for path in one.paths)) for name, one in self.persons.columns.items()
            },
            is_anywhere=self._question.is_anywhere,
            deleted_files_kept_ms=retention_ms(properties, "delta.deletedFileRetentionDuration"),
            log_kept_ms=retention_ms(properties, "delta.logRetentionDuration"),
            looked_at=tuple(one for _, one in sorted(self.looked_at.items()) if _ not in self.not_looked_at),
            found=tuple(one for _, all_ in sorted(self.found.items()) for one in all_),
            not_looked_at=tuple(one for _, one in sorted(self.not_looked_at.items())),
            notes=(),
            previous=previous,
        )


class _StorageSearch(_FolderSearch):
    """Searches a pipeline's storage: key columns by name at any depth, and the values in every text."""

    def __init__(self, place: Place, table: _TableSearch) -> None:
        super().__init__(place)
        self.persons, self._table = table.persons, table

    def entries(self) -> dict[str, Entry]:
        """Leaves out files of the table, if it lies in the storage."""
        inside = self._table._place.root + "/"
        return {name: one for name, one in self._place.list().items() if not one.path.startswith(inside)}

    def _search(self, name: str, entry: Entry, file: Any, sha256: str) -> None:
        from lakegate.erasure import search

        own = name.rpartition("/")[2]
        if f"{LOG}/" in name and own.endswith((".parquet", ".json")) and not own.startswith("."):
            searched = search.log_file(file, self.persons, is_parquet=own.endswith(".parquet"), is_own=False)
        elif own.endswith(".parquet") and not own.startswith("."):
            searched = search.data_file(file, self.persons, is_own=False, anywhere=True)
        else:
            searched = search.text(file, self.persons)
        kind = _storage_kind(name)
        self.looked_at[name] = LookedAt(
            path=self.shown(name),
            place=kind,
            size_bytes=entry.size,
            sha256=sha256,
            columns=tuple(searched.columns),
            row_groups=searched.row_groups,
            row_groups_read=searched.row_groups_read,
        )
        hits = [("rows", hit.column, len(hit.rows), hit.persons) for hit in searched.hits]
        hits += search.merged(searched.named)
        hits += [("path", "", 0, frozenset(self.persons.whole(self.persons.in_path(name))))]
        found = [
            Found(
                path=self.shown(name),
                place=kind,
                where=where,
                column=column,
                rows=rows,
                persons=tuple(self.persons.hashes(numbers)),
                gone_at_ms=None,
                by="see docs/how-to/erase-physically.md, What stays",
            )
            for where, column, rows, numbers in hits
            if numbers
        ]
        if found:
            self.found[name] = found


def _storage_kind(name: str) -> str:
    parts = name.split("/")
    if parts[0] in ("requests", "dead_letters", "checkpoints") and len(parts) > 1:
        return f"{parts[0].replace('_', ' ')} of {parts[1]}"
    return parts[0] if len(parts) > 1 else "storage"


NAME = "certificate-{:05d}.json"


def write(
    folder: Path, make: Callable[[int, str | None], Certificate], page: Callable[[Certificate], str]
) -> tuple[Path, Certificate]:
    """Makes the next certificate of a folder, chained to its newest one, and writes it as JSON and HTML.

    Raises:
        Corrupt: The newest certificate of the folder is damaged.
        Unavailable: The folder cannot be written.
    """
    try:
        make_folder(folder)
        numbers = sorted(int(one.stem.rpartition("-")[2]) for one in folder.glob("certificate-*.json"))
        before = read(folder / NAME.format(numbers[-1])) if numbers else None
        made = make(1, None) if before is None else make(before.number + 1, before.sha256)
        if before is not None and before.table != made.table:
            raise InvalidRequest("the folder has certificates of another table; nothing was certified", folder=folder)
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
