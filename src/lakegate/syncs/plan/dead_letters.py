"""Quarantined rows of a sync (dead letters): applied with a later change of one of them, dropped, corrected, or sent again.

Rules for editors: a letter is deleted in the transaction that applies its row or quarantines it again, never earlier.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lakegate.errors import InvalidRequest
from lakegate.syncs.plan import json_numbers, values
from lakegate.syncs.plan.change import Image, Unread
from lakegate.syncs.plan.net_changes import Key, Net, NetRow, canonical
from lakegate.syncs.plan.table_schema import TableSchema

LETTERS_MAX = 10_000
"""The maximum number of letters applied with one batch, oldest first. The rest is applied with a later batch."""
MARK = "lakegate"
"""A key in a kept image that is not a column; its value has further facts of the row."""
BYTES = "lakegate_bytes"
LEFT_OUT = "lakegate_left_out_bytes"
"""Replaces a value in a kept image that was too large for the target to keep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRow:
    """A quarantined row in a form that can be applied again."""

    batch: int
    n: int
    table: str
    key: Key
    image: Image | None
    """None for a deletion."""
    origin: Key | None
    seq: int
    is_partial: bool
    reason: str

    @property
    def id(self) -> str:
        """The name of the row for users and commands."""
        return f"{self.batch}.{self.n}"

    @property
    def is_record(self) -> bool:
        """Returns whether it is an unreadable record: its key states its location, and its image has its beginning."""
        return not self.table

    @property
    def lacks_values(self) -> bool:
        """Returns whether a value of the row was too large to be kept."""
        return self.image is not None and any(isinstance(one, dict) and LEFT_OUT in one for one in self.image.values())


def unread_row(n: int, seq: int, unread: Unread) -> NetRow:
    """Returns an unreadable record as it is kept among quarantined rows: without a table."""
    where = " ".join(f"{name}={value}" for name, value in unread.where.items())
    return NetRow(n, "", (where,), {"record": unread.data}, None, seq)


def kept_image(row: NetRow, bytes_max: int | None) -> str:
    """Returns the text in which a row's image is kept.

    Args:
        row: The row, with an image or without.
        bytes_max: The maximum size of the text; of a value that exceeds its share, only the size is kept.
    """
    more: dict[str, Any] = {}
    if row.origin is not None:
        more["origin"] = list(row.origin)
    if row.is_partial:
        more["partial"] = True
    image = {**(row.image or {}), **({MARK: more} if more else {})}
    text = kept_text(image)
    if bytes_max is None or len(text) <= bytes_max:
        return text
    room = bytes_max // (2 * max(1, len(image)))

    def kept(value: object) -> object:
        size = len(kept_text(value))
        return value if size <= room else {LEFT_OUT: size}

    return kept_text({name: kept(value) for name, value in image.items()})


def kept_row(batch: int, n: int, table: str, key: str, image: str | None, seq: int, reason: str) -> KeptRow:
    """Returns a row as the target's table of dead letters stores it."""
    row = None if image is None else {name: _value(value) for name, value in json_numbers.loads(image).items()}
    more: Any = {} if row is None else row.pop(MARK, {})
    return KeptRow(
        batch=batch, n=n, table=table, key=_key(json_numbers.loads(key)), image=row,
        origin=_key(more["origin"]) if "origin" in more else None, seq=seq, is_partial="partial" in more, reason=reason,
    )  # fmt: skip


def joined(net: Net, letters: Sequence[KeptRow], tables: Mapping[str, TableSchema]) -> Net:
    """Returns the batch with the letters if it changes the row of one of them; else the batch unchanged.

    A row that the batch changes is completed from its letter. All other letters are tried again too, because they may depend
    on that row.

    Args:
        net: The batch's net effect.
        letters: Quarantined rows, oldest first.
        tables: The target's tables, by name; letters of other tables stay quarantined.
    """
    if net.many is not None or net.copies:
        return net
    emptied = set(net.truncated)
    placed = {(row.table, canonical(row.key)): row for row in net.rows}
    moved = {(row.table, canonical(row.origin)): row for row in net.rows if row.origin is not None}
    if not any(one.table in emptied or (one.table, canonical(one.key)) in placed for one in letters):
        return net
    own = [one for one in letters if one.table in tables or one.table in emptied]
    rest: dict[tuple[str, Key], KeptRow] = {}
    for letter in own:
        if letter.table in emptied:
            continue
        place = (letter.table, canonical(letter.key))
        row = moved.get(place) or placed.get(place)
        if row is None:
            rest[place] = _merged(rest.get(place), letter)
        elif row.image is not None and row.is_partial:
            here = (row.table, canonical(row.key))
            row = placed[here]
            assert row.image is not None
            placed[here] = row._replace(
                image={**(letter.image or {}), **row.image},
                origin=letter.origin if place == here and letter.origin is not None else row.origin,
                is_partial=row.is_partial and letter.is_partial,
            )
    rows = [*placed.values(), *(_row(letter) for letter in rest.values())]
    return replace(
        net,
        rows=tuple(row._replace(n=n) for n, row in enumerate(rows)),
        letters=tuple((one.batch, one.n) for one in own),
        is_repeatable=net.is_repeatable and not any(row.origin is not None and row.is_partial for row in rows),
    )


def corrected(letters: Iterable[KeptRow], corrections: Mapping[str, object], tables: Mapping[str, TableSchema]) -> Net:
    """Returns letters as a separate batch, with these values instead of their own.

    Raises:
        InvalidRequest: A letter lacks a value that was too large to be kept, or a column does not exist.
    """
    rest: dict[tuple[str, Key], KeptRow] = {}
    ids = []
    for letter in letters:
        if letter.is_record:
            raise InvalidRequest(
                "a record that cannot be read cannot be sent again; nothing was sent",
                advice="Correct it at the source, so that it is sent again, or write its row with "
                "`lakegate sync repair`; then drop it",
                id=letter.id, record=letter.key[0],
            )  # fmt: skip
        columns = {column.name for column in tables[letter.table].stored} if letter.table in tables else set[str]()
        unknown = sorted(set(corrections) - columns)
        if letter.table not in tables or (corrections and (unknown or letter.image is None)):
            raise InvalidRequest(
                "a quarantined row cannot be corrected this way; nothing was sent",
                advice="Name columns of its table; a deletion has no values",
                id=letter.id, table=letter.table, column=", ".join(unknown) or None,
            )  # fmt: skip
        if letter.image is not None:
            letter = replace(letter, image={**letter.image, **corrections})
            key = tables[letter.table].key_of(letter.image) or letter.key
            letter = replace(letter, key=key, origin=letter.origin if key == letter.key else None)
        if letter.lacks_values:
            raise InvalidRequest(
                "a value of a quarantined row was too large to be kept; nothing was sent",
                advice="Give it with --set, or let the source send the row again",
                id=letter.id, table=letter.table,
            )  # fmt: skip
        ids.append((letter.batch, letter.n))
        place = (letter.table, canonical(letter.key))
        rest[place] = _merged(rest.get(place), letter)
    rows = tuple(_row(letter)._replace(n=n) for n, letter in enumerate(rest.values()))
    return Net(rows=rows, letters=tuple(ids), changes=len(rows), through=-1)


def _merged(before: KeptRow | None, letter: KeptRow) -> KeptRow:
    """Merges a later letter of a row over an earlier one."""
    if before is None or before.image is None or letter.image is None or not letter.is_partial:
        return letter
    image = {**before.image, **letter.image}
    return replace(letter, image=image, origin=letter.origin or before.origin, is_partial=before.is_partial)


def _row(letter: KeptRow) -> NetRow:
    return NetRow(0, letter.table, letter.key, letter.image, letter.origin, letter.seq, letter.is_partial)


def _key(parts: Sequence[object]) -> Key:
    return tuple(_value(value) for value in parts)


def _value(value: Any) -> Any:
    if isinstance(value, list):
        return [_value(one) for one in value]
    if isinstance(value, dict) and value.keys() == {BYTES}:
        return base64.b64decode(value[BYTES])
    return values.from_json(value)


def kept_text(value: object) -> str:
    """Returns JSON that `kept_row` can read: bytes as base64, and values that JSON cannot represent with a mark."""

    def other(one: object) -> object:
        return {BYTES: base64.b64encode(one).decode()} if isinstance(one, bytes | bytearray) else str(one)

    return json.dumps(values.to_json(value), default=other)
