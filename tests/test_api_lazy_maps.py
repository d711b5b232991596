"""`imap`, `imap_unordered`, `options`, and exceptions among the results of maps."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scaler import Client
from scaler_protocol.errors import CapabilityError, ClientQuitError, DeserializeError, TaskTimeoutError
from support.gates import SECONDS
from support.map_tasks import double, fail_at_three, lazily, wait_for


def notes_of(error: BaseException) -> list[str]:
    return getattr(error, "__notes__", [])


class Exiting:
    """Calls sys.exit() when it is loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return sys.exit, (3,)


class Counted:
    """Counts what was drawn."""

    def __init__(self) -> None:
        self.drawn = 0

    def __iter__(self) -> Iterator[int]:
        for number in itertools.count():
            self.drawn += 1
            yield number


def test_imap_is_in_order_and_draws_no_more_than_its_buffer(client: Client) -> None:
    numbers = Counted()
    results = client.imap(double, numbers, buffersize=5)
    assert numbers.drawn == 5, "the first calls are submitted before a result is asked for"
    assert list(itertools.islice(results, 20)) == [2 * number for number in range(20)]
    assert numbers.drawn == 25
    results.close()  # type: ignore[attr-defined]
    assert list(client.imap(pow, [2, 3], [3, 2, 5])) == [8, 9]
    assert list(client.imap(double, [])) == []


def test_imap_unordered_does_not_wait_for_a_slow_call(client: Client, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    results = client.imap_unordered(wait_for, itertools.repeat(flag), range(50), buffersize=10)
    first = [next(results) for _ in range(49)]
    assert 0 not in first
    flag.touch()
    assert [*first, *results] == [*first, 0] and sorted([*first, 0]) == list(range(50))


@pytest.mark.parametrize("name", ["imap", "imap_unordered"])
def test_a_failure_names_its_item_and_cancels_what_is_under_way(client: Client, name: str) -> None:
    results = getattr(client, name)(fail_at_three, itertools.count(), buffersize=10)
    with pytest.raises(ValueError, match="three") as raised:
        for _ in results:
            pass
    assert notes_of(raised.value)[-1] == "raised by item 3 of the map: 3"
    assert next(results, None) is None, "the iterator has ended"


@pytest.mark.parametrize("name", ["imap", "imap_unordered"])
def test_calls_whose_results_nobody_takes_are_cancelled(client: Client, name: str, tmp_path: Path) -> None:
    lazy_map, flags = getattr(client, name), itertools.repeat(tmp_path / "never")
    lazy_map(wait_for, flags, [0] * 10).close()
    lazy_map(wait_for, flags, [0] * 10)
    lazy_map(wait_for, flags, broken(10)).close()
    assert client.options(priority=-1).submit(double, 2).result(SECONDS) == 4, "no call before it waits for the file"


def broken(count: int) -> Iterator[int]:
    yield from range(count)
    raise KeyError("the iterable")


@pytest.mark.parametrize("name", ["imap", "imap_unordered", "executor"])
@pytest.mark.parametrize("return_exceptions", [False, True])
def test_what_an_iterable_raises_comes_after_the_results(client: Client, name: str, return_exceptions: bool) -> None:
    if name == "executor":
        results = client.executor().map(double, broken(5), buffersize=2)
    else:
        results = getattr(client, name)(double, broken(5), buffersize=2, return_exceptions=return_exceptions)
    assert sorted(next(results) for _ in range(5)) == [0, 2, 4, 6, 8]
    with pytest.raises(KeyError, match="the iterable"):
        next(results)


@pytest.mark.parametrize("name", ["imap", "imap_unordered"])
def test_an_iterable_that_raises_at_once_is_the_error_of_the_call(client: Client, name: str) -> None:
    with pytest.raises(KeyError, match="the iterable"):
        getattr(client, name)(double, broken(0))


@pytest.mark.parametrize("name", ["map", "starmap", "imap", "imap_unordered"])
def test_exceptions_among_the_results(client: Client, name: str) -> None:
    rows: Any = zip(range(6)) if name == "starmap" else range(6)
    results = list(getattr(client, name)(fail_at_three, rows, return_exceptions=True))
    if name == "imap_unordered":
        results.sort(key=lambda value: 3 if isinstance(value, ValueError) else value)
    assert [str(value) for value in results] == ["0", "1", "2", "three", "4", "5"]
    assert isinstance(results[3], ValueError)


def test_exceptions_among_many_results_of_a_map(client: Client) -> None:
    results = client.map(fail_at_three, [*range(2_000), 3], return_exceptions=True)
    failed = [at for at, value in enumerate(results) if isinstance(value, Exception)]
    assert failed == [3, 2_000] and results[4] == 4 and len(results) == 2_001


@pytest.mark.parametrize("before", [0, 3_000], ids=["first block", "later block"])
def test_a_map_names_the_item_that_failed(client: Client, before: int) -> None:
    with pytest.raises(ValueError, match="three") as raised:
        client.map(fail_at_three, [*[1] * before, 3])
    assert notes_of(raised.value)[-1] == f"raised by item {before} of the map: 3"
    with pytest.raises(ValueError, match="three") as raised:
        client.starmap(fail_at_three, iter([(1,), (3,)]))
    assert notes_of(raised.value)[-1] == "raised by item 1 of the map: 3"


def test_an_argument_that_exits_when_it_is_loaded_does_not_end_the_program(client: Client) -> None:
    with pytest.raises(DeserializeError, match="SystemExit"):
        client.map(double, [Exiting()])


def test_options_hold_for_each_way_to_call(client: Client) -> None:
    options = client.options(priority=3, retries=1, timeout=30)
    assert options.submit(max, [3, 1], default=0).result() == 3
    assert options.map(double, [1, 2]) == [2, 4]
    assert options.starmap(pow, [(2, 3)]) == [8]
    assert list(options.imap(double, [1, 2])) == [2, 4]
    assert sorted(options.imap_unordered(double, [1, 2])) == [2, 4]
    with pytest.raises(TaskTimeoutError):
        client.options(timeout=0.2).submit(time.sleep, 60).result()


def test_lazy_maps_within_a_task_give_its_place_away(single_client: Client) -> None:
    assert single_client.submit(lazily, single_client, 6).result() == [*range(0, 12, 2)] * 2


def test_what_is_wrong_is_named(client: Client) -> None:
    with pytest.raises(ValueError, match="buffersize"):
        client.imap(double, [1], buffersize=0)
    with pytest.raises(TypeError, match="iterable 1 of imap"):
        client.imap(double, 5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="at least one iterable"):
        client.imap_unordered(double)
    with pytest.raises(TypeError, match="return_exceptions"):
        client.map(double, [1], return_exceptions="no")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="priority"):
        client.options(priority=1 << 40)
    with pytest.raises(CapabilityError):
        client.options(capabilities={"a,b": 1})
    with pytest.raises(TypeError):
        list(client.imap(double, [1], [2]))
    other = Client(client._settings["address"])
    other.disconnect()
    with pytest.raises(ClientQuitError):
        other.imap(double, [1])
