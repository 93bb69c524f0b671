"""Finds the files with rows that a stream's kept requests have not been tested against.

Rules for editors: no clock, no files, no log; commits come in as data.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FileCommit:
    """A commit's changes of files, as one stream sees them."""

    version: int
    added: tuple[tuple[str, bool], ...]
    """Path, and whether the commit marks its data as changed."""
    removed: tuple[str, ...]
    brings_rows: bool
    """False for a commit that cannot add untested rows: the stream's own, an erasure, an append that has applied
    the stream's standing rules, or a compaction."""


def unseen_files(commits: Iterable[FileCommit], unseen: frozenset[str] = frozenset()) -> frozenset[str]:
    """Returns the live files that may hold untested rows after `commits`.

    If a commit rewrites an unseen file (a compaction, or our own update of one of its rows), the files it adds are unseen;
    the same holds for a commit that brings rows.

    Args:
        commits: In order, without a gap.
        unseen: The unseen files before the first of them.
    """
    paths = set(unseen)
    for commit in commits:
        is_rewritten = not paths.isdisjoint(commit.removed)
        paths.difference_update(commit.removed)
        if is_rewritten:
            paths.update(path for path, _ in commit.added)
        elif commit.brings_rows:
            paths.update(path for path, data_change in commit.added if data_change)
    return frozenset(paths)
