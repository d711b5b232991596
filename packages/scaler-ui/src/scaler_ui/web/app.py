"""The program `scaler_ui`, also called `scaler_gui`: serves pages about the cluster from a separate process."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import re
import secrets
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from scaler_io.ports import listen_problem
from scaler_io.security.keyring import SUBSCRIBER_KEYS
from scaler_io.service.cli import Command
from scaler_io.service.options import KEYS, PARENT_PID, Option, Refusal, UsageError, path, whole_number
from scaler_io.transport.own_keys import credentials_for
from scaler_protocol.addresses import Address
from scaler_protocol.lazy_dataclass import dataclass
from scaler_ui.listening import Listening
from scaler_ui.web.certificates import check_tls

if TYPE_CHECKING:
    from scaler_ui.history.keeper import HistoryKeeper

# /usr/include/malloc.h
_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8
_LARGE_BYTES = 256 << 10
"""Blocks from this size on have mappings of their own: columns of a million rows do, rows and texts do not."""
_TOKEN_MOST = 250
"""Characters of a token: a browser drops cookies above 4,096 bytes; a character takes up to twelve bytes in it."""
_STARTED_SECONDS = 0.01
END_SECONDS = 3
"""How long answers that are under way may take after a signal: a reader may never take his."""
LOOK_SECONDS = 0.1
PAUSE_SECONDS = 0.025
"""The time for readers between two looks, when more arrives than can be read."""
HISTORY_DAYS = 7
"""How long the history is kept if --history-days is left out."""
KEEP_SECONDS = 2.0


def login_token(text: str) -> str:
    """What readers must know: a text that can be typed."""
    if not text or not text.isprintable():
        raise ValueError(f"{text!r} lets anybody in, or cannot be typed")
    if len(text) > _TOKEN_MOST:
        raise ValueError(f"a token has at most {_TOKEN_MOST} characters, not {len(text):,}: it is kept in a cookie")
    return text


def host_name(text: str) -> str:
    """The name of a host, without port."""
    if not re.fullmatch(r"[\w.:%-]+", text) or (":" in text and not Address(text, 1).is_numeric):
        raise ValueError(f"{text!r} is not the name or address of a host, without scheme and port")
    return text


_BROWSERS_OWN = {
    "accept", "accept-encoding", "accept-language", "connection", "cookie", "host", "origin", "referer", "user-agent",
}  # fmt: skip
"""Headers that a reader would be let in by without having been authenticated."""


def header_name(text: str) -> str:
    """The name of an HTTP header."""
    if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", text):
        raise ValueError(f"{text!r} is not the name of an HTTP header")
    if text.lower() in _BROWSERS_OWN:
        raise ValueError(f"{text!r} is sent by every browser: name a header that only the proxy sets")
    return text


def numeric_address(text: str) -> str:
    """The address that a connection comes from."""
    if not Address(text, 1).is_numeric:
        raise ValueError(f"{text!r} is not a numeric address")
    return text


@dataclass(frozen=True, slots=True)
class WebOptions:
    """Options from the command line, the environment and the TOML file."""

    address: Address
    host: str
    port: int
    token: str | None
    name: tuple[str, ...]
    parent_pid: int | None
    keys: Path | None = None
    insecure: bool = False
    tls_cert: Path | None = None
    tls_key: Path | None = None
    user_header: str | None = None
    proxy: tuple[str, ...] = ()
    history: Path | None = None
    history_days: int | None = None


COMMAND = Command(
    program="scaler_ui",
    description="Show a cluster in a browser.",
    section="gui",
    config=WebOptions,
    options=(
        Option(
            ("address", "monitor_address"),
            "the monitor: tcp://host:port (the scheduler's port + 2) or ipc://path",
            Address.parse_peer,
        ),
        Option(("--host", "--web-host"), "where to serve pages", host_name, default="127.0.0.1"),
        Option(
            ("--port", "-p", "--web-port"),
            "where to serve pages; 0: at a free port",
            whole_number(0, 65535),
            default=8081,
        ),
        Option(
            ("--token",),
            "what readers must know, and whoever acts; drawn and printed where other hosts can reach the pages",
            login_token,
            default=None,
            environment="SCALER_UI_TOKEN",
        ),
        Option(
            ("--name",),
            "further names that the pages are reached by, through a proxy for example",
            host_name,
            default=(),
            metavar="NAME",
            repeated=True,
        ),
        Option(
            ("--tls-cert", "-tc"),
            "serve pages over TLS with this certificate chain (PEM)",
            path,
            default=None,
            metavar="FILE",
        ),
        Option(
            ("--tls-key", "-tk"),
            "the private key of --tls-cert (PEM, not encrypted)",
            path,
            default=None,
            metavar="FILE",
        ),
        Option(
            ("--user-header",),
            "the header in which a proxy names the reader whom it has authenticated, X-Forwarded-User for example; "
            "such readers need no token, and their orders are logged with their names",
            header_name,
            default=None,
            metavar="NAME",
        ),
        Option(
            ("--proxy",),
            "the numeric address that the proxy connects from; --user-header is believed of these addresses only",
            numeric_address,
            default=("127.0.0.1", "::1"),
            metavar="ADDRESS",
            repeated=True,
        ),
        Option(
            ("--history",),
            "keep the last tasks, failures and figures in this file across restarts; it is made if there is none",
            path,
            default=None,
            metavar="FILE",
        ),
        Option(("--history-days",), "how long they are kept; 7 if left out", whole_number(1, 30), default=None),
        PARENT_PID,
        *KEYS,
    ),
    refusals=(
        Refusal(("--gui-address",), "say --host and --port"),
        Refusal(("--broadcast-interval-seconds", "-bi"), "pages follow every second; leave it out"),
        Refusal(("--task-log-max-size", "-tl"), "the last million tasks are kept; leave it out"),
    ),
    example="scaler_ui tcp://127.0.0.1:2347 --port 8081 --history history.db",
)


def token_for(options: WebOptions) -> str | None:
    """The token that readers must know; one is drawn if other hosts can reach the pages and no proxy names readers."""
    if options.token is not None or options.user_header is not None or Address(options.host, 1).is_local:
        return options.token
    return secrets.token_urlsafe(24)


def run_pages() -> None:
    """Serve the pages that the command line describes, until a signal."""
    options = COMMAND.read()
    if options.parent_pid is not None:
        from scaler_io.service.process import die_with_parent  # for Linux only

        die_with_parent(options.parent_pid)
    return_freed_memory()
    if options.history_days is not None and options.history is None:
        raise UsageError(f"--history-days {options.history_days} needs --history FILE, the file that is kept")
    token = token_for(options)
    warning = check_tls(options.tls_cert, options.tls_key)
    if warning:
        print(f"scaler_ui: {warning}", file=sys.stderr, flush=True)
    _check_free(options)
    credentials = credentials_for(options.address, options.keys, options.insecure, SUBSCRIBER_KEYS)
    listening = Listening(options.address, credentials=credentials)
    serve(listening, options, token)


def return_freed_memory() -> None:
    """Have glibc return the memory of freed columns to the system.

    Freed memory stays in an arena, so all threads use one; a large block has a mapping of its own, as long as the
    threshold for that does not grow by itself, see mallopt(3).
    """
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        if hasattr(libc, "mallopt"):
            libc.mallopt(_M_ARENA_MAX, 1)
            libc.mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)


def _check_free(options: WebOptions) -> None:
    """Raise OSError if the address is in use: the server itself would log a long traceback."""
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    try:
        socket.create_server((options.host, options.port), family=family).close()
    except OSError as error:
        problem = listen_problem(error.errno, error.strerror or str(error))
        raise OSError(f"cannot listen to {options.host} port {options.port}: {problem}") from None


def _is_a_fault(record: logging.LogRecord) -> bool:
    """Drops the tracebacks of readers who disconnect during a request, or have not taken their answer at the end."""
    error = record.exc_info[1] if record.exc_info else None
    left = isinstance(error, RuntimeError) and str(error) == "No response returned."
    return not left and not isinstance(error, asyncio.CancelledError)


async def _tell_address(options: WebOptions, token: str | None) -> None:
    """Print the address that a reader opens, once it is answered."""
    from nicegui.server import Server

    while not Server.instance.started:
        await asyncio.sleep(_STARTED_SECONDS)
    port = Server.instance.servers[0].sockets[0].getsockname()[1]
    print(f"scaler_ui: open {_page_address(options, port, token)}", flush=True)


def _page_address(options: WebOptions, port: int, token: str | None) -> str:
    """The address of the pages at this port."""
    host = f"[{options.host}]" if ":" in options.host else options.host
    scheme = "https" if options.tls_cert is not None else "http"
    return f"{scheme}://{host}:{port}/" + (f"?token={quote(token, safe='')}" if token else "")


def _end_without_memory(error: Exception) -> None:
    """End the process if memory is exhausted: the model may lack a part of what it was taking in, for good."""
    if isinstance(error, MemoryError):
        os.write(sys.stderr.fileno(), b"scaler_ui: memory is exhausted: it ends\n")
        os._exit(1)


def serve(listening: Listening, options: WebOptions, token: str | None) -> None:
    """Serve the pages. NiceGUI is imported here, because that takes seconds."""
    from nicegui import app, background_tasks
    from starlette.requests import Request
    from starlette.responses import Response

    from scaler_ui.web.access import AccessGuard
    from scaler_ui.web.operator_actions import OperatorActions
    from scaler_ui.web.pages import Pages
    from scaler_ui.web.requests import FILES, ODD_EVENT_LOGS, CompressedFiles, HeadAsGet, tell_odd_events, unknown_page

    logging.getLogger("uvicorn.error").addFilter(_is_a_fault)
    for name in ODD_EVENT_LOGS:
        logging.getLogger(name).addFilter(tell_odd_events)
    _add_metrics(listening)

    @app.exception_handler(404)
    def unknown(request: Request, error: Exception) -> Response:
        return unknown_page()

    names = (options.host, socket.gethostname(), socket.getfqdn(), *options.name)
    app.add_middleware(CompressedFiles, paths=FILES)
    app.add_middleware(HeadAsGet)
    app.add_middleware(AccessGuard, token=token, names=names, user_header=options.user_header, proxies=options.proxy)
    app.on_exception(_end_without_memory)

    async def look() -> None:
        listening.look()
        await asyncio.sleep(PAUSE_SECONDS)

    app.timer(LOOK_SECONDS, look)
    app.on_shutdown(listening.close)
    # Without a login the pages are read-only, because every process of this host can reach them.
    actions = None
    if token is not None or options.user_header is not None:
        actions = OperatorActions(listening.model, options.address, keys=options.keys, insecure=options.insecure)
    if actions is not None:
        app.timer(LOOK_SECONDS, actions.turn)
        app.on_shutdown(actions.close)
    Pages(listening, actions, _keeper(listening, options)).add()
    app.on_startup(lambda: background_tasks.create(_tell_address(options, token)))
    if sys.platform == "linux":
        from scaler_io.service.process import end_if_told

        end_if_told()
    _run_server(options)


def _add_metrics(listening: Listening) -> None:
    """Answer Prometheus."""
    from nicegui import app
    from prometheus_client import CollectorRegistry
    from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
    from starlette.responses import Response

    from scaler_io.service.metrics import StatusCollector
    from scaler_ui.web.delay_metrics import DelayCollector

    registry = CollectorRegistry()
    registry.register(StatusCollector(listening.figures))
    registry.register(DelayCollector(listening))

    @app.get("/metrics")
    def metrics() -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


def _keeper(listening: Listening, options: WebOptions) -> HistoryKeeper | None:
    """What keeps the history, if it is to be kept; the model has it then."""
    from nicegui import app

    from scaler_ui.history.file import HistoryFile
    from scaler_ui.history.keeper import HistoryKeeper

    if options.history is None:
        return None
    keeper = HistoryKeeper(HistoryFile(options.history, options.history_days or HISTORY_DAYS), listening.model)
    app.timer(KEEP_SECONDS, keeper.turn)
    app.on_shutdown(keeper.close)
    return keeper


def _run_server(options: WebOptions) -> None:
    """Answer requests until a signal."""
    from nicegui import app, core, ui

    from scaler_ui.web.requests import LimitedProtocol

    app.colors(primary="#1d4ed8")  # white can be read on it
    # Without a WebSocket a reader's odd message makes python-engineio wait for ever.
    app.config.socket_io_js_transports = core.sio.eio.transports = ["websocket"]
    app.config.quasar_config["loadingBar"]["skipHijack"] = True  # a progress bar without a name, of loading scripts
    ui.run(
        host=options.host,
        port=options.port,
        title="Scaler",
        language="en-US",
        favicon=Path(__file__).with_name("favicon.svg"),
        dark=None,
        reload=False,
        show=False,
        show_welcome_message=False,
        reconnect_timeout=30,
        timeout_graceful_shutdown=END_SECONDS,
        tailwind=False,
        http=LimitedProtocol,
        proxy_headers=False,  # they would replace the address that a connection comes from
        ssl_certfile=options.tls_cert,
        ssl_keyfile=options.tls_key,
    )
