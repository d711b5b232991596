"""Requests of readers: who does not finish what he asks is disconnected; HEAD is answered as GET; odd ones are told."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from traceback import walk_tb
from typing import Any

from starlette.responses import HTMLResponse
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from scaler_protocol.limits import shortened
from scaler_protocol.ranges import Text

REASON = Text(256)
"""The limit of what is logged of a reader's event."""
_HANDLERS = frozenset({"_handle_event_internal", "run_async_handler", "_websocket_handler"})
"""Of python-socketio, what calls the handler of an event, in a task that nobody waits for; of engineio, what reads
messages and packets."""
ODD_EVENT_LOGS = ("asyncio", "engineio.server", "uvicorn.error")
"""The loggers where tracebacks of these end."""
HEAD_SECONDS = 10.0
"""Time for the head of a request, at least; at most twice as long."""


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


def tell_odd_events(record: logging.LogRecord) -> bool:
    """A filter that makes one line of the traceback of a reader's event that NiceGUI does not understand."""
    error = record.exc_info[1] if record.exc_info else None
    if error is not None and any(frame.f_code.co_name in _HANDLERS for frame, _ in walk_tb(error.__traceback__)):
        record.msg = "scaler_ui: a reader's event is not understood: %s"
        record.args = (shortened(repr(error), REASON),)
        record.exc_info = record.exc_text = None
    return True


class TimedProtocol(HttpToolsProtocol):
    """A connection that is closed if it has no request for `HEAD_SECONDS`. uvicorn would wait for ever."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.loop.call_later(HEAD_SECONDS, self._look, None)

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
