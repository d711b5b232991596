"""HostCache: what processes of one host fetch once and share, whoever of them is killed, stopped or short of room."""

from __future__ import annotations

import contextlib
import os
import random
import select
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from scaler_io.objects import connection_thread, host_objects
from scaler_io.objects.connection import ObjectConnection
from scaler_io.objects.host_cache import HELD, TOKEN, CachedFile, HostCache
from scaler_io.objects.operations import Download
from scaler_io.objects.replica_server import ReplicaServer
from scaler_io.objects.replicas import Replicas
from scaler_protocol.addresses import Address
from scaler_protocol.errors import ObjectNotFoundError, StorageLostError
from scaler_protocol.handshake import Role
from scaler_protocol.messages import Message
from scaler_protocol.objects import PART_BYTES, SHARED_BYTES, Reference, new_object_id
from support.waiting import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="servers run on Linux only")

DEADLINE = 60
MIB = 1024 * 1024


# --- files ----------------------------------------------------------------------------------------------------------


def opened(cache: HostCache, name: bytes, size: int, edition: int = 1) -> CachedFile:
    file = cache.open(Reference(name * 16, size), edition)
    assert file is not None
    return file


def filled(cache: HostCache, name: bytes, size: int) -> bool:
    """Whether there was room for a file, which then is complete, and used by nobody."""
    with contextlib.closing(opened(cache, name, size)) as file:
        assert file.hold()
        if not cache.make_room(file):
            file.remove()
            return False
        file.append(0, name * size)
        return True


def has(cache: HostCache, name: bytes, size: int) -> bool:
    with contextlib.closing(opened(cache, name, size)) as file:
        complete = file.complete
        if not complete:
            file.remove()
        return complete


def test_one_appends_and_all_map(tmp_path: Path) -> None:
    cache, other = HostCache(tmp_path, 100), HostCache(tmp_path, 100)
    file, theirs = opened(cache, b"a", 6), opened(other, b"a", 6)
    assert file.hold() and not theirs.hold()
    file.append(0, b"123")
    assert (theirs.filled, theirs.complete) == (3, False)
    file.append(3, b"456")
    mapping = file.map()
    assert theirs.complete and theirs.hold() and mapping is not None
    shared = theirs.map()
    file.close()
    theirs.close()
    assert shared is not None and bytes(shared) == bytes(mapping) == b"123456"
    with pytest.raises(OSError):
        file.append(0, b"late")


def test_who_is_gone_in_the_middle_is_succeeded(tmp_path: Path) -> None:
    cache = HostCache(tmp_path, 100)
    first, second = opened(cache, b"a", 6), opened(cache, b"a", 6)
    assert first.hold()
    first.append(0, b"123")
    first.close()
    assert second.hold() and second.filled == 3 and not second.complete
    second.close()


def test_an_edition_is_a_file_of_its_own(tmp_path: Path) -> None:
    cache = HostCache(tmp_path, 100)
    assert filled(cache, b"a", 6)
    with contextlib.closing(opened(cache, b"a", 6, edition=2)) as other:
        assert not other.filled


def test_room_is_made_of_what_was_not_used_for_longest(tmp_path: Path) -> None:
    cache = HostCache(tmp_path, 100)
    assert cache.open(Reference(b"a" * 16, 101), 1) is None
    for age, name in enumerate((b"a", b"b", b"c")):
        assert filled(cache, name, 30)
        with contextlib.closing(opened(cache, name, 30)) as file:
            os.utime(file._descriptor, (1000 + age, 1000 + age))
    with contextlib.closing(opened(cache, b"a", 30)) as used:
        assert used.map() is not None
    assert filled(cache, b"d", 40)
    assert [has(cache, name, 30) for name in (b"a", b"b", b"c")] == [True, False, True]
    assert has(cache, b"d", 40)


def test_what_is_mapped_or_written_stays(tmp_path: Path) -> None:
    cache = HostCache(tmp_path, 100)
    assert filled(cache, b"a", 60)
    with contextlib.closing(opened(cache, b"a", 60)) as file:
        mapping = file.map()
    growing = opened(cache, b"b", 30)
    assert growing.hold() and cache.make_room(growing)
    assert not filled(cache, b"c", 30) and not has(cache, b"c", 30)
    cache.trim(0)
    assert has(cache, b"a", 60) and not growing.removed
    del mapping
    growing.close()
    assert filled(cache, b"c", 80)
    assert not has(cache, b"a", 60)
    cache.trim(0)
    assert not list(tmp_path.iterdir())


def test_a_fork_keeps_what_it_has_mapped(tmp_path: Path) -> None:
    script = """
        import os, sys
        from pathlib import Path
        from scaler_io.objects.host_cache import HostCache
        from scaler_protocol.objects import Reference

        cache = HostCache(Path(sys.argv[1]), 100)
        file = cache.open(Reference(b"a" * 16, 60), 1)
        assert file.hold()
        file.append(0, b"a" * 60)
        mapping = file.map()
        file.close()
        go, gone = os.pipe()
        if not os.fork():
            os.close(gone)
            os.read(go, 1)
            os._exit(0 if mapping[:] == b"a" * 60 else 1)
        mapping.close()
        cache.trim(0)
        assert len(os.listdir(sys.argv[1])) == 1
        os.close(gone)
        assert os.wait()[1] == 0
        cache.trim(0)
        assert not os.listdir(sys.argv[1])
        print("done")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)], capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("done\n", "")


def test_a_directory_that_is_gone(tmp_path: Path) -> None:
    cache = HostCache(tmp_path / "gone", 100)
    assert cache.open(Reference(b"a" * 16, 6), 1) is None
    cache.trim(0)


# --- connections ----------------------------------------------------------------------------------------------------


class Meter:
    """A server process, and a relay before it that counts what comes from it."""

    def __init__(self, address: str = "tcp://127.0.0.1:0") -> None:
        source, ready = os.pipe()
        command = [sys.executable, "-m", "scaler_storage", address, "--ready-fd", str(ready), "-lp", "/dev/null"]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=(ready,))
        os.close(ready)
        with open(source, encoding="utf-8") as reader:
            assert select.select([reader], [], [], DEADLINE)[0]
            self.server = Address.parse(reader.read().strip())
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = Address("127.0.0.1", self._listener.getsockname()[1])
        self.carried = 0
        self.open = threading.Event()
        self.open.set()
        self.stop_at = sys.maxsize
        self._ends: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection((self.server.host, self.server.port))
            except OSError:
                near.close()
                continue
            self._ends += [near, far]
            for source, sink, counted in ((near, far, False), (far, near, True)):
                self._threads.append(threading.Thread(target=self._carry, args=(source, sink, counted)))
                self._threads[-1].start()

    def _carry(self, source: socket.socket, sink: socket.socket, counted: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if counted:
                    self.carried += len(data)
                    if self.carried >= self.stop_at:
                        self.open.clear()
                        self.stop_at = sys.maxsize
                self.open.wait()
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def stop_after(self, size: int) -> None:
        """Nothing comes through any more once so many bytes have come from the server."""
        self.carried = 0
        self.stop_at = size

    @property
    def stopped(self) -> bool:
        return not self.open.is_set()

    def close(self) -> None:
        self.open.set()
        for end in (self._listener, *self._ends):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for end in (self._listener, *self._ends):
            end.close()
        self.process.terminate()
        self.process.wait()


@pytest.fixture
def meter() -> Iterator[Meter]:
    made = Meter()
    yield made
    made.close()


Connect = Callable[..., ObjectConnection]


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Iterator[Connect]:
    """As if the server were on another host."""
    monkeypatch.setattr(connection_thread, "read_token", lambda directory: b"")
    connections: list[ObjectConnection] = []

    def connected(address: Address, cache: Path | None = None, **others: float) -> ObjectConnection:
        shared = HostCache(cache, int(others.get("limit", 1 << 40))) if cache is not None else None
        timeout = others.get("timeout", DEADLINE)
        replica_server = ReplicaServer(Replicas(cache, address)) if cache is not None and "speaks" in others else None
        made = ObjectConnection(
            address, session=1, role=Role.AGENT, timeout_seconds=timeout, cache=shared, replica_server=replica_server
        )
        connections.append(made)
        return made

    yield connected
    for connection in connections:
        connection.close()


def files(cache: Path) -> list[str]:
    """Of objects."""
    return [path.name for path in cache.iterdir() if path.name not in (HELD, TOKEN)]


def pattern(size: int, seed: int = 0) -> bytes:
    """Bytes that differ from part to part."""
    return random.Random(seed).randbytes(size)


READER = """
    import sys
    from pathlib import Path
    from scaler_io.objects import connection_thread
    from scaler_io.objects.host_cache import HostCache
    from scaler_io.objects.connection import ObjectConnection
    from scaler_protocol.addresses import Address
    from scaler_protocol.handshake import Role
    from scaler_protocol.objects import Reference

    connection_thread.read_token = lambda directory: b""  # as if the server were on another host
    connection = ObjectConnection(
        Address.parse(sys.argv[1]), session=2, role=Role.AGENT, cache=HostCache(Path(sys.argv[2]), 1 << 40)
    )
    got = connection.get(Reference.unpack(bytes.fromhex(sys.argv[3])))
    print(sum(got[:: 1 << 20]), flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def reader(meter: Meter, cache: Path, reference: Reference) -> Iterator[subprocess.Popen[str]]:
    """A process that gets an object, says so, and keeps it."""
    command = [sys.executable, "-c", textwrap.dedent(READER), str(meter.address), str(cache), reference.pack().hex()]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None and select.select([process.stdout], [], [], DEADLINE)[0]
    return process.stdout.readline().strip()


def test_processes_of_a_host_fetch_once(meter: Meter, connect: Connect, tmp_path: Path) -> None:
    content = pattern(24 * MIB + 5)
    reference = connect(meter.server).put(content)
    expected = str(sum(content[::MIB]))
    with contextlib.ExitStack() as stack:
        readers = [stack.enter_context(reader(meter, tmp_path, reference)) for _ in range(4)]
        assert [said(each) for each in readers] == [expected] * 4
        assert len(content) <= meter.carried < len(content) + MIB
        own = connect(meter.address, tmp_path)
        assert own.get(reference) == content and own.get(reference) == content
        assert meter.carried < len(content) + MIB
        HostCache(tmp_path, 0).trim(0)
        assert len(list(tmp_path.iterdir())) == 1  # they use it
    del own
    connect(meter.server)


def test_threads_too(meter: Meter, connect: Connect, tmp_path: Path) -> None:
    contents = [pattern(5 * MIB, seed) for seed in range(3)]
    writer = connect(meter.server)
    references = [writer.put(content) for content in contents]
    connections = [connect(meter.address, tmp_path) for _ in range(3)]
    with ThreadPoolExecutor(9) as pool:
        got = [pool.submit(one.get, reference) for one in connections for reference in references]
        assert [future.result(DEADLINE) for future in got] == contents * 3
    assert meter.carried < 16 * MIB


def test_what_a_host_has_made_it_does_not_fetch(meter: Meter, connect: Connect, tmp_path: Path) -> None:
    connect(meter.address, tmp_path, speaks=True).open()
    writer, reader = connect(meter.address, tmp_path), connect(meter.address, tmp_path)
    content = pattern(8 * MIB)
    reference = writer.put([content[: 3 * MIB + 7], b"", content[3 * MIB + 7 :]])
    assert reader.get(reference) == content and meter.carried < MIB
    again = connect(meter.server).put(pattern(8 * MIB, 1), name=reference.object)  # it takes the place of what is held
    assert again == reference and connect(meter.address, tmp_path).get(reference) == pattern(8 * MIB, 1)
    assert connect(meter.address, tmp_path, limit=MIB).put(content).size == 8 * MIB
    wait_until(lambda: len(files(tmp_path)) == 1)


def test_what_stays_here_may_be_copies(meter: Meter, connect: Connect, tmp_path: Path) -> None:
    class Inverting:
        def restart(self) -> None:
            self.size = 0

        def copy(self, piece: memoryview) -> bytes:
            self.size += len(piece)
            return bytes(piece).translate(bytes(range(255, -1, -1)))

    connect(meter.address, tmp_path, speaks=True).open()
    content, copying = pattern(8 * MIB), Inverting()
    reference = connect(meter.address, tmp_path).put(content, copying=copying)
    got = connect(meter.address, tmp_path).get(reference)
    assert bytes(got) == content.translate(bytes(range(255, -1, -1))) and copying.size == len(content)
    assert meter.carried < MIB


def test_who_is_not_the_first_writer_keeps_nothing(meter: Meter, connect: Connect, tmp_path: Path) -> None:
    connect(meter.address, tmp_path, speaks=True).open()
    reference = connect(meter.server).put(pattern(2 * MIB, 1))
    connect(meter.address, tmp_path).put(pattern(2 * MIB, 2), name=reference.object)
    assert not files(tmp_path)
    assert connect(meter.address, tmp_path).get(reference) == pattern(2 * MIB, 1)


def test_small_objects_are_not_shared(meter: Meter, connect: Connect, tmp_path: Path) -> None:
    reference = connect(meter.server).put(b"x" * (SHARED_BYTES - 1))
    got = connect(meter.address, tmp_path).get(reference)
    assert isinstance(got, bytes) and not list(tmp_path.iterdir())


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
def test_a_fetcher_that_is_killed_or_stopped(
    meter: Meter, connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: int
) -> None:
    monkeypatch.setattr(host_objects, "_STILL_SECONDS", 0.1)
    content = pattern(24 * MIB)
    reference = connect(meter.server).put(content)
    meter.stop_after(12 * MIB)
    with reader(meter, tmp_path, reference) as first:
        wait_until(lambda: meter.stopped)
        before = meter.carried
        first.send_signal(fault)
        with ThreadPoolExecutor() as pool:
            own = connect(meter.address, tmp_path)
            got = pool.submit(own.get, reference)
            meter.open.set()
            assert got.result(DEADLINE) == content
        if fault == signal.SIGKILL:  # it was gone on with
            assert meter.carried < before + 24 * MIB
    assert connect(meter.address, tmp_path).get(reference) == content


def test_what_is_deleted_is_not_found_although_it_is_cached(meter: Meter, connect: Connect, tmp_path: Path) -> None:
    writer = connect(meter.server)
    reference = writer.put(pattern(2 * MIB))
    got = connect(meter.address, tmp_path).get(reference)
    writer.delete([reference])
    with pytest.raises(ObjectNotFoundError):
        connect(meter.address, tmp_path).get(reference)
    assert got == pattern(2 * MIB)


def test_what_is_deleted_in_the_middle(
    meter: Meter, connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_objects, "_STILL_SECONDS", 0.1)
    writer = connect(meter.server)
    reference = writer.put(pattern(24 * MIB))
    meter.stop_after(4 * MIB)
    with ThreadPoolExecutor() as pool:
        waiting = [pool.submit(connect(meter.address, tmp_path).get, reference) for _ in range(2)]
        wait_until(lambda: meter.stopped)
        writer.delete([reference])
        meter.open.set()
        for future in waiting:
            assert isinstance(future.exception(DEADLINE), ObjectNotFoundError)
    assert not list(tmp_path.iterdir())


def test_what_is_written_anew_is_fetched_anew(meter: Meter, connect: Connect, tmp_path: Path) -> None:
    writer, name = connect(meter.server), new_object_id()
    for seed in range(3):
        reference = writer.put(pattern(2 * MIB, seed), name=name)
        assert connect(meter.address, tmp_path).get(reference) == pattern(2 * MIB, seed)
        writer.delete([reference])


@pytest.mark.parametrize("shared", [True, False])
def test_parts_of_two_editions_are_never_mixed(
    meter: Meter, connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    writer, name, other = connect(meter.server), new_object_id(), pattern(24 * MIB, 2)
    reference, small = writer.put(pattern(24 * MIB, 1), name=name), writer.put(b"small")
    request, reached, go = Download.request, threading.Event(), threading.Event()

    def held(download: Download, index: int, number: int) -> Message:
        if index == 15:
            reached.set()
            assert go.wait(DEADLINE)
        return request(download, index, number)

    with ThreadPoolExecutor() as pool, monkeypatch.context() as patch:
        patch.setattr(Download, "request", held)
        got = pool.submit(connect(meter.server, tmp_path if shared else None).get, reference)
        assert reached.wait(DEADLINE)
        for _ in range(100):  # what had reached the server is answered
            assert writer.get(small) == b"small"
        writer.delete([reference])
        writer.put(other, name=name)
        go.set()
        assert got.result(DEADLINE) == other


def test_without_room_everybody_fetches_for_himself(meter: Meter, connect: Connect, tmp_path: Path) -> None:
    writer = connect(meter.server)
    small, big = writer.put(pattern(MIB)), writer.put(pattern(3 * MIB))
    one, other = (connect(meter.address, tmp_path, limit=2 * MIB) for _ in range(2))
    assert isinstance(one.get(small), memoryview) and isinstance(one.get(big), bytes)
    held = [one.get(writer.put(pattern(MIB, seed))) for seed in range(3)]
    assert [type(each) for each in held] == [memoryview, memoryview, bytes]
    assert other.get(small) == pattern(MIB)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 2 * MIB


def test_a_memory_that_is_full(meter: Meter, connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.getuid():
        pytest.skip("only root may mount a tmpfs")
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(tmp_path)], capture_output=True)
    if done.returncode:
        pytest.skip(f"a tmpfs can not be mounted here: {done.stderr.decode().strip()}")
    try:
        reference = connect(meter.server).put(pattern(4 * MIB))
        assert connect(meter.address, tmp_path).get(reference) == pattern(4 * MIB)
        assert not list(tmp_path.iterdir())
    finally:
        subprocess.run(["umount", "--lazy", tmp_path], check=True)


def test_a_server_that_is_killed_in_the_middle(connect: Connect, tmp_path: Path, meter: Meter) -> None:
    name = new_object_id()
    reference = connect(meter.server).put(pattern(24 * MIB, 1), name=name)
    meter.stop_after(10 * MIB)
    with ThreadPoolExecutor() as pool:
        waiting = [pool.submit(connect(meter.address, tmp_path, timeout=0.5).get, reference) for _ in range(2)]
        wait_until(lambda: meter.stopped)
        meter.process.kill()
        meter.process.wait()
        meter.open.set()
        for future in waiting:
            assert isinstance(future.exception(DEADLINE), StorageLostError)
    other = Meter(str(meter.server))
    try:
        with pytest.raises(ObjectNotFoundError):
            connect(other.address, tmp_path).get(reference)
        connect(other.server).put(pattern(24 * MIB, 2), name=name)
        assert connect(other.address, tmp_path).get(reference) == pattern(24 * MIB, 2)
    finally:
        other.close()


def test_a_file_that_ends_inside_a_part(meter: Meter, connect: Connect, tmp_path: Path) -> None:
    content = pattern(3 * PART_BYTES)
    reference = connect(meter.server).put(content)
    own = connect(meter.address, tmp_path)
    own.get(reference)
    [path] = tmp_path.iterdir()
    own.close()
    os.truncate(path, PART_BYTES + 7)
    assert connect(meter.address, tmp_path).get(reference) == content
