"""Hosts that differ: an object storage server, processes on its host, which write and map segments, others elsewhere.

Those elsewhere share a directory, in which what they make may stay, and agents speak for it. The core, the links and
the conveyors are real, the network is in memory, and segments are files below a directory of the test. Equal seeds give
equal histories.
"""

from __future__ import annotations

import contextlib
import functools
import math
import shutil
from pathlib import Path

from scaler_io.links.effects import Effect
from scaler_io.links.events import HubEvent
from scaler_io.links.hub import Hub
from scaler_io.links.link_record import PeerTimeouts
from scaler_io.links.uplink import Uplink
from scaler_io.objects.file_locks import LivenessLocks
from scaler_io.objects.host_cache import HostCache
from scaler_io.objects.mmaps import Mappings
from scaler_io.objects.multiplexer import Multiplexer
from scaler_io.objects.operations import Deletion, Download, Listing, Operation, Registration, Upload
from scaler_io.objects.replica_server import ReplicaServer
from scaler_io.objects.replicas import Replica, Replicas
from scaler_io.objects.segments import read_token
from scaler_io.private_files import SERVER_PREFIX
from scaler_io.service.server_loop import ServiceTurn
from scaler_io.simulation.network import MemoryDialer, MemoryListener, MemoryNetwork
from scaler_protocol.addresses import Address
from scaler_protocol.errors import ObjectNotFoundError, ObjectRefusedError, ScalerError
from scaler_protocol.handshake import Goodbye, Hello, Role, ServiceKind
from scaler_protocol.objects import Reference
from scaler_storage.engine.engine import HEARTBEAT_SECONDS, StorageEngine
from scaler_storage.engine.pool import RECYCLE_SECONDS
from scaler_storage.files import FileSegments
from scaler_storage.service import AGENT_GRACE_SECONDS

ADDRESS = Address(path="/world/storage")
SESSION = 1
TIMEOUT_SECONDS = 10.0
CLIENT_GRACE_SECONDS = 20.0
RETENTION_SECONDS = 20.0
"""How long objects of a client that has not come, as after a restart of the server, are kept."""
BEATS_SECONDS = 12.0
"""Seconds after which ZeroMQ detects a dead peer (scaler_io.transport.sockets)."""
BOUND_SECONDS = 60.0
"""Whatever happened once: so long after it every transfer has ended."""


class CheckedStorage:
    """A StorageEngine whose invariants are asserted with every turn, and whose errors are kept."""

    def __init__(self, core: StorageEngine) -> None:
        self.core = core
        self.errors: list[Exception] = []

    def handle(self, peer: bytes, event: HubEvent, now: float) -> None:
        """Take one event in."""
        try:
            self.core.handle(peer, event, now)
        except Exception as error:
            self.errors.append(error)
            raise

    def settle(self, now: float) -> list[Effect]:
        """Decide once, and look whether all is well."""
        effects = self.core.settle(now)
        self.core.check()
        return effects

    def due(self) -> float | None:
        """When to settle although nothing has happened."""
        return self.core.due()


class StorageLife:
    """One incarnation of the server's process."""

    def __init__(self, network: MemoryNetwork, folder: Path, memory_limit: int) -> None:
        incarnation = network.random.randrange(1, 2**24)
        self.folder = folder / f"{SERVER_PREFIX}{incarnation}"
        self.folder.mkdir(mode=0o700)
        self._segments = FileSegments(self.folder, None)
        core = StorageEngine(incarnation, self._segments, memory_limit, RETENTION_SECONDS)

        def timeouts(hello: Hello) -> PeerTimeouts:
            return PeerTimeouts(CLIENT_GRACE_SECONDS if hello.role == Role.CLIENT else AGENT_GRACE_SECONDS, math.inf)

        hub = Hub(incarnation, admit=core.admit, timeouts=timeouts, heartbeat_seconds=HEARTBEAT_SECONDS)
        listener = MemoryListener(network, ADDRESS)
        self.core, self.checked = core, CheckedStorage(core)
        service = ServiceTurn("Storage", listener, hub, self.checked, lambda: None, network.clock)
        self.shell = network.attach(service.turn, listener)

    @property
    def files(self) -> list[str]:
        """The segments that there are, also those that wait to be used again."""
        return sorted(path.name for path in self.folder.iterdir() if path.name not in ("token", "peers"))

    def kill(self) -> None:
        """SIGKILL; the next server removes its files."""
        self.shell.kill()
        self.clear()

    def clear(self) -> None:
        """Leave no file behind."""
        self._segments.close()
        shutil.rmtree(self.folder)


class ObjectProcess:
    """A client or worker, on the server's host or elsewhere; or an agent that speaks for what is held there."""

    def __init__(
        self,
        network: MemoryNetwork,
        *,
        here: bool,
        role: int = Role.AGENT,
        files: Replicas | None = None,
        speaks: bool = False,
    ) -> None:
        self.here = here
        self.transfers: list[Upload | Download | Registration | Listing] = []
        self._files, self._speaks = files, speaks
        self._network, self._role, self._lives = network, role, LivenessLocks()
        self._connect()

    def _connect(self) -> None:
        network, session = self._network, SESSION if self._role == Role.CLIENT else 0
        hello = Hello(
            self._role,
            network.random.randbytes(16),
            network.random.randrange(1, 2**24),
            session=session,
            service=ServiceKind.STORAGE,
        )
        self.identity = hello.identity
        self._uplink = Uplink(hello, network.now, timeout_seconds=TIMEOUT_SECONDS)
        self.dialer = MemoryDialer(network, ADDRESS, self._uplink)
        self._mappings = Mappings(lambda: self.shell.wake())
        prove = read_token if self.here else lambda directory: b""
        self._conveyor = Multiplexer(
            self._uplink,
            str(ADDRESS),
            TIMEOUT_SECONDS,
            self._mappings,
            prove,
            self._lives.name,
            lambda server: None,
            ReplicaServer(self._files) if self._files is not None and self._speaks else None,
        )
        self.shell = network.attach(self._turn, self.dialer)

    def _turn(self, now: float) -> float:
        conveyor = self._conveyor
        for event in self.dialer.turn(now):
            conveyor.handle(event, now)
        conveyor.send_requests(now)
        for event in self.dialer.flush(now):
            conveyor.handle(event, now)
        copied = conveyor.write_slice(now)
        conveyor.fail_overdue(now)
        return now if copied else min(self._uplink.due(), conveyor.due())

    def put(self, name: bytes, content: bytes) -> Upload:
        """Begin to store an object."""
        upload = Upload(Reference(name, len(content)), [memoryview(content)] if content else [], SESSION)
        self._begin(upload)
        return upload

    def hold(self, name: bytes, content: bytes) -> None:
        """Begin to have an object stay on this host; where it can not it is put."""
        files = self._files
        assert files is not None
        held = Replica(Reference(name, len(content)), self._network.random.randrange(1, 2**63), SESSION)
        file = HostCache(files.directory, 1 << 30).write(
            held.reference, held.version, [memoryview(content)], lambda excess: False
        )
        assert file is not None
        with contextlib.closing(file):
            files.add(file, held)

        def heard(hold: Registration, error: ScalerError | None) -> None:
            if not hold.needed:
                files.drop(held)
            if isinstance(error, ObjectRefusedError):
                self.put(name, content)

        self._begin(Registration(held, files.host, heard))

    def give(self, name: bytes) -> None:
        """Begin to put what is held here."""
        files = self._files
        assert files is not None
        for _, held in files.list():
            mapping = files.map(held)
            if held.reference.object == name and mapping is not None:
                done = functools.partial(_given, files, held)
                self._begin(Upload(held.reference, [memoryview(mapping)], SESSION, done, held.version))

    def look_after(self) -> list[tuple[Replica, Download]]:
        """Begin to ask which of what is held here the server knows of."""
        assert self._files is not None
        looks = [(held, Download(held.reference, looking=True)) for _, held in self._files.list()]
        for _, look in looks:
            self._begin(look)
        return looks

    def get(self, reference: Reference) -> Download:
        """Begin to fetch an object."""
        download = Download(reference)
        self._begin(download)
        return download

    def list(self) -> Listing:
        """Begin to ask what there is of the session."""
        listing = Listing()
        self._begin(listing)
        return listing

    def delete(self, name: bytes) -> None:
        """Free an object."""
        self._mappings.forget([name])
        self._start(Deletion([name], SESSION))

    def _begin(self, transfer: Upload | Download | Registration | Listing) -> None:
        self.transfers.append(transfer)
        self._start(transfer)

    def _start(self, transfer: Operation) -> None:
        transfer.since = self._network.now
        self._conveyor.add(transfer)
        self.shell.wake()

    def forget(self) -> None:
        """Nothing that was fetched is used any more."""
        self.transfers.clear()
        self.shell.wake()

    def kill(self) -> None:
        """SIGKILL: the kernel takes what it had mapped and locked."""
        self.shell.kill()
        self._lives.end()
        self.transfers.clear()

    def leave(self) -> None:
        """Say goodbye, as a process that ends well."""
        self._uplink.send(Goodbye())
        self.dialer.flush(self._network.now)
        self._lives.end()
        self.dialer.close()
        self.shell.alive = False


def _given(files: Replicas, held: Replica, error: ScalerError | None) -> None:
    if error is None:
        files.release(held)


class ObjectWorld:
    """A server; a client that owns the session, elsewhere; workers, `here` of them on the server's host."""

    def __init__(self, folder: Path, seed: int = 0, *, here: int = 1, elsewhere: int = 2, limit: int = 1 << 30) -> None:
        self.network = MemoryNetwork(seed)
        self._folder, self._limit = folder, limit
        self.storage = StorageLife(self.network, folder, limit)
        self.owner = ObjectProcess(self.network, here=False, role=Role.CLIENT)
        directory = folder / "elsewhere"
        directory.mkdir()
        self.files = Replicas(directory, ADDRESS)
        self.workers = [self._worker(number < here) for number in range(here + elsewhere)]
        self.agents = [self._agent() for _ in range(2)]
        self.run(0.1)

    def _worker(self, here: bool) -> ObjectProcess:
        return ObjectProcess(self.network, here=here, files=None if here else self.files)

    def _agent(self) -> ObjectProcess:
        return ObjectProcess(self.network, here=False, files=self.files, speaks=True)

    def run(self, seconds: float) -> None:
        """Let time pass."""
        self.network.run(seconds)

    @property
    def processes(self) -> list[ObjectProcess]:
        """The client and the workers."""
        return [self.owner, *self.workers]

    @property
    def under_way(self) -> list[Upload | Download | Registration | Listing]:
        """What has not ended."""
        return [
            each for process in [*self.processes, *self.agents] for each in process.transfers if not each.over.is_set()
        ]

    def restart_storage(self, seconds: float = 0.0) -> None:
        """Kill the server, and start another one after a while."""
        self.storage.kill()
        self.run(seconds)
        self.storage = StorageLife(self.network, self._folder, self._limit)

    def cut(
        self, process: ObjectProcess, lost: int | None = None, *, dialer: bool = True, listener: bool = True
    ) -> None:
        """Break its connection; a side that does not notice does when ZeroMQ's heartbeats stay away."""
        for connection in process.dialer.connections[-1:]:
            connection.cut(up_lost=lost, down_lost=lost, dialer_notices=dialer, listener_notices=listener)
            self.network.at(self.network.now + BEATS_SECONDS, connection.cut)

    def kill_worker(self, number: int) -> None:
        """Kill it, and start another one on its host."""
        here = self.workers[number].here
        self.workers[number].kill()
        self.workers[number] = self._worker(here)

    def kill_agent(self, number: int) -> None:
        """Kill it, and start another one."""
        self.agents[number].kill()
        self.agents[number] = self._agent()

    def finish(self, seconds: float = BOUND_SECONDS) -> None:
        """Until every transfer has ended."""
        assert self.network.run_until(lambda: not self.under_way, seconds), self.under_way

    def close(self) -> None:
        """Everybody leaves; of objects nothing is left, neither in the books nor in files."""
        for process in self.processes:
            process.forget()
            process.leave()
        self.run(CLIENT_GRACE_SECONDS + RETENTION_SECONDS + 2 * RECYCLE_SECONDS)
        looks = self.agents[0].look_after()
        self.finish()
        for held, look in looks:
            assert isinstance(look.error, ObjectNotFoundError), look.error
            self.files.drop(held)
        assert [path for path in self.files.directory.glob("*-*") if path.stat().st_nlink > 1] == []
        for agent in self.agents:
            agent.leave()
        self.run(1.0)
        status = self.storage.core.status()
        assert (status.objects, status.writing, status.bytes, status.pinned_bytes, status.peers) == (0, 0, 0, 0, 0)
        assert self.storage.files == [] and self.storage.checked.errors == []
        self.storage.shell.kill()
        with contextlib.suppress(FileNotFoundError):
            self.storage.clear()
