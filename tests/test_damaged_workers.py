"""Tasks that damage the process of their worker: it is replaced, and what others run does not fail for it."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from scaler import Client
from support.clusters import LocalCluster
from support.fault_tasks import (
    LeavingError,
    become_nobody,
    break_pickle,
    forbid,
    keep_descriptors,
    leave_alarm,
    leave_closed_output,
    leave_daemon,
    leave_handled_alarm,
    leave_no_output,
    lower_cpu_limit,
    lower_limit,
    open_files,
    print_a_while,
    refuse_negative,
    root_of,
    use_up_task_ids,
)
from support.faults import Services
from support.gates import SECONDS
from support.processes import Watched, children

TASKS = 40


@pytest.fixture
def own(tmp_path: Path) -> Iterator[LocalCluster]:
    """A cluster whose log is the test's."""
    started = LocalCluster(tmp_path / "log", n_workers=2)
    yield started
    started.end()


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (keep_descriptors, "it can open no file"),
        (break_pickle, "its Python does not work any more"),
        (lower_limit, "its limit of open files was lowered"),
        (lower_cpu_limit, "its limit of CPU time was lowered"),
        (use_up_task_ids, "its tasks have used up the task ids of its session"),
    ],
)
def test_a_damaged_worker_is_replaced_and_spoils_no_task(own: LocalCluster, damage: object, why: str) -> None:
    with Client(own.address) as client:
        client.map(root_of, range(TASKS))
        assert client.submit(damage).result(SECONDS) == "done"  # type: ignore[call-overload]
        futures = [client.submit(open_files, number) for number in range(TASKS)]
        assert [future.result(SECONDS) for future in futures] == list(range(TASKS))
    assert f"ended itself ({why}" in own.log.read_text("utf-8")


def test_a_task_that_damages_its_worker_and_fails_says_why_itself(own: LocalCluster) -> None:
    with Client(own.address) as client:
        error = client.submit(keep_descriptors, fail=True).exception(SECONDS)
        assert isinstance(error, OSError) and "Too many open files" in str(error)
        assert client.map(open_files, range(TASKS)) == list(range(TASKS))


@pytest.mark.parametrize("leave", [leave_alarm, leave_handled_alarm, leave_closed_output, leave_no_output])
def test_what_a_task_leaves_behind_does_not_meet_the_next_one(own: LocalCluster, leave: object) -> None:
    with Client(own.address) as client, Client(own.address, stream_output=True) as streaming:
        client.map(root_of, range(TASKS))
        left = [client.submit(leave) for _ in range(TASKS)]  # type: ignore[call-overload]
        futures = [each.submit(print_a_while, number) for number in range(4) for each in (client, streaming)]
        assert [type(future.exception(SECONDS)) for future in left] == [LeavingError] * TASKS
        assert [future.result(SECONDS) for future in futures] == [0, 0, 1, 1, 2, 2, 3, 3]
        assert {future.profiling_info().attempt for future in futures} == {1}


@pytest.mark.parametrize("limit", ["NOFILE", "AS", "DATA", "FSIZE", "NPROC", "STACK"])
def test_a_worker_whose_limit_is_0_is_replaced_and_spoils_no_task(own: LocalCluster, limit: str) -> None:
    with Client(own.address) as client:
        client.map(root_of, range(TASKS))
        assert client.submit(forbid, getattr(resource, f"RLIMIT_{limit}")).result(SECONDS) == "done"
        futures = [client.submit(open_files, number) for number in range(TASKS)]
        assert [future.result(SECONDS) for future in futures] == list(range(TASKS))
    assert "ended itself (its limit of " in own.log.read_text("utf-8")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_worker_of_another_user_is_replaced_and_spoils_no_task(own: LocalCluster, tmp_path: Path) -> None:
    with Client(own.address) as client:
        client.map(root_of, range(TASKS))
        assert client.submit(become_nobody).result(SECONDS) == "done"
        futures = [client.submit(os.listdir, tmp_path) for _ in range(TASKS)]  # which is ours alone
        assert all("log" in future.result(SECONDS) for future in futures)
    assert "ended itself (its user and group were changed" in own.log.read_text("utf-8")


def test_data_that_makes_half_of_the_workers_fail_harms_none(own: LocalCluster, tmp_path: Path) -> None:
    path, numbers = str(tmp_path / "runs"), range(-100, 100)
    workers: set[int] = set()
    with Client(own.address) as client:
        for _ in range(8):
            futures = [client.submit(refuse_negative, number, path) for number in numbers]
            failed = [future.exception(SECONDS) for future in futures]
            assert [type(error) is ValueError for error in failed] == [number < 0 for number in numbers]
            workers.update(future.result(SECONDS) for future in futures[100:])
    assert len(Path(path).read_text("ascii").split()) == 8 * len(numbers), "none begins twice"
    assert len(workers) <= 2 and "ended" not in own.log.read_text("utf-8")


def test_what_a_task_leaves_running_is_its_workers_and_ends_with_it_or_with_the_agent(tmp_path: Path) -> None:
    with Services(tmp_path) as services:
        agent = services.add_agent(1)
        with Client(services.address) as client:
            for ended in ("worker", "agent"):
                worker, daemon = client.submit(leave_daemon, 3 * SECONDS).result(SECONDS)
                assert daemon in children(worker)
                left = Watched({worker, daemon})
                os.kill(worker if ended == "worker" else agent.pid, signal.SIGKILL)
                assert left.wait_gone(SECONDS) == [], ended
                left.close()
        agent.process.wait(SECONDS)
