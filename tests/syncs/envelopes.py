"""Envelopes as Debezium's connectors send them: rows of PostgreSQL and MySQL, their transactions, and whole scenarios."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness.changes import Scenario


def mysql(file: int, pos: int, *, id: int = 0, op: str = "c", before: Any = None, **more: Any) -> dict[str, Any]:
    """An envelope of MySQL, in the table `shop.orders`."""
    source = {
        "connector": "mysql", "name": "crm", "db": "shop", "table": "orders", "file": f"bin.{file:06}", "pos": pos,
        "row": 0, "server_id": 1, "ts_ms": 1_700_000_000_000, "snapshot": "false", **more,
    }  # fmt: skip
    return {"op": op, "before": before, "after": None if op == "d" else {"id": id or pos}, "source": source}


def postgres(lsn: int, *, before: int = 0, table: str = "t", op: str = "c", id: int = 0, **more: Any) -> dict[str, Any]:
    """An envelope of PostgreSQL."""
    source = {
        "connector": "postgresql", "name": "crm", "db": "d", "schema": "s", "table": table, "lsn": lsn,
        "sequence": json.dumps([str(before), str(lsn)]), "ts_ms": lsn, "txId": 7, "snapshot": "false", **more,
    }  # fmt: skip
    return {"op": op, "before": None, "after": None if op == "t" else {"id": id or lsn}, "source": source}


def of_tx(id: str, n: int, one: dict[str, Any]) -> dict[str, Any]:
    """The same, with its place in a transaction."""
    return {**one, "transaction": {"id": id, "total_order": n, "data_collection_order": n}}


def ended(id: str, **counts: int) -> dict[str, Any]:
    """The end of a transaction."""
    collections = [{"data_collection": f"s.{name}", "event_count": n} for name, n in counts.items()]
    return {"status": "END", "id": id, "event_count": sum(counts.values()), "data_collections": collections}


def source(lsn: int, before: int = 0, table: str = "t", **more: Any) -> dict[str, Any]:
    """A `source` of PostgreSQL."""
    return {
        "connector": "postgresql", "db": "d", "schema": "s", "table": table, "lsn": lsn,
        "sequence": json.dumps([str(before), str(lsn)]), "ts_ms": lsn, "snapshot": "false", **more,
    }  # fmt: skip


def message(
    op: str, lsn: int, before: Any = None, after: Any = None, tx: str | None = None, n: int = 1
) -> dict[str, Any]:
    """An envelope of `s.t`."""
    transaction = None if tx is None else {"id": tx, "total_order": n, "data_collection_order": n}
    return {"op": op, "before": before, "after": after, "source": source(lsn), "transaction": transaction}


def write(path: Path, *messages: Any) -> Path:
    """A file of them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(one) + "\n" for one in messages))
    return path


def envelopes(scenario: Scenario, keys: dict[str, tuple[str, ...]], images: str) -> tuple[list[Any], list[Any]]:
    """The scenario's changes as PostgreSQL's connector sends them, and its transaction metadata."""
    data = []
    counts: dict[str, dict[str, int]] = {}
    for change in scenario.changes:
        count = counts.setdefault(str(change.tx), {})
        before, after, key = change.before, change.after, keys[change.table]
        parts = [(change.op, before if images == "full" or change.op == "d" else None, after)]
        if images == "none" and before and after and any(before[one] != after[one] for one in key):
            parts = [("d", {one: before[one] for one in key}, None), ("c", None, after)]  # so a moved key is sent
        for op, old, new in parts:
            count[change.table] = count.get(change.table, 0) + 1
            transaction = {"id": str(change.tx), "total_order": sum(count.values())}
            where = source(1000 + len(data), before=len(counts), table=change.table)
            data.append({"op": op, "before": old, "after": new, "source": where, "transaction": transaction})
    return data, [one for tx, count in counts.items() for one in ({"status": "BEGIN", "id": tx}, ended(tx, **count))]
