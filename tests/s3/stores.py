"""A log store of this JVM as a test calls it, with direct access to its bucket and its entries."""

from __future__ import annotations

import itertools
from typing import Any

from py4j.protocol import Py4JJavaError

from lakegate.spark.log_stores import CLASSES

ENTRIES = "delta_log"
_NUMBERS = itertools.count()


class Store:
    """A log store on a table of its own."""

    def __init__(self, word: str, jvm: Any, conf: Any, s3: Any, dynamodb: Any) -> None:
        self._jvm, self._conf = jvm, conf
        self._store = getattr(jvm, CLASSES.get(word, word))(conf)
        self._s3, self._dynamodb = s3, dynamodb
        self.name = f"{word.rpartition('.')[2]}{next(_NUMBERS)}"
        self.table = f"s3a://lake/{self.name}"

    def write(self, version: int, content: str) -> str:
        """`ok`, or the exception's class and message."""
        lines = self._jvm.java.util.List.of(content).iterator()
        try:
            self._store.write(self._path(version), lines, False, self._conf)
        except Py4JJavaError as error:
            thrown = error.java_exception
            return f"{thrown.getClass().getSimpleName()}: {thrown.getMessage()}"
        return "ok"

    def listed(self) -> list[int] | str:
        """The versions that a reader sees, or its exception."""
        try:
            found = self._store.listFrom(self._path(0), self._conf)
        except Py4JJavaError as error:
            return f"{error.java_exception.getClass().getSimpleName()}: {error.java_exception.getMessage()}"
        names = []
        while found.hasNext():
            names.append(found.next().getPath().getName())
        return [int(name.removesuffix(".json")) for name in names if name.removesuffix(".json").isdigit()]

    # ---------------------------------------------------------------------------------- without the store, by hand

    def key(self, version: int) -> str:
        """Returns the key of a commit in the bucket."""
        return f"{self.name}/_delta_log/{version:020}.json"

    def content(self, version: int) -> str | None:
        """Returns the content of a commit in the bucket."""
        try:
            return str(self._s3.get_object(Bucket="lake", Key=self.key(version))["Body"].read().decode().rstrip("\n"))
        except self._s3.exceptions.NoSuchKey:
            return None

    def put(self, version: int, content: str) -> None:
        """Puts a commit as a writer without conditions and entries does."""
        self._s3.put_object(Bucket="lake", Key=self.key(version), Body=f"{content}\n".encode())

    def remove(self, version: int) -> None:
        """A commit from the bucket."""
        self._s3.delete_object(Bucket="lake", Key=self.key(version))

    def begin(self, version: int, content: str, *, has_aside: bool = True) -> None:
        """Makes the file and the entry of a driver that died before its commit had its name."""
        aside = f".tmp/{version:020}.json.0f8fad5b-d9cb-469f-a165-70867728950e"
        if has_aside:
            self._s3.put_object(Bucket="lake", Key=f"{self.name}/_delta_log/{aside}", Body=f"{content}\n".encode())
        self._dynamodb.put_item(
            TableName=ENTRIES,
            Item={**self._entry_key(version), "tempPath": {"S": aside}, "complete": {"S": "false"}},
        )

    def entry(self, version: int) -> dict[str, dict[str, str]] | None:
        """Returns the entry of a commit in DynamoDB."""
        found = self._dynamodb.get_item(TableName=ENTRIES, Key=self._entry_key(version), ConsistentRead=True)
        item: dict[str, dict[str, str]] | None = found.get("Item")
        return item

    def is_complete(self, version: int) -> bool | None:
        """By its entry; None where there is none."""
        entry = self.entry(version)
        return None if entry is None else entry["complete"]["S"] == "true"

    def _entry_key(self, version: int) -> dict[str, dict[str, str]]:
        return {"tablePath": {"S": self.table}, "fileName": {"S": f"{version:020}.json"}}

    def _path(self, version: int) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.table}/_delta_log/{version:020}.json")
