"""Statements that wait for a table's next version share it, and leave what they leave one after the other."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from harness.tables import COLUMNS, KINDS, Kind, audit, make, read
from lakegate.delta import commit as exact
from lakegate.delta.jvm import Jvm
from lakegate.errors import CommitInDoubt, Unavailable
from lakegate.ids import TableLocation, Version
from lakegate.rows import group_commit
from lakegate.rows.commit_attempt import CommitAttempt
from lakegate.rows.commit_queue import CommitQueue
from lakegate.rows.committer import Publisher, Staged, publisher
from lakegate.rows.conflict.effects import Joined
from lakegate.rows.result import Result
from lakegate.rows.sql import statement
from lakegate.rows.transaction import GROUP_CONF
from tests.waiting import wait_until

GROUP_MAX = 5
"""Fewer than there are: those of a group are still in the line when the next one is made."""
STATEMENTS = (
    *(f"INSERT INTO {{t}} VALUES ({100 + n}, {n}, {n % 2}, 1, 'i')" for n in range(4)),
    *(f"DELETE FROM {{t}} WHERE id = {n}" for n in (2, 20, 30)),
    *(f"UPDATE {{t}} SET n = n + {n} WHERE id = {n}" for n in (7, 21, 31)),
    *(
        f"MERGE INTO {{t}} t USING (SELECT * FROM range({n}, {n + 2})) s ON t.id = s.id "
        f"WHEN MATCHED THEN UPDATE SET n = 9 WHEN NOT MATCHED THEN INSERT ({COLUMNS}) VALUES (s.id, 1, 0, 1, 'm')"
        for n in (39, 200)
    ),
    "DELETE FROM {t} WHERE id IN (20, 22)",
)
"""Those that concern the same row do so in a way that has one end in any order."""


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    """A session that groups."""
    own = spark.newSession()
    own.conf.set(GROUP_CONF, GROUP_MAX)
    return own


def staged_all(session: SparkSession, path: Path, texts: Sequence[str]) -> list[Staged]:
    staged = []
    for text in texts:
        dml = statement(session, text.format(t=f"delta.`{path}`"))
        assert dml is not None
        staged.append(publisher(session).stage(dml))
    return staged


def finished_together(ours: Publisher, staged: Sequence[Staged]) -> list[Result]:
    """Each by a thread of its own; nobody goes on before all wait in the line."""
    line = ours.line(staged[0].dml.table)
    with ThreadPoolExecutor(len(staged)) as pool:
        with line.lock:
            ends = [pool.submit(ours.finish, one) for one in staged]
            wait_until(lambda: len(line) == len(staged))
        return [end.result() for end in ends]


def rows(path: Path) -> Counter[object]:
    return Counter(read(path).values())


@pytest.mark.matrix
@pytest.mark.parametrize("name", [pytest.param("vectors", marks=pytest.mark.matrix), "partitioned, feed, timestamps"])
def test_waiting_statements_share_a_version(session: SparkSession, tmp_path: Path, name: str) -> None:
    """The rows are those of a serial run, each once; the change feed of a shared version tells the change."""
    kind: Kind = KINDS[name]
    serial, grouped = tmp_path / "serial", tmp_path / "grouped"
    for path in (serial, grouped):
        make(session, kind, path)
    for text in STATEMENTS:
        session.sql(text.format(t=f"delta.`{serial}`"))
    base = rows(grouped)
    first = session.sql(f"DESCRIBE HISTORY delta.`{grouped}`").first()
    assert first is not None
    ends = finished_together(publisher(session), staged_all(session, grouped, STATEMENTS))
    assert rows(grouped) == rows(serial)
    audit(grouped)
    versions = Counter(end.version for end in ends if end.version is not None)
    assert 2 < max(versions.values()) <= GROUP_MAX
    head = session.sql(f"DESCRIBE HISTORY delta.`{grouped}`").first()
    assert head is not None
    assert head.version - first.version == len(versions) <= len(STATEMENTS) // 2
    if kind.has_feed:
        feed = (
            session.read.format("delta").option("readChangeFeed", "true").option("startingVersion", first.version + 1)
        )
        told = base.copy()
        for row in feed.load(str(grouped)).select("id", "v", "p", "n", "s", "_change_type").collect():
            told[tuple(row)[:-1]] += {"insert": 1, "update_postimage": 1}.get(row[-1], -1)
        assert +told == rows(grouped)
        assert not -told


def test_history_of_a_shared_version_names_its_members(session: SparkSession, tmp_path: Path) -> None:
    """Operations are named, and their metrics summed."""
    make(session, KINDS["vectors"], tmp_path / "t")
    texts = ["DELETE FROM {t} WHERE id = 1", "DELETE FROM {t} WHERE id = 2", "UPDATE {t} SET n = 7 WHERE id = 10"]
    ends = finished_together(publisher(session), staged_all(session, tmp_path / "t", texts))
    assert len({end.version for end in ends}) == 1
    last = session.sql(f"DESCRIBE HISTORY delta.`{tmp_path / 't'}`").first()
    assert last is not None
    assert last.operation == "GROUP"
    assert last.operationParameters["members"] == "3"
    said = json.loads(last.operationParameters["statements"])
    assert [one["operation"] for one in said] == last.operationParameters["operations"].split(", ")
    assert all(one["metrics"] for one in said)
    assert all("predicate" in one for one in said if one["operation"] != "WRITE")
    assert int(last.operationMetrics["numDeletedRows"]) == 2


@pytest.mark.slow
def test_a_member_that_cannot_rebase_does_not_block_the_others(session: SparkSession, tmp_path: Path) -> None:
    """A statement that finds rows changed is executed again, alone; the others go without it."""
    path = tmp_path / "t"
    make(session, KINDS["no-vectors"], path)
    texts = ["INSERT INTO {t} VALUES (300, 0, 0, 1, 'x')", "UPDATE {t} SET n = n + 1", "DELETE FROM {t} WHERE id = 12"]
    staged = staged_all(session, path, texts)
    session.sql(f"UPDATE delta.`{path}` SET n = n * 10 WHERE id = 13")
    ends = finished_together(publisher(session), staged)
    assert max(end.attempts for end in ends) > 1
    found = {row.id: row.n for row in read(path).values()}
    assert 12 not in found
    assert found[13] == 11
    assert found[300] in (1, 2)
    assert ends[0].attempts == 1


@pytest.mark.slow
def test_a_statement_on_the_table_as_it_was_before_it_was_replaced_is_in_no_group(
    session: SparkSession, tmp_path: Path
) -> None:
    """It is executed on the new table, and the others go together."""
    path = tmp_path / "t"
    make(session, KINDS["vectors"], path)
    before = staged_all(session, path, ["DELETE FROM {t} WHERE id = 3"])
    session.sql(f"CREATE OR REPLACE TABLE delta.`{path}` USING delta AS SELECT * FROM delta.`{path}`")
    staged = [*before, *staged_all(session, path, FEW)]
    ours, line = publisher(session), publisher(session).line(staged[0].dml.table)
    with ThreadPoolExecutor(len(staged)) as pool:
        with line.lock:
            futures = [pool.submit(ours.finish, staged[0])]
            wait_until(lambda: len(line) == 1)
            futures += [pool.submit(ours.finish, one) for one in staged[1:]]
            wait_until(lambda: len(line) == len(staged))
        first, *others = [future.result() for future in futures]
    assert first.level >= 4
    assert len({other.version for other in others} - {first.version}) == 1
    assert 3 not in {row.id for row in read(path).values()}


def test_a_member_that_got_its_result_is_not_put_again() -> None:
    """Its thread may run only after the next leader has looked: a second put would double its rows."""
    line = CommitQueue()
    told, waiting, leader = entries = [SimpleNamespace(reply=None) for _ in range(3)]
    for entry in entries:
        line.enter(entry)
    told.reply = Joined(Version(7), 1)
    assert line.first(leader, GROUP_MAX) == [leader, waiting]
    assert line.first(leader, 1) == [leader]


# -------------------------------------------------------------------------------------------- replies that do not come

FEW = (
    "INSERT INTO {t} VALUES (100, 0, 0, 1, 'i')",
    "INSERT INTO {t} VALUES (101, 1, 1, 1, 'i')",
    "DELETE FROM {t} WHERE id = 2",
    "UPDATE {t} SET n = n + 7 WHERE id = 7",
)
"""So few that all of them are one group."""
Commit = Callable[..., exact.Tried]
COMMIT: Commit = CommitAttempt.commit


@pytest.fixture(scope="module")
def serial(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Counter[object]:
    """The rows that those leave one after the other."""
    path = tmp_path_factory.mktemp("serial") / "t"
    make(spark, KINDS["vectors"], path)
    for text in FEW:
        spark.sql(text.format(t=f"delta.`{path}`"))
    return rows(path)


def landed(*asked: Any) -> exact.Tried:
    return exact.Tried("unknown", COMMIT(*asked).transaction_id)


def lost(*asked: Any) -> exact.Tried:
    return exact.Tried("unknown", "of a put that never arrived")


def failed(*asked: Any) -> exact.Tried:
    raise Unavailable("a commit failed; nothing is known to be written", version=asked[1])


def interrupted(*asked: Any) -> exact.Tried:
    raise KeyboardInterrupt


def first_put(monkeypatch: pytest.MonkeyPatch, ends: Commit) -> list[int]:
    """Has the first put end so, and those after it as they do; the versions that were tried."""
    tried: list[int] = []

    def commit(*asked: Any) -> exact.Tried:
        tried.append(asked[1])
        return (ends if len(tried) == 1 else COMMIT)(*asked)

    monkeypatch.setattr(CommitAttempt, "commit", commit)
    return tried


def versions(path: Path) -> list[int]:
    return sorted(int(commit.stem) for commit in (path / "_delta_log").glob("*.json"))


def test_members_of_a_group_whose_reply_is_lost_find_themselves_in_the_log(
    session: SparkSession, tmp_path: Path, serial: Counter[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The put has arrived: no member puts again, and each reports the shared version."""
    path = tmp_path / "t"
    make(session, KINDS["vectors"], path)
    head = versions(path)[-1]
    staged = staged_all(session, path, FEW)
    tried = first_put(monkeypatch, landed)
    ends = finished_together(publisher(session), staged)
    assert tried == [head + 1] == [versions(path)[-1]]
    assert {(end.version, end.lost_puts, end.attempts) for end in ends} == {(head + 1, 1, 1)}
    assert rows(path) == serial
    audit(path)


@pytest.mark.matrix
@pytest.mark.also_without_caches
def test_members_of_a_group_whose_put_never_arrives_go_one_by_one(
    session: SparkSession, tmp_path: Path, serial: Counter[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of them tries the same version, so that a put which arrives late cannot count; each lands once."""
    path = tmp_path / "t"
    make(session, KINDS["vectors"], path)
    head = versions(path)[-1]
    staged = staged_all(session, path, FEW)
    tried = first_put(monkeypatch, lost)
    ends = finished_together(publisher(session), staged)
    assert tried == [head + 1, *range(head + 1, head + 1 + len(FEW))]
    assert sorted(end.version or 0 for end in ends) == list(range(head + 1, head + 1 + len(FEW)))
    assert {end.attempts for end in ends} == {1}
    assert rows(path) == serial
    audit(path)


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("ends", "kinds"),
    [(failed, {Unavailable: len(FEW)}), (interrupted, {KeyboardInterrupt: 1, CommitInDoubt: len(FEW) - 1})],
)
def test_an_error_in_the_put_of_a_group_is_raised_for_each_member(
    session: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ends: Commit,
    kinds: dict[type[BaseException], int],
) -> None:
    """Each raises an error of its own; only the leader is interrupted. Nothing was written, and no member retries."""
    path = tmp_path / "t"
    make(session, KINDS["vectors"], path)
    head, before = versions(path)[-1], rows(path)
    ours, line = publisher(session), publisher(session).line(TableLocation(f"file:{path}"))
    staged = staged_all(session, path, FEW)
    tried = first_put(monkeypatch, ends)
    with ThreadPoolExecutor(len(staged)) as pool:
        with line.lock:
            futures = [pool.submit(ours.finish, one) for one in staged]
            wait_until(lambda: len(line) == len(staged))
        raised = [future.exception() for future in futures]
    assert Counter(type(error) for error in raised) == kinds
    assert len({id(error) for error in raised}) == len(staged)
    assert tried == [head + 1]
    assert versions(path)[-1] == head
    assert rows(path) == before


def test_a_leader_interrupted_after_its_put_gives_every_member_a_result(
    session: SparkSession, tmp_path: Path, serial: Counter[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The put has arrived and some members have their result: the other members must not put again."""
    path = tmp_path / "t"
    make(session, KINDS["vectors"], path)
    head = versions(path)[-1]
    ours, line = publisher(session), publisher(session).line(TableLocation(f"file:{path}"))
    staged, told = staged_all(session, path, FEW), []

    def joined(*said: Any) -> Joined:
        told.append(said)
        if len(told) == 3:
            raise KeyboardInterrupt
        return Joined(*said)

    monkeypatch.setattr(group_commit, "Joined", joined)
    with ThreadPoolExecutor(len(staged)) as pool:
        with line.lock:
            futures = [pool.submit(ours.finish, one) for one in staged]
            wait_until(lambda: len(line) == len(staged))
        raised = Counter(type(future.exception()) for future in futures)
    assert raised == {KeyboardInterrupt: 1, type(None): 1, CommitInDoubt: 2}
    assert versions(path)[-1] == head + 1
    assert rows(path) == serial


@pytest.mark.slow
def test_a_group_whose_put_was_requested_twice_is_committed_once(
    session: SparkSession, tmp_path: Path, serial: Counter[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Py4J sends a call again whose answer was lost: the second finds the commit of the first, which is the group's own."""
    path = tmp_path / "t"
    make(session, KINDS["vectors"], path)
    head = versions(path)[-1]
    staged, once, asked = staged_all(session, path, FEW), Jvm.commit, list[Any]()

    def sent_twice(*given: Any, **more: Any) -> Any:
        asked.append(more)
        if len(asked) == 1:
            once(*given, **more)
        return once(*given, **more)

    monkeypatch.setattr(Jvm, "commit", sent_twice)
    ends = finished_together(publisher(session), staged)
    assert {end.version for end in ends} == {head + 1}
    assert versions(path)[-1] == head + 1
    assert rows(path) == serial
    audit(path)


@pytest.mark.parametrize("when", ["acquire", "release"])
def test_a_thread_interrupted_while_it_takes_the_commit_lock_does_not_keep_it(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Between the lock and the note that it is had, or the other way round: the next one would wait for ever."""
    path = tmp_path / "t"
    make(session, KINDS["vectors"], path)
    ours, line = publisher(session), publisher(session).line(TableLocation(f"file:{path}"))
    one, other = staged_all(session, path, FEW[:2])
    real = line.lock

    class Interrupted:
        def acquire(self, timeout: float = -1) -> bool:
            is_had = real.acquire(timeout=timeout)
            if when == "acquire":
                monkeypatch.setattr(line, "lock", real)
                raise KeyboardInterrupt
            return is_had

        def release(self) -> None:
            monkeypatch.setattr(line, "lock", real)
            raise KeyboardInterrupt

    monkeypatch.setattr(line, "lock", Interrupted())
    with pytest.raises(KeyboardInterrupt):
        ours.finish(one)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(real.acquire, timeout=10).result(), "it is free"
        assert pool.submit(ours.finish, other).result(60).version == versions(path)[-1]
