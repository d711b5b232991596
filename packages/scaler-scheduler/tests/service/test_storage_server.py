"""The object storage server beside a scheduler, with a real server."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from scaler_protocol.addresses import Address
from scaler_scheduler.service import storage_server
from scaler_scheduler.service.options import COMMAND
from scaler_scheduler.service.storage_server import StorageServer
from support.faults import Service
from support.gates import SECONDS
from support.processes import free_ports
from support.waiting import wait_until


def test_nobody_else_is_waited_for_when_its_own_server_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    address = Address.parse(f"tcp://127.0.0.1:{free_ports()}")
    server = StorageServer(COMMAND.read([str(address)], {}), address)
    watched = asyncio.Queue[None]()
    until_gone = storage_server._until_gone

    async def watch(address: Address) -> None:
        watched.put_nowait(None)
        await until_gone(address)

    async def dies_twice() -> None:
        keeping = asyncio.ensure_future(server.keep())
        for _ in range(2):
            await watched.get()
            assert server._process is not None
            os.kill(server._process.pid, signal.SIGKILL)
        await watched.get()
        keeping.cancel()

    monkeypatch.setattr(storage_server, "WAIT_SECONDS", 100 * SECONDS)
    monkeypatch.setattr(storage_server, "_until_gone", watch)
    server.start()
    try:
        asyncio.run(asyncio.wait_for(dies_twice(), SECONDS))
    finally:
        server.end()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_of_the_terminal_leaves_nothing_of_it(tmp_path: Path, number: signal.Signals) -> None:
    """As Ctrl-C does it reaches the whole process group; the server still has the time to remove its files."""
    scheduler = Service(
        tmp_path / "log", "scaler_scheduler", f"tcp://127.0.0.1:{free_ports()}", "--segment-directory", str(tmp_path)
    )
    wait_until(lambda: "ObjectStorageServer: may have" in scheduler.said(), "object storage")
    [folder] = tmp_path.glob("scaler-objects-*")
    for file in range(3000):
        (folder / str(file)).touch()
    os.killpg(scheduler.pid, number)
    assert scheduler.process.wait(SECONDS) == 0
    assert not folder.exists() and "ObjectStorageServer: ended" in scheduler.said()
    assert "Traceback" not in scheduler.said()
