"""Classes that are pickled by value: which class object a pickle yields in the process that loads it.

Theory. cloudpickle writes such a class as an id, which is the same in every process, and a state (the attributes of the
class), which may differ between two pickles of a class that was changed in between. The process that defined the class
keeps its own class object; the state in a pickle is ignored there. In any other process each loaded function gets class
objects of its own, with the state in its own pickle, just as it gets globals of its own. The other values that a task
loads (arguments, results of other tasks) use the class objects of the task's function. A class that the function does
not contain is created from the first value of the task that contains it. So a task never sees the state from another
call, and `isinstance` works between its arguments and the classes of its function.

A function of `functools.cache` and `lru_cache` is pickled by value where a function would be: as the function that it
wraps, with an empty cache of the same size.

The state of a class is set only once. The ids are those of cloudpickle, and every loaded class is registered with
cloudpickle, because user code may call cloudpickle directly.
"""

from __future__ import annotations

import pickle
import weakref
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from concurrent.futures import Future
from contextlib import contextmanager
from functools import lru_cache
from io import BytesIO
from types import FunctionType
from typing import Any, Final

import cloudpickle

from scaler_client.payloads.captures import CACHE_ATTRIBUTES, CACHED_FUNCTION, is_pickled_by_name
from scaler_protocol.ranges import shown

PROTOCOL: Final = 5
_BY_VALUE: Final = (type, FunctionType)
_BY_NAME: Final = (__name__, cloudpickle.Pickler.__module__)
"""Modules whose functions are pickled by name: every pickle of a class refers to some of them."""
_REDUCED: Final = 6
"""Length of the tuple to which cloudpickle reduces a class that it pickles by value; its last item sets the state."""

_tracker: Final[Any] = vars(cloudpickle)["cloudpickle"]
"""The module with the tables of classes and their ids."""
_loaded: weakref.WeakSet[type] = weakref.WeakSet()
_incomplete: weakref.WeakSet[type] = weakref.WeakSet()
_defined: weakref.WeakValueDictionary[str, type] = weakref.WeakValueDictionary()
"""Classes that this process has defined and pickled, by id."""


class _Scope:
    """Where `make_class` looks for a class, by its id: in `loaded` first, then in `defined`."""

    def __init__(self) -> None:
        self.defined: Mapping[str, type] = _defined
        self.loaded: MutableMapping[str, type] | None = None
        """The classes loaded for the current task; None outside of workers, where cloudpickle's own table is used."""


scope: Final = _Scope()


@contextmanager
def defining() -> Iterator[Mapping[str, type]]:
    """A context in which a function is loaded with class objects of its own; yields these by id. A task begins then."""
    defined, scope.defined = scope.defined, {}
    classes: dict[str, type] = {}
    scope.loaded = classes
    try:
        yield classes
    finally:
        scope.defined, scope.loaded = defined, {}


def begin(classes: Mapping[str, type]) -> None:
    """A task begins whose function has these classes. May be left out if neither this nor the last function has any."""
    scope.loaded = dict(classes)
    for identity, made in classes.items():
        _track(identity, made)


class Pickler(cloudpickle.Pickler):
    """cloudpickle's pickler, but classes that are pickled by value are loaded by `make_class` and `complete_class`."""

    reductions: Mapping[type, Callable[[Any], Any]] = {}
    """Of a subclass: how it reduces values of these types."""

    def __init__(
        self, file: BytesIO, protocol: int, buffer_callback: Callable[[pickle.PickleBuffer], bool] | None = None
    ) -> None:
        # cloudpickle has a ChainMap, which runs Python code for each value that is pickled; a dict does not.
        chained: Any = cloudpickle.Pickler.dispatch_table
        table: dict[type, Callable[[Any], Any]] = {}
        for reductions in reversed(chained.maps):
            table.update(reductions)
        self.dispatch_table = {**table, **self.reductions}
        super().__init__(file, protocol, buffer_callback)

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, Future) and type(obj).__reduce__ is object.__reduce__:
            raise TypeError(f"{shown(obj)} is no future of a client, and can not be pickled: pass its result")
        if type(obj) is CACHED_FUNCTION and not is_pickled_by_name(obj):
            parameters = obj.cache_parameters()
            attributes = {name: value for name, value in vars(obj).items() if name not in CACHE_ATTRIBUTES}
            return make_cached, (obj.__wrapped__, parameters["maxsize"], parameters["typed"]), attributes
        if not isinstance(obj, _BY_VALUE) or (type(obj) is FunctionType and obj.__module__ in _BY_NAME):
            return NotImplemented
        reduced = super().reducer_override(obj)
        if type(reduced) is not tuple or len(reduced) != _REDUCED or not issubclass(type(obj), type):
            return reduced
        make, (*args, written_id, extra), state, _, _, set_state = reduced
        if obj not in _loaded:
            _defined[written_id] = obj
        return make_class, (written_id, make, (*args, None, extra)), (set_state, state), None, None, complete_class


def dumps(value: Any, buffer_callback: Callable[[pickle.PickleBuffer], bool] | None = None) -> bytes:
    """The pickle of a value; raises as cloudpickle does."""
    file = BytesIO()
    Pickler(file, PROTOCOL, buffer_callback).dump(value)
    return file.getvalue()


def make_cached(fn: Callable[..., Any], maxsize: int | None, typed: bool) -> Callable[..., Any]:
    """The function with an empty cache."""
    return lru_cache(maxsize, typed)(fn)


def make_class(identity: str, make: Callable[..., type], args: tuple[Any, ...]) -> type:
    """The class with this id; a new one, without its state, if this id is unknown."""
    loaded = _tracker._DYNAMIC_CLASS_TRACKER_BY_ID if scope.loaded is None else scope.loaded
    for known in (loaded, scope.defined):
        if (found := known.get(identity)) is not None:
            return found
    made = make(*args)
    _loaded.add(made)
    _incomplete.add(made)
    loaded[identity] = made
    _track(identity, made)
    return made


def _track(identity: str, made: type) -> None:
    """Register a class with cloudpickle, so that its own functions pickle the class with this id, and find it by it."""
    with _tracker._DYNAMIC_CLASS_TRACKER_LOCK:
        _tracker._DYNAMIC_CLASS_TRACKER_BY_CLASS[made] = identity
        _tracker._DYNAMIC_CLASS_TRACKER_BY_ID[identity] = made


def complete_class(made: type, state: tuple[Callable[[type, Any], object], Any]) -> None:
    """Set the state of a class unless it has one."""
    if made in _incomplete:
        set_state, written = state
        set_state(made, written)
        _incomplete.discard(made)
