"""The messages about tasks: one immutable value per batch, holding columns. docs/protocol.md is the specification.

A column is a sequence with one entry per task (or run). A *sparse* column has positions in another column instead, and
the columns paired with it have as many entries. `stored`, `inputs_stored` and `bodies_stored` are the positions of
payloads that are packed references (see `scaler_protocol.objects`). COLUMNS lists the columns that have equal lengths,
OPTIONAL those of them that may be empty; an empty `task_groups` means that all tasks are in group 0.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import field
from itertools import groupby
from typing import ClassVar, Final, TypeVar

from scaler_protocol.capacity import CapacityMessage
from scaler_protocol.handshake import LinkMessage
from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.monitoring import MonitorMessage, NeedStorageStatus
from scaler_protocol.operations import OperatorMessage
from scaler_protocol.payloads import NONE, Payloads
from scaler_protocol.sessions import SessionMessage
from scaler_protocol.storage import StorageMessage

MESSAGE_LIMIT = 1024 * 1024
"""Bytes of payload after which a sender begins another message."""
MESSAGE_MOST: Final = 32 * 1024 * 1024
"""Longest message that services receive."""
MESSAGE_TASKS: Final = 4096
"""Tasks after which a sender begins another Submit."""
MESSAGE_GROUPS: Final = 256
"""Groups of one Submit, at most: the scheduler does nothing else while it takes a message."""
MESSAGE_IDS: Final = 2**16
"""Ids after which a sender begins another message: the scheduler takes no message about more tasks."""
MESSAGE_NEEDS: Final = 2**17
"""Inputs of all tasks of one Submit, at most, and so of one task."""

T = TypeVar("T")
Flags = Sequence[bool]
Ints = Sequence[int]
Floats = Sequence[float]
Texts = Sequence[str]
Ids = Sequence[bytes]


def agent_at(agents: Sequence[str], agent_ends: Ints, position: int) -> str:
    """The name at a position of these columns of a Done, empty if they are."""
    if agent_ends:
        return agents[bisect_right(agent_ends, position)]
    return agents[0] if agents else ""


def agent_columns(names: Iterable[str]) -> tuple[list[str], Ints]:
    """`agents` and `agent_ends` of a Done, from the name of the agent of each task."""
    agents, ends = list[str](), [0]
    for name, alike in groupby(names):
        agents.append(name)
        ends.append(ends[-1] + len(list(alike)))
    return agents, ends[1:] if len(agents) > 1 else ()


def pieces_of(ids: Sequence[T], most: int | None = None) -> list[Sequence[T]]:
    """The ids in pieces, at least one, that a message can name: of at most MESSAGE_IDS, or `most`."""
    step = most or MESSAGE_IDS
    return [ids[at : at + step] for at in range(0, max(1, len(ids)), step)]


class Status:
    """Outcomes of runs."""

    VALUE: Final = 0
    RAISED: Final = 1
    """User code raised; the payload is the pickled exception."""
    FAILED: Final = 2
    """The task could not be run; the payload is a JSON object, see `scaler_protocol.errors.describe`."""
    CANCELLED: Final = 3
    LOST: Final = 4
    """From agents only: the worker died during the run; payload as for FAILED. The scheduler repeats the task."""


class Encoding:
    """Encodings of the calls and results of tasks."""

    PICKLE: Final = 0
    """One pickle of `(args, kwargs)`; the result is one pickle."""
    JSON: Final = 1
    """A JSON array of positional arguments, or `{"args": […], "kwargs": {…}}`; the result is JSON."""
    PARTS: Final = 2
    """A custom serializer: see `scaler_protocol.serializer.join_parts`."""


class WorkerState:
    """States of worker processes."""

    STARTING: Final = 0
    IDLE: Final = 1
    RUNNING: Final = 2
    BLOCKED: Final = 3
    STOPPING: Final = 4
    DRAINING: Final = 5
    """Finishes its task, receives no further task, and then ends."""


@dataclass(frozen=True, slots=True)
class Group:
    """The attributes that tasks of a batch share."""

    function: bytes
    capability_names: tuple[str, ...] = ()
    capability_values: tuple[int, ...] = ()
    priority: int = 0
    retries: int = 0
    timeout_seconds: float = 0.0
    encoding: int = Encoding.PICKLE
    serializer: bytes = b""
    stream_output: int = 0
    depth: int = 0
    speculate: bool = False
    worker: bytes = b""


# --- tasks ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Submit:
    """New tasks. `dependents` (positions) and `needs` (task ids) are sparse pairs: this task waits for that one.

    A graph is named by its first task and has `graph_size` tasks. `consumers` holds for each task how many tasks need
    its result, those of later messages included. The session receives the outcomes of `intermediate` tasks (sparse)
    only if they fail.
    """

    COLUMNS: ClassVar[tuple[tuple[str, ...], ...]] = (
        ("tasks", "task_groups", "calls", "consumers"),
        ("dependents", "needs"),
        ("functions", "names", "bodies"),
    )
    OPTIONAL: ClassVar[frozenset[str]] = frozenset({"task_groups", "consumers"})

    groups: Sequence[Group]
    tasks: Ints
    calls: Payloads
    task_groups: Ints = ()
    stored: Ints = ()
    dependents: Ints = ()
    needs: Ints = ()
    functions: Ids = ()
    names: Texts = ()
    bodies: Payloads = NONE
    parent: int = 0
    bodies_stored: Ints = ()
    consumers: Ints = ()
    intermediate: Ints = ()
    watched: bool = False
    graph: int = 0
    graph_size: int = 0
    encoded: Sequence[bytes] | None = field(default=None, init=False, compare=False, repr=False)
    """The received frames, set only by the codec: a message that is recorded is not encoded again."""


@dataclass(frozen=True, slots=True)
class Run:
    """Tasks to run; the run id of task i is `first_run + i`.

    `inputs` are the results of the tasks in `needs`. For `inputs_awaited` (sparse) the worker uses the result of the
    preceding task, and the run is Returned if there is none. By `result_sizes` the results of some tasks may be in
    Done although they exceed INLINE_LIMIT: they are classes of `scaler_protocol.result_sizes`.
    """

    COLUMNS: ClassVar[tuple[tuple[str, ...], ...]] = (
        ("tasks", "task_groups", "calls", "attempts", "result_sizes"),
        ("dependents", "needs", "inputs"),
        ("functions", "names", "bodies"),
    )
    OPTIONAL: ClassVar[frozenset[str]] = frozenset({"task_groups", "attempts", "result_sizes"})

    first_run: int
    groups: Sequence[Group]
    tasks: Ints
    calls: Payloads
    task_groups: Ints = ()
    attempts: Ints = ()
    stored: Ints = ()
    dependents: Ints = ()
    needs: Ints = ()
    inputs: Payloads = NONE
    inputs_stored: Ints = ()
    inputs_awaited: Ints = ()
    functions: Ids = ()
    names: Texts = ()
    bodies: Payloads = NONE
    bodies_stored: Ints = ()
    result_sizes: Ints = ()


@dataclass(frozen=True, slots=True)
class Done:
    """Outcomes, from the agent to the scheduler and, unchanged where possible, to the session's own process.

    `profiles` holds one PROFILE record per task (see `scaler_protocol.profiles`). `agents` are the names of those that
    have run the tasks, each of consecutive ones; `agent_ends` has the position after the last task of each, and is left
    out for a single agent.
    """

    COLUMNS: ClassVar[tuple[tuple[str, ...], ...]] = (
        ("tasks", "runs", "statuses", "results"),
        ("agents", "agent_ends"),
    )
    OPTIONAL: ClassVar[frozenset[str]] = frozenset({"runs", "agent_ends"})

    tasks: Ints
    statuses: Ints
    results: Payloads
    runs: Ints = ()
    stored: Ints = ()
    profiles: bytes = b""
    agents: Sequence[str] = ()
    agent_ends: Ints = ()
    encoded: Sequence[bytes] | None = field(default=None, init=False, compare=False, repr=False)
    """The received frames, set only by the codec: a message that is forwarded unchanged is not encoded again."""

    def agent_of(self, position: int) -> str:
        """The name of the agent that has run the task at this position; empty if it is unknown."""
        return agent_at(self.agents, self.agent_ends, position)


@dataclass(frozen=True, slots=True)
class Cancel:
    """The owner no longer needs these tasks."""

    tasks: Ints


@dataclass(frozen=True, slots=True)
class Release:
    """The owner has the outcomes of these tasks: scheduler and agent may forget them.

    A client has let go of `freed` bytes of results above INLINE_LIMIT that came with Done.
    """

    tasks: Ints
    freed: int = 0


@dataclass(frozen=True, slots=True)
class Withdraw:
    """The agent must stop these runs, queued or running; it answers each with a Done."""

    runs: Ints


@dataclass(frozen=True, slots=True)
class Recall:
    """The agent must return up to `count` runs that have not started."""

    count: int


@dataclass(frozen=True, slots=True)
class Returned:
    """Runs that the agent returns unstarted: after Recall, or because a chained input is missing."""

    runs: Ints


@dataclass(frozen=True, slots=True)
class Blocked:
    """Runs that do not occupy a worker's slot, or do so again.

    Their tasks wait for tasks of their own, or only a worker whose task does so may run them.
    """

    COLUMNS: ClassVar[tuple[tuple[str, ...], ...]] = (("runs", "blocked"),)

    runs: Ints
    blocked: Flags


@dataclass(frozen=True, slots=True)
class NeedFunctions:
    """Requests functions that the sender lacks, of tasks of this session."""

    functions: Ids
    session: int = 0


@dataclass(frozen=True, slots=True)
class Functions:
    """The requested functions."""

    COLUMNS: ClassVar[tuple[tuple[str, ...], ...]] = (("functions", "names", "bodies"),)

    functions: Ids
    names: Texts
    bodies: Payloads
    bodies_stored: Ints = ()


@dataclass(frozen=True, slots=True)
class NeedInputs:
    """Pairs of a waiting task and a task that it needs, whose result the scheduler does not have."""

    COLUMNS: ClassVar[tuple[tuple[str, ...], ...]] = (("tasks", "needs"),)

    tasks: Ints
    needs: Ints


@dataclass(frozen=True, slots=True)
class Inputs:
    """The requested outcomes, pair by pair."""

    COLUMNS: ClassVar[tuple[tuple[str, ...], ...]] = (("tasks", "needs", "statuses", "results"),)

    tasks: Ints
    needs: Ints
    statuses: Ints
    results: Payloads
    stored: Ints = ()


@dataclass(frozen=True, slots=True)
class Reconcile:
    """Sent after a Welcome without `resumed`: the tasks that the sender has, and those whose outcomes it needs.

    `more`: an agent has more than one message can name, and the next one goes on.
    """

    COLUMNS: ClassVar[tuple[tuple[str, ...], ...]] = (("running", "runs"), ("takers", "taken_names", "taken_values"))

    running: Ints = ()
    runs: Ints = ()
    wanted: Ints = ()
    finished: Ints = ()
    more: bool = False
    takers: Ints = ()
    taken_names: Sequence[str] = ()
    taken_values: Ints = ()


@dataclass(frozen=True, slots=True)
class NeedTasks:
    """Tasks that no agent has: the session must submit them again."""

    tasks: Ints


@dataclass(frozen=True, slots=True)
class Resend:
    """The agent must send these kept outcomes again."""

    tasks: Ints


@dataclass(frozen=True, slots=True)
class Output:
    """Output of tasks on stdout (1) and stderr (2), as UTF-8, in order."""

    COLUMNS: ClassVar[tuple[tuple[str, ...], ...]] = (("tasks", "streams", "texts"),)

    tasks: Ints
    streams: Ints
    texts: Payloads


@dataclass(frozen=True, slots=True)
class AgentStatus:
    """Statistics of the agent's process (`cpu`, `rss`), of its host (`free`, `load`, …), and in columns of its workers.

    CPU is in cores, memory and what is free of disk and shared memory in bytes, `load` the mean of the last minute.
    `deaths` has a sentence for each worker that ended unexpectedly, `death_hosts` its host if the agent is a relay.
    `lone_task_bytes` is the memory that a task alone on the host may use; 0 is no limit. `newest_run` is the newest run
    that the agent has received, or 0: later ones were under way.
    """

    COLUMNS: ClassVar[tuple[tuple[str, ...], ...]] = (
        ("names", "pids", "states", "runs", "cpus", "rsses", "queues"),
        ("deaths", "death_hosts"),
    )
    OPTIONAL: ClassVar[frozenset[str]] = frozenset({"death_hosts"})

    cpu: float = 0.0
    rss: int = 0
    free: int = 0
    queued: int = 0
    names: Texts = ()
    pids: Ints = ()
    states: Ints = ()
    runs: Ints = ()
    cpus: Floats = ()
    rsses: Ints = ()
    queues: Ints = ()
    deaths: Texts = ()
    lone_task_bytes: int = 0
    load: float = 0.0
    disk_free: int = 0
    shared_free: int = 0
    death_hosts: Texts = ()
    newest_run: int = 0


@dataclass(frozen=True, slots=True)
class Ended:
    """Intermediate nodes of graphs that ended with a value, for a session that submitted with `watched`."""

    tasks: Ints


@dataclass(frozen=True, slots=True)
class TaskCredit:
    """How many tasks a client may have unfinished from now on; replaces the number in Welcome."""

    tasks: int


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Asks the scheduler to end, with all agents."""


@dataclass(frozen=True, slots=True)
class ShutdownAnswer:
    """Whether the scheduler accepts a Shutdown."""

    accepted: bool
    reason: str = ""


Message = (
    LinkMessage
    | Submit | Run | Done | Cancel | Release | Withdraw | Recall | Returned | Blocked
    | NeedFunctions | Functions | NeedInputs | Inputs | Reconcile | NeedTasks | Resend | Output | AgentStatus
    | Ended | TaskCredit | Shutdown | ShutdownAnswer
    | SessionMessage | OperatorMessage | CapacityMessage | StorageMessage | NeedStorageStatus | MonitorMessage
)  # fmt: skip
