"""What others notice of an attack: latencies of one client's calls, in turns without and with an attacker.

`python bench/attacks.py --turns 3`. All use keys; the attackers are strangers, or clients with a key of their own. With
`--insecure` nobody has keys. Attackers run in another process, at the priority of everybody else. Printed for each
attack: median and 99th percentile of single calls without and with it, their ratio, and the greatest growth of the
memory of scheduler and object storage.
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
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import zmq

from scaler import Client
from scaler_io.links.streams import HEADER, cut, join
from scaler_io.security.key_files import add_key, load_credentials, make_keys
from scaler_io.security.keyring import CLIENT_KEYS, SUBSCRIBER_KEYS, KeyRole
from scaler_io.transport.curve import new_pair, use_credentials
from scaler_io.transport.publishing import Subscriber
from scaler_protocol.addresses import Address
from scaler_protocol.codec import decode, encode
from scaler_protocol.handshake import Hello, ServiceKind, Welcome
from scaler_protocol.ids import first_task, new_identity
from scaler_protocol.messages import Group, Message, Submit
from scaler_protocol.payloads import Payloads
from scaler_protocol.storage import GetObject, ListObjects, ObjectList, PutObject
from support.faults import Services
from support.intruders import hello
from support.memory_attacks import MEGABYTE, Attacker, Growth
from support.processes import descendants
from support.tasks import add

FRAME = bytes(MEGABYTE)
PHASE_SECONDS = 5.0
STARTED = 60.0


class Peer:
    """A client that was welcomed; it reads nothing unless the transport makes it."""

    def __init__(self, port: int, keys: Path | None, greeting: Hello) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.set_hwm(4)
        self._socket.linger = 0
        self._socket.sndtimeo = self._socket.rcvtimeo = 1000
        self._socket.setsockopt(zmq.RECONNECT_IVL, -1)
        address = Address("127.0.0.1", port)
        if keys is not None:
            use_credentials(self._socket, load_credentials(keys, CLIENT_KEYS), address)
        self._socket.connect(str(address))
        self._sequence = 0
        self._write(greeting, 0)
        welcome = self.read()
        if not isinstance(welcome, Welcome):
            raise OSError(f"not welcome: {welcome}")
        self.session_token = welcome.session_token
        self._socket.sndtimeo = 500

    def send(self, message: Message) -> None:
        """Send a numbered message; raises zmq.Again once the service has closed the connection."""
        self._sequence += 1
        self._write(message, self._sequence)

    def read(self) -> Message:
        """The next message."""
        return decode(cut(self._socket.recv())[1:])

    def _write(self, message: Message, number: int) -> None:
        self._socket.send(join([HEADER.pack(number, 0), *encode(message)]))

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self._context.destroy()


def endless_message(port: int, keys: Path | None) -> None:
    """A stranger's message that does not end."""
    with Attacker(port) as attacker:
        while True:
            attacker.send_bytes(b"\x03" + len(FRAME).to_bytes(8, "big") + FRAME)


def ignored_credit(port: int, keys: Path | None) -> None:
    """A client submits as fast as it can what nobody can run."""
    greeting = hello()
    nobody, calls = (
        Group(b"f" * 16, capability_names=("nobody",), capability_values=(1,)),
        Payloads([bytes(4096)] * 256),
    )
    with Peer(port, keys, greeting) as attacker:
        first = first_task(greeting.session) + 1
        while True:
            attacker.send(Submit([nobody], range(first, first + 256), calls))
            first += 256


def unread_answers(port: int, keys: Path | None) -> None:
    """A client of object storage asks for bytes and reads none."""
    name, greeting = new_identity(), hello()
    with Peer(port, keys, greeting) as client:
        greeting = replace(greeting, service=ServiceKind.STORAGE, session_token=client.session_token)
    with Peer(port + 1, keys, greeting) as attacker:
        for part in range(8):
            attacker.send(PutObject(name, 8 * MEGABYTE, Payloads([FRAME]), offset=part * MEGABYTE))
        while True:
            attacker.send(GetObject(name, 0, MEGABYTE, 1))


def strangers(port: int, keys: Path | None) -> None:
    """Connections that say nothing, 200 at a time."""
    with contextlib.ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(Attacker(port))


def endless_lists(port: int, keys: Path | None) -> None:
    """A client of object storage has 100,000 objects and asks for their list again and again."""
    greeting = hello()
    with Peer(port, keys, greeting) as client:
        greeting = replace(greeting, service=ServiceKind.STORAGE, session_token=client.session_token)
    with Peer(port + 1, keys, greeting) as attacker:
        for number in range(100_000):
            attacker.send(PutObject(number.to_bytes(16, "big"), 1, Payloads([b"x"])))
        while True:
            attacker.send(ListObjects(1))
            while not (isinstance(answer := attacker.read(), ObjectList) and not answer.left):
                pass


def restless_monitor(port: int, keys: Path | None) -> None:
    """A monitor connects, subscribes, reads one message, leaves and comes again."""
    credentials = load_credentials(keys, SUBSCRIBER_KEYS) if keys is not None else None
    while True:
        subscriber = Subscriber(Address("127.0.0.1", port + 2), credentials)
        while not subscriber.receive():
            subscriber.wait(1.0)
        subscriber.close()


Attack = Callable[[int, Path | None], None]
ATTACKS: dict[Attack, KeyRole] = {
    endless_message: KeyRole.CLIENT,
    ignored_credit: KeyRole.CLIENT,
    unread_answers: KeyRole.CLIENT,
    endless_lists: KeyRole.CLIENT,
    strangers: KeyRole.CLIENT,
    restless_monitor: KeyRole.MONITOR,
}
"""The attacks, and whose key they have."""


def again_and_again(attack: Attack, port: int, keys: Path | None) -> None:
    """Repeat an attack whenever the service has ended it."""
    while True:
        with contextlib.suppress(OSError, zmq.ZMQError):
            attack(port, keys)


def latencies(client: Client, growths: list[Growth]) -> list[float]:
    """Seconds of single calls, one after the other, for PHASE_SECONDS."""
    taken: list[float] = []
    until = time.perf_counter() + PHASE_SECONDS
    while (began := time.perf_counter()) < until:
        client.submit(add, len(taken), 1).result(STARTED)
        taken.append(time.perf_counter() - began)
        for growth in growths:
            growth.look()
    return taken


def measure(services: Services, client: Client, attack: Attack, keys: Path | None, turns: int) -> None:
    """Take turns, and print the figures of one attack."""
    quiet, attacked = list[float](), list[float]()
    scheduler = services.scheduler.pid
    growths = [Growth(scheduler), Growth(descendants(scheduler)[0])]
    for _ in range(turns):
        quiet += latencies(client, [])
        attacker = multiprocessing.get_context("fork").Process(
            target=again_and_again, args=(attack, services.port, keys), daemon=True
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
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--only", metavar="ATTACK", help="only this attack")
    parser.add_argument("--insecure", action="store_true", help="use no keys")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder, "keys")
        attackers: dict[KeyRole, Path] = {}
        if arguments.insecure:
            words = ["--insecure"]
        else:
            words = ["--keys", str(keys)]
            make_keys(keys, new_pair)
            attackers = {
                role: add_key(keys, f"attacker-{role.value}", role, new_pair) for role in set(ATTACKS.values())
            }
        with Services(Path(folder), *words) as services:
            services.add_agent(1, *words)
            own = None if arguments.insecure else keys
            with Client(
                address=services.address, keys=own, insecure=arguments.insecure, timeout_seconds=STARTED
            ) as client:
                assert len(client.submit(bytes, MEGABYTE).result(STARTED)) == MEGABYTE
                latencies(client, [])
                for attack, role in ATTACKS.items():
                    if arguments.only in (None, attack.__name__):
                        measure(services, client, attack, attackers.get(role), arguments.turns)


if __name__ == "__main__":
    main()
