"""Messages for operating a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from scaler_protocol.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Drain:
    """A worker must finish its task and end. `agent` is its agent's number in MonitorStatus, `pid` its process id.

    Process id 0 means all workers of the agent; the agent then ends, too.
    """

    agent: int
    pid: int


@dataclass(frozen=True, slots=True)
class Resized:
    """The agent's current number of workers, without drained ones."""

    workers: int


@dataclass(frozen=True, slots=True)
class Dump:
    """An operator asks who waits for what and why; the scheduler answers with DumpParts."""


@dataclass(frozen=True, slots=True)
class DumpPart:
    """A piece of a dump, which is JSON in UTF-8; `left` bytes of it follow in further pieces."""

    left: int
    data: bytes


@dataclass(frozen=True, slots=True)
class AskWhy:
    """An operator asks why a task has not ended; the scheduler answers with Reasons."""

    task: int


@dataclass(frozen=True, slots=True)
class Reasons:
    """Sentences that say why a task has not ended; none if the scheduler does not know it."""

    task: int
    sentences: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class TakeProfile:
    """Workers must sample what they run for so many seconds; answered by ProfileParts with the same `request`.

    Of tasks of this function only, unless it is empty. An agent names stacks of at most `limit` bytes together.
    """

    request: int
    function: str
    seconds: float
    limit: int = 0


@dataclass(frozen=True, slots=True)
class ProfilePart:
    """How often an agent's `workers` had each stack; `left` agents have not answered yet.

    A stack is the name of the function of the task, then frames from the outermost to the innermost, with semicolons
    between them. `problem` says why there is no profile, or what is missing in it.
    """

    COLUMNS: ClassVar[tuple[tuple[str, ...], ...]] = (("stacks", "counts"),)

    request: int
    stacks: Sequence[str] = ()
    counts: Sequence[int] = ()
    workers: int = 0
    left: int = 0
    problem: str = ""


OperatorMessage = Drain | Resized | Dump | DumpPart | AskWhy | Reasons | TakeProfile | ProfilePart
