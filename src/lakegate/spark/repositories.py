"""Maven repositories: which one to use, with which credentials, and how many retries.

This module contains no address: addresses come from the user, from Maven's settings, or from the resolver that Spark ships.
"""

from __future__ import annotations

import base64
import http.client
import re
import time
import urllib.error
import urllib.parse
import urllib.request
import xml.etree.ElementTree as ElementTree
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

from lakegate.errors import Unavailable

ANSWER_TIMEOUT_S = 60.0
FINAL_STATUSES = (401, 403, 404, 410)
"""HTTP statuses that a retry does not change."""

R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """A remote repository."""

    base: str
    auth: str | None = field(default=None, repr=False)


def asking_again(
    path: str, repositories: Sequence[Repository], waits_s: Sequence[float], act: Callable[[Repository], R]
) -> R:
    """Returns the result of `act` for the first repository that serves it; retries after errors that may pass."""
    notes = []
    for repository in repositories:
        for wait_s in (*waits_s, None):
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
        advice="Set LAKEGATE_MAVEN_REPO (and LAKEGATE_MAVEN_AUTH=user:password) to a Maven repository that has it, "
        "or give a folder with the jars: lakegate jars fetch --from DIR",
        jar=path,
    )


def repositories(addresses: str | None, *, auth: str | None, settings: Path | None) -> tuple[Repository, ...]:
    """Returns the repositories to use, in order: the given ones, else the mirror in Maven's settings, else the default.

    Args:
        addresses: Base addresses, separated by commas.
        auth: `user:password` for them.
        settings: Maven's settings.xml.
    """
    if addresses:
        bases = [base.strip() for base in addresses.split(",") if base.strip()]
        return tuple(_repository(base, auth) for base in bases)
    mirror = _mirror_of_central(settings) if settings else None
    return (mirror or _repository(_default_repository(), None),)


def _repository(address: str, auth: str | None) -> Repository:
    """Parses a repository's address; takes user and password out of it, because urllib does not read them there."""
    parts = urllib.parse.urlsplit(address)
    if "@" in parts.netloc:
        credentials, _, host = parts.netloc.rpartition("@")
        auth = urllib.parse.unquote(credentials)
        address = urllib.parse.urlunsplit(parts._replace(netloc=host))
    return Repository(base=address.rstrip("/") + "/", auth=auth)


def _mirror_of_central(settings: Path) -> Repository | None:
    """Returns the mirror that replaces central in Maven's settings.xml, with its credentials."""
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
    """Returns the default repository of Spark's own resolver (Ivy, among PySpark's jars), so that there is one default, not two."""
    spec = find_spec("pyspark")
    jars = Path(spec.origin).parent / "jars" if spec is not None and spec.origin else Path()
    for jar in jars.glob("ivy-*.jar"):
        with zipfile.ZipFile(jar) as archive:
            constants = archive.read("org/apache/ivy/plugins/resolver/IBiblioResolver.class")
        if found := re.search(rb"https://[\x21-\x7e]+?/maven2/", constants):
            return found.group().decode("ascii")
    raise Unavailable(
        "no Maven repository is known: this PySpark comes without Ivy",
        advice="Set LAKEGATE_MAVEN_REPO, or give a folder with the jars: lakegate jars fetch --from DIR",
    )


def open_artifact(repository: Repository, path: str, *, first_byte: int = 0) -> http.client.HTTPResponse:
    """Requests `path`, from `first_byte` on if the repository supports ranges; the caller closes the response."""
    request = urllib.request.Request(repository.base + path, headers={"User-Agent": "lakegate"})
    if first_byte:
        request.add_header("Range", f"bytes={first_byte}-")
    if repository.auth:
        # Unredirected: a redirect to another server must not send the password there.
        secret = base64.b64encode(repository.auth.encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {secret}")
    response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=ANSWER_TIMEOUT_S)
    return response
