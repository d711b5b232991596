"""The command lines of `scaler_symphony_cluster` and `scaler_worker_manager symphony`, which run the same agent."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Final

from scaler_io.service.base import SERVICE_OPTIONS, ServiceOptions
from scaler_io.service.cli import Command
from scaler_io.service.options import REFUSED, Option, UsageError, whole_number
from scaler_protocol.addresses import Address
from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.limits import WORKER_NAME
from scaler_worker.config import COMMAND as CLUSTER_COMMAND
from scaler_worker.config import WORKERS_LIMIT


@dataclass(frozen=True, slots=True, kw_only=True)
class SymphonyOptions(ServiceOptions):
    """The settings of a proxy agent."""

    address: Address
    service_name: str
    base_concurrency: int
    worker_name: str
    worker_scheduler_address: Address | None
    object_storage_address: Address | None
    per_worker_capabilities: dict[str, int]
    per_worker_task_queue_size: int
    heartbeat_interval_seconds: float
    task_timeout_seconds: float
    death_timeout_seconds: float
    object_retention_seconds: float
    garbage_collect_interval_seconds: float
    trim_memory_threshold_bytes: int
    drain_timeout_seconds: float
    allow_functions: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.service_name:
            raise UsageError("--service-name is empty: give the name of the application in Symphony")
        if self.worker_name and (fault := WORKER_NAME.fault(self.worker_name)):
            raise UsageError(f"--worker-name: a name {fault}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SymphonyManagerOptions(SymphonyOptions):
    """The settings of a proxy agent that is started as a worker manager."""

    worker_manager_id: str


_CLUSTER_OPTIONS: Final = {option.destination: option for option in CLUSTER_COMMAND.options}
_ADDRESS: Final = Option(("address", "scheduler_address"), "the scheduler to work for", Address.parse_peer)
_SERVICE: Final = "the application of Symphony whose service runs the tasks"
_OPTIONS: Final = (
    Option(
        ("--base-concurrency", "--max-task-concurrency", "-n", "-mtc"),
        "the most unnested tasks at a time; nested ones may exceed it",
        whole_number(1, WORKERS_LIMIT),
        default=os.cpu_count() or 1,
    ),
    Option(("--worker-name", "-w"), "the agent's name; host and process id if left out", default=""),
    Option(
        ("--worker-scheduler-address", "-wsa"),
        "the scheduler as hosts of Symphony reach it, for clients inside tasks, if that differs",
        Address.parse_peer,
        default=None,
    ),
    replace(_CLUSTER_OPTIONS["per_worker_capabilities"], names=("--per-worker-capabilities", "-pwc", "-wc")),
    *(
        _CLUSTER_OPTIONS[name]
        for name in (
            "object_storage_address",
            "per_worker_task_queue_size",
            "heartbeat_interval_seconds",
            "task_timeout_seconds",
            "death_timeout_seconds",
            "object_retention_seconds",
            "garbage_collect_interval_seconds",
            "trim_memory_threshold_bytes",
            "drain_timeout_seconds",
            "allow_functions",
        )
    ),
    *SERVICE_OPTIONS,
)

CLUSTER: Final = Command(
    program="scaler_symphony_cluster",
    description="Run tasks as tasks of IBM Spectrum Symphony: one agent that connects to a scheduler and to Symphony.",
    section="symphony_cluster",
    config=SymphonyOptions,
    options=(_ADDRESS, Option(("service_name",), _SERVICE), *_OPTIONS),
    refusals=REFUSED,
    example="scaler_symphony_cluster tcp://127.0.0.1:2345 ScalerService --base-concurrency 4",
)
MANAGER: Final = Command(
    program="scaler_worker_manager symphony",
    description="Run tasks as tasks of IBM Spectrum Symphony, which starts and stops its services itself.",
    section="worker_manager",
    kind="symphony",
    kind_key="worker_manager_id",
    config=SymphonyManagerOptions,
    options=(
        _ADDRESS,
        Option(("--service-name", "-sn"), _SERVICE),
        Option(
            ("--worker-manager-id", "-wmi"), "a name for the agent, if --worker-name gives none", default="symphony"
        ),
        *_OPTIONS,
    ),
    refusals=REFUSED,
    example="scaler_worker_manager symphony tcp://127.0.0.1:2345 --service-name ScalerService -mtc 4",
)
