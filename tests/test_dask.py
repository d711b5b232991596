"""Dask's collections on a cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scaler import Client
from scaler_client.dask import dask_scheduler
from support.tasks import total

dask: Any = pytest.importorskip("dask")


@pytest.fixture
def schedule(client: Client) -> Callable[..., Any]:
    """Dask's way to the cluster."""
    return dask_scheduler(client)


def test_delayed(client: Client, schedule: Callable[..., Any]) -> None:
    def one_more(value: int) -> int:
        return value + 1

    def sum_of_all(values: list[int], **more: int) -> int:
        return sum(values) + sum(more.values())

    inc, total = dask.delayed(one_more), dask.delayed(sum_of_all)
    values = [inc(i) for i in range(10)]
    result = total(values, more=values[0])
    assert dask.compute(result, values[3], 5, scheduler=schedule) == (56, 4, 5)
    assert result.compute(scheduler=client.executor()) == 56
    with dask.config.set(scheduler=schedule):
        assert dask.compute({"x": [inc(1), inc(inc(1))]}) == ({"x": [2, 3]},)


def test_arrays(schedule: Callable[..., Any]) -> None:
    da = pytest.importorskip("dask.array")
    x = da.arange(10_000, chunks=1_000).reshape((100, 100)).rechunk((25, 40))
    y = (x @ x.T).sum(axis=0) + x.mean()
    expected = y.compute(scheduler="sync")
    assert (y.compute(scheduler=schedule) == expected).all()
    big = da.ones((400, 400), chunks=(200, 200))
    assert (big + 1).sum().compute(scheduler=schedule) == 2 * 400 * 400


def test_bags(schedule: Callable[..., Any]) -> None:
    db = pytest.importorskip("dask.bag")
    bag = db.from_sequence(range(100), npartitions=4).map(lambda i: i * i).filter(lambda i: i % 2)
    assert bag.sum().compute(scheduler=schedule) == sum(i * i for i in range(100) if i * i % 2)
    assert dict(bag.frequencies().compute(scheduler=schedule))[1] == 1


def test_frames(schedule: Callable[..., Any]) -> None:
    dd = pytest.importorskip("dask.dataframe")
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"key": [i % 7 for i in range(500)], "value": range(500)})
    lazy = dd.from_pandas(frame, npartitions=5)
    found = lazy.groupby("key").value.sum().compute(scheduler=schedule).sort_index()
    assert found.tolist() == frame.groupby("key").value.sum().tolist()
    assert lazy[lazy.value > 10].value.mean().compute(scheduler=schedule) == frame[frame.value > 10].value.mean()


def test_the_array_example_of_dask(schedule: Callable[..., Any]) -> None:
    da = pytest.importorskip("dask.array")
    x = da.random.default_rng(1).random((1000, 1000), chunks=(250, 250))
    y = x + x.T
    z = y[::2, 500:].mean(axis=1)
    lazy = [z, y.std(axis=0), da.histogram(x, bins=5, range=(0, 1))[0], x.rechunk((100, 1000)).cumsum(axis=0)]
    with dask.config.set(scheduler=schedule):
        found = dask.compute(*lazy)
    for one, other in zip(found, dask.compute(*lazy, scheduler="sync"), strict=True):
        assert (one == other).all()


def test_the_dataframe_example_of_dask(schedule: Callable[..., Any]) -> None:
    datasets = pytest.importorskip("dask.datasets")
    pd = pytest.importorskip("pandas")
    frame = datasets.timeseries(start="2000-01-01", end="2000-01-05", freq="10min", seed=1)
    means = frame.groupby("name").agg({"x": "mean", "y": "max"})
    lazy = [
        frame[frame.y > 0].groupby("name").x.std(),
        frame[["x", "y"]].resample("6h").mean(),
        frame.x.rolling(20).mean(),
        frame.set_index("name").x.count(),
        frame.merge(means.reset_index(), on="name", suffixes=("", "_of_name")).x_of_name.sum(),
        frame.nlargest(5, "x"),
    ]
    with dask.config.set(scheduler=schedule):
        found = dask.compute(*lazy)
    for one, other in zip(found, dask.compute(*lazy, scheduler="sync"), strict=True):
        if isinstance(one, pd.DataFrame | pd.Series):
            one, other = one.sort_index(), other.sort_index()
            assert one.equals(other)
        else:
            assert one == pytest.approx(other)


def test_graphs_of_dask_by_hand(schedule: Callable[..., Any]) -> None:
    graph = {"a": 1, "b": (max, ["a", 5]), "c": "b", "d": (sum, [["b", "c"], ["a"]][0]), ("t", 0): (max, "a", 3)}
    assert schedule(graph, [["d", "a"], [[("t", 0)], "c"], "c"]) == [[10, 1], [[3], 5], 5]
    assert schedule(graph, "b") == 5


@st.composite
def dags(draw: st.DrawFn) -> tuple[dict[Any, Any], list[Any]]:
    """A graph as Dask used to write them, with nested calls, lists, aliases and twice the same, and keys of it."""
    graph: dict[Any, Any] = {("x", 0): draw(st.integers(-9, 9))}
    for number in range(1, draw(st.integers(2, 25))):
        key = st.sampled_from(list(graph))
        inner = st.one_of(key, key.map(lambda one: (total, one, one)), st.lists(key, min_size=1, max_size=3))
        call = st.lists(inner, min_size=1, max_size=3).map(lambda values: (total, *values))
        graph["x", number] = draw(st.one_of(call, call, call, key))
    return graph, draw(st.lists(st.sampled_from(list(graph)), min_size=1, max_size=4, unique=True))


@given(dags())
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_cluster_gives_what_threads_of_dask_give(
    schedule: Callable[..., Any], case: tuple[dict[Any, Any], list[Any]]
) -> None:
    threaded = pytest.importorskip("dask.threaded")
    graph, keys = case
    assert schedule(graph, keys) == list(threaded.get(graph, keys))


def test_errors_and_options(schedule: Callable[..., Any]) -> None:
    def fail() -> None:
        raise LookupError("as in Dask")

    broken = dask.delayed(fail)

    with pytest.raises(LookupError, match="as in Dask"):
        dask.compute(broken(), scheduler=schedule)
    with pytest.raises(TypeError, match="num_workers"):
        dask.compute(broken(), scheduler=schedule, num_workers=3)
