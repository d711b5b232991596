"""Object storage on one host, workers and clients on another, and a bad wire between them."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from support.far import MIB, Far
from support.gates import SECONDS
from support.networks import two_hosts
from support.processes import descendants
from support.waiting import wait_until

Place = Callable[..., Far]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with ExitStack() as stack:

        def place(**wire: float) -> Far:
            near, far, between = stack.enter_context(two_hosts())
            for name, value in wire.items():
                setattr(between, name, value)
            made = Far(near, far, between, tmp_path)
            stack.callback(made.close)
            return made

        yield place


def ends_well(client: subprocess.Popen[str], far: Far, seconds: float = 3 * SECONDS) -> list[str]:
    """Its lines."""
    assert client.wait(seconds) == 0, far.said("client")
    return far.said("client").splitlines()


def test_a_host_fetches_once(place: Place) -> None:
    far = place()
    far.add_cluster(3)
    client = far.run("""
        array = np.arange(6 * MIB, dtype=np.float64)
        found = [future.result() for future in [client.submit(describe_array, array) for _ in range(12)]]
        assert {total for total, _, _ in found} == {array.sum()}, found
        assert {(writeable, astray) for _, writeable, astray in found} == {(False, 0)}, found
        assert client.submit(same, client.submit(give, 8 * MIB)).result() == bytes(8 * MIB)
    """)
    ends_well(client, far)
    fetched = far.wire.carried[far.near.address]
    assert 56 * MIB < fetched < 60 * MIB  # the array once, a result for the client; its consumer found it
    assert sum(far.far.memory.values()) < 70 * MIB


def test_nodes_of_a_graph_run_where_their_inputs_are(place: Place) -> None:
    far = place()
    far.add_cluster(2)
    far.add_cluster(2, on=far.near)
    # Each layer begins at once, when the one before has ended: all workers are free for all of its nodes.
    client = far.run("""
        graph = {("x", 0, at): (give, 4 * MIB + at) for at in range(4)}
        for layer in range(8):
            for at in range(4):
                graph["size", layer, at] = (size_and_cluster, ("x", layer, at))
                graph["x", layer + 1, at] = (longer, ("x", layer, at), ("all", layer))
            graph["all", layer] = (max, *(("size", layer, at) for at in range(4)))
        found = client.get(graph, [("size", 7, at) for at in range(4)]).values()
        assert sorted(size for size, cluster in found) == [4 * MIB + at + 7 for at in range(4)]
        assert sorted(Counter(cluster for size, cluster in found).values()) == [2, 2], "each host has made two"
    """)
    ends_well(client, far)
    assert all(carried < 4 * MIB for carried in far.wire.carried.values()), "and has taken nothing from the other one"


@pytest.mark.parametrize(("rate", "size", "small"), [(8, 48, 10), pytest.param(40, 600, 30, marks=pytest.mark.soak)])
def test_a_big_object_on_a_slow_wire_starves_nobody(place: Place, rate: int, size: int, small: int) -> None:
    far = place(delay=0.01)
    far.add_cluster(2)
    client = far.run(f"""
        from concurrent.futures import ThreadPoolExecutor
        big = client.submit(give, {size} * MIB)
        small = [client.submit(give, 100_000) for _ in range({small})]
        wait([big, *small])
        print("stored")
        input()
        with ThreadPoolExecutor() as pool:
            fetched = pool.submit(big.result)
            for future in small:
                assert len(future.result()) == 100_000
                print("small")
            assert not fetched.done()
            assert len(fetched.result()) == {size} * MIB
    """)
    wait_until(lambda: "stored" in far.said("client"), "results", 10 * SECONDS)
    far.wire.rate = float(rate * MIB)
    assert client.stdin is not None
    print(file=client.stdin, flush=True)
    assert ends_well(client, far, 10 * SECONDS).count("small") == small
    assert "is gone" not in far.said("scheduler")


def test_a_link_that_breaks_in_the_middle_goes_on_where_it_was(place: Place) -> None:
    far = place(delay=0.005, loss=0.002)
    far.add_cluster(2)
    client = far.run("""
        array = np.random.default_rng(1).random(8 * MIB)
        futures = [client.submit(describe_array, array) for _ in range(4)]
        assert {future.result()[0] for future in futures} == {array.sum()}
    """)
    for sender in (far.far, far.near):  # the argument on its way to storage, and to the workers
        far.wire.wait_for(sender, 20 * MIB)
        far.wire.cut()
        far.wire.wait_lost(20)
        far.wire.mend()
    ends_well(client, far)
    for sender in (far.far, far.near):
        assert far.wire.carried[sender.address] < 80 * MIB


def test_a_host_that_drains_hands_its_objects_over(place: Place) -> None:
    far = place()
    cluster = far.add_cluster(2)
    client = far.run(
        """
        futures = [client.submit(give, size * MIB) for size in (1, 5)]
        wait(futures)
        print("stored")
        input()
        assert [len(future.result()) for future in futures] == [1 * MIB, 5 * MIB]
        """,
        on=far.near,
    )
    far.hear(client, "stored")
    assert sum(far.far.memory.values()) > 5 * MIB, "the objects are on the host that made them"
    cluster.terminate()
    assert cluster.wait(SECONDS) == 0
    assert "handed 2 objects over to object storage" in far.said("cluster")
    far.let_go(client)
    ends_well(client, far)


def test_killed_consumers_are_succeeded(place: Place) -> None:
    far = place(rate=40.0 * MIB)
    cluster = far.add_cluster(2)
    client = far.run("""
        array = np.random.default_rng(1).random(6 * MIB)
        futures = [client.submit(describe_array, array) for _ in range(4)]
        assert {future.result()[0] for future in futures} == {array.sum()}
    """)
    far.wire.wait_for(far.near, 24 * MIB)
    mapped = far.far.memory
    workers = [pid for pid in descendants(cluster.pid) if not descendants(pid)]
    assert len(workers) == 2 and len([name for name in mapped if name[-1].isdigit()]) == 1
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
    ends_well(client, far)
    assert far.wire.carried[far.near.address] < 60 * MIB  # its successor went on where it was


def test_a_storage_that_is_killed_in_the_middle(place: Place) -> None:
    far = place(rate=40.0 * MIB)
    far.add_cluster(2)
    client = far.run("""
        array = np.random.default_rng(1).random(4 * MIB)
        futures = [client.submit(describe_array, array) for _ in range(4)]
        for future in futures:
            error = future.exception(60)
            assert error is None or isinstance(error, (ObjectNotFoundError, StorageLostError)), error
        again = np.random.default_rng(2).random(MIB)
        assert client.submit(describe_array, again).result(60)[0] == again.sum()
    """)
    far.wire.wait_for(far.near, 10 * MIB)
    far.storage.kill()
    far.storage.wait()
    far.start_storage()
    ends_well(client, far)


@pytest.mark.soak
def test_a_link_that_is_gone_until_connections_break(place: Place) -> None:
    far = place(rate=40.0 * MIB, delay=0.005, loss=0.001)
    far.add_cluster(2)
    client = far.run("""
        array = np.random.default_rng(1).random(32 * MIB)
        futures = [client.submit(describe_array, array) for _ in range(4)]
        assert {future.result()[0] for future in futures} == {array.sum()}
    """)
    for sender in (far.far, far.near):
        far.wire.wait_for(sender, 60 * MIB, 3 * SECONDS)
        far.far.ip("link", "set", "wire", "down")
        time.sleep(15)  # ZeroMQ's heartbeats need 12 to notice; then clients try for 20 to reach storage
        far.far.ip("link", "set", "wire", "up")
    ends_well(client, far, 300)
    for sender in (far.far, far.near):
        assert far.wire.carried[sender.address] < 300 * MIB
