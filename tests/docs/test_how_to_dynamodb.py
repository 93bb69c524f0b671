"""The how-to page on AWS: its Python runs against a server, its URLs can be read, and its policy allows what is asked."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from lakegate.config.dynamodb import read_dynamodb
from lakegate.demo.aws_server import REGION, AwsServer
from lakegate.ids import JobName
from lakegate.turns.stores.dynamodb import DynamodbTurnStore
from tests.docs.markdown import DOCS, fences

PAGE = DOCS / "how-to" / "coordinate-on-aws.md"
PAGES = [PAGE, DOCS / "reference" / "dynamodb.md"]


@pytest.mark.usefixtures("aws_credentials")
def test_what_the_page_says_is_so(aws: AwsServer) -> None:
    """Its blocks in order; with a heartbeat they ask for each action that the policy allows, and for no other."""
    url = f"dynamodb://lake-turns?region={REGION}&endpoint={aws.endpoint}&create=true"
    names: dict[str, object] = {"url": url}
    aws.forget_requests()
    for fence in fences(PAGE):
        if fence.kind == "python":
            exec(compile("\n" * fence.line + fence.text, PAGE.name, "exec"), names)
    store = DynamodbTurnStore(read_dynamodb(url))
    assert store.open_session("ENGAGEMENT", JobName("Ingestion")).heartbeat()
    store.close()
    asked = {f"dynamodb:{request.kind}" for request in aws.requests()}
    (policy,) = [json.loads(fence.text) for fence in fences(PAGE) if fence.kind == "json"]
    allowed = {action for statement in policy["Statement"] for action in statement["Action"]}
    assert asked == allowed


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_url_of_the_page_can_be_read(page: Path) -> None:
    """With all of its options."""
    urls = re.findall(r"dynamodb://[^\s'\"`]+", page.read_text(encoding="utf-8"))
    assert [read_dynamodb(url) for url in urls if url != "dynamodb://"]
