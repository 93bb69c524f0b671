"""Log lines with their context: job, epoch and batch on every line that is written in a turn, optionally as JSON.

Nothing here configures logging. `lakegate run` does so if LAKEGATE_LOG requests it, and an application may use
`JsonFormatter` in its own configuration.
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
    """Adds this turn to every log line of this thread within the block, including the user's own code."""
    token = _WORK.set({"lock": lock, "job": job, "epoch": epoch, "batch": batch})
    try:
        yield
    finally:
        _WORK.reset(token)


class JsonFormatter(logging.Formatter):
    """A JSON object per line: time (ISO 8601, UTC), level, logger, message; lock, job, epoch, batch; then extra fields.

    `extra={...}` of a call is written as separate keys; values that JSON cannot represent are written as text.
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
