"""What links promise, over memory and over ZeroMQ."""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Any

import pytest

from scaler_io.links import admission
from scaler_io.links import hub as hub_module
from scaler_io.links.events import (
    HubEvent,
    LinkDown,
    LinkLost,
    LinkRefused,
    LinkUp,
    PeerJoined,
    PeerLost,
    UplinkEvent,
)
from scaler_io.links.hub import FAULTS_BYTES, FAULTS_LIMIT, Hub
from scaler_io.links.link_record import KeptLimits, PeerTimeouts
from scaler_io.links.strays import STRAYS_LIMIT
from scaler_io.links.streams import (
    ACK_SECONDS,
    HEADER,
    HEAVY_ACK_SECONDS,
    HEAVY_BYTES,
    KEPT_MOST,
    Frames,
    StreamGapError,
    message_of,
)
from scaler_io.links.uplink import GREETING_SECONDS, LinkState, Uplink
from scaler_io.security.keyring import KeyRole, Principal
from scaler_protocol.codec import decode, encode
from scaler_protocol.errors import MalformedMessageError, ProtocolError
from scaler_protocol.handshake import Acknowledge, Goodbye, Heartbeat, Hello, NeedHello, Refused, Role, Welcome
from scaler_protocol.messages import Cancel, Functions, Message, Shutdown
from scaler_protocol.payloads import Payloads

if TYPE_CHECKING:
    from conftest import MemoryRig, RecordingClient, Rig

A, B = b"a" * 16, b"b" * 16
GRACE, SILENCE = 0.5, 1.0


def lost(rig: Rig, client: RecordingClient) -> list[str]:
    return rig.service.core.losses(client.identity)


# --- greeting -------------------------------------------------------------------------------------------------------


def test_hello_and_welcome(rig: Rig) -> None:
    client = rig.client()
    (peer, joined) = rig.service.core.events[0]
    assert isinstance(joined, PeerJoined) and peer == client.identity and joined.hello.epoch == 1
    (up,) = (event for event in client.events if isinstance(event, LinkUp))
    assert (up.welcome.incarnation, up.resumed, up.welcome.heartbeat_seconds) == (1, False, 0.1)
    assert client.uplink.peer_incarnation == 1


def test_what_is_said_before_the_first_welcome_is_not_sent(rig: Rig) -> None:
    client = rig.client(up=False)
    client.say(1)
    rig.until(lambda: client.ups == [False])
    client.say(2)
    rig.until(lambda: rig.heard(client) == [2])


def test_refused_lists_every_reason_and_is_final(rig: Rig) -> None:
    rig.service.refusals = ["protocol version 0", "unknown role 9"]
    client = rig.client(up=False)
    rig.until(lambda: client.uplink.state is LinkState.REFUSED)
    rig.run(0.3)
    assert [event for event in client.events if isinstance(event, LinkRefused)] == [
        LinkRefused(("protocol version 0", "unknown role 9"))
    ]
    assert client.uplink.epoch == 1 and client.uplink.due() == math.inf
    assert client.dialer._connection is None
    assert rig.service.core.events == []


def test_who_says_a_hello_that_is_malformed_is_told_why() -> None:
    """Or it would say it again for ever."""
    hub = Hub(5, admit=lambda hello: Welcome(5), timeouts=lambda hello: PeerTimeouts(1, 1))
    one, two = (bytearray(encode(Hello(role, b"i" * 16, 1))[0]) for role in (1, 2))
    (role,) = (at for at in range(len(one)) if one[at] != two[at])
    one[role] = 9
    with pytest.raises(MalformedMessageError, match=r"Hello\.role is 9, not one of 1, 2, 3, 4"):
        hub.receive(b"route", [HEADER.pack(0, 0), bytes(one)], 0.0)
    ((route, (_, answer)),) = hub.outgoing()
    assert route == b"route"
    assert decode([answer]) == Refused(("Hello.role is 9, not one of 1, 2, 3, 4",))


def test_a_stranger_is_asked_to_say_hello(rig: Rig) -> None:
    stranger = rig.raw()
    stranger.tell(Cancel((1,)), sequence=1)
    assert stranger.answer() == NeedHello()
    stranger.tell(Heartbeat(1))
    assert stranger.answer() == NeedHello()
    assert rig.service.hub.refused_frames == 2
    assert rig.service.core.events == [] and rig.service.service.malformed == 0


def test_hello_twice_in_one_epoch_is_an_error(rig: Rig) -> None:
    stranger = rig.raw()
    hello = Hello(Role.CLIENT, B, 1, epoch=1)
    stranger.tell(hello)
    assert isinstance(stranger.answer(), Welcome)
    stranger.tell(hello)
    rig.until(lambda: rig.service.service.malformed == 1)
    assert rig.service.core.joins(B) == [False]


def test_goodbye_ends_it_at_once(rig: Rig) -> None:
    client = rig.client()
    client.uplink.send(Goodbye("done", 2))
    client.say()
    rig.until(lambda: lost(rig, client) == ["done"])
    assert rig.service.core.objects_left == [2]


def test_a_refusal_names_the_service_once() -> None:
    refused = LinkRefused(("the service at tcp://h:1 demands keys: give --keys", "and more"))
    assert refused.reason("tcp://h:1") == "it demands keys: give --keys; and more"
    assert refused.reason("tcp://h:2") == "; ".join(refused.reasons)


@pytest.mark.parametrize("reasons", [[], [""], ["", ""]])
def test_a_refusal_without_reasons_says_so(rig: Rig, reasons: list[str]) -> None:
    rig.service.admit = lambda hello: Refused(reasons)  # type: ignore[method-assign]
    rig.service.hub._admit = rig.service.admit
    client = rig.client(up=False)
    rig.until(lambda: client.uplink.state is LinkState.REFUSED)
    assert [event for event in client.events if isinstance(event, LinkRefused)] == [LinkRefused(("it gave no reason",))]


def test_goodbye_is_heard_where_nothing_can_be_written_any_more(rig: Rig) -> None:
    client = rig.client()
    (route,) = rig.service.hub._routes
    client.paused = True
    client.uplink.send(Goodbye("done"))
    client.dialer.close()
    rig.service.hub.unreachable(route, rig.now)  # so says ZeroMQ once the peer has closed, whatever is still unread
    rig.until(lambda: lost(rig, client) != [])
    assert lost(rig, client) == ["done"]


# --- numbered messages ----------------------------------------------------------------------------------------------


def test_messages_arrive_once_and_in_order(rig: Rig) -> None:
    client, other = rig.client(A), rig.client(B)
    for start in range(0, 900, 300):
        client.say(*range(start, start + 300))
        other.say(start)
        rig.service.say(A, *range(start, start + 300))
        rig.service.say(B, start)
    rig.until(lambda: len(rig.heard(client)) >= 900 and len(client.numbers) >= 900 and len(rig.heard(other)) >= 3)
    rig.run(0.2)
    assert rig.heard(client) == client.numbers == list(range(900))
    assert rig.heard(other) == other.numbers == [0, 300, 600]


@pytest.mark.parametrize("fault", ["cut", "half_open"])
def test_and_across_epochs(rig: Rig, fault: str) -> None:
    client = rig.client()
    for start in range(0, 200, 40):
        client.say(*range(start, start + 20))
        rig.service.say(client.identity, *range(start, start + 20))
        rig.until(lambda start=start: len(rig.heard(client)) > start)  # type: ignore[misc]
        rig.hold(client)
        client.say(*range(start + 20, start + 40))
        rig.service.say(client.identity, *range(start + 20, start + 40))
        rig.run(0.01)
        getattr(rig, fault)(client)
        rig.until(lambda start=start: len(client.ups) == 2 + start // 40)  # type: ignore[misc]
    rig.until(lambda: len(rig.heard(client)) >= 200 and len(client.numbers) >= 200)
    rig.run(0.2)
    assert rig.heard(client) == client.numbers == list(range(200))
    assert client.ups == rig.service.core.joins(client.identity) == [False] + [True] * 5


def test_what_was_said_while_down_is_sent_when_up(rig: Rig) -> None:
    client = rig.client()
    client.say(0)
    rig.until(lambda: rig.heard(client) == [0])
    rig.cut(client)
    rig.until(lambda: client.uplink.state is LinkState.DOWN)
    client.say(1, 2)
    rig.service.say(client.identity, 3, 4)
    rig.until(lambda: rig.heard(client) == [0, 1, 2] and client.numbers == [3, 4])
    assert client.ups == [False, True]


def test_a_gap_asks_for_a_new_epoch(rig: Rig) -> None:
    client = rig.client()
    client.connection.send([HEADER.pack(7, 0), *encode(Cancel((7,)))])
    client.say(1)
    rig.until(lambda: client.ups == [False, True] and rig.heard(client) == [1])
    assert rig.service.service.malformed >= 1


def test_a_message_without_its_number_is_refused(rig: Rig) -> None:
    client = rig.client()
    client.connection.send([HEADER.pack(0, 0), *encode(Cancel((7,)))])
    client.say(1)
    rig.until(lambda: rig.heard(client) == [1])
    assert rig.service.service.malformed == 1


@pytest.mark.parametrize("side", ["client", "service"])
def test_an_acknowledgement_of_what_was_never_sent_begins_a_new_stream(rig: Rig, side: str) -> None:
    client = rig.client()
    rig.run(0.2)
    frames = [HEADER.pack(0, 10**6), *encode(Heartbeat(0))]
    if side == "client":
        client.connection.send(frames)
    else:
        (route,) = rig.service.hub._routes
        rig.service.listener.send(route, frames)
    rig.until(lambda: client.ups == [False, False])
    client.say(1)
    rig.service.say(client.identity, 1)
    rig.until(lambda: client.numbers == [1] and rig.heard(client) == [1])
    assert rig.service.core.joins(client.identity) == [False, False]


@pytest.mark.parametrize("known", [0, 99])
def test_a_peer_that_knows_another_service_starts_afresh(rig: Rig, known: int) -> None:
    raw = rig.raw()
    raw.tell(Hello(Role.CLIENT, B, 1, epoch=1, peer_incarnation=0))
    raw.answer()
    raw.tell(Cancel((1,)), sequence=1)
    rig.until(lambda: rig.service.core.numbers(B) == [1])
    again = rig.raw()
    again.tell(Hello(Role.CLIENT, B, 1, epoch=2, peer_incarnation=known, received=0))
    welcome = again.answer()
    assert isinstance(welcome, Welcome) and not welcome.resumed and welcome.received == 0


def test_acknowledgements_go_alone_when_nothing_is_said(rig: Rig) -> None:
    client = rig.client()
    began = rig.now
    client.say(1, 2, 3)
    rig.service.say(client.identity, 1, 2, 3)
    rig.until(lambda: rig.heard(client) == [1, 2, 3])
    rig.until(lambda: client.uplink.kept_bytes == 0)
    assert rig.now - began < ACK_SECONDS + 2  # the clock of the wall may be late
    assert client.uplink._stream.sent == 3


# --- incarnations ---------------------------------------------------------------------------------------------------


def test_a_new_incarnation_of_the_service_starts_afresh(rig: Rig) -> None:
    client = rig.client()
    client.say(*range(10))
    rig.until(lambda: len(rig.heard(client)) == 10)
    rig.restart(2)
    rig.until(lambda: client.ups == [False, False])
    assert client.uplink.peer_incarnation == 2
    (_, joined) = rig.service.core.events[0]
    assert isinstance(joined, PeerJoined) and joined.hello.peer_incarnation == 1
    client.say(10, 11)
    rig.service.say(client.identity, 1, 2)
    rig.until(lambda: rig.heard(client) == [10, 11] and client.numbers == [1, 2])


def test_a_new_incarnation_of_the_client_starts_afresh(rig: Rig) -> None:
    client = rig.client()
    client.say(1, 2)
    rig.until(lambda: rig.heard(client) == [1, 2])
    rig.kill(client)
    reborn = rig.client(incarnation=6)
    reborn.say(3)
    rig.service.say(reborn.identity, 4)
    rig.until(lambda: rig.heard(reborn) == [1, 2, 3] and reborn.numbers == [4])
    assert rig.service.core.joins(client.identity) == [False, False]


def test_a_peer_that_was_given_up_starts_afresh(rig: Rig) -> None:
    client = rig.client()
    client.say(1)
    rig.until(lambda: rig.heard(client) == [1])
    client.pause()
    rig.until(lambda: bool(lost(rig, client)))
    client.resume()
    rig.until(lambda: client.ups == [False, False])
    client.say(2)
    rig.until(lambda: rig.heard(client) == [1, 2])


# --- who is gone ----------------------------------------------------------------------------------------------------


def test_a_silent_peer_is_lost_after_its_patience(rig: Rig) -> None:
    client = rig.client()
    rig.service.timeouts = PeerTimeouts(GRACE, math.inf)  # counts from its next Hello only
    rig.swallow(client)
    began = rig.now
    rig.until(lambda: bool(lost(rig, client)))
    assert lost(rig, client) == ["silent for 1 s"]
    assert rig.now - began > SILENCE - 0.25


def test_a_killed_peer_is_lost_after_its_grace(rig: Rig) -> None:
    client = rig.client()
    began = rig.now
    rig.kill(client)
    rig.until(lambda: bool(lost(rig, client)))
    assert lost(rig, client) == ["its connection is gone"]
    assert GRACE <= rig.now - began < SILENCE + 5


def test_a_silent_service_is_left_for_a_new_connection(rig: Rig) -> None:
    client = rig.client(timeout=0.5)
    rig.swallow(client)
    rig.until(lambda: len(client.ups) == 2)
    assert LinkDown("the peer is silent") in client.events


def test_a_slow_peer_is_cut_off(rig: Rig) -> None:
    client, other = rig.client(A), rig.client(B)
    rig.service.hub.kept_limits = KeptLimits(25_000, 50_000)
    client.pause()
    rig.service.say(A, *range(2000))
    rig.service.say(B, 1)
    rig.until(lambda: bool(lost(rig, client)))
    assert lost(rig, client)[0].startswith("too slow: ")
    rig.until(lambda: other.numbers == [1])
    assert lost(rig, other) == []


def test_big_messages_are_waited_for(rig: Rig) -> None:
    """Who is to get them has asked for none of them, and cannot have acknowledged any yet."""
    client = rig.client()
    rig.service.hub.kept_limits = KeptLimits(50_000, KEPT_MOST)
    client.pause()
    for _ in range(2):
        rig.service.core.outbox.append((client.identity, Cancel(range(60_000))))
    rig.service.say(client.identity, 1)
    rig.run(SILENCE / 4)
    client.resume()
    rig.until(lambda: len(client.numbers) == 120_001)
    rig.until(lambda: rig.service.hub._peers[client.identity].stream.kept_bytes == 0)
    assert lost(rig, client) == []


def welcomed_hub(kept: KeptLimits | None = None) -> Hub:
    """One that has welcomed A at time 0."""
    hub = Hub(5, admit=lambda hello: Welcome(5), timeouts=lambda hello: PeerTimeouts(60, 60), kept=kept)
    hub.receive(b"route", [HEADER.pack(0, 0), *map(bytes, encode(Hello(Role.CLIENT, A, 1, epoch=1)))], 0.0)
    return hub


def test_a_peer_that_is_behind_must_acknowledge_something() -> None:
    hub = welcomed_hub(KeptLimits(5000, KEPT_MOST))
    for _ in range(4):
        hub.send(A, Cancel(range(500)))
    for now in range(1, 11):
        assert hub.tick(now) == []
    hub.receive(b"route", [HEADER.pack(0, 1), *map(bytes, encode(Heartbeat(1, echo=True)))], 10.5)
    for now in range(11, 21):
        assert hub.tick(now) == []
    ((peer, event),) = hub.tick(21)
    assert peer == A and isinstance(event, PeerLost) and event.reason.startswith("too slow: ")


def test_a_peer_far_behind_is_given_up_with_the_next_tick() -> None:
    hub = welcomed_hub(KeptLimits(750_000, 1_000_000))
    for _ in range(4):
        hub.send(A, Cancel(range(50_000)))
        assert hub.is_tick_due is (hub.links(0.0)[0].kept > 1_000_000)
    ((peer, event),) = hub.tick(0.1)
    assert peer == A and isinstance(event, PeerLost) and event.reason.startswith("too slow: ")
    assert hub.cuts() == [b"route"] and not hub.is_tick_due


def test_a_peer_that_catches_up_is_not_behind() -> None:
    hub = welcomed_hub(KeptLimits(5000, KEPT_MOST))
    for _ in range(2):
        hub.send(A, Cancel(range(500)))
    assert hub.tick(1.0) == []
    hub.receive(b"route", [HEADER.pack(0, 1), *map(bytes, encode(Heartbeat(1, echo=True)))], 2.0)
    for now in range(2, 30):
        assert hub.tick(now) == []


def test_a_peer_that_reads_nothing_is_given_up() -> None:
    """What answers its heartbeats is not kept, but stands somewhere until it reads."""
    hub, answers = welcomed_hub(), 0
    beat = [HEADER.pack(0, 0), *map(bytes, encode(Heartbeat(1)))]
    while not (lost := hub.tick(1.0)):
        hub.receive(b"route", beat, 1.0)
        answers += len(hub.outgoing())
        assert answers < 20_000
    assert lost == [(A, PeerLost("it does not read its messages"))]
    assert hub.cuts() == [b"route"]


def test_a_peer_that_returns_heartbeats_reads() -> None:
    hub, unasked = welcomed_hub(), [HEADER.pack(0, 0), *map(bytes, encode(Heartbeat(1)))]
    for now in range(1, 60):
        assert hub.tick(now) == []
        beats = [decode([bytes(frames[1])]) for _, frames in hub.outgoing()]
        for _ in range(1000):
            hub.receive(b"route", [*unasked], now)
        echo = Heartbeat(next(beat.sent for beat in beats if isinstance(beat, Heartbeat) and not beat.echo), True)
        hub.receive(b"route", [HEADER.pack(0, 0), *map(bytes, encode(echo))], now)
    assert hub.cuts() == []


def test_clients_of_a_key_may_leave_little_while_they_have_no_connection() -> None:
    left = {bytes([number]) * 16: 100 * 2**20 for number in range(8)}
    counted: list[bytes] = []

    def left_by(identity: bytes, exact: bool) -> int:
        counted.extend([identity] * exact)
        return left[identity] - exact * 2**20

    hub = Hub(
        5,
        admit=lambda hello: Welcome(5),
        timeouts=lambda hello: PeerTimeouts(60, 60),
        principal=lambda route: Principal(b"k" * 32 if route[0] < 6 else b"o" * 32, KeyRole.CLIENT, "name"),
        left=left_by,
    )
    for identity in left:
        hello = Hello(Role.CLIENT, identity, 1, epoch=1, session=identity[0] + 1)
        hub.receive(identity, [HEADER.pack(0, 0), *map(bytes, encode(hello))], 0.0)
    for number in (3, 1, 7, 6):
        hub.unreachable(bytes([number]) * 16, 1.0 + number / 100)
    assert hub.tick(2.0) == [] and not counted
    for number in (2, 4):
        hub.unreachable(bytes([number]) * 16, 2.0 + number / 100)
    gone = PeerLost("the clients of its key that are gone have left too much")
    assert hub.tick(3.0) == [(bytes([number]) * 16, gone) for number in (1, 3)]
    assert hub.tick(3.0) == [] and len(counted) == 4, "counted only if it may be too much"


@pytest.mark.parametrize("epochs", [1, 2])
def test_the_loss_of_a_peer_names_the_messages_that_no_connection_took(epochs: int) -> None:
    hub = Hub(1, admit=lambda hello: Welcome(1), timeouts=lambda hello: PeerTimeouts(1, 60))
    sent = 0

    def send(count: int) -> list[tuple[bytes, Frames]]:
        nonlocal sent
        for _ in range(count):
            sent += 1
            hub.send(A, Cancel((sent,)))
        return hub.outgoing()

    for epoch in range(1, epochs + 1):
        hello = Hello(Role.CLIENT, A, 1, epoch=epoch, session=1, peer_incarnation=epoch - 1 and 1)
        hub.receive(bytes([epoch]), [HEADER.pack(0, 0), *map(bytes, encode(hello))], 0.0)
        hub.receive(bytes([epoch]), [HEADER.pack(0, 0), *map(bytes, encode(Acknowledge()))], 0.0)
        send(3)
        lost = sent + 1
        for route, frames in send(2):
            hub.unreachable(route, 0.0, frames)
        assert send(1) == []
    [(peer, event)] = hub.tick(2.0)
    assert peer == A and isinstance(event, PeerLost)
    assert [message_of(frames) for frames in event.unwritten] == [Cancel((task,)) for task in range(lost, sent + 1)]


def test_the_loss_of_a_silent_peer_names_no_message() -> None:
    hub = Hub(1, admit=lambda hello: Welcome(1), timeouts=lambda hello: PeerTimeouts(1, 1))
    hub.receive(b"a", [HEADER.pack(0, 0), *map(bytes, encode(Hello(Role.CLIENT, A, 1, epoch=1, session=1)))], 0.0)
    hub.send(A, Cancel((1,)))
    hub.tick(0.0)
    lost = [event for now in (0.5, 1.0, 1.5, 2.0) for _, event in hub.tick(now)]
    assert [event for event in lost if isinstance(event, PeerLost) and event.unwritten] == [] and len(lost) == 1


def test_a_heartbeat_that_is_returned_again_and_again_counts_once() -> None:
    hub, answers = welcomed_hub(), 0
    assert hub.tick(5.0) == []
    beat, echo = ([HEADER.pack(0, 0), *map(bytes, encode(Heartbeat(5 * 10**9, echo)))] for echo in (False, True))
    while not (lost := hub.tick(5.0)):
        hub.receive(b"route", beat, 5.0)
        hub.receive(b"route", echo, 5.0)
        answers += len(hub.outgoing())
        assert answers < 20_000
    assert lost == [(A, PeerLost("it does not read its messages"))]


def test_heartbeats_that_were_read_long_ago_say_nothing_of_later_messages() -> None:
    hub, answers = welcomed_hub(), 0
    for now in range(1, 17):
        assert hub.tick(float(now)) == []
    hub.outgoing()
    beat = [HEADER.pack(0, 0), *map(bytes, encode(Heartbeat(1)))]
    echoes = [[HEADER.pack(0, 0), *map(bytes, encode(Heartbeat(now * 10**9, True)))] for now in range(1, 17)]
    while not (lost := hub.tick(16.0)):
        hub.receive(b"route", beat, 16.0)
        answers += len(hub.outgoing())
        if answers % 5000 == 0 and echoes:
            hub.receive(b"route", echoes.pop(0), 16.0)
        assert answers < 20_000
    assert lost == [(A, PeerLost("it does not read its messages"))]


def test_faults_are_forgiven_once_per_heartbeat() -> None:
    hub = welcomed_hub()
    assert hub.tick(5.0) == []
    echo = [HEADER.pack(0, 0), *map(bytes, encode(Heartbeat(5 * 10**9, True)))]
    for _ in range(FAULTS_LIMIT):
        hub.refused(b"route", 10)
    hub.receive(b"route", echo, 5.0)
    for _ in range(FAULTS_LIMIT + 1):
        hub.refused(b"route", 10)
        hub.receive(b"route", echo, 5.0)
    assert hub.is_tick_due and hub.cuts() == [b"route"]


def test_an_answer_to_no_heartbeat_tells_no_round_trip() -> None:
    hub = welcomed_hub()
    assert hub.tick(5.0) == []
    for sent, round_trip in ((0, 0.0), (2**64 - 1, 0.0), (5 * 10**9, 0.25), (1, 0.25)):
        hub.receive(b"route", [HEADER.pack(0, 0), *map(bytes, encode(Heartbeat(sent, echo=True)))], 5.25)
        assert hub.round_trip(A) == round_trip


@pytest.mark.parametrize("said", [Heartbeat(1), Hello(Role.CLIENT, B, 1, protocol=0)], ids=["unasked", "refused"])
def test_a_stranger_that_reads_nothing_is_cut_off(said: Message) -> None:
    hub = Hub(5, admit=lambda hello: Refused(["no"]), timeouts=lambda hello: PeerTimeouts(60, 60))
    answers = 0
    while not (cuts := hub.cuts()):
        hub.receive(b"route", [HEADER.pack(0, 0), *map(bytes, encode(said))], 1.0)
        answers += len(hub.outgoing())
        assert answers < 20_000
    assert cuts == [b"route"] and answers >= STRAYS_LIMIT


@pytest.mark.parametrize("end", [Goodbye(), Shutdown()], ids=["goodbye", "gap"])
def test_who_leaves_much_unread_begins_with_another_connection(end: Message) -> None:
    """Or what it leaves would pile up with each of its identities."""
    hub = welcomed_hub()
    for _ in range(4):
        hub.send(A, Cancel(range(50_000)))
    sequence = 1 if isinstance(end, Goodbye) else 9
    with contextlib.suppress(StreamGapError):
        hub.receive(b"route", [HEADER.pack(sequence, 0), *map(bytes, encode(end))], 1.0)
    assert hub.cuts() == [b"route"]


def test_sending_to_nobody_is_no_error(rig: Rig) -> None:
    rig.service.say(b"nobody", 1)
    rig.client()


# --- strangers and garbage ------------------------------------------------------------------------------------------


def test_a_stale_hello_changes_nothing(rig: Rig) -> None:
    client = rig.client()
    rig.cut(client)
    rig.until(lambda: client.ups[1:] in ([True], [False]))
    epoch = client.uplink.epoch
    for peer_incarnation in (0, 1, 77):
        for stale in (1, epoch):
            rig.raw().tell(rig.hello(client, stale, peer_incarnation))
    client.say(1)
    rig.until(lambda: rig.heard(client) == [1])
    rig.run(0.3)
    assert client.uplink.epoch == epoch
    assert len(rig.service.core.joins(client.identity)) == 2 and lost(rig, client) == []


GARBAGE: list[Any] = [
    [b""],
    [b"", b""],
    [b"x"],
    [b"GET / \r\n\r\n"],
    [bytes(16)],
    [bytes(16), b""],
    [bytes(16), bytes(16)],
    [bytes(16), b"\xff" * 64],
    [bytes(16), bytes(encode(Shutdown())[0])[:-8]],
    [bytes(15), *encode(Shutdown())],
    [bytes(16), *encode(Shutdown()), b"payload of nobody"],
    [bytes(16), *encode(Shutdown()), b"", b"x"],
]


def test_garbage_hurts_nobody(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    client = rig.client(A)
    stranger, friend = rig.raw(), rig.raw()
    friend.tell(Hello(Role.CLIENT, B, 1, epoch=1))
    assert isinstance(friend.answer(), Welcome)
    stranger.throw(*GARBAGE)
    friend.throw(*GARBAGE)
    friend.tell(Cancel((5,)), sequence=1)
    client.say(1)
    rig.until(lambda: rig.heard(client) == [1] and rig.service.core.numbers(B) == [5])
    rig.until(lambda: rig.service.service.malformed == 2 * len(GARBAGE))
    assert 9 <= len(caplog.messages) <= 12 and "malformed message number 1 " in caplog.messages[0]
    assert lost(rig, client) == []


def test_a_numbered_message_that_is_malformed_ends_its_link(rig: Rig) -> None:
    client, stranger = rig.client(A), rig.raw()
    stranger.tell(Hello(Role.CLIENT, B, 1, epoch=1))
    assert isinstance(stranger.answer(), Welcome)
    stranger.throw([HEADER.pack(1, 0), b"\xff" * 64])
    answer = stranger.answer()
    assert isinstance(answer, Refused)
    assert answer.reasons[0].startswith("malformed message: not a message")
    rig.until(lambda: rig.service.core.losses(B) == list(answer.reasons))
    client.say(1)
    rig.until(lambda: rig.heard(client) == [1])
    assert lost(rig, client) == []


def test_a_client_whose_message_is_malformed_is_told_why(rig: Rig) -> None:
    client = rig.client()
    client.uplink._stream.write(Cancel((1,)))  # counted as sent; something else goes in its place
    client.connection.send([HEADER.pack(1, 0), b"\xff" * 64])
    rig.until(lambda: client.uplink.state is LinkState.REFUSED)
    (refused,) = [event for event in client.events if isinstance(event, LinkRefused)]
    assert "malformed message" in refused.reasons[0]


def test_a_bug_of_the_core_hurts_one_message(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    client = rig.client()
    rig.service.core.fails_at = {1}
    client.say(0, 1, 2)
    rig.until(lambda: rig.heard(client) == [0, 2])
    assert "could not be handled" in caplog.text and "ZeroDivisionError" in caplog.text


def test_a_bug_of_the_core_is_not_told_of_for_ever(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    client = rig.client()
    rig.service.core.fails_at = set(range(99))
    client.say(*range(100))
    rig.until(lambda: rig.heard(client) == [99])
    assert rig.service.service.malformed == 99 and len(caplog.messages) == 10


@pytest.mark.parametrize("frames", [[b"x"], [bytes(16), b"\xff" * 64], [b"short", *encode(Shutdown())]])
def test_garbage_from_the_service_costs_one_epoch(rig: Rig, frames: list[bytes]) -> None:
    client = rig.client()
    client.say(1)
    rig.until(lambda: rig.heard(client) == [1])
    (route,) = rig.service.hub._routes
    assert rig.service.listener.send(route, frames)
    rig.service.say(client.identity, 1)
    client.say(2)
    rig.until(lambda: client.ups == [False, True] and client.numbers == [1] and rig.heard(client) == [1, 2])
    assert client.dialer.malformed == 1


def test_a_malformed_message_does_not_count_as_received(rig: Rig) -> None:
    client = rig.client()
    rig.run(0.2)
    (route,) = rig.service.hub._routes
    assert rig.service.listener.send(route, [HEADER.pack(1, 0), b"\xff" * 64])
    rig.until(lambda: client.dialer.malformed == 1)
    rig.service.say(client.identity, 1)
    rig.until(lambda: client.ups == [False, True] and client.numbers == [1])


@pytest.mark.parametrize("message", [Welcome(9), Refused(["no"]), NeedHello()])
def test_only_services_say_these(rig: Rig, message: Message) -> None:
    client = rig.client()
    client.connection.send([bytes(16), *encode(message)])
    client.say(1)
    rig.until(lambda: rig.heard(client) == [1])
    assert rig.service.service.malformed == 1


# --- what only the network in memory can show -----------------------------------------------------------------------


def test_a_welcome_that_was_lost_does_not_resume_a_stream(memory_rig: MemoryRig) -> None:
    """The service began a new stream that the client never heard of: neither may count on in it."""
    rig = memory_rig
    client = rig.client()
    client.say(*range(5))
    rig.service.say(client.identity, *range(5))
    rig.until(lambda: len(rig.heard(client)) == 5 and len(client.numbers) == 5)
    rig.swallow(client)
    rig.until(lambda: bool(lost(rig, client)))  # given up, while the client believes in its connection
    rig.until(lambda: client.uplink.state is LinkState.GREETING)
    rig.run(rig.network.latency * 1.5)  # its Hello has arrived, and the Welcome is under way
    assert rig.service.core.joins(client.identity) == [False, False]
    client.connection.cut(down_lost=9)  # type: ignore[attr-defined]
    rig.service.say(client.identity, 5, 6)
    rig.until(lambda: len(client.ups) == 2)
    assert client.ups == [False, False]
    client.say(7)
    rig.service.say(client.identity, 7)
    rig.until(lambda: 7 in client.numbers and 7 in rig.heard(client))
    assert client.numbers[5:] == [7] and rig.heard(client)[5:] == [7]


def test_a_hello_that_was_lost_is_repeated_in_time(memory_rig: MemoryRig) -> None:
    """The wait for Welcome is no pause of the client, however much longer it is than the heartbeat interval."""
    rig = memory_rig
    client = rig.client()
    client.connection.cut()  # type: ignore[attr-defined]
    rig.until(lambda: client.uplink.state is LinkState.GREETING)
    client.connection.cut(up_lost=9, dialer_notices=False)  # type: ignore[attr-defined]
    began = rig.now
    rig.until(lambda: len(client.ups) == 2)
    assert rig.now - began < GREETING_SECONDS + 0.2


def test_a_service_that_did_not_look_blames_nobody(memory_rig: MemoryRig) -> None:
    rig = memory_rig
    clients = [rig.client(i.to_bytes(2, "big") * 8) for i in range(300)]
    assert rig.service.shell is not None
    rig.service.shell.stop(SILENCE * 3)
    rig.run(SILENCE * 4)
    for client in clients:
        assert lost(rig, client) == []


def test_no_service_for_too_long(memory_rig: MemoryRig) -> None:
    rig = memory_rig
    client = rig.client(timeout=0.4)
    rig.kill_service()
    rig.run(10)
    assert sum(isinstance(event, LinkLost) for event in client.events) == 1
    rig.service = rig.serve(2)
    rig.until(lambda: client.ups == [False, False])
    rig.kill_service()
    rig.run(10)
    assert sum(isinstance(event, LinkLost) for event in client.events) == 2


# --- figures --------------------------------------------------------------------------------------------------------


def test_a_clients_key_has_so_many_connections_and_gets_them_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "CLIENT_LINKS", 2)
    ada, worker = Principal(b"a" * 32, KeyRole.CLIENT, "ada"), Principal(b"w" * 32, KeyRole.WORKER, "worker")
    hub = Hub(
        5,
        admit=lambda hello: Welcome(5),
        timeouts=lambda hello: PeerTimeouts(60, 60),
        principal=lambda route: worker if route.startswith(b"worker") else ada,
    )

    def answer(name: bytes, epoch: int = 1) -> Message:
        hello = Hello(Role.CLIENT, name.ljust(16, b"."), 1, epoch=epoch)
        hub.receive(name + bytes([epoch]), [HEADER.pack(0, 0), *map(bytes, encode(hello))], 0.0)
        return decode(list(map(bytes, hub.outgoing()[-1][1][1:])))

    assert [type(answer(route)) for route in (b"1", b"2", b"worker1", b"worker2", b"worker3")] == [Welcome] * 5
    assert answer(b"3") == Refused(("the key ada has 2 connections, as many as a client's key may have",))
    assert type(answer(b"2", epoch=2)) is Welcome, "it has connected again"
    hub.receive(b"1\x01", [HEADER.pack(1, 0), *map(bytes, encode(Goodbye("")))], 0.0)
    assert type(answer(b"3")) is Welcome


def test_a_workers_key_leaves_connections_to_others() -> None:
    holders = {b"w": KeyRole.WORKER, b"v": KeyRole.WORKER, b"c": KeyRole.CLIENT}
    hub = Hub(
        5,
        admit=lambda hello: Welcome(5),
        timeouts=lambda hello: PeerTimeouts(60, 60),
        principal=lambda route: Principal(route[:1] * 32, holders[route[:1]], "ada"),
        worker_links=lambda: 2,
    )

    def answer(name: bytes, role: int) -> Message:
        hello = Hello(role, name.ljust(16, b"."), 1)
        hub.receive(name, [HEADER.pack(0, 0), *map(bytes, encode(hello))], 0.0)
        return decode(list(map(bytes, hub.outgoing()[-1][1][1:])))

    assert [type(answer(name, Role.AGENT)) for name in (b"w1", b"w2", b"v1")] == [Welcome] * 3
    refused = answer(b"w3", Role.MANAGER)
    assert isinstance(refused, Refused) and "has 2 connections, as many as a worker's" in refused.reasons[0]
    assert type(answer(b"c1", Role.CLIENT)) is Welcome


def test_a_peer_whose_messages_are_not_allowed_is_given_up() -> None:
    hub = welcomed_hub()
    for _ in range(FAULTS_LIMIT):
        hub.refused(b"route", 10)
    assert hub.tick(0.1) == []
    hub.refused(b"route", 10)
    assert hub.is_tick_due and hub.cuts() == [b"route"]
    assert hub.tick(0.2) == [(A, PeerLost("101 of its messages, of 1,010 bytes, were not allowed"))]
    hub.refused(b"route", 10)


def test_long_messages_that_are_not_allowed_count_more() -> None:
    hub = welcomed_hub()
    for _ in range(2):
        hub.refused(b"route", FAULTS_BYTES // 2)
    assert hub.tick(0.1) == []
    hub.refused(b"route", 1)
    assert hub.tick(0.2) == [(A, PeerLost("3 of its messages, of 8,388,609 bytes, were not allowed"))]


def test_the_figures_of_links() -> None:
    timeouts = PeerTimeouts(GRACE, SILENCE)
    hub = Hub(1, admit=lambda hello: Welcome(1), timeouts=lambda hello: timeouts, heartbeat_seconds=0.1)
    assert hub.links(0.0) == []
    for route, name in ((b"a", "first"), (b"b", "")):
        hello = Hello(Role.CLIENT, route * 16, 1, epoch=1, session=1, name=name, host="h")
        hub.receive(route, [HEADER.pack(0, 0), *map(bytes, encode(hello))], 0.0)
    hub.send(A, Cancel((1,)))
    hub.unreachable(b"b", 0.2)
    first, second = hub.links(0.3)
    assert (first.name, first.host, first.role, first.silent, first.broken) == ("first", "h", "a client", 0.3, False)
    assert first.kept > 0 and second.kept == 0
    assert (second.name, second.broken) == (B.hex(), True)
    hub.tick(0.3)
    heartbeat = Heartbeat(sent=int(0.3e9), echo=True)
    hub.receive(b"a", [HEADER.pack(0, 1), *map(bytes, encode(heartbeat))], 0.4)
    acknowledged = hub.links(0.4)[0]
    assert acknowledged.kept == 0 and acknowledged.silent == 0.0 and acknowledged.round_trip == pytest.approx(0.1)


# --- many peers -----------------------------------------------------------------------------------------------------


def hub_of(peers: int, silence: float = 60.0, heartbeat: float = 1.0) -> Hub:
    """A hub with so many peers, which have joined at time 0."""
    timeouts = PeerTimeouts(60, silence)
    hub = Hub(5, admit=lambda hello: Welcome(5), timeouts=lambda hello: timeouts, heartbeat_seconds=heartbeat)
    for number in range(peers):
        tell(hub, number, Hello(Role.CLIENT, number.to_bytes(16, "big"), 1, epoch=1), 0.0)
    hub.tick(0.0)
    hub.outgoing()
    return hub


def tell(hub: Hub, number: int, message: Message, now: float, sequence: int = 0) -> None:
    hub.receive(number.to_bytes(4, "big"), [HEADER.pack(sequence, 0), *map(bytes, encode(message))], now)


def said(hub: Hub) -> list[tuple[int, Message]]:
    """What the hub has to say, and to whom."""
    return [(int.from_bytes(route, "big"), message_of(frames)) for route, frames in hub.outgoing()]


@pytest.mark.parametrize(
    ("peers", "silence", "interval"),
    [
        (1, 60.0, 1.0),
        (10, 60.0, 1.0),
        (15, 60.0, 1.5),
        (150, 60.0, 15.0),
        (150, 80.0, 15.0),
        (15, 5.0, 1.25),
        (15, 2.0, 1.0),
    ],
)
def test_the_more_peers_the_fewer_heartbeats_to_each(
    peers: int, silence: float, interval: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "HEARTBEATS_PER_SECOND", 10)
    hub = hub_of(peers, silence)
    assert hub.heartbeat_seconds == interval
    now = 0.0
    while (due := hub.due() or 0.0) < interval:
        hub.tick(now := due)
        assert said(hub) == []
    assert due == interval <= now + 1.0  # a hub that does not tick for longer takes that for a pause
    hub.tick(interval)
    assert said(hub) == [(number, Heartbeat(int(interval * 1e9), seconds=interval)) for number in range(peers)]


def test_a_silent_peer_among_many_is_lost_when_its_next_heartbeat_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "HEARTBEATS_PER_SECOND", 1)
    hub = hub_of(3, silence=8.0)
    assert hub.heartbeat_seconds == 2.0
    now, lost = 0.0, list[tuple[bytes, HubEvent]]()
    while not lost:
        now = max(now, hub.due() or 0.0)
        lost = hub.tick(now)
        for number, message in said(hub):
            if number and isinstance(message, Heartbeat):
                tell(hub, number, Heartbeat(message.sent, echo=True), now)
    assert [(int.from_bytes(peer, "big"), event) for peer, event in lost] == [(0, PeerLost("silent for 8 s"))]
    assert 8.0 <= now <= 8.0 + hub.heartbeat_seconds


def test_a_peer_that_returns_heartbeats_sends_none_until_it_has_missed_one() -> None:
    uplink = Uplink(Hello(Role.CLIENT, A, 1), 0.0, timeout_seconds=5.0)

    def hear(message: Message, now: float) -> None:
        uplink.receive([HEADER.pack(0, 0), *map(bytes, encode(message))], now)

    uplink.opened(0.0)
    hear(Welcome(5), 0.0)
    uplink.outgoing()
    for now in (1.0, 2.0, 4.0, 6.0):
        hear(Heartbeat(7, seconds=2.0), now)
        assert [message_of(frames) for frames in uplink.outgoing()] == [Heartbeat(7, echo=True)]
        uplink.tick(now + 1.9)
        assert uplink.outgoing() == [] and uplink.heartbeat_seconds == 2.0
    assert uplink.due() == 9.0
    uplink.tick(9.0)
    assert [message_of(frames) for frames in uplink.outgoing()] == [Heartbeat(9 * 10**9)]
    hear(Heartbeat(9 * 10**9, echo=True, seconds=1.0), 9.1)
    assert uplink.heartbeat_seconds == 1.0 and uplink.outgoing() == []
    while not (events := uplink.tick(now := uplink.due())):
        pass
    assert events == [LinkDown("the peer is silent")] and 14.1 <= now <= 15.1


@pytest.mark.parametrize(("size", "wait"), [(1, ACK_SECONDS), (HEAVY_BYTES, HEAVY_ACK_SECONDS)])
def test_a_peer_acknowledges_later_what_is_small(size: int, wait: float) -> None:
    uplink = Uplink(Hello(Role.CLIENT, A, 1), 0.0, timeout_seconds=5.0)
    uplink.opened(0.0)
    functions = Functions((bytes(16),), ("f",), Payloads([bytes(size)]))
    for sequence, message in ((0, Welcome(5)), (0, Heartbeat(7, seconds=2.0)), (1, functions)):
        uplink.receive([HEADER.pack(sequence, 0), *map(bytes, encode(message))], 0.0)
    uplink.outgoing()  # the heartbeat was returned before the message came
    assert uplink.due() == pytest.approx(wait)
    uplink.tick(0.9 * wait)
    assert uplink.outgoing() == []
    uplink.tick(wait)
    (frames,) = uplink.outgoing()
    assert message_of(frames) == Acknowledge() and HEADER.unpack(frames[0]) == (0, 1)


def test_who_no_longer_waits_for_the_acknowledgement_of_heavy_messages_delays_no_other() -> None:
    hub = hub_of(2, heartbeat=10.0)
    tell(hub, 0, Functions((bytes(16),), ("f",), Payloads([bytes(HEAVY_BYTES)])), 0.0, 1)
    hub.send((0).to_bytes(16, "big"), Cancel((1,)))  # acknowledges, too
    hub.outgoing()
    tell(hub, 0, Cancel((1,)), 0.01, 2)
    tell(hub, 1, Functions((bytes(16),), ("f",), Payloads([bytes(HEAVY_BYTES)])), 0.02, 1)
    for due, number in ((0.02 + HEAVY_ACK_SECONDS, 1), (0.01 + ACK_SECONDS, 0)):
        assert hub.due() == due
        hub.tick(due)
        assert said(hub) == [(number, Acknowledge())]


def test_a_service_acknowledges_later_what_is_small() -> None:
    hub = hub_of(2, heartbeat=10.0)
    for number, size, now, sequence in ((0, 1, 0.0, 1), (1, HEAVY_BYTES, 0.01, 1), (0, 1, 0.02, 2)):
        tell(hub, number, Functions((bytes(16),), ("f",), Payloads([bytes(size)])), now, sequence)
    for due, number in ((0.01 + HEAVY_ACK_SECONDS, 1), (ACK_SECONDS, 0)):
        assert hub.due() == due
        hub.tick(due)
        assert said(hub) == [(number, Acknowledge())]


class Service:
    """What a service says to an Uplink, a connection each second."""

    def __init__(self, timeout: float) -> None:
        self.now = 0.0
        self.uplink = Uplink(Hello(Role.CLIENT, A, 1), 0.0, timeout_seconds=timeout)
        self.events: list[UplinkEvent] = []

    def connect(self, *said: Message | bytes) -> None:
        """Make a connection, say Welcome and this, break it unless it is broken, and let a second pass."""
        self.uplink.opened(self.now)
        for message in (Welcome(5), *said):
            columns = [message] if isinstance(message, bytes) else [*map(bytes, encode(message))]
            try:
                self.events += self.uplink.receive([HEADER.pack(0, 0), *columns], self.now)
            except ProtocolError as error:
                self.events += self.uplink.broken(str(error), self.now)
        self.events += self.uplink.broken("cut", self.now)
        self.wait(1.0)

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 0.25)
            self.events += self.uplink.tick(self.now)

    @property
    def losses(self) -> int:
        """How often the service was lost."""
        return sum(isinstance(event, LinkLost) for event in self.events)


@pytest.mark.parametrize("said", [(), (b"garbage!",), (NeedHello(),), (Welcome(5), b"garbage!")])
def test_a_service_that_says_nothing_valid_after_welcome_is_not_there(said: tuple[Message | bytes, ...]) -> None:
    service = Service(timeout=5.0)
    for _ in range(4):
        service.connect(*said)
    assert service.losses == 0 and service.uplink.heard_at == 0.0
    for _ in range(3):
        service.connect(*said)
    assert service.losses == 1
    for _ in range(3):
        service.connect(*said)
    assert service.losses == 1, "what begins later has a timeout, too"
    for _ in range(3):
        service.connect(*said)
    assert service.losses == 2


@pytest.mark.parametrize("said", [Heartbeat(1, seconds=1.0), Acknowledge()])
def test_one_valid_message_after_welcome_makes_the_service_be_there(said: Message) -> None:
    service = Service(timeout=5.0)
    for _ in range(20):
        service.connect(said)
    assert service.losses == 0 and service.uplink.heard_at == 19.0
    service.wait(6.0)
    assert service.losses == 1


def test_a_service_that_comes_back_at_the_last_moment_has_time_for_its_first_message() -> None:
    service = Service(timeout=5.0)
    service.wait(4.75)
    service.uplink.opened(service.now)
    service.uplink.receive([HEADER.pack(0, 0), *map(bytes, encode(Welcome(5)))], service.now)
    service.wait(4.75)
    assert service.uplink.state is LinkState.UP and service.events == []
    service.wait(0.75)
    assert service.losses == 1 and service.events[0] == LinkDown("the peer is silent")


def test_attempts_grow_rare_where_connections_bring_nothing() -> None:
    service, pauses = Service(timeout=60.0), list[float]()
    for _ in range(7):
        service.connect(b"garbage!")
        pauses.append(service.uplink._attempt_at - service.now + 1.0)
    assert pauses == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0])


def test_who_waits_for_an_acknowledgement_gets_it_in_time_whoever_else_waits() -> None:
    hub = hub_of(3, heartbeat=10.0)
    for number, sequence, now in ((0, 1, 0.10), (1, 1, 0.11), (0, 2, 0.12), (2, 1, 0.13)):
        tell(hub, number, Cancel((1,)), now, sequence)
    assert hub.due() == pytest.approx(0.10 + ACK_SECONDS)
    hub.send((1).to_bytes(16, "big"), Cancel((1,)))  # acknowledges, too
    hub.outgoing()
    hub.tick(0.101 + ACK_SECONDS)
    assert said(hub) == [(0, Acknowledge())] and hub.due() == pytest.approx(0.13 + ACK_SECONDS)
    tell(hub, 0, Cancel((1,)), 0.11 + ACK_SECONDS, 3)
    hub.tick(0.131 + ACK_SECONDS)
    assert said(hub) == [(2, Acknowledge())] and hub.due() == pytest.approx(0.11 + 2 * ACK_SECONDS)
    hub.tick(0.111 + 2 * ACK_SECONDS)
    assert said(hub) == [(0, Acknowledge())]
