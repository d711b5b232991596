"""From the parameters of SchedulerClusterCombo to the words that start its services, checked before any does. Pure."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from scaler_client.parameters import check, check_address, check_positive_seconds, flag, items
from scaler_io.service.options import ALLOCATE_POLICY, EVENT_LOOP_KIND, LOGGING_LEVEL
from scaler_protocol.capabilities import capabilities, parse_capabilities
from scaler_protocol.errors import CapabilityError
from scaler_protocol.limits import QUEUE_SIZE, SECONDS, SIZE
from scaler_protocol.ranges import Text, Whole, shown

_WORKERS: Final = Whole(0, 4096)
_BYTES: Final = Whole(1, SIZE.most)
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
)
_CLUSTER_OPTIONS = (
    "heartbeat_interval_seconds",
    "task_timeout_seconds",
    "death_timeout_seconds",
    "object_retention_seconds",
    "garbage_collect_interval_seconds",
    "trim_memory_threshold_bytes",
    "preload",
    "event_loop",
)
"""Parameters that are passed on under their own names."""
_MEANINGLESS: dict[str, tuple[object, str]] = {
    "worker_io_threads": (1, "a process has one io thread"),
    "scheduler_io_threads": (1, "a process has one io thread"),
    "load_balance_seconds": (1, "work is balanced whenever a worker runs dry, not by a timer"),
    "load_balance_trigger_times": (2, "work is balanced whenever a worker runs dry, not by repeated advice"),
    "hard_processor_suspend": (False, "a task that waits holds no worker's place, so nothing is suspended"),
    "scaler_policy": (None, "choose with allocate_policy; a local cluster has a fixed size"),
    "worker_manager_id": ("combo", "the agent names itself after its host"),
    "security_config": (None, "a local cluster is reached by loopback only"),
}
"""Old parameters: the default, which is still taken, and what to know instead."""


def checked(given: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters as they are meant; raises ValueError, TypeError, AddressError, CapabilityError."""
    for name, (default, sentence) in _MEANINGLESS.items():
        if not _is(given[name], default):
            raise ValueError(f"{name}={shown(given[name])} means nothing any more: {sentence}; leave it out")
    looked_at = (name for name in _CHECKS if name not in _OPTIONAL or given[name] is not None)
    return {**given, **{name: _CHECKS[name](name, given[name]) for name in looked_at}}


def scheduler_options(given: Mapping[str, Any]) -> list[str]:
    """The words for `scaler_scheduler`, but for its address; `given` was checked."""
    protection = "--protected" if given["protected"] else "--no-protected"
    return [protection, *_logging_options(given), *_options({name: given[name] for name in _SCHEDULER_OPTIONS})]


def cluster_options(given: Mapping[str, Any]) -> list[str]:
    """The words for `scaler_cluster`, but for the address of the scheduler; `given` was checked."""
    options = {name: given[name] for name in _CLUSTER_OPTIONS}
    options["num_of_workers"] = given["n_workers"]
    options["per_worker_task_queue_size"] = given["per_worker_queue_size"] or given["per_worker_task_queue_size"]
    options["per_worker_capabilities"] = given["per_worker_capabilities"] or None
    return [*_logging_options(given), *_options(options)]


def _options(values: Mapping[str, Any]) -> list[str]:
    return [f"--{name.replace('_', '-')}={value}" for name, value in values.items() if value is not None]


def _logging_options(given: Mapping[str, Any]) -> list[str]:
    levels = _options({name: given[name] for name in ("logging_level", "logging_config_file")})
    paths: Sequence[str] = given["logging_paths"]
    return [*levels, *(["--logging-paths", *paths] if paths else [])]


def _is(value: object, default: object) -> bool:
    """Whether it is the default, or a number that equals it."""
    return value is default or (isinstance(value, int | float | str) and value == default)


# --- checks -----------------------------------------------------------------------------------------------------------


def _whole(limit: Whole) -> Callable[[str, Any], int]:
    def look(name: str, value: Any) -> int:
        check(name, value, limit)
        return int(value)

    return look


def _seconds(name: str, value: Any) -> float:
    check(name, value, SECONDS)
    return float(value)


def _positive_seconds(name: str, value: Any) -> float:
    check_positive_seconds(name, value)
    return float(value)


def _address(name: str, value: Any) -> str:
    check_address(name, value)
    return _text(name, value)


def _text(name: str, value: Any) -> str:
    check(name, value, _WORDS)
    if "\0" in value:
        raise ValueError(f"{name} is {shown(value)}, which holds a NUL")
    return str(value)


def _path(name: str, value: Any) -> str:
    """Its full name, because services run in another directory."""
    return os.path.abspath(_text(name, os.fspath(value) if isinstance(value, os.PathLike) else value))


def _log_paths(name: str, value: Any) -> list[str]:
    if isinstance(value, str | bytes):
        raise TypeError(f"{name} is {shown(value)}, not a list of paths: write [{shown(value)}]")
    return [path if path == "-" else _path(f"{name} holds one that", path) for path in items(name, value)]


def _word(parse: Callable[[str], str]) -> Callable[[str, Any], str]:
    def look(name: str, value: Any) -> str:
        try:
            return parse(_text(name, value))
        except ValueError as error:
            raise error if name in str(error) else ValueError(f"{name}: {error}") from None

    return look


def _capabilities(name: str, value: Any) -> str:
    """As the command line has them."""
    try:
        found = dict(capabilities(value))
        text = ",".join(word if number == -1 else f"{word}={number}" for word, number in found.items())
        if parse_capabilities(text) != found:
            raise CapabilityError("a name has no commas, equals signs or spaces around it")
    except CapabilityError as error:
        raise CapabilityError(f"{name} is {shown(value)}: {error}") from None
    return text


_CHECKS: Final[Mapping[str, Callable[[str, Any], Any]]] = {
    "n_workers": _whole(_WORKERS),
    "address": _address,
    "object_storage_address": _address,
    "monitor_address": _address,
    "per_worker_capabilities": _capabilities,
    "max_number_of_tasks_waiting": _whole(Whole(-1, SIZE.most)),
    "heartbeat_interval_seconds": _positive_seconds,
    "client_timeout_seconds": _positive_seconds,
    "worker_timeout_seconds": _positive_seconds,
    "object_retention_seconds": _positive_seconds,
    "task_timeout_seconds": _seconds,
    "death_timeout_seconds": _positive_seconds,
    "garbage_collect_interval_seconds": _positive_seconds,
    "trim_memory_threshold_bytes": _whole(SIZE),
    "per_worker_task_queue_size": _whole(Whole(1, QUEUE_SIZE.most)),
    "per_worker_queue_size": _whole(Whole(1, QUEUE_SIZE.most)),
    "protected": flag,
    "event_loop": _word(EVENT_LOOP_KIND),
    "logging_paths": _log_paths,
    "logging_level": _word(LOGGING_LEVEL),
    "logging_config_file": _path,
    "allocate_policy": _word(ALLOCATE_POLICY),
    "preload": _text,
    "memory_limit": _whole(_BYTES),
    "segment_directory": _path,
    "spill_directory": _path,
    "spill_limit": _whole(_BYTES),
}
_OPTIONAL: Final = frozenset(
    {
        "address",
        "object_storage_address",
        "monitor_address",
        "per_worker_capabilities",
        "per_worker_queue_size",
        "logging_config_file",
        "preload",
        "memory_limit",
        "segment_directory",
        "spill_directory",
        "spill_limit",
    }
)
"""Those that may be None."""
