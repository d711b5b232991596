"""The World: real cores of a whole cluster over a network in memory, which really encodes.

    world = World(seed=1, hosts=2, clients=1)
    futures = world.client.submit(*[Plan(0.01)] * 100)
    world.kill_worker(world.hosts[0])
    world.finish()

Time is the network's; equal seeds give equal histories. Every core checks its invariants after each turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate

from scaler_io.links.effects import Effect
from scaler_io.links.events import HubEvent
from scaler_io.links.hub import Hub
from scaler_io.links.link_record import PeerTimeouts
from scaler_io.service.server_loop import ServiceTurn
from scaler_io.simulation.network import MemoryConnection, MemoryDialer, MemoryListener, MemoryNetwork, MemoryShell
from scaler_protocol.addresses import Address
from scaler_protocol.handshake import Hello, Role
from scaler_protocol.messages import Status
from scaler_scheduler.core.config import SchedulerConfig
from scaler_scheduler.core.core import SchedulerCore
from scaler_scheduler.core.effects import WriteDump
from scaler_scheduler.core.records import SessionRecord, TaskRecord
from scaler_scheduler.core.state import SendToStorage
from scaler_scheduler.core.task_states import DONE, HELD
from world.callers import Caller, WorldClient, WorldFuture
from world.hosts import SimulatedHost
from world.journals import Disk, MemoryJournal
from world.plans import Execution, Plan, Values
from world.relays import RELAY_ADDRESS, RelayLife

ADDRESS = Address(path="/world/scheduler")
CONFIG = SchedulerConfig(client_timeout_seconds=20.0, worker_timeout_seconds=5.0)
BOUND_SECONDS = 60.0
"""Whatever happened once: so long after it every future has ended."""


class CheckedScheduler:
    """A SchedulerCore whose invariants are asserted with every turn, and whose errors are kept."""

    def __init__(self, core: SchedulerCore) -> None:
        self.core = core
        self.errors: list[Exception] = []
        self.messages_sent = 0

    def handle(self, peer: bytes, event: HubEvent, now: float) -> None:
        """Take one event in."""
        try:
            self.core.handle(peer, event, now)
        except Exception as error:
            self.errors.append(error)
            raise

    def settle(self, now: float) -> list[Effect | SendToStorage | WriteDump]:
        """Decide once, and look whether all is well."""
        effects = self.core.settle(now)
        self.core.check()
        self.messages_sent += len(effects)
        return effects

    def due(self) -> float | None:
        """When to settle although nothing has happened."""
        return self.core.due()


class SchedulerLife:
    """One incarnation of the scheduler's process."""

    def __init__(self, network: MemoryNetwork, config: SchedulerConfig, disk: Disk | None) -> None:
        core = SchedulerCore(network.random.randrange(1, 2**24), config, lambda peer: self.hub.is_connected(peer))
        self.to_storage: list[SendToStorage] = []

        def timeouts(hello: Hello) -> PeerTimeouts:
            if hello.role == Role.AGENT:
                return PeerTimeouts(config.agent_grace_seconds, config.worker_timeout_seconds)
            return PeerTimeouts(config.client_timeout_seconds, config.client_timeout_seconds)

        self.core = core
        self.hub = Hub(core.state.incarnation, admit=core.admit, timeouts=timeouts)
        self.listener = MemoryListener(network, ADDRESS)
        self.checked = CheckedScheduler(core)
        self.journal: MemoryJournal | None = None
        if disk is not None:
            self.journal = MemoryJournal(network, disk, core, lambda: self.shell.alive, lambda: self.shell.wake())
        self.service = ServiceTurn(
            "Scheduler",
            self.listener,
            self.hub,
            self.checked,
            lambda: None,
            network.clock,
            {SendToStorage: self.to_storage.append},
            self.journal.commits.hold if self.journal else None,
        )
        self.shell: MemoryShell = network.attach(self.service.turn, self.listener)

    def record(self, future: WorldFuture) -> TaskRecord | None:
        """What the scheduler knows of a call."""
        return self.core.state.find(future.task_id)

    def session(self, caller: Caller) -> SessionRecord | None:
        """What the scheduler knows of a client."""
        return self.core.state.sessions.get(caller.session)

    def check_nothing_is_held(self, clients: Iterable[Caller]) -> None:
        """No task, no nested session; nothing remembered of an earlier life."""
        state, core = self.core.state, self.core
        assert state.waiting.count == 0 and not state.withdrawn
        assert state.sessions.keys() <= {client.session for client in clients}, "a session is left over"
        for session in state.sessions.values():
            assert not session.tasks, (session.number, [(hex(t), r.state) for t, r in session.tasks.items()])
            assert session.waiting == 0
        for agent in state.agents.values():
            assert not agent.runs and not agent.blocked and not agent.released and not agent.recalling
            assert agent.load < 1e-6
        recovery = core._recovery
        assert not (recovery._wanted or recovery._running or recovery._finished or recovery._adopted)
        assert not state.assigned_before
        assert state.cluster is None or not state.cluster.used
        if self.journal:
            self.journal.check_nothing_is_held()
        assert not any(function.waiting_tasks for function in core.state.functions.latest())
        assert not any(task.state == HELD for task in core.state.suspects)


class World:
    """A cluster. `kill_…`, `stop_…`, `cut_…` are its faults; `finish` waits for what is wanted; `rest` for silence."""

    def __init__(
        self,
        seed: int = 0,
        *,
        hosts: int | Sequence[int] = 1,
        clients: int = 1,
        config: SchedulerConfig = CONFIG,
        queue_size: int = 1000,
        client_timeout_seconds: float = 60.0,
        host_timeout_seconds: float = 60.0,
        journal: bool = False,
        consumables: Mapping[str, int] | None = None,
        stored: bool = False,
    ) -> None:
        """With `stored` a result that a task takes is in object storage, however small it is."""
        self.consumables = consumables
        self.network = MemoryNetwork(seed)
        self.config = config
        self.history: list[Execution] = []
        self.values = Values(stored=stored)
        self.hosts: list[SimulatedHost] = []
        self.clients: list[WorldClient] = []
        self.disk = Disk() if journal else None
        self.relays: list[RelayLife] = []
        self.lives = [SchedulerLife(self.network, config, self.disk)]
        self._client_timeout, self._host_timeout = client_timeout_seconds, host_timeout_seconds
        for workers in [1] * hosts if isinstance(hosts, int) else hosts:
            self.add_host(workers, queue_size=queue_size)
        for _ in range(clients):
            self.add_client()
        self.run(0.05)

    # --- who is there -----------------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """The time."""
        return self.network.now

    @property
    def scheduler(self) -> SchedulerLife:
        """The newest incarnation."""
        return self.lives[-1]

    @property
    def client(self) -> WorldClient:
        """The first one."""
        return self.clients[0]

    @property
    def host(self) -> SimulatedHost:
        """The first one."""
        return self.hosts[0]

    def add_relay(self, address: Address = RELAY_ADDRESS, above: Address = ADDRESS) -> RelayLife:
        """A relay joins, below the scheduler or another relay."""
        relay = RelayLife(self.network, address, above, f"relay{len(self.relays)}", self.config, self._host_timeout)
        self.relays.append(relay)
        return relay

    def add_host(
        self,
        workers: int = 1,
        *,
        queue_size: int = 1000,
        capabilities: Sequence[str] = (),
        address: Address = ADDRESS,
    ) -> SimulatedHost:
        """A host joins; it has the consumables that all hosts have."""
        name = f"host{len(self.hosts)}"
        host = SimulatedHost(
            self.network,
            address,
            name,
            self.history,
            self.values,
            workers=workers,
            queue_size=queue_size,
            capabilities=capabilities,
            consumables=self.consumables,
            timeout_seconds=self._host_timeout,
        )
        self.hosts.append(host)
        return host

    def add_client(self, session_name: str = "") -> WorldClient:
        """A client joins; with a name, its session outlives it."""
        name = f"client{len(self.clients)}"
        client = WorldClient(self.network, ADDRESS, name, self.values, self._client_timeout, session_name)
        self.clients.append(client)
        return client

    # --- time -------------------------------------------------------------------------------------------------------

    def run(self, seconds: float) -> None:
        """Let time pass."""
        self.network.run(seconds)
        self.check()

    def until(self, condition: Callable[[], object], seconds: float = BOUND_SECONDS) -> None:
        """Let time pass until it is so; fails where that takes too long."""
        assert self.network.run_until(lambda: bool(condition()), seconds), f"not so within {seconds} s"
        self.check()

    def finish(self, seconds: float = BOUND_SECONDS) -> None:
        """Let every wanted future end; fails where one does not."""
        if not self.network.run_until(lambda: not any(client.unfinished for client in self.present), seconds):
            open_ = [
                (future, (record := self.scheduler.record(future)) and record.state)
                for client in self.present
                for future in client.unfinished.values()
            ]
            raise AssertionError(f"{len(open_)} futures did not end within {seconds} s, such as {open_[:5]}")
        self.check()

    def rest(self, seconds: float = 3.0) -> None:
        """Run until nothing happens; then no process keeps any state of tasks."""
        self.run(seconds)
        for client in self.present:
            client.check_nothing_is_held()
        self.scheduler.check_nothing_is_held(self.present)
        for relay in self.relays:
            if relay.shell.alive:
                relay.check_nothing_is_held()
        for host in self.hosts:
            if host.alive:
                host.check_nothing_is_held()
        assert not any(worker.now for host in self.hosts for worker in host.workers.values()), "a worker still runs"

    @property
    def present(self) -> list[WorldClient]:
        """Clients that have not left."""
        return [client for client in self.clients if not client.gone]

    @property
    def processes(self) -> list[WorldClient | SimulatedHost]:
        """All that connect to the scheduler."""
        return [*self.clients, *self.hosts]

    def check(self) -> None:
        """What always holds: no core has raised, no honest peer was found malformed."""
        for life in self.lives:
            assert not life.checked.errors, life.checked.errors
            assert not life.service.malformed
        for relay in self.relays:
            assert not relay.checked.errors, relay.checked.errors
            assert relay.service is None or not relay.service.malformed
        assert not any(process.dialer.malformed for process in self.processes)

    def check_as_expected(self, futures: Iterable[WorldFuture]) -> None:
        """Each of these ended as its plan says."""
        for future in futures:
            assert future.came_true(), (future, future.expected())

    # --- faults -----------------------------------------------------------------------------------------------------

    def kill_scheduler(self) -> None:
        """SIGKILL to the scheduler."""
        self.scheduler.shell.kill()

    def start_scheduler(self) -> None:
        """Another one, on the same address."""
        self.lives.append(SchedulerLife(self.network, self.config, self.disk))

    def replace_scheduler(self) -> None:
        """Another one takes over, behind a proxy that keeps the connections: old traffic reaches the new one."""
        self.scheduler.shell.alive = False
        self.scheduler.listener.replace()
        self.start_scheduler()

    def restart_scheduler(self, away: float = 0.2) -> None:
        """SIGKILL to the scheduler, and another one on its address a little later."""
        self.kill_scheduler()
        self.run(away)
        self.start_scheduler()

    def restart_storage(self) -> None:
        """Object storage ends, and another one takes its place: no result can be read by another task any more."""
        self.values.lose()

    def kill_worker(self, host: SimulatedHost, *, busy: bool = True) -> Execution | None:
        """SIGKILL to a worker process; the run that it was in, if it was in one."""
        for worker in host.workers.values():
            if worker.alive and worker.ready and bool(worker.now) == busy:
                execution = worker.now
                worker.die("was killed by SIGKILL")
                return execution
        return None

    @staticmethod
    def connection(process: WorldClient | SimulatedHost) -> MemoryConnection:
        """The newest connection of a process."""
        dialer: MemoryDialer = process.dialer
        return dialer.connection

    # --- what happened ----------------------------------------------------------------------------------------------

    def executions(self, future: WorldFuture) -> list[Execution]:
        """The runs of a task, in the order of their beginnings."""
        return [execution for execution in self.history if execution.task == future.task_id]

    def running(self, future: WorldFuture) -> bool:
        """Whether it is on a worker now."""
        return any(execution.ended is None for execution in self.executions(future))

    def most_taken(self, host: SimulatedHost | None, name: str) -> int:
        """The most that runs of a host, or of all hosts, have had of a consumable at one time."""
        futures = (future for client in self.clients for future in client.futures.values())
        shares = {future.task_id: share for future in futures if (share := future.share_of(name))}
        runs = [run for run in self.history if (host is None or run.host == host.name) and run.task in shares]
        changes = [(run.began, shares[run.task]) for run in runs]
        changes += [(run.ended, -shares[run.task]) for run in runs if run.ended is not None]
        return max(accumulate(change for _, change in sorted(changes)), default=0)

    def delivered(self, futures: Iterable[WorldFuture]) -> list[WorldFuture]:
        """Those with a result."""
        return [future for future in futures if future.status == Status.VALUE]

    def done_at_scheduler(self, future: WorldFuture) -> bool:
        """Whether the scheduler knows that it has ended."""
        record = self.scheduler.record(future)
        return record is not None and record.state == DONE


def plans(count: int, seconds: float = 0.001) -> list[Plan]:
    """So many plain tasks."""
    return [Plan(seconds, value=f"v{number}") for number in range(count)]
