"""Finishes publishes of several tables: reads their notes and intents, and makes the commits that are missing.

The files of a publish stand next to its tables, outside Delta's log: `<table>/_lakegate/publish/<id>.note` in each of them, and
`_lakegate/intents/<id>.json` in the first one. The tables' own log store writes them, so each is written once.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pyspark.sql import SparkSession

from lakegate.delta import commit as exact
from lakegate.delta.actions import Action, Body, parse
from lakegate.delta.commit_file import commit_info, commit_transactions
from lakegate.delta.gate import raise_refusal
from lakegate.delta.jvm import JVM_ERRORS, Jvm, first_line, is_missing_file
from lakegate.delta.ownership import FOLDER
from lakegate.delta.post_commit import Afterwards
from lakegate.delta.publish_protocol import (
    AwaitDecision,
    DropIntent,
    DropNote,
    Head,
    Intent,
    ListNotes,
    PutData,
    PutIntent,
    ReadHead,
    ReadIntent,
    pin,
    resolve,
)
from lakegate.delta.table_log import DeltaTableLog
from lakegate.effects import Effect, Steps, drive
from lakegate.errors import Corrupt, InvalidRequest, Unavailable, summary
from lakegate.ids import TableLocation, TokenId, Version
from lakegate.stored_json import Damaged, parsed
from lakegate.turns.host import boot_id, is_running
from lakegate.turns.protocol.effects import CasReply

FORMAT = 1
APP_ID = "lakegate-publish"
"""`txn.appId` of markers and of the commits that follow them. Its number is twice the marker's version, then one more."""
DECIDED = "publish:decided:"
"""How the token begins under which commits of a decided publish pass the gate: they need no turn."""
OPERATION = "PUBLISH"
"""The operation of a marker in the table's history."""
QUIET_S = 30.0
"""A publisher that has not decided for this long counts as dead, by the clock of the process that waits for it."""
LOOK_S = 0.05
"""Interval at which a waiting process looks for the decision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Participant:
    """A table of a publish, and the commit that it gets."""

    table: TableLocation
    table_id: str
    marker: Version
    base: Version
    """The version on which the commit was computed."""
    actions: tuple[Action, ...]
    info: Body
    """The statement's `commitInfo`."""


class OpenPublishes:
    """Ends publishes, and answers the effects of doing so. Safe to use from several threads."""

    def __init__(self, spark: SparkSession, jvm: Jvm, afterwards: Afterwards) -> None:
        """Takes a session of the user, and the one for exact commits."""
        self._jvm, self._afterwards = jvm, afterwards
        self.log = DeltaTableLog(spark)
        self._found_at: dict[str, TableLocation] = {}
        """Publish → a table at which its note was found."""
        self._seen_s: dict[str, float] = {}
        """Publish → when this process first waited for its decision."""

    def resolve(self, table: TableLocation) -> bool:
        """Ends the publishes that have a note at this table: finishes those that are decided, waits for the others.

        Returns True if there was one.

        Raises:
            Unavailable: Storage does not answer; or a commit is missing that only the dead publisher could make.
        """
        was_open = False
        while notes := sorted(self._notes(table)):
            was_open = True
            self.drive(resolve(notes[0], table), self.answer)
        return was_open

    def pin(self, tables: Sequence[TableLocation]) -> dict[TableLocation, Version]:
        """Returns a version of each table such that each publish is in all of them or in none. Raises: as `resolve`."""
        pins: dict[TableLocation, Version] = self.drive(pin(tables), self.answer)
        return pins

    @staticmethod
    def drive(steps: Steps[Any], answer: Callable[[Any], object]) -> Any:
        """Runs a piece of the protocol. Raises: as `resolve`."""
        try:
            return drive(steps, answer)
        except JVM_ERRORS as error:
            raise Unavailable("the files of a publish cannot be read or written", reason=first_line(error)) from error

    def answer(self, effect: Effect[Any]) -> Any:
        """Answers an effect."""
        match effect:
            case ReadHead(table=table):
                return self._head(table)
            case ListNotes(table=table):
                return self._notes(table)
            case ReadIntent(publish_id=id_):
                return self._intent(id_)
            case AwaitDecision(publish_id=id_):
                return self._is_dead(id_)
            case PutIntent(publish_id=id_):
                return self.put(self._first(id_), "intents", f"{id_}.json", {"participants": []})
            case PutData(publish_id=id_, table=table, version=version):
                return self._put_data(id_, table, version)
            case DropNote(publish_id=id_, table=table):
                return self.drop(table, "publish", f"{id_}.note")
            case DropIntent(publish_id=id_):
                return self.drop(self._first(id_), "intents", f"{id_}.json")
        raise AssertionError(f"not answered: {effect}")

    def _head(self, table: TableLocation) -> Head:
        version, number = self.log.number_of(table, APP_ID)
        if number is None:
            return Head(version)
        marker, is_open = Version(number // 2), number % 2 == 0
        info = commit_info(self.log.text(table, marker) or "") if is_open else {}
        return Head(version, marker, (info.get("operationParameters") or {}).get("publish"), is_open)

    def version_of(self, table: TableLocation, marker: Version) -> Version:
        """Returns the version of the commit that follows a marker; the commit has been made."""
        wanted, version = 2 * marker + 1, marker
        while True:
            version = Version(version + 1)
            text = self.log.text(table, version)
            if text is None:
                raise Unavailable("the log no longer has the commit of the publish", table=table, version=version)
            if commit_transactions(text).get(APP_ID) == wanted:
                return version

    # --------------------------------------------------------------------------------------------- commits of a publish

    def commit(self, token: str, version: Version, one: Participant) -> exact.Tried | exact.NotNext:
        """Commits the actions of a participant at exactly this version, if it is the next one.

        Args:
            token: Under which the commit passes the gate.
            version: Of the commit.
            one: The participant.

        Raises:
            TurnNotGranted: The table takes turns, and this is none of its turns.
            Unavailable: The commit failed.
        """
        try:
            return exact.commit(
                self._jvm,
                self._jvm.delta_log(one.table),
                version,
                one.actions,
                table_id=one.table_id,
                tags=one.info.get("tags"),
                is_blind=bool(one.info.get("isBlindAppend")),
                later=self._afterwards,
                committer=exact.Committer(token, exact.history_of(one.info), None),
            )
        except Unavailable as error:
            if error.__cause__ is not None:
                raise_refusal(error.__cause__)
            raise

    def _put_data(self, publish_id: str, table: TableLocation, version: Version) -> None:
        """Makes the commit of a publish whose publisher died, as the intent has it."""
        data = self.read(self._first(publish_id), "intents", f"{publish_id}.json")
        if data is None:
            return  # all is done
        (one,) = (each for each in _participants(data) if each.table == table)
        self._refuse_to_follow(publish_id, one, version)
        self.require_files(one)
        try:
            self.commit(DECIDED + publish_id, version, one)
        except Unavailable as error:
            raise Unavailable(
                "a commit of a decided publish failed; the next process that uses its table makes the commit",
                table=table,
                reason=summary(error),
            ) from error

    def require_files(self, one: Participant) -> None:
        """Raises `InvalidRequest` unless all files of a participant's commit still exist."""
        exact.require_files(self._jvm, self._jvm.delta_log(one.table), one.table, one.actions)

    def _refuse_to_follow(self, publish_id: str, one: Participant, version: Version) -> None:
        """Raises `Unavailable` if commits came since that only the statement itself could follow, or that the log no longer has.

        Only an append that read nothing needs no statement to be followed.
        """
        for number in range(one.base + 1, version):
            text = self.log.text(one.table, Version(number))
            actions = [Action("gone", {})] if text is None else parse(text)
            info: Body = next((action.body for action in actions if action.kind == "commitInfo"), {})
            changes = {action.kind for action in actions} - {"commitInfo", "txn"}
            if changes and not (changes == {"add"} and info.get("isBlindAppend")):
                raise Unavailable(
                    "a publish is decided, its publisher died, and this table has a commit that only the publisher could follow; "
                    "nothing was written",
                    advice=f"Remove {FOLDER}/publish/{publish_id}.note from the folders of its tables: the publish then stays in "
                    "those that have it. Run its statements on the others again",
                    table=one.table,
                    version=number,
                    operation=info.get("operation"),
                )

    def _is_dead(self, publish_id: str) -> bool:
        note = self._note(publish_id) or {}
        if (note.get("host"), note.get("boot_id")) == (socket.gethostname(), boot_id()):
            is_dead = not is_running(int(note.get("pid", 0)), int(note.get("pid_start", 0)))
        else:
            is_dead = False
        time.sleep(LOOK_S)
        return is_dead or time.monotonic() - self._seen_s.setdefault(publish_id, time.monotonic()) > QUIET_S

    # ----------------------------------------------------------------------------------------------- files of a publish

    def _notes(self, table: TableLocation) -> frozenset[str]:
        folder = self._path(table, "publish")
        names = self._jvm.names(folder.getFileSystem(self._jvm.hadoop_conf), folder)
        found = frozenset(name.removesuffix(".note") for name in names if name.endswith(".note"))
        self._found_at.update(dict.fromkeys(found, table))
        return found

    def _note(self, publish_id: str) -> dict[str, Any] | None:
        return self.read(self._found_at[publish_id], "publish", f"{publish_id}.note")

    def _first(self, publish_id: str) -> TableLocation:
        """Returns the first table of a publish, which has the intent; the one where the note was, if the note is gone by now."""
        tables = (self._note(publish_id) or {}).get("tables")
        return TableLocation(tables[0]) if tables else self._found_at[publish_id]

    def _intent(self, publish_id: str) -> Intent | None:
        note = self._note(publish_id)
        if note is None:
            return Intent(())  # nothing is left to do at the table of the note
        return self.intent(TableLocation(note["tables"][0]), publish_id)

    def intent(self, first: TableLocation, publish_id: str) -> Intent | None:
        """Returns the decision about a publish whose first table this is; None if there is none. Raises: as `read`."""
        data = self.read(first, "intents", f"{publish_id}.json")
        if data is None:
            return None
        return Intent(tuple((one.table, one.marker) for one in _participants(data)))

    def put(self, table: TableLocation, folder: str, name: str, content: Mapping[str, object]) -> bool:
        """Writes a file of a publish if it is absent; returns False if it is there."""
        text = json.dumps({"format": FORMAT, **content}, ensure_ascii=False)
        return self._jvm.put_text_if_absent(self._jvm.delta_log(table), self._path(table, folder, name), text)

    def read(self, table: TableLocation, folder: str, name: str) -> dict[str, Any] | None:
        """Reads a file of a publish; None if it is absent.

        Raises:
            Corrupt: It is damaged.
            InvalidRequest: A newer version wrote it.
        """
        path = self._path(table, folder, name)
        text = self._jvm.read_text(self._jvm.delta_log(table), path)
        if text is None:
            return None
        try:
            data = parsed(text)
        except Damaged as damage:
            raise Corrupt(
                f"a file of a publish is {damage}; nothing was written", file=str(path.toString())
            ) from damage
        if data.get("format") != FORMAT:
            raise InvalidRequest(
                "another version of Lakegate publishes this table; nothing was written",
                advice="Use that version",
                file=str(path.toString()),
                format=data.get("format"),
            )
        return data

    def drop(self, table: TableLocation, folder: str, name: str) -> None:
        """Removes a file of a publish; does nothing if it is absent."""
        path = self._path(table, folder, name)
        try:
            path.getFileSystem(self._jvm.hadoop_conf).delete(path, False)
        except JVM_ERRORS as error:
            if not is_missing_file(error):
                raise

    def _path(self, table: TableLocation, *names: str) -> Any:
        return self._jvm.path(self._jvm.delta_log(table).dataPath(), "/".join((FOLDER, *names)))


class SettledTableLog(DeltaTableLog):
    """The log of tables for turns: before an entry commit, which ends an earlier turn, the publishes of that turn are ended."""

    def __init__(self, spark: SparkSession) -> None:
        super().__init__(spark)
        self._publishes = OpenPublishes(spark, exact.private(spark), Afterwards())

    def commit_entry(
        self, table: TableLocation, after: Version, raised: tuple[tuple[TokenId, int], ...], user_metadata: str
    ) -> CasReply:
        """Commits as `DeltaTableLog` does; answers "stale" if a publish was open, whose marker could be the next version."""
        if self._publishes.resolve(table):
            return "stale"
        return super().commit_entry(table, after, raised, user_metadata)


def as_stored(one: Participant) -> dict[str, object]:
    """Returns a participant as the intent has it."""
    return {**asdict(one), "actions": [{action.kind: action.body} for action in one.actions], "info": dict(one.info)}


def _participants(data: Mapping[str, Any]) -> list[Participant]:
    try:
        return [
            Participant(
                table=TableLocation(one["table"]),
                table_id=str(one["table_id"]),
                marker=Version(int(one["marker"])),
                base=Version(int(one["base"])),
                actions=tuple(Action(kind, body) for each in one["actions"] for kind, body in each.items()),
                info=one["info"],
            )
            for one in data["participants"]
        ]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise Corrupt("the intent of a publish is damaged; nothing was written") from error
