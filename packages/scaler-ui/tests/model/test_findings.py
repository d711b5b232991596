"""The sentence that tells an operator what is wrong: ten kinds of trouble, each named first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler_protocol.messages import Status, WorkerState
from scaler_protocol.monitoring import (
    EventKind,
    MonitorHistory,
    MonitorMessage,
    MonitorStatus,
    StorageStatus,
    TaskEvents,
    TaskStep,
)
from scaler_protocol.profiles import NO_PROFILE, Profile
from scaler_protocol.run_figures import RecentRuns
from scaler_ui.model import overview
from scaler_ui.model.addresses import PageRequest
from scaler_ui.model.estimates import estimates
from scaler_ui.model.findings import Finding, Severity, _medians_of_others, findings, sentence
from scaler_ui.model.model import MonitorModel

if TYPE_CHECKING:
    from conftest import Publications

AT, NOW = 1000.0, 50.0
STORAGE = StorageStatus(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)


def run(publications: Publications, agent: int, tasks: range, seconds: float, **more: Any) -> TaskEvents:
    """Runs that ended on an agent."""
    status, memory = more.get("status", Status.VALUE), more.get("memory", 10**6)
    return publications.batch(
        TaskStep.ENDED, agent, *tasks, statuses=bytes([status]) * len(tasks),
        profiles=Profile(round(seconds * 1e6), 1, memory, 1, 0, 1).packed() * len(tasks),
    )  # fmt: skip


def text(kind: int, level: int, subject: str, said: str, number: int = 1) -> TaskEvents:
    """One event."""
    return TaskEvents(
        text_numbers=(number,), text_times=(AT - 9,), text_levels=(level,), text_kinds=(kind,), text_tasks=(0,),
        text_subjects=(subject,), texts=(said,),
    )  # fmt: skip


def failure(status: int, function: str, error: str) -> MonitorHistory:
    """A failure before the monitor came."""
    return MonitorHistory(
        (1,),
        (AT - 5,),
        (77,),
        (function,),
        (7,),
        ("bob",),
        (1,),
        ("vm:1",),
        (status,),
        NO_PROFILE,
        (error,),
    )


def waiting(publications: Publications, needs: str, count: int, session: int = 7) -> list[MonitorMessage]:
    """Tasks that wait."""
    described = publications.groups((9, "f", session, 0, needs, ""))
    return [described, publications.batch(TaskStep.WAITING, 9, *range(1, count + 1), time=AT - 100)]


def hung(p: Publications) -> list[MonitorMessage]:
    runs = (501, *[0] * 5)
    return [
        p.groups((9, "f", 7, 0, "", "")),
        p.batch(TaskStep.WAITING, 9, *range(1, 12), time=AT - 400),
        p.batch(TaskStep.ASSIGNED, 1, 11, first_run=501, time=AT - 400),
        run(p, 1, range(1, 11), 1.0),
        p.status(worker_runs=runs, worker_seconds=(400.0, *[0.0] * 5)),
    ]


def sick(p: Publications) -> list[MonitorMessage]:
    return [
        p.groups((9, "f", 7, 0, "", "")),
        p.batch(TaskStep.WAITING, 9, *range(1, 21)),
        run(p, 1, range(1, 11), 1.0),
        run(p, 2, range(11, 21), 4.0),
    ]


def leaking(p: Publications) -> list[MonitorMessage]:
    """`g` runs in the same worker before and after, and needs much in each run."""
    runs = [run(p, 1, range(number, number + 1), 1.0, memory=(5 + max(0, number - 9)) * 10**8) for number in range(41)]
    after = run(p, 1, range(41, 50), 1.0, memory=37 * 10**8)
    described = p.groups((9, "f", 7, 0, "", ""), (10, "g", 7, 0, "", ""))
    innocent = [*range(10), *range(41, 50)]
    waiting = [p.batch(TaskStep.WAITING, 9, *range(10, 41)), p.batch(TaskStep.WAITING, 10, *innocent)]
    return [described, *waiting, *runs, after]


def starving(p: Publications) -> list[MonitorMessage]:
    return [
        *waiting(p, "", 3, session=8),
        p.groups((10, "g", 7, 0, "", "")),
        p.batch(TaskStep.WAITING, 10, 99),
        p.batch(TaskStep.ASSIGNED, 1, 99, first_run=501),
        p.status(client_names=("alice", "bob")),
    ]


LIMIT = "the worker was killed by SIGKILL (3 runs lost; that is the limit)"
DRILL: dict[str, tuple[Callable[[Publications], list[MonitorMessage]], Severity, str]] = {
    "hung task": (hung, Severity.WARNING, "Task b (f) has run for 6 min 40 s on a, far longer than its function"),
    "sick host": (sick, Severity.WARNING, "Host b is slow: f takes 4.0 s there, 1.0 s elsewhere."),
    "missing capability": (
        lambda p: waiting(p, "tpu", 30), Severity.ERROR, "30 tasks need tpu, which nobody offers.",
    ),
    "short of licenses": (
        lambda p: [
            p.status(
                waiting_capabilities=("license=1",), waiting_tasks=(3,), waiting_shortages=("license (2 of 2 in use)",)
            )
        ],
        Severity.NOTE, "3 tasks wait for license (2 of 2 in use).",
    ),
    "poison task": (
        lambda p: [failure(Status.FAILED, "f", LIMIT)], Severity.ERROR, f"1 task of f failed without a result: {LIMIT}",
    ),
    "empty error": (lambda p: [failure(Status.FAILED, "f", "\n")], Severity.ERROR, "1 task of f failed without a"),
    "full disk": (
        lambda p: [replace(STORAGE, refused_lately=12)], Severity.ERROR, "Object storage has refused 12 objects",
    ),
    "journal on a full disk": (
        lambda p: [p.status(refusal="no space left")], Severity.ERROR, "The scheduler refuses new work: no space left.",
    ),
    "leaking function": (
        leaking, Severity.WARNING, "30 runs of f have raised the memory of a worker by 2.8 GiB, to 3.4 GiB.",
    ),
    "slow storage": (
        lambda p: [replace(STORAGE, answer_seconds=4.0), STORAGE],
        Severity.WARNING, "Object storage answers late: after 4.0 s.",
    ),
    "storage without room": (
        lambda p: [replace(STORAGE, waiting=4)], Severity.WARNING, "4 objects wait for room in object storage.",
    ),
    "starving client": (starving, Severity.WARNING, "No task of client bob has run for 1 min 40 s; others' do."),
    "dead manager": (
        lambda p: [text(EventKind.MANAGER, 30, "grid", "worker manager grid is gone: silent")],
        Severity.ERROR, "Worker manager grid is gone: silent.",
    ),
    "dead workers": (
        lambda p: [text(EventKind.WORKER, 30, "b", "vm:2: killed", number) for number in (1, 2, 3)],
        Severity.WARNING, "3 workers died on host b.",
    ),
    "host without room": (
        lambda p: [p.status(agent_disks_free=(2**40, 2**20), agent_shared_free=(2**30, 2**30))],
        Severity.WARNING, "Host b has only 1.0 MiB of free disk for temporary files.",
    ),
    "dead host": (
        lambda p: [text(EventKind.AGENT, 30, "c", "agent vm:3 is gone")], Severity.ERROR, "Host c is gone.",
    ),
    "one agent of a host": (
        lambda p: [text(EventKind.AGENT, 30, "b", "agent b:3 is gone")],
        Severity.WARNING, "1 agent of host b was lost.",
    ),
    "late host": (
        lambda p: [p.status(agent_round_trips=(0.001, 2.0))], Severity.WARNING, "Host b answers late: after 2.0 s.",
    ),
}  # fmt: skip


@pytest.fixture
def healthy(publications: Publications) -> MonitorModel:
    """Two hosts, of which all is well."""
    return publications.model_of(_healthy(publications))


def _healthy(publications: Publications) -> MonitorStatus:
    return publications.status(
        agent_hosts=("a", "b"), agent_status_ages=(0.5, 0.5), waiting=0, held=0, raised=0, failed=0
    )


def test_of_a_healthy_cluster_progress_is_all_there_is_to_say(healthy: MonitorModel) -> None:
    assert sentence(findings(healthy, NOW)) == "1 of 6 workers busy, 1 queued on hosts, nothing waits."


@pytest.mark.parametrize("kind", DRILL)
def test_the_night_drill(publications: Publications, healthy: MonitorModel, kind: str) -> None:
    break_it, severity, expected = DRILL[kind]
    for message in break_it(publications):
        if isinstance(message, type(healthy.status)):
            message = replace(message, agent_hosts=("a", "b"), agent_status_ages=(0.5, 0.5))
        healthy.take(message, NOW)
    _, first, *others = findings(healthy, NOW)
    assert first.text.startswith(expected) and first.severity == severity and not others


@pytest.mark.parametrize("kind", ["sick host", "leaking function"])
def test_who_comes_late_says_the_same_of_what_was_measured(
    publications: Publications, healthy: MonitorModel, kind: str
) -> None:
    listened = MonitorModel()
    listened.take(_healthy(publications), NOW)
    for message in DRILL[kind][0](publications):
        listened.take(message, NOW)
    healthy.take(MonitorHistory(**listened.run_figures.columns()), NOW)
    assert any(finding.text.startswith(DRILL[kind][2]) for finding in findings(healthy, NOW))


def test_a_function_that_needs_more_at_times_leaks_nothing(publications: Publications, healthy: MonitorModel) -> None:
    sizes = [9, 3, 12, 1, 20, 2, 5, 4, 33, 7, 6, 8, 40, 11, 10, 50] * 4
    healthy.take(publications.groups((9, "f", 7, 0, "", "")), NOW)
    healthy.take(publications.batch(TaskStep.WAITING, 9, *range(len(sizes))), NOW)
    for number in range(len(sizes)):
        peak = max(sizes[: number + 1])
        healthy.take(run(publications, 1, range(number, number + 1), 1.0, memory=peak * 10**8), NOW)
    assert len(findings(healthy, NOW)) == 1


def test_a_dead_scheduler_is_named(healthy: MonitorModel) -> None:
    first, *others = findings(healthy, NOW + 12)
    assert (first.severity, first.text) == (
        Severity.ERROR, "The scheduler tcp://127.0.0.1:2345 has been silent for 12.0 s; before that:",
    )  # fmt: skip
    assert others == findings(healthy, NOW)
    assert findings(MonitorModel(), NOW)[0].text == "No scheduler has answered yet."


def test_object_storage_that_never_answers_is_named(publications: Publications) -> None:
    """Who comes while it is down has nothing of it, and says so as the others do."""
    model = MonitorModel()
    for second in range(12):
        model.take(_healthy(publications), NOW + second)
    assert [found.text for found in findings(model, NOW + 11)[1:]] == ["Object storage has been silent for 11.0 s."]


def test_silence_of_the_scheduler_is_not_that_of_object_storage(publications: Publications) -> None:
    model = publications.model_of(_healthy(publications), STORAGE, now=NOW)
    model.take(_healthy(publications), NOW + 60)
    assert len(findings(model, NOW + 60)) == 1, "the same scheduler, continued"
    for second in (64, 68, 72):
        other = replace(_healthy(publications), incarnation=6, at=AT + second, uptime=second - 63.0)
        model.take(other, NOW + second)
    found = [each.text for each in findings(model, NOW + 73)[1:]]
    assert len(found) == 1 and found[0].startswith("Another scheduler has begun here"), "another one"


def test_tasks_that_need_a_host_of_their_own_are_told_with_the_host_that_is_kept_free(
    publications: Publications, healthy: MonitorModel
) -> None:
    kept_free = publications.status(
        at=AT, held=4, waiting=0, exclusive=4, reserved_agents=(2,), agent_hosts=("a", "b"), agent_assigned=(0, 1)
    )
    healthy.take(kept_free, NOW)
    said = {each.text: each.place for each in findings(healthy, NOW)}
    assert said["4 tasks that used too much memory wait for a host of their own."] == ""
    text = "Host b gets no other work until its 1 task has ended: a task that used too much memory needs it alone."
    assert said[text] == "host"


def test_whose_tasks_run_on_workers_that_are_not_listed_is_not_guessed(
    publications: Publications, healthy: MonitorModel
) -> None:
    *before, status = starving(publications)
    assert isinstance(status, MonitorStatus)
    sums: dict[str, Any] = {f"unlisted_{name}": (1,) for name in ("running", "busy", "blocked", "cpus", "rsses")}
    for message in (*before, replace(status, unlisted_agents=(2,), **sums)):
        healthy.take(message, NOW)
    assert "others' do" not in sentence(findings(healthy, NOW))


@pytest.mark.parametrize(
    ("usual", "runs"),
    [(0.0002, [0.002] * 10), (0.1, [0.1] * 9 + [20.0])],
    ids=["short runs", "one run was held up"],
)
def test_noise_makes_no_slow_host(
    publications: Publications, healthy: MonitorModel, usual: float, runs: list[float]
) -> None:
    healthy.take(publications.groups((9, "f", 7, 0, "", "")), NOW)
    healthy.take(publications.batch(TaskStep.WAITING, 9, *range(1, 21)), NOW)
    healthy.take(run(publications, 1, range(1, 11), usual), NOW)
    for task, seconds in enumerate(runs, 11):
        healthy.take(run(publications, 2, range(task, task + 1), seconds), NOW)
    assert "is slow" not in sentence(findings(healthy, NOW))


@pytest.mark.parametrize(("status", "said"), [(Status.RAISED, "raised lately"), (Status.FAILED, "failed without a re")])
def test_a_function_without_a_name_is_called_so(healthy: MonitorModel, status: int, said: str) -> None:
    """A scheduler that was restarted hears from agents how tasks ended before clients say what these call."""
    healthy.take(failure(status, "", "ValueError: no"), NOW)
    [found] = findings(healthy, NOW)[1:]
    assert found.text.startswith(f"1 task of a function whose name is not known {said}")
    assert found.parts == (found.text, "", "")


@pytest.mark.parametrize("kind", ["sick host", "leaking function"])
def test_functions_without_names_are_not_compared_as_if_they_were_one(
    publications: Publications, healthy: MonitorModel, kind: str
) -> None:
    listened = MonitorModel()
    listened.take(_healthy(publications), NOW)
    for message in DRILL[kind][0](publications):
        listened.take(message, NOW)
    columns = listened.run_figures.columns()
    nameless = {each: [""] * len(columns[each]) for each in ("run_functions", "growth_functions")}
    healthy.take(MonitorHistory(**columns | nameless), NOW)
    assert len(findings(healthy, NOW)) == 1


def test_what_happened_before_the_clock_was_set_back_is_not_of_the_last_minutes_for_hours(
    publications: Publications, healthy: MonitorModel
) -> None:
    began = AT - 500
    for message in (
        replace(_healthy(publications), uptime=500.0),
        text(EventKind.WORKER, 30, "b", "vm:2: killed"),
        failure(Status.RAISED, "f", "ValueError: no"),
    ):
        healthy.take(message, NOW)
    for seconds, expected in ((501.0, 2), (1200.0, 0)):
        set_back = replace(_healthy(publications), at=began - 3600 + seconds, uptime=seconds)
        healthy.take(set_back, NOW + seconds)
        assert len(findings(healthy, NOW + seconds)[1:]) == expected, seconds
    assert [event.time for event in healthy.events if event.kind == EventKind.WORKER] == [AT - 9 - 3600]


def test_the_time_that_is_left_comes_from_what_was_measured(publications: Publications, healthy: MonitorModel) -> None:
    for message in (
        publications.groups((9, "f", 7, 0, "", ""), (10, "g", 8, 0, "tpu", "")),
        publications.batch(TaskStep.WAITING, 9, *range(1, 571)),
        publications.batch(TaskStep.WAITING, 10, 999),
        run(publications, 1, range(1, 11), 2.0),
    ):
        healthy.take(message, NOW)
    work, other = estimates(healthy)
    assert (work.client, work.function, work.ended, work.open) == ("Client|a", "f", 10, 560)
    assert work.seconds == pytest.approx(2.0 * 560 / 6) and work.spread < 1
    assert (other.function, other.seconds) == ("g", None)
    assert findings(healthy, NOW)[0].text.endswith("about 3 min left.")
    [row, _] = overview.progress(healthy, PageRequest(order="seconds", descending=True)).rows
    assert (row["client"], row["function"], row["done"], row["left"]) == ("Client|a", "f", 1, "about 3 min")
    assert WorkerState.RUNNING in (healthy.status.worker_states if healthy.status else ())


def test_progress_names_the_longest_run_where_nothing_was_measured(
    publications: Publications, healthy: MonitorModel
) -> None:
    """All tasks hang, and no run of their function has ever ended."""
    for message in (
        publications.groups((9, "f", 7, 0, "", "")),
        publications.batch(TaskStep.WAITING, 9, 11, 12, time=AT - 8000),
        publications.batch(TaskStep.ASSIGNED, 1, 11, 12, first_run=501, time=AT - 8000),
    ):
        healthy.take(message, NOW)
    for seconds, said in ((20.0, "nothing waits."), (7800.0, "nothing waits; task b (f) has run for 2 h 10 min.")):
        at = AT + seconds - 20
        runs = publications.status(at=at, waiting=0, worker_runs=(501, *[0] * 5), worker_seconds=[seconds] * 6)
        healthy.take(runs, NOW)
        found = findings(healthy, NOW)[0]
        assert (found.severity, found.text.endswith(said)) == (Severity.NOTE, True), found.text
    assert found.parts[1] == "b" and found.place == "task"


def test_time_that_nobody_can_tell_is_not_told(publications: Publications, healthy: MonitorModel) -> None:
    """Some functions have not been measured; then all that is left hangs."""
    for message in (
        publications.groups((9, "f", 7, 0, "", ""), (10, "g", 7, 0, "", ""), (11, "h", 7, 0, "tpu", "")),
        publications.batch(TaskStep.WAITING, 9, *range(1, 25), time=AT - 50),
        publications.batch(TaskStep.WAITING, 10, 31, 32),
        publications.batch(TaskStep.WAITING, 11, 41),
        run(publications, 1, range(1, 5), 1.2),
    ):
        healthy.take(message, NOW)
    assert findings(healthy, NOW)[0].text.endswith("about 4 s left, unknown for 2 other tasks.")
    for message in (
        run(publications, 1, range(6, 25), 1.2),
        run(publications, 1, range(31, 33), 1.2),
        publications.batch(TaskStep.ASSIGNED, 1, 5, first_run=501, time=AT - 40),
    ):
        healthy.take(message, NOW)
    healthy.take(publications.status(at=AT, waiting=1, worker_runs=(501, *[0] * 5), worker_seconds=[40.0] * 6), NOW)
    first, *others = findings(healthy, NOW)
    assert first.text.endswith("1 waiting.") and first.place == ""
    assert any("far longer than its function usually does" in each.text for each in others)
    rows = overview.progress(healthy, PageRequest(order="seconds", descending=True)).rows
    assert [(row["function"], row["left"]) for row in rows] == [("f", "unknown"), ("h", "no worker")]


def test_functions_with_few_tasks_run_beside_each_other(publications: Publications, healthy: MonitorModel) -> None:
    """A task of each of six functions waits for six workers."""
    names = "abcdef"
    healthy.take(publications.groups(*((9 + at, name, 7, 0, "", "") for at, name in enumerate(names))), NOW)
    for at, _ in enumerate(names):
        healthy.take(publications.batch(TaskStep.WAITING, 9 + at, 10 * at + 1, 10 * at + 2), NOW)
        healthy.take(run(publications, 1, range(10 * at + 1, 10 * at + 2), 20.0), NOW)
    assert [each.seconds for each in estimates(healthy)] == [20.0] * 6
    assert findings(healthy, NOW)[0].text.endswith("about 20 s left.")


def test_runs_that_take_longer_than_the_measured_ones_prolong_what_is_left(
    publications: Publications, healthy: MonitorModel
) -> None:
    for message in (
        publications.groups((9, "f", 7, 0, "", "")),
        publications.batch(TaskStep.WAITING, 9, *range(1, 21), time=AT - 50),
        run(publications, 1, range(1, 5), 0.1),
        publications.batch(TaskStep.ASSIGNED, 1, 5, 6, 7, first_run=501, time=AT - 40),
    ):
        healthy.take(message, NOW)
    for runs, waiting, mean in ((0, 0, 0), 16, 0.1), ((501, 0, 0), 15, 40.0), ((501, 502, 503), 13, 40.0):
        status = publications.status(at=AT, worker_runs=(*runs, 0, 0, 0), worker_seconds=[40.0] * 6)
        healthy.take(status, NOW)
        [work] = estimates(healthy)
        assert (work.ended, work.open) == (4, 16), "runs have not ended"
        assert work.seconds is not None and work.seconds / (waiting / 6) == pytest.approx(mean, rel=0.01)
    healthy.take(run(publications, 1, range(8, 21), 0.1), NOW)
    [work] = estimates(healthy)
    assert (work.ended, work.open) == (17, 3), "the last tasks run"
    assert work.seconds is not None and work.seconds > 0


def test_a_long_name_pushes_out_no_other_finding(publications: Publications, healthy: MonitorModel) -> None:
    name = "m:" + 400 * "f"
    healthy.take(failure(Status.RAISED, name, "no"), NOW)
    healthy.take(failure(Status.FAILED, name, 999 * "x"), NOW)
    _, *found = findings(healthy, NOW)
    assert found and all(len(each.text) < 330 and each.subject == name for each in found)
    assert all(each.parts[1] == name[:77] + "…" and "".join(each.parts) == each.text for each in found)


@pytest.mark.parametrize(
    ("text", "subject", "parts"),
    [
        ("Host st is gone.", "st", ("Host ", "st", " is gone.")),
        ("3 workers died on host vm.", "vm", ("3 workers died on host ", "vm", ".")),
        ("Host a.b is slow: f takes 2 s.", "a.b", ("Host ", "a.b", " is slow: f takes 2 s.")),
        ("Nothing is wrong.", "vm", ("Nothing is wrong.", "", "")),
    ],
)
def test_a_sentence_links_its_subject(text: str, subject: str, parts: tuple[str, str, str]) -> None:
    assert Finding(Severity.NOTE, text, subject, "host").parts == parts
    assert Finding(Severity.NOTE, text, subject).parts == (text, "", ""), "it has no page"


@given(st.lists(st.floats(-1e9, 1e9), max_size=9))
def test_medians_of_others(values: list[float]) -> None:
    others = [values[:at] + values[at + 1 :] for at in range(len(values))]
    assert _medians_of_others(values) == [median(each) if each else 0.0 for each in others]


def test_findings_take_time_in_proportion_to_the_hosts(publications: Publications) -> None:
    def looked_at(hosts: int) -> int:
        """How often a figure of a host is compared, or its name."""
        looks = 0

        class Host(str):
            def __eq__(self, other: object) -> bool:
                nonlocal looks
                looks += 1
                return super().__eq__(other)

            __hash__ = str.__hash__

        class Seconds(float):
            def __lt__(self, other: float) -> bool:
                nonlocal looks
                looks += 1
                return super().__lt__(other)

        names, count = [Host(f"h{number}") for number in range(hosts)], range(hosts)
        two = publications.status()
        columns: dict[str, Any] = {
            name: [column[0]] * hosts
            for name in two.COLUMNS[3]
            if name.startswith("agent_") and (column := getattr(two, name))
        }
        columns |= {"agent_round_trips": [Seconds(number % 7) for number in count], "agent_hosts": names}
        model = publications.model_of(publications.status(agents=range(1, hosts + 1), **columns))
        for number, name in enumerate(names):
            model.run_figures.runs["f", name] = RecentRuns(50, Seconds(number % 5), 25.0, 0.0)
        looks = 0
        findings(model, NOW)
        return looks

    assert looked_at(400) < 6 * looked_at(100)
