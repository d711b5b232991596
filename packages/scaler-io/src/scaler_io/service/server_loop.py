"""ServerLoop: the shell of a service that accepts links: a listening socket and timers around a Hub and a core.

A turn takes in at most TURN_MESSAGES, or as many as TURN_SECONDS allow, lets the core decide once, writes what it says,
and only then asks the socket again whether something is there: its descriptor is edge-triggered, and a turn that
skipped this could wait for ever.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Protocol

from scaler_io.links.effects import Effect, Log, Send
from scaler_io.links.events import HubEvent, SendFailed
from scaler_io.links.hub import Hub
from scaler_io.links.streams import ACK_SECONDS, Frames
from scaler_io.transport.endpoint import TURN_MESSAGES
from scaler_protocol.errors import ProtocolError

LOGGER = logging.getLogger("scaler")
TURN_SECONDS = 0.005
_AT_ONCE = 32
_IDLE_SECONDS = 1.0


class ServiceCore(Protocol):
    """What decides, behind a ServerLoop."""

    def handle(self, peer: bytes, event: HubEvent, now: float) -> None:
        """Take one event in."""

    def settle(self, now: float) -> list[Effect]:
        """Decide once, and say what to do."""

    def due(self) -> float | None:
        """When to call `settle` although nothing has happened."""


class RouteListener(Protocol):
    """An accepting socket."""

    def receive(self, limit: int) -> list[tuple[bytes, list[bytes]]]:
        """Up to `limit` messages: the route each came by, and its frames."""

    def send(self, route: bytes, frames: Frames) -> bool:
        """Whether the message was taken; False means there is no such route any more."""

    def cut(self, route: bytes) -> None:
        """Close a connection, whatever is on its way; nothing where there is none any more."""

    def readable(self) -> bool:
        """Whether a message is there."""

    def close(self) -> None:
        """Free the address."""


class AcceptMonitor(Protocol):
    """Where connections to an accepting socket come in."""

    def fileno(self) -> int:
        """The descriptor to wait on; its edge is re-armed by `look`."""

    def look(self) -> None:
        """Refuse what was accepted beyond the limit."""


class WaitableListener(RouteListener, Protocol):
    """An accepting socket that a loop can wait for."""

    @property
    def accept_monitor(self) -> AcceptMonitor:
        """What tells of connections, of which some never say anything."""

    def fileno(self) -> int:
        """The descriptor to wait on for messages."""


class ServiceTurn:
    """What a service does in one turn, whatever drives it; `stop` is called when the core wants to end.

    A message that the core can not take, whatever it raises, is counted and told of, and the others go on. Effects are
    guarded one by one, too: the core is told of a message that cannot be written (SendFailed), and of nothing else.
    """

    def __init__(
        self,
        name: str,
        listener: RouteListener,
        hub: Hub,
        core: ServiceCore,
        stop: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.malformed = 0
        self._name = name
        self._listener = listener
        self._hub = hub
        self._core = core
        self._stop = stop
        self._clock = clock
        self._tick_at = 0.0

    def turn(self, now: float) -> float:
        """Take in, decide, write; returns when to come again if nothing arrives."""
        self._take_in(now)
        try:
            for effect in self._core.settle(now):
                self._perform(effect, now)
        finally:
            self._write(now)
        due = self._core.due()
        return self._tick_at if due is None else min(due, self._tick_at)

    def _perform(self, effect: Effect, now: float) -> None:
        try:
            self._do(effect)
        except Exception as error:
            what = type(effect.message).__name__ if isinstance(effect, Send) else type(effect).__name__
            LOGGER.exception("%s: %s could not be performed, everything else goes on", self._name, what)
            if isinstance(effect, Send):
                self._hand(effect.to, SendFailed(effect.message, str(error)), now)
                self._tick_at = now  # the core may have something to say about it

    def _do(self, effect: Effect) -> None:
        if isinstance(effect, Send):
            self._hub.send(effect.to, effect.message)
        elif isinstance(effect, Log):
            LOGGER.log(effect.level, "%s: %s", self._name, effect.text)
        else:
            LOGGER.info("%s: ending, %s", self._name, effect.reason)
            self._stop()

    def _take_in(self, now: float) -> None:
        taken = 0
        until = self._clock() + TURN_SECONDS
        while taken < TURN_MESSAGES and (arrived := self._listener.receive(_AT_ONCE)):
            taken += len(arrived)
            for route, frames in arrived:
                self._take(route, frames, now)
            if len(arrived) < _AT_ONCE or self._clock() > until:
                break
        if taken:
            self._tick_at = min(self._tick_at, now + ACK_SECONDS)
        if now >= self._tick_at:
            for peer, event in self._hub.tick(now):
                self._hand(peer, event, now)
            due = self._hub.due()
            self._tick_at = now + _IDLE_SECONDS if due is None else due

    def _hand(self, peer: bytes, event: HubEvent, now: float) -> None:
        """Tell the core something that nobody has sent."""
        try:
            self._core.handle(peer, event, now)
        except Exception:
            if self._is_told():
                LOGGER.exception("%s: %s of %s could not be handled", self._name, type(event).__name__, peer.hex())

    def _take(self, route: bytes, frames: list[bytes], now: float) -> None:
        try:
            got = self._hub.receive(route, frames, now)
            if got is not None:
                self._core.handle(*got, now)
        except ProtocolError as error:
            if self._is_told():
                LOGGER.warning(
                    "%s: malformed message number %s from %s: %s", self._name, self.malformed, route[:8].hex(), error
                )
        except Exception:
            if self._is_told():
                number, sender = self.malformed, route[:8].hex()
                LOGGER.exception("%s: message number %s from %s could not be handled", self._name, number, sender)

    def _write(self, now: float) -> None:
        for route, written in self._hub.outgoing():
            if not self._is_sent(route, written):
                self._hub.unreachable(route, now)
                self._tick_at = min(self._tick_at, now + ACK_SECONDS)
        for route in self._hub.cuts():
            self._listener.cut(route)

    def _is_sent(self, route: bytes, written: Frames) -> bool:
        """Whether the transport took the message; what it did not take is sent again in the peer's next epoch."""
        try:
            return self._listener.send(route, written)
        except Exception:
            LOGGER.exception("%s: a message to %s could not be sent", self._name, route[:8].hex())
            return False

    def _is_told(self) -> bool:
        """Count one more message that can not be taken; they are told of at most once per power of ten."""
        self.malformed += 1
        return self.malformed < 10 or str(self.malformed).rstrip("0") == "1"

    def close(self) -> None:
        """Write what is left, and free the address."""
        for route, written in self._hub.outgoing():
            self._is_sent(route, written)
        self._listener.close()


class ServerLoop:
    """Runs a core behind a listening socket on the running asyncio loop, until it is closed.

    `stop` is called when the core wants to end.
    """

    def __init__(
        self, name: str, listener: WaitableListener, hub: Hub, core: ServiceCore, stop: Callable[[], None]
    ) -> None:
        self._listener = listener
        self._service = ServiceTurn(name, listener, hub, core, stop)
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._again: asyncio.Handle | None = None
        self._loop.add_reader(listener.accept_monitor.fileno(), listener.accept_monitor.look)
        listener.accept_monitor.look()
        self._loop.add_reader(listener.fileno(), self.turn)
        self.turn()

    @property
    def malformed(self) -> int:
        """Messages that were none, or that the core could not take."""
        return self._service.malformed

    def turn(self) -> None:
        """Take in, decide, write, look again: whatever happens, or the socket would never be looked at again."""
        if self._again is not None:
            self._again.cancel()
            self._again = None
        now = time.monotonic()
        due = now + _IDLE_SECONDS
        try:
            due = self._service.turn(now)
        finally:
            self._schedule(due, now)

    def _schedule(self, due: float, now: float) -> None:
        if self._listener.readable():
            self._again = self._loop.call_soon(self.turn)
            return
        if self._timer is not None:
            if self._timer_at <= due:
                return
            self._timer.cancel()
        self._timer_at = due
        self._timer = self._loop.call_later(max(0.0, due - now), self._on_time)

    def _on_time(self) -> None:
        self._timer = None  # loops round their delays: it may still be a little early, and another one is needed
        self.turn()

    def close(self) -> None:
        """Write what is left, and free the address."""
        for handle in (self._timer, self._again):
            if handle is not None:
                handle.cancel()
        for readable in (self._listener, self._listener.accept_monitor):
            self._loop.remove_reader(readable.fileno())
        self._service.close()
