"""AgentLink: the agent's link to the scheduler on an asyncio loop."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from scaler_io.links.events import LinkDown, LinkUp, UplinkEvent
from scaler_io.links.uplink import LinkState
from scaler_io.service.turn_loop import TurnLoop
from scaler_io.transport.in_process import AnyDialer
from scaler_protocol.handshake import Goodbye
from scaler_protocol.messages import Message
from scaler_worker.ipc.shared_state import SharedState

LOGGER: Final = logging.getLogger("scaler")
MISSED_SECONDS: Final = (1.5, 30.0)
"""After which time without a scheduler this is logged first, and how often it is again."""
UNSENT_LIMIT: Final = 32 * 1024 * 1024
"""Bytes queued for the scheduler beyond which results stay in the pipes (back-pressure)."""


class AgentLink:
    """Receives, sends, and takes turns when the scheduler has sent something.

    Workers learn from `shared` which scheduler and which object storage they work for.
    """

    def __init__(self, dialer: AnyDialer, shared: SharedState, turns: TurnLoop) -> None:
        self.connected = asyncio.Event()
        """Set with each connection to a scheduler."""
        self._dialer, self._shared, self._turns = dialer, shared, turns
        dialer.call_on_arrival(self._arrived)
        self._loop = asyncio.get_running_loop()
        self._due = 0.0
        self._has_input = self._was_up = False
        self._epoch = (0, True)
        self._filenos: tuple[int, ...] = ()
        self._missed_since, self._missed_because = self._loop.time(), ""
        self._missing = self._loop.call_later(MISSED_SECONDS[0], self._say_missing)

    @property
    def is_up(self) -> bool:
        """Whether messages reach the scheduler at once."""
        return self._dialer.uplink.state is LinkState.UP

    @property
    def heartbeat_seconds(self) -> float:
        """The interval of the scheduler's heartbeats."""
        return self._dialer.uplink.heartbeat_seconds

    @property
    def busy(self) -> float:
        """For which share of its time the scheduler is at work, as it has told last."""
        return self._dialer.uplink.busy

    @property
    def is_congested(self) -> bool:
        """Whether the scheduler does not read as fast as the agent writes."""
        return self._dialer.uplink.kept_bytes > UNSENT_LIMIT

    def receive(self, now: float) -> list[UplinkEvent]:
        """Messages that have arrived, and changes of the connection; asks the socket only if it may have some."""
        if not self._has_input and now < self._due:
            return []
        self._has_input = False
        events = self._dialer.turn(now)
        self._note(events)
        uplink = self._dialer.uplink
        if self._epoch != (uplink.epoch, uplink.state is LinkState.DOWN):
            self._watch()
        return events

    def send(self, message: Message) -> None:
        """Send with the next `flush`; raises ProtocolError for a message that cannot be encoded."""
        self._dialer.uplink.send(message)

    def flush(self, now: float) -> list[UplinkEvent]:
        """Write what there is to send; returns what has become of the connection."""
        events = self._dialer.flush(now)
        if events:
            self._note(events)
        return events

    def readable(self) -> bool:
        """Whether input is left; also re-arms the descriptor's edge."""
        self._has_input = self._has_input or self._dialer.readable()
        return self._has_input

    def due(self) -> float:
        """When `receive` is due although nothing has arrived."""
        self._due = self._dialer.uplink.due()
        return self._due

    def close(self, now: float, farewell: Goodbye | None) -> None:
        """Say Goodbye, if so wished, and disconnect."""
        if farewell is not None:
            self._dialer.uplink.send(farewell)
            self._dialer.flush(now)
        for descriptor in self._filenos:
            self._loop.remove_reader(descriptor)
        self._missing.cancel()
        self._dialer.close()

    def _say_missing(self) -> None:
        seconds = self._loop.time() - self._missed_since
        why = f" ({self._missed_because})" if self._missed_because else ""
        LOGGER.warning(
            "ClusterProcess: no connection to the scheduler at %s for %.1f s%s: is it running? Trying again",
            self._dialer.address, seconds, why,
        )  # fmt: skip
        self._missing = self._loop.call_later(MISSED_SECONDS[1], self._say_missing)

    def _note(self, events: list[UplinkEvent]) -> None:
        for event in events:
            if isinstance(event, LinkDown):
                self._missed_because = event.reason
            if isinstance(event, LinkUp):
                self._was_up = True
                self._missing.cancel()
                welcome = event.welcome
                scheduler = welcome.scheduler_incarnation or welcome.incarnation
                self._shared.follow(scheduler, welcome.storage_address, welcome.session_token)
                self.connected.set()
                LOGGER.info("ClusterProcess: connected to the scheduler at %s", self._dialer.address)
            elif isinstance(event, LinkDown) and self._was_up:
                self._was_up = False
                self._missed_since = self._loop.time()
                self._missing = self._loop.call_later(MISSED_SECONDS[1], self._say_missing)
                lost = "ClusterProcess: the connection to the scheduler at %s is lost (%s); reconnecting"
                LOGGER.warning(lost, self._dialer.address, event.reason)

    def _watch(self) -> None:
        """Watch the descriptors of the link after its connection has changed."""
        uplink, filenos = self._dialer.uplink, self._dialer.filenos()
        self._epoch = uplink.epoch, uplink.state is LinkState.DOWN
        for descriptor in self._filenos:
            self._loop.remove_reader(descriptor)
        for descriptor in filenos:
            self._loop.add_reader(descriptor, self._read)
        self._filenos = filenos

    def _read(self) -> None:
        self._has_input = True
        self._turns.now()

    def _arrived(self) -> None:
        self._has_input = True
        self._turns.next()
