"""Lists, drops and resends what streams and syncs have set aside, for `lakegate dead-letters`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from lakegate.config import Maintain, Pipeline, SyncSpec
from lakegate.errors import InvalidRequest
from lakegate.ports import Letter
from lakegate.redaction import without_values
from lakegate.syncs.plan.dead_letters import KeptRow, kept_text
from lakegate.syncs.session import SyncSession


class Desk(Protocol):
    """The dead letters of one stream or one sync."""

    def rows(self, *, rows_max: int, has_values: bool) -> list[Letter]:
        """Returns the newest letters, newest first."""
        ...

    def drop(self, ids: Sequence[str], reason: str | None) -> int:
        """Deletes letters; returns their number.

        Raises:
            InvalidRequest: one of the ids does not exist; nothing was changed.
        """
        ...

    def retry(self, ids: Sequence[str], corrections: Mapping[str, str]) -> int:
        """Resends letters with corrections, each once; returns their number. After a killed command, repeat it to continue.

        Args:
            ids: The ids of letters.
            corrections: Column → value, as text.

        Raises:
            InvalidRequest: one of the ids does not exist, or one is refused again; nothing was changed.
        """
        ...


def desks(pipeline: Pipeline, name: str | None) -> list[Desk]:
    """Returns the desk of the stream or sync of this name, or all desks.

    Raises:
        InvalidRequest: no stream or sync has this name.
    """
    streams = [one for one in pipeline.streams if not isinstance(one.kind, Maintain)]
    found: list[Desk] = []
    if wanted := [one for one in streams if name in (None, one.name)]:
        from lakegate.ops.table_admin import StreamDesk  # imported here because it needs Spark, which a sync does not

        found += [StreamDesk(pipeline, one) for one in wanted]
    found += [SyncDesk(pipeline, one) for one in pipeline.syncs if name in (None, one.name)]
    if not found and name is not None:
        known = ", ".join([*(one.name for one in streams), *(one.name for one in pipeline.syncs)])
        raise InvalidRequest(
            f"there is no stream or sync {name!r} that sets anything aside; nothing was done",
            advice=f"There are: {known}",
        )
    return found


class SyncDesk:
    """The rows that a sync has quarantined in its target."""

    def __init__(self, pipeline: Pipeline, sync: SyncSpec) -> None:
        self._pipeline, self._sync = pipeline, sync

    def rows(self, *, rows_max: int, has_values: bool) -> list[Letter]:
        """See `Desk`."""
        with SyncSession(self._pipeline, self._sync) as session:
            rows = session.kept_rows()[-rows_max:]
        return [
            Letter(
                name=self._sync.name,
                kind="record" if one.is_record else "row",
                id=one.id,
                at_ms=None,
                reason=one.reason if has_values else without_values(one.reason),
                position=str(one.key[0]) if one.is_record else f"{one.table}@{one.seq}",
                values=_values(one) if has_values else None,
            )
            for one in reversed(rows)
        ]

    def drop(self, ids: Sequence[str], reason: str | None) -> int:
        """See `Desk`. The target stores no reason."""
        with SyncSession(self._pipeline, self._sync) as session:
            return session.drop_letters(ids)

    def retry(self, ids: Sequence[str], corrections: Mapping[str, str]) -> int:
        """See `Desk`. Takes the sync over: a run of it that is in progress ends with status 5."""
        values = {name: None if value == "null" else value for name, value in corrections.items()}
        with SyncSession(self._pipeline, self._sync) as session:
            written, refused = session.retry_letters(ids, values)
        if refused:
            raise InvalidRequest(
                f"{refused} of {written + refused} were refused again and are set aside; the others were sent",
                advice=f"See why with: lakegate dead-letters list {self._sync.name}",
            )
        return written


def _values(row: KeptRow) -> str:
    data = (row.image or {}).get("record") if row.is_record else None
    if isinstance(data, bytes):
        return data.decode("utf-8", "backslashreplace")
    return kept_text({"key": list(row.key), "row": row.image})
