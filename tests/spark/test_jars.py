"""Jars: fetched from where the user says, once, whole, by any number of processes at a time."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from lakegate.errors import Corrupt, InvalidRequest, LakegateError, Unavailable
from lakegate.spark.jars import JarSources, fetch, jar_sources, locked, missing, parse_lock, relock, spark_line, verify
from lakegate.spark.repositories import repositories

LAKEGATE = Path(sys.executable).with_name("lakegate")
ALPHA = bytes(range(256)) * 4000
BETA = b"beta" * 1000
ALPHA_PATH = "org/example/alpha/1.0/alpha-1.0.jar"
BETA_PATH = "org/example/beta/2.0/beta-2.0.jar"


@dataclass
class Repository:
    """A Maven repository on this machine that fails as a test asks."""

    files: dict[str, bytes] = field(default_factory=dict)
    faults: list[int | float | str] = field(default_factory=list)
    """One for each answer to come: a status; the part of the file after which it hangs up; `whole` ignores ranges;
    `elsewhere` sends the asker to another host."""
    auth: str | None = None
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    """Path and Range header of each request."""
    credentials: list[str | None] = field(default_factory=list)
    """The Authorization header of each request."""
    sent_bytes: int = 0
    url: str = ""


@pytest.fixture
def repository() -> Iterator[Repository]:
    """A repository with two jars."""
    state = Repository(files={ALPHA_PATH: ALPHA, BETA_PATH: BETA})
    for path, content in list(state.files.items()):
        state.files[path + ".sha1"] = hashlib.sha1(content).hexdigest().encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            state.asked.append((self.path.lstrip("/"), wanted))
            state.credentials.append(self.headers.get("Authorization"))
            fault = state.faults.pop(0) if state.faults else None
            if state.auth is not None:
                expected = "Basic " + base64.b64encode(state.auth.encode()).decode()
                if self.headers.get("Authorization") != expected:
                    fault = 401
            if fault == "elsewhere":
                self.send_response(302)
                self.send_header("Location", f"http://localhost:{server.server_port}{self.path}")
                self.end_headers()
                return
            content = state.files.get(self.path.lstrip("/"))
            if isinstance(fault, int) or content is None:
                self.send_error(fault if isinstance(fault, int) else 404)
                return
            first = 0
            if wanted and fault != "whole":
                first = int(wanted.removeprefix("bytes=").removesuffix("-"))
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
            else:
                self.send_response(200)
            body = content[first:]
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if isinstance(fault, float):
                body = body[: int(len(body) * fault)]
            state.sent_bytes += len(body)
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_port}/"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield state
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    """A lock file that names the two jars as set `test`."""
    rows = []
    for path, content in ((ALPHA_PATH, ALPHA), (BETA_PATH, BETA)):
        _, _, artifact, version, _ = path.split("/")
        rows.append(
            f'[[jar]]\nset = "test"\ngroup = "org.example"\nartifact = "{artifact}"\nversion = "{version}"\n'
            f'size = {len(content)}\nsha256 = "{hashlib.sha256(content).hexdigest()}"\n'
        )
    file = tmp_path / "test.lock"
    file.write_text("# a comment stays\n\n" + "\n".join(rows))
    return file


@pytest.fixture
def only_alpha(lock: Path) -> Path:
    """A lock file with the first jar alone, so that the order of requests is known."""
    file = lock.with_name("alpha.lock")
    file.write_text("[[jar]]".join(lock.read_text().split("[[jar]]")[:2]))
    return file


@pytest.fixture
def sources(tmp_path: Path, repository: Repository) -> JarSources:
    """An empty cache, and the repository to fill it from; asking again costs no time."""
    return JarSources(cache_dir=tmp_path / "cache", maven_repo=repository.url, retry_waits_s=(0.0, 0.0))


def parts(sources: JarSources) -> list[Path]:
    """Returns the parts that unfinished fetches have left in the cache."""
    return list(sources.cache_dir.rglob("*.part"))


def asked_for(repository: Repository, path: str) -> list[str | None]:
    """The Range headers of the requests for `path`, in order."""
    return [byte_range for asked, byte_range in repository.asked if asked == path]


def test_what_was_fetched_once_needs_no_repository_again(
    repository: Repository, lock: Path, sources: JarSources
) -> None:
    """The first fetch fills the cache; the second makes no request, and works offline."""
    told: dict[str, tuple[int, int]] = {}
    paths = fetch(["test"], sources=sources, lock_file=lock, progress=lambda n, d, t: told.update({n: (d, t)}))
    assert [path.read_bytes() for path in paths] == [ALPHA, BETA]
    assert told == {"alpha-1.0.jar": (len(ALPHA), len(ALPHA)), "beta-2.0.jar": (len(BETA), len(BETA))}
    repository.asked.clear()

    assert fetch(["test"], sources=replace(sources, offline=True), lock_file=lock) == paths
    assert repository.asked == []
    assert parts(sources) == []
    assert missing(["test"], sources=sources, lock_file=lock) == ()


def test_a_fetch_that_breaks_off_is_continued_where_it_stopped(
    repository: Repository, only_alpha: Path, sources: JarSources
) -> None:
    """After a lost connection only the rest is asked for, and the whole is checked."""
    repository.faults = [0.5]

    (path,) = fetch(["test"], sources=sources, lock_file=only_alpha)

    assert path.read_bytes() == ALPHA
    assert asked_for(repository, ALPHA_PATH) == [None, f"bytes={len(ALPHA) // 2}-"]
    assert repository.sent_bytes == len(ALPHA)


def leave_part(sources: JarSources, content: bytes) -> Path:
    """A part of alpha in the cache, as a fetch leaves it that was killed."""
    part = (sources.cache_dir / ALPHA_PATH).parent / ".alpha-1.0.jar.0123.part"
    part.parent.mkdir(parents=True, exist_ok=True)
    part.write_bytes(content)
    return part


def test_the_part_of_a_killed_fetch_is_continued(repository: Repository, lock: Path, sources: JarSources) -> None:
    """A part that nobody holds is taken over: only what it lacks is fetched, and it is gone afterwards."""
    leave_part(sources, ALPHA[:300_000])

    fetch(["test"], sources=sources, lock_file=lock)

    assert (sources.cache_dir / ALPHA_PATH).read_bytes() == ALPHA
    assert asked_for(repository, ALPHA_PATH) == ["bytes=300000-"]
    assert parts(sources) == []


def test_the_part_of_a_living_fetch_is_left_alone(repository: Repository, lock: Path, sources: JarSources) -> None:
    """A part that another process writes is not touched."""
    part = leave_part(sources, b"another's")
    with part.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        fetch(["test"], sources=sources, lock_file=lock)

    assert part.read_bytes() == b"another's"
    assert (sources.cache_dir / ALPHA_PATH).read_bytes() == ALPHA
    assert asked_for(repository, ALPHA_PATH) == [None]


@pytest.mark.parametrize("left", [b"wrong" * 1000, ALPHA + b"too long"], ids=["wrong", "too-long"])
def test_a_spoilt_part_costs_a_second_fetch_and_nothing_else(
    left: bytes, repository: Repository, lock: Path, sources: JarSources
) -> None:
    """A part whose content is wrong never becomes a jar."""
    leave_part(sources, left)
    fetch(["test"], sources=sources, lock_file=lock)
    assert (sources.cache_dir / ALPHA_PATH).read_bytes() == ALPHA


def test_a_part_that_becomes_the_jar_while_it_is_opened_is_not_touched(
    repository: Repository, only_alpha: Path, sources: JarSources, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner may finish between our opening and our locking it; then what we hold is the finished jar."""
    part = leave_part(sources, ALPHA)
    finished = part.with_name("finished")
    lock_file = fcntl.flock

    def finish_first(file: Any, operation: int) -> None:
        if part.exists():
            part.rename(finished)
        lock_file(file, operation)

    monkeypatch.setattr(fcntl, "flock", finish_first)
    (path,) = fetch(["test"], sources=sources, lock_file=only_alpha)
    assert path.read_bytes() == finished.read_bytes() == ALPHA


def test_a_part_that_another_process_locks_first_is_left_to_it(
    repository: Repository, only_alpha: Path, sources: JarSources, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between our making a part and our locking it, another may take it for one left behind; then we make a second."""
    lock_file = fcntl.flock
    with contextlib.ExitStack() as other:

        def take_first(file: Any, operation: int) -> None:
            if len(parts(sources)) == 1:
                lock_file(other.enter_context(open(file.name, "r+b")), operation)
            lock_file(file, operation)

        monkeypatch.setattr(fcntl, "flock", take_first)
        (path,) = fetch(["test"], sources=sources, lock_file=only_alpha)
        assert path.read_bytes() == ALPHA
        assert [part.stat().st_size for part in parts(sources)] == [0], "the other's, as it was"


def test_a_repository_that_knows_no_ranges_sends_the_whole(
    repository: Repository, only_alpha: Path, sources: JarSources
) -> None:
    """An answer with everything replaces the part instead of being added to it."""
    leave_part(sources, ALPHA[:1000])
    repository.faults = ["whole"]
    fetch(["test"], sources=sources, lock_file=only_alpha)
    assert (sources.cache_dir / ALPHA_PATH).read_bytes() == ALPHA
    assert asked_for(repository, ALPHA_PATH) == ["bytes=1000-"], "once: nothing had to be thrown away"


def test_credentials_do_not_follow_to_another_host(
    repository: Repository, only_alpha: Path, sources: JarSources
) -> None:
    """A repository that sends us elsewhere gets the password; elsewhere does not."""
    repository.faults = ["elsewhere"]
    fetch(["test"], sources=replace(sources, maven_auth="ann:s3cret"), lock_file=only_alpha)
    first, second = repository.credentials
    assert first is not None
    assert second is None


def test_another_jar_than_the_locked_one_is_refused(repository: Repository, lock: Path, sources: JarSources) -> None:
    """What has another hash twice is thrown away; nothing of it is left in the cache."""
    repository.files[ALPHA_PATH] = bytes(len(ALPHA))
    with pytest.raises(Corrupt, match="not the locked one") as caught:
        fetch(["test"], sources=sources, lock_file=lock)
    assert "alpha" in str(caught.value)
    assert not (sources.cache_dir / ALPHA_PATH).exists()
    assert len(asked_for(repository, ALPHA_PATH)) == 2


def test_what_may_pass_is_asked_again(repository: Repository, lock: Path, sources: JarSources) -> None:
    """Two errors of the server are outlived."""
    repository.faults = [503, 500]
    assert len(fetch(["test"], sources=sources, lock_file=lock)) == 2


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_final_answer_is_not_asked_for_again(
    status: int, repository: Repository, lock: Path, sources: JarSources
) -> None:
    """A refused request and a missing file are reported at once, with advice."""
    repository.faults = [status] * 20
    with pytest.raises(Unavailable, match=f"{status} .*LAKEGATE_MAVEN_REPO"):
        fetch(["test"], sources=sources, lock_file=lock)
    # The first refusal ends the whole, often before the other jar is asked for.
    paths = [path for path, _ in repository.asked]
    assert paths, "nothing was asked"
    assert len(paths) == len(set(paths)), "a jar was asked for again"


def test_a_repository_that_stays_away_is_given_up(lock: Path, sources: JarSources) -> None:
    """The tries are counted; the message says that nothing could be fetched."""
    nobody = replace(sources, maven_repo="http://127.0.0.1:9/")
    with pytest.raises(Unavailable, match="cannot be fetched"):
        fetch(["test"], sources=nobody, lock_file=lock)


def test_the_second_repository_is_asked_for_what_the_first_lacks(
    repository: Repository, lock: Path, sources: JarSources
) -> None:
    """Several addresses are tried in order."""
    both = replace(sources, maven_repo=f"{repository.url}nothing/here, {repository.url}")
    assert len(fetch(["test"], sources=both, lock_file=lock)) == 2


def test_folders_come_before_repositories_and_only_with_the_right_hash(
    repository: Repository, lock: Path, sources: JarSources, tmp_path: Path
) -> None:
    """A folder given by hand and Maven's own cache serve jars by hash; a wrong file there is passed by."""
    flat, local = tmp_path / "flat", tmp_path / "m2"
    flat.mkdir()
    (flat / "beta-2.0.jar").write_bytes(BETA)
    for folder, content in ((flat, b"something else"), (local, ALPHA)):
        (folder / ALPHA_PATH).parent.mkdir(parents=True)
        (folder / ALPHA_PATH).write_bytes(content)
    here = replace(sources, from_dir=flat, local_repository=local, offline=True)

    paths = fetch(["test"], sources=here, lock_file=lock)

    assert [path.read_bytes() for path in paths] == [ALPHA, BETA]
    assert repository.asked == []


def test_offline_says_what_is_missing(lock: Path, sources: JarSources, repository: Repository) -> None:
    """With an empty cache and no network allowed, the jar and the way out are named."""
    with pytest.raises(Unavailable, match=r"alpha-1\.0\.jar.*lakegate jars fetch"):
        fetch(["test"], sources=replace(sources, offline=True), lock_file=lock)
    assert repository.asked == []


def test_credentials_are_sent_and_never_shown(
    repository: Repository, lock: Path, sources: JarSources, tmp_path: Path
) -> None:
    """User and password work as a setting and inside the address, and stand in no message and no repr."""
    repository.auth = "ann:s3cret"
    with_setting = replace(sources, maven_auth="ann:s3cret")
    fetch(["test"], sources=with_setting, lock_file=lock)
    address = repository.url.replace("http://", "http://ann:s3cret@")
    in_address = replace(sources, maven_repo=address, cache_dir=tmp_path / "other")
    fetch(["test"], sources=in_address, lock_file=lock)

    repository.auth = "bob:other"
    with pytest.raises(Unavailable, match="401") as caught:
        fetch(["test"], sources=replace(in_address, cache_dir=tmp_path / "third"), lock_file=lock)
    assert "s3cret" not in str(caught.value)
    assert "s3cret" not in repr(with_setting)


def test_the_mirror_of_mavens_settings_stands_for_central(
    repository: Repository, lock: Path, sources: JarSources, tmp_path: Path
) -> None:
    """With no repository given, the mirror of central in settings.xml is asked, with its server's credentials."""
    repository.auth = "ann:s3cret"
    settings = tmp_path / "settings.xml"
    settings.write_text(
        f"""<settings xmlns="urn:maven:settings"><servers>
        <server><id>m</id><username>ann</username><password>s3cret</password></server></servers><mirrors>
        <mirror><id>blocker</id><mirrorOf>external:*</mirrorOf><url>http://0.0.0.0/</url><blocked>true</blocked></mirror>
        <mirror><id>other</id><mirrorOf>*,!central</mirrorOf><url>http://127.0.0.1:9/</url></mirror>
        <mirror><id>m</id><mirrorOf>central</mirrorOf><url>{repository.url}</url></mirror></mirrors></settings>"""
    )
    assert len(fetch(["test"], sources=replace(sources, maven_repo=None, maven_settings=settings), lock_file=lock)) == 2


def test_without_any_setting_the_repository_of_sparks_resolver_is_asked() -> None:
    """There is one default, over HTTPS and without credentials."""
    (default,) = repositories(None, auth=None, settings=None)
    assert default.base.startswith("https://")
    assert default.auth is None


def test_the_environment_names_every_source() -> None:
    """Each variable ends in its field; the home directory gives the rest."""
    assert jar_sources(
        {
            "HOME": "/home/ann",
            "LAKEGATE_CACHE": "/c",
            "LAKEGATE_JARS_FROM": "/j",
            "LAKEGATE_MAVEN_REPO": "http://r/",
            "LAKEGATE_MAVEN_AUTH": "a:b",
            "LAKEGATE_OFFLINE": "1",
        }
    ) == JarSources(
        cache_dir=Path("/c/jars"),
        from_dir=Path("/j"),
        local_repository=Path("/home/ann/.m2/repository"),
        maven_repo="http://r/",
        maven_auth="a:b",
        maven_settings=Path("/home/ann/.m2/settings.xml"),
        offline=True,
    )
    assert jar_sources({"HOME": "/home/ann"}).cache_dir == Path("/home/ann/.cache/lakegate/jars")
    assert jar_sources({"HOME": "/h", "XDG_CACHE_HOME": "/x"}).cache_dir == Path("/x/lakegate/jars")


FETCH_SCRIPT = """
import sys
from pathlib import Path
from lakegate.spark.jars import JarSources, fetch
sources = JarSources(cache_dir=Path(sys.argv[1]), maven_repo=sys.argv[2])
for path in fetch(["test"], sources=sources, lock_file=Path(sys.argv[3])):
    print(path)
"""


def test_many_processes_fill_one_empty_cache_at_once(repository: Repository, lock: Path, sources: JarSources) -> None:
    """Every one of six processes that start together gets whole jars, and nothing but the jars is left."""
    repository.faults = [0.3, 500, 0.7]  # one less than the attempts of one process, which may meet them all
    command = [sys.executable, "-c", FETCH_SCRIPT, str(sources.cache_dir), repository.url, str(lock)]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(6)]
    ended = [(process, *process.communicate(timeout=120)) for process in started]
    assert [(process.returncode, complaint) for process, _, complaint in ended] == [(0, "")] * 6
    for _, output, _ in ended:
        assert [Path(line).read_bytes() for line in output.splitlines()] == [ALPHA, BETA]
    files = [path for path in sources.cache_dir.rglob("*") if path.is_file()]
    assert sorted(path.name for path in files) == ["alpha-1.0.jar", "beta-2.0.jar"]


def test_a_cache_that_cannot_be_written_is_named(repository: Repository, lock: Path, tmp_path: Path) -> None:
    """The message names the file and the setting that moves the cache."""
    (tmp_path / "file").write_text("")
    blocked = JarSources(cache_dir=tmp_path / "file" / "cache", maven_repo=repository.url)
    with pytest.raises(Unavailable, match="LAKEGATE_CACHE"):
        fetch(["test"], sources=blocked, lock_file=lock)


def test_verify_tells_missing_from_damaged(repository: Repository, lock: Path, sources: JarSources) -> None:
    """A new hash finds a changed byte that the size does not show."""
    fetch(["test"], sources=sources, lock_file=lock)
    (sources.cache_dir / ALPHA_PATH).write_bytes(b"x" + ALPHA[1:])
    (sources.cache_dir / BETA_PATH).unlink()
    states = [one.state for one in verify(["test"], sources=sources, lock_file=lock)]
    assert states == ["damaged", "missing"]


def test_relock_takes_sizes_and_hashes_from_what_it_fetches(
    repository: Repository, lock: Path, sources: JarSources
) -> None:
    """Only the coordinates of the old lock are believed; comments stay."""
    stale = lock.read_text().replace(hashlib.sha256(BETA).hexdigest(), "0" * 64).replace("size = 4000\n", "size = 1\n")
    assert relock(stale, sources=sources) == lock.read_text()


def test_relock_fails_loudly_on_a_jar_that_is_not_there(
    repository: Repository, lock: Path, sources: JarSources
) -> None:
    """A version that is listed but has no jar ends the making of the lock, by name."""
    del repository.files[BETA_PATH]
    with pytest.raises(Unavailable, match=r"404.*beta"):
        relock(lock.read_text(), sources=sources)


def test_relock_refuses_a_jar_that_its_repository_contradicts(
    repository: Repository, lock: Path, sources: JarSources
) -> None:
    """A jar whose published sha1 differs is not locked."""
    repository.files[BETA_PATH + ".sha1"] = b"0" * 40
    with pytest.raises(Corrupt, match="beta"):
        relock(lock.read_text(), sources=sources)


@pytest.mark.parametrize(("version", "line"), [("4.1.4", "4.1"), ("4.1.0.dev1", "4.1"), ("4.2.0", "4.2")])
def test_the_spark_line_comes_from_the_version(version: str, line: str) -> None:
    """Two lines are known."""
    assert spark_line(version) == line


@pytest.mark.parametrize("version", ["3.5.7", "4.0.1", "4.3.0", "5.0.0", "4.10.0"])
def test_other_spark_lines_are_refused(version: str) -> None:
    """A wrong pair of Spark and Delta half works, so it is refused."""
    with pytest.raises(InvalidRequest, match="no jars for this version of Spark"):
        spark_line(version)


def test_the_lock_has_each_set_for_each_spark_line() -> None:
    """Both lines have Delta and Kafka, one jar per artifact; an unknown set is refused by name."""
    for line in ("4.1", "4.2"):
        for name in ("delta", "kafka", "broker"):
            jars = locked([name], spark=line)
            assert len({jar.path for jar in jars}) == len(jars) > 0
        assert any(jar.artifact == f"delta-spark_{line}_2.13" for jar in locked(["delta"], spark=line))
    with pytest.raises(InvalidRequest, match=r"nope.*broker, delta, kafka"):
        locked(["nope"], spark="4.1")


def command(*arguments: str, cache: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Runs `lakegate` with `arguments` and a cache of its own."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("LAKEGATE_")}
    return subprocess.run(
        [LAKEGATE, *arguments],
        env={**inherited, "LAKEGATE_CACHE": str(cache), **environ},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture
def cache_with_delta(tmp_path: Path, jars_from: JarSources) -> Path:
    """A cache of its own with the Delta jars, taken from the user's cache."""
    fetch(["delta"], sources=jars_from)
    fetch(
        ["delta"], sources=JarSources(cache_dir=tmp_path / "own" / "jars", from_dir=jars_from.cache_dir, offline=True)
    )
    return tmp_path / "own"


def test_the_command_names_a_damaged_jar_and_exits_with_4(cache_with_delta: Path) -> None:
    """`jars verify` is silent about nothing: 0 and a count, 4 and the file, 6 and what is missing."""
    whole = command("jars", "verify", cache=cache_with_delta)
    assert (whole.returncode, whole.stdout) == (0, "8 jars verified\n")

    storage = next((cache_with_delta / "jars").rglob("delta-storage-*.jar"))
    content = storage.read_bytes()
    storage.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    damaged = command("jars", "verify", "--output", "json", cache=cache_with_delta)
    assert damaged.returncode == 4
    assert str(storage) in damaged.stderr
    states = {row["file"]: row["state"] for row in json.loads(damaged.stdout)["jars"]}
    assert states.pop(str(storage)) == "damaged"
    assert set(states.values()) == {"ok"}

    storage.unlink()
    lacking = command("jars", "verify", cache=cache_with_delta)
    assert lacking.returncode == 6
    assert storage.name in lacking.stderr


def test_the_path_is_ready_for_spark_submit(cache_with_delta: Path, tmp_path: Path) -> None:
    """`jars path` prints our jar and Delta's, joined by commas, and nothing else on stdout even when it fetches."""
    empty = tmp_path / "empty"
    fetched = command("jars", "path", "--from", str(cache_with_delta / "jars"), cache=empty)
    assert fetched.returncode == 0
    assert "Fetching 8 jars for Spark, 13" in fetched.stderr
    paths = fetched.stdout.strip().split(",")
    assert [Path(path).is_file() for path in paths] == [True] * 9
    assert paths[0].endswith("lakegate.jar")
    assert command("jars", "path", "--offline", cache=empty).stdout == fetched.stdout


def test_the_command_says_what_is_missing_when_offline(tmp_path: Path) -> None:
    """An empty cache without a network is exit 6 with the way out, not a traceback."""
    answer = command("jars", "fetch", "--offline", cache=tmp_path, HOME=str(tmp_path))
    assert answer.returncode == 6
    assert "lakegate jars fetch" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_every_error_is_one_of_ours(lock: Path, tmp_path: Path) -> None:
    """A malformed address is reported as a Lakegate error."""
    strange = JarSources(cache_dir=tmp_path / "c", maven_repo="nonsense", retry_waits_s=())
    with pytest.raises(LakegateError, match="cannot be fetched"):
        fetch(["test"], sources=strange, lock_file=lock)


def test_the_lock_reads_back_as_it_was_written(lock: Path) -> None:
    """Group, artifact and version make the path that a Maven repository uses."""
    assert [jar.path for jar in parse_lock(lock.read_text())] == [ALPHA_PATH, BETA_PATH]
