"""lakegate jars: fetch, verify, print and lock the jars that Spark needs."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import typer

from lakegate.cli.app import Output, app
from lakegate.cli.output import say
from lakegate.errors import Corrupt, Unavailable
from lakegate.private_files import write_file
from lakegate.settings import jar_sources
from lakegate.spark.jars import (
    LOCK_FILE,
    Jar,
    JarSources,
    Progress,
    fetch,
    missing,
    own_jar,
    parse_lock,
    relock,
    verify,
)

jars = typer.Typer(help="The jars that Spark needs: locked by hash, fetched once.", no_args_is_help=True)
app.add_typer(jars, name="jars")

SETS = typer.Argument(None, help="Sets of jars: delta, kafka, broker. Default: delta.", show_default=False)
FROM = typer.Option(None, "--from", metavar="DIR", help="A folder with the jars, flat or in Maven's layout.")
OFFLINE = typer.Option(False, "--offline", help="Use no remote repository.")
SPARK = typer.Option(None, "--spark", metavar="LINE", help="The Spark line, as 4.1. Default: the one installed.")
OUTPUT = typer.Option(Output.TEXT, "--output", help="How to print the result.")


@jars.command("fetch")
def fetch_command(
    sets: list[str] | None = SETS,
    from_dir: Path | None = FROM,
    offline: bool = OFFLINE,
    spark: str | None = SPARK,
    output: Output = OUTPUT,
) -> None:
    """Fetch the jars that are not in the cache yet."""
    wanted = sets or ["delta"]
    sources = _sources(from_dir, offline=offline)
    lacking = missing(wanted, sources=sources, spark=spark)
    with fetch_progress(lacking) as progress:
        paths = fetch(wanted, sources=sources, spark=spark, progress=progress)
    if output is Output.TEXT:
        say(f"{len(paths)} jars in {sources.cache_dir}, {len(lacking)} of them new")
        return
    rows = [{"file": str(path), "size_bytes": path.stat().st_size} for path in paths]
    typer.echo(json.dumps({"format": 1, "fetched": len(lacking), "jars": rows}))


@jars.command("verify")
def verify_command(sets: list[str] | None = SETS, spark: str | None = SPARK, output: Output = OUTPUT) -> None:
    """Hash the jars in the cache again; name those that are missing (exit 6) or damaged (exit 4)."""
    found = verify(sets or ["delta"], sources=_sources(None, offline=True), spark=spark)
    if output is not Output.TEXT:
        rows = [{"file": str(one.file), "state": one.state} for one in found]
        typer.echo(json.dumps({"format": 1, "jars": rows}))
    damaged = [one for one in found if one.state == "damaged"]
    lacking = [one for one in found if one.state == "missing"]
    if damaged:
        raise Corrupt(
            f"not the locked jar, {len(damaged)} of {len(found)}: {', '.join(str(one.file) for one in damaged)}",
            advice="Delete them, then: lakegate jars fetch",
        )
    if lacking:
        raise Unavailable(
            f"{len(lacking)} of {len(found)} jars are not in the cache: {', '.join(one.jar.name for one in lacking)}",
            advice="lakegate jars fetch",
        )
    if output is Output.TEXT:
        say(f"{len(found)} jars verified")


@jars.command("path")
def path_command(
    sets: list[str] | None = SETS,
    from_dir: Path | None = FROM,
    offline: bool = OFFLINE,
    spark: str | None = SPARK,
    output: Output = OUTPUT,
) -> None:
    """Print the paths, joined by commas, for spark-submit --jars; fetch jars that are not in the cache yet."""
    wanted = sets or ["delta"]
    sources = _sources(from_dir, offline=offline)
    with fetch_progress(missing(wanted, sources=sources, spark=spark)) as progress:
        paths = [own_jar(), *fetch(wanted, sources=sources, spark=spark, progress=progress)]
    if output is Output.TEXT:
        say(",".join(map(str, paths)))
    else:
        typer.echo(json.dumps({"format": 1, "files": [str(path) for path in paths]}))


@jars.command("lock")
def lock_command(
    file: Path = typer.Option(LOCK_FILE, "--file", help="The lock file to update."),
    output: Output = OUTPUT,
) -> None:
    """For maintainers: fetch every jar of the lock again and write its size and hash."""
    before = file.read_text(encoding="utf-8")
    with fetch_progress(()) as progress:
        after = relock(before, sources=_sources(None, offline=False), progress=progress)
    write_file(file, after, mode=0o644)
    changed = sorted(jar.path for jar in set(parse_lock(after)) - set(parse_lock(before)))
    if output is not Output.TEXT:
        typer.echo(json.dumps({"format": 1, "locked": len(parse_lock(after)), "changed": changed}))
        return
    for path in changed:
        say(f"changed: {path}")
    say(f"{len(parse_lock(after))} jars locked in {file}, {len(changed)} changed")


@contextlib.contextmanager
def fetch_progress(lacking: tuple[Jar, ...]) -> Iterator[Progress]:
    """Yields the callback for fetching jars: bars on a terminal, a line for each jar elsewhere; always on stderr."""
    if lacking:
        size_mb = sum(jar.size_bytes for jar in lacking) / 1e6
        say(f"Fetching {len(lacking)} jars for Spark, {size_mb:.1f} MB", err=True)
    if not sys.stderr.isatty():

        def line(name: str, done: int, total: int) -> None:
            if done == total:
                say(f"  {name} ({total / 1e6:.1f} MB)", err=True)

        yield line
        return

    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TaskID, TextColumn, TransferSpeedColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, TaskID] = {jar.name: bars.add_task(jar.name, total=jar.size_bytes) for jar in lacking}

        def bar(name: str, done: int, total: int) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name, total=total)
            bars.update(tasks[name], completed=done)

        yield bar


def _sources(from_dir: Path | None, *, offline: bool) -> JarSources:
    sources = jar_sources()
    return dataclasses.replace(sources, from_dir=from_dir or sources.from_dir, offline=offline or sources.offline)
