"""Classes that travel by value, between a client and real workers: no call sees, or changes, the state of another."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from scaler import Client
from support.clusters import LocalCluster
from support.gates import SECONDS, Gate, wait_at
from support.tasks import pair

SOURCE = """
class Config:
    rate = 1

class Counted:
    made = 0
    instances = []
    def __init__(self):
        type(self).made += 1
        self.instances.append(self)
    def __eq__(self, other): return type(other) is Counted
    __hash__ = None

class RatedError(Exception):
    rate = 1

def read(_=None): return Config.rate
def rate_of(instance): return instance.rate
def has_extra(_=None): return hasattr(Config, "extra")
def make(_=None): return Config()
def count(_=None): return Counted()
def is_counted(*values): return [isinstance(value, Counted) for value in values]
def fail():
    RatedError.rate += 1
    raise RatedError(RatedError.rate)
def read_nested(client):
    Config.rate += 1
    made = client.submit(make).result()
    return client.submit(read).result(), made.rate, isinstance(made, Config)
"""


@pytest.fixture
def script() -> Any:
    """What a script holds, as attributes."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(SOURCE, names)
    return SimpleNamespace(**names)


@pytest.fixture
def client(single: LocalCluster) -> Any:
    """A client of one worker, so that all tasks meet what others have left there."""
    with Client(single.address) as connected:
        yield connected


def test_a_class_that_is_changed_and_changed_back(client: Client, script: Any) -> None:
    for rate in (1, 2, 1, 3, 2):
        script.Config.rate = rate
        assert client.submit(script.read).result(SECONDS) == rate
        assert client.map(script.read, [0]) == [rate]
        assert client.submit(script.rate_of, script.Config()).result(SECONDS) == rate
        assert client.submit_verbose(script.read, (), {}, reserialize=True).result(SECONDS) == rate
    script.Config.rate = 9
    assert client.submit(script.rate_of, script.Config()).result(SECONDS) == 9
    script.Config.rate = 2
    assert client.submit(script.read).result(SECONDS) == 2


def test_an_attribute_that_is_deleted(client: Client, script: Any) -> None:
    script.Config.extra = 1
    assert client.submit(script.has_extra).result(SECONDS)
    del script.Config.extra
    assert not client.submit(script.has_extra).result(SECONDS)


def test_a_call_that_is_overtaken_by_a_later_one(client: Client, script: Any) -> None:
    assert client.submit(script.read).result(SECONDS) == 1
    with Gate() as gate:
        client.submit(wait_at, gate.port, 0)
        waiting = gate.arrive()
        early = client.submit_verbose(script.read, (), {}, priority=0)
        script.Config.rate = 5
        late = client.submit_verbose(script.read, (), {}, priority=9)
        waiting.let_go()
    assert (late.result(SECONDS), early.result(SECONDS)) == (5, 1)


def test_instances_are_of_the_class_of_the_function_however_often_it_changes(client: Client, script: Any) -> None:
    sent = client.send_object([script.Counted()])
    assert client.map(script.is_counted, (script.Counted() for _ in range(20))) == [[True]] * 20
    future = client.submit(script.count)
    future.result(SECONDS)
    assert client.submit(script.is_counted, future, script.Counted()).result(SECONDS) == [True, True]
    is_counted = script.is_counted
    assert client.submit(lambda held: is_counted(*held), sent).result(SECONDS) == [True]
    futures = [client.submit(script.count) for _ in range(2)]
    one, other = client.submit(pair, *futures).result(SECONDS)
    assert one == other


def test_results_and_exceptions_leave_the_classes_of_their_caller_alone(client: Client, script: Any) -> None:
    future, failing = client.submit(script.count), client.submit(script.fail)
    failing.exception(SECONDS)
    local = [script.Counted() for _ in range(10)]
    script.Counted.describe = lambda self: "changed by the caller"
    instances = script.Counted.instances
    result = future.result(SECONDS)
    assert type(result) is script.Counted and result.describe() == "changed by the caller"
    assert script.Counted.made == 10 and script.Counted.instances is instances == local
    error: Any = failing.exception(SECONDS)
    assert type(error) is script.RatedError and error.args == (2,) and script.RatedError.rate == 1


def test_nested_tasks_see_the_class_as_their_caller_has_it(client: Client, script: Any) -> None:
    assert client.submit(script.read_nested, client).result(SECONDS) == (2, 2, True)
    assert script.Config.rate == 1
