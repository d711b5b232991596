"""AWS, modelled by moto behind a real HTTP port, and a host that runs what was started there."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import boto3

from support.processes import free_ports, group_members
from support.waiting import wait_until

REGION = "us-east-1"
MOTO = Path(__file__).with_name("moto_server.py")
SMALL = "small"
"""A cluster of this name has room for one task."""
MOTO_SECONDS = 60.0
"""How long moto may take to start: its imports alone take seconds where many tests run."""
KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}


class Launched(NamedTuple):
    """What an instance, a container of a task or of a job runs."""

    id: str
    words: Sequence[str]
    environment: Mapping[str, str]


class FakeAws:
    """The services that a manager uses, as their customer sees them."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._session = boto3.Session("test", "test", region_name=REGION)
        self.ec2 = self.client("ec2")
        self.ecs = self.client("ecs")
        self.batch = self.client("batch")

    def client(self, service: str) -> Any:
        """A client of one service."""
        return self._session.client(service, endpoint_url=self.url)

    def environment(self) -> dict[str, str]:
        """The variables with which a program reaches it."""
        return {"AWS_ENDPOINT_URL": self.url, **KEYS}

    def subnet(self) -> str:
        """A subnet of the account."""
        id: str = self.ec2.describe_subnets()["Subnets"][0]["SubnetId"]
        return id

    def make_queue(self, name: str) -> None:
        """A job queue, and a job definition of the same name."""
        role = self.client("iam").create_role(RoleName=f"role-{name}", AssumeRolePolicyDocument="{}")["Role"]["Arn"]
        environment = self.batch.create_compute_environment(
            computeEnvironmentName=f"environment-{name}", type="UNMANAGED", state="ENABLED", serviceRole=role
        )["computeEnvironmentArn"]
        self.batch.create_job_queue(
            jobQueueName=name,
            state="ENABLED",
            priority=1,
            computeEnvironmentOrder=[{"order": 1, "computeEnvironment": environment}],
        )
        properties = {"image": "example/scaler", "vcpus": 1, "memory": 512, "command": ["true"]}
        self.batch.register_job_definition(jobDefinitionName=name, type="container", containerProperties=properties)

    def tasks(self, cluster: str = "scaler-cluster") -> list[Launched]:
        """The running tasks of a cluster."""
        arns = self.ecs.list_tasks(cluster=cluster)["taskArns"]
        tasks = self.ecs.describe_tasks(cluster=cluster, tasks=arns)["tasks"] if arns else []
        launched = []
        for task in tasks:
            if task["lastStatus"] == "RUNNING":
                (override,) = task["overrides"]["containerOverrides"]
                launched.append(Launched(task["taskArn"], override["command"], _variables(override)))
        return launched

    def jobs(self, queue: str) -> list[Launched]:
        """The running jobs of a queue."""
        listed = self.batch.list_jobs(jobQueue=queue, jobStatus="RUNNING")["jobSummaryList"]
        jobs = self.batch.describe_jobs(jobs=[job["jobId"] for job in listed])["jobs"] if listed else []
        return [Launched(job["jobId"], job["container"]["command"], _variables(job["container"])) for job in jobs]

    def instances(self) -> list[Launched]:
        """The running instances; what they run is their user data."""
        found = self.ec2.describe_instances(Filters=[{"Name": "instance-state-name", "Values": ["running"]}])
        launched = []
        for reservation in found["Reservations"]:
            for instance in reservation["Instances"]:
                id, index = instance["InstanceId"], instance["AmiLaunchIndex"]
                attribute = self.ec2.describe_instance_attribute(InstanceId=id, Attribute="userData")
                data = attribute["UserData"]["Value"]
                words = ["bash", "-c", f"echo {data} | base64 -d > user-data && exec bash user-data"]
                launched.append(Launched(id, words, {"LAUNCH_INDEX": str(index)}))
        return launched


def _variables(container: Mapping[str, Any]) -> dict[str, str]:
    return {each["name"]: each["value"] for each in container["environment"]}


@contextmanager
def running_aws(folder: Path) -> Iterator[FakeAws]:
    """A server of moto, which ends with the context."""
    port = free_ports(1)
    log = folder / "moto.log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, str(MOTO), str(port), SMALL],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parent.parent)},
        )

    def answers() -> bool:
        assert process.poll() is None, log.read_text("utf-8")
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    try:
        wait_until(answers, "moto", MOTO_SECONDS)
        yield FakeAws(f"http://127.0.0.1:{port}")
    finally:
        process.kill()
        process.wait()


_PROGRAMS = {
    # The metadata service of an instance, for the two questions that its start script asks.
    "curl": '#!/bin/sh\ncase "$*" in *ami-launch-index) echo "$LAUNCH_INDEX";; *) echo token;; esac\n',
    "shutdown": '#!/bin/sh\necho "shutdown $*"\n',
}


class Host:
    """Runs what was started in AWS as groups of processes: one look starts what is new and ends what is gone."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / "bin"
        self._path.mkdir()
        for name, text in _PROGRAMS.items():
            (self._path / name).write_text(text, "utf-8")
            (self._path / name).chmod(0o755)
        (self._path / "scaler_cluster").symlink_to(Path(sys.executable).parent / "scaler_cluster")
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._told: set[str] = set()
        self.log = folder / "host.log"

    def look(self, launched: Sequence[Launched]) -> None:
        """Make the groups those that are to run; each that is not receives one SIGTERM."""
        wanted = {each.id: each for each in launched}
        for id in wanted.keys() - self._processes.keys():
            self._processes[id] = self._start(wanted[id])
        for id in self._processes.keys() - wanted.keys() - self._told:
            self._told.add(id)
            self._signal(self._processes[id], signal.SIGTERM)

    def _start(self, launched: Launched) -> subprocess.Popen[bytes]:
        folder = self._folder / f"unit-{len(self._processes)}"
        folder.mkdir()
        with self.log.open("ab") as output:
            return subprocess.Popen(
                launched.words,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PATH": f"{self._path}:{os.environ['PATH']}", **launched.environment},
                cwd=folder,
                start_new_session=True,
            )

    @staticmethod
    def _signal(process: subprocess.Popen[bytes], number: int) -> None:
        """Send a signal to the whole group: the script of an instance does not pass it on to its agent."""
        for pid in group_members(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def running(self) -> int:
        """How many groups have a process that has not ended."""
        return sum(bool(group_members(process.pid)) for process in self._processes.values())

    def close(self) -> None:
        """End all processes."""
        for process in self._processes.values():
            self._signal(process, signal.SIGKILL)
            process.wait()
        shutil.rmtree(self._path)
