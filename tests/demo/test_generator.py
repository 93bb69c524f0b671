"""The generator: the same records from the same seed, as skewed and as untidy as real ones."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow.parquet as parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakegate.demo.generator import LATE_SHARE, ROWS_MIN, SMALL, generate
from lakegate.demo.records import Cut, Inputs, read_inputs, write_inputs
from lakegate.errors import InvalidRequest


def column(table: object, name: str) -> list[object]:
    return list(table.column(name).to_pylist())


@pytest.fixture(scope="module")
def inputs() -> Inputs:
    return generate(1, SMALL.rows)


def test_the_same_seed_gives_the_same_records() -> None:
    """All three tables are equal for one seed, and differ for another."""
    assert generate(5, 300) == generate(5, 300)
    assert generate(5, 300).engagements != generate(6, 300).engagements


def test_one_organisation_has_half_of_the_rows(inputs: Inputs) -> None:
    """The largest organisation holds half, the next one far less."""
    (_, largest), (_, second) = Counter(column(inputs.engagements, "org_id")).most_common(2)
    assert largest == SMALL.rows // 2
    assert second < SMALL.rows / 4


def test_some_rows_come_late_and_all_stand_in_order_of_arrival(inputs: Inputs) -> None:
    """About one row in five arrives more than a day after it happened; arrival_seq counts arrivals from 0."""
    happened = column(inputs.engagements, "engagement_time")
    came = column(inputs.engagements, "arrival_time")
    late = sum((b - a).days >= 1 for a, b in zip(happened, came, strict=True))
    assert abs(late / SMALL.rows - LATE_SHARE) < 0.03
    assert came == sorted(came)
    assert column(inputs.engagements, "arrival_seq") == list(range(SMALL.rows))


def test_some_requests_come_before_the_first_record_of_their_alias(inputs: Inputs) -> None:
    """A request may be older than every record that it is for; most are not."""
    first: dict[object, object] = {}
    aliases = column(inputs.engagements, "alias_id")
    for alias, at in zip(aliases, column(inputs.engagements, "arrival_time"), strict=True):
        first.setdefault(alias, at)
    asked = zip(column(inputs.mutations, "alias_id"), column(inputs.mutations, "request_time"), strict=True)
    early = sum(at < first[alias] for alias, at in asked)
    assert 0 < early < inputs.mutations.num_rows / 4
    assert max(Counter(column(inputs.mutations, "alias_id")).values()) == 2  # some are re-identified twice


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32), rows=st.integers(ROWS_MIN, 400))
def test_no_request_leads_out_of_an_erased_identity(seed: int, rows: int) -> None:
    """An erased person is the last identity of every alias that had it: the result does not depend on interleaving."""
    made = generate(seed, rows)
    erased = set(column(made.erasures, "person_id"))
    assert erased
    assert made.mutations.num_rows
    assert made.engagements.num_rows == len(set(column(made.engagements, "engagement_id"))) == rows
    identity: dict[object, object] = {alias: alias for alias in column(made.engagements, "alias_id")}
    requests = zip(column(made.mutations, "alias_id"), column(made.mutations, "new_person_id"), strict=True)
    for alias, person in requests:
        assert identity[alias] not in erased
        identity[alias] = person
    assert erased <= set(identity.values())


def test_too_few_rows_are_refused() -> None:
    """The message names the least number."""
    with pytest.raises(InvalidRequest, match=str(ROWS_MIN)):
        generate(1, ROWS_MIN - 1)


def test_records_are_cut_into_files_in_order_of_arrival(inputs: Inputs, tmp_path: Path) -> None:
    """Files in the order of their times of modification hold the records in order; none is left out."""
    largest = write_inputs(inputs, tmp_path, Cut(ingest=3, mutation=2, delete=1))
    files = sorted((tmp_path / "ingest").iterdir(), key=lambda path: path.stat().st_mtime)
    assert len({path.stat().st_mtime for path in files}) == 3
    read = [seq for path in files for seq in column(parquet.read_table(path), "arrival_seq")]
    assert read == list(range(SMALL.rows))
    assert largest["ingest"] == max(parquet.read_metadata(path).num_rows for path in files)
    assert len(list((tmp_path / "mutation").iterdir())) == 2
    assert len(list((tmp_path / "delete").iterdir())) == 1


def test_files_of_the_shared_layout_are_read_back(inputs: Inputs, tmp_path: Path) -> None:
    """`--data`: one file per stream and source; a stream without a file has no records; others are refused by name."""
    for folder, table in (("ingest", inputs.engagements), ("delete", inputs.erasures)):
        (tmp_path / folder).mkdir()
        parquet.write_table(table, tmp_path / folder / "some.parquet")
    read = read_inputs(tmp_path, "some")
    assert read.engagements == inputs.engagements
    assert (read.mutations.num_rows, read.erasures.num_rows) == (0, inputs.erasures.num_rows)
    with pytest.raises(InvalidRequest, match="The sources there are: some"):
        read_inputs(tmp_path, "other")
    parquet.write_table(inputs.erasures, tmp_path / "ingest" / "wrong.parquet")
    with pytest.raises(InvalidRequest, match=r"wrong\.parquet.*engagement_id"):
        read_inputs(tmp_path, "wrong")
