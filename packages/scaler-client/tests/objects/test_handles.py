"""What stands for stored payloads: how it travels, and when the object behind it is deleted."""

from __future__ import annotations

import errno
import os
import pickle
import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pickle import PickleBuffer
from typing import Any

import numpy as np
import pytest

from scaler_client import task_context
from scaler_client.calls.arguments import ArgumentCache
from scaler_client.calls.encoding import Callees, PartCalls, PickledCalls
from scaler_client.calls.object_reference import ObjectReference, SentObjects, payload_of
from scaler_client.calls.part_encoding import read_parts
from scaler_client.core.core import ClientCore
from scaler_client.core.effects import DeleteUnknownObjects, ListUnknownObjects, RestoreObjects, Transmit
from scaler_client.core.events import (
    CallsSubmitted,
    ObjectsRestored,
    RestoreFailed,
    TasksCancelled,
    UnknownObjectsListed,
)
from scaler_client.core.lineage import adopted
from scaler_client.core.records import CallBlock, CallGroup, Deliver, Discard, FunctionBody, RunReports
from scaler_client.core.resubmissions import RESUBMISSION_LIMIT
from scaler_client.futures.argument_refs import Collector
from scaler_client.futures.deliveries import deliver
from scaler_client.futures.futures import ScalerFuture
from scaler_client.objects.handles import ResultOrigin, StoredPayload, fetched, stored_positions, true_size
from scaler_client.objects.store import UNCONFIRMED_BYTES, ClientStorage, StorageDoor, wait_until_put
from scaler_client.payloads import pickles
from scaler_client.payloads.serializers import DefaultSerializer
from scaler_io.links.events import LinkDown, LinkUp
from scaler_protocol.errors import (
    ClientForkedError,
    ObjectNotFoundError,
    ScalerError,
    StorageFullError,
    StorageLostError,
    describe,
    restore,
)
from scaler_protocol.handshake import INLINE_LIMIT, Welcome
from scaler_protocol.ids import function_id
from scaler_protocol.messages import Done, Functions, Group, Inputs, NeedFunctions, NeedInputs, Release, Status
from scaler_protocol.objects import SHARED_BYTES, Reference, new_object_id
from scaler_protocol.payloads import Payloads
from scaler_protocol.storage import DeleteObjects
from support.shelves import Shelf

BIG = bytes(INLINE_LIMIT + 1)
BIG_COUNT = SHARED_BYTES
"""Of an array that is waited for."""
GROUP = CallGroup(Group(b"f"), (), pickles.load, pickle.dumps)


class Desk:
    """A FutureOwner."""

    waiting: AbstractContextManager[object] = nullcontext()

    def cancel(self, tasks: Sequence[int]) -> None: ...

    def submit_again(self, *call: object) -> None: ...

    def call_soon(self, work: Callable[[], object]) -> None:
        work()


DESK = Desk()


@pytest.fixture
def shelf() -> Shelf:
    return Shelf(5)


@pytest.fixture
def storage(shelf: Shelf) -> ClientStorage:
    return ClientStorage(StorageDoor(lambda: "tcp://127.0.0.1:1", lambda address: shelf), 5)  # type: ignore[arg-type,return-value]


def stored(storage: ClientStorage, content: bytes = BIG) -> StoredPayload:
    placed = storage.store(content)
    assert type(placed) is StoredPayload
    return placed


def told(future: ScalerFuture[Any], status: int, payload: bytes) -> None:
    deliver(Deliver([future], [future.task_id], [status], [payload], RunReports((), b"")))


# --- storage ---------------------------------------------------------------------------------------------------------


def test_small_payloads_stay_where_they_are(storage: ClientStorage, shelf: Shelf) -> None:
    assert storage.store(bytes(INLINE_LIMIT)) == bytes(INLINE_LIMIT) and not shelf.objects
    assert true_size(b"abc") == 3 and fetched(b"abc") == b"abc"


def test_an_object_lives_as_long_as_anything_stands_for_it(storage: ClientStorage, shelf: Shelf) -> None:
    first = stored(storage)
    again = storage.adopt(bytes(first))
    assert (fetched(first), true_size(again), shelf.opened) == (BIG, len(BIG), 1)
    del first
    assert len(shelf.objects) == 1
    del again
    assert not shelf.objects


def test_results_are_read_ahead_in_the_order_in_which_they_came(storage: ClientStorage, shelf: Shelf) -> None:
    names = [bytes([number]) * 16 for number in range(5)]
    shelf.objects = dict.fromkeys(names, BIG)
    results = [storage.adopt(Reference(name, len(BIG)).pack()) for name in names]
    assert fetched(results[1]) == BIG and shelf.likely == [names[2:]]
    del results[3]
    assert fetched(results[0]) == BIG and shelf.likely[1:] == [[names[2], names[4]]]
    own = stored(storage)
    assert fetched(own) == fetched(results[3]) == BIG and len(shelf.likely) == 2, "behind these nothing has come"


def test_what_stands_for_objects_is_found(storage: ClientStorage) -> None:
    placed = list(map(storage.store, [b"small", BIG, b"small", BIG + b"!"]))
    assert stored_positions(placed) == [1, 3] and list(map(fetched, placed)) == [b"small", BIG, b"small", BIG + b"!"]
    assert stored_positions([b"a", b"b"]) == ()


def test_a_pickle_with_buffers_is_put_as_it_lies(storage: ClientStorage, shelf: Shelf) -> None:
    written = pickles.dump({"big": PickleBuffer(BIG), "small": PickleBuffer(b"small")})
    placed = storage.store(written)
    assert true_size(placed) == len(written) and list(shelf.objects.values()) == [bytes(written)]
    assert pickles.load(fetched(placed)) == {"big": BIG, "small": b"small"}


def test_what_nobody_knows_is_deleted_and_what_somebody_knows_is_not(storage: ClientStorage, shelf: Shelf) -> None:
    known = stored(storage)
    storage.discard(known.object.reference[:16])
    storage.discard(b"?" * 16)
    assert shelf.deleted == [b"?" * 16]


def test_after_the_end_nothing_is_done_and_nothing_is_broken(storage: ClientStorage, shelf: Shelf) -> None:
    known = stored(storage)
    storage.refuse(ClientForkedError())
    with pytest.raises(ClientForkedError):
        known.object.fetch()
    storage.discard(b"?" * 16)
    del known
    assert not shelf.deleted and len(shelf.objects) == 1


def test_without_a_server_everything_travels_inline() -> None:
    nowhere = ClientStorage(StorageDoor(str, lambda address: pytest.fail("not here")), 5)
    assert nowhere.store(BIG) is BIG
    assert pickles.load(nowhere.store(pickles.dump(BIG))) == BIG
    with pytest.raises(StorageLostError, match="names no"):
        nowhere.fetch(Reference(b"o" * 16, 1).pack())


def test_a_call_is_sent_when_storage_has_what_it_names(storage: ClientStorage, shelf: Shelf) -> None:
    core = connected()
    placed = storage.store(BIG, soon=True)
    assert type(placed) is StoredPayload and placed.object.pending and not shelf.objects
    futures: list[ScalerFuture[Any]] = [ScalerFuture(DESK, 1, GROUP, b"small"), ScalerFuture(DESK, 2, GROUP, placed)]
    futures.append(ScalerFuture(DESK, 3, GROUP, b"names it", [placed.object]))
    core.handle(CallsSubmitted(futures), 0.0)
    assert [list(message.tasks) for message in sent(core)] == [[1]]
    told: list[object] = []
    placed.object.add_put_callback(told.append)
    assert not sent(core) and not told
    shelf.arrive()
    assert told == [None] and [list(message.tasks) for message in sent(core)] == [[2, 3]]
    wait_until_put(placed.object)
    assert fetched(placed) == BIG


def test_a_put_that_is_refused(storage: ClientStorage, shelf: Shelf) -> None:
    arguments = ArgumentCache(DESK, storage)
    first = arguments.store_argument(BIG)
    assert type(first) is StoredPayload and arguments.store_argument(BIG) == first
    shelf.arrive(StorageFullError())
    with pytest.raises(StorageFullError):
        wait_until_put(first.object)
    told: list[object] = []
    first.object.add_put_callback(told.append)
    assert told == [first.object.error] and storage.losses == 0
    second = arguments.store_argument(BIG)  # it is tried again
    assert second is not None and second != first
    shelf.arrive(StorageLostError())
    assert storage.losses == 1


def test_what_is_big_or_too_much_is_waited_for(storage: ClientStorage, shelf: Shelf) -> None:
    storage.store(bytes(SHARED_BYTES), soon=True)
    assert not shelf.on_the_way
    for _ in range(UNCONFIRMED_BYTES // SHARED_BYTES + 1):
        storage.store(bytes(SHARED_BYTES - 1), soon=True)
    count = len(shelf.on_the_way)
    placed = storage.store(BIG, soon=True)
    assert type(placed) is StoredPayload and not placed.object.pending and len(shelf.on_the_way) == count
    for _ in range(count):
        shelf.arrive()
    storage.store(BIG, soon=True)
    assert len(shelf.on_the_way) == 1


# --- futures ---------------------------------------------------------------------------------------------------------


def test_a_result_is_fetched_once_and_then_deleted(storage: ClientStorage, shelf: Shelf) -> None:
    future: ScalerFuture[bytes] = ScalerFuture(DESK, 1, GROUP, b"call")
    told(future, Status.VALUE, stored(storage, pickle.dumps(BIG)))
    assert future.done() and not future._failed() and len(shelf.objects) == 1
    assert future.result() == BIG and future.result() == BIG and not shelf.objects


def test_the_object_of_a_result_that_can_be_changed_stays_with_its_future(storage: ClientStorage, shelf: Shelf) -> None:
    future: ScalerFuture[list[bytes]] = ScalerFuture(DESK, 1, GROUP, b"call")
    told(future, Status.VALUE, stored(storage, pickle.dumps([BIG])))
    future.result().clear()
    with Collector(DESK) as collector:
        pickle.dumps(future)
    (lease,) = collector.found
    assert lease.outcome() is not None and len(shelf.objects) == 1
    with Collector(Desk()):
        assert pickle.loads(pickle.dumps(future)) == [BIG]
    assert future._made() == [BIG] and future.result() == []
    del future, collector, lease
    assert not shelf.objects


def test_a_result_that_nobody_asks_goes_with_its_future(storage: ClientStorage, shelf: Shelf) -> None:
    future: ScalerFuture[bytes] = ScalerFuture(DESK, 1, GROUP, b"call")
    told(future, Status.VALUE, stored(storage))
    del future
    assert not shelf.objects


def test_a_call_keeps_its_object_until_its_outcome_is_in(storage: ClientStorage, shelf: Shelf) -> None:
    futures: list[ScalerFuture[Any]] = [ScalerFuture(DESK, task, GROUP, stored(storage)) for task in range(2)]
    assert len(shelf.objects) == 2
    told(futures[0], Status.VALUE, pickle.dumps(1))
    assert len(shelf.objects) == 1
    futures[1].cancel()
    assert not shelf.objects


def test_an_object_that_is_lost_is_the_exception(storage: ClientStorage, shelf: Shelf) -> None:
    for status in (Status.VALUE, Status.RAISED):
        future: ScalerFuture[bytes] = ScalerFuture(DESK, 1, GROUP, b"call")
        told(future, status, stored(storage))
        shelf.objects.clear()
        assert isinstance(future.exception(), ObjectNotFoundError)
        with pytest.raises(ObjectNotFoundError):
            future.result()


def test_a_consumer_keeps_the_object_of_a_result_that_was_loaded(storage: ClientStorage, shelf: Shelf) -> None:
    source: ScalerFuture[bytes] = ScalerFuture(DESK, 1, GROUP, b"call")
    with Collector(DESK) as collector:
        pickle.dumps([source, source])
    (lease,) = collector.found
    assert lease.outcome() is None
    told(source, Status.VALUE, stored(storage, pickle.dumps(BIG)))
    assert source.result() == BIG and len(shelf.objects) == 1
    with Collector(DESK) as collector:
        pickle.dumps(source)  # it is still there, so others take it, too
    assert collector.found == [lease]
    outcome = lease.outcome()
    assert isinstance(outcome, tuple) and type(outcome[1]) is StoredPayload
    del outcome, lease, collector
    assert not shelf.objects
    with Collector(DESK) as collector:
        assert pickle.loads(pickle.dumps(source)) == BIG
    assert not collector.found


def test_a_stored_result_is_taken_where_it_is(storage: ClientStorage, shelf: Shelf) -> None:
    source: ScalerFuture[bytes] = ScalerFuture(DESK, 1, GROUP, b"call")
    told(source, Status.VALUE, stored(storage, pickle.dumps(BIG)))
    with Collector(DESK) as collector:
        pickle.dumps(source)
    assert [need.task_id for need in collector.found] == [1] and not source._failed()
    with Collector(Desk()) as collector:  # another client's calls can not
        assert pickle.loads(pickle.dumps(source)) == BIG
    assert not collector.found


# --- the core --------------------------------------------------------------------------------------------------------


def sent(core: ClientCore) -> list[Any]:
    messages = [effect.message for effect in core.settle(0.0) if isinstance(effect, Transmit)]
    core.check()
    return messages


def connected() -> ClientCore:
    core = ClientCore("tcp://127.0.0.1:1")
    core.handle(LinkUp(Welcome(1, storage_address="tcp://127.0.0.1:2"), resumed=False), 0.0)
    assert [effect.storage for effect in core.settle(0.0)] == ["tcp://127.0.0.1:2"]  # type: ignore[union-attr]
    return core


def test_positions_travel(storage: ClientStorage) -> None:
    core = connected()
    placed = stored(storage)
    group = CallGroup(Group(b"f"), (FunctionBody(b"f", "f", placed),), pickle.loads, pickle.dumps)
    core.handle(CallsSubmitted([ScalerFuture(DESK, 1, group, b"inline"), ScalerFuture(DESK, 2, group, placed)]), 0.0)
    block = CallBlock(10, group, [placed, b"inline"], lambda: None)
    core.handle(block, 0.0)
    (submit,) = sent(core)
    assert (submit.stored, submit.bodies_stored, submit.calls[1]) == ([1, 2], [0], bytes(placed))
    assert (block._weight, block.argument_bytes) == (15, len(BIG) // 2 + 3)
    core.handle(NeedFunctions([b"f"]), 0.0)
    assert sent(core) == [Functions([b"f"], ["f"], Payloads([placed]), [0])]


def test_a_stored_function_is_not_remembered_beyond_its_calls(storage: ClientStorage, shelf: Shelf) -> None:
    core = connected()
    group = CallGroup(Group(b"f"), (FunctionBody(b"f", "f", stored(storage)),), pickle.loads, pickle.dumps)
    for task in (1, 2):
        core.handle(CallsSubmitted([ScalerFuture(DESK, task, group, b"call")]), 0.0)
        assert sent(core)[0].functions == [b"f"]
        core.handle(Done([task], [0], Payloads([pickle.dumps(1)])), 0.0)
    del group
    core.settle(0.0)
    assert not shelf.objects


def test_inputs_are_references(storage: ClientStorage) -> None:
    core = connected()
    source: ScalerFuture[bytes] = ScalerFuture(DESK, 1, GROUP, b"call")
    core.handle(CallsSubmitted([source]), 0.0)
    told(source, Status.VALUE, stored(storage))
    core.handle(CallsSubmitted([ScalerFuture(DESK, 2, GROUP, b"call", [source._lease()])]), 0.0)
    (submit,) = sent(core)
    assert submit.needs == [1]
    core.handle(NeedInputs([2], [1]), 0.0)
    (inputs,) = sent(core)
    assert isinstance(inputs, Inputs) and inputs.stored == [0] and len(inputs.results[0]) == 24


def test_outcomes_are_adopted_and_those_that_nobody_waits_for_are_deleted(storage: ClientStorage, shelf: Shelf) -> None:
    core = connected()
    future: ScalerFuture[bytes] = ScalerFuture(DESK, 21, GROUP, b"call")
    core.handle(CallsSubmitted([future]), 0.0)
    core.settle(0.0)
    wanted, unwanted = (shelf.put(pickle.dumps(BIG), session=5, name=new_object_id()) for _ in range(2))
    payloads = Payloads([unwanted.pack(), pickle.dumps(3), wanted.pack(), b"no reference"])
    core.handle(Done([7, 8, 21, 9], [0, 0, 0, 0], payloads, stored=[0, 2, 3]), 0.0)
    (effect,) = core.settle(0.0)
    assert isinstance(effect, Deliver)
    deliver(adopted(effect, storage.adopt))
    del effect
    assert list(shelf.objects) == [wanted.object]
    assert future.result() == BIG and not shelf.objects


def test_a_connection_that_can_not_be_made_now_costs_no_result(
    storage: ClientStorage, shelf: Shelf, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    references = [shelf.put(pickle.dumps(BIG), session=5, name=new_object_id()).pack() for _ in range(3)]
    with monkeypatch.context() as patched:
        for name in ("open_soon", "get", "delete"):
            patched.setattr(shelf, name, refuse)
        futures: list[ScalerFuture[bytes]] = [ScalerFuture(DESK, task, GROUP, b"call") for task in range(3)]
        outcome = Deliver(futures, range(3), [0] * 3, references, RunReports((), b""), range(3))
        deliver(adopted(outcome, storage.adopt))
        storage.discard(new_object_id())
        with pytest.raises(OSError, match="Too many"):
            futures[0].result()
        assert isinstance(futures[0].exception(), OSError)
    assert [future.result() for future in futures] == [BIG] * 3
    assert caplog.text.count("cannot connect to object storage") == 1


def test_a_reference_that_can_not_be_adopted_fails_its_call_only(storage: ClientStorage, shelf: Shelf) -> None:
    references = [shelf.put(pickle.dumps(BIG), session=5, name=new_object_id()).pack() for _ in range(3)]

    def adopt(reference: bytes, origin: ResultOrigin | None) -> bytes:
        if reference == references[1]:
            raise MemoryError
        return storage.adopt(reference, origin)

    futures: list[ScalerFuture[bytes]] = [ScalerFuture(DESK, task, GROUP, b"call") for task in range(3)]
    outcome = Deliver(futures, range(3), [0] * 3, references, RunReports((), b""), range(3))
    deliver(adopted(outcome, adopt))
    failure = futures[1].exception()
    assert isinstance(failure, ScalerError) and isinstance(failure.__cause__, MemoryError)
    assert futures[0].result() == futures[2].result() == BIG


def test_a_reference_that_is_none_is_an_error() -> None:
    core = connected()
    future: ScalerFuture[bytes] = ScalerFuture(DESK, 1, GROUP, b"call")
    core.handle(CallsSubmitted([future]), 0.0)
    core.settle(0.0)
    core.handle(Done([1], [0], Payloads([b"short"]), stored=[0]), 0.0)
    (effect,) = core.settle(0.0)
    assert isinstance(effect, Deliver) and isinstance(restore(effect.results[0]), ObjectNotFoundError)


def test_objects_that_only_the_scheduler_knows_of() -> None:
    core = connected()
    core.handle(DeleteObjects([b"o" * 16]), 0.0)
    assert core.settle(0.0) == [Discard([b"o" * 16])]


def test_a_block_lets_go_of_calls_as_they_end(storage: ClientStorage, shelf: Shelf) -> None:
    block = CallBlock(1, GROUP, [stored(storage), stored(storage)], lambda: None)
    block.take(2, Status.VALUE, b"")
    assert len(shelf.objects) == 1 and fetched(block._call_of(1)) == BIG


# --- calls -----------------------------------------------------------------------------------------------------------


class FakeWorker:
    """A runtime that has the objects."""

    session = 0
    storage = StorageDoor(str, lambda address: pytest.fail("not here"))

    def __init__(self, storage: ClientStorage) -> None:
        self.inputs: dict[int, tuple[bool, bytes]] = {}
        self.fetch = storage.fetch

    def load(self, reference: bytes) -> Any:
        return pickles.load(self.fetch(reference))

    def current(self) -> None:
        return None

    def retire(self, why: str) -> None:
        raise AssertionError("not here")

    def connect(self) -> Any:
        raise AssertionError("not here")


def references(storage: ClientStorage, dump: Callable[[Any], bytes], load: Any) -> tuple[SentObjects, Any]:
    objects = SentObjects()
    return objects, ObjectReference(b"", len(BIG), objects.add(storage.store(dump(BIG))), load)


def test_references_are_loaded_where_the_call_is_run(
    storage: ClientStorage, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects, reference = references(storage, pickle.dumps, pickle.loads)
    call, needs = PickledCalls(DESK, ArgumentCache(DESK, storage)).write(([reference, {"x": reference}],), {})
    assert len(call) < 1000 and [need.task_id for need in needs] == [0]
    assert needs[0].outcome() is None
    objects.clear()
    assert len(shelf.objects) == 1  # the call keeps it
    with pytest.raises(LookupError):
        pickle.loads(bytes(call))
    monkeypatch.setattr(task_context, "_runtime", FakeWorker(storage))
    assert pickle.loads(bytes(call)) == (([BIG, {"x": BIG}],), {})
    del needs
    assert not shelf.objects
    with pytest.raises(ObjectNotFoundError):
        pickle.loads(bytes(call))
    with pytest.raises(ObjectNotFoundError):
        PickledCalls(DESK, ArgumentCache(DESK, storage)).write((reference,), {})


def test_references_among_parts(storage: ClientStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = PartCalls(DESK, DefaultSerializer, storage.store)
    _, reference = references(storage, writer.dump, writer.load)
    call, needs = writer.write((1, reference), {"key": reference})
    assert len(call) < 1000 and len(needs) == 1
    monkeypatch.setattr(task_context, "_runtime", FakeWorker(storage))
    assert read_parts(bytes(call), writer.load) == ((1, BIG), {"key": BIG})
    assert payload_of(reference) and reference.value() == BIG


def test_a_big_function_is_put_once_and_known_by_its_reference(storage: ClientStorage, shelf: Shelf) -> None:
    callees = Callees(PickledCalls(DESK, ArgumentCache(DESK, storage)), stream_output=False, store=storage.store)
    table = BIG

    def big() -> int:
        return len(table)

    callee = callees.find(big)
    group = callees.group(callee)
    (body,) = group.bodies
    assert type(body.body) is StoredPayload and body.id == function_id(body.body, stored=True) == group.wire.function
    assert callees.group_with(callees.write(big), priority=1).bodies == (body,)
    assert len(shelf.objects) == 1
    twin = callees.find(lambda: None)
    assert callees.group(twin).wire.function == function_id(twin.body.body)
    del body, group, callee, big
    assert not shelf.objects


# --- storage that was started again ----------------------------------------------------------------------------------


def lost_outcome(task: int) -> Done:
    return Done([task], [Status.FAILED], Payloads([describe(ObjectNotFoundError("it is gone"))]))


def effects_of(core: ClientCore, kind: type[Any]) -> list[Any]:
    return [effect for effect in core.settle(0.0) if isinstance(effect, kind)]


def test_a_task_that_misses_an_object_is_run_again_twice() -> None:
    # ScalerFuture[Any](…) would set __orig_class__, for which every future of the process then has 8 bytes more.
    future: ScalerFuture[Any] = ScalerFuture(DESK, 1, GROUP, b"call")
    core = connected()
    core.handle(CallsSubmitted([future]), 0.0)
    core.settle(0.0)
    for _ in range(RESUBMISSION_LIMIT):
        core.handle(lost_outcome(1), 0.0)
        delivery, restoring = core.settle(0.0)  # in this order: a node that is rerun has no outcome
        assert isinstance(delivery, Deliver) and restoring == RestoreObjects([1])
        deliver(delivery)
        assert future.running() and future._call == b"call"
        core.check()
        core.handle(ObjectsRestored([1], server=1), 0.0)
        release, submit = (effect.message for effect in effects_of(core, Transmit))
        assert isinstance(release, Release) and list(release.tasks) == [1] == list(submit.tasks)
        core.check()
    core.handle(lost_outcome(1), 0.0)
    (delivery,) = core.settle(0.0)
    deliver(delivery)  # type: ignore[arg-type]
    assert isinstance(future.exception(), ObjectNotFoundError)


def test_without_storage_it_ends_as_it_had() -> None:
    core = connected()
    futures: list[ScalerFuture[Any]] = [ScalerFuture(DESK, number, GROUP, b"call") for number in (1, 2, 3)]
    core.handle(CallsSubmitted(futures), 0.0)
    core.settle(0.0)
    for number in (1, 2):
        core.handle(lost_outcome(number), 0.0)
    core.handle(Done([3], [Status.FAILED], Payloads([describe(StorageFullError("it is full"))])), 0.0)
    for delivery in effects_of(core, Deliver):
        deliver(delivery)
    assert [future.running() for future in futures] == [True, True, False]
    futures[1].cancel()
    core.handle(TasksCancelled([2]), 0.0)
    core.handle(RestoreFailed([1, 2]), 0.0)
    for delivery in effects_of(core, Deliver):
        deliver(delivery)
    core.check()
    assert isinstance(futures[0].exception(), ObjectNotFoundError) and futures[1].cancelled()


def test_what_a_new_server_lacks_is_put_there(storage: ClientStorage, shelf: Shelf) -> None:
    storage.restore()
    array = np.arange(BIG_COUNT)
    arguments = ArgumentCache(DESK, storage)
    made = arguments.store_argument(array)
    copied, gone = storage.store(BIG), storage.store(bytes(SHARED_BYTES))
    kept = dict(shelf.objects)
    assert len(kept) == 3 and type(made) is type(gone) is StoredPayload
    storage.restore()
    assert shelf.objects == kept
    shelf.server, shelf.objects = 2, {}
    storage.restore()
    assert shelf.objects == {name: content for name, content in kept.items() if name != gone[:16]}
    del copied
    shelf.server, shelf.objects = 3, {}
    storage.restore()
    assert list(shelf.objects) == [made[:16]]
    array[0] = 1
    shelf.server, shelf.objects = 4, {}
    storage.restore()
    assert not shelf.objects


def test_a_server_that_is_lost_while_objects_are_put_there_is_followed_by_the_next(
    storage: ClientStorage, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = [storage.store(BIG), storage.store(BIG)]
    put, servers = shelf.put, iter([3, 4])

    def put_and_die(*words: Any, **options: Any) -> None:
        put(*words, **options)
        if (server := next(servers, 0)) != 0:
            shelf.server, shelf.objects = server, {}

    shelf.server, shelf.objects = 2, {}
    monkeypatch.setattr(shelf, "put", put_and_die)
    assert storage.restore() == 4
    assert shelf.objects.keys() == {handle[:16] for handle in kept}


# --- a scheduler that was started again ------------------------------------------------------------------------------


def test_what_a_scheduler_forgot_is_swept_when_all_that_was_under_way_has_ended() -> None:
    core = connected()
    futures: list[ScalerFuture[Any]] = [ScalerFuture(DESK, number, GROUP, b"call") for number in (1, 2)]
    core.handle(CallsSubmitted(futures), 0.0)
    assert not effects_of(core, ListUnknownObjects)
    core.handle(LinkDown("cut"), 0.0)
    core.handle(LinkUp(Welcome(1), resumed=True), 0.0)
    assert not effects_of(core, ListUnknownObjects)  # it has forgotten nothing
    core.handle(LinkUp(Welcome(2), resumed=False), 0.0)
    assert len(effects_of(core, ListUnknownObjects)) == 1
    core.handle(UnknownObjectsListed(), 0.0)
    core.handle(CallsSubmitted([ScalerFuture(DESK, 3, GROUP, b"later")]), 0.0)
    assert not effects_of(core, DeleteUnknownObjects)
    core.handle(Done([2], [Status.VALUE], Payloads([b"2"])), 0.0)
    core.handle(TasksCancelled([1]), 0.0)
    assert len(effects_of(core, DeleteUnknownObjects)) == 1 and not effects_of(core, DeleteUnknownObjects)


def test_sweeping_frees_what_nobody_knows(storage: ClientStorage, shelf: Shelf) -> None:
    assert not storage.list_unknown()  # nothing was ever put, nobody is asked
    kept = stored(storage)
    names = [new_object_id() for _ in range(3)]
    shelf.objects.update(dict.fromkeys(names, BIG))
    assert storage.list_unknown()
    late = new_object_id()
    shelf.objects[late] = BIG
    come = storage.adopt(Reference(names[0], len(BIG)).pack())
    storage.delete_unknown()
    assert set(shelf.objects) == {kept[:16], come[:16], late}
    storage.delete_unknown()
    assert late in shelf.objects


def test_a_fork_drops_a_stored_result_although_another_thread_had_the_lock(
    storage: ClientStorage, shelf: Shelf
) -> None:
    kept = storage.adopt(Reference(new_object_id(), 20_000).pack())
    locked, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        with storage._lock:
            locked.set()
            let_go.wait(30)

    holder = threading.Thread(target=hold)
    holder.start()
    locked.wait(30)
    pid = os.fork()
    if not pid:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(10)
        storage.refuse(ClientForkedError())
        del kept
        os._exit(0)
    let_go.set()
    holder.join()
    assert os.waitpid(pid, 0)[1] == 0
    assert not shelf.deleted, "it is the parent's"
