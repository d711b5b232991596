"""The actions of a Worker Adapter: starts and ends groups of workers as processes of this host. No sockets.

A group is one agent with `--workers-per-unit` workers. A request may name the worker manager and the unit of a group
(`metadata.environment`): then its agent reports them to the scheduler. Otherwise the agent is like one started by hand.
"""

from __future__ import annotations

import logging
import os
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Final, NamedTuple

from scaler_io.provisioning.provisioner import Provisioner, UnitPhase
from scaler_protocol.handshake import MANAGER_VARIABLE, UNIT_VARIABLE
from scaler_protocol.ids import new_incarnation
from scaler_protocol.lazy_dataclass import dataclass
from scaler_worker.managers.native import NativeProvisioner, cluster_command, refuse_shared_gpus
from scaler_worker.managers.options import ManagerOptions, manager_id

LOGGER: Final = logging.getLogger("scaler")
REMEMBERED: Final = 1000
"""Starts whose answers are kept for repeated requests."""
_UNIT: Final = re.compile(r"[A-Za-z0-9._][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterOptions(ManagerOptions):
    """The command line of `scaler_native_worker_adapter`."""

    host: str
    port: int
    auth_token: str | None
    leave_units: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        ManagerOptions.__post_init__(self)
        refuse_shared_gpus(self, several=self.max_task_concurrency != self.workers_per_unit)


class AdapterAnswer(NamedTuple):
    """An HTTP status, and the JSON object of the body."""

    status: int
    body: Mapping[str, object]


class AdapterError(Exception):
    """A request is refused with this status; the text says why."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class WorkerAdapter:
    """The groups of an adapter. The methods block; only one may be called at a time."""

    def __init__(self, options: AdapterOptions) -> None:
        self._options = options
        self._managers: dict[str, str] = {}
        """The worker manager of each group that runs; empty for a group without one."""
        self._provisioner: Provisioner = NativeProvisioner(self._command)
        self._prefix = f"adapter-{new_incarnation():06x}"
        self._count = 0
        self._answers: OrderedDict[str, AdapterAnswer] = OrderedDict()
        self._actions: Mapping[str, Callable[[Mapping[str, Any]], AdapterAnswer]] = {
            "start_worker_group": self._start,
            "shutdown_worker_group": self._shutdown,
            "get_worker_adapter_info": self._info,
        }

    def answer(self, request: object) -> AdapterAnswer:
        """The answer to the JSON value of a request; an error of the adapter itself has status 500."""
        try:
            if not isinstance(request, Mapping):
                raise AdapterError(400, "the body is no JSON object")
            action = self._actions.get(str(request.get("action")))
            if action is None:
                raise AdapterError(
                    400, f"unknown action {request.get('action')!r}; actions are {', '.join(self._actions)}"
                )
            return action(request)
        except AdapterError as error:
            return AdapterAnswer(error.status, {"error": str(error)})
        except Exception as error:
            LOGGER.exception("the worker adapter failed")
            return AdapterAnswer(500, {"error": str(error) or type(error).__name__})

    def stop(self, *, force: bool) -> None:
        """Have all groups end."""
        self._provisioner.stop(self.groups(), force=force)

    def groups(self) -> list[str]:
        """The ids of the groups that live."""
        ended = [id for id, report in self._provisioner.list_units().items() if report.phase is UnitPhase.ENDED]
        for id in ended:
            self._managers.pop(id, None)
        return list(self._managers)

    def _start(self, request: Mapping[str, Any]) -> AdapterAnswer:
        metadata = _mapping(request, "metadata")
        request_id = str(metadata.get("request_id", ""))
        if request_id in self._answers:
            return self._answers[request_id]
        manager, unit = _identity(_mapping(metadata, "environment"))
        if unit and unit in self.groups():
            raise AdapterError(400, f"worker group {unit} is running: a unit starts once")
        options = self._options
        living = len(self.groups())
        if 0 <= options.max_task_concurrency < (living + 1) * options.workers_per_unit:
            raise AdapterError(429, f"all of the {options.max_task_concurrency} workers allowed here are running")
        if not unit:
            self._count += 1
            unit = f"{self._prefix}-{self._count}"
        self._managers[unit] = manager
        try:
            self._provisioner.start((unit,), 0)
        except Exception:
            del self._managers[unit]
            raise
        LOGGER.info("worker group %s is started", unit)
        answer = AdapterAnswer(
            200, {"status": "started", "worker_group_id": unit, "worker_ids": self._worker_names(unit), "metadata": {}}
        )
        if request_id:
            self._answers[request_id] = answer
            if len(self._answers) > REMEMBERED:
                self._answers.popitem(last=False)
        return answer

    def _shutdown(self, request: Mapping[str, Any]) -> AdapterAnswer:
        group = request.get("worker_group_id")
        if not isinstance(group, str) or not group:
            raise AdapterError(400, "shutdown_worker_group needs a worker_group_id")
        if group not in self.groups():
            raise AdapterError(404, f"there is no worker group {group}")
        force = bool(_mapping(request, "metadata").get("force"))
        self._provisioner.stop((group,), force=force)
        LOGGER.info("worker group %s is %s", group, "killed" if force else "drained")
        return AdapterAnswer(
            200, {"status": "stopping", "worker_group_id": group, "worker_ids": self._worker_names(group)}
        )

    def _info(self, request: Mapping[str, Any]) -> AdapterAnswer:
        options = self._options
        most, size = options.max_task_concurrency, options.workers_per_unit
        groups = self.groups()
        return AdapterAnswer(
            200,
            {
                "status": "ok",
                "max_worker_groups": most // size if most >= 0 else -1,
                "workers_per_group": size,
                "base_capabilities": {**options.per_worker_capabilities, **options.host_capabilities},
                "worker_groups": [{"worker_group_id": id, "worker_manager_id": self._managers[id]} for id in groups],
            },
        )

    def _command(self, unit: str) -> list[str]:
        manager = self._managers[unit]
        options = replace(self._options, worker_manager_id=manager)
        return [
            *cluster_command(options, unit if manager else "", os.getpid()),
            "--worker-names",
            ",".join(self._worker_names(unit)),
        ]

    def _worker_names(self, unit: str) -> list[str]:
        return [f"{unit}-{number}" for number in range(self._options.workers_per_unit)]


def _mapping(of: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = of.get(name)
    if value is not None and not isinstance(value, Mapping):
        raise AdapterError(400, f"{name} is no JSON object")
    return value or {}


def _identity(environment: Mapping[str, Any]) -> Sequence[str]:
    """Worker manager and unit of a request; both empty if it names none. Other variables are ignored."""
    manager, unit = environment.get(MANAGER_VARIABLE), environment.get(UNIT_VARIABLE)
    if not manager and not unit:
        return "", ""
    if not isinstance(unit, str) or not _UNIT.fullmatch(unit):
        raise AdapterError(
            400, f"{UNIT_VARIABLE} {unit!r} is not up to 128 letters, digits, dots, dashes, underscores; no dash first"
        )
    try:
        return manager_id(str(manager)), unit
    except ValueError as error:
        raise AdapterError(400, f"{MANAGER_VARIABLE}: {error}") from error
