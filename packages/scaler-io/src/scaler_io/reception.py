"""Reception: the asyncio shell of a service that accepts links: sockets and timers around a Hub and a core.

A turn takes in at most TURN_MESSAGES, lets the core decide once, writes what it says, and only then asks the socket
again whether something is there: its descriptor is edge-triggered, and a turn that skipped this could wait for ever.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Protocol

from scaler_io.effects import Effect, Log, Send
from scaler_io.links import Hub, HubEvent
from scaler_io.streams import ACK_SECONDS
from scaler_io.zeromq import Listener
from scaler_protocol.errors import ProtocolError

LOGGER = logging.getLogger("scaler")


class ServiceCore(Protocol):
    """What decides, behind a Reception."""

    def handle(self, peer: bytes, event: HubEvent, now: float) -> None:
        """Take one event in."""

    def settle(self, now: float) -> list[Effect]:
        """Decide once, and say what to do."""

    def due(self) -> float | None:
        """When to call `settle` although nothing has happened."""


class Reception:
    """Runs a core behind a listening socket, until it is closed; `stop` is called when the core wants to end."""

    def __init__(self, name: str, listener: Listener, hub: Hub, core: ServiceCore, stop: Callable[[], None]) -> None:
        self.malformed = 0
        self._listener = listener
        self._hub = hub
        self._core = core
        self._name = name
        self._stop = stop
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._tick_at = 0.0
        self._again: asyncio.Handle | None = None
        self._loop.add_reader(listener.fileno(), self.turn)
        self.turn()

    def turn(self) -> None:
        """Take in, decide, write, look again."""
        self._again = None
        now = time.monotonic()
        self._take_in(now)
        for effect in self._core.settle(now):
            self._perform(effect)
        for route, written in self._hub.outgoing():
            if not self._listener.send(route, written):
                self._hub.unreachable(route, now)
        if now >= self._tick_at:
            self._tick_at = self._hub.due() or now + 1.0
        self._schedule(now)

    def _perform(self, effect: Effect) -> None:
        if isinstance(effect, Send):
            self._hub.send(effect.to, effect.message)
        elif isinstance(effect, Log):
            LOGGER.log(effect.level, "%s: %s", self._name, effect.text)
        else:
            LOGGER.info("%s: ending, %s", self._name, effect.reason)
            self._stop()

    def _take_in(self, now: float) -> None:
        hub, core = self._hub, self._core
        taken = self._listener.receive()
        for route, frames in taken:
            try:
                got = hub.receive(route, frames, now)
                if got is not None:
                    core.handle(*got, now)
            except ProtocolError as error:
                self._refuse(route, error)
        if taken:
            self._tick_at = min(self._tick_at, now + ACK_SECONDS)
        if now >= self._tick_at:
            for peer, event in hub.tick(now):
                core.handle(peer, event, now)

    def _schedule(self, now: float) -> None:
        if self._listener.readable():
            self._again = self._loop.call_soon(self.turn)
            return
        due = self._core.due()
        at = self._tick_at if due is None else min(due, self._tick_at)
        if self._timer is not None:
            if now < self._timer_at <= at:
                return
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._loop.call_later(max(0.0, at - now), self.turn)

    def _refuse(self, route: bytes, error: ProtocolError) -> None:
        """Garbage is counted and told of, at most once per power of ten."""
        self.malformed += 1
        if self.malformed < 10 or str(self.malformed).rstrip("0") == "1":
            text = "%s: malformed message number %s from %s: %s"
            LOGGER.warning(text, self._name, self.malformed, route[:8].hex(), error)

    def close(self) -> None:
        """Write what is left, and free the address."""
        for route, written in self._hub.outgoing():
            self._listener.send(route, written)
        for handle in (self._timer, self._again):
            if handle is not None:
                handle.cancel()
        self._loop.remove_reader(self._listener.fileno())
        self._listener.close()
