"""The messages that establish and keep a connection. Only Goodbye is numbered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from scaler_protocol.lazy_dataclass import dataclass

PROTOCOL_VERSION = 2
INLINE_LIMIT = 16 * 1024
"""Bytes of one payload that may travel inside a message; a larger one goes to object storage."""
SESSION_CREDIT = 32 * 1024 * 1024
"""Bytes of unfinished calls that a session may have in the memory of the scheduler."""
RESULT_CREDIT = 32 * 1024 * 1024
"""Bytes of results above INLINE_LIMIT that may be on their way to a client by messages, or held by it."""

MANAGER_VARIABLE = "SCALER_WORKER_MANAGER_ID"
UNIT_VARIABLE = "SCALER_UNIT_ID"
"""Environment variables from which an agent knows its worker manager and its unit, which it names in its Hello."""


class Role:
    """Roles of peers."""

    CLIENT: Final = 1
    AGENT: Final = 2
    OPERATOR: Final = 3
    """Manages a cluster: reads statistics, cancels any task, drains workers; has no tasks and no objects."""
    MANAGER: Final = 4
    """Starts and stops units, each of which is one agent; has no tasks and no objects."""


class ServiceKind:
    """The services that peers connect to."""

    SCHEDULER: Final = 0
    STORAGE: Final = 1


@dataclass(frozen=True, slots=True)
class Hello:
    """First message of an epoch: the identity of the peer, its state of the stream, and what it offers."""

    COLUMNS: ClassVar[tuple[tuple[str, ...], ...]] = (
        ("capability_names", "capability_values"),
        ("consumable_names", "consumable_totals"),
    )

    role: int
    identity: bytes
    incarnation: int
    epoch: int = 0
    peer_incarnation: int = 0
    received: int = 0
    session: int = 0
    name: str = ""
    host: str = ""
    python: str = ""
    cloudpickle: str = ""
    workers: int = 0
    queue_size: int = 0
    capability_names: Sequence[str] = ()
    capability_values: Sequence[int] = ()
    session_key: bytes = b""
    manager: str = ""
    unit: str = ""
    service: int = ServiceKind.SCHEDULER
    session_token: bytes = b""
    session_name: str = ""
    consumable_names: Sequence[str] = ()
    consumable_totals: Sequence[int] = ()
    lives_on_seconds: float = 0.0
    protocol: int = PROTOCOL_VERSION
    relay: bool = False
    """Whether this agent is a relay, which speaks for the agents of many hosts. Its `incarnation` is in their runs."""
    result_credit: int = 0
    """Of a client: bytes of results above INLINE_LIMIT that it takes in Done until it says in Release what it freed."""


@dataclass(frozen=True, slots=True)
class Welcome:
    """The peer is accepted; `resumed` says whether the stream of its earlier epochs continues."""

    incarnation: int
    received: int = 0
    resumed: bool = False
    heartbeat_seconds: float = 1.0
    storage_address: str = ""
    session_credit: int = SESSION_CREDIT
    segment_directory: str = ""
    task_credit: int = 0
    session: int = 0
    ids_from: int = 0
    ids_to: int = 0
    challenge: bytes = b""
    session_token: bytes = b""
    fallback_address: str = ""
    """Where else an agent may connect: a relay names the service above it."""
    scheduler_incarnation: int = 0
    """Of a relay: the incarnation of the scheduler, which clients know; 0: this is the scheduler."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The peer is not accepted, for all of these reasons; `in_use`: as long as another one has its session."""

    reasons: Sequence[str]
    in_use: bool = False


@dataclass(frozen=True, slots=True)
class NeedHello:
    """The service received a message without a Hello, or after a gap: the peer must begin a new epoch."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Shows that the sender lives; `sent` is its clock in nanoseconds, and the peer returns it with `echo` set.

    A service tells the interval of its heartbeats, which grows with the number of its peers; 0 tells nothing. `busy` is
    the share of the last second for which it was at work.
    """

    sent: int
    echo: bool = False
    seconds: float = 0.0
    busy: float = 0.0


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Carries only the acknowledgement in the header."""


@dataclass(frozen=True, slots=True)
class Goodbye:
    """The sender leaves and does not return: its work is dropped at once."""

    reason: str = ""
    objects_left: int = 0
    """Objects that only its host has, and that object storage could not be given; `reason` says why."""


LinkMessage = Hello | Welcome | Refused | NeedHello | Heartbeat | Acknowledge | Goodbye
