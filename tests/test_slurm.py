"""A fleet of Slurm jobs with real processes: it follows the load, and no task is lost whatever ends."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from scaler import Client
from support.fault_tasks import step
from support.faults import Service
from support.fleets import Fleet, numbers
from support.gates import SECONDS, Gate, wait_at
from support.processes import PROGRAMS
from support.slurm import SlurmCluster, slurm_cluster
from support.waiting import wait_until

BATCH_SCRIPT = Path(__file__).resolve().parent.parent / "deploy" / "slurm-batch.sh"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with slurm_cluster(tmp_path_factory.mktemp("slurm")) as started:
        yield started


@pytest.fixture
def fleet(cluster: SlurmCluster, tmp_path: Path) -> Iterator[Fleet]:
    running = Fleet(tmp_path)
    with running:
        yield running


def add_manager(fleet: Fleet, workers: int, *words: str) -> Service:
    logs = str(fleet.folder / "jobs")
    return fleet.add_manager(
        workers, "--poll-interval-seconds", "1", "--log-directory", logs, *words, id="grid", kind="slurm"
    )


def end(manager: Service) -> None:
    """End a manager, which waits for its jobs."""
    manager.process.terminate()
    assert manager.process.wait(SECONDS) == 0, manager.said()


def test_jobs_follow_the_load_and_survive_their_manager(cluster: SlurmCluster, fleet: Fleet, gate: Gate) -> None:
    manager = add_manager(fleet, 4)
    with Client(fleet.address) as client:
        futures = [client.submit(wait_at, gate.port, number) for number in range(8)]
        arrivals = [gate.arrive(SECONDS) for _ in range(4)]
        before = set(cluster.jobs("RUNNING"))
        manager.kill()
        manager = add_manager(fleet, 4)
        wait_until(lambda: "4 workers wanted" in manager.said(), "a manager that knows what is wanted")
        cluster.command("scancel", min(before))
        arrivals.append(gate.arrive(SECONDS))
        assert len(set(cluster.jobs("RUNNING")) - before) == 1, "one job in place of the one cancelled, and no more"
        for arrival in arrivals:
            arrival.let_go()
        for _ in range(4):  # eight tasks, one of them twice
            gate.arrive(SECONDS).let_go()
        assert [future.result(SECONDS) for future in futures] == list(range(8))
        fleet.wait_status(lambda status: not status.agents, "no workers")
        wait_until(lambda: not cluster.jobs("PENDING", "RUNNING"), "no jobs")
        assert client.submit(round, 3.15).result(SECONDS) == 3, "and it starts again"
    end(manager)
    assert not cluster.jobs("PENDING", "RUNNING")


def test_a_time_limit_shorter_than_the_work_costs_no_task(cluster: SlurmCluster, fleet: Fleet, tmp_path: Path) -> None:
    # Units work for three seconds: one minute, less 10 seconds for their end, less 47 that draining might take.
    manager = add_manager(fleet, 2, "--time-limit", "1", "-drt", "47")
    with Client(fleet.address) as client:
        futures = [client.submit(step, str(tmp_path / "begun"), number, 1.0) for number in range(8)]
        assert numbers(futures) == list(range(8))
    end(manager)
    assert len((tmp_path / "begun").read_text("utf-8").splitlines()) == 8, "no task ran twice"
    logs = [path.read_text("utf-8") for path in (fleet.folder / "jobs").iterdir()]
    assert sum("its time limit of" in log for log in logs) >= 2 and len(logs) >= 3


def test_a_manager_says_why_slurm_refuses(cluster: SlurmCluster, fleet: Fleet) -> None:
    manager = add_manager(fleet, 1, "--partition", "gpu")
    with Client(fleet.address) as client:
        client.submit(os.getpid)
        fleet.wait_status(
            lambda status: "invalid partition specified: gpu" in "".join(status.manager_failures), "the words of sbatch"
        )
    end(manager)


def test_the_batch_script_runs_a_cluster_for_a_program(cluster: SlurmCluster, tmp_path: Path) -> None:
    program = "import os, scaler; print(sum(scaler.Client(os.environ['SCALER_ADDRESS']).map(abs, range(-9, 0))))"
    log = tmp_path / "job.log"
    environment = {**os.environ, "SCALER_HOST": "127.0.0.1", "PATH": f"{PROGRAMS}:{os.environ['PATH']}"}
    words = ["sbatch", "--parsable", "--nodes=1", "--cpus-per-task=1", f"--output={log}", str(BATCH_SCRIPT)]
    done = subprocess.run([*words, "python", "-c", program], env=environment, capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    wait_until(lambda: not cluster.jobs("PENDING", "RUNNING", "COMPLETING"), "the end of the job")
    assert "\n45\n" in log.read_text("utf-8")
    assert cluster.command("squeue", "-h", "-t", "all", "-o", "%T", "-j", done.stdout.strip()).strip() == "COMPLETED"
