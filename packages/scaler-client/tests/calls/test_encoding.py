"""Calls as bytes."""

from __future__ import annotations

import gc
import math
import pickle
import sys
import weakref
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from types import ModuleType
from typing import Any, cast

import cloudpickle
import pytest

from scaler_client.calls.arguments import ArgumentCache
from scaler_client.calls.encoding import Callees, PartCalls, PickledCalls, is_plain, name_of
from scaler_client.calls.object_reference import ObjectReference, SentObjects
from scaler_client.calls.part_encoding import read_parts
from scaler_client.objects.store import ClientStorage
from scaler_client.payloads.captures import by_value_modules
from scaler_client.payloads.serializers import DefaultSerializer
from scaler_protocol.buffers import Payload
from scaler_protocol.ids import function_id
from scaler_protocol.limits import NAME
from scaler_protocol.messages import Encoding
from scaler_protocol.serializer import Serializer


class Nobody:
    """An owner of no futures."""

    waiting = nullcontext()

    def cancel(self, tasks: Any) -> None: ...
    def call_soon(self, work: Any) -> None: ...

    def submit_again(self, *call: Any) -> None: ...


class Nowhere:
    """No storage: everything travels inline."""

    losses = 0

    def store(self, payload: Payload, *, soon: bool = False, copying: object = None) -> bytes:
        return bytes(payload)


WRITER = PickledCalls(Nobody(), ArgumentCache(Nobody(), cast(ClientStorage, Nowhere())))


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (1, True), (1.5, True), ("a", True), (b"a", True), (True, True), (None, True), ((1, ("a",)), True), ((), True),
        ([1], False), ((1, [2]), False), (tuple(range(17)), False), (math.sqrt, False), (Nobody(), False),
    ],
)  # fmt: skip
def test_plain_values(value: object, plain: bool) -> None:
    assert is_plain(value) is plain


@pytest.mark.parametrize(
    ("args", "kwargs"), [((), {}), ((1, "a"), {}), ((1,), {"b": (2,)}), (([1],), {}), ((1,), {"b": [2]})]
)
def test_a_call_is_one_pickle(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    call, needs = WRITER.write(args, kwargs)
    assert pickle.loads(bytes(call)) == (args, kwargs) and not needs


def test_rows() -> None:
    for rows in ([(1,), (2,)], [([1],), (2, 3)], [((1,),)]):
        calls, needs = WRITER.write_rows(rows)
        assert [pickle.loads(bytes(call)) for call in calls] == [(row, {}) for row in rows] and not needs


def test_lambdas_and_local_classes_as_arguments() -> None:
    class Local:
        def __init__(self) -> None:
            self.fn = lambda x: x + 1

    call, _ = WRITER.write((Local(),), {})
    assert pickle.loads(bytes(call))[0][0].fn(1) == 2


# --- functions ------------------------------------------------------------------------------------------------------


def callees() -> Callees:
    return Callees(WRITER, stream_output=False)


def test_a_function_is_known_by_its_bytes() -> None:
    known = callees()
    callee = known.find(math.sqrt)
    assert callee.body.id == function_id(callee.body.body)
    assert callee.body.name == "math:sqrt" and known.find(math.sqrt) is callee
    assert known.group(callee) is known.group(callee) is known.group_with(callee)
    with_options = known.group_with(callee, (("gpu", 1),), priority=2)
    assert with_options is not known.group(callee) and with_options is known.group_with(
        callee, (("gpu", 1),), priority=2
    )
    assert with_options.wire.capability_names == ("gpu",) and with_options.wire.encoding == Encoding.PICKLE


def test_a_steady_function_is_written_once_and_a_changed_one_again(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[object] = []
    real = PickledCalls.dump

    def dump(self: PickledCalls, value: Any) -> bytes:
        written.append(value)
        return real(self, value)

    monkeypatch.setattr(PickledCalls, "dump", dump)
    scope: dict[str, Any] = {"__name__": "__main__", "n": 1, "items": []}
    exec("def prefetchable(): return n\ndef changing(): return items", scope)
    known = callees()
    first = known.find(scope["prefetchable"]).body
    assert known.find(scope["prefetchable"]).body is first and len(written) == 1
    assert known.write(scope["prefetchable"]).body is first and len(written) == 2  # the same bytes
    scope["n"] = 2
    assert known.find(scope["prefetchable"]).body is not first
    for count in (1, 2):
        scope["items"].append(count)
        body = known.find(scope["changing"]).body
        assert pickle.loads(body.body)() == list(range(1, count + 1))


def test_callables_with_state_are_written_each_time() -> None:
    class Counter:
        count = 0

        def __call__(self) -> int:
            return self.count

        def read(self) -> int:
            return self.count

    known, counter = callees(), Counter()
    for fn in (counter, counter.read, partial(counter.read)):
        counter.count = 1
        first = known.find(fn).body
        counter.count = 2
        second = known.find(fn).body
        assert (pickle.loads(first.body)(), pickle.loads(second.body)()) == (1, 2)


class ByValueSerializer(Serializer):
    """Notes nothing of its own: a custom serializer that writes functions as the default one does."""

    serialize = staticmethod(DefaultSerializer.serialize)
    deserialize = staticmethod(DefaultSerializer.deserialize)


@pytest.fixture(params=["default", "custom"])
def known(request: pytest.FixtureRequest) -> Callees:
    writer = WRITER if request.param == "default" else PartCalls(Nobody(), ByValueSerializer)
    return Callees(writer, stream_output=False)


OWNED = "value = 1\ndef f(): return value"


def run(known: Callees, fn: Any, *args: Any) -> Any:
    """What a worker, which has imported `owned` as it was at first, would get of a call now."""
    body = known.find(fn).body.body
    imported = ModuleType("owned")
    exec(OWNED, vars(imported))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "owned", imported)
        return pickle.loads(body)(*args)


def test_a_captured_method_of_what_changes(known: Callees) -> None:
    scope: dict[str, Any] = {"__name__": "__main__", "found": {}}
    exec("get = found.get\ndef f(): return get('key')", scope)
    assert run(known, scope["f"]) is None and run(known, scope["get"], "key") is None
    scope["found"]["key"] = 1
    assert run(known, scope["f"]) == 1 == run(known, scope["get"], "key")


def test_a_module_object_that_changes(known: Callees) -> None:
    settings = ModuleType("settings that nobody can import")
    vars(settings)["level"] = 1
    scope: dict[str, Any] = {"__name__": "__main__", "settings": settings}
    exec("def f(): return settings.level", scope)
    assert run(known, scope["f"]) == 1
    vars(settings)["level"] = 2
    assert run(known, scope["f"]) == 2


def test_attributes_that_a_function_gets_later(known: Callees) -> None:
    scope: dict[str, Any] = {"__name__": "__main__"}
    exec("def f(): return getattr(f, 'note', None)", scope)
    assert run(known, scope["f"]) is None
    scope["f"].note = "later"
    assert run(known, scope["f"]) == "later"


@pytest.fixture
def owned(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A module that can be imported, with a function `f` that returns 1."""
    module = ModuleType("owned")
    monkeypatch.setitem(sys.modules, "owned", module)
    exec(OWNED, vars(module))
    yield module
    if "owned" in by_value_modules:
        cloudpickle.unregister_pickle_by_value(module)


def test_a_module_that_is_registered_by_value_later(known: Callees, owned: ModuleType) -> None:
    scope: dict[str, Any] = {"__name__": "__main__", "owned": owned}
    exec("def outer(): return owned.f()", scope)
    vars(owned)["value"] = 5
    for fn in (owned.f, scope["outer"]):
        assert run(known, fn) == 1
    cloudpickle.register_pickle_by_value(owned)
    for value in (2, 3):
        vars(owned)["value"] = value
        assert run(known, owned.f) == value == run(known, scope["outer"])
    cloudpickle.unregister_pickle_by_value(owned)
    assert run(known, owned.f) == 1


def test_a_reload_that_gives_old_functions_new_code(known: Callees, owned: ModuleType) -> None:
    """What IPython's autoreload does: the old function is not what the module holds, so it travels by value."""
    old = owned.f
    scope: dict[str, Any] = {"__name__": "__main__", "f": old}
    exec("def outer(): return f()", scope)
    assert run(known, old) == 1 == run(known, scope["outer"])
    exec("value = 1\ndef f(): return value + 1", vars(owned))
    old.__code__ = owned.f.__code__
    assert run(known, old) == 2 == run(known, scope["outer"])


def test_the_check_of_arguments_follows_the_code(known: Callees, owned: ModuleType) -> None:
    for fn in (owned.f, eval("lambda: None", {"__name__": "__main__"})):
        known.find(fn).check.check()
        with pytest.raises(TypeError):
            known.find(fn).check.check(1)
        fn.__code__ = (lambda a: a).__code__
        known.find(fn).check.check(1)
        with pytest.raises(TypeError):
            known.find(fn).check.check()
        fn.__defaults__ = (1,)
        known.find(fn).check.check()


def test_a_group_is_of_the_function_that_its_caller_found(known: Callees, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that found a function asks for its group while another one writes it again."""
    scope: dict[str, Any] = {"__name__": "__main__", "n": 1}
    exec("def f(): return n", scope)
    before = known.find(scope["f"])
    place = known._store

    def other_thread(written: Any) -> bytes:
        known.group(before)
        return place(written)

    monkeypatch.setattr(known, "_store", other_thread)
    scope["n"] = 2
    after = known.find(scope["f"])
    assert known.group(after).wire.function == after.body.id == known.group(known.find(scope["f"])).wire.function
    assert known.group(before).wire.function == before.body.id != after.body.id


def test_functions_that_are_gone_are_forgotten() -> None:
    known = callees()
    fn = eval("lambda: 1", {"__name__": "__main__"})
    known.find(fn)
    assert len(known._callees) == 1
    del fn
    gc.collect()
    assert not known._callees


def test_what_is_known_of_a_recursive_function_goes_with_it() -> None:
    """In the collection that frees the function, and not in a later one, as its bytes may be many."""

    def make() -> Any:
        data = bytes(10)

        def again(count: int) -> Any:
            return again(count - 1) if count else data

        return again

    found, fn = callees(), make()
    gone = weakref.ref(found.find(fn).body)
    assert gone() is not None
    del fn
    gc.collect()
    assert gone() is None and not found._callees


def test_another_parent_is_another_group() -> None:
    known = callees()
    callee = known.find(math.sqrt)
    outer = known.group(callee)
    known.parent = 7
    inner = known.group(callee)
    assert (outer.parent, inner.parent) == (0, 7) and inner.wire is not None


def test_what_can_not_be_called() -> None:
    with pytest.raises(TypeError, match="must be callable"):
        callees().find("text")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fn", "name"),
    [
        (math.sqrt, "math:sqrt"),
        (partial(math.sqrt, 1), "math:sqrt"),
        (pickle.Pickler, "_pickle:Pickler"),
        (str.upper, "str.upper"),
        ([].append, "list.append"),
        (SentObjects().add, "scaler_client.calls.object_reference:SentObjects.add"),
    ],
)
def test_names(fn: Any, name: str) -> None:
    assert name_of(fn) == name


# --- parts ----------------------------------------------------------------------------------------------------------


class TextSerializer(Serializer):
    @staticmethod
    def serialize(obj: Any) -> bytes:
        return repr(obj).encode()

    @staticmethod
    def deserialize(payload: bytes) -> Any:
        return eval(payload)


def test_parts() -> None:
    writer = PartCalls(Nobody(), TextSerializer)
    call, needs = writer.write((1, "a"), {"key": [2]})
    assert read_parts(bytes(call), TextSerializer.deserialize) == ((1, "a"), {"key": [2]}) and not needs
    assert writer.serializer is not None and pickle.loads(writer.serializer.body) is TextSerializer
    assert writer.write_rows([(1,), (2,)])[0] == [writer.write((1,), {})[0], writer.write((2,), {})[0]]


def test_references_among_parts() -> None:
    sent = SentObjects()
    ours: ObjectReference[Any] = ObjectReference(b"", 1, sent.add(b"[1]"), TextSerializer.deserialize)
    theirs: ObjectReference[Any] = ObjectReference(b"", 1, sent.add(DefaultSerializer.serialize([2])), pickle.loads)
    call, _ = PartCalls(Nobody(), TextSerializer).write((ours, theirs), {})
    assert read_parts(bytes(call), TextSerializer.deserialize) == (([1], [2]), {})


def test_a_failed_argument_is_named() -> None:
    from scaler_client.futures.futures import finished_future

    callee = callees()
    group = callee.group(callee.find(math.sqrt))
    failed = finished_future(Nobody(), group, 1)
    assert WRITER.write((failed,), {})[1] == []
    from scaler_client.futures.futures import FailedArgumentError, ScalerFuture

    cancelled: ScalerFuture[int] = ScalerFuture(Nobody(), 1, group, b"")
    cancelled.cancel()
    for writer in (WRITER, PartCalls(Nobody(), TextSerializer)):
        with pytest.raises(FailedArgumentError) as caught:
            writer.write((cancelled,), {})
        assert caught.value.argument is cancelled


@pytest.mark.parametrize("name", ["q" * 70_000, "q\udc80"])
def test_the_name_of_a_function_fits_into_messages(name: str) -> None:
    def function() -> None: ...

    function.__qualname__ = name
    told = name_of(function)
    assert not NAME.fault(told) and told.startswith(f"{__name__}:q")


class OddSerializer(Serializer):
    """Returns no bytes for numbers."""

    @staticmethod
    def serialize(obj: Any) -> Any:
        return obj if isinstance(obj, int) else pickle.dumps(obj)

    @staticmethod
    def deserialize(payload: bytes) -> Any:
        return pickle.loads(payload)


def test_a_serializer_that_returns_no_bytes_is_named_with_the_argument() -> None:
    writer = PartCalls(Nobody(), OddSerializer)
    for write in (lambda: writer.write(("a", 5), {}), lambda: writer.write_rows([("a", 5)])):
        with pytest.raises(TypeError, match=r"OddSerializer\.serialize returned int, expected bytes") as found:
            write()
        assert "argument 2" in found.value.__dict__["__notes__"][0]
    with pytest.raises(TypeError, match=r"OddSerializer\.serialize returned int, expected bytes"):
        writer.dump_object(5)
