"""Requests of readers: who does not finish what he asks is disconnected; HEAD is answered as GET; odd ones are told."""

from __future__ import annotations

import asyncio
import gzip
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from functools import partial
from http import HTTPStatus
from pathlib import Path
from traceback import walk_tb
from typing import Any

import nicegui
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from scaler_protocol.limits import shortened
from scaler_protocol.ranges import Text
from scaler_protocol.safe_text import escaped

REASON = Text(256)
"""The limit of what is logged of a reader's event."""
_HANDLERS = frozenset({"_handle_event_internal", "run_async_handler", "_websocket_handler"})
"""Of python-socketio, what calls the handler of an event, in a task that nobody waits for; of engineio, what reads
messages and packets."""
_BINARY = frozenset({5, 6})
"""The types of packets of Socket.IO that have binary parts."""
ODD_EVENT_LOGS = ("asyncio", "engineio.server", "uvicorn.error", "nicegui")
"""The loggers where tracebacks of these end, and what scripts of pages say."""
_LEVEL = 4
"""How hard files are compressed: the first reader waits for it. The usual 9 takes three times as long for 5 % less."""
FILES = tuple(f"/_nicegui/{nicegui.__version__}/{kind}/" for kind in ("static", "components", "esm"))
"""The addresses of NiceGUI's files: scripts, styles and fonts, 2.5 MB for the first page."""
KEPT_BYTES = 8 * 2**20
"""Compressed files that are kept: one may have many addresses, such as static/../static/a.js."""
HEAD_SECONDS = 10.0
"""Time for the head of a request, at least; at most twice as long."""
HEAD_BYTES = 512 * 1024
"""Bytes of the head of a request, at most; more than a transport reads at once."""
REQUESTS_AHEAD = 100
"""Requests that may wait on a connection for the answers before theirs, at most; browsers send none ahead."""


def unknown_page() -> HTMLResponse:
    """The answer to a request for an address that has no page."""
    return HTMLResponse(Path(__file__).with_name("unknown.html").read_text("utf-8"), 404)


Application = Callable[[MutableMapping[str, Any], Any, Any], Awaitable[None]]


class HeadAsGet:
    """ASGI middleware that has HEAD answered as GET; uvicorn leaves the body out."""

    def __init__(self, app: Application) -> None:
        self._app = app

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """Handle one request or connection."""
        is_head = scope["type"] == "http" and scope["method"] == "HEAD"
        await self._app({**scope, "method": "GET"} if is_head else scope, receive, send)


class CompressedFiles:
    """ASGI middleware that has files compressed once, and keeps them: these paths are of files that do not change."""

    def __init__(self, app: Application, paths: tuple[str, ...]) -> None:
        self._app, self._paths = app, paths
        self._kept: dict[str, list[MutableMapping[str, Any]]] = {}
        """The messages of a response, by path."""
        self._room = KEPT_BYTES

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """Handle one request or connection."""
        if scope["type"] != "http" or not scope["path"].startswith(self._paths) or not _takes_whole(scope):
            await self._app(scope, receive, send)
            return
        response = self._kept.get(scope["path"])
        if response is None:
            response = []
            await self._app(scope, receive, partial(_append, response))
            if _is_whole_file(response):
                response = await asyncio.to_thread(_compressed, response)
                self._room -= len(response[1]["body"])
                if self._room >= 0:
                    self._kept[scope["path"]] = response
        for message in response:
            await send(dict(message))


def _takes_whole(scope: MutableMapping[str, Any]) -> bool:
    """Whether a request is for a whole file, compressed."""
    headers = Headers(scope=scope)
    return (
        scope["method"] == "GET"
        and "gzip" in headers.get("accept-encoding", "")
        and not {"range", "if-none-match", "if-modified-since"}.intersection(headers)
    )


def _is_whole_file(response: list[MutableMapping[str, Any]]) -> bool:
    """Whether a file was found, and is all there: of a request that its reader breaks off a part may be answered."""
    if not response or response[0]["status"] != HTTPStatus.OK:
        return False
    start, *parts = response
    size = sum(len(part.get("body", b"")) for part in parts)
    return Headers(raw=start["headers"]).get("content-length") == str(size)


async def _append(messages: list[MutableMapping[str, Any]], message: MutableMapping[str, Any]) -> None:
    messages.append(message)


def _compressed(response: list[MutableMapping[str, Any]]) -> list[MutableMapping[str, Any]]:
    start, *parts = response
    body = gzip.compress(b"".join(part.get("body", b"") for part in parts), _LEVEL)
    headers = MutableHeaders(raw=list(start["headers"]))
    headers["content-encoding"], headers["content-length"] = "gzip", str(len(body))
    headers.add_vary_header("accept-encoding")
    return [{**start, "headers": headers.raw}, {"type": "http.response.body", "body": body}]


def refuse_binary_events(server: Any) -> None:
    """Refuse events with binary parts: pages send none, and a reader could send parts without end, which are kept."""

    class TextPacket(server.packet_class):  # type: ignore[misc]
        """A packet that is one message."""

        def decode(self, encoded_packet: Any) -> int:
            parts: int = super().decode(encoded_packet)
            if self.packet_type in _BINARY:
                raise ValueError("it has binary parts")
            return parts

    server.packet_class = TextPacket


def tell_odd_events(record: logging.LogRecord) -> bool:
    """A filter that makes one line of what a reader's page says, and of the traceback of an event that NiceGUI does not
    understand."""
    if record.name == "nicegui" and record.funcName == "handle_log_message":
        record.msg, record.args = "scaler_ui: a reader's page says: %s", (shortened(escaped(str(record.msg)), REASON),)
    error = record.exc_info[1] if record.exc_info else None
    if error is not None and any(frame.f_code.co_name in _HANDLERS for frame, _ in walk_tb(error.__traceback__)):
        record.msg = "scaler_ui: a reader's event is not understood: %s"
        record.args = (shortened(repr(error), REASON),)
        record.exc_info = record.exc_text = None
    return True


class LimitedProtocol(HttpToolsProtocol):
    """A connection that is closed if it has no request for `HEAD_SECONDS`, or one with a longer head than `HEAD_BYTES`,
    or more than `REQUESTS_AHEAD`.

    uvicorn would wait for ever, and keep whatever comes.
    """

    _head = 0
    """Bytes of the head that is being received."""
    _has_body = False
    """Whether what is being received is a body."""
    _answered: RequestResponseCycle | None = None
    """The request that is being answered, or was last: `cycle` is the last one that has come."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.loop.call_later(HEAD_SECONDS, self._look, None)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._head = 0 if self._has_body else self._head + len(data)
        if self._head > HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response(f"The head of the request has more than {HEAD_BYTES:,} bytes.")
        if len(self.pipeline) > REQUESTS_AHEAD:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answered is not None:  # uvicorn tells the last one only
            self._answered.disconnected = True
        super().connection_lost(exc)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answered = cycle
        super()._start_asgi_task(cycle, app)

    def on_headers_complete(self) -> None:
        self._head, self._has_body = 0, True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._has_body = False
        super().on_message_complete()

    def _look(self, answered: RequestResponseCycle | None) -> None:
        """Close the connection if `answered` was its last request `HEAD_SECONDS` ago and still is."""
        if self not in self.connections:  # it is lost, or a websocket
            return
        is_waiting = self.cycle is None or self.cycle.response_complete
        if is_waiting and self.cycle is answered:
            self.transport.close()
        elif is_waiting:
            self.loop.call_later(HEAD_SECONDS, self._look, self.cycle)
        else:
            self.loop.call_later(HEAD_SECONDS, self._look, None)
