"""Plans how what a search found in a table is taken away: which step removes it, in order; what must stay, why, and until when.

Rules for editors: pure. A file goes only if a rule here says why nobody needs it; in doubt it stays, with the reason. No step
changes what a commit says: commits go from the oldest on, up to a checkpoint that stands for them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from lakegate.erasure.history import CHECKPOINT, LOG, RUNNING_MS, Entry, History

Action = Literal["delete requests", "purge", "vacuum", "checkpoint", "clean log", "mask texts"]
ORDER: tuple[Action, ...] = ("delete requests", "purge", "vacuum", "checkpoint", "clean log", "mask texts")
"""Each step finds what the one before it leaves: a purge makes old files, and a commit that may name persons."""
OF_VERSION = re.compile(r"\.?(\d{20})\..+")
"""Names of files of the log that belong to one version, with Hadoop's checksums of them."""
PARTS = re.compile(r"\d{20}\.checkpoint\.\d{10}\.(\d{10})\.parquet")
LAST_CHECKPOINT = f"{LOG}/_last_checkpoint"
ENDED = "superseded"
"""The state of requests that decide nothing any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step, done for one table; it may be done again."""

    table: str
    action: Action
    files: tuple[str, ...]
    """Paths below the table's folder: those that it removes or rewrites, in this order."""
    size_bytes: int
    before: int | None = None
    """Versions below this one cannot be read afterwards; None: that depends on the files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """Files that hold a person and stay for now."""

    table: str
    files: tuple[str, ...]
    why: str
    at_ms: int | None
    """When they can go; None: the time alone does not let them go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """A table, and what was found in it."""

    location: str
    history: History
    entries: Mapping[str, Entry]
    """All files below its folder, by path."""
    named: frozenset[str]
    """Those in which a person was found."""
    unread: frozenset[str]
    """Those that could not be searched."""
    now_ms: int
    files_kept_ms: int
    log_kept_ms: int
    live: str
    """Why rows of its newest version stay."""
    is_requests: bool = False
    read_from: int | None = None
    """The first version whose commit a sync still has to read."""

    def step(self, action: Action, files: Iterable[str], before: int | None = None) -> Step:
        """Returns a step on files, in their order."""
        names = tuple(files)
        size = sum(self.entries[name].size for name in names)
        return Step(table=self.location, action=action, files=names, size_bytes=size, before=before)

    def left(self, files: Iterable[str], why: str, at_ms: int | None = None) -> Left:
        """Returns files that stay."""
        return Left(table=self.location, files=tuple(sorted(files)), why=why, at_ms=at_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The steps, in order, and the files that stay."""

    steps: tuple[Step, ...]
    left: tuple[Left, ...]


def planned(state: TableState) -> Plan:
    """Returns the plan for one table. Its later steps are planned again when the earlier ones are done."""
    data = {name for name in state.named if not name.startswith(f"{LOG}/")}
    live = {name for name in data if state.history.place(name) == "live"}
    ended = {name for name in live if state.is_requests and _state(state, name) == ENDED}
    hidden = {name for name in live - ended if state.history.files[name].vector is not None}
    steps = [state.step("delete requests", sorted(ended))] if ended else []
    steps += [state.step("purge", sorted(hidden))] if hidden else []
    left = [state.left(live - ended - hidden, state.live)] if live - ended - hidden else []
    for plan in (_old_files(state, data - live), _log(state, is_rewritten=bool(steps))):
        steps += plan.steps
        left += plan.left
    return Plan(steps=tuple(steps), left=tuple(left))


def _state(state: TableState, name: str) -> str | None:
    return state.history.files[name].partition.get("state")


def _old_files(state: TableState, names: Iterable[str]) -> Plan:
    """Plans for files that the newest version does not need."""
    now, young, hidden, outside = [], {}, [], []
    for name in sorted(names):
        if name.startswith("/") or ":" in name.partition("/")[0]:
            outside.append(name)
        elif _is_hidden(name):
            hidden.append(name)
        elif (at_ms := state.history.deletable_ms(name, state.entries[name], state.files_kept_ms)) > state.now_ms:
            young[name] = at_ms
        else:
            now.append(name)
    left = [
        state.left(files, why)
        for files, why in (
            (outside, "they are outside of the table's folder, and may be another table's"),
            (hidden, "VACUUM deletes no files under names that begin with _ or ."),
        )
        if files
    ]
    if young:
        why = (
            "the table keeps removed files for a time, and files that no version names may be those of a running write"
        )
        left.append(state.left(young, why, max(young.values())))
    return Plan(steps=(state.step("vacuum", now),) if now else (), left=tuple(left))


def _is_hidden(name: str) -> bool:
    """Returns True for files that VACUUM passes over; folders of partitions and of change data are not hidden."""
    return any(part.startswith((".", "_")) and "=" not in part and part != "_change_data" for part in name.split("/"))


def _log(state: TableState, *, is_rewritten: bool) -> Plan:
    """Plans for commits, checkpoints and what else is in the log."""
    named = {name for name in state.named if name.startswith(f"{LOG}/")}
    versions = {name: version_of(state.history, name) for name in named}
    odd = {name for name, version in versions.items() if version is None and name != LAST_CHECKPOINT}
    left = [state.left(odd, "no command of Delta replaces it")] if odd else []
    last = max([version for version in versions.values() if version is not None], default=None)
    if last is None and LAST_CHECKPOINT not in named:
        return Plan(steps=(), left=tuple(left))
    below = {name for name, version in versions.items() if version is not None}
    if last is not None:  # a checkpoint that cannot be read stands for nothing
        last = max([last, *(version_of(state.history, name) or 0 for name in state.unread)])
    cut = None if last is None else next((one for one in _checkpoints(state) if one > last), None)
    steps = []
    if is_rewritten or LAST_CHECKPOINT in named or (last is not None and cut is None):
        steps.append(state.step("checkpoint", ()))
    kept_ms = max(state.log_kept_ms, RUNNING_MS)
    if cut is not None and not is_rewritten:
        needed, at_ms = _needed(state, cut, kept_ms)
        if needed is None:
            gone = {name: version_of(state.history, name) for name in state.entries if name.startswith(f"{LOG}/")}
            files = sorted((version, name) for name, version in gone.items() if version is not None and version < cut)
            steps.append(state.step("clean log", [name for _, name in files], before=cut))
        else:
            left.append(state.left(below, needed, at_ms))
    elif below:
        why, at_ms = (
            "commits are kept for the log's time after a checkpoint that names nobody, for a day at least",
            state.now_ms,
        )
        if last is not None and last in state.history.checkpoints[-1:] and not is_rewritten:
            why = f"{why}; the newest names a file that the table removed and keeps for its time, or bounds of a live file"
            at_ms = max(at_ms, _written_ms(state, last) + state.files_kept_ms)
        left.append(state.left(below, why, at_ms + kept_ms))
    return Plan(steps=tuple(steps), left=tuple(left))


def _written_ms(state: TableState, version: int) -> int:
    """Returns when a commit was written; the present if the log no longer has it."""
    entry = state.entries.get(f"{LOG}/{version:020d}.json")
    return state.now_ms if entry is None else entry.mtime_ms


def version_of(history: History, name: str) -> int | None:
    """Returns the version to which a file of the log belongs, of a sidecar the newest that needs it; None for other files."""
    own = name.rpartition("/")[2]
    if name.startswith(f"{LOG}/_sidecars/"):
        return history.sidecars.get(own.removeprefix(".").removesuffix(".crc") if own.startswith(".") else own)
    found = OF_VERSION.fullmatch(own)
    return None if found is None else int(found[1])


def _checkpoints(state: TableState) -> list[int]:
    """Returns the checkpoints from which on the log is whole, ascending."""
    files: dict[int, list[str]] = {}
    for name in state.entries:
        if name.startswith(f"{LOG}/") and (found := CHECKPOINT.fullmatch(name.removeprefix(f"{LOG}/"))):
            files.setdefault(int(found[1]), []).append(name)
    commits = set(state.history.commits)
    return [
        version
        for version, names in sorted(files.items())
        if all(one in commits for one in range(version, state.history.head + 1)) and _is_whole(names)
    ]


def _is_whole(names: Iterable[str]) -> bool:
    """Returns True if one of a version's checkpoints has all its parts."""
    parts = [PARTS.fullmatch(name.rpartition("/")[2]) for name in names]
    counts = [int(part[1]) for part in parts if part is not None]
    return None in parts or any(counts.count(one) == one for one in counts)


def _needed(state: TableState, cut: int, kept_ms: int) -> tuple[str | None, int | None]:
    """Returns why the versions below a checkpoint must stay, and until when; None if nobody needs them."""
    properties = state.history.properties
    if properties.get("delta.enableExpiredLogCleanup", "true").lower() == "false":
        return "delta.enableExpiredLogCleanup of the table is false", None
    if cut < int(properties.get("delta.requireCheckpointProtectionBeforeVersion", "0")):
        return "delta.requireCheckpointProtectionBeforeVersion of the table forbids it", None
    if state.read_from is not None and state.read_from < cut:
        return f"a sync still reads from version {state.read_from} on", None
    at_ms = _written_ms(state, cut) + kept_ms
    if at_ms > state.now_ms:
        return f"versions below {cut} are kept for the log's time after that version, for a day at least", at_ms
    return None, None
