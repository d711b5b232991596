"""Programs of others, unchanged, on a cluster; `make third-parties` installs what they need beside our own."""

# mypy: disallow-untyped-decorators=False

from __future__ import annotations

import asyncio
import operator
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from scaler import Client
from scaler_client.dask import dask_scheduler
from support.clusters import LocalCluster
from support.gates import SECONDS

pytestmark = pytest.mark.third_parties


@pytest.fixture
def parfun(cluster: LocalCluster) -> Iterator[Any]:
    """parfun, or opengris-parfun, which has the same modules, with the cluster as its back end."""
    module: Any = pytest.importorskip("parfun")
    with module.set_parallel_backend_context("scaler_remote", scheduler_address=cluster.address, n_workers=2):
        yield module


def test_parfun_divides_a_list_and_puts_the_results_together(parfun: Any) -> None:
    @parfun.parallel(split=parfun.per_argument(values=parfun.py_list.by_chunk), combine_with=parfun.py_list.concat)
    def scaled(values: list[int], factor: int) -> list[int]:
        return [value * factor for value in values]

    assert scaled(list(range(1000)), 3) == list(range(0, 3000, 3))


def test_parfun_divides_a_table_within_a_divided_call(parfun: Any) -> None:
    pandas: Any = pytest.importorskip("pandas")
    table = pandas.DataFrame({"key": [1, 2, 3, 4] * 50, "value": range(200)})

    @parfun.parallel(split=parfun.per_argument(values=parfun.py_list.by_chunk), combine_with=sum)
    def inner(values: list[int]) -> int:
        return sum(values)

    @parfun.parallel(
        split=parfun.per_argument(table=parfun.dataframe.by_group(by="key")), combine_with=parfun.dataframe.concat
    )
    def totals(table: Any) -> Any:
        return table.groupby("key", as_index=False)["value"].agg(lambda column: inner(list(column)))

    found = totals(table).sort_values("key").reset_index(drop=True)
    pandas.testing.assert_frame_equal(found, table.groupby("key", as_index=False)["value"].sum())


def test_parfun_raises_what_a_part_raises(parfun: Any) -> None:
    @parfun.parallel(split=parfun.per_argument(values=parfun.py_list.by_chunk), combine_with=parfun.py_list.concat)
    def inverse(values: list[int]) -> list[float]:
        return [1 / value for value in values]

    with pytest.raises(ZeroDivisionError):
        inverse([1, 2, 0, 4] * 10)


def test_parfun_starts_a_cluster_of_its_own() -> None:
    parfun: Any = pytest.importorskip("parfun")
    quiet = {"logging_paths": ("/dev/null",)}

    @parfun.parallel(split=parfun.per_argument(values=parfun.py_list.by_chunk), combine_with=sum)
    def total(values: list[int]) -> int:
        return sum(values)

    with parfun.set_parallel_backend_context("scaler_local", n_workers=2, per_worker_queue_size=10, **quiet):
        assert total(list(range(1000))) == 499_500


def test_pargraph_computes_a_graph_by_submits_and_in_one_piece(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "graphblas", None)  # pargraph 0.9.6 uses it in a way that NumPy 2.4 has ended
    pargraph: Any = pytest.importorskip("pargraph")

    @pargraph.delayed
    def add(a: int, b: int) -> int:
        return a + b

    @pargraph.graph
    def chain(a: int, b: int, c: int) -> int:
        return add(add(a, b), add(b, c))  # type: ignore[no-any-return]

    described, keys = chain.to_graph().to_dict(a=1, b=2, c=3)
    assert pargraph.GraphEngine(client).get(described, keys) == [8]
    assert client.get(described, keys) == dict(zip(keys, [8], strict=True))


def test_xarray_computes_chunks(client: Client) -> None:
    xarray: Any = pytest.importorskip("xarray")
    numpy: Any = pytest.importorskip("numpy")
    values = numpy.arange(10_000.0).reshape(100, 100)
    array = xarray.DataArray(values, dims=("x", "y")).chunk({"x": 25, "y": 50})
    schedule = dask_scheduler(client)
    roots = xarray.apply_ufunc(numpy.sqrt, array, dask="parallelized", output_dtypes=[float])
    expected = xarray.DataArray(numpy.sqrt(values), dims=("x", "y")).mean("x")
    xarray.testing.assert_allclose(roots.mean("x").compute(scheduler=schedule), expected)
    data = xarray.Dataset({"a": array, "b": 2 * array}).compute(scheduler=schedule)
    assert float(data["b"].sum()) == 2 * values.sum()


def test_scipy_takes_map_as_workers(client: Client) -> None:
    optimize: Any = pytest.importorskip("scipy.optimize")
    bounds = [(-2, 2), (-2, 2)]
    run = partial(optimize.differential_evolution, optimize.rosen, bounds, rng=1, updating="deferred", maxiter=20)
    assert run(workers=client.map).x.tolist() == run(workers=map).x.tolist()
    integrate: Any = pytest.importorskip("scipy.integrate")
    area, _ = integrate.quad_vec(float.__abs__, -1.0, 1.0, workers=client.map)
    assert area == pytest.approx(1.0)


def test_tenacity_tries_calls_again_here_and_there(client: Client) -> None:
    tenacity: Any = pytest.importorskip("tenacity")
    tries: list[int] = []

    @tenacity.retry(stop=tenacity.stop_after_attempt(3))
    def third_time(tries: list[int]) -> int:
        tries.append(1)
        if len(tries) < 3:
            raise ValueError(len(tries))
        return len(tries)

    assert client.submit(third_time, tries).result(SECONDS) == 3, "all tries are within one call"
    again = tenacity.Retrying(stop=tenacity.stop_after_attempt(2), reraise=True)
    with pytest.raises(ZeroDivisionError):
        again(lambda: client.submit(operator.truediv, 1, 0).result(SECONDS))
    assert again.statistics["attempt_number"] == 2


def test_aiohttp_awaits_futures(client: Client) -> None:
    web: Any = pytest.importorskip("aiohttp.web")
    server_of: Any = pytest.importorskip("aiohttp.test_utils")

    async def product(request: Any) -> Any:
        factors = [int(word) for word in request.query.getall("factor")]
        return web.json_response(await client.submit(operator.mul, *factors))

    async def ask() -> list[int]:
        app = web.Application()
        app.router.add_get("/product", product)
        async with server_of.TestClient(server_of.TestServer(app)) as browser:
            answers = await asyncio.gather(*(browser.get(f"/product?factor={n}&factor=7") for n in range(20)))
            return [await answer.json() for answer in answers]

    assert asyncio.run(ask()) == [7 * n for n in range(20)]


def test_luigi_tasks_use_a_client(client: Client) -> None:
    luigi: Any = pytest.importorskip("luigi")
    mock: Any = pytest.importorskip("luigi.mock")

    class Squares(luigi.Task):  # type: ignore[misc]
        def output(self) -> Any:
            return mock.MockTarget("squares")

        def run(self) -> None:
            with self.output().open("w") as file:
                file.write(" ".join(map(str, client.map(operator.mul, range(5), range(5)))))

    class Total(luigi.Task):  # type: ignore[misc]
        def requires(self) -> Any:
            return Squares()

        def output(self) -> Any:
            return mock.MockTarget("total")

        def run(self) -> None:
            with self.input().open() as file, self.output().open("w") as result:
                result.write(str(client.submit(sum, [int(word) for word in file.read().split()]).result(SECONDS)))

    assert luigi.build([Total()], local_scheduler=True, log_level="ERROR")
    assert mock.MockTarget.fs.get_data("total") == b"30"
