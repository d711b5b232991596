"""What a combo is given: nothing is started with what a service would refuse."""

from __future__ import annotations

import inspect
import os
import socket
from collections.abc import Callable, Mapping
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaler_client.api.local_cluster import SchedulerClusterCombo
from scaler_client.api.local_cluster_options import LocalClusterConfig
from scaler_protocol.errors import AddressError
from scaler_scheduler.service.options import COMMAND as SCHEDULER
from scaler_worker.config import COMMAND as CLUSTER

ADDRESS = "tcp://127.0.0.1:2345"
PARAMETERS = [each for each in inspect.signature(SchedulerClusterCombo).parameters.values() if each.name != "self"]
DEFAULTS: Mapping[str, Any] = {
    each.name: 2 if each.default is inspect.Parameter.empty else each.default for each in PARAMETERS
}


class Hostile:
    """Neither true nor false, and nothing that can be shown or compared."""

    def __bool__(self) -> bool:
        raise ValueError("ambiguous")

    def __repr__(self) -> str:
        raise ValueError("no repr")

    def __eq__(self, other: object) -> bool:
        raise ValueError("no equality")

    __hash__ = None  # type: ignore[assignment]


ODD: list[Any] = [
    *(
        "\ud800",
        "x" * 5000,
        "\0",
        "",
        "a=b",
        "-",
        "--help",
        b"",
        b"bytes",
        [],
        (),
        {},
        set(),
        [1, 2],
        object(),
        int,
        len,
    ),
    *(float("nan"), float("inf"), -0.0, 2**5000, 1j, Decimal("2.5"), Fraction(5, 2), Path("folder"), Hostile()),
    *(np.int64(3), np.float32(2.5), np.float64("nan"), np.bool_(True), np.array([1, 2]), ["\0"], ["\ud800"], [5]),
    *({"a=b": 1}, {"a,b": 1}, {" a": 1}, {"": 1}, {"gpu": 1.5}, {"gpu": -2}, {"gpu": -1, "linux": 3}, {1: 2}),
    *("tcp://127.0.0.1:1", "ipc:///tmp/x", "tcp://\ud800:1", "uvloop", "UVLOOP", "debug", "even", "capability"),
]
ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(st.characters(), max_size=5), st.sampled_from(ODD)
)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"address": "tcp://8.8.8.8:2345"}, "address is 'tcp://8.8.8.8:2345', which other hosts can reach"),
        ({"address": "tcp://0.0.0.0:2345"}, "address is 'tcp://0.0.0.0:2345', which other hosts can reach"),
        ({"address": ADDRESS, "object_storage_address": ADDRESS}, "object_storage_address is .*, which is also addr"),
        *(
            ({"object_storage_address": ADDRESS, name: value}, f"{name} is for the server at object_storage_address")
            for name, value in (
                ("memory_limit", 2**30), ("segment_directory", "s"), ("spill_directory", "s"), ("spill_limit", 1)
            )
        ),
        ({"spill_limit": 5}, "spill_limit is 5, but there is no spill_directory"),
        ({"journal_sync": "full"}, "journal_sync is 'full', but there is no journal"),
        ({"logging_config_file": "/no/such/file"}, "logging_config_file is '/no/such/file', and there is no such file"),
        ({"logging_config_file": "/"}, "logging_config_file is '/', and there is no such file"),
    ],
)  # fmt: skip
def test_what_the_scheduler_would_refuse_is_refused_by_the_caller(given: dict[str, Any], wanted: str) -> None:
    kind = AddressError if "other hosts" in wanted else ValueError
    with pytest.raises(kind, match=f"^{wanted}"):
        LocalClusterConfig.of({**DEFAULTS, **given})


def test_bytes_may_have_a_unit() -> None:
    found = LocalClusterConfig.of({**DEFAULTS, "memory_limit": "4GB", "memory_limit_per_worker": "512MiB"})
    assert (found.memory_limit, found.memory_limit_per_worker) == (4 * 10**9, 2**29)
    with pytest.raises(ValueError, match="memory_limit: '4 apples' is not a number of bytes, like 4000000000, 4GB"):
        LocalClusterConfig.of({**DEFAULTS, "memory_limit": "4 apples"})


def test_an_event_loop_that_is_not_installed_is_refused_by_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert LocalClusterConfig.of({**DEFAULTS, "event_loop": "builtin"}).event_loop == "builtin"
    with pytest.raises(ValueError, match="event_loop is 'uvloop', which is not installed: pip install"):
        LocalClusterConfig.of({**DEFAULTS, "event_loop": "uvloop"})


@settings(max_examples=400, deadline=None, derandomize=True)
@given(name=st.sampled_from(list(DEFAULTS)), value=ANYTHING)
def test_what_is_taken_is_understood_by_the_services_and_all_else_is_named(name: str, value: Any) -> None:
    try:
        found = LocalClusterConfig.of({**DEFAULTS, name: value})
    except (ValueError, TypeError) as error:
        assert name in str(error)
        return
    words = [ADDRESS, *found.scheduler_options()]
    for word in words:
        os.fsencode(word)
    SCHEDULER.read(words)
    if found.n_workers:
        CLUSTER.read([ADDRESS, *found.cluster_options()])


@pytest.mark.parametrize("name", [name for name in DEFAULTS if name != "protected"])
@pytest.mark.parametrize(
    "value", [Hostile(), float("nan"), np.array([1, 2]), 1j], ids=["hostile", "nan", "array", "1j"]
)
def test_nothing_is_started_with_nonsense(monkeypatch: pytest.MonkeyPatch, name: str, value: Any) -> None:
    monkeypatch.setattr("subprocess.Popen", lambda *args, **options: pytest.fail("it was started"))
    with pytest.raises((ValueError, TypeError), match=name):
        SchedulerClusterCombo(**{"n_workers": 2, name: value})


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"n_workers": 4097}, "n_workers is 4097, not a whole number from 0 to 4,096"),
        ({"n_workers": 2.0}, "n_workers is 2.0, not a whole number"),
        ({"client_timeout_seconds": 0}, "client_timeout_seconds is 0, not more than 0 seconds"),
        ({"logging_paths": "log"}, r"logging_paths is 'log', not a list of paths: write \['log'\]"),
        ({"logging_paths": [5]}, "logging_paths contains one that is 5"),
        ({"logging_level": "LOUD"}, "logging_level: 'LOUD' is not one of DEBUG"),
        ({"event_loop": "fast"}, "event_loop: 'fast' is not one of builtin, uvloop"),
        ({"spill_directory": b"folder"}, "spill_directory is b'folder', not a text"),
        ({"per_worker_capabilities": {"a=b": 1}}, "per_worker_capabilities is .*: "),
        ({"per_worker_capabilities": {"gpu": 0.5}}, "per_worker_capabilities is .*gpu=0.5: give a whole number"),
        ({"host_capabilities": {"license": -1}}, "host_capabilities is .*'license': give a quantity of at least 1"),
        ({"host_capabilities": {"a": 1}, "per_worker_capabilities": {"a": 1}}, "per_worker_capabilities both have a"),
        ({"gpus": [0, "x"]}, "gpus is .*: 'x' is no GPU: give auto, or numbers and UUIDs"),
        ({"gpus": 1}, r"gpus is 1, not a text or a list of numbers and UUIDs, like \[0, 1\]"),
        ({"gpus": "auto", "per_worker_capabilities": {"gpu": 1}}, "leave gpu out of capabilities"),
        ({"monitor_address": "here"}, "monitor_address: address 'here': write tcp"),
        ({"monitor_address": "tcp://192.0.2.1:5555"}, "monitor_address is 'tcp://192.0.2.1:5555', which other hosts"),
        ({"monitor_address": "ipc:///nowhere/monitor"}, "monitor_address is .*, and there is no directory /nowhere"),
        ({"protected": Hostile()}, "protected is <Hostile .*, not True or False"),
        ({"preload": "a\0b"}, "preload is .* contains a NUL"),
    ],
)
def test_what_is_wrong_is_told(wrong: Mapping[str, Any], told: str) -> None:
    with pytest.raises((ValueError, TypeError), match=told):
        LocalClusterConfig.of({**DEFAULTS, **wrong})


def test_a_monitor_address_in_use_is_told() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ValueError, match=f"monitor_address is '{address}', and its port is in use"):
            LocalClusterConfig.of({**DEFAULTS, "monitor_address": address})


@pytest.mark.parametrize(
    ("command", "options", "parameter", "most"),
    [
        (CLUSTER, LocalClusterConfig.cluster_options, "n_workers", 4096),
        (CLUSTER, LocalClusterConfig.cluster_options, "per_worker_task_queue_size", 1_000_000),
        (SCHEDULER, LocalClusterConfig.scheduler_options, "client_timeout_seconds", 1e9),
    ],
)
def test_the_services_take_as_much(command: Any, options: Callable[..., Any], parameter: str, most: Any) -> None:
    command.read([ADDRESS, *options(LocalClusterConfig.of({**DEFAULTS, parameter: most}))])
    with pytest.raises(ValueError, match=parameter):
        LocalClusterConfig.of({**DEFAULTS, parameter: most + 1})
