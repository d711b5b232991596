"""Listeners and Dialers over real sockets."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
import zmq

from scaler_io.links.events import LinkDown, LinkLost, LinkRefused, LinkUp, UplinkEvent
from scaler_io.links.hub import Hub
from scaler_io.links.link_record import PeerTimeouts
from scaler_io.links.streams import HEADER, cut, join
from scaler_io.links.uplink import LinkState, Uplink
from scaler_io.transport import zeromq
from scaler_io.transport.endpoint import ListenError
from scaler_io.transport.zeromq import Dialer, Listener
from scaler_protocol.addresses import Address
from scaler_protocol.codec import decode, encode
from scaler_protocol.errors import ProtocolError
from scaler_protocol.handshake import Goodbye, Hello, NeedHello, Role, Welcome
from scaler_protocol.messages import Cancel, Shutdown
from scaler_protocol.payloads import Payloads
from support.intruders import GREETING, zmtp_command
from support.resets import RESETS, WAITING, reset_while_messages_wait, service, wait_for_the_end_of_a_silent_peer

DEADLINE = 10.0
HELLO = Hello(Role.CLIENT, b"i" * 16, 5, session=1)
LOOPBACK = Address("127.0.0.1", 0)


@contextmanager
def listening(address: Address) -> Iterator[Listener]:
    listener = Listener(address)
    try:
        yield listener
    finally:
        listener.close()


@contextmanager
def dialing(address: Address, timeout: float = 60.0, hello: Hello = HELLO) -> Iterator[Dialer]:
    dialer = Dialer(address, Uplink(hello, time.monotonic(), timeout_seconds=timeout))
    try:
        yield dialer
    finally:
        dialer.close()


def until(done: Callable[[], bool], *turns: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not done():
        assert time.monotonic() < deadline
        for turn in turns:
            turn()
        select.select((), (), (), 0.001)


def received(listener: Listener) -> list[tuple[bytes, list[bytes]]]:
    taken: list[tuple[bytes, list[bytes]]] = []
    until(lambda: bool(taken), lambda: taken.extend(listener.receive()))
    return taken


def turn_of(dialer: Dialer, events: list[UplinkEvent]) -> Callable[[], None]:
    def turn() -> None:
        events.extend(dialer.turn(time.monotonic()))
        events.extend(dialer.flush(time.monotonic()))

    return turn


def hub() -> Hub:
    return Hub(1, admit=lambda hello: Welcome(1), timeouts=lambda hello: PeerTimeouts(1, 60))


def turn_of_hub(listener: Listener, served: Hub, events: list[object]) -> Callable[[], None]:
    def turn() -> None:
        for route, frames in listener.receive():
            with contextlib.suppress(ProtocolError):
                events.append(served.receive(route, frames, time.monotonic()))
        for route, written in served.outgoing():
            listener.send(route, written)

    return turn


# --- addresses ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "0.0.0.0"])
def test_port_zero_takes_a_free_one(host: str) -> None:
    if host == "::1" and not _has_ipv6():
        pytest.skip("this host has no IPv6")
    with listening(Address(host, 0)) as listener:
        assert listener.address.host == host and listener.address.port > 0
        target = Address("127.0.0.1", listener.address.port) if host == "0.0.0.0" else listener.address
        with dialing(target) as dialer:
            events: list[UplinkEvent] = []
            taken: list[object] = []
            until(lambda: bool(taken), turn_of(dialer, events), lambda: taken.extend(listener.receive()))


def _has_ipv6() -> bool:
    try:
        with closing(socket.socket(socket.AF_INET6)) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def test_a_port_in_use_is_named() -> None:
    with listening(LOOPBACK) as listener, pytest.raises(ListenError) as raised:
        Listener(listener.address)
    remedy = "choose another address, or end what listens there"
    assert str(raised.value) == f"cannot listen to {listener.address}: Address already in use; {remedy}"


@pytest.mark.parametrize("address", [Address("192.0.2.1", 1), Address("no-such-name.invalid", 1)])
def test_an_address_that_is_not_ours_is_named(address: Address) -> None:
    with pytest.raises(ListenError, match=f"cannot listen to {address}: "):
        Listener(address)


def test_the_port_is_free_at_once() -> None:
    with listening(LOOPBACK) as listener:
        address = listener.address
    with listening(address):
        pass


def test_an_ipc_socket_is_for_its_owner_alone_and_goes_with_the_service(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    before = os.umask(0o022)
    try:
        with listening(Address(path=str(path))):
            assert stat.S_IMODE(path.stat().st_mode) == 0o700
            assert os.umask(0o022) == 0o022, "the umask is as before"
    finally:
        os.umask(before)
    assert not path.exists()


def test_an_ipc_path_of_a_living_service_is_refused(tmp_path: Path) -> None:
    address = Address(path=str(tmp_path / "socket"))
    with listening(address) as listener:
        with pytest.raises(ListenError, match=f"cannot listen to {address}: Address already in use"):
            Listener(address)
        with dialing(address) as dialer:
            events: list[UplinkEvent] = []
            taken: list[object] = []
            until(lambda: bool(taken), turn_of(dialer, events), lambda: taken.extend(listener.receive()))


def test_an_ipc_path_of_a_service_too_busy_to_accept_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    with closing(socket.socket(socket.AF_UNIX)) as busy:
        busy.bind(path)
        busy.listen(0)
        waiting = [socket.socket(socket.AF_UNIX) for _ in range(3)]
        for knocking in waiting:
            knocking.setblocking(False)
            knocking.connect_ex(path)
        with pytest.raises(ListenError, match="Address already in use"):
            Listener(Address(path=path))
        for knocking in waiting:
            knocking.close()


def test_an_ipc_path_of_a_dead_service_is_taken_over(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    with closing(socket.socket(socket.AF_UNIX)) as dead:
        dead.bind(path)
    with listening(Address(path=path)):
        pass


def test_an_ipc_path_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("precious", encoding="utf-8")
    with pytest.raises(ListenError, match="the path exists and is not a socket"):
        Listener(Address(path=str(path)))
    assert path.read_text(encoding="utf-8") == "precious"


def test_an_ipc_path_that_is_too_long_is_named(tmp_path: Path) -> None:
    with pytest.raises(ListenError, match="File name too long"):
        Listener(Address(path=str(tmp_path / ("x" * 200))))


# --- dialing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address", [Address("127.0.0.1", 1), Address(path="/nowhere/socket"), Address(path="/" + "x" * 300)]
)
def test_nobody_there(address: Address) -> None:
    with dialing(address, timeout=0.5) as dialer:
        events: list[UplinkEvent] = []
        until(lambda: any(isinstance(event, LinkLost) for event in events), turn_of(dialer, events))
        assert any(isinstance(event, LinkDown) and "cannot connect" in event.reason for event in events)
        assert dialer.uplink.epoch > 2


def test_a_name_that_means_nothing() -> None:
    with dialing(Address("no-such-name.invalid", 1), timeout=0.1) as dialer:
        events: list[UplinkEvent] = []
        until(lambda: any(isinstance(event, LinkLost) for event in events), turn_of(dialer, events))


def test_a_name_is_tried_in_both_families() -> None:
    tried: list[bool] = []
    with dialing(Address("localhost", 1)) as dialer:
        events: list[UplinkEvent] = []

        def turn() -> None:
            turn_of(dialer, events)()
            connection = dialer._connection
            if isinstance(connection, zeromq._Connection) and len(tried) < dialer.uplink.epoch:
                tried.append(bool(connection.socket.getsockopt(zmq.IPV6)))

        until(lambda: len(tried) >= 4, turn)
    assert tried[:4] == [False, True, False, True]


@pytest.mark.parametrize("greeting", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", b"\xff" * 64])
def test_a_server_of_another_kind(greeting: bytes) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:

        def serve() -> None:
            with suppress(OSError):  # the end of the test: the server is shut down
                while True:
                    accepted, _ = server.accept()
                    with closing(accepted):
                        accepted.sendall(greeting)

        thread = threading.Thread(target=serve)
        thread.start()
        with dialing(Address("127.0.0.1", server.getsockname()[1]), timeout=0.1) as dialer:
            events: list[UplinkEvent] = []
            # The last greeting is one of ZeroMQ that asks for an unknown mechanism, so perhaps for keys: it is refused.
            until(lambda: any(isinstance(event, LinkDown | LinkRefused) for event in events), turn_of(dialer, events))
            assert dialer.uplink.state is not LinkState.UP
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_every_epoch_has_a_route_of_its_own_that_nobody_can_guess() -> None:
    with listening(LOOPBACK) as listener, dialing(listener.address) as dialer:
        events: list[UplinkEvent] = []
        routes: list[bytes] = []
        turn = turn_of(dialer, events)
        for _ in range(2):
            until(lambda: bool(received_now := listener.receive()) and not routes.append(received_now[0][0]), turn)  # type: ignore[func-returns-value]
            dialer.uplink.broken("test", time.monotonic())
        assert routes[0][:16] == routes[1][:16] and routes[0] != routes[1]
        assert routes[0][0] != 0 and len(routes[0]) == 20 and len(set(routes[0][1:16])) > 4


def test_what_is_said_last_still_goes() -> None:
    with listening(LOOPBACK) as listener:
        served, heard, events = hub(), list[object](), list[UplinkEvent]()
        with dialing(listener.address) as dialer:
            until(
                lambda: any(isinstance(event, LinkUp) for event in events),
                turn_of(dialer, events),
                turn_of_hub(listener, served, heard),
            )
            dialer.uplink.send(Goodbye("done"))
        until(lambda: "done" in str(heard[-1]), turn_of_hub(listener, served, heard))


@pytest.mark.parametrize("attempt", range(10))
def test_what_a_service_says_last_still_goes(attempt: int) -> None:
    with listening(LOOPBACK) as listener, dialing(listener.address) as dialer:
        served, heard, events = hub(), list[object](), list[UplinkEvent]()
        until(
            lambda: any(isinstance(event, LinkUp) for event in events),
            turn_of(dialer, events),
            turn_of_hub(listener, served, heard),
        )
        served.send(HELLO.identity, Goodbye("ends"))
        for route, written in served.outgoing():
            assert listener.send(route, written)
        listener.close()
        until(lambda: Goodbye("ends") in events, turn_of(dialer, events))


def test_wait_wakes_for_messages_and_for_the_wake_descriptor() -> None:
    reading, writing = os.pipe()
    try:
        with listening(LOOPBACK) as listener, dialing(listener.address) as dialer:
            os.write(writing, b"x")
            began = time.monotonic()
            assert dialer.wait(reading, 60.0)
            os.read(reading, 1)
            served, heard, events = hub(), list[object](), list[UplinkEvent]()
            turn_of(dialer, events)()
            until(lambda: bool(heard), turn_of_hub(listener, served, heard))
            while not dialer.readable():  # the end of the handshake wakes it, too
                assert not dialer.wait(reading, 60.0)
            assert time.monotonic() - began < DEADLINE
            assert len(dialer.filenos()) == 2
            dialer.wait(reading, -5.0)
    finally:
        os.close(reading)
        os.close(writing)


def test_big_payloads_pass(tmp_path: Path) -> None:
    with listening(Address(path=str(tmp_path / "s"))) as listener, dialing(listener.address) as dialer:
        served, heard, events = hub(), list[object](), list[UplinkEvent]()
        turns = (turn_of(dialer, events), turn_of_hub(listener, served, heard))
        until(lambda: any(isinstance(event, LinkUp) for event in events), *turns)
        from scaler_protocol.messages import Output

        texts = Payloads([os.urandom(3_000_000), b"", os.urandom(500_000)])
        dialer.uplink.send(Output((1, 2, 3), (1, 1, 2), texts))
        until(lambda: len(heard) > 1, *turns)
        assert isinstance(heard[-1], tuple) and heard[-1][1].texts == texts


# --- strangers ------------------------------------------------------------------------------------------------------


def test_a_stranger_can_not_take_over_a_route() -> None:
    with listening(LOOPBACK) as listener, dialing(listener.address) as dialer:
        served, heard, events = hub(), list[object](), list[UplinkEvent]()
        turns = (turn_of(dialer, events), turn_of_hub(listener, served, heard))
        until(lambda: any(isinstance(event, LinkUp) for event in events), *turns)
        (route,) = served._routes
        with zmq.Context() as context, context.socket(zmq.DEALER) as thief:
            thief.linger = 0
            thief.routing_id = route
            thief.connect(str(listener.address))
            thief.send(join([HEADER.pack(0, 0), *encode(HELLO)]))
            served.send(HELLO.identity, Shutdown())
            until(lambda: Shutdown() in events, *turns)
            for number in range(20):
                dialer.uplink.send(Cancel((number,)))
            until(lambda: (HELLO.identity, Cancel((19,))) in heard, *turns)
            assert not thief.poll(0)
        assert dialer.uplink.epoch == 1


def test_other_socket_types_do_no_harm() -> None:
    with listening(LOOPBACK) as listener:
        served, heard = hub(), list[object]()
        with zmq.Context() as context, context.socket(zmq.REQ) as request, context.socket(zmq.ROUTER) as router:
            request.linger = router.linger = 0
            request.connect(str(listener.address))
            request.send(b"hello?")
            ((route, frames),) = received(listener)
            assert frames == []
            with pytest.raises(ProtocolError, match="a message has at least 2 frames, not 0"):
                served.receive(route, frames, 0.0)
        with closing(socket.create_connection((listener.address.host, listener.address.port))) as plain:
            plain.sendall(b"GET / HTTP/1.1\r\n\r\n" + bytes(range(256)) * 16)
        with dialing(listener.address) as dialer:
            events: list[UplinkEvent] = []
            until(
                lambda: any(isinstance(event, LinkUp) for event in events),
                turn_of(dialer, events),
                turn_of_hub(listener, served, heard),
            )


def test_nobody_is_at_a_route_that_was_never_seen() -> None:
    with listening(LOOPBACK) as listener:
        assert not listener.send(b"nobody", [b"x"])
        assert listener.receive() == [] and not listener.readable()


# --- processes ------------------------------------------------------------------------------------------------------


def test_a_killed_process_is_unreachable(tmp_path: Path) -> None:
    code = (
        "import sys, time, zmq\n"
        "dealer = zmq.Context().socket(zmq.DEALER)\n"
        "dealer.connect(sys.argv[1])\n"
        "dealer.send(b'x')\n"
        "time.sleep(60)\n"
    )
    with listening(Address(path=str(tmp_path / "s"))) as listener:
        process = subprocess.Popen([sys.executable, "-c", code, str(listener.address)])
        try:
            ((route, _),) = received(listener)
            assert listener.send(route, [b"there"])
        finally:
            process.kill()
            process.wait()
        until(lambda: not listener.send(route, [b"still there?"]))


def test_the_answer_to_a_stranger_can_be_read() -> None:
    """The frames that travel, seen by a socket that knows nothing of Scaler."""
    with listening(LOOPBACK) as listener, zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.connect(str(listener.address))
        dealer.send(join([HEADER.pack(1, 0), *encode(Cancel((1,)))]))
        served, heard = hub(), list[object]()
        until(lambda: bool(dealer.poll(0)), turn_of_hub(listener, served, heard))
        header, *frames = cut(dealer.recv())
        assert header == bytes(16) and decode(frames) == NeedHello()


READING = """
import sys
from scaler_io.transport import sockets, zeromq
from scaler_protocol.addresses import Address

sockets._BEAT_MS = 50
listener = zeromq.Listener(Address("127.0.0.1", 0))
print(listener.address.port, flush=True)
left = int(sys.stdin.readline())
while left:
    left -= len(listener.receive())
print("alive", flush=True)
"""


def test_connections_that_are_reset_while_their_messages_wait_do_not_end_the_process() -> None:
    """ZeroMQ asserts that a connection has not failed, where a heartbeat is due or must be answered."""
    with service(READING) as process:
        assert process.stdin is not None and process.stdout is not None
        port = int(process.stdout.readline())
        reset_while_messages_wait(port, b"DEALER", b"x")
        print(RESETS * WAITING, file=process.stdin, flush=True)
        assert process.stdout.readline() == "alive\n"


def test_a_host_that_vanishes_is_noticed_by_both_sides() -> None:
    """A heartbeat of the connecting side tells how long it may be silent; the accepting side sends none."""
    with listening(LOOPBACK) as listener:
        wait_for_the_end_of_a_silent_peer(listener.address.port)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = Address("127.0.0.1", server.getsockname()[1])
        with dialing(address) as dialer:
            events: list[UplinkEvent] = []
            turn_of(dialer, events)()
            connected, _ = server.accept()
            with connected:
                connected.sendall(GREETING + zmtp_command(b"READY", b"\x0bSocket-Type\0\0\0\x06ROUTER"))
                connected.settimeout(DEADLINE)
                said = b""
                while b"\x04PING" not in said:
                    said += connected.recv(4096)
                (tenths,) = struct.unpack_from(">H", said.partition(b"\x04PING")[2])
                assert tenths == 100


@pytest.mark.parametrize("transport", ["tcp", "ipc"])
def test_a_connection_that_is_cut_takes_no_other_with_it(tmp_path: Path, transport: str) -> None:
    address = LOOPBACK if transport == "tcp" else Address(path=str(tmp_path / "service"))
    with listening(address) as listener, dialing(listener.address) as one, dialing(listener.address) as other:
        events: list[UplinkEvent] = []
        others: list[UplinkEvent] = []
        routes: list[bytes] = []

        def take() -> None:
            routes.extend(route for route, _ in listener.receive())

        until(lambda: len(routes) == 1, turn_of(one, events), take)
        until(lambda: len(routes) == 2, turn_of(other, others), take)
        listener.cut(b"unknown")
        listener.cut(routes[0])
        until(lambda: LinkDown("connection closed") in events, turn_of(one, events))
        until(lambda: not listener.send(routes[0], [bytes(16), b"x"]))
        listener.cut(routes[0])  # its descriptor may be somebody else's by now
        assert listener.send(routes[1], [HEADER.pack(0, 0), *map(bytes, encode(NeedHello()))])
        until(lambda: bool(others), turn_of(other, others))
        assert others == [LinkDown("the peer does not know this connection")]


def test_the_port_for_monitors_is_named_as_what_it_may_be() -> None:
    context = zmq.Context()
    publisher = context.socket(zmq.XPUB)
    port = publisher.bind_to_random_port("tcp://127.0.0.1")
    try:
        with dialing(Address("127.0.0.1", port)) as dialer:
            events: list[UplinkEvent] = []
            until(lambda: bool(events), turn_of(dialer, events))
            [down] = events
            hint = (
                f"if tcp://127.0.0.1:{port} is the scheduler's address for monitors, give the scheduler's own, whose "
                f"port is {port - 2} by default, or that of object storage, {port - 1}"
            )
            # Either side may be the first that finds the other's socket unfit.
            assert down in {
                LinkDown(f"connection closed before the handshake: {hint}"),
                LinkDown(
                    f"the peer ended the handshake: it is busy, ends, or is no service of Scaler; {hint}; "
                    "or it demands keys: give --keys or SCALER_KEYS, or keys= of a Client"
                ),
            }
    finally:
        context.destroy(linger=0)
