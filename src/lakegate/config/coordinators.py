"""Which place a coordinator's URL names, however it is written: what tells one that was lost from another one."""

from __future__ import annotations

import posixpath

from lakegate.config.dynamodb import read_dynamodb
from lakegate.config.options import BadPlace
from lakegate.config.zookeeper import read_place


def coordinator_place(url: str) -> str | None:
    """The place as a text, without its options; None where turns are kept in the memory of a process, or nobody knows."""
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
    """Whether two texts of `coordinator_place` can mean one place: of ZooKeeper's servers a driver may name any."""
    if not one.startswith("zookeeper://") or not other.startswith("zookeeper://"):
        return one == other
    try:
        first, second = read_place(one), read_place(other)
    except BadPlace:
        return one == other
    return first.root == second.root and bool(set(first.hosts) & set(second.hosts))
