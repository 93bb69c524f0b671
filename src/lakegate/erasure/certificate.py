"""The certificate of a search: what was looked at and found, in JSON with a hash, each chained to the table's previous one.

Rules for editors: pure. No value of a person enters a certificate: keys and partition folders are salted hashes. A file that could
not be looked at makes a certificate incomplete; it is never left out.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lakegate.stored_json import Damaged, checked, listed, parsed

FORMAT = 1
Verdict = Literal["clean", "found", "incomplete"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LookedAt:
    """A file that was searched."""

    path: str
    """Values of key columns in it are hashes, `person=#…`."""
    place: str
    """As `live`, `old version`, `change data`, `orphan`, `commit`, `checkpoint`."""
    size_bytes: int
    sha256: str
    columns: tuple[str, ...]
    """Columns of a Parquet file that were compared."""
    row_groups: int
    row_groups_read: int
    """The statistics of the others exclude the persons."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A person's values in a file."""

    path: str
    place: str
    """As of `LookedAt`, and `hidden` for rows under a deletion vector."""
    where: str
    """`rows`, or the part of an action: `add: statistics`."""
    column: str
    rows: int
    """Rows, or actions of a log."""
    persons: tuple[str, ...]
    """Salted hashes."""
    gone_at_ms: int | None
    """When the table's settings let it be deleted; None: only if somebody deletes it."""
    by: str
    """What takes it away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotLookedAt:
    """A file, or another place, that could not be searched."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """All of it."""

    number: int
    """Counts the certificates of a table in a folder, from 1."""
    table: str
    version: int
    earliest_version: int | None
    """The earliest version that time travel can still read."""
    made_at_ms: int
    lakegate: str
    salt: str
    persons: tuple[str, ...]
    columns: Mapping[str, tuple[str, ...]]
    """Column → the names under which files have it, in any version."""
    is_anywhere: bool
    """Texts of the other columns were searched, too."""
    deleted_files_kept_ms: int
    log_kept_ms: int
    looked_at: tuple[LookedAt, ...]
    found: tuple[Found, ...]
    not_looked_at: tuple[NotLookedAt, ...]
    previous: str | None
    """The hash of the previous certificate of the table; None for the first."""

    @property
    def verdict(self) -> Verdict:
        """`clean` only if everything was looked at and nothing was found."""
        return "found" if self.found else "incomplete" if self.not_looked_at else "clean"

    @property
    def sha256(self) -> str:
        """The hash of everything else."""
        return hashlib.sha256(json.dumps(self._body(), sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    def _body(self) -> dict[str, Any]:
        return {"format": FORMAT, "verdict": self.verdict, **dataclasses.asdict(self)}

    def to_json(self) -> str:
        """Returns the text of the file."""
        return json.dumps({**self._body(), "sha256": self.sha256}, indent=1) + "\n"


def from_json(text: str) -> Certificate:
    """Reads a certificate.

    Raises:
        Damaged: It is none, or its hash is not that of its content.
    """
    data = parsed(text)
    if data.pop("format", None) != FORMAT:
        raise Damaged("not a certificate of a format that is known here")
    said, verdict = data.pop("sha256", None), data.pop("verdict", None)
    try:
        parts: dict[str, Any] = {
            "looked_at": tuple(checked(LookedAt(**one)) for one in _each(data, "looked_at", "columns")),
            "found": tuple(checked(Found(**one)) for one in _each(data, "found", "persons")),
            "not_looked_at": tuple(checked(NotLookedAt(**one)) for one in _each(data, "not_looked_at")),
            "columns": {name: listed(names) for name, names in data["columns"].items()},
            "persons": listed(data["persons"]),
        }
        certificate = checked(Certificate(**{**data, **parts}))
    except (TypeError, KeyError, AttributeError) as error:
        raise Damaged("not a certificate") from error
    if certificate.sha256 != said or certificate.verdict != verdict:
        raise Damaged("its hash is not that of its content")
    return certificate


def _each(data: Mapping[str, Any], name: str, *lists: str) -> list[dict[str, Any]]:
    return [{**one, **{inner: listed(one[inner]) for inner in lists}} for one in listed(data[name])]


def broken_link(certificate: Certificate, others: Sequence[Certificate]) -> str | None:
    """Returns why a certificate is not linked to the previous one of its table; None if it is."""
    if certificate.number == 1:
        return None if certificate.previous is None else "it is the first, and names a previous one"
    before = [one for one in others if (one.table, one.number) == (certificate.table, certificate.number - 1)]
    if not before:
        return f"the previous one, number {certificate.number - 1}, is missing"
    if all(one.sha256 != certificate.previous for one in before):
        return f"number {certificate.number - 1} is not the one that it names"
    return None
