"""Access control of the pages: local programs, readers with the token, and readers whom a proxy has authenticated."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any
from urllib.parse import parse_qs, parse_qsl, quote, unquote, urlencode, urlsplit

from scaler_protocol.addresses import Address
from scaler_protocol.safe_text import escaped

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

COOKIE = "scaler_token"
READER = "scaler_reader"
"""Where a request's scope has the name of who sent it; "" where no login is demanded."""
READER_LENGTH = 64
"""Characters of a name that are kept."""
LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
_SECURITY_HEADERS = [
    (b"content-security-policy", b"frame-ancestors 'none'"),
    (b"x-frame-options", b"DENY"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),  # the address of the first request has the token
]


class AccessGuard:
    """ASGI middleware: refuses unknown host names and foreign origins and, if a login is demanded, requests without it.

    The host name of a request is checked because a web page could otherwise reach this server through a name that it
    controls (DNS rebinding). Accepted are names of the loopback and, if a login is demanded, `names` and numeric
    addresses. Actions arrive over a WebSocket, whose origin is checked. No page may be shown in a frame of another one.

    There are two logins. A `token` is in the query of the first request (`?token=…`), then in a cookie. A proxy that
    has authenticated the reader names them in the header `user_header`, which is believed of connections from the
    addresses `proxies` only. Without both, everybody who reaches the loopback may read.
    """

    def __init__(
        self,
        app: Application,
        token: str | None,
        names: Collection[str] = (),
        user_header: str | None = None,
        proxies: Collection[str] = (),
    ) -> None:
        self._app = app
        self._token = token
        self._names = frozenset(name.lower() for name in names)
        self._user_header = user_header.lower() if user_header is not None else None
        self._proxies = frozenset(proxies)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request or connection."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        send = _with_security_headers(send)
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get("host", "")
        origin = headers.get("origin")
        if not self._is_ours(name := _host_name(host)):
            await _answer(scope, send, 403, f"{escaped(name)} is not a known name of this host{self._naming()}")
        elif (scope["type"] == "websocket" or origin is not None) and (origin or "").partition("://")[2] != host:
            await _answer(scope, send, 403, f"pages of {escaped(origin or 'no origin')} have no access")
        elif (reader := self._reader(scope, headers)) is not None:
            scope[READER] = reader
            await self._app(scope, receive, send)
        elif scope["type"] == "http" and self._matches(_query(scope)):
            secure = "; Secure" if _is_encrypted(scope, headers) else ""
            cookie = f"{COOKIE}={quote(self._token or '', safe='')}; HttpOnly; SameSite=Strict; Path=/{secure}"
            more = [(b"location", _without_token(scope)), (b"set-cookie", cookie.encode())]
            await _answer(scope, send, 303, "", more)
        else:
            await _answer(scope, send, 401, self._advice())

    def _reader(self, scope: Scope, headers: dict[str, str]) -> str | None:
        """The name of who sent a request; None without a login that is demanded."""
        if not self._has_login:
            return ""
        address = (scope.get("client") or ("",))[0]
        if self._user_header is not None and address in self._proxies:
            # A second one may be the reader's own, which the proxy has not removed.
            said = [value for name, value in scope["headers"] if name.decode("latin-1") == self._user_header]
            if len(said) == 1 and said[0].strip():
                return escaped(said[0].decode("utf-8", "replace").strip())[:READER_LENGTH]
        return f"token at {address}" if self._matches(_cookie(headers.get("cookie", ""))) else None

    def _advice(self) -> str:
        ways = ["open the address with ?token=… that scaler_ui has printed"] if self._token is not None else []
        if self._user_header is not None:
            ways.append(f"come through the proxy that sets {self._user_header} (--user-header, --proxy)")
        return "; or ".join(ways)

    @property
    def _has_login(self) -> bool:
        return self._token is not None or self._user_header is not None

    def _naming(self) -> str:
        """How to make a name known."""
        return "; add it with --name" if self._has_login else ": without a login there is localhost only"

    def _is_ours(self, name: str) -> bool:
        if name in LOCAL_HOSTS or not self._has_login:
            return name in LOCAL_HOSTS
        return name in self._names or Address(name, 1).is_numeric

    def _matches(self, given: str) -> bool:
        return self._token is not None and hmac.compare_digest(given.encode(), self._token.encode())


def _with_security_headers(send: Send) -> Send:
    async def sending(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *_SECURITY_HEADERS]
        await send(message)

    return sending


def _host_name(host: str) -> str:
    """The host of a request without its port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:  # "[" without "]"
        return host


def _is_encrypted(scope: Scope, headers: dict[str, str]) -> bool:
    # The header may be false: then the reader has a cookie that is sent over TLS only, and logs in again.
    return scope.get("scheme") == "https" or headers.get("x-forwarded-proto") == "https"


def _cookie(header: str) -> str:
    # Other servers of this host have cookies in the same header, with names and values that http.cookies refuses.
    cookies = dict(each.strip().partition("=")[::2] for each in header.split(";"))
    return unquote(cookies.get(COOKIE, ""))


def _without_token(scope: Scope) -> bytes:
    """The address of a request without the token."""
    # With two slashes it would be the name of another host.
    path: bytes = b"/" + scope["raw_path"].lstrip(b"/\\")
    said = parse_qsl(scope["query_string"].decode("latin-1"))
    query = urlencode([(name, value) for name, value in said if name != "token"], quote_via=quote)
    return path + (f"?{query}".encode() if query else b"")


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
