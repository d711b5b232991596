"""The kinds of worker managers on AWS: a scheduler, managers, moto behind HTTP, and this host in place of AWS's."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from scaler import Client
from support.aws import FakeAws, Host, Launched, running_aws
from support.faults import Service, Services
from support.gates import SECONDS
from support.waiting import rest, wait_until


@pytest.fixture
def aws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeAws]:
    with running_aws(tmp_path) as running:
        for name, value in running.environment().items():
            monkeypatch.setenv(name, value)
        yield running


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path)
    yield made
    made.close()


class Managers:
    """One manager of each kind."""

    def __init__(self, services: Services, aws: FakeAws) -> None:
        self._services = services
        self._kinds = {
            "aws_raw_ecs": ["--ecs-subnets", aws.subnet(), "--ecs-task-image", "example/scaler", "-wpu", "1"],
            "aws_hpc": ["--job-queue", "workers", "--job-definition", "workers"],
            "orb_aws_ec2": ["--aws-region", "us-east-1", "--image-id", "ami-12c6146b"],
        }
        self.running: list[Service] = []

    def start(self) -> None:
        """Start all; a manager has the same id each time."""
        self.running = []
        for kind, words in self._kinds.items():
            log = self._services.folder / f"{kind}-{len(self._services.started)}.log"
            command = [kind, self._services.address, "-wmi", kind, "-mtc", "1", *words]
            self.running.append(Service(log, "scaler_worker.managers.main", *command))
            self._services.started.append(self.running[-1])

    def all_connected(self) -> bool:
        """Whether all have reached the scheduler; AssertionError if one has ended."""
        for manager in self.running:
            assert manager.process.poll() is None, manager.said()
        return all("connected to the scheduler" in manager.said() for manager in self.running)


def test_units_of_every_kind_take_work_are_adopted_and_end_with_their_manager(
    tmp_path: Path, aws: FakeAws, host: Host
) -> None:
    aws.make_queue("workers")

    def launched() -> list[Launched]:
        return [*aws.tasks(), *aws.jobs("workers"), *aws.instances()]

    def look() -> None:
        begun = time.monotonic()
        host.look(launched())
        rest(time.monotonic() - begun)

    aws.ecs.create_cluster(clusterName="scaler-cluster")
    with Services(tmp_path, "--policy-content", "allocate=even_load; scaling=static:3") as services:
        managers = Managers(services, aws)
        managers.start()
        with Client(services.address, timeout_seconds=SECONDS) as client:
            wait_until(
                lambda: managers.all_connected() and len(launched()) == 3,
                "three units",
                pause=look,
            )
            wait_until(lambda: services.scheduler.said().count("(1 worker) connected") == 3, "three agents", pause=look)
            assert client.map(round, [1.2, 2.3, 3.4, 4.5, 5.6, 6.7]) == [1, 2, 3, 4, 6, 7]
            for manager in managers.running:
                manager.kill()
            managers.start()
            wait_until(lambda: managers.all_connected(), "other lives of the managers")
            assert client.map(round, [1.2, 2.3, 3.4]) == [1, 2, 3]
        for manager in managers.running:
            manager.process.terminate()
        wait_until(lambda: not any(manager.process.poll() is None for manager in managers.running), "ends", pause=look)
        assert [manager.process.returncode for manager in managers.running] == [0, 0, 0]
        wait_until(lambda: not host.running(), "the host is empty", pause=look)
        assert launched() == [], "the units of the first lives, too"
        assert aws.ecs.list_task_definitions(status="ACTIVE")["taskDefinitionArns"] == []
    assert "shutdown -h now" in host.log.read_text("utf-8"), "an instance shuts down when its agent has ended"
