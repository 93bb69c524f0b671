"""The actions that a policy must allow by the how-to pages, and the actions that requests need."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from lakegate.demo.aws_server import Request
from tests.docs.markdown import DOCS, fences

S3_PAGE = DOCS / "how-to" / "use-s3.md"
DYNAMODB_PAGE = DOCS / "how-to" / "use-s3-with-dynamodb.md"
TO_MAKE_THE_TABLE = {"dynamodb:CreateTable", "dynamodb:UpdateTimeToLive"}
"""Named next to the policy, for the user who creates the table of entries."""
OF_KIND = {
    "GET": ("s3:GetObject",),
    "HEAD": ("s3:GetObject",),
    "LIST": ("s3:ListBucket",),
    "PUT": ("s3:PutObject",),
    "COPY": ("s3:GetObject", "s3:PutObject"),
    "DELETE": ("s3:DeleteObject",),
}


def allowed(page: Path) -> set[str]:
    """The actions of a page's policy."""
    (policy,) = [json.loads(fence.text) for fence in fences(page) if fence.kind == "json"]
    return {action for statement in policy["Statement"] for action in statement["Action"]}


def needed(requests: Iterable[Request]) -> set[str]:
    """The actions that a policy must allow for these."""
    return {action for request in requests for action in _needed(request)}


def _needed(request: Request) -> tuple[str, ...]:
    if request.kind in OF_KIND:
        return OF_KIND[request.kind]
    if request.kind == "POST":  # of a bucket: deletes many; of a key: a part of an upload
        return ("s3:PutObject",) if "/" in request.key.rstrip("/") else ("s3:DeleteObject",)
    return (f"dynamodb:{request.kind}",)
