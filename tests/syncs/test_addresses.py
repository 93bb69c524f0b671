"""Options of a target's address about TLS and times are obeyed or refused; and a silent network is noticed."""

from __future__ import annotations

import contextlib
import pickle
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.proxy import Proxy
from lakegate.demo.database_servers import Database
from lakegate.errors import InvalidRequest, Unavailable
from lakegate.syncs.adapters import dialect_of
from lakegate.syncs.targets.connections import Connections

TLS = [
    ("", None, None), ("?ssl-mode=disabled", None, None), ("?ssl-mode=REQUIRED", ssl.CERT_NONE, False),
    ("?sslmode=verify_ca", ssl.CERT_REQUIRED, False), ("?ssl_mode=VERIFY_IDENTITY", ssl.CERT_REQUIRED, True),
]  # fmt: skip


@pytest.mark.parametrize(("options", "verify", "has_name"), TLS)
def test_tls_of_mariadb_is_as_the_address_says(
    options: str, verify: ssl.VerifyMode | None, has_name: bool | None
) -> None:
    """Not at all, encrypted, with a certificate that is checked, and with its name."""
    mariadb = pytest.importorskip("lakegate.syncs.targets.mariadb")
    context = mariadb.arguments(f"mysql://u:p@h/d{options}").get("ssl")
    assert mariadb.arguments(f"mysql://u:p@h/d{options}").get("ssl_disabled", False) == ("disabled" in options)
    assert (context and context.verify_mode, context and context.check_hostname) == (verify, has_name)


@pytest.mark.parametrize(
    "dsn",
    [
        "mysql://h/d?ssl-mode=perhaps", "mysql://h/d?ssl=true", "mysql://h/d?useSSL=1", "mysql://h/d?read_timeout=soon",
        "mysql://h/d?ssl-mode=disabled&ssl-ca=x", "mysql://h/d?ssl-ca=/nowhere", "mysql://h/d?local_infile=1",
        "mysql://h/d?connect_timeout=0", "sqlite:///x.db?mode=ro", "postgresql://h/d?nonsense=1",
    ],
)  # fmt: skip
def test_an_option_that_is_not_known_is_refused(dsn: str) -> None:
    """It is never ignored: a misspelt option for TLS would give none."""
    pytest.importorskip("lakegate.syncs.targets.mariadb")
    with pytest.raises(InvalidRequest):
        dialect_of(dsn).connect()


def test_times_are_as_the_address_says_and_a_dialect_goes_to_other_processes() -> None:
    """Of connecting, reading and writing; with TLS, whose context no process can be sent."""
    mariadb = pytest.importorskip("lakegate.syncs.targets.mariadb")
    found = mariadb.arguments("mariadb://h/d?connect-timeout=3&read_timeout=4&write_timeout=5&socket=/s")
    assert [found[one] for one in ("connect_timeout", "read_timeout", "write_timeout", "unix_socket")] == [
        3,
        4,
        5,
        "/s",
    ]
    assert pickle.loads(pickle.dumps(dialect_of("mysql://h/d?ssl-mode=required")))


@pytest.mark.mariadb
def test_a_server_without_tls_gets_no_login_that_asks_for_it(mariadb: str) -> None:
    """The driver would go on in plain text; where the server has TLS, the connection is encrypted."""
    database = Database("mariadb", mariadb)
    ((has_tls,),) = database.query("SELECT @@have_ssl")
    connections = Connections(dialect_of(mariadb + "&ssl-mode=required"))
    if has_tls == "YES":
        ((_, cipher),) = connections.read(lambda one: _all(one, "SHOW STATUS LIKE 'Ssl_cipher'"))
        assert cipher
    else:
        with pytest.raises(Unavailable, match="does not offer TLS"):
            connections.read(lambda one: _all(one, "SELECT 1"))
    connections.close()


def _all(connection: object, sql: str) -> list[tuple[str, str]]:
    cursor = connection.cursor()  # type: ignore[attr-defined]
    cursor.execute(sql)
    return list(cursor.fetchall())


@contextlib.contextmanager
def network(dsn: str) -> Iterator[tuple[Proxy, str]]:
    """A network between client and server, and the address behind it."""
    if dsn.startswith("postgresql"):
        with Proxy(Path(dsn.partition("host=")[2]) / ".s.PGSQL.5432") as proxy:
            yield proxy, f"postgresql://postgres@127.0.0.1:{proxy.port}/postgres?connect_timeout=2"
    else:
        with Proxy(Path(dsn.partition("unix_socket=")[2])) as proxy:
            yield proxy, f"mysql://root@127.0.0.1:{proxy.port}/?connect_timeout=2"


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=getattr(pytest.mark, kind)) for kind in ("postgres", "mariadb")]
)
def test_a_silent_network_is_noticed(kind: str, request: pytest.FixtureRequest) -> None:
    """In the middle of a statement, though TCP looks healthy; a statement that takes long is none, as the server lets others in."""
    with network(request.getfixturevalue(kind)) as (proxy, dsn):
        connections = Connections(dialect_of(dsn))
        connections.silence.silence_s = 2.0
        sleep = "SELECT pg_sleep(4)" if kind == "postgres" else "SELECT sleep(4)"
        assert connections.read(lambda one: len(_all(one, sleep))) == 1
        began = time.monotonic()

        def fall_silent(connection: object) -> int:
            proxy.be("blackhole")
            return len(_all(connection, "SELECT 1"))

        with pytest.raises(Unavailable):
            connections.read(fall_silent)
        assert time.monotonic() - began < 30
        connections.close()
