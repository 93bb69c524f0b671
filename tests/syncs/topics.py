"""Topics in memory, which stand in for those of a broker."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lakegate.syncs.sources.debezium_logs import Message


class Topics:
    """Logs in memory, each a partition, as a broker's are: `growing` lists of messages by their names."""

    is_one = False

    def __init__(self, transactions: str | None = None, **growing: list[Any]) -> None:
        self.transactions, self.growing = transactions, growing

    def fingerprint(self) -> object:
        return [len(one) for one in self.growing.values()]

    def at(self) -> str | None:
        return None

    def read(
        self, starts: Mapping[str, int], ends: Mapping[str, int] | None
    ) -> Sequence[tuple[str, Iterator[Message]]]:
        def messages(name: str) -> Iterator[Message]:
            stop = len(self.growing[name]) if ends is None else ends.get(name, 0)
            for offset in range(starts.get(name, 0), stop):
                value = self.growing[name][offset]
                yield Message(offset, None if value is None else json.dumps(value).encode(), None)

        return [(name, messages(name)) for name in self.growing]

    def is_transactions(self, name: str) -> bool:
        return name == self.transactions

    def has(self, collection: str) -> bool:
        return True

    def where(self, name: str, offset: int) -> Mapping[str, Any]:
        return {"topic": name, "offset": offset}

    def close(self) -> None:
        pass
