"""Operator actions of the web pages, sent over a link to the scheduler that each reader's first action opens."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from scaler_io.security.keyring import OPERATOR_KEYS, KeyFileError
from scaler_io.service.operator_link import OperatorLink
from scaler_io.transport.own_keys import credentials_for
from scaler_protocol.addresses import Address
from scaler_protocol.handshake import ServiceKind
from scaler_protocol.messages import Cancel, Message
from scaler_protocol.operations import Drain
from scaler_ui.listening import scheduler_address
from scaler_ui.model.model import MonitorModel

ACTION_TIMEOUT_SECONDS = 5.0
"""Seconds after which an unsent action is dropped, because a late one would surprise the reader."""
IDLE_SECONDS = 60.0
"""Seconds without an action after which the link of a reader is closed."""


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

    def cancel(self, task: int, reader: str) -> None:
        """Cancel a task in any state; raises AddressError if the scheduler reports an address that is not valid."""
        self._send(Cancel((task,)), reader)

    def drain(self, agent: int, pid: int, reader: str) -> None:
        """Let a worker finish its task and end; raises AddressError as `cancel` does."""
        self._send(Drain(agent, pid), reader)

    def trouble(self, reader: str) -> str:
        """Why this reader's last action failed; empty if it did not."""
        orders = self._readers.get(reader)
        return "" if orders is None else orders.trouble

    def _send(self, message: Message, reader: str) -> None:
        orders = self._readers.setdefault(reader, _ReaderOrders())
        orders.trouble, orders.sent_at = "", self._clock()
        if orders.link is None:
            orders.link = self._open(orders, reader)
        if orders.link is not None:
            orders.link.send(message)
            self.turn()

    def _open(self, orders: _ReaderOrders, reader: str) -> OperatorLink | None:
        if self._model.status is None:
            orders.trouble = "no scheduler is known yet"
            return None
        address = scheduler_address(self._monitor, self._model.status.address)
        try:
            credentials = credentials_for(address, self._keys, self._insecure, OPERATOR_KEYS)
        except KeyFileError as error:
            orders.trouble = f"this page cannot give orders: {error}"
            return None
        return OperatorLink(address, f"{reader} (scaler_ui)", ServiceKind.SCHEDULER, credentials=credentials)

    def turn(self) -> None:
        """Process the links to the scheduler."""
        now = self._clock()
        for reader, orders in list(self._readers.items()):
            orders.turn(now)
            if now > orders.sent_at + IDLE_SECONDS:
                orders.close()
                del self._readers[reader]

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
        self.sent_at = 0.0

    def turn(self, now: float) -> None:
        if self.link is None:
            return
        self.link.turn()
        refused = self.link.problem
        if not self.link.is_up and (refused or now > self.sent_at + ACTION_TIMEOUT_SECONDS):
            self.trouble = f"the scheduler accepts no action: {refused or 'it does not answer'}"
            self.close()

    def close(self) -> None:
        if self.link is not None:
            self.link.close()
            self.link = None
