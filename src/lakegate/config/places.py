"""The value types of locations: paths, URIs, the coordinator's URL, and a database's address."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from typing import Annotated, Final

from lakegate.config.dynamodb import read_dynamodb
from lakegate.config.options import BadPlace
from lakegate.config.value_types import NOT_IN_THIS_VERSION, JsonSchema, Reader, ValueType, or_reference, text_of
from lakegate.config.yaml_nodes import Node, Scalar, shown
from lakegate.config.zookeeper import read_place
from lakegate.redaction import HIDDEN

_LATER_SCHEMES: Final = frozenset(
    ("gs", "abfs", "abfss", "wasb", "wasbs", "adl", "oss", "cosn", "obs", "dbfs", "http", "https")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Location(ValueType[str]):
    """A path or URI; relative paths are relative to the file's folder."""

    schemes: tuple[str, ...] = ("hdfs", "viewfs", "s3a")
    """Allowed schemes in addition to local paths and `file:`."""
    word = "path"

    def read(self, node: Node, reader: Reader) -> str | None:
        scalar = text_of(node, reader, "a path")
        if scalar is None:
            return None
        value = self.resolve(scalar, scalar.text, reader)
        if value is not None:
            reader.record(scalar, value)
        return value

    def resolve(self, node: Scalar, text: str, reader: Reader) -> str | None:
        """Resolves `text`, a part of `node`, to an absolute path or a URI."""
        local = " or ".join(["a local path", *(f"{scheme}:" for scheme in self.schemes)])
        found = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):(.*)", text, flags=re.DOTALL)
        scheme, path = (found[1].lower(), found[2]) if found else ("file", text)
        if not path.strip() or "\n" in path or "\t" in path:
            reader.fault(node, "not a path", local)
        elif scheme in ("s3", "s3n") and "s3a" in self.schemes:
            reader.fault(node, f"{scheme}: is another name for s3a:, and a table has one", f"s3a:{path}")
        elif scheme == "s3a" and scheme in self.schemes and re.fullmatch(r"//[a-z0-9][a-z0-9.-]*(/.*)?", path) is None:
            reader.fault(node, "not a bucket and a path", "s3a://bucket/path")
        elif scheme in self.schemes:
            return f"{scheme}:{path.rstrip('/') or '/'}"
        elif scheme in (*_LATER_SCHEMES, "s3", "s3a", "s3n", "hdfs", "viewfs"):
            reader.fault(node, f"{scheme}: paths are {NOT_IN_THIS_VERSION} here", local)
        elif scheme != "file":
            reader.fault(node, "a scheme that is not known", local)
        elif path.startswith("~"):
            reader.fault(node, "~ is not expanded", "${HOME}/… or a path from the file's folder")
        elif found and path.startswith("//") and not path.startswith("///"):
            reader.fault(node, "a file: URI with a host", "file:/absolute/path")
        else:
            if path.startswith("/"):
                path = "/" + path.lstrip("/")
            return posixpath.normpath(posixpath.join(reader.base_dir, path))
        return None

    def schema(self, of_field: JsonSchema) -> JsonSchema:
        return {"type": "string", "minLength": 1}


Path = Annotated[str, Location()]
LocalPath = Annotated[str, Location(schemes=())]


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorUrl(ValueType[str]):
    """The store of turns: `sqlite:PATH`, `memory:`, `zookeeper://host:port,…/chroot` or `dynamodb://TABLE?region=…`."""

    word = "URL"

    def read(self, node: Node, reader: Reader) -> str | None:
        expected = "sqlite:PATH, memory:, zookeeper://host:port,…/chroot or dynamodb://TABLE?region=…"
        scalar = text_of(node, reader, expected)
        if scalar is None:
            return None
        scheme, colon, rest = scalar.text.partition(":")
        value = None
        if colon and scheme in ("zookeeper", "dynamodb"):
            try:
                _ = read_place(scalar.text) if scheme == "zookeeper" else read_dynamodb(scalar.text)
                value = scalar.text
            except BadPlace as bad:
                reader.fault(node, str(bad), expected)
        elif colon and scheme == "memory" and rest in ("", "//"):
            value = "memory:"
        elif colon and scheme == "sqlite":
            path = Location(schemes=()).resolve(scalar, rest, reader)
            value = None if path is None else f"sqlite:{path}"
        else:
            reader.fault(node, f"{shown(scalar)} is not a coordinator", expected)
        if value is not None:
            reader.record(scalar, value)
        return value

    def schema(self, of_field: JsonSchema) -> JsonSchema:
        return or_reference({"type": "string", "pattern": "^(sqlite:.+|memory:|zookeeper://.+|dynamodb://.+)$"})


_DSN_SCHEMES: Final = ("postgresql", "postgres", "mysql", "mariadb")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dsn(ValueType[str]):
    """The address of a target database: `postgresql://…`, `mysql://…` or `sqlite:PATH`. No fault message repeats it."""

    word = "DSN"

    def read(self, node: Node, reader: Reader) -> str | None:
        expected = "postgresql://user:password@host/database, mysql://… or sqlite:PATH"
        scalar = text_of(node, reader, expected)
        if scalar is None:
            return None
        scheme, colon, rest = scalar.text.partition(":")
        value = None
        if colon and scheme == "sqlite":
            rest = rest.removeprefix("//") if rest.startswith("///") else rest
            path = Location(schemes=()).resolve(scalar, rest, reader)
            value = None if path is None else f"sqlite:{path}"
        elif not colon or scheme not in _DSN_SCHEMES or not rest.startswith("//"):
            reader.fault(node, "not the address of a database that this version knows", expected)
        elif re.fullmatch(r"//[^@/?#\s]*(@[^@/?#\s]*)?([/?#][^@\s]*)?", rest) is None:
            # Of a password that is not encoded, a part would be read as the host, and shown in messages.
            what = "a space, a second @, or an @ behind the first /, ? or #"
            reader.fault(node, what, "percent-encoded: in a user or password / is %2F, ? is %3F, # is %23, @ is %40")
        else:
            value = scalar.text
        if value is not None:
            reader.record(scalar, value)
        return value

    def schema(self, of_field: JsonSchema) -> JsonSchema:
        return or_reference({"type": "string", "pattern": "^(sqlite:.+|(postgresql|postgres|mysql|mariadb)://.+)$"})


DatabaseUrl = Annotated[str, Dsn()]


@dataclass(frozen=True, slots=True, kw_only=True)
class WebAddress(ValueType[str]):
    """The address of a webhook. Often a secret as a whole, so no message shows it."""

    word = "URL"

    def read(self, node: Node, reader: Reader) -> str | None:
        expected = "https://host/path or http://host/path, without a user"
        scalar = text_of(node, reader, expected)
        if scalar is None:
            return None
        if re.fullmatch(r"https?://[A-Za-z0-9.\[\]:_-]+([/?][!-~]*)?", scalar.text) is None:
            reader.fault(node, "not the address of a webhook", expected)
            return None
        reader.record(scalar, HIDDEN)
        return scalar.text

    def schema(self, of_field: JsonSchema) -> JsonSchema:
        return or_reference({"type": "string", "pattern": "^https?://.+"})
