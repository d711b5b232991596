"""A scheduler that does what a test says, and real agents that work for it."""

from __future__ import annotations

import os
import pickle
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from scaler_client.payloads import pickles
from scaler_io.links.events import PeerJoined, PeerLost
from scaler_io.links.hub import Hub, PeerTimeouts
from scaler_io.transport.zeromq import Listener
from scaler_protocol.addresses import Address
from scaler_protocol.errors import restore
from scaler_protocol.handshake import Welcome
from scaler_protocol.ids import first_run, first_task, function_id, named_function_id, new_incarnation, new_session
from scaler_protocol.messages import AgentStatus, Done, Functions, Group, NeedFunctions, Run, Status
from scaler_protocol.payloads import Payloads
from scaler_protocol.profiles import Profile, profile_at

DEADLINE_SECONDS = 30.0


class FakeScheduler:
    """The accepting side of one agent's link, driven by the test's own thread."""

    def __init__(self, address: Address) -> None:
        self.incarnation = new_incarnation()
        self.listener = Listener(address)
        self.address = self.listener.address
        self.hub = Hub(
            self.incarnation,
            admit=lambda hello: Welcome(self.incarnation),
            timeouts=lambda hello: PeerTimeouts(1.0, 10.0),
        )
        self.agent: bytes | None = None
        self.hello: Any = None
        self.lost: str | None = None
        self.session = new_session()
        self.bodies: dict[bytes, tuple[str, bytes]] = {}
        self.done: dict[int, tuple[int, bytes, Profile]] = {}
        self.times_done: dict[int, int] = {}
        self.other: list[Any] = []
        self.status: AgentStatus | None = None
        self.answers_functions = True
        self._task = first_task(self.session)
        self._run = first_run(self.incarnation)
        self.runs: dict[int, int] = {}

    # --- what tests say ---------------------------------------------------------------------------------------------

    def function(self, function: Callable[..., Any]) -> bytes:
        """Make a function known; returns its id."""
        body = cloudpickle.dumps(function)
        identity = function_id(body)
        self.bodies[identity] = (getattr(function, "__qualname__", "?"), body)
        return identity

    def named(self, name: str) -> bytes:
        """Make `module:name` known; returns its id."""
        identity = named_function_id(name)
        self.bodies[identity] = (name, b"")
        return identity

    def run(self, function: Callable[..., Any], *calls: Sequence[Any], **group: Any) -> list[int]:
        """Send tasks that call the function with these arguments; returns their ids."""
        return self.send_run(self.function(function), [pickle.dumps((tuple(args), {})) for args in calls], **group)

    def send_run(
        self,
        function: bytes,
        calls: Sequence[bytes],
        *,
        with_body: bool = True,
        extra: Mapping[str, Any] | None = None,
        **group: Any,
    ) -> list[int]:
        """Send tasks of pickled calls, with `extra` columns; returns their ids."""
        count = len(calls)
        tasks = list(range(self._task, self._task + count))
        identities = [function] if with_body else []
        self.send(
            Run(
                self._run,
                [Group(function, **group)],
                tasks,
                Payloads(calls),
                functions=identities,
                names=[self.bodies[identity][0] for identity in identities],
                bodies=Payloads([self.bodies[identity][1] for identity in identities]),
                **(extra or {}),
            )
        )
        self.runs.update(zip(tasks, range(self._run, self._run + count), strict=True))
        self._task += count
        self._run += count
        return tasks

    def send(self, message: Any) -> None:
        """Send to the agent."""
        assert self.agent is not None
        self.hub.send(self.agent, message)
        self.flush()

    # --- what happens -----------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write what the hub has to say."""
        for route, frames in self.hub.outgoing():
            if not self.listener.send(route, frames):
                self.hub.unreachable(route, time.monotonic())

    def pump(self, seconds: float = 0.05) -> None:
        """Take in what has come, or wait for it."""
        if not self.listener.readable():
            select.select([self.listener.fileno()], [], [], seconds)
        now = time.monotonic()
        for route, frames in self.listener.receive():
            if heard := self.hub.receive(route, frames, now):
                self._hear(*heard)
        for peer, event in self.hub.tick(now):
            self._hear(peer, event)
        self.flush()

    def until(self, condition: Callable[[], Any], seconds: float = DEADLINE_SECONDS) -> None:
        """Pump until it is so."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"not so within {seconds} s; heard of {self.other[-3:]}"
            self.pump()

    def results(self, tasks: Sequence[int], seconds: float = DEADLINE_SECONDS) -> list[Any]:
        """What these tasks returned; fails where one did not."""
        self.until(lambda: self.done.keys() >= set(tasks), seconds)
        found = []
        for task in tasks:
            status, payload, _ = self.done[task]
            assert status == Status.VALUE, (status, payload[:500])
            found.append(pickles.load(payload))
        return found

    def error(self, task: int, status: int = Status.FAILED) -> Any:
        """How the engine says that a task failed."""
        self.until(lambda: task in self.done)
        found, payload, _ = self.done[task]
        assert found == status, (found, payload[:500])
        return restore(payload)

    def heard(self, kind: type) -> list[Any]:
        """The messages of this type so far."""
        return [message for message in self.other if isinstance(message, kind)]

    def _hear(self, peer: bytes, event: Any) -> None:
        if isinstance(event, PeerJoined):
            self.agent, self.hello, self.lost = peer, event.hello, None
        elif isinstance(event, PeerLost):
            self.lost = event.reason
        elif isinstance(event, Done):
            for at, task in enumerate(event.tasks):
                self.done[task] = event.statuses[at], event.results[at], profile_at(event.profiles, at)
                self.times_done[task] = self.times_done.get(task, 0) + 1
        elif isinstance(event, AgentStatus):
            self.status = event
        elif isinstance(event, NeedFunctions) and self.answers_functions:
            names, bodies = zip(*(self.bodies[identity] for identity in event.functions), strict=True)
            self.send(Functions(event.functions, names, Payloads(bodies)))
        else:
            self.other.append(event)

    def close(self) -> None:
        """Free the address."""
        self.listener.close()


class AgentProcess:
    """A real `scaler_cluster`."""

    def __init__(
        self, address: Address, log: Path, *options: str, program: Sequence[str] = ("-m", "scaler_worker")
    ) -> None:
        self._log = log
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, *program, str(address), *options],
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self.pid = self.process.pid

    def log(self) -> str:
        """What it printed so far."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def family(self) -> set[int]:
        """All processes that it is an ancestor of, itself included."""
        parents: dict[int, int] = {}
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                try:
                    fields = Path(f"/proc/{entry}/stat").read_bytes().rpartition(b")")[2].split()
                except OSError:
                    continue
                if fields[0] != b"Z":
                    parents[int(entry)] = int(fields[1])
        found = {self.pid} & parents.keys()
        while grown := {pid for pid, parent in parents.items() if parent in found} - found:
            found |= grown
        return found

    def template(self) -> int:
        """The process id of the template: the one child that leads a group and is no worker."""
        for pid in self.family() - {self.pid}:
            if Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1] == str(self.pid).encode():
                return pid
        raise AssertionError("no template")

    def end(self) -> int:
        """Stop it; returns its exit code."""
        self.process.terminate()
        return self.process.wait(10)


def gone(pids: set[int], seconds: float = 5.0) -> bool:
    """Whether all of these processes end in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not any(_alive(pid) for pid in pids):
            return True
        time.sleep(0.01)
    return False


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except OSError:
        return False


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[FakeScheduler]:
    made = FakeScheduler(Address(path=str(tmp_path / "s")))
    yield made
    made.close()


@pytest.fixture
def cluster(scheduler: FakeScheduler, tmp_path: Path) -> Iterator[Callable[..., AgentProcess]]:
    """Starts agents, waits until they have joined, and ends them."""
    agents: list[AgentProcess] = []
    expected_tracebacks: list[int] = []

    def start(*options: str, join: bool = True, tracebacks: int = 0, **how: Any) -> AgentProcess:
        expected_tracebacks.append(tracebacks)
        agent = AgentProcess(scheduler.address, tmp_path / f"log{len(agents)}", *options, **how)
        agents.append(agent)
        if join:
            try:
                scheduler.until(lambda: scheduler.agent is not None)
            except AssertionError:
                raise AssertionError(f"the agent did not join:\n{agent.log()}") from None
        return agent

    yield start
    for agent, tracebacks in zip(agents, expected_tracebacks, strict=True):
        if agent.process.poll() is None:
            family = agent.family()
            agent.process.send_signal(signal.SIGTERM)
            try:
                agent.process.wait(10)
            except subprocess.TimeoutExpired:
                agent.process.kill()
                agent.process.wait()
                raise
            assert gone(family)
        log = agent.log()
        assert log.count("Traceback") == tracebacks, log
