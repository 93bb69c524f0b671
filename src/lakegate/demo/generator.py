"""Generates records that look like real ones, from a seed: one large organisation, late rows, requests before their record."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from lakegate.demo.records import ENGAGEMENTS, ERASURES, MUTATIONS, Cut, Inputs
from lakegate.errors import InvalidRequest

SOURCE = "generated"
BEGIN = datetime(2024, 1, 1, tzinfo=UTC)
SPAN_MINUTES = 2 * 365 * 24 * 60
LARGE_ORG_SHARE = 0.5
LATE_SHARE = 0.2
ROWS_MIN = 50
"""With fewer rows, there may be no person to re-identify or to erase."""

TYPES = ("email", "meeting", "call", "commit", "review")
SUBJECTS = ("Release notes", "Démarrage du projet", "Quarterly review", "日程の確認", "Re: open questions", "Übergabe")


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The amount of generated data."""

    rows: int
    cut: Cut


SMALL = Size(rows=4_000, cut=Cut(ingest=3, mutation=2, delete=2))
TINY = Size(rows=150, cut=Cut(ingest=3, mutation=2, delete=1))
FULL = Size(rows=100_000, cut=Cut(ingest=12, mutation=6, delete=3))


def generate(seed: int, rows: int) -> Inputs:
    """Returns the records of a seed; the same for the same arguments, on every machine.

    About one alias in four is re-identified, some of them twice and some together with another; one request in ten comes
    before the first record of its alias. About one person in thirty is erased. No person is erased under an identity that a
    later request changes, so that the true answer does not depend on how the streams are interleaved.

    Raises:
        InvalidRequest: fewer than `ROWS_MIN` rows.
    """
    if rows < ROWS_MIN:
        raise InvalidRequest(
            f"{rows} rows are too few to show anything; nothing was made", advice=f"From {ROWS_MIN} on"
        )
    chance = random.Random(seed)
    aliases = [f"lead-{number:05}" for number in range(max(12, rows // 12))]
    engagements = _engagements(chance, rows, aliases)
    mutations = _mutations(chance, engagements)
    erasures = _erasures(chance, engagements, mutations)
    return Inputs(
        engagements=pa.Table.from_pylist(engagements, schema=ENGAGEMENTS),
        mutations=pa.Table.from_pylist(mutations, schema=MUTATIONS),
        erasures=pa.Table.from_pylist(erasures, schema=ERASURES),
    )


def _engagements(chance: random.Random, rows: int, aliases: Sequence[str]) -> list[dict[str, Any]]:
    weights = [1 / (place + 1) ** 0.8 for place in range(len(aliases))]
    orgs = [f"org-{number:02}" for number in range(1, 20)]
    org_weights = [1 / (place + 1) for place in range(len(orgs))]
    large = set(chance.sample(range(rows), round(rows * LARGE_ORG_SHARE)))
    found: list[dict[str, Any]] = []
    for number in range(rows):
        happened = BEGIN + timedelta(minutes=chance.randrange(SPAN_MINUTES))
        is_late = chance.random() < LATE_SHARE
        delay = timedelta(days=chance.randint(2, 300)) if is_late else timedelta(seconds=chance.randint(0, 600))
        found.append(
            {
                "engagement_id": f"e-{number:07}",
                "source": SOURCE,
                "org_id": "org-00" if number in large else chance.choices(orgs, org_weights)[0],
                "alias_id": chance.choices(aliases, weights)[0],
                "role": chance.choice(("sender", "attendee", "author")),
                "engagement_type": chance.choice(TYPES),
                "engagement_time": happened,
                "arrival_time": happened + delay,
                "thread_id": f"t-{chance.randrange(max(1, rows // 4)):06}",
                "subject": f"{chance.choice(SUBJECTS)} {chance.randrange(1000)}",
                "payload": f'{{"chars":{chance.randrange(5000)}}}',
            }
        )
    found.sort(key=lambda row: (row["arrival_time"], row["engagement_id"]))
    for place, row in enumerate(found):
        row["arrival_seq"] = place
    return found


def _mutations(chance: random.Random, engagements: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    first_seen: dict[str, datetime] = {}
    for row in engagements:
        first_seen.setdefault(row["alias_id"], row["arrival_time"])
    moved = chance.sample(sorted(first_seen), max(3, len(first_seen) // 4))
    requests: list[tuple[datetime, str, str]] = []
    for place, alias in enumerate(moved):
        # Every sixth alias turns out to be a person who is already known under another alias.
        contact = f"contact-{place - 1 if place % 6 == 5 else place:05}"
        comes_early = place % 10 == 0
        after = timedelta(minutes=chance.randint(1, SPAN_MINUTES // 2))
        asked_at = first_seen[alias] + (-timedelta(days=chance.randint(1, 30)) if comes_early else after)
        if place % 8 == 3:
            requests.append((asked_at - timedelta(hours=1), alias, f"prospect-{place:05}"))
        requests.append((asked_at, alias, contact))
    return [
        {
            "mutation_id": f"m-{seq:06}",
            "source": SOURCE,
            "seq": seq,
            "request_time": asked_at,
            "alias_id": alias,
            "new_person_id": person,
        }
        for seq, (asked_at, alias, person) in enumerate(sorted(requests))
    ]


def _erasures(
    chance: random.Random, engagements: Sequence[dict[str, Any]], mutations: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    last: dict[str, str] = {row["alias_id"]: row["alias_id"] for row in engagements}
    left: set[str] = set()
    for mutation in mutations:
        left.add(last[mutation["alias_id"]])
        last[mutation["alias_id"]] = mutation["new_person_id"]
    leads = sorted(person for person in set(last.values()) - left if person.startswith("lead"))
    contacts = sorted(person for person in set(last.values()) - left if not person.startswith("lead"))
    chosen = chance.sample(leads, max(1, len(leads) // 30)) + chance.sample(contacts, max(1, len(contacts) // 15))
    chance.shuffle(chosen)
    return [
        {
            "request_id": f"d-{place:05}",
            "source": SOURCE,
            "request_time": BEGIN + timedelta(days=30 * (place + 1)),
            "person_id": person,
            "reason": "asked by the person",
        }
        for place, person in enumerate(chosen)
    ]
