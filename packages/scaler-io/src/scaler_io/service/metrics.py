"""Prometheus metrics from the scheduler's published status.

The scheduler and the web page serve the same metrics, so this module is below both.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from scaler_protocol import status_counts
from scaler_protocol.monitoring import MonitorStatus, StorageStatus
from scaler_protocol.safe_text import escaped_message

Newest = Callable[[], tuple[MonitorStatus | None, StorageStatus | None]]
"""Returns the last status of the scheduler, None if it is silent, and of object storage."""
_DEFAULT_NAME = re.compile(r"(\S+@\S+ .+) \d+")
"""Of a client: with its process id it would make series without end."""
PROCESS_STATES = ("starting", "idle", "running", "blocked", "stopping", "draining")


def families(status: MonitorStatus, storage: StorageStatus | None) -> Iterator[Metric]:
    """The metrics of a status, and of object storage if it has answered; units are seconds, bytes and cores."""
    status = escaped_message(status)
    yield from _scheduler(status)
    yield from _tasks(status)
    yield from _durations(status)
    yield _counter(
        "scaler_messages_sent", "Messages of the scheduler.", ("type",), status.sent_names, status.sent_counts
    )
    yield _counter(
        "scaler_messages_received",
        "Messages to the scheduler.",
        ("type",),
        status.received_names,
        status.received_counts,
    )
    yield from _clients(status)
    yield from _agents(status)
    yield from _managers(status)
    yield from _functions(status)
    yield from _graphs(status)
    if storage is not None:
        yield from _storage(storage)


def _scheduler(status: MonitorStatus) -> Iterator[Metric]:
    yield GaugeMetricFamily("scaler_status_timestamp_seconds", "When these figures were taken.", value=status.at)
    yield GaugeMetricFamily(
        "scaler_scheduler_start_time_seconds", "When the scheduler began.", value=status.at - status.uptime
    )
    yield CounterMetricFamily(
        "scaler_scheduler_cpu_seconds", "CPU time of the scheduler's process.", value=status.cpu_seconds
    )
    text = "Whether the scheduler refuses new work, since its journal cannot be written."
    yield GaugeMetricFamily("scaler_scheduler_refuses_new_work", text, value=bool(status.refusal))
    yield GaugeMetricFamily(
        "scaler_scheduler_resident_memory_bytes", "Memory that the scheduler uses.", value=status.rss
    )


def _tasks(status: MonitorStatus) -> Iterator[Metric]:
    states = ("waiting", "held", "queued", "running")
    counts = status.waiting, status.held, status_counts.queued(status), status_counts.running(status)
    yield _gauge("scaler_tasks", "Tasks now.", ("state",), states, counts)
    text = "Tasks that are ready to run, by the capabilities that they need."
    needs = status.waiting_capabilities
    yield _gauge("scaler_waiting_tasks", text, ("capabilities",), needs, status.waiting_tasks)
    outcomes = ("success", "raised", "failed", "cancelled")
    ended = (status.succeeded, status.raised, status.failed, status.cancelled)
    yield _counter("scaler_tasks_ended", "Tasks that have ended.", ("outcome",), outcomes, ended)
    yield CounterMetricFamily("scaler_runs_lost", "Runs that died with worker or host.", value=status.lost_runs)


def _durations(status: MonitorStatus) -> Iterator[Metric]:
    """What was measured while somebody listened to the scheduler."""
    for name, text, buckets, count, seconds in (
        ("run", "How long runs took.", status.run_buckets, status.runs, status.run_seconds),
        (
            "wait", "How long tasks waited until they were sent to a host.", status.wait_buckets, status.waits,
            status.wait_seconds,
        ),
    ):  # fmt: skip
        family = HistogramMetricFamily(f"scaler_task_{name}_seconds", text)
        ends = zip(map(str, status.duration_bounds), accumulate(buckets), strict=True)
        family.add_metric([], buckets=[*ends, ("+Inf", count)], sum_value=seconds)
        yield family


def _clients(status: MonitorStatus) -> Iterator[Metric]:
    yield GaugeMetricFamily("scaler_clients", "Connected clients.", value=status_counts.clients(status))
    tasks = Counter[str]()
    for name, count in zip(status.client_names, status.client_tasks, strict=True):
        if name:  # tasks that submit tasks have none
            tasks[_DEFAULT_NAME.sub(r"\1", name)] += count
    text = "Tasks that clients have not released, by the name of the client; default names without the process id."
    yield _gauge("scaler_client_tasks", text, ("client",), tasks, tasks.values())


def _agents(status: MonitorStatus) -> Iterator[Metric]:
    """Figures of the agents of each host: names of agents have process ids, which would make series without end."""
    positions = {number: position for position, number in enumerate(status.agents)}
    cpus, memory = [0.0] * len(positions), [0] * len(positions)
    for number, cpu, rss in status_counts.worker_usage(status):
        cpus[positions[number]] += cpu
        memory[positions[number]] += rss
    states = Counter(status.worker_states)
    yield GaugeMetricFamily("scaler_agents", "Connected agents.", value=len(positions))
    busy = status_counts.busy_workers(status)
    text, workers = "Workers that take tasks.", {"busy": busy, "idle": status_counts.workers(status) - busy}
    yield _gauge("scaler_workers", text, ("state",), workers, workers.values())
    text = (
        "Processes of listed workers by what they do; there are more than workers while tasks wait for tasks of theirs."
    )
    counts = [states[number] for number in range(len(PROCESS_STATES))]
    yield _gauge("scaler_worker_processes", text, ("state",), PROCESS_STATES, counts)
    for name, text, combine, values in (
        ("workers", "Workers of the agents of a host.", sum, status.agent_workers),
        ("runs", "Tasks that they have.", sum, status.agent_assigned),
        ("cpu_cores", "CPU that they themselves use.", sum, status.agent_cpus),
        ("resident_memory_bytes", "Memory that they themselves use.", sum, status.agent_rsses),
        ("worker_cpu_cores", "CPU that their workers use.", sum, cpus),
        ("worker_resident_memory_bytes", "Memory that their workers use.", sum, memory),
        ("host_free_memory_bytes", "Free memory of the host.", min, status.agent_free),
        ("host_load", "Mean load of the host in the last minute.", max, status.agent_loads),
        ("host_free_disk_bytes", "Free bytes for temporary files.", min, status.agent_disks_free),
        ("host_free_shared_memory_bytes", "Free bytes of shared memory.", min, status.agent_shared_free),
        ("heartbeat_round_trip_seconds", "Longest round trip of the last heartbeats.", max, status.agent_round_trips),
        ("status_age_seconds", "Longest time since an AgentStatus.", max, status.agent_status_ages),
    ):
        by_host: dict[str, list[float]] = defaultdict(list)
        for host, value in zip(status.agent_hosts, values, strict=True):
            by_host[host].append(value)
        yield _gauge(f"scaler_agent_{name}", text, ("host",), by_host, map(combine, by_host.values()))


def _managers(status: MonitorStatus) -> Iterator[Metric]:
    states = {
        "desired": status.manager_desired, "joined": status.manager_joined, "starting": status.manager_starting,
        "draining": status.manager_draining,
    }  # fmt: skip
    keys = [(manager, state) for state in states for manager in status.managers]
    text, values = "Workers of a worker manager.", [value for column in states.values() for value in column]
    yield _gauge("scaler_manager_workers", text, ("manager", "state"), keys, values)
    text = "The most workers that a manager starts, -1 for no limit."
    yield _gauge("scaler_manager_maximum_workers", text, ("manager",), status.managers, status.manager_maximums)
    text = "How long a manager starts nothing after failures."
    yield _gauge("scaler_manager_pause_seconds", text, ("manager",), status.managers, status.manager_pauses)


def _functions(status: MonitorStatus) -> Iterator[Metric]:
    counts: Counter[str] = Counter()
    runs: Counter[str] = Counter()
    seconds: dict[str, float] = defaultdict(float)
    for name, count, ended, took in zip(
        status.function_names, status.function_counts, status.function_runs, status.function_run_seconds, strict=True
    ):
        counts[name] += count
        runs[name] += ended
        seconds[name] += took
    yield _counter("scaler_function_tasks", "Tasks that call a function.", ("function",), counts, counts.values())
    summary = SummaryMetricFamily("scaler_function_run_seconds", "How long its runs took.", labels=("function",))
    for name, ended in runs.items():
        summary.add_metric([name], count_value=ended, sum_value=seconds[name])
    yield summary


def _graphs(status: MonitorStatus) -> Iterator[Metric]:
    living = [at for at, ended in enumerate(status.graph_end_times) if not ended]
    nodes, done, failed, cancelled, assigned, running = (
        sum(column[at] for at in living)
        for column in (
            status.graph_nodes, status.graph_succeeded, status.graph_failed, status.graph_cancelled,
            status.graph_assigned, status.graph_running,
        )
    )  # fmt: skip
    yield GaugeMetricFamily("scaler_graphs", "Graphs that are under way.", value=len(living))
    yield CounterMetricFamily("scaler_graphs_ended", "Graphs that have ended.", value=status.graphs_ended)
    states = {
        "done": done, "failed": failed, "cancelled": cancelled, "running": running,
        "queued": assigned - running, "waiting": nodes - done - failed - cancelled - assigned,
    }  # fmt: skip
    text = "Nodes of the graphs that are under way."
    yield _gauge("scaler_graph_nodes", text, ("state",), states, states.values())


def _storage(storage: StorageStatus) -> Iterator[Metric]:
    states = ("memory", "disk", "remote", "writing")
    here = storage.objects + storage.copies - storage.replicas - storage.spilled
    counts = (here, storage.spilled, storage.replicas, storage.writing)
    sizes = (storage.bytes - storage.writing_bytes, storage.spilled_bytes, storage.replica_bytes, storage.writing_bytes)
    yield _gauge("scaler_objects", "Objects by where they are.", ("state",), states, counts)
    yield _gauge("scaler_object_bytes", "Sizes of objects by where they are.", ("state",), states, sizes)
    for name, text, value in (
        ("memory_limit_bytes", "Memory that objects may take.", storage.memory_limit),
        ("mapped_bytes", "Memory of objects that processes have mapped.", storage.pinned_bytes),
        ("recyclable_bytes", "Memory that waits for the next object.", storage.recyclable_bytes),
        ("waiting_writes", "Objects that wait for room.", storage.waiting),
        ("copies", "Copies of results that are on other hosts.", storage.copies),
        ("copy_bytes", "Their sizes.", storage.copy_bytes),
    ):
        yield GaugeMetricFamily(f"scaler_storage_{name}", text, value=value)
    for name, text, value in (
        ("spilled_bytes", "Bytes that went to disk.", storage.spilled_bytes_total),
        ("loaded_bytes", "Bytes that came back from disk.", storage.loaded_bytes_total),
        ("fetched_bytes", "Bytes fetched from the hosts that had the only copy.", storage.fetched_bytes_total),
        ("refused_writes", "Objects for which there was no room.", storage.refused),
    ):
        yield CounterMetricFamily(f"scaler_storage_{name}", text, value=value)
    reads = {"memory": storage.hits, "disk": storage.misses, "unknown": storage.unknown}
    text = "Reads by where the object was found."
    yield _counter("scaler_storage_reads", text, ("source",), reads, reads.values())


def _gauge(
    name: str, text: str, labels: Sequence[str], keys: Iterable[str | tuple[str, ...]], values: Iterable[float]
) -> Metric:
    return _fill(GaugeMetricFamily(name, text, labels=labels), keys, values)


def _counter(name: str, text: str, labels: Sequence[str], keys: Iterable[str], values: Iterable[float]) -> Metric:
    return _fill(CounterMetricFamily(name, text, labels=labels), keys, values)


def _fill(
    family: GaugeMetricFamily | CounterMetricFamily, keys: Iterable[str | tuple[str, ...]], values: Iterable[float]
) -> Metric:
    for key, value in zip(keys, values, strict=True):
        family.add_metric([key] if isinstance(key, str) else list(key), value)
    return family


class StatusCollector(Collector):
    """Gives a registry the metrics of the last status; without one only that there is none."""

    def __init__(self, newest: Newest) -> None:
        self._newest = newest

    def collect(self) -> Iterable[Metric]:
        """The metrics of the last status."""
        status, storage = self._newest()
        yield GaugeMetricFamily("scaler_up", "Whether the scheduler answers.", value=status is not None)
        if status is not None:
            yield from families(status, storage)
