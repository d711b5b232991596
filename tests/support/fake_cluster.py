"""A scheduler and its workers in one thread of the test: real sockets and bytes; calls run at once."""

from __future__ import annotations

import pickle
import select
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from scaler_client import task_context
from scaler_client.calls.part_encoding import read_parts
from scaler_client.objects.store import StorageDoor
from scaler_client.task_context import CurrentTask, Transport
from scaler_io.links.events import HubEvent, PeerJoined, PeerLost, SendFailed
from scaler_io.objects.connection import ObjectConnection
from scaler_protocol.capacity import ListWorkers, WorkerList
from scaler_protocol.handshake import Hello, Refused, Welcome
from scaler_protocol.messages import (
    Cancel,
    Done,
    Encoding,
    Functions,
    Group,
    Inputs,
    Message,
    NeedInputs,
    NeedTasks,
    Output,
    Reconcile,
    Release,
    Shutdown,
    ShutdownAnswer,
    Status,
    Submit,
    TaskCredit,
    pieces_of,
)
from scaler_protocol.payloads import Payloads
from scaler_protocol.profiles import Profile
from support.fake_services import ANY_PORT, FakeService

TURN_SECONDS = 0.02
"""So long tasks run before their outcomes are sent, and messages are read again."""


class InputsOnly:
    """A runtime that offers nothing but inputs."""

    session = scheduler = 0
    storage = StorageDoor(str, lambda address: ObjectConnection(address, session=1))

    def __init__(self, inputs: Mapping[int, tuple[bool, bytes]]) -> None:
        self.inputs = inputs

    def current(self) -> CurrentTask | None:
        return None

    def fetch(self, reference: bytes) -> bytes:
        raise AssertionError("not here")

    def load(self, reference: bytes) -> Any:
        raise AssertionError("not here")

    def retire(self, why: str) -> None:
        raise AssertionError("not here")

    def connect(self) -> Transport:
        raise AssertionError("not here")


class FakeCluster:
    """Answers clients. `paused` leaves tasks where they are; `seen` is every message, `ran` every task run."""

    def __init__(self) -> None:
        self.seen: list[Message] = []
        self.ran: list[int] = []
        self.paused = False
        self.protected = True
        self.refusals: tuple[str, ...] = ()
        self.forgets_results = False
        self.stays_silent = False
        self.workers = 0
        self.credit = 32 * 1024 * 1024
        self.task_credit = 0
        self.most_waiting = 0
        self._incarnation = 1
        self._service = FakeService(ANY_PORT, self._admit)
        self.address = str(self._service.address)
        self._reader, self._writer = socket.socketpair()
        self._lock = threading.Condition()
        self._begin()
        self._stopping = False
        self._thread = threading.Thread(target=self._serve, name="fake-cluster")
        self._thread.start()

    def _begin(self) -> None:
        self._functions: dict[bytes, tuple[str, bytes]] = {}
        self._tasks: dict[int, tuple[bytes, Group, bytes, list[int]]] = {}
        self._results: dict[int, tuple[int, bytes]] = {}
        self._supplied: dict[int, tuple[int, bytes]] = {}
        self._asked: set[tuple[int, int]] = set()
        self._queries: dict[tuple[bytes, int], int] = {}
        self._service.start(self._incarnation)

    def _admit(self, hello: Hello) -> Welcome | Refused:
        return (
            Refused(self.refusals)
            if self.refusals
            else Welcome(1, session_credit=self.credit, task_credit=self.task_credit)
        )

    # --- for tests --------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        self._writer.send(b"\0")

    def go_on(self) -> None:
        self.paused = False
        self.wake()

    def of(self, kind: type[Any]) -> list[Any]:
        with self._lock:
            return [message for message in self.seen if isinstance(message, kind)]

    def wait_for(self, kind: type[Any], count: int = 1) -> list[Any]:
        """Wait for this many messages of a type; return them."""
        with self._lock:
            assert self._lock.wait_for(lambda: sum(isinstance(m, kind) for m in self.seen) >= count, 10), self.seen
        return self.of(kind)

    def have_workers(self, count: int) -> None:
        """Pretend that one host with this many workers is connected."""
        with self._lock:
            self.workers = count
            self._answer_queries()
        self.wake()

    def wait_tasks(self, count: int) -> None:
        """Wait until this many tasks are queued here."""
        with self._lock:
            assert self._lock.wait_for(lambda: len(self._tasks) >= count, 10)

    def wait_heartbeats(self, count: int) -> None:
        """Wait until clients have sent this many more heartbeats."""
        with self._lock:
            wanted = self._service.hub.received["Heartbeat"] + count
            assert self._lock.wait_for(lambda: self._service.hub.received["Heartbeat"] >= wanted, 10)

    def grant(self, tasks: int) -> None:
        """Change the credit of the clients that have tasks here."""
        with self._lock:
            for peer in {peer for peer, *_ in self._tasks.values()}:
                self._service.hub.send(peer, TaskCredit(tasks))
        self.wake()

    def print_for_client(self, task: int, stream: int, text: str) -> None:
        with self._lock:
            self._service.hub.send(self._tasks[task][0], Output([task], [stream], Payloads([text.encode()])))
        self.wake()

    def be_replaced(self) -> None:
        """Restart as another scheduler, without state, at the same address."""
        with self._lock:
            self._replace = True
        self.wake()

    def stop(self) -> None:
        self._stopping = True
        self.wake()
        self._thread.join(10)
        self._service.close()
        self._reader.close()
        self._writer.close()

    # --- the thread -------------------------------------------------------------------------------------------------

    _replace = False

    def _serve(self) -> None:
        more = False
        while not self._stopping:
            self._service.wait(0.0 if more else 0.05, self._reader.fileno())
            if select.select([self._reader], [], [], 0)[0]:
                self._reader.recv(4096)
            with self._lock:
                if self._replace:
                    self._replace, self._incarnation = False, self._incarnation + 1
                    self._begin()
                more = self._turn()
                self._lock.notify_all()

    def _turn(self) -> bool:
        """Whether tasks have run, so that others may be ready."""
        if self.stays_silent:
            self._service.listener.receive()
        else:
            for peer, event in self._service.receive():
                self._handle(peer, event)
        self.most_waiting = max(self.most_waiting, sum(len(call) for _, _, call, _ in self._tasks.values()))
        ran = not self.paused and self._run_some()
        self._service.flush()
        return ran

    def _handle(self, peer: bytes, event: HubEvent) -> None:
        if isinstance(event, PeerJoined | PeerLost | SendFailed):
            return
        self.seen.append(event)
        if isinstance(event, Submit | Functions):
            named = zip(event.names, event.bodies, strict=True)
            self._functions.update(zip(event.functions, named, strict=True))
        handler = {
            Submit: self._submit, Cancel: self._cancel, Release: self._release, Inputs: self._inputs,
            Reconcile: self._resume, Shutdown: self._shutdown,
            ListWorkers: self._list_workers,
        }.get(type(event))  # fmt: skip
        if handler is not None:
            handler(peer, event)

    def _submit(self, peer: bytes, event: Any) -> None:
        needs: dict[int, list[int]] = {}
        for position, need in zip(event.dependents, event.needs, strict=True):
            needs.setdefault(position, []).append(need)
        for position, (task, call) in enumerate(zip(event.tasks, event.calls, strict=True)):
            group = event.groups[event.task_groups[position] if event.task_groups else 0]
            self._tasks[task] = peer, group, call, needs.get(position, [])

    def _cancel(self, peer: bytes, event: Any) -> None:
        for task in event.tasks:
            self._tasks.pop(task, None)

    def _release(self, peer: bytes, event: Any) -> None:
        for task in event.tasks:
            self._results.pop(task, None)

    def _inputs(self, peer: bytes, event: Any) -> None:
        outcomes = zip(event.statuses, event.results, strict=True)
        self._supplied.update(zip(event.needs, outcomes, strict=True))

    def _resume(self, peer: bytes, event: Any) -> None:
        unknown = [task for task in event.wanted if task not in self._tasks]
        if unknown:
            self._service.hub.send(peer, NeedTasks(unknown))

    def _shutdown(self, peer: bytes, event: Any) -> None:
        self._service.hub.send(peer, ShutdownAnswer(not self.protected, "protected" if self.protected else ""))

    def _list_workers(self, peer: bytes, event: Any) -> None:
        self._queries[peer, event.request] = event.at_least
        self._answer_queries()

    def _answer_queries(self) -> None:
        for (peer, request), at_least in list(self._queries.items()):
            if at_least <= self.workers:
                del self._queries[peer, request]
                rows = (["here"], [self.workers], ["gpu=1,linux"], ["grid"]) if self.workers else ([], [], [], [])
                self._service.hub.send(peer, WorkerList(request, *rows))

    def _run_some(self) -> bool:
        done: dict[bytes, list[tuple[int, int, bytes]]] = {}
        until = time.monotonic() + TURN_SECONDS
        for task, (peer, group, call, needs) in list(self._tasks.items()):
            known = {**self._results, **self._supplied} if needs else {}
            if missing := [need for need in needs if need not in known]:
                unknown = [need for need in missing if need not in self._tasks and (task, need) not in self._asked]
                if unknown:
                    self._asked.update((task, need) for need in unknown)
                    self._service.hub.send(peer, NeedInputs([task] * len(unknown), unknown))
                continue
            del self._tasks[task]
            self.ran.append(task)
            inputs = {need: known[need] for need in needs}
            failed = next((outcome for outcome in inputs.values() if outcome[0] != Status.VALUE), None)
            outcome = failed or self._run(group, call, inputs)
            if not self.forgets_results:
                self._results[task] = outcome
            done.setdefault(peer, []).append((task, *outcome))
            if time.monotonic() >= until:
                break
        for peer, outcomes in [(peer, some) for peer, all_of in done.items() for some in pieces_of(all_of)]:
            tasks, statuses, results = zip(*outcomes, strict=True)
            profiles = b"".join(Profile(1500, 1000, 4096, 7, 3, 1).packed() for _ in tasks)
            message = Done(tasks, statuses, Payloads(results), runs=tasks, profiles=profiles, agents=("host",))
            self._service.hub.send(peer, message)
        return bool(done)

    def _run(self, group: Group, call: bytes, inputs: Mapping[int, tuple[int, bytes]]) -> tuple[int, bytes]:
        installed = task_context.runtime()
        task_context._runtime = InputsOnly({task: (False, payload) for task, (_, payload) in inputs.items()})
        try:
            body = self._functions[group.function][1]
            if group.encoding == Encoding.PARTS:
                serializer = pickle.loads(self._functions[group.serializer][1])
                args, kwargs = read_parts(call, serializer.deserialize)
                return Status.VALUE, serializer.serialize(serializer.deserialize(body)(*args, **kwargs))
            arguments: tuple[Sequence[Any], Mapping[str, Any]] = pickle.loads(call)
            return Status.VALUE, pickle.dumps(pickle.loads(body)(*arguments[0], **arguments[1]))
        except Exception as error:
            return Status.RAISED, pickle.dumps((error.with_traceback(None), f"remote text of {error!r}\n"))
        finally:
            task_context._runtime = installed
