"""An overlay: a scratch Delta log that has only some files of a table, as they are at a version.

A stock statement that is staged on it sees those files and no others. Its actions are then translated for the table. Files
that it writes are in the overlay's folder below the table, and stay there if they are committed.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lakegate.delta.actions import Action, Body, Captured, Committed, as_add, partition_columns
from lakegate.delta.deletion_vectors import UUID_WIDTH, location
from lakegate.delta.jvm import Jvm

PREFIX = "lg"
"""Prefix of an overlay's folder: not `_`, so that VACUUM finds files that were not committed."""
FOLDER = re.compile(PREFIX + r"[0-9a-f]{12}")
ABANDONED_AFTER_S = 24 * 3600
"""A scratch log of this age was left by a killed process."""
NOT_COPIED = ("delta.inCommitTimestampEnablementVersion", "delta.inCommitTimestampEnablementTimestamp")
ROW_IDS_FROM = 10**12
"""Row ids of new files start here, and are not kept."""


def staged_on(
    jvm: Jvm, log: Any, snapshot: Any, files: Sequence[Body], stage: Callable[[str], Captured | Committed]
) -> Captured | Committed:
    """Runs a statement on some files of a table.

    Args:
        jvm: Of the statement's session.
        log: Delta's log of the table.
        snapshot: With the table's definition at the version of the files.
        files: The `add`, or the `remove`, of each.
        stage: Runs the statement on the table at a path, and keeps its commit.
    """
    root = log.dataPath()
    name = PREFIX + uuid.uuid4().hex[:12]
    folder = jvm.path(root, name)
    prefix = str(root.toUri()).rstrip("/") + "/"
    log_folder = jvm.path(folder, "_delta_log")
    commit = _commit(snapshot, files, prefix)
    lines = (json.dumps(action, ensure_ascii=False) for action in commit)
    try:
        jvm.make_scratch(log_folder, "\n".join(lines) + "\n", json.dumps(_checksum(commit)))
        jvm.trust_checksum(str(folder))
        captured = stage(str(folder))
    finally:
        try:
            jvm.forget(folder)
        finally:
            jvm.drop_scratch(log_folder)
    if isinstance(captured, Committed):
        return captured
    by_path = {file["path"]: file for file in files}
    return Captured(
        version=captured.version,
        actions=tuple(_translated(action, by_path, name, prefix) for action in captured.actions),
        info=captured.info,
    )


def sweep(jvm: Jvm, root: Any) -> None:
    """Removes the scratch logs that killed processes have left below a table; VACUUM removes the files that these wrote.

    Sends a request or two to storage for each overlay that has files in the table: do not call it while a commit waits.
    """
    disk = root.getFileSystem(jvm.hadoop_conf)
    for name in jvm.names(disk, root):
        if FOLDER.fullmatch(name):
            log_folder = jvm.path(jvm.path(root, name), "_delta_log")
            if disk.exists(log_folder):
                age_s = time.time() - disk.getFileStatus(log_folder).getModificationTime() / 1000
                if age_s > ABANDONED_AFTER_S:
                    disk.delete(log_folder, True)


def _commit(snapshot: Any, files: Sequence[Body], prefix: str) -> list[dict[str, Any]]:
    """Returns version 0: the table's definition and the files, by absolute paths."""
    metadata = json.loads(snapshot.metadata().json())
    properties = metadata["metaData"]["configuration"] = dict(metadata["metaData"].get("configuration") or {})
    for key in NOT_COPIED:
        properties.pop(key, None)
    now_ms = int(time.time() * 1000)
    info = {"timestamp": now_ms, "inCommitTimestamp": now_ms, "operation": "CLONE", "operationParameters": {}}
    lines: list[dict[str, Any]] = [
        {"commitInfo": {**info, "txnId": uuid.uuid4().hex}},
        json.loads(snapshot.protocol().json()),
        metadata,
    ]
    if properties.get("delta.enableRowTracking") == "true":
        domain = {"domain": "delta.rowTracking", "configuration": json.dumps({"rowIdHighWaterMark": ROW_IDS_FROM})}
        lines.append({"domainMetadata": {**domain, "removed": False}})
    columns = partition_columns(metadata["metaData"])
    for file in files:
        add = {**as_add(file, columns), "path": _absolute(file["path"], prefix)}
        vector = file.get("deletionVector")
        if vector is not None and vector["storageType"] == "u":
            add["deletionVector"] = {**vector, "storageType": "p", "pathOrInlineDv": f"{prefix}{location(vector)}"}
        lines.append({"add": add})
    return lines


def _checksum(commit: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the values that Delta would otherwise compute with Spark jobs: the definition, the size and the files."""
    said = {kind: body for action in commit for kind, body in action.items()}
    files = [{**action["add"], "dataChange": False} for action in commit if "add" in action]
    size = sum(file["size"] for file in files)
    counted = {"tableSizeBytes": size, "numFiles": len(files), "numMetadata": 1, "numProtocol": 1}
    told = {"metadata": said["metaData"], "protocol": said["protocol"], "allFiles": files}
    return {**counted, **told, "inCommitTimestampOpt": said["commitInfo"]["inCommitTimestamp"]}


def _translated(action: Action, files: dict[str, Body], name: str, prefix: str) -> Action:
    body = dict(action.body)
    path = body.get("path")
    if path is None:
        return action
    own = path if path in files else path.removeprefix(prefix)
    if own in files:
        body["path"] = own
        if action.kind == "remove":
            body.pop("deletionVector", None)
            if files[own].get("deletionVector") is not None:
                body["deletionVector"] = files[own]["deletionVector"]
        elif (vector := files[own].get("deletionVector")) is not None and body.get("deletionVector") == {
            **vector,
            "storageType": "p",
            "pathOrInlineDv": f"{prefix}{location(vector)}",
        }:
            body["deletionVector"] = vector  # unchanged: the file was added again for another reason
    else:
        body["path"] = f"{name}/{path}"
    vector = body.get("deletionVector")
    if (
        action.kind == "add"
        and vector is not None
        and vector["storageType"] == "u"
        and vector is not (files.get(own) or {}).get("deletionVector")
    ):
        folder, coded = vector["pathOrInlineDv"][:-UUID_WIDTH], vector["pathOrInlineDv"][-UUID_WIDTH:]
        body["deletionVector"] = {**vector, "pathOrInlineDv": f"{name}/{folder}{coded}" if folder else name + coded}
    return Action(action.kind, body)


def _absolute(path: str, prefix: str) -> str:
    return path if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:|/", path) else prefix + path
