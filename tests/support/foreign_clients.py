"""What the tests of clients in other languages share: a long map whose cluster is broken meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from support.faults import Services, template_of
from support.processes import children
from support.waiting import wait_until

CALLS = 300


def map_through_faults(folder: Path, program: Sequence[str]) -> None:
    """Run `program ADDRESS`: workers and the scheduler are killed when its results come in, and all of them are right.

    It calls `support.tasks:pause_and_add` CALLS times, and prints two lines.
    """
    with Services(folder, "--insecure") as services:
        agent = services.add_agent(2, "--insecure")
        words = [services.address if word == "ADDRESS" else word for word in program]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as caller:
            assert caller.stdout is not None
            assert caller.stdout.readline() == "results come in\n"
            template = template_of(agent.pid)
            killed = children(template)
            for worker in killed:
                os.kill(worker, signal.SIGKILL)
            wait_until(lambda: not {*killed} & {*children(template)}, "killed workers are replaced")
            services.scheduler.kill()
            services.start_scheduler()
            assert caller.stdout.read() == f"{CALLS} right\n"
        assert caller.returncode == 0
