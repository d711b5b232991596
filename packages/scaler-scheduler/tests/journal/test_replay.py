"""A scheduler that begins with the journal of another: it knows what was accepted, and what became of it."""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from scaler_io.links.events import PeerLost
from scaler_protocol import messages
from scaler_protocol.errors import ProtocolError, WorkerDiedError, describe
from scaler_protocol.ids import function_id
from scaler_protocol.messages import Group, Status, Submit
from scaler_protocol.payloads import Payloads
from scaler_protocol.sessions import EndSession, LabelTask
from scaler_scheduler.core.config import SchedulerConfig
from scaler_scheduler.core.task_states import DONE
from scaler_scheduler.journal.ledger import Ledger
from scaler_scheduler.journal.records import RecordKind, Row
from scaler_scheduler.journal.replay import Replay

if TYPE_CHECKING:
    from conftest import SchedulerDriver

FUNCTION = function_id(b"body")


@dataclass
class Lives:
    """Schedulers one after another, and the rows that outlive them."""

    make: type[SchedulerDriver]
    rows: dict[int, Row] = field(default_factory=dict)
    config: SchedulerConfig = field(default_factory=SchedulerConfig)
    incarnation: int = 1
    key_limit: int = sys.maxsize

    def __post_init__(self) -> None:
        self.driver = self._begin()

    def _begin(self) -> SchedulerDriver:
        driver = self.make(self.config, monitored=False, incarnation=self.incarnation)
        self.ledger = Ledger(driver.core.state, self.key_limit)
        assert Replay(driver.core.restoration, self.ledger).tell([self.rows[key] for key in sorted(self.rows)]) == 0
        driver.core.restored(driver.now)
        driver.core.state.recorder = self.ledger
        driver.settle()
        return driver

    def commit(self) -> None:
        """What was recorded is on disk."""
        if batch := self.ledger.take():
            for row in batch.rows:
                self.rows[row.number] = row
            for number in batch.deleted:
                self.rows.pop(number, None)

    def restart(self) -> SchedulerDriver:
        """The scheduler is killed, and another one begins."""
        self.commit()
        self.incarnation += 1
        now = self.driver.now
        self.driver = self._begin()
        self.driver.now = now
        return self.driver

    def task_rows(self) -> list[Row]:
        """Rows about tasks."""
        about_others = (RecordKind.SESSION, RecordKind.AGENT, RecordKind.FUNCTIONS)
        return [row for row in self.rows.values() if row.kind not in about_others]

    def tidy(self) -> None:
        """Nothing happens for long."""
        for _ in range(3):
            self.ledger.tidy()
            self.commit()


@pytest.fixture
def lives(make_driver: type[SchedulerDriver]) -> Lives:
    """One scheduler without history."""
    return Lives(make_driver)


def again(driver: SchedulerDriver, name: bytes, older: int, **wanted: object) -> bytes:
    """A client comes back and says what it wants."""
    client = driver.client(name, peer_incarnation=older)
    driver.feed(client, messages.Reconcile(**wanted))  # type: ignore[arg-type]
    return client


def test_waiting_tasks_run_although_their_client_is_gone(lives: Lives) -> None:
    tasks = lives.driver.submit(lives.driver.client(), 3)
    driver = lives.restart()
    agent = driver.agent()
    assert sorted(driver.runs(agent)) == tasks[:1], "slow start: one by one"


def test_an_outcome_waits_for_its_client(lives: Lives) -> None:
    client, agent = lives.driver.client(), lives.driver.agent()
    (task,) = lives.driver.submit(client)
    lives.driver.done(agent, lives.driver.runs(agent), result=b"r1")
    for older in (1, 2):
        driver = lives.restart()
        assert not driver.runs(driver.agent()), "it has ended"
        client = again(driver, b"client", older, wanted=(task,))
        assert driver.outcomes(client) == {task: (Status.VALUE, b"r1")}
    driver.feed(client, messages.Release((task,)))
    lives.tidy()
    driver = lives.restart()
    assert not driver.core.state.sessions[client[0]].tasks
    assert not lives.task_rows()


def test_a_task_that_was_released_does_not_run_again_while_others_of_its_batch_live(lives: Lives) -> None:
    client, agent = lives.driver.client(), lives.driver.agent(workers=2)
    first, second = lives.driver.submit(client, 2)
    runs = lives.driver.runs(agent)
    lives.driver.done(agent, {first: runs[first]})
    lives.driver.feed(client, messages.Release((first,)))
    lives.tidy()
    driver = lives.restart()
    assert list(driver.core.state.sessions[client[0]].tasks) == [second]
    agent = driver.agent(peer_incarnation=1)
    driver.feed(agent, messages.Reconcile())
    assert list(driver.runs(agent)) == [second], "its agent has come back without it"


def test_an_agent_that_comes_back_continues(lives: Lives) -> None:
    client, agent = lives.driver.client(), lives.driver.agent()
    (task,) = lives.driver.submit(client)
    runs = lives.driver.runs(agent)
    driver = lives.restart()
    other = driver.agent(b"other")
    assert not driver.runs(other), "it may still run"
    agent = driver.agent(peer_incarnation=1)
    driver.feed(agent, messages.Reconcile(running=tuple(runs), runs=tuple(runs.values())))
    driver.done(agent, runs, result=b"once")
    client = again(driver, b"client", 1, wanted=(task,))
    assert driver.outcomes(client) == {task: (Status.VALUE, b"once")}
    assert driver.core._recovery.due() is None, "nobody else is awaited"


def test_who_comes_back_is_believed_only_what_the_journal_says(lives: Lives) -> None:
    client, agent = lives.driver.client(), lives.driver.agent()
    ran, waits = lives.driver.submit(client, 2)
    (run,) = lives.driver.runs(agent).values()
    driver = lives.restart()
    rogue = driver.agent(b"rogue", peer_incarnation=1)
    driver.feed(rogue, messages.Reconcile(running=(ran, waits), runs=(run, run + 1)))
    for claimed in (run, run + 1):
        driver.done(rogue, {ran: claimed, waits: claimed + 10}, result=b"false")
    client = again(driver, b"client", 1, wanted=(ran, waits))
    driver.done(rogue, {ran: run, waits: run + 1}, result=b"false")
    assert not driver.outcomes(client)
    agent = driver.agent(peer_incarnation=1)
    driver.feed(agent, messages.Reconcile(running=(ran,), runs=(run,)))
    driver.done(agent, {ran: run}, result=b"true")
    assert driver.outcomes(client) == {ran: (Status.VALUE, b"true")}


def test_who_comes_back_too_late_has_its_outcome_taken(lives: Lives) -> None:
    client, agent = lives.driver.client(), lives.driver.agent()
    lives.driver.submit(client)
    runs = lives.driver.runs(agent)
    driver = lives.restart()
    driver.later(driver.config.recovery_seconds)
    agent = driver.agent(peer_incarnation=1)
    driver.done(agent, runs, result=b"late")
    client = again(driver, b"client", 1, wanted=tuple(runs))
    assert driver.outcomes(client) == {task: (Status.VALUE, b"late") for task in runs}


def test_only_the_tasks_of_a_missing_agent_wait_for_it(lives: Lives) -> None:
    client = lives.driver.client()
    lost, other = lives.driver.agent(b"lost"), lives.driver.agent(b"other")
    lives.driver.submit(client, 2)
    of_lost, of_other = lives.driver.runs(lost), lives.driver.runs(other)
    assert of_lost and of_other
    (waiting,) = lives.driver.submit(client)
    driver = lives.restart()
    other = driver.agent(b"other", peer_incarnation=1)
    driver.feed(other, messages.Reconcile(finished=tuple(of_other)))
    assert [list(resend.tasks) for resend in driver.take(other, messages.Resend)] == [list(of_other)]
    driver.done(other, of_other)
    assert list(driver.runs(other)) == [waiting]
    driver.later(driver.config.recovery_seconds)
    assert driver.runs(driver.agent(b"third")).keys() == of_lost.keys()
    lives.restart()
    assert lives.driver.core._recovery._awaited == {other, b"third".ljust(16, b".")}, "the lost one is forgotten"


def test_runs_that_were_charged_stay_charged(lives: Lives) -> None:
    client = lives.driver.client()
    (task,) = lives.driver.submit(client)
    died = describe(WorkerDiedError("killed"))
    for number in range(lives.config.lost_run_limit):
        agent = lives.driver.agent(b"agent%d" % number)
        lives.driver.done(agent, lives.driver.runs(agent), Status.LOST, died)
        lives.driver.feed(agent, PeerLost("drained", farewell=True))
        lives.restart()
    client = again(lives.driver, b"client", lives.incarnation - 1, wanted=(task,))
    assert lives.driver.outcomes(client)[task][0] == Status.FAILED


def test_a_client_that_does_not_come_back_is_given_up_in_time(lives: Lives) -> None:
    lives.driver.submit(lives.driver.client(), 5)
    driver = lives.restart()
    driver.later(driver.config.client_timeout_seconds)
    assert not driver.core.state.sessions
    lives.tidy()
    assert not lives.rows


def test_what_a_client_wants_no_more_is_dropped(lives: Lives) -> None:
    _, second = lives.driver.submit(lives.driver.client(), 2)
    driver = lives.restart()
    client = again(driver, b"client", 1, wanted=(second,))
    assert list(driver.core.state.sessions[client[0]].tasks) == [second]
    driver.feed(client, messages.Cancel((second,)))
    lives.restart()
    assert not lives.driver.core.state.sessions[client[0]].tasks


def test_a_task_that_was_not_on_disk_is_submitted_again(lives: Lives) -> None:
    (known,) = lives.driver.submit(lives.driver.client())
    driver = lives.restart()
    client = again(driver, b"client", 1, wanted=(known, known + 1))
    assert [list(need.tasks) for need in driver.take(client, messages.NeedTasks)] == [[known + 1]], "at once"


def graph(client: bytes) -> Submit:
    """A node, and one that needs it."""
    first = (client[0] << 32) + 1
    return Submit(
        (Group(FUNCTION),),
        (first, first + 1),
        Payloads([b"a", b"b"]),
        functions=(FUNCTION,),
        names=("n",),
        bodies=Payloads([b"body"]),
        dependents=(1,),
        needs=(first,),
        consumers=(1, 0),
        intermediate=(0,),
        graph=first,
        graph_size=2,
    )


def test_a_graph_continues_with_its_intermediate_results(lives: Lives) -> None:
    client, agent = lives.driver.client(), lives.driver.agent()
    lives.driver.feed(client, graph(client))
    lives.driver.done(agent, dict([next(iter(lives.driver.runs(agent).items()))]), result=b"middle")
    lives.driver.feed(agent, PeerLost("killed"))
    driver = lives.restart()
    agent = driver.agent(b"other")
    (run,) = driver.take(agent, messages.Run)
    assert list(run.inputs) == [b"middle"]
    last = run.tasks[0]
    driver.done(agent, {last: run.first_run}, result=b"end")
    driver = lives.restart()
    client = again(driver, b"client", 2, wanted=(last,))
    assert driver.outcomes(client) == {last: (Status.VALUE, b"end")}
    driver.feed(client, messages.Release((last,)))
    assert not driver.core.state.sessions[client[0]].tasks
    lives.tidy()
    assert not lives.task_rows()


def test_a_value_that_was_given_to_a_task_is_kept_for_it(lives: Lives) -> None:
    client, agent = lives.driver.client(), lives.driver.agent()
    (source,) = lives.driver.submit(client)
    consumer = source + 1
    plain = Submit((Group(FUNCTION),), (consumer,), Payloads([b"c"]), dependents=(0,), needs=(source,))
    lives.driver.feed(client, plain)
    lives.driver.done(agent, lives.driver.runs(agent), result=b"value")
    lives.driver.feed(client, messages.Release((source,)))
    lives.tidy()
    lives.driver.feed(agent, PeerLost("drained", farewell=True))
    driver = lives.restart()
    (run,) = driver.take(driver.agent(b"other"), messages.Run)
    assert (list(run.tasks), list(run.inputs)) == ([consumer], [b"value"])


@pytest.mark.parametrize("seed", range(20))
def test_rows_are_as_many_as_there_is_work(lives: Lives, seed: int) -> None:
    """Batches of any size end in any order, with restarts; what has ended leaves nothing."""
    draw = random.Random(seed)
    lives.driver.client()
    pending: set[int] = set()
    first = 1
    for _ in range(30):
        if lives.driver.core.state.sessions[99].attached is False or draw.random() < 0.2:
            lives.restart()
            again(lives.driver, b"client", lives.incarnation - 1, wanted=tuple(pending))
        count = draw.randrange(1, 6)
        tasks = [(99 << 32) + first + at for at in range(count)]
        first += count
        functions = Payloads([b"body"])
        client = b"client".ljust(16, b".")
        lives.driver.feed(
            client,
            Submit(
                (Group(FUNCTION),),
                tasks,
                Payloads([b"call"] * count),
                functions=(FUNCTION,),
                names=("n",),
                bodies=functions,
            ),
        )
        pending.update(tasks)
        gone = draw.sample(sorted(pending), draw.randrange(len(pending) + 1))
        lives.driver.feed(client, messages.Cancel(gone))
        pending.difference_update(gone)
        lives.commit()
        assert lives.driver.core.state.sessions[99].tasks.keys() == pending
    lives.restart()
    assert lives.driver.core.state.sessions[99].tasks.keys() == pending
    assert not any(task.state == DONE for task in lives.driver.core.state.sessions[99].tasks.values())
    again(lives.driver, b"client", lives.incarnation - 1)
    lives.tidy()
    assert not lives.task_rows()


def test_rows_of_a_client_that_was_given_up_do_not_count_for_it_when_it_is_back(lives: Lives) -> None:
    driver = lives.driver
    first = (b"c"[0] << 32) + 1
    for second in (first + 1, first + 2):
        driver.feed(client := driver.client(), submit(first, body=True), submit(second, first))
        lives.commit()
        if second == first + 1:
            driver.feed(client, PeerLost("gone"))
    agent = driver.agent()
    driver.done(agent, driver.runs(agent))
    driver.feed(client, messages.Release([first]))
    driver.feed(agent, PeerLost("gone"))
    lives.tidy()
    driver = lives.restart()
    (run,) = driver.take(driver.agent(b"other"), messages.Run)
    assert list(run.tasks) == [second] and list(run.inputs) == [b"r"]
    again(driver, b"client", 1)
    lives.tidy()
    assert not lives.task_rows()


def submit(task: int, *needs: int, body: bool = False) -> Submit:
    """A Submit of one task."""
    function: dict[str, Any] = {"functions": [FUNCTION], "names": ["f"], "bodies": Payloads([b"body"])} if body else {}
    return Submit([Group(FUNCTION)], [task], Payloads([b"call"]), dependents=[0] * len(needs), needs=needs, **function)


@pytest.mark.parametrize("how", ["own", "other", "empty", "attached"])
def test_a_named_session_that_was_ended_stays_ended(lives: Lives, how: str) -> None:
    named: dict[str, Any] = {"session_name": "nightly", "session_key": b"k" * 32}
    driver = lives.driver
    client, agent = driver.client(**named), driver.agent()
    tasks = driver.submit(client, 2)
    driver.done(agent, driver.runs(agent))
    lives.commit()
    driver.feed(client, LabelTask(tasks[0], "first"))
    if how == "empty":
        driver.done(agent, driver.runs(agent))
        driver.feed(client, messages.Cancel(tasks))
        driver.feed(client, PeerLost("gone"))
        driver.later(1.0)
    elif how == "other":
        driver.feed(client, PeerLost("gone"))
        driver.feed(driver.client(b"other"), EndSession(1, "nightly", b"k" * 32))
    else:
        driver.feed(client, EndSession(1))
        if how == "own":
            driver.feed(client, PeerLost("gone"))
    lives.tidy()
    driver = lives.restart()
    assert client[0] not in driver.core.state.sessions
    lives.tidy()
    assert not lives.task_rows()


def test_what_one_key_has_in_the_journal_is_bounded_and_others_notice_nothing(
    make_driver: type[SchedulerDriver],
) -> None:
    lives = Lives(make_driver, key_limit=100_000)
    driver, refused = lives.driver, 0
    greedy, other = driver.client(b"greedy"), driver.client(b"other")
    first = (b"g"[0] << 32) + 1
    for count in range(40):
        tasks = (first + 2 * count, first + 2 * count + 1)
        message = Submit((Group(FUNCTION),), tasks, Payloads([bytes(5_000)] * 2))
        driver.feed(greedy, message)
        if failed := driver.outcomes(greedy):
            refused += 1
            for status, reason in failed.values():
                assert status == Status.FAILED and b"bytes in the journal, and may have 100,000" in reason
        else:
            driver.feed(greedy, messages.Cancel(tasks[1:]))  # the other one keeps the row
        lives.commit()
    assert refused == 30 and sum(len(row.body) for row in lives.rows.values()) < 120_000
    driver.submit(other)
    driver.feed(greedy, messages.Cancel(range(first, first + 80)))
    lives.tidy()
    driver = lives.restart()
    greedy = again(driver, b"greedy", 1)
    lives.tidy()
    driver.feed(greedy, Submit((Group(FUNCTION),), (first + 100,), Payloads([b"call"])))
    assert driver.core.state.find(first + 100) is not None


def test_a_name_of_a_task_is_one_small_record_that_counts_for_the_key_and_goes_with_the_name(
    make_driver: type[SchedulerDriver],
) -> None:
    lives = Lives(make_driver, key_limit=50_000)
    client = lives.driver.client(session_name="nightly", session_key=b"k" * 32)
    tasks = lives.driver.submit(client, 2)
    names = [f"{count:0200}" for count in range(200)]
    lives.commit()
    for name in names:
        before = sum(len(row.body) for row in lives.rows.values())
        lives.driver.feed(client, LabelTask(tasks[0], name))
        lives.commit()
        assert sum(len(row.body) for row in lives.rows.values()) < before + 220
    session = lives.driver.core.state.sessions[client[0]]
    assert lives.ledger.refusal(session), "names count"
    for turn in range(4):  # some names go from task to task; the same once more says nothing new
        for name in names[150:]:
            lives.driver.feed(client, LabelTask(tasks[turn % 2], name), LabelTask(tasks[turn % 2], name))
        lives.commit()
    lives.tidy()
    assert sum(row.kind == RecordKind.LABEL for row in lives.rows.values()) == len(names)
    session = lives.restart().core.state.sessions[client[0]]
    assert session.named is not None and session.name == "nightly"
    assert session.named.labels == {name: tasks[name in names[150:]] for name in names}
    assert lives.ledger.refusal(session)
    lives.driver.feed(lives.driver.client(b"other"), EndSession(1, "nightly", b"k" * 32))
    lives.tidy()
    assert not lives.task_rows()


def test_cancels_and_releases_of_unknown_tasks_are_not_recorded(lives: Lives) -> None:
    client = lives.driver.client()
    (task,) = lives.driver.submit(client)
    lives.commit()
    before = dict(lives.rows)
    for _ in range(3):
        lives.driver.feed(client, messages.Cancel(range(task + 1, task + 1000)))
        lives.driver.feed(client, messages.Release(range(task + 1, task + 1000)))
        lives.commit()
    assert lives.rows == before


def test_inputs_beyond_the_limit_fail_the_tasks_that_wait_for_them(make_driver: type[SchedulerDriver]) -> None:
    lives = Lives(make_driver, key_limit=1000)
    client = lives.driver.client()
    first = (99 << 32) + 1
    needing = Submit((Group(FUNCTION),), (first + 1,), Payloads([bytes(1000)]), dependents=(0,), needs=(first,))
    lives.driver.feed(client, needing)
    lives.driver.feed(client, messages.Inputs((first + 1,), (first,), (Status.VALUE,), Payloads([b"r"])))
    assert lives.driver.outcomes(client)[first + 1][0] == Status.FAILED


@pytest.mark.parametrize("when", ["they wait", "they are not known yet"])
def test_nobody_supplies_inputs_of_other_peoples_tasks(lives: Lives, when: str) -> None:
    """Neither now nor by way of the journal."""
    victim, attacker, agent = lives.driver.client(b"victim"), lives.driver.client(b"attacker"), lives.driver.agent()
    (own,) = lives.driver.submit(attacker, capability_names=("nowhere",), capability_values=(-1,))
    first = (victim[0] << 32) + 1
    needing = Submit((Group(FUNCTION),), (first + 1,), Payloads([b"c"]), dependents=(0,), needs=(first,))
    false = messages.Inputs((own, first + 1), (1, first), (Status.VALUE, Status.RAISED), Payloads([b"x", b"false"]))
    if when == "they wait":
        lives.driver.feed(victim, needing)
        with pytest.raises(ProtocolError, match="is not the sender's"):
            lives.driver.feed(attacker, false)
    else:
        lives.driver.feed(attacker, false)
        lives.driver.feed(victim, needing)
    for _ in range(2):
        assert not lives.driver.outcomes(victim) and not lives.driver.runs(agent)
        lives.restart()
        again(lives.driver, b"victim", 1, wanted=(first + 1,))
        agent = lives.driver.agent()


def test_a_client_over_its_limit_fails_only_its_own_tasks(make_driver: type[SchedulerDriver]) -> None:
    lives = Lives(make_driver, key_limit=1000)
    victim, attacker = lives.driver.client(b"victim"), lives.driver.client(b"attacker")
    first = (victim[0] << 32) + 1
    lives.driver.feed(
        victim, Submit((Group(FUNCTION),), (first + 1,), Payloads([b"c"]), dependents=(0,), needs=(first,))
    )
    (own,) = lives.driver.submit(attacker, capability_names=("x" * 200,) * 8, capability_values=(-1,) * 8)
    with pytest.raises(ProtocolError, match="is not the sender's"):
        lives.driver.feed(attacker, messages.Inputs((own, first + 1), (1, first), (0, 0), Payloads([b"x", b"y"])))
    assert not lives.driver.outcomes(victim)
