"""What type checkers, third parties and readers of signatures see, and that the library keeps quiet."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import scaler
from scaler import Client, ObjectReference, ScalerFuture, SchedulerClusterCombo, Serializer
from support.clusters import LocalCluster
from support.processes import run_script

ROOT = Path(__file__).resolve().parent.parent

TYPED = """
import math
from concurrent.futures import Future, as_completed, wait
from scaler import Client, ObjectReference, ScalerFuture

def text(number: int) -> str:
    return str(number)

def check(client: Client) -> None:
    reveal_type(client.submit(text, 1))
    reveal_type(client.submit(text, 1).result())
    reveal_type(client.submit_verbose(text, (1,), {}).result())
    reveal_type(client.submit(math.sqrt, 2).result())
    reveal_type(client.map(text, [1, 2]))
    reveal_type(client.starmap(text, [(1,)]))
    reveal_type(client.send_object([1]))
    reveal_type(client.executor().submit(text, 1).result())
    reveal_type([future.result() for future in as_completed([client.submit(text, 1)])])
    reveal_type([future.result() for future in wait([client.submit(text, 1)]).done])
    future: Future[str] = client.submit(text, 1)
    wrong: ScalerFuture[int] = client.submit(text, 1)

async def awaiting(client: Client) -> None:
    reveal_type(await client.submit(text, 1))
"""

REVEALED = [
    "ScalerFuture[str]",
    "str",
    "str",
    "float",
    "list[str]",
    "list[str]",
    "ObjectReference[list[int]]",
    "str",
    "list[str]",
    "list[str]",
    "str",
]

CLIENT_PARAMETERS = """
    address profiling timeout_seconds heartbeat_interval_seconds serializer stream_output object_storage_address
    security_config
"""

COMBO_PARAMETERS = """
    n_workers address object_storage_address monitor_address per_worker_capabilities worker_io_threads
    scheduler_io_threads max_number_of_tasks_waiting heartbeat_interval_seconds client_timeout_seconds
    worker_timeout_seconds object_retention_seconds task_timeout_seconds death_timeout_seconds load_balance_seconds
    load_balance_trigger_times garbage_collect_interval_seconds trim_memory_threshold_bytes per_worker_task_queue_size
    hard_processor_suspend protected scaler_policy event_loop logging_paths logging_level logging_config_file
    worker_manager_id security_config per_worker_queue_size
"""

DEEP: dict[str, dict[str, Any]] = {
    "scaler.cluster.combo": {"SchedulerClusterCombo": SchedulerClusterCombo},
    "scaler.client.client": {"Client": Client},
    "scaler.client.future": {"ScalerFuture": ScalerFuture},
    "scaler.client.object_reference": {"ObjectReference": ObjectReference},
    "scaler.client.serializer.mixins": {"Serializer": Serializer},
}

QUIET = """
import logging
import sys
from scaler import Client

assert any(isinstance(handler, logging.NullHandler) for handler in logging.getLogger("scaler").handlers)
assert not logging.getLogger().handlers
try:
    Client(address="tcp://127.0.0.1:1", timeout_seconds=0.2)
except ConnectionError:
    pass
with Client(address=sys.argv[1]) as client:
    future = client.submit(int, "x")
    assert isinstance(future.exception(20), ValueError)
    assert client.submit(print, "heard by nobody").result(20) is None
"""


def test_results_are_typed(tmp_path: Path) -> None:
    source = tmp_path / "typed.py"
    source.write_text(TYPED, "utf-8")
    command = [sys.executable, "-m", "mypy", "--no-error-summary", str(source)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", timeout=60)
    revealed = re.findall(r'Revealed type is "(.*)"', done.stdout)
    plain = [re.sub(r"\b(builtins|scaler_client(?:\.\w+)*)\.", "", text) for text in revealed]
    assert plain == REVEALED, done.stdout + done.stderr
    wrong = [line for line in done.stdout.splitlines() if "error:" in line]
    assert len(wrong) == 1 and "wrong: ScalerFuture[int]" in TYPED.splitlines()[int(wrong[0].split(":")[1]) - 1], wrong


def test_clients_can_be_split_off_by_signature() -> None:
    names = list(inspect.signature(Client).parameters)
    expected = CLIENT_PARAMETERS.split()
    assert names[: len(expected)] == expected
    assert set(COMBO_PARAMETERS.split()) <= set(inspect.signature(SchedulerClusterCombo).parameters)
    kinds = {parameter.kind for parameter in inspect.signature(SchedulerClusterCombo).parameters.values()}
    assert inspect.Parameter.VAR_KEYWORD not in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds


def test_defaults_are_those_that_programs_rely_on() -> None:
    client = inspect.signature(Client).parameters
    assert (client["address"].default, client["timeout_seconds"].default) == (None, 60)
    assert (client["profiling"].default, client["stream_output"].default) == (False, False)
    combo = inspect.signature(SchedulerClusterCombo).parameters
    assert combo["n_workers"].default is inspect.Parameter.empty
    expected = {"address": None, "protected": True, "event_loop": "builtin", "per_worker_task_queue_size": 1000}
    assert {name: combo[name].default for name in expected} == expected


@pytest.mark.parametrize(
    ("method", "names"),
    [
        ("submit", "fn args kwargs"),
        ("submit_verbose", "fn args kwargs capabilities reserialize priority retries task_timeout_seconds"),
        ("map", "fn iterables capabilities reserialize priority retries task_timeout_seconds speculate"),
        ("starmap", "fn iterable capabilities reserialize priority retries task_timeout_seconds speculate"),
        ("get", "graph keys block capabilities"),
        ("send_object", "obj name"),
        ("clear", ""),
        ("disconnect", ""),
        ("shutdown", ""),
        ("workers", ""),
        ("wait_for_workers", "n timeout"),
        ("executor", ""),
    ],
)
def test_methods_have_real_named_parameters(method: str, names: str) -> None:
    parameters = list(inspect.signature(getattr(Client, method)).parameters)[1:]
    assert parameters[: len(names.split())] == names.split()


def test_deep_paths_lead_to_the_same_names() -> None:
    for module, names in DEEP.items():
        for name, value in names.items():
            assert getattr(importlib.import_module(module), name) is value, f"{module}.{name}"


def test_the_front_door() -> None:
    assert Client.__module__ == "scaler_client.api.client"
    assert scaler.__version__ == importlib.import_module("importlib.metadata").version("scaler-client")
    names = {"Client", "ScalerFuture", "ObjectReference", "Serializer", "SchedulerClusterCombo", "__version__"}
    assert names <= set(scaler.__all__)


def test_importing_is_cheap() -> None:
    """Neither ZeroMQ nor the codec nor asyncio: a program that only imports the front door starts at once."""
    code = "import scaler, sys; print({'zmq', 'scaler_protocol.codec', 'asyncio'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", timeout=30)
    assert (done.stdout, done.stderr) == ("set()\n", "")


def test_the_library_prints_nothing(cluster: LocalCluster, tmp_path: Path) -> None:
    script = tmp_path / "quiet.py"
    script.write_text(QUIET, "utf-8")
    assert run_script(script, cluster.address) == ""
