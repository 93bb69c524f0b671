"""A bad network between a client and a server: a TCP proxy in its own thread, whose mode can be changed at any time."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Literal, Self

Mode = Literal["pass", "blackhole", "lose_replies", "refuse", "delay"]
"""blackhole: both directions are swallowed, without an error. lose_replies: requests arrive, answers do not. refuse:
connections are cut and new ones are refused. delay: both directions arrive late."""

CHUNK_BYTES = 65_536


class Proxy:
    """Listens on a free port of 127.0.0.1 and talks to a port there, or to a Unix socket. Use as a context manager."""

    def __init__(self, upstream: int | Path, *, delay_s: float = 0.0) -> None:
        self._upstream, self._delay_s = upstream, delay_s
        self._mode: Mode = "pass"
        self._pairs: set[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = set()
        self._loop = asyncio.new_event_loop()
        self._is_up = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lakegate-proxy", daemon=True)
        self.port = 0

    @property
    def address(self) -> str:
        """Returns the address that clients connect to."""
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        self._is_up.wait(10)
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def be(self, mode: Mode) -> None:
        """Sets the mode of the network.

        Connections that have lost bytes, or that are refused, are cut: a stream with missing bytes is not usable.
        """
        is_cut = mode == "refuse" or (self._mode in ("blackhole", "lose_replies") and mode in ("pass", "delay"))
        self._mode = mode
        if is_cut:
            self.cut()

    def cut(self) -> None:
        """Ends every connection; both sides see it closed. New connections are accepted according to the mode."""
        asyncio.run_coroutine_threadsafe(self._cut(), self._loop).result(10)

    async def _cut(self) -> None:
        for pair in self._pairs:
            for writer in pair:
                writer.transport.abort()
        self._pairs.clear()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        self._is_up.set()
        try:
            self._loop.run_forever()
        finally:
            server.close()
            self._loop.run_until_complete(self._cut())
            for task in asyncio.all_tasks(self._loop):
                task.cancel()
            self._loop.run_until_complete(asyncio.sleep(0.01))
            self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._mode == "refuse":
            writer.transport.abort()
            return
        try:
            if isinstance(self._upstream, Path):
                up_reader, up_writer = await asyncio.open_unix_connection(self._upstream)
            else:
                up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._upstream)
        except OSError:
            writer.transport.abort()
            return
        pair = (writer, up_writer)
        self._pairs.add(pair)
        try:
            await asyncio.gather(
                self._pump(reader, up_writer, is_reply=False), self._pump(up_reader, writer, is_reply=True)
            )
        except asyncio.CancelledError:
            pass  # the proxy ends
        finally:
            self._pairs.discard(pair)
            for each in pair:
                each.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_reply: bool) -> None:
        try:
            while data := await reader.read(CHUNK_BYTES):
                if self._mode == "blackhole" or (is_reply and self._mode == "lose_replies"):
                    continue
                if self._mode == "delay":  # later data is not blocked by it: this models latency, not bandwidth
                    self._loop.call_later(self._delay_s, writer.write, data)
                else:
                    writer.write(data)
                    await writer.drain()
        except OSError:
            pass
        # The end of either direction ends both, as with a connection.
        writer.transport.abort()
