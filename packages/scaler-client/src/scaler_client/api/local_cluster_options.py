"""From the parameters of SchedulerClusterCombo to the command lines of its services.

Parameters are validated before any process is started.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from scaler_client.parameters import check, check_address, check_positive_seconds, flag, items
from scaler_io.ports import is_free
from scaler_io.service.options import ALLOCATE_POLICY, EVENT_LOOP_KIND, JOURNAL_SYNC, LOGGING_LEVEL
from scaler_protocol.addresses import Address
from scaler_protocol.byte_counts import parse_bytes
from scaler_protocol.capabilities import capabilities, parse_capabilities, parse_quantities
from scaler_protocol.errors import AddressError, CapabilityError
from scaler_protocol.gpus import GPU, gpu_names
from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.limits import OUTPUT_BYTES, QUEUE_SIZE, SECONDS, SIZE, WORKER_BYTES
from scaler_protocol.ranges import Text, Whole, shown

WORKERS: Final = Whole(0, 4096)
"""Workers of a local cluster."""
_POSITIVE: Final = Whole(1, SIZE.most)
_WORDS: Final = Text(4096, least=1)

_SCHEDULER_OPTIONS = (
    "object_storage_address",
    "monitor_address",
    "max_number_of_tasks_waiting",
    "client_timeout_seconds",
    "worker_timeout_seconds",
    "object_retention_seconds",
    "memory_limit",
    "segment_directory",
    "spill_directory",
    "spill_limit",
    "allocate_policy",
    "event_loop",
    "journal",
    "journal_sync",
)
_CLUSTER_OPTIONS = (
    "heartbeat_interval_seconds",
    "task_timeout_seconds",
    "death_timeout_seconds",
    "object_retention_seconds",
    "garbage_collect_interval_seconds",
    "trim_memory_threshold_bytes",
    "memory_limit_per_worker",
    "threads_per_worker",
    "output_limit_per_task",
    "preload",
    "event_loop",
)
"""Parameters that are options of the same name."""
_STORAGE_PARAMETERS = ("memory_limit", "segment_directory", "spill_directory", "spill_limit")
"""Parameters of the object storage server that is started if no other is named."""
_WITHOUT_EFFECT: dict[str, tuple[object, str]] = {
    "worker_io_threads": (1, "a process has one io thread"),
    "scheduler_io_threads": (1, "a process has one io thread"),
    "load_balance_seconds": (1, "work is balanced when a worker becomes idle, not by a timer"),
    "load_balance_trigger_times": (2, "work is balanced when a worker becomes idle, not by repeated advice"),
    "hard_processor_suspend": (False, "a task that waits for its tasks occupies no worker, so nothing is suspended"),
    "scaler_policy": (None, "choose with allocate_policy; scale() changes the size of a local cluster"),
    "worker_manager_id": ("combo", "the agent names itself after its host"),
    "security_config": (None, "a local cluster listens on loopback only"),
}
"""Old parameters: the default, which is still accepted, and why they have no effect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalClusterConfig:
    """The parameters of SchedulerClusterCombo, validated and converted; those without any effect are left out."""

    n_workers: int
    address: str | None
    object_storage_address: str | None
    monitor_address: str | None
    per_worker_capabilities: str | None
    host_capabilities: str | None
    gpus: str | None
    max_number_of_tasks_waiting: int
    heartbeat_interval_seconds: float
    client_timeout_seconds: float
    worker_timeout_seconds: float
    object_retention_seconds: float
    task_timeout_seconds: float
    death_timeout_seconds: float
    garbage_collect_interval_seconds: float
    trim_memory_threshold_bytes: int
    memory_limit_per_worker: int
    threads_per_worker: int | None
    output_limit_per_task: int
    per_worker_task_queue_size: int
    per_worker_queue_size: int | None
    protected: bool
    event_loop: str
    logging_paths: Sequence[str]
    logging_level: str
    logging_config_file: str | None
    allocate_policy: str
    preload: str | None
    memory_limit: int | None
    segment_directory: str | None
    spill_directory: str | None
    spill_limit: int | None
    journal: str | None
    journal_sync: str
    dashboard: bool

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> LocalClusterConfig:
        """From all parameters by name; raises ValueError, TypeError, AddressError, CapabilityError."""
        for name, (default, reason) in _WITHOUT_EFFECT.items():
            if not _is(parameters[name], default):
                raise ValueError(f"{name}={shown(parameters[name])} has no effect any more: {reason}; leave it out")
        values = {name: parameters[name] for name in _CHECKS}
        given = (name for name, value in values.items() if name not in _OPTIONAL or value is not None)
        config = cls(**{**values, **{name: _CHECKS[name](name, values[name]) for name in given}})
        config._refuse_contradictions()
        return config

    def _refuse_contradictions(self) -> None:
        """Raises ValueError for parameters that the scheduler would refuse together."""
        if self.object_storage_address is not None:
            if self.object_storage_address == self.address:
                raise ValueError(
                    f"object_storage_address is {self.object_storage_address}, which is also address: name another"
                    " server, or leave it out to have one started"
                )
            for name in _STORAGE_PARAMETERS:
                if getattr(self, name) is not None:
                    raise ValueError(f"{name} is for the server at object_storage_address: give it there")
        offered, together = (
            parse_capabilities(text or "") for text in (self.per_worker_capabilities, self.host_capabilities)
        )
        if both := offered.keys() & together:
            raise ValueError(
                f"host_capabilities and per_worker_capabilities both have {min(both)}: give it as what each worker"
                " offers, or as what all of them have together"
            )
        if self.gpus is not None and GPU in {*offered, *together}:
            raise ValueError(f"gpus: workers that see a GPU offer {GPU}=1 by that; leave {GPU} out of capabilities")
        if self.journal_sync != "normal" and self.journal is None:
            raise ValueError(f"journal_sync is {self.journal_sync!r}, but there is no journal: give both, or none")
        if self.spill_limit is not None and self.spill_directory is None:
            raise ValueError(f"spill_limit is {self.spill_limit}, but there is no spill_directory: give both, or none")

    def scheduler_options(self) -> list[str]:
        """The command line of `scaler_scheduler`, without its address."""
        protection = "--protected" if self.protected else "--no-protected"
        return [protection, *self._logging_options(), *self._options(_SCHEDULER_OPTIONS)]

    def cluster_options(self) -> list[str]:
        """The command line of `scaler_cluster`, without the address of the scheduler."""
        others = {
            "num_of_workers": self.n_workers,
            "per_worker_task_queue_size": self.per_worker_queue_size or self.per_worker_task_queue_size,
            "per_worker_capabilities": self.per_worker_capabilities or None,
            "host_capabilities": self.host_capabilities or None,
            "gpus": self.gpus,
        }
        return [*self._logging_options(), *self._options(_CLUSTER_OPTIONS), *_options(others)]

    def _options(self, names: Sequence[str]) -> list[str]:
        return _options({name: getattr(self, name) for name in names})

    def _logging_options(self) -> list[str]:
        paths = ["--logging-paths", *self.logging_paths] if self.logging_paths else []
        return [*self._options(("logging_level", "logging_config_file")), *paths]


def _options(values: Mapping[str, Any]) -> list[str]:
    return [f"--{name.replace('_', '-')}={value}" for name, value in values.items() if value is not None]


def _is(value: object, default: object) -> bool:
    """Whether a value is the default, or a number or text that equals it."""
    return value is default or (isinstance(value, int | float | str) and value == default)


# --- checks -----------------------------------------------------------------------------------------------------------


def _whole(limit: Whole) -> Callable[[str, Any], int]:
    def look(name: str, value: Any) -> int:
        check(name, value, limit)
        return int(value)

    return look


def _bytes(limit: Whole) -> Callable[[str, Any], int]:
    """A number of bytes, or a text like 4GB."""

    def look(name: str, value: Any) -> int:
        if isinstance(value, str):
            try:
                value = parse_bytes(value)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
        check(name, value, limit)
        return int(value)

    return look


def _memory_limit(name: str, value: Any) -> int:
    found = _bytes(SIZE)(name, value)
    if 0 < found < WORKER_BYTES:
        raise ValueError(
            f"{name} is {found:,} bytes, which is less than a worker needs without a task: give at least "
            f"{WORKER_BYTES >> 20} MiB, or 0 for no limit"
        )
    return found


def _seconds(name: str, value: Any) -> float:
    check(name, value, SECONDS)
    return float(value)


def _positive_seconds(name: str, value: Any) -> float:
    check_positive_seconds(name, value)
    return float(value)


def _address(name: str, value: Any) -> str:
    check_address(name, value)
    return _text(name, value)


def _own_address(name: str, value: Any) -> str:
    """The address of the scheduler, or of its monitor."""
    text = _address(name, value)
    if not Address.parse(text).is_local:
        raise AddressError(
            f"{name} is {shown(text)}, which other hosts can reach: a local cluster listens on loopback only; for"
            " other hosts start scaler_scheduler and scaler_cluster"
        )
    return text


def _monitor_address(name: str, value: Any) -> str:
    text = _own_address(name, value)
    address = Address.parse(text)
    if address.path and not os.path.isdir(os.path.dirname(address.path)):
        raise ValueError(f"{name} is {shown(text)}, and there is no directory {os.path.dirname(address.path)}")
    if not address.path and address.port and not is_free(address.port):
        raise ValueError(f"{name} is {shown(text)}, and its port is in use: choose another one, or leave it out")
    return text


def _text(name: str, value: Any) -> str:
    check(name, value, _WORDS)
    if "\0" in value:
        raise ValueError(f"{name} is {shown(value)}, which contains a NUL")
    return str(value)


def _path(name: str, value: Any) -> str:
    """The absolute path, because services run in another directory."""
    return os.path.abspath(_text(name, os.fspath(value) if isinstance(value, os.PathLike) else value))


def _file(name: str, value: Any) -> str:
    path = _path(name, value)
    if not os.path.isfile(path):
        raise ValueError(f"{name} is {shown(value)}, and there is no such file")
    return path


def _event_loop(name: str, value: Any) -> str:
    kind = _word(EVENT_LOOP_KIND)(name, value)
    if kind != "builtin" and importlib.util.find_spec(kind) is None:
        raise ValueError(f'{name} is {kind!r}, which is not installed: pip install "scaler[{kind}]"')
    return kind


def _log_paths(name: str, value: Any) -> list[str]:
    if isinstance(value, str | bytes):
        raise TypeError(f"{name} is {shown(value)}, not a list of paths: write [{shown(value)}]")
    return [path if path == "-" else _path(f"{name} contains one that", path) for path in items(name, value)]


def _word(parse: Callable[[str], str]) -> Callable[[str, Any], str]:
    def look(name: str, value: Any) -> str:
        try:
            return parse(_text(name, value))
        except ValueError as error:
            raise error if name in str(error) else ValueError(f"{name}: {error}") from None

    return look


def _capabilities(name: str, value: Any) -> str:
    """In the form of the command line."""
    try:
        found = dict(capabilities(value))
    except CapabilityError as error:
        raise CapabilityError(f"{name} is {shown(value)}: {error}") from None
    return ",".join(word if number == -1 else f"{word}={number}" for word, number in found.items())


def _quantities(name: str, value: Any) -> str:
    """In the form of the command line."""
    text = _capabilities(name, value)
    try:
        parse_quantities(text)
    except CapabilityError as error:
        raise CapabilityError(f"{name} is {shown(value)}: {error}") from None
    return text


def _gpus(name: str, value: Any) -> str:
    """In the form of the command line."""
    if not isinstance(value, str | Sequence) or isinstance(value, bytes):
        raise TypeError(f"{name} is {shown(value)}, not a text or a list of numbers and UUIDs, like [0, 1]")
    text = value if isinstance(value, str) else ",".join(map(str, value))
    try:
        gpu_names(text)
    except ValueError as error:
        raise ValueError(f"{name} is {shown(value)}: {error}") from None
    return text


def _true_or_false(name: str, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise TypeError(f"{name} is {shown(value)}: True or False")


_CHECKS: Final[Mapping[str, Callable[[str, Any], Any]]] = {
    "n_workers": _whole(WORKERS),
    "address": _own_address,
    "object_storage_address": _address,
    "monitor_address": _monitor_address,
    "per_worker_capabilities": _capabilities,
    "host_capabilities": _quantities,
    "gpus": _gpus,
    "max_number_of_tasks_waiting": _whole(Whole(-1, SIZE.most)),
    "heartbeat_interval_seconds": _positive_seconds,
    "client_timeout_seconds": _positive_seconds,
    "worker_timeout_seconds": _positive_seconds,
    "object_retention_seconds": _positive_seconds,
    "task_timeout_seconds": _seconds,
    "death_timeout_seconds": _positive_seconds,
    "garbage_collect_interval_seconds": _positive_seconds,
    "trim_memory_threshold_bytes": _bytes(SIZE),
    "memory_limit_per_worker": _memory_limit,
    "threads_per_worker": _whole(Whole(0, 1024)),
    "output_limit_per_task": _bytes(Whole(0, OUTPUT_BYTES)),
    "per_worker_task_queue_size": _whole(Whole(1, QUEUE_SIZE.most)),
    "per_worker_queue_size": _whole(Whole(1, QUEUE_SIZE.most)),
    "protected": flag,
    "dashboard": _true_or_false,
    "event_loop": _event_loop,
    "logging_paths": _log_paths,
    "logging_level": _word(LOGGING_LEVEL),
    "logging_config_file": _file,
    "allocate_policy": _word(ALLOCATE_POLICY),
    "preload": _text,
    "memory_limit": _bytes(_POSITIVE),
    "segment_directory": _path,
    "spill_directory": _path,
    "spill_limit": _bytes(_POSITIVE),
    "journal": _path,
    "journal_sync": _word(JOURNAL_SYNC),
}
_OPTIONAL: Final = frozenset(
    {
        "address",
        "object_storage_address",
        "monitor_address",
        "per_worker_capabilities",
        "host_capabilities",
        "gpus",
        "per_worker_queue_size",
        "logging_config_file",
        "preload",
        "threads_per_worker",
        "memory_limit",
        "segment_directory",
        "spill_directory",
        "spill_limit",
        "journal",
    }
)
"""Parameters that may be None."""
