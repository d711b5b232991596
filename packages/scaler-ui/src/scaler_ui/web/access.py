"""Access control of the pages: local programs, and readers with the token."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from scaler_protocol.addresses import Address
from scaler_protocol.safe_text import escaped

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

COOKIE = "scaler_token"
LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})


class AccessGuard:
    """ASGI middleware: refuses unknown host names and foreign origins and, if there is a token, requests without it.

    The host name of a request is checked because a web page could otherwise reach this server through a name that it
    controls (DNS rebinding). Accepted are names of the loopback and, with a token, `names` and numeric addresses. The
    token is in the query of the first request (`?token=…`), then in a cookie. Actions arrive over a WebSocket, whose
    origin is checked.
    """

    def __init__(self, app: Application, token: str | None, names: Collection[str] = ()) -> None:
        self._app = app
        self._token = token
        self._names = frozenset(name.lower() for name in names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request or connection."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get("host", "")
        origin = headers.get("origin")
        if not self._is_ours(host):
            await _answer(scope, send, 403, f"{escaped(host)} is not a known name of this host; add it with --name")
        elif (scope["type"] == "websocket" or origin is not None) and (origin or "").partition("://")[2] != host:
            await _answer(scope, send, 403, f"pages of {escaped(origin or 'no origin')} have no access")
        elif self._token is None or self._matches(_cookie(headers.get("cookie", ""))):
            await self._app(scope, receive, send)
        elif scope["type"] == "http" and self._matches(_query(scope)):
            cookie = f"{COOKIE}={self._token}; HttpOnly; SameSite=Strict; Path=/"
            # With two slashes it would be the name of another host.
            place = "/" + quote(scope["path"].lstrip("/\\"))
            await _answer(scope, send, 303, "", [(b"location", place.encode()), (b"set-cookie", cookie.encode())])
        else:
            await _answer(scope, send, 401, "open the address with ?token=… that scaler_ui has printed")

    def _is_ours(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:  # "[" without "]"
            return False
        if name in LOCAL_HOSTS or self._token is None:
            return name in LOCAL_HOSTS
        return name in self._names or Address(name, 1).is_numeric

    def _matches(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), (self._token or "").encode())


def _cookie(header: str) -> str:
    found = SimpleCookie(header).get(COOKIE)
    return str(found.value) if found is not None else ""


def _query(scope: Scope) -> str:
    query: str = scope["query_string"].decode("latin-1")
    return parse_qs(query).get("token", [""])[0]


async def _answer(
    scope: Scope, send: Send, status: int, text: str, more: list[tuple[bytes, bytes]] | None = None
) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008, "reason": text})
        return
    headers = [(b"content-type", b"text/plain; charset=utf-8"), *(more or [])]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text.encode()})
