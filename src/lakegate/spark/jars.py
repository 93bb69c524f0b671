"""The jars that Spark needs in addition to its own: locked by hash, fetched once, never resolved at run time.

`jars.lock` names them. A jar is searched for in the cache, in a folder named by the user, in the local Maven repository, and
last in a remote one. It is accepted only if its sha256 is the locked one. Several processes may fetch at the same time: each
writes a file of its own and renames it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import tomllib
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Literal

from lakegate.errors import Corrupt, InvalidRequest, MissingExtra, Unavailable
from lakegate.spark.repositories import Repository, asking_again, open_artifact, repositories

LOCK_FILE = Path(__file__).with_name("jars.lock")
OWN_JAR = Path(__file__).with_name("lakegate.jar")
SPARK_LINES = ("4.1", "4.2")

FETCHES_AT_ONCE_MAX = 4
CHUNK_BYTES = 1 << 18

Progress = Callable[[str, int, int], None]
"""Called with file name, bytes done and total bytes; from several threads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Jar:
    """A locked artifact."""

    set: str
    group: str
    artifact: str
    version: str
    size_bytes: int
    sha256: str
    spark: str | None = None
    """The Spark line that it belongs to; None: every line."""

    @property
    def name(self) -> str:
        """The name of its file."""
        return f"{self.artifact}-{self.version}.jar"

    @property
    def path(self) -> str:
        """The path in a Maven repository."""
        return f"{self.group.replace('.', '/')}/{self.artifact}/{self.version}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JarSources:
    """The sources of jars, in the order in which they are tried."""

    cache_dir: Path
    from_dir: Path | None = None
    """A folder with the jars, flat or as a Maven repository lays them out."""
    local_repository: Path | None = None
    """Maven's own cache, usually ~/.m2/repository."""
    maven_repo: str | None = None
    """Base addresses of remote repositories, separated by commas."""
    maven_auth: str | None = field(default=None, repr=False)
    """`user:password` for `maven_repo`."""
    maven_settings: Path | None = None
    """Maven's settings.xml; its mirror of central is used where `maven_repo` is not given."""
    offline: bool = False
    retry_waits_s: tuple[float, ...] = (1.0, 2.0, 4.0)
    """Pauses between attempts; there is one attempt more than pauses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedJars:
    """The result of hashing one locked jar in the cache."""

    jar: Jar
    file: Path
    state: Literal["ok", "missing", "damaged"]


def jar_sources(environ: Mapping[str, str]) -> JarSources:
    """Returns the sources of jars by LAKEGATE_CACHE, _JARS_FROM, _MAVEN_REPO, _MAVEN_AUTH and _OFFLINE."""
    home = Path(environ.get("HOME") or Path.home())
    return JarSources(
        cache_dir=cache_dir(environ) / "jars",
        from_dir=Path(environ["LAKEGATE_JARS_FROM"]) if environ.get("LAKEGATE_JARS_FROM") else None,
        local_repository=home / ".m2" / "repository",
        maven_repo=environ.get("LAKEGATE_MAVEN_REPO") or None,
        maven_auth=environ.get("LAKEGATE_MAVEN_AUTH") or None,
        maven_settings=home / ".m2" / "settings.xml",
        offline=environ.get("LAKEGATE_OFFLINE", "").lower() in ("1", "true", "yes"),
    )


def cache_dir(environ: Mapping[str, str]) -> Path:
    """Returns Lakegate's folder in the user's cache directory."""
    if environ.get("LAKEGATE_CACHE"):
        return Path(environ["LAKEGATE_CACHE"])
    base = environ.get("XDG_CACHE_HOME") or os.path.join(environ.get("HOME") or Path.home(), ".cache")
    return Path(base) / "lakegate"


def spark_line(version: str | None = None) -> str:
    """Returns the Spark line (`4.1`) of a PySpark version; by default of the installed one.

    Raises:
        InvalidRequest: The line has no jars. A wrong pair of Spark and Delta works only in part, so none is tried.
        MissingExtra: PySpark is not installed.
    """
    if version is None:
        if find_spec("pyspark") is None:
            raise MissingExtra("PySpark is not installed", advice="pip install 'pyspark>=4.1,<4.3'")
        from importlib.metadata import version as installed_version

        version = installed_version("pyspark")
    line = ".".join(version.split(".")[:2])
    if line not in SPARK_LINES:
        raise InvalidRequest(
            "Lakegate has no jars for this version of Spark; nothing was done",
            advice=f"It works with Spark {' and '.join(SPARK_LINES)}: pip install 'pyspark>=4.1,<4.3'",
            spark=version,
        )
    return line


def locked(sets: Sequence[str], *, spark: str | None = None, lock_file: Path = LOCK_FILE) -> tuple[Jar, ...]:
    """Returns the jars of `sets` for the Spark line `spark` (the installed one by default), in the lock's order.

    Raises:
        InvalidRequest: A set or a Spark line that the lock does not have.
    """
    everything = parse_lock(lock_file.read_text(encoding="utf-8"))
    known = sorted({jar.set for jar in everything})
    if unknown := [name for name in sets if name not in known]:
        raise InvalidRequest(f"no such set of jars: {', '.join(unknown)}", advice=f"The sets are: {', '.join(known)}")
    line = spark_line(spark)
    return tuple(jar for jar in everything if jar.set in sets and jar.spark in (None, line))


def parse_lock(text: str) -> tuple[Jar, ...]:
    """Parses a lock file's text; keeps its order."""
    return tuple(
        Jar(
            set=row["set"],
            spark=row.get("spark"),
            group=row["group"],
            artifact=row["artifact"],
            version=row["version"],
            size_bytes=row["size"],
            sha256=row["sha256"],
        )
        for row in tomllib.loads(text)["jar"]
    )


def own_jar() -> Path:
    """Returns Lakegate's own jar, which is part of the package.

    Raises:
        MissingExtra: The package was not built (a bare source tree).
    """
    if not OWN_JAR.is_file():
        raise MissingExtra(
            "Lakegate's own jar is missing: the package is a source tree that was not installed",
            advice="From a clone: make env. Otherwise: pip install lakegate",
            file=OWN_JAR,
        )
    return OWN_JAR


def missing(
    sets: Sequence[str], *, sources: JarSources, spark: str | None = None, lock_file: Path = LOCK_FILE
) -> tuple[Jar, ...]:
    """Returns the jars of `sets` that are not in the cache, so that `fetch` would have to get them."""
    return tuple(jar for jar in locked(sets, spark=spark, lock_file=lock_file) if not _is_cached(jar, sources))


def fetch(
    sets: Sequence[str],
    *,
    sources: JarSources,
    spark: str | None = None,
    progress: Progress | None = None,
    lock_file: Path = LOCK_FILE,
) -> tuple[Path, ...]:
    """Returns paths of the jars of `sets`, each complete in the cache; fetches missing jars first. Blocks; idempotent.

    Raises:
        Unavailable: No source has a jar; or a jar is not in the cache and `offline` is set.
        Corrupt: A source gives a jar with another hash than the locked one, twice.
    """
    jars = locked(sets, spark=spark, lock_file=lock_file)
    told = progress or (lambda name, done, total: None)
    with ThreadPoolExecutor(FETCHES_AT_ONCE_MAX) as pool:
        futures = [pool.submit(_obtain, jar, sources, told) for jar in jars]
        try:
            return tuple(future.result() for future in futures)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def verify(
    sets: Sequence[str], *, sources: JarSources, spark: str | None = None, lock_file: Path = LOCK_FILE
) -> tuple[VerifiedJars, ...]:
    """Hashes each locked jar of `sets` in the cache again. Fetches nothing and changes nothing."""
    found = []
    for jar in locked(sets, spark=spark, lock_file=lock_file):
        file = sources.cache_dir / jar.path
        state: Literal["ok", "missing", "damaged"] = "ok"
        if not file.is_file():
            state = "missing"
        elif _sha256(file) != jar.sha256:
            state = "damaged"
        found.append(VerifiedJars(jar=jar, file=file, state=state))
    return tuple(found)


def relock(text: str, *, sources: JarSources, progress: Progress | None = None) -> str:
    """Returns a lock file's text with each size and hash computed again from the remote repository; for maintainers.

    Only the coordinates of `text` are used. A version that a repository lists may still lack its jar, and only fetching it
    shows that.

    Raises:
        Unavailable: A jar cannot be fetched (named with the response); no new lock is made.
        Corrupt: A jar's sha1 differs from the one that the repository publishes with it.
    """
    told = progress or (lambda name, done, total: None)
    with ThreadPoolExecutor(FETCHES_AT_ONCE_MAX) as pool:
        jars = list(pool.map(lambda jar: _rehashed(jar, sources, told), parse_lock(text)))
    rows = []
    for jar in jars:
        line = f'spark = "{jar.spark}"\n' if jar.spark else ""
        rows.append(
            f'[[jar]]\nset = "{jar.set}"\n{line}group = "{jar.group}"\nartifact = "{jar.artifact}"\n'
            f'version = "{jar.version}"\nsize = {jar.size_bytes}\nsha256 = "{jar.sha256}"\n'
        )
    comments = [line for line in text.splitlines() if line.startswith("#")]
    return "\n".join(["\n".join(comments) + "\n", *rows])


def _rehashed(jar: Jar, sources: JarSources, progress: Progress) -> Jar:
    content = _read(jar.path, sources)
    published = _read(jar.path + ".sha1", sources).decode("ascii", "replace").split()
    if not published or hashlib.sha1(content).hexdigest() != published[0]:
        raise Corrupt("a jar's sha1 is not the one that its repository publishes; no lock was made", jar=jar.path)
    progress(jar.name, len(content), len(content))
    return replace(jar, size_bytes=len(content), sha256=hashlib.sha256(content).hexdigest())


def _read(path: str, sources: JarSources) -> bytes:
    def read(repository: Repository) -> bytes:
        with open_artifact(repository, path) as response:
            return response.read()

    return asking_again(path, _remote(sources), sources.retry_waits_s, read)


def _obtain(jar: Jar, sources: JarSources, progress: Progress) -> Path:
    file = sources.cache_dir / jar.path
    if _is_cached(jar, sources):
        return file
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with _private_part(file) as part:
            _fill(part, jar, sources, progress)
            os.chmod(part.name, 0o644)
            os.replace(part.name, file)
    except OSError as error:
        raise Unavailable(
            f"the cache of jars cannot be written: {error.strerror or error}",
            advice="Set LAKEGATE_CACHE to a folder that can be written",
            file=file,
        ) from error
    return file


def _is_cached(jar: Jar, sources: JarSources) -> bool:
    # The size is enough: the content was checked before the file got this name; `verify` hashes it again.
    file = sources.cache_dir / jar.path
    return file.is_file() and file.stat().st_size == jar.size_bytes


@contextlib.contextmanager
def _private_part(file: Path) -> Iterator[IO[bytes]]:
    """Yields a partial file next to `file` that no other process writes: one left by a fetch that died, or a new one.

    The owner holds its lock. The kernel drops the lock with the process, so a part that can be locked has no owner.
    """
    while True:
        left_behind = sorted(file.parent.glob(f".{file.name}.*.part"))
        new = file.with_name(f".{file.name}.{uuid.uuid4().hex}.part")
        for name, mode in [*((old, "r+b") for old in left_behind), (new, "x+b")]:
            with contextlib.ExitStack() as held:
                try:
                    part: IO[bytes] = held.enter_context(open(name, mode))
                    fcntl.flock(part, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    # Between our open and our lock, its owner may have finished and renamed it.
                    is_ours = os.path.samestat(os.fstat(part.fileno()), name.stat())
                except (FileNotFoundError, BlockingIOError):
                    continue
                if is_ours:
                    yield part
                    return
        # Even the new one is taken: before we locked it, another process took it for a part left behind.


def _fill(part: IO[bytes], jar: Jar, sources: JarSources, progress: Progress) -> None:
    """Fills `part` with the locked content, from the nearest source that has it."""
    for local in _local_candidates(jar, sources):
        if local.is_file() and _sha256(local) == jar.sha256:
            part.truncate(0)
            part.write(local.read_bytes())
            part.flush()
            progress(jar.name, jar.size_bytes, jar.size_bytes)
            return
    if sources.offline:
        raise Unavailable(
            "a jar is not in the cache, and fetching is switched off",
            advice="Run `lakegate jars fetch` once with a connection, or give a folder with the jars: --from DIR",
            jar=jar.path,
            cache=sources.cache_dir,
        )
    for _ in range(2):  # the second time from an empty file: the part that an earlier fetch left may be wrong
        asking_again(
            jar.path,
            _remote(sources),
            sources.retry_waits_s,
            lambda repository: _download(repository, jar, part, progress),
        )
        if _sha256(Path(part.name)) == jar.sha256:
            return
        part.truncate(0)
    raise Corrupt(
        "a fetched jar is not the locked one, twice; it was thrown away",
        advice="Is LAKEGATE_MAVEN_REPO (or the mirror in Maven's settings.xml) a true copy?",
        jar=jar.path,
        expected_sha256=jar.sha256,
    )


def _remote(sources: JarSources) -> tuple[Repository, ...]:
    return repositories(sources.maven_repo, auth=sources.maven_auth, settings=sources.maven_settings)


def _local_candidates(jar: Jar, sources: JarSources) -> Iterator[Path]:
    if sources.from_dir is not None:
        yield sources.from_dir / jar.path
        yield sources.from_dir / jar.name
    if sources.local_repository is not None:
        yield sources.local_repository / jar.path


def _download(repository: Repository, jar: Jar, part: IO[bytes], progress: Progress) -> None:
    """Continues `part` up to the jar's size."""
    done = part.seek(0, os.SEEK_END)
    if done == jar.size_bytes:
        return
    if done > jar.size_bytes:
        done = part.truncate(0)
    with open_artifact(repository, jar.path, first_byte=done) as response:
        answer = str(response.headers.get("Content-Range", ""))
        if done and not (response.status == 206 and answer.startswith(f"bytes {done}-")):
            done = part.truncate(0)  # the response has the whole file
        part.seek(done)
        while done < jar.size_bytes and (chunk := response.read(min(CHUNK_BYTES, jar.size_bytes - done))):
            part.write(chunk)
            done += len(chunk)
            progress(jar.name, done, jar.size_bytes)
    part.flush()
    if done < jar.size_bytes:
        raise ConnectionError(f"the answer ended after {done} of {jar.size_bytes} bytes")


def _sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
