"""The object storage server beside a scheduler, with a real server."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

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


def test_a_slow_server_is_waited_for_and_a_hung_one_replaced(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    address = Address.parse(f"tcp://127.0.0.1:{free_ports()}")
    server = StorageServer(COMMAND.read([str(address)], {}), address)
    late, probes, up = [0.0], [0], asyncio.Event()
    listens = storage_server._listens

    async def probe(address: Address) -> bool:
        probes[0] += 1
        return await listens(address)

    async def watch(address: Address) -> None:
        up.set()
        await asyncio.Event().wait()

    async def until(condition: Callable[[], bool]) -> None:
        while not condition():
            await asyncio.sleep(0.01)

    async def wait_in_vain(seconds: float) -> None:
        """Let so many seconds seem to pass; the server is looked for before and after."""
        for passed in (seconds, 0.0):
            seen = probes[0]
            await until(partial(lambda seen: probes[0] > seen + 1, seen))
            late[0] += passed

    async def starts() -> None:
        first = stop(server)
        keeping = asyncio.ensure_future(server.keep())
        await wait_in_vain(storage_server.START_SECONDS - 10)
        assert pid(server) == first and not caplog.messages
        late[0] += 10
        await until(lambda: pid(server) != first)
        [line] = caplog.messages
        assert line.endswith(f"{server.address} was killed: it did not listen for 60 s; starting one again")
        assert not Path(f"/proc/{first}").exists(), "the hung one is left"
        second = stop(server)
        await wait_in_vain(storage_server.START_SECONDS - 10)
        os.kill(second, signal.SIGCONT)
        await up.wait()
        keeping.cancel()
        assert pid(server) == second and len(caplog.messages) == 1

    caplog.set_level(logging.WARNING, "scaler")
    monkeypatch.setattr(storage_server, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + late[0]))
    monkeypatch.setattr(storage_server, "_listens", probe)
    monkeypatch.setattr(storage_server, "_until_gone", watch)
    server.start()
    try:
        asyncio.run(asyncio.wait_for(starts(), SECONDS))
    finally:
        server.end()


def pid(server: StorageServer) -> int:
    """The process that it has started last."""
    assert server._process is not None
    return server._process.pid


def stop(server: StorageServer) -> int:
    """Stop that process before it listens."""
    os.kill(pid(server), signal.SIGSTOP)
    return pid(server)


def test_a_server_that_ends_before_it_listens_is_replaced_soon(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    address = Address.parse(f"tcp://127.0.0.1:{free_ports()}")
    server = StorageServer(COMMAND.read([str(address)], {}), address)

    async def comes_up(address: Address) -> None:
        raise EOFError

    monkeypatch.setattr(storage_server, "START_SECONDS", 100 * SECONDS)
    monkeypatch.setattr(storage_server, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(storage_server, "_until_gone", comes_up)
    server.start()
    os.kill(pid(server), signal.SIGKILL)
    try:
        with pytest.raises(EOFError):
            asyncio.run(asyncio.wait_for(server.keep(), SECONDS))
        assert "ended, code -9; starting one again" in caplog.text
    finally:
        server.end()


def test_a_server_that_cannot_be_started_is_told_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    address = Address.parse(f"tcp://127.0.0.1:{free_ports()}")
    server = StorageServer(COMMAND.read([str(address)], {}), address)
    executable = sys.executable

    async def comes_up(address: Address) -> None:
        raise EOFError

    async def starts() -> None:
        keeping = asyncio.ensure_future(server.keep())
        while len(caplog.messages) < 2:
            await asyncio.sleep(0.01)
        monkeypatch.setattr(sys, "executable", executable)
        await keeping

    monkeypatch.setattr(storage_server, "RETRY_SECONDS", 0.1)
    monkeypatch.setattr(storage_server, "_until_gone", comes_up)
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    caplog.set_level(logging.WARNING, "scaler")
    server.start()
    try:
        with pytest.raises(EOFError):
            asyncio.run(asyncio.wait_for(starts(), SECONDS))
        assert {message.partition(": [Errno 2]")[0] for message in caplog.messages} == {
            "Scheduler: the object storage server cannot be started, will try again in 0.1 s"
        }
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
