"""Log lines that say whose work they are about: job, epoch and batch on every line that is written in a turn, as JSON if wanted.

Nothing here configures logging; `lakegate run` does so where LAKEGATE_LOG says so, and an application names `JsonFormatter` in
a configuration of its own.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime

_WORK: ContextVar[Mapping[str, object] | None] = ContextVar("lakegate_work", default=None)
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_FIRST = ("time", "level", "logger", "message", "lock", "job", "epoch", "batch")


@contextlib.contextmanager
def working(*, lock: str, job: str, epoch: int, batch: int | None) -> Iterator[None]:
    """Whatever this thread logs within is about this turn, also what the user's own code logs."""
    token = _WORK.set({"lock": lock, "job": job, "epoch": epoch, "batch": batch})
    try:
        yield
    finally:
        _WORK.reset(token)


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time (ISO 8601, UTC), level, logger, message; lock, job, epoch, batch; then what else was given.

    `extra={...}` of a call comes as keys of its own; what cannot be written as JSON comes as text.
    """

    def format(self, record: logging.LogRecord) -> str:
        given = {key: value for key, value in vars(record).items() if key not in _STANDARD}
        data: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **dict.fromkeys(_FIRST[4:]),
            **(_WORK.get() or {}),
            **given,
        }
        if record.exc_info:
            data["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            data["stack"] = self.formatStack(record.stack_info)
        return json.dumps(data, default=str, ensure_ascii=False)
