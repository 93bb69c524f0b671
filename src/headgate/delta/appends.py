"""Delta's own append command, run without its look at the stored token, which costs more than a small append itself.

Asking Delta for a token's stored number has it reconstruct the table's whole state with a Spark job at every new version:
over a second even for a table of ten files. `DeltaTableLog` knows the number from the log's tail in milliseconds. So the
command is run as the stock writer runs it (schema checks and merging, generated columns, constraints, statistics, its
own conflict checks and retries), and only the question before it is put to the log instead.

Why this is as safe as the stock writer: the token is read *after* the snapshot that the transaction begins with is taken,
so the reading covers at least that version; and the id is noted as read in the transaction, so Delta's conflict check
refuses the commit if anybody has written the id since.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame

from headgate.core.ids import TableLocation
from headgate.delta.jvm import DELTA, Jvm, scala_object
from headgate.delta.log import DeltaTableLog
from headgate.ports import WriteToken


def run_append(
    df: DataFrame, table: TableLocation, token: WriteToken, options: Mapping[str, str], log: DeltaTableLog
) -> bool:
    """Append as one commit with the token, or do nothing where the stored number is as large; False if there is no table.

    Raises whatever Delta and Spark raise.
    """
    jvm = Jvm(df.sparkSession)
    delta_log = jvm.delta_log(table)
    snapshot = jvm.snapshot(delta_log)
    if snapshot.version() < 0:
        return False
    # After the snapshot, never before it: see above.
    stored = log.read_tokens(table).tokens.get(token.token_id)
    if stored is not None and stored >= token.number:
        return True
    with jvm.active():
        transaction = delta_log.startTransaction(jvm.none, jvm.some(snapshot))
        transaction.readTxn().addOne(token.token_id)
        # Where the rows come from the table itself, Delta notes in the active transaction what was read.
        active: Any = scala_object(jvm.root, f"{DELTA}.OptimisticTransaction$")
        active.setActive(transaction)
        try:
            _write(jvm, df, delta_log, transaction, token, options)
        finally:
            active.clearActive()
    return True


def _write(
    jvm: Jvm, df: DataFrame, delta_log: Any, transaction: Any, token: WriteToken, options: Mapping[str, str]
) -> None:
    said = {"txnAppId": token.token_id, "txnVersion": str(token.number), "userMetadata": token.user_metadata}
    mode = jvm.root.org.apache.spark.sql.SaveMode.Append
    delta_options = getattr(jvm.root, f"{DELTA}.DeltaOptions")(
        jvm.to_map({**options, **said}), jvm.jsession.sessionState().conf()
    )
    none, nothing = jvm.none, jvm.to_seq([])
    command = getattr(jvm.root, f"{DELTA}.commands.WriteIntoDelta")(
        delta_log, mode, delta_options, nothing, jvm.to_map({}), df._jdf, none, none, False
    )
    made = command.writeAndReturnCommitData(transaction, jvm.jsession, none, False)
    operation = getattr(jvm.root, f"{DELTA}.DeltaOperations$Write")(
        mode, jvm.some(nothing), none, jvm.some(token.user_metadata), none, none, none, none, none
    )
    transaction.commitIfNeeded(made.actions(), operation, made.stringTags())
