"""The table of tasks against one made of dictionaries."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scaler_protocol.messages import Status
from scaler_protocol.monitoring import TaskStep
from scaler_protocol.profiles import Profile
from scaler_ui.model.task_search import TaskSearch
from scaler_ui.model.task_table import NAMES, TaskTable
from support.task_rows import live_rows

PLAIN = Profile(5000, 10, 20, 30, 2, 1).packed()
STEPS = st.tuples(st.sampled_from(["stand", "assign", "end", "leave", "begin"]), st.integers(1, 6))


def test_rows_are_written_over_from_the_oldest() -> None:
    table = TaskTable(3)
    function = table.function_number("f")
    table.stand([1, 2, 3, 4], TaskStep.WAITING, 9, function, 7, 1.0)
    assert len(table) == 3 and table.live == 3
    assert table.find(1) is None and table.find(4) == 0
    rows, size = TaskSearch(table).page("id", descending=False, first=1, count=5)
    assert size == 3 and [row.id for row in rows] == [3, 4]
    list(table.end([1], 0, [0], PLAIN, 2.0))  # it comes back as a new row
    assert table.find(1) == 1 and table.find(2) is None


def test_the_longest_runs_and_those_that_failed_are_bars() -> None:
    table = TaskTable()
    table.stand(range(1, 101), TaskStep.WAITING, 9, table.function_number("f"), 7, 1.0)
    for task in range(1, 51):
        list(table.end([task], 1, [task % 2], Profile(task, 0, 0, 1, 0, 1).packed(), 2.0))
    bars, others = table.ended_runs(2.0, 5)  # tasks with odd ids have raised
    assert sorted(bars.tolist()) == [45, 46, 47, 48, 49] and others.tolist() == [*range(45)]
    list(table.end([51], 1, [Status.RAISED], Profile(1, 0, 0, 1, 0, 1).packed(), 2.0))
    list(table.end([53], 1, [Status.VALUE], Profile(99, 0, 0, 1, 0, 1).packed(), 2.0))
    assert sorted(table.ended_runs(2.0, 2)[0].tolist()) == [48, 52]  # the longest, and the longest that raised
    assert [rows.tolist() for rows in table.ended_runs(2.5, 3)] == [[], []]
    assert [len(rows) for rows in (*table.ended_runs(2.0, 0), *table.ended_runs(2.0, 52))] == [0, 52, 52, 0]


def test_what_was_measured_of_a_run_outlives_a_snapshot() -> None:
    table = TaskTable()
    for since in (3.0, 5.0):  # the second time as a snapshot repeats it
        table.begin()
        table.assign([1], 4, 50, 2.0)
        table.begun()
        table.run([50], [100], [1.0], [0.0], since, since + 2.0)
    assert (table.row(0).duration, table.row(0).cpu) == (4.0, 4.0)
    table.assign([1], 4, 51, 6.0)  # another attempt
    assert (table.row(0).duration, table.row(0).cpu, table.row(0).pid) == (0.0, 0.0, 0)


def test_tasks_that_a_scheduler_that_has_begun_again_hears_of_later_keep_their_rows() -> None:
    table = TaskTable(3)
    table.stand([1, 2], TaskStep.WAITING, 9, table.function_number("f"), 7, 1.0)
    table.assign([1], 4, 50, 2.0)
    table.run([50], [100], [1.0], [0.0], 1.0, 4.0)
    table.begin()
    table.begun()
    assert [table.state(row) for row in range(2)] == ["unknown", "unknown"]
    table.stand([1, 2], TaskStep.WAITING, 3, table.function_number("f"), 7, 8.0)
    table.assign([1], 5, 50, 8.0)
    table.run([50], [100], [1.0], [1.0], 8.0, 9.0)
    assert len(table) == table.live == 2 and [table.state(row) for row in range(2)] == ["running", "waiting"]
    assert (table.row(0).since, table.row(0).duration, table.row(0).agent) == (1.0, 7.0, 5)
    table.begin()
    table.begun()
    table.stand([3, 4], TaskStep.WAITING, 3, table.function_number("f"), 7, 9.0)
    table.stand([1], TaskStep.WAITING, 3, table.function_number("f"), 7, 10.0)  # its row was written over
    assert [table.row(row).id for row in range(3)] == [4, 1, 3]


def test_running_tasks_have_durations_so_far_and_others_are_queued() -> None:
    table = TaskTable()
    table.stand([1, 2, 3], TaskStep.WAITING, 9, table.function_number("f"), 7, 1.0)
    table.assign([1, 2], 4, 50, 2.0)
    table.run([50, 0, 99], [100, 101, 102], [1.0, 0.0, 1.0], [0.0, 0.0, 0.0], 1.5, 2.5)
    table.run([50], [100], [0.5], [2.0], 2.5, 4.5)
    assert [table.state(row) for row in range(3)] == ["running", "queued", "waiting"]
    (first, *_), total = TaskSearch(table).page("duration", descending=True, first=0, count=3)
    assert (first.id, first.duration, first.cpu, first.pid, total) == (1, 2.5, 1.5, 100, 3)
    rows, total = TaskSearch(table).page("id", descending=False, first=0, count=3, state="queued")
    assert [row.id for row in rows] == [2] and total == 1
    states, _ = TaskSearch(table).page("state", descending=False, first=0, count=3)
    assert [row.state for row in states] == ["queued", "running", "waiting"]
    table.assign([1], 4, 70, 5.0)  # it runs again
    assert (table.state(0), table.row(0).duration, table.row(0).pid) == ("queued", 0.0, 0)
    table.run([70], [100], [1.0], [0.0], 4.5, 5.5)
    table.leave([1], 6.0)
    assert (table.state(0), table.row(0).duration) == ("cancelled", 1.0)


def test_runs_and_groups_are_found() -> None:
    table = TaskTable()
    table.stand([1, 2, 3], TaskStep.WAITING, 9, table.function_number("f"), 7, 1.0)
    table.assign([1], 4, 50, 1.5)
    list(table.end([2], 5, [1], PLAIN, 2.0))
    assert table.find_run(50) == 0 and table.find_run(51) is None
    assert table.waiting_groups() == [(9, 1)]


def test_who_waits_before() -> None:
    table = TaskTable()
    table.stand([5, 6], TaskStep.WAITING, 9, 0, 7, 1.0)
    table.stand([4], TaskStep.WAITING, 8, 0, 7, 2.0)
    table.stand([7, 8], TaskStep.WAITING, 9, 0, 7, 2.0)
    row = table.find(7)
    assert row is not None and table.waiting(row) == [(8, 1, 1), (9, 4, 2)]


@given(st.lists(STEPS, max_size=40))
def test_any_order(steps: list[tuple[str, int]]) -> None:
    table = TaskTable(1000)
    live: dict[int, int] = {}
    for step, task in steps:
        if step == "stand":
            table.stand([task], TaskStep.WAITING, 9, 0, 7, 1.0)
            live[task] = TaskStep.WAITING
        elif step == "assign":
            table.assign([task], 4, 50, 1.5)
            live[task] = TaskStep.ASSIGNED
        elif step == "end":
            (ended,) = table.end([task], 4, [0], PLAIN, 2.0)
            assert table.row(ended[0]).duration == 0.005 and table.state(ended[0]) == "success"
            live.pop(task, None)
        elif step == "leave":
            table.leave([task], 3.0)
            live.pop(task, None)
        else:
            table.begin()
            table.stand([task], TaskStep.HELD, 9, 0, 7, 1.0)
            table.begun()
            live = {task: TaskStep.HELD}
        assert {table.value("id", row): table.value("step", row) for row in live_rows(table)} == live


def test_names_that_no_row_has_any_more_are_forgotten() -> None:
    """Functions and agents come and go for weeks, those of the rows keep their names."""
    table = TaskTable(100)
    table.stand([1], TaskStep.WAITING, 9, table.function_number("f"), 7, 1.0)
    table.assign([1], 5, 50, 2.0)
    for number in range(3 * NAMES):
        function = table.function_number(f"f{number}")
        if number % 1000 == 0 or number > 3 * NAMES - 10:
            task = 100 + number
            table.stand([task], TaskStep.WAITING, 9, function, 7, 1.0)
            table.assign([task], 1000 + number, 1000 + number, 2.0)
            assert table.row(table.find(task) or 0).function == f"f{number}"
        else:
            table.assign([99], 1000 + number, 1000 + number, 2.0)
    assert len(table.functions.values) <= NAMES + 300 and len(table.agent_numbers.values) <= NAMES + 300
    shown = [table.row(row) for row in range(len(table))]
    assert all(row.function == f"f{row.id - 100}" and row.agent == row.id + 900 for row in shown if row.id > 99)
    assert table.has_function(f"f{3 * NAMES - 1}") and not table.has_function("f1")
