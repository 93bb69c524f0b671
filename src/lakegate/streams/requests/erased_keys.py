"""The erased keys that a `mutate` stream must respect: it must not move a row to one of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lakegate.config import Erase, Mutate, StreamSpec
from lakegate.delta.actions import Body
from lakegate.delta.table_log import NOTHING_COMES
from lakegate.ids import Version
from lakegate.quoting import quoted
from lakegate.streams.bad_records import column
from lakegate.streams.interfaces import StreamContext
from lakegate.streams.requests.table import RequestTable
from lakegate.streams.requests.visibility import Deciding


@dataclass(frozen=True, slots=True)
class _Erased:
    """An erase stream of the table: its erased keys, and the columns that identify a person."""

    keys: DataFrame
    columns: tuple[str, ...]

    def is_named(self, names: Sequence[str]) -> bool:
        """Returns True if these columns alone identify a person."""
        return {name.lower() for name in self.columns} <= {name.lower() for name in names}


def erasures_of(context: StreamContext, mutate: Mutate) -> list[StreamSpec]:
    """Returns the erase streams of the table to whose keys a `mutate` stream may move rows."""
    assigned = {name.lower() for name in mutate.set}
    return [
        stream
        for stream in context.neighbours
        if isinstance(stream.kind, Erase) and not assigned.isdisjoint(name.lower() for name in stream.kind.match)
    ]


class Erasures:
    """The standing erasures to whose keys a stream's updates may move rows.

    Args:
        context: The stream's context.
        mutate: The stream.
        unrecorded: Erase streams whose last batch was applied and has no recorded outcome; None: looked up now.
        since: Only the keys of erasures and lifts that these streams have written after these versions of their tables,
            whatever their state is now.
        coming: Stream → path → `add` of requests that are read together with its table, and are not committed yet.
    """

    def __init__(
        self,
        context: StreamContext,
        mutate: Mutate,
        *,
        unrecorded: Collection[str] | None = None,
        since: Mapping[str, Version] | None = None,
        coming: Mapping[str, Mapping[str, Body]] | None = None,
    ) -> None:
        self._mutate = mutate
        self._set = list(mutate.set)
        self._erased: list[_Erased] = []
        self.is_told = True
        """False if the log does not contain all that was written since."""
        streams = erasures_of(context, mutate)
        if unrecorded is None and since is None:
            unrecorded = Deciding(context, streams).now().unrecorded
        for stream in streams:
            assert isinstance(stream.kind, Erase)
            table = RequestTable(context.session, context.log, context.requests_of(stream))
            more = (coming or {}).get(stream.name, NOTHING_COMES)
            if since is None:
                keys = table.erased(is_unrecorded=stream.name in (unrecorded or ()), coming=more)
            elif stream.name in since:
                keys = table.keys_since(since[stream.name], more)
                self.is_told &= keys is not None
            else:
                keys = None
            if keys is not None:
                self._erased.append(_Erased(keys, tuple(keys.columns)))

    @property
    def is_empty(self) -> bool:
        """Returns True if there are no such erasures."""
        return self.is_told and not self._erased

    @property
    def other_columns(self) -> tuple[str, ...]:
        """Columns of the table that, together with the set columns, identify a person, and are no match columns."""
        known = {name.lower() for name in (*self._set, *self._mutate.match)}
        others = {name.lower(): name for erased in self._erased for name in erased.columns if name.lower() not in known}
        return tuple(others[name] for name in sorted(others))

    def with_doom(self, requests: DataFrame) -> DataFrame:
        """Adds `is_doomed` to each request: True if its own values move rows to an erased key.

        Args:
            requests: Rows with `op` and `set`.
        """
        is_doomed: Column = F.lit(False)
        for i, erased in enumerate(self._erased):
            if not erased.is_named(self._set):
                continue
            mark, named = f"_lg_erased{i}", [f"_lg_e{j}" for j in range(len(erased.columns))]
            keys = erased.keys.toDF(*named).withColumn(mark, F.lit(True))
            same = [F.col(f"set.{quoted(name)}") == F.col(key) for name, key in zip(erased.columns, named, strict=True)]
            requests = requests.join(keys, same, "left").drop(*named)
            is_doomed |= F.col(mark).isNotNull()
        marked = requests.withColumn("is_doomed", is_doomed & (F.col("op") == "update"))
        return marked.drop(*[f"_lg_erased{i}" for i in range(len(self._erased))])

    def rows_led_to_erased_keys(self, changes: DataFrame) -> DataFrame:
        """Returns the changes that move a row to an erased key that `set` alone does not identify.

        Args:
            changes: `key` and `set` of an update, and `other_columns` of the rows that it matches.
        """
        assigned = {name.lower() for name in self._set}
        match = {name.lower() for name in self._mutate.match}
        found = changes.limit(0)
        for erased in self._erased:
            if erased.is_named(self._set):
                continue
            keys = erased.keys.toDF(*[f"_lg_e{i}" for i in range(len(erased.columns))])
            same = []
            for i, name in enumerate(erased.columns):
                container = "set." if name.lower() in assigned else "key." if name.lower() in match else ""
                value = F.col(f"{container}{quoted(name)}") if container else column(name)
                same.append(value == F.col(f"_lg_e{i}"))
            found = found.unionByName(changes.join(keys, same, "left_semi"))
        return found
