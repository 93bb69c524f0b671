"""Every error of a target has a meaning that was chosen: passing, a row's fault, or for good."""

from __future__ import annotations

import pytest

from lakegate.syncs.targets.faults import MARIADB, POSTGRES, SQLITE, FaultKind, of_mariadb, of_postgres, of_sqlite

SAID = {
    # what people meet, by what it is
    FaultKind.AWAY: ["25006", "53100", "53200", "53300", "58030"],
    FaultKind.GONE: ["08006", "08001", "57P01", "57P02", "57P03", "40003"],
    FaultKind.AGAIN: ["40001", "40P01", "55P03", "57014"],
    FaultKind.VIOLATION: [
        "23505",
        "23514",
        "22003",
        "22P02",
        "54000",
        "P0001",
        "P0004",
        "44000",
        "21000",
        "45000",
        "ABC12",
        "ZZ999",
    ],
    FaultKind.OTHER: ["42501", "42P01", "42703", "0A000", "28P01", "54001", "XX001", "57P04", "25P02", "55000"],
}


@pytest.mark.parametrize(("fault", "code"), [(fault, code) for fault, codes in SAID.items() for code in codes])
def test_a_sqlstate_of_postgresql_is_mapped_to_its_fault(fault: FaultKind, code: str) -> None:
    """Read-only is passing, an index row that is too large is a row's fault, a missing permission is for good."""
    assert of_postgres(code).fault is fault


def test_every_class_of_postgresql_has_a_meaning() -> None:
    """Of all states that its driver knows; what it does not know is a trigger's own, and a row's fault."""
    errors = pytest.importorskip("psycopg.errors")
    states = (getattr(one, "sqlstate", None) for one in vars(errors).values() if isinstance(one, type))
    known = {state for state in states if isinstance(state, str)}
    assert len(known) > 200
    assert {code[:2] for code in known} <= POSTGRES.keys()
    assert all(code[:2] in POSTGRES and len(code) in (2, 5) for code in POSTGRES)


@pytest.mark.parametrize(
    ("fault", "codes"),
    [
        (FaultKind.AWAY, [1290, 1792, 1836, 1021, 1114, 1040, 1041, 1223, 1047]),
        (FaultKind.GONE, [2006, 2013, 2003, 1053, 1927, 4031]),
        (FaultKind.AGAIN, [1213, 1205, 1317, 1969]),
        (FaultKind.VIOLATION, [1062, 1452, 1153, 1416, 1526, 1644, 4025, 3819, 1406, 1364, 1118]),
        (FaultKind.OTHER, [1064, 1146, 1142, 1054, 1045, 1305, 9999]),
    ],
)
def test_an_error_number_of_mariadb_is_mapped_to_its_fault(fault: FaultKind, codes: list[int]) -> None:
    """With the server's usual state, or where the driver says none."""
    for code in codes:
        assert [of_mariadb(code, state).fault for state in ("HY000", None)] == [fault, fault], code


def test_a_number_that_a_trigger_gives_is_a_rows_fault() -> None:
    """SIGNAL with a state of its own, whatever number it has: also one that means something else to the server."""
    for code in (-15536, 30001, 1213, 1064, 2006):
        assert of_mariadb(code, "45000").fault is FaultKind.VIOLATION
        assert of_mariadb(code, "99ABC").fault is FaultKind.VIOLATION
    assert of_mariadb(30001, None).fault is of_mariadb(-15536, None).fault is FaultKind.VIOLATION
    assert of_mariadb(30001, "22003").fault is FaultKind.VIOLATION
    assert of_mariadb(30001, "40001").fault is FaultKind.AGAIN


def test_every_code_of_sqlite_has_a_meaning() -> None:
    """Primary codes from 1 to 26; extended ones are as theirs."""
    assert set(SQLITE) == set(range(1, 27))
    assert [of_sqlite(code).fault for code in (8, 13, 10 | 3 << 8)] == [FaultKind.AWAY] * 3
    assert [of_sqlite(code).fault for code in (5, 6, 5 | 2 << 8)] == [FaultKind.AGAIN] * 3
    assert [of_sqlite(code).fault for code in (18, 19, 19 | 8 << 8, 20)] == [FaultKind.VIOLATION] * 4
    assert [of_sqlite(code).fault for code in (1, 11, 26)] == [FaultKind.OTHER] * 3


def test_what_may_pass_says_what_it_is() -> None:
    """Not that the target does not answer, which it does."""
    for table in (POSTGRES, MARIADB, SQLITE):
        assert all(told.words for told in table.values() if told.fault is FaultKind.AWAY)
