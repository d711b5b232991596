"""Classes that travel by value: what becomes of one in the process that loads it.

Theory. cloudpickle writes such a class as an id, which it keeps wherever it goes, and its state, which is another one
each time the class was changed. In the process that defined it the class stays what it is, whatever state a result
brings. Elsewhere every function that is loaded has classes of its own, in the state that came with it, as it has
globals of its own. What a task loads besides (arguments, results of other tasks) uses the classes of its function; of
classes that the function does not have it uses those that were loaded first since the task began. So a task never sees
the state of another call, and an instance that it is given is one of the class that its function knows.

A class that is complete is never given another state. The ids are those of cloudpickle, which is told of every class
that is loaded, as users may call it themselves.
"""

from __future__ import annotations

import pickle
import weakref
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from io import BytesIO
from types import FunctionType
from typing import Any, Final

import cloudpickle

PROTOCOL: Final = 5
_BY_VALUE: Final = (type, FunctionType)
_BY_NAME: Final = (__name__, cloudpickle.Pickler.__module__)
"""Modules whose functions stand in every pickle by value, and travel by name."""
_REDUCED: Final = 6
"""Parts of what cloudpickle makes of what it writes by value; the last sets the state."""

_tracker: Final[Any] = vars(cloudpickle)["cloudpickle"]
"""The module with the tables of classes and their ids."""
_loaded: weakref.WeakSet[type] = weakref.WeakSet()
_incomplete: weakref.WeakSet[type] = weakref.WeakSet()
_defined: weakref.WeakValueDictionary[str, type] = weakref.WeakValueDictionary()
"""Classes of this process that were written, by id."""


class _Scope:
    """The classes, by id, that what is loaded now is of: those loaded before, or else those defined here."""

    def __init__(self) -> None:
        self.defined: Mapping[str, type] = _defined
        self.loaded: MutableMapping[str, type] | None = None
        """None outside of workers, where all is that cloudpickle knows."""


scope: Final = _Scope()


@contextmanager
def defining() -> Iterator[Mapping[str, type]]:
    """While a function is loaded: the classes that come with it, which nobody else has. A task begins then."""
    defined, scope.defined = scope.defined, {}
    classes: dict[str, type] = {}
    scope.loaded = classes
    try:
        yield classes
    finally:
        scope.defined, scope.loaded = defined, {}


def begin(classes: Mapping[str, type]) -> None:
    """A task begins, whose function has these classes. Nothing need be said where neither it nor the last had any."""
    scope.loaded = dict(classes)
    for identity, made in classes.items():
        _track(identity, made)


class Pickler(cloudpickle.Pickler):
    """Writes what cloudpickle does, and classes so that they are loaded as is said above."""

    def reducer_override(self, obj: Any) -> Any:
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
    """The pickle of anything that cloudpickle takes."""
    file = BytesIO()
    Pickler(file, PROTOCOL, buffer_callback).dump(value)
    return file.getvalue()


def make_class(identity: str, make: Callable[..., type], args: tuple[Any, ...]) -> type:
    """The class with this id, which is made, without its state, where there is none."""
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
    """Have cloudpickle, where somebody calls it, write this class with this id, and load it for this id."""
    with _tracker._DYNAMIC_CLASS_TRACKER_LOCK:
        _tracker._DYNAMIC_CLASS_TRACKER_BY_CLASS[made] = identity
        _tracker._DYNAMIC_CLASS_TRACKER_BY_ID[identity] = made


def complete_class(made: type, state: tuple[Callable[[type, Any], object], Any]) -> None:
    """Set the state of a class that has none yet."""
    if made in _incomplete:
        set_state, written = state
        set_state(made, written)
        _incomplete.discard(made)
