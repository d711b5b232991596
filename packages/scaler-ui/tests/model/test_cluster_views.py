"""What pages show of graphs, objects and capacity."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scaler_protocol.monitoring import StorageStatus, TaskStep
from scaler_ui.model import cluster_views
from scaler_ui.model.addresses import PageRequest
from scaler_ui.model.model import MonitorModel

if TYPE_CHECKING:
    from conftest import Publications

STORAGE = StorageStatus(
    4, 1, 2, 4, 1 << 20, 1 << 30, 5, 100, 2048, 0, 1, 4096, 9000, 8000, 30, 10, 2, 1,
    ("aa", "bb", "cc"), (7, 8, 8), (500, 4096, 2048), (True, False, False), (False, False, True), 1, 1, 2048, 512,
)  # fmt: skip
EMPTY = MonitorModel(tasks=10)


def test_graphs_and_how_far_they_are(publications: Publications) -> None:
    status = publications.status(
        graphs=(3, 4), graph_sessions=(7, 99), graph_nodes=(10, 4), graph_succeeded=(5, 2), graph_failed=(1, 0),
        graph_cancelled=(0, 2), graph_assigned=(2, 0), graph_running=(1, 0),
        graph_start_times=(990.0, 980.0), graph_end_times=(0.0, 981.0),
    )  # fmt: skip
    first, second = cluster_views.graphs(publications.model_of(status), PageRequest(order="graph")).rows
    assert (first["graph"], first["client"], first["state"], first["progress"], first["took"]) == (
        4, "session 63", "over", "100%", "1.0 s",
    )  # fmt: skip
    assert [second[name] for name in ("client", "waiting", "queued", "running", "progress", "took")] == [
        "Client|a", 2, 1, 1, "60%", "10.0 s",
    ]  # fmt: skip
    assert cluster_views.graphs(EMPTY, PageRequest()).total == 0


def test_objects_in_numbers_and_the_biggest(publications: Publications) -> None:
    model = publications.model_of(STORAGE)
    shown = cluster_views.object_figures(model)
    assert tuple(shown) == cluster_views.OBJECT_FIGURES
    assert (shown["objects"], shown["hit rate"], shown["on disk"], shown["in memory"]) == (
        "4",
        "75.0%",
        "1 (4.0 KiB)",
        "1.0 MiB",
    )
    assert (shown["on other hosts only"], shown["hosts with objects"], shown["fetched from hosts"]) == (
        "1 (2.0 KiB)",
        "1",
        "512 B",
    )
    assert (shown["sessions"], shown["connections"]) == ("2", "4")
    page = cluster_views.biggest_objects(model, PageRequest(order="size"))
    assert [(row["object"], row["size"], row["where"]) for row in page.rows] == [
        ("bb", "4.0 KiB", "disk"), ("cc", "2.0 KiB", "another host"), ("aa", "500 B", "memory"),
    ]  # fmt: skip
    assert cluster_views.object_figures(EMPTY) == {} and cluster_views.biggest_objects(EMPTY, PageRequest()).total == 0


def test_capacity_and_what_is_wanted_of_it(publications: Publications) -> None:
    model = publications.model_of(
        publications.status(),
        publications.groups(
            (9, "f", 7, 0, "", ""), (8, "g", 7, 1, "gpu=1", ""), (6, "f", 8, 0, "ram=2", publications.runtime)
        ),
        publications.batch(TaskStep.WAITING, 9, 1, 2),
        publications.batch(TaskStep.WAITING, 8, 3),
        publications.batch(TaskStep.WAITING, 6, 4, 5, 6),
    )
    offers = {row["offers"]: row for row in cluster_views.capacity(model, PageRequest(order="workers")).rows}
    assert offers.keys() == {"nothing special", "linux,ram=4"}
    assert [offers["nothing special"][name] for name in ("agents", "workers", "busy", "tasks", "places")] == [
        1, 3, 1, 2, 3000,
    ]  # fmt: skip
    demand = cluster_views.demand(model, PageRequest(order="waiting")).rows
    assert [(row["waiting"], row["workers"], row["why"]) for row in demand] == [
        (3, 3, "others go first"), (2, 6, "others go first"), (1, 0, "no worker offers gpu=1"),
    ]  # fmt: skip
    model.take(publications.status(agent_assigned=(3, 3)), 50.0)
    busy = cluster_views.demand(model, PageRequest(order="waiting")).rows
    assert [row["why"] for row in busy] == [*["these workers are busy"] * 2, "no worker offers gpu=1"]
    assert cluster_views.capacity(EMPTY, PageRequest()).total == cluster_views.demand(EMPTY, PageRequest()).total == 0
