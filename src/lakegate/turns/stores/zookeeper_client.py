"""A ZooKeeper session of this process: one deadline for each call, and no guess about an unanswered call.

kazoo's client handles the connection. This module adds: the lease that the server really gave, states that are reported at
once, a request that is sent at most once, and a close that leaves no session behind: a closed client is not pinged.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Final

from lakegate.config.zookeeper import SESSION_MS, ZookeeperPlace
from lakegate.errors import InvalidRequest, MissingExtra, StoreUnavailable
from lakegate.turns.ports import SessionState

try:
    from kazoo import exceptions as zk
    from kazoo.client import KazooClient
    from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
    from kazoo.protocol.states import KazooState
    from kazoo.retry import KazooRetry
    from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE
except ImportError as error:
    raise MissingExtra(
        "a coordinator in ZooKeeper needs kazoo; nothing was done", advice="pip install 'lakegate[zookeeper]'"
    ) from error

__all__ = ["Connection", "NoAnswer", "Secrets", "zk"]

CLOSE_S: Final = 2.0
"""How long `close` waits. An end that is not confirmed by then is finished in a thread; the session ends by its lease."""

ROUNDING_S: Final = 0.01
"""kazoo reports two thirds of the timeout that the server gave, in whole milliseconds."""

_STATES: Final[dict[Any, SessionState]] = {
    KazooState.CONNECTED: "connected",
    KazooState.SUSPENDED: "suspended",
    KazooState.LOST: "lost",
}
_LOG = logging.getLogger("lakegate.zookeeper")
_LOG.addHandler(
    logging.NullHandler()
)  # each state is reported by an error or an event; kazoo's own log lines are opt-in


@dataclass(frozen=True, slots=True, kw_only=True)
class Secrets:
    """Passwords, which must not appear in a URL."""

    password: str | None = None
    key_password: str | None = None


class NoAnswer(Exception):
    """A request without an answer: it may have been executed, or not."""


class Connection:
    """A client with a session of its own. Safe to use from several threads.

    Args:
        place: The servers and settings.
        secrets: Passwords.
        on_state: Called with each state, from kazoo's thread; must not block.

    Raises:
        Unavailable: no server answered within the call's time.
        InvalidRequest: the server refused the credentials, or does not give the session timeout that was asked for; or the TLS
            files cannot be used.
    """

    def __init__(
        self, place: ZookeeperPlace, secrets: Secrets, *, on_state: Callable[[SessionState], None] = lambda state: None
    ) -> None:
        self._place, self._on_state = place, on_state
        self._connected = threading.Event()
        self._ending: threading.Thread | None = None
        self._lock = threading.Lock()
        self.is_lost = False
        """The original session has ended. Set before anything is sent under another session."""
        self._client = _Client(place, secrets)
        self._client.add_listener(self._on_kazoo_state)
        self._start()
        self.session_id: int = self._client.client_id[0]
        self.acl = OPEN_ACL_UNSAFE if place.acl == "open" else CREATOR_ALL_ACL

    def _start(self) -> None:
        client = self._client
        try:
            client.start_async()
            client.is_tried.wait(self._place.call_timeout_ms / 1000)
        except BaseException:
            self.close()
            raise
        if client.client_id is None or client.negotiated_s is None or client.is_refused:
            self.close()
            where = ",".join(self._place.hosts)
            if client.is_refused:
                raise InvalidRequest(
                    "ZooKeeper refused this user; nothing was done",
                    advice="Check user, auth and LAKEGATE_ZOOKEEPER_PASSWORD",
                    hosts=where,
                )
            reason = "" if client.failure is None else f" ({client.failure})"
            raise StoreUnavailable(
                f"ZooKeeper does not answer{reason}; nothing was done",
                advice="See that the servers run, and that tls and auth are what they want",
                hosts=where,
            )
        asked_s = self._place.session_timeout_ms / 1000
        if self._place.session_timeout_ms != SESSION_MS and abs(client.negotiated_s - asked_s) > ROUNDING_S:
            self.close()
            raise InvalidRequest(
                f"ZooKeeper's servers do not give session_timeout={asked_s:g}s but {client.negotiated_s:g}s; nothing was done",
                advice="Say what they give, or change minSessionTimeout and maxSessionTimeout of the servers",
                hosts=",".join(self._place.hosts),
            )

    @property
    def lease_s(self) -> float | None:
        """The session timeout that the server gave, which may differ from the requested one."""
        return self._client.negotiated_s

    def ask(self, send: Callable[[Any], Any], deadline_s: float) -> Any:
        """Returns the answer to one request, which is sent at most once.

        Args:
            send: Sends the request by the client that is passed; returns the result of an `…_async` method.
            deadline_s: On `time.monotonic`; for the wait for a connection and the answer together.

        Raises:
            NoAnswer: it may have been executed, or not.
            NoNodeError, NodeExistsError, BadVersionError: what the server answered.
            InvalidRequest: not allowed.
        """
        if not self._connected.wait(max(0.0, deadline_s - time.monotonic())):
            raise NoAnswer("no connection")
        try:
            return send(self._client).get(timeout=max(0.0, deadline_s - time.monotonic()))
        except (zk.NoNodeError, zk.NodeExistsError, zk.BadVersionError):
            raise
        except (zk.NoAuthError, zk.AuthFailedError, zk.InvalidACLError) as error:
            raise InvalidRequest(
                f"ZooKeeper does not allow this under {self._place.root}; nothing was changed",
                advice="Use the user that made the nodes, or another chroot",
                user=self._place.user,
            ) from error
        except (zk.KazooException, KazooTimeoutError) as error:
            # Lost, ended, moved, too late, or a failure of the server: in none of these cases is the outcome known.
            raise NoAnswer(type(error).__name__) from error

    def insist(self, send: Callable[[Any], Any], deadline_s: float) -> Any:
        """Returns the answer to a request that changes nothing, which is repeated until it is answered.

        Raises:
            Unavailable: no answer until the deadline.
        """
        while True:
            try:
                return self.ask(send, deadline_s)
            except NoAnswer as error:
                if time.monotonic() >= deadline_s or self._ending is not None:
                    raise self.unavailable() from error
                time.sleep(0.01)  # an answer that fails at once must not be asked for without a pause

    def unavailable(self) -> StoreUnavailable:
        """Returns the error for a store that did not answer in time."""
        return StoreUnavailable(
            "ZooKeeper did not answer in time", hosts=",".join(self._place.hosts), retry_after_s=1.0
        )

    def close(self) -> None:
        """Ends the session; idempotent. Blocks for `CLOSE_S` at most."""
        with self._lock:
            if self._ending is None:
                # kazoo waits for its own thread, which may wait for a silent server.
                self._ending = threading.Thread(target=self._client.end, name="lakegate-zookeeper-end", daemon=True)
                self._ending.start()
        self._ending.join(CLOSE_S)

    def _on_kazoo_state(self, state: Any) -> None:
        if state == KazooState.CONNECTED:
            self._connected.set()
        else:
            self._connected.clear()
        if state == KazooState.LOST:
            self.is_lost = True
        self._on_state(_STATES[state])


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """kazoo's threads, with a limit on how long a silent server can delay the attempt with the next server."""

    def __init__(self, connect_s: float) -> None:
        super().__init__()
        self._connect_s = connect_s

    def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        kwargs["timeout"] = min(kwargs.get("timeout") or self._connect_s, self._connect_s)
        return super().create_connection(*args, **kwargs)


class _Client(KazooClient):  # type: ignore[misc]
    """kazoo's client, which also reports the session timeout that the server gave."""

    def __init__(self, place: ZookeeperPlace, secrets: Secrets) -> None:
        self.negotiated_s: float | None = None
        self.failure: Exception | None = None
        """Why the last attempt to connect failed."""
        self.is_refused = False
        """The server reported that it does not know this user."""
        self.is_tried = threading.Event()
        """Connected, or refused for good."""
        if place.auth == "sasl" and find_spec("puresasl") is None:
            raise MissingExtra(
                "auth=sasl needs pure-sasl; nothing was done", advice="pip install 'lakegate[zookeeper-sasl]'"
            )
        session_s = place.session_timeout_ms / 1000
        login = (place.user or "", secrets.password or "")
        sasl = {"mechanism": "DIGEST-MD5", "username": login[0], "password": login[1]}
        # kazoo's own pauses double up to a minute, which is longer than any lease.
        retry = {"max_tries": -1, "delay": 0.05, "max_delay": 0.5}
        handler = _Handler(max(0.5, session_s / (3 * len(place.hosts))))
        super().__init__(
            hosts=",".join(place.hosts),
            timeout=session_s,
            handler=handler,
            logger=_LOG,
            connection_retry=KazooRetry(**retry),
            command_retry=KazooRetry(**retry),
            auth_data=[("digest", ":".join(login))] if place.auth == "digest" else None,
            sasl_options=sasl if place.auth == "sasl" else None,
            use_ssl=place.tls,
            check_hostname=place.tls,
            ca=place.ca,
            certfile=place.certificate,
            keyfile=place.key,
            keyfile_password=secrets.key_password,
        )
        self._connect_as_kazoo = self._connection._connect
        self._connection._connect = self._connect_and_tell

    def _connect_and_tell(self, *args: Any) -> Any:
        # kazoo keeps the server's timeout to itself; it returns two thirds of it here, in milliseconds. If a lease were assumed
        # longer than it is, two processes could hold a turn, so no session is used without this value.
        try:
            read_timeout_ms, connect_timeout_ms = self._connect_as_kazoo(*args)
        except zk.AuthFailedError:
            self.is_refused = True
            self.is_tried.set()
            raise
        except Exception as error:
            self.failure = error
            raise
        self.negotiated_s = read_timeout_ms * 1.5 / 1000
        self.is_tried.set()
        return read_timeout_ms, connect_timeout_ms

    def end(self) -> None:
        """Ends the session at the server if it answers, and the threads in any case. Blocks."""
        try:
            self.stop()
        except Exception:
            _LOG.warning("the end of a ZooKeeper session was not confirmed; it ends by its lease", exc_info=True)
        finally:
            if self._connection.connection_stopped.is_set():
                self.close()
