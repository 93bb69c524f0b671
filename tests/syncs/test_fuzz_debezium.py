"""Random histories as connectors send them, killed anywhere and sent again, read in pieces: each change comes exactly once."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from lakegate.syncs.plan.source_position import waiting
from lakegate.syncs.sources.debezium import DebeziumChanges
from lakegate.syncs.sources.debezium_files import EnvelopeFiles
from tests.syncs.envelopes import ended, mysql, of_tx, postgres
from tests.syncs.topics import Topics

LOGS = ("t/0", "t/1", "u/0")
Told = list[tuple[str, list[tuple[str, dict[str, Any]]]]]
"""Transactions: their name, and for each change its log and envelope, whose row has the change's number as its id."""


def history(chance: Random, kind: str, name: str, first: int) -> Told:
    """Makes the changes of one source."""
    told: Told = []
    number, position = first, 1_000
    for n in range(chance.randrange(1, 12)):
        before, rows = position, []
        for i in range(chance.randrange(1, 6)):
            log = chance.choice(LOGS)
            number += 1
            position += chance.choice((0, 0, 5)) if i and kind != "postgres" else chance.randrange(1, 9)
            facts: dict[str, Any] = {"name": name, "ts_ms": 1_000 * n, "table": log[0]}
            if kind == "postgres":
                # Transactions overlap in the log: their changes lie before the end of the transaction before.
                row = postgres(position - chance.randrange(0, 3), before=before, id=number, **facts, txId=first + n)
            else:
                gtid = {"gtid": f"{name}-{first}:{n + 1}"} if kind == "gtid" else {}
                row = mysql(7, position, id=number, **facts, **gtid, row=i, db="s")
            rows.append((log, row))
        position += 3
        if kind == "postgres":
            numbers = sorted(row["source"]["lsn"] for _, row in rows)
            for (_, row), lsn in zip(rows, numbers, strict=True):
                row["source"] |= {"lsn": lsn, "sequence": json.dumps([str(before), str(lsn)])}
        told.append((f"{name}-{first}:{n}", rows))
    return told


def sent(chance: Random, told: Told) -> dict[str, list[Any]]:
    """The logs: the connector dies at any change, what it sent last may be lost in any log, and it goes back any way."""
    logs: dict[str, list[Any]] = {name: [] for name in (*LOGS, "ends")}

    def send(tx: tuple[str, list[tuple[str, dict[str, Any]]]], rows_max: int | None = None) -> None:
        id, rows = tx
        counts: dict[str, int] = {}
        before = {name: len(log) for name, log in logs.items()}
        for n, (log, row) in enumerate(rows, 1):
            counts[log[0]] = counts.get(log[0], 0) + 1
            if rows_max is None or n <= rows_max:
                logs[log].append(of_tx(id, n, row))
                if chance.random() < 0.1:
                    logs[log].append(None)
        if rows_max is None:
            logs["ends"].append(ended(id, **counts))
        else:  # of the last transaction any log may have lost its end
            for name, log in logs.items():
                del log[chance.randint(before[name], len(log)) :]

    n = 0
    while n < len(told):
        if chance.random() < 0.35:
            send(told[n], chance.randrange(0, len(told[n][1]) + 1))
            n = max(0, n - chance.choice((0, 0, 1, 1, 2, 5, 20)))
            continue
        send(told[n])
        n += 1
    return logs


def mixed(chance: Random, sources: list[dict[str, list[Any]]]) -> dict[str, list[Any]]:
    """The logs of several connectors in the same topics."""
    found: dict[str, list[Any]] = {}
    for name in sources[0]:
        rest = [list(logs[name]) for logs in sources]
        found[name] = []
        while any(rest):
            found[name].append(chance.choice([one for one in rest if one]).pop(0))
    return found


def failed_over(told: Told, chance: Random) -> Told:
    """The same, as another server has it: other files and positions, the same GTIDs."""
    file, shift = chance.choice((3, 50)), chance.randrange(0, 5_000)
    return [
        (id, [(log, {**row, "source": {**row["source"], "file": f"other.{file:06}", "pos": row["source"]["pos"] + shift}})
              for log, row in rows]) for id, rows in told
    ]  # fmt: skip


def attempt(seed: int, folder: Path | None = None) -> None:
    """Runs one history; as files if there is a folder."""
    chance = Random(f"debezium {seed}")
    kind, is_whole = chance.choice(("postgres", "mysql", "gtid")), chance.random() < 0.6
    is_plain = folder is not None and not is_whole  # files of a table each that grow for themselves come late
    sources = [
        history(chance, kind, f"server{n}", 1_000 * n) for n in range(1 if is_plain else chance.choice((1, 1, 2)))
    ]
    parts = [sent(chance, told) for told in sources]
    if kind == "gtid" and chance.random() < 0.5 and not is_plain:
        back = chance.randrange(0, len(sources[0]) + 1)
        more = history(chance, kind, "server0", 500_000)
        rest = sent(chance, [*failed_over(sources[0][back:], chance), *failed_over(more, chance)])
        sources[0] += more
        parts[0] = {name: [*parts[0][name], *rest[name]] for name in rest}
    logs = mixed(chance, parts)
    if not is_whole:
        del logs["ends"]
    growing: dict[str, list[Any]] = {name: [] for name in logs}
    found: list[tuple[str | None, int]] = []
    place, after = None, -1
    for step in range(pieces := 1 if is_plain else chance.randrange(1, 5)):
        for name, log in logs.items():
            stop = len(log) if step == pieces - 1 else chance.randint(len(growing[name]), len(log))
            growing[name] += log[len(growing[name]) : stop]
        source: Any = Topics("ends" if is_whole else None, **growing)
        if folder is not None:
            for name, log in growing.items():
                path = folder / ("e" if name == "ends" else "d") / name.replace("/", "")
                path.parent.mkdir(exist_ok=True)
                path.write_text("".join(json.dumps(one) + "\n" for one in log))
            source = EnvelopeFiles(files=str(folder / "d"), transactions=str(folder / "e") if is_whole else None)
        is_idle = False
        while not is_idle:
            is_idle = True
            stop_at = chance.choice((1, 3, 10_000))
            for n, group in enumerate(DebeziumChanges(logs=source).transactions(after, place)):
                place, after = group[-1].place, group[-1].seq
                if group[0].op == "mark":
                    continue
                found += [(one.tx, (one.after or {})["id"]) for one in group]
                is_idle = False
                if n + 1 == stop_at:
                    break
    told = [(row["after"]["id"], log) for source in sources for _, rows in source for log, row in rows]
    numbers = [number for _, number in found]
    assert sorted(numbers) == sorted(number for number, _ in told), seed
    assert waiting(place) is None, seed
    for one in sources:
        wanted = [row["after"]["id"] for _, rows in one for _, row in rows]
        mine = [number for number in numbers if number in set(wanted)]
        if is_whole:
            assert mine == wanted, seed
        for log in LOGS:
            ordered = [row["after"]["id"] for _, rows in one for name, row in rows if name == log]
            assert [number for number in mine if number in set(ordered)] == ordered, (seed, log)


@pytest.mark.parametrize("part", range(4))
def test_random_histories_come_exactly_once(part: int, tmp_path: Path) -> None:
    """PostgreSQL and MySQL, with GTIDs and without, one server or two, a fail-over; topics and files; metadata or none."""
    for seed in range(40):
        attempt(1_000 * part + seed)
    for seed in range(4):
        (tmp_path / f"{seed}").mkdir()
        attempt(10_000 + 1_000 * part + seed, tmp_path / f"{seed}")


@pytest.mark.matrix
@pytest.mark.parametrize("part", range(10))
def test_many_random_histories_come_exactly_once(part: int, tmp_path: Path) -> None:
    """The same, for long."""
    for seed in range(2_000):
        attempt(100_000 + 10_000 * part + seed)
    for seed in range(200):
        (tmp_path / f"{seed}").mkdir()
        attempt(500_000 + 10_000 * part + seed, tmp_path / f"{seed}")
