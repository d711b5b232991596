"""Worker managers with real processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from scaler import ScalerFuture
from scaler_protocol.addresses import Address
from scaler_protocol.monitoring import MonitorStatus
from scaler_ui.listening import Listening
from scaler_ui.model.reasons import why
from support.faults import Service, Services
from support.gates import SECONDS
from support.own_keys import MONITOR, own
from support.waiting import wait_until

COOLDOWN = "--scale-down-cooldown-seconds"


class Fleet(Services):
    """A scheduler with worker managers, and what its monitor says of them."""

    def __init__(self, folder: Path, *scheduler_words: str) -> None:
        super().__init__(folder, COOLDOWN, "1", *scheduler_words)
        self._listening = Listening(Address.parse(self.address).beside(2), credentials=own(MONITOR))

    def add_manager(self, workers: int, *words: str, id: str = "local", kind: str = "baremetal_native") -> Service:
        """Start a manager; returns when it is connected."""
        log = self.folder / f"manager-{len(self.started)}.log"
        manager = Service(
            log,
            "scaler_worker.managers.main",
            kind,
            self.address,
            "-wmi",
            id,
            "-mtc",
            str(workers),
            *words,
        )
        self.started.append(manager)
        wait_until(lambda: "connected to the scheduler" in manager.said() or manager.process.poll() is not None)
        return manager

    def wait_status(self, condition: Callable[[MonitorStatus], object], what: str) -> MonitorStatus:
        """The first status of which the condition holds."""

        def holds() -> bool:
            self._listening.look()
            status = self._listening.model.status
            return status is not None and bool(condition(status))

        wait_until(holds, what)
        assert self._listening.model.status is not None
        return self._listening.model.status

    def why(self, task: int) -> list[str]:
        """What `scaler_why` says of a task, once the monitor has heard of it."""

        def known() -> bool:
            self._listening.look()
            return self._listening.model.tasks.find(task) is not None

        wait_until(known, "the task")
        return why(self._listening.model, task)

    def close(self) -> None:
        self._listening.close()
        super().close()


def numbers(futures: Sequence[ScalerFuture[tuple[int, int]]]) -> list[int]:
    """What the calls of `step` were given, as they have come back."""
    return sorted(future.result(SECONDS)[0] for future in futures)
