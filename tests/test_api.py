"""Calls: what reaches the function, what is refused at submit, and what `map` makes of its arguments."""

from __future__ import annotations

import functools
import math
import operator
import os
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scaler import Client
from support.clusters import LocalCluster
from support.gates import SECONDS, Gate, wait_at
from support.tasks import KeywordsOnly, add, every_kind, explode, note, square

Refused = tuple[tuple[Any, ...], dict[str, Any]]


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((1, 2), {"d": 4}),
        ((1,), {"b": 2, "d": 4}),
        ((1,), {"d": 4, "c": 30, "b": 2}),
        ((1, 2, 3, 40, 41), {"d": 4, "e": 50}),
        ((1, 2), {"d": 4, "f": 6, "g": 7}),
        ((1, 2), {"d": 4, "a": 100, "profiling": 9}),
    ],
)
def test_every_keyword_reaches_the_function(client: Client, args: tuple[int, ...], kwargs: dict[str, int]) -> None:
    expected = every_kind(*args, **kwargs)
    assert client.submit(every_kind, *args, **kwargs).result(SECONDS) == expected
    assert client.submit_verbose(every_kind, args, kwargs).result(SECONDS) == expected


def test_parameters_of_the_client_may_be_named_like_those_of_the_function(client: Client) -> None:
    def takes(fn: int, args: int, kwargs: int, capabilities: int, self: int) -> list[int]:
        return [fn, args, kwargs, capabilities, self]

    future = client.submit(takes, fn=1, args=2, kwargs=3, capabilities=4, self=5)
    assert future.result(SECONDS) == [1, 2, 3, 4, 5]


def test_all_that_can_be_called_can_be_submitted(client: Client) -> None:
    closed = 10

    class Local:
        def __init__(self, value: int) -> None:
            self.value = value

    calls: list[tuple[Callable[..., Any], tuple[Any, ...], Any]] = [
        (lambda value: value + closed, (1,), 11),
        (functools.partial(add, b=5), (1,), 6),
        (KeywordsOnly().bound, (1,), 2),
        (operator.itemgetter(1), ([1, 2],), 2),
        (str.upper, ("a",), "A"),
        ("a,b".split, (",",), ["a", "b"]),
        (int, ("12",), 12),
        (lambda: Local(3).value, (), 3),
    ]
    futures = [client.submit(fn, *args) for fn, args, _ in calls]
    assert [future.result(SECONDS) for future in futures] == [expected for _, _, expected in calls]
    assert client.submit(KeywordsOnly(), left=1, more=3).result(SECONDS) == (1, 2, {"more": 3})


def test_builtins_without_a_signature(client: Client) -> None:
    assert client.submit(max, 3, 5).result(SECONDS) == 5
    assert client.submit(max, [], default=7).result(SECONDS) == 7
    assert client.submit(min, ["bbb", "c"], key=len).result(SECONDS) == "c"
    assert client.submit(dict, a=1).result(SECONDS) == {"a": 1}
    assert client.submit(pow, 2, 10, mod=1000).result(SECONDS) == 24
    assert client.submit(math.sqrt, 16).result(SECONDS) == 4.0
    assert client.map(math.hypot, [3, 6], [4, 8]) == [5.0, 10.0]
    with pytest.raises(TypeError):
        client.submit(max).result(SECONDS)


@pytest.mark.parametrize(
    "call",
    [
        ((), {}),
        ((1,), {"d": 4}),
        ((1, 2), {}),
        ((1, 2), {"d": 4, "b": 2}),
        ((), {"a": 1, "b": 2, "d": 4}),
        ((1, 2, 3), {"c": 3, "d": 4}),
    ],
)
def test_what_python_would_refuse_is_refused_at_submit(client: Client, call: Refused) -> None:
    args, kwargs = call
    with pytest.raises(TypeError) as expected:
        every_kind(*args, **kwargs)
    with pytest.raises(TypeError) as refused:
        client.submit(every_kind, *args, **kwargs)
    assert str(refused.value) == str(expected.value)
    with pytest.raises(TypeError) as refused:
        client.submit_verbose(every_kind, args, kwargs)
    assert str(refused.value) == str(expected.value)


def test_unknown_arguments_and_missing_ones_are_refused_in_the_words_of_python(client: Client) -> None:
    def narrow(only: int) -> int:
        return only

    for args, kwargs in (((), {}), ((1, 2), {}), ((1,), {"other": 2}), ((1,), {"only": 1})):
        with pytest.raises(TypeError) as expected:
            narrow(*args, **kwargs)
        with pytest.raises(TypeError) as refused:
            client.submit(narrow, *args, **kwargs)
        assert str(refused.value) == str(expected.value)
    with pytest.raises(TypeError):
        client.submit(math.sqrt)
    with pytest.raises(TypeError):
        client.submit(3)  # type: ignore[call-overload]


def test_profiling_is_taken_only_where_the_function_is_known_not_to_take_it(client: Client) -> None:
    def takes(value: int, profiling: bool = False) -> tuple[int, bool]:
        return value, profiling

    def takes_all(**more: bool) -> dict[str, bool]:
        return more

    assert client.submit(square, 3, profiling=True).result(SECONDS) == 9
    assert client.submit(math.sqrt, 9, profiling=True).result(SECONDS) == 3.0
    assert client.submit(takes, 3, profiling=True).result(SECONDS) == (3, True)
    assert client.submit(takes_all, profiling=True).result(SECONDS) == {"profiling": True}
    assert client.submit(dict, profiling=True).result(SECONDS) == {"profiling": True}
    with pytest.raises(TypeError):
        client.submit(max, 3, 5, profiling=True).result(SECONDS)
    with pytest.raises(TypeError, match="profiling"):
        client.submit_verbose(square, (3,), {"profiling": True})


@pytest.mark.parametrize("method", ["map", "starmap", "submit_verbose", "get"])
def test_unknown_keywords_of_the_client_are_refused(client: Client, method: str) -> None:
    given: dict[str, tuple[Any, ...]] = {
        "map": (square, [1]),
        "starmap": (add, [(1, 2)]),
        "submit_verbose": (square, (1,), {}),
        "get": ({"a": 1}, ["a"]),
    }
    with pytest.raises(TypeError, match="capabilites"):
        getattr(client, method)(*given[method], capabilites={"gpu": 1})


def test_map_and_starmap_mean_what_the_builtins_mean(client: Client) -> None:
    assert client.map(math.sqrt, range(100)) == [math.sqrt(value) for value in range(100)]
    assert client.map(square, (value for value in range(5))) == [0, 1, 4, 9, 16]
    assert client.map(add, [1, 2, 3], (10, 20)) == [11, 22]
    assert client.map(len, [(1, 2), (3,)]) == [2, 1]
    assert client.map(list, [(1, 2), (3, 4)]) == [[1, 2], [3, 4]]
    assert client.starmap(add, [(1, 2), (3, 4)]) == [3, 7]
    assert client.starmap(add, ([left, 1] for left in range(3))) == [1, 2, 3]
    assert client.starmap(pow, [(2, 3), (2, 3, 5)]) == [8, 3]


def test_empty_input_gives_an_empty_list(client: Client) -> None:
    assert client.map(square, []) == []
    assert client.map(add, [], [1, 2]) == []
    assert client.map(square, iter(())) == []
    assert client.starmap(add, []) == []
    with pytest.raises(TypeError):
        client.map(square)


def test_the_wrong_number_of_iterables_is_refused_in_the_words_of_python(client: Client) -> None:
    def narrow(only: int) -> int:
        return only

    calls: list[tuple[Callable[[], object], tuple[int, ...]]] = [
        (lambda: client.map(narrow, [1], [2]), (1, 2)),
        (lambda: client.starmap(narrow, [(1,), ()]), ()),
        (lambda: client.starmap(narrow, [(1,), (1, 2, 3)]), (1, 2, 3)),
    ]
    for run, args in calls:
        with pytest.raises(TypeError) as expected:
            narrow(*args)
        with pytest.raises(TypeError) as refused:
            run()
        assert str(refused.value) == str(expected.value)


def test_a_list_of_1_tuples_is_unpacked_where_the_first_call_raises_type_error(client: Client) -> None:
    with pytest.warns(FutureWarning, match="starmap"):
        assert sum(client.map(math.sqrt, [(i,) for i in range(100)])) == pytest.approx(661.46, abs=0.01)
    with pytest.warns(FutureWarning):
        assert client.map(square, ((3,), (4,))) == [9, 16]


def test_the_builtin_meaning_of_1_tuples_wins(client: Client) -> None:
    """Programs for the 1.x line got something else: each such map says so once."""
    for fn, expected in ((len, [1, 1]), (sum, [3, 4])):
        with pytest.warns(FutureWarning, match="passed as they are.*starmap") as warned:
            assert client.map(fn, [(3,), (4,)]) == expected
        assert len(warned) == 1 and warned[0].filename == __file__
    with pytest.raises(ValueError, match="no"):
        client.map(lambda item: explode("no"), [(1,), (2,)])


def test_a_type_error_that_has_nothing_to_do_with_tuples_is_raised_after_two_runs(
    client: Client, tmp_path: Path
) -> None:
    path = str(tmp_path / "calls")

    def noted(item: Any) -> None:
        note(path, type(item).__name__)
        raise TypeError(f"of a {type(item).__name__}")

    with pytest.raises(TypeError, match="of a tuple"):
        client.map(noted, [(1,), (2,), (3,)])
    assert Path(path).read_text("utf-8").split() == ["tuple", "int"]


def test_what_takes_no_single_argument_is_not_run_and_starmap_is_named(client: Client, tmp_path: Path) -> None:
    path = str(tmp_path / "calls")

    def noted(a: int, b: int) -> None:
        note(path, "called")

    pairs = [(1, 2), (3, 4)]
    for items in ([(1,), (2,)], pairs, tuple(pairs), iter(pairs), zip(pairs[0], pairs[1], strict=True)):
        with pytest.raises(TypeError, match=r"missing 1 required positional argument: 'b'; .*starmap"):
            client.map(noted, items)
    assert not Path(path).exists()
    assert client.map(len, pairs) == [2, 2]


@pytest.mark.parametrize(
    "iterables",
    [
        (((i,) for i in range(3)),),
        ([(1,), (2, 3)],),
        ([(1,), 2],),
        ([[1], [2]],),
        ([(1,)], [(2,)]),
        (iter([(1,)]),),
    ],
)
def test_nothing_else_is_ever_unpacked(client: Client, iterables: tuple[Any, ...]) -> None:
    def first_squared(*items: int) -> int:
        return items[0] ** 2

    with warnings.catch_warnings(), pytest.raises(TypeError):
        warnings.simplefilter("error")
        client.map(first_squared, *iterables)


def test_the_first_of_1_tuples_runs_alone(client: Client, tmp_path: Path) -> None:
    path = str(tmp_path / "calls")

    def noted(item: Any) -> str:
        note(path, type(item).__name__)
        return str(item + "!")

    with pytest.warns(FutureWarning):
        assert client.map(noted, [("a",), ("b",), ("c",)]) == ["a!", "b!", "c!"]
    assert Path(path).read_text("utf-8").split() == ["tuple", "str", "str", "str"]


def test_a_failing_item_raises_its_exception_and_the_client_stays(client: Client) -> None:
    with pytest.raises(ValueError, match="at 3") as raised:
        client.map(lambda value: explode(f"at {value}") if value == 3 else value, range(6))
    text = "".join(traceback.format_exception(raised.value))
    assert "in explode" in text and "tasks.py" in text
    assert client.map(square, range(3)) == [0, 1, 4]
    with pytest.raises(ValueError, match="starred"):
        client.starmap(lambda left, right: explode("starred"), [(1, 2)])


def test_a_failing_item_cancels_what_is_queued_of_its_map(client: Client, gate: Gate) -> None:
    port = gate.port

    def fails_first(item: int) -> int:
        if item == 0:
            raise ValueError("the first one")
        return wait_at(port, item)

    with pytest.raises(ValueError, match="the first one"):
        client.map(fails_first, range(1000))
    # It runs when nothing of the map is left: what waits at the gate is stopped, what is queued is dropped.
    assert client.submit_verbose(os.getpid, (), {}, priority=-1).result(SECONDS) > 0
    came = gate.arrived()
    for arrival in came:
        arrival.wait_gone()
    assert len(came) <= 2, "of 1000 items those that were running on the two workers"


def test_a_failing_iterable_cancels_what_was_submitted(client: Client) -> None:
    def items() -> Iterator[int]:
        yield 1
        raise LookupError("no more items")

    with pytest.raises(LookupError, match="no more items"):
        client.map(square, items())
    assert client.submit(square, 2).result(SECONDS) == 4


def test_exceptions_bring_their_remote_traceback_causes_and_types(client: Client) -> None:
    class LocalError(Exception):
        def __init__(self, code: int, text: str) -> None:
            super().__init__(code, text)
            self.code = code

    def outer() -> None:
        try:
            explode("inner")
        except ValueError as error:
            raise LocalError(7, "outer") from error

    error = client.submit(outer).exception(SECONDS)
    assert error is not None and type(error).__name__ == "LocalError" and error.args == (7, "outer")
    text = "".join(traceback.format_exception(error))
    assert "in outer" in text and "in explode" in text and "ValueError: inner" in text


def test_functions_are_written_again_when_what_they_capture_has_changed(client: Client) -> None:
    factor = [2]
    scale = 10

    def scaled(value: int) -> int:
        return value * factor[0] + scale

    assert client.submit(scaled, 1).result(SECONDS) == 12
    factor[0] = 3
    assert client.submit(scaled, 1).result(SECONDS) == 13
    scale = 20
    assert client.map(scaled, [1, 2]) == [23, 26]
    assert client.submit_verbose(scaled, (1,), {}, reserialize=True).result(SECONDS) == 23


def test_arguments_and_results_of_any_size(client: Client) -> None:
    big = os.urandom(5_000_000)
    assert client.submit(len, big).result(SECONDS) == len(big)
    assert client.submit(bytes.__add__, big, b"!").result(SECONDS) == big + b"!"
    assert client.map(len, [bytes(size) for size in (0, 1, 16_384, 16_385, 2_000_000)])[-1] == 2_000_000


def test_what_cannot_be_sent_is_an_error_of_that_future(client: Client) -> None:
    from scaler_protocol import errors

    class Unwritable(Exception):
        def __reduce__(self) -> Any:
            raise RuntimeError("not me")

    def raises() -> None:
        raise Unwritable("what it says")

    def exits() -> None:
        raise SystemExit(3)

    def gives_a_generator() -> Any:
        return (item for item in range(3))

    assert isinstance(client.submit(gives_a_generator).exception(SECONDS), errors.ResultNotSerializableError)
    error = client.submit(raises).exception(SECONDS)
    assert isinstance(error, errors.TaskExceptionNotSerializableError)
    assert "Unwritable: what it says" in str(error) and "RuntimeError: not me" in str(error)
    assert 'raise Unwritable("what it says")' in str(error.__cause__), "its traceback is not lost"
    assert isinstance(client.submit(exits).exception(SECONDS), errors.TaskExitedError)
    assert client.submit(square, 2).result(SECONDS) == 4


def test_a_module_that_workers_do_not_have(
    single: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from scaler_protocol.errors import DeserializeError

    (tmp_path / "only_here.py").write_text("def here():\n    return 1\n", "utf-8")
    with Client(address=single.address) as client:
        monkeypatch.syspath_prepend(tmp_path)  # the cluster has started before
        only_here = __import__("only_here")
        error = client.submit(only_here.here).exception(SECONDS)
        assert isinstance(error, DeserializeError) and "register_pickle_by_value(only_here)" in str(error)
        assert client.submit(square, 2).result(SECONDS) == 4


def test_arguments_that_can_not_be_pickled_are_refused_at_submit(client: Client) -> None:
    with pytest.raises(TypeError, match="pickle"):
        client.submit(square, (item for item in range(3)))
    with pytest.raises(TypeError, match="pickle"):
        client.map(str, [(item for item in range(3))])
    assert client.submit(square, 2).result(SECONDS) == 4
