"""What publishing a statement asks of the world: typed questions that a generator yields.

Production answers them with stock Delta, the gate and the table's files; the simulator answers them from memory, switches
writers at every one of them, and loses requests or replies. Same code, explored exhaustively.
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
    """Run the whole stock statement on the table as it is; keep its commit if another holds the version."""


@dataclass(frozen=True, slots=True)
class Describe(Effect[Statement]):
    """What has to be known of the statement. Asked only when it has lost: its plan is analysed for it."""


@dataclass(frozen=True, slots=True)
class ExecuteOn(Effect[Captured | Committed]):
    """Run the stock statement on these files only, as they are at `version`; keep its commit, which is not put.

    Its actions name the files as the table does.
    """

    files: tuple[Body, ...]
    """The `add` of each, or, for a file that is as it was, the statement's own `remove`."""
    version: Version


@dataclass(frozen=True, slots=True)
class FindMoved(Effect[Mapping[str, BitMap64] | None]):
    """Where rows that these files have lost are in copies of them: path of a copy → positions. Equal rows are one another's.

    None where it is not certain.
    """

    lost_rows: tuple[FileChange, ...]
    copies: tuple[Body, ...]


@dataclass(frozen=True, slots=True)
class Waiting:
    """A statement whose commit lost, and that has tried no other put: it may go into a version together with others."""

    statement: Statement
    lost: Captured


@dataclass(frozen=True, slots=True)
class Joined:
    """It went into a version together with others; None where it had nothing left to do."""

    version: Version | None
    level: int


@dataclass(frozen=True, slots=True)
class InDoubt:
    """A put that it was part of may have arrived, or arrive yet, under this transaction's id."""

    transaction_id: str


@dataclass(frozen=True, slots=True)
class ReadChanges(Effect[Changes | Joined | InDoubt]):
    """What was committed after a version, up to now."""

    after: Version
    waiting: Waiting | None = None
    """What asks, if it may be put together with others instead of being answered."""


Positions = BitMap64 | None
"""Rows of a file; None where some are meant and it is not known which."""


@dataclass(frozen=True, slots=True)
class FindEntered(Effect[Mapping[str, Positions]]):
    """Which live rows of these files the statement's condition holds for; files without such rows are left out."""

    files: tuple[FileChange, ...]


@dataclass(frozen=True, slots=True)
class MeetKeys(Effect[bool]):
    """Whether rows that came, or went, have a key of the statement's source."""

    came: tuple[FileChange, ...]
    lost_rows: tuple[FileChange, ...]


@dataclass(frozen=True, slots=True)
class ReadVector(Effect[BitMap64]):
    """The positions that a vector marks."""

    descriptor: Descriptor


@dataclass(frozen=True, slots=True)
class WriteVectors(Effect[tuple[Descriptor, ...]]):
    """Write vectors down, where a commit can name them."""

    vectors: tuple[BitMap64, ...]


@dataclass(frozen=True, slots=True)
class PutReply:
    """How a compare-and-set ended: whether it is known to be ours. If not, it is another's, or nobody knows yet."""

    is_done: bool
    transaction_id: str
    """Of the commit that was tried; by it a later reader knows ours."""


@dataclass(frozen=True, slots=True)
class Put(Effect[PutReply]):
    """Commit these actions at exactly `version`, with the history of the stock statement."""

    version: Version
    actions: tuple[Action, ...]
    info: Body


@dataclass(frozen=True, slots=True)
class Reserve(Effect[None]):
    """For a while, or until the statement ends, no other commit that passes a gate goes to the table. Who has it takes it anew."""
