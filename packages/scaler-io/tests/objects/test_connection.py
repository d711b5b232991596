"""ObjectConnection against a real object storage server, which is stopped, killed and cut off; and its transfers."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from scaler_io.links.uplink import Uplink
from scaler_io.objects import multiplexer
from scaler_io.objects.connection import ObjectConnection
from scaler_io.objects.connection_thread import ConnectionThread
from scaler_io.objects.file_locks import LIVENESS_LOCKS, PEERS, is_unlocked
from scaler_io.objects.mmaps import Mappings
from scaler_io.objects.operations import Download, Operation, Upload
from scaler_protocol.addresses import Address
from scaler_protocol.errors import (
    ClientQuitError,
    HandshakeRefusedError,
    MalformedMessageError,
    ObjectNotFoundError,
    ObjectRefusedError,
    ProtocolError,
    ScalerError,
    StorageFullError,
    StorageLostError,
    describe,
)
from scaler_protocol.handshake import Hello, Role
from scaler_protocol.messages import Message
from scaler_protocol.objects import PART_BYTES, SHARED_BYTES, Reference, new_object_id
from scaler_protocol.payloads import Payloads
from scaler_protocol.storage import ObjectPart, ObjectStored, PutObject
from support.foreign_clients import babbling
from support.processes import run_code
from support.relays import Relay
from support.storage_processes import INVERTED, MIB, InvertingCopies, StorageProcess, pattern

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="servers run on Linux only")

DEADLINE = 60
Connect = Callable[..., ObjectConnection]
on_another_host = pytest.mark.usefixtures("far")


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


class Sent:
    """Sees every request for a part when it is sent: `at(3)` waits for the fourth part of an object."""

    def __init__(self, patch: pytest.MonkeyPatch, kind: type[Operation]) -> None:
        self._events = [threading.Event() for _ in range(64)]
        self.order: list[bytes] = []
        request = kind.request

        def watched(transfer: Operation, index: int, number: int) -> Message:
            self.order.append(transfer.reference.object)
            self._events[index].set()
            return request(transfer, index, number)

        patch.setattr(kind, "request", watched)

    def at(self, index: int) -> None:
        assert self._events[index].wait(DEADLINE)


@pytest.mark.parametrize("size", [0, 1, 70_000, SHARED_BYTES - 1, SHARED_BYTES, PART_BYTES, PART_BYTES + 1, 64 * MIB])
def test_what_is_put_comes_back(server: StorageProcess, connect: Connect, size: int) -> None:
    content = pattern(size)
    writer, reader = connect(server.address), connect(server.address, session=2)
    reference = writer.put(content)
    assert reference.size == size
    assert reader.get(reference) == content


@on_another_host
@pytest.mark.parametrize("size", [SHARED_BYTES, PART_BYTES + 1, 16 * MIB])
def test_other_hosts_write_and_read_segments_in_parts(server: StorageProcess, connect: Connect, size: int) -> None:
    content = pattern(size)
    reference = connect(server.address).put(content)
    got = connect(server.address, session=2).get(reference)
    assert isinstance(got, bytes) and got == content


def put_copies(connection: ObjectConnection, size: int) -> None:
    """Of an object in uneven pieces the copies are stored, and nothing but them."""
    content, copying = b"some text " * (size // 10 + 1), InvertingCopies()
    pieces = [content[: size // 3], b"", content[size // 3 : size // 3 + 1], content[size // 3 + 1 : size]]
    reference = connection.put(pieces, copying=copying)
    assert connection.get(reference) == content[:size].translate(INVERTED) and copying.size == size


@pytest.mark.parametrize("size", [70_000, SHARED_BYTES, PART_BYTES + 1, 20 * MIB])
def test_copies_are_stored_where_others_may_change_the_buffers(
    server: StorageProcess, connect: Connect, size: int
) -> None:
    put_copies(connect(server.address), size)


@on_another_host
def test_copies_are_stored_in_parts_too(server: StorageProcess, connect: Connect) -> None:
    put_copies(connect(server.address), 20 * MIB)


def test_without_a_thread_nothing_is_connected_until_there_is_one(
    server: StorageProcess, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    connection = connect(server.address)
    with monkeypatch.context() as exhausted:
        exhausted.setattr(threading.Thread, "start", fail)
        with pytest.raises(StorageLostError, match="can't start new thread; see ulimit -u"):
            connection.put(b"content")
    assert connection.get(connection.put(b"content")) == b"content"


def test_a_refused_object_takes_no_room_from_the_next(connect: Connect) -> None:
    server = StorageProcess("--memory-limit", str(MIB))
    try:
        connection = connect(server.address)
        for _ in range(3):
            with pytest.raises(StorageFullError):
                connection.put(pattern(MIB + 1))
        assert connection.get(connection.put(pattern(MIB // 2))) == pattern(MIB // 2)
    finally:
        server.end()


def test_an_object_has_the_name_it_is_to_have(server: StorageProcess, connect: Connect) -> None:
    worker = connect(server.address, session=0, role=Role.AGENT)
    assert worker.put(b"named", session=3, name=b"n" * 16) == Reference(b"n" * 16, 5)
    assert connect(server.address).get(Reference(b"n" * 16, 5)) == b"named"


def test_opening_soon_does_not_wait(connect: Connect, server: StorageProcess) -> None:
    connect(Address.parse("tcp://127.0.0.1:1"), timeout_seconds=0.1).open_soon()
    connection = connect(server.address)
    for _ in range(3):
        connection.open_soon()
    thread = connection._thread
    assert connection.put(b"1") and connection._thread is thread


@pytest.mark.soak
def test_an_object_of_more_than_2_gib(server: StorageProcess, connect: Connect) -> None:
    connection = connect(server.address)
    block = pattern(32 * MIB) * 8
    reference = connection.put([*[block] * 8, b"end"])
    content = connection.get(reference)
    assert len(content) == reference.size == 2**31 + 3
    assert content[-MIB:] == block[3 - MIB :] + b"end"


def test_several_buffers_are_one_object(server: StorageProcess, connect: Connect) -> None:
    content = pattern(3 * MIB)
    cuts = [0, 0, 5, MIB, MIB + 1, 2 * MIB + 7, 3 * MIB, 3 * MIB]
    pieces = [content[start:end] for start, end in pairwise(cuts)]
    buffers = [kind(piece) for kind, piece in zip([bytes, bytearray, memoryview] * 3, pieces, strict=False)]
    connection = connect(server.address)
    assert connection.get(connection.put(buffers)) == content
    assert connection.get(connection.put([])) == b""
    assert connection.get(connection.put(memoryview(content).cast("Q"))) == content


def test_a_deleted_object_is_not_found_at_once(server: StorageProcess, connect: Connect) -> None:
    connection = connect(server.address)
    kept, *gone = [connection.put(b"x" * 20_000) for _ in range(3)]
    connection.delete(gone)
    for reference in gone:
        with pytest.raises(ObjectNotFoundError, match=f"{reference.object.hex()}.*{server.address}"):
            connection.get(reference)
    assert connection.get(kept)
    connection.clear()
    with pytest.raises(ObjectNotFoundError):
        connection.get(kept)


def test_a_reference_of_another_size_is_not_found(server: StorageProcess, connect: Connect) -> None:
    connection = connect(server.address)
    reference = connection.put(b"12345")
    with pytest.raises(ObjectNotFoundError):
        connection.get(Reference(reference.object, 6))


def test_sessions_delete_and_write_only_their_own(server: StorageProcess, connect: Connect) -> None:
    alice, bob = connect(server.address, session=1), connect(server.address, session=2)
    hers, his = alice.put(b"hers"), bob.put(b"his")
    bob.delete([hers])
    bob.clear()
    with pytest.raises(ObjectNotFoundError):
        bob.get(his)
    assert bob.get(hers) == b"hers"
    with pytest.raises(ObjectRefusedError, match="session 1 is another client's"):
        bob.put(b"forged", session=1)


def test_a_worker_puts_results_that_outlive_it_but_not_the_client(server: StorageProcess, connect: Connect) -> None:
    client, worker = connect(server.address, session=5), connect(server.address, session=0, role=Role.AGENT)
    client.open()
    result = worker.put(b"result", session=5)
    worker.close()
    assert client.get(result) == b"result"
    client.close()
    other = connect(server.address, session=6)
    with pytest.raises(ObjectNotFoundError):
        other.get(result)
    late = connect(server.address, session=0, role=Role.AGENT)
    with pytest.raises(ObjectRefusedError, match="session 5 has ended"):
        late.put(b"late", session=5)


def test_three_clients_at_once(server: StorageProcess, connect: Connect, pool: ThreadPoolExecutor) -> None:
    def work(session: int) -> None:
        connection = connect(server.address, session=session)
        contents = [pattern(size + session) for size in (20_000, 5 * MIB, 0, 3 * MIB, 100_000)]
        references = [connection.put(content) for content in contents]
        assert [connection.get(reference) for reference in references] == contents

    list(pool.map(work, range(1, 4)))


@on_another_host
def test_a_small_object_does_not_wait_for_a_big_one(
    server: StorageProcess, connect: Connect, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = connect(server.address)
    connection.open()
    sent = Sent(monkeypatch, Upload)
    server.process.send_signal(signal.SIGSTOP)
    big = pool.submit(connection.put, pattern(32 * MIB))
    sent.at(multiplexer.WINDOW_BYTES // PART_BYTES - 1)
    taken = threading.Event()
    start = ConnectionThread.start

    def watched(carrier: ConnectionThread, transfer: Operation) -> bool:
        started = start(carrier, transfer)
        taken.set()
        return started

    monkeypatch.setattr(ConnectionThread, "start", watched)
    small = pool.submit(connection.put, b"small")
    assert taken.wait(DEADLINE)
    server.process.send_signal(signal.SIGCONT)
    name = small.result(DEADLINE).object
    assert big.result(DEADLINE).size == 32 * MIB
    assert sent.order.index(name) <= 2 * multiplexer.WINDOW_BYTES // PART_BYTES


def stop_in_the_middle(
    server: StorageProcess, connection: ObjectConnection, pool: ThreadPoolExecutor, sent: Sent, content: bytes
) -> Future[Reference]:
    """A put to a server that is stopped, of which parts were sent: it takes none of them any more."""
    connection.open()
    server.process.send_signal(signal.SIGSTOP)
    put = pool.submit(connection.put, content)
    sent.at(3)
    return put


@on_another_host
def test_a_server_killed_under_a_put_is_a_clear_error(
    server: StorageProcess, connect: Connect, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = connect(server.address, timeout_seconds=0.5)
    sent = Sent(monkeypatch, Upload)
    put = stop_in_the_middle(server, connection, pool, sent, pattern(32 * MIB))
    server.kill()
    error = put.exception(DEADLINE)
    assert isinstance(error, StorageLostError)
    assert f"object {sent.order[0].hex()} of 33,554,432 bytes: object storage server {server.address}" in str(error)


@on_another_host
def test_a_server_killed_under_a_get_is_a_clear_error(
    server: StorageProcess, connect: Connect, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = connect(server.address, timeout_seconds=0.5)
    reference = connection.put(pattern(32 * MIB))
    sent = Sent(monkeypatch, Download)
    server.process.send_signal(signal.SIGSTOP)
    got: Future[bytes | memoryview] = pool.submit(connection.get, reference)
    sent.at(3)
    server.kill()
    error = got.exception(DEADLINE)
    assert isinstance(error, StorageLostError)
    assert reference.object.hex() in str(error)


def test_the_next_operation_after_a_loss_tries_anew(server: StorageProcess, connect: Connect) -> None:
    connection = connect(server.address, timeout_seconds=0.5)
    old = connection.put(b"old")
    server.kill()
    with pytest.raises(StorageLostError, match=r"no connection for 0\.5 s"):
        connection.put(b"lost")
    server.start()
    assert connection.get(connection.put(b"new")) == b"new"
    with pytest.raises(ObjectNotFoundError):
        connection.get(old)


@on_another_host
def test_an_upload_begins_anew_with_a_server_that_came_back(
    server: StorageProcess, connect: Connect, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = connect(server.address)
    content = pattern(20 * MIB)
    put = stop_in_the_middle(server, connection, pool, Sent(monkeypatch, Upload), content)
    server.kill()
    server.start()
    assert connection.get(put.result(DEADLINE)) == content


def test_a_process_outlives_its_connection(server: StorageProcess, connect: Connect) -> None:
    relay = Relay(server.address)
    connection = connect(relay.address, timeout_seconds=0.5)
    before = {path for path, _, _ in LIVENESS_LOCKS._open.values()}
    reference = connection.put(bytes(SHARED_BYTES))
    [directory] = {path.parent for path, _, _ in LIVENESS_LOCKS._open.values()} - {path.parent for path in before}
    [life] = lives(directory)
    relay.close()
    with pytest.raises(StorageLostError, match="no connection"):
        connection.put(b"lost")
    with pytest.raises(StorageLostError, match="silent"):
        connection.check_server()
    assert lives(directory) == [life]  # the server looks at nothing else
    relay = Relay(server.address, relay.address.port)
    try:
        connection.check_server(DEADLINE)  # it comes back although nobody asks for anything
        assert connection.get(reference) == bytes(SHARED_BYTES)
        other = connect(server.address, session=2)
        other.open()
        assert lives(directory) == [life]
        connection.close()
        assert lives(directory) == [life]
    finally:
        relay.close()


def lives(directory: Path) -> list[Path]:
    """The files there that a process has locked."""
    return [path for path in directory.iterdir() if not is_unlocked(path)]


def test_a_fork_has_a_life_of_its_own(tmp_path: Path) -> None:
    (tmp_path / PEERS).mkdir()
    program = f"""
        import os
        from scaler_io.objects.file_locks import LIVENESS_LOCKS
        print(LIVENESS_LOCKS.name({str(tmp_path)!r}), flush=True)
        if not os.fork():
            print(LIVENESS_LOCKS.name({str(tmp_path)!r}), flush=True)
            os.read(0, 1)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        encoding="utf-8",
    )
    assert process.stdin is not None and process.stdout is not None
    with process.stdin, process.stdout:
        parent, child = (process.stdout.readline().strip() for _ in range(2))
        assert process.wait(DEADLINE) == 0
        assert is_unlocked(tmp_path / PEERS / parent) and not is_unlocked(tmp_path / PEERS / child)


@on_another_host
def test_a_cut_connection_is_resumed(
    server: StorageProcess, connect: Connect, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    relay = Relay(server.address)
    try:
        connection = connect(relay.address)
        connection.open()
        sent = Sent(monkeypatch, Upload)
        received = Sent(monkeypatch, Download)
        content = pattern(40 * MIB)
        put = pool.submit(connection.put, content)
        for index in (5, 20):
            sent.at(index)
            relay.cut()
        reference = put.result(DEADLINE)
        got = pool.submit(connection.get, reference)
        for index in (5, 20):
            received.at(index)
            relay.cut()
        assert got.result(DEADLINE) == content
        connection.close()
    finally:
        relay.close()


@on_another_host
def test_a_closed_connection_is_closed_for_everybody(
    server: StorageProcess, connect: Connect, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = connect(server.address)
    put = stop_in_the_middle(server, connection, pool, Sent(monkeypatch, Upload), pattern(20 * MIB))
    connection.close()
    assert isinstance(put.exception(DEADLINE), ClientQuitError)
    with pytest.raises(ClientQuitError, match=str(server.address)):
        connection.put(b"x")
    connection.close()


def test_nobody_there(connect: Connect) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = Address("127.0.0.1", free.getsockname()[1])
    connection = connect(address, timeout_seconds=0.2)
    with pytest.raises(StorageLostError, match=f"^object storage server {address}: no connection for 0.2 s$"):
        connection.open()


def test_a_server_that_only_babbles(connect: Connect) -> None:
    """Each connection gets its Welcome, and then what is no message."""
    with babbling() as address:
        connection = connect(Address.parse(address), timeout_seconds=0.5)
        for _ in range(2):
            with pytest.raises(StorageLostError, match=r"no (connection|answer) for 0\.5 s"):
                connection.put(b"lost")


def test_a_refusal(server: StorageProcess, connect: Connect) -> None:
    with pytest.raises(HandshakeRefusedError, match="refused the connection: a client has a session"):
        connect(server.address, session=0).put(b"x")


@pytest.mark.timeout(DEADLINE)
def test_a_refusal_that_comes_at_once(
    server: StorageProcess, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = ConnectionThread.__init__

    def begin_and_end(made: ConnectionThread, *words: Any) -> None:
        begin(made, *words)
        made._thread.join(DEADLINE)

    monkeypatch.setattr(ConnectionThread, "__init__", begin_and_end)
    with pytest.raises(HandshakeRefusedError, match="refused the connection: a client has a session"):
        connect(server.address, session=0).open()


def test_a_forked_process_connects_for_itself(server: StorageProcess) -> None:
    script = """
        import os, sys, warnings
        warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12 on: fork with threads
        from scaler_io.objects.connection import ObjectConnection
        from scaler_protocol.addresses import Address
        from scaler_protocol.objects import Reference

        connection = ObjectConnection(Address.parse(sys.argv[1]), session=1)
        mine = connection.put(b"mine" * 20_000)
        reader, writer = os.pipe()
        if not os.fork():
            assert connection._thread is None
            assert connection.get(mine) == b"mine" * 20_000
            os.write(writer, connection.put(b"child's" * 20_000).pack())
            connection.close()
            os._exit(0)
        assert connection.get(Reference.unpack(os.read(reader, 100))) == b"child's" * 20_000
        os.wait()
        assert connection.get(mine) == b"mine" * 20_000
        connection.close()
        print("done")
    """
    assert run_code(script, str(server.address)) == "done\n"


def test_an_interrupted_put_leaves_nothing_and_breaks_nothing() -> None:
    server = StorageProcess("--memory-limit", str(50 * MIB))
    script = """
        import os, signal, sys
        from scaler_io.objects import connection_thread
        from scaler_io.objects.connection import ObjectConnection
        from scaler_io.objects.operations import Upload
        from scaler_protocol.addresses import Address

        signal.signal(signal.SIGINT, signal.default_int_handler)  # programs in the background begin without
        connection_thread.read_token = lambda directory: b""  # parts are sent to other hosts only
        connection = ObjectConnection(Address.parse(sys.argv[1]), session=1)
        request = Upload.request

        def interrupted(upload, index, number):
            if index == 20:
                os.kill(os.getpid(), signal.SIGINT)
            return request(upload, index, number)

        for round in range(3):
            Upload.request = interrupted
            try:
                connection.put(bytes(40 << 20))
            except KeyboardInterrupt:
                pass
            else:
                raise AssertionError("it was not interrupted")
            Upload.request = request
            reference = connection.put(b"x" * (40 << 20))
            assert connection.get(reference) == b"x" * (40 << 20)
            connection.delete([reference])
        connection.close()
        print("done")
    """
    try:
        assert run_code(script, str(server.address)) == "done\n"
    finally:
        server.end()


def test_a_process_that_just_ends_ends_at_once(server: StorageProcess) -> None:
    script = """
        import sys
        from scaler_io.objects.connection import ObjectConnection
        from scaler_protocol.addresses import Address

        connection = ObjectConnection(Address.parse(sys.argv[1]), session=1)
        connection.put(b"x" * 3_000_000)
        print("done")
    """
    assert run_code(script, str(server.address)) == "done\n"


def test_the_window_is_what_takes_a_quarter_of_a_second() -> None:
    full = multiplexer.WINDOW_BYTES
    assert multiplexer.window_after(full, 0.0) == multiplexer.window_after(full, 0.25) == full
    assert multiplexer.window_after(full, 0.5) == full // 2
    assert multiplexer.window_after(full, 100.0) == PART_BYTES
    assert multiplexer.window_after(PART_BYTES, 0.01) == full
    assert multiplexer.window_after(PART_BYTES, 0.125) == 2 * PART_BYTES


# --- transfers and references ---------------------------------------------------------------------------------------


def test_parts_of_one_buffer_are_not_copied() -> None:
    content = bytearray(pattern(2 * MIB))
    upload = Upload(Reference(b"i" * 16, len(content)), [memoryview(content)], 1)
    message = upload.request(1, 9)
    assert isinstance(message, PutObject)
    content[MIB] = 200
    assert message.parts.frame[0] == 200
    assert (message.offset, message.size, message.session, message.request) == (MIB, 2 * MIB, 1, 9)


def test_answers_that_are_none_end_a_transfer() -> None:
    reference = Reference(b"i" * 16, 5)
    upload, download = Upload(reference, [memoryview(b"12345")], 1), Download(reference)
    with pytest.raises(ProtocolError, match="ObjectPart is not an answer to PutObject"):
        upload.answer(0, ObjectPart(b"i" * 16, False))
    with pytest.raises(ProtocolError, match="ObjectStored is not an answer to GetObject"):
        download.answer(0, ObjectStored(b"i" * 16))
    with pytest.raises(ProtocolError, match="has 3 bytes"):
        download.answer(0, ObjectPart(b"i" * 16, True, 5, Payloads([b"123"])))
    with pytest.raises(ScalerError, match="in words"):
        upload.answer(0, ObjectStored(b"i" * 16, 0, "in words"))
    with pytest.raises(ObjectNotFoundError, match=r"^by name$"):
        upload.answer(0, ObjectStored(b"i" * 16, 0, describe(ObjectNotFoundError("by name")).decode()))


def test_a_download_goes_on_where_it_stands_and_an_upload_begins_anew() -> None:
    reference = Reference(b"i" * 16, 3 * PART_BYTES)
    download = Download(reference)
    download.answer(0, ObjectPart(reference.object, True, reference.size, Payloads([bytes(PART_BYTES)])))
    for transfer, start in ((Upload(reference, [], 1), 0), (download, 1)):
        transfer.asked, transfer.answered = 3, 1
        transfer.restart()
        assert (transfer.asked, transfer.answered) == (start, start)


def test_what_comes_after_the_end_ends_too() -> None:
    conveying = multiplexer.Multiplexer(
        Uplink(Hello(0, b"", 0), 0, timeout_seconds=1), "x", 1.0, Mappings(print), str.encode, str, lambda server: None
    )
    early, late = Download(Reference(b"i" * 16, 5)), Download(Reference(b"i" * 16, 5))
    conveying.add(early)
    conveying.end(StorageLostError("the end"))
    conveying.add(late)
    assert "the end" in str(early.error) and "the end" in str(late.error)


def test_references_travel_in_24_bytes() -> None:
    reference = Reference(new_object_id(), 2**40 + 5)
    assert Reference.unpack(reference.pack()) == reference
    assert reference.pack()[16:] == (2**40 + 5).to_bytes(8, "little")
    with pytest.raises(MalformedMessageError, match="24 bytes, not 3"):
        Reference.unpack(b"abc")
