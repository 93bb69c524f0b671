"""Effects of committing a statement: typed requests that the protocol yields.

Production answers them with stock Delta, the gate and the table's files. The simulator answers them from memory, switches
writers at every effect, and loses requests or replies. It explores the same code exhaustively.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyroaring import BitMap64

from lakegate.delta.actions import Action, Body, Captured, Changes, Committed, FileChange
from lakegate.delta.deletion_vectors import Descriptor
from lakegate.effects import Effect
from lakegate.ids import Version
from lakegate.rows.conflict.read_set import Statement


@dataclass(frozen=True, slots=True)
class Execute(Effect[Captured | Committed]):
    """Runs the whole stock statement on the current table; keeps its commit if another commit has the version."""


@dataclass(frozen=True, slots=True)
class Describe(Effect[Statement]):
    """Classifies the statement. Yielded only after a lost commit, because it needs the analysis of the plan."""


@dataclass(frozen=True, slots=True)
class ExecuteOn(Effect[Captured | Committed]):
    """Runs the stock statement on these files only, as they are at `version`; keeps its commit instead of writing it.

    Its actions name the files as the table does.
    """

    files: tuple[Body, ...]
    """The `add` of each file, or, for an unchanged file, the statement's own `remove`."""
    version: Version


@dataclass(frozen=True, slots=True)
class FindMoved(Effect[Mapping[str, BitMap64] | None]):
    """Finds the rows that these files have lost in copies of them: path of a copy → positions. Equal rows are interchangeable.

    Answered with None if the result is not certain.
    """

    lost_rows: tuple[FileChange, ...]
    copies: tuple[Body, ...]


@dataclass(frozen=True, slots=True)
class Waiting:
    """A statement that lost its first commit and has not tried another: it may join a group commit."""

    statement: Statement
    lost: Captured


@dataclass(frozen=True, slots=True)
class Joined:
    """The statement was committed in a group; `version` is None if it had nothing left to do."""

    version: Version | None
    level: int


@dataclass(frozen=True, slots=True)
class GroupInDoubt:
    """A group commit with the statement may have arrived, or may still arrive, under this transaction id."""

    transaction_id: str


@dataclass(frozen=True, slots=True)
class ReadChanges(Effect[Changes | Joined | GroupInDoubt]):
    """Reads the net changes committed after a version, up to now."""

    after: Version
    waiting: Waiting | None = None
    """The waiting statement, if a group commit may answer instead."""


Positions = BitMap64 | None
"""Matching rows of a file; None if there are some and their positions are not known."""


@dataclass(frozen=True, slots=True)
class FindEntered(Effect[Mapping[str, Positions]]):
    """Finds the live rows of these files that match the statement's condition; omits files without such rows."""

    files: tuple[FileChange, ...]


@dataclass(frozen=True, slots=True)
class MeetKeys(Effect[bool]):
    """Tests whether added or removed rows have a key of the statement's source."""

    came: tuple[FileChange, ...]
    lost_rows: tuple[FileChange, ...]


@dataclass(frozen=True, slots=True)
class ReadVector(Effect[BitMap64]):
    """Reads the positions that a vector marks."""

    descriptor: Descriptor


@dataclass(frozen=True, slots=True)
class WriteVectors(Effect[tuple[Descriptor, ...]]):
    """Writes vectors so that a commit can refer to them."""

    vectors: tuple[BitMap64, ...]


@dataclass(frozen=True, slots=True)
class PutReply:
    """The outcome of a compare-and-set: whether the commit is known to be ours. If not, it is another's, or still unknown."""

    is_done: bool
    transaction_id: str
    """Id of the attempted commit; a later read recognizes our commit by it."""


@dataclass(frozen=True, slots=True)
class Put(Effect[PutReply]):
    """Commits these actions at exactly `version`, with the history of the stock statement."""

    version: Version
    actions: tuple[Action, ...]
    info: Body


@dataclass(frozen=True, slots=True)
class Reserve(Effect[None]):
    """Reserves the table for a limited time, or until the statement ends: other commits through a gate wait. Renewable."""
