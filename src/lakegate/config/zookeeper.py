"""A coordinator's URL `zookeeper://h1:2181,h2:2181/chroot?option=value` as data."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

from lakegate.config.options import BadPlace, choice, duration, options_of

DEFAULT_PORT: Final = 2181
DEFAULT_ROOT: Final = "/lakegate"
SESSION_MS: Final = 15_000
"""Long enough for a driver's pauses; a killed run blocks the others for this time."""
CALL_MS: Final = 10_000

Auth = Literal["none", "digest", "sasl"]
Acl = Literal["open", "creator"]

OPTIONS: Final = ("session_timeout", "call_timeout", "auth", "user", "acl", "tls", "ca", "certificate", "key")
"""Every option, in the order of the reference."""

_URL = re.compile(r"zookeeper://([^/?#\s]+)(/[^?#\s%]*)?(?:\?([^#\s%]*))?")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(\d{1,5}))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class ZookeeperPlace:
    """The address of the store of turns in ZooKeeper, and its settings; without any secret."""

    hosts: tuple[str, ...]
    """`host:port` each."""
    root: str = DEFAULT_ROOT
    """The root node of all others; absolute, without a trailing slash."""
    session_timeout_ms: int = SESSION_MS
    call_timeout_ms: int = CALL_MS
    auth: Auth = "none"
    user: str | None = None
    acl: Acl = "open"
    tls: bool = False
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None


def read_place(url: str) -> ZookeeperPlace:
    """Returns the address that a URL names.

    Raises:
        BadPlace: the URL has another form.
    """
    found = _URL.fullmatch(url)
    if found is None:
        raise BadPlace("not zookeeper://host:port,…/chroot?option=value")
    netloc, path, query = found.groups()
    if "@" in netloc:
        raise BadPlace(
            "a user or a password before the hosts: the user is ?user=…, the password an environment variable"
        )
    options = options_of(query, OPTIONS)
    auth: Auth = choice(options, "auth", get_args(Auth), "none")
    # With a login, the default access list is that of the login.
    acl: Acl = choice(options, "acl", get_args(Acl), "open" if auth == "none" else "creator")
    tls = choice(options, "tls", ("true", "false"), "false") == "true"
    place = ZookeeperPlace(
        hosts=_hosts(netloc),
        root=_root(path or ""),
        session_timeout_ms=duration(options, "session_timeout", SESSION_MS),
        call_timeout_ms=duration(options, "call_timeout", CALL_MS),
        auth=auth,
        user=options.get("user"),
        acl=acl,
        tls=tls,
        ca=_file(options, "ca"),
        certificate=_file(options, "certificate"),
        key=_file(options, "key"),
    )
    if auth != "none" and not place.user:
        raise BadPlace(f"auth={auth} without user=…")
    if auth == "none" and (place.user or acl == "creator"):
        raise BadPlace("user=… and acl=creator need auth=digest or auth=sasl")
    if not tls and (place.ca or place.certificate or place.key):
        raise BadPlace("ca, certificate and key need tls=true")
    if (place.certificate is None) != (place.key is None):
        raise BadPlace("certificate and key belong together")
    return place


def _hosts(netloc: str) -> tuple[str, ...]:
    hosts = []
    for text in netloc.split(","):
        found = _HOST.fullmatch(text.strip())
        port = int(found[2] or DEFAULT_PORT) if found else 0
        if found is None or not 0 < port < 65536:
            raise BadPlace("hosts that are not host:port,host:port")
        hosts.append(f"{found[1]}:{port}")
    return tuple(hosts)


def _root(path: str) -> str:
    root = path.rstrip("/")
    if not root:
        return DEFAULT_ROOT
    names = root.split("/")[1:]
    if posixpath.normpath(root) != root or names[0] == "zookeeper" or any(ord(c) < 32 or ord(c) > 126 for c in root):
        raise BadPlace("a chroot that is not a path of plain names")
    return root


def _file(options: Mapping[str, str], name: str) -> str | None:
    path = options.get(name)
    if path is not None and not path.startswith("/"):
        raise BadPlace(f"{name} that is not an absolute path")
    return path
