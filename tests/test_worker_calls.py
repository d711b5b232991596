"""Calls that every worker runs, and workers that are restarted."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from scaler import Client, current_task
from scaler_protocol.errors import WorkerDiedError
from support.clusters import LocalCluster
from support.gates import SECONDS, Gate, wait_at


def test_every_worker_runs_the_call_and_a_failure_hides_no_result(client: Client, cluster: LocalCluster) -> None:
    client.restart_workers(timeout=SECONDS)  # those that nested tasks needed are not replaced
    pids = client.run(os.getpid, timeout=SECONDS)
    assert len(set(pids.values())) == 2 and all(worker.endswith(f":{pid}") for worker, pid in pids.items())
    first, second = pids

    def fail_in(pid: int) -> int:
        if os.getpid() == pid:
            raise ValueError("here")
        return os.getpid()

    def end_in(pid: int) -> int:
        if os.getpid() == pid:
            os.kill(pid, signal.SIGKILL)
        return os.getpid()

    failed = client.run(fail_in, pids[first], timeout=SECONDS)
    assert isinstance(failed[first], ValueError) and failed[second] == pids[second]
    assert client.run(pow, 2, 5, timeout=SECONDS, workers=[second]) == {second: 32}
    died = client.run(end_in, pids[first], timeout=SECONDS)
    assert isinstance(died[first], WorkerDiedError) and died[second] == pids[second]
    assert str(pids[first]) in str(died[first])
    after = client.run(lambda: getattr(current_task(), "attempt", 0), timeout=SECONDS)
    assert second in after and first not in after and list(after.values()) == [1, 1], "a new one has its place"


def test_what_is_no_worker_or_cannot_be_called_is_said(client: Client) -> None:
    with pytest.raises(ValueError, match=r"there is no worker 'vm:1'; the first ones are: .*:\d+"):
        client.run(abs, -1, workers=["vm:1"])
    with pytest.raises(TypeError, match="is one value: give a list"):
        client.run(abs, -1, workers="vm:1")
    with pytest.raises(TypeError):
        client.run(abs)
    with pytest.raises(ValueError, match="timeout"):
        client.run(abs, -1, timeout=-1)

    def inside() -> object:
        with Client() as mine:
            return mine.run(abs, -1)

    with pytest.raises(ValueError, match="a task cannot ask for the workers"):
        client.submit(inside).result(SECONDS)


def test_a_busy_worker_runs_the_call_when_its_task_has_ended(
    single: LocalCluster, single_client: Client, gate: Gate
) -> None:
    busy = single_client.submit(wait_at, gate.port, 5)
    arrival = gate.arrive()
    behind = [single_client.submit(time.sleep, 0) for _ in range(5)]
    with pytest.raises(TimeoutError, match="did not end the call within"):
        single_client.restart_workers(timeout=1.0)  # within which the workers have to be named, too
    late = single_client.run(abs, -1, timeout=1.0)  # the agent has heard then that the restart was given up
    assert [type(outcome) for outcome in late.values()] == [TimeoutError] and not busy.done()
    arrival.let_go()
    assert list(single_client.run(abs, -1, timeout=SECONDS).values()) == [1]
    assert busy.result(SECONDS) == 5 and [future.result(SECONDS) for future in behind] == [None] * 5


def test_restarted_workers_forget_modules_and_lose_no_task(
    client: Client, cluster: LocalCluster, tmp_path: Path
) -> None:
    module = tmp_path / "edited_module.py"
    module.write_text("VALUE = 1", "utf-8")

    def value() -> int:
        sys.path.insert(0, str(tmp_path))
        sys.dont_write_bytecode = True
        try:
            import edited_module  # type: ignore[import-not-found]

            return int(edited_module.VALUE)
        finally:
            sys.path.remove(str(tmp_path))

    def attempt() -> int:
        time.sleep(0.005)
        return getattr(current_task(), "attempt", 0)

    assert set(client.run(value, timeout=SECONDS).values()) == {1}
    module.write_text("VALUE = 2", "utf-8")
    assert set(client.run(value, timeout=SECONDS).values()) == {1}, "the module was imported before"
    before = client.run(os.getpid, timeout=SECONDS)
    with Client(cluster.address, timeout_seconds=SECONDS) as other:
        attempts = [other.submit(attempt) for _ in range(200)]
        assert set(client.restart_workers(timeout=SECONDS)) == set(before)
        assert {future.result(SECONDS) for future in attempts} == {1}, "no task was charged a run"
    assert not before.keys() & client.run(os.getpid, timeout=SECONDS).keys()
    assert set(client.run(value, timeout=SECONDS).values()) == {2}
