"""Uploaded modules, and initializers of clients."""

from __future__ import annotations

import builtins
import importlib
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scaler import Client, Serializer
from scaler_client.calls.bundles import OF_WORKERS
from scaler_protocol.errors import DeserializeError, InitializerError
from support.clusters import LocalCluster
from support.gates import SECONDS, Gate, wait_at

NAME = "uploaded_model"


@pytest.fixture
def write(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Writes the module, which is not where workers look; in this process it can be imported."""
    folder = tmp_path / NAME
    folder.mkdir()
    sys.path.insert(0, str(tmp_path))

    def written(value: str, padding: int = 0) -> Path:
        (folder / "__init__.py").write_text("from .part import VALUE, Box\n", "utf-8")
        text = f"VALUE = {value!r}\nclass Box:\n    version = VALUE\n#{'x' * padding}\n"
        (folder / "part.py").write_text(text, "utf-8")
        return folder

    yield written
    sys.path.remove(str(tmp_path))
    for name in [name for name in sys.modules if name.partition(".")[0] == NAME]:
        del sys.modules[name]


def value() -> Callable[..., Any]:
    """A function that travels as code, and imports the module where it runs."""
    name = NAME
    return lambda *boxes: (importlib.import_module(name).VALUE, *(box.version for box in boxes))


def test_later_calls_find_the_new_version_and_earlier_ones_keep_theirs(
    single: LocalCluster, single_client: Client, gate: Gate, write: Callable[..., Path]
) -> None:
    client, call = single_client, value()
    with pytest.raises(ModuleNotFoundError):
        client.submit(call).result(SECONDS)
    client.upload(write("one", padding=50_000))
    module = importlib.import_module(NAME)
    assert client.submit(call, module.Box()).result(SECONDS) == ("one", "one")
    busy = client.submit(wait_at, gate.port, 0)
    arrival = gate.arrive()
    earlier = [client.submit(call, module.Box()) for _ in range(3)]
    write("two")
    client.upload(module)
    later = [client.submit(call, module.Box()) for _ in range(3)]
    arrival.let_go()
    assert [future.result(SECONDS) for future in earlier] == [("one", "one")] * 3
    assert [future.result(SECONDS) for future in later] == [("two", "two")] * 3, "the only worker has both"
    assert busy.result(SECONDS) == 0 and client.map(call, [module.Box()] * 2) == [("two", "two")] * 2
    assert client.get({"a": (call,)}, ["a"]) == {"a": ("two",)}
    with Client(single.address, timeout_seconds=SECONDS) as other:
        with pytest.raises(ModuleNotFoundError):
            other.submit(call).result(SECONDS)
        with pytest.raises(DeserializeError, match=rf"client\.upload\({NAME}\)"):
            other.submit(len, [module.Box()]).result(SECONDS)
    client.restart_workers(timeout=SECONDS)
    assert client.submit(call).result(SECONDS) == ("two",), "a new process gets it, too"


def test_calls_inside_calls_find_what_their_task_finds(client: Client, write: Callable[..., Path]) -> None:
    client.upload(write("nested"))
    call = value()

    def outer() -> tuple[object, str]:
        with Client() as inside:
            try:
                inside.upload(__file__)
            except ValueError as error:
                return inside.submit(call).result(), str(error)
        raise AssertionError

    found, refused = client.submit(outer).result(SECONDS)
    assert found == ("nested",) and refused == "a task cannot upload a module: do it where the task is submitted"


def test_names_of_modules_that_workers_need_are_refused(client: Client) -> None:
    client.restart_workers(timeout=SECONDS)  # other tests may have had them import more
    found = client.submit(lambda: {name for name, module in sys.modules.items() if hasattr(module, "__file__")})
    needed = {name.partition(".")[0] for name in found.result(SECONDS)} - sys.stdlib_module_names - {"sitecustomize"}
    assert needed & {"scaler_worker", "zmq"} and needed - OF_WORKERS == set()


def test_an_initializer_runs_once_in_each_worker_and_again_after_an_upload(
    cluster: LocalCluster, client: Client, write: Callable[..., Path]
) -> None:
    def initialize() -> None:
        builtins.scaler_initialized = getattr(builtins, "scaler_initialized", 0) + 1  # type: ignore[attr-defined]

    def initialized() -> int:
        return getattr(builtins, "scaler_initialized", 0)

    client.restart_workers(timeout=SECONDS)  # those that nested tasks needed are not replaced
    with Client(cluster.address, timeout_seconds=SECONDS, initializer=initialize) as prepared:
        assert set(prepared.map(lambda _: initialized(), range(50))) == {1}
        assert set(prepared.run(initialized, timeout=SECONDS).values()) == {1}
        prepared.upload(write("first"))
        assert set(prepared.run(initialized, timeout=SECONDS).values()) == {2}
    assert set(client.run(initialized, timeout=SECONDS).values()) == {2}, "it does not run for another client"


def test_a_failed_initializer_is_the_cause_and_is_tried_again(single: LocalCluster, tmp_path: Path) -> None:
    licence = tmp_path / "licence"

    def initialize() -> None:
        licence.read_text("utf-8")

    with Client(single.address, timeout_seconds=SECONDS, initializer=initialize) as client:
        for error in (client.submit(abs, -1).exception(SECONDS), *client.run(abs, -1, timeout=SECONDS).values()):
            assert isinstance(error, InitializerError) and isinstance(error.__cause__, FileNotFoundError)
        assert client.restart_workers(timeout=SECONDS), "which needs no initializer"
        licence.touch()
        assert client.submit(abs, -1).result(SECONDS) == 1


@pytest.mark.parametrize("uploads", [False, True])
def test_an_initializer_may_submit_calls_and_wait_for_them(
    single: LocalCluster, write: Callable[..., Path], uploads: bool
) -> None:
    address = single.address

    def initialize() -> None:
        with Client(address, timeout_seconds=SECONDS) as inside:
            builtins.scaler_prepared = inside.submit(abs, -3).result()  # type: ignore[attr-defined]

    def prepared() -> int:
        found: int = builtins.scaler_prepared  # type: ignore[attr-defined]
        return found

    with Client(address, timeout_seconds=SECONDS, initializer=initialize) as client:
        if uploads:
            client.upload(write("first"))
        assert client.submit(prepared).result(SECONDS) == 3


def test_what_cannot_be_prepared_is_refused(cluster: LocalCluster, write: Callable[..., Path]) -> None:
    with pytest.raises(TypeError, match="initializer='text' cannot be called"):
        Client(cluster.address, initializer="text")  # type: ignore[arg-type]
    lock = threading.Lock()
    with pytest.raises(TypeError) as raised:
        Client(cluster.address, timeout_seconds=SECONDS, initializer=lambda: lock)
    assert (
        "the initializer -> " in getattr(raised.value, "__notes__", ["the initializer -> "])[-1]
    )  # noted from 3.11 on
    with Client(cluster.address, timeout_seconds=SECONDS) as client, pytest.raises(TypeError, match="3 cannot be upl"):
        client.upload(3)  # type: ignore[arg-type]

    class Own(Serializer):
        @staticmethod
        def serialize(obj: Any) -> bytes:
            raise NotImplementedError

        @staticmethod
        def deserialize(payload: bytes) -> Any:
            raise NotImplementedError

    refused = pytest.raises(ValueError, match="a serializer of its own can have no initializer")
    with Client(cluster.address, timeout_seconds=SECONDS, serializer=Own) as client, refused:
        client.upload(write("none"))
    with refused:
        Client(cluster.address, timeout_seconds=SECONDS, serializer=Own, initializer=print)
