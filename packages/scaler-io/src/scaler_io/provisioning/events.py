"""Events and effects of a manager's core: what its shell reports and performs. Pure, no IO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scaler_io.links.effects import Log
from scaler_io.links.events import UplinkEvent
from scaler_io.provisioning.provisioner import UnitReport
from scaler_protocol.capacity import ManagerStatus
from scaler_protocol.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class UnitsStarted:
    """A start has returned: the names asked for, those accepted, and the provider's error if there was one."""

    asked: Sequence[str]
    accepted: Sequence[str]
    failure: str = ""


@dataclass(frozen=True, slots=True)
class UnitsStopped:
    """A stop has returned, with the provider's error if there was one."""

    failure: str = ""


@dataclass(frozen=True, slots=True)
class UnitsListed:
    """A listing has returned; `units` is None if it failed. `asked_at` is when it was begun."""

    units: Mapping[str, UnitReport] | None
    asked_at: float
    failure: str = ""


@dataclass(frozen=True, slots=True)
class StopRequested:
    """The manager is told to end: it stops its units, unless it is to leave them, and ends with `code`."""

    code: int = 0
    reason: str = ""


ProvisioningEvent = UnitsStarted | UnitsStopped | UnitsListed | StopRequested
ManagerEvent = UplinkEvent | ProvisioningEvent


@dataclass(frozen=True, slots=True)
class StartUnits:
    """Have the provisioner start units, then report UnitsStarted."""

    units: Sequence[str]
    offer: int


@dataclass(frozen=True, slots=True)
class StopUnits:
    """Have the provisioner stop units, then report UnitsStopped."""

    units: Sequence[str]
    force: bool


@dataclass(frozen=True, slots=True)
class ListUnits:
    """Have the provisioner list the units, then report UnitsListed."""


@dataclass(frozen=True, slots=True)
class SendStatus:
    """Send this status to the scheduler."""

    status: ManagerStatus


@dataclass(frozen=True, slots=True)
class EndManager:
    """End the program with this exit code."""

    code: int


ManagerEffect = StartUnits | StopUnits | ListUnits | SendStatus | EndManager | Log
