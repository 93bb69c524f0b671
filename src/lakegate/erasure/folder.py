"""Searches all files of a folder, and again those that were written meanwhile; of a table's folder it reads the log first."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from lakegate.delta import deletion_vectors
from lakegate.erasure import search
from lakegate.erasure.certificate import Found, LookedAt, NotLookedAt
from lakegate.erasure.columns import key_columns
from lakegate.erasure.history import CHECKPOINT, COMMIT, LOG, Entry, History, Seen, retention_ms
from lakegate.erasure.persons import Person, Persons, typed
from lakegate.erasure.storage import Place
from lakegate.errors import InvalidRequest, LakegateError

BLOCK = 8 << 20
ROUNDS_MAX = 3
"""How often files that were written or changed meanwhile are looked at again."""
VANISHED = "it vanished while it was looked at; its rows may be in a new file"
CHANGED = "it was written while the folder was looked at; certify while no job writes"

Progress = Callable[[int, int], None]
"""Receives the bytes that are done, and their total."""


class FolderSearch:
    """A search of a folder that belongs to no table, as a pipeline's storage: every text counts, and columns by their name."""

    is_own = False
    """Its data files are those of the table: key columns are found by their path."""
    left_out = ""
    """A folder below that is searched by itself."""

    def __init__(self, place: Place, persons: Persons, *, anywhere: bool = True) -> None:
        self.place, self.persons, self.anywhere = place, persons, anywhere
        self.looked_at: dict[str, LookedAt] = {}
        self.found: dict[str, list[Found]] = {}
        self.not_looked_at: dict[str, NotLookedAt] = {}
        self.seen_entries: dict[str, Entry] = {}
        """The files as they were listed when they were looked at."""

    def entries(self) -> dict[str, Entry]:
        """Returns the files to look at."""
        found = self.place.list()
        return {name: one for name, one in found.items() if not (self.left_out and one.path.startswith(self.left_out))}

    def run(self, progress: Progress) -> None:
        """Looks at every file; when called again, at those that are new or were changed since.

        Raises:
            Unavailable: The folder cannot be listed.
        """
        seen, done = self.seen_entries, 0
        for _ in range(ROUNDS_MAX):
            now = self.entries()
            for gone in seen.keys() - now.keys():
                self._forget(gone)
            news = {name: entry for name, entry in now.items() if seen.get(name) != entry}
            if not news:
                return
            total = done + sum(entry.size for entry in news.values())
            with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
                for size in pool.map(lambda one: self._look(*one), news.items()):
                    done += size
                    progress(done, total)
            seen = self.seen_entries = now
        for name, entry in self.entries().items():
            if seen.get(name) != entry:
                self.cannot(name, CHANGED)

    def cannot(self, name: str, reason: str) -> None:
        """Records a file that was not searched."""
        self.not_looked_at[name] = NotLookedAt(path=self.shown(name), reason=reason)

    def shown(self, name: str) -> str:
        """Returns the path of a file without values of persons."""
        masked = self.persons.masked(name)
        return masked if is_absolute(name) else f"{self.place.location}/{masked}"

    def _forget(self, name: str) -> None:
        for known in (self.looked_at, self.found, self.not_looked_at):
            known.pop(name, None)

    def _look(self, name: str, entry: Entry) -> int:
        self._forget(name)
        try:
            with self.place.files.open_input_file(entry.path) as file:
                digest = hashlib.sha256()
                while block := file.read(BLOCK):
                    digest.update(block)
                file.seek(0)
                self._search(name, entry, file, digest.hexdigest())
        except FileNotFoundError:
            self.cannot(name, VANISHED)
        except search.NotLookedAt as error:
            self.cannot(name, str(error))
        except (OSError, LakegateError) as error:
            self.cannot(name, f"it cannot be read ({type(error).__name__})")
        return entry.size

    def _search(self, name: str, entry: Entry, file: Any, sha256: str) -> None:
        own, seen = name.rpartition("/")[2], self.seen(name)
        in_path = self.persons.in_path(name)
        given = in_path | self.persons.in_partition(seen.partition if seen else {})
        is_parquet = own.endswith(".parquet") or file.read(4) in search.MAGIC
        file.seek(0)
        if f"{LOG}/" in f"/{name}" and not own.startswith(".") and own.endswith(search.OF_LOGS):
            searched = search.log_file(file, self.persons, is_parquet=is_parquet, is_own=self.is_own)
        elif is_parquet and entry.size:
            searched = search.data_file(file, self.persons, given, is_own=self.is_own, anywhere=self.anywhere)
        else:
            searched = search.text(file, self.persons)
        kind = self.kind(name)
        looked_at = LookedAt(
            path=self.shown(name),
            place=kind,
            size_bytes=entry.size,
            sha256=sha256,
            columns=tuple(searched.columns),
            row_groups=searched.row_groups,
            row_groups_read=searched.row_groups_read,
        )
        hidden = self._hidden(seen) if searched.hits and seen is not None and seen.is_live else frozenset()
        hits: list[tuple[str, str, str, int, Iterable[int]]] = []
        for hit in searched.hits:
            hits.append((kind, "rows", hit.column, len(hit.rows - hidden), hit.persons))
            hits.append(("hidden", "rows", hit.column, len(hit.rows & hidden), hit.persons))
        hits += [(kind, *one) for one in search.merged(searched.named)]
        if persons := self.persons.whole(in_path):
            hits.append((kind, "path", "", 1, persons))
        found = []
        for place, where, column, rows, numbers in hits:
            gone_at_ms, by = self.gone(name, place, entry)
            if rows:
                found.append(
                    Found(
                        path=self.shown(name),
                        place=place,
                        where=where,
                        column=column,
                        rows=rows,
                        persons=tuple(self.persons.hashes(numbers)),
                        gone_at_ms=gone_at_ms,
                        by=by,
                    )
                )
        self.looked_at[name] = looked_at
        if found:
            self.found[name] = found

    def _hidden(self, seen: Seen) -> frozenset[int]:
        """Returns the rows that the deletion vector of a file hides."""
        if seen.vector is None:
            return frozenset()
        where = deletion_vectors.location(seen.vector)
        if where is None:
            return frozenset(deletion_vectors.read(seen.vector))
        path = Place(where, self.place.settings).root if is_absolute(where) else f"{self.place.root}/{where}"
        with self.place.files.open_input_file(path) as file:
            return frozenset(deletion_vectors.read(seen.vector, file.read()))

    def kind(self, name: str) -> str:
        """Returns the kind of a file's place, for people."""
        parts = name.split("/")
        if parts[0] in ("requests", "dead_letters", "checkpoints") and len(parts) > 1:
            return f"{parts[0].replace('_', ' ')} of {parts[1]}"
        return parts[0] if len(parts) > 1 else "storage"

    def seen(self, name: str) -> Seen | None:
        """Returns what the log of the table says of a file; None for other files."""
        return None

    def gone(self, name: str, place: str, entry: Entry) -> tuple[int | None, str]:
        """Returns when a file may be deleted by the settings of its table, and by what."""
        return None, "see What stays in docs/how-to/erase-physically.md"


def read_log(place: Place) -> tuple[History, list[str]]:
    """Returns the history of the table in a folder, and the files of its log that cannot be read.

    Raises:
        Unavailable: The folder cannot be listed.
    """
    history, unread = History(), []
    logs = {name.removeprefix(f"{LOG}/"): one for name, one in place.list().items() if name.startswith(f"{LOG}/")}
    checkpoints = {name: int(found[1]) for name in logs if (found := CHECKPOINT.fullmatch(name))}
    history.checkpoints = sorted(set(checkpoints.values()))
    history.commits = sorted(int(found[1]) for name in logs if (found := COMMIT.fullmatch(name)))
    order: list[tuple[str, int | None]] = [
        (name, None) for name in sorted(checkpoints, key=lambda one: checkpoints[one])
    ]
    order += [(f"{version:020d}.json", version) for version in history.commits]

    def feed(name: str, version: int | None, *, is_base: bool) -> None:
        with place.files.open_input_file(logs[name].path) as file:
            actions = list(search.log_actions(file, is_parquet=name.endswith(".parquet")))
        for action in sorted(actions, key=lambda one: "remove" not in one):  # a commit may remove and add one path
            if is_base or "metaData" in action:
                history.feed(action, version)
            if "sidecar" in action:
                sidecar = str(action["sidecar"]["path"])
                history.sidecars[sidecar] = max(checkpoints[name], history.sidecars.get(sidecar, -1))
                if f"_sidecars/{sidecar}" not in logs:
                    raise FileNotFoundError(sidecar)
                if is_base:
                    feed(f"_sidecars/{sidecar}", None, is_base=True)

    for name, version in order:
        is_base = (
            checkpoints[name] == history.base if version is None else history.base is None or version > history.base
        )
        try:
            feed(name, version, is_base=is_base)
        except (FileNotFoundError, KeyError, search.NotLookedAt):
            unread.append(name)
    return history, unread


class TableSearch(FolderSearch):
    """A search of a table's folder."""

    is_own = True

    def __init__(self, place: Place, persons: Iterable[Person], salt: str, *, anywhere: bool) -> None:
        """Reads the log: for the names of the columns, and for what is live.

        Raises:
            InvalidRequest: There is no table, no version of it has a column, or a value is none of a column's type.
            Unavailable: The folder cannot be listed.
        """
        self.now_ms = time.time_ns() // 1_000_000
        self.history, self._unread = read_log(place)
        if self.history.head < 0:
            raise InvalidRequest("there is no Delta table; nothing was certified", table=place.location)
        persons = tuple(persons)
        columns = key_columns({name for one in persons for name, _ in one.values}, self.history.schemas)
        for name, text in (value for one in persons for value in one.values):
            if not columns[name].paths:
                raise InvalidRequest("no version of the table has the column; nothing was certified", column=name)
            if all(typed(text, kind) is None for kind in columns[name].kinds):
                raise InvalidRequest("a value is none of its column's type; nothing was certified", column=name)
        super().__init__(place, Persons(persons, columns, salt), anywhere=anywhere)
        if (versions := place.versions()) is not None:
            self.cannot("", versions)

    def run(self, progress: Progress) -> None:
        """Also names the files of the log that could not be read, although their bytes could be looked at."""
        super().run(progress)
        for name in self._unread:
            self.cannot(f"{LOG}/{name}", "it is damaged, so which files are live is not certain")

    def again(self, progress: Progress) -> None:
        """Looks at what is new or was changed since, with the history as it is now.

        Raises:
            Unavailable: The folder cannot be listed.
        """
        self.history, self._unread = read_log(self.place)
        self.now_ms = time.time_ns() // 1_000_000
        self.run(progress)

    def entries(self) -> dict[str, Entry]:
        """Also returns files that the log names outside of the folder."""
        found = super().entries()
        for path in filter(is_absolute, self.history.files):
            try:
                outside = Place(path, self.place.settings)
            except InvalidRequest:
                self.cannot(path, "it is on a file system that is not known here")
                continue
            for info in outside.files.get_file_info([outside.root]):
                if info.size is not None:
                    found[path] = Entry(info.path, info.size, (info.mtime_ns or 0) // 1_000_000)
        return found

    def kind(self, name: str) -> str:
        """Returns the kind of a file's place, see `History.place`."""
        return self.history.place(name)

    def seen(self, name: str) -> Seen | None:
        """Returns what the log says of a data file."""
        return self.history.files.get(name)

    def gone(self, name: str, place: str, entry: Entry) -> tuple[int | None, str]:
        """Returns when a file may be deleted by the table's settings, and by what."""
        files_ms, log_ms = self.kept_ms("deletedFileRetentionDuration"), self.kept_ms("logRetentionDuration")
        match place:
            case "live":
                return None, "the rows are in the newest version: DELETE, then REORG TABLE … APPLY (PURGE), then VACUUM"
            case "hidden":
                return self.now_ms + files_ms, "REORG TABLE … APPLY (PURGE) now, then VACUUM"
            case "old version" | "change data" | "orphan":
                return self.history.deletable_ms(name, entry, files_ms), "VACUUM"
            case "commit" | "checkpoint" | "log":
                return entry.mtime_ms + log_ms, "Delta's cleanup of the log, with a later checkpoint"
        return None, "nothing but you"

    def kept_ms(self, name: str) -> int:
        """Returns a retention time of the table."""
        return retention_ms(self.history.properties, f"delta.{name}")


def is_absolute(path: str) -> bool:
    """Returns True for a path of the log that is not relative to the table."""
    return path.startswith("/") or ":" in path.partition("/")[0]
