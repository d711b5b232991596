"""A scheduler that does what a test says, and real agents that work for it."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import cloudpickle

from scaler_client.payloads import pickles
from scaler_io.links.events import PeerJoined, PeerLost
from scaler_io.links.link_record import PeerTimeouts
from scaler_protocol.addresses import Address
from scaler_protocol.errors import restore
from scaler_protocol.handshake import Welcome
from scaler_protocol.ids import first_run, first_task, function_id, named_function_id, new_incarnation, new_session
from scaler_protocol.messages import AgentStatus, Done, Functions, Group, NeedFunctions, Run, Status
from scaler_protocol.payloads import Payloads
from scaler_protocol.profiles import Profile, profile_at
from support.fake_services import FakeService
from support.processes import Watched, descendants
from support.waiting import wait_until
from support.warm_programs import IMPORTED, WarmProgram

DEADLINE_SECONDS = 30.0


class FakeScheduler(FakeService):
    """The accepting side of one agent's link, driven by the test's own thread."""

    def __init__(self, address: Address) -> None:
        self.incarnation = new_incarnation()
        super().__init__(
            address,
            lambda hello: Welcome(self.incarnation),
            incarnation=self.incarnation,
            timeouts=PeerTimeouts(1.0, 10.0),
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
        """Define a function; return its id."""
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
        self.say(
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

    def say(self, message: Any) -> None:
        """Send to the agent."""
        assert self.agent is not None
        self.send(self.agent, message)

    # --- what happens -----------------------------------------------------------------------------------------------

    def pump(self, seconds: float = 0.05) -> None:
        """Receive messages, or wait for some."""
        self.wait(seconds)
        for peer, event in self.receive():
            self._hear(peer, event)
        self.flush()

    def until(self, condition: Callable[[], Any]) -> None:
        """Pump until the condition holds."""
        wait_until(condition, f"what the test waits for; heard of {self.other[-3:]}", DEADLINE_SECONDS, self.pump)

    def results(self, tasks: Sequence[int]) -> list[Any]:
        """The results of these tasks; asserts that all have succeeded."""
        self.until(lambda: self.done.keys() >= set(tasks))
        found = []
        for task in tasks:
            status, payload, _ = self.done[task]
            assert status == Status.VALUE, (status, payload[:500])
            found.append(pickles.load(payload))
        return found

    def error(self, task: int, status: int = Status.FAILED) -> Any:
        """The error with which the engine reports a failed task."""
        self.until(lambda: task in self.done)
        found, payload, _ = self.done[task]
        assert found == status, (found, payload[:500])
        return restore(payload)

    def heard(self, kind: type) -> list[Any]:
        """The messages of this type that have arrived."""
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
            self.say(Functions(event.functions, names, Payloads(bodies)))
        else:
            self.other.append(event)


class AgentProcess:
    """A real `scaler_cluster`, or another program that is an agent."""

    def __init__(
        self,
        address: Address,
        log: Path,
        *options: str,
        program: Sequence[str] = ("-m", "scaler_worker"),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._log = log
        words, environment = [str(address), *options], {**os.environ, **(environment or {})}
        self.process: subprocess.Popen[bytes] | WarmProgram
        with log.open("wb") as out:
            if program[-1] in IMPORTED:
                self.process = WarmProgram(program[-1], words, environment, out.fileno())
            else:
                self.process = subprocess.Popen(
                    [sys.executable, *program, *words],
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                    env=environment,
                )
        self.pid = self.process.pid

    def log(self) -> str:
        """Its output."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def family(self) -> set[int]:
        """It and all its descendants."""
        return {self.pid, *descendants(self.pid)}

    def end(self) -> None:
        """Kill it; assert that no process of it is left."""
        with Watched(self.family()) as watched:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(10)
            assert watched.wait_gone(5) == []
