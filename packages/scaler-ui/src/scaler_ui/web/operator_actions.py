"""Operator actions of the web pages, sent over a link to the scheduler that is opened on first use."""

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
from scaler_ui.model.model import MonitorModel

ACTION_TIMEOUT_SECONDS = 5.0
"""Seconds after which an unsent action is dropped, because a late one would surprise the reader."""


def scheduler_address(monitor: Address, told: str) -> Address:
    """The address of the scheduler that publishes at `monitor` and reports the address `told`; raises AddressError."""
    scheduler = Address.parse(told)
    return scheduler if monitor.path or scheduler.path else Address(monitor.host, scheduler.port)


class OperatorActions:
    """Sends operator messages to the scheduler. One event loop owns it and calls `turn` regularly."""

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
        self.trouble = ""
        """Why the last action failed; empty if it did not."""
        self._model = model
        self._monitor = monitor
        self._clock = clock
        self._link: OperatorLink | None = None
        self._sent_at = 0.0

    def cancel(self, task: int) -> None:
        """Cancel a task in any state; raises AddressError if the scheduler reports an address that is not valid."""
        self._send(Cancel((task,)))

    def drain(self, agent: int, pid: int) -> None:
        """Let a worker finish its task and end; raises AddressError as `cancel` does."""
        self._send(Drain(agent, pid))

    def _send(self, message: Message) -> None:
        self.trouble, self._sent_at = "", self._clock()
        if self._link is None and self._model.status is not None:
            address = scheduler_address(self._monitor, self._model.status.address)
            try:
                credentials = credentials_for(address, self._keys, self._insecure, OPERATOR_KEYS)
            except KeyFileError as error:
                self.trouble = f"this page cannot give orders: {error}"
                return
            self._link = OperatorLink(address, "scaler_ui", ServiceKind.SCHEDULER, credentials=credentials)
        if self._link is None:
            self.trouble = "no scheduler is known yet"
            return
        self._link.send(message)
        self.turn()

    def turn(self) -> None:
        """Process the link to the scheduler."""
        if self._link is None:
            return
        self._link.turn()
        refused = self._link.problem
        if not self._link.is_up and (refused or self._clock() > self._sent_at + ACTION_TIMEOUT_SECONDS):
            self.trouble = f"the scheduler accepts no action: {refused or 'it does not answer'}"
            self.close()

    def close(self) -> None:
        """Close the link."""
        if self._link is not None:
            self._link.close()
            self._link = None
