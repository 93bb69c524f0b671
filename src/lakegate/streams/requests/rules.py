"""Computes from the requests of a micro-batch the changes of existing rows and of later rows.

Rules for editors: pure functions over requests *in order*; keys are digests, so no row values are used here. The
oracle in tests/streams/test_request_rules.py interprets requests one by one; the result of any change must still equal it.
Source: docs/explanation/requests.md, *mutate* and *erase*; docs/decisions/0003-request-semantics.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Op = Literal["update", "delete", "erase", "lift"]
State = Literal["stored", "applied", "superseded", "waiting", "dead"]

NULL_KEY = "a match column is NULL"
NULL_SEQUENCE = "sequence_by is NULL"


class Orderable(Protocol):
    """A value of `sequence_by`; all values of a stream have the same type."""

    def __lt__(self, other: Any, /) -> bool:
        """Returns True if this value comes first."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request, with the parts that decisions need."""

    id: str
    key: str | None
    """Digest of the match values; None if one of them is NULL."""
    op: Op
    sequence: Orderable | None = None
    moves_to: str | None = None
    """Digest of the match values that a row has afterwards; None where `set` leaves the match columns alone."""
    is_doomed: bool = False
    """The request would move rows to an erased key, so it deletes the existing rows instead."""

    @property
    def deletes(self) -> bool:
        """Returns True if the request deletes its existing rows."""
        return self.is_doomed or self.op in ("delete", "erase")


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """The keys of a stream that decide how its requests are read."""

    is_standing: bool
    """`applies_to: arrived_and_later`, and every erasure."""
    moves_rows: bool
    """`set` assigns a match column."""
    has_sequence: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """The requests of a batch: those that take part; and those that do not (request id → reason)."""

    in_order: tuple[Request, ...]
    superseded: Mapping[str, str]
    dead: Mapping[str, str]


def admit(requests: Sequence[Request], highest: Mapping[str, Orderable], *, has_sequence: bool) -> Admitted:
    """Selects the requests that take part: those with a key, and in sequence if the stream has one.

    A request is late if its sequence is lower than the highest *seen before it in source order*, in earlier batches or in this
    one. So the result does not depend on how the source is cut into batches.

    Args:
        requests: In source order.
        highest: Key → highest sequence of earlier batches.
        has_sequence: Whether the stream has `sequence_by`.
    """
    seen = dict(highest)
    in_order: list[Request] = []
    superseded: dict[str, str] = {}
    dead: dict[str, str] = {}
    for request in requests:
        if request.key is None:
            dead[request.id] = NULL_KEY
        elif not has_sequence:
            in_order.append(request)
        elif request.sequence is None:
            dead[request.id] = NULL_SEQUENCE
        elif request.key in seen and request.sequence < seen[request.key]:
            superseded[request.id] = "a request of this key with a higher sequence came before"
        else:
            seen[request.key] = request.sequence
            in_order.append(request)
    return Admitted(in_order=tuple(in_order), superseded=superseded, dead=dead)


@dataclass(frozen=True, slots=True)
class Path:
    """The requests that change the rows of one key, one after another; a list linked backwards."""

    last: Request
    before: Path | None = None

    @property
    def ends_at(self) -> str | None:
        """Returns the key of the rows afterwards; None if they are deleted."""
        if self.last.deletes:
            return None
        return self.last.key if self.last.moves_to is None else self.last.moves_to

    def requests(self) -> Iterator[Request]:
        """Yields the requests, the last first."""
        path: Path | None = self
        while path is not None:
            yield path.last
            path = path.before

    @property
    def first(self) -> Request:
        """Returns the request that is applied to the rows first."""
        *_, first = self.requests()
        return first


def compose(requests: Sequence[Request]) -> dict[str, Path]:
    """Returns key → the effect of the requests, one by one, on rows that have this key before the first of them.

    The first request of K applies to a row of K, then each later request for the key that the row has by then. A path ends
    with a deletion or an erased key: no request moves a row away from an erased key.

    Args:
        requests: In order, each with a key.
    """
    paths: dict[str, Path] = {}
    starts_at: dict[str, list[str]] = {}  # present key of rows → the keys with which they began
    for request in requests:
        key = request.key
        if key is None:
            raise ValueError(f"request {request.id} has no key")
        begun = starts_at.pop(key, [])
        for start in begun:
            paths[start] = Path(request, paths[start])
        if key not in paths:
            paths[key] = Path(request)
            begun = [*begun, key]
        if begun and (end := paths[begun[0]].ends_at) is not None:
            starts_at.setdefault(end, []).extend(begun)
    return paths


def follow(ends: Mapping[str, str], composed: Mapping[str, Path]) -> dict[str, Path]:
    """Returns the standing effects that a batch extends: effect id → the path that is added to it.

    Args:
        ends: Id of a standing effect → the key of its rows afterwards. Effects that delete rows, or that end at an erased key,
            are left out.
        composed: The paths of the batch.
    """
    return {effect: composed[end] for effect, end in ends.items() if end in composed}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """The outcome of a request."""

    state: State
    reason: str | None = None
    matched_rows: int = 0


def settle(
    admitted: Admitted,
    *,
    meaning: Meaning,
    waiting: Sequence[Request],
    paths: Mapping[str, Path],
    matched: Mapping[str, int],
) -> dict[str, Settled]:
    """Returns request id → its outcome, after the paths were applied to the existing rows.

    Args:
        admitted: The requests of this batch; empty in a sweep.
        meaning: How the requests are read.
        waiting: Earlier requests that were tried again.
        paths: The result of `compose` for `waiting` and the batch.
        matched: Key → number of existing rows that had it.
    """
    settled = {id_: Settled(state="superseded", reason=reason) for id_, reason in admitted.superseded.items()}
    settled |= {id_: Settled(state="dead", reason=reason) for id_, reason in admitted.dead.items()}
    rows: dict[str, int] = {}
    for key, path in paths.items():
        if count := matched.get(key, 0):
            for request in path.requests():
                rows[request.id] = rows.get(request.id, 0) + count
    took_part = [*waiting, *admitted.in_order]
    followers = {} if meaning.moves_rows else _followers(took_part)
    for request in took_part:
        count = rows.get(request.id, 0)
        follower = followers.get(request.id)
        # A later request does not replace a waiting deletion: the deletion takes the first rows, and the later one waits behind it.
        if follower is not None and (meaning.is_standing or not request.deletes):
            settled[request.id] = Settled(state="superseded", reason=f"followed by {follower}", matched_rows=count)
        elif meaning.is_standing or count > 0:
            settled[request.id] = Settled(state="applied", matched_rows=count)
        else:
            settled[request.id] = Settled(state="waiting", reason="no row has matched yet")
    return settled


def _followers(requests: Sequence[Request]) -> dict[str, str]:
    """Returns request id → the next request of the same key."""
    followers: dict[str, str] = {}
    latest: dict[str, str] = {}
    for request in requests:
        if request.key in latest:
            followers[latest[request.key]] = request.id
        latest[str(request.key)] = request.id
    return followers


def last_of_key(requests: Sequence[Request]) -> dict[str, Request]:
    """Returns key → its last request: the standing one for later rows, where keys do not move."""
    return {request.key: request for request in requests if request.key is not None}
