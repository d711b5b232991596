"""The shell of a worker manager, in a program of its own."""

from __future__ import annotations

import subprocess
import sys

HANGS = """
import asyncio, threading
from scaler_io.provisioning.core import ManagerConfig
from scaler_io.provisioning.provisioner import OfferSpec
from scaler_io.service.manager import WorkerManager
from scaler_protocol.addresses import Address

asked = threading.Event()

class Hanging:
    def list_units(self):
        asked.set()
        threading.Event().wait()

    def close(self):
        print("closed")

async def main():
    offers = (OfferSpec("", "3.11.7", "3.1.2", 1),)
    config = ManagerConfig(id="test", kind="test", maximum=1, offers=offers, prefix="test", leave_units=True)
    address = Address.parse("ipc:///nowhere/at/all")
    manager = WorkerManager(config, address, Hanging(), timeout_seconds=60, credentials=None)
    running = asyncio.ensure_future(manager.run())
    while not asked.is_set():
        await asyncio.sleep(0.01)
    manager.stop()
    print(await running)

asyncio.run(main())
"""


def test_a_provider_that_hangs_does_not_keep_the_manager_from_ending() -> None:
    done = subprocess.run([sys.executable, "-c", HANGS], capture_output=True, encoding="utf-8", timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "closed\n0\n", "")
