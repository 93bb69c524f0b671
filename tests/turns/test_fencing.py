"""The fencing token: packing, reading, and what an entry commit raises."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakegate.ids import Epoch, TokenId
from lakegate.turns.protocol.fencing import (
    BATCH_MAX,
    EPOCH_MAX,
    JUMP,
    STEP_MAX,
    UNTRACED_MAX,
    Applied,
    Behind,
    FencedBy,
    NotApplied,
    Token,
    highest_epoch,
    job_token,
    lock_token,
    plan_entry,
    query_token,
    read_token,
    sweep_token,
    unpack,
)

ME, OTHER, THIRD = query_token("me"), query_token("other"), query_token("third")
TOKENS = st.builds(
    Token,
    epoch=st.integers(0, EPOCH_MAX).map(Epoch),
    batch=st.integers(-1, BATCH_MAX),
    step=st.integers(0, STEP_MAX),
)
STORED = st.dictionaries(st.sampled_from([ME, OTHER, THIRD]), TOKENS.map(Token.pack))


def number(epoch: int, batch: int, step: int = 0) -> int:
    return Token(epoch=Epoch(epoch), batch=batch, step=step).pack()


@given(TOKENS)
def test_a_token_comes_back_as_it_was(token: Token) -> None:
    """Packing loses nothing, and what Delta stores is a long."""
    assert unpack(token.pack()) == token
    assert 0 <= token.pack() < 1 << 63


@given(TOKENS, TOKENS)
def test_packed_numbers_stand_in_the_order_of_epoch_batch_step(one: Token, other: Token) -> None:
    """Delta's own comparison lets a later epoch pass, and skips the same or an earlier write of an epoch."""
    assert (one.pack() < other.pack()) == (one < other)


@pytest.mark.parametrize(
    ("epoch", "batch", "step", "says"),
    [
        (EPOCH_MAX + 1, 0, 0, "epoch"),
        (-1, 0, 0, "epoch"),
        (1, BATCH_MAX + 1, 0, "batch"),
        (1, -2, 0, "batch"),
        (1, 0, STEP_MAX + 1, "more than 128 writes"),
        (1, 0, -1, "writes"),
    ],
)
def test_a_field_that_overflows_is_refused(epoch: int, batch: int, step: int, says: str) -> None:
    """It would change the adjacent field."""
    with pytest.raises(ValueError, match=says):
        Token(epoch=Epoch(epoch), batch=batch, step=step).pack()


@given(TOKENS, TOKENS)
def test_the_epoch_alone_decides_fenced_and_the_low_bits_alone_decide_applied(stored: Token, mine: Token) -> None:
    """At any epoch: a replay finds its batch under an old epoch, a zombie never takes a fence for its success."""
    reading = read_token(stored.pack(), mine)
    if stored.epoch > mine.epoch:
        assert reading == FencedBy(stored.epoch)
    elif stored.batch > mine.batch:
        assert reading == Behind(stored.batch)
    elif (stored.batch, stored.step) >= (mine.batch, mine.step):
        assert reading == Applied()
    else:
        assert reading == NotApplied()


def test_a_zombie_does_not_read_a_fence_as_its_success() -> None:
    """Epoch 41, batch 501 against a fence (42, 500): the packed number is larger, the batch is not there."""
    assert number(42, 500) > number(41, 501)
    assert read_token(number(42, 500), Token(epoch=Epoch(41), batch=501)) == FencedBy(Epoch(42))
    assert read_token(number(41, 501), Token(epoch=Epoch(43), batch=501)) == Applied()
    assert read_token(None, Token(epoch=Epoch(1), batch=0)) == NotApplied()


def entry(tokens: dict[TokenId, int], **changes: object) -> dict[TokenId, int] | FencedBy:
    settings: dict[str, object] = {
        "lock": "L",
        "epoch": Epoch(9),
        "mine": ME,
        "in_doubt": frozenset(),
        "is_known": True,
        "raises_own": False,
        "is_written": False,
    }
    return plan_entry(tokens, **{**settings, **changes})


def test_nothing_to_raise_is_no_entry_commit() -> None:
    """A known id on a known table after a clean handover."""
    assert entry({ME: number(8, 3)}) == {}


def test_what_an_entry_commit_raises() -> None:
    """Ids in doubt, a replay's own, an unknown own, all of a table that the record does not list."""
    tokens = {ME: number(8, 3), OTHER: number(7, 5, 2), THIRD: number(6, 1)}
    assert entry(tokens, in_doubt=frozenset({OTHER})) == {OTHER: number(9, 5, 2)}
    assert entry(tokens, in_doubt=frozenset({TokenId("lakegate/unseen")})) == {"lakegate/unseen": number(9, -1)}
    assert entry(tokens, raises_own=True) == {ME: number(9, 3)}
    assert entry({OTHER: number(7, 5)}) == {ME: number(9, -1)}
    assert entry(tokens, is_known=False) == {
        ME: number(9, 3),
        OTHER: number(9, 5, 2),
        THIRD: number(9, 1),
        lock_token("L"): number(9, -1),
    }


def test_a_holder_far_above_the_table_leaves_a_trace() -> None:
    """So that the gap without trace stays below the jump of a new record; once in a turn is enough."""
    assert JUMP > UNTRACED_MAX
    assert entry({ME: number(9 - UNTRACED_MAX + 600, 0)}, epoch=Epoch(600 + 9)) == {ME: number(609, 0)}
    assert entry({ME: number(9, 0)}, epoch=Epoch(8 + UNTRACED_MAX)) == {}
    assert entry({ME: number(9, 0)}, epoch=Epoch(9 + UNTRACED_MAX), is_written=True) == {}


def test_a_later_turn_or_a_twin_refuses_the_entry() -> None:
    """A higher epoch of any id; my own epoch on a table that I have not written."""
    assert entry({OTHER: number(10, 0)}) == FencedBy(Epoch(10))
    assert entry({OTHER: number(9, 0)}) == FencedBy(Epoch(9))
    assert entry({ME: number(9, 0)}, is_written=True) == {}


@given(STORED, st.frozensets(st.sampled_from([ME, OTHER, THIRD])), st.booleans(), st.booleans(), st.booleans())
def test_an_entry_commit_raises_epochs_and_keeps_what_was_applied(
    tokens: dict[TokenId, int], in_doubt: frozenset[TokenId], is_known: bool, is_written: bool, raises_own: bool
) -> None:
    """Whatever is asked: low bits as stored, every number at my epoch, all ids in doubt among them."""
    epoch = Epoch(min(EPOCH_MAX, highest_epoch(tokens) + 1))
    raised = entry(
        tokens, epoch=epoch, in_doubt=in_doubt, is_known=is_known, is_written=is_written, raises_own=raises_own
    )
    if isinstance(raised, FencedBy):
        assert raised.epoch >= epoch
        return
    assert in_doubt <= set(raised)
    assert is_known or set(tokens) <= set(raised)
    for token_id, packed in raised.items():
        before = unpack(tokens[token_id]) if token_id in tokens else Token(epoch=Epoch(0), batch=-1)
        assert unpack(packed) == Token(epoch=epoch, batch=before.batch, step=before.step)


def test_token_ids_share_a_prefix_and_differ_by_kind() -> None:
    """A table's reader finds them all, and none stands for another."""
    ids = {query_token("q"), sweep_token("q"), job_token("q"), lock_token("q")}
    assert len(ids) == 4
    assert all(token_id.startswith("lakegate/") for token_id in ids)
