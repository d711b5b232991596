"""Big payloads on a worker's host: where the storage is, what is kept, how the objects of runs are named."""

from __future__ import annotations

import os
from typing import Any

import pytest

from scaler_protocol.errors import ObjectNotFoundError
from scaler_protocol.messages import Functions, Group
from scaler_protocol.objects import Reference
from scaler_protocol.payloads import Payloads
from scaler_worker.channel import Definition, handle_of, pack_definition, result_name, unpack_definition
from scaler_worker.functions import FunctionTable
from scaler_worker.records import FunctionKind
from scaler_worker.storage import WorkerStorage
from scaler_worker.words import SharedWords


class Shelf:
    """An ObjectConnection whose server is a dict."""

    def __init__(self) -> None:
        self.objects: dict[bytes, bytes] = {}
        self.read: list[bytes] = []
        self.put_for: list[int] = []

    def put(self, payload: bytes, *, session: int, name: bytes) -> Reference:
        self.objects[name] = payload
        self.put_for.append(session)
        return Reference(name, len(payload))

    def get(self, reference: Reference) -> bytes:
        self.read.append(reference.object)
        if reference.object not in self.objects:
            raise ObjectNotFoundError
        return self.objects[reference.object]


def storage_with(shelf: Shelf, monkeypatch: pytest.MonkeyPatch, limit: int = 10) -> WorkerStorage:
    monkeypatch.setattr(WorkerStorage, "_connect", lambda self, address: shelf)
    return WorkerStorage(lambda: "tcp://127.0.0.1:1", b"secret", "w", limit)


def test_results_are_named_after_their_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = Shelf()
    storage = storage_with(shelf, monkeypatch)
    reference = Reference.unpack(storage.put(b"result", 7, 99))
    assert reference == Reference(result_name(b"secret", 99, os.getpid()), 6) and shelf.put_for == [7]
    assert storage.get(reference.pack()) == b"result" and storage.session and storage.named
    names = {result_name(b"secret", 99, 1), result_name(b"secret", 99, 2), result_name(b"other", 99, 1)}
    assert len(names | {reference.object}) == 4


def test_what_others_may_need_is_kept_up_to_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = Shelf()
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


def test_every_worker_finds_where_the_storage_is_now() -> None:
    words = SharedWords.create(3)
    other = SharedWords(os.dup(words.descriptor), 3)
    try:
        assert (other.storage, len(other.secret), other.secret) == ("", 16, words.secret)
        words.of(2)[0] = 77
        for address in ("tcp://127.0.0.1:2346", "ipc:///a"):
            words.storage = address
            assert other.storage == address
        assert list(other.of(2)) == [77, 0, 0]
    finally:
        os.close(other.descriptor)
        os.close(words.descriptor)


@pytest.mark.parametrize(("body", "serializer"), [(False, False), (True, False), (False, True), (True, True)])
def test_a_definition_says_which_bodies_are_references(body: bool, serializer: bool) -> None:
    definition = Definition(5, b"f", "m:f", b"body", 2, True, b"s", b"class", body, serializer)
    assert unpack_definition(pack_definition(definition)) == definition
    assert handle_of(pack_definition(definition)) == 5


def test_the_agent_passes_references_to_functions_on() -> None:
    table = FunctionTable(0.0)
    table.learn(Functions([b"f", b"s"], ["m:f", "m:S"], Payloads([b"reference", b"class"]), [0]))
    kind = FunctionKind(1, Group(b"f", serializer=b"s"))
    assert not table.missing(kind)
    definition: Any = table.definition(kind)
    assert (definition.body, definition.body_stored) == (b"reference", True)
    assert (definition.serializer_body, definition.serializer_stored) == (b"class", False)
