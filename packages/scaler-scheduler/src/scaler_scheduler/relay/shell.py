"""The relay's shell: a process with a listening socket for agents, and a link to the scheduler."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import platform
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import cloudpickle

from scaler_io.descriptors import worker_connections
from scaler_io.links.effects import Log, perform_each
from scaler_io.links.events import LinkDown, LinkUp, UplinkEvent
from scaler_io.links.hub import Hub
from scaler_io.links.link_record import PeerTimeouts
from scaler_io.links.uplink import LinkState, Uplink, longest_absence
from scaler_io.security.keyring import KeyRole
from scaler_io.service.logs import write
from scaler_io.service.server_loop import ServerLoop
from scaler_io.service.session_tokens import TokenDesk
from scaler_io.service.sweep import Sweep
from scaler_io.service.turn_loop import TurnLoop
from scaler_io.transport.own_keys import credentials_for
from scaler_io.transport.zeromq import Dialer, Listener
from scaler_protocol.errors import ScalerError
from scaler_protocol.handshake import Goodbye, Hello, Role
from scaler_protocol.ids import new_identity, new_incarnation
from scaler_protocol.limits import SECONDS
from scaler_scheduler.core.config import SchedulerConfig
from scaler_scheduler.relay.core import PERMITTED, EndRelay, ReconnectAgents, RelayCore, SendUp
from scaler_scheduler.relay.options import RelayOptions

LOGGER = logging.getLogger("scaler")
STATUS_SECONDS = 2.0
"""How often the state of all hosts is reported, unless heartbeats are rarer."""
MISSING_SECONDS = 30.0
"""How often the log says that the scheduler is missing."""
QUEUE_SIZE = 1000
"""Tasks per worker that the relay takes in advance, as agents do by default."""


class RelayService:
    """One running relay. It closes `listener`, whose peers wait until the scheduler has been reached."""

    def __init__(self, options: RelayOptions, listener: Listener) -> None:
        self._options, self._listener = options, listener
        self._failure = ""
        """Why it has ended by itself."""

    def raise_failure(self) -> None:
        """Raises ScalerError if the relay has ended by itself."""
        if self._failure:
            raise ScalerError(self._failure)

    @contextlib.contextmanager
    def serving(self, stop: Callable[[], None]) -> Iterator[None]:
        """Serve on the running loop within this context; `stop` is called when the relay ends by itself."""
        options, listener = self._options, self._listener
        LOGGER.info("Relay: listen to %s, for the scheduler at %s", listener.address, options.scheduler)
        hello = _hello(options, listener)
        config = SchedulerConfig(worker_timeout_seconds=options.worker_timeout_seconds)
        core = RelayCore(hello, str(options.scheduler), config, str(options.fallback))
        uplink = Uplink(hello, time.monotonic(), timeout_seconds=options.death_timeout_seconds)
        credentials = credentials_for(options.scheduler, options.keys, options.insecure, [KeyRole.SERVER])
        dialer = Dialer(options.scheduler, uplink, credentials=credentials)

        def end(effect: EndRelay) -> None:
            if effect.failed:
                self._failure = effect.reason
            else:
                LOGGER.info("Relay: %s", effect.reason)
            stop()

        # Until the scheduler has been reached nobody reads what strangers send.
        waiting = Sweep(lambda seconds: listener.close_greedy(seconds, None), listener.arrivals)

        def receive(perform: dict[type, Callable[[Any], object]]) -> ServerLoop:
            waiting.close()
            return self._reception(core, hello, stop, perform)

        upward = _Upward(core, dialer, end, receive)
        try:
            yield
        finally:
            waiting.close()
            upward.close()
            if upward.reception is None:
                listener.close()
        LOGGER.info("Relay: ended")

    def _reception(
        self, core: RelayCore, hello: Hello, stop: Callable[[], None], perform: dict[type, Callable[[Any], object]]
    ) -> ServerLoop:
        """Let agents in."""
        timeouts = PeerTimeouts(SchedulerConfig().agent_grace_seconds, self._options.worker_timeout_seconds)
        own = self._options.credentials([KeyRole.SERVER])
        hub = Hub(
            hello.incarnation,
            admit=core.admit,
            timeouts=lambda hello: timeouts,
            principal=self._listener.principal,
            permitted=PERMITTED,
            token=TokenDesk(own.secret).token if own is not None else None,
            worker_links=worker_connections,
        )
        perform[ReconnectAgents] = lambda effect: hub.reconnect(time.monotonic())
        reception = ServerLoop("Relay", self._listener, hub, core, stop, perform, tell_busy=core.note_busy)
        if self._options.ready_fd is not None:
            # The process that started this one may have ended; then this one is about to be stopped, too.
            with contextlib.suppress(BrokenPipeError), os.fdopen(self._options.ready_fd, "wb", 0) as ready:
                ready.write(f"{self._listener.address}\n".encode())
        return reception


class _Upward:
    """The link to the scheduler; `receive` opens the relay for agents once the scheduler has been reached."""

    def __init__(
        self,
        core: RelayCore,
        dialer: Dialer,
        end: Callable[[EndRelay], object],
        receive: Callable[[dict[type, Callable[[Any], object]]], ServerLoop],
    ) -> None:
        self.reception: ServerLoop | None = None
        self._core, self._dialer, self._receive = core, dialer, receive
        self._perform: dict[type, Callable[[Any], object]] = {SendUp: self._send, Log: write, EndRelay: end}
        self._loop = asyncio.get_running_loop()
        self._watched: tuple[int, ...] = ()
        self._missing_from = 0.0
        self._status_at = time.monotonic()
        self._turns = TurnLoop(self)
        self._turns.soon()

    def turn(self, now: float) -> float:
        """Hear the scheduler, let the core decide, write."""
        events = self._dialer.turn(now)
        self._hear(events, now)
        if self.reception is not None:
            if events:
                self.reception.turn()
        elif self._core.is_connected:
            self.reception = self._receive({of: self._perform[of] for of in (SendUp, EndRelay)})
        else:
            perform_each(self._core.settle(now), self._perform, self._failed)
        uplink = self._dialer.uplink
        if now >= self._status_at:
            self._status_at = now + max(STATUS_SECONDS, uplink.heartbeat_seconds)
            if uplink.state is LinkState.UP:
                uplink.send(self._core.status())
        self._hear(self._dialer.flush(now), now)
        self._watch()
        return min(uplink.due(), self._status_at)

    def _hear(self, events: Iterable[UplinkEvent], now: float) -> None:
        for event in events:
            self._note(event)
            try:
                self._core.hear(event, now)
            except Exception:  # the scheduler sends the next one all the same
                LOGGER.exception("Relay: cannot handle %s", type(event).__name__)

    def readable(self) -> bool:
        """Whether the scheduler has sent something that is unread."""
        return self._dialer.readable()

    def _send(self, effect: SendUp) -> None:
        self._dialer.uplink.send(effect.message)
        self._turns.soon()

    @staticmethod
    def _failed(effect: object, error: Exception) -> None:
        LOGGER.error("Relay: %s failed", type(effect).__name__, exc_info=error)

    def _note(self, event: UplinkEvent) -> None:
        if isinstance(event, LinkUp):
            self._missing_from = 0.0
            LOGGER.info("Relay: connected to the scheduler at %s", self._dialer.address)
        elif isinstance(event, LinkDown) and (now := time.monotonic()) >= self._missing_from:
            self._missing_from = now + MISSING_SECONDS
            why, address = event.reason, self._dialer.address
            LOGGER.warning("Relay: no connection to the scheduler at %s (%s): trying again", address, why)

    def _watch(self) -> None:
        """Watch the descriptors of the link, which change with every connection."""
        filenos = self._dialer.filenos()
        if filenos != self._watched:
            for descriptor in self._watched:
                self._loop.remove_reader(descriptor)
            for descriptor in filenos:
                self._loop.add_reader(descriptor, self._turns.now)
            self._watched = filenos

    def close(self) -> None:
        """Leave: agents go on elsewhere."""
        self._turns.close()
        if self.reception is not None:
            self.reception.close()
        if self._dialer.uplink.state is LinkState.UP:
            self._dialer.uplink.send(Goodbye("the relay stops"))
            self._dialer.flush(time.monotonic())
        for descriptor in self._watched:
            self._loop.remove_reader(descriptor)
        self._dialer.close()


def _hello(options: RelayOptions, listener: Listener) -> Hello:
    host, capabilities = socket.gethostname(), options.per_worker_capabilities
    return Hello(
        Role.AGENT,
        new_identity(),
        new_incarnation(),
        name=f"relay {listener.address}",
        host=host,
        python=platform.python_version(),
        cloudpickle=cloudpickle.__version__,
        queue_size=QUEUE_SIZE,
        capability_names=sorted(capabilities),
        capability_values=[capabilities[capability] for capability in sorted(capabilities)],
        lives_on_seconds=min(longest_absence(options.death_timeout_seconds), SECONDS.most),
        relay=True,
    )
