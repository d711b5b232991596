"""`dataclass` that compiles methods when they are first called, and makes fields when they are first read.

`dataclasses.dataclass` compiles up to seven methods for each class, and makes an object for each field. That is two
fifths of what the start of a process costs, and most of them are never used there. Classes made here have the same
fields and methods, and `dataclasses.fields`, `replace` and `asdict` take them. Their annotations are texts. An instance
of one that is frozen and has slots is made in half the time: `__init__` calls the setters of the slots instead of
`object.__setattr__`.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError, fields
from dataclasses import dataclass as _with_fields
from types import MemberDescriptorType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass

_NO_FIELDS = ("ClassVar", "KW_ONLY")
"""Annotations that begin with these are not those of fields."""
_ADDED = ("__dataclass_fields__", "__dataclass_params__", "__match_args__")
_OF_EACH_CLASS = ("__dict__", "__weakref__")


def _dataclass(
    *, frozen: bool = False, slots: bool = False, eq: bool = True, kw_only: bool = False
) -> Callable[[Any], Any]:
    """As `dataclasses.dataclass` with these parameters."""

    def decorate(cls: Any) -> Any:
        own = vars(cls)
        methods: dict[str, Any] = {"__init__": _init, "__repr__": _repr}
        if eq:
            methods["__eq__"] = _eq
        if frozen:
            methods |= _FROZEN
        for name in methods.keys() - own.keys():
            setattr(cls, name, methods[name])
        if eq and own.get("__hash__") is None:
            cls.__hash__ = _hash if frozen else None
        names = [name for name, kind in cls.__annotations__.items() if not kind.startswith(_NO_FIELDS)]
        defaults = {name: own[name] for name in names if name in own}
        declared = {"__annotations__": cls.__annotations__, "__module__": cls.__module__, "__doc__": "-", **defaults}
        added = {name: _Added(declared, kw_only) for name in _ADDED}
        return _with_slots(cls, names, added) if slots else _without_slots(cls, defaults, added)

    return decorate


if not TYPE_CHECKING:
    dataclass = _dataclass


class _Added:
    """What `dataclasses.dataclass` adds to a class; when one of these is first read, all of them are made."""

    __slots__ = ("_declared", "_kw_only", "_name", "_owner")

    def __init__(self, declared: dict[str, Any], kw_only: bool) -> None:
        self._declared, self._kw_only = declared, kw_only

    def __set_name__(self, owner: Any, name: str) -> None:
        self._owner, self._name = owner, name

    def __get__(self, instance: object, owner: Any = None) -> Any:
        cls = self._owner
        like: Any = type(cls.__name__, (), self._declared)
        _with_fields(init=False, repr=False, eq=False, kw_only=self._kw_only)(like)
        found: dict[str, Field[Any]] = {}
        for base in reversed(cls.__mro__[1:]):
            found |= getattr(base, "__dataclass_fields__", {})
        cls.__dataclass_fields__ = found | like.__dataclass_fields__
        positional = tuple(field.name for field in fields(cls) if field.init and not field.kw_only)
        for name, value in (("__dataclass_params__", like.__dataclass_params__), ("__match_args__", positional)):
            setattr(cls, name, value)
        return getattr(cls, self._name)


def _with_slots(cls: Any, names: list[str], added: dict[str, _Added]) -> Any:
    """A class as this one, with slots instead of default values."""
    inherited = {slot for base in cls.__mro__[1:] for slot in vars(base).get("__slots__", ())}
    content = {name: value for name, value in vars(cls).items() if name not in names and name not in _OF_EACH_CLASS}
    content["__slots__"] = tuple(name for name in names if name not in inherited)
    made: Any = type(cls)(cls.__name__, cls.__bases__, content | added)
    made.__qualname__ = cls.__qualname__
    return made


def _without_slots(cls: Any, defaults: dict[str, Any], added: dict[str, _Added]) -> Any:
    for name, default in defaults.items():
        if not isinstance(default, Field):
            continue
        if default.default is MISSING:
            delattr(cls, name)
        else:
            setattr(cls, name, default.default)
    for name, attribute in added.items():
        setattr(cls, name, attribute)
        attribute.__set_name__(cls, name)
    return cls


def _init(self: Any, /, *args: Any, **kwargs: Any) -> None:
    cls = _decorated(type(self))
    cls.__init__ = _compiled(cls, "__init__", *_source_of_init(cls))
    cls.__init__(self, *args, **kwargs)


def _eq(self: Any, other: object) -> Any:
    cls = _decorated(type(self))
    compared = [field.name for field in fields(cls) if field.compare]
    lines = [
        "if self.__class__ is not other.__class__: return NotImplemented",
        f"return {_tuple_of('self', compared)} == {_tuple_of('other', compared)}",
    ]
    cls.__eq__ = _compiled(cls, "__eq__", "self, other", lines, {})
    return cls.__eq__(self, other)


def _hash(self: Any) -> int:
    cls = _decorated(type(self))
    hashed = [field.name for field in fields(cls) if (field.compare if field.hash is None else field.hash)]
    cls.__hash__ = _compiled(cls, "__hash__", "self", [f"return hash({_tuple_of('self', hashed)})"], {})
    found: int = cls.__hash__(self)
    return found


@reprlib.recursive_repr()
def _repr(self: Any) -> str:
    values = ", ".join(f"{field.name}={getattr(self, field.name)!r}" for field in fields(self) if field.repr)
    return f"{type(self).__qualname__}({values})"


def _refuse_assignment(self: Any, name: str, value: object) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_deletion(self: Any, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[Any]:
    return [getattr(self, field.name) for field in fields(self)]


def _restore(self: Any, state: list[Any]) -> None:
    for field, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)


_FROZEN = {
    "__setattr__": _refuse_assignment,
    "__delattr__": _refuse_deletion,
    "__getstate__": _state,
    "__setstate__": _restore,
}


def _decorated(cls: type[Any]) -> Any:
    """The class itself, or the next one that it inherits from, that has fields of its own."""
    return next(base for base in cls.__mro__ if "__dataclass_fields__" in vars(base))


def _tuple_of(owner: str, names: list[str]) -> str:
    return f"({''.join(f'{owner}.{name}, ' for name in names)})"


def _source_of_init(cls: Any) -> tuple[str, list[str], dict[str, Any]]:
    """Parameters and statements of `__init__`, and the values of the names in them."""
    is_frozen = cls.__setattr__ is _refuse_assignment
    values: dict[str, Any] = {"_missing": MISSING, "_set": object.__setattr__}
    positional, keywords, lines = ["self"], ["*"], []
    for field in fields(cls):
        name = field.name
        if field.init:
            (keywords if field.kw_only else positional).append(_parameter(field, values))
        value = _value(field, values)
        if not value:
            continue
        if not is_frozen:
            lines.append(f"self.{name} = {value}")
        elif isinstance(slot := getattr(cls, name, None), MemberDescriptorType):
            values[f"_set_{name}"] = slot.__set__
            lines.append(f"_set_{name}(self, {value})")
        else:
            lines.append(f"_set(self, {name!r}, {value})")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    parameters = positional + (keywords if len(keywords) > 1 else [])
    return ", ".join(parameters), lines or ["pass"], values


def _parameter(field: Field[Any], values: dict[str, Any]) -> str:
    if field.default is not MISSING:
        values[f"_default_{field.name}"] = field.default
        return f"{field.name}=_default_{field.name}"
    return field.name if field.default_factory is MISSING else f"{field.name}=_missing"


def _value(field: Field[Any], values: dict[str, Any]) -> str:
    """The expression of the value that `__init__` assigns to a field; "" if it assigns none."""
    name = field.name
    if field.default_factory is not MISSING:
        values[f"_make_{name}"] = field.default_factory
        return f"_make_{name}() if {name} is _missing else {name}" if field.init else f"_make_{name}()"
    if field.init:
        return name
    if field.default is MISSING:
        return ""
    values[f"_default_{name}"] = field.default
    return f"_default_{name}"


def _compiled(cls: type[Any], name: str, parameters: str, lines: list[str], values: dict[str, Any]) -> Any:
    source = "\n ".join([f"def {name}({parameters}):", *lines])
    exec(compile(source, f"<dataclass {cls.__qualname__}>", "exec"), values)
    method = values[name]
    method.__qualname__ = f"{cls.__qualname__}.{name}"
    method.__module__ = cls.__module__
    return method
