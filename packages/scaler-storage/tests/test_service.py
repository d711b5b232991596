"""The object storage server as a process: its command line, its lines, its signals, its port."""

from __future__ import annotations

import os
import re
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest

from scaler_io.links.hub import Hub
from scaler_io.links.link_record import PeerTimeouts
from scaler_io.objects.connection import ObjectConnection
from scaler_io.transport.zeromq import Listener
from scaler_protocol.addresses import Address
from scaler_protocol.errors import ObjectNotFoundError, ProtocolError, ScalerError, StorageFullError
from scaler_protocol.handshake import Refused
from support.waiting import wait_until
from support.warm_programs import run_warm

DEADLINE = 30
PROGRAM = "scaler_object_storage_server"
LOCAL = "tcp://127.0.0.1:0"
MIB = 1024 * 1024


class StorageProgram:
    """A server process; `address` waits until it can be reached."""

    def __init__(self, *words: str) -> None:
        self._ready, ready = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "scaler_storage", "--insecure", *words, "--ready-fd", str(ready)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=(ready,),
        )
        os.close(ready)

    @property
    def address(self) -> Address:
        readable, _, _ = select.select([self._ready], [], [], DEADLINE)
        assert readable
        text = os.read(self._ready, 1000).decode()
        assert text, self.process.communicate(timeout=DEADLINE)
        return Address.parse(text.strip())

    def ends(self) -> tuple[int, list[str], list[str]]:
        """The exit code, the texts of its log lines, and the lines on stderr."""
        out, err = self.process.communicate(timeout=DEADLINE)
        return self.process.returncode, [line.split(": ", 1)[1] for line in out.decode().splitlines()], _lines(err)

    def close(self) -> None:
        os.close(self._ready)
        self.process.terminate()
        self.process.communicate()


def _lines(text: bytes) -> list[str]:
    return text.decode().splitlines()


Start = Callable[..., StorageProgram]


@pytest.fixture
def start() -> Iterator[Start]:
    servers: list[StorageProgram] = []

    def started(*words: str) -> StorageProgram:
        servers.append(StorageProgram(*words))
        return servers[-1]

    yield started
    for server in servers:
        server.close()


both_signals = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])


def hard_limit() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[1]


@both_signals
def test_its_lines_from_start_to_end(start: Start, number: int, tmp_path: Path) -> None:
    server = start(LOCAL, "--memory-limit", "1000000", "--segment-directory", str(tmp_path))
    address = server.address
    [directory] = tmp_path.iterdir()
    server.process.send_signal(number)
    assert server.ends() == (
        0,
        [
            "logging to ('/dev/stdout',)",
            "use event loop: builtin",
            f"ObjectStorageServer: listen to object storage address {address}",
            f"ObjectStorageServer: keep up to 1,000,000 bytes in {directory}",
            f"ObjectStorageServer: may have {hard_limit()} files and connections open",
            "ObjectStorageServer: 0 objects left, 0 bytes in memory and 0 on disk; 0 reads from memory, 0 from disk, "
            "0 of unknown objects; 0 bytes spilled, 0 loaded back",
            "ObjectStorageServer: ended",
        ],
        [],
    )
    assert not list(tmp_path.iterdir())


@both_signals
def test_a_signal_while_it_starts(start: Start, number: int) -> None:
    server = start(LOCAL)
    assert server.process.stdout is not None
    assert server.process.stdout.read(1)  # of its first line: it is importing, or binding
    server.process.send_signal(number)
    code, _, complaints = server.ends()
    assert (code, complaints) == (0, [])


def test_it_serves_over_ipc_and_by_another_name(start: Start, tmp_path: Path) -> None:
    server = start(f"ipc://{tmp_path}/objects", "--identity", "Shelf")
    connection = ObjectConnection(server.address, session=1)
    reference = connection.put(b"bytes")
    assert connection.get(reference) == b"bytes"
    connection.close()
    server.process.terminate()
    code, texts, _ = server.ends()
    assert (code, texts[-1]) == (0, "Shelf: ended")
    assert not os.path.exists(f"{tmp_path}/objects")


def test_its_limit_is_kept_and_told(start: Start) -> None:
    server = start(LOCAL, "--memory-limit", "100000")
    connection = ObjectConnection(server.address, session=1)
    with pytest.raises(StorageFullError, match=r"100,000 bytes do not fit: 0 of 100,000 are in use.*tcp://127.0.0.1"):
        connection.put(bytes(100_000))
    connection.put(bytes(90_000))
    connection.close()
    server.process.terminate()
    assert re.search("storage is full: object .*: 100,000 bytes do not fit", server.ends()[1][-3])


def test_objects_go_to_disk_and_come_back_and_a_quota_is_kept(start: Start, tmp_path: Path) -> None:
    memory, disk = tmp_path / "memory", tmp_path / "disk"
    server = start(
        LOCAL, "--memory-limit", str(4 * MIB), "--segment-directory", str(memory),
        "--spill-directory", str(disk), "--spill-limit", str(6 * MIB),
    )  # fmt: skip
    connection = ObjectConnection(server.address, session=1)
    contents = [bytes([number]) * MIB for number in range(9)]
    references = [connection.put(content) for content in contents]
    with pytest.raises(StorageFullError, match=r"on disk; see .* --spill-directory \(object storage server"):
        for _ in range(2):
            connection.put(b"x" * MIB)
    for reference, content in zip(references[1:], contents[1:], strict=True):
        connection.delete(references[:1])
        assert connection.get(reference) == content
    for _ in range(20):
        connection.put(b"s" * 100_000)
    connection.close()
    server.process.terminate()
    _, texts, _ = server.ends()
    assert re.search(r"0 objects left, .* [1-9][\d,]+ bytes spilled, [1-9][\d,]+ loaded back", texts[-2])
    assert not list(memory.iterdir()) and not list(disk.iterdir())


def test_a_segment_directory_that_is_removed_is_made_again(start: Start, tmp_path: Path) -> None:
    server = start(LOCAL, "--segment-directory", str(tmp_path))
    connection = ObjectConnection(server.address, session=1)
    small, lost = connection.put(b"1" * 1000), connection.put(b"1" * MIB)
    [directory] = tmp_path.iterdir()
    shutil.rmtree(directory)
    wait_until((directory / "peers").exists, "a new directory", 60)
    assert sorted(path.name for path in directory.iterdir()) == ["lock", "peers", "token"]
    kept = connection.put(b"2" * MIB)
    assert connection.get(kept) == b"2" * MIB and connection.get(small) == b"1" * 1000
    with pytest.raises(ObjectNotFoundError):
        connection.get(lost)
    connection.close()
    server.process.terminate()
    assert sum("was removed by another program" in line for line in server.ends()[1]) == 1


def test_a_memory_that_is_full_harms_nothing_that_is_there(start: Start, mount: Callable[[int], Path]) -> None:
    server = start(LOCAL, "--memory-limit", str(1000 * MIB), "--segment-directory", str(mount(80)))
    connection = ObjectConnection(server.address, session=1)
    reference = connection.put(b"1" * 10 * MIB)
    for _ in range(2):
        with pytest.raises(StorageFullError, match="bytes do not fit"):
            connection.put(bytes(75 * MIB))
        # Each finds room when it begins: one of the writers finds out that the memory is full.
        ends: SimpleQueue[ScalerError | None] = SimpleQueue()
        references = [connection.put_soon(bytes(40 * MIB), done=ends.put) for _ in range(2)]
        [fault] = filter(None, [ends.get(timeout=60) for _ in references])
        assert isinstance(fault, StorageFullError) and "the memory for segments is full" in str(fault)
        connection.delete(references)
    kept = connection.put(b"2" * 50 * MIB)
    for _ in range(2):
        with pytest.raises(StorageFullError, match="bytes do not fit"):
            connection.put(bytes(25 * MIB))
    assert connection.get(reference) == b"1" * 10 * MIB and connection.get(kept)[-1:] == b"2"
    connection.close()


def test_a_memory_that_is_full_goes_to_disk(start: Start, mount: Callable[[int], Path], tmp_path: Path) -> None:
    server = start(
        LOCAL, "--memory-limit", str(1000 * MIB), "--segment-directory", str(mount(8)),
        "--spill-directory", str(tmp_path / "disk"),
    )  # fmt: skip
    connection = ObjectConnection(server.address, session=1)
    contents = [bytes([number]) * 3 * MIB for number in range(6)]
    references = [connection.put(content) for content in contents]
    assert [bytes(connection.get(reference)) for reference in references] == contents
    connection.close()


def test_a_memory_that_is_too_small_is_told_once(start: Start, tmp_path: Path) -> None:
    server = start(LOCAL, "--memory-limit", str(2**60), "--segment-directory", str(tmp_path))
    assert server.address.port
    server.process.terminate()
    [line] = [text for text in server.ends()[1] if "has room for" in text]
    assert "less than the memory limit; see --segment-directory" in line


def test_it_ends_with_its_parent(start: Start) -> None:
    parent = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    server = start(LOCAL, "--parent-pid", str(parent.pid))
    assert server.address.port
    parent.communicate(b"\n", timeout=DEADLINE)
    assert server.ends()[0] == 0


def test_a_port_that_an_object_storage_server_has(start: Start) -> None:
    address = start(LOCAL).address
    code, _, complaints = start(str(address)).ends()
    expected = f"{PROGRAM}: cannot listen to {address}: an object storage server of Scaler is already running there"
    assert code == 1
    assert complaints == [f"{expected}; use that one, or choose another port"]


def test_a_port_that_another_service_has(start: Start) -> None:
    listener = Listener(Address.parse(LOCAL))
    hub = Hub(1, admit=lambda hello: Refused(["no"]), timeouts=lambda hello: PeerTimeouts(1, 1))
    ended = threading.Event()

    def serve() -> None:
        while not ended.is_set():
            if not listener.readable():
                select.select([listener.fileno()], [], [], 0.05)
            for route, frames in listener.receive():
                try:
                    hub.receive(route, frames, time.monotonic())
                except ProtocolError:
                    continue
            for route, written in hub.outgoing():
                listener.send(route, written)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        code, _, complaints = start(str(listener.address)).ends()
    finally:
        ended.set()
        thread.join()
        listener.close()
    assert code == 1
    expected = f"cannot listen to {listener.address}: another service of Scaler has this address; choose another port"
    assert complaints == [f"{PROGRAM}: {expected}"]


def test_a_port_that_a_stranger_has(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        address = f"tcp://127.0.0.1:{stranger.getsockname()[1]}"
        code, _, complaints = start(address).ends()
    assert (code, len(complaints)) == (1, 1)
    assert complaints[0].lower().startswith(f"{PROGRAM}: cannot listen to {address}: address already in use")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["tcp://0.0.0.0:0", "--no-insecure"], "can be reached from other hosts"),
        (["127.0.0.1:80"], "write tcp://host:port"),
        ([LOCAL, "--memory-limit", "0"], "0 is less than 1 byte"),
        ([LOCAL, "--spill-limit", "5"], "--spill-limit needs a --spill-directory"),
        ([LOCAL, "--io-threads", "2"], "--io-threads: every process has one ZeroMQ thread"),
        ([LOCAL, "--memory-limt", "9"], "did you mean --memory-limit"),
        ([], "missing ADDRESS"),
    ],
)
def test_what_it_refuses(words: list[str], complaint: str) -> None:
    ended = run_warm("scaler_storage", "--insecure", *words)
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)
    assert complaint in ended.stderr


def test_the_table_of_a_toml_file(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "scaler.toml"
    file.write_text(f'[object_storage_server]\naddress = "{LOCAL}"\nmemory_limit = 1000\n')
    server = start("--config", str(file))
    assert server.address.port
    server.process.terminate()
    assert "keep up to 1,000 bytes" in server.ends()[1][3]
