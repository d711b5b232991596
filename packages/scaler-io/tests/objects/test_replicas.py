"""Objects that stay on the host that made them, until somebody elsewhere wants them or there is no room for more."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from scaler_io.objects.connection import ObjectConnection
from scaler_io.objects.host_cache import REPLICAS, TOKEN, HostCache
from scaler_io.objects.replica_server import CONFIRMED_SECONDS, RETRY_SECONDS, ReplicaServer
from scaler_io.objects.replicas import Replica, Replicas, new_version
from scaler_protocol.addresses import Address
from scaler_protocol.errors import ObjectNotFoundError, StorageFullError
from scaler_protocol.handshake import Role
from scaler_protocol.objects import SHARED_BYTES, Reference, new_object_id
from support.storage_processes import MIB, StorageProcess, pattern
from support.waiting import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="servers run on Linux only")

DEADLINE = 60


class Host:
    """Another host than the server's: a directory, and agents that speak for it."""

    def __init__(self, directory: Path, server: StorageProcess, limit: int = 1 << 40) -> None:
        directory.mkdir(exist_ok=True)
        self.directory, self._server = directory, server
        self.cache = HostCache(directory, limit)
        self.files = Replicas(directory, server.address)
        self.connections: list[ObjectConnection] = []

    def worker(self) -> ObjectConnection:
        return self._connect(cache=self.cache)

    def agent(self) -> ObjectConnection:
        """Returns when the server knows it."""
        agent = self._connect(replica_server=ReplicaServer(self.files))
        assert not agent.has(Reference(new_object_id(), SHARED_BYTES), 1)
        return agent

    def _connect(self, **others: HostCache | ReplicaServer) -> ObjectConnection:
        session = 0 if "replica_server" in others else 1
        made = ObjectConnection(
            self._server.address,
            session=session,
            role=Role.AGENT,
            **others,  # type: ignore[arg-type]
        )
        self.connections.append(made)
        return made

    @property
    def held(self) -> list[bytes]:
        """What is held, the longest unused first."""
        return [held.reference.object for _, held in self.files.list()]

    @property
    def cached(self) -> list[str]:
        return [path.name for path in self.directory.iterdir() if path.name not in (REPLICAS, TOKEN)]


Place = Callable[..., Host]


@pytest.fixture
def place(server: StorageProcess, tmp_path: Path, far: None) -> Iterator[Place]:
    hosts: list[Host] = []

    def made(limit: int = 1 << 40, other: StorageProcess | None = None) -> Host:
        hosts.append(Host(tmp_path / f"host-{len(hosts)}", other or server, limit))
        return hosts[-1]

    yield made
    for host in hosts:
        for connection in host.connections:
            connection.close()


def test_what_a_host_makes_stays_there_until_somebody_elsewhere_wants_it(server: StorageProcess, place: Place) -> None:
    here, elsewhere = place(), place()
    agent, writer = here.agent(), here.worker()
    content = pattern(8 * MIB + 5)
    reference = writer.put([content[: 3 * MIB], b"", content[3 * MIB :]])
    assert here.worker().get(reference) == content == writer.get(reference)
    status = server.status()
    assert (status.hosts, status.objects, status.replicas, status.replica_bytes) == (1, 1, 1, len(content))
    assert (status.bytes, status.writing, status.fetched_bytes_total) == (0, 0, 0)
    with ThreadPoolExecutor(3) as pool:
        readers = [elsewhere.worker() for _ in range(2)] + [elsewhere._connect()]
        assert list(pool.map(lambda each: each.get(reference), readers)) == [content] * 3
    status = server.status()
    assert (status.replicas, status.replica_bytes, status.fetched_bytes_total) == (0, 0, len(content))
    wait_until(lambda: not here.held)  # it may go now, as what was fetched may
    assert here.cached == elsewhere.cached and len(here.cached) == 1
    assert not agent.has(Reference(new_object_id(), 5), 1)


def test_small_objects_and_those_of_hosts_without_agents_are_put(server: StorageProcess, place: Place) -> None:
    host = place()
    writer = host.worker()
    small, big = pattern(SHARED_BYTES - 1), pattern(SHARED_BYTES)
    references = [writer.put(small), writer.put(big)]
    host.agent()
    references.append(writer.put(small))
    status = server.status()
    assert (status.objects, status.replicas) == (3, 0) and not host.held and not host.cached
    expected = [small, big, small]
    assert [host.worker().get(reference) for reference in references] == expected


def test_what_is_deleted_is_gone_from_the_host(server: StorageProcess, place: Place) -> None:
    host = place()
    host.agent()
    writer, other = host.worker(), host.worker()
    references = [writer.put(pattern(MIB, number)) for number in range(3)]
    got = other.get(references[0])
    assert len(host.held) == len(host.cached) == 3
    writer.delete(references[:2])
    wait_until(lambda: len(host.cached) == 1)
    assert host.held == [references[2].object] and got == pattern(MIB)
    with pytest.raises(ObjectNotFoundError):
        host.worker().get(references[0])
    for owner in host.connections[1:]:
        owner.close()  # with its owners a session ends
    wait_until(lambda: not host.cached and not host.held)
    assert server.status().objects == 0


def test_room_is_made_by_putting_what_was_not_used_for_longest(server: StorageProcess, place: Place) -> None:
    here, elsewhere = place(10 * MIB), place()
    here.agent()
    writer = here.worker()
    contents = [pattern(4 * MIB, number) for number in range(5)]
    references = [writer.put(content) for content in contents[:2]]
    for age, path in enumerate(sorted(here.directory.glob("*-*"), key=lambda path: path.name[:32])):
        os.utime(path, (1000 + age, 1000 + age))
    oldest = here.held[0]
    references.append(writer.put(contents[2]))
    assert len(here.held) == 2 and oldest not in here.held
    assert server.status().fetched_bytes_total == 4 * MIB
    references += [writer.put(content) for content in contents[3:]]
    status = server.status()
    assert (status.objects, status.replicas, status.fetched_bytes_total) == (5, 2, 12 * MIB)
    assert sum((here.directory / name).stat().st_size for name in here.cached) <= 10 * MIB
    assert [elsewhere.worker().get(reference) for reference in references] == contents


def test_what_a_server_has_no_room_for_stays(place: Place, tmp_path: Path) -> None:
    full = StorageProcess("--memory-limit", str(6 * MIB))
    with contextlib.ExitStack() as ending:
        ending.callback(full.end)
        here, elsewhere = place(10 * MIB, full), place(1 << 40, full)
        here.agent()
        writer = here.worker()
        references = [writer.put(pattern(4 * MIB, number)) for number in range(3)]
        assert full.status().replicas == 2
        with pytest.raises(StorageFullError):
            writer.put(pattern(4 * MIB, 3))
        assert full.status().replicas == 2 and len(here.held) == 2
        [first] = [each for each in references if each.object not in here.held]
        with pytest.raises(StorageFullError):
            elsewhere.worker().get(Reference(here.held[0], 4 * MIB))
        until = time.monotonic() + DEADLINE
        assert ReplicaServer(here.files).hand_over(lambda upload: writer.run(upload, until)) == 2
        writer.delete([first])
        assert elsewhere.worker().get(Reference(here.held[0], 4 * MIB))[:1]
        for connection in here.connections + elsewhere.connections:
            connection.close()


def test_a_server_that_is_started_again_is_told_what_is_held(server: StorageProcess, place: Place) -> None:
    here, elsewhere = place(), place()
    here.agent(), here.agent()
    writer = here.worker()
    contents = [pattern(2 * MIB, number) for number in range(4)]
    references = [writer.put(content) for content in contents]
    reader = elsewhere.worker()
    reader.open()
    server.restart()
    assert [reader.get(reference) for reference in references] == contents
    assert server.status().fetched_bytes_total == 8 * MIB
    wait_until(lambda: not here.held)


AGENT = """
    import sys
    from pathlib import Path
    from scaler_io.objects import connection_thread
    from scaler_io.objects.replicas import Replicas
    from scaler_io.objects.replica_server import ReplicaServer
    from scaler_io.objects.connection import ObjectConnection
    from scaler_protocol.addresses import Address
    from scaler_protocol.handshake import Role

    connection_thread.read_token = lambda directory: b""  # as if the server were on another host
    address = Address.parse(sys.argv[1])
    server = ReplicaServer(Replicas(Path(sys.argv[2]), address))
    agent = ObjectConnection(address, session=0, role=Role.AGENT, replica_server=server)
    agent.open()
    print("speaking", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def agent_process(server: StorageProcess, host: Host) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", textwrap.dedent(AGENT), str(server.address), str(host.directory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "speaking\n"
            yield process
        finally:
            process.kill()


def test_of_two_agents_one_is_enough(server: StorageProcess, place: Place) -> None:
    here, elsewhere = place(), place()
    with agent_process(server, here) as first, agent_process(server, here):
        reference = here.worker().put(pattern(2 * MIB))
        first.kill()
        first.wait()
        assert elsewhere.worker().get(reference) == pattern(2 * MIB)


def test_a_host_without_agents_is_not_found_until_there_is_one(server: StorageProcess, place: Place) -> None:
    here, elsewhere = place(), place()
    agent = here.agent()
    reference = here.worker().put(pattern(2 * MIB))
    agent.close()
    with pytest.raises(ObjectNotFoundError, match=reference.object.hex()):
        elsewhere.worker().get(reference)
    assert server.status().replicas == 1
    here.agent()
    assert elsewhere.worker().get(reference) == pattern(2 * MIB)


def test_what_was_deleted_before_the_server_was_started_again_stays_deleted(
    server: StorageProcess, place: Place
) -> None:
    host = place()
    with agent_process(server, host) as agent:
        writer = host.worker()
        references = [writer.put(pattern(MIB, number)) for number in range(3)]
        agent.send_signal(signal.SIGSTOP)
        writer.delete(references[:1])
        wait_until(lambda: server.status().objects == 2)
        server.restart()
        writer.delete(references[1:2])
        writer.open()
        agent.send_signal(signal.SIGCONT)
        wait_until(lambda: host.held == [references[2].object])
        assert server.status().objects == 1 and list(writer.list()) == [references[2].object]


def test_files_that_are_gone_are_objects_that_are_lost(server: StorageProcess, place: Place) -> None:
    here, elsewhere = place(), place()
    here.agent()
    reference = here.worker().put(pattern(2 * MIB))
    for path in (*here.directory.glob("*-*"), *here.directory.glob(f"{REPLICAS}/*/*")):
        path.unlink()
    with pytest.raises(ObjectNotFoundError):
        elsewhere.worker().get(reference)
    assert server.status().objects == 0


@pytest.mark.parametrize("reading", ["map", "host", "list"])
def test_an_agent_without_descriptors_loses_nothing(
    server: StorageProcess,
    place: Place,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    reading: str,
) -> None:
    host, content = place(), pattern(2 * MIB)
    host.agent()
    reference = host.worker().put(content)
    assert host.held
    exhausted, tried = True, threading.Event()

    def failing(read: Callable[..., object]) -> Callable[..., object]:
        def wrapped(*args: object) -> object:
            if exhausted:
                tried.set()
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return read(*args)

        return wrapped

    read = vars(Replicas)[reading]
    monkeypatch.setattr(Replicas, reading, property(failing(read.fget)) if reading == "host" else failing(read))
    if reading != "map":
        server.restart()
    with ThreadPoolExecutor(1) as pool:
        got = pool.submit(place().worker().get, reference) if reading == "map" else None
        assert tried.wait(DEADLINE)
        exhausted = False
        wait_until(lambda: server.status().hosts == 1 and (got is not None or server.status().replicas == 1))
        assert (got.result(DEADLINE) if got is not None else place().worker().get(reference)) == content
    assert [line for line in caplog.messages if "will try again" in line] == [
        "the replicas on this host cannot be read, will try again: [Errno 24] Too many open files"
    ]


def test_what_is_not_announced_is_not_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = Replicas(tmp_path, Address.parse("tcp://127.0.0.1:1"))
    held = Replica(Reference(new_object_id(), SHARED_BYTES), new_version(), 1)
    content = [memoryview(bytes(SHARED_BYTES))]
    file = HostCache(tmp_path, 1 << 30).write(held.reference, held.version, content, lambda excess: False)
    assert file is not None
    with contextlib.closing(file):
        files.add(file, held)
    replica_server = ReplicaServer(files)
    announced = iter([False, True])

    def needed(held: Replica) -> bool:
        """Meanwhile the server was started again, and the second one is told with the second try only."""
        with monkeypatch.context() as patched:
            if not next(announced, True):
                patched.setattr(Replicas, "list", failing)
                assert replica_server.announce(0.0) == [] and replica_server.due() == RETRY_SECONDS
        assert len(replica_server.retry(RETRY_SECONDS)) in (0, 2)
        return False

    def failing(files: Replicas) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    replica_server.announce(0.0)
    replica_server.drop_unneeded(0.0, needed)
    assert [each for _, each in files.list()] == [held]
    replica_server.drop_unneeded(0.0, needed)
    assert not files.list()


def test_what_nobody_could_say_is_not_needed_is_found_out(server: StorageProcess, place: Place) -> None:
    host = place()
    agent, writer = host.agent(), host.worker()
    kept = writer.put(pattern(MIB))
    half = Replica(Reference(new_object_id(), MIB), new_version(), 1)  # of a worker that was killed before it told
    file = host.cache.write(half.reference, half.version, [memoryview(pattern(MIB))], lambda excess: False)
    assert file is not None
    host.files.add(file, half)
    file.close()
    host.cache.trim(0)
    assert len(host.held) == len(host.cached) == 2
    for name in host.cached:
        os.utime(host.directory / name, (0, 0))  # the clock of the host was set forward by years
    now, asked = [1.0], list[bytes]()
    replica_server = ReplicaServer(host.files, lambda: now[0])

    def needed(held: Replica) -> bool:
        asked.append(held.reference.object)
        return agent.has(held.reference, held.version)

    replica_server.drop_unneeded(30.0, needed)
    now[0] += 29.0
    replica_server.drop_unneeded(30.0, needed)
    assert len(host.held) == 2 and not asked
    now[0] += 1.0
    replica_server.drop_unneeded(30.0, needed)
    assert host.held == [kept.object] and len(host.cached) == 1
    replica_server.drop_unneeded(30.0, needed)
    assert sorted(asked) == sorted([kept.object, half.reference.object])  # what was known is not asked about soon again
    now[0] += CONFIRMED_SECONDS
    replica_server.drop_unneeded(30.0, needed)
    assert asked[2:] == [kept.object] == host.held


def test_many_at_once(server: StorageProcess, place: Place) -> None:
    here, elsewhere = place(24 * MIB), place()
    here.agent(), here.agent()
    contents = [pattern(SHARED_BYTES + 4099 * number, number) for number in range(120)]
    workers, readers = [here.worker() for _ in range(3)], [elsewhere.worker() for _ in range(3)]
    with ThreadPoolExecutor(12) as pool:
        puts = [pool.submit(workers[number % 3].put, content) for number, content in enumerate(contents)]
        references = [put.result(DEADLINE) for put in puts]
        gets = [pool.submit(readers[number % 3].get, reference) for number, reference in enumerate(references)]
        near = [pool.submit(workers[number % 3].get, reference) for number, reference in enumerate(references)]
        assert [get.result(DEADLINE) for get in gets] == contents
        assert [get.result(DEADLINE) for get in near] == contents
    del gets, near
    workers[0].delete(references)
    wait_until(lambda: server.status().objects == 0)
    wait_until(lambda: not here.held)
