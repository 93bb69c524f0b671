"""Writes the classes that a Spark driver of the demo loads to a file that later drivers map: they are up in half the time.

    python -m lakegate.demo.archive FOLDER

See class data sharing in Java's documentation. A JVM to which the file does not fit, of another version or with another class
path, leaves it unused and says nothing.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from lakegate import sql
from lakegate.demo.lake import JAVA_OPTIONS, Lake
from lakegate.runtime import new_session

DUMP_S = 300.0


def write_archive(lake: Lake) -> None:
    """Writes the archive of a lake, with a process of its own. If that fails, there is none, and the drivers start without."""
    command = [sys.executable, "-m", "lakegate.demo.archive", str(lake.root)]
    with (lake.logs / "archive.log").open("w", encoding="utf-8") as log:
        subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False)


def archive_classes(file: Path, conf: Mapping[str, str], *, kafka: bool = False) -> None:
    """Runs statements as those of streams, and ends the JVM, which writes the file.

    Args:
        file: The file to write.
        conf: Spark's configuration, with Java's options.
        kafka: Whether the class path has the connector for Kafka.
    """
    own = file.with_suffix(f".{os.getpid()}")
    options = f'{conf[JAVA_OPTIONS]} "-XX:ArchiveClassesAtExit={own}" -Xlog:disable'
    with tempfile.TemporaryDirectory() as folder:
        conf = {**conf, JAVA_OPTIONS: options, "spark.sql.warehouse.dir": folder}
        spark = new_session("archive", conf=conf, kafka=kafka)
        table, rows = f"delta.`{folder}/t`", spark.range(100).selectExpr("id", "id % 7 AS v")
        rows.write.format("delta").save(f"{folder}/t")
        sql(spark, f"DELETE FROM {table} WHERE id = 1")
        sql(spark, f"UPDATE {table} SET v = v + 1 WHERE id > 50")
        merge = "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        sql(spark, f"MERGE INTO {table} t USING (SELECT 3L AS id, 4L AS v) s ON t.id = s.id {merge}")
        writer = spark.readStream.format("delta").load(f"{folder}/t").writeStream.format("delta")
        writer.option("checkpointLocation", f"{folder}/c").trigger(availableNow=True).start(
            f"{folder}/s"
        ).awaitTermination()
        gateway = spark.sparkContext._gateway
        assert gateway is not None
        spark.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(DUMP_S)
    own.rename(file)


if __name__ == "__main__":
    lake = Lake(Path(sys.argv[1]))
    archive_classes(lake.archive, lake.conf)
