"""Normalizes coordinator URLs, so that different spellings of the same store of turns are recognised."""

from __future__ import annotations

import posixpath

from lakegate.config.dynamodb import read_dynamodb
from lakegate.config.options import BadPlace
from lakegate.config.zookeeper import read_place


def coordinator_place(url: str) -> str | None:
    """Returns the store's address as a text, without options; None for turns in the memory of a process, or a bad URL."""
    scheme, _, rest = url.partition(":")
    try:
        match scheme:
            case "sqlite":
                return f"sqlite:{posixpath.normpath('/' + rest.lstrip('/') if rest.startswith('/') else rest)}"
            case "zookeeper":
                zookeeper = read_place(url)
                return f"zookeeper://{','.join(zookeeper.hosts)}{zookeeper.root}"
            case "dynamodb":
                dynamodb = read_dynamodb(url)
                return f"dynamodb://{dynamodb.table}?region={dynamodb.region}"
            case _:
                return None
    except BadPlace:
        return None


def is_same_place(one: str, other: str) -> bool:
    """Returns True if two texts of `coordinator_place` can mean one store: a driver may name any of the ZooKeeper servers."""
    if not one.startswith("zookeeper://") or not other.startswith("zookeeper://"):
        return one == other
    try:
        first, second = read_place(one), read_place(other)
    except BadPlace:
        return one == other
    return first.root == second.root and bool(set(first.hosts) & set(second.hosts))
