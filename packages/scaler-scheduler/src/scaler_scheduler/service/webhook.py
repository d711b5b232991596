"""Worker Adapters: programs that start and stop groups of workers when the scheduler asks them over HTTP.

Each adapter has a worker manager within this process, whose units are the adapter's groups. A request is repeated under
the same id after a time-out or a failure of the adapter, so that an adapter that knows ids does nothing twice.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from functools import partial
from http.client import HTTPException
from typing import Any, Final
from urllib.parse import urlsplit

from scaler_io.provisioning.core import ManagerConfig
from scaler_io.provisioning.provisioner import OfferSpec, Provisioner, ProvisionerError, UnitPhase, UnitReport
from scaler_io.security.keyring import Credentials
from scaler_io.service.daemon_threads import call_aside, call_each
from scaler_io.service.manager import WorkerManager
from scaler_protocol.addresses import Address
from scaler_protocol.capabilities import parse_capabilities
from scaler_protocol.errors import CapabilityError
from scaler_protocol.handshake import MANAGER_VARIABLE, UNIT_VARIABLE
from scaler_protocol.ids import new_incarnation
from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.limits import UNIT, WORKERS, shortened
from scaler_protocol.plurals import counted
from scaler_protocol.ranges import Text, Whole
from scaler_scheduler.service.timed_http import open_within

LOGGER: Final = logging.getLogger("scaler")
TIMEOUT_SECONDS: Final = 30.0
"""How long an adapter may take for one answer."""
RETRY_SECONDS: Final = (0.5, 2.0)
"""Pauses before a request that failed is repeated."""
FIRST_RETRY_SECONDS: Final = 1.0
LAST_RETRY_SECONDS: Final = 30.0
"""Pauses between attempts to reach an adapter for the first time grow from the one to the other."""
END_SECONDS: Final = 5.0
"""How long an adapter may take for all of its answers when the scheduler ends."""
REASON: Final = Text(1000)
"""The limit of what is repeated of an adapter's error."""
ANSWER_LIMIT: Final = 1024 * 1024
"""Bytes of an answer that are read."""
POLL_SECONDS: Final = 2.0
_UNIT_SIZE: Final = Whole(1, WORKERS.most)
_MOST_WORKERS: Final = 2**31 - 1
"""The limits of the maximum that a manager reports."""
THREADS: Final = 8


class AdapterFault(Exception):
    """An adapter refuses or fails; `status` is that of HTTP, 0 if there was no answer."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class AdapterClient:
    """Asks one adapter; the methods block and may be called in several threads."""

    def __init__(self, url: str, token: str | None) -> None:
        self.url, self._token = url, token

    def ask(self, action: str, *, attempts: bool = True, seconds: float = TIMEOUT_SECONDS, **more: object) -> Any:
        """The adapter's answer, an object. Raises AdapterFault, after repeated attempts where these may help."""
        request = {"action": action, **more}
        if self._token:
            request["auth_token"] = self._token
        body = json.dumps(request).encode()
        for pause in RETRY_SECONDS if attempts else ():
            try:
                return self._post(body, seconds)
            except AdapterFault as fault:
                if 0 < fault.status < 500:  # it has understood, and refuses
                    raise
                LOGGER.debug("%s: %s; again in %g s", self.url, fault, pause)
                time.sleep(pause)
        return self._post(body, seconds)

    def _post(self, body: bytes, seconds: float) -> Mapping[str, Any]:
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        request = urllib.request.Request(self.url, body, headers, method="POST")
        try:
            with open_within(request, seconds) as response:
                answer = self._read(response.read(ANSWER_LIMIT + 1))
        except urllib.error.HTTPError as error:
            with error:
                raise AdapterFault(error.code, self._refusal(error)) from error
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise AdapterFault(0, f"the worker adapter at {self.url} does not answer: {reason}") from error
        return answer

    def _read(self, text: bytes) -> Mapping[str, Any]:
        if len(text) > ANSWER_LIMIT:
            raise AdapterFault(502, f"the worker adapter at {self.url} answers more than {ANSWER_LIMIT} bytes")
        try:
            answer = json.loads(text)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise AdapterFault(502, f"the worker adapter at {self.url} answers {text[:80]!r}, which is no JSON object")
        return answer

    def _refusal(self, error: urllib.error.HTTPError) -> str:
        try:
            reason = str(self._read(error.read(ANSWER_LIMIT))["error"])
        except (AdapterFault, KeyError, OSError, HTTPException):
            reason = str(error.reason)
        return f"the worker adapter at {self.url} answers {error.code}: {shortened(reason, REASON)}"


@dataclass(frozen=True, slots=True)
class AdapterInfo:
    """The answer of an adapter to get_worker_adapter_info; the defaults are for fields that it leaves out."""

    groups: int = -1
    """Most groups; -1 if it does not say."""
    workers: int = 1
    """Workers of a group."""
    capabilities: str = ""

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> AdapterInfo:
        """Read an answer to get_worker_adapter_info; raises ValueError."""
        try:
            groups, workers = int(answer.get("max_worker_groups", -1)), int(answer.get("workers_per_group", 1))
            offered = dict(answer.get("base_capabilities") or {})
            text = ",".join(
                name if value in (-1, None) else f"{name}={value}" for name, value in sorted(offered.items())
            )
            parse_capabilities(text)
        except (TypeError, ValueError, OverflowError, CapabilityError) as error:
            raise ValueError(f"its get_worker_adapter_info cannot be read: {error}") from error
        if not _UNIT_SIZE.fits(workers):
            raise ValueError(f"its get_worker_adapter_info says workers_per_group {workers}, not {_UNIT_SIZE.text}")
        return cls(max(-1, min(groups, _MOST_WORKERS // workers)), workers, text)


class WebhookProvisioner(Provisioner):
    """The groups of one adapter as units."""

    def __init__(self, adapter: AdapterClient, manager: str) -> None:
        self._adapter, self._manager = adapter, manager
        self._lock = threading.Lock()
        self._groups: dict[str, str] = {}
        """The group of each unit that may live."""
        self._unanswered: set[str] = set()
        """Units whose start the adapter has not answered yet."""
        self._starts = 0
        """How often a start has begun or ended: an odd number while one is under way."""

    def start(self, units: Sequence[str], offer: int) -> Sequence[str]:
        """Ask for a group for each unit."""
        self._starts += 1
        try:
            calls = call_each(self._start, units, THREADS, "scaler-webhook")
        finally:
            self._starts += 1
        accepted = [unit for unit, call in calls.items() if call.exception() is None]
        for call in calls.values():
            if error := call.exception():
                raise ProvisionerError(str(error), accepted) from error
        return accepted

    def stop(self, units: Sequence[str], *, force: bool) -> None:
        """Have groups shut down; one that the adapter does not know is gone."""
        with self._lock:
            groups = {unit: self._groups[unit] for unit in units if unit in self._groups}
        errors = []
        for unit, group in groups.items():
            try:
                self._shut_down(group, force=force)
            except AdapterFault as fault:
                errors.append(fault)
                continue
            with self._lock:
                self._groups.pop(unit, None)
        if errors:
            raise ProvisionerError(str(errors[0])) from errors[0]

    def list_units(self) -> Mapping[str, UnitReport]:
        """The groups that the adapter lists as this manager's; those that were started here if it lists none.

        A listing during a start counts for nothing: it may lack new groups, or have them under ids not known yet.
        """
        starts = self._starts
        try:
            listed = self._adapter.ask("get_worker_adapter_info").get("worker_groups")
        except AdapterFault as fault:
            if fault.status not in (400, 404):
                raise ProvisionerError(str(fault)) from fault
            listed = None
        with self._lock:
            if isinstance(listed, list) and self._starts == starts and not starts % 2:
                found = [str(each["worker_group_id"]) for each in listed if _belongs(each, self._manager)]
                known = {group: unit for unit, group in self._groups.items()}
                self._groups = {known.get(group, group): group for group in found}
            return {unit: UnitReport(UnitPhase.RUNNING) for unit in self._groups}

    def close(self) -> None:
        """Nothing is held."""

    def end(self) -> None:
        """Have all groups shut down, without waiting for long and without a second attempt: the scheduler ends."""
        with self._lock:
            groups, unanswered = list(self._groups.values()), sorted(self._unanswered)
        if unanswered:
            LOGGER.warning("worker groups that the adapter is starting may be left: %s", ", ".join(unanswered))
        until = time.monotonic() + END_SECONDS
        for position, group in enumerate(groups):
            try:
                self._shut_down(group, force=False, attempts=False, seconds=max(0.001, until - time.monotonic()))
            except AdapterFault as fault:
                LOGGER.warning("worker group %s may be left: %s", group, fault)
                if not fault.status:
                    if rest := len(groups) - position - 1:
                        LOGGER.warning("%s more may be left", counted(rest, "worker group"))
                    return

    def _start(self, unit: str) -> None:
        environment = {MANAGER_VARIABLE: self._manager, UNIT_VARIABLE: unit}
        with self._lock:
            self._unanswered.add(unit)
        try:
            answer = self._adapter.ask(
                "start_worker_group", worker_group_id=unit, metadata={"request_id": unit, "environment": environment}
            )
            group = answer.get("worker_group_id")
            with self._lock:
                self._groups[unit] = str(group) if _names_group(group) else unit
        finally:
            with self._lock:
                self._unanswered.discard(unit)

    def _shut_down(self, group: str, *, force: bool, **how: Any) -> None:
        metadata = {"request_id": f"{group}-shutdown-{int(force)}", "force": force}
        try:
            self._adapter.ask("shutdown_worker_group", worker_group_id=group, metadata=metadata, **how)
        except AdapterFault as fault:
            if fault.status != 404:
                raise


def _belongs(group: object, manager: str) -> bool:
    if not isinstance(group, dict) or group.get("worker_manager_id") != manager:
        return False
    return _names_group(group.get("worker_group_id"))


def _names_group(id: object) -> bool:
    """Whether a value of an adapter can be the id of a group, and the name of a unit."""
    return isinstance(id, str | int) and str(id) != "" and not UNIT.fault(str(id))


class Webhooks:
    """The worker managers of all adapters, on the running loop until they are closed."""

    def __init__(
        self, urls: Sequence[str], token: str | None, scheduler: Address, credentials: Credentials | None = None
    ) -> None:
        self._scheduler, self._credentials = scheduler, credentials
        self._provisioners: list[WebhookProvisioner] = []
        self._tasks = [asyncio.ensure_future(self._follow(AdapterClient(url, token))) for url in dict.fromkeys(urls)]

    def close(self) -> None:
        """Have all groups shut down."""
        for task in self._tasks:
            task.cancel()
        if self._provisioners:
            call_each(WebhookProvisioner.end, self._provisioners, len(self._provisioners), "scaler-webhook")

    async def _follow(self, adapter: AdapterClient) -> None:
        try:
            info = await self._meet(adapter)
        except ValueError as error:
            LOGGER.error("Scheduler: the worker adapter at %s is not used: %s", adapter.url, error)
            return
        id = manager_of(adapter.url)
        LOGGER.info("Scheduler: worker adapter at %s is worker manager %s", adapter.url, id)
        provisioner = WebhookProvisioner(adapter, id)
        self._provisioners.append(provisioner)
        config = ManagerConfig(
            id=id,
            kind="webhook",
            maximum=info.groups * info.workers if info.groups >= 0 else -1,
            offers=(OfferSpec(info.capabilities, "", "", info.workers),),
            prefix=f"{id}-{new_incarnation():06x}",
            poll_seconds=POLL_SECONDS,
        )
        manager = WorkerManager(
            config,
            self._scheduler,
            provisioner,
            timeout_seconds=TIMEOUT_SECONDS,
            credentials=self._credentials,
        )
        code = await manager.run()
        LOGGER.error("Scheduler: worker manager %s has ended with code %d", id, code)

    async def _meet(self, adapter: AdapterClient) -> AdapterInfo:
        """Wait until the adapter answers (it may be started after the scheduler); returns its answer."""
        pause = FIRST_RETRY_SECONDS
        while True:
            try:
                ask = partial(adapter.ask, "get_worker_adapter_info", attempts=False)
                return AdapterInfo.of(await call_aside(ask, "scaler-webhook"))
            except AdapterFault as fault:
                if fault.status in (400, 404):  # it does not know the action
                    return AdapterInfo()
                LOGGER.warning("Scheduler: %s; it is asked again in %g s", fault, pause)
            await asyncio.sleep(pause)
            pause = min(LAST_RETRY_SECONDS, 2 * pause)


def manager_of(url: str) -> str:
    """The id of the worker manager of the adapter at this URL."""
    parts = urlsplit(url)
    return re.sub("[^A-Za-z0-9]+", "-", f"webhook-{parts.hostname}-{parts.port or parts.scheme}{parts.path}").strip("-")
