"""The replicas of a host that leaves: handed over in time, or not at all."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from scaler_io.objects.host_cache import REPLICAS, HostCache, cached_name
from scaler_io.objects.replicas import Replica, Replicas
from scaler_protocol.addresses import Address
from scaler_protocol.objects import Reference, new_object_id
from scaler_worker.agent.host_replicas import HostReplicas, LeftBehind


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """Accepts connections, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


@pytest.fixture
def replicas(silent: socket.socket, tmp_path: Path) -> Iterator[HostReplicas]:
    made = HostReplicas(HostCache(tmp_path, 1 << 30), lambda: address(silent), "host:1")
    yield made
    made.close()


def address(listener: socket.socket) -> str:
    return f"tcp://127.0.0.1:{listener.getsockname()[1]}"


def keep_one(directory: Path, server: Address) -> Path:
    """Make a replica; returns its second name."""
    held = Replica(Reference(new_object_id(), 5), 7, 1)
    (directory / cached_name(held.reference, held.version)).write_bytes(b"12345")
    files = Replicas(directory, server)
    name = files._name(held)
    name.parent.mkdir(parents=True)
    name.hardlink_to(files._file(held))
    assert [listed for _, listed in files.list()] == [held] and REPLICAS in str(name)
    return name


def test_handing_over_ends_at_the_deadline_though_storage_is_silent(
    silent: socket.socket, replicas: HostReplicas, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept = keep_one(tmp_path, Address.parse(address(silent)))
    begun = time.monotonic()
    left = replicas.hand_over(begun + 0.5)
    assert 0.4 < time.monotonic() - begun < 10
    assert kept.exists() and f"1 object of this host cannot be handed over: {left.reason}" in caplog.text
    assert left.objects == 1


def test_without_replicas_storage_is_not_asked(silent: socket.socket, replicas: HostReplicas) -> None:
    assert replicas.hand_over(time.monotonic() + 60) == LeftBehind()
    silent.setblocking(False)
    with pytest.raises(BlockingIOError):
        silent.accept()
