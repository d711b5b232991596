"""Why tasks wait, in sentences: the same ones from the scheduler and from monitors. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from scaler_protocol.capabilities import missing, parse_capabilities
from scaler_protocol.manager_rows import manager_rows
from scaler_protocol.monitoring import MonitorStatus
from scaler_protocol.plurals import counted

Ahead = Sequence[tuple[int, int]]
"""Priorities, and how many tasks of each go first."""


def lacks(needs: str, runtime: str, capabilities: str, offered_runtime: str) -> list[str]:
    """The needs of tasks that workers with these capabilities and this runtime lack; texts as in a status."""
    found = missing(sorted(_parsed(needs).items()), _parsed(capabilities))
    return [*found, runtime] if runtime and runtime != offered_runtime else found


@lru_cache(maxsize=1024)
def _parsed(capabilities: str) -> dict[str, int]:
    return parse_capabilities(capabilities)


def _behind(ahead: Ahead) -> list[str]:
    return [f"it waits behind {counted(count, 'task')} of priority {priority}" for priority, count in ahead]


class WaitReasons:
    """Tells why tasks wait, from one status."""

    def __init__(self, status: MonitorStatus) -> None:
        self._workers = sum(status.agent_workers)
        self._assigned = status.assigned
        self._offers = set(zip(status.agent_capabilities, status.agent_runtimes, strict=True))
        self._lacking: dict[tuple[str, str], list[str]] = {}
        self._managers = manager_rows(status)
        self._short = dict(zip(status.waiting_capabilities, status.waiting_shortages, strict=True))
        self._startable = list(
            zip(status.offer_managers, status.offer_capabilities, status.offer_runtimes, strict=True)
        )

    def lacking(self, needs: str, runtime: str) -> list[str]:
        """The needs that the best matching worker lacks; empty if a worker can run the tasks, or there is none."""
        found = self._lacking.get((needs, runtime))
        if found is None:
            found = min((lacks(needs, runtime, *offer) for offer in self._offers), key=len, default=[])
            self._lacking[needs, runtime] = found
        return found

    def why_waiting(self, needs: str, runtime: str, ahead: Ahead) -> list[str]:
        """Sentences about a task that waits with these needs, behind these others."""
        if not self._workers:
            return ["it waits: no worker is connected", *self._who_may_start(needs, runtime)]
        if lacking := self.lacking(needs, runtime):
            return [f"it waits: no worker offers {', '.join(lacking)}", *self._who_may_start(needs, runtime)]
        if short := self.short_of(needs):
            return [f"it waits for {short}", *_behind(ahead)]
        has = "has" if self._workers == 1 else "have"
        places = f"{counted(self._workers, 'worker')} {has} {counted(self._assigned, 'task')}"
        if not ahead:
            return [f"it is next: {places}"]
        return [f"{line}; {places}" for line in _behind(ahead)]

    def short_of(self, needs: str) -> str:
        """The consumables of which no host that could run such tasks has enough left, with how much is in use."""
        return self._short.get(needs, "")

    def _who_may_start(self, needs: str, runtime: str) -> list[str]:
        """For each worker manager, its state if it can help such tasks, else the needs that its workers would lack."""
        said = []
        for manager in self._managers:
            # An offer without a runtime may have any: its manager does not know what the image of a machine holds.
            gaps = [
                lacks(needs, runtime, offered, offered_runtime or runtime)
                for id, offered, offered_runtime in self._startable
                if id == manager.manager
            ]
            least = min(gaps, key=len, default=[])
            starts_none = f"worker manager {manager.manager} starts no workers with {', '.join(least)}"
            said.append(starts_none if least else manager.standing)
        return said
