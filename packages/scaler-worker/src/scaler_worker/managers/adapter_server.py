"""`scaler_native_worker_adapter`: starts and stops workers of this host when it is asked over HTTP."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import os
import sys
from typing import TYPE_CHECKING, Any, Final

from scaler_io.service.process import main_guard

if TYPE_CHECKING:
    from aiohttp import web

    from scaler_io.service.cli import Command
    from scaler_worker.managers.adapter import AdapterOptions, WorkerAdapter

LOGGER: Final = logging.getLogger("scaler")
BODY_LIMIT: Final = 64 * 1024
"""Bytes of a request."""
POLL_SECONDS: Final = 0.1


def command() -> Command[AdapterOptions]:
    """The command line."""
    from scaler_io.service.cli import Command
    from scaler_io.service.options import REFUSED, Option, whole_number
    from scaler_worker.managers.adapter import AdapterOptions
    from scaler_worker.managers.native import UNITS_END_TOO
    from scaler_worker.managers.options import MANAGER_OPTIONS, MOST_WORKERS, manager_id

    own = (
        Option(
            ("--worker-manager-id", "-wmi"),
            "the manager that the workers belong to; given by a request",
            manager_id,
            default="",
            hidden=True,
        ),
        Option(
            ("--max-task-concurrency", "-mtc", "--max-workers", "-mw"),
            "the most workers; -1 for no limit",
            whole_number(-1, MOST_WORKERS),
            default=os.cpu_count() or 1,
        ),
        Option(("--host",), "where to listen", default="127.0.0.1"),
        Option(("--port", "-p"), "where to listen; 0 for a free one", whole_number(0, 65535), default=8080),
        Option(
            ("--auth-token",),
            "what requests must bring, as a bearer token or as auth_token; better given in the environment",
            default=None,
            environment="SCALER_ADAPTER_TOKEN",
        ),
    )
    taken = {"leave_units", *(option.destination for option in own)}
    return Command(
        program="scaler_native_worker_adapter",
        description="Start and stop workers on this host when a scheduler asks for them over HTTP.",
        section="native_worker_adapter",
        config=AdapterOptions,
        options=(*(option for option in MANAGER_OPTIONS if option.destination not in taken), *own),
        refusals=(*REFUSED, UNITS_END_TOO),
        example="scaler_native_worker_adapter tcp://127.0.0.1:2345 --host 127.0.0.1 --port 8080",
    )


class AdapterServer:
    """Answers POST / on one port."""

    def __init__(self, options: AdapterOptions, adapter: WorkerAdapter) -> None:
        self._options, self._adapter = options, adapter
        self._lock = asyncio.Lock()

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop`, then have all groups end; raises OSError if the port is taken."""
        from aiohttp import web

        application = web.Application(client_max_size=BODY_LIMIT)
        application.router.add_post("/", self._handle)
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        try:
            site = web.TCPSite(runner, self._options.host, self._options.port)
            await site.start()
            host, port = runner.addresses[0][:2]
            LOGGER.info("worker adapter: listen to http://%s:%d", f"[{host}]" if ":" in host else host, port)
            await stop.wait()
        finally:
            await runner.cleanup()
            await self._end()

    async def _handle(self, request: web.Request) -> web.Response:
        from aiohttp import web

        try:
            body = json.loads(await request.read())
        except web.HTTPRequestEntityTooLarge:
            return web.json_response({"error": f"the body is longer than {BODY_LIMIT} bytes"}, status=400)
        except (ValueError, RecursionError) as error:
            return web.json_response({"error": f"the body is not JSON: {error}"}, status=400)
        if not self._is_allowed(request.headers.get("Authorization", ""), body):
            return web.json_response({"error": "the token is missing or wrong"}, status=401)
        async with self._lock:
            answer = await asyncio.to_thread(self._adapter.answer, body)
        return web.json_response(dict(answer.body), status=answer.status)

    def _is_allowed(self, header: str, body: Any) -> bool:
        token = self._options.auth_token
        if token is None:
            return True
        given = header.removeprefix("Bearer ") if header else body.get("auth_token") if isinstance(body, dict) else None
        return hmac.compare_digest(str(given).encode(errors="surrogatepass"), token.encode())

    async def _end(self) -> None:
        """Have the groups drain and hand objects over, and kill those that take longer than they may."""
        from scaler_io.provisioning.core import EXIT_SECONDS

        loop = asyncio.get_running_loop()
        force_at = loop.time() + self._options.drain_timeout_seconds + EXIT_SECONDS
        self._adapter.stop(force=False)
        while self._adapter.groups():
            if loop.time() > force_at:
                self._adapter.stop(force=True)
            await asyncio.sleep(POLL_SECONDS)


def _run() -> int:
    from scaler_io import descriptors
    from scaler_io.service import event_loops
    from scaler_io.service.base import refuse_exposed
    from scaler_io.service.process import ending
    from scaler_protocol.addresses import Address
    from scaler_worker.managers.adapter import WorkerAdapter

    options = command().read()
    refuse_exposed(Address(options.host, options.port), options.insecure or options.auth_token is not None)
    try:
        import aiohttp  # noqa: F401
    except ImportError as error:
        raise ValueError(f"the adapter needs aiohttp ({error}): install scaler-worker[webhook]") from error
    options.begin_log()
    descriptors.raise_limit()

    async def main() -> int:
        await AdapterServer(options, WorkerAdapter(options)).run(ending(options.parent_pid))
        return 0

    return event_loops.run(main, options.event_loop)


def main() -> int:
    """Run the adapter until a signal; returns its exit code."""
    return main_guard("scaler_native_worker_adapter", _run)


if __name__ == "__main__":
    sys.exit(main())
