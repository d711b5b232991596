"""Parameters of public calls: of anything, wrong types and ranges, only that call fails, with parameter and value."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any, TypeVar

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scaler_client.api.client import Client
from scaler_client.futures.futures import ScalerFuture
from scaler_client.runtime.io_thread import IoThread
from scaler_protocol.errors import AddressError, SchedulerLostError

SECONDS = 10.0
Check = TypeVar("Check", bound=Callable[..., None])
HUGE = 2**5000


def double(a: int) -> int:
    return 2 * a


def anything(*args: Any, **kwargs: Any) -> int:
    return len(args) + len(kwargs)


class Hostile:
    """Neither true nor false, and nothing that can be shown or compared."""

    def __bool__(self) -> bool:
        raise ValueError("ambiguous")

    def __repr__(self) -> str:
        raise ValueError("no repr")

    def __eq__(self, other: object) -> bool:
        raise ValueError("no equality")

    __hash__ = None  # type: ignore[assignment]


ODD: list[Any] = [
    *("\ud800", "x" * 5000, "\0", b"", b"bytes", [], (), {}, set(), [1, 2], [[1], 2], object(), int, len, {"gpu": 1}),
    *(float("nan"), float("inf"), -0.0, HUGE, -HUGE, 1j, Decimal("2.5"), Decimal("NaN"), Fraction(5, 2)),
    *(np.int64(3), np.float32(2.5), np.float64("nan"), np.bool_(True), np.array([1, 2]), np.array(5), Hostile()),
]
ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=2**70),
    st.floats(),
    st.text(st.characters(), max_size=5),
    st.sampled_from(ODD),
    st.dictionaries(st.one_of(st.text(max_size=3), st.integers()), st.integers() | st.text(max_size=3), max_size=2),
)
OPTION_NAMES = ("capabilities", "reserialize", "priority", "retries", "task_timeout_seconds")


def some_of(*names: str) -> st.SearchStrategy[dict[str, Any]]:
    """Anything for any of these parameters."""
    return st.fixed_dictionaries({}, optional=dict.fromkeys(names, ANYTHING))


OPTIONS = some_of(*OPTION_NAMES)


def fails_alone(client: Client, call: Callable[[], Any], *names: str) -> None:
    """Whatever the call does, it comes to an end, and the next one works; a refusal has the name of a parameter."""
    try:
        outcome = call()
        for future in outcome.values() if isinstance(outcome, dict) else [outcome]:
            if isinstance(future, ScalerFuture):
                future.exception(SECONDS)
    except TimeoutError:
        raise
    except Exception as error:
        assert str(error)
        assert not names or any(name in str(error) for name in names), error
    assert client.submit(double, 2).result(SECONDS) == 4


def few(examples: int) -> Callable[[Check], Check]:
    """Quick, and the same examples each time."""
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )


@few(60)
@given(options=OPTIONS, args=ANYTHING, kwargs=ANYTHING)
def test_submit_verbose_takes_anything_and_fails_alone(client: Client, options: Any, args: Any, kwargs: Any) -> None:
    fails_alone(client, lambda: client.submit_verbose(double, args, kwargs, **options))
    fails_alone(client, lambda: client.submit_verbose(double, (1,), {}, **options), *options, "capabilit")
    fails_alone(client, lambda: client.submit_verbose(anything, args, {}), "args")
    fails_alone(client, lambda: client.submit_verbose(anything, (), kwargs), "kwargs")


@few(40)
@given(fn=ANYTHING, argument=ANYTHING)
def test_submit_takes_anything_and_fails_alone(client: Client, fn: Any, argument: Any) -> None:
    fails_alone(client, lambda: client.submit(fn, argument))
    fails_alone(client, lambda: client.submit(double, argument))


@few(40)
@given(options=some_of(*OPTION_NAMES, "speculate", "progress"), rows=ANYTHING)
def test_map_takes_anything_and_fails_alone(client: Client, options: Any, rows: Any) -> None:
    fails_alone(client, lambda: client.map(double, rows, **options))
    fails_alone(client, lambda: client.map(double, [1, 2], **options), *options, "capabilit")


@few(40)
@given(options=some_of(*OPTION_NAMES, "speculate"), rows=ANYTHING)
def test_starmap_takes_anything_and_fails_alone(client: Client, options: Any, rows: Any) -> None:
    fails_alone(client, lambda: client.starmap(double, rows, **options))
    fails_alone(client, lambda: client.starmap(double, [(1,), (2,)], **options), *options, "capabilit")


OPTIONS = some_of("block", "capabilities", "reserialize", "priority", "retries", "progress")
NODES = {"a": (double, 1), "b": (double, "a"), "c": 5}


@few(60)
@given(graph=ANYTHING, keys=ANYTHING, node=ANYTHING, options=OPTIONS)
def test_get_takes_anything_and_fails_alone(client: Client, graph: Any, keys: Any, node: Any, options: Any) -> None:
    fails_alone(client, lambda: client.get(graph, ["b"]), "graph", "key")
    fails_alone(client, lambda: client.get(NODES, keys), "key")
    fails_alone(client, lambda: client.get(NODES, [node]), "key")
    fails_alone(client, lambda: client.get({"a": node, "b": (double, "a")}, ["b"]))
    fails_alone(client, lambda: client.get({"b": (double, node)}, ["b"]))
    fails_alone(client, lambda: client.get({"b": (node, 1)}, ["b"]))
    fails_alone(client, lambda: client.get(NODES, ["b", "c"], **options), *options, "capabilit")


@few(40)
@given(obj=ANYTHING, name=ANYTHING)
def test_send_object_takes_anything_and_fails_alone(client: Client, obj: Any, name: Any) -> None:
    fails_alone(client, lambda: client.submit(double, client.send_object(obj)))
    fails_alone(client, lambda: client.send_object(1, name), "name")


@few(40)
@given(fn=ANYTHING, argument=ANYTHING, timeout=ANYTHING)
def test_an_executor_takes_anything_and_fails_alone(client: Client, fn: Any, argument: Any, timeout: Any) -> None:
    with client.executor() as executor:
        fails_alone(client, lambda: executor.submit(fn, argument))
        fails_alone(client, lambda: executor.submit(double, argument))
        fails_alone(client, lambda: list(executor.map(double, argument)))
        fails_alone(client, lambda: executor.submit(double, 1).cancel(timeout))


@few(60)
@given(timeout=ANYTHING)
def test_a_future_waits_for_numbers_of_seconds_only(client: Client, timeout: Any) -> None:
    future = client.submit(double, 1)
    for ask in (future.result, future.exception):
        try:
            ask(timeout)
        except TimeoutError:
            assert timeout < 1
        except ValueError as error:
            assert "timeout is " in str(error)
    assert future.result(SECONDS) == 2


@pytest.mark.parametrize("timeout", ["1", float("nan"), Decimal(1), HUGE, Hostile(), 1j])
def test_a_timeout_that_is_none_is_named(client: Client, cluster: Any, timeout: Any) -> None:
    cluster.paused = True
    future = client.submit(double, 1)
    for ask in (future.result, future.exception):
        with pytest.raises(ValueError, match=r"timeout is .*, not a number of seconds, or None"):
            ask(timeout)


@pytest.mark.parametrize("timeout", [0, -1, False, Fraction(1, 1000), np.float32(0.001), np.int64(0)])
def test_any_number_of_seconds_is_waited_for(client: Client, cluster: Any, timeout: Any) -> None:
    cluster.paused = True
    future = client.submit(double, 1)
    for ask in (future.result, future.exception):
        with pytest.raises(TimeoutError):
            ask(timeout)


PARAMETERS = ("address", "timeout_seconds", "serializer", "stream_output", "object_storage_address")


@few(80)
@given(name=st.sampled_from(PARAMETERS), value=ANYTHING)
def test_a_client_of_anything_leaves_others_alone(client: Client, cluster: Any, name: str, value: Any) -> None:
    def connect() -> None:
        try:
            Client(**{"address": cluster.address, "timeout_seconds": 1, name: value}).disconnect()
        except SchedulerLostError:
            assert name == "timeout_seconds" and value < 1

    fails_alone(client, connect, name)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"timeout_seconds": "soon"}, r"timeout_seconds is 'soon', not a number from 0"),
        ({"timeout_seconds": float("nan")}, r"timeout_seconds is nan"),
        ({"timeout_seconds": -1}, r"timeout_seconds is -1"),
        ({"timeout_seconds": None}, r"timeout_seconds is None"),
        ({"timeout_seconds": Decimal(1)}, r"timeout_seconds is Decimal"),
        ({"serializer": 5}, r"serializer is 5, which has no method serialize"),
        ({"stream_output": np.array([1, 2])}, r"stream_output is True, False or 'prefixed', not array"),
        ({"address": 5}, r"address: the address is 5"),
        ({"address": "tcp://\ud800:1"}, r"address: the address is .*surrogate"),
        ({"object_storage_address": "here"}, r"object_storage_address: address 'here'"),
        ({"insecure": "no"}, r"insecure is 'no', not True or False"),
        ({"name": 5}, r"^name is 5, not a text"),
        ({"name": "n" * 300}, r"^name is 'n.* of 300 bytes, not a text of at most 256"),
        ({"block": "false"}, r"block is 'false', not True or False"),
        ({"keys": ""}, r"keys: '' is not the path of a directory"),
        ({"keys": "a\0b"}, r"keys: 'a\\x00b' is not the path of a directory"),
        ({"session": "s", "session_secret": ""}, r"^session_secret is empty, which proves nothing"),
        ({"session": "s", "session_secret": b""}, r"^session_secret is empty, which proves nothing"),
        ({"session": "s", "session_secret": "\ud800"}, r"^session_secret is a text that UTF-8 cannot write"),
    ],
)
def test_nothing_is_begun_with_a_wrong_parameter(
    monkeypatch: pytest.MonkeyPatch, wrong: Mapping[str, Any], named: str
) -> None:
    monkeypatch.setattr(IoThread, "start", lambda thread: pytest.fail("it was begun"))
    with pytest.raises((ValueError, TypeError, AddressError), match=named):
        Client(**{"address": "tcp://127.0.0.1:1", **wrong})


class Unpicklable:
    """A serializer that can not travel."""

    def serialize(self, obj: object) -> bytes:
        return b""

    def deserialize(self, payload: bytes) -> object:
        return None

    def __reduce__(self) -> Any:
        raise TypeError("not this one")


def test_a_client_that_fails_behind_its_connection_leaves_no_thread(cluster: Any) -> None:
    before = set(threading.enumerate())
    with pytest.raises(Exception, match="not this one"):
        Client(cluster.address, serializer=Unpicklable())  # type: ignore[arg-type]
    assert not [thread for thread in threading.enumerate() if thread not in before and thread.name == "scaler-io"]


def test_what_has_to_be_iterable_is_named_by_its_place(client: Client) -> None:
    with pytest.raises(TypeError, match=r"iterable 2 of map\(\) is 5, which is not iterable"):
        client.map(pow, [1], 5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"item 1 of starmap\(\) is 5, which is not iterable"):
        client.starmap(double, [(1,), 5])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="args is 5, which is not iterable"):
        client.submit_verbose(double, 5, {})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"kwargs is \{1: 2\}: the name of an argument is a text, not 1"):
        client.submit_verbose(double, (), {1: 2})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="keys is 5, which is not iterable"):
        client.get({}, 5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"keys contains \[1\], which is no key: unhashable"):
        client.get({}, [[1]])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="graph is 5, not a mapping"):
        client.get(5, ["a"])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="name is 5"):
        client.send_object(1, 5)  # type: ignore[arg-type]


def test_a_text_is_neither_true_nor_false(client: Client) -> None:
    with pytest.raises(TypeError, match="reserialize is 'no', not True or False"):
        client.submit_verbose(double, (1,), {}, reserialize="no")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="progress is '0', not True or False"):
        client.map(double, [1], progress="0")  # type: ignore[arg-type]
    assert client.submit_verbose(double, (1,), {}, reserialize=1).result(SECONDS) == 2  # type: ignore[arg-type]
