"""Writes what the JVM of a Spark driver has loaded to a file that later ones map: they are up in half the time.

python -m tests.jvm_archive FILE; `make test` calls it once. See class data sharing in Java's documentation: a JVM that does not
fit to the file, of another version or with another class path, leaves it unused and says nothing.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from lakegate import sql
from lakegate.spark.jars import jar_sources
from lakegate.spark.java import java_sources
from lakegate.spark.session import session
from tests.conftest import FAST_CONF

OPTIONS = "spark.driver.extraJavaOptions"
DUMP_S = 300


def main(file: Path) -> None:
    """A few statements and a stream, and the end of the JVM, which writes the file."""
    conf = {**FAST_CONF, OPTIONS: f"{FAST_CONF[OPTIONS]} -XX:ArchiveClassesAtExit={file} -Xlog:disable"}
    with tempfile.TemporaryDirectory() as folder:
        conf["spark.sql.warehouse.dir"] = folder
        spark = session(
            "archive",
            conf=conf,
            kafka=True,
            sources=jar_sources(os.environ),
            java=java_sources(os.environ),
            environ=os.environ,
        )
        table, rows = f"delta.`{folder}/t`", spark.range(100).selectExpr("id", "id % 7 AS v")
        rows.write.format("delta").save(f"{folder}/t")
        sql(spark, f"DELETE FROM {table} WHERE id = 1")
        sql(spark, f"UPDATE {table} SET v = v + 1 WHERE id > 50")
        merge = "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        sql(spark, f"MERGE INTO {table} t USING (SELECT 3L AS id, 4L AS v) s ON t.id = s.id {merge}")
        writer = spark.readStream.format("delta").load(f"{folder}/t").writeStream.format("delta")
        writer = writer.option("checkpointLocation", f"{folder}/c").trigger(availableNow=True)
        writer.start(f"{folder}/s").awaitTermination()
        gateway = spark.sparkContext._gateway
        spark.stop()
        gateway.shutdown()
        process = gateway.proc
        process.stdin.close()
        process.wait(DUMP_S)


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
