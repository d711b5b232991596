"""The worker manager's shell: its link to the scheduler, and the calls of its provisioner, which run in threads."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable
from typing import Any, Final

from scaler_io.links.effects import Log
from scaler_io.links.events import LinkDown, LinkRefused, LinkUp, UplinkEvent
from scaler_io.links.uplink import LinkState, Uplink
from scaler_io.provisioning.core import ManagerConfig, ManagerCore
from scaler_io.provisioning.events import (
    EndManager,
    ListUnits,
    ManagerEvent,
    SendStatus,
    StartUnits,
    StopRequested,
    StopUnits,
    UnitsListed,
    UnitsStarted,
    UnitsStopped,
)
from scaler_io.provisioning.provisioner import Provisioner, ProvisionerError
from scaler_io.security.keyring import Credentials
from scaler_io.service.logs import write
from scaler_io.service.turn_loop import TurnLoop
from scaler_io.transport.zeromq import Dialer
from scaler_protocol.addresses import Address
from scaler_protocol.handshake import Goodbye, Hello, Role
from scaler_protocol.ids import new_identity, new_incarnation

LOGGER: Final = logging.getLogger("scaler")
REFUSED_SECONDS: Final = 5.0
"""How long a manager that is refused tries again: the scheduler may not have noticed the end of its earlier life."""
RETRY_SECONDS: Final = 1.0


class WorkerManager:
    """Runs a ManagerCore for one scheduler and one provisioner. Construct it inside the running loop."""

    def __init__(
        self,
        config: ManagerConfig,
        scheduler: Address,
        provisioner: Provisioner,
        *,
        timeout_seconds: float,
        credentials: Credentials | None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._config, self._scheduler, self._provisioner = config, scheduler, provisioner
        self._name = f"worker manager {config.id}"
        self._timeout_seconds, self._credentials = timeout_seconds, credentials
        self._hello = Hello(
            Role.MANAGER,
            new_identity(),
            new_incarnation(),
            name=config.id,
            host=socket.gethostname(),
        )
        self._core = ManagerCore(config, self._loop.time())
        self._dialer = self._dial()
        self._refused_until = self._loop.time() + REFUSED_SECONDS
        self._watched: tuple[int, ...] = ()
        self._turns = TurnLoop(self)
        self._events: list[ManagerEvent] = []
        self._ended: asyncio.Future[int] = self._loop.create_future()
        self._perform: dict[type[Any], Callable[[Any], None]] = {
            SendStatus: lambda effect: self._dialer.uplink.send(effect.status),
            Log: write,
            EndManager: self._end,
            StartUnits: self._start_units,
            StopUnits: self._stop_units,
            ListUnits: self._list_units,
        }

    def stop(self, code: int = 0, reason: str = "") -> None:
        """Stop the units, unless they are to stay, and end; a second call stops them by force."""
        self._add(StopRequested(code, reason))

    async def run(self) -> int:
        """Run until the manager has ended; returns the exit code."""
        self._turns.soon()
        try:
            return await self._ended
        finally:
            self._close()

    def turn(self, now: float) -> float:
        """Receive, decide, perform, send; returns when to come again."""
        for event in self._dialer.turn(now):
            self._handle_link(event, now)
        events, self._events = self._events, []
        for own in events:
            self._core.handle(own, now)
        for effect in self._core.settle(now):
            self._perform[type(effect)](effect)
        self._dialer.flush(now)
        self._watch()
        return min(self._core.due(), self._dialer.uplink.due())

    def readable(self) -> bool:
        """Whether the scheduler has sent something that is unread."""
        return self._dialer.readable()

    def _handle_link(self, event: UplinkEvent, now: float) -> None:
        if isinstance(event, LinkRefused) and now < self._refused_until:
            why = "; ".join(event.reasons)
            LOGGER.warning("%s: refused by the scheduler at %s, trying again: %s", self._name, self._scheduler, why)
            self._loop.call_later(RETRY_SECONDS, self._redial)
            return
        if isinstance(event, LinkUp):
            LOGGER.info("%s: connected to the scheduler at %s", self._name, self._scheduler)
            self._refused_until = 0.0
        elif isinstance(event, LinkDown):
            LOGGER.info("%s: no connection to the scheduler at %s: %s", self._name, self._scheduler, event.reason)
        self._core.handle(event, now)

    def _end(self, effect: EndManager) -> None:
        if not self._ended.done():
            self._ended.set_result(effect.code)

    def _add(self, event: ManagerEvent) -> None:
        self._events.append(event)
        self._turns.soon()

    # --- the link ---------------------------------------------------------------------------------------------------

    def _dial(self) -> Dialer:
        uplink = Uplink(self._hello, self._loop.time(), timeout_seconds=self._timeout_seconds)
        return Dialer(self._scheduler, uplink, credentials=self._credentials)

    def _redial(self) -> None:
        self._unwatch()
        self._dialer.close()
        self._dialer = self._dial()
        self._turns.soon()

    def _watch(self) -> None:
        """Take a turn when the link's connection, which changes with every epoch, has something to read."""
        filenos = self._dialer.filenos()
        if filenos != self._watched:
            self._unwatch()
            for fileno in filenos:
                self._loop.add_reader(fileno, self._turns.now)
            self._watched = filenos

    def _unwatch(self) -> None:
        for fileno in self._watched:
            self._loop.remove_reader(fileno)
        self._watched = ()

    def _close(self) -> None:
        self._turns.close()
        if self._dialer.uplink.state is LinkState.UP:
            self._dialer.uplink.send(Goodbye("the worker manager ends"))
            self._dialer.flush(self._loop.time())
        self._unwatch()
        self._dialer.close()
        self._provisioner.close()

    # --- the provisioner --------------------------------------------------------------------------------------------

    def _start_units(self, effect: StartUnits) -> None:
        def call() -> ManagerEvent:
            try:
                return UnitsStarted(effect.units, tuple(self._provisioner.start(effect.units, effect.offer)))
            except ProvisionerError as error:
                return UnitsStarted(effect.units, tuple(error.accepted), str(error))

        self._call(call, lambda failure: UnitsStarted(effect.units, (), failure))

    def _stop_units(self, effect: StopUnits) -> None:
        def call() -> ManagerEvent:
            self._provisioner.stop(effect.units, force=effect.force)
            return UnitsStopped()

        self._call(call, UnitsStopped)

    def _list_units(self, effect: ListUnits) -> None:
        asked_at = self._loop.time()
        self._call(
            lambda: UnitsListed(dict(self._provisioner.list_units()), asked_at),
            lambda failure: UnitsListed(None, asked_at, failure),
        )

    def _call(self, call: Callable[[], ManagerEvent], failed: Callable[[str], ManagerEvent]) -> None:
        """Call the provisioner in a thread; whatever it raises becomes a failure, which the core reports."""

        def run() -> None:
            try:
                event = call()
            except Exception as error:
                LOGGER.debug("the provisioner failed", exc_info=error)
                event = failed(str(error) or type(error).__name__)
            try:
                self._loop.call_soon_threadsafe(self._add, event)
            except RuntimeError:  # the loop is closed: the manager has ended meanwhile
                LOGGER.debug("too late: %s", event)

        # A daemon: a call that hangs must not keep the program from ending.
        thread = threading.Thread(target=run, name="scaler-provisioner", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            self._add(failed(str(error)))
