"""NamedSession: what is kept of a session that outlives its client: its tasks, their outcomes and their names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.messages import Encoding
from scaler_scheduler.core.function_record import FunctionRecord
from scaler_scheduler.core.task_states import KeptOutcome, Outcome


@dataclass(slots=True, eq=False)
class SessionTask:
    """A task of a named session, from its submission until nothing is kept of it."""

    session: NamedSession
    id: int
    function: FunctionRecord
    encoding: int = Encoding.PICKLE
    claimed: bool = True
    """Whether the attached client has a future of it, which is sent the outcome."""
    ended: KeptOutcome | None = None
    """None while it has not ended."""
    since: float = 0.0
    """When it ended, or was last sent to a client."""
    size: int = 0
    """The bytes that its outcome counts."""

    @property
    def outcome(self) -> Outcome | None:
        """How it ended."""
        return self.ended[0] if self.ended is not None else None


@dataclass(slots=True, eq=False)
class NamedSession:
    """The state of a named session, which outlives its client."""

    number: int
    name: str
    key: bytes
    """Proves the session to the scheduler and to object storage; made from name and secret."""
    detached_at: float | None = None
    """None while a client is attached."""
    last_client: bytes = b""
    """The identity of the client that is, or was last, attached."""
    tasks: dict[int, SessionTask] = field(default_factory=dict)
    """In the order of submission."""
    labels: dict[str, int] = field(default_factory=dict)
    """Tasks by the names that clients gave their futures."""
    ids_from: int = 0
    ids_to: int = 2**32 - 1
    """The counts of task ids that are not used: single ones go up, blocks come down."""

    def use(self, counts: Sequence[int]) -> None:
        """Ids with these counts are used."""
        singles = [count for count in counts if count < 2**31]
        self.ids_from = max(self.ids_from, max(singles, default=-1) + 1)
        if len(singles) < len(counts):
            self.ids_to = min(self.ids_to, min(count for count in counts if count >= 2**31) - 1)
