"""Composition for `headgate dead-letters`: what streams and syncs have set aside, to be listed, dropped and sent again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

from headgate.coordinator.turn import HeldTurn
from headgate.core.keys.letters import KeptRow, kept_text
from headgate.core.spec import Erase, Maintain, Mutate, Pipeline, StreamSpec, SyncSpec
from headgate.core.turns.tokens import job_token
from headgate.delta.gate import Gate
from headgate.delta.requests import RequestTable
from headgate.errors import InvalidRequest
from headgate.online import Keeper
from headgate.operate import RequestDesk, adhoc_turn, last_batch, stream_context
from headgate.redaction import without_values
from headgate.site import Site
from headgate.streams.letters import Letter, Sent, SentAgain, StreamLetters
from headgate.streams.operations import STUCK, resend_requests
from headgate.streams.steps import StreamKind
from headgate.streams.stream import kind_of

R = TypeVar("R")


class Desk(Protocol):
    """What one stream or one sync has set aside."""

    def rows(self, *, rows_max: int, has_values: bool) -> list[Letter]:
        """The newest letters, newest first."""
        ...

    def drop(self, ids: Sequence[str], reason: str | None) -> int:
        """Deletes letters; how many.

        Raises:
            InvalidRequest: one of the ids is no letter's; nothing was changed.
        """
        ...

    def retry(self, ids: Sequence[str], corrections: Mapping[str, str]) -> int:
        """Sends letters again, corrected, each once; how many. After a command that was killed the same one goes on.

        Args:
            ids: Of letters.
            corrections: Column → value, as text.

        Raises:
            InvalidRequest: one of the ids is no letter's, or one is refused again; nothing was changed.
        """
        ...


def desks(pipeline: Pipeline, name: str | None) -> list[Desk]:
    """Of the stream or sync of this name, or of all.

    Raises:
        InvalidRequest: there is none of this name.
    """
    streams = [one for one in pipeline.streams if not isinstance(one.kind, Maintain)]
    found: list[Desk] = [StreamDesk(pipeline, one) for one in streams if name in (None, one.name)]
    found += [SyncDesk(pipeline, one) for one in pipeline.syncs if name in (None, one.name)]
    if not found and name is not None:
        known = ", ".join([*(one.name for one in streams), *(one.name for one in pipeline.syncs)])
        raise InvalidRequest(
            f"there is no stream or sync {name!r} that sets anything aside; nothing was done",
            advice=f"There are: {known}",
        )
    return found


class SyncDesk:
    """The rows that one sync has set apart in its target."""

    def __init__(self, pipeline: Pipeline, sync: SyncSpec) -> None:
        self._pipeline, self._sync = pipeline, sync

    def rows(self, *, rows_max: int, has_values: bool) -> list[Letter]:
        """See `Desk`."""
        with Keeper(self._pipeline, self._sync) as keeper:
            rows = keeper.kept_rows()[-rows_max:]
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
        """See `Desk`. The target keeps no reason."""
        with Keeper(self._pipeline, self._sync) as keeper:
            return keeper.drop_letters(ids)

    def retry(self, ids: Sequence[str], corrections: Mapping[str, str]) -> int:
        """See `Desk`. Takes the stream over: a run of the sync that is on ends with status 5."""
        values = {name: None if value == "null" else value for name, value in corrections.items()}
        with Keeper(self._pipeline, self._sync) as keeper:
            written, refused = keeper.retry_letters(ids, values)
        if refused:
            raise InvalidRequest(
                f"{refused} of {written + refused} were refused again and are set aside; the others were sent",
                advice=f"See why with: headgate dead-letters list {self._sync.name}",
            )
        return written


def _values(row: KeptRow) -> str:
    data = (row.image or {}).get("record") if row.is_record else None
    if isinstance(data, bytes):
        return data.decode("utf-8", "backslashreplace")
    return kept_text({"key": list(row.key), "row": row.image})


class StreamDesk:
    """The dead letters and the dead requests of one stream."""

    def __init__(self, pipeline: Pipeline, stream: StreamSpec) -> None:
        self._pipeline, self._stream = pipeline, stream
        self._context = stream_context(pipeline, stream)
        self._letters = StreamLetters(self._context, stream)

    def rows(self, *, rows_max: int, has_values: bool) -> list[Letter]:
        """See `Desk`."""
        return self._letters.rows(rows_max=rows_max, has_values=has_values)

    def drop(self, ids: Sequence[str], reason: str | None) -> int:
        """See `Desk`."""
        records, requests = self._parted(ids)
        count = 0
        if records:
            count += self._in_turn("drop", lambda turn: self._letters.drop(turn, records, reason))
        if requests:
            count += RequestDesk(self._pipeline, self._stream.name).drop(requests, reason or "")
        return count

    def retry(self, ids: Sequence[str], corrections: Mapping[str, str]) -> int:
        """See `Desk`."""
        records, requests = self._parted(ids)
        sent = Sent()
        if records:
            sent += self._in_turn("retry", lambda turn: self._send(turn, records, corrections))
        if requests:
            RequestDesk(self._pipeline, self._stream.name).refuse_unless_in(STUCK, requests)
            sent += self._in_turn("retry", lambda turn: self._send_requests(turn, requests, corrections))
        if sent.refused:
            raise InvalidRequest(
                f"{sent.refused} of {sent.count} were refused again and are set aside; the others were sent",
                advice=f"See why with: headgate dead-letters list {self._stream.name}",
            )
        return sent.count

    def _parted(self, ids: Sequence[str]) -> tuple[list[str], list[str]]:
        """Records and requests; all of them are there."""
        records = [id_ for id_ in ids if id_.startswith("d-")]
        requests = [id_ for id_ in ids if not id_.startswith("d-")]
        if records or not ids or not isinstance(self._stream.kind, Mutate | Erase):
            self._letters.refuse_absent(records if records else ids)
        return records, requests

    def _kind(self) -> StreamKind:
        # What is refused again is set aside again, whatever the policy: it does not stop the others.
        spec = replace(self._stream, on_bad_record="dead_letter", transform=None)
        return kind_of(spec, self._pipeline.table_of(self._stream), self._context)

    def _send(self, turn: HeldTurn, ids: Sequence[str], corrections: Mapping[str, str]) -> Sent:
        letters, kind, number, sent = self._letters, self._kind(), turn.batch, Sent()
        for batch in letters.pending():
            turn.next_batch(batch, None, is_replay=True)
            sent += letters.send(turn, batch, kind.run_batch)
            number = max(number, batch + 1)
        turn.next_batch(number, None, is_replay=False)
        if letters.mark(turn, ids, corrections, number):
            sent += letters.send(turn, number, kind.run_batch)
        return sent

    def _send_requests(self, turn: HeldTurn, ids: Sequence[str], corrections: Mapping[str, str]) -> Sent:
        """Stored anew, and applied by a batch without records: if the command is killed between, by the stream's next one."""
        count = resend_requests(turn, self._context, self._stream, ids, corrections)
        turn.next_batch(turn.batch + 1, None, is_replay=False)
        nothing = self._letters.no_records()
        self._kind().run_batch(SentAgain(turn, self._stream.name), nothing, turn.batch)
        rows = RequestTable(self._context.session, self._context.log, self._context.requests_of(self._stream)).rows(
            STUCK
        )
        assert rows is not None, "they were looked up"
        return Sent(count, rows.where(rows["request_id"].isin(list(ids))).count())

    def _in_turn(self, what: str, work: Callable[[HeldTurn], R]) -> R:
        pipeline, context = self._pipeline, self._context
        token_id = job_token(f"{what}/{self._stream.name}")
        opened = Site.open(context.session, url=pipeline.coordinator.url, storage=pipeline.storage)
        site = replace(opened, log=context.log)  # what the turn has read, the stream need not read again
        with (
            contextlib.closing(site),
            Gate(context.session).acting(self._stream.name, context.session),
            adhoc_turn(site, pipeline, self._stream, token_id, (self._letters.location,)) as turn,
        ):
            turn.acts_as = self._stream.name  # as its helpers do
            tables = (context.target, context.requests_of(self._stream), self._letters.location)
            turn.next_batch(last_batch(site, token_id, tables) + 1, None, is_replay=False)
            return work(turn)
