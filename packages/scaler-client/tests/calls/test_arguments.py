"""Big arguments: which of them are objects of their own, and how often they are put."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from scaler_client import task_context
from scaler_client.calls import arguments as uploads_module
from scaler_client.calls.arguments import ArgumentCache, store
from scaler_client.calls.encoding import PickledCalls
from scaler_client.core.records import CallBlock, CallGroup
from scaler_client.objects import rebuild
from scaler_client.objects.handles import StoredObject, StoredPayload, object_bytes
from scaler_client.objects.rebuild import weak_source
from scaler_client.objects.store import ClientStorage
from scaler_client.payloads import pickles
from scaler_io.objects.segments import Copying, copies
from scaler_protocol.buffers import Payload
from scaler_protocol.errors import StorageFullError
from scaler_protocol.handshake import INLINE_LIMIT
from scaler_protocol.messages import Group
from scaler_protocol.objects import SHARED_BYTES

BIG = INLINE_LIMIT + 1


class Nobody:
    """An owner of no futures."""

    waiting: AbstractContextManager[object] = nullcontext()

    def cancel(self, tasks: Any) -> None: ...
    def call_soon(self, work: Any) -> None: ...

    def submit_again(self, *call: Any) -> None: ...


class FakeStorage:
    """A ClientStorage without a server."""

    def __init__(self) -> None:
        self.losses = 0
        self.puts: list[int] = []
        self.objects: dict[bytes, bytes] = {}
        self.full = False
        self.others: AbstractContextManager[object] = nullcontext()
        """What other threads do while an object is put."""

    def store(self, payload: Payload, *, soon: bool = False, copying: Copying | None = None) -> bytes:
        if self.full:
            raise StorageFullError
        reference = len(self.puts).to_bytes(16, "big") + len(payload).to_bytes(8, "little")
        self.puts.append(len(payload))
        with self.others:
            views = [memoryview(piece).cast("B") for piece in rebuild.pieces(payload)]
            self.objects[reference] = b"".join(views if copying is None else copies(views, copying))
        return StoredPayload.of(StoredObject(self, reference))

    def fetch(self, reference: bytes, timeout: float = 0.0) -> bytes:
        return self.objects[reference]

    def free(self, reference: bytes) -> None:
        del self.objects[reference]


class Model:
    """Something of the user's."""

    def __init__(self) -> None:
        self.weights = list(range(BIG))


@pytest.fixture
def storage() -> FakeStorage:
    return FakeStorage()


@pytest.fixture
def arguments(storage: FakeStorage) -> ArgumentCache:
    return ArgumentCache(Nobody(), cast(ClientStorage, storage))


@pytest.fixture
def writer(arguments: ArgumentCache) -> PickledCalls:
    return PickledCalls(Nobody(), arguments)


LASTING: dict[str, Any] = {
    "array": np.arange(BIG),
    "bytes": b"a" * BIG,
    "text": "a" * BIG,
    "set": {str(number) for number in range(BIG)},
    "model": Model(),
}
EACH_TIME: dict[str, Any] = {"bytearray": bytearray(BIG), "list": list(range(BIG)), "tuple": (b"b" * BIG,)}


@pytest.mark.parametrize("name", [*LASTING, *EACH_TIME])
def test_the_same_argument_is_put_once(writer: PickledCalls, storage: FakeStorage, name: str) -> None:
    value = {**LASTING, **EACH_TIME}[name]
    calls = [writer.write((value, number), {"again": value}) for number in range(12)]
    assert len(storage.puts) == 1 and len({needs[0] for _, needs in calls}) == 1
    assert all(type(call) is bytes and len(call) < 1000 for call, _ in calls)
    del calls
    gc.collect()
    living = name in LASTING and name not in ("bytes", "text")
    assert len(storage.objects) == living  # of what can die, as long as it lives


def test_an_equal_argument_that_comes_while_the_object_is_freed_is_put_anew(
    writer: PickledCalls, storage: FakeStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    later: list[Any] = []

    def free(reference: bytes) -> None:
        monkeypatch.undo()
        storage.free(reference)
        later.append(writer.write((list(range(BIG)),), {}))

    monkeypatch.setattr(storage, "free", free)
    call = writer.write((list(range(BIG)),), {})
    del call
    assert len(storage.puts) == 2 and len(storage.objects) == 1 == len(later)


def test_what_is_known_by_identity_is_not_hashed_again(
    writer: PickledCalls, storage: FakeStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    array, hashed = np.arange(BIG), list[int]()
    key = rebuild.content_key
    monkeypatch.setattr(uploads_module, "content_key", lambda payload: (hashed.append(1), key(payload))[1])  # type: ignore[func-returns-value]
    for number in range(5):
        writer.write((array, number), {})
    assert len(hashed) == 1 == len(storage.puts)


def test_equal_ones_are_put_once_while_one_of_them_is_kept(writer: PickledCalls, storage: FakeStorage) -> None:
    kept = [writer.write((np.arange(BIG),), {}) for _ in range(3)]
    assert len(storage.puts) == 1 == len(storage.objects)
    kept.append(writer.write((np.arange(1, BIG + 1),), {}))
    assert len(storage.puts) == 2
    kept.clear()
    assert not storage.objects
    writer.write((np.arange(BIG),), {})
    assert len(storage.puts) == 3


@pytest.mark.parametrize("lasting", [True, False], ids=["for good", "and back"])
@pytest.mark.parametrize("size", [BIG, SHARED_BYTES], ids=["soon", "big"])
def test_an_object_is_known_by_what_was_stored(
    writer: PickledCalls, storage: FakeStorage, size: int, lasting: bool
) -> None:
    """Another thread changes an array while it is put; an equal one that comes later gets its own bytes."""
    array = np.zeros(size)

    @contextmanager
    def change() -> Iterator[None]:
        array[:] = 1.0
        yield
        if not lasting:
            array[:] = 0.0

    storage.others = change()
    kept = [writer.write((array,), {})]
    storage.others = nullcontext()
    for later in (np.zeros(size), np.ones(size), array):
        kept.append(writer.write((later,), {}))
        (stored,) = kept[-1][1]
        assert isinstance(stored, StoredObject)
        assert np.array_equal(pickles.load(stored.fetch()), later)
        assert stored.source is not None and stored.source.payload() in (None, stored.fetch())


def test_an_id_that_is_used_again_is_not_mistaken(writer: PickledCalls, storage: FakeStorage) -> None:
    seen = set()
    for number in range(50):
        array = np.full(BIG, number)
        seen.add(id(array))
        _, needs = writer.write((array,), {})
        (kept,) = needs
        assert isinstance(kept, StoredObject) and pickles.load(kept.fetch())[0] == number
        del array, kept, needs
    assert len(seen) < 50 and len(storage.puts) == 50 and not storage.objects


def changing() -> dict[str, tuple[Any, Callable[[Any], object]]]:
    """What can be changed in place, and how."""
    return {
        "array": (np.zeros(BIG), lambda array: array.__setitem__(0, 1.0)),
        "view": (np.zeros((BIG, 2))[::2], lambda array: array.base.__setitem__((2, 1), 1.0)),
        "list": ([0.0] * BIG, lambda numbers: numbers.__setitem__(-1, 1.0)),
        "dict": ({number: "" for number in range(BIG)}, lambda found: found.__setitem__(7, "seven")),
        "bytearray": (bytearray(BIG), lambda content: content.__setitem__(BIG // 2, 1)),
        "model": (Model(), lambda model: model.weights.reverse()),
    }


@pytest.mark.parametrize("name", changing())
def test_what_was_changed_in_place_is_sent_as_it_is(writer: PickledCalls, storage: FakeStorage, name: str) -> None:
    value, change = changing()[name]

    def seen() -> Any:
        (kept,) = writer.write((value,), {})[1]
        assert isinstance(kept, StoredObject)
        return pickle.dumps(getattr(found := pickles.load(kept.fetch()), "weights", found))

    def now() -> Any:
        return pickle.dumps(getattr(copy := pickles.load(bytes(pickles.dump(value))), "weights", copy))

    before = now()
    assert seen() == before == seen()
    change(value)
    assert seen() == now() == seen() != before
    assert len(storage.puts) == 2 or name not in LASTING


def swap(array: Any, one: Any, other: Any) -> None:
    array[one], array[other] = array[other].copy(), array[one].copy()


@pytest.mark.parametrize(
    "change",
    [
        np.ndarray.sort, lambda a: swap(a, 5, 6), lambda a: swap(a, 5, 5 + 1024), lambda a: swap(a, -1, -2),
        lambda a: swap(a, slice(0, 1024), slice(1024, 2048)), lambda a: swap(a, slice(0, 4000), slice(4000, 8000)),
        lambda a: a.view(np.uint8).__setitem__(12345, a.view(np.uint8)[12345] ^ 1), lambda a: a.__setitem__(-1, 0.5),
        lambda a: np.copyto(a, np.roll(a, 1)), lambda a: np.copyto(a, a[::-1].copy()), lambda a: a.fill(0.0),
        lambda a: (a.__setitem__(3, a[3] + 1), a.__setitem__(4, a[4] - 1)), lambda a: np.negative(a, out=a),
    ],
)  # fmt: skip
def test_a_checksum_tells_any_change(change: Callable[[Any], object]) -> None:
    array = np.random.default_rng(1).random(9999)

    def seen() -> bytes:
        return rebuild.checksum(pickles.dump(array))

    before = seen()
    assert seen() == before
    change(array)
    assert seen() != before


def test_reserialize_puts_it_again(writer: PickledCalls, storage: FakeStorage) -> None:
    array = np.zeros(BIG)
    reserialized: set[int] = set()
    writer.write((array,), {})
    for _ in range(3):
        writer.write((array,), {}, reserialized)
    assert len(storage.puts) == 2


def test_sources_give_what_is_alive_and_as_it_was(writer: PickledCalls, storage: FakeStorage) -> None:
    array, text = np.zeros(BIG), b"a" * BIG
    (of_array,), (of_text,), (of_list,) = (writer.write((value,), {})[1] for value in (array, text, [text]))
    for kept, value in ((of_array, array), (of_text, text)):
        assert isinstance(kept, StoredObject) and kept.source is not None
        assert kept.source.payload() == bytes(pickles.dump(value)) == kept.fetch()
    assert isinstance(of_list, StoredObject) and of_list.source is None  # nobody can tell when it goes
    source = of_array.source  # type: ignore[attr-defined]
    array[3] = 1.0
    assert source.payload() is None
    array[3] = 0.0
    assert source.payload() is not None
    del array, value
    assert source.payload() is None
    stored_in = cast(ClientStorage, storage)
    sent = store(stored_in, pickles.dump(Model()), partial(weak_source, model := Model(), pickles.dump))
    assert type(sent) is StoredPayload and sent.object.source is not None
    assert sent.object.source.payload() == sent.object.fetch()
    del model
    assert sent.object.source.payload() is None


def test_what_is_sent_is_stored_without_a_hash_of_its_content(
    storage: FakeStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads_module, "content_key", None)
    arrays = [np.zeros(SHARED_BYTES), np.zeros(SHARED_BYTES)]
    sent = [
        store(cast(ClientStorage, storage), pickles.dump(array), partial(weak_source, array, pickles.dump))
        for array in arrays
    ]
    assert len(storage.objects) == 2
    for each in sent:
        assert type(each) is StoredPayload and each.object.source is not None
        assert each.object.source.payload() == each.object.fetch()


def test_small_arguments_stay_in_their_calls(writer: PickledCalls, storage: FakeStorage) -> None:
    args = (1, "a" * INLINE_LIMIT, np.arange(10), [2], {"b": b"c"})
    call, needs = writer.write((args[0], *args[2:]), {})
    assert type(call) is bytes and not needs and not storage.puts
    call, needs = writer.write(args, {})  # none is big, but together they are
    assert len(call) > INLINE_LIMIT and not needs and not storage.puts
    assert pickles.load(bytes(call))[0][1] == args[1]


def test_what_belongs_to_its_call_stays_there(
    writer: PickledCalls, storage: FakeStorage, arguments: ArgumentCache
) -> None:
    placed = arguments.store_argument(b"x" * BIG)
    assert type(placed) is StoredPayload
    named: StoredPayload = placed

    class Naming:
        def __reduce__(self) -> Any:
            from scaler_client.futures.argument_refs import collector

            return bytes, (collector().keep(named),)

    call, needs = writer.write(([Naming(), np.arange(BIG)],), {})
    assert len(call) > 8 * BIG and len(needs) == 1 and len(storage.puts) == 1


def test_one_argument_twice_is_one_value(writer: PickledCalls, monkeypatch: pytest.MonkeyPatch) -> None:
    array = np.arange(BIG)
    call, needs = writer.write((array, array), {})
    loads: list[bytes] = []
    monkeypatch.setattr(task_context, "_runtime", SimpleNamespace(load=lambda name: (loads.append(name), array)[1]))  # type: ignore[func-returns-value]
    (first, second), _ = pickle.loads(bytes(call))
    assert first is second is array and len(needs) == len(loads) == 1


def test_an_argument_that_is_waited_for_goes_with_its_call_the_first_time(storage: FakeStorage) -> None:
    array, least = np.arange(BIG), 8 * BIG
    for longest, carried in ((2 * least, True), (least, False)):
        writer, before = (
            PickledCalls(Nobody(), ArgumentCache(Nobody(), cast(ClientStorage, storage))),
            len(storage.puts),
        )
        carries = longest.__ge__
        call, needs = writer.write((array, 1), {"again": array}, None, carries)
        assert (len(call) > least, bool(needs), len(storage.puts) > before) == (carried, not carried, not carried)
        if carried:
            (first, _), keywords = pickles.load(bytes(call))
            assert first is keywords["again"] and not first.flags.writeable and np.array_equal(first, array)
        again = [writer.write((same,), {}, None, carries) for same in (array, array, np.arange(BIG))]
        assert len(storage.puts) == before + 1 and len({needs[0] for _, needs in again}) == 1


def test_what_two_arguments_share_is_shared_only_where_both_travel_in_the_call(
    writer: PickledCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As docs/client.md says: a big argument travels by itself."""
    small, big = [1], list(range(BIG))
    (first, (within,)), _ = pickles.load(bytes(writer.write((small, [small]), {})[0]))
    assert first is within
    call, needs = writer.write((big, [big]), {})
    stored = {need.reference: need.fetch() for need in needs if isinstance(need, StoredObject)}
    runtime = SimpleNamespace(load=lambda reference: pickles.load(stored[reference]))
    monkeypatch.setattr(task_context, "_runtime", runtime)
    (first, (within,)), _ = pickles.load(bytes(call))
    assert first == within == big and first is not within


def test_what_finds_no_place(writer: PickledCalls, storage: FakeStorage) -> None:
    storage.full = True
    with pytest.raises(StorageFullError):
        writer.write((b"a" * BIG,), {})
    storage.full = False
    assert len(writer.write((b"a" * BIG,), {})[1]) == 1


def test_after_a_loss_nothing_is_known(writer: PickledCalls, storage: FakeStorage, arguments: ArgumentCache) -> None:
    array = np.arange(BIG)
    kept = [writer.write((array,), {}), writer.write((b"a" * BIG,), {})]
    storage.losses += 1
    kept += [writer.write((array,), {}), writer.write((b"a" * BIG,), {})]
    assert len(storage.puts) == 4
    arguments.clear()
    del kept
    assert not storage.objects


def test_rows_hold_back_by_what_they_name(writer: PickledCalls, storage: FakeStorage) -> None:
    array = np.arange(BIG)
    calls, needs = writer.write_rows([(array,), (array,), (1,), (b"a" * BIG,)])
    assert sorted(needs) == [0, 1, 3] and len(storage.puts) == 2
    assert object_bytes(needs.values()) == sum(storage.puts)
    block = CallBlock(
        1, CallGroup(Group(b"f"), (), pickles.load, pickle.dumps), list(map(bytes, calls)), gc.enable, needs
    )
    assert block.argument_bytes > sum(storage.puts) // 4 > block._weight
    del needs
    assert len(storage.objects) == 2
    block.take(4, 0, b"")
    assert len(storage.objects) == 1
