"""Deletion vectors: the protocol's bytes, as other engines write and read them."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from lakegate.delta.deletion_vectors import identity, location, read, write, write_inline
from lakegate.errors import Corrupt

UUID = bytes(range(16))
POSITIONS = st.sets(st.integers(0, 2**40) | st.integers(0, 5000), max_size=300)


def descriptors(files: dict[str, bytes]) -> dict[tuple[str, str], dict[str, Any]]:
    """(Table, unique id) → descriptor, of all vectors that logs name."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for name, data in files.items():
        table, _, log_file = name.partition("/_delta_log/")
        for line in data.decode(errors="replace").split("\n") if log_file.endswith(".json") else ():
            try:
                action = json.loads(line)
            except ValueError:
                continue
            for body in action.values() if isinstance(action, dict) else ():
                descriptor = body.get("deletionVector") if isinstance(body, dict) else None
                if isinstance(descriptor, dict):
                    found[(table, identity(descriptor) or "")] = descriptor
    return found


def decoded(descriptor: dict[str, Any]) -> bytes:
    """Decodes the inline content of a descriptor: Z85 in the order of RFC 32 of ZeroMQ."""
    digits = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    text, found = descriptor["pathOrInlineDv"], b""
    for begin in range(0, len(text), 5):
        word = 0
        for character in text[begin : begin + 5]:
            word = word * 85 + digits.index(character)
        found += (word % 2**32).to_bytes(4, "big")
    return found


def test_vectors_of_other_engines_are_read_and_written_byte_for_byte(delta_tables: Path) -> None:
    """Every vector of the collected tables has the cardinality that its log says, and we would write the same bytes."""
    with tarfile.open(delta_tables) as archive:
        members = [member for member in archive if member.isfile()]
        files = {member.name: file.read() for member in members if (file := archive.extractfile(member)) is not None}
    kinds = {"u": 0, "i": 0}
    for (table, _), descriptor in descriptors(files).items():
        place = location(descriptor)
        kinds[descriptor["storageType"]] += 1
        if place is None:
            ours, size = write_inline(read(descriptor)), descriptor["sizeInBytes"]
            assert ours["sizeInBytes"] == size
            # Behind it z85 has padding, which other engines fill as they like.
            assert decoded(ours)[:size] == decoded(descriptor)[:size], (table, descriptor)
            continue
        content = files[f"{table}/{place}"]
        written, (ours,) = write([read(descriptor, content)], UUID)
        begin, size = int(descriptor.get("offset") or 0), descriptor["sizeInBytes"]
        assert ours["sizeInBytes"] == size
        assert written[1:] == content[begin : begin + size + 8], (table, descriptor)
    assert kinds == {"u": 95, "i": 3}


@given(st.lists(POSITIONS, max_size=4))
def test_what_is_written_is_read_again(sets: list[set[int]]) -> None:
    """Several vectors in one file, and each in the log itself."""
    vectors = [BitMap64(positions) for positions in sets]
    content, described = write(vectors, UUID, "folder")
    assert [read(descriptor, content) for descriptor in described] == vectors
    assert [read(write_inline(vector)) for vector in vectors] == vectors
    assert {location(descriptor) for descriptor in described} <= {
        "folder/deletion_vector_00010203-0405-0607-0809-0a0b0c0d0e0f.bin"
    }
    assert len({identity(descriptor) for descriptor in described}) == len(described)


@pytest.mark.parametrize(
    ("at", "says"),
    [(1, "size"), (5, "checksum"), (-1, "checksum"), (30, "checksum")],
    ids=["size", "magic", "checksum", "bitmap"],
)
def test_a_damaged_file_is_reported(at: int, says: str) -> None:
    """One byte is another: nothing is read from it."""
    content, (descriptor,) = write([BitMap64([1, 5, 70000])], UUID)
    damaged = bytearray(content)
    damaged[at] ^= 1
    with pytest.raises(Corrupt, match=says):
        read(descriptor, bytes(damaged))


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"cardinality": 3}, "marks 2 rows"),
        ({"sizeInBytes": 3}, "another format"),
        ({"pathOrInlineDv": "~" * 40}, "Z85"),
        ({"pathOrInlineDv": "0" * 45}, "another format"),
        ({"storageType": "x"}, "does not know"),
    ],
)
def test_a_wrong_descriptor_is_reported(changed: dict[str, Any], says: str) -> None:
    """Cardinality, size, text and kind are checked."""
    descriptor = {**write_inline(BitMap64([1, 5])), **changed}

    def use() -> None:
        location(descriptor)
        read(descriptor)

    with pytest.raises(Corrupt, match=says):
        use()


def test_a_file_without_a_vector_has_no_identity() -> None:
    """The protocol's unique id: kind, path, and the offset where there is one."""
    assert identity(None) is None
    assert identity({"storageType": "u", "pathOrInlineDv": "ab", "offset": 4}) == "uab@4"
    assert identity({"storageType": "p", "pathOrInlineDv": "s3://b/x"}) == "ps3://b/x"
    assert location({"storageType": "p", "pathOrInlineDv": "s3://b/x"}) == "s3://b/x"
