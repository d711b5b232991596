"""`aws_hpc`: units are jobs of AWS Batch."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from scaler_io.provisioning.core import ManagerConfig
from scaler_io.provisioning.provisioner import Provisioner, ProvisionerError, UnitPhase, UnitReport
from scaler_io.service.options import Option, Refusal, UsageError, one_of, whole_number
from scaler_protocol.lazy_dataclass import dataclass
from scaler_worker.config import HAND_OVER_SECONDS
from scaler_worker.managers.aws import AwsOptions, aws_options, for_each, name_values, pages, unit_of
from scaler_worker.managers.options import manager_command
from scaler_worker.managers.running import run_manager

POLL_SECONDS: Final = 5.0
START_SECONDS: Final = 20.0
"""How long a container may take from its start to the start of its agent."""
_STARTING: Final = ("SUBMITTED", "PENDING", "RUNNABLE", "STARTING")
_ENDED: Final = ("SUCCEEDED", "FAILED")
_STOPPED: Final = "stopped by scaler_worker_manager"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions(AwsOptions):
    """The command line of `scaler_worker_manager aws_hpc`."""

    job_queue: str
    job_definition: str
    backend: str
    max_concurrent_jobs: int
    job_timeout_minutes: int

    def __post_init__(self) -> None:
        # Not super(): dataclass(slots=True) makes a new class, which super() in its methods does not refer to.
        AwsOptions.__post_init__(self)
        leaving = self.drain_timeout_seconds + HAND_OVER_SECONDS
        if self.time_limit_seconds <= leaving:
            raise UsageError(
                f"--job-timeout-minutes {self.job_timeout_minutes} leaves no time to work before draining and "
                f"handing over, which may take {leaving:g} s: raise it or lower --drain-timeout-seconds"
            )

    @property
    def time_limit_seconds(self) -> float:
        """When the agent is to have ended: before Batch ends its job."""
        return self.job_timeout_minutes * 60.0 - START_SECONDS

    def job_name(self, unit: str) -> str:
        """The name of a unit's job, in the characters that Batch allows."""
        return f"{self.fleet_id}-{re.sub('[^A-Za-z0-9_-]', '_', unit)}"[:128]

    def core_config(self) -> ManagerConfig:
        """The settings of the manager's core: the jobs allowed at once bound the workers, too."""
        config = self.config_of("aws_hpc", poll_seconds=POLL_SECONDS)
        most = self.max_concurrent_jobs * self.workers_per_unit
        return replace(config, maximum=min(most, config.maximum) if config.maximum >= 0 else most)


COMMAND: Final = manager_command(
    "aws_hpc",
    "Start workers as jobs of AWS Batch as the scheduler wants them.",
    BatchOptions,
    (
        *aws_options(),
        Option(("--job-queue", "-q"), "the job queue"),
        Option(("--job-definition", "-d"), "a job definition whose image contains scaler_cluster"),
        Option(("--backend", "-b"), "the service that runs jobs", one_of("batch"), default="batch"),
        Option(("--max-concurrent-jobs", "-mcj"), "the most jobs at once", whole_number(1), default=100),
        Option(
            ("--job-timeout-minutes",),
            "Batch ends a job after this long; its agent drains, and ends, before",
            whole_number(1),
            default=60,
        ),
    ),
    (
        Refusal(
            ("--s3-bucket", "--s3-prefix"),
            "arguments and results go through object storage of Scaler, not S3; leave it out",
        ),
        Refusal(("--name", "-n"), "jobs are named after --worker-manager-id; leave it out"),
    ),
    example="scaler_worker_manager aws_hpc tcp://10.0.0.5:2345 --worker-manager-id batch -q workers -d scaler-worker",
)


class BatchProvisioner(Provisioner):
    """Runs one job for each unit.

    SubmitJob has no client token: a submission that is repeated after a time-out may start two jobs. Hence a search by
    name after every submission that has failed, which adopts what has started and ends the second job of a name.
    """

    def __init__(self, options: BatchOptions) -> None:
        self._options = options
        (self._batch,) = options.clients("batch")
        self._lock = threading.Lock()
        self._ids: dict[str, str] = {}
        """The unit of each job that may live, by the job's id."""
        self._is_search_due = True

    def start(self, units: Sequence[str], offer: int) -> Sequence[str]:
        """Submit a job for each unit."""
        try:
            return for_each(self._submit, units)
        except ProvisionerError:
            self._is_search_due = True
            raise

    def stop(self, units: Sequence[str], *, force: bool) -> None:
        """End jobs, wherever they are on their way: SIGTERM, and SIGKILL 30 s later.

        This is TerminateJob, since CancelJob reports success and leaves jobs that have begun.
        """
        wanted = set(units)
        if not wanted.issubset(self._ids.values()):
            self.list_units()  # the scheduler tells of units of earlier lives before a listing does
        with self._lock:
            ids = [id for id, unit in self._ids.items() if unit in wanted]
        for_each(self._terminate, ids)

    def list_units(self) -> Mapping[str, UnitReport]:
        """The jobs that this manager has submitted, and those that have ended since the last listing."""
        if self._is_search_due:
            self._is_search_due = False  # before the search: a submission may fail meanwhile
            try:
                self._search()
            except Exception:
                self._is_search_due = True
                raise
        with self._lock:
            ids = list(self._ids)
        reports = {}
        for page in pages(ids):
            for job in self._batch.describe_jobs(jobs=page)["jobs"]:
                unit, report = unit_of(job["container"].get("environment", [])), _report(job)
                with self._lock:
                    if report.phase is UnitPhase.ENDED:
                        self._ids.pop(job["jobId"], None)
                    else:
                        self._ids[job["jobId"]] = unit
                reports[unit] = report
        return reports

    def close(self) -> None:
        """Nothing is held."""

    def _submit(self, unit: str) -> None:
        options = self._options
        answer = self._batch.submit_job(
            jobName=options.job_name(unit),
            jobQueue=options.job_queue,
            jobDefinition=options.job_definition,
            containerOverrides={
                "command": [
                    "scaler_cluster",
                    *options.unit_words(""),
                    "--time-limit-seconds",
                    f"{options.time_limit_seconds:.15g}",
                ],
                "environment": name_values(options.environment(unit)),
            },
            retryStrategy={"attempts": 1},  # the manager starts a new unit, under a new name
            timeout={"attemptDurationSeconds": options.job_timeout_minutes * 60},
        )
        with self._lock:
            self._ids[answer["jobId"]] = unit

    def _terminate(self, id: str) -> None:
        self._batch.terminate_job(jobId=id, reason=_STOPPED)

    def _search(self) -> None:
        """Find living jobs by name, those of earlier lives of this manager included; end the second of a name."""
        listing = self._batch.get_paginator("list_jobs")
        filters = [{"name": "JOB_NAME", "values": [f"{self._options.fleet_id}-*"]}]
        names = set()
        jobs = [
            job
            for page in listing.paginate(jobQueue=self._options.job_queue, filters=filters)
            for job in page["jobSummaryList"]
            if job["status"] not in _ENDED
        ]
        for job in sorted(jobs, key=lambda job: job["createdAt"]):
            if job["jobName"] in names:
                self._terminate(job["jobId"])
                continue
            names.add(job["jobName"])
            with self._lock:
                self._ids.setdefault(job["jobId"], "")


def _report(job: Mapping[str, Any]) -> UnitReport:
    status = job["status"]
    if status in _STARTING:
        return UnitReport(UnitPhase.STARTING)
    if status not in _ENDED:
        return UnitReport(UnitPhase.RUNNING)
    container = job["container"]
    reasons = [job.get("statusReason", ""), container.get("reason", "")]
    if container.get("exitCode") is not None:
        reasons.append(f"exit code {container['exitCode']}")
    return UnitReport(UnitPhase.ENDED, "; ".join(filter(None, reasons)))


def run(options: BatchOptions) -> int:
    """Run the manager until it has ended."""
    return run_manager(options, lambda: BatchProvisioner(options), options.core_config())
