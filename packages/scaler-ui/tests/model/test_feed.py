"""A feed begins with a snapshot, notices gaps, and lives through anything."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st

from scaler_io.links.streams import HEADER
from scaler_protocol.byte_planes import to_planes
from scaler_protocol.codec import decode, encode
from scaler_protocol.handshake import Acknowledge
from scaler_protocol.messages import Message
from scaler_protocol.monitoring import (
    PACKED_BATCH,
    PACKED_EDGE,
    PACKED_ID,
    MonitorStatus,
    TaskEvents,
    TaskStep,
    changes,
)
from scaler_protocol.profiles import PROFILE
from scaler_ui.model.feed import Feed
from scaler_ui.model.model import MonitorModel

if TYPE_CHECKING:
    from conftest import Publications


class Line:
    """A subscription in memory."""

    def __init__(self) -> None:
        self.renewals = 0
        self.frames: list[list[bytes]] = []

    def receive(self, limit: int) -> list[list[bytes]]:
        frames, self.frames = self.frames[:limit], self.frames[limit:]
        return frames

    def subscribe_again(self) -> None:
        self.renewals += 1

    def publish(self, number: int, message: Message) -> None:
        self.frames.append([HEADER.pack(number, 0), *(bytes(frame) for frame in encode(message))])


def test_nothing_is_passed_on_before_a_snapshot(publications: Publications) -> None:
    line = Line()
    feed = Feed(line)
    line.publish(3, publications.batch(TaskStep.WAITING, 1, 7))
    line.publish(4, publications.status())
    line.publish(5, publications.status(snapshot=True))
    line.publish(6, publications.batch(TaskStep.WAITING, 1, 8))
    assert [type(message) for message in feed.take(0.0)] == [MonitorStatus, TaskEvents]
    assert (feed.gaps, line.renewals) == (0, 0)


def test_after_a_gap_the_feed_subscribes_again(publications: Publications) -> None:
    line = Line()
    feed = Feed(line)
    line.publish(1, publications.status(snapshot=True))
    line.publish(3, publications.batch(TaskStep.WAITING, 1, 7))
    line.publish(4, publications.batch(TaskStep.WAITING, 1, 8))
    assert len(feed.take(0.0)) == 1 and (feed.gaps, line.renewals) == (1, 1)
    line.publish(5, publications.status(snapshot=True))
    line.publish(6, publications.batch(TaskStep.WAITING, 1, 8))
    assert len(feed.take(0.0)) == 2 and (feed.gaps, line.renewals) == (1, 1)


def test_what_is_as_in_the_status_before_is_not_sent_again(publications: Publications) -> None:
    line = Line()
    feed = Feed(line)
    first = publications.status(snapshot=True)
    moved = replace(first, snapshot=False, agent_hosts=["c", *first.agent_hosts[1:]], waiting=7)
    rows: dict[str, Any] = {column: getattr(moved, column)[:1] for column in MonitorStatus.COLUMNS[3]}
    fewer = replace(moved, **rows | dict.fromkeys(MonitorStatus.COLUMNS[4], ()))
    sent = [first, changes(moved, first), changes(moved, moved), changes(fewer, moved)]
    for number, status in enumerate(sent, 1):
        line.publish(number, status)
    assert feed.take(0.0) == [decode([bytes(frame) for frame in encode(each)]) for each in (first, moved, moved, fewer)]
    assert sent[1].agent_hosts == moved.agent_hosts and not sent[1].agent_names and not sent[2].agent_hosts
    assert sent[3].agent_names == fewer.agent_names
    assert sent[2].worker_states == moved.worker_states and not sent[2].worker_pids
    assert all(not status.worker_seconds for status in sent[1:])
    line.publish(5, replace(moved, agent_names=()))  # a faulty publisher: those before were fewer
    line.publish(6, moved)
    assert feed.take(0.0) == [] and (feed.malformed, feed.gaps, line.renewals) == (1, 0, 1)
    line.publish(7, replace(first, worker_names=()))
    assert feed.take(9.0) == [] and (feed.malformed, line.renewals) == (2, 2)


def test_a_publisher_whose_snapshots_cannot_be_read_is_asked_less_and_less_often(publications: Publications) -> None:
    line = Line()
    feed = Feed(line)

    def asked(first: int, last: int) -> int:
        """How often it is, in a time of which each 0.01 s another such snapshot arrives."""
        before = line.renewals
        for moment in range(100 * first, 100 * last):
            line.publish(1, publications.status(snapshot=True, worker_agents=[7] * 6))
            assert feed.take(moment / 100) == []
        return line.renewals - before

    assert 1 <= asked(0, 1) <= 5 and asked(1, 10) <= 4 and 2 <= asked(10, 20) <= 3
    line.publish(1, publications.status(snapshot=True))
    line.publish(3, publications.status())
    assert len(feed.take(100.0)) == 1 and line.renewals > 0
    before = line.renewals
    line.publish(4, publications.status(snapshot=True))
    line.publish(6, publications.status())
    assert len(feed.take(100.2)) == 1 and line.renewals == before + 1, "pauses begin anew"


def test_another_scheduler_starts_a_new_snapshot(publications: Publications) -> None:
    line = Line()
    feed = Feed(line)
    line.publish(41, publications.status(snapshot=True))
    line.publish(1, publications.status(snapshot=True, incarnation=6))
    line.publish(2, publications.status(incarnation=6))
    assert len(feed.take(0.0)) == 3 and feed.gaps == 0


@given(st.lists(st.lists(st.binary(max_size=40), max_size=4), max_size=5))
def test_anything_else_is_counted(frames: list[list[bytes]]) -> None:
    line = Line()
    feed = Feed(line)
    line.publish(1, Acknowledge())
    line.frames += frames
    assert feed.take(0.0) == [] and feed.malformed == 1 + len(frames)


@given(
    steps=st.lists(st.tuples(st.integers(0, 8), st.integers(0, 3)), max_size=4),
    tasks=st.sampled_from([0, 0, 0, 1]),
    runs=st.sampled_from([0, 0, 0, 1]),
    odd=st.booleans(),
    status=st.integers(0, 6),
    noise=st.binary(max_size=20),
    edges=st.sampled_from([2, 2, 2, 1, 3]),
)
def test_events_that_do_not_fit_never_reach_the_model(
    steps: list[tuple[int, int]], tasks: int, runs: int, odd: bool, status: int, noise: bytes, edges: int
) -> None:
    sizes = [size for _, size in steps]
    ended = sum(size for step, size in steps if step in (TaskStep.ENDED, TaskStep.AGAIN))
    events = TaskEvents(
        batches=to_planes(b"".join(PACKED_BATCH.pack(step, 1, size, 1) for step, size in steps), PACKED_BATCH.size)
        + (noise if odd else b""),
        runs=to_planes(
            PACKED_ID.pack(9) * (runs + sum(step == TaskStep.ASSIGNED for step, _ in steps)), PACKED_ID.size
        ),
        tasks=to_planes(b"".join(map(PACKED_ID.pack, range(1, 1 + sum(sizes) + tasks))), PACKED_ID.size),
        statuses=to_planes(bytes([status]) * ended, 1),
        profiles=to_planes(bytes(PROFILE.size * ended), PROFILE.size),
        edge_graphs=[1],
        edge_first_tasks=[1],
        edge_counts=[2],
        edges=to_planes(bytes(PACKED_EDGE.size * edges), PACKED_EDGE.size),
    )
    line = Line()
    feed = Feed(line)
    line.publish(1, MonitorStatus(5, 1.0, snapshot=True))
    line.publish(2, events)
    model = MonitorModel(tasks=100)
    taken = feed.take(0.0)
    sound = (
        not tasks
        and not runs
        and not (odd and noise)
        and all(step <= TaskStep.AGAIN for step, _ in steps)
        and (status <= 4 or not ended)
        and edges == 2
    )
    assert len(taken) == 1 + sound and feed.malformed == (not sound)
    for message in taken:
        model.take(message, 1.0)
    assert all(model.tasks.row(row).state for row in range(len(model.tasks)))


def test_what_the_feed_passes_on_can_be_printed(publications: Publications) -> None:
    line, agent = Line(), "\x1b[2J\n[ERROR]forged"
    line.publish(
        1,
        replace(
            publications.status(snapshot=True),
            client_sessions=(1,),
            client_names=(agent,),
            client_hosts=("h",),
            client_tasks=(0,),
        ),
    )
    line.publish(
        2,
        TaskEvents(
            text_numbers=(1,),
            text_kinds=(1,),
            text_subjects=("",),
            text_times=(1.0,),
            text_levels=(30,),
            text_tasks=(7,),
            texts=("a\n\u202eb",),
        ),
    )
    status, events = Feed(line).take(0.0)
    assert isinstance(status, MonitorStatus) and tuple(status.client_names) == (r"\x1b[2J\n[ERROR]forged",)
    assert isinstance(events, TaskEvents) and tuple(events.texts) == ("a\n\\u202eb",)
