"""Damage of what is stored: one error with its place, whatever stands there; never a traceback, never a value that cannot be."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakegate.errors import Corrupt, InvalidRequest
from lakegate.ids import Epoch, JobName, Nonce, SessionId, TableLocation, TokenId
from lakegate.stored_json import Damaged, parsed
from lakegate.telemetry.events import PersonActed
from lakegate.telemetry.ledger import (
    LINE_BYTES_MAX,
    LedgerSink,
    action_from,
    action_line,
    from_line,
    to_line,
)
from lakegate.telemetry.ledger_days import read_ledger
from lakegate.turns.protocol.lock_record import (
    Holder,
    InDoubt,
    JobState,
    LockRecord,
    Member,
    Pause,
    Ticket,
    record_from_json,
)
from tests.telemetry.ended_turns import row

RECORD = LockRecord(
    lock="L",
    epoch=Epoch(7),
    holder=Holder(
        nonce=Nonce("n"), session=SessionId("s"), job=JobName("A"), run="r", host="h", boot_id="b", pid=1, pid_start=2, jvm_pid=3,
        jvm_start=4, token_ids=(TokenId("lakegate/q"),), batch=5, tables=(TableLocation("/t"),), since_ms=6,
    ),
    tickets=(Ticket(job=JobName("B"), session=SessionId("t"), nonce=Nonce("m"), asked_at_ms=1, priority=2, aging_ms=3),),
    jobs={JobName("A"): JobState(done=Epoch(3), lost=(Epoch(2), 1), turns=4, idle_at={}, rule={"after": {"any": ["B"]}})},
    in_doubt=(InDoubt(token_id=TokenId("lakegate/q"), epoch=Epoch(6), tables=(TableLocation("/t"),)),),
    tables={TableLocation("/t"): Epoch(7)},
    paused={JobName("B"): Pause(since_ms=1, by="me", reason="why")},
    members={JobName("B"): Member(run="r", has_left=True)},
)  # fmt: skip
ACT = PersonActed(
    action_id="a", lock="L", job="A", action="break", by="me", reason="r", at_ms=1, token_ids=("q",), outcome="done"
)
STORED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a turn of the ledger": (from_line, to_line(row(1)).replace('"versions":{}', '"versions":{"/t":[1,2]}')),
    "an action of the ledger": (action_from, action_line(ACT)),
    "a lock record": (record_from_json, RECORD.to_json()),
}
DAMAGE: tuple[Any, ...] = (None, True, -1, 1.5, 10**30, "x", "", [], ["x"], [[]], {}, {"x": "y"}, [1, "x"], "\ud800")


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of each value inside."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(one for key, item in inside for one in places(item, (*at, key)))]


def replaced(value: Any, at: tuple[Any, ...], by: Any) -> Any:
    """`value` with another value in one place."""
    if not at:
        return by
    copy = value.copy()
    copy[at[0]] = replaced(value[at[0]], at[1:], by)
    return copy


@pytest.mark.parametrize("what", STORED)
def test_a_value_of_another_type_is_damage_or_is_one_that_may_stand_there(what: str) -> None:
    """Each value of the text is replaced by each kind of value: what is read fits its type, and can be written."""
    read, text = STORED[what]
    data = json.loads(text)
    assert read(text) == read(json.dumps(data))
    refused = 0
    for at in places(data):
        for by in DAMAGE:
            damaged = json.dumps(replaced(data, at, by))
            try:
                record = read(damaged)
            except (ValueError, InvalidRequest):
                refused += 1
            else:
                again = {from_line: to_line, action_from: action_line}.get(read, lambda one: one.to_json())(record)
                assert read(again) == record, (at, by)
    assert refused > 5 * len(places(data))


@pytest.mark.parametrize("what", STORED)
@pytest.mark.parametrize(
    "damage",
    [
        b"", b"\n", b"\xff\xfe{", b"null", b"[]", b"3", b'"x"', b"{", b"{}}", b"{}", b'{"format": "1"}', b'{"format": 1}',
        b"[" * 200_000, b'{"a":' * 200_000, b'{"format":' + b"9" * 10_000 + b"}", b"\0" * 100,
    ],
    ids=range(16),
)  # fmt: skip
def test_a_text_that_is_no_record_is_damage(what: str, damage: bytes) -> None:
    """Bytes that are no UTF-8, no JSON, no object, nested a hundred thousand times, or numbers without end."""
    read, _ = STORED[what]
    with pytest.raises(ValueError):
        read(damage)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_any_json_is_read_or_is_damage(value: Any) -> None:
    """There is no third way."""
    for read, text in STORED.values():
        for body in (value, {**json.loads(text), "versions": value, "jobs": value, "token_ids": value}):
            with contextlib.suppress(ValueError):
                read(json.dumps(body))


def test_the_ledger_names_file_line_and_offset_of_damage(tmp_path: Path) -> None:
    """The rows before it are no excuse for what is behind it; a line that a crash cut off at the end is none."""
    ledger = LedgerSink(tmp_path)
    for epoch in (1, 2, 3):
        ledger.emit(row(epoch))
    [file] = tmp_path.glob("ledger/L/*.jsonl")
    good = file.read_bytes()
    first = good.index(b"\n") + 1
    file.write_bytes(good + b'{"format":1,"lo')
    assert [one.epoch for one in read_ledger(tmp_path)] == [1, 2, 3]
    for damage in (b"\xff\n", b"[" * 100_000 + b"\n", b"{}\n", b"x" * (LINE_BYTES_MAX + 5) + b"\n"):
        file.write_bytes(good[:first] + damage + good[first:])
        with pytest.raises(Corrupt) as raised:
            read_ledger(tmp_path)
        assert raised.value.exit_code == 4
        assert raised.value.facts == {"path": file, "line": 2, "offset": first}


def test_damage_does_not_repeat_the_text() -> None:
    """A damaged line may hold what it should not."""
    for text in ('{"secret": "hunter2"', '{"hunter2": 1}', "hunter2"):
        with pytest.raises(Damaged) as raised:
            record_from_json(text)
        assert "hunter2" not in str(raised.value)
    assert parsed('{"a": [1]}') == {"a": [1]}
