"""Tasks that end their workers: they fail with what happened, and whoever is beside or behind them does not."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from pathlib import Path

import pytest

from scaler import Client
from scaler_protocol.errors import TaskExitedError, WorkerDiedError
from support.clusters import LocalCluster
from support.fault_tasks import crash, kill_itself, leave, leave_at_once, lose_len, step
from support.gates import SECONDS
from support.odd_exceptions import ODD, fail_oddly, fail_oddly_later
from support.processes import descendants
from support.tasks import worker_pid

NEIGHBOURS = 200
LIMIT = 3


def workers_of(cluster: LocalCluster) -> set[object]:
    """The worker processes, by asking each."""
    with Client(cluster.address) as client:
        return set(client.run(worker_pid, timeout=SECONDS).values())


@pytest.mark.parametrize(
    ("task", "ending"),
    [
        (kill_itself, "was killed by SIGKILL"),
        (leave_at_once, "exited with code 7"),
        (crash, "was killed by SIGSEGV"),
        (lose_len, "TypeError: 'NoneType' object is not callable"),
    ],
    ids=["kill", "exit", "segfault", "broken"],
)
def test_a_task_that_ends_its_worker_fails_alone(
    cluster: LocalCluster, client: Client, tmp_path: Path, task: Callable[[str], None], ending: str
) -> None:
    runs, others = tmp_path / "runs", tmp_path / "others"
    before = [client.submit(step, str(others), number, 0.001) for number in range(NEIGHBOURS)]
    poison = client.submit(task, str(runs))
    behind = [client.submit(step, str(others), number, 0.001) for number in range(NEIGHBOURS)]

    error = poison.exception(SECONDS)

    assert type(error) is WorkerDiedError
    for part in (ending, platform.node(), f"attempt {LIMIT}", f"{LIMIT} runs lost"):
        assert part in str(error)
    assert error.details["attempt"] == LIMIT and error.details["host"] == platform.node()
    assert error.details["pid"] not in descendants(os.getpid())
    assert runs.read_text("ascii").split() == ["run"] * LIMIT
    for futures in (before, behind):
        assert [future.result(SECONDS)[0] for future in futures] == list(range(NEIGHBOURS))
    # Nobody but the poison was in a run when a worker died, so nobody ran twice.
    assert len(others.read_text("ascii").split()) <= 2 * NEIGHBOURS
    assert error.details["pid"] not in workers_of(cluster)


def test_a_segmentation_fault_says_where(client: Client, tmp_path: Path) -> None:
    error = client.submit(crash, str(tmp_path / "runs")).exception(SECONDS)
    assert "in crash" in str(error) and "Segmentation fault" in str(error)


def test_a_task_that_leaves_by_exit_fails_and_its_worker_lives_on(
    cluster: LocalCluster, client: Client, tmp_path: Path
) -> None:
    client.restart_workers(timeout=SECONDS)  # those that nested tasks needed would end by themselves
    before = workers_of(cluster)
    error = client.submit(leave, str(tmp_path / "runs")).exception(SECONDS)
    assert type(error) is TaskExitedError
    assert "3" in str(error)
    assert (tmp_path / "runs").read_text("ascii").split() == ["run"]
    assert workers_of(cluster) == before


def test_many_poisons_at_once(client: Client, tmp_path: Path) -> None:
    others = tmp_path / "others"
    poisons = []
    neighbours = []
    for number in range(10):
        poisons.append(client.submit(kill_itself, str(tmp_path / f"runs-{number}")))
        neighbours += [client.submit(step, str(others), 10 * number + after, 0) for after in range(10)]
    for number, poison in enumerate(poisons):
        assert type(poison.exception(SECONDS)) is WorkerDiedError
        assert (tmp_path / f"runs-{number}").read_text("ascii").split() == ["run"] * LIMIT
    assert [future.result(SECONDS)[0] for future in neighbours] == list(range(100))


def test_no_exception_ends_a_worker(cluster: LocalCluster, client: Client) -> None:
    client.restart_workers(timeout=SECONDS)  # those that nested tasks needed would end by themselves
    before = workers_of(cluster)
    for name in ODD:
        for task in (fail_oddly, fail_oddly_later):
            error = client.submit(task, name).exception(SECONDS)
            assert type(error) is type(ODD[name]()) and error.args == ODD[name]().args
        graph = {"name": name, "bad": (fail_oddly, "name"), "after": (str, "bad")}
        failed = client.get(graph, ["after"], block=False)["after"].exception(SECONDS)
        assert type(failed) is type(error)
    assert workers_of(cluster) == before
