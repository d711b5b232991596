"""Calls as bytes: functions identified by their content, arguments in one pickle or in parts of a custom serializer."""

from __future__ import annotations

import pickle
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeVar

from scaler_client.calls.arguments import ArgumentCache, Carries, CarriesAfter, never
from scaler_client.calls.environments import ClientEnvironment, EnvironmentKey, entered_key
from scaler_client.calls.object_reference import ObjectReference, payload_of
from scaler_client.calls.part_encoding import future_part, object_part
from scaler_client.core.records import CallGroup, Dependency, Fetching, FunctionBody
from scaler_client.futures.argument_refs import Collector, collector
from scaler_client.futures.futures import FailedArgumentError, ScalerFuture
from scaler_client.futures.waiters import FutureOwner
from scaler_client.objects.handles import Store, StoredPayload
from scaler_client.objects.rebuild import checksum, weak_source
from scaler_client.parameters import output_mode
from scaler_client.payloads import pickles
from scaler_client.payloads.captures import Unchanged, by_value_modules, watch
from scaler_client.payloads.serializers import DefaultSerializer
from scaler_client.payloads.signatures import CallCheck, check_for
from scaler_client.payloads.unpicklable import fault_in
from scaler_client.payloads.user_exceptions import add_note
from scaler_client.task_context import load_object
from scaler_protocol.buffers import Payload
from scaler_protocol.capabilities import Capabilities
from scaler_protocol.errors import ScalerError
from scaler_protocol.handshake import INLINE_LIMIT
from scaler_protocol.ids import function_id
from scaler_protocol.limits import NAME, shortened
from scaler_protocol.messages import Encoding, Group
from scaler_protocol.ranges import shown
from scaler_protocol.serializer import Serializer, checked_serialize, join_parts

if TYPE_CHECKING:
    from scaler_client.calls.bundles import Bundle

PLAIN: Final = pickles.SCALARS | {str, bytes}
"""Types whose instances pickle writes like cloudpickle does, several times faster; subclasses excluded."""
_SCALARS: Final = pickles.SCALARS
_SMALL = 16
_NO_KEYWORDS: Final[dict[str, Any]] = {}
_GROUPS_KEPT = 1024
_CALLEES_KEPT = 4096

Needs = Sequence[Dependency]
_Call = tuple[Payload, Needs]
Written = TypeVar("Written", Payload, bytes | None)


def is_plain(value: object) -> bool:
    """Whether pickle suffices: a short scalar, text or bytes, or a small tuple of those."""
    kind = type(value)
    if kind in PLAIN:
        return not pickles.is_long(value)
    return kind is tuple and len(value) <= _SMALL and all(map(is_plain, value))  # type: ignore[arg-type,call-overload]


class _StoredArgument:
    """Replaces an argument in its call by the reference of its object."""

    __slots__ = ("_handle",)

    def __init__(self, handle: StoredPayload) -> None:
        self._handle = handle

    def __reduce__(self) -> tuple[Any, ...]:
        return load_object, (collector().keep(self._handle), pickles.load)


class _CarriedArgument:
    """Replaces an argument in its call by its pickle."""

    __slots__ = ("_pickled",)

    def __init__(self, pickled: bytes) -> None:
        self._pickled = pickled

    def __reduce__(self) -> tuple[Any, ...]:
        return pickles.load, (self._pickled,)


def _argument(found: StoredPayload | Payload) -> _StoredArgument | _CarriedArgument:
    return _StoredArgument(found) if type(found) is StoredPayload else _CarriedArgument(bytes(found))


class PickledCalls:
    """Calls as one pickle of `(args, kwargs)`, in which large arguments are references of objects."""

    encoding = Encoding.PICKLE
    is_traced = False
    fetching: Fetching | None = None
    serializer: FunctionBody | None = None
    load = staticmethod(pickles.load)
    dump_object = staticmethod(pickles.dump)

    def __init__(self, owner: FutureOwner, arguments: ArgumentCache) -> None:
        self.owner, self._arguments = owner, arguments

    def dump(self, value: Any) -> bytes:
        """Serialize a function."""
        return DefaultSerializer.serialize(value)

    def wrapped(self, function: bytes, name: str) -> bytes:
        """The serialized function as workers are sent it."""
        return function

    def fault_in(self, name: str, fn: object) -> str:
        """The part of a function that cannot be serialized."""
        return fault_in(name, fn, self.dump)

    def write(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        reserialized: set[int] | None = None,
        carries: Carries = never,
    ) -> tuple[Payload, Needs]:
        """Serialize a call; returns its dependencies, too. See ArgumentCache for `reserialized` and `carries`.

        Raises FailedArgumentError, a ScalerError if an argument cannot be stored, or what serializing raises.
        """
        for value in args:
            kind = type(value)
            if kind not in _SCALARS and (kind not in PLAIN or len(value) > INLINE_LIMIT) and not is_plain(value):
                break
        else:
            if not kwargs or all(map(is_plain, kwargs.values())):
                return pickle.dumps((args, kwargs), 5), ()
        try:
            return self._write_with_cloudpickle(args, kwargs, reserialized, carries)
        except (FailedArgumentError, ScalerError):
            raise
        except Exception as error:
            given: list[tuple[int | str, Any]] = [*enumerate(args, 1), *kwargs.items()]
            for name, value in given:
                if fault := fault_in(f"argument {name!r}", value, self._try):
                    add_note(error, fault)
                    break
            raise

    def _write_with_cloudpickle(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], reserialized: set[int] | None, carries: Carries
    ) -> _Call:
        values = (*args, *kwargs.values())
        if not any(map(self._arguments.knows, values)):
            call, needs = self._dump(pickles.dump_short, (args, kwargs))
            if call is not None:
                return call, needs
        named: dict[int, _StoredArgument | _CarriedArgument] = {}
        for key, value in {id(value): value for value in values}.items():
            if (found := self._arguments.store_argument(value, reserialized, carries)) is not None:
                named[key] = _argument(found)
        args = tuple([named.get(id(value), value) for value in args])
        kwargs = {keyword: named.get(id(value), value) for keyword, value in kwargs.items()}
        return self._dump(pickles.dump, (args, kwargs))

    def _try(self, value: object) -> None:
        with Collector(self.owner):
            pickles.dump(value)

    def _dump(self, dump: Callable[[Any], Written], call: Any) -> tuple[Written, Needs]:
        with Collector(self.owner) as found:
            payload = dump(call)
        if found.failed is not None:
            found.raise_failure()
        return payload, found.found

    def write_rows(
        self, rows: Sequence[tuple[Any, ...]], reserialized: set[int] | None = None, carries: CarriesAfter = never
    ) -> tuple[Sequence[Payload], dict[int, Needs]]:
        """Serialize many calls without keywords; the dependencies are by position."""
        kinds = set(map(type, chain.from_iterable(rows)))
        if kinds <= PLAIN and (kinds <= _SCALARS or not any(map(pickles.is_long, chain.from_iterable(rows)))):
            dumps = pickle.dumps
            return [dumps((row, _NO_KEYWORDS), 5) for row in rows], {}
        return write_each(self, rows, reserialized, carries)


class PartCalls:
    """Calls of a custom serializer: one part per argument."""

    encoding = Encoding.PARTS
    fetching: Fetching | None = None

    def __init__(self, owner: FutureOwner, serializer: Serializer | type[Serializer], store: Store = bytes) -> None:
        self.owner = owner
        self.load = serializer.deserialize
        self.dump = self.dump_object = checked_serialize(serializer)
        body = store(DefaultSerializer.serialize(serializer))
        kind = serializer if isinstance(serializer, type) else type(serializer)
        self.serializer: FunctionBody | None = FunctionBody(
            function_id(body, stored=type(body) is StoredPayload), name_of(kind), body
        )

    def write(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        reserialized: set[int] | None = None,
        carries: Carries = never,
    ) -> tuple[Payload, Needs]:
        """Serialize a call, and every argument of it again; returns its dependencies, too. No argument is an object.

        Raises FailedArgumentError, a ScalerError, or what the serializer raises.
        """
        names: list[str] = []
        parts: list[bytes] = []
        with Collector(self.owner) as found:
            for at, (keyword, value) in enumerate(chain((("", value) for value in args), kwargs.items()), 1):
                try:
                    name, part = self._part(found, keyword, value)
                except (FailedArgumentError, ScalerError):
                    raise
                except Exception as error:
                    add_note(error, f"raised while argument {keyword or at!r} was serialized: {shown(value)}")
                    raise
                names.append(name)
                parts.append(part)
        return join_parts(names, parts), found.found

    def wrapped(self, function: bytes, name: str) -> bytes:
        """The serialized function as workers are sent it."""
        return function

    def fault_in(self, name: str, fn: object) -> str:
        """Unknown: what can be serialized is known to the serializer alone."""
        return ""

    def write_rows(
        self, rows: Sequence[tuple[Any, ...]], reserialized: set[int] | None = None, carries: CarriesAfter = never
    ) -> tuple[Sequence[Payload], dict[int, Needs]]:
        """Serialize many calls without keywords; the dependencies are by position."""
        return write_each(self, rows, reserialized, carries)

    def _part(self, found: Collector, keyword: str, value: Any) -> tuple[str, bytes]:
        if isinstance(value, ObjectReference):
            handle = payload_of(value)
            if value._load == self.load and type(handle) is StoredPayload:
                return object_part(keyword, found.keep(handle))
            if value._load == self.load:
                return keyword, handle
            value = value.value()
        elif isinstance(value, ScalerFuture):
            if not value.done() or value._is_stored_for(self.owner, self.load):
                return future_part(keyword, value._add_to(found))
            if (payload := value._payload_for(self.load)) is not None:
                return keyword, payload
            if value.cancelled() or value.exception() is not None:
                raise FailedArgumentError(value)
            value = value._made()
        return keyword, self.dump(value)


CallWriter = PickledCalls | PartCalls


def write_each(
    writer: CallWriter, rows: Sequence[tuple[Any, ...]], reserialized: set[int] | None, carries: CarriesAfter
) -> tuple[list[Payload], dict[int, Needs]]:
    """Serialize many calls, one by one."""
    calls: list[Payload] = []
    needs: dict[int, Needs] = {}
    for position, row in enumerate(rows):
        call, needed = writer.write(row, _NO_KEYWORDS, reserialized, partial(carries, before=position))
        calls.append(call)
        if needed:
            needs[position] = needed
    return calls, needs


def name_of(fn: object) -> str:
    """The module, if there is one, and qualified name of a callable for display, shortened to the limit of messages."""
    named = fn if hasattr(fn, "__qualname__") else getattr(fn, "func", type(fn))
    module, name = getattr(named, "__module__", None), getattr(named, "__qualname__", type(named).__qualname__)
    return shortened(f"{module}:{name}" if module else str(name), NAME)


class Callee:
    """A function as it was when it was serialized. Immutable but for caches; a modified function is another Callee."""

    __slots__ = ("body", "check", "content", "group", "reference", "unchanged")

    def __init__(self, check: CallCheck, unchanged: Unchanged, body: FunctionBody, content: bytes) -> None:
        self.reference: weakref.ref[Any] | None = None
        """A weak reference to the function, if it is cached."""
        self.check, self.unchanged = check, unchanged
        self.body = body
        self.content = content
        """The id of its bytes, also if they are in object storage."""
        self.group: CallGroup | None = None
        """The group of calls without options."""


def _always_changed(fn: object) -> bool:
    """The check of a function that is serialized for every call."""
    return False


class Callees:
    """The functions of one client, serialized once, and again when their pickle would differ."""

    def __init__(self, writer: CallWriter, *, stream_output: bool | str, store: Store = bytes) -> None:
        self.parent = 0
        """The run whose code submits, 0 outside of tasks."""
        self._writer = writer
        self._environment: ClientEnvironment | None = None
        self._environment_key = entered_key() if writer.encoding == Encoding.PICKLE else None
        """What functions are wrapped with: the own environment, or that of the task around the client."""
        self._stream_output = output_mode(stream_output)
        self._store = store
        self._bodies: weakref.WeakValueDictionary[bytes, FunctionBody] = weakref.WeakValueDictionary()
        self._callees: dict[int, Callee] = {}
        self._by_value = frozenset(by_value_modules)
        self._groups: dict[object, CallGroup] = {}

    def enter(self, environment: ClientEnvironment) -> None:
        """Functions have this environment from now on.

        Raises ValueError for a custom serializer, and ScalerError if the environment cannot be stored.
        """
        if self._writer.encoding != Encoding.PICKLE:
            raise ValueError("a client with a serializer of its own can have no initializer, and upload nothing")
        self._environment_key = environment.key(self._store)
        self._environment = environment
        self._callees.clear()

    def upload(self, bundle: Bundle) -> None:
        """Functions have these modules, too, from now on; raises as `enter` does."""
        self.enter((self._environment or ClientEnvironment({}, None, b"")).with_bundle(bundle))

    def find(self, fn: Callable[..., Any]) -> Callee:
        """The Callee of a function; raises TypeError for an object that is not callable."""
        if (by_value_modules or self._by_value) and by_value_modules != self._by_value:
            self._by_value = frozenset(by_value_modules)
            self._callees.clear()
        callee = self._callees.get(id(fn))
        if callee is None or not callee.unchanged(fn):
            return self.write(fn)
        return callee

    def write(self, fn: Callable[..., Any]) -> Callee:
        """Serialize a function, and cache it if changes of its pickle can be detected.

        Raises TypeError for an object that is not callable. Threads may race: each uses the Callee it found or made.
        """
        if not callable(fn):
            raise TypeError(f"the first argument must be callable, and {shown(fn)} is not")
        # Before it is serialized, so that a change in between is detected the next time.
        check, unchanged = check_for(fn), watch(fn)
        try:
            written = self._dump(self._environment_key, fn)
        except Exception as error:
            name = f"the function {name_of(fn)}"
            add_note(error, self._writer.fault_in(name, fn) or f"raised while {name} was serialized")
            raise
        identity = function_id(written)
        known = self._callees.get(id(fn))
        if known is not None and known.content == identity:
            body = known.body
        else:
            dump = partial(self._dump, self._environment_key)
            body = self._body(identity, name_of(fn), written, fn, dump)
        callee = Callee(check, unchanged or _always_changed, body, identity)
        if unchanged is None or not self._cache(fn, callee):
            self._callees.pop(id(fn), None)
        return callee

    def _dump(self, environment: EnvironmentKey | None, fn: Callable[..., Any]) -> bytes:
        written = self._writer.wrapped(self._writer.dump(fn), name_of(fn))
        return environment.wrap(written) if environment is not None else written

    def group(self, callee: Callee) -> CallGroup:
        """The group of calls without options."""
        group = callee.group
        if group is None or group.parent != self.parent:
            group = callee.group = self.group_with(callee)
        return group

    def group_with(
        self,
        callee: Callee,
        capabilities: Capabilities = (),
        *,
        priority: int = 0,
        retries: int = 0,
        timeout_seconds: float = 0.0,
        speculate: bool = False,
        worker: bytes = b"",
    ) -> CallGroup:
        """The group of calls with these options; equal options give the same group."""
        body, serializer = callee.body, self._writer.serializer
        key = (body.id, self.parent, capabilities, priority, retries, timeout_seconds, speculate, worker)
        if key in self._groups:
            return self._groups[key]
        if len(self._groups) >= _GROUPS_KEPT:
            self._groups.clear()
        wire = Group(
            function=body.id,
            capability_names=tuple(name for name, _ in capabilities),
            capability_values=tuple(value for _, value in capabilities),
            priority=priority,
            retries=retries,
            timeout_seconds=timeout_seconds,
            encoding=self._writer.encoding,
            serializer=serializer.id if serializer else b"",
            stream_output=self._stream_output,
            speculate=speculate,
            worker=worker,
        )
        bodies = (body, serializer) if serializer else (body,)
        group = CallGroup(wire, bodies, self._writer.load, self._writer.dump, self.parent, self._writer.fetching)
        if type(body.body) is not StoredPayload:  # a stored body must not outlive its function and its calls
            self._groups[key] = group
        return group

    def clear(self) -> None:
        """Forget all functions."""
        self._callees.clear()
        self._groups.clear()
        self._bodies.clear()

    def _cache(self, fn: Callable[..., Any], callee: Callee) -> bool:
        """Cache the function as long as it lives; False if it has no weak references, so that its id may be reused."""
        key, callees = id(fn), self._callees

        def forget(reference: object) -> None:  # must not refer to the callee: that would be a cycle
            if (known := callees.get(key)) is not None and known.reference is reference:
                del callees[key]

        try:
            callee.reference = weakref.ref(fn, forget)
        except TypeError:
            return False
        if len(callees) >= _CALLEES_KEPT:
            callees.clear()
        callees[key] = callee
        return True

    def _body(
        self, identity: bytes, name: str, written: bytes, fn: Callable[..., Any], dump: Callable[[Any], bytes]
    ) -> FunctionBody:
        body = self._bodies.get(identity)
        if body is None:
            handle = self._store(written)
            if type(handle) is not StoredPayload:
                return FunctionBody(identity, name, written)
            handle.object.set_source(weak_source(fn, dump, checksum(written)))
            body = self._bodies[identity] = FunctionBody(function_id(handle, stored=True), name, handle)
        return body
