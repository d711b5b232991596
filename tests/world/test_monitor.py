"""What a monitor makes of the scheduler's publications is what the scheduler knows, whatever happens and whoever comes
late."""

from __future__ import annotations

from collections import Counter

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scaler_io.links.streams import HEADER
from scaler_protocol.codec import encode
from scaler_protocol.messages import Message, Status
from scaler_protocol.monitoring import EventKind, TaskStep
from scaler_scheduler.core.snapshot import ProcessStats
from scaler_scheduler.core.task_states import ASSIGNED, DONE, HELD, WAITING
from scaler_ui.model import task_stream
from scaler_ui.model.feed import Feed
from scaler_ui.model.findings import findings
from scaler_ui.model.graph_looks import GraphLooks
from scaler_ui.model.model import MonitorModel
from scaler_ui.model.reasons import why
from scaler_ui.model.subjects import task_facts
from scaler_ui.model.task_search import TaskSearch
from support.task_rows import live_rows
from world.callers import WorldFuture
from world.cluster import World, plans
from world.plans import LOST_RUNS, Plan

STEPS = {WAITING: TaskStep.WAITING, HELD: TaskStep.HELD, ASSIGNED: TaskStep.ASSIGNED}


class WorldMonitor:
    """A listener that joins now. It hears of everything in the moment it is asked to look, but for what is lost."""

    def __init__(self, world: World) -> None:
        self.model = MonitorModel(tasks=10_000)
        self._world = world
        self._feed = Feed(self)
        self._frames: list[list[bytes]] = []
        self._number = self._looks = 0
        self.subscribe_again()

    def receive(self, limit: int) -> list[list[bytes]]:
        """What has arrived."""
        frames, self._frames = self._frames[:limit], self._frames[limit:]
        return frames

    def subscribe_again(self) -> None:
        """Publish a snapshot, as the shell of the scheduler does."""
        core = self._world.scheduler.core
        self._publish(core.snapshot(self._figures(), self._world.now, first=True))
        self._publish(core.history(0.0))
        core.start_events(self._world.now)

    def _figures(self) -> ProcessStats:
        hub = self._world.scheduler.hub
        return ProcessStats(
            "ipc:///world", self._world.now, self._world.now, 0.0, 0, hub.sent, hub.received, hub.round_trip
        )

    def _publish(self, message: Message) -> None:
        self._number += 1
        self._frames.append([HEADER.pack(self._number, 0), *(bytes(frame) for frame in encode(message))])

    def lose(self) -> None:
        """What has happened since the last look never arrives."""
        self._world.scheduler.core.take_events(0.0)
        self._number += 1

    def look(self) -> None:
        """Hear all, twice, should there be a gap; then compare."""
        for _ in range(2):
            events = self._world.scheduler.core.take_events(0.0)
            if events is not None:
                self._publish(events)
            self._publish(self._world.scheduler.core.snapshot(self._figures(), self._world.now))
            self.hear()
        self._compare()

    def hear(self) -> None:
        """Hear what was published, and what has happened."""
        if (events := self._world.scheduler.core.take_events(0.0)) is not None:
            self._publish(events)
        self._looks += 1
        for message in self._feed.take(1000.0 * self._looks):  # gaps come seldom
            self.model.take(message, self._world.now)

    def _compare(self) -> None:
        state, tasks, status = self._world.scheduler.core.state, self.model.tasks, self.model.status
        known = {
            task: STEPS[entry.state]
            for session in state.sessions.values()
            for task, entry in session.tasks.items()
            if entry.state != DONE
        }
        seen = {tasks.value("id", row): tasks.value("step", row) for row in live_rows(tasks)}
        assert seen == known
        assert status is not None
        counted = Counter(known.values())
        assert (status.waiting, status.held, status.assigned) == tuple(
            counted[step] for step in (TaskStep.WAITING, TaskStep.HELD, TaskStep.ASSIGNED)
        )
        for row in live_rows(tasks):
            if tasks.value("step", row) == TaskStep.ASSIGNED:
                record = state.find(tasks.value("id", row))
                assert record is not None and record.agent is not None
                assert tasks.agent(row) == record.agent.number
                assert tasks.value("run", row) == record.run
        self._compare_graphs()
        self._compare_parents()
        assert status.received_counts == tuple(self._world.scheduler.hub.received.values())

    def _compare_graphs(self) -> None:
        """What open nodes need is known, and by that in which order nodes can run."""
        for session in self._world.scheduler.core.state.sessions.values():
            for graph in session.graphs.values():
                nodes = [
                    (task, entry.extra)
                    for task, entry in session.tasks.items()
                    if entry.extra is not None and entry.extra.graph is graph
                ]
                needs = {(task, need) for task, extra in nodes for need in extra.inputs}
                known = self.model.graphs.find(graph.number)
                pairs = set(zip(*known.pairs(graph.size), strict=True)) if known is not None else set()
                assert needs <= {(graph.first + node, graph.first + need) for node, need in pairs}

    def _compare_parents(self) -> None:
        """It is known of open tasks which other task has submitted them."""
        state, tasks = self._world.scheduler.core.state, self.model.tasks
        entries = {task: entry for session in state.sessions.values() for task, entry in session.tasks.items()}
        parents = {
            child: task
            for task, entry in entries.items()
            if entry.extra is not None and (notes := entry.extra.notes) is not None
            for child in notes.children or ()
            if child in entries and entries[child].state in STEPS
        }
        known = {tasks.value("id", row): tasks.value("parent", row) for row in live_rows(tasks)}
        assert {child: known[child] for child in parents} == parents


def test_a_plain_run() -> None:
    world = World(hosts=[2])
    monitor = WorldMonitor(world)
    monitor.look()
    world.client.submit(*plans(50, 0.01), Plan(0.001, raises=1000))
    world.run(0.05)
    monitor.look()
    world.finish(2.0)
    monitor.look()
    status = monitor.model.status
    assert status is not None and (status.succeeded, status.raised, status.cancelled) == (50, 1, 0)
    assert sum(status.function_counts) == 51
    ended: Counter[int] = Counter()
    for figures in monitor.model.functions.values():
        ended.update(figures.ended)
    assert ended == {Status.VALUE: 50, Status.RAISED: 1}
    rows, size = TaskSearch(monitor.model.tasks).page("duration", descending=True, first=0, count=100)
    assert size == 51 and {row.state for row in rows} == {"success", "raised"}
    assert all(row.since <= row.assigned <= row.ended for row in rows)


def test_a_lost_run_is_told_with_its_reason() -> None:
    world = World(hosts=[1])
    monitor = WorldMonitor(world)
    (future,) = world.client.submit(Plan(0.01, kills_worker=1))
    world.finish(5.0)
    monitor.look()
    assert [event.task for event in monitor.model.events if "lost" in event.text] == [future.task_id]
    assert monitor.model.status is not None and monitor.model.status.lost_runs == 1


def test_a_task_that_ended_its_workers_is_in_the_task_stream_however_short_its_runs() -> None:
    world = World(hosts=[1])
    monitor = WorldMonitor(world)
    (future,) = world.client.submit(Plan(0.01, kills_worker=LOST_RUNS))
    world.finish(5.0)
    monitor.look()
    late = WorldMonitor(world)
    late.look()
    for listener, earlier_runs in ((monitor, LOST_RUNS - 1), (late, 0)):
        bars = task_stream.stream(listener.model, 60.0).bars
        assert len(bars) == 1 + earlier_runs and bars[0][4] == "failed"
        for bar in bars:
            assert bar[5] == f"{future.task_id:x}"
            assert 0.01 <= (bar[2] - bar[1]) / 1000 < 0.1
        sentence, *_ = why(listener.model, future.task_id)
        assert "on host0-1000, " in sentence and f"attempt {LOST_RUNS}" in sentence


def test_a_task_that_ended_since_an_input_failed_links_to_it() -> None:
    """Also where the input is another's, and where the task is submitted after the failure."""
    world = World(hosts=[2])
    monitor = WorldMonitor(world)
    needs: list[list[int]] = [[], [], [0, 1], [2]]
    nodes = [Plan(0.01, "ok"), Plan(0.02, raises=100), Plan(0.01, "middle"), Plan(0.01, "last")]
    futures = world.client.graph(nodes, needs, [1, 2, 3])
    world.finish(5.0)
    monitor.look()
    failed, *others = (future.task_id for future in futures)
    core = world.scheduler.core
    for task in others:
        facts = {fact.name: fact for fact in task_facts(monitor.model, task) or []}
        assert facts["ended because of"].links == ((f"{failed:x}", f"/task/{failed:x}"),)
        told = f"it has ended: raised, without a run: task {failed:x}, which it needs, ended in this state"
        assert why(monitor.model, task) == [told]
        late = f"it has ended without a run: task {failed:x}, which it needs, ended without a value"
        assert core.why(task, world.now) == [late]
    facts = {fact.name: fact for fact in task_facts(monitor.model, failed) or []}
    assert facts["ended because of"].links == ()


def test_of_tasks_only_failures_are_kept_where_nobody_listens() -> None:
    world = World()
    world.client.submit(*plans(100), Plan(0.001, raises=1000))
    world.finish(1.0)
    event_log = world.scheduler.core.state.event_log
    assert not event_log.listening and event_log.take(0.0) is None
    assert event_log.ended[Status.VALUE] == 100 and len(list(event_log.history.failures)) == 1


def test_a_graph_is_told_with_its_edges_and_its_critical_path() -> None:
    world = World(hosts=[2])
    monitor = WorldMonitor(world)
    needs: list[list[int]] = [[], [], [0, 1], [2], [1]]
    lengths = (0.2, 0.5, 0.1, 0.3, 0.05)
    world.client.graph([Plan(length, f"n{at}") for at, length in enumerate(lengths)], needs, [3, 4])
    world.finish(5.0)
    monitor.look()
    assert monitor.model.status is not None
    (number,) = monitor.model.status.graphs
    look = GraphLooks(monitor.model).look(number)
    assert look is not None and list(zip(*look.edges, strict=True)) == [(2, 0), (2, 1), (3, 2), (4, 1)]
    assert (look.layers, look.path) == ([0, 0, 1, 2, 1], [1, 2, 3])
    assert round(look.path_seconds, 3) == 0.9 and round(look.seconds, 3) == 1.15
    assert 0.9 <= look.took < 1.1 and look.share == look.path_seconds / look.took
    assert world.scheduler.core.state.event_log.take(0.0) is None


def test_who_comes_after_the_accident_is_shown_it() -> None:
    world = World(hosts=[1, 2])
    early = WorldMonitor(world)
    raising, killing = world.client.submit(Plan(0.001, raises=1000), Plan(0.01, kills_worker=100))
    world.client.submit(*plans(5, 0.5))
    world.finish(20.0)
    early.look()
    late = WorldMonitor(world)
    late.look()
    early.look()  # it hears the history a second time
    assert early.model.failures.keys() == late.model.failures.keys() == {raising.task_id, killing.task_id}
    told = [(event.number, event.kind, event.text) for event in early.model.events]
    assert told == [(event.number, event.kind, event.text) for event in late.model.events]
    assert {kind for _, kind, _ in told} >= {EventKind.FAILURE, EventKind.RUN, EventKind.WORKER}
    for model in (early.model, late.model):
        ending, *_ = why(model, killing.task_id)
        assert ending.startswith("it has ended: failed")
        row = model.tasks.find(raising.task_id)
        assert row is not None and model.tasks.row(row).state == "raised"
        assert any(moment.running for moment in model.history), "figures from before are shown"


class Moves:
    """What may happen to a world with a monitor."""

    def __init__(self, seed: int) -> None:
        self.world = World(seed, hosts=[2, 1])
        self.monitor = WorldMonitor(self.world)
        self._futures: list[WorldFuture] = []

    def work(self) -> None:
        self._futures += self.world.client.submit(*plans(20, 0.02))

    def nested(self) -> None:
        self._futures += self.world.client.submit(Plan(0.01, children=(Plan(0.05),) * 3))

    def graph(self) -> None:
        needs: list[list[int]] = [[]] * 4 + [[0, 1], [2, 3], [4, 5], [6]]
        self._futures += self.world.client.graph([Plan(0.03, f"n{at}") for at in range(8)], needs, [5, 7])

    def fail(self) -> None:
        self._futures += self.world.client.submit(Plan(0.01, raises=1000), Plan(0.01, kills_worker=1))

    def kill(self) -> None:
        self.world.kill_worker(self.world.hosts[0])

    def run(self) -> None:
        self.world.run(0.03)

    def lose(self) -> None:
        self.monitor.lose()

    def late(self) -> None:
        self.monitor = WorldMonitor(self.world)

    def cancel(self) -> None:
        self.world.client.cancel(*self._futures[:5])

    def host(self) -> None:
        self.world.add_host(1)

    def restart(self) -> None:
        self.world.restart_scheduler()
        self.monitor.subscribe_again()


MOVES = [name for name in vars(Moves) if not name.startswith("_")]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 99), moves=st.lists(st.sampled_from([*MOVES, "run", "work"]), min_size=3, max_size=14))
def test_any_order(seed: int, moves: list[str]) -> None:
    happening = Moves(seed)
    for move in moves:
        getattr(happening, move)()
        happening.monitor.look()
    happening.world.finish()
    happening.world.run(3.0)  # no future waits for cancelled tasks
    happening.monitor.look()
    assert happening.monitor.model.tasks.live == 0


def test_who_comes_late_knows_since_when_tasks_wait_and_run() -> None:
    world = World(0, hosts=[1], clients=2)
    early = WorldMonitor(world)
    alice, bob = world.clients
    alice.submit(*plans(3, 1.0))
    world.finish()
    alice.submit(*plans(100, 900.0))
    world.run(50.0)
    bob.submit(*plans(100, 1.0))
    world.run(150.0)
    early.look()
    late = WorldMonitor(world)
    late.hear()
    for model in (early.model, late.model):
        ages = [round(world.now - since, -1) for _, _, _, since in model.tasks.open_groups()]
        assert sorted(ages) == [150.0, 200.0]
        _, hung, starving = findings(model, world.now)
        assert "has run for 3 min" in hung.text and "has run for 2 min 30 s; others' do" in starving.text
