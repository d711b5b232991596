"""Pages of tasks: their order, and which tasks are in them."""

from __future__ import annotations

from scaler_protocol.monitoring import TaskStep
from scaler_protocol.profiles import Profile
from scaler_ui.model.task_search import TaskSearch, TaskSubset
from scaler_ui.model.task_table import TaskTable

PLAIN = Profile(5000, 10, 20, 30, 2, 1).packed()


def test_a_page_is_sorted_filtered_and_counted() -> None:
    table = TaskTable()
    search = TaskSearch(table)
    table.stand(range(1, 101), TaskStep.WAITING, 9, table.function_number("f"), 7, 1.0)
    for task in range(1, 51):
        list(table.end([task], 1, [task % 2], Profile(task, 0, 0, 1, 0, 1).packed(), 2.0))
    rows, size = search.page("duration", descending=True, first=0, count=3)
    assert size == 100 and [row.duration for row in rows] == [50e-6, 49e-6, 48e-6]
    rows, size = search.page("duration", descending=False, first=0, count=2, state="raised")
    assert size == 25 and [row.id for row in rows] == [1, 3]
    rows, size = search.page("id", descending=False, first=49, count=2, text="F", state="waiting")
    assert size == 50 and [row.id for row in rows] == [100]
    assert search.page("id", descending=False, first=0, count=2, text="1f")[1] == 1
    assert search.page("id", descending=False, first=0, count=2, text="nothing") == ([], 0)


def test_orders_and_filters_of_words() -> None:
    table = TaskTable()
    for number, name in enumerate(("b:g", "a:f", "c:h")):
        table.stand([number + 1], TaskStep.WAITING, 9, table.function_number(name), 7 + number, 1.0)
    table.assign([1], 4, 50, 1.5)
    list(table.end([2], 5, [1], PLAIN, 2.0))
    search = TaskSearch(table, {4: "x:1", 5: "a:2"})

    def ids(order: str, text: str = "") -> list[int]:
        rows, _ = search.page(order, descending=False, first=0, count=9, text=text)
        return [row.id for row in rows]

    assert ids("function") == [2, 1, 3] and ids("state") == [1, 2, 3] and ids("agent") == [3, 2, 1]
    assert ids("id", text="X:") == [1] and ids("id", text="30") == [2] and ids("id", text="9") == [3]


def test_a_subset_is_what_all_of_its_parts_allow() -> None:
    table = TaskTable()
    for number, name in enumerate(("f", "g", "f", "f")):
        table.stand([number + 1], TaskStep.WAITING, 9, table.function_number(name), 7 + number // 2, 1.0)
    table.assign([1, 2], 4, 50, 1.5)
    table.assign([3], 5, 60, 1.5)
    table.run([50], [1234], [1.0], [0.0], 1.5, 2.0)
    table.nest([4], 1, 2.0)

    def ids(within: TaskSubset) -> list[int]:
        rows, total = TaskSearch(table).page("id", descending=False, first=0, count=9, within=within)
        assert total == len(rows)
        return [row.id for row in rows]

    assert ids(TaskSubset()) == [1, 2, 3, 4]
    assert ids(TaskSubset("f")) == [1, 3, 4] and ids(TaskSubset("of nobody")) == []
    assert ids(TaskSubset(sessions=[8])) == [3, 4] and ids(TaskSubset(sessions=[])) == []
    assert ids(TaskSubset(agents=[4, 99])) == [1, 2] and ids(TaskSubset("f", [7], [4])) == [1]
    assert ids(TaskSubset(pid=1234)) == [1] and ids(TaskSubset(parent=1)) == [4]
