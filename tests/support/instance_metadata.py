"""The metadata service of an instance of EC2, version 2, as a real HTTP server on loopback."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class InstanceMetadata:
    """Answers those who have a token; `notice` has it tell that a spot instance is taken away."""

    def __init__(self) -> None:
        self.notice = threading.Event()
        self.asked = threading.Semaphore(0)
        """One more for each question about a notice."""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                is_token = self.path == "/latest/api/token" and self.headers["X-aws-ec2-metadata-token-ttl-seconds"]
                self._answer(200 if is_token else 400, "a token")

            def do_GET(self) -> None:
                if self.headers["X-aws-ec2-metadata-token"] != "a token":
                    self._answer(401)
                elif self.path == "/latest/meta-data/ami-launch-index":
                    self._answer(200, "3")
                elif self.path == "/latest/meta-data/spot/instance-action":
                    self._answer(200 if outer.notice.is_set() else 404, '{"action": "terminate"}')
                    outer.asked.release()
                else:
                    self._answer(404)

            def _answer(self, status: int, text: str = "") -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        """Where it listens; for instances it is http://169.254.169.254."""
        return f"http://127.0.0.1:{self.server.server_port}"


@contextmanager
def metadata_service() -> Iterator[InstanceMetadata]:
    """A service that ends with the context."""
    metadata = InstanceMetadata()
    thread = threading.Thread(target=metadata.server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield metadata
    finally:
        metadata.server.shutdown()
        thread.join()
        metadata.server.server_close()
