"""The commits that others have made to a table since a statement's snapshot; each is read once."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from lakegate.delta.actions import Action, Changes, changes, parse
from lakegate.delta.commit_file import commit_info
from lakegate.delta.jvm import CALL_ERRORS, Jvm, first_line
from lakegate.delta.table_log import LogGone, refuse_catalog
from lakegate.errors import InvalidRequest, LakegateError, Unavailable
from lakegate.ids import TableLocation, Version
from lakegate.rows.conflict_details import WinningCommit, first_of, winning_commit_of


class ConcurrentCommits:
    """Reads the commits of one table after a version, up to the head."""

    def __init__(self, jvm: Jvm, log: Any, table: TableLocation, known: Mapping[Version, tuple[Action, ...]]) -> None:
        self._jvm, self._log, self._table = jvm, log, table
        self.known = dict(known)
        """The commits read so far."""
        self.in_doubt: Version | None = None
        """A commit of ours may have arrived at this version, or may still arrive: the log does not show one yet."""

    def after(self, version: Version) -> dict[Version, tuple[Action, ...]]:
        """Returns the commits after a version, up to the head; reads only commits that are not known yet.

        Raises:
            Unavailable: The log cannot be read.
            LogGone: The log was cleaned up beyond the version.
            InvalidRequest: The table was dropped, or created again.
            UnsupportedTable: A catalog makes the table's commits from now on.
        """
        last = version
        while last + 1 in self.known:
            last = Version(last + 1)
        try:
            texts = self._jvm.texts_after(self._log, last)
        except CALL_ERRORS as error:
            raise Unavailable(
                "the table's log could not be read; nothing is known to be written",
                table=self._table,
                reason=first_line(error),
            ) from error
        if texts == {} and last >= 0:
            raise self.recreated()  # the log has fewer versions: our commit would follow a gap
        if texts is not None:
            texts.pop(last, None)
        first = last + 1
        if texts is None or list(texts) != list(range(first, first + len(texts))):
            raise LogGone(
                "the log was cleaned up beyond the version that the statement was computed on; nothing was written",
                table=self._table,
                version=first,
                **facts_of(
                    first_of({Version(number): parse(text) for number, text in list((texts or {}).items())[-1:]})
                ),
            )
        new = {Version(number): parse(text) for number, text in texts.items()}
        refuse_catalog(self._table, (a.body for each in new.values() for a in each if a.kind == "protocol"))
        self.known |= new
        if self.in_doubt in self.known:
            self.in_doubt = None
        return {number: self.known[number] for number in sorted(self.known) if number > version}

    def changes(self, after: Version) -> Changes:
        """Returns the net changes of the commits after a version. Raises: as `after`."""
        return changes(after, list(self.after(after).values()))

    def winning(self, since: Version | None) -> WinningCommit | None:
        """Returns the winning commit after a version, as far as the log shows it: for the error when something else has failed."""
        if since is None:
            return None
        with suppress(LakegateError, *CALL_ERRORS):
            self.after(since)
        return first_of({version: actions for version, actions in self.known.items() if version > since})

    def has_definition_of(self, one: Version, other: Version) -> bool:
        """Returns True if the commits between two versions are known, and none changes the table's definition."""
        first, last = sorted((one, other))
        between = [self.known.get(Version(number)) for number in range(first + 1, last + 1)]
        return all(each is not None and not any(a.kind in ("metaData", "protocol") for a in each) for each in between)

    def recreated(self) -> InvalidRequest:
        """Returns the error of a statement whose table was dropped, or created again."""
        text = self._jvm.read_text(self._log, self._jvm.path(self._log.logPath(), f"{0:020d}.json"))
        maker = None if text is None else winning_commit_of(commit_info(text), 0)
        return InvalidRequest(
            "the table was dropped, or created again, while the statement ran; nothing was written",
            advice="Run the statement again",
            table=self._table,
            **facts_of(maker),
        )


def facts_of(earlier: WinningCommit | None) -> dict[str, Any]:
    """Returns the facts of a winning commit for an error; none if there is no such commit."""
    return {} if earlier is None else earlier.facts()
