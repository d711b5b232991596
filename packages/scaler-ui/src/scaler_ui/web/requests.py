"""Connections of readers: who does not finish what he asks is disconnected."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

HEAD_SECONDS = 10.0
"""Time for the head of a request, at least; at most twice as long."""


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
