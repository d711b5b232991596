"""What the tests of clients in several languages share: a map whose cluster is broken, and schedulers that err."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import zmq

from scaler_protocol.codec import decode, encode
from scaler_protocol.handshake import Heartbeat, Hello, Refused, Welcome
from scaler_protocol.messages import Done, Message, Reconcile, Submit
from scaler_protocol.payloads import Payloads
from scaler_protocol.storage import GetObject, ObjectPart
from support.faults import Services, template_of
from support.processes import children
from support.waiting import wait_until

CALLS = 300
SECONDS = 20.0
REFERENCE = bytes(16) + struct.pack("<Q", 5)
NO_ERROR = "ScalerError no error, but "
ODD = [
    # What a Done says after the task, the part that object storage answers with, and how the call ends.
    (([1], [b"oops"], []), b"", NO_ERROR + "oops"),
    (([1], [b"null"], []), b"", NO_ERROR + "null"),
    (([1], [b"[]"], []), b"", NO_ERROR + "[]"),
    (([2], [b"{}"], []), b"", NO_ERROR + "{}"),
    (
        ([2], [b'{"error": 5, "message": [], "details": {}}'], []),
        b"",
        NO_ERROR + '{"error": 5, "message": [], "details": {}}',
    ),
    (([4], [b'{"error": "E", "message": "lost", "details": {}}'], []), b"", "E lost"),
    (([0], [REFERENCE], [0]), b"12345", "value 12345"),
    (([0], [REFERENCE], [0]), b"1", "ObjectNotFoundError "),
    (([0], [REFERENCE], [0]), b"123456", "ObjectNotFoundError "),
    # Malformed: the client connects again, and asks for the outcome.
    (([], [b"1"], []), b"", "value 7"),
    (([0], [], []), b"", "value 7"),
    (([0], [b"1"], [9]), b"", "value 7"),
]
"""Outcomes that no scheduler of ours sends."""


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


class OddScheduler:
    """A scheduler, and object storage, that answers the calls of one client with ODD."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self.socket = context.socket(zmq.ROUTER)
        self.socket.linger = 0
        self.address = f"tcp://127.0.0.1:{self.socket.bind_to_random_port('tcp://127.0.0.1')}"
        self.calls = 0
        self.part = b""
        self.sent: dict[bytes, int] = {}
        self.heard: dict[bytes, int] = {}

    def turn(self) -> None:
        """Answer what has come within 50 ms."""
        while self.socket.poll(50):
            route, frame = self.socket.recv_multipart()
            size, sequence, _ = struct.unpack_from("<3Q", frame)
            columns, payload = frame[24 : 24 + size], frame[24 + size :]
            self.heard[route] = max(sequence, self.heard.get(route, 0))
            self.answer(route, decode([columns, payload] if payload else [columns]))

    def answer(self, route: bytes, message: Message) -> None:
        """Answer one message."""
        if isinstance(message, Hello):
            self.send(route, Welcome(1, 0, False, 1.0, self.address, 1 << 20), 0)
        elif isinstance(message, Heartbeat) and not message.echo:
            self.send(route, Heartbeat(message.sent, True), 0)
        elif isinstance(message, Reconcile):
            for task in message.wanted:
                self.send(route, Done([task], [0], Payloads([b"7"])))
        elif isinstance(message, Submit):
            (statuses, results, stored), self.part, _ = ODD[self.calls]
            self.calls += 1
            self.send(route, Done(message.tasks, statuses, Payloads(results), stored=stored))
        elif isinstance(message, GetObject):
            self.send(
                route,
                ObjectPart(message.object, True, len(self.part), Payloads([self.part]), message.request, version=1),
            )

    def send(self, route: bytes, message: Message, sequence: int | None = None) -> None:
        """Send a message with the next number, or an unnumbered one with 0."""
        if sequence is None:
            sequence = self.sent[route] = self.sent.get(route, 0) + 1
        columns, *payload = encode(message)
        head = struct.pack("<3Q", len(columns), sequence, self.heard.get(route, 0))
        self.socket.send_multipart([route, b"".join([head, columns, *payload])])


class BabblingScheduler(OddScheduler):
    """A scheduler whose Welcome is followed by what is no message, on each connection."""

    def answer(self, route: bytes, message: Message) -> None:
        if isinstance(message, Hello):
            super().answer(route, message)
            self.socket.send_multipart([route, b"no message"])


class RefusingScheduler(OddScheduler):
    """A scheduler that refuses every client, and does not say why."""

    def answer(self, route: bytes, message: Message) -> None:
        self.send(route, Refused([]), 0)


@contextmanager
def babbling() -> Iterator[str]:
    """The address of such a scheduler, which is object storage, too."""
    over = threading.Event()

    def serve() -> None:
        with scheduler.socket:
            while not over.is_set():
                scheduler.turn()

    with zmq.Context() as context:
        scheduler = BabblingScheduler(context)
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield scheduler.address
        finally:
            over.set()
            thread.join()


def call_an_odd_scheduler(program: Sequence[str]) -> None:
    """Run `program ADDRESS CALLS TIMEOUT`, which prints how each of its calls has ended."""
    lines = _calls_of(OddScheduler, program, len(ODD), 60_000)
    for line, (_, _, wanted) in zip(lines, ODD, strict=True):
        assert line.startswith(wanted), line


def call_a_babbling_scheduler(program: Sequence[str]) -> None:
    """The same with a scheduler that never says anything valid: calls end after the timeout."""
    for line in _calls_of(BabblingScheduler, program, 2, 700):
        assert line.startswith("SchedulerLostError tcp://") and "no connection for " in line


def call_a_refusing_scheduler(program: Sequence[str]) -> None:
    """The same with a scheduler that does not say why it refuses: the program ends with an error that says so."""
    code, _, error = _run(RefusingScheduler, program, 1, 60_000)
    assert code != 0 and "it gave no reason" in error


def _calls_of(kind: type[OddScheduler], program: Sequence[str], calls: int, timeout: int) -> list[str]:
    """How the calls of a program to such a scheduler have ended."""
    code, said, error = _run(kind, program, calls, timeout)
    lines = said.splitlines()
    assert code == 0 and len(lines) == calls, error
    return lines


def _run(kind: type[OddScheduler], program: Sequence[str], calls: int, timeout: int) -> tuple[int, str, str]:
    """Exit code, output and errors of a program that calls such a scheduler."""
    with zmq.Context() as context:
        scheduler = kind(context)
        words = {"ADDRESS": scheduler.address, "CALLS": str(calls), "TIMEOUT": str(timeout)}
        with (
            scheduler.socket,
            subprocess.Popen(
                [words.get(word, word) for word in program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            ) as caller,
        ):
            try:
                wait_until(lambda: caller.poll() is not None, "the program has ended", SECONDS, scheduler.turn)
            finally:
                caller.kill()
            return caller.wait(), *caller.communicate()
