"""Big payloads on a worker's host: where the storage is, what is kept, how the objects of runs are named."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from scaler_client.payloads.pickles import dump
from scaler_protocol.errors import ObjectNotFoundError, ScalerError
from scaler_protocol.ids import function_id
from scaler_protocol.messages import Functions, Group
from scaler_protocol.objects import SHARED_BYTES, Reference
from scaler_protocol.payloads import Payloads
from scaler_worker.agent.core.functions import FunctionTable
from scaler_worker.agent.core.records import FunctionKind
from scaler_worker.ipc.frames import Definition, handle_of, pack_definition, result_name, unpack_definition
from scaler_worker.ipc.shared_state import SharedState
from scaler_worker.worker.object_store import UNCONFIRMED_BYTES, WorkerObjectStore
from support.shelves import Shelf


def storage_with(shelf: Shelf, monkeypatch: pytest.MonkeyPatch, limit: int = 10) -> WorkerObjectStore:
    monkeypatch.setattr(WorkerObjectStore, "_connect", lambda self, address: shelf)
    return WorkerObjectStore(lambda: "tcp://127.0.0.1:1", b"secret", "w", limit)


def test_results_are_named_after_their_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = Shelf(7)
    storage = storage_with(shelf, monkeypatch)
    task = (7 << 32) + 5
    reference = Reference.unpack(storage.put(b"result", task, 99))
    assert reference == Reference(result_name(b"secret", task, 99, os.getpid()), 6)
    assert storage.get(reference.pack()) == b"result" and storage.session and storage.named
    ways = [(b"secret", task, 99, 1), (b"secret", task, 99, 2), (b"secret", task, 98, 1), (b"other", task, 99, 1)]
    ways += [(b"secret", task + 1, 99, 1), (b"secret", task + (1 << 32), 99, 1)]
    names = {result_name(*way) for way in ways}
    assert len(names | {reference.object}) == 7 and {len(name) for name in names} == {16}


def test_little_is_put_without_waiting_and_much_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = Shelf(7)
    storage = storage_with(shelf, monkeypatch)
    size, references, told = SHARED_BYTES - 1, list[bytes](), list[ScalerError | None]()
    assert not storage.may_put_soon(SHARED_BYTES)
    while storage.may_put_soon(size):
        references.append(storage.put_soon(bytes(size), (7 << 32) + 5, 99 + len(shelf.on_the_way), told.append))
    assert len(shelf.on_the_way) * size <= UNCONFIRMED_BYTES < (len(shelf.on_the_way) + 1) * size
    shelf.arrive()
    assert storage.may_put_soon(size) and told == [None]
    while shelf.on_the_way:
        shelf.arrive()
    assert all(storage.get(reference) == bytes(size) for reference in references)
    assert storage.may_put_soon(size) and told == [None] * len(references)
    monkeypatch.setattr(Shelf, "put_soon", lambda *args, **kwargs: pytest.fail("closed"))
    with pytest.raises(pytest.fail.Exception):
        storage.put_soon(bytes(size), (7 << 32) + 5, 1, told.append)
    assert storage.may_put_soon(size) and told == [None] * len(references)


def test_what_others_may_need_is_kept_up_to_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = Shelf(7)
    storage = storage_with(shelf, monkeypatch)
    references = {}
    for letter in (b"a", b"b", b"c"):
        name = letter * 16
        shelf.objects[name] = letter * 4
        references[letter] = Reference(name, 4).pack()
    for letter in (b"a", b"b", b"a", b"c", b"a", b"b"):  # the limit lets two of them stay
        assert storage.get_shared(references[letter]) == letter * 4
    assert [name[:1] for name in shelf.read] == [b"a", b"b", b"c", b"b"]
    shelf.objects[b"d" * 16] = b"d" * 11
    for _ in range(2):
        assert len(storage.get_shared(Reference(b"d" * 16, 11).pack())) == 11
    assert [name[:1] for name in shelf.read[4:]] == [b"d", b"d"]
    with pytest.raises(ObjectNotFoundError):
        storage.get_shared(Reference(b"e" * 16, 11).pack())


@pytest.mark.parametrize(
    ("value", "shared"),
    [
        (b"a" * 99_999, True), ("a" * 99_999, True), ((1, "a" * 99_999, frozenset([2.0, None])), True),
        (bytearray(99_999), False), ([1], False), ((1, [2]), False), ({}, False), (np.arange(99_999), False),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_only_what_nobody_can_change_is_shared(monkeypatch: pytest.MonkeyPatch, value: Any, shared: bool) -> None:
    shelf = Shelf(7)
    storage = storage_with(shelf, monkeypatch, 1_000_000)
    shelf.objects[b"o" * 16] = payload = bytes(dump(value))
    reference = Reference(b"o" * 16, len(payload)).pack()
    first, second = (storage.load_shared(reference) for _ in range(2))
    assert (first is second) is shared and len(shelf.read) == 1
    assert np.array_equal(first, value) if isinstance(value, np.ndarray) else first == value
    if isinstance(value, np.ndarray):
        assert np.shares_memory(first, second) and not first.flags.writeable  # two views of the same bytes
    assert storage.get_shared(reference) == payload and len(shelf.read) == 1 + shared  # the bytes were let go


def test_what_is_not_used_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = Shelf(7)
    storage = storage_with(shelf, monkeypatch)
    references = [Reference(name * 16, 3).pack() for name in (b"a", b"b")]
    shelf.objects.update({name * 16: b"abc" for name in (b"a", b"b")})
    for reference in references:
        storage.get_shared(reference)
    storage.forget_unused()
    storage.get_shared(references[0])
    storage.forget_unused()
    assert list(storage._kept) == references[:1]
    storage.forget_unused()
    assert not storage._kept and not storage._size


def test_every_worker_finds_where_the_storage_is_now() -> None:
    shared = SharedState.create(3)
    other = SharedState(os.dup(shared.descriptor), 3)
    try:
        assert (other.storage, len(other.secret), other.secret) == ("", 16, shared.secret)
        shared.cells(2)[0] = 77
        for address in ("tcp://127.0.0.1:2346", "ipc:///a"):
            shared.follow(1, address)
            assert other.storage == address
        assert list(other.cells(2)) == [77, 0, 0, 0]
    finally:
        os.close(other.descriptor)
        os.close(shared.descriptor)


@pytest.mark.parametrize(("body", "serializer"), [(False, False), (True, False), (False, True), (True, True)])
def test_a_definition_says_which_bodies_are_references(body: bool, serializer: bool) -> None:
    definition = Definition(5, b"f", "m:f", b"body", 2, True, b"s", b"class", body, serializer)
    assert unpack_definition(pack_definition(definition)) == definition
    assert handle_of(pack_definition(definition)) == 5


def test_the_agent_passes_references_to_functions_on() -> None:
    table = FunctionTable(0.0)
    function, serializer = function_id(b"reference", stored=True), function_id(b"class")
    table.learn(Functions([function, serializer], ["m:f", "m:S"], Payloads([b"reference", b"class"]), [0]))
    kind = FunctionKind(1, Group(function, serializer=serializer))
    assert not table.missing(kind)
    definition: Any = table.definition(kind)
    assert (definition.body, definition.body_stored) == (b"reference", True)
    assert (definition.serializer_body, definition.serializer_stored) == (b"class", False)
