"""The options that all kinds of worker managers have in common, and the command line of the units that they start."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import cloudpickle

from scaler_io.provisioning.core import ManagerConfig
from scaler_io.provisioning.provisioner import OfferSpec
from scaler_io.service.base import SERVICE_OPTIONS, ServiceOptions
from scaler_io.service.cli import Command
from scaler_io.service.options import REFUSED, Option, Refusal, UsageError, comma_list, whole_number
from scaler_protocol.addresses import Address
from scaler_protocol.gpus import AUTO, GPU
from scaler_protocol.ids import new_incarnation
from scaler_protocol.lazy_dataclass import dataclass
from scaler_worker.config import COMMAND as CLUSTER_COMMAND
from scaler_worker.config import WORKERS_LIMIT, refuse_contradicting_offers

MOST_WORKERS: Final = 2**31 - 1
"""The limits of the maximum that a manager reports."""

T = TypeVar("T", bound="ManagerOptions")
_ID: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")


def manager_id(text: str) -> str:
    """Parse the id of a worker manager; raises ValueError."""
    if not _ID.fullmatch(text):
        raise ValueError(f"{text!r} is not an id: up to 64 letters, digits, dots, dashes and underscores")
    return text


def pair(text: str) -> tuple[str, str]:
    """Parse name=value; raises ValueError."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ValueError(f"{text!r} is not name=value")
    return name, value


def pairs(text: str) -> dict[str, str]:
    """Parse name=value pairs separated by commas; raises ValueError."""
    return dict(map(pair, comma_list(text)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerOptions(ServiceOptions):
    """The settings of every kind of worker manager."""

    worker_manager_id: str
    worker_scheduler_address: Address | None
    object_storage_address: Address | None
    max_task_concurrency: int
    workers_per_unit: int
    drain_timeout_seconds: float
    leave_units: bool
    per_worker_capabilities: dict[str, int]
    host_capabilities: dict[str, int]
    gpus: tuple[str, ...]
    per_worker_task_queue_size: int
    heartbeat_interval_seconds: float
    task_timeout_seconds: float
    death_timeout_seconds: float
    garbage_collect_interval_seconds: float
    trim_memory_threshold_bytes: int
    memory_limit_per_worker: int
    threads_per_worker: int | None
    output_limit_per_task: int
    allow_functions: tuple[str, ...]
    preload: str | None

    def __post_init__(self) -> None:
        if 0 <= self.max_task_concurrency < self.workers_per_unit:
            raise UsageError(
                f"--workers-per-unit {self.workers_per_unit} is more than --max-task-concurrency "
                f"{self.max_task_concurrency}: no unit may be started; lower one or raise the other"
            )
        refuse_contradicting_offers(self.per_worker_capabilities, self.host_capabilities, self.gpus)

    def manager_config(self, kind: str, *, poll_seconds: float, visible_seconds: float = 0.0) -> ManagerConfig:
        """The settings of the manager's core. `poll_seconds` lie between two listings, and a unit that the provider has
        accepted may be missing in listings for `visible_seconds`."""
        gpus = self.workers_per_unit if self.gpus == (AUTO,) else min(self.workers_per_unit, len(self.gpus))
        quantities = {**self.host_capabilities, **({GPU: gpus} if gpus else {})}
        offer = OfferSpec(
            capabilities_text({**self.per_worker_capabilities, **quantities, **({GPU: 1} if gpus else {})}),
            platform.python_version(),
            cloudpickle.__version__,
            self.workers_per_unit,
            capabilities_text(quantities),
        )
        return ManagerConfig(
            id=self.worker_manager_id,
            kind=kind,
            maximum=self.max_task_concurrency,
            offers=(offer,),
            prefix=f"{self.worker_manager_id}-{new_incarnation():06x}",
            drain_timeout_seconds=self.drain_timeout_seconds,
            poll_seconds=poll_seconds,
            visible_seconds=visible_seconds,
            heartbeat_seconds=self.heartbeat_interval_seconds,
            leave_units=self.leave_units,
            scheduler=str(self.address),
        )

    def unit_words(self, unit: str) -> list[str]:
        """The arguments of `scaler_cluster` (or `python -m scaler_worker`) for a unit of this name.

        Without a name they are for an agent that no manager knows.
        """
        words = [str(self.worker_scheduler_address or self.address), "--num-of-workers", str(self.workers_per_unit)]
        if unit:
            words += ["--worker-manager-id", self.worker_manager_id, "--unit-id", unit]
        for name, value in self._given():
            words += [name, value]
        return [*words, *["--insecure"] * self.insecure]

    def _given(self) -> list[tuple[str, str]]:
        """The options for units that differ from the defaults of `scaler_cluster`."""
        passed: list[tuple[str, object, object]] = [
            ("--object-storage-address", self.object_storage_address, None),
            ("--per-worker-capabilities", capabilities_text(self.per_worker_capabilities), ""),
            ("--host-capabilities", capabilities_text(self.host_capabilities), ""),
            ("--gpus", ",".join(self.gpus), ""),
            ("--preload", self.preload, None),
            ("--keys", self.keys, None),
            *(("--allow-functions", pattern, None) for pattern in self.allow_functions),
        ]
        defaults = {option.destination: option.default for option in CLUSTER_COMMAND.options}
        for name in _SAME_AS_CLUSTER:
            passed.append((f"--{name.replace('_', '-')}", getattr(self, name), defaults[name]))
        return [(name, _text(value)) for name, value, default in passed if value not in (default, None)]

    def log_words(self) -> list[str]:
        """The arguments that make a unit on this host log to the manager's files; on other hosts these do not exist."""
        words = []
        if self.logging_paths != _CLUSTER_OPTIONS["logging_paths"].default:
            words += [f"--logging-paths={path}" for path in self.logging_paths]
        if self.logging_config_file is not None:
            words.append(f"--logging-config-file={self.logging_config_file}")
        return words


_SAME_AS_CLUSTER: Final = (
    "per_worker_task_queue_size",
    "heartbeat_interval_seconds",
    "task_timeout_seconds",
    "drain_timeout_seconds",
    "death_timeout_seconds",
    "garbage_collect_interval_seconds",
    "trim_memory_threshold_bytes",
    "memory_limit_per_worker",
    "threads_per_worker",
    "output_limit_per_task",
    "logging_level",
    "log_format",
    "event_loop",
)


def _text(value: object) -> str:
    return f"{value:.15g}" if isinstance(value, float) else str(value)


def capabilities_text(capabilities: dict[str, int]) -> str:
    """Capabilities in the syntax of `--per-worker-capabilities`."""
    return ",".join(name if value < 0 else f"{name}={value}" for name, value in sorted(capabilities.items()))


_CLUSTER_OPTIONS: Final = {option.destination: option for option in CLUSTER_COMMAND.options}

MANAGER_OPTIONS: Final[Sequence[Option]] = (
    Option(("address", "scheduler_address"), "the scheduler to work for", Address.parse_peer),
    Option(("--worker-manager-id", "-wmi"), "the manager's id; no two of a scheduler may have the same", manager_id),
    Option(
        ("--worker-scheduler-address", "-wsa"),
        "the scheduler as workers reach it, if that differs",
        Address.parse_peer,
        default=None,
    ),
    _CLUSTER_OPTIONS["object_storage_address"],
    Option(
        ("--max-task-concurrency", "-mtc"),
        "the most workers; -1 for no limit",
        whole_number(-1, MOST_WORKERS),
        default=os.cpu_count() or 1,
    ),
    Option(
        ("--workers-per-unit", "-wpu"),
        "workers of each unit (process, job, pod, instance), which starts and ends as a whole",
        whole_number(1, WORKERS_LIMIT),
        default=1,
    ),
    _CLUSTER_OPTIONS["drain_timeout_seconds"],
    Option(("--leave-units",), "leave the units running when the manager ends", default=False, flag=True),
    *(
        _CLUSTER_OPTIONS[name]
        for name in (
            "per_worker_capabilities",
            "host_capabilities",
            "gpus",
            "per_worker_task_queue_size",
            "heartbeat_interval_seconds",
            "task_timeout_seconds",
            "death_timeout_seconds",
            "garbage_collect_interval_seconds",
            "trim_memory_threshold_bytes",
            "memory_limit_per_worker",
            "threads_per_worker",
            "output_limit_per_task",
            "allow_functions",
            "preload",
        )
    ),
    *SERVICE_OPTIONS,
)
"""The fields of ManagerOptions."""


def manager_command(
    kind: str,
    description: str,
    config: Callable[..., T],
    options: Sequence[Option] = (),
    refusals: Sequence[Refusal] = (),
    *,
    example: str = "",
) -> Command[T]:
    """The command line of `scaler_worker_manager KIND`; `options` are those of the kind, the fields of its `config`.

    In a TOML file it reads the table of the array [[worker_manager]] whose `type` is the kind.
    """
    own = {option.destination for option in options}
    refused = {name for refusal in refusals for name in refusal.names}
    return Command(
        program=f"scaler_worker_manager {kind}",
        description=description,
        section="worker_manager",
        kind=kind,
        kind_key="worker_manager_id",
        config=config,
        options=(
            *(
                option
                for option in MANAGER_OPTIONS
                if option.destination not in own and not refused.intersection(option.names)
            ),
            *options,
        ),
        refusals=(*REFUSED, *refusals),
        example=example
        or f"scaler_worker_manager {kind} tcp://127.0.0.1:2345 --worker-manager-id {kind.split('_')[0]}",
    )
