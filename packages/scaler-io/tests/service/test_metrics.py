"""Metrics: names and values as Prometheus's own parser reads them."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from scaler_io.service.metrics import families
from scaler_io.service.metrics_page import READERS_MOST, MetricsPage
from scaler_io.service.options import http_address
from scaler_io.transport.endpoint import ListenError
from scaler_protocol.addresses import Address
from scaler_protocol.monitoring import MonitorStatus, StorageStatus
from support.waiting import wait_until

STATUS = MonitorStatus(
    5, 1000.0, cpu=0.5, cpu_seconds=2.5, rss=7, waiting=4, held=1, assigned=2, succeeded=10, raised=3, cancelled=6,
    lost_runs=8,
    sent_names=("Run",), sent_counts=(9,), client_sessions=(1, 2, 3, 4),
    client_names=("a", "", "ann@vm train.py 41", "ann@vm train.py 42"), client_hosts=("h", "", "vm", "vm"),
    client_tasks=(1, 1, 2, 3), agents=(3,), agent_names=("vm:1",), agent_hosts=("vm",), agent_workers=(2,),
    agent_queue_sizes=(10,), agent_capabilities=("",), agent_runtimes=("",), agent_cpus=(0.1,), agent_rsses=(11,),
    agent_free=(12,), agent_assigned=(2,), agent_queued=(0,), agent_round_trips=(0.25,), agent_status_ages=(1.5,),
    agent_managers=("",), agent_units=("",), agent_draining=(False,),
    agent_loads=(1.5,), agent_disks_free=(13,), agent_shared_free=(14,),
    worker_agents=(3, 3), worker_names=("a", "b"), worker_pids=(1, 2), worker_states=(1, 2), worker_runs=(0, 5),
    worker_cpus=(0.5, 0.25), worker_rsses=(100, 200), worker_queues=(0, 0), worker_seconds=(1.0, 0.0),
    function_names=("f", 'g"\n', "f"), function_counts=(1, 2, 3), function_seconds=(0.5, 1.0, 0.0),
    function_runs=(4, 2, 1), function_run_seconds=(2.0, 3.0, 0.5),
    waiting_capabilities=("", "gpu=1"), waiting_tasks=(3, 1), waiting_shortages=("", ""),
    duration_bounds=(0.1, 1.0, 10.0), run_buckets=(2, 1, 3),
    wait_buckets=(0, 5, 0), runs=7, run_seconds=99.5, waits=5, wait_seconds=2.5,
    graphs=(1, 2, 3), graph_sessions=(1, 1, 1),
    graph_nodes=(10, 20, 5), graph_succeeded=(2, 3, 5), graph_failed=(1, 1, 0), graph_cancelled=(0, 4, 0),
    graph_assigned=(2, 1, 0), graph_running=(1, 1, 0),
    graph_start_times=(1.0, 2.0, 3.0), graph_end_times=(0.0, 0.0, 4.0), graphs_ended=7,
    managers=("grid",), manager_kinds=("slurm",), manager_hosts=("h",), manager_maximums=(-1,), manager_desired=(8,),
    manager_joined=(4,), manager_starting=(3,), manager_draining=(1,), manager_reasons=("work",),
    manager_failures=("no quota",), manager_pauses=(12.5,),
)  # fmt: skip
STORAGE = StorageStatus(
    objects=10, writing=2, sessions=1, peers=1, bytes=5000, memory_limit=8000, refused=3, writing_bytes=1000,
    pinned_bytes=70, recyclable_bytes=80, spilled=4, spilled_bytes=600, spilled_bytes_total=6000,
    loaded_bytes_total=5400, hits=30, misses=10, unknown=1, waiting=5, replicas=1, replica_bytes=900,
    fetched_bytes_total=40, copies=1, copy_bytes=800,
)  # fmt: skip


def read(port: int) -> dict[tuple[str, str], float]:
    """Every sample by name and by the values of its labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        text = answer.read().decode()
    return {
        (sample.name, "/".join(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_the_page_says_what_the_status_says() -> None:
    newest: list[tuple[MonitorStatus | None, StorageStatus | None]] = [(None, None)]
    page = MetricsPage(Address("127.0.0.1", 0), lambda: newest[-1])
    assert read(page.port) == {("scaler_up", ""): 0}
    newest.append((STATUS, None))
    assert not any("storage" in name or "object" in name for name, _ in read(page.port))
    newest.append((STATUS, STORAGE))
    found = read(page.port)
    expected = {
        ("scaler_up", ""): 1, ("scaler_scheduler_start_time_seconds", ""): STATUS.at - STATUS.uptime,
        ("scaler_tasks", "waiting"): 4, ("scaler_tasks", "held"): 1, ("scaler_tasks", "queued"): 1,
        ("scaler_tasks", "running"): 1,
        ("scaler_tasks_ended_total", "success"): 10, ("scaler_tasks_ended_total", "cancelled"): 6,
        ("scaler_runs_lost_total", ""): 8, ("scaler_messages_sent_total", "Run"): 9, ("scaler_clients", ""): 3,
        ("scaler_client_tasks", "a"): 1, ("scaler_client_tasks", "ann@vm train.py"): 5,
        ("scaler_scheduler_cpu_seconds_total", ""): 2.5,
        ("scaler_waiting_tasks", ""): 3, ("scaler_waiting_tasks", "gpu=1"): 1,
        ("scaler_task_run_seconds_bucket", "0.1"): 2, ("scaler_task_run_seconds_bucket", "1.0"): 3,
        ("scaler_task_run_seconds_bucket", "10.0"): 6, ("scaler_task_run_seconds_bucket", "+Inf"): 7,
        ("scaler_task_run_seconds_count", ""): 7, ("scaler_task_run_seconds_sum", ""): 99.5,
        ("scaler_task_wait_seconds_bucket", "1.0"): 5, ("scaler_task_wait_seconds_sum", ""): 2.5,
        ("scaler_scheduler_resident_memory_bytes", ""): 7,
        ("scaler_agents", ""): 1, ("scaler_workers", "idle"): 1, ("scaler_workers", "busy"): 1,
        ("scaler_worker_processes", "running"): 1, ("scaler_worker_processes", "blocked"): 0,
        ("scaler_agent_worker_cpu_cores", "vm"): 0.75,
        ("scaler_agent_worker_resident_memory_bytes", "vm"): 300,
        ("scaler_agent_host_load", "vm"): 1.5, ("scaler_agent_host_free_disk_bytes", "vm"): 13,
        ("scaler_agent_host_free_shared_memory_bytes", "vm"): 14,
        ("scaler_agent_heartbeat_round_trip_seconds", "vm"): 0.25,
        ("scaler_function_tasks_total", "f"): 4, ("scaler_function_tasks_total", 'g"\\n'): 2,
        ("scaler_function_run_seconds_sum", "f"): 2.5, ("scaler_function_run_seconds_count", "f"): 5,
        ("scaler_graphs", ""): 2,
        ("scaler_graphs_ended_total", ""): 7,
        ("scaler_manager_workers", "grid/desired"): 8, ("scaler_manager_workers", "grid/joined"): 4,
        ("scaler_manager_workers", "grid/starting"): 3, ("scaler_manager_workers", "grid/draining"): 1,
        ("scaler_manager_maximum_workers", "grid"): -1, ("scaler_manager_pause_seconds", "grid"): 12.5,
        ("scaler_graph_nodes", "done"): 5, ("scaler_graph_nodes", "failed"): 2, ("scaler_graph_nodes", "cancelled"): 4,
        ("scaler_graph_nodes", "running"): 2, ("scaler_graph_nodes", "queued"): 1,
        ("scaler_graph_nodes", "waiting"): 16, ("scaler_objects", "memory"): 6,
        ("scaler_objects", "disk"): 4, ("scaler_objects", "writing"): 2, ("scaler_object_bytes", "memory"): 4000,
        ("scaler_objects", "remote"): 1, ("scaler_object_bytes", "remote"): 900,
        ("scaler_storage_fetched_bytes_total", ""): 40, ("scaler_object_bytes", "disk"): 600,
        ("scaler_object_bytes", "writing"): 1000,
        ("scaler_storage_memory_limit_bytes", ""): 8000, ("scaler_storage_mapped_bytes", ""): 70,
        ("scaler_storage_recyclable_bytes", ""): 80, ("scaler_storage_waiting_writes", ""): 5,
        ("scaler_storage_copies", ""): 1, ("scaler_storage_copy_bytes", ""): 800,
        ("scaler_storage_spilled_bytes_total", ""): 6000, ("scaler_storage_loaded_bytes_total", ""): 5400,
        ("scaler_storage_refused_writes_total", ""): 3, ("scaler_storage_reads_total", "memory"): 30,
        ("scaler_storage_reads_total", "disk"): 10, ("scaler_storage_reads_total", "unknown"): 1,
    }  # fmt: skip
    assert found.items() >= expected.items()
    page.close()
    with pytest.raises(OSError):
        read(page.port)


def test_the_dashboard_asks_for_what_there_is() -> None:
    """The example for Grafana in docs/."""
    dashboard = json.loads((Path(__file__).resolve().parents[4] / "docs" / "grafana.json").read_text("utf-8"))
    there = {sample.name for family in families(STATUS, STORAGE) for sample in family.samples}
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked = {name for query in queries for name in re.findall(r"scaler_\w+", query)}
    assert len(queries) >= 8 and asked <= there


def test_silent_readers_take_few_threads_and_delay_nobody() -> None:
    """The page is in the scheduler's process, whose threads and descriptors clients need."""
    page, before = MetricsPage(Address("127.0.0.1", 0), lambda: (None, None)), threading.active_count()
    with contextlib.ExitStack() as stack:
        silent = [socket.create_connection(("127.0.0.1", page.port)) for _ in range(3 * READERS_MOST)]
        for each in silent:
            stack.enter_context(each).sendall(b"GET /metrics HTTP/1.1\r\n")
        assert read(page.port) == {("scaler_up", ""): 0}
        silent[0].settimeout(20)
        assert silent[0].recv(1000) == b"", "the oldest is closed"
        wait_until(lambda: threading.active_count() <= before + READERS_MOST, "few threads")
    page.close()


def test_an_address_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ListenError, match=f"cannot serve metrics at 127.0.0.1:{port}: Address already in use"):
            MetricsPage(Address("127.0.0.1", port), lambda: (None, None))


def test_addresses_of_pages() -> None:
    assert http_address("127.0.0.1:9100") == Address("127.0.0.1", 9100)
    assert http_address("[::1]:9100") == Address("::1", 9100)
    with pytest.raises(ValueError, match=r"address 'nine': write host:port"):
        http_address("nine")
