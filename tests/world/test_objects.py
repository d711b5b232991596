"""Stored objects between hosts that differ: whatever breaks, every transfer ends, with all its bytes or by name."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from scaler_io.links.effects import Effect, Log, Send, Stop
from scaler_io.objects.operations import Download, Operation, Upload
from scaler_io.service.server_loop import ServiceTurn
from scaler_protocol.errors import ObjectNotFoundError, ObjectRefusedError, ScalerError, StorageLostError
from scaler_protocol.handshake import Role
from scaler_protocol.monitoring import StorageStatus
from scaler_protocol.objects import PART_BYTES, SHARED_BYTES, Reference
from scaler_protocol.storage import DropReplicas, StorageMessage
from scaler_storage.engine.engine import StorageEngine
from scaler_storage.engine.processes import GRACE_SECONDS
from scaler_storage.engine.segments import MemorySegments
from scaler_storage.service import AGENT_GRACE_SECONDS
from support.examples import examples
from world.objects import CLIENT_GRACE_SECONDS, TIMEOUT_SECONDS, ObjectProcess, ObjectWorld

SIZES = [20_000, SHARED_BYTES, 3 * PART_BYTES + 5]
NAMES = [bytes([number]) * 16 for number in range(4)]


@pytest.fixture(params=range(3))
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ObjectWorld]:
    made = ObjectWorld(tmp_path, request.param)
    yield made
    made.close()


def content(letter: int, size: int) -> bytes:
    return bytes([letter]) * size


def check(download: Download, letter: int) -> None:
    assert download.error is None and download.whole
    assert bytes(download.payload) == content(letter, download.reference.size)


@pytest.mark.parametrize("size", SIZES)
def test_every_host_reads_what_any_host_has_written(world: ObjectWorld, size: int) -> None:
    for letter, writer in enumerate(world.processes):
        put = writer.put(NAMES[letter], content(letter, size))
        world.finish()
        assert put.error is None
        downloads = [reader.get(put.reference) for reader in world.processes]
        world.finish()
        for download in downloads:
            check(download, letter)
        mapped = [download.mapping is not None for download in downloads]
        assert mapped == [process.here and size >= SHARED_BYTES for process in world.processes]


def break_in_the_middle(world: ObjectWorld, process: ObjectProcess, transfer: Upload | Download) -> None:
    assert world.network.run_until(lambda: transfer.answered >= 5, 60)
    process.dialer.connection.cut()


def test_a_transfer_goes_on_where_a_connection_broke(world: ObjectWorld) -> None:
    far = world.workers[-1]
    put = far.put(NAMES[0], content(1, 20 * PART_BYTES))
    break_in_the_middle(world, far, put)
    world.finish()
    assert put.error is None
    got = far.get(put.reference)
    break_in_the_middle(world, far, got)
    world.finish()
    check(got, 1)


@pytest.mark.parametrize("seconds", [5.0, 2 * AGENT_GRACE_SECONDS])
def test_a_download_outlives_what_its_server_remembers(world: ObjectWorld, seconds: float) -> None:
    far = world.workers[-1]
    put = world.owner.put(NAMES[0], content(1, 20 * PART_BYTES))
    world.finish()
    got = far.get(put.reference)
    break_in_the_middle(world, far, got)
    answered = got.answered
    far.shell.stop(seconds)
    world.run(seconds)
    assert got.answered == answered
    world.finish()
    check(got, 1)


def test_a_storage_that_dies_in_the_middle(world: ObjectWorld) -> None:
    far, near = world.workers[-1], world.workers[0]
    put = world.owner.put(NAMES[0], content(1, 20 * PART_BYTES))
    world.finish()
    held = near.get(put.reference)
    world.finish()
    got, other = far.get(put.reference), far.put(NAMES[1], content(2, 20 * PART_BYTES))
    assert world.network.run_until(lambda: got.answered >= 5 and other.answered >= 5, 60)
    world.restart_storage(1.0)
    world.finish()
    assert isinstance(got.error, ObjectNotFoundError) and other.error is None
    check(held, 1)
    again = near.get(other.reference)
    world.finish()
    check(again, 2)


def test_a_storage_that_stays_away(world: ObjectWorld) -> None:
    puts = [process.put(NAMES[number], content(1, SIZES[-1])) for number, process in enumerate(world.processes)]
    world.restart_storage(30.0)
    assert all(isinstance(put.error, StorageLostError) for put in puts)
    again = world.owner.put(NAMES[0], content(2, SIZES[-1]))
    world.finish()
    assert again.error is None


@pytest.mark.parametrize("here", [False, True])
def test_an_idle_client_outlives_the_silence_of_its_storage(world: ObjectWorld, here: bool) -> None:
    client = ObjectProcess(world.network, here=here, role=Role.CLIENT)
    world.owner.leave()
    world.owner = client
    put = client.put(NAMES[0], content(1, SIZES[-1]))
    world.finish()
    world.storage.shell.stop(40.0)
    world.run(40.0 + 2 * (CLIENT_GRACE_SECONDS + GRACE_SECONDS))
    assert world.storage.core.status().objects == 1
    got = client.get(put.reference)
    world.finish()
    check(got, 1)


def test_deletions_are_made_up_for_when_storage_is_back(world: ObjectWorld) -> None:
    world.owner.put(NAMES[0], content(1, SIZES[0]))
    world.finish()
    world.storage.shell.stop(15.0)
    world.run(12.0)
    world.owner.delete(NAMES[0])
    world.run(12.0)
    assert world.storage.core.status().objects == 0


def test_nobody_waits_longer_for_a_silent_storage_than_for_one_that_is_gone(world: ObjectWorld) -> None:
    world.storage.shell.stop()
    put = world.owner.put(NAMES[0], content(1, SIZES[-1]))
    world.run(TIMEOUT_SECONDS + 0.1)
    assert isinstance(put.error, StorageLostError)
    world.storage.shell.resume()
    again = world.owner.put(NAMES[0], content(2, SIZES[-1]))
    world.finish()
    assert again.error is None


def test_two_versions_of_an_object_are_never_mixed(world: ObjectWorld) -> None:
    far = world.workers[-1]
    put = world.owner.put(NAMES[0], content(1, 20 * PART_BYTES))
    world.finish()
    got = far.get(put.reference)
    assert world.network.run_until(lambda: got.answered >= 5, 60)
    far.shell.stop()
    world.run(0.1)
    world.owner.delete(NAMES[0])
    world.owner.put(NAMES[0], content(2, 20 * PART_BYTES))
    world.run(5.0)
    far.shell.resume()
    world.finish()
    assert got.error is None and not got.whole  # whoever wants it asks again
    again = far.get(put.reference)
    world.finish()
    check(again, 2)


@pytest.mark.parametrize("number", [0, 2])
def test_a_killed_worker_leaves_nothing(world: ObjectWorld, number: int) -> None:
    put = world.owner.put(NAMES[0], content(1, 20 * PART_BYTES))
    world.finish()
    worker = world.workers[number]
    got = worker.get(put.reference)
    world.finish()
    check(got, 1)
    del got
    worker.put(NAMES[1], content(2, 20 * PART_BYTES))
    assert world.network.run_until(lambda: world.storage.core.status().writing == 1, 1.0)
    world.kill_worker(number)
    world.run(3.0 if worker.here else AGENT_GRACE_SECONDS + 6.0)
    status = world.storage.core.status()
    assert (status.writing, status.pinned_bytes, status.objects) == (0, 0, 1)


def test_a_killed_client_takes_its_objects_along(world: ObjectWorld) -> None:
    world.owner.put(NAMES[0], content(1, SIZES[-1]))
    world.finish()
    world.owner.kill()
    world.run(CLIENT_GRACE_SECONDS + 6.0)
    assert world.storage.core.status().objects == 0
    late = world.workers[0].put(NAMES[1], content(1, SIZES[-1]))
    world.finish()
    assert isinstance(late.error, ObjectRefusedError)


def held_by(world: ObjectWorld, number: int, name: bytes, letter: int) -> Reference:
    """What a worker elsewhere has made, and only its host has."""
    world.workers[number].hold(name, content(letter, SIZES[-1]))
    world.finish()
    status = world.storage.core.status()
    assert status.replicas and not status.bytes and not status.fetched_bytes_total
    return Reference(name, SIZES[-1])


def test_what_stays_elsewhere_is_brought_to_whoever_wants_it(world: ObjectWorld) -> None:
    reference = held_by(world, 1, NAMES[0], 1)
    downloads = [reader.get(reference) for reader in world.processes]
    world.finish()
    for download in downloads:
        check(download, 1)
    status = world.storage.core.status()
    assert (status.replicas, status.fetched_bytes_total) == (0, SIZES[-1]) and not world.files.list()


@pytest.mark.parametrize("stopped", [False, True])
def test_an_agent_that_falls_while_it_brings_is_succeeded(world: ObjectWorld, stopped: bool) -> None:
    reference = held_by(world, 1, NAMES[0], 1)
    for agent in world.agents:
        for connection in agent.dialer.connections[-1:]:
            connection.stall(1.0)
    got = world.owner.get(reference)
    world.run(0.01)
    if stopped:
        world.agents[0].shell.stop()
    else:
        world.agents[0].kill()
    world.finish()
    check(got, 1)
    if stopped:
        world.agents[0].shell.resume()
    else:
        world.agents[0] = world.agents[1]


def test_a_host_whose_agents_are_gone_is_not_found_and_comes_back(world: ObjectWorld) -> None:
    reference = held_by(world, 1, NAMES[0], 1)
    for agent in world.agents:
        agent.shell.stop(3 * AGENT_GRACE_SECONDS)
        world.cut(agent)
    got = world.owner.get(reference)
    world.finish(2 * AGENT_GRACE_SECONDS)
    assert isinstance(got.error, ObjectNotFoundError)
    world.run(3 * AGENT_GRACE_SECONDS)
    again = world.owner.get(reference)
    world.finish()
    check(again, 1)


@pytest.mark.parametrize("fetched", [False, True])
def test_what_is_deleted_while_its_host_is_out_of_reach_stays_deleted(world: ObjectWorld, fetched: bool) -> None:
    reference = held_by(world, 1, NAMES[0], 1)
    if fetched:
        world.owner.get(reference)
        world.run(0.05)
    for agent in world.agents:
        agent.shell.stop(4 * AGENT_GRACE_SECONDS)
        world.cut(agent, listener=False)  # the server tells an agent of the deletion, in vain
    world.owner.delete(NAMES[0])
    world.run(6 * AGENT_GRACE_SECONDS)
    status = world.storage.core.status()
    assert (status.hosts, status.objects) == (1, 0) and not world.files.list()


def test_a_new_storage_learns_what_stays_elsewhere(world: ObjectWorld) -> None:
    reference = held_by(world, 1, NAMES[0], 1)
    world.restart_storage(1.0)
    got = world.owner.get(reference)
    world.finish()
    check(got, 1)


# --- effects that fail ----------------------------------------------------------------------------------------------

SENT = [kind for kind in get_args(StorageMessage) if kind not in StorageEngine(1, MemorySegments(), 1)._handlers]
EFFECTS = [*SENT, DropReplicas, StorageStatus, *(kind for kind in get_args(Effect) if kind is not Send)]


def failing(monkeypatch: pytest.MonkeyPatch, kind: type, times: int) -> list[int]:
    """The first effects of the server that are this, or send it, raise; the list counts them."""
    failed = [0]

    def patch(name: str) -> None:
        perform = getattr(ServiceTurn, name)

        def raising(turn: ServiceTurn, effect: Effect) -> None:
            if isinstance(effect, kind) or (isinstance(effect, Send) and isinstance(effect.message, kind)):
                failed[0] += 1
                if failed[0] <= times:
                    raise MemoryError("on purpose")
            perform(turn, effect)

        monkeypatch.setattr(ServiceTurn, name, raising)

    for name in ("_send_to", "_log", "_end"):
        patch(name)
    return failed


def use_everything(world: ObjectWorld) -> list[ScalerError | OSError | None]:
    """Have the server send all that it can, and say how each transfer ended."""
    ended: list[ScalerError | OSError | None] = []

    def note(*transfers: Operation) -> bool:
        world.finish()
        ended.extend(transfer.error for transfer in transfers)
        return not any(transfer.error for transfer in transfers)

    for number, writer in enumerate(world.processes[:2]):
        while not note(writer.put(NAMES[number], content(1, SIZES[-1]))):
            pass  # it is put again
        note(*(reader.get(Reference(NAMES[number], SIZES[-1])) for reader in world.processes))
    for number in (2, 3):
        world.workers[-1].hold(NAMES[number], content(1, SIZES[-1]))
        note(*world.workers[-1].transfers)
    note(world.owner.get(Reference(NAMES[2], SIZES[-1])))
    note(world.owner.list())
    for name in NAMES:
        world.owner.delete(name)
    world.run(1.0)
    for process in world.processes:
        process.forget()
    return ended


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("kind", EFFECTS, ids=lambda kind: kind.__name__)
def test_an_effect_of_the_server_that_raises_leaves_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type, times: int
) -> None:
    failed = failing(monkeypatch, kind, times)
    world = ObjectWorld(tmp_path)
    said: list[Effect] = [
        Log(logging.INFO, "said"),
        Stop("said"),
        Send(world.owner.identity, world.storage.core.status()),
    ]
    world.storage.core._state.out += [effect for effect in said if kind in (type(effect), StorageStatus)] * times
    world.storage.shell.wake()
    ended = use_everything(world)
    assert failed[0] and all(error is None or isinstance(error, StorageLostError) for error in ended), ended
    for _ in range(times):
        use_everything(world)
    assert not any(use_everything(world))
    world.close()


# --- anything -------------------------------------------------------------------------------------------------------

workers = st.integers(0, 3)
elsewhere, agents = st.integers(2, 3), st.integers(0, 1)
names = st.integers(0, len(NAMES) - 1)
moments = st.sampled_from([0.0, 0.0003, 0.001, 0.003, 0.3, 4.0, 12.0])


class AnyObjectFaults(RuleBasedStateMachine):
    """Processes store, fetch and delete, everything breaks; at the end everything has ended, and is whole or named."""

    @initialize(seed=st.integers(0, 9))
    def start(self, seed: int) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.world = ObjectWorld(Path(self.folder.name), seed, here=2, limit=12 * PART_BYTES)
        self.letters = 0
        self.sizes = [SIZES[number % len(SIZES)] for number in range(len(NAMES))]

    @rule(who=workers, which=names, seconds=moments)
    def put(self, who: int, which: int, seconds: float) -> None:
        self.letters = self.letters % 250 + 1
        self.world.workers[who].put(NAMES[which], content(self.letters, self.sizes[which]))
        self.world.run(seconds)

    @rule(who=workers, which=names, seconds=moments)
    def get(self, who: int, which: int, seconds: float) -> None:
        self.world.workers[who].get(Reference(NAMES[which], self.sizes[which]))
        self.world.run(seconds)

    @rule(who=elsewhere, which=names.filter(lambda which: SIZES[which % len(SIZES)] >= SHARED_BYTES), seconds=moments)
    def hold(self, who: int, which: int, seconds: float) -> None:
        self.letters = self.letters % 250 + 1
        self.world.workers[who].hold(NAMES[which], content(self.letters, self.sizes[which]))
        self.world.run(seconds)

    @rule(who=elsewhere, which=names)
    def give(self, who: int, which: int) -> None:
        self.world.workers[who].give(NAMES[which])

    @rule(who=agents, seconds=moments, stopped=st.booleans())
    def fell_an_agent(self, who: int, seconds: float, stopped: bool) -> None:
        if stopped:
            self.world.agents[who].shell.stop(seconds)
        else:
            self.world.kill_agent(who)

    @rule(which=names)
    def delete(self, which: int) -> None:
        self.world.owner.delete(NAMES[which])

    @rule(who=workers, lost=st.sampled_from([None, 0, 2]), dialer=st.booleans(), listener=st.booleans())
    def cut(self, who: int, lost: int | None, dialer: bool, listener: bool) -> None:
        self.world.cut(self.world.workers[who], lost, dialer=dialer, listener=listener)

    @rule(who=workers, seconds=moments, stopped=st.booleans())
    def stall(self, who: int, seconds: float, stopped: bool) -> None:
        worker = self.world.workers[who]
        if stopped:
            worker.shell.stop(seconds)
        for connection in worker.dialer.connections[-1:] if not stopped else []:
            connection.stall(seconds)

    @rule(who=workers)
    def kill(self, who: int) -> None:
        self.world.kill_worker(who)

    @rule(who=workers)
    def forget(self, who: int) -> None:
        self.judge(self.world.workers[who])

    @rule(seconds=moments)
    def restart(self, seconds: float) -> None:
        self.world.restart_storage(seconds)

    @rule(seconds=moments)
    def wait(self, seconds: float) -> None:
        self.world.run(seconds)

    def judge(self, worker: ObjectProcess) -> None:
        """What has ended is whole, of one writing, or says why not."""
        ended = [each for each in worker.transfers if each.over.is_set()]
        worker.transfers[:] = [each for each in worker.transfers if not each.over.is_set()]
        for each in ended:
            if each.error is not None:
                assert isinstance(each.error, ObjectNotFoundError | ObjectRefusedError | StorageLostError), each.error
            elif isinstance(each, Download) and each.whole:
                assert len(each.payload) == each.reference.size and len(set(bytes(each.payload))) == 1

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        with self.folder:
            self.world.finish()
            for process in self.world.processes:
                self.judge(process)
            self.world.close()


TestAnyObjectFaults = AnyObjectFaults.TestCase
TestAnyObjectFaults.settings = settings(
    max_examples=examples(30), stateful_step_count=20, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
