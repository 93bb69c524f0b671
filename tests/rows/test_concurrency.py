"""Explanations of a statement before its execution: its class by its facts, and words that agree with measured levels."""

from __future__ import annotations

import re

import pytest

from lakegate.rows.conflict.concurrency import OTHERS, outcome
from lakegate.rows.conflict.read_set import Operation, Reads, Statement, StatementFacts, classify
from tests.docs.markdown import DOCS

PAGE = DOCS / "reference" / "what-can-conflict-now.md"


@pytest.mark.parametrize(
    ("facts", "statement"),
    [
        (
            StatementFacts(operation=Operation.DELETE, has_vectors=True),
            Statement(reads=Reads.ROWS, marks_rows=True, is_divisible=True),
        ),
        (StatementFacts(operation=Operation.DELETE, has_vectors=False), Statement(reads=Reads.ROWS, is_divisible=True)),
        (StatementFacts(operation=Operation.UPDATE, has_vectors=True), Statement(reads=Reads.ROWS, is_divisible=True)),
        (
            StatementFacts(operation=Operation.UPDATE, has_vectors=True, differs_by_execution=True),
            Statement(reads=Reads.ROWS),
        ),
        (StatementFacts(operation=Operation.MERGE, has_vectors=True), Statement(reads=Reads.KEYS, is_divisible=True)),
        (
            StatementFacts(operation=Operation.MERGE, has_vectors=True, differs_by_execution=True),
            Statement(reads=Reads.KEYS),
        ),
        (
            StatementFacts(
                operation=Operation.MERGE,
                has_vectors=True,
                has_condition=True,
                writes_all_matched=True,
                differs_by_execution=True,
            ),
            Statement(reads=Reads.KEYS, has_condition=True, writes_all_matched=True),
        ),
        (StatementFacts(operation=Operation.INSERT, has_vectors=True), Statement(reads=Reads.NOTHING)),
        (StatementFacts(operation=Operation.OVERWRITE, has_vectors=True), Statement(reads=Reads.TABLE)),
        (
            StatementFacts(operation=Operation.OPTIMIZE, has_vectors=True),
            Statement(reads=Reads.PLACES, marks_rows=True),
        ),
        (StatementFacts(operation=Operation.OPTIMIZE, has_vectors=False), Statement(reads=Reads.PLACES)),
        (
            StatementFacts(operation=Operation.OPTIMIZE, has_vectors=True, has_row_ids=True),
            Statement(reads=Reads.PLACES),
        ),
    ],
    ids=lambda each: "" if isinstance(each, Statement) else str(each).removeprefix("Facts"),
)
def test_a_statement_is_classified_by_its_facts(facts: StatementFacts, statement: Statement) -> None:
    """Rows are marked in vectors only where the table has them; copies of rows with ids are not interchangeable."""
    assert classify(facts) == statement


@pytest.mark.parametrize("operation", [each for each in Operation if each is not Operation.OPTIMIZE])
def test_one_obstacle_is_enough(operation: Operation) -> None:
    """A statement that cannot be evaluated again is re-executed as a whole, whatever else is known of it."""
    facts = StatementFacts(
        operation=operation, has_vectors=True, obstacles=["x"], has_condition=True, writes_all_matched=True
    )
    assert classify(facts) == Statement(reads=Reads.TABLE)


# ------------------------------------------------------------------------------------------------- words and the page

ON_THE_PAGE = {
    "DELETE": Statement(reads=Reads.ROWS, marks_rows=True, is_divisible=True),
    "UPDATE": Statement(reads=Reads.ROWS, is_divisible=True),
    "MERGE, update": Statement(reads=Reads.KEYS, writes_all_matched=True, is_divisible=True),
    "MERGE, delete": Statement(reads=Reads.KEYS, writes_all_matched=True, is_divisible=True),
    "MERGE, insert": Statement(reads=Reads.KEYS),
    "MERGE, not matched by source": Statement(reads=Reads.KEYS, has_condition=True),
    "INSERT … SELECT from itself": Statement(reads=Reads.TABLE),
    "INSERT": Statement(reads=Reads.NOTHING),
    "INSERT REPLACE WHERE": Statement(reads=Reads.TABLE),
    "OPTIMIZE": Statement(reads=Reads.PLACES, marks_rows=True),
    "OPTIMIZE ZORDER BY": Statement(reads=Reads.PLACES, marks_rows=True),
}
"""The statements whose levels were measured, on a table with vectors."""
SHOWS = {
    "append": [("INSERT", 0), ("INSERT", 1)],
    "other rows": [("DELETE", 0), ("UPDATE", 0), ("MERGE, update", 0)],
    "same rows": [("DELETE", 1), ("UPDATE", 1), ("MERGE, update", 1)],
    "relocation": [("OPTIMIZE", 0), ("OPTIMIZE ZORDER BY", 1)],
}
"""What another commit did → columns of the page that show it, and whether the first or the second level of the cell."""
CONCERNS_ALL = ("MERGE, not matched by source",)
"""Its source has a key for each row that the others change, so there are no other rows."""


def measured() -> dict[tuple[str, str], list[int]]:
    """Reads the levels on the page, by statement and winning statement."""
    lines = [
        line for line in PAGE.read_text(encoding="utf-8").split("\n") if line.startswith("|") and "---" not in line
    ]
    header, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.count("|") > 10]
    return {
        (row[0], earlier): [int(level) for level in cell.split(" · ")]
        for row in rows
        for earlier, cell in zip(header[1:], row[1:], strict=True)
    }


@pytest.mark.parametrize("form", ON_THE_PAGE)
@pytest.mark.parametrize("other", SHOWS)
def test_the_words_allow_what_was_measured(form: str, other: str) -> None:
    """No measured level is missing in the words, for each kind of statement concurrent with each kind of commit."""
    levels = measured()
    assert {statement for statement, _ in levels} == set(ON_THE_PAGE)
    words = outcome(ON_THE_PAGE[form], other, has_vectors=True)
    said = {int(level) for level in re.findall(r"level (\d)", words)} | ({1} if "as it is" in words else set())
    if form in CONCERNS_ALL and other == "other rows":
        said = {4}
    found = {levels[form, earlier][which] for earlier, which in SHOWS[other]}
    assert found <= said, words


def test_a_changed_definition_is_the_same_for_all() -> None:
    """Whatever it reads, it is planned and executed again."""
    assert {outcome(each, "definition", has_vectors=True) for each in ON_THE_PAGE.values()} == {
        "executed again on the table as it then is (level 4)"
    }
    assert set(OTHERS) == {*SHOWS, "definition"}
