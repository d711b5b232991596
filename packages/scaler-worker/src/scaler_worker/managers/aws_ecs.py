"""`aws_raw_ecs`: units are tasks of ECS on Fargate."""

from __future__ import annotations

import logging
import math
import shlex
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from scaler_io.provisioning.provisioner import Provisioner, ProvisionerError, UnitPhase, UnitReport
from scaler_io.service.options import Option, UsageError, comma_list, whole_number
from scaler_protocol.lazy_dataclass import dataclass
from scaler_worker.managers.aws import AwsOptions, aws_options, digest, for_each, name_values, pages, unit_of
from scaler_worker.managers.options import manager_command
from scaler_worker.managers.pods import EXIT_SECONDS
from scaler_worker.managers.running import run_manager

LOGGER: Final = logging.getLogger("scaler")
POLL_SECONDS: Final = 5.0
STOP_SECONDS: Final = 120
"""The longest time that Fargate leaves a task between SIGTERM and SIGKILL."""
_CONTAINER: Final = "scaler"
_STARTING: Final = ("PROVISIONING", "PENDING", "ACTIVATING")


@dataclass(frozen=True, slots=True, kw_only=True)
class EcsOptions(AwsOptions):
    """The command line of `scaler_worker_manager aws_raw_ecs`."""

    ecs_subnets: tuple[str, ...]
    ecs_cluster: str
    ecs_task_image: str | None
    ecs_python_requirements: str
    ecs_python_version: str | None
    ecs_task_definition: str | None
    ecs_task_cpu: int
    ecs_task_memory: int
    ecs_execution_role: str | None

    def __post_init__(self) -> None:
        # Not super(): dataclass(slots=True) makes a new class, which super() in its methods does not refer to.
        AwsOptions.__post_init__(self)
        if not self.ecs_task_image and not self.ecs_task_definition:
            raise UsageError(
                "missing --ecs-task-image: name an image that contains scaler_cluster,"
                " or an existing definition with --ecs-task-definition"
            )
        if not self.ecs_subnets:
            raise UsageError("--ecs-subnets: name at least one subnet")

    @property
    def family(self) -> str:
        """The name of the task definition."""
        return self.ecs_task_definition or self.fleet_id

    @property
    def command(self) -> list[str]:
        """The command of the container. The agent replaces the shell of the installation and so gets SIGTERM."""
        agent = ["scaler_cluster", *self.unit_words("")]
        requirements = [word.strip() for word in self.ecs_python_requirements.split(";") if word.strip()]
        if not requirements:
            return agent
        install = shlex.join(["python", "-m", "pip", "install", "--quiet", *requirements])
        return ["sh", "-c", f"{install} && exec {shlex.join(agent)}"]


COMMAND: Final = manager_command(
    "aws_raw_ecs",
    "Start workers as ECS tasks on Fargate as the scheduler wants them.",
    EcsOptions,
    (
        *aws_options(workers_per_unit=4),
        Option(("--ecs-subnets",), "the subnets of the tasks, separated by commas", comma_list),
        Option(("--ecs-cluster",), "the ECS cluster; made if it does not exist", default="scaler-cluster"),
        Option(
            ("--ecs-task-image",),
            "an image that contains scaler_cluster; a task definition is made for it, and removed at the end",
            default=None,
        ),
        Option(
            ("--ecs-python-requirements",),
            "what pip installs in a task before its agent starts, separated by semicolons",
            default="",
        ),
        Option(
            ("--ecs-python-version",),
            "the Python of the image, if it is not the manager's: tasks go to workers with their client's version",
            default=None,
        ),
        Option(
            ("--ecs-task-definition",),
            "the name of that task definition; without an image one that exists, whose first container runs the agent",
            default=None,
        ),
        Option(("--ecs-task-cpu",), "CPUs of a task; see --workers-per-unit", whole_number(1, 16), default=4),
        Option(("--ecs-task-memory",), "GiB of memory of a task", whole_number(1, 120), default=30),
        Option(
            ("--ecs-execution-role",),
            "the role with which ECS pulls a private image",
            default=None,
            metavar="ARN",
        ),
    ),
    example="scaler_worker_manager aws_raw_ecs tcp://10.0.0.5:2345 --worker-manager-id fargate"
    " --ecs-subnets subnet-0a1b2c3d --ecs-task-image example/scaler:3",
)


class _Prepared(NamedTuple):
    """Parameters that every start needs, and that are looked up once."""

    definition: str
    container: str
    network: Mapping[str, Any]


class EcsProvisioner(Provisioner):
    """Runs one ECS task for each unit."""

    def __init__(self, options: EcsOptions) -> None:
        self._options = options
        self._ecs, self._ec2 = options.clients("ecs", "ec2")
        self._lock = threading.Lock()
        self._arns: dict[str, str] = {}
        """The task of each unit that may live."""
        self._prepared: _Prepared | None = None

    def start(self, units: Sequence[str], offer: int) -> Sequence[str]:
        """Run a task for each unit. Tasks of one call would share their environment, so there is one call for each."""
        if self._prepared is None:
            self._prepared = self._prepare()
        prepared = self._prepared
        return for_each(lambda unit: self._run(unit, prepared), units)

    def stop(self, units: Sequence[str], *, force: bool) -> None:
        """Stop tasks: SIGTERM, then SIGKILL after the stop time-out of the definition."""
        if not self._arns.keys() >= set(units):
            self.list_units()  # the scheduler tells of units of earlier lives before a listing does
        with self._lock:
            arns = {unit: self._arns[unit] for unit in units if unit in self._arns}
        for_each(
            lambda unit: self._ecs.stop_task(
                cluster=self._options.ecs_cluster, task=arns[unit], reason="stopped by scaler_worker_manager"
            ),
            list(arns),
        )

    def list_units(self) -> Mapping[str, UnitReport]:
        """The tasks that this manager has started, and those that have ended since the last listing."""
        try:
            running = list(self._running())
        except self._ecs.exceptions.ClusterNotFoundException:
            return {}
        with self._lock:
            arns = list(dict.fromkeys([*running, *self._arns.values()]))
        reports = {}
        for page in pages(arns):
            answer = self._ecs.describe_tasks(cluster=self._options.ecs_cluster, tasks=page)
            for task in answer["tasks"]:
                unit, report = _unit(task), _report(task)
                reports[unit] = report
                with self._lock:
                    if report.phase is UnitPhase.ENDED:
                        self._arns.pop(unit, None)
                    else:
                        self._arns[unit] = task["taskArn"]
        return reports

    def close(self) -> None:
        """Remove the task definitions of this manager, those of its earlier lives included; running tasks keep them."""
        if not self._options.ecs_task_image:
            return
        try:
            listing = self._ecs.get_paginator("list_task_definitions")
            for page in listing.paginate(familyPrefix=self._options.family, status="ACTIVE"):
                for arn in page["taskDefinitionArns"]:
                    self._ecs.deregister_task_definition(taskDefinition=arn)
        except Exception as error:  # nobody pays for a definition, and the manager is to end
            LOGGER.warning("the task definition %s stays: %s", self._options.family, error)

    def _running(self) -> Iterable[str]:
        listing = self._ecs.get_paginator("list_tasks")
        options = self._options
        for page in listing.paginate(cluster=options.ecs_cluster, startedBy=options.fleet_id, desiredStatus="RUNNING"):
            yield from page["taskArns"]

    def _run(self, unit: str, prepared: _Prepared) -> None:
        options = self._options
        override = {
            "name": prepared.container,
            "command": options.command,
            "environment": name_values(options.environment(unit)),
        }
        answer = self._ecs.run_task(
            cluster=options.ecs_cluster,
            taskDefinition=prepared.definition,
            launchType="FARGATE",
            count=1,
            clientToken=digest(f"{options.fleet}/{unit}"),
            startedBy=options.fleet_id,
            networkConfiguration={"awsvpcConfiguration": prepared.network},
            overrides={"containerOverrides": [override]},
        )
        if not answer["tasks"]:
            reasons = [f"{each.get('reason')} {each.get('detail', '')}".strip() for each in answer["failures"]]
            raise ProvisionerError(f"ECS refuses to run a task: {'; '.join(reasons) or 'it gives no reason'}")
        with self._lock:
            self._arns[unit] = answer["tasks"][0]["taskArn"]

    # --- what is there before the first task -------------------------------------------------------------------------

    def _prepare(self) -> _Prepared:
        self._make_cluster()
        network = self._network()
        if self._options.ecs_task_image:
            return _Prepared(self._register(self._options.ecs_task_image), _CONTAINER, network)
        answer = self._ecs.describe_task_definition(taskDefinition=self._options.family)
        definition = answer["taskDefinition"]
        return _Prepared(definition["taskDefinitionArn"], definition["containerDefinitions"][0]["name"], network)

    def _make_cluster(self) -> None:
        name = self._options.ecs_cluster
        found = self._ecs.describe_clusters(clusters=[name])["clusters"]
        if not any(cluster["status"] == "ACTIVE" for cluster in found):
            self._ecs.create_cluster(clusterName=name)

    def _network(self) -> Mapping[str, Any]:
        """The subnets with the default security group of their VPC; tasks have public addresses if instances have."""
        subnets = self._ec2.describe_subnets(SubnetIds=list(self._options.ecs_subnets))["Subnets"]
        groups = self._ec2.describe_security_groups(
            Filters=[
                {"Name": "vpc-id", "Values": [subnets[0]["VpcId"]]},
                {"Name": "group-name", "Values": ["default"]},
            ]
        )["SecurityGroups"]
        public = all(subnet["MapPublicIpOnLaunch"] for subnet in subnets)
        return {
            "subnets": list(self._options.ecs_subnets),
            "securityGroups": [group["GroupId"] for group in groups],
            "assignPublicIp": "ENABLED" if public else "DISABLED",
        }

    def _register(self, image: str) -> str:
        options = self._options
        cpu, memory = options.ecs_task_cpu * 1024, options.ecs_task_memory * 1024
        container = {
            "name": _CONTAINER,
            "image": image,
            "command": options.command,
            "essential": True,
            "cpu": cpu,
            "memory": memory,
            "stopTimeout": min(STOP_SECONDS, math.ceil(options.drain_timeout_seconds) + EXIT_SECONDS),
        }
        role = {"executionRoleArn": options.ecs_execution_role} if options.ecs_execution_role else {}
        answer = self._ecs.register_task_definition(
            family=options.family,
            networkMode="awsvpc",
            requiresCompatibilities=["FARGATE"],
            cpu=str(cpu),
            memory=str(memory),
            containerDefinitions=[container],
            **role,
        )
        arn: str = answer["taskDefinition"]["taskDefinitionArn"]
        return arn


def _unit(task: Mapping[str, Any]) -> str:
    overrides = task.get("overrides", {}).get("containerOverrides", [])
    return unit_of([variable for override in overrides for variable in override.get("environment", [])])


def _report(task: Mapping[str, Any]) -> UnitReport:
    status = task["lastStatus"]
    if status in _STARTING:
        return UnitReport(UnitPhase.STARTING)
    if status != "STOPPED":
        return UnitReport(UnitPhase.RUNNING)
    reasons = [task.get("stoppedReason", "")]
    for container in task.get("containers", []):
        reasons.append(container.get("reason", ""))
        if container.get("exitCode") is not None:
            reasons.append(f"exit code {container['exitCode']}")
    return UnitReport(UnitPhase.ENDED, "; ".join(filter(None, reasons)))


def run(options: EcsOptions) -> int:
    """Run the manager until it has ended."""
    config = options.config_of("aws_raw_ecs", poll_seconds=POLL_SECONDS, python=options.ecs_python_version)
    return run_manager(options, lambda: EcsProvisioner(options), config)
