"""Change sequences for tests: scenarios with known ends, variants of their events, and random cuts."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lakegate.syncs.plan.change import Change, transactions


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A recorded sequence of changes."""

    id: str
    schema: tuple[str, ...]
    tables: tuple[str, ...]
    initial: dict[str, list[dict[str, Any]]]
    changes: tuple[Change, ...]
    final: dict[str, list[dict[str, Any]]]


def scenarios(path: Path) -> list[Scenario]:
    """Reads the scenarios of `scenarios.json`; a definition that changes within the stream is a change of its own."""
    return [_scenario(one) for one in json.loads(path.read_text(encoding="utf-8"))["scenarios"]]


def _scenario(record: dict[str, Any]) -> Scenario:
    definitions = {int(one["after_transactions"]): one["ddl"] for one in record["schema_changes"] or ()}
    changes: list[Change] = []
    seen: list[object] = []
    for event in record["events"]:
        if event["tx"] not in seen:
            if len(seen) in definitions:
                changes.append(_ddl(definitions.pop(len(seen)), len(changes), record))
            seen.append(event["tx"])
        changes.append(
            Change(
                seq=len(changes), tx=str(event["tx"]), table=event["table"], op=event["op"],
                before=event.get("before"), after=event.get("after"),
            )
        )  # fmt: skip
    return Scenario(
        id=record["id"],
        schema=tuple(record["schema"]),
        tables=tuple(record["tables"]),
        initial=record["initial"],
        changes=tuple(changes),
        final=record["final"],
    )


def _ddl(sql: str, seq: int, record: dict[str, Any]) -> Change:
    return Change(seq=seq, tx=None, table=next(iter(record["tables"])), op="ddl", sql=sql)


@dataclass(frozen=True, slots=True)
class Changes:
    """A `ChangeSource` of changes in memory."""

    changes: Sequence[Change]

    def transactions(
        self, after: int, place: str | None = None, *, until: str | None = None
    ) -> Iterator[tuple[Change, ...]]:
        """See the port."""
        for group in transactions(self.changes):
            new = tuple(change for change in group if change.seq > after)
            if new:
                yield new


def key_only(changes: Sequence[Change], keys: dict[str, tuple[str, ...]]) -> list[Change]:
    """Returns the changes with before-images cut to the key, as PostgreSQL sends them by default."""
    return [
        replace(change, before={name: change.before[name] for name in keys[change.table]})
        if change.before is not None
        else change
        for change in changes
    ]


def changed_columns_only(changes: Sequence[Change], keys: dict[str, tuple[str, ...]]) -> list[Change]:
    """Returns the changes with updates cut to the key and the changed columns."""

    def cut(change: Change) -> Change:
        if change.op != "u" or change.before is None or change.after is None:
            return change
        before = change.before
        kept = {k: v for k, v in change.after.items() if k in keys[change.table] or before.get(k) != v}
        return replace(change, after=kept)

    return [cut(change) for change in changes]


def random_cuts(changes: Sequence[Change], chance: random.Random, *, pieces_max: int) -> list[list[Change]]:
    """Cuts the changes into at most about `pieces_max` pieces, which end where transactions end."""
    groups = list(transactions(changes))
    pieces: list[list[Change]] = [[]]
    for group in groups:
        pieces[-1].extend(group)
        if chance.random() < min(0.4, pieces_max / len(groups)):
            pieces.append([])
    return [piece for piece in pieces if piece]


def table_text(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Returns the rows as sorted JSON lines, for comparison as a whole."""
    return sorted(json.dumps(row, sort_keys=True, default=str, ensure_ascii=False) for row in rows)
