"""Requests of readers: unfinished ones, HEAD, and files."""

from __future__ import annotations

import asyncio
import gc
import gzip
import logging
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import uvicorn

from scaler_ui.web import requests

REQUEST = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"


async def page(scope: Any, receive: object, send: Callable[[dict[str, Any]], Awaitable[None]]) -> None:
    await asyncio.sleep(0.5 if scope["path"] == "/slow" else 0)
    status = 200 if scope["method"] == "GET" else 405
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


async def answers(port: int, *sent: bytes) -> bytes:
    """All that a server answers until it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for part in sent:
        writer.write(part)
        await asyncio.sleep(0.05)
    said = await asyncio.wait_for(reader.read(), 30)
    writer.close()
    return said


def test_who_does_not_finish_a_request_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "HEAD_SECONDS", 0.2)

    async def all_answers() -> list[bytes]:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            application = requests.HeadAsGet(page)
            config = uvicorn.Config(
                application, http=requests.LimitedProtocol, lifespan="off", log_level="warning", ws="none"
            )
            server = uvicorn.Server(config)
            serving = asyncio.create_task(server.serve([listener]))
            port = listener.getsockname()[1]
            slow = REQUEST.replace(b"/ ", b"/slow ")
            said = await asyncio.gather(
                answers(port),
                answers(port, REQUEST[:-2]),
                answers(port, slow),
                answers(port, REQUEST, REQUEST, REQUEST[:-2]),
                answers(port, REQUEST.replace(b"GET", b"HEAD")),
            )
            server.should_exit = True
            await serving
            return list(said)

    silent, unfinished, slow, several, head = asyncio.run(all_answers())
    assert (silent, unfinished) == (b"", b"")
    assert slow.endswith(b"ok"), "the time of an answer is not limited"
    assert several.count(b"200 OK") == 2
    assert b"200 OK" in head and head.endswith(b"\r\n\r\n"), "only the head of the page"


def test_a_head_without_end_is_refused_and_a_long_body_is_not() -> None:
    received = list[int]()

    async def reading(scope: Any, receive: Any, send: Callable[[dict[str, Any]], Awaitable[None]]) -> None:
        more = True
        while more:
            message = await receive()
            received.append(len(message["body"]))
            more = message["more_body"]
        await page(scope | {"method": "GET"}, receive, send)

    async def all_answers() -> list[bytes]:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            config = uvicorn.Config(
                reading, http=requests.LimitedProtocol, lifespan="off", log_level="warning", ws="none"
            )
            server = uvicorn.Server(config)
            serving = asyncio.create_task(server.serve([listener]))
            port, size = listener.getsockname()[1], requests.HEAD_BYTES + 100
            closing = REQUEST[:-2] + b"Connection: close\r\n"
            sent = f"Content-Length: {size}\r\n\r\n".encode()
            said = await asyncio.gather(
                answers(port, closing + b"A: " + b"b" * size),
                answers(port, closing + b"A: b\r\n" * (size // 6)),
                answers(port, closing.replace(b"GET", b"POST") + sent, bytes(size)),
                answers(port, REQUEST.replace(b"GET", b"POST")[:-2] + sent + bytes(size), closing + b"\r\n"),
            )
            server.should_exit = True
            await serving
            return list(said)

    value, many, body, several = asyncio.run(all_answers())
    assert b"400 Bad Request" in value and b"400 Bad Request" in many
    assert b"200 OK" in body and several.count(b"200 OK") == 2
    assert sum(received) == 2 * (requests.HEAD_BYTES + 100)


def test_who_sends_many_requests_ahead_is_disconnected(caplog: pytest.LogCaptureFixture) -> None:
    answered = list[str]()

    async def slow(scope: Any, receive: object, send: Callable[[dict[str, Any]], Awaitable[None]]) -> None:
        await page({**scope, "path": "/slow"}, receive, send)
        answered.append(scope["path"])

    async def all_answers() -> list[bytes | BaseException]:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            config = uvicorn.Config(slow, http=requests.LimitedProtocol, lifespan="off", ws="none", log_config=None)
            server = uvicorn.Server(config)
            serving = asyncio.create_task(server.serve([listener]))
            port = listener.getsockname()[1]
            closing = REQUEST[:-2] + b"Connection: close\r\n\r\n"
            said = await asyncio.gather(
                answers(port, REQUEST, REQUEST, closing),
                answers(port, REQUEST.replace(b"/ ", b"/flood ") * 10_000),
                return_exceptions=True,
            )
            server.should_exit = True
            await serving
            return list(said)

    few, many = asyncio.run(all_answers())
    assert isinstance(few, bytes) and few.count(b"200 OK") == 3
    assert many == b"" or isinstance(many, ConnectionResetError)
    assert answered.count("/flood") <= 1 and not [record for record in caplog.records if record.exc_info]


def test_files_are_compressed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    text, asked = b"var a;" * 1_000, list[str]()

    async def files(scope: Any, receive: object, send: Callable[[dict[str, Any]], Awaitable[None]]) -> None:
        asked.append(scope["path"])
        headers = [(b"content-type", b"text/javascript"), (b"content-length", b"6000")]
        await send(
            {"type": "http.response.start", "status": 404 if "none" in scope["path"] else 200, "headers": headers}
        )
        await send({"type": "http.response.body", "body": text[:2_000], "more_body": True})
        if "broken" not in scope["path"]:
            await send({"type": "http.response.body", "body": text[2_000:]})

    application = requests.CompressedFiles(files, ("/static/",))

    def get(path: str, **headers: str) -> tuple[dict[bytes, bytes], bytes]:
        """Headers and body."""
        sent: list[dict[str, Any]] = []

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        fields = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        scope = {"type": "http", "method": "GET", "path": path, "headers": fields}
        asyncio.run(application(scope, None, send))
        return dict(sent[0]["headers"]), b"".join(message["body"] for message in sent[1:])

    for _ in range(3):
        headers, body = get("/static/a.js", accept_encoding="gzip, br")
        assert gzip.decompress(body) == text and headers[b"content-encoding"] == b"gzip"
        assert headers[b"content-length"] == str(len(body)).encode() and headers[b"content-type"] == b"text/javascript"
    assert asked == ["/static/a.js"]
    for path, headers_sent in (
        ("/static/a.js", {}),
        ("/static/a.js", {"accept_encoding": "gzip", "range": "bytes=0-5"}),
        ("/static/a.js", {"accept_encoding": "gzip", "if_none_match": "x"}),
        ("/static/none.js", {"accept_encoding": "gzip"}),
        ("/page", {"accept_encoding": "gzip"}),
    ):
        assert get(path, **headers_sent) == ({b"content-type": b"text/javascript", b"content-length": b"6000"}, text)
    asked.clear()
    for _ in range(2):
        assert get("/static/broken.js", accept_encoding="gzip")[1] == text[:2_000]
    assert asked == ["/static/broken.js"] * 2, "a part is not kept"
    monkeypatch.setattr(application, "_room", 10)
    asked.clear()
    for _ in range(2):
        assert gzip.decompress(get("/static/b.js", accept_encoding="gzip")[1]) == text
    assert asked == ["/static/b.js"] * 2, "there is no room for it"


@contextmanager
def one_line_each() -> Iterator[None]:
    loggers = list(map(logging.getLogger, requests.ODD_EVENT_LOGS))
    for logger in loggers:
        logger.addFilter(requests.tell_odd_events)
    yield
    for logger in loggers:
        logger.removeFilter(requests.tell_odd_events)


@pytest.mark.parametrize("garbage", ["42[", "4x", "4" + "9" * 5000, "42" + "[" * 5000])
def test_what_is_no_message_is_told_in_a_line(garbage: str, caplog: pytest.LogCaptureFixture) -> None:
    server = pytest.importorskip("socketio").AsyncServer(async_mode="asgi")

    async def message() -> None:
        await server.eio._trigger_event("message", "", garbage.removeprefix("4"))

    with one_line_each():
        asyncio.run(message())
    [told] = caplog.records
    assert "a reader's event is not understood" in told.getMessage() and not told.exc_info


def test_binary_parts_of_events_are_not_kept(caplog: pytest.LogCaptureFixture) -> None:
    server = pytest.importorskip("socketio").AsyncServer(async_mode="asgi")
    requests.refuse_binary_events(server)

    async def messages() -> None:
        await server.manager.connect("reader", "/")
        for message in ('5999-["event",{"_placeholder":true,"num":0}]', b"part", '2["event",{}]'):
            await server.eio._trigger_event("message", "reader", message)

    with one_line_each():
        asyncio.run(messages())
    assert "it has binary parts" in caplog.records[0].getMessage() and not server._binary_packet


def test_what_a_page_says_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    client = pytest.importorskip("nicegui").Client
    with one_line_each():
        client.handle_log_message(None, {"level": "error", "message": "\x1b[2Jno event\n[INFO] all is well %s"})
    [told] = caplog.records
    assert told.getMessage() == r"scaler_ui: a reader's page says: \x1b[2Jno event\n[INFO] all is well %s"


def test_a_readers_odd_event_is_told_in_a_line(caplog: pytest.LogCaptureFixture) -> None:
    server = pytest.importorskip("socketio").AsyncServer(async_mode="asgi")

    @server.on("event")  # type: ignore[untyped-decorator]
    def handle(_: str, message: dict[str, str]) -> None:
        message["client_id"]

    async def events() -> None:
        for data in ({}, {"\x1b[2J" * 100: ""}):
            task = asyncio.create_task(server._handle_event_internal(server, "", "", ["event", data], "/", None))
            await asyncio.wait([task])
        fault = asyncio.create_task(asyncio.to_thread(int, "ours"))
        await asyncio.wait([fault])

    with one_line_each():
        asyncio.run(events())
        gc.collect()
    odd = [record for record in caplog.records if "not understood: KeyError('client_id')" in record.getMessage()]
    assert len(odd) == 2 and not any(record.exc_info for record in odd)
    assert [str(record.exc_info[1]) for record in caplog.records if record.exc_info] == [
        "invalid literal for int() with base 10: 'ours'"
    ]
