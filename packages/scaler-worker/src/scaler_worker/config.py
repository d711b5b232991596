"""The settings of `scaler_cluster`."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Final

from scaler_io.service.base import SERVICE_OPTIONS, ServiceOptions
from scaler_io.service.cli import Command
from scaler_io.service.options import (
    REFUSED_BY_CLUSTER,
    Option,
    UsageError,
    byte_count,
    comma_list,
    positive_seconds,
    seconds,
    whole_number,
)
from scaler_protocol.addresses import Address
from scaler_protocol.capabilities import parse_capabilities, parse_quantities
from scaler_protocol.gpus import GPU, VISIBLE, gpu_names
from scaler_protocol.handshake import MANAGER_VARIABLE, UNIT_VARIABLE
from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.limits import OUTPUT_BYTES, QUEUE_SIZE, WORKER_BYTES, WORKER_NAME

WORKERS_LIMIT: Final = 4096
THREADS_LIMIT: Final = 1024
HAND_OVER_SECONDS: Final = 8.0
"""How long an agent may hand over the objects of its host, after draining."""


def environment_variable(text: str) -> tuple[str, str]:
    """Parse NAME=VALUE; raises ValueError."""
    name, equals, value = text.partition("=")
    if not equals or re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) is None:
        raise ValueError(f"{text!r} is not NAME=VALUE, with a name of letters, digits and underscores")
    return name, value


def function_pattern(text: str) -> str:
    """Parse a pattern of function names; raises ValueError."""
    if re.fullmatch(r"[\w.*]+:[\w.*]+", text) is None:
        raise ValueError(f"{text!r} is not MODULE:FUNCTION, like math:sqrt or mine.tasks:run_*")
    return text


def output_size(text: str) -> int:
    """Parse how many bytes of a task's output are kept; raises ValueError."""
    number = byte_count()(text)
    if number > OUTPUT_BYTES:
        raise ValueError(f"{text} is more than is kept of a task, {OUTPUT_BYTES >> 10}KiB")
    return number


def refuse_contradicting_offers(each: Mapping[str, int], together: Mapping[str, int], gpus: Sequence[str]) -> None:
    """Raises UsageError for what workers cannot offer both each and together."""
    if both := each.keys() & together:
        raise UsageError(
            f"--host-capabilities: {min(both)} is in --per-worker-capabilities, too: give it as what each worker "
            "offers, or as what all of them have together"
        )
    if gpus and GPU in {*each, *together}:
        raise UsageError(f"--gpus: workers that see a GPU offer {GPU}=1 by that; leave {GPU} out of capabilities")


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """The settings of a worker process."""

    preload: str | None = None
    garbage_collect_interval_seconds: float = 30.0
    trim_memory_threshold_bytes: int = 1024**3
    object_storage_address: str = ""
    """Where object storage is, if not where the scheduler says."""
    object_cache: str = ""
    """The directory in which this host's workers share objects if object storage is on another host."""
    object_cache_limit: int = 0
    """Bytes allowed in that directory; 0 disables sharing."""
    descriptor_limit: int = 0
    """Open files allowed per worker, as set when the agent was started; 0: the template's limit."""
    keys: str = ""
    """The directory of the cluster's keys; empty if connections use none."""
    environment: tuple[tuple[str, str], ...] = ()
    """Environment variables, by name."""
    output_limit: int = 0
    """Bytes of what a task prints that monitors are shown."""
    json_output: bool = False
    """Whether what tasks print is written as JSON, a line each, as logs are."""
    allow_functions: tuple[str, ...] = ()
    """Patterns of the functions that may be called; empty: any function."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig(ServiceOptions):
    """The command line of `scaler_cluster`."""

    object_storage_address: Address | None
    num_of_workers: int
    worker_names: tuple[str, ...]
    per_worker_capabilities: dict[str, int]
    host_capabilities: dict[str, int]
    per_worker_task_queue_size: int
    heartbeat_interval_seconds: float
    task_timeout_seconds: float
    death_timeout_seconds: float
    object_retention_seconds: float
    object_cache_limit: int | None
    garbage_collect_interval_seconds: float
    trim_memory_threshold_bytes: int
    memory_limit_per_worker: int
    threads_per_worker: int | None
    output_limit_per_task: int
    env: tuple[tuple[str, str], ...]
    gpus: tuple[str, ...]
    allow_functions: tuple[str, ...]
    preload: str | None
    worker_manager_id: str
    unit_id: str
    drain_timeout_seconds: float
    time_limit_seconds: float
    resize_fd: int | None

    def __post_init__(self) -> None:
        if self.worker_names and len(self.worker_names) != self.num_of_workers:
            raise UsageError(
                f"--worker-names: {len(self.worker_names)} names for {self.num_of_workers} workers; give one for each"
            )
        if 0 < self.memory_limit_per_worker < WORKER_BYTES:
            raise UsageError(
                f"--memory-limit-per-worker: {self.memory_limit_per_worker:,} bytes are less than a worker needs "
                f"without a task; give at least {WORKER_BYTES >> 20} MiB, or 0 for no limit"
            )
        leaving = self.drain_timeout_seconds + HAND_OVER_SECONDS
        if 0 < self.time_limit_seconds <= leaving:
            raise UsageError(
                f"--time-limit-seconds {self.time_limit_seconds:g} leaves no time to work before draining and handing "
                f"over, which may take {leaving:g} s: raise it or lower --drain-timeout-seconds"
            )
        refuse_contradicting_offers(self.per_worker_capabilities, self.host_capabilities, self.gpus)
        if self.gpus and VISIBLE in dict(self.env):
            raise UsageError(f"--gpus: it says which GPU each worker sees; leave {VISIBLE} out of --env")
        for name in self.worker_names:
            if fault := WORKER_NAME.fault(name):
                raise UsageError(f"--worker-names: a name {fault}")


COMMAND: Final = Command(
    program="scaler_cluster",
    description="Run the workers of this host: one agent that connects to a scheduler, and its worker processes.",
    section="cluster",
    config=ClusterConfig,
    example="scaler_cluster tcp://127.0.0.1:2345 --num-of-workers 4",
    refusals=REFUSED_BY_CLUSTER,
    options=(
        Option(("address", "scheduler_address"), "the scheduler to work for", Address.parse_peer),
        Option(
            ("--num-of-workers", "-n"),
            "worker processes",
            whole_number(1, WORKERS_LIMIT),
            default=os.cpu_count() or 1,
        ),
        Option(
            ("--object-storage-address", "-osa"),
            "the object storage server, if not the one that the scheduler names",
            Address.parse_peer,
            default=None,
        ),
        Option(("--worker-names", "-wn"), "a name for each worker, separated by commas", comma_list, default=()),
        Option(
            ("--per-worker-capabilities", "-pwc"),
            "what each worker offers, like gpu=1,linux",
            parse_capabilities,
            default={},
        ),
        Option(
            ("--host-capabilities", "-hc"),
            "what the workers have together, like license=2: a task that requires some takes it while it runs",
            parse_quantities,
            default={},
        ),
        Option(
            ("--per-worker-task-queue-size", "-wtqs", "-qs"),
            "the most tasks that the scheduler sends ahead for each worker",
            whole_number(1, QUEUE_SIZE.most),
            default=1000,
        ),
        Option(
            ("--heartbeat-interval-seconds", "-his", "-hi"),
            "how often figures of this host go to the scheduler",
            positive_seconds,
            default=2.0,
        ),
        Option(
            ("--task-timeout-seconds", "-tts", "-tt"),
            "stop a task after this long, unless it brings a timeout of its own; 0 is never",
            seconds,
            default=0.0,
        ),
        Option(
            ("--death-timeout-seconds", "-dts", "-dt", "-ds"),
            "end after this long without the scheduler",
            positive_seconds,
            default=300.0,
        ),
        Option(
            ("--object-retention-seconds", "-ors", "-ot"),
            "how long at least the result of a task is kept for a scheduler that does not take it",
            positive_seconds,
            default=3600.0,
        ),
        Option(
            ("--object-cache-limit", "-ocl"),
            "what workers of this host share where object storage is elsewhere: fetched objects, and results;"
            " 20 % of the memory that the host or control group allows if left out",
            byte_count(),
            default=None,
            metavar="BYTES",
        ),
        Option(
            ("--garbage-collect-interval-seconds", "-gc"),
            "how often workers collect garbage and look at their memory, between tasks",
            positive_seconds,
            default=30.0,
        ),
        Option(
            ("--trim-memory-threshold-bytes", "-tm"),
            "give free memory back to the system when a worker uses more than this",
            byte_count(),
            default=1024**3,
            metavar="BYTES",
        ),
        Option(
            ("--memory-limit-per-worker", "-mlw"),
            "stop a task that uses more memory than this, its child processes included; 0 is no limit."
            " It is then tried once more, alone on its host, with what all workers of the host may use together",
            byte_count(),
            default=0,
            metavar="BYTES",
        ),
        Option(
            ("--threads-per-worker", "-tpw"),
            "threads that OpenMP and BLAS libraries start in each worker (OMP_NUM_THREADS and the like);"
            " 0 leaves it to them; 1 if left out, unless the environment says",
            whole_number(0, THREADS_LIMIT),
            default=None,
        ),
        Option(
            ("--output-limit-per-task", "-olt"),
            f"show so much of what a task prints on its page, and in scaler_why: at most {OUTPUT_BYTES >> 10}KiB;"
            " 0 is nothing",
            output_size,
            default=0,
            metavar="BYTES",
        ),
        Option(
            ("--env",),
            "environment variables of the workers, NAME=VALUE",
            environment_variable,
            default=(),
            repeated=True,
            metavar="NAME=VALUE",
        ),
        Option(
            ("--gpus",),
            "give each worker a GPU of its own, which it offers as gpu=1: auto, or numbers and UUIDs of GPUs, like 0,1."
            " Workers beyond their number see none",
            gpu_names,
            default=(),
        ),
        Option(
            ("--allow-functions", "-af"),
            "run only functions that clients call by such a name, like math:sqrt or mine.tasks:run_*, with JSON;"
            " * stands for letters, digits and underscores. What comes as code, as all calls of Python clients, fails",
            function_pattern,
            default=(),
            repeated=True,
            metavar="PATTERN",
        ),
        Option(
            ("--preload",),
            "run this in every worker at its start: package.module:function or package.module:function(literal, ...)",
            default=None,
        ),
        Option(
            ("--worker-manager-id", "-wmi"),
            "the worker manager that started this; given by it",
            default="",
            environment=MANAGER_VARIABLE,
        ),
        Option(
            ("--unit-id",),
            "the name that the worker manager knows this by; given by it",
            default="",
            environment=UNIT_VARIABLE,
        ),
        Option(
            ("--drain-timeout-seconds", "-drt"),
            "after SIGTERM, or when the scheduler wants fewer workers: how long tasks may take to finish; handing over "
            "the host's objects may take 8 s more",
            seconds,
            default=25.0,
        ),
        Option(
            ("--time-limit-seconds", "-tl"),
            "drain, and end, within this time after the start, as batch systems limit it; 0 is never",
            seconds,
            default=0.0,
        ),
        Option(
            ("--resize-fd",),
            "take the number of workers from this socket; given by the process that starts a local cluster",
            whole_number(minimum=0),
            default=None,
            hidden=True,
        ),
        *SERVICE_OPTIONS,
    ),
)
