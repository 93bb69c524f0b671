"""Names the winning commit in the error of a statement that fails because of it.

The error stays as Spark or Delta raised it, so that code which catches it still works; a note adds what the error lacks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from lakegate.delta.actions import Action, Body
from lakegate.delta.commit_file import lakegate_metadata
from lakegate.delta.idempotent_writes import conflict_name
from lakegate.ids import Version

CONFLICTING = re.compile(r"Conflicting commit: (\{.*)")
"""The place where Delta's error quotes the `commitInfo` of the winning commit."""
METADATA_LENGTH_MAX = 100
"""At most this many characters are shown of user metadata that are not Lakegate's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WinningCommit:
    """A winning commit."""

    version: int | None
    operation: str
    by: str | None
    """The job that made it, else its user metadata."""
    is_definition_changed: bool = False

    def facts(self) -> dict[str, object]:
        """Returns facts for a Lakegate error."""
        return {"winner_version": self.version, "winner_operation": self.operation, "winner_by": self.by}

    def __str__(self) -> str:
        what = self.operation if self.by is None else f"{self.operation}, {self.by}"
        return f"another commit ({what})" if self.version is None else f"version {self.version} ({what})"


def winning_commit_of(
    info: Mapping[str, Any], version: int | None, *, is_definition_changed: bool = False
) -> WinningCommit:
    """Describes a commit with this `commitInfo`."""
    metadata, ours = info.get("userMetadata"), lakegate_metadata(info)
    by = None if metadata is None else f"user metadata {str(metadata)[:METADATA_LENGTH_MAX]}"
    if ours is not None and ours.get("job") is not None:
        by = f"job {ours['job']}"
    operation = str(info.get("operation") or "of an operation that it does not name")
    return WinningCommit(version=version, operation=operation, by=by, is_definition_changed=is_definition_changed)


def first_of(commits: Mapping[Version, tuple[Action, ...]]) -> WinningCommit | None:
    """Returns the first commit that changed the table's definition, as most others can be rebased on; else the first commit."""
    found = None
    for version, actions in sorted(commits.items()):
        is_definition_changed = any(action.kind in ("metaData", "protocol") for action in actions)
        if found is None or is_definition_changed:
            info: Body = next((action.body for action in actions if action.kind == "commitInfo"), {})
            found = winning_commit_of(info, version, is_definition_changed=is_definition_changed)
        if is_definition_changed:
            break
    return found


def tell_of(error: BaseException, earlier: WinningCommit | None) -> None:
    """Adds a note to the error of a statement that was not committed: nothing was written, and the winning commit, if any."""
    if earlier is None:
        error.add_note("lakegate: nothing of this statement was written")
        return
    did = " and changed the table's definition" if earlier.is_definition_changed else ""
    error.add_note(
        f"lakegate: {earlier} came first{did}; this statement was rebased on it, and failed there; nothing of it was "
        "written. Look at the table as it is now, correct the statement if it no longer fits, and run it again"
    )


@contextmanager
def telling_conflicts() -> Iterator[None]:
    """Adds the winning commit to the errors of statements that only stock Delta executes."""
    try:
        yield
    except Exception as error:
        if (name := conflict_name(error)) is not None:
            earlier = _quoted(str(error))
            error.add_note(
                f"lakegate: {earlier or 'another commit'} came first, and stock Delta cannot rebase this statement on it; "
                "nothing of it was written. Run it again, or in a turn, which nobody else commits in "
                f"(docs/reference/conflict-exceptions.md, {name})"
            )
        raise


def _quoted(text: str) -> WinningCommit | None:
    """Returns the commit that Delta's error quotes; None if it quotes none."""
    found = CONFLICTING.search(text)
    if found is None:
        return None
    try:
        info, _ = json.JSONDecoder().raw_decode(found[1])
    except ValueError:
        return None
    return winning_commit_of(info, info.get("version"))
