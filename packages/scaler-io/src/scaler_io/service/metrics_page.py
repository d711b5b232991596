"""MetricsPage: serves `/metrics` over HTTP in threads of its own, of which strangers get few."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app

from scaler_io.ports import listen_problem
from scaler_io.service.metrics import Newest, StatusCollector
from scaler_io.transport.endpoint import ListenError
from scaler_protocol.addresses import Address

READERS_MOST = 16
"""Connections at a time, each of which takes a thread and a descriptor of the process; the oldest beyond are closed."""
SILENCE_SECONDS = 5.0
"""How long a reader may say nothing."""


class _PageRequest(WSGIRequestHandler):
    timeout = SILENCE_SECONDS

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged."""


class _PageServer(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def __init__(self, address: Address) -> None:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family, host = found[0][0], str(found[0][4][0])
        self._readers: dict[socket.socket, None] = {}
        self._lock = threading.Lock()
        super().__init__((host, address.port), _PageRequest)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._readers[request] = None
            if len(self._readers) > READERS_MOST:
                oldest = next(iter(self._readers))
                del self._readers[oldest]
                with suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)  # its thread reads the end, and closes it
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._readers.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader that goes away is no fault of this process."""


class MetricsPage:
    """Serves `/metrics` at an address; raises ListenError if it cannot listen there."""

    def __init__(self, address: Address, newest: Newest) -> None:
        registry = CollectorRegistry()
        registry.register(StatusCollector(newest))
        try:
            self._server = _PageServer(address)
        except OSError as error:
            where = str(address).removeprefix("tcp://")
            raise ListenError(
                f"cannot serve metrics at {where}: {listen_problem(error.errno, error.strerror or str(error))}"
            ) from None
        self._server.set_app(make_wsgi_app(registry))
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()
        self.port: int = self._server.server_port

    def close(self) -> None:
        """Free the address."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
