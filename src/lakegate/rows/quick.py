"""Executes statements that change few rows in the driver, without a Spark job.

Spark analyses the statement, Delta's own reader and writer read and write its rows, and Delta's own transaction commits. All this
happens in one call of `QuickStatement` in the JVM. The gate keeps the commit as it keeps that of a stock statement.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from pyroaring import BitMap64
from pyspark.sql import Column

from lakegate.delta.actions import Body
from lakegate.delta.commit import left_by
from lakegate.delta.jvm import JVM_ERRORS, Jvm, scala_object
from lakegate.delta.post_commit import Work
from lakegate.errors import InvalidRequest
from lakegate.rows.plan_analysis import CATALYST
from lakegate.rows.statement import TO_EXPRESSION, Dml

QUICK_CONF = "spark.lakegate.quick"
"""Session setting: `on` (default), `off`, or `verify`."""
VERIFY = "verify"
BYTES_CONF, BYTES_MAX = "spark.lakegate.quickBytesMax", 200 * 2**20
"""Session setting: memory in bytes for the lists of files of all tables, and again as much for the keys of files.

A table with a larger list is left to stock Delta."""
FAILED = "the quick execution failed"
"""A reason that begins so names an error that is not expected."""


def setting(dml: Dml) -> str:
    """Returns the session's setting.

    Raises:
        InvalidRequest: It has an unknown value.
    """
    said = str(dml.session.conf.get(QUICK_CONF, "on"))
    if said not in ("on", "off", VERIFY):
        raise InvalidRequest(f"{QUICK_CONF} is on, off or {VERIFY}; nothing was done", found=said)
    return said


def why_not(dml: Dml) -> str | None:
    """Returns why a statement is not executed in this way, as far as this is known before; None if it is tried.

    Raises:
        InvalidRequest: The setting has an unknown value.
    """
    if setting(dml) == "off":
        return f"{QUICK_CONF} is off"
    return "a statement of this kind is not served" if dml.quick is None else None


def why_not_analysed(dml: Dml) -> str | None:
    """Returns why stock Delta executes a statement, as far as its analysis shows; None if its rows and files decide.

    Raises:
        InvalidRequest: The setting has an unknown value.
    """
    if (why := why_not(dml)) is not None:
        return why
    with dml.jvm.active():
        found: str | None = dml.analysed_quick.declined()
    return found


def execute(
    dml: Dml, files: Iterable[Body] | None = None, version: int = -1, *, later: Callable[[Work], None]
) -> str | None:
    """Executes a statement without a Spark job, if that is possible.

    Args:
        dml: The statement.
        later: Takes Delta's work after a commit (checksum, checkpoint).
        files: The `add` of each file on which it is executed; None: the files of its table.
        version: With `files`: the newest known version of the table, which must have the definition of the files.

    Returns:
        None if it was executed; otherwise why stock Delta has to execute it. Then nothing was committed.

    Raises:
        Exception: The error of the commit, as stock Delta raises it.
    """
    why = why_not(dml)
    if why is not None:
        return why
    with dml.jvm.active():
        bytes_max = dml.jvm.int_conf(BYTES_CONF, BYTES_MAX)
        lines, transaction_id = None if files is None else _lines(files), str(uuid.uuid4())
        answer: str | None = dml.analysed_quick.run(lines, version, bytes_max, transaction_id)
    if answer is None:
        later(left_by(dml.jvm, transaction_id))
    return answer


def find(dml: Dml, files: Sequence[Body]) -> Mapping[str, BitMap64] | None:
    """Returns the live rows that match a statement's condition: path of each file that had to be read → positions.

    Returns None if only Spark can tell.

    Args:
        dml: A statement for which `why_not` returns None.
        files: The `add` of each file.
    """
    try:
        with dml.jvm.active():
            text = dml.jvm.whole(dml.analysed_quick.find(_lines(files)))
    except JVM_ERRORS:
        return None
    if text is None:
        return None
    found = (line.split(" ") for line in text.splitlines())
    return {path: BitMap64(map(int, rows)) for path, *rows in found}


def _lines(files: Iterable[Body]) -> str:
    return "\n".join(json.dumps({"add": file}) for file in files)


def of_plan(jvm: Jvm, plan: Any) -> Any:
    """Returns the `QuickStatement` of a plan, or of the builder of a stock MERGE."""
    return jvm.quick.of(jvm.jsession, plan)


def of_delete(jvm: Jvm, table: Any, condition: Column) -> Any:
    """Returns the `QuickStatement` of the plan that stock `DeltaTable.delete` makes. `table`: the stock table's JVM object."""
    return of_plan(jvm, _nodes(jvm).DeleteFromTable(_analysed(table), _expression(jvm, condition)))


def of_update(jvm: Jvm, table: Any, condition: Column, assigned: Mapping[str, Column]) -> Any:
    """Returns the `QuickStatement` of the plan that stock `DeltaTable.update` makes. `assigned`: column → its new value."""
    named = getattr(jvm.root, f"{CATALYST}.analysis.UnresolvedAttribute")
    assignments = [
        _nodes(jvm).Assignment(named.quotedString(name), _expression(jvm, value)) for name, value in assigned.items()
    ]
    some = getattr(jvm.root, "scala.Option").apply(_expression(jvm, condition))
    return of_plan(jvm, _nodes(jvm).UpdateTable(_analysed(table), jvm.to_seq(assignments), some))


def _nodes(jvm: Jvm) -> Any:
    return getattr(jvm.root, f"{CATALYST}.plans.logical")


def _analysed(table: Any) -> Any:
    return table.toDF().queryExecution().analyzed()


def _expression(jvm: Jvm, column: Column) -> Any:
    return scala_object(jvm.root, TO_EXPRESSION).apply(cast("Any", column)._jc.node())
