"""The version of the target up to which a stream's kept requests were tested, and the new files since; read from logs alone.

The last `settle` of a stream has it in its commit's `userMetadata`: `{"user": {"tested", "kept", "oldest_ms", "swept"}}`. When a
person retries dead requests, that commit has it in the stream's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lakegate.config import Append, Erase, Mutate, StreamSpec
from lakegate.delta.commit_file import Commit
from lakegate.delta.table_log import LogGone
from lakegate.ids import Version
from lakegate.streams.interfaces import StreamContext
from lakegate.streams.requests.unseen import FileCommit, unseen_files
from lakegate.turns.protocol.ordering import ADHOC

PAGE = 20
"""Commits read at a time, backwards; the wanted one is nearly always among the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tested:
    """The facts in the last `settle` of a stream."""

    tested: Version
    """Every kept request has been tested against every row that the target had at this version."""
    kept: int
    """Requests that wait or stand; an upper bound after erasures have removed some."""
    oldest_ms: int | None
    """When the oldest waiting request was first seen, or earlier."""
    swept: int = -1
    """Batch of the last completed sweep."""

    def facts(self) -> Mapping[str, object]:
        """Returns the facts for `userMetadata`."""
        return {"tested": self.tested, "kept": self.kept, "oldest_ms": self.oldest_ms, "swept": self.swept}


NEVER = Tested(tested=Version(-1), kept=0, oldest_ms=None)


class Progress:
    """The progress of one stream's tests."""

    def __init__(self, context: StreamContext, spec: StreamSpec) -> None:
        self._context, self._spec = context, spec
        self._requests = context.requests_of(spec)
        self._said: tuple[Version, Tested] | None = None
        self._walked: tuple[Version, Version, frozenset[str]] | None = None

    def last(self, head: Version | None = None) -> Tested | None:
        """Returns the facts of the last `settle` up to a version; `NEVER` if there was none, None if the log lacks commits."""
        log = self._context.log
        head = log.head(self._requests) if head is None else head
        known = -1 if self._said is None or self._said[0] > head else self._said[0]
        upto = head
        while upto > known:
            after = Version(max(known, upto - PAGE))
            try:
                commits = log.commits(self._requests, after, Version(upto))
            except LogGone:
                return None
            for commit in reversed(commits):
                found = _recorded_by(commit, self._spec.name)
                if found is not None:
                    self._said = (head, found)
                    return found
            upto = after
        if known >= 0 and self._said is not None:
            self._said = (head, self._said[1])
            return self._said[1]
        return NEVER

    def unrecorded_sweep(self, last: Tested, head: Version) -> Version | None:
        """Returns the version that a sweep read which was applied without a recorded outcome (a crash); None if there is none."""
        try:
            commits = self._context.log.commits(self._context.target, last.tested, head)
        except LogGone:
            return None
        for commit in reversed(commits):
            said: Mapping[str, Any] = commit.user_metadata or {}
            facts = said.get("user")
            if said.get("job") == self._spec.name and isinstance(facts, dict) and facts.get("sweep"):
                return Version(facts["tested"]) if said["batch"] > last.swept else None
        return None

    def unseen(self, tested: Version, head: Version) -> frozenset[str] | None:
        """Returns the target's live files at `head` with new rows since `tested`; None if the log lacks commits."""
        start, unseen = tested, frozenset[str]()
        if self._walked is not None and self._walked[0] == tested and self._walked[1] <= head:
            _, start, unseen = self._walked
        try:
            commits = self._context.log.commits(self._context.target, start, head)
        except LogGone:
            return None
        unseen = unseen_files([self._seen_as(commit) for commit in commits], unseen)
        self._walked = (tested, head, unseen)
        return unseen

    def _seen_as(self, commit: Commit) -> FileCommit:
        return FileCommit(
            version=commit.version,
            added=tuple((file.path, file.is_data_change) for file in commit.added),
            removed=tuple(file.path for file in commit.removed),
            brings_rows=self._brings_rows(commit),
        )

    def _brings_rows(self, commit: Commit) -> bool:
        """Returns True if this commit may have added rows that the stream's kept requests were not tested on."""
        job = job_of(commit.user_metadata or {})
        if job == self._spec.name:
            return False
        writer = next((stream for stream in self._context.neighbours if stream.name == job), None)
        mine = self._spec.kind
        match writer.kind if writer else None:
            case Append():
                # The append applied all standing requests in its own turn; it does not know waiting ones.
                return isinstance(mine, Mutate) and mine.applies_to == "arrived"
            case Erase():
                return False
            case Mutate(set=assigned):
                # Only by setting a match column it moves rows to another key; it never moves one to an erased key.
                if isinstance(mine, Erase):
                    return False
                assert isinstance(mine, Mutate)
                return not {name.lower() for name in assigned}.isdisjoint(name.lower() for name in mine.match)
            case _:
                return True


def job_of(said: Mapping[str, Any]) -> str | None:
    """Returns the stream of a commit, by its `userMetadata`; also if a person made the stream send letters again."""
    facts = said.get("user")
    stream = facts.get("stream") if isinstance(facts, dict) and said.get("job") == ADHOC else None
    job = said.get("job") if stream is None else stream
    return None if job is None else str(job)


def _recorded_by(commit: Commit, job: str) -> Tested | None:
    said: Mapping[str, Any] = commit.user_metadata or {}
    facts = said.get("user")
    if not isinstance(facts, dict) or "kept" not in facts or job not in (said.get("job"), facts.get("stream")):
        return None
    return Tested(
        tested=Version(facts["tested"]), kept=facts["kept"], oldest_ms=facts["oldest_ms"], swept=facts["swept"]
    )
