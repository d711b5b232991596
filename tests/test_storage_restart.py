"""Object storage is killed under load and started again: what is held anywhere is put there once more."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import numpy as np
import pytest

from scaler import Client
from scaler_client.calls.object_reference import payload_of
from scaler_client.futures.futures import ScalerFuture
from scaler_io.objects.connection import ObjectConnection
from scaler_protocol.addresses import Address
from scaler_protocol.errors import ObjectNotFoundError, StorageLostError
from scaler_protocol.handshake import Role
from support.faults import Service, Services
from support.gates import SECONDS, Gate, wait_at
from support.object_tasks import (
    doubled,
    explode_big,
    fail_with,
    give,
    longer,
    mark,
    read_children_at,
    same,
    size_of,
    tally,
    total,
    weigh,
)
from support.own_keys import WORKER, own
from support.processes import free_ports, stopped
from support.storage import WatchedStorage
from support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("no_result_credit")
BIG = 100_000
SMALL = 20_000
"""Beyond what travels in messages, and not waited for."""
Restart = Callable[[], None]


@pytest.fixture
def storage_address() -> str:
    return f"tcp://127.0.0.1:{free_ports(1)}"


@pytest.fixture
def restart(storage_address: str, tmp_path: Path) -> Iterator[Restart]:
    """Kills the storage server and starts another one in its place."""
    servers = [Service(tmp_path / "storage.log", "scaler_storage", storage_address)]

    def kill_and_start() -> None:
        servers[-1].kill()
        servers.append(Service(tmp_path / f"storage-{len(servers)}.log", "scaler_storage", storage_address))

    yield kill_and_start
    servers[-1].process.send_signal(signal.SIGTERM)
    assert servers[-1].process.wait(SECONDS) == 0
    assert "0 objects left" in servers[-1].said()


@pytest.fixture
def client(storage_address: str, restart: Restart, tmp_path: Path) -> Iterator[Client]:
    with Services(tmp_path, "--object-storage-address", storage_address) as services:
        services.add_agent(2)
        with Client(services.address, timeout_seconds=SECONDS) as connected:
            yield connected


def test_what_is_held_is_put_again_and_what_is_lost_is_named(client: Client, restart: Restart) -> None:
    array, sent = np.arange(BIG, dtype=np.float64), np.ones(BIG)
    table = bytes(range(256)) * 1000
    reference, lost = client.send_object(sent), client.send_object(b"lost" * BIG)

    def look_up(index: int) -> int:
        return table[index]

    unfetched = client.submit(give, BIG)
    wait([unfetched], SECONDS)
    with Gate() as gate:
        holding = [client.submit(wait_at, gate.port, bytes([number]) * BIG) for number in range(2)]
        arrivals = [gate.arrive() for _ in holding]
        arrays = [client.submit(weigh, array, number) for number in range(20)]
        others = [client.submit(weigh, reference, number) for number in range(5)]
        functions = [client.submit(look_up, index) for index in range(256)]
        copies = [client.submit(size_of, bytes([number]) * BIG) for number in range(5)]
        lists = [client.submit(len, [number] * BIG) for number in range(3)]
        consumer = client.submit(size_of, holding[0])
        named = client.submit(size_of, lost)
        wait([client.submit(weigh, np.ones(BIG))], 0)
        restart()
        for arrival in arrivals:
            arrival.let_go()
    assert [future.result(SECONDS) for future in holding] == [bytes([number]) * BIG for number in range(2)]
    assert [future.result(SECONDS) for future in arrays] == [array.sum() + number for number in range(20)]
    assert [future.result(SECONDS) for future in others] == [BIG + number for number in range(5)]
    assert bytes(future.result(SECONDS) for future in functions) == bytes(range(256))
    assert [future.result(SECONDS) for future in copies] == [BIG] * 5
    assert [future.result(SECONDS) for future in lists] == [BIG] * 3
    assert consumer.result(SECONDS) == BIG
    assert unfetched.result(SECONDS) == bytes(BIG)
    with pytest.raises(ObjectNotFoundError, match=payload_of(lost)[:16].hex()):
        named.result(SECONDS)
    assert client.map(weigh, [array, sent]) == [array.sum(), sent.sum()]


def test_nodes_of_graphs_that_missed_what_others_made_run_again_with_them(client: Client, restart: Restart) -> None:
    with Gate() as gate:
        graph = {
            "lost": (give, 2 * BIG),
            "deep": (doubled, "lost"),
            "small": (len, "lost"),
            "wait": (wait_at, gate.port, 1),
            "sum": (total, "deep", "small", "wait"),
            "asked": (total, "lost", "wait"),
            "last": (total, "asked", "sum", "deep"),
            "apart": (total, "small", 5),
        }
        futures = client.get(graph, ["sum", "asked", "last", "apart"], block=False)
        assert futures["apart"].result(SECONDS) == 2 * BIG + 5
        arrival = gate.arrive()
        restart()
        arrival.let_go()
        gate.arrive().let_go()  # what they take runs again, too
        assert futures["sum"].result(SECONDS) == 6 * BIG + 1
        assert [futures[name].result(SECONDS) for name in ("asked", "last")] == [2 * BIG + 1, 12 * BIG + 2]


def test_it_is_killed_again_and_again(client: Client, restart: Restart) -> None:
    array = np.arange(BIG, dtype=np.float64)
    futures = []
    for number in range(4):
        futures += [client.submit(weigh, array + number, 100 * number + at) for at in range(25)]
        futures += [client.submit(weigh, array, at) for at in range(25)]
        futures[-40].result(SECONDS)
        if number < 3:
            restart()
    expected = [
        value
        for number in range(4)
        for value in (
            *((array + number).sum() + 100 * number + at for at in range(25)), *(array.sum() + at for at in range(25)),
        )
    ]  # fmt: skip
    ended = [future.exception(2 * SECONDS) or future.result() for future in futures]
    # Only arrays without another reference than their object may be lost.
    assert [at for at in range(len(ended)) if at // 25 % 2 == 1 and ended[at] != expected[at]] == []
    for outcome, value in zip(ended, expected, strict=True):
        assert outcome == value or isinstance(outcome, ObjectNotFoundError | StorageLostError)
    assert client.submit(same, array).result(SECONDS).sum() == array.sum()


# --- results that nobody has read yet ---------------------------------------------------------------------------------


class Runs:
    """Counts how often each task has run, by files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "marks"
        self._folder.mkdir()

    def __str__(self) -> str:
        return str(self._folder)

    @property
    def counts(self) -> Counter[int]:
        """Runs, by the number of the task."""
        return Counter(int(path.name.split("-")[0]) for path in self._folder.iterdir())


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path)


def test_unread_results_are_made_again_and_no_others(client: Client, restart: Restart, runs: Runs) -> None:
    futures = [client.submit(tally, str(runs), number, SMALL) for number in range(20)]
    read, dropped = client.submit(tally, str(runs), 100, SMALL), client.submit(tally, str(runs), 101, SMALL)
    wait([*futures, dropped], SECONDS)
    assert read.result(SECONDS) == bytes([100]) * SMALL
    del dropped
    restart()
    assert all(future.done() for future in futures)
    assert [future.result(SECONDS) for future in futures] == [bytes([number]) * SMALL for number in range(20)]
    assert runs.counts == {**dict.fromkeys(range(20), 2), 100: 1, 101: 1}


def test_a_result_that_is_made_again_and_lost_again_is_made_again(client: Client, restart: Restart, runs: Runs) -> None:
    future = client.submit(tally, str(runs), 1, BIG)
    consumer = client.submit(doubled, future)
    for _ in range(3):
        wait([consumer], SECONDS)
        restart()
        assert client.submit(size_of, consumer).result(SECONDS) == 2 * BIG
    assert consumer.result(SECONDS) == bytes([1]) * 2 * BIG == 2 * future.result(SECONDS)


def test_results_are_made_again_with_inputs_that_only_they_had(client: Client, restart: Restart, runs: Runs) -> None:
    small, array = client.submit(len, b"12345"), np.ones(BIG)
    assert small.result(SECONDS) == 5
    chain = client.submit(longer, client.submit(longer, client.submit(tally, str(runs), 7, BIG)), small)
    weighed, failed = client.submit(same, array), client.submit(explode_big, BIG)
    wait([chain, weighed, failed], SECONDS)
    restart()
    assert chain.result(SECONDS) == bytes([7]) * BIG + b"11"
    assert weighed.result(SECONDS).sum() == BIG
    assert str(failed.exception(SECONDS)) == "x" * BIG
    assert runs.counts == {7: 2}


def test_a_map_makes_lost_results_again(client: Client, restart: Restart, runs: Runs) -> None:
    with Gate() as gate, ThreadPoolExecutor(1) as pool:
        items = [(str(runs), number, SMALL, gate.port) for number in range(30)]
        mapped = pool.submit(client.starmap, tally, items)
        arrival = gate.arrive()
        wait_until(lambda: len(runs.counts) == 30, "the others have run")
        restart()
        arrival.let_go()
        assert mapped.result(SECONDS) == [bytes([number]) * SMALL for number in range(30)]
        assert set(runs.counts.values()) <= {1, 2} and runs.counts[0] == 1


def test_requested_nodes_of_a_graph_that_has_ended_are_made_again(client: Client, restart: Restart, runs: Runs) -> None:
    graph = {
        "folder": str(runs),
        "made": (tally, "folder", 1, BIG),
        "twice": (doubled, "made"),
        "small": (len, "made"),
        "sizes": (longer, "twice", "small"),
        "other": (tally, "folder", 2, BIG),
        "read": (tally, "folder", 3, BIG),
    }
    futures = client.get(graph, ["twice", "sizes", "other", "read"], block=False)
    wait(futures.values(), SECONDS)
    assert futures["read"].result(SECONDS) == bytes([3]) * BIG
    restart()
    assert futures["sizes"].result(SECONDS) == bytes([1]) * 2 * BIG + b"1"
    assert futures["twice"].result(SECONDS) == bytes([1]) * 2 * BIG
    assert futures["other"].result(SECONDS) == bytes([2]) * BIG
    assert runs.counts == {1: 2, 2: 2, 3: 1}


def test_a_task_makes_lost_results_of_its_children_again(client: Client, restart: Restart, runs: Runs) -> None:
    with Gate() as gate:
        parent = client.submit(read_children_at, client, gate.port, str(runs), 5, SMALL)
        arrival = gate.arrive()
        restart()
        arrival.let_go()
        assert parent.result(SECONDS) == 5 * SMALL
        assert runs.counts == dict.fromkeys(range(1, 6), 2)


def test_what_cannot_be_made_again_names_object_task_and_cause(client: Client, restart: Restart) -> None:
    sent = client.send_object(bytes(4 * BIG))
    kept, gone = client.submit(longer, sent), client.submit(same, [0] * 2 * BIG)
    wait([kept, gone], SECONDS)
    restart()
    for lost, why in ((kept, "ended with ObjectNotFoundError"), (gone, "one of the arguments is not known any more")):
        with pytest.raises(ObjectNotFoundError, match=f"{lost._outcome[:16].hex()}.*task {lost.task_id:x}.*{why}"):
            lost.result(SECONDS)


# --- storage stands still ---------------------------------------------------------------------------------------------


@pytest.fixture
def server(storage_address: str, tmp_path: Path) -> Iterator[Service]:
    service = Service(tmp_path / "storage.log", "scaler_storage", storage_address)
    yield service
    service.process.send_signal(signal.SIGTERM)
    assert service.process.wait(SECONDS) == 0
    assert "0 objects left" in service.said()


def test_what_a_killed_worker_had_made_and_not_stored_is_made_again(
    storage_address: str, server: Service, tmp_path: Path
) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    with Services(tmp_path, "--object-storage-address", storage_address) as services:
        services.add_agent(2)
        with Client(services.address, timeout_seconds=SECONDS) as client:
            client.starmap(mark, [(str(marks), 100, SMALL)] * 50)  # they are known to be short, and go together
            with stopped(server.process.pid):
                futures = [client.submit(mark, str(marks), number, SMALL) for number in range(40)]
                wait_until(lambda: made(marks), "runs")
                assert not any(future.done() for future in futures)
                os.kill(next(iter(made(marks).values())), signal.SIGKILL)
            assert [future.result(SECONDS) for future in futures] == [bytes([number]) * SMALL for number in range(40)]


def test_storage_that_is_silent_keeps_nobody_longer_than_he_wants_to_wait(
    storage_address: str, server: Service, tmp_path: Path
) -> None:
    with Services(tmp_path, "--object-storage-address", storage_address) as services:
        services.add_agent(1)
        # A storage that says nothing for one and a half heartbeats is lost to this client.
        with Client(services.address, timeout_seconds=3.0) as client:
            result, failure = client.submit(give, BIG), client.submit(fail_with, bytes(BIG))
            assert wait([result], SECONDS).done and wait([failure], SECONDS).done
            with stopped(server.process.pid):
                for call in (result.result, result.exception, failure.result, failure.exception):
                    with pytest.raises(TimeoutError, match="did not come"):
                        call(timeout=0.1)
                with pytest.raises(StorageLostError, match="no answer"):
                    result.result()
                assert isinstance(failure.exception(), StorageLostError)
                assert isinstance(client.submit(size_of, bytes(4 * BIG)).exception(SECONDS), StorageLostError)
                with pytest.raises(StorageLostError):
                    asyncio.run(awaited(result))
            assert client.submit(size_of, bytes(4 * BIG)).result(SECONDS) == 4 * BIG
            assert result.result(SECONDS) == bytes(BIG) and result.exception() is None
            with pytest.raises(ValueError):
                failure.result(SECONDS)


async def awaited(future: ScalerFuture[bytes]) -> bytes:
    return await future


def made(marks: Path) -> dict[int, int]:
    """The numbers up to 100, and who has made them."""
    found = (path.name.split("-") for path in marks.iterdir())
    return {int(number): int(pid) for number, pid in found if int(number) < 100}


# --- the scheduler is lost, and storage is not -----------------------------------------------------------------------


def test_after_a_restart_of_the_scheduler_what_nobody_knows_is_freed_and_nothing_else(tmp_path: Path) -> None:
    with WatchedStorage() as storage, Services(tmp_path, "--object-storage-address", storage.address) as services:
        services.add_agent(2)
        with Client(services.address, timeout_seconds=SECONDS) as client, Gate() as gate:
            array = np.arange(BIG, dtype=np.float64)
            reference, unfetched = client.send_object(np.ones(BIG)), client.submit(give, BIG)
            wait([unfetched], SECONDS)
            taken = client.submit(weigh, array)
            assert taken.result(SECONDS) == array.sum()
            kept = storage.objects
            held = client.submit(wait_at, gate.port, bytes(3 * BIG))
            arrival = gate.arrive()
            worker = ObjectConnection(
                Address.parse(storage.address), session=0, role=Role.AGENT, credentials=own(WORKER)
            )
            for _ in range(3):  # of runs whose host was lost before it could say so
                worker.put(bytes(BIG), session=client._io.storage.session)
            services.scheduler.kill()
            services.start_scheduler()
            assert client.submit(size_of, b"1").result(SECONDS) == 1
            assert storage.objects == kept + 1 + 3  # the one is its argument
            arrival.let_go()
            assert held.result(SECONDS) == bytes(3 * BIG)
            wait_until(lambda: storage.objects == kept, "unknown objects are deleted")
            assert unfetched.result(SECONDS) == bytes(BIG)
            assert client.map(weigh, [array, reference]) == [array.sum(), BIG]
            worker.close()
        storage.wait_empty()


def test_a_client_without_objects_asks_for_nothing(tmp_path: Path) -> None:
    with WatchedStorage() as storage, Services(tmp_path, "--object-storage-address", storage.address) as services:
        services.add_agent(1)
        with Client(services.address, timeout_seconds=SECONDS) as client:
            assert client.submit(size_of, b"1").result(SECONDS) == 1
            services.scheduler.kill()
            services.start_scheduler()
            assert client.submit(size_of, b"12").result(SECONDS) == 2
            # The scheduler has looked whether the server is one; a client would stay connected.
            wait_until(lambda: storage._status().peers == 0, "nobody is connected")


def test_a_result_of_a_graph_that_goes_on_is_made_again(client: Client, restart: Restart, runs: Runs) -> None:
    with Gate() as gate:
        graph = {
            "folder": str(runs),
            "made": (tally, "folder", 1, BIG),
            "twice": (doubled, "made"),
            "wait": (wait_at, gate.port, 1),
            "last": (total, "made", "wait"),
        }
        futures = client.get(graph, ["twice", "last"], block=False)
        wait([futures["twice"]], SECONDS)
        arrival = gate.arrive()
        restart()
        assert futures["twice"].result(SECONDS) == bytes([1]) * 2 * BIG
        arrival.let_go()
        gate.arrive().let_go()
        assert futures["last"].result(SECONDS) == BIG + 1
        assert runs.counts == {1: 2}


@pytest.mark.parametrize("read", [False, True])
def test_a_result_that_an_intermediate_node_misses_is_made_again(
    client: Client, restart: Restart, runs: Runs, read: bool
) -> None:
    given = client.submit(tally, str(runs), 1, BIG)
    wait([given], SECONDS)
    with Gate() as gate:
        graph = {"wait": (wait_at, gate.port, 1), "sum": (total, given, "wait"), "last": (total, "sum", 1)}
        last = client.get(graph, ["last"], block=False)["last"]
        arrival = gate.arrive()
        assert not read or given.result(SECONDS) == bytes([1]) * BIG
        restart()
        arrival.let_go()
        gate.arrive().let_go()
        assert last.result(SECONDS) == BIG + 2
    assert runs.counts == {1: 2}
