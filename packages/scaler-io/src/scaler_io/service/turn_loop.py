"""TurnLoop: drives the turns of a shell on an asyncio loop.

A turn receives input, lets the core decide, performs the effects and writes. The next one follows when a descriptor is
readable, when somebody asks for it, or when it is due. The descriptors of ZeroMQ are edge-triggered: after each turn,
even one that fails, the shell is asked whether input is left, since no descriptor would report it again.

Shells of one process that send to each other take their turns one after the other, without a round of the loop between.
"""

from __future__ import annotations

import asyncio
import math
import time
from typing import Final, Protocol

RETRY_SECONDS: Final = 1.0
"""Time from a turn that fails to the next one, if no input is left."""


class TurnShell(Protocol):
    """The port to the shell that a TurnLoop drives."""

    def turn(self, now: float) -> float:
        """Take one turn; returns when the next one is due (time.monotonic), infinity for never."""

    def readable(self) -> bool:
        """Whether input is left; also re-arms edge-triggered descriptors."""


_TAKING: Final[dict[asyncio.AbstractEventLoop, TurnLoop]] = {}
"""Whose turn is being taken on each loop; of turns within turns, as in a relay, the innermost."""


class TurnLoop:
    """Calls `shell.turn` on the running asyncio loop, until it is closed."""

    def __init__(self, shell: TurnShell) -> None:
        self.closed = False
        self._shell = shell
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._due = math.inf
        self._requested: asyncio.Handle | None = None
        self._following: list[TurnLoop] = []
        """Those that take a turn after the one that is being taken here."""
        self._is_followed = False
        """Whether they are taking it."""

    def now(self) -> None:
        """Take a turn; for readers of descriptors. An exception of the turn is raised here; later turns still come."""
        if self.closed:
            return
        if self._requested is not None:
            self._requested.cancel()
            self._requested = None
        now = time.monotonic()
        due = now + RETRY_SECONDS
        around = _TAKING.get(self._loop)
        _TAKING[self._loop] = self
        try:
            due = self._shell.turn(now)
        finally:
            if around is None:
                del _TAKING[self._loop]
            else:
                _TAKING[self._loop] = around
            self._schedule(due, now)
            if self._following:
                self._let_follow()

    def next(self) -> None:
        """Take a turn directly after the one that another shell is taking, which has sent something; otherwise `soon`.

        Two shells that answer each other do not keep the loop: the third turn is taken `soon`.
        """
        taking = _TAKING.get(self._loop)
        if taking is None or taking is self or self._is_followed:
            self.soon()
        else:
            taking._following.append(self)

    def _let_follow(self) -> None:
        self._is_followed = True
        try:
            while self._following:
                self._following.pop().now()
        finally:
            self._is_followed = False
            while self._following:  # the turn of another one has failed
                self._following.pop().soon()

    def soon(self) -> None:
        """Take a turn once the callbacks that are ready now have run; several requests make one turn."""
        if self._requested is None and not self.closed:
            self._requested = self._loop.call_soon(self.now)

    def _schedule(self, due: float, now: float) -> None:
        if self.closed:
            return
        if self._shell.readable():
            self.soon()
        elif due < self._due:
            if self._timer is not None:
                self._timer.cancel()
            self._due = due
            self._timer = self._loop.call_later(max(0.0, due - now), self._on_time)

    def _on_time(self) -> None:
        # Loops round delays, so it may be a little early; the turn returns when it is really due.
        self._timer, self._due = None, math.inf
        self.now()

    def close(self) -> None:
        """Take no more turns."""
        self.closed = True
        for handle in (self._timer, self._requested):
            if handle is not None:
                handle.cancel()
