"""From the requests of a micro-batch to what happens with the rows that are there, and with those that come later.

Rules for editors: pure functions over requests *in order*; keys are digests, so no value of a row ever gets here. The
oracle in tests/streams/test_request_rules.py interprets requests one by one; whatever is changed here must still equal it.
Source: docs/explanation/requests.md, M1 to M3, E1 and E2; docs/decisions/0003-request-semantics.md.
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
    """A value of `sequence_by`; all of a stream are of one type."""

    def __lt__(self, other: Any, /) -> bool:
        """Whether this one comes first."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request, as far as decisions need it."""

    id: str
    key: str | None
    """Digest of the match values; None if one of them is NULL."""
    op: Op
    sequence: Orderable | None = None
    moves_to: str | None = None
    """Digest of the match values that a row has afterwards; None where `set` leaves the match columns alone."""
    is_doomed: bool = False
    """It would move rows into an erased person, so rows that are there are deleted instead (E1)."""

    @property
    def deletes(self) -> bool:
        """Whether rows that are there now are gone afterwards."""
        return self.is_doomed or self.op in ("delete", "erase")


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """The keys of a stream that decide how its requests are read."""

    is_standing: bool
    """`applies_to: arrived_and_later`, and every erasure."""
    moves_rows: bool
    """`set` assigns a match column (M3)."""
    has_sequence: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """A batch, divided: what takes part, and what does not and why (request id → reason)."""

    in_order: tuple[Request, ...]
    superseded: Mapping[str, str]
    dead: Mapping[str, str]


def admit(requests: Sequence[Request], highest: Mapping[str, Orderable], *, has_sequence: bool) -> Admitted:
    """Which requests take part: those with a key, and in sequence where there is one (M2).

    Late is what is lower than the highest *seen before it in source order*, in earlier batches or in this one; so the
    answer is the same wherever the source is cut into batches.

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
    """What happens to the rows of one key: the requests that change them, one after another; a list linked backwards."""

    last: Request
    before: Path | None = None

    @property
    def ends_at(self) -> str | None:
        """The key that the rows have afterwards; None if they are deleted."""
        if self.last.deletes:
            return None
        return self.last.key if self.last.moves_to is None else self.last.moves_to

    def requests(self) -> Iterator[Request]:
        """The last first."""
        path: Path | None = self
        while path is not None:
            yield path.last
            path = path.before

    @property
    def first(self) -> Request:
        """The request that the rows meet first."""
        *_, first = self.requests()
        return first


def compose(requests: Sequence[Request]) -> dict[str, Path]:
    """Key → what the requests, one by one, do to rows that have this key before the first of them.

    A row of K follows the first request of K, then whatever request follows for the key that it has by then. A deletion
    ends the path, and so does an erased person: no request leads out of one.

    Args:
        requests: In order, each with a key.
    """
    paths: dict[str, Path] = {}
    starts_at: dict[str, list[str]] = {}  # where rows are now → the keys that they began with
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
    """The standing effects that a batch carries on: their ids → the path that is added to them.

    Args:
        ends: Id of a standing effect → the key at which it leaves rows; those that delete, or that leave rows with an
            erased person, are not among them.
        composed: The batch.
    """
    return {effect: composed[end] for effect, end in ends.items() if end in composed}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """What becomes of a request."""

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
    """Request id → what becomes of it, after the paths have been applied to the rows that were there.

    Args:
        admitted: The requests of this batch; empty in a sweep.
        meaning: How the stream reads them.
        waiting: Earlier requests that took part again.
        paths: What `compose` made of `waiting` and the batch.
        matched: Key → rows that had it and were there.
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
        # A deletion that waits is not replaced by what follows: it takes the first rows, and the other waits behind it.
        if follower is not None and (meaning.is_standing or not request.deletes):
            settled[request.id] = Settled(state="superseded", reason=f"followed by {follower}", matched_rows=count)
        elif meaning.is_standing or count > 0:
            settled[request.id] = Settled(state="applied", matched_rows=count)
        else:
            settled[request.id] = Settled(state="waiting", reason="no row has matched yet")
    return settled


def _followers(requests: Sequence[Request]) -> dict[str, str]:
    """Request id → the next request of the same key."""
    followers: dict[str, str] = {}
    latest: dict[str, str] = {}
    for request in requests:
        if request.key in latest:
            followers[latest[request.key]] = request.id
        latest[str(request.key)] = request.id
    return followers


def last_of_key(requests: Sequence[Request]) -> dict[str, Request]:
    """Key → its last request: the one that stands for later rows where keys do not move."""
    return {request.key: request for request in requests if request.key is not None}
