"""Units that are tasks of ECS, against moto."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from scaler_io.provisioning.provisioner import ProvisionerError, UnitPhase
from scaler_worker.config import COMMAND as CLUSTER
from scaler_worker.managers import aws_ecs
from scaler_worker.managers.aws_ecs import EcsOptions, EcsProvisioner
from support.aws import SMALL, FakeAws

WORDS = ["tcp://10.0.0.5:2345", "--worker-manager-id", "fargate", "--ecs-task-image", "example/scaler"]


def options(*words: str) -> EcsOptions:
    return aws_ecs.COMMAND.read([*WORDS, *words], {})


@pytest.fixture
def provisioner(aws: FakeAws) -> Iterator[EcsProvisioner]:
    yield from provisioned(aws, "tests")


def provisioned(aws: FakeAws, cluster: str) -> Iterator[EcsProvisioner]:
    made = EcsProvisioner(options("--ecs-subnets", aws.subnet(), "--ecs-cluster", cluster))
    yield made
    made.stop(list(made.list_units()), force=True)
    assert all(report.phase is UnitPhase.ENDED for report in made.list_units().values())
    made.close()
    assert aws.ecs.list_task_definitions(status="ACTIVE")["taskDefinitionArns"] == []


def test_tasks_run_the_agent_until_they_are_stopped(aws: FakeAws, provisioner: EcsProvisioner) -> None:
    assert provisioner.list_units() == {}, "there is no cluster yet"
    assert provisioner.start(("fargate-1", "fargate-2"), 0) == ("fargate-1", "fargate-2")
    running = {unit: report.phase for unit, report in provisioner.list_units().items()}
    assert running == {"fargate-1": UnitPhase.RUNNING, "fargate-2": UnitPhase.RUNNING}
    launched = {each.environment["SCALER_UNIT_ID"]: each for each in aws.tasks("tests")}
    program, *words = launched["fargate-1"].words
    unit = CLUSTER.read(words, launched["fargate-1"].environment)
    assert (program, unit.num_of_workers, unit.worker_manager_id, unit.unit_id) == (
        "scaler_cluster", 4, "fargate", "fargate-1",
    )  # fmt: skip
    provisioner.stop(("fargate-1", "unknown"), force=False)
    report = provisioner.list_units()["fargate-1"]
    assert report.phase is UnitPhase.ENDED and "stopped by scaler_worker_manager" in report.reason
    assert provisioner.list_units().keys() == {"fargate-2"}, "an end is reported once"


def test_the_task_definition_has_what_fargate_demands(aws: FakeAws, provisioner: EcsProvisioner) -> None:
    provisioner.start(("fargate-1",), 0)
    (arn,) = aws.ecs.list_task_definitions(status="ACTIVE")["taskDefinitionArns"]
    definition = aws.ecs.describe_task_definition(taskDefinition=arn)["taskDefinition"]
    assert (definition["networkMode"], definition["cpu"], definition["memory"]) == ("awsvpc", "4096", "30720")
    (container,) = definition["containerDefinitions"]
    assert (container["image"], container["stopTimeout"]) == ("example/scaler", 40), "drain for 25 s, hand over"


def test_another_life_finds_the_tasks_of_its_fleet_only(aws: FakeAws, provisioner: EcsProvisioner) -> None:
    provisioner.start(("fargate-1",), 0)
    subnet = ["--ecs-subnets", aws.subnet(), "--ecs-cluster", "tests"]
    other = EcsProvisioner(options(*subnet, "--worker-manager-id", "other"))
    assert other.list_units() == {}
    other.stop(("fargate-1",), force=True)
    assert EcsProvisioner(options(*subnet)).list_units()["fargate-1"].phase is UnitPhase.RUNNING
    EcsProvisioner(options(*subnet)).stop(("fargate-1",), force=False)
    assert provisioner.list_units()["fargate-1"].phase is UnitPhase.ENDED, "it is stopped before the first listing"


def test_a_refused_task_is_shown_with_its_reason(aws: FakeAws) -> None:
    for provisioner in provisioned(aws, SMALL):
        assert provisioner.start(("fargate-1",), 0) == ("fargate-1",)
        with pytest.raises(ProvisionerError, match=r"RESOURCE:FARGATE Capacity is unavailable") as refused:
            provisioner.start(("fargate-2", "fargate-3"), 0)
        assert refused.value.accepted == []
        assert provisioner.list_units().keys() == {"fargate-1"}


def test_a_repeated_start_is_the_same_for_ecs(aws: FakeAws) -> None:
    tokens: list[str] = []

    def see(params: dict[str, Any], **_: object) -> None:
        tokens.append(params["clientToken"])
        assert len(params["clientToken"]) <= 64 and len(params["startedBy"]) <= 36 and params["count"] <= 10

    # A cluster of its own: moto does not know tokens, and starts two tasks.
    provisioner = EcsProvisioner(options("--ecs-subnets", aws.subnet(), "--ecs-cluster", "twice"))
    provisioner._ecs.meta.events.register("provide-client-params.ecs.RunTask", see)
    for unit in ("fargate-1", "fargate-1", "fargate-2"):
        provisioner.start((unit,), 0)
    provisioner.close()
    assert tokens[0] == tokens[1] != tokens[2]


def test_many_tasks_are_described_by_hundreds(provisioner: EcsProvisioner) -> None:
    sizes: list[int] = []
    events = provisioner._ecs.meta.events
    events.register("provide-client-params.ecs.DescribeTasks", lambda params, **_: sizes.append(len(params["tasks"])))
    provisioner.start([f"fargate-{number}" for number in range(101)], 0)
    assert len(provisioner.list_units()) == 101 and sizes == [100, 1]


def test_a_definition_of_the_user_is_used_and_kept(aws: FakeAws) -> None:
    container = {"name": "own", "image": "x", "cpu": 256, "memory": 512}
    aws.ecs.register_task_definition(
        family="mine", networkMode="awsvpc", requiresCompatibilities=["FARGATE"], cpu="256", memory="512",
        containerDefinitions=[container],
    )  # fmt: skip
    words = [*WORDS[:3], "--ecs-subnets", aws.subnet(), "--ecs-cluster", "own", "--ecs-task-definition", "mine"]
    made = EcsProvisioner(aws_ecs.COMMAND.read(words, {}))
    made.start(("fargate-1",), 0)
    made.stop(("fargate-1",), force=False)
    made.close()
    (arn,) = aws.ecs.list_task_definitions(familyPrefix="mine", status="ACTIVE")["taskDefinitionArns"]
    aws.ecs.deregister_task_definition(taskDefinition=arn)


def test_requirements_are_installed_before_the_agent_takes_the_shell_s_place() -> None:
    command = options("--ecs-subnets", "a", "--ecs-python-requirements", "pandas; numpy<3").command
    assert command[:2] == ["sh", "-c"]
    assert command[2].startswith("python -m pip install --quiet pandas 'numpy<3' && exec scaler_cluster tcp://10.0.0.5")


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ([*WORDS[:3], "--ecs-subnets", "a"], "missing --ecs-task-image"),
        (WORDS, "missing --ecs-subnets"),
        ([*WORDS, "--ecs-subnets", ""], "name at least one subnet"),
        ([*WORDS, "--ecs-subnets", "a", "-mtc", "2"], "--workers-per-unit 4 is more than --max-task-concurrency 2"),
    ],
)
def test_errors_name_the_remedy(words: list[str], fault: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        aws_ecs.COMMAND.read(words, {})
    assert fault in capsys.readouterr().err
