"""Counts the records of each topic that a stream has not read yet: the broker's offsets against those of its checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Offsets = Mapping[str, Mapping[int, int]]
"""Topic → partition → offset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLag:
    """The lag of one topic of one stream."""

    topic: str
    partitions: int
    behind: int
    """Records in the topic that are not in the commit log."""
    deleted: int
    """Records that retention deleted before they were read."""


def topic_lags(taken: Offsets, firsts: Offsets, ends: Offsets) -> tuple[TopicLag, ...]:
    """Returns the unread records of each topic.

    Args:
        taken: The next offset that the stream will read; a partition that is missing is read from its beginning.
        firsts: The first offset that the broker still has.
        ends: The offset that the next record will get.
    """
    found = []
    for topic, partitions in ends.items():
        behind = deleted = 0
        for partition, end in partitions.items():
            first = firsts[topic][partition]
            next_ = taken.get(topic, {}).get(partition, first)
            behind += max(0, end - max(first, next_))
            deleted += max(0, first - next_)
        found.append(TopicLag(topic=topic, partitions=len(partitions), behind=behind, deleted=deleted))
    return tuple(found)
