"""What scaling policies see: managers, their offers, and the workers that no connected manager started."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

from scaler_io.links.events import PeerJoined
from scaler_protocol.capacity import ManagerStatus
from scaler_protocol.handshake import Hello, Role
from scaler_scheduler.core.capacity_view import CapacityView
from scaler_scheduler.core.manager_record import ManagerRecord
from scaler_scheduler.requirements import WorkerClass
from scaler_scheduler.scaling.capacity import Manager, Offer

if TYPE_CHECKING:
    from conftest import SchedulerDriver


def test_agents_count_at_their_manager_or_as_unmanaged(driver: SchedulerDriver) -> None:
    state = driver.core.state
    driver.agent(b"ours", workers=2, manager="grid", unit="u1")
    by_hand = state.agents[driver.agent(b"hand", workers=3)]
    driver.agent(b"away", workers=4, manager="another", unit="u2")
    status = ManagerStatus(
        "test",
        16,
        ("",),
        ("",),
        ("",),
        (2,),
        ("",),
        pending_units=("u1", "u3"),
        pending_offers=(0, 0),
        startup_seconds=7.0,
    )
    manager = ManagerRecord(b"m", "grid", "there", 1, status, worker_classes=(by_hand.worker_class,))
    snapshot = CapacityView(state).snapshot([manager], driver.now)
    offer = Offer(worker_class=by_hand.worker_class, unit_size=2, joined=2, starting=2)
    assert snapshot.managers == (Manager(id="grid", kind="test", maximum=16, offers=(offer,), startup_seconds=7.0),)
    assert snapshot.unmanaged == ((by_hand.worker_class, 7),)
    assert (manager.joined, manager.starting, manager.draining) == (2, 2, 0)


def test_agents_that_share_are_rows_of_their_own_and_units_are_known_by_what_they_say(driver: SchedulerDriver) -> None:
    state = driver.core.state
    shares: dict[str, Any] = {
        "capability_names": ("license",), "capability_values": (2,),
        "consumable_names": ("license",), "consumable_totals": (2,),
    }  # fmt: skip
    classes = [state.agents[driver.agent(name, 4, **shares)].worker_class for name in (b"one", b"two")]
    assert classes[0] == classes[1] == WorkerClass((("license", 2),), None, ("license",), (2,))
    driver.feed(b"m" * 16, PeerJoined(Hello(Role.MANAGER, b"m" * 16, 1, name="grid"), False))
    driver.feed(b"m" * 16, ManagerStatus("test", 16, ("license=2",), ("",), ("",), (4,), ("license=2",)))
    assert state.offered == (classes[0],)
    assert CapacityView(state).snapshot([], driver.now).unmanaged == ((classes[0], 4), (classes[0], 4))


def test_a_scheduler_without_managers_does_not_import_what_scales() -> None:
    code = (
        "import sys, scaler_scheduler.service.shell\n"
        "from scaler_scheduler.core.config import SchedulerConfig\n"
        "from scaler_scheduler.core.core import SchedulerCore\n"
        "from scaler_scheduler.service.options import COMMAND\n"
        "COMMAND.read(['tcp://127.0.0.1:2345']).check()\n"
        "names = ('core.capacity_view', 'core.demand', 'scaling.capacity', 'scaling.policies')\n"
        "print([name for name in names if f'scaler_scheduler.{name}' in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
