"""The messages that make and keep a connection. They are never numbered, but for Goodbye."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

PROTOCOL_VERSION = 2
INLINE_LIMIT = 16 * 1024
"""Bytes of one payload that may travel inside a message; a bigger one goes by object storage."""
SESSION_CREDIT = 32 * 1024 * 1024
"""Bytes of calls that one session may have waiting inline at the scheduler."""


class Role:
    """What a peer is."""

    CLIENT: Final = 1
    AGENT: Final = 2
    OPERATOR: Final = 3
    """Looks after a cluster: sees figures, cancels any task, drains workers; has no tasks and no objects."""
    MANAGER: Final = 4
    """Starts and stops units, each of which is one agent; has no tasks and no objects."""


class RefusalCode:
    """Why a peer is not accepted, for programs."""

    PROTOCOL: Final = 1
    """It speaks another version of the protocol."""
    MALFORMED: Final = 2
    """A field of its Hello is out of its limits, or a numbered message cannot be decoded."""
    ROLE: Final = 3
    IDENTITY: Final = 4
    SESSION: Final = 5
    """The session is another peer's, or missing: connect again with another number."""
    WORKERS: Final = 6
    """An agent without workers, or without room for a task."""
    MANAGER: Final = 7
    """A worker manager without an id, or with the id of a connected one."""


@dataclass(frozen=True, slots=True)
class Hello:
    """First message of an epoch: who is connecting, what it knows of the peer, what it offers."""

    COLUMNS: ClassVar = (("capability_names", "capability_values"),)

    role: int
    identity: bytes
    incarnation: int
    epoch: int = 0
    peer_incarnation: int = 0
    received: int = 0
    session: int = 0
    name: str = ""
    host: str = ""
    pid: int = 0
    software: str = ""
    python: str = ""
    cloudpickle: str = ""
    workers: int = 0
    queue_size: int = 0
    capability_names: Sequence[str] = ()
    capability_values: Sequence[int] = ()
    session_key: bytes = b""
    manager: str = ""
    unit: str = ""
    protocol: int = PROTOCOL_VERSION


@dataclass(frozen=True, slots=True)
class Welcome:
    """The peer is accepted; `resumed` says whether its earlier epochs are remembered."""

    incarnation: int
    received: int = 0
    resumed: bool = False
    heartbeat_seconds: float = 1.0
    timeout_seconds: float = 60.0
    storage_address: str = ""
    monitor_address: str = ""
    inline_limit: int = INLINE_LIMIT
    session_credit: int = SESSION_CREDIT
    segment_directory: str = ""
    protocol: int = PROTOCOL_VERSION


@dataclass(frozen=True, slots=True)
class Refused:
    """The peer is not accepted, for all of these reasons; `codes` holds a RefusalCode for each."""

    COLUMNS: ClassVar = (("reasons", "codes"),)
    OPTIONAL: ClassVar = frozenset({"codes"})

    reasons: Sequence[str]
    codes: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class NeedHello:
    """Something came from a connection that has not said Hello, or after a gap: start a new epoch."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A sign of life with the sender's clock in nanoseconds; the peer sends it back with `echo` set."""

    sent: int
    echo: bool = False


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Nothing but the acknowledgement in the header."""


@dataclass(frozen=True, slots=True)
class Goodbye:
    """The sender leaves for good: its work may be dropped at once."""

    reason: str = ""


LinkMessage = Hello | Welcome | Refused | NeedHello | Heartbeat | Acknowledge | Goodbye
