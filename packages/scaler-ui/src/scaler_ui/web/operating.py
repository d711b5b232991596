"""Operating: what readers of the pages may order, over a link to the scheduler that is made when it is first needed."""

from __future__ import annotations

import time
from collections.abc import Callable

from scaler_io.service.operator_link import OperatorLink
from scaler_protocol.addresses import Address
from scaler_protocol.messages import Cancel, Message
from scaler_protocol.operations import Drain
from scaler_ui.model.model import MonitorModel

PATIENCE_SECONDS = 5.0
"""An order that could not be given for so long is dropped: later it would surprise everybody."""


def scheduler_address(monitor: Address, told: str) -> Address:
    """Where the scheduler is that publishes at `monitor` and says that it listens to `told`; raises AddressError."""
    scheduler = Address.parse(told)
    return scheduler if monitor.path or scheduler.path else Address(monitor.host, scheduler.port)


class Operating:
    """Gives orders as an operator. One loop owns it, and calls `turn` often."""

    def __init__(self, model: MonitorModel, monitor: Address, clock: Callable[[], float] = time.monotonic) -> None:
        self.trouble = ""
        """Why the last order was not given."""
        self._model = model
        self._monitor = monitor
        self._clock = clock
        self._link: OperatorLink | None = None
        self._given_at = 0.0

    def cancel(self, task: int) -> None:
        """Stop a task wherever it stands; raises AddressError where the scheduler says no sound address."""
        self._order(Cancel((task,)))

    def drain(self, agent: int, pid: int) -> None:
        """Have a worker finish what it runs, and end; raises AddressError as `cancel`."""
        self._order(Drain(agent, pid))

    def _order(self, message: Message) -> None:
        self.trouble, self._given_at = "", self._clock()
        if self._link is None and self._model.status is not None:
            self._link = OperatorLink(scheduler_address(self._monitor, self._model.status.address), "scaler_ui")
        if self._link is None:
            self.trouble = "no scheduler is known yet"
            return
        self._link.send(message)
        self.turn()

    def turn(self) -> None:
        """Go on with what was ordered."""
        if self._link is None:
            return
        self._link.turn()
        refused = self._link.trouble
        if not self._link.is_up and (refused or self._clock() > self._given_at + PATIENCE_SECONDS):
            self.trouble = f"the scheduler takes no orders: {refused or 'it does not answer'}"
            self.close()

    def close(self) -> None:
        """Leave."""
        if self._link is not None:
            self._link.close()
            self._link = None
