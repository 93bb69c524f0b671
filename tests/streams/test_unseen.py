"""Files that a stream's requests were not tested against: equal to tracking each row."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from lakegate.streams.requests.unseen import FileCommit, unseen_files


def commit(
    *, added: tuple[str, ...] = (), removed: tuple[str, ...] = (), brings_rows: bool, data_change: bool = True
) -> FileCommit:
    files = tuple((path, data_change) for path in added)
    return FileCommit(version=0, added=files, removed=removed, brings_rows=brings_rows)


def test_compaction_of_an_unseen_file_hands_its_rows_on() -> None:
    """A compaction mixes seen and unseen rows: what it writes is unseen if any of what it reads was."""
    foreign = commit(added=("new",), brings_rows=True)
    optimize = commit(added=("both",), removed=("old", "new"), brings_rows=False, data_change=False)
    assert unseen_files([foreign, optimize]) == {"both"}


def test_compaction_of_seen_files_is_seen() -> None:
    """A compaction of what has been tested brings nothing new."""
    optimize = commit(added=("both",), removed=("old", "older"), brings_rows=False, data_change=False)
    assert unseen_files([optimize]) == frozenset()


def test_deletion_vector_on_an_unseen_file_leaves_it_unseen() -> None:
    """A file that is written again with a deletion vector keeps its path and what is known of it."""
    foreign = commit(added=("f",), brings_rows=True)
    ours = commit(added=("f", "updated"), removed=("f",), brings_rows=False)
    assert unseen_files([foreign, ours]) == {"f", "updated"}


def test_removed_files_are_forgotten() -> None:
    """A file that is gone is never read."""
    assert unseen_files([commit(removed=("f",), brings_rows=True)], frozenset({"f"})) == frozenset()


@given(data=st.data())
@settings(max_examples=60)
def test_no_unseen_row_is_ever_in_a_seen_file(data: st.DataObject) -> None:
    """Whatever commits do with rows, a live file that holds an unseen row is among the unseen files."""
    files: dict[str, set[int]] = {}
    unseen_rows: set[int] = set()
    commits: list[FileCommit] = []
    for n in range(data.draw(st.integers(1, 12))):
        rewritten = data.draw(st.sets(st.sampled_from(sorted(files)))) if files else set()
        brings = data.draw(st.booleans())
        moved = [row for path in sorted(rewritten) for row in sorted(files.pop(path))]
        fresh = [1000 * n, 1000 * n + 1] if brings else []
        unseen_rows.update(fresh)
        names = [f"f{n}.0", f"f{n}.1"]
        for name in names:
            files[name] = set()
        for row in [*moved, *fresh]:
            files[data.draw(st.sampled_from(names))].add(row)
        commits.append(commit(added=tuple(names), removed=tuple(sorted(rewritten)), brings_rows=brings))
    unseen = unseen_files(commits)
    assert unseen <= set(files)
    for path, rows in files.items():
        if rows & unseen_rows:
            assert path in unseen
