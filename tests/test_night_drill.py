"""The night drill: eleven things break in a real cluster, and the Overview and `scaler status` name each of them.

What is measured (slow hosts, memory that grows, late answers) is known only to a monitor that has listened before.
"""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from scaler import Client
from scaler_protocol.addresses import Address
from scaler_protocol.errors import StorageFullError
from scaler_ui.listening import Listening
from scaler_ui.model.findings import findings
from support.drill_tasks import SICK, job, leak, pause, poison
from support.fleets import Fleet
from support.gates import SECONDS
from support.own_keys import MONITOR, own
from support.processes import PROGRAMS, command_line, descendants, stopped

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(900),
    pytest.mark.skipif(shutil.which("unshare") is None or os.geteuid() != 0, reason="a second host needs root"),
]
FUNCTION = "support.drill_tasks"


class Drill:
    """A cluster of two hosts, and a monitor that has listened from the beginning."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self._listening = Listening(Address.parse(fleet.address).beside(2), credentials=own(MONITOR))
        self._listening.wait_for(lambda model: model.is_complete, SECONDS)

    def overview(self) -> list[str]:
        """The sentences of the Overview."""
        return [finding.text for finding in findings(self._listening.model, self._listening.now)]

    def status(self) -> str:
        """What `scaler status` prints."""
        words = [str(PROGRAMS / "scaler"), "status", self.fleet.address]
        done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, check=False)
        return done.stdout + done.stderr

    def wait_named(self, named: str, *, late: bool = True) -> None:
        """Wait until the Overview names it; then `scaler status` does so, too, unless it cannot know (`late`)."""
        until = time.monotonic() + 5 * SECONDS
        while not any(named in text for text in self.overview()):
            assert time.monotonic() < until, (named, self.overview())
            self._listening.step()
        assert not late or named in self.status(), self.status()

    def listen(self, seconds: float) -> None:
        """Listen for a while."""
        until = time.monotonic() + seconds
        self._listening.wait_for(lambda model: time.monotonic() > until, seconds + SECONDS)

    def close(self) -> None:
        self._listening.close()


@pytest.fixture
def drill(tmp_path: Path) -> Iterator[Drill]:
    with Fleet(tmp_path, "--memory-limit", str(64 * 1024 * 1024)) as fleet:
        fleet.add_agent(2)
        fleet.add_agent(2, host=SICK)
        drill = Drill(fleet)
        yield drill
        drill.close()


def test_eleven_things_break_and_are_named(drill: Drill) -> None:
    fleet = drill.fleet
    with Client(fleet.address, name="alice") as alice, Client(fleet.address, name="bob") as bob:
        # A missing capability, a poison task, a function that leaks, a slow host.
        lonely = alice.submit_verbose(math.sqrt, (4,), {}, capabilities={"tpu": 1})
        drill.wait_named("1 task needs tpu=1, which nobody offers.")
        alice.submit(poison).exception(SECONDS)
        drill.wait_named(f"1 task of {FUNCTION}:poison failed without a result")
        for future in [alice.submit(leak) for _ in range(48)]:
            future.result(SECONDS)
        drill.wait_named(f"runs of {FUNCTION}:leak have raised the memory of a worker", late=False)
        alice.map(job, [0.1] * 100)
        drill.wait_named(f"Host {SICK} is slow: {FUNCTION}:job takes", late=False)

        # Object storage is full, and then stands still.
        with pytest.raises(StorageFullError):
            kept = [alice.send_object(os.urandom(8 * 1024 * 1024)) for _ in range(12)]
            assert len(kept) < 12, "what is kept is in memory"
        drill.wait_named("Object storage has refused")
        [storage] = [pid for pid in descendants(fleet.scheduler.pid) if "scaler_storage" in command_line(pid)]
        with stopped(storage):
            drill.listen(2.5)
            assert "Object storage has not answered within 2 s." in drill.status()
        drill.wait_named("Object storage answers late", late=False)

        # A worker manager dies, and an agent; a task hangs; and then all workers are taken, and a client waits.
        fleet.add_manager(1, id="grid").kill()
        drill.wait_named("Worker manager grid is gone")
        fleet.add_agent(1).kill()
        drill.wait_named(f"1 agent of host {os.uname().nodename} was lost.")
        alice.map(pause, [0.01] * 20)
        long = [alice.submit(pause, 600.0) for _ in range(4)]
        waiting = [bob.submit(pause, 0.01) for _ in range(100)]  # more than hosts queue
        drill.wait_named(f"({FUNCTION}:pause) has run for")
        drill.wait_named("No task of client bob has run for")
        lonely.cancel()
        for future in [*long, *waiting]:
            future.cancel()
        fleet.scheduler.kill()
        drill.wait_named("has been silent for", late=False)
        assert "has been silent for" in drill.overview()[0], "the rest is old"
        assert "no scheduler" in drill.status() or "nothing listens" in drill.status()
