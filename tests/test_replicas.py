"""`--replicas 2`: requested results are copied while the network is idle, and outlive the host that made them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.far import Far
from support.gates import SECONDS
from support.networks import two_hosts
from support.waiting import wait_until


@pytest.fixture(params=["memory", "disk"])
def far(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Far]:
    (tmp_path / "disk").mkdir()
    words = ("--spill-directory", str(tmp_path / "disk")) if request.param == "disk" else ()
    with two_hosts() as (near, other, wire):
        made = Far(near, other, wire, tmp_path, *words, replicas=2)
        yield made
        made.close()


def test_results_are_read_after_their_host_was_killed_and_no_task_runs_again(far: Far) -> None:
    cluster = far.add_cluster(2)
    script = """
    wait_until(lambda: figures(STORAGE).hosts, "an agent that speaks for its host")
    made = [client.submit(give, (number + 1) * MIB) for number in range(5)]
    nodes = {"inner": (give, 3 * MIB), "outer": (longer, "inner")}
    outer = client.get(nodes, ["outer"], block=False)["outer"]
    wait([*made, outer])
    wait_until(lambda: figures(STORAGE).copies == 6, "copies of what was requested")
    now = figures(STORAGE)
    assert now.replicas in (6, 7), now  # the inner node is not requested
    assert 15 * MIB < now.copy_bytes < 20 * MIB
    print("copied")
    input()
    wait_until(lambda: not figures(STORAGE).hosts, "the storage server knows that the host is lost")
    assert [len(future.result(60)) for future in made] == [(number + 1) * MIB for number in range(5)]
    assert len(outer.result(60)) > 3 * MIB
    del made, outer
    wait_until(lambda: not figures(STORAGE).objects, "objects are freed")
    """
    client = far.run(script, on=far.near)
    far.hear(client, "copied")
    cluster.send_signal(signal.SIGKILL)  # and so to its workers: nobody can run a task from now on
    cluster.wait()
    far.let_go(client)
    assert client.wait(4 * SECONDS) == 0, far.said("client")
    far.add_cluster(1)  # takes up what the killed one has left, and need not keep it
    wait_until(lambda: not any("/replicas/" in name for name in far.far.memory), "no file of a replica")
