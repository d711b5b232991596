"""Which requests for the connected workers are open."""

from __future__ import annotations

from scaler_client.core.effects import WorkersListed
from scaler_client.core.events import ProcessesRequested, WorkersRequested
from scaler_client.core.worker_requests import WorkerRequests
from scaler_protocol.capacity import ListProcesses, ListWorkers, ProcessList, WorkerList
from scaler_protocol.errors import SchedulerLostError


def test_a_request_is_open_until_its_answer() -> None:
    requests = WorkerRequests()
    assert requests.ask(WorkersRequested(1, 4)) == ListWorkers(1, 4)
    assert requests.ask(WorkersRequested(1, 0)) == ListWorkers(1, 0), "the same number replaces it"
    assert requests.again() == [ListWorkers(1, 0)]
    assert requests.answer(answer := WorkerList(1)) == WorkersListed(1, answer)
    assert requests.answer(answer) is None and requests.again() == []


def test_a_dropped_request_ends_at_the_scheduler() -> None:
    requests = WorkerRequests()
    requests.ask(WorkersRequested(1, 4))
    assert requests.drop(1) == ListWorkers(1, 0)
    assert requests.drop(1) is None


def test_requests_for_processes_stand_beside_those_for_workers() -> None:
    requests = WorkerRequests()
    requests.ask(WorkersRequested(1, 4))
    assert requests.ask(ProcessesRequested(2)) == ListProcesses(2)
    assert requests.again() == [ListWorkers(1, 4), ListProcesses(2)]
    assert requests.answer(ProcessList(2, [7], ["w"], [b"a"], ["h"], left=1)) is None
    expected = ProcessList(2, [7, 8], ["w", "v"], [b"a", b"b"], ["h", "i"])
    assert requests.answer(ProcessList(2, [8], ["v"], [b"b"], ["i"])) == WorkersListed(2, expected)
    requests.ask(ProcessesRequested(3))
    assert requests.drop(3) is None, "the scheduler's answer comes all the same"
    assert requests.answer(ProcessList(3)) is None


def test_a_failure_ends_all_requests() -> None:
    requests, error = WorkerRequests(), SchedulerLostError("gone")
    requests.ask(WorkersRequested(1, 4))
    requests.ask(WorkersRequested(2, 0))
    assert requests.fail(error) == [WorkersListed(1, error), WorkersListed(2, error)]
    assert requests.fail(error) == []
