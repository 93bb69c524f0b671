"""Executes statements that change few rows in the driver, without a Spark job.

Spark analyses the statement, Delta's own reader and writer read and write its rows, and Delta's own transaction commits. All this
happens in one call of `QuickStatement` in the JVM. The gate keeps the commit as it keeps that of a stock statement.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import Column

from lakegate.delta.jvm import OURS, Jvm, scala_object
from lakegate.errors import InvalidRequest
from lakegate.rows.plan_analysis import CATALYST
from lakegate.rows.statement import TO_EXPRESSION, Dml

QUICK_CONF = "spark.lakegate.quick"
"""Session setting: `on`, or `off` (default)."""


def execute(dml: Dml) -> str | None:
    """Executes a statement without a Spark job, if that is possible.

    Returns:
        None if it was executed; otherwise why stock Delta has to execute it. Then nothing was committed.

    Raises:
        Exception: The error of Spark's analysis, or of the commit, as stock Delta raises it.
    """
    setting = dml.session.conf.get(QUICK_CONF, "off")
    if setting not in ("on", "off"):
        raise InvalidRequest(f"{QUICK_CONF} is on or off; nothing was done", found=setting)
    if setting == "off":
        return f"{QUICK_CONF} is off"
    if dml.plan is None:
        return "a statement of this kind is not served"
    jvm = dml.jvm
    with jvm.active():
        why: str | None = getattr(jvm.root, f"{OURS}.quick.QuickStatement").run(jvm.jsession, dml.plan(jvm))
    return why


def delete_plan(jvm: Jvm, table: Any, condition: Column) -> Any:
    """Returns the plan that stock `DeltaTable.delete` makes. `table`: the stock table's JVM object."""
    return _nodes(jvm).DeleteFromTable(_analysed(table), _expression(jvm, condition))


def update_plan(jvm: Jvm, table: Any, condition: Column, assigned: Mapping[str, Column]) -> Any:
    """Returns the plan that stock `DeltaTable.update` makes. `assigned`: name of each column → its new value."""
    named = getattr(jvm.root, f"{CATALYST}.analysis.UnresolvedAttribute")
    assignments = [
        _nodes(jvm).Assignment(named.quotedString(name), _expression(jvm, value)) for name, value in assigned.items()
    ]
    some = getattr(jvm.root, "scala.Option").apply(_expression(jvm, condition))
    return _nodes(jvm).UpdateTable(_analysed(table), jvm.to_seq(assignments), some)


def _nodes(jvm: Jvm) -> Any:
    return getattr(jvm.root, f"{CATALYST}.plans.logical")


def _analysed(table: Any) -> Any:
    return table.toDF().queryExecution().analyzed()


def _expression(jvm: Jvm, column: Column) -> Any:
    return scala_object(jvm.root, TO_EXPRESSION).apply(column._jc.node())
