"""A real proxy agent, for a scheduler that does what the test says, with a model of Symphony (never the product)."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scaler_client.payloads import pickles
from scaler_protocol.messages import Recall, Release, Returned, Status, Withdraw
from scaler_protocol.operations import Resized
from support.fake_scheduler import AgentProcess, FakeScheduler
from support.symphony import SERVICE_NAME, TESTS, SymphonyModel
from support.symphony_tasks import later, leave, raise_it, square, wait_for_file
from support.waiting import wait_until

PROXY = ("-m", "scaler_worker.symphony")


@pytest.fixture
def symphony(tmp_path: Path) -> Iterator[SymphonyModel]:
    with SymphonyModel(tmp_path) as model:
        yield model


@pytest.fixture
def proxy(cluster: Callable[..., AgentProcess], symphony: SymphonyModel) -> Iterator[Callable[..., AgentProcess]]:
    """Starts a proxy agent for the model's application, with these further options."""

    agents: list[AgentProcess] = []

    def start(*options: str, service: str = SERVICE_NAME, join: bool = True) -> AgentProcess:
        agents.append(cluster(service, *options, join=join, program=PROXY, environment=symphony.environment))
        return agents[-1]

    yield start
    for agent in agents:
        agent.process.send_signal(signal.SIGINT)  # SIGTERM waits until outcomes are released
        agent.process.wait(30)


def returned(scheduler: FakeScheduler) -> list[int]:
    """The runs that were given back."""
    return [run for message in scheduler.heard(Returned) for run in message.runs]


def test_500_tasks(scheduler: FakeScheduler, proxy: Callable[..., AgentProcess]) -> None:
    proxy("--base-concurrency", "4")
    tasks = scheduler.run(square, *((n,) for n in range(500)))
    assert scheduler.results(tasks) == [n * n for n in range(500)]
    assert all(scheduler.done[task][2].duration_us > 0 for task in tasks)


def test_a_task_that_raises_brings_its_exception(scheduler: FakeScheduler, proxy: Callable[..., AgentProcess]) -> None:
    proxy()
    (task,) = scheduler.run(raise_it, ("no such key",))
    scheduler.until(lambda: task in scheduler.done)
    status, payload, _ = scheduler.done[task]
    error, text = pickles.load(payload)
    assert status == Status.RAISED and type(error) is KeyError and error.args == ("no such key",)
    assert "in raise_it" in text and "host_call" not in text


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda: __import__("sys").exit(3), "SystemExit: 3"),
        (lambda: __import__("threading").Lock(), "cannot be sent"),
        (lambda: __import__("no_such_module"), "no_such_module"),
    ],
)
def test_what_cannot_be_used_is_said(
    function: Callable[[], Any], says: str, scheduler: FakeScheduler, proxy: Callable[..., AgentProcess]
) -> None:
    proxy()
    (task,) = scheduler.run(function, ())
    scheduler.until(lambda: task in scheduler.done)
    status, payload, _ = scheduler.done[task]
    assert status in (Status.FAILED, Status.RAISED) and says.encode() in payload


def test_coroutines_are_run(scheduler: FakeScheduler, proxy: Callable[..., AgentProcess]) -> None:
    proxy()
    assert scheduler.results(scheduler.run(later, (1,))) == [2]


def test_a_task_whose_process_dies_is_run_again_by_symphony_and_then_lost(
    scheduler: FakeScheduler, proxy: Callable[..., AgentProcess]
) -> None:
    agent = proxy()
    (task,) = scheduler.run(leave, (3,))
    error = scheduler.error(task, Status.LOST)
    assert "has exited, 2 times" in str(error) and "attempt 1" in str(error)
    assert "has exited, 2 times" in agent.log()
    assert scheduler.results(scheduler.run(square, (3,))) == [9]


def test_a_withdrawn_task_is_killed(
    scheduler: FakeScheduler, proxy: Callable[..., AgentProcess], symphony: SymphonyModel, tmp_path: Path
) -> None:
    proxy("--base-concurrency", "1")
    (task,) = scheduler.run(wait_for_file, (str(tmp_path / "never"), str(tmp_path / "began")))
    scheduler.until((tmp_path / "began").exists)
    before = set(symphony.instances())
    scheduler.say(Withdraw([scheduler.runs[task]]))
    scheduler.until(lambda: task in scheduler.done)
    assert scheduler.done[task][0] == Status.CANCELLED
    wait_until(lambda: not before <= set(symphony.instances()), "the end of its service instance")
    assert scheduler.results(scheduler.run(square, (4,))) == [16]


def test_a_task_that_takes_too_long_is_killed(
    scheduler: FakeScheduler, proxy: Callable[..., AgentProcess], tmp_path: Path
) -> None:
    proxy("--base-concurrency", "1")
    (task,) = scheduler.run(wait_for_file, (str(tmp_path / "never"),), timeout_seconds=0.2)
    assert "longer than its timeout of 0.2 s" in str(scheduler.error(task))
    assert scheduler.results(scheduler.run(square, (4,))) == [16]


def test_nested_tasks_exceed_the_base_concurrency(
    scheduler: FakeScheduler, proxy: Callable[..., AgentProcess], tmp_path: Path
) -> None:
    proxy("--base-concurrency", "1")
    parent = scheduler.run(wait_for_file, (str(tmp_path / "go"), str(tmp_path / "began")))
    scheduler.until((tmp_path / "began").exists)
    waiting = scheduler.run(square, (5,))
    assert scheduler.results(scheduler.run(square, (6,), depth=1)) == [36]
    assert waiting[0] not in scheduler.done
    (tmp_path / "go").touch()
    assert scheduler.results([*parent, *waiting]) == [str(tmp_path / "go"), 25]


def test_a_lost_session_is_opened_again_and_its_tasks_are_lost(
    scheduler: FakeScheduler, proxy: Callable[..., AgentProcess], symphony: SymphonyModel, tmp_path: Path
) -> None:
    agent = proxy("--base-concurrency", "1")
    (task,) = scheduler.run(wait_for_file, (str(tmp_path / "never"), str(tmp_path / "began")))
    (waiting,) = scheduler.run(square, (5,))
    scheduler.until((tmp_path / "began").exists)
    symphony.kill()
    assert "the session was lost" in str(scheduler.error(task, Status.LOST))
    scheduler.until(lambda: scheduler.heard(Resized) == [Resized(0)])
    assert returned(scheduler) == [scheduler.runs[waiting]]
    assert "the next attempt is in 1 s" in agent.log()
    symphony.start()
    scheduler.until(lambda: scheduler.heard(Resized)[-1] == Resized(1))
    assert scheduler.results(scheduler.run(square, (7,))) == [49]


def test_sigterm_drains(scheduler: FakeScheduler, proxy: Callable[..., AgentProcess], tmp_path: Path) -> None:
    agent = proxy("--base-concurrency", "1")
    running = scheduler.run(wait_for_file, (str(tmp_path / "go"), str(tmp_path / "began")))
    waiting = scheduler.run(square, (5,))
    scheduler.until((tmp_path / "began").exists)
    agent.process.send_signal(signal.SIGTERM)
    scheduler.until(lambda: returned(scheduler) == [scheduler.runs[waiting[0]]])
    (tmp_path / "go").touch()
    assert scheduler.results(running) == [str(tmp_path / "go")]
    scheduler.say(Release(running))
    scheduler.until(lambda: agent.process.poll() is not None)
    assert agent.process.returncode == 0 and "all runs have ended" in agent.log()


def test_waiting_runs_are_recalled(
    scheduler: FakeScheduler, proxy: Callable[..., AgentProcess], tmp_path: Path
) -> None:
    proxy("--base-concurrency", "1")
    scheduler.run(wait_for_file, (str(tmp_path / "go"), str(tmp_path / "began")))
    waiting = scheduler.run(square, (5,), (6,))
    scheduler.until((tmp_path / "began").exists)
    scheduler.say(Recall(1))
    scheduler.until(lambda: returned(scheduler) == [scheduler.runs[waiting[1]]])
    (tmp_path / "go").touch()


def test_the_scheduler_sees_slots(scheduler: FakeScheduler, proxy: Callable[..., AgentProcess], tmp_path: Path) -> None:
    proxy("--base-concurrency", "2", "--worker-name", "grid", "-hi", "0.05", "-pwc", "linux")
    (task,) = scheduler.run(wait_for_file, (str(tmp_path / "go"), str(tmp_path / "began")))
    scheduler.until(lambda: scheduler.status is not None and any(scheduler.status.runs))
    status = scheduler.status
    assert status is not None and list(status.names) == ["grid:0", "grid:1"]
    assert list(status.runs) == [scheduler.runs[task], 0]
    assert (scheduler.hello.workers, list(scheduler.hello.capability_names)) == (2, ["linux"])
    (tmp_path / "go").touch()


def test_an_unknown_service_ends_the_agent(scheduler: FakeScheduler, proxy: Callable[..., AgentProcess]) -> None:
    agent = proxy(service="NoSuchService", join=False)
    assert agent.process.wait(30) == 1
    assert "service NoSuchService: SoamException: there is no application NoSuchService" in agent.log()


def test_the_service_of_the_documents(
    scheduler: FakeScheduler, cluster: Callable[..., AgentProcess], tmp_path: Path
) -> None:
    document = (TESTS.parent / "docs" / "worker-managers.md").read_text("utf-8")
    _, code = document.split("```py\n", 1)
    with SymphonyModel(tmp_path, code=code.split("```\n", 1)[0]) as model:
        cluster(SERVICE_NAME, program=PROXY, environment=model.environment)
        assert scheduler.results(scheduler.run(square, (3,))) == [9]


def test_without_the_product_the_error_names_it(scheduler: FakeScheduler, cluster: Callable[..., AgentProcess]) -> None:
    agent = cluster("ScalerService", join=False, program=PROXY)
    assert agent.process.wait(30) == 1
    assert "soamapi cannot be imported" in agent.log() and "PYTHONPATH" in agent.log()


def test_the_loss_of_the_scheduler_ends_the_agent(scheduler: FakeScheduler, proxy: Callable[..., AgentProcess]) -> None:
    agent = proxy("--death-timeout-seconds", "0.5")
    scheduler.close()
    assert agent.process.wait(30) == 1
    assert f"the scheduler at {scheduler.address} is lost" in agent.log()
