"""The folders in which a search looks: on a local disk, or on S3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lakegate.delta.local_files import local_path
from lakegate.erasure.history import Entry
from lakegate.errors import InvalidRequest, Unavailable


class Place:
    """A folder on a file system: local, or S3."""

    def __init__(self, location: str, settings: Mapping[str, str]) -> None:
        """Opens nothing yet.

        Raises:
            InvalidRequest: No file system is known for the location.
        """
        from pyarrow import fs

        self.settings = settings
        path = local_path(location)
        self.is_s3 = path is None
        self.location = location.rstrip("/") if path is None else str(path.absolute())
        if path is not None:
            self.files: Any = fs.LocalFileSystem()
            self.root = self.location
            return
        scheme, _, rest = location.partition("://")
        if scheme not in ("s3", "s3a", "s3n"):
            raise InvalidRequest(
                "files are looked at on local disks and on S3 only; nothing was certified", table=location
            )
        self._options = {
            name: value
            for name, key in (
                ("endpoint_override", "endpoint"),
                ("access_key", "access.key"),
                ("secret_key", "secret.key"),
                ("region", "endpoint.region"),
            )
            if (value := settings.get(f"spark.hadoop.fs.s3a.{key}"))
        }
        self.files = fs.S3FileSystem(**self._options)
        self.root = rest.rstrip("/")

    def list(self) -> dict[str, Entry]:
        """Returns every file below, by its path relative to the folder; none if there is no folder.

        Raises:
            Unavailable: The folder, or one below it, cannot be listed.
        """
        from pyarrow import fs

        try:
            infos = self.files.get_file_info(fs.FileSelector(self.root, recursive=True, allow_not_found=True))
        except OSError as error:
            raise Unavailable(
                f"the folder cannot be listed ({type(error).__name__}); nothing was certified", path=self.location
            ) from error
        return {
            name: Entry(info.path, info.size or 0, (info.mtime_ns or 0) // 1_000_000)
            for info in infos
            if info.type == fs.FileType.File and (name := info.path[len(self.root) + 1 :])
        }

    def versions(self) -> str | None:
        """Returns why deleted objects of a bucket may still be readable; None if they are not, or on a local disk."""
        if not self.is_s3:
            return None
        try:
            import boto3
        except ImportError:
            return "whether the bucket keeps versions of deleted objects is unknown: boto3 is not installed"
        names = {
            "endpoint_override": "endpoint_url",
            "access_key": "aws_access_key_id",
            "secret_key": "aws_secret_access_key",
            "region": "region_name",
        }
        client = boto3.client("s3", **{names[name]: value for name, value in self._options.items()})
        try:
            status = client.get_bucket_versioning(Bucket=self.root.partition("/")[0]).get("Status")
        except Exception as error:  # of any kind: the question stays open
            return f"whether the bucket keeps versions of deleted objects is unknown ({type(error).__name__})"
        if status is None:
            return None
        return f"the bucket's versioning is {status.lower()}: versions of deleted objects remain readable, and were not looked at"
