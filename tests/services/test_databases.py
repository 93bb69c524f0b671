"""The database servers of the tests: several run at once and do not disturb each other."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from lakegate.demo.database_servers import Database, mariadb_server

pytestmark = [pytest.mark.mariadb, pytest.mark.timeout(120)]


def test_a_second_mariadb_leaves_the_temporary_tables_of_the_first_alone(mariadb: str) -> None:
    """A server removes all temporary tables in its folder for them when it starts; each has one of its own."""
    ((folder,),) = Database("mariadb", mariadb).query("SELECT @@tmpdir")
    table = Path(folder) / "#sql-temptable-1-1-1.MAI"
    table.touch()
    with tempfile.TemporaryDirectory() as second, mariadb_server(Path(second)):
        assert table.exists()
    table.unlink()
