"""Operator actions of the web pages, sent over a link to the scheduler that each reader's first action opens."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from scaler_io.security.keyring import OPERATOR_KEYS, KeyFileError
from scaler_io.service.operator_link import OperatorLink
from scaler_io.transport.own_keys import credentials_for
from scaler_protocol.addresses import Address
from scaler_protocol.errors import AddressError, InvalidFieldError
from scaler_protocol.handshake import ServiceKind
from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.messages import Cancel, Message
from scaler_protocol.operations import AskWhy, Drain, ProfilePart, Reasons, TakeProfile
from scaler_ui.listening import scheduler_address
from scaler_ui.model.model import MonitorModel
from scaler_ui.model.stack_profile import StackProfile

ACTION_TIMEOUT_SECONDS = 5.0
"""Seconds after which an unsent action is dropped, because a late one would surprise the reader."""
IDLE_SECONDS = 60.0
"""Seconds without an action after which the link of a reader is closed."""

ASK_SECONDS = 3.0
"""Least time between two questions of a reader: an answer may cost the scheduler 50 ms."""
PROFILE_PATIENCE_SECONDS = 15.0
"""How long the scheduler may take to answer after the end of a profile."""
PROFILES = 20
"""Readers whose last profiles are kept."""


@dataclass(slots=True)
class TakenProfile:
    """A profile that a reader has asked for; `until` is its end on the clock of the actions."""

    request: int
    until: float
    profile: StackProfile

    def state(self, now: float) -> str:
        """How far it is, in one sentence."""
        if self.profile.is_complete:
            return f"{self.profile.summary[0].upper()}{self.profile.summary[1:]}."
        if now < self.until:
            return f"Workers are sampled for another {self.until - now:.0f} s."
        if now < self.until + PROFILE_PATIENCE_SECONDS:
            return "Hosts answer."
        return f"Not all hosts have answered; this is what came: {self.profile.summary}."


class OperatorActions:
    """Sends operator messages to the scheduler, which logs them with the reader's name.

    One event loop owns it and calls `turn` regularly.
    """

    def __init__(
        self,
        model: MonitorModel,
        monitor: Address,
        clock: Callable[[], float] = time.monotonic,
        *,
        keys: Path | None = None,
        insecure: bool = False,
    ) -> None:
        """`keys` is the directory with the operator's key; `insecure` says that the scheduler uses none."""
        self._keys, self._insecure = keys, insecure
        self._model = model
        self._monitor = monitor
        self._clock = clock
        self._readers: dict[str, _ReaderOrders] = {}
        self._profiles: dict[str, TakenProfile] = {}
        self._requests = 0

    def cancel(self, task: int, reader: str) -> None:
        """Cancel a task in any state."""
        self._send(Cancel((task,)), reader)

    def drain(self, agent: int, pid: int, reader: str) -> None:
        """Let a worker finish its task and end."""
        self._send(Drain(agent, pid), reader)

    def ask_why(self, task: int, reader: str) -> Sequence[str]:
        """What the scheduler has said of this task; asks it again if that is old. Nothing is said as long as it cannot
        be asked."""
        orders, now = self._readers.setdefault(reader, _ReaderOrders()), self._clock()
        if task != orders.asked or now > orders.asked_at + ASK_SECONDS:
            if orders.link is None:
                orders.link, orders.sent_at = self._open(orders, reader), now
            orders.ask(task, now)
        return orders.reasons

    def take_profile(self, function: str, seconds: float, reader: str) -> None:
        """Have a profile taken, of tasks of this function only unless it is empty."""
        self._requests += 1
        taken = TakenProfile(self._requests, self._clock() + seconds, StackProfile(function))
        self._profiles.pop(reader, None)
        self._profiles[reader] = taken
        if len(self._profiles) > PROFILES:
            del self._profiles[next(iter(self._profiles))]
        self._send(TakeProfile(taken.request, function, seconds), reader, seconds + PROFILE_PATIENCE_SECONDS)

    def profile(self, reader: str) -> TakenProfile | None:
        """The last profile that this reader has asked for."""
        return self._profiles.get(reader)

    def trouble(self, reader: str) -> str:
        """Why this reader's last action failed; empty if it did not."""
        orders = self._readers.get(reader)
        return "" if orders is None else orders.trouble

    def _send(self, message: Message, reader: str, answer_seconds: float = 0.0) -> None:
        orders = self._readers.setdefault(reader, _ReaderOrders())
        orders.trouble, orders.sent_at = "", self._clock()
        orders.needed_until = max(orders.needed_until, orders.sent_at + max(IDLE_SECONDS, answer_seconds))
        if orders.link is None:
            orders.link = self._open(orders, reader)
        if orders.link is None:
            return
        try:
            orders.link.send(message)
        except InvalidFieldError as error:
            orders.trouble = f"this page cannot give orders with that: {error}"
        self.turn()

    def _open(self, orders: _ReaderOrders, reader: str) -> OperatorLink | None:
        if self._model.status is None:
            orders.trouble = "no scheduler is known yet"
            return None
        try:
            address = scheduler_address(self._monitor, self._model.status.address)
            credentials = credentials_for(address, self._keys, self._insecure, OPERATOR_KEYS)
        except (AddressError, KeyFileError) as error:
            orders.trouble = f"this page cannot give orders: {error}"
            return None
        return OperatorLink(address, f"{reader} (scaler_ui)", ServiceKind.SCHEDULER, credentials=credentials)

    def turn(self) -> None:
        """Process the links to the scheduler."""
        now = self._clock()
        for reader, orders in list(self._readers.items()):
            self._take(orders.turn(now), orders, self._profiles.get(reader))
            if now > orders.needed_until:
                orders.close()
                del self._readers[reader]

    @staticmethod
    def _take(arrived: list[Message], orders: _ReaderOrders, taken: TakenProfile | None) -> None:
        for message in arrived:
            if isinstance(message, Reasons) and message.task == orders.asked:
                orders.reasons = message.sentences
            if isinstance(message, ProfilePart) and taken is not None and message.request == taken.request:
                taken.profile.add(message)

    def close(self) -> None:
        """Close the links."""
        for orders in self._readers.values():
            orders.close()
        self._readers.clear()


class _ReaderOrders:
    """The orders of one reader, over a link with the reader's name."""

    def __init__(self) -> None:
        self.link: OperatorLink | None = None
        self.trouble = ""
        self.sent_at = self.needed_until = 0.0
        self.asked = 0
        """The task that the reader asks about."""
        self.asked_at = -math.inf
        self.reasons: Sequence[str] = ()

    def ask(self, task: int, now: float) -> None:
        """Ask the scheduler about a task, if there is a link; what it has said of another one is forgotten."""
        if task != self.asked:
            self.asked, self.reasons = task, ()
        self.asked_at, self.needed_until = now, max(self.needed_until, now + IDLE_SECONDS)
        if self.link is not None:
            self.link.send(AskWhy(task))

    def turn(self, now: float) -> list[Message]:
        if self.link is None:
            return []
        arrived = self.link.turn()
        refused = self.link.problem
        if not self.link.is_up and (refused or now > self.sent_at + ACTION_TIMEOUT_SECONDS):
            self.trouble = f"the scheduler accepts no action: {refused or 'it does not answer'}"
            self.close()
        return arrived

    def close(self) -> None:
        if self.link is not None:
            self.link.close()
            self.link = None
