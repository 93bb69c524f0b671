"""Deletion vectors: the positions of rows that are marked as deleted in a data file, in the binary form of the protocol.

Source: "Deletion Vector Format" and "Deletion Vector Descriptor Schema" of the Delta protocol. A vector is a 64-bit Roaring
bitmap after a magic number (the payload). It is either in the log itself (`i`), or in a file next to the data, framed by its
size and a checksum. Several vectors may share such a file (`u`: named by a UUID; `p`: by an absolute path).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from pyroaring import BitMap64

from lakegate.errors import Corrupt

MAGIC = struct.pack("<I", 1681511377)
FILE_VERSION = b"\x01"
UUID_WIDTH = 20
"""Characters of a UUID in Z85; the name of a folder may precede it."""
_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_DIGIT = {character: digit for digit, character in enumerate(_Z85)}

Descriptor = Mapping[str, Any]
"""`deletionVector` of an action, as in the log: `storageType`, `pathOrInlineDv`, `offset`, `sizeInBytes`, `cardinality`."""


def identity(descriptor: Descriptor | None) -> str | None:
    """Returns the protocol's unique id of a vector; None for a file without a vector."""
    if descriptor is None:
        return None
    offset = descriptor.get("offset")
    return f"{descriptor['storageType']}{descriptor['pathOrInlineDv']}" + ("" if offset is None else f"@{offset}")


def location(descriptor: Descriptor) -> str | None:
    """Returns the path of a vector's file: relative to the table for `u`, an absolute URI for `p`; None for a vector in the log."""
    text = str(descriptor["pathOrInlineDv"])
    match descriptor["storageType"]:
        case "i":
            return None
        case "p":
            return text
        case "u":
            folder, coded = text[:-UUID_WIDTH], text[-UUID_WIDTH:]
            digits = _decoded(coded).hex()
            parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
            return f"{folder}/{_file_name(parts)}" if folder else _file_name(parts)
        case other:
            raise Corrupt("a deletion vector is stored in a way that the protocol does not know", storage_type=other)


def read(descriptor: Descriptor, file: bytes | None = None) -> BitMap64:
    """Reads the positions that a vector marks.

    Args:
        descriptor: As in the action.
        file: The whole content of the vector's file; None for a vector in the log.

    Raises:
        Corrupt: Size, checksum, magic number or cardinality are wrong.
    """
    size = int(descriptor["sizeInBytes"])
    if file is None:
        payload = _decoded(str(descriptor["pathOrInlineDv"]))[:size]
    else:
        begin = int(descriptor.get("offset") or 0)
        framed = file[begin : begin + 4 + size + 4]
        payload = framed[4:-4]
        if len(framed) != size + 8 or framed[:4] != struct.pack(">i", size):
            raise _corrupt(descriptor, "it has another size")
        if framed[-4:] != struct.pack(">I", zlib.crc32(payload)):
            raise _corrupt(descriptor, "its checksum is wrong")
    if payload[:4] != MAGIC:
        raise _corrupt(descriptor, "it is in another format")
    try:
        positions = BitMap64.deserialize(payload[4:])
    except ValueError as error:
        raise _corrupt(descriptor, "its bitmap is damaged") from error
    if len(positions) != int(descriptor["cardinality"]):
        raise _corrupt(descriptor, f"it marks {len(positions)} rows")
    return positions


def write(vectors: Sequence[BitMap64], uuid: bytes, folder: str = "") -> tuple[bytes, list[dict[str, Any]]]:
    """Encodes several vectors as one file; returns its content and the descriptor of each vector.

    Args:
        vectors: The positions of each.
        uuid: 16 random bytes, which name the file.
        folder: The file's folder below the table.
    """
    content, descriptors = bytearray(FILE_VERSION), []
    for positions in vectors:
        payload = _payload(positions)
        descriptors.append(
            {
                "storageType": "u",
                "pathOrInlineDv": folder + _encoded(uuid),
                "offset": len(content),
                "sizeInBytes": len(payload),
                "cardinality": len(positions),
            }
        )
        content += struct.pack(">i", len(payload)) + payload + struct.pack(">I", zlib.crc32(payload))
    return bytes(content), descriptors


def write_inline(positions: BitMap64) -> dict[str, Any]:
    """Encodes a vector to be stored in the log itself; returns its descriptor."""
    payload = _payload(positions)
    text = _encoded(payload + bytes(-len(payload) % 4))
    return {
        "storageType": "i",
        "pathOrInlineDv": text,
        "sizeInBytes": len(payload),
        "cardinality": len(positions),
    }


def _payload(positions: BitMap64) -> bytes:
    compact = BitMap64(positions)
    compact.run_optimize()
    return MAGIC + bytes(compact.serialize())


def _file_name(parts: Sequence[str]) -> str:
    return f"deletion_vector_{'-'.join(parts)}.bin"


def _encoded(data: bytes) -> str:
    powers = (85**4, 85**3, 85**2, 85, 1)
    return "".join(_Z85[word // power % 85] for (word,) in struct.iter_unpack(">I", data) for power in powers)


def _decoded(text: str) -> bytes:
    decoded = bytearray()
    try:
        for begin in range(0, len(text), 5):
            word = 0
            for character in text[begin : begin + 5]:
                word = word * 85 + _DIGIT[character]
            # The last word may exceed 32 bits: other engines pad with arbitrary digits, and Delta reads it in the same way.
            decoded += (word & 0xFFFFFFFF).to_bytes(4, "big")
    except KeyError as error:
        raise Corrupt("a deletion vector's descriptor is not Z85", descriptor=text) from error
    return bytes(decoded)


def _corrupt(descriptor: Descriptor, how: str) -> Corrupt:
    return Corrupt(f"a deletion vector is damaged: {how}; nothing was written", vector=identity(descriptor))
