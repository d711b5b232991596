"""Task ids: none is given out twice, and a session that has none left says so."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from scaler_client.api.client import Client
from scaler_client.runtime.task_ids import SINGLES, TaskIds
from scaler_protocol.errors import SessionExhaustedError
from scaler_protocol.ids import LAST_COUNT, first_task

SECONDS = 10.0
FIRST = first_task(7)


def double(a: int) -> int:
    return 2 * a


def almost_used_up(ids: TaskIds, left: int) -> TaskIds:
    """As if so many single ids were left, and nothing else."""
    ids._singles_from = ids._blocks_from - left
    return ids


def test_ids_are_of_the_session_and_the_last_one_is_used() -> None:
    ids = almost_used_up(TaskIds(7), SINGLES)
    assert [ids.next_task() for _ in range(SINGLES)] == list(range(FIRST + LAST_COUNT - SINGLES + 1, first_task(8)))
    for _ in range(3):
        with pytest.raises(SessionExhaustedError, match="4,294,967,295 task ids; make another Client"):
            ids.next_task()
    ids = TaskIds(7)
    assert (ids.next_task(), ids.next_tasks(3)) == (FIRST + 1, first_task(8) - 3)


def test_blocks_end_where_single_ids_begin() -> None:
    ids = almost_used_up(TaskIds(7), 3 * SINGLES)
    given = {ids.next_task()}
    blocks = [ids.next_tasks(SINGLES) for _ in range(2)]
    for size in (1, SINGLES, 2**40):
        with pytest.raises(SessionExhaustedError, match=f"{size:,} more task"):
            ids.next_tasks(size)
    for _ in range(SINGLES - 1):
        given.add(ids.next_task())
    with pytest.raises(SessionExhaustedError):
        ids.next_task()
    assert given == set(range(min(given), min(given) + SINGLES)) and max(given) < min(blocks)


def test_a_block_that_does_not_fit_takes_nothing_from_others() -> None:
    ids = almost_used_up(TaskIds(7), SINGLES)
    with pytest.raises(SessionExhaustedError):
        ids.next_tasks(SINGLES + 1)
    assert ids.next_tasks(SINGLES) == first_task(8) - SINGLES


def test_threads_share_the_last_ids() -> None:
    ids, given, begin = almost_used_up(TaskIds(7), 8 * SINGLES), list[int](), threading.Barrier(4)

    def take(*, blocks: bool) -> None:
        begin.wait(SECONDS)
        try:
            while True:
                if blocks:
                    first = ids.next_tasks(5)
                    given.extend(range(first, first + 5))
                else:
                    given.append(ids.next_task())
        except SessionExhaustedError:
            pass

    threads = [threading.Thread(target=take, kwargs={"blocks": at % 2 == 0}) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert len(given) == len(set(given)) > 7 * SINGLES
    assert min(given) >= first_task(8) - 8 * SINGLES and max(given) < first_task(8)


def test_a_client_whose_numbers_are_used_up_says_so_and_loses_nothing(client: Client, cluster: Any) -> None:
    cluster.paused = True
    before = client.submit(double, 1)
    cluster.wait_tasks(1)
    almost_used_up(client._io.ids, SINGLES)
    client._io.ids._singles = []
    under_way = [client.submit(double, number) for number in range(SINGLES)]
    for _ in range(2):
        with pytest.raises(SessionExhaustedError, match="make another Client"):
            client.submit(double, 5)
        with pytest.raises(SessionExhaustedError, match="make another Client"):
            client.submit_verbose(double, (5,), {})
        with pytest.raises(SessionExhaustedError, match="make another Client"):
            client.map(double, [5])
        with pytest.raises(SessionExhaustedError, match="make another Client"):
            client.get({"a": (double, 5)}, ["a"])
    cluster.go_on()
    assert before.result(SECONDS) == 2
    assert [future.result(SECONDS) for future in under_way] == list(range(0, 2 * SINGLES, 2))
    with Client(cluster.address, timeout_seconds=SECONDS) as another:
        assert another.submit(double, before).result(SECONDS) == 4


def test_what_straddles_the_end_is_refused_as_a_whole_and_less_is_taken(client: Client, cluster: Any) -> None:
    almost_used_up(client._io.ids, 100)
    chain: dict[str, Any] = {"0": (double, 1), **{str(at): (double, str(at - 1)) for at in range(1, 101)}}
    with pytest.raises(SessionExhaustedError, match="for 101 more tasks"):
        client.get(chain, ["100"])
    with pytest.raises(SessionExhaustedError):
        client.map(double, range(101))
    assert client.map(double, range(5)) == [0, 2, 4, 6, 8]
    assert client.get({"a": (double, 1), "b": (double, "a")}, ["b"]) == {"b": 4}
    assert not client._io._core._outstanding
