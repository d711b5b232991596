"""Units that are jobs of AWS Batch, against moto."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from scaler_io.provisioning.provisioner import ProvisionerError, UnitPhase
from scaler_worker.config import COMMAND as CLUSTER
from scaler_worker.managers import aws_batch
from scaler_worker.managers.aws_batch import BatchOptions, BatchProvisioner
from support.aws import FakeAws
from support.waiting import wait_until

WORDS = ["tcp://10.0.0.5:2345", "--worker-manager-id", "a.b", "-q", "jobs", "-d", "jobs"]


def options(*words: str) -> BatchOptions:
    return aws_batch.COMMAND.read([*WORDS, *words], {})


@pytest.fixture(scope="module")
def queue(aws_server: FakeAws) -> str:
    aws_server.make_queue("jobs")
    return "jobs"


@pytest.fixture
def provisioner(aws: FakeAws, queue: str) -> Iterator[BatchProvisioner]:
    made = BatchProvisioner(options())
    yield made
    made.stop(list(made.list_units()), force=True)
    wait_until(lambda: not made.list_units())
    assert aws.jobs(queue) == []


def test_jobs_run_the_agent_until_they_are_terminated(aws: FakeAws, queue: str, provisioner: BatchProvisioner) -> None:
    assert provisioner.list_units() == {}
    assert provisioner.start(("a.b-1", "a.b-2"), 0) == ("a.b-1", "a.b-2")
    wait_until(lambda: {report.phase for report in provisioner.list_units().values()} == {UnitPhase.RUNNING})
    launched = {each.environment["SCALER_UNIT_ID"]: each for each in aws.jobs(queue)}
    program, *words = launched["a.b-1"].words
    unit = CLUSTER.read(words, launched["a.b-1"].environment)
    assert (program, unit.worker_manager_id, unit.unit_id) == ("scaler_cluster", "a.b", "a.b-1")
    assert unit.time_limit_seconds == 3580, "it drains before Batch ends it, after 60 minutes"
    provisioner.stop(("a.b-1", "unknown"), force=False)
    ended: list[str] = []

    def has_ended() -> bool:
        reports = provisioner.list_units()
        ended.extend(report.reason for report in reports.values() if report.phase is UnitPhase.ENDED)
        return "a.b-1" not in reports

    wait_until(has_ended)
    assert ended == ["stopped by scaler_worker_manager"] and provisioner.list_units().keys() == {"a.b-2"}


def test_another_life_finds_the_jobs_of_its_fleet_only(aws: FakeAws, queue: str, provisioner: BatchProvisioner) -> None:
    provisioner.start(("a.b-1",), 0)
    other = BatchProvisioner(options("--worker-manager-id", "a"))
    assert other.list_units() == {}
    other.stop(("a.b-1",), force=True)
    assert BatchProvisioner(options()).list_units().keys() == {"a.b-1"}
    BatchProvisioner(options()).stop(("a.b-1",), force=False)
    wait_until(lambda: not aws.jobs(queue), "it is stopped before the first listing")


def test_a_second_job_of_a_name_is_ended(aws: FakeAws, queue: str, provisioner: BatchProvisioner) -> None:
    provisioner.start(("a.b-1",), 0)
    BatchProvisioner(options()).start(("a.b-1",), 0)
    wait_until(lambda: len(aws.jobs(queue)) == 2)
    assert provisioner.list_units().keys() == {"a.b-1"}
    wait_until(lambda: len(aws.jobs(queue)) == 1, "the search after the start of a manager ends one")


def test_a_refused_submission_is_shown_and_followed_by_a_search(aws: FakeAws, queue: str) -> None:
    provisioner = BatchProvisioner(options("-d", "unknown"))
    provisioner.list_units()
    BatchProvisioner(options()).start(("a.b-1",), 0)
    assert provisioner.list_units() == {}, "jobs that are not its own are found by a search"
    with pytest.raises(ProvisionerError, match="Job definition unknown does not exist"):
        provisioner.start(("a.b-2",), 0)
    assert provisioner.list_units().keys() == {"a.b-1"}
    provisioner.stop(["a.b-1"], force=False)
    wait_until(lambda: not aws.jobs(queue))


@pytest.mark.parametrize(
    ("words", "most"),
    [(["-mtc", "-1"], 200), (["-mtc", "8"], 8), (["-mtc", "-1", "-mcj", "3"], 6), (["-mtc", "4", "-mcj", "3"], 4)],
)
def test_jobs_at_once_bound_the_workers(words: list[str], most: int) -> None:
    assert options("-wpu", "2", *words).core_config().maximum == most


def test_names_of_jobs_have_no_other_characters_than_batch_allows() -> None:
    assert options().job_name("a.b-1f-2") == f"{options().fleet_id}-a_b-1f-2"
    assert len(options().job_name("x" * 200)) == 128


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["--s3-bucket", "b"], "go through object storage of Scaler, not S3"),
        (["--backend", "slurm"], "'slurm' is not one of batch"),
        (["--job-timeout-minutes", "1", "-drt", "60"], "--job-timeout-minutes 1 leaves no time to work"),
    ],
)
def test_errors_name_the_remedy(words: list[str], fault: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        options(*words)
    assert fault in capsys.readouterr().err
