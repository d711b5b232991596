"""ServerLoop: the shell of a service that accepts links: a listening socket and timers around a Hub and a core.

A turn receives at most TURN_MESSAGES messages within TURN_SECONDS, lets the core settle once, performs its effects and
writes the messages.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

from scaler_io.links.effects import Log, Send, Stop, perform_each
from scaler_io.links.events import HubEvent, SendFailed
from scaler_io.links.hub import Hub
from scaler_io.links.streams import Frames
from scaler_io.service.logs import write
from scaler_io.service.sweep import Sweep
from scaler_io.service.turn_loop import TurnLoop
from scaler_io.transport.endpoint import TURN_MESSAGES
from scaler_io.transport.zeromq import Listener
from scaler_protocol.coalescing import told_load
from scaler_protocol.errors import ProtocolError

LOGGER = logging.getLogger("scaler")
TURN_SECONDS = 0.005
_BATCH = 32
_IDLE_SECONDS = 1.0
KEYS_SECONDS = 1.0
"""How often a service looks whether the list of keys that it accepts has changed."""
BUSY_SECONDS = 1.0
"""How often a service measures how busy it is."""


def is_logged(number: int) -> bool:
    """Whether this one of many equal faults is logged: the first nine are, then one per power of ten."""
    return number < 10 or str(number).rstrip("0") == "1"


class ServiceCore(Protocol):
    """The core or engine of a service."""

    def handle(self, peer: bytes, event: HubEvent, now: float) -> None:
        """Handle one event; raises ProtocolError, and changes nothing, for a message that is not allowed."""

    def settle(self, now: float) -> Sequence[object]:
        """Make all pending decisions; returns the effects to perform."""

    def due(self) -> float | None:
        """When `settle` must be called even if no event arrives; None if never."""


class RouteListener(Protocol):
    """An accepting socket."""

    def receive(self, limit: int) -> list[tuple[bytes, list[bytes]]]:
        """Up to `limit` messages, each as route and frames."""

    def send(self, route: bytes, frames: Frames) -> bool:
        """Whether the message was accepted; False if the route is gone."""

    def cut(self, route: bytes) -> None:
        """Close a connection, even if messages are on their way; does nothing if the route is gone."""

    def readable(self) -> bool:
        """Whether a message is there."""

    def close(self) -> None:
        """Free the address."""


Hold = Callable[[list[tuple[bytes, Frames]], list[bytes]], tuple[list[tuple[bytes, Frames]], list[bytes]]]


class ServiceTurn:
    """The turns of a service, independent of what drives them; `stop` is called when the core wants to end.

    If the core cannot handle a message, whatever it raises, this is counted and logged, and the next message follows.
    Each effect is guarded in the same way: the failure is logged, and the core receives SendFailed if it was a message.
    """

    def __init__(
        self,
        name: str,
        listener: RouteListener,
        hub: Hub,
        core: ServiceCore,
        stop: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
        perform: Mapping[type, Callable[[Any], object]] = MappingProxyType({}),
        hold: Hold | None = None,
        tell_busy: Callable[[float], object] = lambda share: None,
    ) -> None:
        """`perform` tells how to perform effects of this core alone, by type.

        `hold` takes the messages of a turn and the routes to close after them, and returns those that may leave now.
        `tell_busy` is called each BUSY_SECONDS with the share of its time for which the service was at work lately.
        """
        self.malformed = 0
        self._name = name
        self._listener = listener
        self._hub = hub
        self._core = core
        self._stop = stop
        self._clock = clock
        self._hold = hold
        self._tell_busy = tell_busy
        self._now = self._tick_at = 0.0
        """The second: when the hub's next tick follows although it asks for none."""
        self._worked, self._measured_at = 0.0, clock()
        """Seconds at work since then."""
        self._arrived: deque[tuple[bytes, list[bytes]]] = deque()
        """Messages that the next turn handles, because those before them took long."""
        self._batch = _BATCH
        """Most messages received together: ZeroMQ takes turns between peers, but not with those received already."""
        self._perform: dict[type, Callable[[Any], object]] = {
            Send: self._send_to,
            Log: self._log,
            Stop: self._end,
            **perform,
        }

    def turn(self, now: float) -> float:
        """Receive, settle, write; returns when the next turn is due if nothing arrives."""
        self._now = now
        self._receive(now)
        try:
            perform_each(self._core.settle(now), self._perform, self._effect_failed)
        finally:
            self._write(now)
        self._measure(now)
        due = self._core.due()
        return min(self._tick_at, self._hub.tick_by, math.inf if due is None else due)

    def _measure(self, began: float) -> None:
        now = self._clock()
        self._worked += now - began
        if (elapsed := now - self._measured_at) >= BUSY_SECONDS:
            measured = min(1.0, max(0.0, self._worked / elapsed))
            self._hub.busy = told_load(self._hub.busy, measured, elapsed)
            self._tell_busy(self._hub.busy)
            self._worked, self._measured_at = 0.0, now

    def revoke(self, keys: Collection[bytes]) -> None:
        """Give up the peers of these keys with the next turn."""
        self._hub.revoke(keys)
        self._tick_at = self._now

    def has_peer(self, route: bytes) -> bool:
        """Whether a peer has said Hello on this route and is not lost."""
        return self._hub.has_peer(route)

    def write(self) -> bool:
        """Write without a turn; False if the next one must come soon, since a route is gone or a message is there.

        ZeroMQ reports a message once, and writing may take that report.
        """
        self._write(self._now)
        return not self._hub.is_tick_due and not self.readable()

    def readable(self) -> bool:
        """Whether a message is there; also re-arms the edge of the listener's descriptor."""
        return self._listener.readable() or bool(self._arrived)

    def _effect_failed(self, effect: object, error: Exception) -> None:
        what = type(effect.message).__name__ if isinstance(effect, Send) else type(effect).__name__
        LOGGER.error("%s: %s could not be performed, everything else goes on", self._name, what, exc_info=error)
        if isinstance(effect, Send):
            self._handle_link_event(effect.to, SendFailed(effect.message, str(error)), self._now)
            self._tick_at = self._now  # the core may have effects for it

    def _send_to(self, effect: Send) -> None:
        self._hub.send(effect.to, effect.message)

    def _log(self, effect: Log) -> None:
        write(effect, self._name)

    def _end(self, effect: Stop) -> None:
        LOGGER.info("%s: ending, %s", self._name, effect.reason)
        self._stop()

    def _receive(self, now: float) -> None:
        received = 0
        until = self._clock() + TURN_SECONDS
        arrived = self._arrived
        while received < TURN_MESSAGES:
            if not arrived:
                arrived.extend(self._listener.receive(self._batch))
            count = len(arrived)
            while arrived:
                route, frames = arrived.popleft()
                received += 1
                self._handle_message(route, frames, now)
                if arrived and self._clock() > until:
                    break
            if arrived or count < self._batch or self._clock() > until:
                break
        self._batch = max(1, received) if arrived else min(_BATCH, 2 * self._batch)
        if now >= self._tick_at or now >= self._hub.tick_by:
            self._tick_at = now + _IDLE_SECONDS
            for peer, event in self._hub.tick(now):
                self._handle_link_event(peer, event, now)

    def _handle_link_event(self, peer: bytes, event: HubEvent, now: float) -> None:
        """Pass an event to the core that is no message of the peer."""
        try:
            self._core.handle(peer, event, now)
        except Exception:
            if self._should_log_fault():
                LOGGER.exception("%s: %s of %s could not be handled", self._name, type(event).__name__, peer.hex())

    def _handle_message(self, route: bytes, frames: list[bytes], now: float) -> None:
        try:
            received = self._hub.receive(route, frames, now)
            if received is not None:
                self._core.handle(*received, now)
        except ProtocolError as error:
            self._hub.refused(route, sum(map(len, frames)))
            if self._should_log_fault():
                LOGGER.warning(
                    "%s: malformed message number %s from %s: %s", self._name, self.malformed, route[:8].hex(), error
                )
        except Exception:
            if self._should_log_fault():
                number, sender = self.malformed, route[:8].hex()
                LOGGER.exception("%s: message number %s from %s could not be handled", self._name, number, sender)

    def _write(self, now: float) -> None:
        outgoing, cuts = self._hub.outgoing(), self._hub.cuts()
        if self._hold is not None:
            outgoing, cuts = self._hold(outgoing, cuts)
        for route, written in outgoing:
            if not self._send(route, written):
                self._hub.unreachable(route, now, written)
        for route in cuts:
            self._listener.cut(route)

    def _send(self, route: bytes, written: Frames) -> bool:
        """Whether the transport took the message; if not, it is sent again in the peer's next epoch."""
        try:
            return self._listener.send(route, written)
        except Exception:
            LOGGER.exception("%s: a message to %s could not be sent", self._name, route[:8].hex())
            return False

    def _should_log_fault(self) -> bool:
        """Count a message that cannot be handled."""
        self.malformed += 1
        return is_logged(self.malformed)

    def close(self) -> None:
        """Write the last messages and free the address."""
        self._write(self._now)
        self._listener.close()


class ServerLoop:
    """Runs a core behind a listening socket on the running asyncio loop, until it is closed.

    `stop` is called when the core wants to end; the other parameters are those of ServiceTurn.
    """

    def __init__(
        self,
        name: str,
        listener: Listener,
        hub: Hub,
        core: ServiceCore,
        stop: Callable[[], None],
        perform: Mapping[type, Callable[[Any], object]] = MappingProxyType({}),
        hold: Hold | None = None,
        tell_busy: Callable[[float], object] = lambda share: None,
    ) -> None:
        self._listener = listener
        self._service = ServiceTurn(name, listener, hub, core, stop, perform=perform, hold=hold, tell_busy=tell_busy)
        self._turns = TurnLoop(self._service)
        self._loop = asyncio.get_running_loop()
        for watched in listener.watched:
            self._loop.add_reader(watched.fileno(), watched.process_events)
            watched.process_events()
        self._loop.add_reader(listener.fileno(), self._turns.now)
        listener.call_on_arrival(self._turns.next)
        self._turns.now()
        self._key_timer = self._loop.call_later(KEYS_SECONDS, self._look_at_keys)
        self._sweep = Sweep(self._close_greedy, listener.arrivals)

    @property
    def malformed(self) -> int:
        """The number of messages that were malformed or that the core could not handle."""
        return self._service.malformed

    def _look_at_keys(self) -> None:
        """Give up the peers whose keys are accepted no longer."""
        self._key_timer = self._loop.call_later(KEYS_SECONDS, self._look_at_keys)
        if revoked := self._listener.revoked():
            self._service.revoke(revoked)
            self._turns.soon()

    def _close_greedy(self, seconds: float) -> float:
        """Close the connections that take too much memory; returns the seconds until the next look."""
        pause = self._listener.close_greedy(seconds, self._service.has_peer)
        if self._listener.readable():
            self._turns.soon()
        return pause

    def write(self) -> None:
        """Write what `hold` has kept back and lets go now."""
        if not self._service.write():
            self._turns.soon()

    def turn(self) -> None:
        """Take a turn now, since the core has something to do."""
        self._turns.now()

    def close(self) -> None:
        """Write the last messages and free the address."""
        self._turns.close()
        self._key_timer.cancel()
        self._sweep.close()
        for descriptor in (self._listener.fileno(), *(watched.fileno() for watched in self._listener.watched)):
            self._loop.remove_reader(descriptor)
        self._service.close()
