"""Results that stay on the host of their worker, which is not the storage's: used, fetched, put, lost, and deleted."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.far import MIB, Far
from support.gates import SECONDS
from support.networks import two_hosts
from support.waiting import wait_until

HELD = """
    wait_until(lambda: figures(STORAGE).hosts, "an agent that speaks for its host")
"""


@pytest.fixture
def far(tmp_path: Path) -> Iterator[Far]:
    with two_hosts() as (near, other, wire):
        made = Far(near, other, wire, tmp_path)
        yield made
        made.close()


def ends_well(far: Far, client: subprocess.Popen[str]) -> None:
    assert client.wait(3 * SECONDS) == 0, far.said("client")


def held_on(far: Far) -> list[str]:
    """Second names of files on the workers' host."""
    return [name for name in far.far.memory if name.split("/")[1] == "replicas"]


def objects_on(far: Far) -> list[str]:
    """Files of objects there."""
    return [name for name in far.far.memory if name.split("/")[1].rpartition("-")[2].isdigit()]


@pytest.mark.parametrize("place", ["far", "near"])
def test_a_result_stays_until_it_is_fetched_elsewhere(far: Far, place: str) -> None:
    far.add_cluster(2)
    script = (
        HELD
        + """
    made = client.submit(give, 8 * MIB)
    consumers = [client.submit(size_of, made) for _ in range(6)]
    assert {consumer.result() for consumer in consumers} == {8 * MIB}
    now = figures(STORAGE)
    size = now.replica_bytes
    assert 8 * MIB < size < 9 * MIB
    assert (now.hosts, now.objects, now.replicas, now.bytes, now.fetched_bytes_total) == (1, 1, 1, 0, 0), now
    print("held")
    input()
    assert made.result() == bytes(8 * MIB)
    now = figures(STORAGE)
    assert (now.replicas, now.fetched_bytes_total) == (0, size), now
    more = [client.submit(give, 2 * MIB) for _ in range(3)]
    wait(more)
    print("more")
    input()
    del made, more, consumers
    wait_until(lambda: not figures(STORAGE).objects, "objects are freed")
    print("freed")
    input()
    """
    )
    client = far.run(script, on=getattr(far, place))
    far.hear(client, "held")
    carried = far.wire.carried[far.far.address]
    assert carried < MIB
    far.let_go(client)
    far.hear(client, "more")
    assert len(objects_on(far)) == 4 and len(held_on(far)) == 3
    far.let_go(client)
    far.hear(client, "freed")
    wait_until(lambda: len(objects_on(far)) <= 1, "what was held is gone")  # what was brought is a cached file by now
    assert not held_on(far)
    far.let_go(client)
    ends_well(far, client)


def test_agents_that_are_killed(far: Far) -> None:
    first = far.add_cluster(1)
    client = far.run(
        HELD
        + """
    made = [client.submit(give, (number + 2) * MIB) for number in range(3)]
    wait(made)
    print("held")
    input()
    assert len(made[0].result()) == 2 * MIB
    print("fetched")
    input()
    try:
        made[1].result(1)
    except TimeoutError:
        print("lost")  # it is made again as soon as there is a worker
    input()
    assert client.submit(size_of, made[2]).result() == 4 * MIB == len(made[2].result())
    assert len(made[1].result()) == 3 * MIB
    """
    )
    far.hear(client, "held")
    second = far.add_cluster(1)
    first.send_signal(signal.SIGKILL)
    first.wait()
    far.let_go(client)  # another agent of that host brings it
    far.hear(client, "fetched")
    second.send_signal(signal.SIGKILL)
    second.wait()
    far.let_go(client)
    far.hear(client, "lost")
    far.add_cluster(1)  # takes up what is there
    far.let_go(client)
    ends_well(far, client)


def test_memory_asks_for_what_is_held(far: Far) -> None:
    far.add_cluster(2, "--object-cache-limit", str(20 * MIB))
    client = far.run(
        HELD
        + """
    made = [client.submit(give, 6 * MIB) for _ in range(7)]
    wait(made)
    now = figures(STORAGE)
    assert now.objects == 7 and now.replicas <= 3 and now.fetched_bytes_total, now
    assert now.bytes + now.replica_bytes >= 42 * MIB, now
    assert [client.submit(size_of, each).result() for each in made] == [6 * MIB] * 7
    print("full")
    input()
    assert {each.result() for each in made} == {bytes(6 * MIB)}
    """
    )
    far.hear(client, "full")
    assert sum(size for name, size in far.far.memory.items() if "replicas" not in name) < 21 * MIB
    far.let_go(client)
    ends_well(far, client)


def test_a_storage_that_is_started_again_learns_what_is_held(far: Far) -> None:
    far.add_cluster(2)
    client = far.run(
        HELD
        + """
    made = [client.submit(give, 3 * MIB) for _ in range(4)]
    wait(made)
    print("held")
    input()
    assert [len(each.result()) for each in made] == [3 * MIB] * 4
    assert figures(STORAGE).fetched_bytes_total >= 12 * MIB
    """
    )
    far.hear(client, "held")
    far.storage.kill()
    far.storage.wait()
    far.start_storage()
    far.let_go(client)
    ends_well(far, client)


@pytest.mark.soak
def test_what_a_graph_has_lost_with_a_host_is_made_again(far: Far, tmp_path: Path) -> None:
    first = far.add_cluster(2)
    client = far.run(
        HELD
        + f"""
    import os, time

    def until(size):
        while not os.path.exists({str(tmp_path / "go")!r}):
            time.sleep(0.01)
        return size

    def joined(made, again, *sizes):
        return len(made) + len(again) + sum(sizes)

    graph = {{
        "made": (give, 4 * MIB), "size": (size_of, "made"), "late": (until, 5),
        "again": (same, "made"), "all": (joined, "made", "again", "late", "size"),
    }}
    all = client.get(graph, ["all"], block=False)["all"]
    wait_until(lambda: figures(STORAGE).replicas == 2, "results on their host")
    print("held")
    assert all.result(120) == 12 * MIB + 5
    """,
        on=far.near,
    )
    far.hear(client, "held")
    first.send_signal(signal.SIGKILL)
    first.wait()
    far.add_cluster(1, on=far.near)
    (tmp_path / "go").touch()
    ends_well(far, client)
    far.add_cluster(1)  # what is left on that host goes with the next one there


@pytest.mark.soak
def test_an_agent_that_brings_more_than_2_gib_starves_nobody(far: Far) -> None:
    far.add_cluster(2, "--object-cache-limit", str(4 << 30))
    client = far.run(
        HELD
        + """
    from concurrent.futures import ThreadPoolExecutor
    made = client.submit(give, (2 << 30) + 300)
    wait([made])
    assert figures(STORAGE).replicas == 1
    with ThreadPoolExecutor() as pool:
        fetched = pool.submit(made.result)
        small = 0
        while not fetched.done():
            assert client.submit(size_of, bytes(100_000)).result(60) == 100_000
            small += 1
        assert len(fetched.result()) == (2 << 30) + 300 and small > 3, small
    """,
        on=far.near,
    )
    assert client.wait(10 * SECONDS) == 0, far.said("client")
    assert "is gone" not in far.said("scheduler")
