"""A scheduler's figures as Prometheus reads them: names, and a page of its own outside of any event loop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from scaler_protocol.addresses import Address
from scaler_protocol.errors import AddressError
from scaler_protocol.monitoring import MonitorStatus

WORKER_STATES = ("starting", "idle", "running", "blocked", "stopping", "draining")


def families(status: MonitorStatus) -> Iterator[Metric]:
    """The metrics of a status: units are seconds, bytes and cores."""
    yield from _scheduler(status)
    yield from _tasks(status)
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
    yield GaugeMetricFamily("scaler_clients", "Connected clients.", value=sum(map(bool, status.client_names)))
    yield from _agents(status)
    yield from _functions(status)


def _scheduler(status: MonitorStatus) -> Iterator[Metric]:
    yield GaugeMetricFamily("scaler_status_timestamp_seconds", "When these figures were taken.", value=status.at)
    yield GaugeMetricFamily("scaler_scheduler_uptime_seconds", "Since the scheduler began.", value=status.uptime)
    yield GaugeMetricFamily("scaler_scheduler_cpu_cores", "CPU that the scheduler uses.", value=status.cpu)
    yield GaugeMetricFamily(
        "scaler_scheduler_resident_memory_bytes", "Memory that the scheduler uses.", value=status.rss
    )


def _tasks(status: MonitorStatus) -> Iterator[Metric]:
    states = ("waiting", "held", "assigned")
    yield _gauge("scaler_tasks", "Tasks now.", ("state",), states, (status.waiting, status.held, status.assigned))
    outcomes = ("success", "raised", "failed", "cancelled")
    ended = (status.succeeded, status.raised, status.failed, status.cancelled)
    yield _counter("scaler_tasks_ended", "Tasks that have ended.", ("outcome",), outcomes, ended)
    yield CounterMetricFamily("scaler_runs_lost", "Runs that died with worker or host.", value=status.lost_runs)


def _agents(status: MonitorStatus) -> Iterator[Metric]:
    agents = list(zip(status.agent_names, status.agent_hosts, strict=True))
    labels = ("agent", "host")
    positions = {number: position for position, number in enumerate(status.agents)}
    cpus, memory = [0.0] * len(agents), [0] * len(agents)
    for number, cpu, rss in zip(status.worker_agents, status.worker_cpus, status.worker_rsses, strict=True):
        cpus[positions[number]] += cpu
        memory[positions[number]] += rss
    states = Counter(status.worker_states)
    yield GaugeMetricFamily("scaler_agents", "Connected agents.", value=len(agents))
    counts = [states[number] for number in range(len(WORKER_STATES))]
    yield _gauge("scaler_workers", "Workers by what they do.", ("state",), WORKER_STATES, counts)
    for name, text, values in (
        ("workers", "Workers of an agent.", status.agent_sizes),
        ("runs", "Tasks that an agent has.", status.agent_sents),
        ("cpu_cores", "CPU that the agent itself uses.", status.agent_cpus),
        ("resident_memory_bytes", "Memory that the agent itself uses.", status.agent_rsses),
        ("worker_cpu_cores", "CPU that its workers use.", cpus),
        ("worker_resident_memory_bytes", "Memory that its workers use.", memory),
        ("host_free_memory_bytes", "Free memory of its host.", status.agent_frees),
        ("lag_seconds", "From the scheduler to the agent and back.", status.agent_lags),
        ("silence_seconds", "Since the agent's last report.", status.agent_silences),
    ):
        yield _gauge(f"scaler_agent_{name}", text, labels, agents, values)


def _functions(status: MonitorStatus) -> Iterator[Metric]:
    counts: Counter[str] = Counter()
    seconds: dict[str, float] = {}
    for name, count, mean in zip(status.function_names, status.function_counts, status.function_seconds, strict=True):
        counts[name] += count
        seconds.setdefault(name, mean)  # the one that was used last
    yield _counter("scaler_function_tasks", "Tasks that call a function.", ("function",), counts, counts.values())
    yield _gauge("scaler_function_duration_seconds", "Running mean.", ("function",), seconds, seconds.values())


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
    """Gives a registry the metrics of the newest status, if there is one."""

    def __init__(self, newest: Callable[[], MonitorStatus | None]) -> None:
        self._newest = newest

    def collect(self) -> Iterable[Metric]:
        """The metrics of now."""
        status = self._newest()
        return families(status) if status is not None else ()


class MetricsPage:
    """`/metrics` at an address, in a thread of its own; raises AddressError where it cannot listen."""

    def __init__(self, address: Address, newest: Callable[[], MonitorStatus | None]) -> None:
        registry = CollectorRegistry()
        registry.register(StatusCollector(newest))
        try:
            self._server, self._thread = start_http_server(address.port, address.host, registry)
        except OSError as error:
            where = str(address).removeprefix("tcp://")
            raise AddressError(f"cannot serve metrics at {where}: {error.strerror or error}") from None
        self.port: int = self._server.server_port

    def close(self) -> None:
        """Free the address."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
