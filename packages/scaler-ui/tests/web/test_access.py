"""Who may look at pages: names of this host, our own pages, and whoever has the token."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from scaler_protocol.addresses import Address
from scaler_ui.web.access import READER, READER_LENGTH, AccessGuard
from scaler_ui.web.app import COMMAND, WebOptions, token_for

PASSED = {"type": "passed"}
PROXY = "10.0.0.1"
HOST = ("host", "cluster:8081")


def ask(
    token: str | None,
    headers: dict[str, str] | list[tuple[str, str]],
    query: str = "",
    kind: str = "http",
    path: str = "/tasks",
    scheme: str = "http",
    user_header: str | None = None,
    client: str = "10.0.0.9",
    readers: list[str] | None = None,
) -> list[dict[str, Any]]:
    """What is sent in answer to a request; PASSED where it reached the application, which appends the reader's name."""
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(dict(message))

    async def receive() -> Any:
        return {}

    async def application(scope: Any, receive: Any, send: Any) -> None:
        if readers is not None:
            readers.append(scope[READER])
        await send(PASSED)

    scope = {
        "type": kind,
        "path": path,
        "raw_path": quote(path, safe="/\\%").encode(),
        "query_string": query.encode(),
        "headers": [
            (name.encode(), value.encode())
            for name, value in (headers.items() if isinstance(headers, dict) else headers)
        ],
        "scheme": scheme,
        "client": (client, 50_000),
    }
    asyncio.run(AccessGuard(application, token, ["Cluster"], user_header, [PROXY])(scope, receive, send))
    return sent


@pytest.mark.parametrize("host", ["localhost:8081", "127.0.0.1:8081", "[::1]:8081", "127.0.0.1"])
@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_without_a_token_names_of_this_host_are_answered(host: str, kind: str) -> None:
    assert ask(None, {"host": host, "origin": f"http://{host}"}, kind=kind) == [PASSED]


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": ""},
        {},
        {"host": "["},
        {"host": "[::1"},
        {"host": "127.0.0.1:8081", "origin": "http://evil.example"},
    ],
)
def test_foreign_names_and_origins_are_refused(headers: dict[str, str]) -> None:
    assert ask(None, headers)[0]["status"] == 403
    assert ask(None, headers, kind="websocket")[0]["type"] == "websocket.close"


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("//evil.example/", b"/evil.example/"),
        ("/\\\\evil.example", b"/evil.example"),
        ("///evil.example", b"/evil.example"),
        ("/a\r\nset-cookie: b=c", b"/a%0D%0Aset-cookie%3A%20b%3Dc"),
        ("/", b"/"),
    ],
)
def test_nobody_is_sent_to_another_host(path: str, place: bytes) -> None:
    start, _ = ask("secret", {"host": "cluster:8081"}, "token=secret", path=path)
    assert start["status"] == 303 and dict(start["headers"])[b"location"] == place


@pytest.mark.parametrize("origin", ["http://[", "[", "http://127.0.0.1:8081.evil.example", "null"])
def test_an_origin_that_is_none_is_refused(origin: str) -> None:
    assert ask(None, {"host": "127.0.0.1:8081", "origin": origin})[0]["status"] == 403


def test_the_address_that_was_asked_for_stays_without_the_token() -> None:
    path, query = "/client/a%2Fb%3Fc", "state=raised&token=secret&function=a%20b%26c"
    start, _ = ask("secret", {"host": "cluster:8081"}, query, path=path)
    assert dict(start["headers"])[b"location"] == b"/client/a%2Fb%3Fc?state=raised&function=a%20b%26c"


def test_the_token_comes_once_and_stays_in_a_cookie() -> None:
    start, _ = ask("secret", {"host": "cluster:8081"}, "token=secret")
    assert start["status"] == 303
    headers = dict(start["headers"])
    assert headers[b"location"] == b"/tasks"
    assert headers[b"set-cookie"] == b"scaler_token=secret; HttpOnly; SameSite=Strict; Path=/"
    with_cookie = {"host": "cluster:8081", "cookie": "other=1; scaler_token=secret"}
    assert ask("secret", with_cookie) == [PASSED]
    with_origin = {**with_cookie, "origin": "http://cluster:8081"}
    assert ask("secret", with_origin) == ask("secret", with_origin, kind="websocket") == [PASSED]
    numeric = {**with_cookie, "host": "10.0.0.7:8081"}
    assert ask("secret", numeric) == [PASSED]


@pytest.mark.parametrize("other", ["a@b=1", "a[0]=1", 'a={"b":"c d"}', "expires", 'a="\\', "a=\x01"])
def test_cookies_of_other_servers_of_this_host_keep_nobody_out(other: str) -> None:
    assert ask("secret", {"host": "cluster:8081", "cookie": f"{other}; scaler_token=secret"}) == [PASSED]


@pytest.mark.parametrize("token", ["a+b/c=", "a b;c&d", "ü%41"])
def test_a_token_of_any_characters_lets_in(token: str) -> None:
    start, _ = ask(token, {"host": "cluster:8081"}, urlencode({"token": token}))
    cookie = dict(start["headers"])[b"set-cookie"].decode().partition(";")[0]
    assert ask(token, {"host": "cluster:8081", "cookie": cookie}) == [PASSED]


@pytest.mark.parametrize(
    "words",
    [
        ["--token", ""],
        ["--token", "a\ud800"],
        ["--host", ""],
        ["--name", "cluster:8081"],
        ["--name", "http://cluster"],
        ["--user-header", ""],
        ["--user-header", "X User"],
        ["--user-header", "Host"],
        ["--user-header", "cookie"],
        ["--user-header", "X-User", "--proxy", "proxy.example"],
    ],
)
def test_what_would_let_in_anybody_or_nobody_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        COMMAND.read(["tcp://127.0.0.1:1", *words])
    assert capsys.readouterr().err.startswith(f"scaler_ui: {words[-2]}: ")


def test_a_name_is_told_as_the_option_takes_it() -> None:
    (_, body) = ask("secret", {"host": "pages.example:8081"})
    assert body["body"] == b"pages.example is not a known name of this host; add it with --name"
    (_, body) = ask(None, {"host": "pages.example:8081"})
    assert body["body"] == b"pages.example is not a known name of this host: without a login there is localhost only"


@pytest.mark.parametrize(("scheme", "forwarded"), [("https", "http"), ("http", "https")])
def test_the_cookie_is_not_sent_over_http_where_the_login_was_encrypted(scheme: str, forwarded: str) -> None:
    start, _ = ask("secret", dict([HOST, ("x-forwarded-proto", forwarded)]), "token=secret", scheme=scheme)
    assert dict(start["headers"])[b"set-cookie"].endswith(b"; Path=/; Secure")


@pytest.mark.parametrize("headers", [{}, {"host": "evil.example"}, {"host": "cluster:8081"}])
def test_no_page_may_be_shown_in_a_frame_of_another(headers: dict[str, str]) -> None:
    answered = dict(ask("secret", headers)[0]["headers"])
    assert answered[b"content-security-policy"] == b"frame-ancestors 'none'"
    assert (answered[b"x-frame-options"], answered[b"referrer-policy"]) == (b"DENY", b"no-referrer")


def test_a_proxy_names_the_reader() -> None:
    readers: list[str] = []
    named = [HOST, ("x-user", "ann@example.org")]
    for kind in ("http", "websocket"):
        headers = [*named, ("origin", "https://cluster:8081")]
        assert ask(None, headers, kind=kind, user_header="X-User", client=PROXY, readers=readers) == [PASSED]
    assert readers == ["ann@example.org"] * 2
    hostile = [HOST, ("x-user", "a\u202e\x1b" + "b" * 1000)]
    assert ask("secret", hostile, user_header="X-User", client=PROXY, readers=readers) == [PASSED]
    assert readers[2].isprintable() and len(readers[2]) == READER_LENGTH


@pytest.mark.parametrize(
    ("headers", "client"),
    [
        ([HOST, ("x-user", "ann")], "10.0.0.9"),  # not the proxy
        ([HOST], PROXY),
        ([HOST, ("x-user", " ")], PROXY),
        ([HOST, ("x-user", "ann"), ("x-user", "bob")], PROXY),  # which of them is the reader's own?
        ([HOST, ("x_user", "ann")], PROXY),
    ],
)
def test_a_reader_whom_no_proxy_names_is_refused(headers: list[tuple[str, str]], client: str) -> None:
    assert ask(None, headers, user_header="X-User", client=client)[0]["status"] == 401
    assert ask(None, headers, "token=", user_header="X-User", client=client)[0]["status"] == 401
    with_cookie = [*headers, ("cookie", "scaler_token=secret")]
    readers: list[str] = []
    assert ask("secret", with_cookie, user_header="X-User", client=client, readers=readers) == [PASSED]
    assert readers == [f"token at {client}"]


def test_a_token_is_no_use_under_a_foreign_name_or_without_an_origin() -> None:
    cookie = {"cookie": "scaler_token=secret"}
    assert ask("secret", {"host": "evil.example", **cookie})[0]["status"] == 403
    assert ask("secret", {"host": "cluster:8081", **cookie}, kind="websocket")[0]["type"] == "websocket.close"


@pytest.mark.parametrize("cookie", ["", "scaler_token=", "scaler_token=wrong", "scaler_token=secre"])
def test_without_the_token_nothing_is_answered(cookie: str) -> None:
    headers = {"host": "cluster:8081", "cookie": cookie}
    assert ask("secret", headers)[0]["status"] == 401
    assert ask("secret", headers, "token=wrong")[0]["status"] == 401
    assert ask("secret", headers, "token=secret", kind="websocket")[0]["type"] == "websocket.close"
    assert ask("secret", {**headers, "cookie": "scaler_token=secret", "origin": "http://evil"})[0]["status"] == 403


def test_a_token_is_drawn_where_other_hosts_can_reach_the_pages() -> None:
    def options(host: str, token: str | None = None, user_header: str | None = None) -> WebOptions:
        return WebOptions(Address("127.0.0.1", 1), host, 8081, token, (), None, user_header=user_header)

    assert token_for(options("127.0.0.1")) is None and token_for(options("::1")) is None
    assert token_for(options("127.0.0.1", "mine")) == token_for(options("0.0.0.0", "mine")) == "mine"
    assert token_for(options("0.0.0.0", user_header="X-User")) is None
    drawn = token_for(options("0.0.0.0"))
    assert drawn is not None and len(drawn) >= 32 and drawn != token_for(options("0.0.0.0"))
