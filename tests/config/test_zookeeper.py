"""The coordinator's URL `zookeeper://…`: what it says, and what is refused before anything is opened."""

from __future__ import annotations

import pytest

from lakegate.config.options import BadPlace
from lakegate.config.zookeeper import OPTIONS, ZookeeperPlace, read_place


def test_hosts_alone_are_enough() -> None:
    """The port, the chroot and the times have defaults."""
    assert read_place("zookeeper://h1") == ZookeeperPlace(
        hosts=("h1:2181",), root="/lakegate", session_timeout_ms=15_000
    )


def test_every_option_is_read() -> None:
    """Each into its own field."""
    place = read_place(
        "zookeeper://h1:2181,[::1]:2182/lake/turns/?session_timeout=30s&call_timeout=5s&auth=sasl&user=etl&acl=open"
        "&tls=true&ca=/etc/ca.pem&certificate=/etc/c.pem&key=/etc/k.pem"
    )
    assert place == ZookeeperPlace(
        hosts=("h1:2181", "[::1]:2182"),
        root="/lake/turns",
        session_timeout_ms=30_000,
        call_timeout_ms=5_000,
        auth="sasl",
        user="etl",
        acl="open",
        tls=True,
        ca="/etc/ca.pem",
        certificate="/etc/c.pem",
        key="/etc/k.pem",
    )


def test_with_a_user_new_nodes_are_closed_to_others_by_default() -> None:
    """Open to all only if one says so."""
    assert read_place("zookeeper://h?auth=digest&user=etl").acl == "creator"
    assert read_place("zookeeper://h").acl == "open"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("zookeeper:h", "not zookeeper://"),
        ("zookeeper://", "not zookeeper://"),
        ("zookeeper://h:0", "hosts"),
        ("zookeeper://h:99999", "hosts"),
        ("zookeeper://h1,,h2", "hosts"),
        ("zookeeper://h/a//b", "chroot"),
        ("zookeeper://h/a/../b", "chroot"),
        ("zookeeper://h/zookeeper/x", "chroot"),
        ("zookeeper://h/%41", "not zookeeper://"),
        ("zookeeper://etl:hunter2@h", "environment variable"),
        ("zookeeper://h?password=hunter2", "environment variable"),
        ("zookeeper://h?sesion_timeout=1s", 'did you mean "session_timeout"'),
        ("zookeeper://h?tls", "name=value"),
        ("zookeeper://h?tls=true&tls=true", "twice"),
        ("zookeeper://h?session_timeout=15", "duration"),
        ("zookeeper://h?session_timeout=2h", "duration"),
        ("zookeeper://h?auth=digest", "without user"),
        ("zookeeper://h?user=etl", "need auth"),
        ("zookeeper://h?acl=creator", "need auth"),
        ("zookeeper://h?auth=kerberos", "auth that is not"),
        ("zookeeper://h?ca=/x", "need tls=true"),
        ("zookeeper://h?tls=true&ca=x.pem", "absolute"),
        ("zookeeper://h?tls=true&key=/k", "belong together"),
    ],
)
def test_what_is_wrong_is_said_and_no_password_repeated(url: str, expected: str) -> None:
    """Before a connection is tried."""
    with pytest.raises(BadPlace) as raised:
        read_place(url)
    assert expected in str(raised.value)
    assert "hunter2" not in str(raised.value)


def test_every_option_is_in_the_reference() -> None:
    """The page names each, and nothing else as one."""
    import re

    from tests.docs.markdown import DOCS

    page = (DOCS / "reference" / "zookeeper.md").read_text(encoding="utf-8")
    table = page.split("<!-- options -->\n")[1].split("<!-- end -->")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == list(OPTIONS)
