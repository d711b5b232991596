"""Payloads beyond the inline limit go by object storage, live as long as they are needed, and no longer."""

from __future__ import annotations

import gc
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, as_completed, wait
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scaler import Client, ScalerFuture
from scaler_client.calls.object_reference import payload_of
from scaler_protocol.errors import ObjectNotFoundError, StorageFullError, StorageLostError
from scaler_protocol.handshake import INLINE_LIMIT
from scaler_protocol.objects import SHARED_BYTES
from scaler_storage.engine.pool import RECYCLE_SECONDS
from support.clusters import listening_to
from support.faults import TESTS, Service, Services, forget_peak, mapped, resident
from support.gates import SECONDS, Gate, wait_at
from support.object_tasks import (
    BytesSerializer,
    describe_array,
    doubled,
    explode_big,
    fan_out,
    first,
    give,
    give_array,
    nested_sizes,
    same,
    size_of,
    spoil,
    total,
)
from support.processes import free_ports
from support.storage import WatchedStorage
from support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("no_result_credit")
MIB = 1024 * 1024
BIG = 100_000
FLAT_BYTES = 24 * MIB


@pytest.fixture(scope="module")
def storage() -> Iterator[WatchedStorage]:
    with WatchedStorage() as started:
        yield started


@pytest.fixture(scope="module")
def services(storage: WatchedStorage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    """A scheduler that names our server and has a listener, and two workers."""
    folder = tmp_path_factory.mktemp("objects")
    with Services(folder, "--object-storage-address", storage.address) as started:
        started.add_agent(2)
        with listening_to(started.address):
            yield started


@pytest.fixture
def client(services: Services, storage: WatchedStorage) -> Iterator[Client]:
    """When it has left nothing is left of it; tests say what must be gone before."""
    with Client(services.address, timeout_seconds=SECONDS) as connected:
        storage.forget_counts()
        yield connected
    storage.wait_empty()


def argument(size: int) -> bytes:
    """An argument whose call is a pickle of that many bytes."""
    rest = size - len(pickle.dumps(((bytes(size),), {}), 5)) + size
    assert len(pickle.dumps(((bytes(rest),), {}), 5)) == size
    return bytes(rest)


# --- which way -------------------------------------------------------------------------------------------------------


def fill_credit(client: Client, size: int) -> list[ScalerFuture[int]]:
    """Submit calls that wait until arguments of this size do not go with their calls any more."""
    io, filling = client._io, [client.submit(size_of, b"a" * size)]
    weight = filling[0]._weight

    def is_sent() -> bool:
        return io._core._queue._used >= weight * len(filling)

    wait_until(is_sent, "the first call is sent")
    while io.carries(weight):
        filling.append(client.submit(size_of, len(filling).to_bytes(2, "little") * (size // 2)))
        wait_until(is_sent, "it is sent: what is not counts as long as what is asked about")
    return filling


@pytest.mark.parametrize(
    "size",
    [INLINE_LIMIT - 1, INLINE_LIMIT, INLINE_LIMIT + 1, SHARED_BYTES - 1000, SHARED_BYTES + 1, MIB, 64 * MIB],
)
def test_sizes_around_the_limit(client: Client, storage: WatchedStorage, size: int) -> None:
    big = argument(size)
    put, stored = int(size > SHARED_BYTES), int(size > INLINE_LIMIT)
    assert client.map(len, [big]) == [len(big)]
    assert storage.counts == (put, 0, 0, put)
    back = size - len(pickle.dumps(bytes(size), 5)) + size
    assert len(client.submit(give, back).result(SECONDS)) == back
    assert storage.counts == (put, stored, stored, put)
    storage.wait_empty()


def test_an_argument_of_a_lone_call_goes_with_it_the_first_time(client: Client, storage: WatchedStorage) -> None:
    array = np.arange(BIG // 8)
    for puts in (0, 1, 1):
        assert client.submit(np.sum, array).result(SECONDS) == array.sum()
        assert storage.counts[0] == puts
    assert client.submit(size_of, bytes(SHARED_BYTES)).result(SECONDS) == SHARED_BYTES
    assert storage.counts[0] == 2
    del array
    storage.wait_empty()


def test_what_is_small_never_touches_the_storage(client: Client, storage: WatchedStorage) -> None:
    assert client.map(size_of, [bytes(1000)] * 100) == [1000] * 100
    assert client.submit(same, client.send_object(bytes(1000))).result(SECONDS) == bytes(1000)
    assert storage.counts == (0, 0, 0, 0)


def test_results_are_fetched_by_whoever_asks(client: Client, storage: WatchedStorage) -> None:
    futures = [client.submit(give, BIG + number) for number in range(5)]
    assert len(wait(futures, SECONDS).done) == 5 and all(future.done() for future in futures)
    assert storage.counts[1] == 0 and storage.objects == 5
    assert [len(future.result()) for future in as_completed(futures)]
    assert storage.counts[1] == 5
    storage.wait_empty()
    assert [len(future.result()) for future in futures] == [BIG + number for number in range(5)]
    assert storage.counts[1] == 5


def test_two_threads_ask_at_once(client: Client, storage: WatchedStorage) -> None:
    future = client.submit(give, 8 * MIB)
    values: list[bytes] = []
    threads = [threading.Thread(target=lambda: values.append(future.result(SECONDS))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(values) == 4 and all(value is values[0] for value in values)
    storage.wait_empty()


def test_a_future_that_nobody_asks(client: Client, storage: WatchedStorage) -> None:
    futures = [client.submit(give, BIG) for _ in range(3)]
    wait(futures, SECONDS)
    assert storage.objects == 3
    del futures[1:]
    wait_until(lambda: storage.objects == 1, "the object of a future that is gone is deleted")


def test_exceptions(client: Client, storage: WatchedStorage) -> None:
    future = client.submit(explode_big, BIG)
    with pytest.raises(ValueError, match="xxxxx") as caught:
        future.result(SECONDS)
    assert len(str(caught.value)) == BIG and storage.counts[2] == 1
    with pytest.raises(ValueError, match="xxxxx"):
        client.map(explode_big, [BIG] * 3)
    del caught, future


def test_map(client: Client, storage: WatchedStorage) -> None:
    rows = [bytes([number]) * BIG for number in range(100)]
    for puts, results in ((0, 100), (100, 200)):  # the first time they go with their calls
        assert client.map(doubled, rows) == [row * 2 for row in rows]
        assert storage.counts == (puts, results, results, puts)
    storage.wait_empty()


def test_functions(client: Client, storage: WatchedStorage) -> None:
    table = bytes(range(256)) * 4096
    other = b"other" + table

    def look_up(index: int) -> int:
        return table[index]

    futures = [client.submit(look_up, index) for index in range(256)]
    assert [future.result(SECONDS) for future in futures] == list(range(256))
    assert storage.counts[0] == 1 and storage.counts[3] <= 2  # put once, loaded once by each worker
    assert client.map(look_up, range(10)) == list(range(10))
    assert client.submit_verbose(look_up, (3,), {}, reserialize=True, priority=1).result(SECONDS) == 3
    assert storage.counts[0] == 1
    assert client.submit(lambda: len(other)).result(SECONDS) == len(other)
    assert storage.counts[0] == 2
    del look_up, futures
    storage.wait_empty()


def test_a_function_of_64_mebibytes(client: Client) -> None:
    weight = bytes(64 * MIB)
    assert client.map(lambda number: len(weight) + number, range(4)) == [64 * MIB + number for number in range(4)]


def test_two_clients_with_the_same_big_function(client: Client, services: Services) -> None:
    table = bytes(MIB)
    with Client(services.address) as other:
        assert other.submit(lambda: len(table)).result(SECONDS) == MIB
        assert client.submit(lambda: len(table)).result(SECONDS) == MIB
    assert client.submit(lambda: len(table)).result(SECONDS) == MIB


# --- arrays, and arguments that are given often ----------------------------------------------------------------------


def test_arrays_arrive_as_read_only_views(client: Client, storage: WatchedStorage) -> None:
    array = np.arange(BIG, dtype=np.float64)
    total, writeable, astray = client.submit(describe_array, array).result(SECONDS)
    assert (total, writeable) == (array.sum(), False) and astray in range(64)
    back = client.submit(give_array, BIG).result(SECONDS)
    assert np.array_equal(back, array) and not back.flags.writeable
    table = {"x": array, "y": [array[:10]]}
    again = client.submit(same, table).result(SECONDS)
    assert np.array_equal(again["x"], array) and not again["y"][0].flags.writeable, "small ones likewise"
    assert np.array_equal(client.map(give_array, [BIG])[0], array)
    del array, back, again, table
    storage.wait_empty()


def test_twelve_tasks_with_the_same_array_move_it_once(client: Client, storage: WatchedStorage) -> None:
    array = np.random.default_rng(1).random(MIB)
    size = array.nbytes
    futures = [client.submit(describe_array, array) for _ in range(12)]
    assert {future.result(SECONDS)[0] for future in futures} == {array.sum()}
    assert size <= storage.bytes_put < size + 1000
    assert len(client.map(describe_array, [array] * 12)) == len(client.starmap(describe_array, [(array,)] * 12))
    equal = array.copy()
    client.submit(describe_array, array=equal).result(SECONDS)
    puts, _, _, gets = storage.counts
    assert puts == 1 and gets <= 2 and storage.bytes_put < size + 1000
    array[0] = 2.0
    changed = client.submit(describe_array, array).result(SECONDS)[0]
    assert changed == array.sum() != equal.sum() and storage.counts[0] == 2
    (renewed, _, _), *_ = client.map(describe_array, [array] * 3, reserialize=True)
    assert renewed == changed == client.submit(describe_array, array).result(SECONDS)[0]
    assert client.submit_verbose(describe_array, (array,), {}, reserialize=True).result(SECONDS)[0] == changed
    assert storage.counts[0] == 4
    del array, equal, futures
    storage.wait_empty()


@pytest.mark.parametrize("kind", [bytes, str, list, bytearray, np.asarray])
def test_a_task_that_changes_its_argument_harms_no_other(client: Client, storage: WatchedStorage, kind: Any) -> None:
    value = "5" * BIG if kind is str else kind(b"5" * BIG) if kind is not np.asarray else np.full(BIG, 5)
    assert client.map(spoil, [value] * 20) == [repr(value[:2])] * 20
    made = client.submit(same, value)
    consumers = [client.submit(spoil, made) for _ in range(10)]
    assert {future.result(SECONDS) for future in consumers} == {repr(value[:2])}
    assert storage.counts[0] <= 2 and storage.counts[1] == 0  # nothing came to the client
    del value, made, consumers
    storage.wait_empty()


def test_many_submits_do_not_wait_for_storage(client: Client, storage: WatchedStorage, gate: Gate) -> None:
    held = [client.submit(wait_at, gate.port, 1) for _ in range(2)]
    filling = fill_credit(client, 60_000)
    futures = [client.submit(size_of, number.to_bytes(4, "big") * 15_000) for number in range(1000)]
    for _ in held:
        gate.arrive().let_go()
    assert [future.result(SECONDS) for future in (*filling, *futures)] == [60_000] * len((*filling, *futures))
    assert storage.counts == (1000, 0, 0, 1000)
    futures = [client.submit(size_of, number.to_bytes(4, "big") * 15_000) for number in range(300)]
    for future in futures:
        future.cancel()
    assert client.map(size_of, [number.to_bytes(4, "big") * 15_000 for number in range(300)]) == [60_000] * 300
    del future, futures
    storage.wait_empty()


# --- results as arguments --------------------------------------------------------------------------------------------


def test_inputs_never_pass_through_the_client(client: Client, storage: WatchedStorage, gate: Gate) -> None:
    held = client.submit(wait_at, gate.port, bytes(BIG))
    waiting = [client.submit(size_of, held) for _ in range(3)]
    gate.arrive().let_go()
    assert [future.result(SECONDS) for future in waiting] == [BIG] * 3
    assert client.submit(total, [held, {"again": held}], held).result(SECONDS) == 3 * BIG
    assert client.map(size_of, [held, held]) == [BIG] * 2
    puts, gets, _, _ = storage.counts
    assert (puts, gets) == (0, 0) and storage.objects == 1
    assert held.result() == bytes(BIG) and storage.counts[1] == 1
    storage.wait_empty()
    assert client.submit(size_of, held).result(SECONDS) == BIG


def test_a_result_that_was_fetched_stays_for_its_consumers(client: Client, storage: WatchedStorage, gate: Gate) -> None:
    source = client.submit(give, BIG)
    held = client.submit(wait_at, gate.port, 1)
    consumer = client.submit(total, [source], held)
    late = client.submit(total, [source], held)
    arrival = gate.arrive()
    assert source.result(SECONDS) == bytes(BIG)
    assert storage.objects == 1
    del source
    arrival.let_go()
    assert consumer.result(SECONDS) == BIG + 1 == late.result(SECONDS)
    storage.wait_empty()
    assert storage.counts[1] == 1


def test_a_chain(client: Client, storage: WatchedStorage) -> None:
    future = client.submit(give, BIG)
    for _ in range(20):
        future = client.submit(same, future)
    assert future.result(SECONDS) == bytes(BIG)
    assert storage.counts[:2] == (0, 1)
    del future
    storage.wait_empty()


def test_a_big_failure_reaches_everybody(client: Client, storage: WatchedStorage, gate: Gate) -> None:
    held = client.submit(wait_at, gate.port, BIG)
    source = client.submit(explode_big, held)
    consumers = [client.submit(size_of, source) for _ in range(3)]
    further = client.submit(size_of, consumers[0])
    gate.arrive().let_go()
    futures: list[ScalerFuture[Any]] = [source, *consumers, further, client.submit(size_of, source)]
    for future in futures:
        with pytest.raises(ValueError, match="xxxxx"):
            future.result(SECONDS)
    assert storage.counts[2] == 1
    del future, futures, source, consumers, further
    storage.wait_empty()


def test_graphs(client: Client, storage: WatchedStorage) -> None:
    graph = {"a": bytes(BIG), "b": (same, "a"), "c": (doubled, "b"), "d": (size_of, "c"), "e": (total, "b", "d")}
    assert client.get(graph, ["d", "e"]) == {"d": 2 * BIG, "e": 3 * BIG}
    assert storage.counts[1] == 0
    storage.wait_empty()


# --- tasks that submit tasks -----------------------------------------------------------------------------------------


def test_nested(client: Client, storage: WatchedStorage) -> None:
    assert client.submit(nested_sizes, client, BIG).result(SECONDS) == [BIG, BIG, 2 * BIG, BIG, BIG]
    assert len(client.submit(fan_out, client, BIG, 3).result(SECONDS)) == 9 * BIG
    storage.wait_empty()


def test_what_a_killed_worker_owned(client: Client, storage: WatchedStorage, gate: Gate) -> None:
    def parent(client: Client, port: int) -> Any:
        kept = [client.submit(give, BIG) for _ in range(3)]
        wait(kept)
        wait_at(port, 1)
        return len(kept)

    future = client.submit(parent, client, gate.port)
    gate.arrive()
    assert storage.objects == 3
    assert future.cancel()
    storage.wait_empty()


# --- send_object -----------------------------------------------------------------------------------------------------


def test_references_at_any_depth(client: Client, storage: WatchedStorage) -> None:
    reference = client.send_object(bytes(BIG), name="big")
    assert reference.size >= BIG and reference.name == b"big"
    assert client.submit(size_of, reference).result(SECONDS) == BIG
    assert client.submit(total, [{"x": (reference, 1)}, reference], reference).result(SECONDS) == 3 * BIG + 1
    assert client.map(size_of, [reference] * 50) == [BIG] * 50
    assert client.get({"r": reference, "n": (size_of, "r")}, ["n", "r"]) == {"n": BIG, "r": bytes(BIG)}
    puts, _, _, gets = storage.counts
    assert puts == 1 and gets <= 2  # once per worker
    assert storage.objects == 1
    client.clear()
    storage.wait_empty()
    with pytest.raises(ObjectNotFoundError):
        client.submit(size_of, reference)


@pytest.mark.parametrize("released", [True, False])
def test_one_object_is_freed_and_others_are_not(
    client: Client, storage: WatchedStorage, gate: Gate, released: bool
) -> None:
    kept, reference = client.send_object(np.ones(BIG)), client.send_object(np.zeros(BIG))
    copy = replace(reference)
    assert copy == reference != kept and storage.objects == 2
    running = client.submit(wait_at, gate.port, reference)
    arrival = gate.arrive()
    if released:
        reference.release()
        for each in (reference, copy):
            with pytest.raises(ObjectNotFoundError, match="was released"):
                each.value()
    del reference, copy
    assert storage.objects == 2  # the call has it
    arrival.let_go()
    assert not running.result(SECONDS).any()
    del running
    gc.collect()
    wait_until(lambda: storage.objects == 1, "the object is deleted")
    assert client.submit(np.sum, kept).result(SECONDS) == BIG


def test_an_object_that_is_gone(client: Client, storage: WatchedStorage) -> None:
    reference = client.send_object(b"gone" * BIG)
    client._io.storage.free(payload_of(reference))
    wait_until(lambda: storage.objects == 0, "the object is deleted")
    with pytest.raises(ObjectNotFoundError):
        client.submit(size_of, reference).result(SECONDS)
    assert client.submit(size_of, b"1").result(SECONDS) == 1


def test_objects_live_until_the_client_leaves(services: Services, storage: WatchedStorage) -> None:
    with Client(services.address) as client:
        references = [client.send_object(bytes([number]) * BIG) for number in range(3)]
        assert storage.objects == len(references) == 3
    storage.wait_empty()


def test_a_custom_serializer(services: Services, storage: WatchedStorage) -> None:
    storage.forget_counts()
    with Client(services.address, serializer=BytesSerializer) as client:
        reference = client.send_object(bytes(BIG))
        source = client.submit(same, bytes(BIG))
        assert client.submit(total, reference, small=b"1", again=source).result(SECONDS) == 2 * BIG + 1
        wait([source], SECONDS)
        assert client.submit(total, source, reference).result(SECONDS) == 2 * BIG
        assert storage.counts[1] == 0
        assert source.result() == bytes(BIG)
        assert client.map(size_of, [reference, bytes(BIG)]) == [BIG] * 2
        client.clear()
        del source
        storage.wait_empty()


# --- ends ------------------------------------------------------------------------------------------------------------


def test_nothing_is_left_after_200_rounds(client: Client, storage: WatchedStorage) -> None:
    for number in range(200):
        future = client.submit(same, bytes([number]) * BIG)
        consumer = client.submit(size_of, future)
        if number % 3 == 0:
            future.result(SECONDS)
        elif number % 3 == 1:
            consumer.cancel()
        else:
            consumer.result(SECONDS)
    del future, consumer
    client.map(size_of, [bytes(BIG)] * 20)
    storage.wait_empty()


def test_cancelled_in_flight(client: Client, storage: WatchedStorage, gate: Gate) -> None:
    running = [client.submit(wait_at, gate.port, bytes(BIG)) for _ in range(2)]
    gate.arrive()
    gate.arrive()  # both workers are busy: before that a worker could run what is queued
    queued = [client.submit(same, bytes(BIG)) for _ in range(50)]
    for future in (*queued, *running):  # a worker that is free would run what is queued
        assert future.cancel()
    storage.wait_empty()
    racing = [client.submit(give, BIG) for _ in range(100)]
    racing[0].result(SECONDS)
    for future in racing:
        future.cancel()
    assert all(future.cancelled() or len(future.result()) == BIG for future in racing)
    assert client.submit(size_of, b"1").result(SECONDS) == 1
    del future, racing
    last = [client.submit(wait_at, gate.port, number) for number in range(2)]
    for arrival in [gate.arrive() for _ in last]:
        arrival.let_go()
    assert [each.result(SECONDS) for each in last] == [0, 1]  # answers come in order: both have put what was cancelled
    storage.wait_empty()


def test_retries_that_raise_big_exceptions(client: Client, storage: WatchedStorage) -> None:
    future = client.submit_verbose(explode_big, (BIG,), {}, retries=3)
    with pytest.raises(ValueError, match="xxxxx"):
        future.result(SECONDS)
    assert storage.counts[2] == 4
    del future
    storage.wait_empty()


def test_disconnect_with_results_that_nobody_took(services: Services, storage: WatchedStorage) -> None:
    with Client(services.address) as client:
        futures = [client.submit(give, BIG) for _ in range(3)]
        wait(futures, SECONDS)
    storage.wait_empty()
    with pytest.raises(Exception, match="disconnected"):
        futures[0].result(SECONDS)


def test_a_killed_client(services: Services, storage: WatchedStorage) -> None:
    script = f"""
import sys
sys.path.insert(0, {str(TESTS)!r})
from concurrent.futures import wait
from scaler import Client
from support.object_tasks import give
client = Client({services.address!r})
kept = client.send_object(bytes({BIG})), [client.submit(give, {SHARED_BYTES}) for _ in range(3)]
wait(kept[1])
print("ready", flush=True)
sys.stdin.read()
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        wait_until(lambda: storage.objects == 4, "its objects are there")
        process.kill()
    storage.wait_empty()


def test_a_killed_storage(tmp_path: Path) -> None:
    address = f"tcp://127.0.0.1:{free_ports(1)}"
    server = Service(tmp_path / "storage.log", "scaler_storage", address)
    try:
        with Services(tmp_path, "--object-storage-address", address) as services:
            services.add_agent(2)
            with Client(services.address, timeout_seconds=2) as client, Gate() as gate:
                reference = client.send_object(b"sent" * BIG)
                kept = client.submit(give, BIG)
                wait([kept], SECONDS)
                held = client.submit(wait_at, gate.port, bytes(BIG))
                arrival = gate.arrive()
                server.kill()
                arrival.let_go()
                late = client.submit(size_of, b"late" * BIG)
                named = client.submit(size_of, reference)
                assert client.map(size_of, [b"1"] * 100) == [1] * 100
                for future in (kept, held, late, named):
                    with pytest.raises((StorageLostError, ObjectNotFoundError)):
                        future.result(2 * SECONDS)
                assert client.submit(size_of, b"1").result(SECONDS) == 1
                server = Service(tmp_path / "storage-2.log", "scaler_storage", address)
                assert client.submit(same, bytes(BIG)).result(SECONDS) == bytes(BIG)
                with pytest.raises(ObjectNotFoundError):
                    client.submit(first, reference).result(SECONDS)
    finally:
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(SECONDS) == 0


def test_a_full_storage(tmp_path: Path) -> None:
    address = f"tcp://127.0.0.1:{free_ports(1)}"
    server = Service(tmp_path / "storage.log", "scaler_storage", address, "--memory-limit", str(4 * MIB))
    try:
        with Services(tmp_path, "--object-storage-address", address) as services:
            services.add_agent(2)
            with Client(services.address, timeout_seconds=SECONDS) as client, Gate() as gate:
                for future in (client.submit(give, 8 * MIB), client.submit(size_of, bytes(8 * MIB))):
                    with pytest.raises(StorageFullError):
                        future.result(SECONDS)
                holding = [client.submit(wait_at, gate.port, 1) for _ in range(2)]
                arrivals = [gate.arrive() for _ in holding]
                filling = fill_credit(client, 2 * BIG)
                waiting = [client.submit(size_of, bytes([number]) * 2 * BIG) for number in range(60)]
                refused = [future for future in waiting[-20:] if future.exception(SECONDS)]
                assert len(refused) == 20 and {type(future.exception()) for future in refused} == {StorageFullError}
                for arrival in arrivals:
                    arrival.let_go()
                taken = [future.result(SECONDS) for future in waiting if future.exception(SECONDS) is None]
                assert len(taken) >= 10 and set(taken) == {2 * BIG}
                assert {future.result(SECONDS) for future in filling} == {2 * BIG}
                with pytest.raises(StorageFullError):
                    client.map(size_of, [bytes([number]) * 3 * BIG for number in range(60)])
                gc.collect()  # the traceback
                wait_until(lambda: not client.submit(same, bytes(MIB)).exception(SECONDS), "there is room again")
    finally:
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(SECONDS) == 0


def test_a_named_storage_comes_before_the_schedulers(services: Services, storage: WatchedStorage) -> None:
    with WatchedStorage() as other, Client(services.address, object_storage_address=other.address) as client:
        reference = client.send_object(bytes(BIG))
        assert (storage.objects, other.objects) == (0, 1)
        reference.release()


def test_a_cancelled_input(client: Client, storage: WatchedStorage, gate: Gate) -> None:
    held = client.submit(wait_at, gate.port, bytes(BIG))
    consumer = client.submit(size_of, held)
    gate.arrive()
    held.cancel()
    with pytest.raises(CancelledError):
        consumer.result(SECONDS)
    storage.wait_empty()


# --- memory ----------------------------------------------------------------------------------------------------------


def through(client: Client, size: int) -> None:
    """An argument and a result of that size."""
    big = bytes(size)
    assert client.submit(size_of, big).result(10 * SECONDS) == size
    del big
    assert len(client.submit(give, size).result(10 * SECONDS)) == size


def watch_memory(services: Services, client: Client, size: int) -> None:
    """Scheduler and agent stay as small as they are while payloads of that size are under way."""
    client.submit(size_of, bytes(BIG)).result(SECONDS)
    pids = [service.pid for service in services.started]
    for pid in pids:
        forget_peak(pid)
    before = [resident(pid)[0] for pid in pids]
    through(client, size)
    grown = [resident(pid)[1] - small for pid, small in zip(pids, before, strict=True)]
    assert all(growth < FLAT_BYTES for growth in grown), grown


def test_scheduler_and_agent_stay_flat(client: Client, services: Services) -> None:
    watch_memory(services, client, 64 * MIB)


@pytest.mark.soak
def test_512_mebibytes_and_300_bytes(client: Client, services: Services) -> None:
    watch_memory(services, client, 512 * MIB + 300)


@pytest.mark.soak
def test_3_gibibytes(client: Client) -> None:
    through(client, 3 * 1024 * MIB)


@pytest.mark.soak
@pytest.mark.parametrize("size", [20_000, 300_000])
def test_10_000_references_at_once(client: Client, storage: WatchedStorage, size: int) -> None:
    references = [client.send_object(number.to_bytes(4, "little") + bytes(size)) for number in range(10_000)]
    assert storage.objects == 10_000
    assert client.submit(total, references).result(10 * SECONDS) == 10_000 * (size + 4)
    assert client.map(first, references) == [number % 256 for number in range(10_000)]
    client.clear()
    del references
    storage.wait_empty()


@pytest.mark.soak
def test_1000_rounds_leave_no_segment_and_flat_memory(
    client: Client, services: Services, storage: WatchedStorage
) -> None:
    def play(rounds: int) -> None:
        for number in range(rounds):
            array = np.full(BIG, number)
            assert client.submit(same, array).result(SECONDS)[-1] == number

    def warm() -> None:
        """Both workers have imported numpy."""
        with Gate() as gate:
            both = [client.submit(wait_at, gate.port, np.full(BIG, number)) for number in range(2)]
            for arrival in [gate.arrive() for _ in both]:
                arrival.let_go()
            assert [future.result(SECONDS)[-1] for future in both] == [0, 1]

    warm()
    play(100)
    pids = [pid for service in services.started for pid in service.family()]
    before = [resident(pid)[0] for pid in pids]
    play(1000)
    wait_until(lambda: all(mapped(pid) < BIG for pid in pids), "workers forget arguments of earlier tasks")
    grown = [resident(pid)[0] - small for pid, small in zip(pids, before, strict=True)]
    assert all(growth < FLAT_BYTES for growth in grown), grown
    storage.wait_empty()
    wait_until(lambda: not storage.segments, "memory that is not used again is given up", 2 * RECYCLE_SECONDS)


@pytest.mark.soak
def test_a_function_of_500_megabytes(client: Client) -> None:
    weight = bytes(500_000_000)
    assert client.submit(lambda: len(weight)).result(10 * SECONDS) == len(weight)
