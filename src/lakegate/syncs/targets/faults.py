"""The meaning of a target's errors: one table for each kind of database, by the database's own codes.

Rules for editors: each code occurs once. A code that is in no table, and whose class is in no table, is `OTHER`: it stops the
sync for good. A fault counts as temporary only if it may end without a change of the rows or of the configuration file.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple


class FaultKind(Enum):
    """The meaning of a driver's error for the transaction that it ended."""

    VIOLATION = "violation"
    """The fault of a row: it breaks a rule or a limit of the target. A retry would be refused, too."""
    AGAIN = "again"
    """A conflict with other transactions (deadlock, serialization failure, lock timeout): a retry may succeed."""
    GONE = "gone"
    """The connection or the server was lost: the outcome of a commit is unknown."""
    AWAY = "away"
    """The target answers but cannot write now: read-only, full, too many connections. Nothing was written; it may pass."""
    OTHER = "other"
    """A permanent fault: an operator must act."""


class KnownFault(NamedTuple):
    """A fault, and the words to report it with, where the database's own message does not name the cause."""

    fault: FaultKind
    words: str = ""


READ_ONLY = KnownFault(FaultKind.AWAY, "the target is read-only")
FULL = KnownFault(FaultKind.AWAY, "the target's disk is full")
BUSY = KnownFault(FaultKind.AWAY, "the target has no room for another connection")
MEMORY = KnownFault(FaultKind.AWAY, "the target has no memory left")
LOCKED = KnownFault(FaultKind.AWAY, "the target is locked as a whole")
DISK = KnownFault(FaultKind.AWAY, "the target cannot write to its disk")
STARTING = KnownFault(FaultKind.GONE, "the target is starting or shutting down")
VIOLATION, AGAIN, GONE, OTHER = (
    KnownFault(one) for one in (FaultKind.VIOLATION, FaultKind.AGAIN, FaultKind.GONE, FaultKind.OTHER)
)

POSTGRES: Mapping[str, KnownFault] = {
    # classes
    "00": OTHER, "01": OTHER, "02": OTHER, "03": OTHER, "08": GONE, "09": VIOLATION, "0A": OTHER, "0B": OTHER, "0F": OTHER,
    "0L": OTHER, "0P": OTHER, "0Z": OTHER, "10": OTHER, "20": VIOLATION, "21": VIOLATION, "22": VIOLATION, "23": VIOLATION,
    "24": OTHER, "25": OTHER, "26": OTHER, "27": VIOLATION, "28": OTHER, "2B": OTHER, "2D": OTHER, "2F": VIOLATION,
    "34": OTHER, "38": VIOLATION, "39": VIOLATION, "3B": OTHER, "3D": OTHER, "3F": OTHER, "40": AGAIN, "42": OTHER,
    "44": VIOLATION, "53": BUSY, "54": OTHER, "55": OTHER, "57": OTHER, "58": DISK, "72": AGAIN, "F0": OTHER, "HV": OTHER,
    "P0": VIOLATION, "XX": OTHER,
    # codes that differ from their class
    "25006": READ_ONLY, "25P03": GONE, "25P04": AGAIN, "40002": VIOLATION, "40003": GONE, "53000": MEMORY, "53100": FULL,
    "53200": MEMORY, "53300": BUSY, "53400": BUSY,
    "54000": VIOLATION,  # among them: a row, or a row of an index, that is too large
    "55006": AGAIN, "55P03": AGAIN, "57014": AGAIN, "57P01": STARTING, "57P02": STARTING, "57P03": STARTING, "57P05": GONE,
    "58P01": OTHER, "58P02": OTHER,
}  # fmt: skip
"""SQLSTATE, or its class. A class that PostgreSQL does not define comes from a trigger."""

POSTGRES_FOREIGN_KEY = ("23503", "23001")
"""SQLSTATE of a row that refers to a missing row, or that other rows refer to. The second one is for keys with RESTRICT."""

MARIADB_OWN = frozenset(
    {
        "00", "01", "02", "07", "08", "0A", "0K", "0Z", "20", "21", "22", "23", "24", "25", "26", "27", "28", "2B", "2C", "2D",
        "2E", "2F", "30", "33", "34", "35", "38", "39", "3B", "3C", "3D", "3F", "40", "42", "44", "70", "HY", "HZ", "XA",
    }
)  # fmt: skip
"""Classes of SQLSTATE that the server uses itself. Any other class comes from a trigger (45000, or its own choice)."""
_MARIADB: Mapping[KnownFault, tuple[int, ...]] = {
    AGAIN: (1020, 1205, 1213, 1317, 1412, 1615, 1969, 3024, 3101, 3572),
    GONE: (0, 1152, 1158, 1159, 1160, 1161, 1184, 1927, 2002, 2003, 2006, 2013, 2055, 4031),
    STARTING: (1053, 1077, 1079),
    READ_ONLY: (1036, 1290, 1792, 1836, 3100),
    LOCKED: (1047, 1223),
    FULL: (1021, 1114),
    DISK: (1003, 1016, 1026, 1030, 1180),
    MEMORY: (1037, 1038, 1041),
    BUSY: (1040, 1135, 1203, 1226),
    VIOLATION: (
        1048, 1062, 1118, 1139, 1153, 1162, 1169, 1172, 1216, 1217, 1242, 1264, 1265, 1292, 1300, 1301, 1329, 1339, 1364, 1365,
        1366, 1367, 1406, 1411, 1416, 1441, 1451, 1452, 1526, 1557, 1586, 1644, 1690, 1713, 1748, 1761, 1762, 1916, 1918, 3037,
        3140, 3141, 3146, 3147, 3150, 3155, 3156, 3157, 3158, 3616, 3617, 3618, 3730, 3819, 4025, 4038, 4076, 4077, 4078,
    ),
}  # fmt: skip
MARIADB: Mapping[int, KnownFault] = {code: known for known, codes in _MARIADB.items() for code in codes}
"""The server's and the client's error numbers."""
MARIADB_FOREIGN_KEY = (1216, 1217, 1451, 1452, 1761, 1762)
_MARIADB_CLASSES: Mapping[str, KnownFault] = {
    "08": GONE,
    "21": VIOLATION,
    "22": VIOLATION,
    "23": VIOLATION,
    "40": AGAIN,
}

SQLITE: Mapping[int, KnownFault] = {
    1: OTHER, 2: OTHER, 3: OTHER, 4: AGAIN, 5: AGAIN, 6: AGAIN, 7: MEMORY, 8: READ_ONLY, 9: AGAIN, 10: DISK, 11: OTHER,
    12: OTHER, 13: FULL, 14: GONE, 15: AGAIN, 16: OTHER, 17: AGAIN, 18: VIOLATION, 19: VIOLATION, 20: VIOLATION, 21: OTHER,
    22: OTHER, 23: OTHER, 24: OTHER, 25: OTHER, 26: OTHER,
}  # fmt: skip
"""Primary result codes."""


def of_postgres(sqlstate: str) -> KnownFault:
    """Returns the meaning of an SQLSTATE of PostgreSQL."""
    return POSTGRES.get(sqlstate) or POSTGRES.get(sqlstate[:2], VIOLATION)


def of_mariadb(code: int, sqlstate: str | None) -> KnownFault:
    """Returns the meaning of an error number of MariaDB or MySQL, with the SQLSTATE if the driver provides it."""
    if sqlstate is not None and sqlstate[:2] not in MARIADB_OWN:
        return VIOLATION  # raised by a trigger, with any number
    if sqlstate is None and not 0 <= code < 10_000:
        return VIOLATION  # no server uses such a number; an older driver does not report the SQLSTATE
    return MARIADB.get(code) or _MARIADB_CLASSES.get((sqlstate or "")[:2], OTHER)


def of_sqlite(code: int) -> KnownFault:
    """Returns the meaning of a result code of SQLite. An extended code means the same as its primary code."""
    return SQLITE.get(code & 0xFF, OTHER)
