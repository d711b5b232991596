"""A scheduler core with peers that are made of messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, TypeVar

import pytest

from scaler_io.links.effects import Effect, Log, Send
from scaler_io.links.events import HubEvent, PeerJoined, PeerLost, SendFailed
from scaler_protocol import messages
from scaler_protocol.byte_planes import from_planes
from scaler_protocol.codec import decode, encode
from scaler_protocol.handshake import Hello, Role
from scaler_protocol.ids import first_task, function_id
from scaler_protocol.messages import Done, Group, Run, Status, Submit
from scaler_protocol.monitoring import PACKED_BATCH, PACKED_ID, TaskEvents, TaskStep
from scaler_protocol.payloads import NONE, Payloads
from scaler_protocol.profiles import Profile
from scaler_scheduler.core.config import SchedulerConfig
from scaler_scheduler.core.core import SchedulerCore
from scaler_scheduler.core.effects import WriteDump
from scaler_scheduler.core.snapshot import ProcessStats, monitor_status
from scaler_scheduler.core.state import SchedulerState, SendToStorage
from scaler_scheduler.core.task_states import ASSIGNED, DONE, HELD, WAITING

M = TypeVar("M")
FUNCTION = function_id(b"body")
STEPS = {WAITING: TaskStep.WAITING, HELD: TaskStep.HELD, ASSIGNED: TaskStep.ASSIGNED}


class TinyMonitor:
    """Listens from the start: where each task stands, as it was told."""

    def __init__(self, state: SchedulerState) -> None:
        self.steps: dict[int, int] = {}
        self._state = state
        state.event_log.start((), ())

    def look(self, now: float) -> None:
        """Hear what has happened; it is what the tables hold, and the figures can be written."""
        state = self._state
        encode(monitor_status(state, ProcessStats("ipc:///test", 0.0, now, 0.0, 0), now))
        if (events := state.event_log.take(0.0)) is not None:
            written = decode([bytes(frame) for frame in encode(events)])
            assert isinstance(written, TaskEvents)
            ids = iter(memoryview(from_planes(written.tasks, PACKED_ID.size)).cast("Q"))
            for step, _, count, _ in PACKED_BATCH.iter_unpack(from_planes(written.batches, PACKED_BATCH.size)):
                for task in islice(ids, count):
                    if step in (TaskStep.ENDED, TaskStep.CANCELLED):
                        self.steps.pop(task, None)
                    else:
                        self.steps[task] = step
        sessions = (*state.sessions.values(), *state.ended_sessions)
        tasks = [entry for session in sessions for entry in session.tasks.items()]
        assert self.steps == {task: STEPS[entry.state] for task, entry in tasks if entry.state != DONE}


@dataclass
class SchedulerDriver:
    """Feeds a core and sorts what it says by receiver; time stands still unless told."""

    config: SchedulerConfig = field(default_factory=SchedulerConfig)
    monitored: bool = False
    now: float = 100.0
    incarnation: int = 7
    inboxes: dict[bytes, list[messages.Message]] = field(default_factory=dict)
    logs: list[str] = field(default_factory=list)
    others: list[Effect | SendToStorage | WriteDump] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.cut_off = set[bytes]()
        """Peers whose links have no connection now."""
        self.core = SchedulerCore(self.incarnation, self.config, lambda peer: peer not in self.cut_off)
        self._monitor = TinyMonitor(self.core.state) if self.monitored else None
        self._counts: dict[bytes, int] = {}

    def feed(self, peer: bytes, *events: HubEvent) -> None:
        """Events of one peer in one turn; every message really travels."""
        for event in events:
            wire = (
                event
                if isinstance(event, PeerJoined | PeerLost | SendFailed)
                else decode([bytes(f) for f in encode(event)])
            )
            self.core.handle(peer, wire, self.now)
        self.settle()

    def settle(self) -> None:
        """Let the core decide, and check it."""
        for effect in self.core.settle(self.now):
            if isinstance(effect, Send):
                written = decode([bytes(frame) for frame in encode(effect.message)])
                self.inboxes.setdefault(effect.to, []).append(written)
            elif isinstance(effect, Log):
                self.logs.append(effect.text)
            else:
                self.others.append(effect)
        self.core.check()
        if self._monitor is not None:
            self._monitor.look(self.now)

    def later(self, seconds: float) -> None:
        """Time passes."""
        self.now += seconds
        self.settle()

    def client(self, name: bytes = b"client", **hello: object) -> bytes:
        """A client joins; its session number is the first byte of its name."""
        peer = name.ljust(16, b".")
        greeting = Hello(Role.CLIENT, peer, 1, session=name[0])
        self.feed(peer, PeerJoined(replace(greeting, **hello), False))  # type: ignore[arg-type]
        return peer

    def agent(
        self, name: bytes = b"agent", workers: int = 1, capabilities: Sequence[str] = (), **hello: object
    ) -> bytes:
        """An agent joins."""
        peer = name.ljust(16, b".")
        greeting = Hello(
            Role.AGENT,
            peer,
            1,
            name=name.decode(),
            host=name.decode(),
            workers=workers,
            queue_size=1000,
            capability_names=tuple(capabilities),
            capability_values=(-1,) * len(capabilities),
        )
        self.feed(peer, PeerJoined(replace(greeting, **hello), False))  # type: ignore[arg-type]
        return peer

    def submit(self, client: bytes, count: int = 1, *, parent: int = 0, session: int = 0, **group: Any) -> list[int]:
        """New tasks; their ids."""
        at = self._counts.get(client, 0)
        self._counts[client] = at + count
        first = first_task(session or client[0]) + at + 1
        tasks = list(range(first, first + count))
        self.feed(
            client,
            Submit(
                (Group(FUNCTION, **group),),
                tasks,
                Payloads([b"call"] * count),
                functions=(FUNCTION,),
                names=("module:function",),
                bodies=Payloads([b"body"]),
                parent=parent,
            ),
        )
        return tasks

    def take(self, peer: bytes, kind: type[M]) -> list[M]:
        """Messages of this kind that were said to the peer, now claimed."""
        inbox = self.inboxes.get(peer, [])
        taken: list[M] = [message for message in inbox if isinstance(message, kind)]
        self.inboxes[peer] = [message for message in inbox if not isinstance(message, kind)]
        return taken

    def runs(self, agent: bytes) -> dict[int, int]:
        """Task id to run id of everything the agent was newly given."""
        return {
            task: run.first_run + position for run in self.take(agent, Run) for position, task in enumerate(run.tasks)
        }

    def done(
        self,
        agent: bytes,
        runs: dict[int, int],
        status: int = Status.VALUE,
        result: bytes = b"r",
        seconds: float = 0.001,
        stored: Sequence[int] = (),
    ) -> None:
        """The agent reports these runs as ended, after as many seconds; `stored` are positions of references."""
        self.now += seconds
        profile = Profile(int(seconds * 1e6), 1, 1, 1, 0, 1).packed()
        count = len(runs)
        payloads = Payloads([result] * count) if count else NONE
        tasks, ids = list(runs), list(runs.values())
        self.feed(agent, Done(tasks, [status] * count, payloads, ids, stored, profiles=profile * count, agents=("w",)))

    def outcomes(self, client: bytes) -> dict[int, tuple[int, bytes]]:
        """Task id to status and payload of every outcome the client was newly told; twice is an error."""
        told: dict[int, tuple[int, bytes]] = {}
        for done in self.take(client, Done):
            for task, status, result in zip(done.tasks, done.statuses, done.results, strict=True):
                assert task not in told
                told[task] = (status, result)
        return told


@pytest.fixture
def driver() -> SchedulerDriver:
    """A new scheduler with a monitor, which checks every event; the state machines draw whether there is one."""
    return SchedulerDriver(monitored=True)


@pytest.fixture(scope="session")
def make_driver() -> type[SchedulerDriver]:
    """For tests that make any number of schedulers."""
    return SchedulerDriver
