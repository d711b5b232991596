"""What a client on Windows does, run by Python for Windows: `python.exe windows_client.py ADDRESS KEYS`.

The cluster's workers run on Linux. It prints what it has seen; the exit code is 1 if something was wrong.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
from concurrent.futures import CancelledError
from pathlib import Path

from scaler import Client, SchedulerClusterCombo
from scaler_protocol.errors import SchedulerLostError

CALLS = 300
INTERRUPTED_WITHIN = 20.0

wrong: list[str] = []


def expect(right: bool, what: str) -> None:
    """Note whether something is as it should be."""
    print("right:" if right else "WRONG:", what, flush=True)
    if not right:
        wrong.append(what)


def pause_and_double(number: int) -> int:
    """Takes long enough for a cluster to break meanwhile."""
    time.sleep(0.02)
    return 2 * number


def double_elsewhere(number: int) -> tuple[str, int]:
    """Where it runs, and a result."""
    return sys.platform, 2 * number


def check_calls(client: Client) -> None:
    """Calls, exceptions and maps."""
    expect(client.submit(math.sqrt, 16).result() == 4.0, "a function by its name")
    expect(client.submit(double_elsewhere, 21).result() == ("linux", 42), "a function as code, run on Linux")
    error = client.submit(lambda: 1 // 0).exception()
    expect(isinstance(error, ZeroDivisionError), "an exception")
    expect(sum(client.map(abs, range(-10_000, 0))) == 50_005_000, "a map of 10,000")
    sleeping = client.submit(time.sleep, 60)
    sleeping.cancel()
    try:
        sleeping.result()
    except CancelledError:
        expect(True, "a call is cancelled")
    child = client.submit(sum, [1, 2])
    expect(client.submit(abs, child).result() == 3, "a future as an argument")


def check_objects(client: Client) -> None:
    """Payloads that travel through object storage."""
    data = os.urandom(5_000_000)
    expect(client.submit(len, data).result() == len(data), "a long argument")
    expect(client.submit(bytes.upper, b"a" * 5_000_000).result() == b"A" * 5_000_000, "a long result")
    stored = client.send_object(data)
    expect(list(client.map(len, [stored] * 3)) == [len(data)] * 3, "an object that three calls use")


def check_reconnection(client: Client) -> None:
    """The scheduler is killed when this says that results come in."""
    futures = [client.submit(pause_and_double, number) for number in range(CALLS)]
    futures[10].result()
    print("results come in", flush=True)
    expect([future.result() for future in futures] == [2 * number for number in range(CALLS)], "a map that goes on")


def check_interrupt(client: Client) -> None:
    """Ctrl-C interrupts a wait."""
    sleeping = client.submit(time.sleep, 60)
    timer = threading.Timer(0.5, signal.raise_signal, [signal.SIGINT])
    timer.start()
    began = time.monotonic()
    try:
        sleeping.result(timeout=50)
    except KeyboardInterrupt:
        expect(time.monotonic() - began < INTERRUPTED_WITHIN, "Ctrl-C interrupts a wait")
    except TimeoutError:
        expect(False, "Ctrl-C interrupts a wait")
    sleeping.cancel()


def check_refusals() -> None:
    """What there is on Linux alone."""
    try:
        SchedulerClusterCombo(n_workers=1)
    except ImportError as error:
        expect("its services run on Linux" in str(error), f"a local cluster: {error}")
    try:
        Client("ipc:///tmp/scaler", timeout_seconds=1)
    except SchedulerLostError as error:
        expect("Protocol not supported" in str(error), f"a socket: {error}")


def main(address: str, keys: str) -> int:
    """The exit code."""
    check_refusals()
    with Client(address, keys=Path(keys)) as client:
        for check in (check_calls, check_objects, check_interrupt, check_reconnection):
            check(client)
    print(f"{len(wrong)} wrong on {sys.platform}", flush=True)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
