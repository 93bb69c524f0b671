"""Reads the lines of a file, compressed or not; defines the limits of files and records.

Rules for editors: memory stays bounded for every file, even for one that unpacks to far more than its size.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import lzma
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Final

from lakegate.errors import Corrupt, Unavailable
from lakegate.syncs.plan import json_numbers
from lakegate.syncs.plan.change import UNREAD_BYTES_MAX, Unread

RECORD_BYTES_MAX: Final = 64 * 1024 * 1024
"""The maximum size of one line or message. Decoded, a record takes about ten times as much memory."""
PACKED: Final[Mapping[bytes, Callable[..., Any]]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\x00": lzma.open,
}
"""The first bytes of a compressed file → function that opens it."""
NOT_READ: Final[Mapping[bytes, str]] = {
    b"\x28\xb5\x2f\xfd": "it is compressed with zstd",
    b"\x04\x22\x4d\x18": "it is compressed with lz4",
    b"PK\x03\x04": "it is a zip archive",
    b"PAR1": "it is a Parquet file",
    codecs.BOM_UTF16_LE: "it is UTF-16",
    codecs.BOM_UTF16_BE: "it is UTF-16",
}
ADVICE: Final = "Write it as JSON lines in UTF-8, plain or compressed with gzip, bzip2 or xz"


class TooLong(ValueError):
    """A record exceeds the maximum size."""

    def __init__(self, data: bytes) -> None:
        """`data`: the beginning of the record."""
        super().__init__(f"it is longer than {RECORD_BYTES_MAX:,} bytes")
        self.data = data[:UNREAD_BYTES_MAX]


def is_compressed(path: Path) -> bool:
    """Returns whether a file is read by unpacking it."""
    with path.open("rb") as plain:
        first = plain.read(8)
    return any(first.startswith(mark) for mark in PACKED)


def lines(path: Path) -> Iterator[bytes | TooLong]:
    """Yields each line with its line end; a line that is too long is yielded as an error.

    Raises:
        Corrupt: The file has no text lines, or is damaged.
        Unavailable: The file cannot be read.
    """
    try:
        with path.open("rb") as plain:
            first = plain.read(8)
            for mark, what in NOT_READ.items():
                if first.startswith(mark):
                    raise Corrupt(f"a file of changes cannot be read: {what}", advice=ADVICE, file=path)
            plain.seek(0)
            opened = next((one for mark, one in PACKED.items() if first.startswith(mark)), None)
            if opened is None:
                yield from _lines(plain)
                return
            with opened(plain, "rb") as unpacked:
                try:
                    yield from _lines(unpacked)
                except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile, OSError) as error:
                    raise Corrupt(
                        f"a compressed file is damaged or not complete: {error}",
                        advice="Write it under a name that begins with . or _, and rename it when it is complete",
                        file=path,
                    ) from error
    except OSError as error:
        raise Unavailable(f"a file of changes cannot be read: {error.strerror}", file=path) from error


def _lines(file: IO[bytes]) -> Iterator[bytes | TooLong]:
    is_first = True
    while line := file.readline(RECORD_BYTES_MAX + 1):
        if is_first:
            is_first, line = False, line.removeprefix(codecs.BOM_UTF8)
        if len(line) <= RECORD_BYTES_MAX:
            yield line
            continue
        too_long = TooLong(line)
        while line and not line.endswith(b"\n"):
            line = file.readline(1024 * 1024)
        yield too_long


def record(data: bytes | TooLong) -> Any:
    """Parses the JSON of a line or a message.

    Raises:
        ValueError: The text cannot be parsed; the error says why.
    """
    if isinstance(data, TooLong):
        raise data
    if len(data) > RECORD_BYTES_MAX:
        raise TooLong(data)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise ValueError("it is not UTF-8") from error
    try:
        return json_numbers.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"it is not JSON ({error})") from error


def unread(data: object, reason: str, where: Mapping[str, Any]) -> Unread:
    """Returns an unreadable record: a line, a message, or its decoded part."""
    if isinstance(data, TooLong):
        data = data.data
    if not isinstance(data, bytes):
        data = repr(data).encode("utf-8", "replace")
    return Unread(reason=reason, where=where, data=data[:UNREAD_BYTES_MAX])
