"""The coordinator's URL `dynamodb://…`: what it says, and what is refused before anything is asked."""

from __future__ import annotations

import re

import pytest

from lakegate.config.dynamodb import OPTIONS, DynamodbPlace, read_dynamodb
from lakegate.config.options import BadPlace
from tests.docs.markdown import DOCS


def test_a_table_and_its_region_are_enough() -> None:
    """The times have defaults, and nothing is made."""
    assert read_dynamodb("dynamodb://lake-turns?region=eu-west-1") == DynamodbPlace(
        table="lake-turns",
        region="eu-west-1",
        endpoint=None,
        create=False,
        session_timeout_ms=30_000,
        call_timeout_ms=10_000,
    )


def test_every_option_is_read() -> None:
    """Each into its own field."""
    place = read_dynamodb(
        "dynamodb://a.b_c-1/?region=us-gov-west-1&endpoint=http://127.0.0.1:5000&create=true&session_timeout=1m"
        "&call_timeout=5s"
    )
    assert place == DynamodbPlace(
        table="a.b_c-1",
        region="us-gov-west-1",
        endpoint="http://127.0.0.1:5000",
        create=True,
        session_timeout_ms=60_000,
        call_timeout_ms=5_000,
    )


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("dynamodb:turns?region=eu-west-1", "not dynamodb://"),
        ("dynamodb://?region=eu-west-1", "not dynamodb://"),
        ("dynamodb://turns/x?region=eu-west-1", "not dynamodb://"),
        ("dynamodb://t?region=eu-west-1", "3 to 255"),
        ("dynamodb://turns", "no region"),
        ("dynamodb://turns?region=Ireland", "like eu-west-1"),
        ("dynamodb://turns?regoin=eu-west-1", 'did you mean "region"'),
        ("dynamodb://turns?region=eu-west-1&endpoint=localhost:8000", "http://host:port"),
        ("dynamodb://turns?region=eu-west-1&create=yes", "true or false"),
        ("dynamodb://turns?region=eu-west-1&session_timeout=15", "duration"),
        ("dynamodb://AKIA:hunter2@turns?region=eu-west-1", "before the table"),
        ("dynamodb://turns?region=eu-west-1&secret_key=hunter2", "never from here"),
    ],
)
def test_what_is_wrong_is_said_and_no_secret_repeated(url: str, expected: str) -> None:
    """Before a connection is tried."""
    with pytest.raises(BadPlace) as raised:
        read_dynamodb(url)
    assert expected in str(raised.value)
    assert "hunter2" not in str(raised.value)


def test_every_option_is_in_the_reference() -> None:
    """The page names each, and nothing else as one."""
    page = (DOCS / "reference" / "dynamodb.md").read_text(encoding="utf-8")
    table = page.split("<!-- options -->\n")[1].split("<!-- end -->")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == list(OPTIONS)
