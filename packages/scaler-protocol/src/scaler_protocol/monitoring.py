"""Messages to monitors: statistics once a second, task events and what happened before, in columns."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

from scaler_protocol.lazy_dataclass import dataclass

PACKED_BATCH = struct.Struct("<BQIq")
"""A batch in `TaskEvents.batches`: step, subject, how many tasks, microseconds after `since`."""
PACKED_ID = struct.Struct("<Q")
"""The id of a task in `TaskEvents.tasks`, of a run in `TaskEvents.runs`."""
PACKED_EDGE = struct.Struct("<II")
"""An edge in `TaskEvents.edges`: a node of a graph and one that it needs, both counted from the first node."""
DURATION_BOUNDS: Final = (
    0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0, 10_000.0, 30_000.0,
)  # fmt: skip
"""The upper ends, in seconds, of the buckets in which a MonitorStatus counts durations."""


class TaskStep:
    """State changes of the tasks of a batch in TaskEvents."""

    WAITING: Final = 0
    """Ready to run; the subject is their group."""
    HELD: Final = 1
    """Inputs or the function are missing; the subject is their group."""
    ASSIGNED: Final = 2
    """Assigned to an agent, the subject; run ids count on from the first."""
    ENDED: Final = 3
    """Ended; the subject is the agent, or 0. Statuses and profiles follow."""
    CANCELLED: Final = 4
    """Cancelled; the subject is 0."""
    NESTED: Final = 5
    """No change of state, but whose tasks they are: a task has submitted them, the subject."""
    LACKING: Final = 6
    """They end next, without a run: they need the subject, a task that has ended without a value."""
    AGAIN: Final = 7
    """Their runs are over and they wait next, to run again: the worker was lost, or the run raised and has another
    attempt. The subject is the agent. Statuses and profiles follow."""


class EventKind:
    """The subject of a text in TaskEvents and MonitorHistory."""

    FAILURE: Final = 0
    """The error of a task that raised or could not run."""
    RUN: Final = 1
    """A run of a task: lost, cancelled by an operator, begun a second time."""
    WORKER: Final = 2
    """A worker died; the subject is its host."""
    AGENT: Final = 3
    """An agent: connected, gone, resized, draining; the subject is its host."""
    CLIENT: Final = 4
    """A client, a named session or an operator, which is the subject."""
    MANAGER: Final = 5
    """A worker manager, which is the subject."""
    SCHEDULER: Final = 6
    """The scheduler itself: new work refused, needs that no worker meets."""


@dataclass(frozen=True, slots=True)
class MonitorStatus:
    """Statistics of the scheduler, its peers and tasks; memory in bytes, CPU in cores, times in seconds since 1970.

    With `snapshot`, the TaskEvents that follow, up to one that does not go on, contain all tasks that have not ended.
    Other ones are sent without the OPTIONAL columns that are as in the status before: see `changes`. The numbers of
    groups and agents are not 0, and are never reused while the scheduler runs. The `unlisted_…` columns have the sums
    of the workers of each agent that has reported workers which are too many to be listed.
    """

    COLUMNS: ClassVar[tuple[tuple[str, ...], ...]] = (
        ("sent_names", "sent_counts"),
        ("received_names", "received_counts"),
        ("client_sessions", "client_names", "client_hosts", "client_tasks"),
        (
            "agents", "agent_names", "agent_hosts", "agent_workers", "agent_queue_sizes", "agent_capabilities",
            "agent_runtimes", "agent_cpus", "agent_rsses", "agent_free", "agent_assigned", "agent_queued",
            "agent_round_trips", "agent_status_ages", "agent_managers", "agent_units", "agent_draining", "agent_loads",
            "agent_disks_free", "agent_shared_free",
        ),
        (
            "worker_states", "worker_agents", "worker_names", "worker_pids", "worker_runs", "worker_cpus",
            "worker_rsses", "worker_queues", "worker_seconds",
        ),
        (
            "unlisted_agents", "unlisted_running", "unlisted_busy", "unlisted_blocked", "unlisted_cpus",
            "unlisted_rsses",
        ),
        ("function_names", "function_counts", "function_seconds", "function_runs", "function_run_seconds"),
        (
            "graphs", "graph_sessions", "graph_nodes", "graph_succeeded", "graph_failed", "graph_cancelled",
            "graph_assigned", "graph_start_times", "graph_end_times", "graph_running",
        ),
        (
            "managers", "manager_kinds", "manager_hosts", "manager_maximums", "manager_desired", "manager_joined",
            "manager_starting", "manager_draining", "manager_reasons", "manager_failures", "manager_pauses",
        ),
        ("offer_managers", "offer_capabilities", "offer_runtimes"),
        ("waiting_capabilities", "waiting_tasks", "waiting_shortages"),
        ("duration_bounds", "run_buckets", "wait_buckets"),
    )  # fmt: skip
    OPTIONAL: ClassVar[frozenset[str]] = frozenset((*COLUMNS[3][1:], *COLUMNS[4][1:]))
    """Those of agents and workers, but the first."""

    incarnation: int
    at: float
    address: str = ""
    snapshot: bool = False
    uptime: float = 0.0
    cpu: float = 0.0
    rss: int = 0
    waiting: int = 0
    held: int = 0
    assigned: int = 0
    succeeded: int = 0
    raised: int = 0
    failed: int = 0
    cancelled: int = 0
    not_found: int = 0
    lost_runs: int = 0
    sent_names: Sequence[str] = ()
    sent_counts: Sequence[int] = ()
    received_names: Sequence[str] = ()
    received_counts: Sequence[int] = ()
    client_sessions: Sequence[int] = ()
    client_names: Sequence[str] = ()
    client_hosts: Sequence[str] = ()
    client_tasks: Sequence[int] = ()
    agents: Sequence[int] = ()
    agent_names: Sequence[str] = ()
    agent_hosts: Sequence[str] = ()
    agent_workers: Sequence[int] = ()
    agent_queue_sizes: Sequence[int] = ()
    agent_capabilities: Sequence[str] = ()
    agent_runtimes: Sequence[str] = ()
    agent_cpus: Sequence[float] = ()
    agent_rsses: Sequence[int] = ()
    agent_free: Sequence[int] = ()
    agent_assigned: Sequence[int] = ()
    agent_queued: Sequence[int] = ()
    agent_round_trips: Sequence[float] = ()
    agent_status_ages: Sequence[float] = ()
    worker_agents: Sequence[int] = ()
    worker_names: Sequence[str] = ()
    worker_pids: Sequence[int] = ()
    worker_states: Sequence[int] = ()
    worker_runs: Sequence[int] = ()
    worker_cpus: Sequence[float] = ()
    worker_rsses: Sequence[int] = ()
    worker_queues: Sequence[int] = ()
    function_names: Sequence[str] = ()
    function_counts: Sequence[int] = ()
    function_seconds: Sequence[float] = ()
    graphs: Sequence[int] = ()
    graph_sessions: Sequence[int] = ()
    graph_nodes: Sequence[int] = ()
    graph_succeeded: Sequence[int] = ()
    graph_failed: Sequence[int] = ()
    graph_cancelled: Sequence[int] = ()
    graph_assigned: Sequence[int] = ()
    graph_start_times: Sequence[float] = ()
    graph_end_times: Sequence[float] = ()
    graphs_ended: int = 0
    agent_managers: Sequence[str] = ()
    agent_units: Sequence[str] = ()
    agent_draining: Sequence[bool] = ()
    managers: Sequence[str] = ()
    manager_kinds: Sequence[str] = ()
    manager_hosts: Sequence[str] = ()
    manager_maximums: Sequence[int] = ()
    manager_desired: Sequence[int] = ()
    manager_joined: Sequence[int] = ()
    manager_starting: Sequence[int] = ()
    manager_draining: Sequence[int] = ()
    manager_reasons: Sequence[str] = ()
    manager_failures: Sequence[str] = ()
    manager_pauses: Sequence[float] = ()
    offer_managers: Sequence[str] = ()
    offer_capabilities: Sequence[str] = ()
    offer_runtimes: Sequence[str] = ()
    refusal: str = ""
    sessions: int = 0
    worker_seconds: Sequence[float] = ()
    heartbeat_seconds: float = 0.0
    cpu_seconds: float = 0.0
    function_runs: Sequence[int] = ()
    function_run_seconds: Sequence[float] = ()
    waiting_capabilities: Sequence[str] = ()
    waiting_tasks: Sequence[int] = ()
    duration_bounds: Sequence[float] = ()
    run_buckets: Sequence[int] = ()
    wait_buckets: Sequence[int] = ()
    runs: int = 0
    run_seconds: float = 0.0
    waits: int = 0
    wait_seconds: float = 0.0
    agent_loads: Sequence[float] = ()
    agent_disks_free: Sequence[int] = ()
    agent_shared_free: Sequence[int] = ()
    waiting_shortages: Sequence[str] = ()
    graph_running: Sequence[int] = ()
    unlisted_agents: Sequence[int] = ()
    unlisted_running: Sequence[int] = ()
    unlisted_busy: Sequence[int] = ()
    unlisted_blocked: Sequence[int] = ()
    unlisted_cpus: Sequence[float] = ()
    unlisted_rsses: Sequence[int] = ()
    exclusive: int = 0
    reserved_agents: Sequence[int] = ()


def changes(status: MonitorStatus, before: MonitorStatus) -> MonitorStatus:
    """The status without the OPTIONAL columns that are as in the one before, and without `worker_seconds`.

    A monitor that has heard the one before has seen since when each run goes on.
    """
    columns = MonitorStatus.OPTIONAL
    same: dict[str, Any] = {column: () for column in columns if getattr(status, column) == getattr(before, column)}
    return replace(status, **same | {"worker_seconds": ()})


def completed(status: MonitorStatus, before: MonitorStatus | None) -> MonitorStatus | None:
    """The status with the columns that `changes` has left out; None if those of the one before do not fit."""
    if before is not None and not status.worker_seconds:
        before = replace(before, worker_seconds=(0.0,) * len(status.worker_states))
    left_out: dict[str, Any] = {}
    for columns in MonitorStatus.COLUMNS:
        for column in MonitorStatus.OPTIONAL.intersection(columns):
            if len(getattr(status, column)) != (size := len(getattr(status, columns[0]))):
                left_out[column] = getattr(before, column, ())
                if len(left_out[column]) != size:
                    return None
    return replace(status, **left_out)


@dataclass(frozen=True, slots=True)
class TaskEvents:
    """What happened to tasks, in batches and in order, and what the log says; times are seconds since 1970.

    A batch is a step, its subject, a time and so many tasks: `batches` holds one PACKED_BATCH for each. `tasks` holds
    the packed ids of all batches one behind the other, `runs` the run of the first task of each ASSIGNED one;
    `statuses` (one byte each) and `profiles` are those of the ENDED and AGAIN ones. These columns, and `edges`, are
    byte planes.
    The `group_…` columns describe groups before a batch names them. The `edge_…` columns say of each piece of a graph
    that was submitted which graph it is, the id of the graph's first node, and how many of the PACKED_EDGE records of
    `edges` are of this piece. The numbers of texts, and of what tasks have printed, grow while the scheduler runs.
    If there is more than one message may have, it `goes_on` in the next one.
    """

    COLUMNS: ClassVar[tuple[tuple[str, ...], ...]] = (
        (
            "group_numbers",
            "group_functions",
            "group_sessions",
            "group_priorities",
            "group_capabilities",
            "group_runtimes",
            "group_clients",
        ),
        ("text_numbers", "text_times", "text_levels", "text_kinds", "text_tasks", "text_subjects", "texts"),
        ("printed_numbers", "printed_tasks", "printed_attempts", "printed"),
        ("edge_graphs", "edge_first_tasks", "edge_counts"),
    )

    group_numbers: Sequence[int] = ()
    group_functions: Sequence[str] = ()
    group_sessions: Sequence[int] = ()
    group_priorities: Sequence[int] = ()
    group_capabilities: Sequence[str] = ()
    group_runtimes: Sequence[str] = ()
    since: float = 0.0
    batches: bytes = b""
    tasks: bytes = b""
    statuses: bytes = b""
    profiles: bytes = b""
    text_numbers: Sequence[int] = ()
    text_times: Sequence[float] = ()
    text_levels: Sequence[int] = ()
    text_kinds: Sequence[int] = ()
    text_tasks: Sequence[int] = ()
    text_subjects: Sequence[str] = ()
    texts: Sequence[str] = ()
    printed_numbers: Sequence[int] = ()
    printed_tasks: Sequence[int] = ()
    printed_attempts: Sequence[int] = ()
    printed: Sequence[str] = ()
    group_clients: Sequence[str] = ()
    edge_graphs: Sequence[int] = ()
    edge_first_tasks: Sequence[int] = ()
    edge_counts: Sequence[int] = ()
    edges: bytes = b""
    runs: bytes = b""
    goes_on: bool = False


@dataclass(frozen=True, slots=True)
class MonitorHistory:
    """What the scheduler remembers for monitors that subscribe late; times are seconds since 1970.

    The last failures with their errors, the last events of each kind, what tasks printed last, figures of the last ten
    minutes, and RunFigures. Failures and events have the numbers that they had as texts of TaskEvents.
    `failure_profiles` holds one packed profile for each. `forgotten_functions` had more failures, the last one then.
    """

    COLUMNS: ClassVar[tuple[tuple[str, ...], ...]] = (
        (
            "failure_numbers", "failure_times", "failure_tasks", "failure_functions", "failure_sessions",
            "failure_clients", "failure_agents", "failure_agent_names", "failure_statuses", "failures",
        ),
        (
            "event_numbers", "event_times", "event_levels", "event_kinds", "event_tasks", "event_subjects", "events",
        ),
        (
            "figure_times", "figure_ended", "figure_waiting", "figure_assigned", "figure_running", "figure_cpus",
            "figure_rsses",
        ),
        ("printed_numbers", "printed_tasks", "printed_attempts", "printed"),
        ("run_functions", "run_hosts", "run_counts", "run_seconds", "run_squares", "run_failures"),
        (
            "growth_functions", "growth_agents", "growth_pids", "growth_peaks", "growth_runs", "growth_raised",
            "growth_sizes",
        ),
        ("forgotten_functions", "forgotten_times"),
    )  # fmt: skip

    failure_numbers: Sequence[int] = ()
    failure_times: Sequence[float] = ()
    failure_tasks: Sequence[int] = ()
    failure_functions: Sequence[str] = ()
    failure_sessions: Sequence[int] = ()
    failure_clients: Sequence[str] = ()
    failure_agents: Sequence[int] = ()
    failure_agent_names: Sequence[str] = ()
    failure_statuses: Sequence[int] = ()
    failure_profiles: bytes = b""
    failures: Sequence[str] = ()
    event_numbers: Sequence[int] = ()
    event_times: Sequence[float] = ()
    event_levels: Sequence[int] = ()
    event_kinds: Sequence[int] = ()
    event_tasks: Sequence[int] = ()
    event_subjects: Sequence[str] = ()
    events: Sequence[str] = ()
    figure_times: Sequence[float] = ()
    figure_ended: Sequence[int] = ()
    figure_waiting: Sequence[int] = ()
    figure_assigned: Sequence[int] = ()
    figure_running: Sequence[int] = ()
    figure_cpus: Sequence[float] = ()
    figure_rsses: Sequence[int] = ()
    printed_numbers: Sequence[int] = ()
    printed_tasks: Sequence[int] = ()
    printed_attempts: Sequence[int] = ()
    printed: Sequence[str] = ()
    run_functions: Sequence[str] = ()
    run_hosts: Sequence[str] = ()
    run_counts: Sequence[int] = ()
    run_seconds: Sequence[float] = ()
    run_squares: Sequence[float] = ()
    run_failures: Sequence[float] = ()
    growth_functions: Sequence[str] = ()
    growth_agents: Sequence[int] = ()
    growth_pids: Sequence[int] = ()
    growth_peaks: Sequence[int] = ()
    growth_runs: Sequence[int] = ()
    growth_raised: Sequence[int] = ()
    growth_sizes: Sequence[int] = ()
    forgotten_functions: Sequence[str] = ()
    forgotten_times: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class NeedStorageStatus:
    """The scheduler requests a StorageStatus; it does so only while monitors are subscribed."""


@dataclass(frozen=True, slots=True)
class StorageStatus:
    """Totals of an object storage server, sizes in bytes. The scheduler publishes it with its own `answer_seconds`.

    `bytes` is what the memory limit counts: complete objects in memory, objects being written, deleted ones that are
    still mapped. `recyclable_bytes` is memory kept for the next object. `hits` and `misses` are reads of objects in
    memory and on disk, `unknown` reads of objects that do not exist. `replicas` counts the objects that only other
    `hosts` have, `fetched_bytes_total` the bytes that were fetched from them; `copies` and `copy_bytes` are what this
    server has of them for the case that their host is lost. `refused_lately` counts the writes of the last ten minutes
    for which there was no room; `answer_seconds` is how long the server took to answer, at least. The `biggest_…`
    columns describe the biggest of the 20,000 newest objects, each named by a hash of its id: the id grants access.
    """

    COLUMNS: ClassVar[tuple[tuple[str, ...], ...]] = (
        ("biggest_names", "biggest_sessions", "biggest_sizes", "biggest_in_memory", "biggest_remote"),
    )

    objects: int
    writing: int
    sessions: int
    peers: int
    bytes: int
    memory_limit: int
    refused: int
    writing_bytes: int
    pinned_bytes: int
    recyclable_bytes: int
    spilled: int
    spilled_bytes: int
    spilled_bytes_total: int
    loaded_bytes_total: int
    hits: int
    misses: int
    unknown: int
    waiting: int
    biggest_names: Sequence[str] = ()
    biggest_sessions: Sequence[int] = ()
    biggest_sizes: Sequence[int] = ()
    biggest_in_memory: Sequence[bool] = ()
    biggest_remote: Sequence[bool] = ()
    hosts: int = 0
    replicas: int = 0
    replica_bytes: int = 0
    fetched_bytes_total: int = 0
    copies: int = 0
    copy_bytes: int = 0
    refused_lately: int = 0
    answer_seconds: float = 0.0


MonitorMessage = MonitorStatus | TaskEvents | MonitorHistory | StorageStatus
