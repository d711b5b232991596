"""HostCache: what processes of one host fetch once and share, whoever of them is killed, stopped or short of room."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from scaler_io.objects import host_objects
from scaler_io.objects.connection import ObjectConnection
from scaler_io.objects.host_cache import REPLICAS, TOKEN, CachedFile, HostCache
from scaler_io.objects.operations import Download
from scaler_io.objects.replica_server import ReplicaServer
from scaler_io.objects.replicas import Replicas
from scaler_protocol.errors import ObjectNotFoundError, StorageLostError
from scaler_protocol.handshake import Role
from scaler_protocol.messages import Message
from scaler_protocol.objects import PART_BYTES, SHARED_BYTES, Reference, new_object_id
from support.mounts import small_memory
from support.processes import run_code
from support.relays import Relay
from support.storage_processes import INVERTED, MIB, InvertingCopies, StorageProcess, pattern
from support.waiting import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="servers run on Linux only")

DEADLINE = 60


# --- files ----------------------------------------------------------------------------------------------------------


def opened(cache: HostCache, name: bytes, size: int, version: int = 1) -> CachedFile:
    file = cache.open(Reference(name * 16, size), version)
    assert file is not None
    return file


def filled(cache: HostCache, name: bytes, size: int) -> bool:
    """Whether there was room for a file, which then is complete, and used by nobody."""
    with contextlib.closing(opened(cache, name, size)) as file:
        assert file.lock()
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
    assert file.lock() and not theirs.lock()
    file.append(0, b"123")
    assert (theirs.filled, theirs.complete) == (3, False)
    file.append(3, b"456")
    mapping = file.map()
    assert theirs.complete and theirs.lock() and mapping is not None
    shared = theirs.map()
    file.close()
    theirs.close()
    assert shared is not None and bytes(shared) == bytes(mapping) == b"123456"
    with pytest.raises(OSError):
        file.append(0, b"late")


def test_who_is_gone_in_the_middle_is_succeeded(tmp_path: Path) -> None:
    cache = HostCache(tmp_path, 100)
    first, second = opened(cache, b"a", 6), opened(cache, b"a", 6)
    assert first.lock()
    first.append(0, b"123")
    first.close()
    assert second.lock() and second.filled == 3 and not second.complete
    second.close()


def test_a_version_is_a_file_of_its_own(tmp_path: Path) -> None:
    cache = HostCache(tmp_path, 100)
    assert filled(cache, b"a", 6)
    with contextlib.closing(opened(cache, b"a", 6, version=2)) as other:
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
    assert growing.lock() and cache.make_room(growing)
    assert not filled(cache, b"c", 30) and not has(cache, b"c", 30)
    cache.trim(0)
    assert has(cache, b"a", 60) and not growing.removed
    del mapping
    growing.close()
    assert filled(cache, b"c", 80)
    assert not has(cache, b"a", 60)
    cache.trim(0)
    assert not list(tmp_path.iterdir())


def test_a_clock_that_is_set_back_keeps_nothing_for_ever(tmp_path: Path) -> None:
    cache = HostCache(tmp_path, 100)
    assert filled(cache, b"a", 60)
    cache.trim(30.0)
    assert has(cache, b"a", 60)
    (path,) = tmp_path.iterdir()
    os.utime(path, (1 << 33, 1 << 33))
    cache.trim(30.0)
    assert not path.exists()


def test_a_fork_keeps_what_it_has_mapped(tmp_path: Path) -> None:
    script = """
        import os, sys
        from pathlib import Path
        from scaler_io.objects.host_cache import HostCache
        from scaler_protocol.objects import Reference

        cache = HostCache(Path(sys.argv[1]), 100)
        file = cache.open(Reference(b"a" * 16, 60), 1)
        assert file.lock()
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
    assert run_code(script, str(tmp_path)) == "done\n"


def test_a_directory_that_is_gone(tmp_path: Path) -> None:
    cache = HostCache(tmp_path / "gone", 100)
    assert cache.open(Reference(b"a" * 16, 6), 1) is None
    cache.trim(0)


# --- connections ----------------------------------------------------------------------------------------------------


class CachingHost:
    """Another host than the server's, with a cache, behind a relay; `connect` is the fixture."""

    def __init__(self, server: StorageProcess, relay: Relay, cache: Path, connect: Callable[..., ObjectConnection]):
        self.server, self.relay, self.cache, self._connect = server, relay, cache, connect

    def beside_server(self) -> ObjectConnection:
        """A client that is not on this host."""
        return self._connect(self.server.address)

    def connect(
        self, limit: int = 1 << 40, *, speaks: bool = False, timeout_seconds: float = DEADLINE
    ) -> ObjectConnection:
        """A process of this host. One that `speaks` brings what is held here to the server."""
        address = self.relay.address
        return self._connect(
            address,
            role=Role.AGENT,
            timeout_seconds=timeout_seconds,
            cache=HostCache(self.cache, limit),
            replica_server=ReplicaServer(Replicas(self.cache, address)) if speaks else None,
        )


@pytest.fixture
def host(
    server: StorageProcess, tmp_path: Path, connect: Callable[..., ObjectConnection], far: None
) -> Iterator[CachingHost]:
    cache = tmp_path / "cache"
    cache.mkdir()
    with Relay(server.address) as relay:
        yield CachingHost(server, relay, cache, connect)


def files(cache: Path) -> list[str]:
    """Of objects."""
    return [path.name for path in cache.iterdir() if path.name not in (REPLICAS, TOKEN)]


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
def reader(host: CachingHost, reference: Reference) -> Iterator[subprocess.Popen[str]]:
    """A process that gets an object, says so, and keeps it."""
    words = [str(host.relay.address), str(host.cache), reference.pack().hex()]
    command = [sys.executable, "-c", textwrap.dedent(READER), *words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None and select.select([process.stdout], [], [], DEADLINE)[0]
    return process.stdout.readline().strip()


def test_processes_of_a_host_fetch_once(host: CachingHost) -> None:
    content = pattern(24 * MIB + 5)
    reference = host.beside_server().put(content)
    expected = str(sum(content[::MIB]))
    with contextlib.ExitStack() as stack:
        readers = [stack.enter_context(reader(host, reference)) for _ in range(4)]
        assert [said(each) for each in readers] == [expected] * 4
        assert len(content) <= host.relay.carried < len(content) + MIB
        own = host.connect()
        assert own.get(reference) == content and own.get(reference) == content
        assert host.relay.carried < len(content) + MIB
        HostCache(host.cache, 0).trim(0)
        assert len(list(host.cache.iterdir())) == 1  # they use it


def test_threads_too(host: CachingHost) -> None:
    contents = [pattern(5 * MIB, seed) for seed in range(3)]
    writer = host.beside_server()
    references = [writer.put(content) for content in contents]
    connections = [host.connect() for _ in range(3)]
    with ThreadPoolExecutor(9) as pool:
        got = [pool.submit(one.get, reference) for one in connections for reference in references]
        assert [future.result(DEADLINE) for future in got] == contents * 3
    assert host.relay.carried < 16 * MIB


def test_what_a_host_has_made_it_does_not_fetch(host: CachingHost) -> None:
    host.connect(speaks=True).open()
    writer, reader = host.connect(), host.connect()
    content = pattern(8 * MIB)
    reference = writer.put([content[: 3 * MIB + 7], b"", content[3 * MIB + 7 :]])
    assert reader.get(reference) == content and host.relay.carried < MIB
    # It takes the place of what is held.
    again = host.beside_server().put(pattern(8 * MIB, 1), name=reference.object)
    assert again == reference and host.connect().get(reference) == pattern(8 * MIB, 1)
    assert host.connect(limit=MIB).put(content).size == 8 * MIB
    wait_until(lambda: len(files(host.cache)) == 1)


def test_what_stays_here_may_be_copies(host: CachingHost) -> None:
    host.connect(speaks=True).open()
    content, copying = pattern(8 * MIB), InvertingCopies()
    reference = host.connect().put(content, copying=copying)
    got = host.connect().get(reference)
    assert bytes(got) == content.translate(INVERTED) and copying.size == len(content)
    assert host.relay.carried < MIB


def test_who_is_not_the_first_writer_keeps_nothing(host: CachingHost) -> None:
    host.connect(speaks=True).open()
    reference = host.beside_server().put(pattern(2 * MIB, 1))
    host.connect().put(pattern(2 * MIB, 2), name=reference.object)
    assert not files(host.cache)
    assert host.connect().get(reference) == pattern(2 * MIB, 1)


def test_small_objects_are_not_shared(host: CachingHost) -> None:
    reference = host.beside_server().put(b"x" * (SHARED_BYTES - 1))
    got = host.connect().get(reference)
    assert isinstance(got, bytes) and not list(host.cache.iterdir())


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
def test_a_fetcher_that_is_killed_or_stopped(host: CachingHost, monkeypatch: pytest.MonkeyPatch, fault: int) -> None:
    monkeypatch.setattr(host_objects, "_STALLED_SECONDS", 0.1)
    content = pattern(24 * MIB)
    reference = host.beside_server().put(content)
    host.relay.after(12 * MIB, host.relay.hold)
    with reader(host, reference) as first:
        wait_until(lambda: host.relay.held)
        before = host.relay.carried
        first.send_signal(fault)
        with ThreadPoolExecutor() as pool:
            own = host.connect()
            got = pool.submit(own.get, reference)
            host.relay.release()
            assert got.result(DEADLINE) == content
        if fault == signal.SIGKILL:  # it was gone on with
            assert host.relay.carried < before + 24 * MIB
    assert host.connect().get(reference) == content


def delete(writer: ObjectConnection, reference: Reference) -> None:
    """Delete an object; returns when the server has done so."""
    writer.delete([reference])
    writer.put(b"this is answered after the deletion")


def test_what_is_deleted_is_not_found_although_it_is_cached(host: CachingHost) -> None:
    writer = host.beside_server()
    reference = writer.put(pattern(2 * MIB))
    got = host.connect().get(reference)
    delete(writer, reference)
    with pytest.raises(ObjectNotFoundError):
        host.connect().get(reference)
    assert got == pattern(2 * MIB)


def test_what_is_deleted_in_the_middle(host: CachingHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_objects, "_STALLED_SECONDS", 0.1)
    writer = host.beside_server()
    reference = writer.put(pattern(24 * MIB))
    host.relay.after(4 * MIB, host.relay.hold)
    with ThreadPoolExecutor() as pool:
        waiting = [pool.submit(host.connect().get, reference) for _ in range(2)]
        wait_until(lambda: host.relay.held)
        delete(writer, reference)
        host.relay.release()
        for future in waiting:
            assert isinstance(future.exception(DEADLINE), ObjectNotFoundError)
    assert not list(host.cache.iterdir())


def test_what_is_written_anew_is_fetched_anew(host: CachingHost) -> None:
    writer, name = host.beside_server(), new_object_id()
    for seed in range(3):
        reference = writer.put(pattern(2 * MIB, seed), name=name)
        assert host.connect().get(reference) == pattern(2 * MIB, seed)
        delete(writer, reference)


@pytest.mark.parametrize("shared", [True, False])
def test_parts_of_two_versions_are_never_mixed(
    host: CachingHost, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    writer, name, other = host.beside_server(), new_object_id(), pattern(24 * MIB, 2)
    reference, small = writer.put(pattern(24 * MIB, 1), name=name), writer.put(b"small")
    request, reached, go = Download.request, threading.Event(), threading.Event()

    def held(download: Download, index: int, number: int) -> Message:
        if index == 15:
            reached.set()
            assert go.wait(DEADLINE)
        return request(download, index, number)

    with ThreadPoolExecutor() as pool, monkeypatch.context() as patch:
        patch.setattr(Download, "request", held)
        got = pool.submit((host.connect() if shared else host.beside_server()).get, reference)
        assert reached.wait(DEADLINE)
        for _ in range(100):  # what had reached the server is answered
            assert writer.get(small) == b"small"
        delete(writer, reference)
        writer.put(other, name=name)
        go.set()
        assert got.result(DEADLINE) == other


def test_without_room_everybody_fetches_for_himself(host: CachingHost) -> None:
    writer = host.beside_server()
    small, big = writer.put(pattern(MIB)), writer.put(pattern(3 * MIB))
    one, other = (host.connect(limit=2 * MIB) for _ in range(2))
    assert isinstance(one.get(small), memoryview) and isinstance(one.get(big), bytes)
    held = [one.get(writer.put(pattern(MIB, seed))) for seed in range(3)]
    assert [type(each) for each in held] == [memoryview, memoryview, bytes]
    assert other.get(small) == pattern(MIB)
    assert sum(path.stat().st_size for path in host.cache.iterdir()) <= 2 * MIB


def test_a_memory_that_is_full(host: CachingHost) -> None:
    with small_memory(host.cache, 2):
        reference = host.beside_server().put(pattern(4 * MIB))
        assert host.connect().get(reference) == pattern(4 * MIB)
        assert not list(host.cache.iterdir())


def test_a_server_that_is_killed_in_the_middle(host: CachingHost) -> None:
    name = new_object_id()
    reference = host.beside_server().put(pattern(24 * MIB, 1), name=name)
    host.relay.after(10 * MIB, host.relay.hold)
    with ThreadPoolExecutor() as pool:
        waiting = [pool.submit(host.connect(timeout_seconds=0.5).get, reference) for _ in range(2)]
        wait_until(lambda: host.relay.held)
        host.server.kill()
        host.relay.release()
        for future in waiting:
            assert isinstance(future.exception(DEADLINE), StorageLostError)
    host.server.start()
    with pytest.raises(ObjectNotFoundError):
        host.connect().get(reference)
    host.beside_server().put(pattern(24 * MIB, 2), name=name)
    assert host.connect().get(reference) == pattern(24 * MIB, 2)


def test_a_file_that_ends_inside_a_part(host: CachingHost) -> None:
    content = pattern(3 * PART_BYTES)
    reference = host.beside_server().put(content)
    own = host.connect()
    own.get(reference)
    [path] = host.cache.iterdir()
    own.close()
    os.truncate(path, PART_BYTES + 7)
    assert host.connect().get(reference) == content
