"""What others notice of an attack: latencies of one client's calls, in turns without and with an attacker.

`python bench/attacks.py --turns 5`. Attackers speak the links' protocol over bare sockets from another process, at the
priority of everybody else. Printed for each attack: median and 99th percentile of single calls without and with it,
their ratio, and the greatest growth of the memory of scheduler and object storage.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from scaler import Client
from scaler_protocol.handshake import ServiceKind
from scaler_protocol.ids import first_task, new_identity
from scaler_protocol.messages import Group, Submit
from scaler_protocol.payloads import Payloads
from scaler_protocol.storage import GetObject, PutObject
from support.faults import Services
from support.intruders import hello
from support.memory_attacks import MEGABYTE, Attacker, Growth
from support.processes import descendants
from support.tasks import add

FRAME = bytes(MEGABYTE)
CALLS = 200
STARTED = 60.0


def endless_message(port: int) -> None:
    """A stranger's message that does not end."""
    with Attacker(port) as attacker:
        while True:
            attacker.send_bytes(b"\x03" + len(FRAME).to_bytes(8, "big") + FRAME)


def ignored_credit(port: int) -> None:
    """A client submits as fast as it can what nobody can run."""
    greeting = hello()
    nobody, calls = (
        Group(b"f" * 16, capability_names=("nobody",), capability_values=(1,)),
        Payloads([bytes(4096)] * 256),
    )
    with Attacker(port, greeting) as attacker:
        first = first_task(greeting.session) + 1
        while True:
            attacker.send(Submit([nobody], range(first, first + 256), calls))
            first += 256


def unread_answers(port: int) -> None:
    """A client of object storage asks for bytes and reads none."""
    name = new_identity()
    with Attacker(port + 1, hello(service=ServiceKind.STORAGE)) as attacker:
        for part in range(8):
            attacker.send(PutObject(name, 8 * MEGABYTE, Payloads([FRAME]), offset=part * MEGABYTE))
        while True:
            attacker.send(GetObject(name, 0, MEGABYTE, 1))


def strangers(port: int) -> None:
    """Connections that say nothing, 200 at a time."""
    with contextlib.ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(Attacker(port))


ATTACKS: tuple[Callable[[int], None], ...] = (endless_message, ignored_credit, unread_answers, strangers)


def again_and_again(attack: Callable[[int], None], port: int) -> None:
    """Repeat an attack whenever the service has ended it."""
    while True:
        with contextlib.suppress(OSError):
            attack(port)


def latencies(client: Client, growths: list[Growth]) -> list[float]:
    """Seconds of single calls."""
    taken = []
    for number in range(CALLS):
        began = time.perf_counter()
        client.submit(add, number, 1).result(STARTED)
        taken.append(time.perf_counter() - began)
        for growth in growths:
            growth.look()
    return taken


def measure(services: Services, client: Client, attack: Callable[[int], None], turns: int) -> None:
    """Take turns, and print the figures of one attack."""
    quiet, attacked = list[float](), list[float]()
    scheduler = services.scheduler.pid
    growths = [Growth(scheduler), Growth(descendants(scheduler)[0])]
    for _ in range(turns):
        quiet += latencies(client, [])
        attacker = multiprocessing.get_context("fork").Process(
            target=again_and_again, args=(attack, services.port), daemon=True
        )
        attacker.start()
        try:
            attacked += latencies(client, growths)
        finally:
            attacker.kill()
            attacker.join()
    before, after = (statistics.quantiles(taken, n=100)[98] for taken in (quiet, attacked))
    middle = [statistics.median(taken) * 1e3 for taken in (quiet, attacked)]
    print(
        f"{attack.__name__:16} median {middle[0]:.2f} -> {middle[1]:.2f} ms, p99 {before * 1e3:.2f} -> "
        f"{after * 1e3:.2f} ms ({after / before:.1f} x), memory +{growths[0].most >> 20} MiB scheduler, "
        f"+{growths[1].most >> 20} MiB storage"
    )


def main() -> None:
    """Run all attacks."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--turns", type=int, default=5)
    turns: int = parser.parse_args().turns
    with tempfile.TemporaryDirectory() as folder, Services(Path(folder), "--insecure") as services:
        services.add_agent(1, "--insecure")
        with Client(address=services.address, insecure=True, timeout_seconds=STARTED) as client:
            assert len(client.submit(bytes, MEGABYTE).result(STARTED)) == MEGABYTE
            latencies(client, [])
            for attack in ATTACKS:
                measure(services, client, attack, turns)


if __name__ == "__main__":
    main()
