"""Worker managers: what each of them has, wants and waits for, as fields and sentences. Pure."""

from __future__ import annotations

from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.monitoring import MonitorStatus
from scaler_protocol.plurals import counted
from scaler_protocol.units import duration


@dataclass(frozen=True, slots=True)
class ManagerRow:
    """One worker manager; counts are of workers, `maximum` is -1 for no limit, `pause` the rest of a back-off in s."""

    manager: str
    kind: str
    host: str
    maximum: int
    desired: int
    joined: int
    starting: int
    draining: int
    reason: str
    failure: str
    pause: float

    @property
    def standing(self) -> str:
        """Its state, as a sentence without a full stop."""
        if self.pause:
            return f"worker manager {self.manager} is paused for {duration(self.pause)}: {self.failure}"
        if self.starting:
            return f"worker manager {self.manager} starts {counted(self.starting, 'worker')}: {self.reason}"
        failure = f"; last failure: {self.failure}" if self.failure else ""
        wanted = counted(self.desired, "worker")
        return f"worker manager {self.manager} wants {wanted}: {self.reason or 'no decision'}{failure}"


def manager_rows(status: MonitorStatus) -> list[ManagerRow]:
    """All connected worker managers."""
    columns = zip(
        status.managers, status.manager_kinds, status.manager_hosts, status.manager_maximums, status.manager_desired,
        status.manager_joined, status.manager_starting, status.manager_draining, status.manager_reasons,
        status.manager_failures, status.manager_pauses, strict=True,
    )  # fmt: skip
    return [ManagerRow(*row) for row in columns]
