"""The messages of hooks: which event of a run is passed to a person's tools, and what the message says.

Rules for editors: pure; the time comes in as an argument. A message holds names, counts and reasons, never a value of a row. Its
`text` is one sentence that ends with what to do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

HookEvent = Literal["lost", "failed", "late", "dead_letters", "unmet", "erased", "sync_behind"]
HOOK_EVENTS: Final[tuple[HookEvent, ...]] = get_args(HookEvent)
BEHIND_AFTER_MS: Final = 300_000
FORMAT: Final = 1
"""The format of a message; raised when a key is removed or changes its meaning."""

Message = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """A receiver of messages: a webhook, a command or a function."""

    name: str
    events: tuple[str, ...] = HOOK_EVENTS
    behind_after_ms: int = BEHIND_AFTER_MS
    """The delay of a sync above which it is `sync_behind`."""
    webhook: str | None = field(default=None, repr=False)
    command: tuple[str, ...] = field(default=(), repr=False)
    function: Callable[[Message], object] | None = None

    def wants(self, message: Message) -> bool:
        """Returns True if a message is for this hook; a sync's delay is compared with several limits."""
        if message["event"] == "sync_behind" and message["details"]["limit_ms"] != self.behind_after_ms:
            return False
        return message["event"] in self.events


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """A message, under the key by which it is sent once; `message` None: the state is over, and its next begin is news again."""

    key: tuple[object, ...]
    message: Message | None


def news_of(data: Mapping[str, Any], *, pipeline: str, now_ms: int) -> list[News]:
    """Returns what the hooks are to send about an event of a run.

    Args:
        data: The event as `to_json` or a command's JSON lines have it.
        pipeline: The name of the pipeline.
        now_ms: The wall clock.
    """

    def news(
        event: HookEvent, text: str, *key: object, is_over: bool = False, at_ms: int = now_ms, **details: object
    ) -> News:
        message = {
            "format": FORMAT,
            "event": event,
            "pipeline": pipeline,
            "job": job,
            "lock": lock,
            "at_ms": at_ms,
            "text": text,
            "details": details,
        }
        return News(key=(event, lock, job, *key), message=None if is_over else message)

    job, lock = data.get("job") or data.get("sync"), data.get("lock")
    match data["event"]:
        case "TurnEnded" if data["outcome"] in ("lost", "failed", "fenced"):
            return [_of_turn(data, news)]
        case "BatchWritten":
            return list(_of_batch(data, news))
        case "BatchApplied" if data.get("dead"):
            rows = counted(data["dead"], "row")
            text = f"{job} quarantined {rows} of batch {data['batch']}; see: lakegate dead-letters list {job}"
            return [news("dead_letters", text, data["batch"], batch=data["batch"], dead_letters=data["dead"])]
        case "StreamLate":
            overdue_ms, every_ms = data["overdue_ms"], data["every_ms"]
            text = f"{job} is late: its turn is overdue by {span(overdue_ms)}; see what it waits for: lakegate status"
            is_over = not data["is_late"]
            return [news("late", text, is_over=is_over, overdue_ms=overdue_ms, every_ms=every_ms)]
        case "SyncBehind":
            behind_ms, limit_ms = data["behind_ms"], data["limit_ms"]
            text = f"{job} is {span(behind_ms)} behind its source; see where it is: lakegate sync status"
            is_over = not data["is_behind"]
            return [news("sync_behind", text, limit_ms, is_over=is_over, behind_ms=behind_ms, limit_ms=limit_ms)]
        case _:
            return []


def _of_turn(data: Mapping[str, Any], news: Callable[..., News]) -> News:
    job, epoch, reason = data["job"], data["epoch"], data.get("reason")
    details = {"epoch": epoch, "outcome": data["outcome"], "reason": reason, "closed_by": data.get("closed_by")}
    why = f": {reason}" if reason else ""
    if data["outcome"] == "lost":
        text = f"{job} lost turn {epoch}{why}; its next run completes the batch, so see that it runs: lakegate status"
        return news("lost", text, epoch, at_ms=data["released_at_ms"], **details)
    text = f"turn {epoch} of {job} {data['outcome']}{why}; its batch runs again, see: lakegate timeline"
    return news("failed", text, epoch, at_ms=data["released_at_ms"], **details)


def _of_batch(data: Mapping[str, Any], news: Callable[..., News]) -> list[News]:
    job, batch, found = data["job"], data["batch"], []
    letters, requests, erased = data["dead_letters"], data["dead_requests"], data["rows_erased"]
    what = "a sweep" if data["is_sweep"] else f"batch {batch}"
    key = (data["epoch"], batch, data["is_sweep"])
    details = {"epoch": data["epoch"], "batch": batch, "is_sweep": data["is_sweep"]}
    if letters or requests:
        command = f"dead-letters list {job}" if letters else f"requests list {job} --state dead"
        text = f"{job} set {counted(letters + requests, 'record')} of {what} aside; see: lakegate {command}"
        found.append(news("dead_letters", text, *key, **details, dead_letters=letters, dead_requests=requests))
    if unmet := data["unmet"]:
        text = f"in {what} of {job} records do not meet {tallied(unmet)}; see the sums: lakegate metrics"
        found.append(news("unmet", text, *key, **details, unmet=unmet))
    if erased:
        text = (
            f"{job} deleted {counted(erased, 'row')} in {what}; see which files still hold their bytes: lakegate status"
        )
        found.append(news("erased", text, *key, **details, rows_erased=erased))
    return found


def trial(pipeline: str, now_ms: int) -> Message:
    """Returns the message of `lakegate hooks test`."""
    text = "this is a test of the hook; nothing has happened, and nothing is to be done"
    head = {"format": FORMAT, "event": "test", "pipeline": pipeline, "job": None, "lock": None, "at_ms": now_ms}
    return {**head, "text": text, "details": {}}


def counted(number: int, noun: str) -> str:
    """Returns `1 row`, `2 rows`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def tallied(counts: Mapping[str, int]) -> str:
    """Returns `positive (3), known (1)`."""
    return ", ".join(f"{name} ({count})" for name, count in counts.items())


def span(duration_ms: int) -> str:
    """Returns a length of time for people, in the largest unit of which it has two."""
    for unit, size_ms in (("days", 86_400_000), ("hours", 3_600_000), ("minutes", 60_000)):
        if duration_ms >= 2 * size_ms:
            return f"{duration_ms // size_ms} {unit}"
    return f"{duration_ms // 1000} seconds"
