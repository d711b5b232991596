"""joblib and scikit-learn on a cluster."""

from __future__ import annotations

import math
import multiprocessing
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scaler import Client
from support.clusters import LocalCluster
from support.gates import SECONDS
from support.joblib_tasks import (
    Holder,
    Sized,
    Span,
    is_same,
    is_writable,
    most_at_once,
    nested_sum,
    next_first,
    noted,
    raise_at,
    square,
    square_or_fail_once,
)

joblib: Any = pytest.importorskip("joblib")
pytest.importorskip("scaler_client.joblib")


@pytest.fixture
def backend(client: Client) -> Iterator[None]:
    """All calls of joblib go to the cluster."""
    with joblib.parallel_config("scaler", client=client):
        yield


@pytest.mark.usefixtures("backend")
def test_calls_are_batched_and_results_in_order() -> None:
    pids = {os.getpid()}
    results = joblib.Parallel()(joblib.delayed(square)(number) for number in range(3_000))
    assert [value for value, _ in results] == [number * number for number in range(3_000)]
    assert pids.isdisjoint({pid for _, pid in results})


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("kind", ["generator", "generator_unordered"])
def test_results_as_a_generator(kind: str) -> None:
    results = joblib.Parallel(return_as=kind)(joblib.delayed(square)(number) for number in range(20))
    assert sorted(value for value, _ in results) == [number * number for number in range(20)]


@pytest.mark.usefixtures("backend")
def test_n_jobs_is_the_most_that_runs_at_once(client: Client) -> None:
    spans: list[Span] = joblib.Parallel(n_jobs=1, batch_size=1)(joblib.delayed(noted)(0.01) for _ in range(3))
    assert {span.pid for span in spans} == {os.getpid()}, "one at a time is done here"
    with joblib.parallel_config("scaler", client=client, n_jobs=client.workers().count - 1 or 1):
        spans = joblib.Parallel(batch_size=1)(joblib.delayed(noted)(0.02) for _ in range(12))
    assert most_at_once(spans) <= max(1, client.workers().count - 1)


@pytest.mark.usefixtures("backend")
def test_big_arrays_are_sent_once_and_small_ones_may_be_changed() -> None:
    big, small = np.ones(200_000), np.ones(5_000)
    results = joblib.Parallel(batch_size=1)(joblib.delayed(is_writable)(big, other=small) for _ in range(6))
    assert set(results) == {(False, True)}
    results = joblib.Parallel(max_nbytes=None)(joblib.delayed(is_writable)(big, other=small) for _ in range(2))
    assert set(results) == {(True, True)}


@pytest.mark.usefixtures("backend")
def test_smaller_arrays_that_tasks_have_in_common_are_sent_once_and_are_their_own(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    values: list[Any] = []
    submit = Client.submit_verbose

    def watched(client: Client, fn: Any, args: Any, *others: Any, **options: Any) -> Any:
        assert len(args[0]) < 16_000
        values.extend(args[2:])
        return submit(client, fn, args, *others, **options)

    monkeypatch.setattr(Client, "submit_verbose", watched)
    array = np.random.default_rng(0).random(50_000)
    array[0] = 1
    found = joblib.Parallel(batch_size=1)(joblib.delayed(next_first)(array) for _ in range(6))
    assert found == [2] * 6 and array[0] == 1
    assert len(values) == 6 and len(set(map(id, values))) == 1

    def changed() -> Iterator[Any]:
        for value in range(2):
            array[0] = value
            yield from [joblib.delayed(next_first)(array)] * workers  # as many as joblib takes before it sends them

    workers = client.workers().count
    for most in (1_000_000, None):
        results = joblib.Parallel(batch_size=1, max_nbytes=most)(changed())
        assert results == [1] * workers + [2] * workers


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("size", [10, 10_000, 200_000])
def test_an_array_that_a_call_names_in_several_places_is_one_array_there(size: int) -> None:
    arrays = [np.ones(size) * number for number in range(3)]
    calls = [joblib.delayed(is_same)(array, [array], Holder(array)) for array in arrays]
    assert joblib.Parallel(batch_size=1)(calls) == [True] * 3
    assert joblib.Parallel(batch_size=3)(calls) == [True] * 3


@pytest.mark.usefixtures("backend")
def test_calls_inside_calls_run_on_the_cluster_where_they_ask_for_it() -> None:
    results = joblib.Parallel()(joblib.delayed(nested_sum)(10, n_jobs=2) for _ in range(5))
    assert {total for total, _ in results} == {285}
    assert any(len(pids) > 1 or parent not in pids for _, (parent, pids) in results)
    results = joblib.Parallel()(joblib.delayed(nested_sum)(10, n_jobs=None) for _ in range(2))
    assert all(pids == {parent} for _, (parent, pids) in results)


@pytest.mark.usefixtures("backend")
def test_the_first_failure_is_raised_and_the_others_are_cancelled(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="number 3"):
        joblib.Parallel(batch_size=1)(joblib.delayed(raise_at)(3, number, tmp_path) for number in range(1_000))
    assert len(list(tmp_path.iterdir())) < 1_000
    assert joblib.Parallel()([joblib.delayed(square)(2)])[0][0] == 4


@pytest.mark.usefixtures("backend")
def test_a_call_that_fails_leaves_others_that_are_under_way_alone() -> None:
    def calls(sign: int) -> Iterator[Any]:
        return (joblib.delayed(math.sqrt)(sign * number**2) for number in range(1, 201))

    others = joblib.Parallel(return_as="generator", batch_size=1)(calls(1))
    assert next(others) == 1
    with pytest.raises(ValueError, match=r"math domain|nonnegative"):
        joblib.Parallel()(calls(-1))
    failing = joblib.Parallel(return_as="generator")(calls(-1))
    assert list(others) == list(range(2, 201))
    with pytest.raises(ValueError, match=r"math domain|nonnegative"):
        next(failing)


@pytest.mark.usefixtures("backend")
def test_a_timeout_of_joblib() -> None:
    began = time.monotonic()
    with pytest.raises(multiprocessing.TimeoutError):
        joblib.Parallel(timeout=0.2)(joblib.delayed(time.sleep)(60) for _ in range(3))
    assert time.monotonic() - began < 30, "nobody waited for the tasks"


def test_retries(client: Client, tmp_path: Path) -> None:
    with joblib.parallel_config("scaler", client=client, retries=2):
        assert joblib.Parallel()([joblib.delayed(square_or_fail_once)(3, tmp_path / "failed")]) == [9]


def test_what_is_wrong_is_named(client: Client, cluster: LocalCluster) -> None:
    with pytest.raises(ValueError, match="needs address="):
        joblib.parallel_config("scaler")
    with pytest.raises(TypeError, match="adress"):
        joblib.parallel_config("scaler", adress=cluster.address)
    with pytest.raises(ValueError, match="retries"):
        joblib.parallel_config("scaler", client=client, retries=-1)
    with pytest.raises(TypeError, match="not a Client"):
        joblib.parallel_config("scaler", client=client.options())
    with joblib.parallel_config("scaler", client=client):
        with pytest.raises(ValueError, match="n_jobs=0"):
            joblib.Parallel(n_jobs=0)([joblib.delayed(square)(1)])
        with pytest.raises(TypeError, match="pickle") as raised:
            joblib.Parallel()(joblib.delayed(square)(threading.Lock()) for _ in range(50))
        notes = getattr(raised.value, "__notes__", ["the calls -> [0][1][0] cannot"])  # there are none before 3.11
        assert any(note.startswith("the calls -> [0][1]") for note in notes)


@pytest.mark.usefixtures("backend")
def test_an_argument_whose_size_cannot_be_asked_is_small() -> None:
    assert joblib.Parallel()([joblib.delayed(len)(Sized())]) == [3]


def test_an_own_connection(cluster: LocalCluster) -> None:
    with joblib.parallel_config("scaler", address=cluster.address):
        assert joblib.Parallel()([joblib.delayed(square)(3)])[0][0] == 9


@pytest.mark.soak  # three processes import scikit-learn, which takes some seconds of CPU time each
@pytest.mark.usefixtures("backend")
def test_scikit_learn() -> None:
    ensemble, selection, svm, datasets = (
        pytest.importorskip(f"sklearn.{name}") for name in ("ensemble", "model_selection", "svm", "datasets")
    )
    x, y = datasets.load_iris(return_X_y=True)
    choice = {"C": [0.1, 10.0], "gamma": [0.01, 0.1]}
    found, expected = (selection.GridSearchCV(svm.SVC(), choice, cv=3, n_jobs=jobs).fit(x, y) for jobs in (-1, 1))
    assert found.best_params_ == expected.best_params_
    assert (found.cv_results_["mean_test_score"] == expected.cv_results_["mean_test_score"]).all()
    scores = [selection.cross_val_score(svm.SVC(), x, y, cv=3, n_jobs=jobs) for jobs in (-1, 1)]
    assert (scores[0] == scores[1]).all()
    forest = ensemble.RandomForestClassifier
    predicted = [forest(10, random_state=0, n_jobs=jobs).fit(x, y).predict(x) for jobs in (-1, 1)]
    assert (predicted[0] == predicted[1]).all()


@pytest.mark.usefixtures("backend")
def test_a_batch_that_fits_a_message_when_it_is_compressed_is_sent_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    submit = Client.submit_verbose

    def watched(client: Client, fn: Any, args: Any, *others: Any, **options: Any) -> Any:
        sizes.append(len(args[0]))
        return submit(client, fn, args, *others, **options)

    monkeypatch.setattr(Client, "submit_verbose", watched)
    texts = ["a" * 30_000, os.urandom(30_000).hex(), "b" * 200_000]
    found = joblib.Parallel(batch_size=1)(joblib.delayed("".join)([text]) for text in texts)
    assert found == texts
    small, random, big = sizes
    assert small < 16_000 and random > 60_000 and big > 200_000


class Division:
    """Tasks of a call of joblib, each of whose calls takes `call_seconds`, ended one after the other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, call_seconds: float, batch_size: int | str = "auto") -> None:
        self.sizes: list[int] = []
        self._call_seconds, self._batch_size = call_seconds, batch_size
        self._pending: deque[tuple[Future[Any], list[Any]]] = deque()
        self._sent = threading.Semaphore(0)
        monkeypatch.setattr("scaler_client.joblib.ScalerBackend._send", lambda _, batches: self._send(batches))

    def _send(self, batches: list[Any]) -> Future[Any]:
        self.sizes.append(sum(len(batch.items) for batch in batches))
        self._pending.append((Future(), batches))
        self._sent.release()
        return self._pending[-1][0]

    def run(self, client: Client, count: int) -> list[int]:
        """The numbers of calls of the tasks that `count` calls for two workers become."""
        results: list[Any] = []

        def call() -> None:
            with joblib.parallel_config("scaler", client=client, n_jobs=2):
                calls = (joblib.delayed(abs)(-number) for number in range(count))
                results.extend(joblib.Parallel(batch_size=self._batch_size)(calls))

        caller = threading.Thread(target=call)
        caller.start()
        done = 0
        while done < count:
            assert self._sent.acquire(timeout=SECONDS)
            ended, batches = self._pending.popleft()
            calls = sum(len(batch.items) for batch in batches)
            ended.set_result(([batch() for batch in batches], calls * self._call_seconds))
            done += calls
        caller.join(SECONDS)
        assert results == list(range(count))
        return self.sizes


def test_tasks_become_longer_and_what_is_left_at_the_end_is_divided(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = Division(monkeypatch, 0.005).run(client, 80)
    assert sizes[:4] == [1] * 4 and len(sizes) < 20 and max(sizes[-2:]) <= 10  # calls of 50 ms
    sizes = Division(monkeypatch, 0.005).run(client, 1_000)
    assert max(sizes) == 60 and len(sizes) < 45
    assert set(Division(monkeypatch, 1.0).run(client, 20)) == {1}
    sizes = Division(monkeypatch, 0.0).run(client, 20_000)
    assert len(sizes) < 60


def test_batches_of_a_size_that_was_asked_for_are_not_joined(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    assert max(Division(monkeypatch, 0.0001, batch_size=7).run(client, 70)) == 7
