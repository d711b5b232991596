"""Clients inside tasks: doors to one core, which travels through the worker."""

from __future__ import annotations

import math
import os
import pickle
import queue
import select
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from scaler_client import task_context
from scaler_client.api.client import Client
from scaler_client.objects.store import StorageDoor
from scaler_client.runtime import connection
from scaler_client.task_context import CurrentTask, Transport, current_task
from scaler_io.links.events import LinkLost, LinkUp, UplinkEvent
from scaler_io.objects.connection import ObjectConnection
from scaler_protocol.errors import ClientForkedError, ClientQuitError, SchedulerLostError, SessionExhaustedError
from scaler_protocol.handshake import Welcome
from scaler_protocol.ids import new_session
from scaler_protocol.messages import Blocked, Done, Message, Submit
from scaler_protocol.payloads import Payloads


class ScriptedChannel:
    """A Transport whose other end is the test."""

    def __init__(self) -> None:
        self.sent: queue.Queue[Message] = queue.Queue()
        self._events: list[UplinkEvent] = [LinkUp(Welcome(1), False)]
        self._reader, self._writer = os.pipe()

    def turn(self, now: float) -> Sequence[UplinkEvent]:
        events, self._events = self._events, []
        return events

    def send(self, message: Message) -> None:
        self.sent.put(message)

    def flush(self, now: float) -> Sequence[UplinkEvent]:
        return []

    def due(self) -> float:
        return math.inf

    def readable(self) -> bool:
        return bool(self._events)

    def wait(self, wake: int, seconds: float) -> bool:
        ready = select.select([wake, self._reader], [], [], seconds)[0]
        if self._reader in ready:
            os.read(self._reader, 1)
        return wake in ready

    def close(self) -> None:
        """It stays with the worker."""

    def free(self) -> None:
        os.close(self._reader)
        os.close(self._writer)

    def hear(self, message: UplinkEvent) -> None:
        """What the agent says."""
        self._events = [*self._events, message]
        os.write(self._writer, b"\0")

    def answer(self, submit: Submit) -> None:
        tasks = submit.tasks
        self.hear(Done(tasks, [0] * len(tasks), Payloads([pickle.dumps("result")] * len(tasks))))


class FakeRuntime:
    """A worker that runs run 77."""

    def __init__(self) -> None:
        self.channel = ScriptedChannel()
        self.connections = 0
        self.run = 77
        """0 if no task runs."""
        self.inputs: Mapping[int, tuple[bool, bytes]] = {}
        self.session = new_session()
        self.scheduler = 2
        self.storage = StorageDoor(str, lambda address: ObjectConnection(address, session=self.session))
        self.objects: dict[bytes, bytes] = {}
        self.retired = ""

    def current(self) -> CurrentTask | None:
        return CurrentTask(5, 2, "worker", self.run) if self.run else None

    def fetch(self, reference: bytes) -> bytes:
        return self.objects[reference]

    def load(self, reference: bytes) -> Any:
        return pickle.loads(self.objects[reference])

    def retire(self, why: str) -> None:
        self.retired = why

    def connect(self) -> Transport:
        self.connections += 1
        return self.channel


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRuntime]:
    runtime = FakeRuntime()
    monkeypatch.setattr(task_context, "_runtime", runtime)
    monkeypatch.setattr(connection, "_nested", None)
    yield runtime
    if connection._nested is not None:
        connection._nested.stop()
    runtime.channel.free()


def sent(runtime: FakeRuntime, kind: type[Any]) -> Any:
    """The next message of a kind."""
    while True:
        message = runtime.channel.sent.get(timeout=10)
        if isinstance(message, kind):
            return message


def test_current_task(runtime: FakeRuntime) -> None:
    task = current_task()
    assert task is not None and (task.id, task.attempt, task.worker) == (5, 2, "worker")


def test_outside_of_tasks_there_is_none() -> None:
    assert current_task() is None


def test_a_blocked_parent_says_so(runtime: FakeRuntime) -> None:
    client = Client()
    future = client.submit(math.sqrt, 4)
    found: list[object] = []
    waiter = threading.Thread(target=lambda: found.append(future.result(10)))
    waiter.start()
    submit = sent(runtime, Submit)
    assert submit.parent == 77
    assert sent(runtime, Blocked) == Blocked([77], [True])
    runtime.channel.answer(submit)
    waiter.join()
    assert found == ["result"]
    assert sent(runtime, Blocked) == Blocked([77], [False])


def test_a_parent_is_blocked_while_any_of_its_threads_is(runtime: FakeRuntime) -> None:
    client = Client()
    first, second = client.submit(math.sqrt, 4), client.submit(math.sqrt, 9)
    waiters = [threading.Thread(target=future.result, args=(10,)) for future in (first, second)]
    for waiter in waiters:
        waiter.start()
    assert sent(runtime, Blocked) == Blocked([77], [True])
    while len(first._watching().waiters) + len(second._watching().waiters) < 2:
        pass
    channel = runtime.channel
    channel.hear(Done([first.task_id], [0], Payloads([pickle.dumps(1)])))
    waiters[0].join()
    channel.hear(Done([second.task_id], [0], Payloads([pickle.dumps(1)])))
    waiters[1].join()
    assert sent(runtime, Blocked) == Blocked([77], [False])


def test_wait_and_map_block_too(runtime: FakeRuntime) -> None:
    import concurrent.futures

    client = Client()
    future = client.submit(math.sqrt, 4)
    waiter = threading.Thread(target=concurrent.futures.wait, args=([future],))
    waiter.start()
    submit = sent(runtime, Submit)
    assert sent(runtime, Blocked).blocked == [True]
    runtime.channel.answer(submit)
    waiter.join()
    assert sent(runtime, Blocked).blocked == [False]
    mapper = threading.Thread(target=client.map, args=(math.sqrt, range(3)))
    mapper.start()
    submit = sent(runtime, Submit)
    assert submit.parent == 77 and sent(runtime, Blocked).blocked == [True]
    runtime.channel.answer(submit)
    mapper.join()
    assert sent(runtime, Blocked).blocked == [False]


def test_all_clients_of_a_worker_share_one_core_and_close_alone(runtime: FakeRuntime) -> None:
    one, two = Client(), pickle.loads(pickle.dumps(Client(serializer=_again_settings())))
    with one:
        one.submit(math.sqrt, 1)
    with pytest.raises(ClientQuitError):
        one.submit(math.sqrt, 1)
    with pytest.raises(ValueError, match="cannot shut down the scheduler"):
        two.shutdown()
    with pytest.raises(ValueError, match="a task cannot ask for the workers: do it where the task is submitted"):
        two.workers()
    two.submit(math.sqrt, 1)
    assert sent(runtime, Submit) and runtime.connections == 1


def _again_settings() -> Any:
    from scaler_client.payloads.serializers import DefaultSerializer

    return DefaultSerializer()


def test_the_next_run_is_another_parent(runtime: FakeRuntime) -> None:
    client = Client()
    client.submit(math.sqrt, 1)
    assert sent(runtime, Submit).parent == 77
    runtime.run = 78
    client.submit(math.sqrt, 1)
    assert sent(runtime, Submit).parent == 78


def test_a_thread_that_a_task_left_behind_submits_nothing(runtime: FakeRuntime) -> None:
    client = Client()
    client.submit(math.sqrt, 1)
    assert sent(runtime, Submit).parent == 77
    runtime.run = 0
    for submit in (
        lambda: client.submit(math.sqrt, 1),
        lambda: client.map(math.sqrt, [1]),
        lambda: client.get({"a": (math.sqrt, 1)}, ["a"]),
    ):
        with pytest.raises(ClientQuitError, match=r"the task that this client belonged to has ended: let a task wait"):
            submit()
    runtime.run = 78
    client.submit(math.sqrt, 1)
    assert sent(runtime, Submit).parent == 78


def test_a_client_pickled_outside_keeps_its_settings(cluster: Any, runtime: FakeRuntime) -> None:
    with Client(cluster.address, timeout_seconds=7) as outside:
        runtime.scheduler = outside._io.scheduler
        inside = pickle.loads(pickle.dumps(outside))
        assert inside._inside is runtime and inside._settings == outside._settings
        assert pickle.loads(pickle.dumps(inside))._settings["timeout_seconds"] == 7


def test_inputs_are_looked_up_where_the_call_runs(runtime: FakeRuntime) -> None:
    runtime.objects[b"reference"] = pickle.dumps("stored")
    runtime.inputs = {9: (False, pickle.dumps("input")), 11: (True, b"reference")}
    assert (task_context.load_input(9), task_context.load_input(11)) == ("input", "stored")
    assert task_context.input_payload(9) == runtime.inputs[9][1]
    assert task_context.input_payload(11) == runtime.objects[b"reference"]
    with pytest.raises(LookupError, match="did not come"):
        task_context.load_input(10)


def test_a_client_that_failed_is_replaced_and_no_task_id_is_used_twice(runtime: FakeRuntime) -> None:
    first = Client()
    tasks = [first.submit(math.sqrt, 1).task_id, first._io.next_tasks(10)]
    assert sent(runtime, Submit)
    first._io.mailbox.close(ClientQuitError("it has failed"))
    first._io.mailbox.wake()
    with pytest.raises(ClientQuitError, match="it has failed"):
        first.submit(math.sqrt, 1)
    second = Client()
    tasks += [second.submit(math.sqrt, 1).task_id, second._io.next_tasks(10)]
    assert tasks == [tasks[0], tasks[1], tasks[0] + 2, tasks[1] - 10]
    assert runtime.connections == 2


def test_the_error_of_a_lost_agent_names_the_agent(runtime: FakeRuntime) -> None:
    future = Client().submit(math.sqrt, 1)
    runtime.channel.hear(LinkLost("the agent has exited: no connection"))
    with pytest.raises(SchedulerLostError, match=r"exited: no connection to the scheduler at this worker's agent"):
        future.result(20)


def test_a_worker_whose_task_ids_are_used_up_is_to_be_replaced(runtime: FakeRuntime) -> None:
    client = Client()
    client._io.ids._singles_from = client._io.ids._blocks_from
    with pytest.raises(SessionExhaustedError, match="this worker will end: run this task again"):
        client.submit(math.sqrt, 1)
    assert "used up the task ids of its session" in runtime.retired


def test_the_own_cluster_is_known_by_its_scheduler(cluster: Any, runtime: FakeRuntime) -> None:
    with Client(cluster.address) as other:
        assert other._inside is None
        runtime.scheduler = other._io.scheduler
    with Client(cluster.address) as own:
        assert own._inside is runtime


def test_a_forked_process_is_no_worker(runtime: FakeRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_context, "_parents", None)
    task_context._leave()
    assert task_context.runtime() is None and task_context.is_fork()
    task = current_task()
    assert task is not None and task.id == 5
    with pytest.raises(ClientForkedError, match="address of the scheduler"):
        Client()
