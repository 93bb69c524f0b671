"""The three streams on a mailing-list archive, with coverage `exclusive` and with `publish`, on fast and on slow storage.

Each stream has several batches and a turn for each batch, as streams that run all day have. All three streams have batches until
the end: records come more often than requests.

Slow storage is local disk on which every request takes as long as a request to an object store. A third case has streams in which
each batch asks a service, which takes time but no resources of this machine. Each case has a JVM of its own, with more task slots
than the machine has cores, as a task that waits for storage needs no core.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

import lakegate
from benchmarks.measure import cpu_s, figures, machine, write
from benchmarks.streams import ORDER, SOURCE, cut, digest, ours, ratio
from lakegate.config.streams import Coverage

WORLDS = {"0 ms a request": (0, 0), "30 ms a request": (30, 0), "0 ms a request, each batch asks for 5 s": (0, 5)}
"""Name → milliseconds that a request to storage takes, and seconds that a batch asks a service."""
WARMING, ROUNDS = 2, 2
"""Rounds of each to warm the JVM up, and rounds that count: its compilers take a third of the machine for minutes."""
PARTS = {"ingest": 7, "mutation": 5, "delete": 5}
TASK_SLOTS = 6
SLOW = Path(__file__).parent / "java" / "SlowFileSystem.java"
COVERAGES: tuple[Coverage, ...] = ("exclusive", "publish")


def _both_s(spark: SparkSession) -> float:
    used_s = cpu_s(spark)
    return used_s["jvm"] + used_s["python"]


def main() -> None:
    """Measures and writes the result."""
    if len(sys.argv) > 1:
        print(json.dumps(measured(int(sys.argv[1]), float(sys.argv[2]))))
        return
    result: dict[str, object] = {"machine": machine(), "source": SOURCE}
    for world, (latency_ms, asked_s) in WORLDS.items():
        command = [sys.executable, "-m", "benchmarks.coverage", str(latency_ms), str(asked_s)]
        said = subprocess.run(command, check=True, capture_output=True, text=True)
        result[world] = json.loads(said.stdout.splitlines()[-1])
    write("coverage", result)


def measured(latency_ms: int, asked_s: float) -> dict[str, object]:
    """Measures both, in interleaved pairs, in this process."""
    data = Path(os.environ.get("LAKEGATE_TEST_DATA") or "../shared/data") / "engagement"
    expected = json.loads((data / "expected.json").read_text())[SOURCE]
    first_ms: dict[Coverage, list[float]] = {coverage: [] for coverage in COVERAGES}
    then_ms: dict[Coverage, list[float]] = {coverage: [] for coverage in COVERAGES}
    then_cpu_s: dict[Coverage, list[float]] = {coverage: [] for coverage in COVERAGES}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for kind, parts in PARTS.items():
            cut(data / kind / f"{SOURCE}.parquet", folder / "in" / kind, ORDER[kind], parts)
        (library,) = (Path(pyspark.__file__).parent / "jars").glob("hadoop-client-api-*.jar")
        subprocess.run(["javac", "--release", "17", "-d", folder / "java", "-cp", library, SLOW], check=True)
        conf = {
            "spark.master": f"local[{TASK_SLOTS}]",
            "spark.driver.memory": "4g",
            "spark.sql.shuffle.partitions": "2",
            # With two partitions adaptive execution has nothing to improve, and it would plan each query again.
            "spark.sql.adaptive.enabled": "false",
            "spark.ui.enabled": "false",
            "spark.databricks.delta.snapshotPartitions": "1",
            # The tasks that read logs are so small that generating their code takes longer than running it.
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            "spark.driver.extraClassPath": str(folder / "java"),
            "spark.driver.extraJavaOptions": f"-Dslow.ms={latency_ms} -XX:ReservedCodeCacheSize=400m -XX:+UseParallelGC",
            "spark.hadoop.fs.file.impl": "SlowFileSystem",
        }
        spark = lakegate.session("bench", conf=conf)
        for number in range(WARMING + ROUNDS):
            for coverage in COVERAGES if number % 2 else reversed(COVERAGES):
                target = folder / f"{coverage}-{number}"
                source = target / "in"
                times_ms, used_s = [], []
                for which in (slice(None, 1), slice(1, None)):
                    for kind in PARTS:
                        (source / kind).mkdir(parents=True, exist_ok=True)
                        for file in sorted((folder / "in" / kind).iterdir())[which]:
                            shutil.copy(file, source / kind)
                    begun, used = time.perf_counter(), _both_s(spark)
                    ours(spark, source, target, coverage, asked_s)
                    times_ms.append((time.perf_counter() - begun) * 1000)
                    used_s.append(_both_s(spark) - used)
                assert digest(spark, target / "table") == expected["final_sha256"], f"{coverage} is wrong"
                if number >= WARMING:
                    first_ms[coverage].append(times_ms[0])
                    then_ms[coverage].append(times_ms[1])
                    then_cpu_s[coverage].append(used_s[1])
                shutil.rmtree(target)
    return {
        **{f"{coverage}_first_batches_ms": figures(samples) for coverage, samples in first_ms.items()},
        **{f"{coverage}_ms": figures(samples) for coverage, samples in then_ms.items()},
        **{f"{coverage}_cpu_s": [round(one, 1) for one in samples] for coverage, samples in then_cpu_s.items()},
        "exclusive_over_publish": ratio(then_ms["exclusive"], then_ms["publish"]),
    }


if __name__ == "__main__":
    main()
