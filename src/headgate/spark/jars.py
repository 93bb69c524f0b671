"""The jars that Spark needs beside its own: locked by hash, fetched once, never resolved at run time.

`jars.lock` names them. A jar is looked for in the cache, in a folder given by hand, in the local Maven repository, and last
in a remote one; from wherever it comes, it counts only when its sha256 is the locked one. Any number of processes may fetch
at once: each writes a file of its own and renames it into place.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import http.client
import os
import re
import time
import tomllib
import urllib.error
import urllib.parse
import urllib.request
import uuid
import xml.etree.ElementTree as ElementTree
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from importlib.metadata import version as installed_version
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO, Literal, TypeVar

from headgate.errors import Corrupt, InvalidRequest, MissingExtra, Unavailable

R = TypeVar("R")

LOCK_FILE = Path(__file__).with_name("jars.lock")
OWN_JAR = Path(__file__).with_name("headgate.jar")
SPARK_LINES = ("4.1", "4.2")

ANSWER_TIMEOUT_S = 60.0
FETCHES_AT_ONCE_MAX = 4
CHUNK_BYTES = 1 << 18
FINAL_STATUSES = (401, 403, 404, 410)
"""Answers that do not change by asking again."""

Progress = Callable[[str, int, int], None]
"""Called with file name, bytes done and bytes in all; from several threads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Jar:
    """One locked artifact."""

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
        """The file's name."""
        return f"{self.artifact}-{self.version}.jar"

    @property
    def path(self) -> str:
        """Where a Maven repository keeps it."""
        return f"{self.group.replace('.', '/')}/{self.artifact}/{self.version}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JarSources:
    """Where jars may come from, in the order in which they are looked at."""

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
    """Maven's settings.xml, usually ~/.m2/settings.xml; its mirror of central is used when `maven_repo` is not given."""
    offline: bool = False
    retry_waits_s: tuple[float, ...] = (1.0, 2.0, 4.0)
    """Pauses between attempts; there is one attempt more than pauses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What re-hashing found of one locked jar in the cache."""

    jar: Jar
    file: Path
    state: Literal["ok", "missing", "damaged"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Repository:
    base: str
    auth: str | None = field(default=None, repr=False)


def jar_sources(environ: Mapping[str, str]) -> JarSources:
    """Where jars may come from, as the environment says: HEADGATE_CACHE, _JARS_FROM, _MAVEN_REPO, _MAVEN_AUTH, _OFFLINE."""
    home = Path(environ.get("HOME") or Path.home())
    return JarSources(
        cache_dir=cache_dir(environ) / "jars",
        from_dir=Path(environ["HEADGATE_JARS_FROM"]) if environ.get("HEADGATE_JARS_FROM") else None,
        local_repository=home / ".m2" / "repository",
        maven_repo=environ.get("HEADGATE_MAVEN_REPO") or None,
        maven_auth=environ.get("HEADGATE_MAVEN_AUTH") or None,
        maven_settings=home / ".m2" / "settings.xml",
        offline=environ.get("HEADGATE_OFFLINE", "").lower() in ("1", "true", "yes"),
    )


def cache_dir(environ: Mapping[str, str]) -> Path:
    """Headgate's folder in the user's cache directory."""
    if environ.get("HEADGATE_CACHE"):
        return Path(environ["HEADGATE_CACHE"])
    base = environ.get("XDG_CACHE_HOME") or os.path.join(environ.get("HOME") or Path.home(), ".cache")
    return Path(base) / "headgate"


def spark_line(version: str | None = None) -> str:
    """The Spark line (`4.1`) of a PySpark version; of the one installed by default.

    Raises:
        InvalidRequest: A line that Headgate has no jars for. A wrong pair of Spark and Delta half works, so none is tried.
        MissingExtra: PySpark is not installed.
    """
    if version is None:
        if find_spec("pyspark") is None:
            raise MissingExtra("PySpark is not installed", advice="pip install 'pyspark>=4.1,<4.3'")
        version = installed_version("pyspark")
    line = ".".join(version.split(".")[:2])
    if line not in SPARK_LINES:
        raise InvalidRequest(
            "Headgate does not know this version of PySpark; no session was made",
            advice=f"Install one of the lines {', '.join(SPARK_LINES)}: pip install 'pyspark>=4.1,<4.3'",
            pyspark=version,
        )
    return line


def locked(sets: Sequence[str], *, spark: str | None = None, lock_file: Path = LOCK_FILE) -> tuple[Jar, ...]:
    """The jars of `sets` for the Spark line `spark` (the installed one by default), in the lock's order.

    Raises:
        InvalidRequest: A set that the lock does not have.
    """
    everything = parse_lock(lock_file.read_text(encoding="utf-8"))
    known = sorted({jar.set for jar in everything})
    if unknown := [name for name in sets if name not in known]:
        raise InvalidRequest(f"no such set of jars: {', '.join(unknown)}", advice=f"The sets are: {', '.join(known)}")
    line = spark or spark_line()
    return tuple(jar for jar in everything if jar.set in sets and jar.spark in (None, line))


def parse_lock(text: str) -> tuple[Jar, ...]:
    """The jars of a lock file's text, in its order."""
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
    """Headgate's own jar, part of the package.

    Raises:
        MissingExtra: The package was not built (a bare source tree).
    """
    if not OWN_JAR.is_file():
        raise MissingExtra(
            "Headgate's own jar is missing: the package is a source tree that was not installed",
            advice="From a clone: make env. Otherwise: pip install headgate",
            file=OWN_JAR,
        )
    return OWN_JAR


def fetch(
    sets: Sequence[str],
    *,
    sources: JarSources,
    spark: str | None = None,
    progress: Progress | None = None,
    lock_file: Path = LOCK_FILE,
) -> tuple[Path, ...]:
    """Paths of the jars of `sets`, each in the cache and whole; those missing are fetched first. Blocks; idempotent.

    Raises:
        Unavailable: A jar is not to be had from any source, or `offline` and not here.
        Corrupt: What a source gives has another hash than the locked one, twice.
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
) -> tuple[Verified, ...]:
    """Each locked jar of `sets`, hashed anew in the cache. Fetches nothing and changes nothing."""
    found = []
    for jar in locked(sets, spark=spark, lock_file=lock_file):
        file = sources.cache_dir / jar.path
        state: Literal["ok", "missing", "damaged"] = "ok"
        if not file.is_file():
            state = "missing"
        elif _sha256(file) != jar.sha256:
            state = "damaged"
        found.append(Verified(jar=jar, file=file, state=state))
    return tuple(found)


def relock(text: str, *, sources: JarSources, progress: Progress | None = None) -> str:
    """A lock file's text with each size and hash taken anew from the remote repository; for maintainers.

    Nothing but the coordinates of `text` is believed: a version that a repository lists may still lack its jar, and only
    fetching it shows that.

    Raises:
        Unavailable: A jar cannot be fetched (named with the answer); no new lock is made.
        Corrupt: A jar's sha1 is not the one that the repository publishes beside it.
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
    def read(repository: _Repository) -> bytes:
        with _open(repository, path) as response:
            return response.read()

    return _asking_again(path, sources, read)


def _obtain(jar: Jar, sources: JarSources, progress: Progress) -> Path:
    file = sources.cache_dir / jar.path
    # The size is enough: content was checked before the file got this name; `verify` hashes anew.
    if file.is_file() and file.stat().st_size == jar.size_bytes:
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
            advice="Set HEADGATE_CACHE to a folder that can be written",
            file=file,
        ) from error
    return file


@contextlib.contextmanager
def _private_part(file: Path) -> Iterator[BinaryIO]:
    """A partial file beside `file` that nobody else writes: one left behind by a fetch that died, or a new one.

    The owner holds its lock; the kernel drops the lock with the process, so a part that can be locked has no owner.
    """
    for name in [*sorted(file.parent.glob(f".{file.name}.*.part")), _new_part(file)]:
        # Appending would be wrong for the first byte range that is rewritten; "r+" on a vanished file is an error we skip.
        try:
            part = open(name, "r+b" if name.exists() else "x+b")
        except (FileNotFoundError, FileExistsError):
            continue
        try:
            fcntl.flock(part, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Between opening and locking, its owner may have finished and renamed it.
            if not name.exists() or not os.path.samestat(os.fstat(part.fileno()), name.stat()):
                raise BlockingIOError
        except (BlockingIOError, FileNotFoundError):
            part.close()
            continue
        with part:
            yield part
        return


def _new_part(file: Path) -> Path:
    return file.with_name(f".{file.name}.{uuid.uuid4().hex}.part")


def _fill(part: BinaryIO, jar: Jar, sources: JarSources, progress: Progress) -> None:
    """Bring `part` to the locked content, from the nearest source that has it."""
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
            advice="Run `headgate jars fetch` once with a connection, or give a folder with the jars: --from DIR",
            jar=jar.path,
            cache=sources.cache_dir,
        )
    for _ in range(2):  # the second time from nothing: what an earlier fetch left may be what is wrong
        _asking_again(jar.path, sources, lambda repository: _download(repository, jar, part, progress))
        if _sha256(Path(part.name)) == jar.sha256:
            return
        part.truncate(0)
    raise Corrupt(
        "a fetched jar is not the locked one, twice; it was thrown away",
        advice="Is HEADGATE_MAVEN_REPO (or the mirror in Maven's settings.xml) a true copy?",
        jar=jar.path,
        expected_sha256=jar.sha256,
    )


def _local_candidates(jar: Jar, sources: JarSources) -> Iterator[Path]:
    if sources.from_dir is not None:
        yield sources.from_dir / jar.path
        yield sources.from_dir / jar.name
    if sources.local_repository is not None:
        yield sources.local_repository / jar.path


def _download(repository: _Repository, jar: Jar, part: BinaryIO, progress: Progress) -> None:
    """Continue `part` to the jar's size."""
    done = part.seek(0, os.SEEK_END)
    if done == jar.size_bytes:
        return
    if done > jar.size_bytes:
        done = part.truncate(0)
    with _open(repository, jar.path, first_byte=done) as response:
        answer = str(response.headers.get("Content-Range", ""))
        if done and not (response.status == 206 and answer.startswith(f"bytes {done}-")):
            done = part.truncate(0)  # the whole file comes instead
        part.seek(done)
        while done < jar.size_bytes and (chunk := response.read(min(CHUNK_BYTES, jar.size_bytes - done))):
            part.write(chunk)
            done += len(chunk)
            progress(jar.name, done, jar.size_bytes)
    part.flush()
    if done < jar.size_bytes:
        raise ConnectionError(f"the answer ended after {done} of {jar.size_bytes} bytes")


def _open(repository: _Repository, path: str, *, first_byte: int = 0) -> http.client.HTTPResponse:
    request = urllib.request.Request(repository.base + path, headers={"User-Agent": "headgate"})
    if first_byte:
        request.add_header("Range", f"bytes={first_byte}-")
    if repository.auth:
        # Unredirected: a repository that sends us elsewhere must not send the password along.
        secret = base64.b64encode(repository.auth.encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {secret}")
    response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=ANSWER_TIMEOUT_S)
    return response


def _asking_again(path: str, sources: JarSources, act: Callable[[_Repository], R]) -> R:
    """What `act` gives for the first repository that serves it; asks again after what may pass."""
    notes = []
    for repository in _repositories(sources):
        for wait_s in (*sources.retry_waits_s, None):
            try:
                return act(repository)
            except urllib.error.HTTPError as error:
                notes.append(f"{error.code} {error.reason}")
                if error.code in FINAL_STATUSES:
                    break
            except (OSError, http.client.HTTPException, ValueError) as error:
                notes.append(str(error) or type(error).__name__)
            if wait_s is not None:
                time.sleep(wait_s)
    raise Unavailable(
        f"a jar cannot be fetched ({'; '.join(dict.fromkeys(notes))})",
        advice="Set HEADGATE_MAVEN_REPO (and HEADGATE_MAVEN_AUTH=user:password) to a Maven repository that has it, "
        "or give a folder with the jars: headgate jars fetch --from DIR",
        jar=path,
    )


def _repositories(sources: JarSources) -> tuple[_Repository, ...]:
    if sources.maven_repo:
        bases = [base.strip() for base in sources.maven_repo.split(",") if base.strip()]
        return tuple(_repository(base, sources.maven_auth) for base in bases)
    mirror = _mirror_of_central(sources.maven_settings) if sources.maven_settings else None
    return (mirror or _repository(_default_repository(), None),)


def _repository(address: str, auth: str | None) -> _Repository:
    """A repository from its address; user and password may stand in the address, where urllib does not read them."""
    parts = urllib.parse.urlsplit(address)
    if "@" in parts.netloc:
        credentials, _, host = parts.netloc.rpartition("@")
        auth = urllib.parse.unquote(credentials)
        address = urllib.parse.urlunsplit(parts._replace(netloc=host))
    return _Repository(base=address.rstrip("/") + "/", auth=auth)


def _mirror_of_central(settings: Path) -> _Repository | None:
    """The mirror that Maven's settings.xml puts in the place of central, with its credentials."""
    try:
        root = ElementTree.parse(settings).getroot()
    except (OSError, ElementTree.ParseError):
        return None
    space = root.tag[: root.tag.index("}") + 1] if root.tag.startswith("{") else ""

    def text(element: ElementTree.Element, name: str) -> str:
        return (element.findtext(space + name) or "").strip()

    servers = {text(server, "id"): server for server in root.iterfind(f"{space}servers/{space}server")}
    for mirror in root.iterfind(f"{space}mirrors/{space}mirror"):
        of = {part.strip() for part in text(mirror, "mirrorOf").split(",")}
        if text(mirror, "blocked") == "true" or "!central" in of or not of & {"central", "*", "external:*"}:
            continue
        server = servers.get(text(mirror, "id"))
        named = server is not None and text(server, "username")
        return _repository(
            text(mirror, "url"), f"{named}:{text(server, 'password')}" if server is not None and named else None
        )
    return None


def _default_repository() -> str:
    """The repository that Spark's own resolver (Ivy, among PySpark's jars) falls back to: one default on a machine, not two."""
    spec = find_spec("pyspark")
    jars = Path(spec.origin).parent / "jars" if spec is not None and spec.origin else Path()
    for jar in jars.glob("ivy-*.jar"):
        with zipfile.ZipFile(jar) as archive:
            constants = archive.read("org/apache/ivy/plugins/resolver/IBiblioResolver.class")
        if found := re.search(rb"https://[\x21-\x7e]+?/maven2/", constants):
            return found.group().decode("ascii")
    raise Unavailable(
        "no Maven repository is known: this PySpark comes without Ivy",
        advice="Set HEADGATE_MAVEN_REPO, or give a folder with the jars: headgate jars fetch --from DIR",
    )


def _sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
